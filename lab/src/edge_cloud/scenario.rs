//! The scenarios about completion times.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_cc::Rule;
use weir_units::{BitRate, Bytes};

/// The measured quantity, which marks scenarios of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measures {
    /// Completion times of flows and jobs.
    Completion,
}

/// The way in which a flow's congestion control is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// CUBIC for all flows, requested by the application.
    Cubic,
    /// BBR (version 1) for all flows, requested by the application.
    Bbr,
    /// The paper's mix: BBR on the edge link for at most `Scenario::mix_most`, else CUBIC.
    Mix,
    /// `Scenario::rule`, applied by weir's BPF program. The default is weir's own rule: BBR for a flow's
    /// first MiB, in a small window, then CUBIC.
    Weir,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Algorithm::Cubic => "cubic",
            Algorithm::Bbr => "bbr",
            Algorithm::Mix => "mix",
            Algorithm::Weir => "weir",
        })
    }
}

/// The destination of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    /// To the edge server.
    Edge,
    /// To the cloud server.
    Cloud,
}

impl Place {
    /// Both places.
    pub(crate) const ALL: [Place; 2] = [Place::Edge, Place::Cloud];

    /// The name in scenario files.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::Edge => "edge",
            Place::Cloud => "cloud",
        }
    }
}

/// A link, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The rate at layer 2, as in tc.
    pub(crate) rate: BitRate,
    /// The link's part of a round trip, ms.
    pub(crate) rtt_ms: f64,
    /// The largest queue in front of the link, in products of `rate` and `rtt_ms`.
    pub(crate) buffer_bdp: f64,
    /// Fraction of packets lost at random, behind the buffer.
    #[serde(default)]
    pub loss: f64,
}

impl Link {
    /// The buffer's size, at least three frames.
    #[must_use]
    pub(crate) fn buffer(&self) -> Bytes {
        let bdp = self.rate.bits_per_sec() as f64 / 8e3 * self.rtt_ms;
        Bytes(((bdp * self.buffer_bdp).round() as u64).max(3 * 1514))
    }
}

/// The part of a job's volume that goes over a link.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leg {
    /// The part from the client, as a fraction of the volume.
    pub(crate) up: f64,
    /// The part back, sent when all of `up` has arrived.
    #[serde(default)]
    pub(crate) down: f64,
}

/// The way in which jobs use the links.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Unique within the scenario.
    pub(crate) name: String,
    /// The leg over the edge link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) edge: Option<Leg>,
    /// The leg over the cloud link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cloud: Option<Leg>,
}

impl Case {
    /// The case's legs, and their destinations.
    pub(crate) fn legs(&self) -> impl Iterator<Item = (Place, Leg)> {
        [(Place::Edge, self.edge), (Place::Cloud, self.cloud)]
            .into_iter()
            .filter_map(|(place, leg)| Some((place, leg?)))
    }
}

/// Small jobs among the clients' jobs; [`Scenario::small_share`] gives their part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Small {
    /// The smallest and the largest volume; the volume's logarithm is drawn evenly. Not scaled.
    pub(crate) volume: [Bytes; 2],
}

/// Links that replace those of the scenario; each combination is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sweep {
    /// Round trips of both links, ms.
    pub(crate) rtt_ms: Vec<f64>,
    /// Buffers of both links.
    pub(crate) buffer_bdp: Vec<f64>,
    /// Random losses of both links.
    pub(crate) loss: Vec<f64>,
    /// Parts of the jobs that are small, by number.
    pub(crate) small_share: Vec<f64>,
}

/// One combination of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Round trip, ms.
    pub(crate) rtt_ms: f64,
    /// Buffer, in BDPs.
    pub(crate) buffer_bdp: f64,
    /// Random loss, as a fraction.
    pub(crate) loss: f64,
    /// The part of the jobs that is small.
    pub(crate) small_share: f64,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Side {
    /// One of the cases.
    pub(crate) case: String,
    /// One of the algorithms.
    pub(crate) algorithm: Algorithm,
}

/// The completion times to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Population {
    /// Flows' times on all links, as in the paper.
    #[default]
    Flow,
    /// Jobs' times.
    Job,
    /// Small jobs' times.
    Small,
    /// The times of jobs that are not small.
    Long,
}

/// A claim about the ratio of two sides' completion times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Claim {
    /// It is below this.
    Below(f64),
    /// It differs from 1 by less than this.
    Within(f64),
}

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// It holds on the whole confidence interval.
    Confirmed,
    /// It holds nowhere on it.
    Refuted,
    /// The interval does not decide it.
    Open,
}

/// A finding of the paper or of weir, to be confirmed or refuted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finding {
    /// The finding in words.
    pub(crate) says: String,
    /// The numerator's side.
    pub(crate) of: Side,
    /// The denominator's side.
    pub(crate) by: Side,
    /// The times to compare, of flows or jobs.
    #[serde(default)]
    pub(crate) whose: Population,
    /// The percentile to compare; the mean without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) percentile: Option<f64>,
    /// The claim about the ratio.
    pub(crate) claim: Claim,
    /// The expected outcome; judged if present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expect: Option<Outcome>,
}

