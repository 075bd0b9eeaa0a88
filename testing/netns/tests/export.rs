//! The output of `weir export tc` is the division in force: it is run, and compared class by class.

use std::{collections::BTreeMap, thread::sleep, time::Duration};

use weir_netlab::{
    topology::{Family, Mode, Spec, UPLINK},
    traffic::UDP_PAYLOAD,
};
use weir_netlink::{Netlink, tc::FoundClass};
use weir_netns_tests::{Need, Node, Origin, Rate, Stream, can_run, containers, kernel};
use weir_units::{BitRate, TcHandle};

const SECTIONS: &str = r#"
[host]
max = "5mbit"

[[class]]
name = "image"
min = "19mbit"
max = "19mbit"
match = { protocol = "tcp", port = 8081 }

[[class]]
name = "feed"
weight = 3
group = "tenant"
match = [{ port = "8090-8101", remote = "10.97.0.0/16" }, { port = "8090-8101", remote = "fd97::/64" }]

[[class]]
name = "voice"
min = "2mbit"
match = { dscp = 46, container = "CONTAINER" }

[[group]]
name = "tenant"
min = "10mbit"
max = "40mbit"
"#;

/// The classes on the uplink, by handle.
fn on_uplink(node: &Node) -> BTreeMap<String, FoundClass> {
    let index = kernel::index_of(node.topology.node(), UPLINK).expect("it is there");
    let mut found = Vec::new();
    let read =
        node.topology.node().within(|| Netlink::open()?.htb_classes(index, TcHandle::new(1, 0), &mut found));
    read.expect("can enter").expect("classes can be listed");
    found.into_iter().map(|f| (f.class.handle.to_string(), f)).collect()
}

fn near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= 1 + a / 100
}

#[test]
fn tc_script_makes_weirs_classes_and_packets_find_them() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), mode: Mode::Bridged, ..Spec::default() });
    let config = node.config().sections(&SECTIONS.replace("CONTAINER", &node.name("C1")));
    node.start(&config);
    let export = node.client().export().expect("it answers");
    let script = node.weir(&["export", "tc"]);
    let tcng = node.weir(&["export", "tcng"]);
    let handles =
        ["image", "feed", "voice", "C1", "C2"].map(|label| node.class(label).handle.expect("it is here"));
    assert!(node.agent().stop());
    assert!(tcng.contains("tcp_sport == 8081") && tcng.contains("htb () {"), "{tcng}");

    let ran = node.topology.node().exec(&["sh", "-c", &script]);
    let ran = ran.unwrap_or_else(|e| panic!("{e:#}\n{script}"));
    assert_eq!(ran.stderr, "", "tc has nothing to say");
    let found = on_uplink(&node);
    assert_eq!(found.len(), export.classes.len(), "{found:#?}");
    for class in &export.classes {
        let is = found[&class.handle].class;
        println!(
            "{:8} {:6} rate {} ceil {} quantum {}",
            class.name, class.handle, is.rate, is.ceil, is.quantum
        );
        let parent = if class.parent == "1:" { is.parent.to_string() } else { class.parent.clone() };
        assert_eq!(
            (is.rate, is.ceil, is.parent.to_string()),
            (class.rate, class.ceil, parent),
            "{}",
            class.name
        );
        assert!(near(is.burst.0, class.burst.0) && near(is.cburst.0, class.cburst.0), "{is:?} {class:?}");
        if class.queue.is_some() {
            assert_eq!((is.quantum, is.prio), (class.quantum, class.prio), "{}", class.name);
        }
    }
    let of = |name: &str| export.classes.iter().find(|class| class.name == name).expect("it is exported");
    assert_eq!((of("image").rate, of("image").ceil), (BitRate::mbit(19), BitRate::mbit(19)));
    assert_eq!((of("tenant").rate, of("tenant").ceil), (BitRate::mbit(10), BitRate::mbit(40)));

    // Packets find the classes.
    let (one, two, srv) = (node.netns("C1"), node.netns("C2"), node.topology.srv());
    for family in [Family::V4, Family::V6] {
        let address = node.topology.server_address(family);
        let from = |port, dscp| Origin { port, dscp };
        let slow = |netns, origin| {
            let rate = Rate::Of(BitRate::mbit(1));
            Stream::udp_from(netns, origin, srv, address, rate, UDP_PAYLOAD as usize)
        };
        let before = on_uplink(&node);
        let streams = [
            Stream::tcp_from(two, from(8081, 0), srv, address),
            slow(two, from(8100, 0)),
            slow(one, from(0, 46)),
            slow(one, from(0, 0)),
            slow(two, from(8081, 46)),
        ];
        sleep(Duration::from_secs(2));
        let after = on_uplink(&node);
        let rates = handles
            .each_ref()
            .map(|h| (after[h].counters.bytes - before[h].counters.bytes) as f64 * 8e-6 / 2.0);
        println!("{family}: image, feed, voice, C1, C2 send {rates:.2?} Mbit/s");
        assert!((17.0..21.0).contains(&rates[0]), "its ceiling is 19 Mbit/s");
        for rate in &rates[1..] {
            assert!((0.8..1.3).contains(rate), "1 Mbit/s in its class: {rates:.2?}");
        }
        drop(streams);
    }
}
