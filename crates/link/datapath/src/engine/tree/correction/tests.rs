use proptest::prelude::*;
use weir_netlink::tc::Counters;
use weir_share::Policy;

use super::{
    super::{Packets, build},
    *,
};
use crate::engine::plan::{Group, Member, Shape};

const LOOK: Duration = Duration::from_millis(100);
const SHAPE: Shape = Shape {
    capacity: BitRate::mbit(100),
    split: true,
    mtu: 1500,
    delay_ms: 50,
    least_queue: Bytes(278_528),
    framing: None,
    has_tunnels: false,
};

fn member(minor: u16, min: Option<BitRate>, target: BitRate) -> Member {
    let policy = Policy::new("1".parse().unwrap(), min, None).unwrap();
    Member {
        minor,
        group: None,
        policy,
        allocation: target,
        share: target,
        target,
        backlogged: true,
        takes_all: true,
        is_steady: false,
        prio: 1,
    }
}

/// A class at its minimum beside one that takes the rest.
fn members() -> Vec<Member> {
    let min = BitRate::mbit(2);
    vec![member(16, Some(min), min), member(17, None, BitRate::mbit(98))]
}

struct Model {
    groups: Vec<Group>,
    members: Vec<Member>,
    nodes: Vec<Node>,
    corrections: Corrections,
    now: Instant,
    /// The time between two looks.
    step: Duration,
    sent: BTreeMap<u16, u64>,
}

impl Model {
    fn new(members: Vec<Member>) -> Model {
        Model::with_groups(Vec::new(), members)
    }

    fn with_groups(groups: Vec<Group>, members: Vec<Member>) -> Model {
        let mut model = Model {
            groups,
            members,
            nodes: Vec::new(),
            corrections: Corrections::default(),
            now: Instant::default(),
            step: LOOK,
            sent: BTreeMap::new(),
        };
        model.divide();
        model
    }

    fn divide(&mut self) {
        let plan = Plan { shape: &SHAPE, groups: &self.groups, members: &self.members };
        build(&plan, &Packets::default(), &mut self.nodes);
        self.corrections.follow(&plan, &self.nodes, false);
    }

    /// Looks after `rate` of each class for this number of looks. Whether a correction changed.
    fn look(&mut self, looks: u32, backlog: u64, rate: impl Fn(&Model, u16) -> BitRate) -> bool {
        let mut is_changed = false;
        for _ in 0..looks {
            self.now = self.now + self.step;
            let minors: Vec<u16> = self.members.iter().map(|m| m.minor).collect();
            let measured: Vec<Measured> = minors
                .into_iter()
                .map(|minor| {
                    let bytes = rate(self, minor).bytes_in(self.step).0;
                    let sent = self.sent.entry(minor).or_default();
                    *sent += bytes;
                    Measured { minor, counters: Counters { bytes: *sent, backlog, ..Counters::default() } }
                })
                .collect();
            is_changed |= self.corrections.look(&measured, self.now);
        }
        is_changed
    }

    fn rate(&self, minor: u16) -> BitRate {
        let mut nodes = self.nodes.clone();
        self.corrections.correct(&mut nodes);
        nodes.iter().find(|node| node.class.handle.minor() == minor).unwrap().class.rate
    }

    /// HTB gives the small class 8 % on top of its rate, and the other one the rest.
    fn with_a_packet_on_top(&self, minor: u16) -> BitRate {
        let small = self.rate(16).scale(108, 100);
        if minor == 16 { small } else { BitRate(BitRate::mbit(100).0 - small.0) }
    }
}

const QUEUED: u64 = 90_000;

#[test]
fn class_that_has_too_much_is_at_its_target_after_four_seconds() {
    let mut model = Model::new(members());
    assert_eq!(model.with_a_packet_on_top(16), BitRate::kbit(2_160));
    model.look(40, QUEUED, Model::with_a_packet_on_top);
    for _ in 0..50 {
        model.look(1, QUEUED, Model::with_a_packet_on_top);
        let rate = model.with_a_packet_on_top(16);
        assert!(rate.0.abs_diff(2_000_000) < 25_000, "{rate}");
    }
}

#[test]
fn error_that_one_comparison_alone_finds_corrects_nothing() {
    let mut model = Model::new(members());
    let sends =
        |small: u64| move |_: &Model, minor| BitRate::mbit(if minor == 16 { small } else { 100 - small });
    assert!(!model.look(25, QUEUED, sends(2)));
    assert!(!model.look(1, QUEUED, sends(3)));
    assert!(!model.look(90, QUEUED, sends(2)));
    assert!(model.look(15, QUEUED, sends(3)));
}

