//! The capacity of the link at run time.

use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use crate::shapes::present;

/// A change of the link's capacities by hand.
///
/// An omitted field stays as it is. `null` removes the value set by hand, so that the configuration applies
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetCapacity {
    /// New capacity of what leaves.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Option<BitRate>>,
    /// New capacity of what arrives.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub download: Option<Option<BitRate>>,
}

/// The capacity of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Capacity {
    /// The rate that is divided now.
    pub capacity: BitRate,
    /// The configured rate, if another one set by hand is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<BitRate>,
}

/// The link's capacities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LinkView {
    /// The device.
    pub device: String,
    /// The upload.
    pub upload: Capacity,
    /// The download, if the node shares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<Capacity>,
    /// The promises that do not fit, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpromised: Vec<String>,
}
