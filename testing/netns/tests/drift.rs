//! Another process alters weir's objects, or the node changes under it. Within three seconds
//! everything is restored, shares are right again, and weir says so.

use std::{
    collections::BTreeMap,
    thread::sleep,
    time::{Duration, Instant},
};

use weir_api::Event;
use weir_bpf::ClassifierConfig;
use weir_datapath::engine::{Attach, Attachments, Created, PortClass};
use weir_netlab::{
    topology::{BRIDGE, Family, Spec, UPLINK, Wire},
    traffic::Load,
};
use weir_netlink::Netlink;
use weir_netns_tests::{
    CAPACITY, Config, Division, Need, Node, Rate, Stream, TOLERANCE, WIRE, can_run, compare, containers,
    kernel::{self, SCHEDULER},
    measure_once, party, wait_within,
};
use weir_units::{BitRate, TcHandle};

/// How long a repair may take. README says a second.
const REPAIR_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long TCP may rest after a link was away.
const TRAFFIC_TIMEOUT: Duration = Duration::from_secs(8);
/// As the conformance suite waits: TCP has just connected, and `htb` needs 1 s to be exact.
const SETTLES: Duration = Duration::from_millis(2500);
/// So many looks at traffic in a row have each stream sending.
const STEADY_LOOKS: u32 = 5;

/// A node under load: C1 with weight 1, C2 with weight 3, and the host with weight 1. The
/// host floods with UDP: its socket is not held back, and TCP's recovery from losses would
/// blur what its class may send.
struct Busy {
    node: Node,
    division: Division,
    /// One of each, in this order; some end with the interface they go through.
    streams: Vec<Stream>,
}

/// More than the host's share.
const FLOOD: BitRate = BitRate::mbit(30);
const LABELS: [&str; 3] = ["C1", "C2", "host"];

impl Busy {
    fn start(more: impl FnOnce(Config) -> Config) -> Busy {
        let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
        let division = Division::of([
            party("C1").sends(Load::Tcp),
            party("C2").weight(3).sends(Load::Tcp),
            party("host").sends(Load::Udp(FLOOD)),
        ]);
        let config = more(node.config().division(&node, &division));
        node.start(&config);
        let mut busy = Busy { node, division, streams: Vec::new() };
        busy.streams = LABELS.iter().map(|label| busy.stream(label)).collect();
        sleep(SETTLES);
        busy.assert_shares("at first");
        busy
    }

    fn stream(&self, label: &str) -> Stream {
        let topology = &self.node.topology;
        let (from, srv) = (self.node.netns(label), topology.srv());
        let address = topology.server_address(Family::V4);
        match label {
            "host" => Stream::udp(from, srv, address, Rate::Of(FLOOD)),
            _ => Stream::tcp(from, srv, address),
        }
    }

    fn assert_shares(&self, what: &str) {
        let expected = self.division.expected(CAPACITY, Family::V4);
        let all: Vec<&Stream> = self.streams.iter().collect();
        let measure = || {
            let got = Stream::goodputs(&all, Duration::from_millis(1500));
            let got: Vec<(String, f64)> = LABELS.map(str::to_owned).into_iter().zip(got).collect();
            compare(what, &got, &expected)
        };
        let worst = measure_once(measure, |worst| *worst <= TOLERANCE);
        assert!(worst <= TOLERANCE, "{what}: {:.2} % off", worst * 100.0);
    }

    /// TCP notices by its own timer that a link is back. The timer doubles while the link is away. A connection may
    /// rest once more: the first answer took as long as the link was away, and the timer waits for as long
    /// (RFC 6298). So all have to send for a while.
    fn wait_for_traffic(&self, what: &str) {
        let start = Instant::now();
        let all: Vec<&Stream> = self.streams.iter().collect();
        let mut looks = 0;
        while looks < STEADY_LOOKS {
            let is_at_rest = Stream::goodputs(&all, Duration::from_millis(300)).contains(&0.0);
            looks = if is_at_rest { 0 } else { looks + 1 };
            assert!(start.elapsed() < TRAFFIC_TIMEOUT, "{what}: a stream rests for {TRAFFIC_TIMEOUT:?}");
        }
        println!("{what:<44} all send after {:?}", start.elapsed());
    }

    fn events(&self) -> Vec<Event> {
        let events = self.node.client().events(false).expect("it tells");
        events.collect::<Result<_, _>>().expect("it tells all")
    }

    fn repairs(&self) -> u64 {
        self.node.client().status().expect("it answers").repairs
    }

    /// Does something to the node, and waits until `lacks` finds nothing lacking.
    fn after(&mut self, what: &str, meddle: impl FnOnce(&Node), lacks: impl Fn(&Node) -> Option<String>) {
        meddle(&self.node);
        let took = wait_within(REPAIR_TIMEOUT, || lacks(&self.node).map_or(Ok(()), Err));
        let took = took.unwrap_or_else(|late| panic!("{what}: not mended after {REPAIR_TIMEOUT:?}: {late}"));
        println!("{what:<44} mended within {took:?}");
    }

