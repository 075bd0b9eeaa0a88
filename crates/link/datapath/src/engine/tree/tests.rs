use super::*;
use crate::engine::plan::{Group, Member};
use proptest::prelude::*;
use weir_share::Weight;

fn shape(capacity: BitRate, split: bool) -> Shape {
    Shape {
        capacity,
        split,
        mtu: 1500,
        delay_ms: 50,
        least_queue: Bytes(278_528),
        framing: None,
        has_tunnels: false,
    }
}

fn make(shape: &Shape, groups: &[Group], members: &[Member], nodes: &mut Vec<Node>) {
    build(&Plan { shape, groups, members }, &Packets::default(), nodes);
}

fn member(minor: u16, weight: u32, min: Option<u64>, max: Option<u64>, mbit: u64) -> Member {
    let policy =
        Policy::new(Weight::new(weight).unwrap(), min.map(BitRate::mbit), max.map(BitRate::mbit)).unwrap();
    let allocation = BitRate::mbit(mbit);
    Member {
        minor,
        group: None,
        policy,
        allocation,
        share: allocation,
        target: allocation,
        backlogged: mbit > 0,
        takes_all: mbit > 0,
        is_steady: false,
        prio: 1,
    }
}

fn class(nodes: &[Node], minor: u16) -> HtbClass {
    nodes.iter().find(|n| n.class.handle.minor() == minor).unwrap().class
}

#[test]
fn without_floors_rates_are_the_allocations_less_the_slack() {
    let mut nodes = Vec::new();
    let members = [member(16, 1, None, None, 25), member(17, 3, None, None, 75)];
    make(&shape(BitRate::mbit(100), true), &[], &members, &mut nodes);
    let (a, b) = (class(&nodes, 16), class(&nodes, 17));
    assert!(
        (a.rate.as_mbit() - 24.875).abs() < 0.1 && (b.rate.as_mbit() - 74.625).abs() < 0.1,
        "{a:?} {b:?}"
    );
    // The rest is lent in the same proportion.
    let ratio = b.quantum.0 as f64 / a.quantum.0 as f64;
    assert!((ratio - 3.0).abs() < 0.05, "{ratio}");
}

/// The tree of 100 Mbit/s, when these classes have taken the same for a time or not.
fn tree(is_steady: bool, members: &[Member]) -> Vec<Node> {
    let members: Vec<Member> = members.iter().map(|member| Member { is_steady, ..*member }).collect();
    let mut nodes = Vec::new();
    make(&shape(BitRate::mbit(100), true), &[], &members, &mut nodes);
    nodes
}

#[test]
fn sender_that_takes_the_same_for_a_time_leaves_its_room_to_the_others() {
    // It sends 4 Mbit/s of the 12 that it may.
    let sends = BitRate::mbit(4);
    let quiet = Member {
        backlogged: false,
        takes_all: false,
        share: sends,
        target: sends,
        ..member(18, 1, None, None, 12)
    };
    let members = [member(16, 1, None, None, 32), member(17, 2, None, None, 64), quiet];
    let (steady, changing) = (tree(true, &members), tree(false, &members));
    let rate = |nodes: &[Node], minor| class(nodes, minor).rate.as_mbit();
    assert_eq!((rate(&changing, 18), rate(&steady, 18)), (12.0, 5.0));
    let lent = |nodes: &[Node]| 96.0 - rate(nodes, 16) - rate(nodes, 17);
    assert!(lent(&changing) > 8.0 && lent(&steady) < 1.6, "{} and {}", lent(&changing), lent(&steady));
}

#[test]
fn round_takes_40_ms_at_the_rate_that_is_lent() {
    let members =
        [member(16, 1, None, None, 34), member(17, 2, None, None, 66), member(18, 1, Some(8), None, 0)];
    for is_steady in [true, false] {
        let nodes = tree(is_steady, &members);
        let turns = class(&nodes, 16).quantum.0 + class(&nodes, 17).quantum.0;
        let lent = 100_000_000 - class(&nodes, 16).rate.0 - class(&nodes, 17).rate.0;
        let round = BitRate::of(Bytes(turns), Duration::from_millis(40));
        assert!(round.0.abs_diff(lent) < lent / 20, "{round} of {lent} bit/s, steady: {is_steady}");
    }
}

