//! The image cache: its contents, and the requests it takes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes};

use crate::{Client, ClientError};
use hyper::Method;

/// `GET /v1/images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Images {
    /// Sorted by name.
    pub images: Vec<Image>,
    /// Name patterns of images that are kept.
    pub pins: Vec<String>,
}

/// An image in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Image {
    /// Repository and tag, or digest.
    pub image: String,
    /// The digest of its manifest.
    pub digest: String,
    /// The cached platforms of an image for several platforms.
    pub platforms: Vec<String>,
    /// The cached part of its bytes. A blob of several images counts in each.
    pub present: Bytes,
    /// All its bytes.
    pub total: Bytes,
    /// When a part of it was last requested, ms since the epoch.
    pub used_ms: u64,
    /// The number of requests for its most requested part.
    pub hits: u64,
    /// Whether a pin keeps it.
    pub pinned: bool,
    /// Whether a container uses it.
    pub in_use: bool,
}

/// `GET /v1/images/usage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImageUsage {
    /// The address that Docker and containerd ask.
    pub listen: String,
    /// The directory of the blobs.
    pub directory: String,
    /// The number of blobs and manifests.
    pub blobs: usize,
    /// Their size.
    pub bytes: Bytes,
    /// Bytes set aside for downloads.
    pub reserved: Bytes,
    /// The part of `bytes` that may not be evicted now: in use, pinned, being sent or new.
    pub held: Bytes,
    /// The largest number of bytes that the cache may take.
    pub budget: Bytes,
    /// The free space of the file system.
    pub free: Bytes,
    /// The part of `free` that the cache must leave free.
    pub keep_free: Bytes,
    /// The configured eviction policy.
    #[serde(default)]
    pub policy: String,
    /// The policy in use now. It differs from `policy` if that is `auto`.
    #[serde(default)]
    pub follows: String,
    /// Counters since the start by name: `blob_hits`, `upstream_bytes`, …
    pub counters: BTreeMap<String, u64>,
    /// The time of the oldest check among all blobs; none without blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_check_ms: Option<u64>,
    /// The highest rate of downloads from registries; `None` means no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<BitRate>,
    /// The site that shares its cache with this node, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pop: Option<ImagePop>,
}

/// A site whose nodes share one cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImagePop {
    /// The site's name.
    pub name: String,
    /// This node's name.
    pub node: String,
    /// Where the blobs are: `shared-dir` or `peer`.
    pub store: String,
    /// The nodes that reported in the last minute, with this one. The list is from the last successful
    /// query.
    pub nodes: Vec<String>,
    /// The reason if the nodes cannot coordinate now. Each then works alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `GET /v1/images/peers`: what one other node answered just now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImagePeer {
    /// The node's address.
    pub node: String,
    /// Its weir version, if it reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The lead of its clock over this node's clock, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_ms: Option<i64>,
    /// The reason if it gives no blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `POST /v1/images/pin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PinImage {
    /// Image names; `*` matches any text.
    pub pattern: String,
    /// Whether the pin is set (`true`) or removed.
    pub stays: bool,
}

/// `POST /v1/images/remove`, `POST /v1/images/warm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedImage {
    /// The image's name as users write it: `nginx:1.27`, `ghcr.io/acme/app@sha256:…`.
    pub image: String,
    /// For `warm`: the platform of an image for several. The default is the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// For `remove`: also removes a pinned image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// `POST /v1/images/prune`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PruneImages {
    /// The bytes that may remain beside images in use and pinned ones.
    pub down_to: Bytes,
}

/// `POST /v1/images/scrub`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScrubImages {
    /// Bytes per second at most; `None` means as fast as the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bytes>,
}

/// `POST` and `GET /v1/images/scrub`: the progress of the latest scrub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Scrub {
    /// Blobs checked so far.
    pub blobs: u64,
    /// Blobs to check.
    pub of_blobs: u64,
    /// Bytes checked so far.
    pub bytes: Bytes,
    /// Bytes to check.
    pub of_bytes: Bytes,
    /// Digests of corrupt blobs. They were removed.
    pub corrupt: Vec<String>,
    /// Digests of blobs whose file was removed by another program. They are not among the checked ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Whether the scrub has ended.
    pub is_over: bool,
    /// The reason if something could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Freed {
    /// Bytes that became free.
    pub freed: Bytes,
}

/// `POST /v1/images/pin`: the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pinned {
    /// Whether the pin changed.
    pub changed: bool,
}

/// `POST /v1/images/warm`: the id to ask for progress with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WarmId {
    /// The id.
    pub id: u64,
}

/// `GET /v1/images/warm/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Warming {
    /// The image's full name.
    pub image: String,
    /// The image's size; 0 until its manifest is here.
    pub total: Bytes,
    /// Bytes fetched so far.
    pub done: Bytes,
    /// Whether the download has ended.
    pub is_over: bool,
    /// The reason if it failed.
    pub error: Option<String>,
}

impl Client {
    /// The images in the cache.
    ///
    /// # Errors
    /// [`ClientError`]; code `no-images` if the agent has no image cache.
    pub fn images(&self) -> Result<Images, ClientError> {
        self.get("/v1/images")
    }

    /// The fill level and the counters of the cache.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn image_usage(&self) -> Result<ImageUsage, ClientError> {
        self.get("/v1/images/usage")
    }

    /// Asks each other node of the site whether it accepts this node as a peer. The nodes ask each
    /// other.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn image_peers(&self) -> Result<Vec<ImagePeer>, ClientError> {
        self.get("/v1/images/peers")
    }

    /// Pins or unpins images.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn pin_image(&self, pin: &PinImage) -> Result<Pinned, ClientError> {
        self.call(Method::POST, "/v1/images/pin", Some(pin))
    }

    /// Removes an image and the blobs that no other image needs.
    ///
    /// # Errors
    /// [`ClientError`]; code `unknown-name` if there is no such image.
    pub fn remove_image(&self, image: &NamedImage) -> Result<Freed, ClientError> {
        self.call(Method::POST, "/v1/images/remove", Some(image))
    }

    /// Evicts blobs until the rest fits the request. Blobs in use and pinned blobs stay.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn prune_images(&self, prune: &PruneImages) -> Result<Freed, ClientError> {
        self.call(Method::POST, "/v1/images/prune", Some(prune))
    }

    /// Starts or continues a check of all blobs against their digests.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn scrub_images(&self, how: &ScrubImages) -> Result<Scrub, ClientError> {
        self.call(Method::POST, "/v1/images/scrub", Some(how))
    }

    /// The progress of [`Client::scrub_images`].
    ///
    /// # Errors
    /// [`ClientError`]; code `unknown-name` if no scrub was requested since the cache started.
    pub fn image_scrub(&self) -> Result<Scrub, ClientError> {
        self.get("/v1/images/scrub")
    }

    /// Starts the download of an image.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn warm_image(&self, image: &NamedImage) -> Result<WarmId, ClientError> {
        self.call(Method::POST, "/v1/images/warm", Some(image))
    }

    /// The progress of [`Client::warm_image`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn image_warming(&self, id: u64) -> Result<Warming, ClientError> {
        self.get(&format!("/v1/images/warm/{id}"))
    }
}
