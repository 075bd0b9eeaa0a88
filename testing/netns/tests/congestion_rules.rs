//! Rules of congestion control come and go: what is refused changes nothing, and nothing is lost when a
//! rule is removed in the flow or the agent is killed; what trials know outlives it.

use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, setrlimit};
use weir_bpf::{CongestionTrial, LocalPrefix};
use weir_cc::{Direction, Origin};
use weir_datapath::congestion::{Congestion, SocketOwners};
use weir_discovery::NetnsRef;
use weir_netlab::topology::{Family, Spec};
use weir_netns_tests::{
    Node,
    connections::{
        BACKGROUND_TIMEOUT, Pair, algorithm, can_choose, programs, records, rule, started, usual, wait_for,
    },
    containers,
};

const MIB: usize = 1 << 20;

/// Waits until the agent follows this number of rules.
fn wait_for_rules(node: &Node, rules: usize) {
    wait_for("the agent reads its configuration", || {
        let view = node.client().congestion().expect("it answers");
        (view.rules.len() == rules).then_some(())
    });
}

#[test]
fn rules_that_cannot_be_are_refused_and_the_old_ones_stay() {
    if !can_choose() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let good = rule("start = \"reno\"");
    let config = node.config();
    started(&mut node, &config, &[good]);
    for (bad, why) in [
        (rule("start = \"fastest\""), "this kernel has no congestion control fastest; it has"),
        (rule("start = \"a-name-that-is-too-long\""), "is not the name of a congestion control"),
        (rule("to = \"10.0.0.1/8\"\nstart = \"reno\""), "has bits behind its prefix: write 10.0.0.0/8"),
        (rule("to = \"224.0.0.0/4\"\nstart = \"reno\""), "TCP has no multicast"),
        (
            [rule("start = \"reno\""), rule("start = \"cubic\"")].concat(),
            "rules 1 and 2 are about the same connections",
        ),
        (rule("start = \"reno\"\nafter = \"1MiB\""), "after needs then beside it"),
    ] {
        node.agent().rewrite(&config.clone().sections(&bad)).expect("can write");
        let said = wait_for("the configuration is refused", || {
            node.client().status().expect("it answers").config_error.filter(|said| said.contains(why))
        });
        println!("{}", said.lines().last().unwrap_or_default());
        let pair =
            Pair::new(node.netns("C1"), node.topology.srv(), node.topology.server_address(Family::V4), 0);
        assert_eq!(algorithm(&pair.opened), "reno", "the old rule is in force");
        let path = node.agent().config_path();
        let checked = node.ran(&["agent", "--check", "--config", path.to_str().expect("UTF-8")]);
        assert!(checked.code != Some(0) && checked.stderr.contains(why), "{checked:?}");
    }
    assert!(node.agent().stop());
}

#[test]
fn flows_go_on_when_the_agent_is_killed_before_they_change() {
    if !can_choose() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let before = usual(node.netns("C1"));
    let config = node.config();
    started(&mut node, &config, &[rule("start = \"reno\"\nafter = \"1MiB\"\nthen = \"cubic\"")]);
    let connect = |node: &Node| {
        Pair::new(node.netns("C1"), node.topology.srv(), node.topology.server_address(Family::V4), 0)
    };
    let (mut changes, mut ends, mut stays) = (connect(&node), connect(&node), connect(&node));
    for pair in [&mut changes, &mut ends, &mut stays] {
        pair.send(MIB / 2);
    }
    // In the middle of what makes it change.
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| changes.send(4 * MIB));
        node.agent().kill();
        sent.join().expect("all of it arrives");
    });
    assert_eq!(programs(&node).len(), 1, "the program outlives the agent");
    wait_for("it changes without an agent", || (algorithm(&changes.opened) == "cubic").then_some(()));
    assert_eq!(algorithm(&connect(&node).opened), "reno", "so does a new connection");
    node.restart();
    wait_for("the agent takes over", || (programs(&node).len() == 1).then_some(()));
    ends.send(2 * MIB);
    wait_for("it changes under the next agent", || (algorithm(&ends.opened) == "cubic").then_some(()));
    let port = ends.port();
    drop(ends);
    let flow = records(&node, &[port], Direction::Out).remove(0);
    assert_eq!((flow.sent.0, flow.algorithms().as_str()), ((MIB / 2 + 2 * MIB) as u64, "reno>cubic"));

    assert!(node.agent().stop(), "the agent puts everything back");
    assert!(programs(&node).is_empty(), "the program goes with the agent");
    for pair in [&mut changes, &mut stays] {
        assert_eq!(algorithm(&pair.opened), before, "connections get back what they had");
        pair.send(2 * MIB);
        assert_eq!(algorithm(&pair.opened), before);
    }
}

