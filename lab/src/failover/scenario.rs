//! The scenarios of two links.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_share::{Allocator, Demand, Sharer};
use weir_units::BitRate;

use crate::{control::kind::ControlKind, scenario::Setting};

/// The kind of the scenario: tells these from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Measures {
    /// Shares around a move of the default route.
    #[serde(rename = "failover")]
    Failover,
}

/// A link, layer 2.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    /// The rate of the line.
    pub(crate) line: BitRate,
    /// The rate that weir divides.
    pub(crate) capacity: BitRate,
}

/// Containers that send over the link of the default route, which moves once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// The name for `weir lab run`.
    pub(crate) name: String,
    /// A title of one line.
    pub(crate) title: String,
    /// The source of the experiment.
    pub(crate) source: String,
    /// The purpose of the experiment.
    pub(crate) about: String,
    /// Always [`Measures::Failover`].
    pub(crate) measures: Measures,
    /// The link of the better route.
    pub(crate) first: Link,
    /// The other link.
    pub(crate) second: Link,
    /// Seconds of load on the first link.
    pub(crate) before: u64,
    /// Seconds of load after the move.
    pub(crate) after: u64,
    /// The same with `--paper`.
    pub(crate) paper_after: u64,
    /// The largest allowed distance of a share, as a fraction of it.
    pub(crate) tolerance: f64,
    /// The longest time from the move to exact shares, seconds.
    pub(crate) most_s: f64,
    /// The controls to compare.
    pub(crate) controls: Vec<ControlKind>,
    /// The containers' policies and loads. A load is of datagrams.
    pub(crate) containers: BTreeMap<String, Setting>,
}

impl Scenario {
    /// The settings that do not fit together, if any.
    #[must_use]
    pub(crate) fn fault(&self) -> Option<String> {
        if self.containers.is_empty() || self.controls.is_empty() {
            return Some("containers and controls say what is compared: neither may be empty".into());
        }
        // A run that is never exact has its whole length as time, which must be too long.
        let least_after = self.most_s + 1.0;
        if self.before < 2 || (self.after.min(self.paper_after) as f64) < least_after {
            return Some(format!(
                "the load lasts at least 2 s before the move, and most_s and a second ({least_after} s) after it"
            ));
        }
        for link in [self.first, self.second] {
            if link.line < link.capacity {
                return Some(format!(
                    "the line's {} are less than the capacity of {}, so the line would decide",
                    link.line, link.capacity
                ));
            }
        }
        for (name, setting) in &self.containers {
            if !matches!(setting.send, weir_netlab::traffic::Load::Udp(_)) {
                return Some(format!("{name} sends {}: use `udp RATE`", setting.send));
            }
            if let Err(error) = setting.policy() {
                return Some(format!("{name}: {error}"));
            }
        }
        if self.controls.contains(&ControlKind::Cni) {
            return Some("cni has ceilings only, and they do not depend on the link".into());
        }
        None
    }

    /// The share of each container on a link, Mbit/s of layer 2, in the order of the names.
    ///
    /// Minima that do not fit together are not promised there.
    #[must_use]
    pub(super) fn due(&self, link: Link) -> Vec<f64> {
        let floors: u64 = self.containers.values().map(|setting| setting.min.unwrap_or_default().0).sum();
        let fits = floors <= link.capacity.0;
        let sharers: Vec<Sharer> = self
            .containers
            .values()
            .map(|setting| {
                let min = setting.min.filter(|_| fits);
                let policy = Setting { min, ..*setting }.policy().expect("checked when it was read");
                Sharer::new(policy, Demand::UNLIMITED)
            })
            .collect();
        let mut allocator = Allocator::water_filling();
        allocator.allocate(link.capacity, &[], &sharers).iter().map(|rate| rate.as_mbit()).collect()
    }

    /// Runs in all.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        self.controls.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::tests::settings;

    #[test]
    fn minimum_that_does_not_fit_the_second_link_is_not_due_there() {
        let scenario: Scenario = settings("failover");
        assert_eq!(scenario.due(scenario.first), [30.0, 10.0]);
        assert_eq!(scenario.due(scenario.second), [2.0, 8.0]);
        assert_eq!((scenario.tolerance, scenario.most_s), (0.03, 2.0));
    }

    #[test]
    fn a_scenario_that_does_not_fit_together_is_refused() {
        let good: Scenario = settings("failover");
        assert_eq!(good.fault(), None);
        let fault = |change: fn(&mut Scenario)| {
            let mut scenario = good.clone();
            change(&mut scenario);
            scenario.fault().unwrap()
        };
        assert!(fault(|s| s.containers.clear()).contains("neither may be empty"));
        assert!(fault(|s| s.after = 1).contains("(3 s) after it"));
        assert!(fault(|s| s.second.line = BitRate::mbit(1)).contains("the line would decide"));
        assert!(fault(|s| s.controls = vec![ControlKind::Cni]).contains("ceilings only"));
        let no_load = |s: &mut Scenario| s.containers.get_mut("C1").unwrap().send = Default::default();
        assert!(fault(no_load).contains("C1 sends"));
    }
}
