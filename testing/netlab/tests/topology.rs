//! Real namespaces and real traffic: needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN) and iperf3.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use weir_netlab::{
    topology::{Container, Family, Mode, Spec, Topology, check_rights, clean},
    traffic::{self, Flow, Load, Timing},
};
use weir_testkit::measure_once;
use weir_units::BitRate;

fn spec(mode: Mode, containers: &[&str]) -> Spec {
    Spec { mode, containers: containers.iter().map(|c| (*c).to_owned()).collect(), ..Spec::default() }
}

fn namespaces(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| n.starts_with(prefix)).collect()
}

/// One test at a time: what they measure is the machine's. None without the rights.
fn may_run() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    match check_rights() {
        Ok(()) => Some(TURN.lock().unwrap_or_else(PoisonError::into_inner)),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

#[test]
fn without_control_the_line_is_full_whatever_the_way_to_it() {
    let Some(_turn) = may_run() else { return };
    for (mode, family) in [(Mode::Bridged, Family::V4), (Mode::Routed, Family::V6), (Mode::Nat, Family::V4)] {
        let topology = Topology::build(&spec(mode, &["c1", "c2"])).unwrap();
        let flows: Vec<Flow<'_>> = topology
            .containers()
            .iter()
            .map(|c| Flow { label: c.label(), from: c.netns(), load: Load::Tcp })
            .collect();
        let line = 100.0 * Load::Tcp.payload_share(family);
        let is_full = |total: &f64| (total / line - 1.0).abs() < 0.03;
        let total = measure_once(
            || {
                let time = Timing::seconds(4).unwrap();
                let outcome = traffic::run(&topology, &flows, &[], family, time).unwrap();
                outcome.flows.iter().map(|f| f.goodput).sum::<f64>()
            },
            is_full,
        );
        assert!(is_full(&total), "{mode} {family:?}: {total:.2} of {line:.2} Mbit/s");
    }
}

#[test]
fn a_new_topology_forwards_ipv6_packets_at_once() {
    let Some(_turn) = may_run() else { return };
    let topology = Topology::build(&spec(Mode::Routed, &["c1"])).unwrap();
    let containers = topology.containers().iter().map(Container::netns);
    for netns in containers.chain([topology.node(), topology.wire(), topology.srv()]) {
        let unusable = netns.exec(&["ip", "-6", "-o", "addr", "show", "tentative"]).unwrap().stdout;
        assert_eq!(unusable, "", "{} has addresses that it does not use yet", netns.name());
    }
}

#[test]
fn a_flood_is_lost_where_nobody_shapes_it_and_the_wire_takes_its_time() {
    let Some(_turn) = may_run() else { return };
    let topology = Topology::build(&spec(Mode::Bridged, &["flood", "idle"])).unwrap();
    let [flood, idle] = topology.containers() else { panic!("two containers") };
    let flow = Flow { label: "flood", from: flood.netns(), load: Load::Udp(BitRate::mbit(200)) };
    let line = 100.0 * Load::Udp(BitRate::mbit(200)).payload_share(Family::V4);
    let is_full = |goodput: f64| (goodput / line - 1.0).abs() < 0.03;
    let outcome = measure_once(
        || {
            let time = Timing::seconds(3).unwrap();
            traffic::run(&topology, &[flow], &[idle.netns()], Family::V4, time).unwrap()
        },
        |outcome| is_full(outcome.flows[0].goodput),
    );
    let flood = &outcome.flows[0];
    assert!(flood.loss.unwrap() > 0.3, "{flood:?}");
    assert!(is_full(flood.goodput), "{} of {line} Mbit/s", flood.goodput);
    // 250 KB in front of 100 Mbit/s are 20 ms.
    let rtts = &outcome.pings[0];
    let mean = rtts.ms.iter().sum::<f64>() / rtts.ms.len() as f64;
    assert!((12.0..24.0).contains(&mean), "mean round trip {mean} ms of {rtts:?}");
}

#[test]
fn a_topology_leaves_nothing_behind_after_use_panic_or_half_building() {
    let Some(_turn) = may_run() else { return };
    let topology = Topology::build(&spec(Mode::Nat, &["c1"])).unwrap();
    let prefix = topology.prefix().to_owned();
    let mut sleeper = topology.containers()[0].netns().spawn(&["sleep", "1000"]).unwrap();
    assert_eq!(namespaces(&prefix).len(), 4);
    drop(topology);
    assert_eq!(namespaces(&prefix), [""; 0]);
    let deadline = Instant::now() + Duration::from_secs(2);
    assert!(sleeper.finish(deadline).is_err(), "it was killed with its namespace");
    assert!(sleeper.ended().unwrap().is_some());

    let mut seen = String::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let topology = Topology::build(&spec(Mode::Bridged, &["c1"])).unwrap();
        topology.prefix().clone_into(&mut seen);
        panic!("on purpose");
    }));
    assert!(panicked.is_err() && !seen.is_empty());
    assert_eq!(namespaces(&seen), [""; 0]);

    let half = Topology::build(&spec(Mode::Bridged, &["twice", "twice"])).unwrap_err().to_string();
    assert!(half.contains("there is one of that name"), "{half}");
    assert!(!namespaces("weirlab-").iter().any(|name| name.ends_with("-twice")));
}

#[test]
fn containers_come_and_go_while_the_rest_stays() {
    let Some(_turn) = may_run() else { return };
    let mut topology = Topology::build(&spec(Mode::Bridged, &["c1"])).unwrap();
    for round in 0..5 {
        let address = topology.add_container("late").unwrap().address(Family::V4).to_string();
        topology
            .srv()
            .exec(&["ping", "-c", "1", "-W", "2", &address])
            .unwrap_or_else(|e| panic!("{round}: {e:#}"));
        topology.remove_container("late").unwrap();
    }
    assert!(topology.remove_container("late").is_err());
    let left = topology.node().exec(&["ip", "-o", "link", "show", "master", "br0"]).unwrap().stdout;
    assert_eq!(left.lines().count(), 2, "up0 and v1: {left}");
}

#[test]
fn what_a_dead_run_left_is_cleaned_and_what_a_living_one_uses_is_not() {
    let Some(_turn) = may_run() else { return };
    let topology = Topology::build(&spec(Mode::Bridged, &[])).unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = format!("weirlab-{}-1-node", child.id());
    child.wait().unwrap();
    assert!(std::process::Command::new("ip").args(["netns", "add", &dead]).status().unwrap().success());
    assert!(clean().unwrap().contains(&dead));
    assert_eq!(namespaces(&dead), [""; 0]);
    assert_eq!(namespaces(topology.prefix()).len(), 3);
}
