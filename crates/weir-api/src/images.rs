//! The image cache: what it holds, and what it is asked to do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes};

use crate::{Client, ClientError};
use hyper::Method;

/// `GET /v1/images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Images {
    /// By name.
    pub images: Vec<Image>,
    /// Patterns of images that stay.
    pub pins: Vec<String>,
}

/// An image of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Repository and tag, or digest.
    pub image: String,
    /// Its manifest.
    pub digest: String,
    /// Of an image for several platforms, those that are here.
    pub platforms: Vec<String>,
    /// Of its bytes, those that are here; what several images share counts in each.
    pub present: Bytes,
    /// All its bytes.
    pub total: Bytes,
    /// When something of it was last asked for.
    pub used_ms: u64,
    /// How often the most asked-for part of it was.
    pub hits: u64,
    /// Kept by a pin.
    pub pinned: bool,
    /// A container has it.
    pub in_use: bool,
}

/// `GET /v1/images/usage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageUsage {
    /// Where Docker and containerd ask.
    pub listen: String,
    /// Where blobs are kept.
    pub directory: String,
    /// Blobs and manifests.
    pub blobs: usize,
    /// The room that they take.
    pub bytes: Bytes,
    /// Set aside for downloads.
    pub reserved: Bytes,
    /// Of `bytes`, what may not be evicted now: in use, pinned, being sent, new.
    pub held: Bytes,
    /// The bound on all of it.
    pub budget: Bytes,
    /// The free space of the file system,
    pub free: Bytes,
    /// and what of that is to stay free.
    pub keep_free: Bytes,
    /// The eviction policy as configured,
    #[serde(default)]
    pub policy: String,
    /// and which policy that one follows: another if it is `auto`.
    #[serde(default)]
    pub follows: String,
    /// Counters since the start, by name: `blob_hits`, `upstream_bytes`, …
    pub counters: BTreeMap<String, u64>,
    /// When the blob that was checked the longest ago was; none if there is no blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_check_ms: Option<u64>,
    /// The most that is downloaded from registries; none: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<BitRate>,
    /// The site that it has its cache with, if it is not alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pop: Option<ImagePop>,
}

/// A site whose nodes have one cache together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePop {
    /// Its name.
    pub name: String,
    /// This node.
    pub node: String,
    /// Where blobs are: `shared-dir` or `peer`.
    pub store: String,
    /// The nodes that said so less than a minute ago, this one too; as it was when it could be asked.
    pub nodes: Vec<String>,
    /// Why the nodes cannot coordinate now; each goes on by itself then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `GET /v1/images/peers`: what each of the other nodes said when it was asked just now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagePeer {
    /// Its address.
    pub node: String,
    /// Of its weir, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// By how much its clock is ahead of this node's, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_ms: Option<i64>,
    /// Why nothing comes from it, if nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `POST /v1/images/pin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinImage {
    /// Images by name; `*` stands for anything.
    pub pattern: String,
    /// Whether they stay from now on, or not any longer.
    pub stays: bool,
}

/// `POST /v1/images/remove`, `POST /v1/images/warm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedImage {
    /// As people write it: `nginx:1.27`, `ghcr.io/acme/app@sha256:…`.
    pub image: String,
    /// For `warm`: which one of an image for several; the node's own unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// For `remove`: also if a pin names it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// `POST /v1/images/prune`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneImages {
    /// The bytes that may remain beside blobs in use and pinned ones.
    pub down_to: Bytes,
}

/// `POST /v1/images/scrub`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubImages {
    /// Bytes a second at most; none: as fast as the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bytes>,
}

/// `POST` and `GET /v1/images/scrub`: how far the check is that was asked for last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// Blobs that were looked at,
    pub blobs: u64,
    /// of this number.
    pub of_blobs: u64,
    /// Their bytes.
    pub bytes: Bytes,
    /// Those of all.
    pub of_bytes: Bytes,
    /// Digests of what was not what it is called any more, and was taken away.
    pub corrupt: Vec<String>,
    /// It is over:
    pub is_over: bool,
    /// and something could not be read, for this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The bytes that became free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freed {
    /// Bytes.
    pub freed: Bytes,
}

/// `POST /v1/images/pin`: whether that was a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// It was.
    pub changed: bool,
}

/// `POST /v1/images/warm`: to ask with how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmId {
    /// Its number.
    pub id: u64,
}

/// `GET /v1/images/warm/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warming {
    /// The image, in full.
    pub image: String,
    /// All its bytes; 0 until its manifest is here.
    pub total: Bytes,
    /// Those that are here.
    pub done: Bytes,
    /// It is over:
    pub is_over: bool,
    /// and failed for this.
    pub error: Option<String>,
}

impl Client {
    /// The images of the cache.
    ///
    /// # Errors
    /// [`ClientError`]; code `no-images` if the agent keeps none.
    pub fn images(&self) -> Result<Images, ClientError> {
        self.get("/v1/images")
    }

    /// How full the cache is, and what it counted.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn image_usage(&self) -> Result<ImageUsage, ClientError> {
        self.get("/v1/images/usage")
    }

    /// Asks the other nodes of a site, which ask each other, whether they take this one for a peer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn image_peers(&self) -> Result<Vec<ImagePeer>, ClientError> {
        self.get("/v1/images/peers")
    }

    /// Has images stay, or not any longer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn pin_image(&self, pin: &PinImage) -> Result<Pinned, ClientError> {
        self.call(Method::POST, "/v1/images/pin", Some(pin))
    }

    /// Removes an image, and its blobs that nothing else needs.
    ///
    /// # Errors
    /// [`ClientError`]; code `unknown-name` if there is no such image.
    pub fn remove_image(&self, image: &NamedImage) -> Result<Freed, ClientError> {
        self.call(Method::POST, "/v1/images/remove", Some(image))
    }

    /// Evicts what nothing holds.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn prune_images(&self, prune: &PruneImages) -> Result<Freed, ClientError> {
        self.call(Method::POST, "/v1/images/prune", Some(prune))
    }

    /// Begins to check all blobs against their digests, or goes on with that.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn scrub_images(&self, how: &ScrubImages) -> Result<Scrub, ClientError> {
        self.call(Method::POST, "/v1/images/scrub", Some(how))
    }

    /// How far [`Client::scrub_images`] is.
    ///
    /// # Errors
    /// [`ClientError`]; code `unknown-name` if no client asked for it since the cache began.
    pub fn image_scrub(&self) -> Result<Scrub, ClientError> {
        self.get("/v1/images/scrub")
    }

    /// Begins to fetch an image.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn warm_image(&self, image: &NamedImage) -> Result<WarmId, ClientError> {
        self.call(Method::POST, "/v1/images/warm", Some(image))
    }

    /// How far [`Client::warm_image`] is.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn image_warming(&self, id: u64) -> Result<Warming, ClientError> {
        self.get(&format!("/v1/images/warm/{id}"))
    }
}
