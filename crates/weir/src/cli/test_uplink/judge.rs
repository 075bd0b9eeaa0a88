//! The phases of the test and their verdicts. No clock and no I/O: counters come in, lines go out.

use serde::Serialize;
use weir_api::PolicyChange;
use weir_share::Weight;
use weir_units::BitRate;

use super::super::format;

/// How far a rate may be from the capacity, and a ratio from that of the weights.
const SHARE_TOLERANCE: f64 = 0.03;
/// How far a rate may be beyond a minimum or maximum.
const BOUND_TOLERANCE: f64 = 0.01;
/// The part of a stream of TCP that a device may leave out: it counts the headers of a super-packet once.
const UNCOUNTED_HEADERS: f64 = 0.05;
/// The part of its rate that a sender must reach to count as strong enough.
const FULL_PACE: f64 = 0.98;

/// The names of the test's classes.
pub(super) const CLASSES: [&str; 3] = ["weir-test-a", "weir-test-b", "weir-test-c"];

/// A part of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// One class has the whole link.
    Alone,
    /// Two classes share by weight.
    Weights,
    /// A maximum holds against a weight.
    Maximum,
    /// A minimum holds against weights.
    Minimum,
}

impl Phase {
    pub(super) const ALL: [Phase; 4] = [Phase::Alone, Phase::Weights, Phase::Maximum, Phase::Minimum];

    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Alone => "alone",
            Phase::Weights => "weights",
            Phase::Maximum => "maximum",
            Phase::Minimum => "minimum",
        }
    }

    /// The number of classes that send, from the first.
    pub(super) fn senders(self) -> usize {
        match self {
            Phase::Alone => 1,
            Phase::Weights | Phase::Maximum => 2,
            Phase::Minimum => 3,
        }
    }

    /// The policies of the classes, one for each that sends.
    pub(super) fn policies(self, bounds: Bounds) -> Vec<PolicyChange> {
        let weights: &[u32] = match self {
            Phase::Alone => &[1],
            Phase::Weights | Phase::Maximum => &[3, 1],
            Phase::Minimum => &[1, 3, 3],
        };
        let policy = |(n, weight): (usize, &u32)| PolicyChange {
            name: CLASSES[n].to_owned(),
            weight: Some(Weight::new(*weight).ok()),
            min: Some(bounds.min.filter(|_| n == 0 && self == Phase::Minimum)),
            max: Some(Some(bounds.max).filter(|_| n == 0 && self == Phase::Maximum)),
            down: None,
        };
        weights.iter().enumerate().map(policy).collect()
    }
}

/// The bounds that the first class gets in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) max: BitRate,
    /// None if no minimum can be promised.
    pub(super) min: Option<BitRate>,
}

impl Bounds {
    /// The maximum is a quarter of the capacity. The minimum is 40 % of the bandwidth that may be promised, or all that
    /// is free.
    pub(super) fn of(capacity: BitRate, reservable: BitRate, reserved: BitRate) -> Bounds {
        let free = reservable.saturating_sub(reserved);
        let min = reservable.scale(2, 5).min(free);
        Bounds { max: capacity.scale(1, 4), min: Some(min).filter(|min| *min > BitRate::ZERO) }
    }
}

/// A sender's own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) rate: BitRate,
    /// The rate that it was told to send at.
    pub(super) pace: BitRate,
    /// Whether a full queue ever held it back.
    pub(super) was_held: bool,
}

impl Made {
    /// Whether it could not send more, though nothing held it back.
    #[allow(clippy::cast_precision_loss)]
    fn is_weak(self) -> bool {
        !self.was_held && (self.rate.0 as f64) < self.pace.0 as f64 * FULL_PACE
    }
}

/// The counters of a phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) capacity: BitRate,
    /// The device's own count, as bytes of the line.
    pub(super) device: BitRate,
    /// Whether the device carries packets that are not charged.
    pub(super) has_exempt: bool,
    /// Whether the senders send TCP.
    pub(super) is_tcp: bool,
    /// The rate of each class.
    pub(super) classes: Vec<BitRate>,
    pub(super) made: Vec<Made>,
    /// The rate of all other classes together.
    pub(super) others: BitRate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Holds,
    Misses,
    /// The senders were too weak to show it.
    NotShown,
}

/// The wanted value, and on which sides of it the measured one may be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Bound {
    About,
    AtMost,
    AtLeast,
}

/// The unit of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Unit {
    #[serde(rename = "bit/s")]
    Rate,
    Ratio,
}

/// A line of the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Line {
    pub(super) phase: &'static str,
    /// A class, two classes whose ratio it is, or the device.
    pub(super) class: String,
    pub(super) bound: Bound,
    pub(super) wanted: f64,
    pub(super) measured: f64,
    pub(super) unit: Unit,
    pub(super) verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