/// An experiment about completion times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name for `weir lab run`.
    pub(crate) name: String,
    /// A title of one line.
    pub(crate) title: String,
    /// The source of the experiment, such as a paper's figure.
    pub(crate) source: String,
    /// The purpose of the experiment.
    pub(crate) about: String,
    /// The mark of this kind of scenario.
    pub(crate) measures: Measures,
    /// The algorithms to compare.
    pub algorithms: Vec<Algorithm>,
    /// Number of sets of volumes; each is measured with all algorithms.
    pub seeds: usize,
    /// Number of sets with `--paper`.
    pub(crate) paper_seeds: usize,
    /// Clients with a job each; all jobs begin at once.
    pub clients: usize,
    /// The smallest and the largest volume of a job, drawn evenly.
    pub volume: [Bytes; 2],
    /// The factor of volumes and `mix_most`.
    #[serde(default = "whole")]
    pub(crate) scale: f64,
    /// The factor with `--paper`.
    #[serde(default = "whole")]
    pub(crate) paper_scale: f64,
    /// The largest volume that algorithm `mix` sends by BBR, in one direction.
    #[serde(default = "mix_most")]
    pub(crate) mix_most: Bytes,
    /// The rule of algorithm `weir`.
    #[serde(default, skip_serializing_if = "is_own")]
    pub(crate) rule: Rule,
    /// Jobs beside the clients', which begin at random while those go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) small: Option<Small>,
    /// The part of all jobs that is small, by number.
    #[serde(default)]
    pub(crate) small_share: f64,
    /// A link that all flows share; without it, clients are directly at the edge and cloud links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) access: Option<Link>,
    /// The link to the edge server.
    pub(crate) edge: Link,
    /// The link to the cloud server.
    pub cloud: Link,
    /// Other links in place of `edge` and `cloud`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sweep: Option<Sweep>,
    /// The other links with `--paper`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paper_sweep: Option<Sweep>,
    /// The ways in which jobs use the links.
    #[serde(rename = "case")]
    pub(crate) cases: Vec<Case>,
    /// The findings to examine.
    #[serde(default, rename = "finding", skip_serializing_if = "Vec::is_empty")]
    pub(crate) findings: Vec<Finding>,
}

fn whole() -> f64 {
    1.0
}
fn is_own(rule: &Rule) -> bool {
    *rule == Rule::default()
}
fn mix_most() -> Bytes {
    Bytes(10_000_000)
}

impl Scenario {
    /// Selects all seeds, volumes and points of the sweep, as for `--paper`.
    pub(crate) fn make_whole(&mut self) {
        (self.seeds, self.scale) = (self.paper_seeds, self.paper_scale);
        if let Some(sweep) = self.paper_sweep.take() {
            self.sweep = Some(sweep);
        }
    }

    /// The combinations of the sweep; a single `None` without a sweep.
    #[must_use]
    pub(crate) fn points(&self) -> Vec<Option<Point>> {
        let Some(sweep) = &self.sweep else { return vec![None] };
        let mut points = Vec::new();
        for &small_share in &sweep.small_share {
            for &rtt_ms in &sweep.rtt_ms {
                for &loss in &sweep.loss {
                    for &buffer_bdp in &sweep.buffer_bdp {
                        points.push(Some(Point { rtt_ms, buffer_bdp, loss, small_share }));
                    }
                }
            }
        }
        points
    }

    /// The link to a place, at a point of the sweep.
    #[must_use]
    pub(crate) fn link(&self, place: Place, point: Option<Point>) -> Link {
        let link = match place {
            Place::Edge => self.edge,
            Place::Cloud => self.cloud,
        };
        point.map_or(link, |Point { rtt_ms, buffer_bdp, loss, .. }| Link { rtt_ms, buffer_bdp, loss, ..link })
    }

    /// The part of the jobs that is small, at a point of the sweep.
    #[must_use]
    pub(crate) fn small_share(&self, point: Option<Point>) -> f64 {
        point.map_or(self.small_share, |point| point.small_share)
    }

    /// The number of measurements.
    #[must_use]
    pub(crate) fn steps(&self) -> usize {
        self.points().len() * self.cases.len() * self.algorithms.len() * self.seeds
    }