#[test]
fn turns_are_by_what_classes_lack_while_demands_change() {
    // A round that is as short as they bear has less than a packet for the lightest.
    let members =
        [member(16, 1, None, None, 5), member(17, 5, None, None, 25), member(18, 14, None, None, 70)];
    let packets = packets_of([16, 17, 18].map(|minor| (minor, 1514)).into_iter());
    let mut nodes = Vec::new();
    let shape = shape(BitRate::mbit(100), true);
    build(&Plan { shape: &shape, groups: &[], members: &members }, &packets, &mut nodes);
    let quantum = |minor| class(&nodes, minor).quantum.0 as f64;
    let (light, heavy) = (quantum(17) / quantum(16), quantum(18) / quantum(16));
    assert!((light - 5.0).abs() < 0.1 && (heavy - 14.0).abs() < 0.1, "{light} and {heavy}");
}

#[test]
fn class_that_lacks_nothing_makes_no_round_longer() {
    // A packet a turn costs the classes of 50 Mbit/s little. Those at their maxima have them as rate.
    let bounded = |minor| member(minor, 1, None, Some(5), 5);
    let two = [member(16, 1, None, None, 50), member(17, 1, None, None, 50)];
    let six = [
        member(16, 1, None, None, 40),
        member(17, 1, None, None, 40),
        bounded(18),
        bounded(19),
        bounded(20),
        bounded(21),
    ];
    let turns = |members: &[Member]| {
        let nodes = tree(true, members);
        class(&nodes, 16).quantum.0 + class(&nodes, 17).quantum.0
    };
    let (alone, beside) = (turns(&two), turns(&six));
    assert!(beside <= alone, "{beside} bytes beside classes at their maxima, {alone} without them");
}

#[test]
fn round_is_longer_where_a_packet_would_give_too_much() {
    // At its minimum, so that a packet a turn is more than its due.
    let small = member(18, 1, Some(1), None, 1);
    let nodes = tree(true, &[member(16, 1, None, None, 33), member(17, 2, None, None, 66), small]);
    let all: u64 = nodes[1..].iter().map(|n| n.class.quantum.0).sum();
    let lent = 100_000_000 - nodes[1..].iter().map(|n| n.class.rate.0).sum::<u64>();
    let gain = lent * class(&nodes, 18).quantum.0 / all;
    assert!(gain <= 10_000, "{gain} bit/s on top of 1 Mbit/s");
}

#[test]
fn round_is_as_long_as_the_packets_of_each_class_need() {
    let small = member(18, 1, Some(1), None, 1);
    let members: Vec<Member> = [member(16, 1, None, None, 33), member(17, 2, None, None, 66), small]
        .map(|member| Member { is_steady: true, ..member })
        .to_vec();
    let round = |of_small: u64, of_others: u64| {
        let packets = packets_of([(16, of_others), (17, of_others), (18, of_small)].into_iter());
        let shape = shape(BitRate::mbit(100), true);
        let mut nodes = Vec::new();
        build(&Plan { shape: &shape, groups: &[], members: &members }, &packets, &mut nodes);
        class(&nodes, 16).quantum.0 + class(&nodes, 17).quantum.0
    };
    let unknown: u64 = tree(true, &members)[1..3].iter().map(|n| n.class.quantum.0).sum();
    assert!(round(1514, 1514) < unknown * 2 / 3, "{} of {unknown}", round(1514, 1514));
    assert!(round(1514, 9084) < unknown * 2 / 3, "packets of the others are no longer than their turns");
    assert!(round(9084, 1514) > unknown * 9 / 10, "{} of {unknown}", round(9084, 1514));
    let longest = round(100_000, 1514);
    assert!(
        longest > unknown * 9 / 10 && longest <= unknown,
        "no packet leaves whole that is longer than the largest"
    );
}

/// The mean packets of these minors.
fn packets_of(means: impl Iterator<Item = (u16, u64)>) -> Packets {
    let mut packets = Packets::default();
    for (minor, mean) in means {
        packets.look(minor, 0, 0, weir_units::Instant::default());
        packets.look(minor, 100 * mean, 100, weir_units::Instant::default());
    }
    packets
}

