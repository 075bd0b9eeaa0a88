//! The capacity of the link at run time.

use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use crate::DownloadStatus;

use crate::shapes::present;

/// A change of the link's capacities by hand.
///
/// An omitted field stays as it is. `null` removes the value set by hand, so that the configuration applies
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetCapacity {
    /// The link's device. Without it the change is about the main link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
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

/// The reason for the capacity of a link whose rate changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FollowState {
    /// The capacity follows the acknowledged rate and the link's queue.
    Track,
    /// The link answers nothing. The capacity stays.
    Silent,
    /// The link's queue is drained, so that the round trip without it is seen.
    Look,
    /// The queue is another sender's, or the path is longer. The capacity is the one before.
    Foreign,
    /// Packets leave, and no round trip tells the queue. The capacity is what was usual.
    Blind,
    /// The classes leave a part of the capacity.
    Idle,
    /// The signals are lost. The capacity is the least one.
    Lost,
}

impl std::fmt::Display for FollowState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            FollowState::Track => "track",
            FollowState::Silent => "silent",
            FollowState::Look => "look",
            FollowState::Foreign => "foreign",
            FollowState::Blind => "blind",
            FollowState::Idle => "idle",
            FollowState::Lost => "lost",
        })
    }
}

/// The follower of a link whose rate changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Follows {
    /// The lowest capacity. Minima are promised of it.
    pub min: BitRate,
    /// The highest capacity.
    pub max: BitRate,
    /// The queueing delay that 95 of 100 packets should not exceed.
    pub delay_ms: u64,
    /// The capacity that it decided on.
    pub capacity: BitRate,
    /// The reason.
    pub state: FollowState,
    /// The link's queue at the last look, if a round trip told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_us: Option<u64>,
    /// The decisions are only told, and `max` is shared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The error if the signals cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A link of the configuration that the default route does not take. It divides its own capacities between the
/// same classes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OtherLink {
    /// The device.
    pub device: String,
    /// The capacity of its upload now.
    pub capacity: BitRate,
    /// The configured capacity, if another one set by hand is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured_capacity: Option<BitRate>,
    /// The rate of all classes together over the last second.
    pub rate: BitRate,
    /// The follower of its rate, if the capacity is a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Follows>,
    /// Sum of the floors promised there.
    pub reserved: BitRate,
    /// The sum of the floors that may be promised there.
    pub reservable: BitRate,
    /// The number of classes that send there.
    pub active: usize,
    /// Its download, if the node shares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadStatus>,
    /// Whether the node has this device now.
    pub is_here: bool,
    /// The reason if it is here and not divided as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_enforced_because: Option<String>,
    /// Networks beside the device (`[link] exempt`). Packets to and from them are not scheduled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<String>,
    /// The promises that do not fit there, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpromised: Vec<String>,
}

/// The capacities of the main link, and the other links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LinkView {
    /// The device.
    pub device: String,
    /// The other links of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherLink>,
    /// The upload.
    pub upload: Capacity,
    /// The framing of the line, if it is configured. Capacities count what the line carries then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framing: Option<String>,
    /// The follower of the upload's rate, if the capacity is a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Follows>,
    /// The download, if the node shares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<Capacity>,
    /// The follower of the download's rate, if that is configured as a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_follows: Option<Follows>,
    /// Networks beside the device (`[link] exempt`). Packets to and from them are not scheduled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<String>,
    /// The promises that do not fit, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpromised: Vec<String>,
}