#[test]
fn removed_rule_changes_nothing_more_and_move_applies_others() {
    if !can_choose() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let (before, address) = (usual(node.netns("C1")), node.topology.server_address(Family::V4));
    let connect = |node: &Node| Pair::new(node.netns("C1"), node.topology.srv(), address, 0);
    let mut old = connect(&node);
    let (config, name) = (node.config(), node.name("C1"));
    let wanted = format!("container = \"{name}\"\nstart = \"reno\"\nafter = \"1MiB\"\nthen = \"cubic\"");
    started(&mut node, &config, &[rule(&wanted)]);
    let mut flow = connect(&node);
    flow.send(MIB / 2);
    old.send(1000);
    assert_eq!((algorithm(&flow.opened), algorithm(&old.opened)), ("reno".to_owned(), before.clone()));

    let said = node.weir(&["cc", "move"]);
    assert_eq!(
        (said.as_str(), algorithm(&old.opened)),
        ("1 connection has another algorithm now\n", "reno".to_owned())
    );
    old.send(2 * MIB);
    wait_for("what was moved changes too", || (algorithm(&old.opened) == "cubic").then_some(()));

    // Another rule in its place.
    let other = rule(&format!("container = \"{}\"\nstart = \"cubic\"", node.name("C2")));
    node.agent()
        .rewrite(&config.clone().sections(&[other.clone(), rule("container = \"host\"")].concat()))
        .expect("can write");
    wait_for_rules(&node, 2);
    flow.send(4 * MIB);
    assert_eq!(algorithm(&flow.opened), "reno", "it stays as it is, and does not change any more");
    assert_eq!(algorithm(&connect(&node).opened), before, "a new one has no rule");
    node.weir(&["cc", "move"]);
    assert_eq!(algorithm(&flow.opened), before, "when moved, it has none either");

    // None at all.
    node.agent().rewrite(&config).expect("can write");
    wait_for("the program goes with the rules", || programs(&node).is_empty().then_some(()));
    flow.send(MIB);
    old.send(MIB);
    assert_eq!((algorithm(&flow.opened), algorithm(&old.opened)), (before.clone(), before));
    let said = node.ran(&["cc", "move"]);
    assert!(said.code == Some(1) && said.stderr.contains("there are no rules"), "{said:?}");
    assert!(node.agent().stop());
}

