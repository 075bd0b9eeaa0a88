//! Pods of a cluster behind a stand-in for its API server. Annotations change rates at run time, and stay while the server
//! is away. The node's status has what is unreserved. A hostile pod harms no other.

use std::{
    fs,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use weir_api::Class;
use weir_netlab::{
    topology::{Family, Mode, Proc, Spec},
    traffic::Load,
};
use weir_netns_tests::{CAPACITY, Config, Need, Node, Rate, Stream, can_run, containers, measure_once};
use weir_testkit::api_server::{ApiServer, Manner, namespace, pod};
use weir_units::BitRate;

const NODE: &str = "edge-1";
/// How soon a changed annotation must be in force.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(10);

/// Cgroups as a kubelet makes them. Gone when dropped.
struct Pods {
    root: PathBuf,
    made: Vec<PathBuf>,
    processes: Vec<Proc>,
}

impl Pods {
    fn new() -> Pods {
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let root = mounts.into_iter().find(|m| m.join("cgroup.procs").exists()).expect("asked before");
        Pods { root, made: Vec::new(), processes: Vec::new() }
    }

    fn make(&mut self, path: &str) -> PathBuf {
        let dir = self.root.join(path);
        if fs::create_dir(&dir).is_ok() {
            self.made.push(dir.clone());
        }
        dir
    }

    /// Puts a process into the cgroup of a container of a pod.
    fn start(&mut self, process: Proc, uid: &str) {
        for path in
            ["kubepods".to_owned(), "kubepods/burstable".to_owned(), format!("kubepods/burstable/pod{uid}")]
        {
            self.make(&path);
        }
        let container = self.make(&format!("kubepods/burstable/pod{uid}/c1"));
        fs::write(container.join("cgroup.procs"), process.id().to_string()).expect("it can be moved");
        self.processes.push(process);
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.processes.clear();
        for dir in self.made.iter().rev() {
            let begin = Instant::now();
            while fs::remove_dir(dir).is_err() && dir.exists() && begin.elapsed() < Duration::from_secs(2) {
                sleep(Duration::from_millis(5));
            }
        }
    }
}

struct Cluster {
    server: ApiServer,
    pods: Pods,
    node: Node,
}

/// A node whose containers C1 and C2 are the pods shop/web and shop/evil. `None` if no agent can run here.
fn cluster(options: &str, download: &str) -> Option<Cluster> {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Cgroup2]) {
        return None;
    }
    let mut node = Node::build(&Spec { mode: Mode::Routed, containers: containers(2), ..Spec::default() });
    let server = node.topology.node().within(ApiServer::start).expect("loopback is there");
    let mut pods = Pods::new();
    for (label, name) in [("C1", "web"), ("C2", "evil")] {
        let process = node.netns(label).spawn(&["sleep", "600"]).expect("it can be run");
        pods.start(process, &uid(name));
        server.put("pods", of(name, json!({})));
    }
    let section = format!(
        "[kubernetes]\nnode = \"{NODE}\"\nserver = \"{}\"\ntoken_file = \"/no/token\"\n{options}",
        server.url()
    );
    node.start(&Config::new(CAPACITY).link(download).sections(&section));
    let cluster = Cluster { server, pods, node };
    cluster.wait_for("both pods are classes", SOON, || {
        cluster.class("web").is_some() && cluster.class("evil").is_some()
    });
    Some(cluster)
}

/// Unique on this machine, where several tests may have a pod of that name.
fn uid(name: &str) -> String {
    format!("{:08x}-{name}", std::process::id())
}

fn of(name: &str, annotations: Value) -> Value {
    let mut object = pod(NODE, "shop", name, &[]);
    object["metadata"]["uid"] = json!(uid(name));
    object["metadata"]["annotations"] = annotations;
    object
}

impl Cluster {
    fn class(&self, pod: &str) -> Option<Class> {
        self.node.client().class(&format!("cni:shop/{pod}")).ok()
    }

    fn max(&self, pod: &str) -> Option<BitRate> {
        self.class(pod)?.policy.max
    }

    #[track_caller]
    fn wait_for(&self, what: &str, within: Duration, is_so: impl Fn() -> bool) -> Duration {
        let begin = Instant::now();
        while !is_so() {
            assert!(
                begin.elapsed() < within,
                "not after {within:?}: {what}: {:?}",
                self.node.client().classes()
            );
            sleep(Duration::from_millis(10));
        }
        begin.elapsed()
    }

