//! A LAN beside the uplink's device: packets to and from it do not cross the line, and weir leaves them alone.
//!
//! The server is in the LAN. Behind it, as behind a router, is a line to a far end.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    thread::{scope, sleep},
    time::Duration,
};

use weir_api::{LinkView, Status};
use weir_netlab::{
    topology::{Family, Mode, Netns, Spec, UPLINK},
    traffic::UDP_PAYLOAD,
};
use weir_netns_tests::{
    Config, Echo, EngineBounds, EngineKind, Need, Node, Rate, Stream, can_run, containers, for_each_engine,
    measure_once, wait_within,
};
use weir_units::BitRate;

for_each_engine!(lan_passes_and_the_line_is_shared);

/// A slow link shows packets that pass it.
const CAPACITY: BitRate = BitRate::mbit(10);
/// The paced rate of a flow in the LAN, several times the capacity.
const LAN: BitRate = BitRate::mbit(60);
const SETTLES: Duration = Duration::from_millis(2_500);
const MEASURED: Duration = Duration::from_secs(3);
/// The line's rate and its queue of 0.5 s, where weir follows it.
const LINE: &str = "rate 20000000bit burst 3028 limit 1250000";

fn far(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 95, 0, 2).into(),
        Family::V6 => Ipv6Addr::new(0xfd95, 0, 0, 0, 0, 0, 0, 2).into(),
    }
}

/// A node in a LAN, and the far end of the line behind the LAN's router.
struct Site {
    node: Node,
    far: Netns,
}

impl Site {
    /// The line has this rate, or none.
    fn build(count: usize, mode: Mode, line: Option<&str>) -> Site {
        let spec = Spec { containers: containers(count), mode, wire: None, ..Spec::default() };
        let node = Node::build(&spec);
        let (home, router) = (node.topology.node(), node.topology.srv());
        let far = Netns::create(&format!("{}f", router.name())).expect("a namespace");
        let made = router
            .ip(&format!(
                "link add line type veth peer name line netns {}\nlink set dev line up\n\
                 addr add 10.95.0.1/30 dev line\naddr add fd95::1/64 dev line nodad\n",
                far.name()
            ))
            .and_then(|()| {
                far.ip(
                    "link set dev line up\naddr add 10.95.0.2/30 dev line\naddr add fd95::2/64 dev line nodad\n\
                     route add default via 10.95.0.1\nroute add default via fd95::1\n",
                )
            });
        made.expect("a line can be made");
        for (netns, device) in [(router, "line"), (&far, "line")] {
            if let Some(line) = line {
                netns.tc(&format!("qdisc add dev {device} root tbf {line}\n")).expect("a line has a rate");
            }
        }
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            router.sysctl(key, "1").expect("the router forwards");
        }
        let lan = |family| node.topology.server_address(family).to_string();
        for (version, network, family) in
            [("-4", "10.95.0.0/30", Family::V4), ("-6", "fd95::/64", Family::V6)]
        {
            home.exec(&["ip", version, "route", "add", network, "via", &lan(family)]).expect("a route");
        }
        Site { node, far }
    }

    fn config(&self, engine: EngineKind, lines: &str) -> Config {
        self.node.config().capacity(CAPACITY).engine(engine).link(lines)
    }

    /// Flows to the far end, or back from there.
    fn across(&self, label: &str, arrives: bool, family: Family) -> Stream {
        let open = if arrives { Stream::tcp_back } else { Stream::tcp };
        open(self.node.netns(label), &self.far, far(family))
    }

    fn in_lan(&self, label: &str, family: Family) -> Stream {
        let server = self.node.topology.server_address(family);
        Stream::paced(self.node.netns(label), self.node.topology.srv(), server, (LAN.0 / 8) as u32)
    }
}

