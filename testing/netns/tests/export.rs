//! The output of `weir export tc` is the division in force: it is run, and compared class by class. Then packets
//! find their classes, of which each has its share.

use std::{
    collections::BTreeMap,
    ops::Range,
    thread::sleep,
    time::{Duration, Instant},
};

use weir_agree::Direction;
use weir_api::{Export, ExportClass, ExportQuery};
use weir_netlab::{
    topology::{Family, Mode, Spec, UPLINK},
    traffic::UDP_PAYLOAD,
};
use weir_netlink::{Netlink, tc::FoundClass};
use weir_netns_tests::{
    Need, Node, Origin, Rate, Stream, can_run, containers, kernel, measure_once,
    two_links::{BY_SECOND, SECOND, node_in},
};
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

/// The classes on a device, by handle.
#[track_caller]
fn classes_on(node: &Node, device: &str) -> BTreeMap<String, FoundClass> {
    let index = kernel::index_of(node.topology.node(), device).expect("it is there");
    let mut found = Vec::new();
    let read =
        node.topology.node().within(|| Netlink::open()?.htb_classes(index, TcHandle::new(1, 0), &mut found));
    read.expect("can enter").expect("classes can be listed");
    found.into_iter().map(|f| (f.class.handle.to_string(), f)).collect()
}

fn near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= 1 + a / 100
}

/// Runs a script on the node.
#[track_caller]
fn run(node: &Node, script: &str) {
    let ran = node.topology.node().exec(&["sh", "-c", script]);
    let ran = ran.unwrap_or_else(|e| panic!("{e:#}\n{script}"));
    assert_eq!(ran.stderr, "", "tc has nothing to say");
}

/// The classes on a device are the exported ones.
#[track_caller]
fn assert_classes(node: &Node, device: &str, export: &Export) {
    let found = classes_on(node, device);
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
}

#[track_caller]
fn exported<'a>(export: &'a Export, name: &str) -> &'a ExportClass {
    export.classes.iter().find(|class| class.name == name).expect("it is exported")
}

/// Measures, for two seconds, that classes on a device have rates within these bounds, Mbit/s.
#[track_caller]
fn assert_rates(what: &str, node: &Node, device: &str, due: &[(&ExportClass, Range<f64>)]) {
    let measure = || {
        let (before, begun) = (classes_on(node, device), Instant::now());
        sleep(Duration::from_secs(2));
        let (after, seconds) = (classes_on(node, device), begun.elapsed().as_secs_f64());
        let bytes =
            |class: &ExportClass| after[&class.handle].counters.bytes - before[&class.handle].counters.bytes;
        let rates: Vec<f64> = due.iter().map(|(class, _)| bytes(class) as f64 * 8e-6 / seconds).collect();
        println!("{what}: {rates:.2?} of {:?} Mbit/s", due.iter().map(|(_, due)| due).collect::<Vec<_>>());
        rates
    };
    let holds = |rates: &Vec<f64>| rates.iter().zip(due).all(|(rate, (_, due))| due.contains(rate));
    let rates = measure_once(measure, holds);
    assert!(holds(&rates), "{what}: {rates:.2?} of {due:?}");
}

#[test]
fn tc_script_makes_weirs_classes_and_packets_find_them() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), mode: Mode::Bridged, ..Spec::default() });
    let config = node.config().sections(&SECTIONS.replace("CONTAINER", &node.name("C1")));
    node.start(&config);
    let export = node.client().export(&ExportQuery::default()).expect("it answers");
    let refused = node.ran(&["export", "tc", "--download"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("the download is not shared"), "{refused:?}");
    let script = node.weir(&["export", "tc"]);
    let tcng = node.weir(&["export", "tcng"]);
    let labels = ["image", "feed", "voice", "C1", "C2"].map(|label| node.class(label).name);
    assert!(node.agent().stop());
    assert!(tcng.contains("tcp_sport == 8081") && tcng.contains("htb () {"), "{tcng}");

    run(&node, &script);
    assert_classes(&node, UPLINK, &export);
    let of = |name: &str| exported(&export, name);
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
        let streams = [
            Stream::tcp_from(two, from(8081, 0), srv, address),
            slow(two, from(8100, 0)),
            slow(one, from(0, 46)),
            slow(one, from(0, 0)),
            slow(two, from(8081, 46)),
        ];
        // Its ceiling is 19 Mbit/s. The others send 1 Mbit/s.
        let slow = labels[1..].iter().map(|name| (of(name), 0.8..1.3));
        let due: Vec<_> = [(of(&labels[0]), 17.0..21.0)].into_iter().chain(slow).collect();
        assert_rates(&format!("{family}"), &node, UPLINK, &due);
        drop(streams);
    }
}

/// Datagrams of a server to a receiver, which has asked for them.
fn back(node: &Node, label: &str, address: std::net::IpAddr, mbit: u64) -> Stream {
    let rate = BitRate::mbit(mbit);
    Stream::udp_back(node.netns(label), node.topology.srv(), address, rate, UDP_PAYLOAD as usize)
}