/// Judges a phase.
pub(super) fn judge(phase: Phase, bounds: Bounds, device: &str, counted: &Counted) -> Vec<Line> {
    let mut lines = vec![whole(phase, device, counted)];
    match (phase, bounds.min) {
        (Phase::Weights, _) => lines.push(ratio(counted)),
        (Phase::Maximum, _) => lines.push(bound(phase, Bound::AtMost, bounds.max, counted)),
        (Phase::Minimum, Some(min)) => lines.push(bound(phase, Bound::AtLeast, min, counted)),
        (Phase::Alone | Phase::Minimum, _) => {}
    }
    lines
}

/// Whether the device carries the capacity: no more, and no less while the classes would send more.
#[allow(clippy::cast_precision_loss)]
fn whole(phase: Phase, device: &str, counted: &Counted) -> Line {
    let (wanted, measured) = (counted.capacity.0 as f64, counted.device.0 as f64);
    let uncounted = if counted.is_tcp { UNCOUNTED_HEADERS } else { 0.0 };
    let is_low = measured < wanted * (1.0 - SHARE_TOLERANCE - uncounted);
    let is_high = measured > wanted * (1.0 + SHARE_TOLERANCE) && !counted.has_exempt;
    let excuse = weakness(&counted.made).filter(|_| is_low);
    line(
        phase,
        device.to_owned(),
        (Bound::About, Unit::Rate),
        (wanted, measured),
        !is_low && !is_high,
        excuse,
    )
}

#[allow(clippy::cast_precision_loss)]
fn ratio(counted: &Counted) -> Line {
    const WANTED: f64 = 3.0;
    let [a, b] = [0, 1].map(|n| counted.classes[n].0 as f64);
    // JSON has no infinity.
    let measured = if b > 0.0 { a / b } else { f64::from(u32::MAX) };
    let holds = (measured / WANTED - 1.0).abs() <= SHARE_TOLERANCE;
    let class = format!("{}:{}", CLASSES[0], CLASSES[1].trim_start_matches("weir-test-"));
    line(
        Phase::Weights,
        class,
        (Bound::About, Unit::Ratio),
        (WANTED, measured),
        holds,
        weakness(&counted.made),
    )
}

/// Whether the first class keeps to a bound.
#[allow(clippy::cast_precision_loss)]
fn bound(phase: Phase, bound: Bound, wanted: BitRate, counted: &Counted) -> Line {
    let (wanted, measured) = (wanted.0 as f64, counted.classes[0].0 as f64);
    let (holds, excuse) = match bound {
        // No weakness of a sender makes it send more.
        Bound::AtMost => (measured <= wanted * (1.0 + BOUND_TOLERANCE), None),
        _ => (measured >= wanted * (1.0 - BOUND_TOLERANCE), weakness(&counted.made[..1])),
    };
    line(phase, CLASSES[0].to_owned(), (bound, Unit::Rate), (wanted, measured), holds, excuse)
}

fn line(
    phase: Phase,
    class: String,
    (bound, unit): (Bound, Unit),
    (wanted, measured): (f64, f64),
    holds: bool,
    excuse: Option<String>,
) -> Line {
    let why = excuse.filter(|_| !holds);
    let verdict = match (&why, holds) {
        (_, true) => Verdict::Holds,
        (Some(_), false) => Verdict::NotShown,
        (None, false) => Verdict::Misses,
    };
    Line { phase: phase.name(), class, bound, wanted, measured, unit, verdict, why }
}

