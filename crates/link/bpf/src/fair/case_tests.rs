//! Single divisions, and changes of them, in the qdisc in user space. Random policies found most of
//! them.

use super::{
    super as fair, CAPACITY, CLASS, Division, FRAME, GROUP, Link, Load, MS, PARAMS, Params, Qdisc, SECOND,
    SUPER_PACKET, flood, policy,
};

#[test]
fn class_lifted_by_its_floor_gets_no_more_beside_slow_ones() {
    let members = [flood(4, None, None, Some(0)), flood(27, None, None, Some(0))];
    let lifted = flood(353, Some(5_867), None, Some(0));
    let classes = members.into_iter().chain([lifted, flood(715, None, None, None)]).collect();
    let division = Division { classes, groups: vec![policy(49, None, None)] };
    let mut link = Link::<Qdisc>::new(&division);
    link.run(SECOND);
    assert_eq!(link.judge(&division, 20 * SECOND, 0.005, FRAME), None);
}

#[test]
fn a_floor_given_under_load_is_served_at_once() {
    let mut classes = vec![flood(1, None, None, None), flood(1000, None, None, None)];
    let mut division = Division { classes: classes.clone(), groups: vec![] };
    let mut link = Link::<Qdisc>::new(&division);
    link.run(SECOND);
    classes[0] = flood(1, Some(30_000), None, None);
    division.classes = classes;
    link.apply(&division);
    assert_eq!(link.judge(&division, 100 * MS, 0.01, FRAME), None);
}

#[test]
fn one_that_was_lifted_for_long_has_its_share_soon_after_the_others_went() {
    for weight in [1, 10, 1000] {
        let lifted = flood(10, Some(20_000), None, None);
        let classes = vec![lifted, flood(weight, None, None, None), flood(1000, None, None, None)];
        let mut division = Division { classes, groups: vec![] };
        let mut link = Link::<Qdisc>::new(&division);
        link.run(30 * SECOND);
        division.classes[2].load = Load::Nothing;
        link.apply(&division);
        link.run(150 * MS);
        assert_eq!(link.judge(&division, 200 * MS, 0.01, FRAME), None);
    }
}

#[test]
fn one_at_its_ceiling_has_all_of_it_beside_super_packets_in_a_slow_group() {
    let mut bulk = flood(5, None, None, Some(0));
    bulk.load = Load::Greedy(SUPER_PACKET);
    let classes = vec![bulk, flood(92, None, Some(7_020), Some(0)), flood(10, None, None, None)];
    let division = Division { classes, groups: vec![policy(193, None, Some(15_894))] };
    let mut link = Link::<Qdisc>::new(&division);
    link.run(SECOND);
    assert_eq!(link.judge(&division, 20 * SECOND, 0.005, FRAME), None);
}

#[test]
fn class_moved_to_a_slow_group_asleep_has_its_share_at_once() {
    let classes =
        vec![flood(5, None, None, Some(0)), flood(10, None, None, None), flood(699, None, None, None)];
    let mut division = Division { classes, groups: vec![policy(4, None, None)] };
    let mut link = Link::<Qdisc>::new(&division);
    link.run(10 * SECOND);
    link.drain();
    division.classes[1].group = Some(0);
    link.apply(&division);
    assert_eq!(link.judge(&division, 4 * SECOND, 0.01, FRAME), None);
}

#[test]
fn class_that_leaves_a_held_back_group_has_its_share_outside() {
    let lifted = |floor, weight| flood(weight, Some(floor), None, Some(0));
    let classes = vec![lifted(13_595, 24), lifted(10_198, 65), flood(142, None, None, None)];
    let mut division = Division { classes, groups: vec![policy(1, None, None)] };
    let mut link = Link::<Qdisc>::new(&division);
    link.run(5 * SECOND);
    division.classes[1].group = None;
    link.apply(&division);
    link.run(SECOND);
    assert_eq!(link.judge(&division, 4 * SECOND, 0.01, FRAME), None);
}

