//! Each class gets its share, however the containers reach the link and whatever they send.

use std::{
    thread,
    time::{Duration, Instant},
};

use weir_netlab::{
    topology::{Family, Mode, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, Need, Node, SECONDS, TOLERANCE, can_run, check, compare, containers, kernel,
    measure_once, party, title,
};
use weir_units::BitRate;

/// More than any share here.
const FLOOD: Load = Load::Udp(BitRate::mbit(80));

fn spec(mode: Mode, tso: bool) -> Spec {
    Spec { containers: containers(3), mode, tso, br_netfilter: Some(true), ..Spec::default() }
}

fn ready() -> bool {
    can_run(&Need::TRAFFIC) && can_run(&[Need::BrNetfilter])
}

/// Weights 1:2:3 and nothing else.
fn weights(loads: [Load; 3]) -> Division {
    Division::of([
        party("C1").sends(loads[0]),
        party("C2").weight(2).sends(loads[1]),
        party("C3").weight(3).sends(loads[2]),
    ])
}

/// The same weights; C1 is lifted to its minimum, C3 held at its maximum, C2 has the rest.
fn combined(loads: [Load; 3]) -> Division {
    Division::of([
        party("C1").min(30).sends(loads[0]),
        party("C2").weight(2).sends(loads[1]),
        party("C3").weight(3).max(15).sends(loads[2]),
    ])
}

/// TCP, UDP and both, with and without super-packets. Two policies in turn, so that each
/// kind of traffic meets each policy.
fn matrix(mode: Mode) {
    if !ready() {
        return;
    }
    for tso in [true, false] {
        let mut node = Node::build(&spec(mode, tso));
        let config = node.config();
        node.start(&config);
        for (i, (name, loads)) in
            [("tcp", [Load::Tcp; 3]), ("udp", [FLOOD; 3]), ("mixed", [FLOOD, Load::Tcp, FLOOD])]
                .into_iter()
                .enumerate()
        {
            let plain = (i % 2 == 0) != tso;
            let (policy, division) =
                if plain { ("1:2:3", weights(loads)) } else { ("min 30, -, max 15", combined(loads)) };
            node.client().set(&division.to_changes(&node)).expect("it fits");
            check(&node, &title(mode, name, tso, policy), &division, Family::V4, SECONDS);
        }
    }
}

#[test]
fn bridged_containers_get_their_shares() {
    matrix(Mode::Bridged);
}

#[test]
fn routed_containers_get_their_shares() {
    matrix(Mode::Routed);
}

#[test]
fn containers_behind_nat_get_their_shares() {
    matrix(Mode::Nat);
}

#[test]
fn shares_hold_over_ipv6() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&spec(Mode::Routed, true));
    let division = combined([Load::Tcp, Load::Tcp, FLOOD]);
    let config = node.config().division(&node, &division);
    node.start(&config);
    check(&node, &title(Mode::Routed, "mixed", true, "IPv6"), &division, Family::V6, SECONDS);
}

#[test]
fn shares_hold_with_the_hook_of_kernels_before_tcx() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&spec(Mode::Routed, true));
    let division = combined([Load::Tcp, Load::Tcp, FLOOD]);
    let config = node.config().link("attach = \"clsact\"").division(&node, &division);
    node.start(&config);
    assert_eq!(node.client().status().expect("it answers").attach, "clsact");
    check(&node, &title(Mode::Routed, "mixed", true, "clsact"), &division, Family::V4, SECONDS);
}

/// Many connections in one queue lose segments now and then, and what follows a lost one
/// arrives with it, all at once: what a receiver gets jumps by whole windows. So the link is
/// measured, not the receivers.
#[test]
fn many_connections_get_no_more_than_one() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&spec(Mode::Bridged, true));
    let division = Division::of([
        party("C1").sends(Load::TcpMany(8)),
        party("C2").weight(2).sends(Load::Tcp),
        party("C3").sends(Load::TcpMany(3)),
    ]);
    let config = node.config().division(&node, &division);
    node.start(&config);
    let (what, labels) = (title(Mode::Bridged, "8, 1, 3 connections", true, ""), ["C1", "C2", "C3"]);
    let expected = division.expected(CAPACITY, Family::V4);
    let handles = labels.map(|label| node.class(label).handle.expect("it is here"));
    let measure = || {
        thread::scope(|scope| {
            let traffic = scope.spawn(|| division.run(&node, &[], Family::V4, SECONDS));
            thread::sleep(Duration::from_millis(2300));
            // The agent looks ten times a second, the kernel tells what is now.
            let look = || {
                let classes = kernel::classes(node.topology.node());
                (Instant::now(), handles.each_ref().map(|handle| classes[handle].counters.bytes))
            };
            let (from, before) = look();
            thread::sleep(Duration::from_millis(2300));
            let (to, after) = look();
            let outcome = traffic.join().expect("traffic flows");
            let megabits = 8e-6 * Load::Tcp.payload_share(Family::V4) / (to - from).as_secs_f64();
            let rate = |i: usize| (labels[i].to_owned(), (after[i] - before[i]) as f64 * megabits);
            let measured = [0, 1, 2].map(rate);
            let worst = compare(&what, &measured, &expected);
            (measured, worst, outcome.flows[0].retransmits.expect("TCP tells"))
        })
    };
    let (measured, worst, again) = measure_once(measure, |(_, worst, _)| *worst <= TOLERANCE);
    let used = measured.iter().map(|(_, rate)| rate).sum::<f64>() / CAPACITY.as_mbit();
    assert!(worst <= TOLERANCE, "a share is {:.2} % off", worst * 100.0);
    assert!(used >= 0.93, "{used:.3} of the link are used");
    // The drops of the queue are known, also where it took a part of a super-packet.
    let drops = node.class("C1").drops;
    println!("{what:<44} C1    {drops} drops are counted, {again} segments were sent again");
    assert!(drops >= again / 2, "{again} segments were sent again, but only {drops} drops are counted");
}

#[test]
fn a_group_shares_what_it_gets_by_its_own_weights() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(5), ..spec(Mode::Routed, true) });
    let mbit = |n| Some(BitRate::mbit(n));
    // By weight 47.5 | 23.75 | 23.75; tenant-b is held at 20, the others share what it leaves.
    let division = Division::of([
        party("C1").group("tenant-a").sends(Load::Tcp),
        party("C2").group("tenant-a").weight(3).sends(Load::Tcp),
        party("C3").sends(Load::Tcp),
        party("C4").group("tenant-b").min(12).sends(FLOOD),
        party("C5").group("tenant-b").sends(FLOOD),
    ])
    .group("tenant-a", 2, None, None)
    .group("tenant-b", 1, None, mbit(20));
    let config = node.config().division(&node, &division);
    node.start(&config);
    check(&node, &title(Mode::Routed, "two groups", true, ""), &division, Family::V4, SECONDS);
}
