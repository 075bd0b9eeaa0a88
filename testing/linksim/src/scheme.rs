//! The schemes that set a link's capacity, from no control to an oracle.

use serde::{Deserialize, Serialize};
use weir_autorate::{Decision, Follower, Settings, State};
use weir_units::{BitRate, Instant};

use crate::{
    arrivals::{Arrivals, arrive},
    cake_autorate::CakeAutorate,
    simulation::{Outcome, Scene, Told, run},
    traces::Trace,
};

/// The rate of a scheduler without control, Mbit/s: far above each link.
const NO_CONTROL: f64 = 1_000.0;
/// The future that the oracle knows, in milliseconds, and the part of it that it sends.
const ORACLE: (usize, f64) = (100, 0.95);

/// A way to set a link's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Weir's follower.
    Weir,
    /// The published rules of cake-autorate, with bounds that fit the link.
    CakeAutorate,
    /// The link's mean rate.
    Mean,
    /// The mean of the link's lowest second.
    Minimum,
    /// No capacity: the modem's queue decides.
    None,
    /// Knowledge of the next 100 ms, of which 95 % are sent.
    Oracle,
}

impl Scheme {
    /// All schemes, in the order of reports.
    pub const ALL: [Scheme; 6] =
        [Scheme::Weir, Scheme::CakeAutorate, Scheme::Mean, Scheme::Minimum, Scheme::None, Scheme::Oracle];

    /// The name in tables and plots.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Weir => "weir",
            Scheme::CakeAutorate => "cake-autorate's rules",
            Scheme::Mean => "fixed at the mean",
            Scheme::Minimum => "fixed at the minimum",
            Scheme::None => "no control",
            Scheme::Oracle => "oracle",
        }
    }

    /// Simulates an upload. `settings` are those of weir's follower.
    #[must_use]
    pub fn run(self, scene: &Scene<'_>, settings: Settings) -> Outcome {
        run(scene, self.rule(scene.trace, scene.tick_ms, Follower::new(settings, Instant::default())))
    }

    /// Simulates a download. `settings` are those of weir's follower.
    #[must_use]
    pub fn arrive(self, scene: &Arrivals<'_>, settings: Settings) -> Outcome {
        let follower = Follower::of_arrivals(settings, Instant::default());
        arrive(scene, self.rule(scene.trace, scene.tick_ms, follower))
    }

    /// The decisions about a link. `follower` is weir's, for the direction.
    fn rule(self, trace: &Trace, tick_ms: u64, mut follower: Follower) -> Rule<'_> {
        match self {
            Scheme::Weir => Box::new(move |now, told| follower.tick(now, told.signals)),
            Scheme::CakeAutorate => by_probes(trace, tick_ms),
            Scheme::Mean => fixed(trace.mean()),
            Scheme::Minimum => fixed(trace.minimum()),
            Scheme::None => fixed(NO_CONTROL),
            Scheme::Oracle => Box::new(|now, _| decision(foreseen(trace, now))),
        }
    }
}

/// Decides from what it is told.
type Rule<'a> = Box<dyn FnMut(Instant, &Told<'_>) -> Decision + 'a>;

fn decision(mbit: f64) -> Decision {
    Decision { capacity: BitRate((mbit * 1e6) as u64), state: State::Track, forgets_bases: false }
}

fn fixed(mbit: f64) -> Rule<'static> {
    Box::new(move |_, _| decision(mbit))
}

fn foreseen(trace: &Trace, now: Instant) -> f64 {
    let (ahead, part) = ORACLE;
    let ms = now.0.as_millis() as usize;
    let next = &trace.rate[ms..(ms + ahead).min(trace.rate.len())];
    part * next.iter().sum::<f64>() / next.len() as f64
}

