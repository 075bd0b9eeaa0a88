//! The API of a real agent over TCP: metrics, health and readiness follow what happens to the link.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread::sleep,
    time::{Duration, Instant},
};

use weir_netlab::{
    topology::{Family, Spec, UPLINK},
    traffic::Load,
};
use weir_netns_tests::{Division, Need, Node, can_run, containers, http, measure_once, party};
use weir_units::BitRate;

/// The time limit of a change to be seen.
const SEEN: Duration = Duration::from_secs(5);

/// The answer over TCP inside the node's network: status and text.
fn ask(node: &Node, address: SocketAddr, path: &str) -> (u16, String) {
    let exchange = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(
            format!("GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    match node.topology.node().within(exchange).expect("the namespace is here") {
        Ok(text) => (text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), text),
        Err(e) => (0, e.to_string()),
    }
}

/// Waits for an answer of this path with the status and the text.
fn wait_for(node: &Node, address: SocketAddr, path: &str, status: u16, text: &str) {
    let end = Instant::now() + SEEN;
    loop {
        let (got, said) = ask(node, address, path);
        if got == status && said.contains(text) {
            return;
        }
        assert!(Instant::now() < end, "{path} is not {status} with {text}: {got} {said}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn readiness_over_tcp_follows_the_link_and_the_configuration() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    let (first, second): (SocketAddr, SocketAddr) =
        ("127.0.0.1:9798".parse().unwrap(), "127.0.0.1:9799".parse().unwrap());
    let at = |node: &Node, address| node.config().sections(&format!("[api]\nlisten = \"{address}\"\n"));
    let config = at(&node, first);
    node.start(&config);
    wait_for(&node, first, "/readyz", 200, "\"ready\":true");
    wait_for(&node, first, "/metrics", 200, "\nweir_ready 1.0\n");
    wait_for(&node, first, "/healthz", 200, "\"healthy\":true");

    node.sh(&["ip", "link", "set", "dev", UPLINK, "down"]);
    wait_for(&node, first, "/readyz", 503, &format!("{UPLINK} is gone or down"));
    wait_for(&node, first, "/metrics", 200, "\nweir_ready 0.0\n");
    wait_for(&node, first, "/healthz", 200, "\"healthy\":true");
    node.sh(&["ip", "link", "set", "dev", UPLINK, "up"]);
    wait_for(&node, first, "/readyz", 200, "\"ready\":true");

    // A refused file leaves the old one in force, and the agent is not ready.
    let bad = node.config().sections("[api]\nlisten = \"127.0.0.1\"\n");
    node.agent().rewrite(&bad).expect("it can be written");
    wait_for(&node, first, "/readyz", 503, "was refused");
    wait_for(&node, first, "/metrics", 200, "\nweir_config_last_reload_successful 0.0\n");
    // The port moves with the file. The unix socket has the same routes.
    let moved = at(&node, second);
    node.agent().rewrite(&moved).expect("it can be written");
    wait_for(&node, second, "/metrics", 200, "\nweir_config_last_reload_successful 1.0\n");
    assert_eq!(ask(&node, first, "/readyz").0, 0, "the old port is open");
    let (status, text) = http(node.socket(), "GET /readyz", "", b"").expect("the socket answers");
    assert!(status == 200 && text.contains("\"ready\":true"), "{status} {text}");
    assert_eq!(ask(&node, second, "/v1/status").0, 404);
}

/// A sender that its class holds back has its socket's buffer in the queue: 92 full packets by default, which take 112 ms
/// at 10 Mbit/s.
#[test]
fn queue_times_of_a_class_that_is_held_back_are_those_of_its_queue() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let flood = Load::Udp(BitRate::mbit(30));
    let division = Division::of([party("C1").max(10).sends(flood), party("C2")]);
    let config = node.config().division(&node, &division);
    node.start(&config);
    let looks = |text: &str, label: &str, bound: &str| {
        let name = node.name(label);
        let is_it = |line: &&str| {
            line.starts_with("weir_class_queue_seconds_bucket{")
                && line.contains(&format!("le=\"{bound}\""))
                && line.contains(&format!("class=\"{name}\""))
        };
        // A class that never sent has none.
        let count = |line: &str| line.rsplit(' ').next().and_then(|count| count.parse().ok());
        text.lines().find(is_it).map_or(0.0, |line| count(line).expect("it is a number"))
    };
    let counts = || {
        let (_, text) = http(node.socket(), "GET /metrics", "", b"").expect("the socket answers");
        ["+Inf", "0.05", "0.5"].map(|bound| looks(&text, "C1", bound))
    };
    let measure = || {
        let before = counts();
        let _ = division.run(&node, &[], Family::V4, 4);
        let after = counts();
        let [all, short, long] = std::array::from_fn(|i| after[i] - before[i]);
        println!("{all} looks, {short} at less than 50 ms, {} at more than 500", all - long);
        (all, short, long)
    };
    let good = |(all, short, long): &(f64, f64, f64)| *all >= 20.0 && *short <= all * 0.4 && long == all;
    let seen = measure_once(measure, good);
    assert!(good(&seen), "{seen:?}");
}

#[test]
fn command_line_asks_over_tcp_with_the_rights_of_its_token() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    node.start(&node.config().sections("[api]\nlisten = \"127.0.0.1:9798\"\n"));
    let dir = tempfile::tempdir().expect("a directory can be made");
    let token = |name: &str, scope: &str| {
        let made: serde_json::Value =
            serde_json::from_str(&node.weir(&["token", "add", name, "--scope", scope, "--json"]))
                .expect("it is JSON");
        let path = dir.path().join(name);
        std::fs::write(&path, made["secret"].as_str().expect("it has a secret")).expect("it can be written");
        path.to_str().expect("it is UTF-8").to_owned()
    };
    let (reader, operator) = (token("reader", "read"), token("operator", "operate"));
    let (name, set) = (node.name("C1"), format!("max={}mbit", 7));
    let by = |token: &str, rest: &[&str]| {
        node.ran(&[&["--url", "http://127.0.0.1:9798", "--token-file", token], rest].concat())
    };
    let listed = by(&reader, &["ps"]);
    assert!(listed.code == Some(0) && listed.stdout.contains(&name), "{listed:?}");
    let refused = by(&reader, &["set", &name, &set]);
    assert!(refused.code == Some(1) && refused.stderr.contains("token reader"), "{refused:?}");
    assert_eq!(node.class("C1").policy.max, None);
    assert_eq!(by(&operator, &["set", &name, &set]).code, Some(0));
    assert_eq!(node.class("C1").policy.max, Some(BitRate::mbit(7)));
    let history = by(&reader, &["history"]);
    assert!(history.stdout.contains("operator"), "{history:?}");
    // A verb that needs the node itself says so, and so does a port without an agent.
    let local = by(&reader, &["bugreport"]);
    assert!(local.code == Some(2) && local.stderr.contains("on the agent's own node only"), "{local:?}");
    let nowhere = node.ran(&["--url", "http://127.0.0.1:9799", "doctor"]);
    assert!(nowhere.code == Some(1) && nowhere.stderr.contains("is `[api] listen` set"), "{nowhere:?}");
}
