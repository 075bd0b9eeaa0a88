//! The scenarios of simulated image caches.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_cache::{
    PolicyKind,
    generate::{ZONES, Zone},
};
use weir_units::Bytes;

/// The kind of the scenario: tells these from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measures {
    /// Hit ratio by size of a shared cache.
    ImageHits,
    /// Nodes with a cache each, or one together: hit ratio and deployment time.
    ImageSites,
    /// Fetch time of policies beside LRU.
    ImagePolicies,
}

/// An experiment about image caches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name for `weir lab run`.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where the experiment comes from.
    pub source: String,
    /// The result that it shows.
    pub about: String,
    /// The one of these.
    pub measures: Measures,
    /// The most deployments of each zone.
    pub deployments: usize,
    /// The same with `--paper`.
    pub paper_deployments: usize,
    /// The compared policies; the first is judged, of `image-policies` `auto`.
    pub policies: Vec<PolicyKind>,
    /// Sizes of the cache; of `image-sites` a node's and the site's.
    #[serde(default)]
    pub budgets: Vec<Bytes>,
    /// The same as parts of the zone's working set.
    #[serde(default)]
    pub parts: Vec<f64>,
    /// Nodes of the site.
    #[serde(default = "one")]
    pub nodes: usize,
    /// Traces of each zone.
    #[serde(default = "one")]
    pub seeds: usize,
    /// By which part `auto` may be above LRU.
    #[serde(default)]
    pub most_over_lru: Option<f64>,
    /// The zones.
    #[serde(rename = "zone")]
    pub zones: Vec<ZoneCase>,
}

fn one() -> usize {
    1
}

/// A zone, and what is wanted of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneCase {
    /// As the paper calls it.
    pub name: String,
    /// By size of the cache: the least part of deployments that find their image.
    #[serde(default)]
    pub at_least: BTreeMap<String, f64>,
    /// The same: the most.
    #[serde(default)]
    pub at_most: BTreeMap<String, f64>,
    /// The paper's working set.
    #[serde(default)]
    pub working_set_gb: Option<f64>,
    /// The least part of deployments that find their image in the shared cache, as in the paper.
    #[serde(default)]
    pub hits: Option<f64>,
    /// The paper's without sharing.
    #[serde(default)]
    pub paper_hits_per_node: Option<f64>,
    /// By which part sharing shortens deployments, at least, as in the paper.
    #[serde(default)]
    pub reduction: Option<f64>,
    /// By which part `auto` is below LRU at 5 % of the working set, at least.
    #[serde(default)]
    pub below_lru: Option<f64>,
}

impl ZoneCase {
    /// The source of its traces.
    #[must_use]
    pub fn zone(&self) -> Option<&'static Zone> {
        ZONES.iter().find(|zone| zone.name == self.name)
    }
}

impl Scenario {
    /// The settings that do not fit together, if any.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
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
            Measures::ImageHits if self.budgets.is_empty() => Some("image-hits needs budgets".into()),
            Measures::ImageSites if self.budgets.len() != 2 || self.nodes < 2 => {
                Some("image-sites needs two budgets, a node's and the site's, and at least two nodes".into())
            }
            Measures::ImagePolicies if self.parts.is_empty() || !self.policies.contains(&PolicyKind::Lru) => {
                Some("image-policies needs parts of the working set, and lru among the policies".into())
            }
            _ => None,
        }
    }

    /// Simulations in all.
    #[must_use]
    pub fn steps(&self) -> usize {
        let each = match self.measures {
            Measures::ImageHits => self.budgets.len() * self.policies.len(),
            // With and without sharing, at once and in turn.
            Measures::ImageSites => 4 * self.policies.len() * self.seeds,
            Measures::ImagePolicies => self.parts.len() * self.policies.len(),
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
        assert!(fault(|s| s.measures = Measures::ImageSites).contains("two budgets"));
        assert!(fault(|s| s.measures = Measures::ImagePolicies).contains("lru among"));
    }
}