/// The tree of 100 Mbit/s of classes that rest, by the mean packet of each.
fn by_packets(members: &[(Member, u64)]) -> Vec<Node> {
    let packets = packets_of(members.iter().map(|(member, packet)| (member.minor, *packet)));
    let members: Vec<Member> =
        members.iter().map(|(member, _)| Member { is_steady: true, ..*member }).collect();
    let mut nodes = Vec::new();
    build(
        &Plan { shape: &shape(BitRate::mbit(100), true), groups: &[], members: &members },
        &packets,
        &mut nodes,
    );
    nodes
}

#[test]
fn turns_hold_super_packets_in_a_round_of_80_ms() {
    let lacks = |nodes: &[Node], member: &Member| {
        BitRate(member.target.0 - class(nodes, member.minor).rate.0).as_mbit()
    };
    // It sleeps, and keeps its minimum, which is lent.
    let sleeper = (member(19, 1, Some(2), None, 0), 1514);
    let members =
        [member(16, 1, None, None, 20), member(17, 3, None, None, 60), member(18, 1, None, None, 20)];
    let of =
        |packet: u64| by_packets(&[(members[0], packet), (members[1], 1514), (members[2], 1514), sleeper]);
    let (short, long) = (of(1514), of(7570));
    let part = lacks(&short, &members[0]);
    assert!((lacks(&short, &members[1]) / part - 3.0).abs() < 0.05, "they lack by weight");
    let lack = lacks(&long, &members[0]);
    assert!(lack > part * 1.3 && lack <= part * 2.01, "{lack} and {part}");
    let round = |nodes: &[Node]| nodes[1..4].iter().map(|n| n.class.quantum.0).sum::<u64>();
    let turn = class(&long, 16).quantum.0;
    assert!(turn >= 7570 * 9 / 10, "{turn}");
    let lent = 100_000_000 - long[1..4].iter().map(|n| n.class.rate.0).sum::<u64>();
    let most = BitRate(lent).bytes_in(Duration::from_millis(80)).0 * 5 / 4;
    assert!(round(&long) < most, "{} of at most {most}", round(&long));
    let sum: u64 = long[1..].iter().map(|n| n.class.rate.0).sum();
    assert!(sum <= 99_500_000, "{sum} bit/s are handed out");
}

#[test]
fn class_beside_those_at_their_minima_lacks_all_that_is_not_there() {
    // The sleeper's minimum is missing. Only one class may lack it.
    let sleeper = (member(19, 1, Some(5), None, 0), 1514);
    let at_minimum = |minor| (member(minor, 1, Some(40), None, 40), 7570);
    let nodes = by_packets(&[at_minimum(16), at_minimum(17), (member(18, 1, None, None, 20), 7570), sleeper]);
    let sum: u64 = nodes[1..].iter().map(|n| n.class.rate.0).sum();
    assert!(sum <= 99_500_000, "{sum} bit/s are handed out");
}

#[test]
fn classes_at_their_minima_lack_what_a_packet_a_turn_gives_them() {
    // qCon's Fig. 9. Without that a turn of the one without a minimum is as long as 1 % of what four others are due.
    let minima = [(16, 30), (17, 20), (18, 15), (19, 15)];
    let mut members: Vec<(Member, u64)> =
        minima.map(|(minor, mbit)| (member(minor, 1, Some(mbit), None, mbit), 7570)).to_vec();
    members.push((member(20, 5, None, None, 20), 7570));
    let nodes = by_packets(&members);
    let all: u64 = nodes[1..].iter().map(|n| n.class.quantum.0).sum();
    let lent = 100_000_000 - nodes[1..].iter().map(|n| n.class.rate.0).sum::<u64>();
    for (member, _) in &members {
        let class = class(&nodes, member.minor);
        let has = class.rate.0 + lent * class.quantum.0 / all;
        assert!(has.abs_diff(member.target.0) < member.target.0 / 500, "{has} of {}", member.target.0);
        assert!((7570..=12_000).contains(&class.quantum.0), "{class:?}");
    }
}