    /// The same, and what was broken counts as a repair, which an event whose text has `word`
    /// tells.
    fn repairs_after(
        &mut self,
        what: &str,
        word: &str,
        meddle: impl FnOnce(&Node),
        lacks: impl Fn(&Node) -> Option<String>,
    ) {
        let (repairs, last) = (self.repairs(), self.events().last().map_or(0, |e| e.seq));
        self.after(what, meddle, lacks);
        self.told_since(last, what, "repaired", word);
        assert!(self.repairs() > repairs, "{what}: not counted");
        // Packets that went past weir meanwhile may have filled the wire's queue, and cost the others packets. Their
        // TCP needs as long as at first.
        sleep(SETTLES);
        self.assert_shares(what);
    }

    /// Waits for an event.
    fn told_since(&self, last: u64, what: &str, kind: &str, word: &str) {
        let told = wait_within(REPAIR_TIMEOUT, || {
            let events = self.events();
            let new: Vec<&Event> = events.iter().filter(|e| e.seq > last).collect();
            let Some(event) = new.iter().find(|e| e.what == kind && e.detail.contains(word)) else {
                return Err(format!("{new:?}"));
            };
            println!("{what:<44} {}: {}", event.what, event.detail);
            Ok(())
        });
        told.unwrap_or_else(|late| panic!("{what}: no event `{kind}` with `{word}`: {late}"));
    }
}

/// The handle of a container's class.
fn handle(node: &Node, label: &str) -> String {
    node.class(label).handle.expect("it is here")
}

/// The missing part of the scheduler, if any.
fn incomplete(node: &Node) -> Option<String> {
    let classes = kernel::classes(node.topology.node());
    let known = node.client().classes().expect("it answers");
    let handles = known.iter().filter_map(|c| c.handle.as_ref());
    let missing = handles.clone().find(|handle| !classes.contains_key(*handle));
    if let Some(handle) = missing {
        return Some(format!("class {handle} is missing of {:?}", classes.keys()));
    }
    if let Some(class) = known.iter().find(|c| !c.enforced) {
        return Some(format!("{}: {:?}", class.name, class.not_enforced_because));
    }
    let leaves = handles.filter(|handle| classes[*handle].leaf == TcHandle(0)).count();
    (leaves > 0).then(|| format!("{leaves} classes lack their queue"))
}

#[test]
fn whatever_is_done_to_the_scheduler_is_undone() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut busy = Busy::start(|config| config);
    let tc = |node: &Node, line: &str| drop(node.sh(&line.split(' ').collect::<Vec<_>>()));
    let victim = handle(&busy.node, "C2");

    busy.repairs_after(
        "a class deleted",
        "altered",
        |n| {
            tc(n, &format!("tc class del dev {SCHEDULER} classid {victim}"));
        },
        incomplete,
    );

    // Nothing but the ceiling.
    let class = kernel::classes(busy.node.topology.node())[&victim].class;
    let (rate, other) = (class.rate.0, class.rate.0 + 1_000_000);
    let (quantum, prio) = (class.quantum.0, class.prio);
    busy.repairs_after(
        "a class's ceil changed",
        "altered",
        |n| {
            tc(
                n,
                &format!(
                    "tc class change dev {SCHEDULER} parent 1:1 classid {victim} htb rate {rate}bit \
                     ceil {other}bit quantum {quantum} prio {prio}"
                ),
            );
        },
        |n| {
            let now = kernel::classes(n.topology.node())[&victim].class.ceil;
            (now != class.ceil).then(|| format!("it is {now}, not {}", class.ceil))
        },
    );

    let minor = victim.split(':').nth(1).expect("a minor").to_owned();
    busy.repairs_after(
        "a class's queue deleted",
        "altered",
        |n| {
            tc(n, &format!("tc qdisc del dev {SCHEDULER} parent {victim} handle {minor}:"));
        },
        |n| {
            let wanted = u32::from_str_radix(&minor, 16).expect("a number") << 16;
            let leaf = kernel::classes(n.topology.node())[&victim].leaf;
            (leaf != TcHandle(wanted)).then(|| format!("its queue is {leaf}"))
        },
    );

    let inside = |n: &Node, what: &str| n.sh(&["tc", what, "show", "dev", SCHEDULER]);
    let inner = format!("8{minor:0>3}:");
    assert!(inside(&busy.node, "qdisc").contains(&inner), "{}", inside(&busy.node, "qdisc"));
    busy.repairs_after(
        "what is inside a class's queue deleted",
        "altered",
        |n| tc(n, &format!("tc qdisc del dev {SCHEDULER} parent {minor}:1 handle {inner}")),
        |n| (!inside(n, "qdisc").contains(&inner)).then(|| format!("there is no {inner}")),
    );

    busy.repairs_after(
        "the filter of sparse flows deleted",
        "altered",
        |n| tc(n, &format!("tc filter del dev {SCHEDULER} parent 1:")),
        |n| (!inside(n, "filter").contains("weir_htb_class")).then(|| "there is no filter".to_owned()),
    );

    busy.repairs_after(
        "a class added that is nobody's",
        "altered",
        |n| tc(n, &format!("tc class add dev {SCHEDULER} parent 1:1 classid 1:777 htb rate 50mbit")),
        |n| kernel::classes(n.topology.node()).contains_key("1:777").then(|| "it is still there".to_owned()),
    );

    busy.repairs_after(
        "the root qdisc deleted",
        "altered",
        |n| {
            tc(n, &format!("tc qdisc del dev {SCHEDULER} root"));
        },
        incomplete,
    );

    busy.repairs_after(
        "the ifb deleted",
        "altered",
        |n| {
            tc(n, &format!("ip link del {SCHEDULER}"));
        },
        incomplete,
    );

    busy.repairs_after(
        "the ifb set down",
        "down",
        |n| {
            tc(n, &format!("ip link set dev {SCHEDULER} down"));
        },
        |n| {
            let link = n.sh(&["ip", "link", "show", "dev", SCHEDULER]);
            (!link.contains("UP")).then(|| link.lines().next().unwrap_or_default().to_owned())
        },
    );
}

