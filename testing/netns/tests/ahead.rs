//! A program or filter of others in front of weir's that ends classification keeps packets from weir. It says so.

use std::{os::fd::OwnedFd, time::Duration};

use weir_bpf::attach;
use weir_netlab::topology::{Netns, Spec, UPLINK};
use weir_netns_tests::{
    EngineKind, Need, Node, can_run, containers,
    kernel::{index_of, load_classifier},
    wait_within,
};

/// The time until the agent tells.
const TELLS: Duration = Duration::from_secs(3);
/// The name of the program of others.
const OTHER: &str = "policy";

/// A program of others that lets each packet pass, and ends classification.
fn program() -> OwnedFd {
    // return TCX_PASS
    load_classifier(OTHER, &[0xb7, 0x95])
}

/// Runs a change of the programs at an interface. `None` if this kernel has no TCX.
fn at<T: Send>(
    netns: &Netns,
    device: &str,
    change: impl FnOnce(u32) -> Result<T, nix::errno::Errno> + Send,
) -> Option<T> {
    let index = index_of(netns, device).expect("the interface is there");
    match netns.within(|| change(index)).expect("the namespace can be entered") {
        Ok(done) => Some(done),
        Err(nix::errno::Errno::EINVAL) => None,
        Err(errno) => panic!("{device}: {errno}"),
    }
}

fn built() -> Option<Node> {
    can_run(&Need::TRAFFIC)
        .then(|| Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() }))
}

/// The warnings about others' programs.
fn warnings(node: &Node) -> Vec<String> {
    let all = node.client().status().expect("it answers").warnings;
    all.into_iter().filter(|warning| warning.contains("before weir's")).collect()
}

/// Waits for one warning and an event that begin so, and looks at the checks.
#[track_caller]
fn is_told(node: &Node, begins: &str) {
    let told = || match &warnings(node)[..] {
        [one] if one.starts_with(begins) => Ok(()),
        all => Err(format!("{all:?}")),
    };
    wait_within(TELLS, told).unwrap_or_else(|late| panic!("{begins}: {late}"));
    let checks = node.client().doctor().expect("it answers").checks;
    let is = |name: &str, found: &str| checks.iter().any(|c| c.name == name && c.found.contains(found));
    assert!(is("other programs", begins), "{checks:?}");
    for name in ["classes", "maxima"] {
        assert!(is(name, "of the packets that reach weir's programs"), "{name}: {checks:?}");
    }
    assert!(events(node).iter().any(|event| event.starts_with(begins)), "{:?}", events(node));
}

/// Waits until no warning is left and an event says so.
#[track_caller]
fn is_over(node: &Node) {
    let over = || match warnings(node) {
        none if none.is_empty() => Ok(()),
        all => Err(format!("{all:?}")),
    };
    wait_within(TELLS, over).unwrap_or_else(|late| panic!("it is still told: {late}"));
    assert!(events(node).iter().any(|event| event.contains("before weir's any more")), "{:?}", events(node));
}

fn events(node: &Node) -> Vec<String> {
    let all = node.client().events(false).expect("it tells").flatten();
    all.filter(|event| event.what.as_str() == "foreign-program").map(|event| event.detail).collect()
}

#[test]
fn filter_in_front_at_the_uplink_is_told() {
    let Some(mut node) = built() else { return };
    let config = node.config().engine(EngineKind::Htb).link("download = \"50mbit\"");
    node.start(&config);
    assert_eq!(warnings(&node), Vec::<String>::new(), "weir's own are told");
    for hook in ["egress", "ingress"] {
        let filter = |verb, more: &[&str]| {
            node.sh(&[&["tc", "filter", verb, "dev", UPLINK, hook, "pref", "10"], more].concat())
        };
        // It matches each packet.
        filter("add", &["bpf", "bytecode", "1,6 0 0 4294967295,", "flowid", "1:1"]);
        is_told(&node, &format!("a bpf filter of pref 10 runs at {UPLINK}'s {hook} before weir's"));
        filter("del", &[]);
        is_over(&node);
    }
}

#[test]
fn program_in_front_at_the_uplink_is_told() {
    let Some(mut node) = built() else { return };
    let config = node.config().engine(EngineKind::Htb);
    node.start(&config);
    let (program, home) = (program(), node.topology.node());
    if at(home, UPLINK, |index| attach::attach_tcx_egress(&program, index, None)).is_none() {
        println!("SKIPPED: this kernel has no TCX");
        return;
    }
    let id = attach::program_id(&program).expect("it has a number");
    is_told(&node, &format!("program {OTHER} (id {id}) runs at {UPLINK}'s egress before weir's"));
    at(home, UPLINK, |index| attach::detach_tcx_egress(id, index));
    is_over(&node);
}

#[test]
fn program_in_front_at_a_port_is_told() {
    let Some(mut node) = built() else { return };
    let port = node.topology.container("C1").expect("it is there").host_interface();
    let program = program();
    let attached = at(node.topology.node(), &port, |index| attach::attach_tcx_ingress(&program, index, None));
    if attached.is_none() {
        println!("SKIPPED: this kernel has no TCX");
        return;
    }
    let id = attach::program_id(&program).expect("it has a number");
    for how in ["tcx", "clsact"] {
        let config = node.config().engine(EngineKind::Htb).link(&format!("attach = \"{how}\""));
        node.start(&config);
        is_told(&node, &format!("program {OTHER} (id {id}) runs at {port}'s ingress before weir's"));
    }
    at(node.topology.node(), &port, |index| attach::detach_tcx_ingress(id, index));
    is_over(&node);
    // A program behind weir's is not told.
    let config = node.config().engine(EngineKind::Htb).link("attach = \"tcx\"");
    node.start(&config);
    at(node.topology.node(), &port, |index| attach::attach_tcx_ingress(&program, index, None));
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(warnings(&node), Vec::<String>::new());
}