#[test]
fn turn_holds_a_super_packet_whatever_its_class_lacks() {
    // HTB would serve the packet, and remember a debt that grows with each turn.
    let small = (member(18, 1, Some(10), None, 10), 7570);
    let nodes =
        by_packets(&[(member(16, 1, None, None, 30), 1514), (member(17, 2, None, None, 60), 1514), small]);
    let turn = class(&nodes, 18).quantum.0;
    assert!((7570..=9000).contains(&turn), "{turn}");
    assert!(class(&nodes, 16).quantum.0 >= 1514);
}

#[test]
fn rounds_of_many_classes_at_their_minima_cost_another_one_little() {
    // Three are at their minima, and take what they have too much from the other two.
    let members = [
        member(16, 1, Some(30), None, 30),
        member(17, 1, Some(20), None, 20),
        member(18, 1, Some(20), None, 20),
        member(19, 1, None, None, 15),
        member(20, 1, None, None, 15),
    ];
    let nodes = tree(true, &members);
    let all: u64 = nodes[1..].iter().map(|n| n.class.quantum.0).sum();
    let lent = 100_000_000 - nodes[1..].iter().map(|n| n.class.rate.0).sum::<u64>();
    // HTB lets each have the largest packet a turn.
    let gain = lent * 3 * 9_216 / all;
    assert!(gain <= 310_000, "{gain} bit/s of what 30 Mbit/s are due");
}

#[test]
fn the_fixed_tree_has_floors_as_rates_ceilings_and_weights_as_quanta() {
    let mut nodes = Vec::new();
    let group = Group {
        minor: 15,
        policy: Policy::new(Weight::ONE, None, Some(BitRate::mbit(60))).unwrap(),
        allocation: BitRate::ZERO,
        share: BitRate::ZERO,
        target: BitRate::ZERO,
    };
    let inside = Member { group: Some(0), ..member(16, 2, Some(30), Some(50), 70) };
    let members = [inside, Member { group: Some(0), ..member(17, 6, None, None, 25) }];
    let shape = shape(BitRate::mbit(100), false);
    fixed(&Plan { shape: &shape, groups: &[group], members: &members }, &mut nodes);
    let (g, a, b) = (class(&nodes, 15), class(&nodes, 16), class(&nodes, 17));
    assert_eq!((g.rate, g.ceil), (BitRate(30_008_000), BitRate::mbit(60)));
    assert_eq!((a.rate, a.ceil, a.quantum.0), (BitRate::mbit(30), BitRate::mbit(50), shape.unit()));
    assert_eq!((b.rate, b.ceil, b.quantum.0), (MIN_OWN_RATE, BitRate::mbit(100), 3 * shape.unit()));
    assert!(nodes[3].leaf.is_some() && nodes[1].leaf.is_none());
}

/// HTB lends to a group by the quanta of its members alone.
#[test]
fn members_of_a_group_divide_its_weight_in_the_fixed_tree() {
    let group = |minor: u16, weight| Group {
        minor,
        policy: Policy::new(Weight::new(weight).unwrap(), None, None).unwrap(),
        allocation: BitRate::ZERO,
        share: BitRate::ZERO,
        target: BitRate::ZERO,
    };
    let of = |group, member| Member { group: Some(group), ..member };
    let members = [
        of(0, member(18, 1, None, None, 0)),
        of(0, member(19, 2, None, None, 0)),
        of(1, member(20, 8, None, None, 0)),
        member(21, 1, None, None, 0),
    ];
    let shape = shape(BitRate::mbit(20), true);
    let mut nodes = Vec::new();
    fixed(&Plan { shape: &shape, groups: &[group(16, 6), group(17, 1)], members: &members }, &mut nodes);
    let units = [18, 19, 20, 21].map(|minor| class(&nodes, minor).quantum.0 / shape.unit());
    assert_eq!(units, [2, 4, 1, 1], "6 for the first group, 1 for the second, 1 for the class of none");
}