    /// Sets the annotations of a pod, and waits until they are its maximum.
    #[track_caller]
    fn annotate(&self, pod: &str, annotations: Value, max: Option<BitRate>) {
        self.server.put("pods", of(pod, annotations));
        let took = self.wait_for(&format!("{pod} has max {max:?}"), CHANGE_TIMEOUT, || self.max(pod) == max);
        println!("{pod}: max {max:?} in force after {took:.0?}");
    }

    /// The rate of web's payload, Mbit/s.
    fn rate(&self) -> f64 {
        let (to, srv) = (self.node.topology.server_address(Family::V4), self.node.topology.srv());
        let stream = Stream::udp(self.node.netns("C1"), srv, to, Rate::Of(BitRate::mbit(60)));
        sleep(Duration::from_millis(300));
        stream.goodput(Duration::from_millis(1_000))
    }

    #[track_caller]
    fn assert_rate(&self, max: f64) {
        let want = max * Load::Udp(BitRate::mbit(60)).payload_share(Family::V4);
        let off = |rate: f64| (rate - want).abs() / want;
        let rate = measure_once(|| self.rate(), |rate| off(*rate) <= 0.03);
        println!("web sends {rate:.2} of {want:.2} Mbit/s");
        assert!(off(rate) <= 0.03, "web sends {rate:.2} of {want:.2} Mbit/s");
    }
}

#[test]
fn annotations_change_a_pods_rate_at_once_and_stay_without_the_server() {
    let Some(mut cluster) = cluster("namespace_groups = true\n", "") else { return };
    let web = cluster.class("web").expect("it is here");
    assert_eq!((web.group.as_deref(), web.enforced), (Some("shop"), true));
    cluster.annotate("web", json!({ "kubernetes.io/egress-bandwidth": "8M" }), Some(BitRate::mbit(8)));
    cluster.assert_rate(8.0);
    let by_weir =
        json!({ "kubernetes.io/egress-bandwidth": "8M", "weir.dev/max": "20mbit", "weir.dev/weight": "7" });
    cluster.annotate("web", by_weir, Some(BitRate::mbit(20)));
    cluster.assert_rate(20.0);
    let explained = cluster.node.weir(&["explain", "shop/web"]);
    assert!(explained.contains("max 20mbit: annotation weir.dev/max"), "{explained}");
    cluster.annotate("web", json!({}), None);
    assert_eq!(cluster.class("web").expect("it is here").policy.weight.get(), 1);
    // The namespace bounds its pods together.
    cluster
        .server
        .put("namespaces", namespace("shop", &[("weir.dev/max", "12mbit"), ("weir.dev/weight", "3")]));
    let group = || cluster.node.client().class("group:shop").expect("a group").policy;
    cluster.wait_for("the group has a maximum", CHANGE_TIMEOUT, || group().max == Some(BitRate::mbit(12)));
    cluster.assert_rate(12.0);
    let explained = cluster.node.weir(&["explain", "group:shop"]);
    assert!(explained.contains("max 12mbit: annotation weir.dev/max of namespace shop"), "{explained}");

    // The server is away, and then the agent restarts without it.
    cluster.annotate("web", json!({ "weir.dev/max": "9mbit" }), Some(BitRate::mbit(9)));
    cluster.server.behave(Manner::Away);
    let told = |cluster: &Cluster| cluster.node.weir(&["status"]);
    cluster.wait_for("the loss is told", SOON, || {
        told(&cluster).contains("kubernetes: pods may be out of date: ")
    });
    assert_eq!(cluster.max("web"), Some(BitRate::mbit(9)));
    let before = cluster.class("web").expect("it is here");
    cluster.node.restart();
    cluster.wait_for("the pod is back", SOON, || cluster.class("web").is_some());
    let after = cluster.class("web").expect("it is here");
    assert_eq!((after.policy.max, after.handle), (before.policy.max, before.handle));
    let doctor = cluster.node.ran(&["doctor"]);
    let doctor = format!("{doctor:?}");
    assert!(
        doctor.contains("kubernetes at http://127.0.0.1:")
            && doctor.contains("the last known annotations count"),
        "{doctor}"
    );
    cluster.server.put("pods", of("web", json!({ "weir.dev/max": "30mbit" })));
    cluster.server.compact();
    cluster.server.behave(Manner::Well);
    cluster.wait_for("the change is seen", Duration::from_secs(40), || {
        cluster.max("web") == Some(BitRate::mbit(30))
    });
    // A pod that ends is no class. Its namespace and its process are still there.
    cluster.server.delete("pods", "shop", "web");
    cluster.wait_for("the pod is gone", CHANGE_TIMEOUT, || cluster.class("web").is_none());
    assert_eq!(cluster.pods.processes.len(), 2);
}