/// The number of connections from a namespace that have a limit of pacing.
fn paced(netns: &Netns) -> usize {
    let sockets = netns.exec(&["ss", "-tin", "state", "established"]).expect("ss runs").stdout;
    let words: Vec<&str> = sockets.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "pacing_rate" && pair[1].contains('/')).count()
}

fn beside(node: &Node) -> Vec<String> {
    let view: LinkView = serde_json::from_str(&node.weir(&["link", "--json"])).expect("it is a view");
    view.exempt
}

/// A container with a maximum and one with weight 2 send across the line, and both of them and the host in the LAN.
fn lan_passes_and_the_line_is_shared(engine: EngineKind) {
    let mut site = Site::build(2, Mode::Routed, None);
    let config = site.config(engine, "exempt = [\"on-link\"]");
    site.node.start(&config);
    let node = &site.node;
    node.weir(&["set", &node.name("C1"), "max=2mbit"]);
    for family in [Family::V4, Family::V6] {
        let header = if family == Family::V6 { 74.0 } else { 54.0 };
        let payload = 1.0 - (header + 12.0) / 1514.0;
        let lan: Vec<Stream> = ["C1", "C2", "host"].map(|label| site.in_lan(label, family)).into();
        let line: Vec<Stream> = ["C1", "C2"].map(|label| site.across(label, false, family)).into();
        sleep(SETTLES);
        let before = ["C1", "C2"].map(|label| node.class(label));
        let measure = || {
            let all: Vec<&Stream> = lan.iter().chain(&line).collect();
            let got = Stream::goodputs(&all, MEASURED);
            println!("{family}: LAN {:.2?}, line {:.2?} Mbit/s", &got[..3], &got[3..]);
            got
        };
        let due = [2.0, 8.0].map(|mbit| mbit * payload);
        let is_off = |got: &[f64]| {
            got[3..].iter().zip(due).any(|(got, due)| (got - due).abs() > due * 2.0 * engine.tolerance(true))
        };
        let passes = |got: &[f64]| got[..3].iter().all(|got| *got > 0.9 * LAN.as_mbit());
        let got = measure_once(measure, |got| !is_off(got) && passes(got));
        assert!(passes(&got), "{family}: the LAN has {:.1?} Mbit/s of {LAN}", &got[..3]);
        assert!(!is_off(&got), "{family}: the line has {:.2?} Mbit/s of {due:.2?}", &got[3..]);
        for (label, before) in ["C1", "C2"].into_iter().zip(before) {
            let after = node.class(label);
            let (charged, passed) =
                (after.bytes.0 - before.bytes.0, after.local_bytes.0 - before.local_bytes.0);
            assert!(passed > 3 * charged && charged > 0, "{label}: {charged} bytes charged, {passed} passed");
        }
    }
    let told = node.class("host");
    assert!(told.local_bytes.0 > told.bytes.0, "{told:?}");
}

#[test]
fn what_arrives_from_the_lan_passes_and_the_line_is_shared() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    for mode in [Mode::Routed, Mode::Nat] {
        let mut site = Site::build(1, mode, None);
        let config = site.config(EngineKind::Htb, "exempt = [\"on-link\"]\ndownload = \"8mbit\"");
        site.node.start(&config);
        let node = &site.node;
        let server = node.topology.server_address(Family::V4);
        let flows = ["C1", "host"].map(|label| site.across(label, true, Family::V4));
        let lan = ["C1", "host"].map(|label| {
            let payload = UDP_PAYLOAD as usize;
            Stream::udp_back(node.netns(label), node.topology.srv(), server, LAN, payload)
        });
        sleep(SETTLES);
        let measure = || {
            let got = Stream::goodputs(&[&lan[0], &lan[1], &flows[0], &flows[1]], MEASURED);
            println!("{mode}: LAN {:.2?}, line {:.2?} Mbit/s", &got[..2], &got[2..]);
            got
        };
        let due = 4.0 * (1.0 - 66.0 / 1514.0);
        let holds = |got: &Vec<f64>| {
            got[..2].iter().all(|got| *got > 0.9 * LAN.as_mbit())
                && got[2..].iter().all(|got| (got - due).abs() <= 0.04 * due)
        };
        let got = measure_once(measure, holds);
        assert!(holds(&got), "{mode}: {got:.2?} Mbit/s, {due:.2} are due on the line");
        let status: Status = node.client().status().expect("the agent answers");
        assert_eq!((status.exempt.is_empty(), status.warnings), (false, Vec::new()));
    }
}