/// A class that goes first has turns of its own. Its weight makes no other class's turns longer.
#[test]
fn class_of_another_priority_counts_not_among_the_turns_of_the_fixed_tree() {
    let first = Member { prio: 0, ..member(3, 1, None, None, 0) };
    let members = [first, member(18, 100, None, None, 0), member(19, 300, None, None, 0)];
    let shape = shape(BitRate::mbit(20), true);
    let mut nodes = Vec::new();
    fixed(&Plan { shape: &shape, groups: &[], members: &members }, &mut nodes);
    let quanta = [3, 18, 19].map(|minor| class(&nodes, minor).quantum.0);
    assert_eq!(quanta, [1, 1, 3].map(|units| units * shape.unit()));
}

#[test]
fn a_sleeping_floor_is_kept_free_and_lent_by_what_each_still_lacks() {
    let mut nodes = Vec::new();
    // 30 sleeps; 20 is held at its floor; 70 and 10 go by weight.
    let members = [
        member(16, 1, Some(30), None, 0),
        member(17, 1, Some(20), None, 20),
        member(18, 7, None, None, 70),
        member(19, 1, None, None, 10),
    ];
    make(&shape(BitRate::mbit(100), true), &[], &members, &mut nodes);
    assert_eq!(class(&nodes, 16).rate, BitRate::mbit(30));
    assert_eq!(class(&nodes, 17).rate, BitRate::mbit(20));
    // The one at its floor gets the smallest turn there is.
    assert_eq!(class(&nodes, 17).quantum.0, 1514);
    let lent = |minor, whole| BitRate::mbit(whole).0 - class(&nodes, minor).rate.0;
    let ratio = lent(18, 70) as f64 / lent(19, 10) as f64;
    assert!((ratio - 7.0).abs() < 0.02, "{ratio}");
}

#[test]
fn a_sleeper_keeps_enough_for_its_first_packets_to_leave_no_debt() {
    let mut nodes = Vec::new();
    let members =
        [member(16, 1, None, None, 0), member(17, 3, None, None, 0), member(18, 1, None, None, 100)];
    make(&shape(BitRate::mbit(100), true), &[], &members, &mut nodes);
    for minor in [16, 17] {
        let debt = class(&nodes, minor).rate.time_to_send(Bytes(1514));
        assert!(debt <= rates::DEBT + Duration::from_micros(1), "{minor}: {debt:?}");
    }
    // It is lent while they sleep: the one that sends may have all.
    assert_eq!(class(&nodes, 18).ceil, BitRate::mbit(100));
}

#[test]
fn burst_of_the_link_is_short_on_slow_links() {
    let burst = |rate, split| {
        let mut nodes = Vec::new();
        make(&shape(rate, split), &[], &[], &mut nodes);
        (nodes[0].class.burst.0, nodes[0].class.cburst.0)
    };
    assert_eq!(burst(BitRate::mbit(4), true), (2 * 1514, 2 * 1514), "1000 bytes are less than two frames");
    assert_eq!(burst(BitRate::mbit(100), true), (25_000, 25_000));
    assert!(burst(BitRate::mbit(4), false).0 > 65_536, "a super-packet leaves at once");
}

#[test]
fn a_class_that_is_promised_one_rate_saves_up_a_millisecond_of_it() {
    let mut nodes = Vec::new();
    let members = [
        member(16, 1, Some(19), Some(19), 19),
        member(17, 1, Some(50), Some(50), 50),
        member(18, 1, Some(19), Some(20), 19),
        member(19, 1, None, Some(19), 19),
    ];
    let bursts = |nodes: &[Node], minor| (class(nodes, minor).burst.0, class(nodes, minor).cburst.0);
    make(&shape(BitRate::mbit(200), true), &[], &members, &mut nodes);
    assert_eq!(bursts(&nodes, 16), (2 * 1514, 2 * 1514), "2375 bytes are less than two frames");
    assert_eq!(bursts(&nodes, 17), (6250, 6250));
    // A class that may have more than its promise, or has no promise, is not measured so
    // exactly.
    assert!(bursts(&nodes, 18).0 >= 16_384 && bursts(&nodes, 19).0 >= 16_384);
    // A super-packet has to fit.
    make(&shape(BitRate::mbit(200), false), &[], &members, &mut nodes);
    assert!(bursts(&nodes, 16).0 > 65_536);
}