/// A bridge and a route keep the destination's address, by which the script knows the classes.
#[test]
fn tc_script_of_a_download_holds_shares_of_what_arrives() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    for mode in [Mode::Bridged, Mode::Routed] {
        let mut node = Node::build(&Spec { containers: containers(3), mode, ..Spec::default() });
        let section = |label: &str, down: &str| {
            format!("[[class]]\nname = \"{}\"\ndown = {{ {down} }}\n", node.name(label))
        };
        let sections = section("C1", "min = \"19mbit\", max = \"19mbit\"") + &section("C2", "weight = 3");
        let config = node.config().link("download = \"40mbit\"").sections(&sections);
        node.start(&config);
        let query = ExportQuery { direction: Direction::Download, link: None };
        let export = node.client().export(&query).expect("it answers");
        let script = node.weir(&["export", "tc", "--download"]);
        let tcng = node.weir(&["export", "tcng", "--download"]);
        assert!(tcng.contains("ip_dst == ") && tcng.contains("dev \"ifb4up0\" {"), "{tcng}");
        assert!(node.agent().stop());

        run(&node, &script);
        assert_classes(&node, "ifb4up0", &export);
        let names = ["C1", "C2", "C3"].map(|label| node.name(label));
        let [one, two, three] = names.each_ref().map(|name| exported(&export, name));
        let host = exported(&export, "host");
        assert_eq!((one.rate, one.ceil), (BitRate::mbit(19), BitRate::mbit(19)));
        assert_eq!(two.quantum.0, 3 * three.quantum.0);
        for family in [Family::V4, Family::V6] {
            let address = node.topology.server_address(family);
            let (home, srv) = (node.topology.node(), node.topology.srv());
            let rate = BitRate::mbit(1);
            let to_host = Stream::udp_back(home, srv, address, rate, UDP_PAYLOAD as usize);
            // Super-packets arrive. Unsplit each counts as a turn, and C2 and C3 have 10 Mbit/s each.
            let bulk = ["C1", "C2", "C3"].map(|label| Stream::tcp_back(node.netns(label), srv, address));
            sleep(Duration::from_secs(2));
            // 20 Mbit/s are left, and go by weight. A connection may leave its queue empty at times.
            let due = [(one, 17.0..21.0), (two, 12.5..16.5), (three, 3.5..7.5), (host, 0.8..1.3)];
            assert_rates(&format!("{mode:?}, {family}, connections"), &node, "ifb4up0", &due);
            drop(bulk);
            let floods = ["C1", "C2", "C3"].map(|label| back(&node, label, address, 28));
            sleep(Duration::from_secs(1));
            let due = [(one, 17.0..21.0), (two, 13.5..16.5), (three, 4.5..5.5), (host, 0.8..1.3)];
            assert_rates(&format!("{mode:?}, {family}, floods"), &node, "ifb4up0", &due);
            drop((floods, to_host));
        }
    }
}

#[test]
fn tc_scripts_of_a_second_link_hold_its_shares_in_both_directions() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node_in(2, Mode::Routed);
    let names = ["C1", "C2"].map(|label| node.name(label));
    let config = node.config().capacity(BitRate::mbit(40)).link("download = \"20mbit\"");
    let config = config.beside_with(SECOND, BitRate::mbit(10), "download = \"12mbit\"");
    let sections = format!(
        "[[class]]\nname = \"{}\"\ndown = {{ weight = 3 }}\n\
         [[class]]\nname = \"image\"\nmax = \"4mbit\"\nmatch = {{ protocol = \"udp\", port = 8081 }}\n",
        names[1]
    );
    node.start(&config.sections(&sections).awaiting(&names));
    let of_second = |direction| {
        let query = ExportQuery { direction, link: Some(SECOND.to_owned()) };
        node.client().export(&query).expect("it answers")
    };
    let [up, down] = [Direction::Upload, Direction::Download].map(of_second);
    assert_eq!((up.capacity, down.capacity), (BitRate::mbit(10), BitRate::mbit(12)));
    let of_main = node.client().export(&ExportQuery::default()).expect("it answers");
    assert_eq!((of_main.link.as_str(), of_main.capacity), (UPLINK, BitRate::mbit(40)));
    let scripts = [
        node.weir(&["export", "tc", "--link", SECOND]),
        node.weir(&["export", "tc", "--link", SECOND, "--download"]),
    ];
    let refused = node.ran(&["export", "tc", "--link", "eth9"]);
    let why = "cannot export the division of link eth9: the links are up0, up1";
    assert!(refused.code == Some(1) && refused.stderr.contains(why), "{refused:?}");
    assert!(node.agent().stop());

    scripts.iter().for_each(|script| run(&node, script));
    assert_classes(&node, SECOND, &up);
    assert_classes(&node, "ifb4up1", &down);
    let streams = ["C1", "C2"].map(|label| back(&node, label, BY_SECOND, 11));
    sleep(Duration::from_secs(1));
    let due = [(exported(&down, &names[0]), 2.7..3.3), (exported(&down, &names[1]), 8.1..9.9)];
    assert_rates("what arrives", &node, "ifb4up1", &due);
    drop(streams);

    let (rate, payload) = (Rate::Of(BitRate::mbit(12)), UDP_PAYLOAD as usize);
    let from = Origin { port: 8081, dscp: 0 };
    let image = Stream::udp_from(node.netns("C1"), from, node.topology.srv(), BY_SECOND, rate, payload);
    let other = Stream::udp(node.netns("C2"), node.topology.srv(), BY_SECOND, rate);
    sleep(Duration::from_secs(1));
    // Its address tells the routed container's packets.
    let due = [(exported(&up, "image"), 3.6..4.4), (exported(&up, &names[1]), 5.4..6.6)];
    assert_rates("what leaves", &node, SECOND, &due);
    drop((image, other));
}