    /// The scenario's contradiction, in words.
    pub(crate) fn fault(&self) -> Option<String> {
        let empty = self.cases.is_empty() || self.algorithms.is_empty() || self.points().is_empty();
        if empty || self.seeds == 0 || self.paper_seeds == 0 || self.clients == 0 {
            return Some(
                "cases, algorithms, seeds, clients and what is swept say what is measured: none may be \
                 empty or zero"
                    .to_owned(),
            );
        }
        let upside_down = |[low, high]: [Bytes; 2]| low > high || low.0 == 0;
        if upside_down(self.volume) || self.small.is_some_and(|small| upside_down(small.volume)) {
            return Some("a volume is [least, greatest], and the least is more than nothing".to_owned());
        }
        for scale in [self.scale, self.paper_scale] {
            if !(scale > 0.0 && scale <= 1.0) {
                return Some(format!("volumes cannot be scaled by {scale}: more than 0 and at most 1"));
            }
        }
        for point in self.points() {
            let share = self.small_share(point);
            if !(0.0..=0.99).contains(&share) || share > 0.0 && self.small.is_none() {
                return Some(format!(
                    "a share of {share} of the jobs cannot be small: 0 to 0.99, and [small] says how small"
                ));
            }
            for place in Place::ALL {
                if let Some(fault) = link_fault(place.name(), self.link(place, point)) {
                    return Some(fault);
                }
            }
        }
        if let Some(fault) = self.access.and_then(|link| link_fault("access", link)) {
            return Some(fault);
        }
        let rule = || self.rule.check().err().map(|error| format!("[rule]: {error}"));
        rule().or_else(|| self.cases.iter().find_map(Case::fault)).or_else(|| self.finding_fault())
    }

    fn finding_fault(&self) -> Option<String> {
        self.findings.iter().find_map(|finding| {
            let sides = [&finding.of, &finding.by];
            let stranger = sides.into_iter().find(|side| {
                !self.algorithms.contains(&side.algorithm)
                    || self.cases.iter().all(|case| case.name != side.case)
            });
            stranger.map(|side| {
                format!(
                    "finding `{}` is about {} in case {}, which is not measured here",
                    finding.says, side.algorithm, side.case
                )
            })
        })
    }
}

impl Case {
    fn fault(&self) -> Option<String> {
        let legs: Vec<Leg> = self.legs().map(|(_, leg)| leg).collect();
        let sum: f64 = legs.iter().map(|leg| leg.up + leg.down).sum();
        let none = legs.is_empty() || legs.iter().any(|leg| leg.up <= 0.0 || leg.down < 0.0);
        (none || (sum - 1.0).abs() > 1e-9).then(|| {
            format!(
                "case {} moves {sum} of the volume: its legs' up (more than 0) and down make 1 together",
                self.name
            )
        })
    }
}

pub(super) fn link_fault(name: &str, link: Link) -> Option<String> {
    let sane = link.rate.bits_per_sec() >= 100_000
        && (0.01..=10_000.0).contains(&link.rtt_ms)
        && (0.0..=1000.0).contains(&link.buffer_bdp)
        && (0.0..=0.5).contains(&link.loss);
    (!sane).then(|| {
        format!(
            "the {name} link is of {}, {} ms, {} BDP and loses {}: at least 100kbit, 0.01 to 10000 ms, at \
             most 1000 BDP, and a loss of at most 0.5",
            link.rate, link.rtt_ms, link.buffer_bdp, link.loss
        )
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn scenario(name: &str) -> Scenario {
        crate::experiment::tests::settings(name)
    }

    #[test]
    fn a_buffer_is_counted_in_round_trips_of_the_links_rate() {
        let link = Link { rate: BitRate::mbit(100), rtt_ms: 50.0, buffer_bdp: 0.5, loss: 0.0 };
        assert_eq!(link.buffer(), Bytes(312_500));
        assert_eq!(Link { buffer_bdp: 0.0, ..link }.buffer(), Bytes(4542), "three frames");
    }

    #[test]
    fn a_sweep_has_every_combination_once_and_replaces_the_links() {
        let scenario = scenario("ecc-sweep");
        let sweep = scenario.sweep.clone().unwrap();
        let points = scenario.points();
        let all = [&sweep.rtt_ms, &sweep.buffer_bdp, &sweep.loss, &sweep.small_share];
        assert_eq!(points.len(), all.into_iter().map(Vec::len).product::<usize>());
        for (index, point) in points.iter().enumerate() {
            assert!(!points[..index].contains(point), "{point:?}");
            let link = scenario.link(Place::Cloud, *point);
            assert_eq!(link.rtt_ms, point.unwrap().rtt_ms);
            assert_eq!(link.rate, scenario.cloud.rate);
        }
    }

    #[test]
    fn a_scenario_that_makes_no_sense_is_refused_with_the_reason() {
        let good = scenario("ecc-bbr");
        assert_eq!(good.fault(), None);
        let fault = |change: fn(&mut Scenario)| {
            let mut scenario = good.clone();
            change(&mut scenario);
            scenario.fault().unwrap()
        };
        assert!(fault(|s| s.algorithms.clear()).contains("none may be empty"));
        assert!(fault(|s| s.volume.swap(0, 1)).contains("[least, greatest]"));
        assert!(fault(|s| s.scale = 0.0).contains("scaled by 0"));
        assert!(fault(|s| s.small_share = 0.5).contains("[small] says how small"));
        assert!(fault(|s| s.cloud.loss = 1.0).contains("the cloud link"));
        assert!(fault(|s| s.rule.then = "bbr".parse().ok()).contains("[rule]: then needs start"));
        assert!(fault(|s| s.cases[0].cloud = Some(Leg { up: 0.7, down: 0.7 })).contains("moves 1.4"));
        assert!(fault(|s| s.algorithms.truncate(1)).contains("which is not measured here"));
    }
}
