//! The scenarios of links whose rate changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_autorate::Settings;
use weir_linksim::{Link, Scheme, Trace};
use weir_units::BitRate;

/// The length of a trace.
const TRACE_SECONDS: u64 = 120;

/// The kind of the scenario: tells these from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Measures {
    /// Use and queue of a link whose rate changes.
    #[serde(rename = "variable")]
    Variable,
}

/// The settings of a download beside those of an upload. The scheduler stands behind the link and the provider's queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Download {
    /// The link's rates are this many times those of the trace.
    pub(crate) times: f64,
    /// Weights of the classes. The flows belong to them in turn.
    pub(crate) weights: Vec<u32>,
    /// Seconds before anything is judged: all flows begin at once on a link whose rate no one knows.
    pub(crate) settles: u64,
    /// Each flow ends after this time, and another one begins in its place. Without it they never end.
    #[serde(default)]
    pub(crate) lasts_ms: Option<u64>,
    /// The largest distance of a class's share from its weight's, as a fraction of the latter.
    pub(crate) most_share_error: f64,
}

impl Download {
    fn fault(&self) -> Option<String> {
        if self.weights.is_empty() || self.weights.contains(&0) || self.lasts_ms == Some(0) {
            return Some("weights and lasts_ms say what arrives: none may be empty or zero".into());
        }
        if self.times <= 0.0 || !self.times.is_finite() {
            return Some(format!("times = {} is no multiple of a rate", self.times));
        }
        if self.settles >= TRACE_SECONDS {
            return Some(format!("settles = {} leaves nothing of {TRACE_SECONDS} s to judge", self.settles));
        }
        (!(0.0..=1.0).contains(&self.most_share_error))
            .then(|| format!("most_share_error = {} is not a fraction", self.most_share_error))
    }
}

/// An upload, or a download, over one kind of link, once for each seed and scheme.
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
    /// Always [`Measures::Variable`].
    pub(crate) measures: Measures,
    /// The kind of link.
    pub(crate) link: Link,
    /// Traces, each from a seed of its own.
    pub(crate) seeds: u64,
    /// CUBIC flows that always send.
    pub(crate) flows: usize,
    /// `[link] capacity` of weir, or `download`: its lowest rate.
    pub(crate) min: BitRate,
    /// The same: its highest rate.
    pub(crate) max: BitRate,
    /// The same: its `delay`.
    pub(crate) delay_ms: u64,
    /// The direction is a download.
    #[serde(default)]
    pub(crate) download: Option<Download>,
    /// The least part of the link's bytes that weir uses.
    pub(crate) least_used: f64,
    /// The longest wait of 95 of 100 packets, ms.
    #[serde(default)]
    pub(crate) most_ms: Option<f64>,
    /// The same as a multiple of the oracle's.
    #[serde(default)]
    pub(crate) most_over_oracle: Option<f64>,
}

impl Scenario {
    /// The settings that do not fit together, if any.
    #[must_use]
    pub(crate) fn fault(&self) -> Option<String> {
        if self.seeds == 0 || self.flows == 0 {
            return Some("seeds and flows say what is simulated: neither may be zero".into());
        }
        if !(0.0..=1.0).contains(&self.least_used) {
            return Some(format!("least_used = {} is not a fraction", self.least_used));
        }
        self.download.as_ref().and_then(Download::fault).or_else(|| self.settings().err())
    }

    pub(super) fn trace(&self, seed: u64) -> Trace {
        self.link.trace(seed).times(self.download.as_ref().map_or(1.0, |download| download.times))
    }

    /// The owner of the queue in which packets wait for the link.
    pub(super) fn owner(&self) -> &'static str {
        if self.download.is_some() { "provider" } else { "modem" }
    }

    /// The follower's settings.
    ///
    /// # Errors
    /// Those that it refuses, in words.
    pub(super) fn settings(&self) -> Result<Settings, String> {
        let delay = Duration::from_millis(self.delay_ms);
        Settings::new(self.min, self.max, delay).map_err(|error| error.to_string())
    }

    /// Simulations in all.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        self.seeds as usize * Scheme::ALL.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::tests::settings;

    #[test]
    fn a_scenario_that_does_not_fit_together_is_refused() {
        let good: Scenario = settings("variable-lte");
        assert_eq!(good.fault(), None);
        let fault = |change: fn(&mut Scenario)| {
            let mut scenario = good.clone();
            change(&mut scenario);
            scenario.fault().unwrap()
        };
        assert!(fault(|s| s.seeds = 0).contains("neither may be zero"));
        assert!(fault(|s| s.least_used = 84.0).contains("84 is not a fraction"));
        assert!(fault(|s| s.min = BitRate::mbit(50)).contains("50mbit"));
    }

    #[test]
    fn a_download_that_does_not_fit_together_is_refused() {
        let good: Scenario = settings("variable-download-flows");
        assert_eq!(good.fault(), None);
        let fault = |change: fn(&mut Download)| {
            let mut scenario = good.clone();
            change(scenario.download.as_mut().unwrap());
            scenario.fault().unwrap()
        };
        assert!(fault(|d| d.weights.push(0)).contains("none may be empty or zero"));
        assert!(fault(|d| d.lasts_ms = Some(0)).contains("none may be empty or zero"));
        assert!(fault(|d| d.times = 0.0).contains("times = 0"));
        assert!(fault(|d| d.settles = 120).contains("settles = 120"));
        assert!(fault(|d| d.most_share_error = 3.0).contains("most_share_error = 3"));
    }

    #[test]
    fn the_wanted_figures_of_the_built_in_files_stay() {
        for (name, used, ms, over) in [
            ("variable-dsl", 0.88, Some(30.0), None),
            ("variable-starlink", 0.88, Some(30.0), None),
            ("variable-lte", 0.84, None, Some(1.5)),
            ("variable-download-dsl", 0.88, Some(30.0), None),
            ("variable-download-starlink", 0.88, Some(30.0), None),
            ("variable-download-lte", 0.84, None, Some(1.5)),
            ("variable-download-flows", 0.88, Some(30.0), None),
        ] {
            let scenario: Scenario = settings(name);
            assert_eq!((scenario.least_used, scenario.most_ms, scenario.most_over_oracle), (used, ms, over));
            assert_eq!(scenario.seeds, 10);
            let share = scenario.download.map(|download| download.most_share_error);
            assert_eq!(share, name.contains("download").then_some(0.03));
        }
    }
}