/// A flow whose other end is beside the line sees no queue of the line.
#[test]
fn flows_in_the_lan_hide_no_queue_of_a_line_that_is_followed() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    for arrives in [false, true] {
        let mut site = Site::build(2, Mode::Routed, Some(LINE));
        let lines = "exempt = [\"on-link\"]\n";
        let config = site.node.config().engine(EngineKind::Htb);
        let config = if arrives {
            config.link(&format!("{lines}download = {{ min = \"2mbit\", max = \"40mbit\" }}"))
        } else {
            config.following(BitRate::mbit(2), BitRate::mbit(40), "").link(lines)
        };
        site.node.start(&config);
        let node = &site.node;
        let echo = Echo::at(&site.far, far(Family::V4));
        let server = node.topology.server_address(Family::V4);
        let open = if arrives { Stream::tcp_back } else { Stream::tcp };
        let _lan = match arrives {
            true => open(node.netns("C2"), node.topology.srv(), server),
            false => site.in_lan("C2", Family::V4),
        };
        let flows = [(); 4].map(|()| site.across("C1", arrives, Family::V4));
        sleep(SETTLES * 2);
        let measure = || {
            let (got, trips) = scope(|scope| {
                let pings = scope.spawn(|| echo.ask(node.netns("C2"), 120, Duration::from_millis(20)));
                (Stream::goodputs(&flows.each_ref(), MEASURED), pings.join().expect("it asks"))
            });
            let used = got.iter().sum::<f64>() * 1514.0 / 1448.0 / 20.0;
            let p95 = trips.percentile(95.0);
            println!("arrives {arrives}: {:.1} % used, an idle container waits {p95:.1} ms", used * 100.0);
            (used, p95)
        };
        // A queue that is not seen is 500 ms.
        let holds = |(used, p95): &(f64, f64)| (0.80..1.06).contains(used) && *p95 <= 70.0;
        let (used, p95) = measure_once(measure, holds);
        assert!(holds(&(used, p95)), "arrives {arrives}: {:.1} % used, p95 {p95:.1} ms", used * 100.0);
    }
}