#[test]
fn excess_of_two_turns_corrects_nothing() {
    let mut model = Model::new(members());
    // Each turn of the small class is a packet.
    let lumps = |model: &Model, minor| {
        let is_first = model.now.0.as_millis() == 1_500;
        let more = if is_first { BitRate::of(Bytes(2 * 1514), LOOK) } else { BitRate::ZERO };
        match minor {
            16 => BitRate(BitRate::mbit(2).0 + more.0),
            _ => BitRate(BitRate::mbit(98).0 - more.0),
        }
    };
    assert!(!model.look(100, QUEUED, lumps));
}

#[test]
fn link_that_carries_less_than_its_capacity_winds_up_nothing() {
    let mut model = Model::new(members());
    assert!(!model.look(100, QUEUED, |model, minor| {
        let target = model.members.iter().find(|m| m.minor == minor).unwrap().target;
        target.scale(80, 100)
    }));
}

/// The small class has this rate, and the other one the rest.
fn small_has(small: BitRate) -> impl Fn(&Model, u16) -> BitRate {
    move |_, minor| if minor == 16 { small } else { BitRate(BitRate::mbit(100).0 - small.0) }
}

/// Looks of a slow link that are early and late by some packets, in turn.
#[test]
fn error_is_found_though_each_look_alone_is_strange() {
    let mut model = Model::new(members());
    let uneven = |model: &Model, minor| {
        let is_late = (model.now.0.as_millis() / LOOK.as_millis()).is_multiple_of(2);
        model.with_a_packet_on_top(minor).scale(if is_late { 107 } else { 93 }, 100)
    };
    model.look(60, QUEUED, uneven);
    assert!(model.rate(16) < BitRate::kbit(1_900), "{}", model.rate(16));
}

#[test]
fn class_with_few_packets_may_get_less_alone() {
    const FEW: u64 = 1514;
    let mut over = Model::new(members());
    over.look(40, FEW, Model::with_a_packet_on_top);
    assert!(over.rate(16) < BitRate::kbit(1_900), "it had too much");
    over.look(40, FEW, small_has(BitRate::kbit(1_800)));
    assert_eq!(over.rate(16), BitRate::mbit(2), "it had too little after that");

    let mut under = Model::new(members());
    let too_little = || small_has(BitRate::kbit(1_800));
    assert!(!under.look(60, FEW, too_little()));
    assert!(!under.look(18, QUEUED, too_little()), "it has a queue since 1.8 s");
    assert!(under.look(40, QUEUED, too_little()), "it has a queue at each look");
    assert!(under.look(1, FEW, too_little()), "what it was given more ends with its queue");
    assert!(!under.look(60, FEW, too_little()));
}

#[test]
fn class_without_packets_loses_its_correction() {
    let mut model = Model::new(members());
    assert!(model.look(40, QUEUED, Model::with_a_packet_on_top));
    assert!(model.rate(16) < BitRate::kbit(1_900));
    assert!(model.look(1, 0, Model::with_a_packet_on_top));
    assert_eq!(model.rate(16), BitRate::mbit(2));
}

#[test]
fn change_of_target_or_of_takers_ends_corrections() {
    let learned = || {
        let mut model = Model::new(members());
        model.look(40, QUEUED, Model::with_a_packet_on_top);
        assert!(model.rate(16) < BitRate::kbit(1_900));
        model
    };
    let mut same = learned();
    same.members[1].target = BitRate::mbit(90);
    same.divide();
    assert!(same.rate(16) < BitRate::kbit(1_900), "a small change of another class ends none");
    let mut moved = learned();
    moved.members[0].target = BitRate::mbit(3);
    moved.divide();
    assert!(moved.rate(16) >= BitRate::mbit(2));
    let mut joined = learned();
    joined.members.push(member(18, None, BitRate::mbit(40)));
    joined.divide();
    assert_eq!(joined.rate(16), BitRate::mbit(2));
}

#[test]
fn nothing_is_learned_of_an_earlier_agents_rates() {
    let mut model = Model::new(members());
    let plan = Plan { shape: &SHAPE, groups: &[], members: &model.members };
    model.corrections.follow(&plan, &model.nodes, true);
    assert!(!model.look(40, QUEUED, Model::with_a_packet_on_top));
    assert_eq!(model.rate(16), BitRate::mbit(2));
    model.divide();
    assert!(model.look(40, QUEUED, Model::with_a_packet_on_top));
}

#[test]
fn rate_keeps_seven_eighths_of_a_floor() {
    let mut model = Model::new(members());
    // It has twice its target, whatever its rate is.
    model.look(200, QUEUED, |_, minor| if minor == 16 { BitRate::mbit(4) } else { BitRate::mbit(96) });
    assert_eq!(model.rate(16), BitRate::kbit(1_750));
}