#[test]
fn programs_that_are_detached_are_attached_again() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let tcx = |n: &Node, veth: &str| kernel::tcx_programs(n.topology.node(), veth);
    let filters = |n: &Node, device: &str, hook: &str| n.sh(&["tc", "filter", "show", "dev", device, hook]);
    let mut busy = Busy::start(|config| config);
    let veth = busy.node.topology.containers()[0].host_interface();
    match tcx(&busy.node, &veth).as_slice() {
        [(program, name)] => {
            assert_eq!(name, "weir_port");
            busy.repairs_after(
                "the veth's program detached (tcx)",
                &veth,
                |n| kernel::detach_tcx(n.topology.node(), &veth, *program),
                |n| tcx(n, &veth).is_empty().then(|| "it is not back".to_owned()),
            );
        }
        _ => println!("SKIPPED the detaching of a TCX program: this kernel has no TCX (6.6)"),
    }
    let uplink =
        |n: &Node| (!filters(n, UPLINK, "egress").contains("weir_uplink")).then(|| "no filter".to_owned());
    busy.repairs_after(
        "the uplink's clsact deleted",
        UPLINK,
        |n| {
            n.sh(&["tc", "qdisc", "del", "dev", UPLINK, "clsact"]);
        },
        uplink,
    );
    busy.repairs_after(
        "the uplink's filter deleted",
        UPLINK,
        |n| {
            n.sh(&["tc", "filter", "del", "dev", UPLINK, "egress"]);
        },
        uplink,
    );

    drop(busy);
    let mut busy = Busy::start(|config| config.link("attach = \"clsact\""));
    let veth = busy.node.topology.containers()[0].host_interface();
    let caught =
        |n: &Node| (!filters(n, &veth, "ingress").contains("weir_port")).then(|| "no filter".to_owned());
    busy.repairs_after(
        "the veth's filter deleted (clsact)",
        &veth,
        |n| {
            n.sh(&["tc", "filter", "del", "dev", &veth, "ingress"]);
        },
        caught,
    );
    busy.repairs_after(
        "the veth's clsact deleted",
        &veth,
        |n| {
            n.sh(&["tc", "qdisc", "del", "dev", &veth, "clsact"]);
        },
        caught,
    );
}