#[test]
fn a_rule_is_set_at_run_time_outlives_the_agent_and_is_taken_back() {
    if !can_choose() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = node.config();
    started(&mut node, &config, &[rule("start = \"cubic\"")]);
    let (server, name) = (node.topology.server_address(Family::V4), node.name("C1"));
    let used = |node: &Node| algorithm(&Pair::new(node.netns("C1"), node.topology.srv(), server, 0).opened);
    let network = format!("to={server}/32");
    assert_eq!(used(&node), "cubic");
    let said = node.weir(&["cc", "set", &network, "start=reno"]);
    assert_eq!((said, used(&node)), (format!("rule 2, to {server}/32: reno\n"), "reno".to_owned()));
    // In place of the file's, and of what was set before.
    node.weir(&["cc", "set", "start=bbr"]);
    node.weir(&["cc", "set", &network, "start=bbr"]);
    assert_eq!(used(&node), "bbr");
    let why = node.weir(&["cc", "explain", &server.to_string()]);
    assert!(why.contains("was set instead of it") && why.contains("config"), "{why}");

    for (parts, why) in [
        (vec!["start=fastest"], "this kernel has no congestion control fastest; it has"),
        (vec!["to=10.0.0.1/8", "start=reno"], "write 10.0.0.0/8"),
        (vec!["to=224.0.0.0/4", "start=reno"], "TCP has no multicast"),
    ] {
        let said = node.ran(&[&["cc", "set"][..], &parts].concat());
        assert!(said.code != Some(0) && said.stderr.contains(why), "{said:?}");
    }
    node.weir(&["cc", "set", &format!("container={name}"), "start=reno"]);
    let said = node.ran(&["cc", "set", &format!("container=netns:{name}"), "start=bbr"]);
    assert!(said.stderr.contains("is about the same connections"), "{said:?}");
    node.weir(&["cc", "unset", &format!("container={name}")]);

    node.agent().kill();
    node.restart();
    wait_for("rules are in force again", || (programs(&node).len() == 1).then_some(()));
    let shown = node.client().congestion().expect("it answers");
    assert!(shown.rules.len() == 2 && shown.rules.iter().all(|rule| rule.origin == Origin::Set), "{shown:?}");
    assert_eq!(used(&node), "bbr");
    node.weir(&["cc", "unset", &network]);
    node.weir(&["cc", "unset"]);
    assert_eq!(used(&node), "cubic", "the file's rule counts again");
    let said = node.ran(&["cc", "unset", &network]);
    assert!(said.code == Some(1) && said.stderr.contains("was set at run time"), "{said:?}");
    assert!(node.agent().stop());
}

#[test]
fn few_connections_try_algorithms_and_results_outlive_the_agent() {
    if !can_choose() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let server = node.topology.server_address(Family::V4);
    let advice = format!(
        "[advice]\nto = [\"{server}/32\"]\nshare = 0.25\nturn_s = 1\ntry = [{{ start = \"reno\" }}]\n"
    );
    let config = node.config();
    started(&mut node, &config, &[rule("start = \"cubic\""), advice]);
    let srv = node.topology.srv();
    let stage = |node: &Node| {
        let trials = node.client().congestion_advice().expect("it answers");
        trials.first().map(|trial| trial.stage.clone()).unwrap_or_default()
    };
    wait_for("the trial begins", || (stage(&node) == "baseline").then_some(()));
    // Each at a port of its own: at one port the ends of thousands use up the ports to come from.
    let batch = |node: &Node| {
        let listener = srv.within(|| TcpListener::bind((server, 0))).expect("is there").expect("free");
        for _ in 0..250 {
            Pair::to(node.netns("C1"), &listener).send(100);
        }
        let flows = node.client().congestion_flows().expect("it answers");
        flows.into_iter().filter(|flow| flow.direction == Some(Direction::Out)).collect::<Vec<_>>()
    };
    let begin = Instant::now();
    let mut made = 0;
    while stage(&node) == "baseline" {
        let flows = batch(&node);
        made += 250;
        // It may have ended while these were made.
        let is_over = stage(&node) != "baseline";
        let none_tried = flows.iter().all(|flow| !flow.tried);
        assert!(none_tried || is_over, "nothing is tried before it is known what is usual");
        assert!(begin.elapsed() < 10 * BACKGROUND_TIMEOUT, "{made} connections say what is usual");
    }
    assert!(made >= 4000, "{made} connections were enough");
    let tried = loop {
        let flows = batch(&node);
        made += 250;
        if let Some(flow) = flows.iter().find(|flow| flow.tried) {
            assert!(flows.iter().filter(|f| !f.tried).all(|f| f.first.as_str() == "cubic"));
            break flow.clone();
        }
        let is_late = begin.elapsed() >= 20 * BACKGROUND_TIMEOUT;
        assert!(!is_late, "of {made} connections none tried anything, the trial is {}", stage(&node));
    };
    let view = node.client().congestion().expect("it answers");
    println!("{made} connections, {} tried reno: {tried:?}", view.tried);
    assert_eq!((tried.first.as_str(), tried.rule), ("reno", None));
    assert!(view.tried * 10 < made, "{} of {made} tried it", view.tried);
    // Connections that stay open may all be late: of a burst of them at most 20 try it.
    setrlimit(Resource::RLIMIT_NOFILE, 8192, 8192).expect("root may raise its limit");
    let listener = srv.within(|| TcpListener::bind((server, 0))).expect("is there").expect("free");
    // Turns last 1 s, and connections under way count for six of them: on a slow machine more may try it.
    let of_a_burst = || {
        let begin = Instant::now();
        let held: Vec<Pair> = (0..1500).map(|_| Pair::to(node.netns("C1"), &listener)).collect();
        let tried = held.iter().filter(|pair| algorithm(&pair.opened) == "reno").count();
        (tried, 20 * (1 + begin.elapsed().as_secs() as usize / 5))
    };
    let bursts: Vec<(usize, usize)> = (0..6).map(|_| of_a_burst()).collect();
    println!("bursts of 1500 connections, of which this number tried reno, and at most may: {bursts:?}");
    assert!(bursts.iter().all(|(tried, most)| tried <= most), "{bursts:?}");

    node.agent().kill();
    node.restart();
    wait_for("trials go on", || (stage(&node) == "trying").then_some(()));
    node.weir(&["cc", "advise", "--apply"]);
    assert!(node.weir(&["cc", "advise"]).contains("becomes the rule"));
    let said = node.ran(&["cc", "advise", "--rollback", &format!("{server}/32")]);
    assert!(said.code == Some(1) && said.stderr.contains("nothing to take back"), "{said:?}");
    node.weir(&["cc", "advise", "--again"]);
    wait_for("they begin anew", || (stage(&node) == "baseline").then_some(()));
    let said = node.weir(&["cc", "explain", &server.to_string()]);
    assert!(said.contains("uses cubic"), "{said}");
    assert!(node.agent().stop());
}