#[test]
fn class_after_super_packets_sends_few_frames_ahead_of_its_turn() {
    let mut slow = flood(1, None, None, None);
    slow.load = Load::Greedy(SUPER_PACKET);
    let classes = vec![slow, flood(1000, None, None, None)];
    let mut division = Division { classes, groups: vec![] };
    let mut link = Link::<Qdisc>::new(&division);
    link.run(20 * SECOND);
    link.drain();
    division.classes[0].load = Load::Greedy(FRAME);
    link.apply(&division);
    let got = link.rates(SECOND)[0] / 8.0;
    let most = CAPACITY.bytes_per_sec() as f64 / 1001.0 + 5.0 * f64::from(FRAME);
    assert!(got <= most, "{got} bytes in a second, in which {most} are its share and 5 frames");
}

#[test]
fn what_one_sent_before_all_were_idle_does_not_count_against_it() {
    for group in [None, Some(0)] {
        let mut slow = flood(1, None, None, group);
        slow.load = Load::Greedy(SUPER_PACKET);
        let classes = vec![slow, flood(1000, None, None, group), flood(10, None, None, None)];
        let mut division = Division { classes, groups: vec![policy(1000, None, None)] };
        division.classes[1].load = Load::Nothing;
        let mut link = Link::<Qdisc>::new(&division);
        link.run(SECOND);
        // In a group while others go on.
        division.classes[0].load = Load::Nothing;
        if group.is_none() {
            link.drain();
        }
        link.apply(&division);
        link.run(SECOND);
        division.classes[1].load = Load::Greedy(FRAME);
        link.apply(&division);
        link.run(100 * MS);
        division.classes[0].load = Load::Greedy(FRAME);
        link.apply(&division);
        assert_eq!(link.judge(&division, 4 * SECOND, 0.02, FRAME), None, "in {group:?}");
    }
}

#[test]
fn backlog_of_a_class_that_becomes_a_group_leaves() {
    let qdisc = Qdisc::new();
    qdisc.set(CLASS, &policy(1, None, None), 0);
    qdisc.set(GROUP, &policy(1, None, None), 0); // a class, as yet
    qdisc.write(fair::place(GROUP, PARAMS) + Params::FLAGS, 1);
    (0..3).for_each(|_| qdisc.enqueue(SECOND, GROUP, FRAME));
    qdisc.set(GROUP, &policy(1, None, None), 0);
    qdisc.set(CLASS, &policy(1, None, None), GROUP);
    let (mut now, mut left) = (SECOND, 0);
    while left < 3 {
        assert!(now < SECOND + 10 * MS, "{left} of 3 have left while a member of the group floods");
        qdisc.enqueue(now, CLASS, FRAME);
        match qdisc.dequeue(now) {
            Ok((minor, _)) => left += u32::from(minor == GROUP),
            Err(wake) => now = wake,
        }
    }
}

#[test]
fn where_all_slots_are_taken_who_has_most_packets_makes_room() {
    const SMALL: u32 = 60;
    let qdisc = Qdisc::new();
    let drops = |minor: u16| qdisc.read(fair::place(minor, fair::STATS) + 2);
    // A hundred with 640 packets each, and in one 1,000 of the other 1,535 slots.
    let of = |i: u16| if i == 42 { 1_640 } else { 640 };
    (0..101).for_each(|i| qdisc.set(CLASS + i, &policy(1, None, None), 0));
    let mut taken = 0;
    for i in 0..100 {
        (0..of(i)).for_each(|_| qdisc.enqueue(SECOND, CLASS + i, SMALL));
        taken += of(i);
    }
    let room = 65_534 - taken;
    (0..room + 600).for_each(|_| qdisc.enqueue(SECOND, CLASS + 100, SMALL));
    assert!((598..=602).contains(&drops(CLASS + 42)), "the longest queue lost {}", drops(CLASS + 42));
    assert_eq!((0..101).map(|i| drops(CLASS + i)).sum::<u64>(), drops(CLASS + 42), "and nobody else");
}
