//! The scenarios of simulated image caches.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use weir_cache::{
    PolicyKind,
    generate::{ZONES, Zone},
    simulate::TimeModel,
};
use weir_units::{BitRate, Bytes};

/// The kind of the scenario: tells these from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Measures {
    /// Hit ratio by size of a shared cache.
    #[serde(rename = "image-hits")]
    Hits,
    /// Nodes with a cache each, or one together: hit ratio and deployment time.
    #[serde(rename = "image-sites")]
    Sites,
    /// Fetch time of policies beside LRU.
    #[serde(rename = "image-policies")]
    Policies,
}

/// An experiment about image caches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Its name for `weir lab run`.
    pub(crate) name: String,
    /// One line.
    pub(crate) title: String,
    /// Where the experiment comes from.
    pub(crate) source: String,
    /// The result that it shows.
    pub(crate) about: String,
    /// The one of these.
    pub(crate) measures: Measures,
    /// The most deployments of each zone.
    pub(crate) deployments: usize,
    /// The same with `--paper`.
    pub(crate) paper_deployments: usize,
    /// The compared policies; the first is judged, of `image-policies` `auto`.
    pub(crate) policies: Vec<PolicyKind>,
    /// Sizes of the cache; of `image-sites` a node's and the site's.
    #[serde(default)]
    pub(crate) budgets: Vec<Bytes>,
    /// The same as parts of the zone's working set.
    #[serde(default)]
    pub(crate) parts: Vec<f64>,
    /// Nodes of the site.
    #[serde(default = "one")]
    pub(crate) nodes: usize,
    /// Traces of each zone.
    #[serde(default = "one")]
    pub(crate) seeds: usize,
    /// By which part `auto` may be above LRU.
    #[serde(default)]
    pub(crate) most_over_lru: Option<f64>,
    /// Weir's own times, beside the paper's; of `image-sites`.
    #[serde(default)]
    pub(crate) measured: Option<Measured>,
    /// The zones.
    #[serde(rename = "zone")]
    pub(crate) zones: Vec<ZoneCase>,
}

/// A deployment by Docker as `pop-micro` measures it, where a cache of the site has the image.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measured {
    /// The start of a container whose image is on the node.
    pub(crate) start_ms: u64,
    /// The time that a pull from the site's cache takes whatever its size.
    pub(crate) shared_ms: u64,
    /// The rate at which a node copies and unpacks an image from there.
    pub(crate) lan: BitRate,
}

impl Measured {
    /// The same for the simulation. Blobs that no cache has come as in the paper.
    pub(super) fn model(self) -> TimeModel {
        let [start, shared] = [self.start_ms, self.shared_ms].map(Duration::from_millis);
        TimeModel { start, shared, lan: Some(self.lan), ..TimeModel::PAPER }
    }
}

/// The times of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Times {
    /// Table III of the paper.
    #[default]
    Paper,
    /// [`Measured`].
    Measured,
}

fn one() -> usize {
    1
}

/// A zone, and what is wanted of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ZoneCase {
    /// As the paper calls it.
    pub(crate) name: String,
    /// By size of the cache: the least part of deployments that find their image.
    #[serde(default)]
    pub(crate) at_least: BTreeMap<String, f64>,
    /// The same: the most.
    #[serde(default)]
    pub(crate) at_most: BTreeMap<String, f64>,
    /// The paper's working set.
    #[serde(default)]
    pub(crate) working_set_gb: Option<f64>,
    /// The paper's part of deployments that find their image in the shared cache.
    #[serde(default)]
    pub(crate) hits: Option<f64>,
    /// The same without sharing.
    #[serde(default)]
    pub(crate) hits_per_node: Option<f64>,
    /// By which part sharing shortens deployments, at least, as in the paper.
    #[serde(default)]
    pub(crate) reduction: Option<f64>,
    /// By which part `auto` is below LRU at 5 % of the working set, at least.
    #[serde(default)]
    pub(crate) below_lru: Option<f64>,
}

impl ZoneCase {
    /// The source of its traces.
    #[must_use]
    pub(crate) fn zone(&self) -> Option<&'static Zone> {
        ZONES.iter().find(|zone| zone.name == self.name)
    }
}

impl Scenario {
    /// The settings that do not fit together, if any.
    #[must_use]
    pub(crate) fn fault(&self) -> Option<String> {
        if self.zones.is_empty() || self.policies.is_empty() || self.deployments == 0 || self.seeds == 0 {
            return Some(
                "zones, policies, deployments and seeds say what is simulated: none may be empty or zero"
                    .into(),
            );
        }
        if let Some(unknown) = self.zones.iter().find(|zone| zone.zone().is_none()) {
            let known: Vec<_> = ZONES.iter().map(|zone| zone.name).collect();
            return Some(format!("there is no zone {}: take {}", unknown.name, known.join(", ")));
        }
        let sizes = self.zones.iter().flat_map(|zone| zone.at_least.keys().chain(zone.at_most.keys()));
        for size in sizes {
            match size.parse::<Bytes>() {
                Ok(bytes) if self.budgets.contains(&bytes) => {}
                _ => {
                    return Some(format!("a zone wants something at {size}, which is not among the budgets"));
                }
            }
        }
        match self.measures {
            Measures::Hits if self.budgets.is_empty() => Some("image-hits needs budgets".into()),
            Measures::Sites if self.budgets.len() != 2 || self.nodes < 2 => {
                Some("image-sites needs two budgets, a node's and the site's, and at least two nodes".into())
            }
            Measures::Policies if self.parts.is_empty() || !self.policies.contains(&PolicyKind::Lru) => {
                Some("image-policies needs parts of the working set, and lru among the policies".into())
            }
            _ => None,
        }
    }

    /// Simulations in all.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        let each = match self.measures {
            Measures::Hits => self.budgets.len() * self.policies.len(),
            // With and without sharing, at once and in turn.
            Measures::Sites => 4 * (self.policies.len() + usize::from(self.measured.is_some())) * self.seeds,
            Measures::Policies => self.parts.len() * self.policies.len(),
        };
        self.zones.len() * each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_that_does_not_fit_together_is_refused() {
        let text = include_str!("../../scenarios/pop-hits.toml");
        let good: Scenario = toml::from_str(text).unwrap();
        assert_eq!(good.fault(), None);
        let fault = |change: fn(&mut Scenario)| {
            let mut scenario = good.clone();
            change(&mut scenario);
            scenario.fault().unwrap()
        };
        assert!(fault(|s| s.zones.clear()).contains("none may be empty"));
        assert!(fault(|s| s.zones[0].name = "par".into()).contains("no zone par: take fra, syd"));
        assert!(fault(|s| s.budgets.truncate(2)).contains("32GiB"));
        assert!(fault(|s| s.measures = Measures::Sites).contains("two budgets"));
        assert!(fault(|s| s.measures = Measures::Policies).contains("lru among"));
    }
}
