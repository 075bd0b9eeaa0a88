//! An agent hands its division over to another version of the program and gets it back, under traffic.
//!
//! `WEIR_EARLIER` names the program of an earlier version. Without it each agent is the program under test.

use std::{
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use weir_agree::{AgreementState, Document as _, Language, Offer};
use weir_api::Client;
use weir_netlab::{
    topology::{Family, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, EngineBounds as _, EngineKind, Node, Rate, Record, Stream, TOLERANCE, binary,
    compare, containers, for_each_engine,
    kernel::{SCHEDULER, index_of, traces},
    measure_once, party,
};
use weir_units::BitRate;

for_each_engine!(queues: versions_follow_each_other_without_a_lost_packet);

/// How long datagrams are counted around each change of the version.
const COUNTED: Duration = Duration::from_secs(10);
/// How long shares are watched after it.
const WATCHED: Duration = Duration::from_secs(2);
/// The least part of a share that arrives in each tenth of a second.
const LOWEST: f64 = 0.5;

fn earlier() -> PathBuf {
    std::env::var_os("WEIR_EARLIER").map_or_else(binary, PathBuf::from)
}

fn versions_follow_each_other_without_a_lost_packet(engine: EngineKind) {
    let mut node = Node::build(&Spec { containers: containers(4), ..Spec::default() });
    let found = traces(node.topology.node());
    let offered = BitRate::mbit(5);
    let division = Division::of([
        party("C1").max(15).sends(Load::Tcp),
        party("C2").min(40).sends(Load::Tcp),
        party("C3").min(10).max(30).sends(Load::Tcp),
        party("C4").sends(Load::Udp(offered)),
    ]);
    let config = node.config().engine(engine).sections("[agreements]\n");
    node.start(&config);
    assert!(node.agent().hand_over().is_some_and(|status| status.success()), "{}", node.agent().log());
    node.restart_as(&earlier());
    // The agent's state alone knows what is set by hand and what is agreed.
    node.weir(&["set", &node.name("C1"), "max=15mbit"]);
    node.weir(&["set", &node.name("C2"), "min=40mbit"]);
    let offer = format!(
        r#"{{"context":{{"initiator":"acme"}},"service":{{"term":"t","name":"{}"}},"terms":{{"min":"10mbit","max":"30mbit"}}}}"#,
        node.name("C3")
    );
    let offer = Offer::read(&offer, Language::Json).expect("it is an offer");
    let agreed = node.client().offer(&offer).expect("it fits").agreement.id;

    let (srv, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
    let mut streams: Vec<Stream> =
        ["C1", "C2", "C3"].iter().map(|c| Stream::tcp(node.netns(c), srv, address)).collect();
    streams.push(Stream::udp(node.netns("C4"), srv, address, Rate::Of(offered)));
    let all: Vec<&Stream> = streams.iter().collect();
    let record = Record::of(&all);
    let expected = division.expected(CAPACITY, Family::V4);
    let index = index_of(node.topology.node(), SCHEDULER);
    sleep(engine.settles() + Duration::from_secs(2));

    for (what, program) in [("upgrade", binary()), ("downgrade", earlier()), ("upgrade again", binary())] {
        let mut felt = || {
            let begin = Instant::now();
            let ended = node.agent().hand_over().expect("it ends");
            println!("{what}: the agent ended with {ended}");
            node.restart_as(&program);
            sleep(WATCHED);
            let end = Instant::now();
            sleep(COUNTED.saturating_sub(begin.elapsed()));
            let part = |i: usize| record.lowest(i, begin, end) / expected[i].goodput;
            (0..expected.len()).map(part).fold(f64::INFINITY, f64::min)
        };
        let least = measure_once(&mut felt, |least| *least >= LOWEST);
        println!("{what}: at least {:.0} % of a share in each tenth of a second", least * 100.0);
        assert!(least >= LOWEST, "{what}: {least}");
        let measure = || {
            let got = Stream::goodputs(&all, Duration::from_secs(3));
            let got: Vec<(String, f64)> = expected.iter().map(|share| share.label.clone()).zip(got).collect();
            compare(what, &got, &expected)
        };
        let worst = measure_once(measure, |worst| *worst <= TOLERANCE);
        assert!(worst <= TOLERANCE, "{what}: {:.2} % off", worst * 100.0);
        assert_eq!(
            index_of(node.topology.node(), SCHEDULER),
            index,
            "{what}: the scheduler's device is another one"
        );
        let policies = (node.class("C1").policy.max, node.class("C2").policy.min);
        assert_eq!(
            policies,
            (Some(BitRate::mbit(15)), Some(BitRate::mbit(40))),
            "{what}: what was set by hand is lost"
        );
        let state = node.client().agreement(&agreed.to_string()).expect("it is there").agreement.state;
        assert_eq!(state, AgreementState::Observed, "{what}");
        let events = |client: &Client| client.events(false).expect("it tells").flatten().collect::<Vec<_>>();
        let trouble: Vec<_> = events(node.client())
            .into_iter()
            .filter(|e| ["not-enforced", "repaired", "state-damaged"].contains(&e.what.as_str()))
            .collect();
        assert!(trouble.is_empty(), "{what}: {trouble:?}");
    }

    let udp = streams.pop().expect("the last one");
    let (sent, arrived) = udp.finish();
    println!("UDP below its share: {sent} bytes sent, {arrived} arrived");
    assert_eq!(sent, arrived, "datagrams were lost");
    drop(record);
    drop(streams);
    assert!(node.agent().stop(), "{}", node.agent().log());
    let left: Vec<_> =
        traces(node.topology.node()).into_iter().filter(|(key, text)| found.get(key) != Some(text)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn agent_that_keeps_at_its_end_does_so_until_a_reload_takes_it_back() {
    if !weir_netns_tests::can_run(&weir_netns_tests::Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let found = traces(node.topology.node());
    // The harness writes a section [agent] of its own, so the key comes after it.
    let with =
        |text: String, at_end: &str| text.replace("[agent]\n", &format!("[agent]\nat_end = \"{at_end}\"\n"));
    let config = node.config();
    node.start(&config);
    let path = node.agent().config_path();
    let text = std::fs::read_to_string(&path).expect("it is there");
    let takes = |node: &Node, at_end: &str| {
        let text = with(text.clone(), at_end);
        assert!(text.contains(at_end), "{text}");
        std::fs::write(&path, text).expect("can write");
        let since = Instant::now();
        let reloads = |node: &Node| {
            let events = node.client().events(false).expect("it tells").flatten();
            events.filter(|event| event.what == "reloaded").count()
        };
        let before = reloads(node);
        while reloads(node) == before {
            assert!(since.elapsed() < Duration::from_secs(5), "the agent does not take {at_end}");
            sleep(Duration::from_millis(50));
        }
    };
    takes(&node, "keep");
    assert!(node.agent().stop(), "{}", node.agent().log());
    let device = index_of(node.topology.node(), SCHEDULER);
    assert!(device.is_some(), "the division is gone");
    node.restart();
    assert_eq!(index_of(node.topology.node(), SCHEDULER), device, "the division is another one");
    let beside = node.ran(&["agent", "--config", path.to_str().expect("it is text"), "--restore"]);
    assert!(beside.code == Some(1) && beside.stderr.contains("another weir agent"), "{beside:?}");
    takes(&node, "restore");
    assert!(node.agent().stop(), "{}", node.agent().log());
    assert_eq!(traces(node.topology.node()), found, "something is left");

    // Without an agent that could be told, after a crash.
    node.restart();
    node.agent().kill();
    assert_ne!(traces(node.topology.node()), found, "a crash leaves something");
    let restored = node.ran(&["agent", "--config", path.to_str().expect("it is text"), "--restore"]);
    assert!(restored.code == Some(0) && restored.stdout == "everything is put back\n", "{restored:?}");
    assert_eq!(traces(node.topology.node()), found, "something is left");
}