fn by_probes(trace: &Trace, tick_ms: u64) -> Rule<'static> {
    let peak = trace.rate.iter().copied().fold(0.0, f64::max);
    let mut rules = CakeAutorate::new(0.1, 0.6 * trace.mean(), 1.5 * peak);
    Box::new(move |now, told| {
        let left = told.left as f64 * 8e3 / 1e6 / tick_ms as f64;
        decision(rules.tick(now.0.as_millis() as u64, left, told.probes))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        simulation::Moment,
        traces::{Link, constant},
    };

    fn settings() -> Settings {
        Settings::new(BitRate::mbit(1), BitRate::mbit(40), Duration::from_millis(30)).unwrap()
    }

    #[test]
    fn fixed_rate_below_a_constant_link_is_used_and_leaves_no_queue() {
        let trace = constant(20.0, 20);
        let outcome = run(&Scene::of(&trace), fixed(10.0));
        assert!((outcome.used - 0.5).abs() < 0.01, "{}", outcome.row());
        assert!(outcome.wait(0.95) <= 1, "{}", outcome.row());
    }

    #[test]
    fn no_control_fills_the_link_and_the_modems_queue() {
        let trace = constant(20.0, 20);
        let outcome = Scheme::None.run(&Scene::of(&trace), settings());
        assert!(outcome.used > 0.97, "{}", outcome.row());
        assert!(outcome.wait(0.95) > 500, "{}", outcome.row());
    }

    /// A constant download of 20 Mbit/s by two classes of weight 1 and 2, after the begin of its flows.
    fn arrives(scheme: impl FnOnce(&Arrivals<'_>) -> Outcome) -> Outcome {
        let trace = constant(20.0, 40);
        scheme(&Arrivals { weights: &[1, 2], judged_from_ms: 10_000, ..Arrivals::of(&trace) })
    }

    #[test]
    fn fixed_rate_below_a_constant_download_divides_it_without_a_queue() {
        let outcome = arrives(|scene| arrive(scene, fixed(10.0)));
        let [first, second] = outcome.received[..] else { panic!("{:?}", outcome.received) };
        assert!((first - 0.5 / 3.0).abs() < 0.002 && (second - 1.0 / 3.0).abs() < 0.002, "{first}, {second}");
        assert!(outcome.share_error(&[1, 2]) < 0.01 && outcome.wait(0.95) <= 1, "{}", outcome.row());
        let over = outcome.used - first - second;
        assert!(outcome.dropped > 0.0 && (outcome.dropped - over).abs() < 0.002, "{}", outcome.dropped);
    }

    #[test]
    fn no_control_of_a_download_fills_the_providers_queue_and_divides_nothing() {
        let outcome = arrives(|scene| Scheme::None.arrive(scene, settings()));
        assert!(outcome.used > 0.99 && outcome.dropped == 0.0, "{}", outcome.row());
        assert!(outcome.wait(0.5) > 500, "{}", outcome.row());
        assert!(outcome.share_error(&[1, 2]) > 0.1, "{:?}", outcome.received);
    }

    #[test]
    fn probes_of_a_download_wait_in_the_providers_queue() {
        let mut told: Vec<u32> = Vec::new();
        let outcome = arrives(|scene| {
            arrive(scene, |now, at| {
                if now.0.as_secs() >= 10 {
                    told.extend(at.probes);
                }
                decision(NO_CONTROL)
            })
        });
        told.sort_unstable();
        assert!((580..=600).contains(&told.len()), "20 a second, for 30 s: {}", told.len());
        let (probe, packet) = (told[told.len() / 2], outcome.wait(0.5));
        assert!(probe.abs_diff(packet) <= 20, "{probe} and {packet} ms");
    }

    #[test]
    fn oracle_sends_a_part_of_the_next_rates_alone() {
        let mut trace = constant(10.0, 1);
        trace.rate[500..].fill(20.0);
        let at = |ms| foreseen(&trace, Instant(Duration::from_millis(ms)));
        assert!(
            (at(0) - 9.5).abs() < 1e-9 && (at(450) - 14.25).abs() < 1e-9 && (at(990) - 19.0).abs() < 1e-9
        );
    }

    #[test]
    fn moments_of_a_run_add_up_to_its_use() {
        let trace = Link::Lte.trace(3);
        let outcome = Scheme::Weir.run(&Scene::of(&trace), settings());
        let sum = |part: fn(&Moment) -> f64| outcome.moments.iter().map(part).sum::<f64>();
        let used = sum(|moment| moment.carried) / sum(|moment| moment.link);
        assert!((used - outcome.used).abs() < 0.005, "{used} and {}", outcome.used);
        assert!(outcome.moments.iter().all(|moment| moment.capacity >= 1.0));
    }
}
