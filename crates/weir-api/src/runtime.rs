//! The images that a container runtime keeps itself, and their budget.

use serde::{Deserialize, Serialize};
use weir_units::Bytes;

use crate::{Client, ClientError};

/// `GET /v1/images/runtime`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RuntimeImages {
    /// The runtime: `docker`.
    pub runtime: String,
    /// Its socket.
    pub socket: String,
    /// Whether removals are only reported.
    pub dry_run: bool,
    /// The configured policy.
    pub policy: String,
    /// The policy in use now. It differs from `policy` if that is `auto`.
    pub follows: String,
    /// The most bytes that the layers of all images may have.
    pub budget: Bytes,
    /// The bytes that they had at the last look. A layer of several images counts once.
    pub bytes: Bytes,
    /// The bytes above the budget that no removal can free now.
    pub short: Bytes,
    /// The time of the last look, ms since the epoch; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_ms: Option<u64>,
    /// The reason if the last attempt to look or to remove failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Images removed since the start.
    pub removed: u64,
    /// The bytes that this freed.
    pub removed_bytes: Bytes,
    /// Removals that the runtime refused since the start, because a container had the image.
    pub refused: u64,
    /// The images of the last look, sorted by name.
    pub images: Vec<RuntimeImage>,
}

/// An image that a container runtime keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RuntimeImage {
    /// The runtime's id of it.
    pub id: String,
    /// Its names; none for an image without.
    pub names: Vec<String>,
    /// Its size, with the layers that it shares.
    pub bytes: Bytes,
    /// The bytes that its removal alone would free.
    pub alone: Bytes,
    /// When it was pulled, or first seen, ms since the epoch.
    pub pulled_ms: u64,
    /// When a container had it last, ms since the epoch. Without a container: when it was pulled.
    pub used_ms: u64,
    /// The number of its uses that weir saw; a pull counts as the first.
    pub uses: u32,
    /// The reasons why it stays; none if it may go.
    pub kept: Vec<String>,
    /// Its place in the order of removal, from 1, if it is to go now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<u32>,
}

impl Client {
    /// The images that the container runtime keeps.
    ///
    /// # Errors
    /// [`ClientError`]; code `no-images` without `[images.runtime]`.
    pub fn runtime_images(&self) -> Result<RuntimeImages, ClientError> {
        self.get("/v1/images/runtime")
    }
}
