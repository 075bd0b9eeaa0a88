//! A real Prometheus scrapes an agent. Each rule is evaluated, and each panel of the packaged dashboard has data.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;
use weir_agree::{Document as _, Language, Offer};
use weir_netlab::topology::{Family, Spec};
use weir_netns_tests::{
    Need, Node, Stream, can_run,
    connections::{can_choose, rule, started},
    containers,
};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus");
const ADDRESS: &str = "127.0.0.1:9090";
/// The time after which each panel must have data: a rate over 10 s needs some scrapes.
const FILLED: Duration = Duration::from_secs(30);

/// A query of Prometheus' API inside the node's network.
fn ask(node: &Node, path: &str) -> Option<Value> {
    let exchange = || {
        let mut stream = TcpStream::connect(ADDRESS)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        // Version 1.0 has no chunks.
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    let text = node.topology.node().within(exchange).expect("the namespace is here").ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

/// Whether an expression has a value now.
fn has_data(node: &Node, expression: &str) -> bool {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let Some(answer) = ask(node, &format!("/api/v1/query?query={encoded}")) else { return false };
    let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
    results.iter().any(|result| result["value"][1].as_str().is_some_and(|value| value != "NaN"))
}

/// The panels without a value, with their expressions.
fn empty_panels(node: &Node) -> Vec<String> {
    let text = fs::read_to_string(format!("{PACKAGING}/weir.dashboard.json")).expect("it is there");
    let dashboard: Value = serde_json::from_str(&text).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("there are panels");
    assert!(panels.len() >= 18, "{}", panels.len());
    let expressions = |panel: &Value| -> Vec<String> {
        let targets = panel["targets"].as_array().expect("it has queries");
        let filled = |text: &str| text.replace("$instance", ".*").replace("$__rate_interval", "10s");
        targets.iter().map(|target| filled(target["expr"].as_str().expect("it is text"))).collect()
    };
    let is_empty = |panel: &&Value| !expressions(panel).iter().any(|expression| has_data(node, expression));
    let told = |panel: &Value| format!("{}: {:?}", panel["title"], expressions(panel));
    panels.iter().filter(is_empty).map(told).collect()
}

#[test]
fn each_panel_of_the_dashboard_has_data_and_each_rule_is_evaluated() {
    if !can_choose() || !can_run(&[Need::Program("prometheus")]) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let directory = tempfile::tempdir().expect("can make one");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let sections = format!(
        "[api]\nlisten = \"127.0.0.1:9798\"\n[agreements]\n[images]\nlisten = \"127.0.0.1:5000\"\ndirectory = \"{}\"\n\
         budget = \"64MiB\"\n[[class]]\nname = \"{}\"\nmin = \"5mbit\"\n",
        at("images"),
        node.name("C2"),
    );
    let config = node.config().sections(&sections);
    started(&mut node, &config, &[rule("start = \"reno\"")]);
    let offer = format!(
        r#"{{"context":{{"initiator":"acme"}},"service":{{"term":"t","name":"{}"}},"terms":{{"min":"5mbit","max":"20mbit"}}}}"#,
        node.name("C1")
    );
    let offer = Offer::read(&offer, Language::Json).expect("it is an offer");
    node.client().offer(&offer).expect("it is accepted");

    let scrape = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{PACKAGING}/weir.rules.yml']\n\
         scrape_configs: [{{job_name: weir, static_configs: [{{targets: ['127.0.0.1:9798']}}]}}]\n"
    );
    fs::write(at("prometheus.yml"), scrape).expect("it can be written");
    let file = format!("--config.file={}", at("prometheus.yml"));
    let store = format!("--storage.tsdb.path={}", at("store"));
    let listen = format!("--web.listen-address={ADDRESS}");
    let _prometheus =
        node.topology.node().spawn(&["prometheus", &file, &store, &listen]).expect("it can be started");

    // Flows that end are counted, so that some end between two scrapes.
    let end = Instant::now() + FILLED;
    let empty = loop {
        let (srv, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
        let flows = ["C1", "C2"].map(|label| Stream::tcp(node.netns(label), srv, address));
        sleep(Duration::from_secs(2));
        drop(flows);
        let empty = empty_panels(&node);
        if empty.is_empty() || Instant::now() > end {
            break empty;
        }
    };
    assert!(empty.is_empty(), "these panels have no data: {empty:#?}");

    let rules = ask(&node, "/api/v1/rules").expect("it answers");
    let groups = rules["data"]["groups"].as_array().expect("there are groups");
    let rules: Vec<&Value> =
        groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten()).collect();
    assert!(rules.len() >= 14, "{}", rules.len());
    let faulty: Vec<&&Value> = rules.iter().filter(|rule| rule["health"] != "ok").collect();
    assert!(faulty.is_empty(), "{faulty:#?}");
    assert!(!has_data(&node, "weir_no_such_metric"), "a query of nothing has data");
    let firing: Vec<&&Value> = rules.iter().filter(|rule| rule["state"] == "firing").collect();
    println!(
        "{} rules, {} of them firing: {:?}",
        rules.len(),
        firing.len(),
        firing.iter().map(|r| &r["name"]).collect::<Vec<_>>()
    );
    assert!(node.agent().stop());
}