/// A place is free again when its connection has ended, also if that never was one.
#[test]
fn connections_never_established_leave_their_places_in_a_trial() {
    if !can_choose() {
        return;
    }
    let node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let (from, server) = (node.netns("C1"), node.topology.server_address(Family::V4));
    let IpAddr::V4(server) = server else { unreachable!("an address of IPv4") };
    let network = u32::from(server) & !255;
    let [refused, silent] = [server, (network | 250).into()].map(|to| SocketAddr::from((to, 9)));
    let ended = node.topology.node().within(|| {
        let mut hold = Congestion::open().expect("the kernel takes the programs");
        let netns = NetnsRef::at(&from.path()).expect("it is there");
        let owners = SocketOwners { namespaces: vec![(netns, 7)], ..SocketOwners::default() };
        hold.apply(&owners, &[]).expect("they are attached");
        let name = |of: &str| std::array::from_fn(|at| of.as_bytes().get(at).copied().unwrap_or(0));
        let trial = CongestionTrial {
            to: LocalPrefix { network: IpAddr::from(network.to_be_bytes()), len: 24 },
            turn: 3,
            share: u32::MAX,
            tries: true,
            slot: 0,
            rank: 0,
            after_bytes: 0,
            window_segments: 0,
            start: name("reno"),
            then: name("reno"),
        };
        hold.limit_drawn(0, 20).expect("the map is there");
        hold.try_out(&[trial]).expect("the map is there");
        for (to, patience_ms) in [(refused, 5000), (refused, 5000), (silent, 200)] {
            let tried = from.within(|| TcpStream::connect_timeout(&to, Duration::from_millis(patience_ms)));
            tried.expect("is there").expect_err("no one answers");
        }
        let mut records = Vec::new();
        wait_for("all three have ended", || {
            records.extend(hold.records().expect("they are read"));
            (records.len() >= 3).then_some(())
        });
        let drawn = hold.drawn(0).expect("the map is there");
        hold.remove().expect("it goes");
        (records, drawn)
    });
    let (records, drawn) = ended.expect("is there");
    let known: Vec<_> = records.iter().map(|r| (r.turn, r.tried, r.drawn, r.is_established())).collect();
    assert_eq!((known, drawn), (vec![(3, true, true, false); 3], 3), "{records:?}");
}