/// The weakness of the senders, in words.
fn weakness(made: &[Made]) -> Option<String> {
    made.iter().any(|made| made.is_weak()).then(|| {
        let sum =
            |rate: fn(&Made) -> BitRate| made.iter().map(rate).fold(BitRate::ZERO, BitRate::saturating_add);
        let [made, pace] = [sum(|made| made.rate), sum(|made| made.pace)].map(format::rate);
        format!("the senders made {made} of {pace}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: BitRate = BitRate::mbit(100);
    const PACE: BitRate = BitRate::mbit(150);

    fn bounds() -> Bounds {
        Bounds::of(CAPACITY, BitRate::mbit(90), BitRate::ZERO)
    }

    /// The counters of strong senders with these rates, in kbit/s.
    fn counted(device: u64, classes: &[u64]) -> Counted {
        Counted {
            capacity: CAPACITY,
            device: BitRate::kbit(device),
            has_exempt: false,
            is_tcp: false,
            classes: classes.iter().map(|rate| BitRate::kbit(*rate)).collect(),
            made: vec![Made { rate: BitRate::mbit(30), pace: PACE, was_held: true }; classes.len()],
            others: BitRate::ZERO,
        }
    }

    fn verdicts(phase: Phase, counted: &Counted) -> Vec<Verdict> {
        judge(phase, bounds(), "eth0", counted).iter().map(|line| line.verdict).collect()
    }

    #[test]
    fn bounds_are_parts_of_the_capacity_and_of_what_is_free() {
        assert_eq!(bounds(), Bounds { max: BitRate::mbit(25), min: Some(BitRate::mbit(36)) });
        let little = Bounds::of(CAPACITY, BitRate::mbit(90), BitRate::mbit(80));
        assert_eq!(little.min, Some(BitRate::mbit(10)));
        assert_eq!(Bounds::of(CAPACITY, BitRate::mbit(90), BitRate::mbit(90)).min, None);
    }

    #[test]
    fn each_phase_sets_all_policies_anew() {
        let of = |phase: Phase| -> Vec<_> {
            let policies = phase.policies(bounds());
            assert_eq!(policies.len(), phase.senders());
            let weight = |weight: Option<Option<Weight>>| weight.flatten().map(Weight::get);
            policies.iter().map(|p| (weight(p.weight).unwrap(), p.min.unwrap(), p.max.unwrap())).collect()
        };
        assert_eq!(of(Phase::Alone), [(1, None, None)]);
        assert_eq!(of(Phase::Weights), [(3, None, None), (1, None, None)]);
        assert_eq!(of(Phase::Maximum), [(3, None, Some(bounds().max)), (1, None, None)]);
        assert_eq!(of(Phase::Minimum), [(1, bounds().min, None), (3, None, None), (3, None, None)]);
    }

    #[test]
    fn device_holds_within_3_percent_of_the_capacity_on_both_sides() {
        use Verdict::{Holds, Misses};
        for (device, verdict) in [(97_100, Holds), (102_900, Holds), (96_900, Misses), (103_100, Misses)] {
            assert_eq!(verdicts(Phase::Alone, &counted(device, &[device])), [verdict], "{device}");
        }
    }

    #[test]
    fn device_with_exempt_packets_may_carry_more_but_not_less() {
        let exempt = |device| Counted { has_exempt: true, ..counted(device, &[97_000]) };
        assert_eq!(verdicts(Phase::Alone, &exempt(150_000)), [Verdict::Holds]);
        assert_eq!(verdicts(Phase::Alone, &exempt(96_000)), [Verdict::Misses]);
    }

    #[test]
    fn device_may_leave_out_headers_of_tcp() {
        let tcp = |device| Counted { is_tcp: true, ..counted(device, &[97_000]) };
        assert_eq!(verdicts(Phase::Alone, &tcp(93_000)), [Verdict::Holds]);
        assert_eq!(verdicts(Phase::Alone, &tcp(91_000)), [Verdict::Misses]);
    }

    #[test]
    fn ratio_holds_within_3_percent_of_3() {
        use Verdict::{Holds, Misses};
        for (a, verdict) in [(30_800, Holds), (29_200, Holds), (31_000, Misses), (29_000, Misses)] {
            assert_eq!(verdicts(Phase::Weights, &counted(100_000, &[a, 10_000]))[1], verdict, "{a}");
        }
        assert_eq!(verdicts(Phase::Weights, &counted(100_000, &[100_000, 0]))[1], Misses);
    }

    #[test]
    fn maximum_misses_above_1_percent_and_the_link_must_stay_full() {
        use Verdict::{Holds, Misses};
        assert_eq!(verdicts(Phase::Maximum, &counted(100_000, &[25_200, 74_800])), [Holds, Holds]);
        assert_eq!(verdicts(Phase::Maximum, &counted(100_000, &[25_300, 74_700])), [Holds, Misses]);
        assert_eq!(verdicts(Phase::Maximum, &counted(80_000, &[25_000, 55_000])), [Misses, Holds]);
    }

    #[test]
    fn minimum_misses_below_1_percent() {
        use Verdict::{Holds, Misses};
        assert_eq!(verdicts(Phase::Minimum, &counted(100_000, &[35_700, 32_000, 32_000])), [Holds, Holds]);
        assert_eq!(verdicts(Phase::Minimum, &counted(100_000, &[35_600, 32_000, 32_000])), [Holds, Misses]);
    }

    #[test]
    fn minimum_that_cannot_be_promised_is_not_judged() {
        let none = Bounds { min: None, ..bounds() };
        let lines = judge(Phase::Minimum, none, "eth0", &counted(100_000, &[14_000, 43_000, 43_000]));
        assert_eq!(lines.len(), 1, "{lines:?}");
    }

    #[test]
    fn weak_senders_are_named_instead_of_a_miss() {
        let weak = Made { rate: BitRate::mbit(60), pace: PACE, was_held: false };
        let slow = Counted { made: vec![weak], ..counted(60_000, &[60_000]) };
        let lines = judge(Phase::Alone, bounds(), "eth0", &slow);
        assert_eq!(lines[0].verdict, Verdict::NotShown);
        assert_eq!(lines[0].why.as_deref(), Some("the senders made 60mbit of 150mbit"));
        // Weakness excuses neither a link that is too fast nor a class above its maximum.
        let fast = Counted { made: vec![weak], ..counted(120_000, &[120_000]) };
        assert_eq!(verdicts(Phase::Alone, &fast), [Verdict::Misses]);
        let above = Counted { made: vec![weak; 2], ..counted(100_000, &[40_000, 60_000]) };
        assert_eq!(verdicts(Phase::Maximum, &above), [Verdict::Holds, Verdict::Misses]);
        // A sender that a queue held back was strong enough.
        let held = Counted { made: vec![Made { was_held: true, ..weak }], ..counted(60_000, &[60_000]) };
        assert_eq!(verdicts(Phase::Alone, &held), [Verdict::Misses]);
    }
}