#[test]
fn interfaces_that_go_come_back_or_are_renamed_keep_their_class() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut busy = Busy::start(|config| config);
    let netns = busy.node.name("C1");
    let veth = busy.node.topology.containers()[0].host_interface();
    let address = busy.node.topology.containers()[0].address(Family::V4);
    let last = |busy: &Busy| busy.events().last().map_or(0, |e| e.seq);

    let from = last(&busy);
    let present = |n: &Node| {
        n.client().classes().expect("it answers").into_iter().any(|c| c.name == netns && c.handle.is_some())
    };
    busy.after(
        "a veth deleted",
        |n| drop(n.sh(&["ip", "link", "del", &veth])),
        |n| present(n).then(|| "its class is there".to_owned()),
    );
    busy.told_since(from, "a veth deleted", "class-removed", "no longer");
    let from = last(&busy);
    busy.after(
        "a veth made again",
        |n| {
            let made = n.topology.node().ip(&format!(
                "link add {veth} type veth peer name eth0 netns {netns}\nlink set dev {veth} master {BRIDGE} up\n"
            ));
            made.expect("it can be made");
            let set_up = n.netns("C1").ip(&format!("link set dev eth0 up\naddr add {address}/16 dev eth0\n"));
            set_up.expect("it can be set up");
        },
        |n| match n.client().class(&netns) {
            Ok(class) if class.enforced && class.interfaces == [veth.clone()] => None,
            other => Some(format!("{other:?}")),
        },
    );
    busy.told_since(from, "a veth made again", "class-added", "shares");
    busy.streams[0] = busy.stream("C1");
    sleep(Duration::from_secs(1));
    busy.assert_shares("a veth made again");

    let renamed = |n: &Node, from: &str, to: &str| {
        let lines =
            format!("link set dev {from} down\nlink set dev {from} name {to}\nlink set dev {to} up\n");
        n.topology.node().ip(&lines).expect("it can be renamed");
    };
    busy.after(
        "a veth renamed",
        |n| renamed(n, &veth, "other0"),
        |n| {
            let class = n.class("C1");
            (!class.enforced || class.interfaces != ["other0"])
                .then(|| format!("{:?} {:?}", class.interfaces, class.not_enforced_because))
        },
    );
    busy.wait_for_traffic("a veth renamed");
    busy.assert_shares("a veth renamed");

    let from = last(&busy);
    busy.after(
        "the uplink renamed",
        |n| renamed(n, UPLINK, "wan0"),
        |n| {
            let host = n.class("host");
            (!host.enforced).then(|| format!("{:?}", host.not_enforced_because))
        },
    );
    busy.told_since(from, "the uplink renamed", "link", "wan0");
    busy.wait_for_traffic("the uplink renamed");
    busy.assert_shares("the uplink renamed");
    let from = last(&busy);
    renamed(&busy.node, "wan0", UPLINK);
    busy.told_since(from, "the uplink renamed back", "link", UPLINK);

    let from = last(&busy);
    busy.node.sh(&["ip", "link", "set", "dev", UPLINK, "down"]);
    busy.told_since(from, "the uplink set down", "link", "down");
    sleep(Duration::from_millis(500));
    busy.after("the uplink set up", |n| drop(n.sh(&["ip", "link", "set", "dev", UPLINK, "up"])), incomplete);
    busy.told_since(from, "the uplink set up", "link", "up0 is up");
    busy.wait_for_traffic("the uplink down and up");
    busy.assert_shares("the uplink down and up");

    // A new device in the old one's place.
    let from = last(&busy);
    let wire = busy.node.topology.wire();
    busy.node.sh(&["ip", "link", "del", UPLINK]);
    let made = busy.node.topology.node().ip(&format!(
        "link add {UPLINK} type veth peer name wn netns {}\nlink set dev {UPLINK} master {BRIDGE} up\n",
        wire.name()
    ));
    made.expect("it can be made");
    wire.ip("link set dev wn master brw up\n").expect("it can be set up");
    let Wire { rate, queue, burst } = WIRE;
    let shape = format!(
        "qdisc add dev wn root tbf rate {}bit burst {} limit {}\n",
        rate.bits_per_sec(),
        burst.0,
        queue.0
    );
    wire.tc(&shape).expect("the wire");
    busy.after(
        "the uplink replaced",
        |_| {},
        |n| {
            let filters = n.sh(&["tc", "filter", "show", "dev", UPLINK, "egress"]);
            (!filters.contains("weir_uplink")).then(|| "no filter".to_owned()).or_else(|| incomplete(n))
        },
    );
    busy.told_since(from, "the uplink replaced", "link", UPLINK);
    busy.wait_for_traffic("the uplink replaced");
    busy.assert_shares("the uplink replaced");
}

#[test]
fn class_of_a_port_that_left_changes_and_nothing_is_to_be_repaired() {
    if !can_run(&[Need::Rights]) {
        return;
    }
    let node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let netns = node.topology.node();
    netns.ip("link add gone0 type veth peer name gone1\n").expect("a veth can be made");
    let found = netns.within(|| {
        let mut netlink = Netlink::open().expect("a socket");
        let link = netlink.link("gone0").expect("it was made");
        let mut attachments =
            Attachments::open(Attach::best(), ClassifierConfig::default(), Created::new(), None)
                .expect("the programs load");
        let port = |handle| BTreeMap::from([(link.index, PortClass { device: "gone0".to_owned(), handle })]);
        assert!(attachments.set_ports(&port(1)).is_empty());
        assert!(attachments.catches(link.index));

        netlink.delete_link(link.index, "gone0").expect("it is there");
        attachments.set_ports(&port(2));
        attachments.repair()
    });
    let repairs = found.expect("the namespace is there");
    assert!(repairs.entries.is_empty() && repairs.devices.is_empty(), "{repairs:?}");
}
