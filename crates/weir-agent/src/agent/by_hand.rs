//! The values that are set by hand, at run time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use crate::config::Layer;

/// Policies set by hand, by class name.
pub(crate) type SetLayers = BTreeMap<String, Layer>;

/// The capacities set by hand. `None` leaves the configuration's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ByHand {
    pub(crate) capacity: Option<BitRate>,
    pub(crate) download: Option<BitRate>,
}