#[test]
fn a_class_at_its_ceiling_is_not_left_to_borrow() {
    let mut nodes = Vec::new();
    let members =
        [member(16, 1, Some(30), None, 30), member(17, 2, None, None, 55), member(18, 3, None, Some(15), 15)];
    make(&shape(BitRate::mbit(100), true), &[], &members, &mut nodes);
    assert_eq!(class(&nodes, 18).rate, BitRate::mbit(15));
    assert_eq!(class(&nodes, 16).rate, BitRate::mbit(30));
    assert_eq!(class(&nodes, 17).rate, BitRate::kbit(54_500));
}

#[test]
fn a_group_carries_its_members_rates_and_its_own_ceiling() {
    let mut nodes = Vec::new();
    let policy = Policy::new(Weight::ONE, None, Some(BitRate::mbit(40))).unwrap();
    let allocation = BitRate::mbit(40);
    let groups = [Group { minor: 20, policy, allocation, share: allocation, target: allocation }];
    let mut members =
        [member(16, 1, None, None, 10), member(17, 3, None, None, 30), member(18, 1, None, None, 60)];
    members[0].group = Some(0);
    members[1].group = Some(0);
    make(&shape(BitRate::mbit(100), true), &groups, &members, &mut nodes);
    let group = class(&nodes, 20);
    assert_eq!(group.ceil, BitRate::mbit(40));
    assert_eq!(class(&nodes, 16).parent, group.handle);
    assert!(class(&nodes, 16).rate.0 + class(&nodes, 17).rate.0 <= group.rate.0);
}

#[test]
fn queues_hold_a_sockets_buffer_and_drain_within_the_delay() {
    let leaf = |max, split| shape(BitRate::mbit(1000), split).leaf(BitRate::mbit(max), 1);
    assert_eq!(leaf(1, false), Leaf::Fifo { limit: Bytes(278_528) });
    assert_eq!(leaf(1000, false), Leaf::Fifo { limit: Bytes(6_250_000) });
    assert!(matches!(leaf(1, true), Leaf::Split { largest: Bytes(9_216), .. }));
}

#[test]
fn an_urgent_queue_drains_within_10_ms_or_holds_two_frames() {
    let leaf = |max| shape(BitRate::mbit(1000), false).leaf(BitRate::mbit(max), 0);
    assert_eq!(leaf(1), Leaf::Fifo { limit: Bytes(3_064) });
    assert_eq!(leaf(8), Leaf::Fifo { limit: Bytes(10_000) });
}

#[test]
fn a_group_at_its_ceiling_does_not_borrow_what_its_sleeper_leaves() {
    let mut nodes = Vec::new();
    let policy = Policy::new(Weight::ONE, None, Some(BitRate::mbit(28))).unwrap();
    let rate = BitRate::mbit(28);
    let groups = [Group { minor: 20, policy, allocation: rate, share: rate, target: rate }];
    let sleeper = Member { group: Some(0), ..member(16, 1, Some(12), None, 0) };
    let inside = Member { group: Some(0), ..member(17, 1, None, None, 28) };
    let members = [sleeper, inside, member(18, 1, None, None, 72)];
    make(&shape(BitRate::mbit(100), true), &groups, &members, &mut nodes);
    assert_eq!(class(&nodes, 20).rate, rate);
    assert!(class(&nodes, 16).rate >= BitRate::mbit(12));
}

#[test]
fn sleepers_of_a_group_keep_no_more_than_its_ceiling() {
    let limit = BitRate::mbit(5);
    let policy = Policy::new(Weight::ONE, None, Some(limit)).unwrap();
    let zero = BitRate::ZERO;
    let groups = [Group { minor: 15, policy, allocation: limit, share: zero, target: zero }];
    let members: Vec<Member> =
        (16..25).map(|minor| Member { group: Some(0), ..member(minor, 20, None, None, 0) }).collect();
    let mut nodes = Vec::new();
    make(&shape(BitRate::mbit(100), true), &groups, &members, &mut nodes);
    let sum: u64 = nodes[2..].iter().map(|n| n.class.rate.0).sum();
    assert!(sum <= limit.0, "{sum} of {limit}");
}