#[test]
fn networks_follow_the_device_and_the_file() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut site = Site::build(1, Mode::Routed, None);
    let plain = site.config(EngineKind::Htb, "");
    site.node.start(&plain);
    let server = site.node.topology.server_address(Family::V4);
    let lan = Stream::udp(site.node.netns("C1"), site.node.topology.srv(), server, Rate::Of(LAN));
    let has = |passes: bool| {
        let got = lan.goodput(Duration::from_millis(300));
        let is_shared = (0.5 * CAPACITY.as_mbit()..1.1 * CAPACITY.as_mbit()).contains(&got);
        if passes == (got > 0.9 * LAN.as_mbit()) && passes != is_shared {
            return Ok(());
        }
        Err(format!("{got:.1} Mbit/s in the LAN"))
    };
    let follows = |node: &Node, passes: bool, within: Duration| {
        let took = wait_within(within, || has(passes)).unwrap_or_else(|late| panic!("{late}"));
        println!("passes {passes}: within {took:?}, {:?}", beside(node));
    };
    follows(&site.node, false, SETTLES * 2);
    assert_eq!(beside(&site.node), Vec::<String>::new());

    let exempt = site.config(EngineKind::Htb, "exempt = [\"on-link\", \"10.77.0.0/16\"]");
    site.node.agent().rewrite(&exempt).expect("the file can be written");
    follows(&site.node, true, SETTLES * 2);
    let own = ["10.77.0.0/16", "10.98.0.0/16", "fd98::/64"];
    let shown = beside(&site.node);
    assert!(own.iter().all(|network| shown.iter().any(|shown| shown == network)), "{shown:?}");
    assert!(shown.iter().any(|network| network == "fe80::/64"), "{shown:?}");
    assert!(site.node.weir(&["status"]).contains("exempt     10.77.0.0/16, 10.98.0.0/16, "));

    // The address goes, and the network with it.
    site.node.sh(&["ip", "route", "add", "10.98.0.2/32", "dev", UPLINK]);
    site.node.sh(&["ip", "addr", "add", "10.77.0.1/32", "dev", UPLINK]);
    site.node.sh(&["ip", "addr", "del", "10.98.0.1/16", "dev", UPLINK]);
    follows(&site.node, false, Duration::from_secs(8));
    assert!(!beside(&site.node).contains(&"10.98.0.0/16".to_owned()));
    site.node.sh(&["ip", "addr", "add", "10.98.0.1/16", "dev", UPLINK]);
    follows(&site.node, true, Duration::from_secs(8));

    site.node.agent().rewrite(&plain).expect("the file can be written");
    follows(&site.node, false, SETTLES * 2);
    assert_eq!(beside(&site.node), Vec::<String>::new());
}

#[test]
fn paced_connection_is_free_once_its_network_is_exempt() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Cgroup2, Need::Program("ss")]) {
        return;
    }
    let mut site = Site::build(1, Mode::Routed, None);
    let plain = site.config(EngineKind::Htb, "pacing = true");
    site.node.start(&plain);
    let server = site.node.topology.server_address(Family::V4);
    let lan =
        ["C1", "host"].map(|label| Stream::tcp(site.node.netns(label), site.node.topology.srv(), server));
    let are_paced = || {
        let limits = ["C1", "host"].map(|label| paced(site.node.netns(label)));
        if limits.iter().all(|limits| *limits > 0) { Ok(()) } else { Err(format!("{limits:?} are paced")) }
    };
    wait_within(SETTLES * 2, are_paced).unwrap_or_else(|late| panic!("{late}"));
    let exempt = site.config(EngineKind::Htb, "pacing = true\nexempt = [\"on-link\"]");
    site.node.agent().rewrite(&exempt).expect("the file can be written");
    let are_free = || {
        let got = Stream::goodputs(&[&lan[0], &lan[1]], Duration::from_millis(300));
        if got.iter().all(|got| *got > 0.9 * LAN.as_mbit()) {
            Ok(())
        } else {
            Err(format!("{got:.1?} Mbit/s"))
        }
    };
    let took = wait_within(Duration::from_secs(8), are_free).unwrap_or_else(|late| panic!("{late}"));
    println!("free within {took:?}");
}

/// The static tree lets the same packets pass.
#[test]
fn exported_tree_passes_the_lan_too() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut site = Site::build(1, Mode::Routed, None);
    let config = site.config(EngineKind::Htb, "exempt = [\"on-link\"]");
    site.node.start(&config);
    let script = site.node.weir(&["export", "tc"]);
    assert!(site.node.agent().stop(), "it ends");
    site.node.sh(&["sh", "-ec", &script]);
    let lan = site.in_lan("C1", Family::V4);
    let across = site.across("C1", false, Family::V4);
    sleep(SETTLES);
    let measure = || Stream::goodputs(&[&lan, &across], MEASURED);
    let holds = |got: &Vec<f64>| got[0] > 0.9 * LAN.as_mbit() && (8.0..10.0).contains(&got[1]);
    let got = measure_once(measure, holds);
    println!("by the tree: {got:.2?} Mbit/s");
    assert!(holds(&got), "{got:.2?} Mbit/s in the LAN and across the line");
}