#[test]
fn a_hostile_pod_harms_no_other_and_minima_are_published() {
    let Some(cluster) = cluster("", "") else { return };
    cluster.annotate("web", json!({ "weir.dev/max": "15mbit" }), Some(BitRate::mbit(15)));
    // reservable = "100%" less the parts of weir's own classes is what the status shows.
    let status: Value = serde_json::from_str(&cluster.node.weir(&["status", "--json"])).expect("JSON");
    let free = |status: &Value| {
        (status["reservable"].as_u64().expect("bit/s") - status["reserved"].as_u64().expect("bit/s"))
            / 1_000_000
    };
    let shown = || cluster.server.node_status()["allocatable"]["weir.dev/egress-mbit"].clone();
    let all = free(&status).to_string();
    cluster.wait_for("the status is published", SOON, || shown() == all.as_str());
    // A minimum that the scheduler counts is not taken off, and one that it does not count is.
    let mut web = of("web", json!({ "weir.dev/max": "15mbit" }));
    web["spec"]["containers"][0]["resources"] = json!({ "limits": { "weir.dev/egress-mbit": "10" } });
    cluster.server.put("pods", web);
    let min = |pod: &str| cluster.class(pod).and_then(|class| class.policy.min);
    cluster.wait_for("the limit is the minimum", CHANGE_TIMEOUT, || min("web") == Some(BitRate::mbit(10)));
    let explained = cluster.node.weir(&["explain", "shop/web"]);
    assert!(explained.contains("min 10mbit: resource limit weir.dev/egress-mbit"), "{explained}");
    cluster.server.put("pods", of("evil", json!({ "weir.dev/min": "20mbit" })));
    let less = (free(&status) - 20).to_string();
    cluster
        .wait_for("an uncounted minimum is taken off", Duration::from_secs(15), || shown() == less.as_str());
    // A kubelet that registers a deleted node again knows nothing of it.
    cluster.server.set_node(json!({ "status": {} }));
    cluster.wait_for("a new node is told it", Duration::from_secs(15), || shown() == less.as_str());

    let mut annotations = json!({
        "weir.dev/min": "99999999999999999999gbit", "weir.dev/max": "-5\u{1b}[2J", "weir.dev/weight": "0",
        "weir.dev/group": "../../etc", "weir.dev/down.max": "\u{202e}x",
    });
    for n in 0..1_000 {
        annotations[format!("weir.dev/{n}-\u{7}")] = json!("x".repeat(200));
    }
    let begin = Instant::now();
    for n in 0..300 {
        annotations["weir.dev/weight"] = json!(format!("0{n}x"));
        cluster.server.put("pods", of("evil", annotations.clone()));
    }
    cluster.wait_for("its minimum is gone", SOON, || min("evil").is_none());
    println!("300 changes took {:.1?}", begin.elapsed());
    cluster.annotate("web", json!({ "weir.dev/max": "6mbit" }), Some(BitRate::mbit(6)));
    cluster.assert_rate(6.0);
    let explained = cluster.node.weir(&["explain", "shop/evil"]);
    assert!(explained.contains("is ignored") && !explained.contains('\u{1b}'), "{explained}");
    cluster.wait_for("the pod is told once", SOON, || {
        cluster
            .server
            .events()
            .iter()
            .any(|event| event["reason"] == "WeirIgnored" && event["involvedObject"]["name"] == "evil")
    });
    assert!(cluster.server.events().len() <= 4, "{:?}", cluster.server.events());
    let status: Value = serde_json::from_str(&cluster.node.weir(&["status", "--json"])).expect("JSON");
    println!("the longest tick: {} us", status["max_tick_delay_us"]);
}