#[test]
fn group_keeps_seven_eighths_of_its_floor() {
    let min = BitRate::mbit(20);
    let group = Group {
        minor: 15,
        policy: Policy::new("1".parse().unwrap(), Some(min), None).unwrap(),
        allocation: min,
        share: min,
        target: min,
    };
    let inside = |minor| Member { group: Some(0), ..member(minor, None, BitRate::mbit(10)) };
    let members = vec![inside(16), inside(17), member(18, None, BitRate::mbit(80))];
    let mut model = Model::with_groups(vec![group], members);
    assert!(model.rate(15) >= min);
    // Both members have too much, whatever their rates are.
    model.look(100, QUEUED, |_, minor| BitRate::mbit(if minor == 18 { 76 } else { 12 }));
    assert!(model.rate(16) < BitRate::mbit(8) && model.rate(17) < BitRate::mbit(8));
    assert_eq!(model.rate(15), BitRate::kbit(17_500));
}

#[test]
fn many_looks_in_a_short_time_correct_nothing() {
    let mut model = Model::new(members());
    model.step = Duration::from_millis(10);
    assert!(!model.look(289, QUEUED, Model::with_a_packet_on_top));
    assert!(model.look(100, QUEUED, Model::with_a_packet_on_top));
}

#[test]
fn large_rate_that_has_no_room_takes_larger_turns() {
    let mut model =
        Model::new(vec![member(16, None, BitRate::mbit(50)), member(17, None, BitRate::mbit(50))]);
    let quantum = |model: &Model, minor| {
        let mut nodes = model.nodes.clone();
        model.corrections.correct(&mut nodes);
        nodes.iter().find(|node| node.class.handle.minor() == minor).unwrap().class.quantum.0
    };
    let before = quantum(&model, 16);
    // Rates add up to 99.5 already. Another correction frees none of it.
    model.look(60, QUEUED, |_, minor| if minor == 16 { BitRate::mbit(48) } else { BitRate::mbit(50) });
    assert!(quantum(&model, 16) > before);
    let sum: u64 = [16, 17].map(|minor| model.rate(minor).0).iter().sum();
    assert!(sum <= BitRate::kbit(99_500).0, "{sum}");
}

proptest! {
    /// The corrected tree may be written, whatever was sent.
    #[test]
    fn corrected_trees_keep_the_room_of_the_link_and_of_groups(
        weights in proptest::collection::vec((1..50u64, 0..3usize, 0..200u64), 2..8),
        looks in 10..60u32,
    ) {
        let sum: u64 = weights.iter().map(|w| w.0).sum();
        let ceiling = Some(BitRate::mbit(40));
        let groups: Vec<Group> = (0..2)
            .map(|g| {
                let inside = || weights.iter().filter(|w| w.1 == g).map(|w| 100_000_000 * w.0 / sum).sum::<u64>();
                let target = BitRate(inside()).min(BitRate::mbit(40));
                Group {
                    minor: 100 + u16::try_from(g).unwrap(),
                    policy: Policy::new("1".parse().unwrap(), None, ceiling).unwrap(),
                    allocation: target,
                    share: target,
                    target,
                }
            })
            .collect();
        let members: Vec<Member> = (16..)
            .zip(&weights)
            .map(|(minor, (weight, group, _))| Member {
                group: (*group < 2).then_some(*group),
                ..member(minor, None, BitRate(100_000_000 * weight / sum))
            })
            .collect();
        let plan = Plan { shape: &SHAPE, groups: &groups, members: &members };
        let (mut nodes, mut corrections) = (Vec::new(), Corrections::default());
        build(&plan, &Packets::default(), &mut nodes);
        corrections.follow(&plan, &nodes, false);
        let mut now = Instant::default();
        for look in 1..=looks {
            now = now + LOOK;
            let measured: Vec<Measured> = members
                .iter()
                .zip(&weights)
                .map(|(m, (.., part))| {
                    let bytes = m.target.scale(*part, 100).bytes_in(LOOK).0 * u64::from(look);
                    Measured { minor: m.minor, counters: Counters { bytes, backlog: QUEUED, ..Counters::default() } }
                })
                .collect();
            corrections.look(&measured, now);
        }
        let before = nodes.clone();
        corrections.correct(&mut nodes);
        let own = |nodes: &[Node], group: Option<TcHandle>| -> u64 {
            let leaves = nodes.iter().filter(|node| node.leaf.is_some()).map(|node| node.class);
            leaves.filter(|leaf| group.is_none_or(|g| leaf.parent == g)).map(|leaf| leaf.rate.0).sum()
        };
        let room = |was: u64, most: u64| was.max(most) + 7 * MIN_OWN_RATE.0;
        prop_assert!(own(&nodes, None) <= room(own(&before, None), 100_000_000 - 100_000 * SLACK_PER_MILLE));
        for node in &nodes {
            let class = node.class;
            prop_assert!(class.rate <= class.ceil && class.rate >= MIN_OWN_RATE && class.quantum.0 >= 1514);
            if node.leaf.is_none() && class.handle.minor() >= 100 {
                let group = Some(class.handle);
                prop_assert!(own(&nodes, group) <= room(own(&before, group), class.ceil.0));
            }
        }
    }
}