proptest! {
    #[test]
    fn members_of_a_group_have_no_more_rate_than_its_ceiling(
        ceil in 5u64..90,
        parts in prop::collection::vec((1u32..1000, 0u64..100, any::<bool>(), any::<bool>()), 1..12),
        is_steady in any::<bool>(),
        packet in 60u64..9_216,
    ) {
        let n = parts.len() as u64;
        let limit = BitRate::mbit(ceil);
        let policy = Policy::new(Weight::ONE, None, Some(limit)).unwrap();
        // Members that are not backlogged have room above what they take.
        let members: Vec<Member> = parts.iter().zip(16u16..).map(|(&(w, mbit, backlogged, takes_all), minor)| {
            let share = BitRate(limit.0 * mbit / 100 / n);
            let allocation = if backlogged { share } else { share.scale(3, 2) };
            let policy = Policy::new(Weight::new(w).unwrap(), None, None).unwrap();
            let takes_all = takes_all && backlogged;
            Member { minor, group: Some(0), policy, allocation, share, target: share, backlogged, takes_all, is_steady, prio: 1 }
        }).collect();
        let share = BitRate(members.iter().map(|m| m.share.0).sum());
        let groups = [Group { minor: 15, policy, allocation: limit, share, target: share }];
        let mut nodes = Vec::new();
        let packets = packets_of(members.iter().map(|m| (m.minor, packet)));
        let shape = shape(BitRate::mbit(100), true);
        build(&Plan { shape: &shape, groups: &groups, members: &members }, &packets, &mut nodes);
        let sum: u64 = nodes[2..].iter().map(|n| n.class.rate.0).sum();
        prop_assert!(sum <= limit.0.max(n * MIN_OWN_RATE.0), "{sum} of {limit}");
        prop_assert!(nodes[1].class.rate <= limit);
    }

    #[test]
    fn the_link_is_never_oversold_and_no_floor_or_ceiling_is_touched(
        capacity in 1_000_000u64..10_000_000_000,
        parts in prop::collection::vec((1u32..1000, 0u64..100, 0u64..200, any::<bool>(), 60u64..9_216), 1..40),
        split in any::<bool>(),
        is_steady in any::<bool>(),
        in_group in any::<bool>(),
    ) {
        let n = parts.len() as u64;
        let packets = packets_of(parts.iter().zip(16u16..).map(|(part, minor)| (minor, part.4)));
        let members: Vec<Member> = parts.iter().zip(16u16..).map(|(&(w, min, alloc, backlogged, _), minor)| {
            let floor = capacity * min / 100 / n;
            let policy = Policy::new(
                Weight::new(w).unwrap(), (floor >= 8_000).then_some(BitRate(floor)), None).unwrap();
            let allocation = BitRate((capacity * alloc / 100 / n).max(floor));
            let group = (in_group && minor % 2 == 0).then_some(0);
            Member { minor, group, policy, allocation, share: allocation, target: allocation, backlogged, takes_all: backlogged, is_steady, prio: 1 }
        }).collect();
        let mut nodes = Vec::new();
        let shape = shape(BitRate(capacity), split);
        let policy = Policy::new(Weight::ONE, Some(BitRate(capacity / 8)), None).unwrap();
        let inside = members.iter().filter(|m| m.group.is_some()).map(|m| m.share.0);
        let share = BitRate(inside.sum::<u64>().clamp(capacity / 8, capacity));
        let group = Group { minor: 15, policy, allocation: share, share, target: share };
        let groups = if in_group { &[group][..] } else { &[] };
        build(&Plan { shape: &shape, groups, members: &members }, &packets, &mut nodes);
        let leaves = &nodes[1 + groups.len()..];
        let sum: u64 = leaves.iter().map(|n| n.class.rate.0).sum();
        prop_assert!(sum <= capacity.max(n * MIN_OWN_RATE.0), "{sum} of {capacity}");
        for (node, member) in leaves.iter().zip(&members) {
            // A part of it is lent while turns hold super-packets.
            let floor = member.policy.floor().0;
            let kept = if is_steady && member.takes_all { floor - floor / 32 } else { floor };
            prop_assert!(node.class.rate.0 >= kept);
            prop_assert!(node.class.rate <= node.class.ceil);
            prop_assert!(node.class.quantum.0 >= 1514);
        }
    }
}
