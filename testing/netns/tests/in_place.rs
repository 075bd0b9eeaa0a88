//! The engine `pacing`: no device, no queue. TCP is held back in its own sockets, all else by
//! credit where it is caught; and why credit alone is no engine.

use std::{thread::sleep, time::Duration};

use weir_netlab::{
    stats::median,
    topology::{Family, Spec, UPLINK},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, Need, Node, Party, Stream, TOLERANCE, can_run, compare, containers, kernel,
    measure_once, on_one_processor, party,
};
use weir_units::BitRate;

fn ready() -> bool {
    can_run(&Need::TRAFFIC) && can_run(&[Need::Cgroup2])
}

fn config(node: &Node, engine: &str) -> weir_netns_tests::Config {
    node.config().link(&format!("engine = \"{engine}\""))
}

#[derive(Debug)]
struct Seen {
    worst: f64,
    used: f64,
    again: u64,
}

fn measure(node: &Node, what: &str, division: &Division) -> Seen {
    let expected = division.expected(CAPACITY, Family::V4);
    let outcome = division.run(node, &[], Family::V4, 7);
    let measured: Vec<(String, f64)> =
        outcome.flows.iter().map(|flow| (flow.label.clone(), flow.goodput)).collect();
    let worst = compare(what, &measured, &expected);
    let total = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>();
    let used = total(&mut measured.iter().map(|m| m.1)) / total(&mut expected.iter().map(|e| e.goodput));
    let again = outcome.flows.iter().filter_map(|flow| flow.retransmits).sum();
    println!("{what}: worst share {:.2} %, total {used:.4}, {again} segments sent again", worst * 100.0);
    Seen { worst, used, again }
}

/// Weights 1 to 5; these loads.
fn weights(loads: [Load; 5]) -> Division {
    let party = |(weight, load)| -> Party { party(&format!("C{weight}")).weight(weight).sends(load) };
    Division::of((1..=5).zip(loads).map(party))
}

#[test]
fn shares_hold_without_a_queue_and_a_flood_is_held_back() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(5), ..Spec::default() });
    let flood = Load::Udp(CAPACITY);
    let all = weights([Load::Tcp; 5]);
    let mixed = weights([flood, Load::Tcp, Load::Tcp, Load::Tcp, flood]);
    let config = config(&node, "pacing").division(&node, &all);
    node.start(&config);
    let status = node.client().status().expect("it answers");
    assert_eq!((status.engine.as_str(), status.pacing), ("pacing", true));
    assert!(kernel::index_of(node.topology.node(), kernel::SCHEDULER).is_none(), "there is no device");
    for (what, division) in [("five TCP", &all), ("two floods, three TCP", &mixed)] {
        let good = |s: &Seen| s.worst <= TOLERANCE && s.used >= 0.97 && s.again <= 50;
        let seen = measure_once(|| measure(&node, what, division), good);
        assert!(good(&seen), "{what}: {:.2} %, {:.3}, {}", seen.worst * 100.0, seen.used, seen.again);
    }
}

#[test]
fn a_dead_agent_leaves_no_limit_behind() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let name = node.name("C1");
    let config = config(&node, "pacing").sections(&format!("[[class]]\nname = \"{name}\"\nmax = \"10mbit\""));
    node.start(&config);
    let flow = Stream::tcp(node.netns("C1"), node.topology.srv(), node.topology.server_address(Family::V4));
    sleep(Duration::from_secs(2));
    let held = flow.goodput(Duration::from_secs(2));
    assert!((9.0..10.5).contains(&held), "{held:.1} Mbit/s under a maximum of 10");
    node.agent().kill();
    sleep(Duration::from_secs(4));
    let free = flow.goodput(Duration::from_secs(2));
    println!("{held:.2} Mbit/s under a maximum of 10, {free:.1} after the agent's death");
    assert!(free > 80.0, "{free:.1} Mbit/s 4 s after the agent's death");
    node.restart();
    sleep(Duration::from_secs(2));
    let again = flow.goodput(Duration::from_secs(2));
    assert!((9.0..10.5).contains(&again), "{again:.1} Mbit/s under a maximum of 10, after a restart");
    assert!(node.agent().stop());
    assert!(!node.sh(&["tc", "filter", "show", "dev", UPLINK, "egress"]).contains("weir"));
}

/// Against the same without weir: there is no more to be had. (Through ifb and HTB it is printed
/// beside: what that costs depends on how idle the other processors are.)
#[test]
fn one_unlimited_flow_is_as_fast_as_without_weir() {
    const ROUNDS: usize = 9;
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    let mut gbit = |engine: &str| {
        if engine != "none" {
            let config = config(&node, engine).capacity(BitRate::gbit(100));
            node.start(&config);
        }
        let (to, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
        let flow = on_one_processor(|| Stream::tcp(node.netns("C1"), to, address));
        sleep(Duration::from_millis(300));
        let gbit = flow.goodput(Duration::from_millis(700)) / 1000.0;
        drop(flow);
        assert!(engine == "none" || node.agent().stop());
        gbit
    };
    let mut measure = || {
        let mut ratios = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            // The machine's speed may drift: none of the three always comes first.
            let mut of = [0.0; 3];
            for place in 0..3 {
                let which = (round + place) % 3;
                of[which] = gbit(["none", "pacing", "htb"][which]);
            }
            let [none, pacing, htb] = of;
            println!("without weir {none:.2} Gbit/s, in place {pacing:.2}, through ifb and HTB {htb:.2}");
            ratios[0].push(pacing / none);
            ratios[1].push(pacing / htb);
        }
        ratios.map(|r| median(&r).expect("there are some"))
    };
    let ratios = measure_once(&mut measure, |ratios| ratios[0] >= 0.9);
    println!("one flow in place: {:.3} of without weir, {:.3} of ifb and HTB", ratios[0], ratios[1]);
    assert!(ratios[0] >= 0.9, "{:.3}", ratios[0]);
}

#[test]
fn credit_alone_loses_much_of_the_link_and_says_so() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(5), ..Spec::default() });
    let all = weights([Load::Tcp; 5]);
    let config = config(&node, "credit-experiment").division(&node, &all);
    node.start(&config);
    let status = node.weir(&["status"]);
    assert!(status.contains("drops instead of queueing"), "{status}");
    let seen = measure(&node, "credit alone", &all);
    assert!(seen.used < 0.95, "{:.3} of the link are used: then it could be an engine", seen.used);
}

#[test]
fn without_cgroup_v2_no_class_is_called_enforced() {
    if !ready() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    // The agent has mounts of its own, and cgroup v2 is not among them.
    let hide = ["unshare", "-m", "sh", "-ec", "umount --all --types cgroup2 || true; exec \"$@\"", "sh"];
    let config = config(&node, "pacing").awaiting(&[]).behind(&hide.map(str::to_owned));
    node.start(&config);
    let name = node.name("C1");
    let lacks = |client: &weir_api::Client| match client.classes() {
        Ok(classes) if classes.iter().any(|class| class.name == name) => None,
        other => Some(format!("{other:?}")),
    };
    node.agent().wait_until("know the container", lacks).expect("it is here");
    let why =
        "its sockets are not paced, and TCP misses its share by far: cannot pace sockets without cgroup v2";
    let class = node.class("C1");
    assert!(!class.enforced, "{class:?}");
    assert!(class.not_enforced_because.as_ref().is_some_and(|said| said.starts_with(why)), "{class:?}");
    let not_ready = node.client().status().expect("it answers").not_ready;
    assert!(not_ready.iter().any(|reason| reason.contains(why)), "{not_ready:?}");
    assert!(node.weir(&["explain", &name]).contains(why));
}
