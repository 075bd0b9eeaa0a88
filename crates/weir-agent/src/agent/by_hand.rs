//! The values that are set by hand, at run time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use crate::config::Layer;

/// Policies set by hand, by class name.
pub(crate) type SetLayers = BTreeMap<String, Layer>;

/// The capacities of one link that are set by hand. `None` leaves the configuration's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct LinkByHand {
    pub(crate) capacity: Option<BitRate>,
    pub(crate) download: Option<BitRate>,
}

/// The capacities set by hand.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ByHand {
    /// Those of a single link.
    #[serde(flatten)]
    pub(crate) single: LinkByHand,
    /// Those of several links, by their devices.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) links: BTreeMap<String, LinkByHand>,
}
