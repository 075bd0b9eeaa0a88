//! `weir cni` behind the reference plugins bridge, host-local and portmap. Pods are shaped before their first
//! packet. The agent restarts or is away. Calls end in the middle.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_api::Class;
use weir_netlab::{
    topology::{Family, Mode, Netns, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Config, Need, Node, Rate, Stream, binary, can_run, measure_once, wait_within,
};
use weir_units::BitRate;

/// Where Debian puts the reference plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// The time that a runtime's namespace waits for its pod.
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);
/// The pods of the test of many at once; half of the calls are killed midway.
const MANY: usize = 200;

/// A node with plugins, a network named by the node, and an agent.
struct Cni {
    // Before the node: their interfaces are in it.
    pods: Vec<Netns>,
    node: Node,
    dir: TempDir,
}

/// None, with the reason printed, if no agent can run here.
fn cni(config: impl FnOnce(&Node, Config) -> Config) -> Option<Cni> {
    if !can_run(&Need::TRAFFIC) {
        return None;
    }
    let mut node = Node::build(&Spec { mode: Mode::Routed, ..Spec::default() });
    let config = config(&node, Config::new(CAPACITY));
    node.start(&config);
    let dir = tempfile::tempdir().expect("a directory");
    let link = |from: &Path, name: &str| symlink(from, dir.path().join(name)).expect("a link");
    link(&binary(), "weir");
    for plugin in ["bridge", "host-local", "portmap"] {
        link(&Path::new(PLUGINS).join(plugin), plugin);
    }
    Some(Cni { pods: Vec::new(), node, dir })
}

impl Cni {
    /// The name of the network, which libcni's cache on this machine has once.
    fn network(&self) -> String {
        format!("{}pods", self.node.topology.prefix())
    }

    /// The end of the list: weir's own part.
    fn own(&self, more: &Value) -> Value {
        let mut own = json!({
            "type": "weir",
            "capabilities": { "bandwidth": true, "io.kubernetes.cri.pod-annotations": true },
            "socket": self.node.socket(),
        });
        for (key, value) in more.as_object().expect("an object") {
            own[key] = value.clone();
        }
        own
    }

    /// Writes the network's list of plugins: bridge, and the plugins behind it.
    fn write_list(&self, behind: &[Value]) {
        let bridge = json!({
            "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
            "ipam": {
                "type": "host-local", "dataDir": self.dir.path().join("ipam"),
                "ranges": [[{ "subnet": "10.188.0.0/16" }]], "routes": [{ "dst": "0.0.0.0/0" }],
            },
        });
        let plugins = [&[bridge], behind].concat();
        let list = json!({ "cniVersion": "1.0.0", "name": self.network(), "plugins": plugins });
        fs::write(self.dir.path().join("10-pods.conflist"), list.to_string()).expect("a file");
    }

    /// Makes the namespace of a pod.
    fn pod(&mut self, name: &str) -> PathBuf {
        let netns = Netns::create(name).unwrap_or_else(|e| panic!("{e:#}"));
        let path = netns.path();
        self.pods.push(netns);
        path
    }

    fn netns(&self, name: &str) -> &Netns {
        self.pods.iter().find(|netns| netns.name() == name).expect("it was made")
    }

    /// Runs cnitool in the node's namespace. `bandwidth` is in Mbit/s.
    fn cnitool(&self, verb: &str, netns: &Path, arguments: &str, bandwidth: u64) -> Output {
        let mut command = self.node.topology.node().command("cnitool").expect("the node is here");
        let rate = bandwidth * 1_000_000;
        let caps = json!({
            "bandwidth": { "ingressRate": 0, "ingressBurst": 0, "egressRate": rate, "egressBurst": u32::MAX },
            "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }],
        });
        command.args([verb, &self.network()]).arg(netns);
        command.env("CNI_PATH", self.dir.path()).env("NETCONFPATH", self.dir.path());
        command.env("CAP_ARGS", caps.to_string()).env("CNI_ARGS", arguments);
        command.output().expect("cnitool can be run")
    }

    /// Starts `weir cni` as a runtime starts a plugin, with its part of the list alone. The pod is called as
    /// the container.
    fn plugin(&self, command: &str, container: &str, netns: &Path, more: &Value) -> Child {
        self.plugin_for(command, (container, container), netns, more)
    }

    /// The same for another name of the pod.
    fn plugin_for(&self, command: &str, (container, pod): (&str, &str), netns: &Path, more: &Value) -> Child {
        let mut child =
            self.node.topology.node().command(self.dir.path().join("weir").to_str().expect("UTF-8"));
        let child = child.as_mut().expect("the node is here");
        let mut own = json!({
            "cniVersion": "1.0.0", "name": "by-hand", "type": "weir",
            "socket": self.node.socket(),
            "prevResult": { "cniVersion": "1.0.0", "interfaces": [], "ips": [] },
        });
        for (key, value) in more.as_object().expect("an object") {
            own[key] = value.clone();
        }
        child.env("CNI_COMMAND", command).env("CNI_CONTAINERID", container).env("CNI_NETNS", netns);
        child.env("CNI_IFNAME", "eth0").env("CNI_PATH", self.dir.path());
        child.env("CNI_ARGS", format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}"));
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().expect("weir can be run");
        let stdin = child.stdin.take().expect("it is piped");
        // A plugin that was killed reads nothing.
        let _ = (&stdin).write_all(own.to_string().as_bytes());
        child
    }

    #[track_caller]
    fn add(&self, container: &str, netns: &Path, more: &Value) {
        let begin = Instant::now();
        good(&self.plugin("ADD", container, netns, more).wait_with_output().expect("it ends"));
        println!("ADD of {container} took {:.0?}", begin.elapsed());
    }

    fn class(&self, name: &str) -> Option<Class> {
        self.node.client().class(name).ok()
    }

    /// The classes of CNI.
    fn classes(&self) -> Vec<String> {
        let all = self.node.client().classes().expect("it answers");
        all.into_iter().filter(|class| class.source == "cni").map(|class| class.name).collect()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        let seen = wait_within(Duration::from_secs(3), || if is_so() { Ok(()) } else { Err(self.classes()) });
        seen.unwrap_or_else(|late| panic!("not after 3 s: {what}: {late}"));
    }

    /// The files of attachments in the agent's state.
    fn files(&mut self) -> usize {
        fs::read_dir(self.node.agent().state_path().join("cni")).map_or(0, Iterator::count)
    }

    /// Lets a pod send datagrams at once: payload in the first 400 ms, and the rate of the second after
    /// these, both in Mbit/s.
    fn send(&self, pod: &str) -> (f64, f64) {
        let (to, srv) = (self.node.topology.server_address(Family::V4), self.node.topology.srv());
        let begin = Instant::now();
        let stream = Stream::udp(self.netns(pod), srv, to, Rate::Of(BitRate::mbit(40)));
        sleep(Duration::from_millis(400));
        let first = mbit(stream.received(), begin.elapsed());
        (first, stream.goodput(Duration::from_millis(1_500)))
    }
}

#[allow(clippy::cast_precision_loss)]
fn mbit(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8e-6 / time.as_secs_f64()
}

#[track_caller]
fn good(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The payload of a maximum, Mbit/s.
fn payload(max: f64) -> f64 {
    max * Load::Udp(BitRate::mbit(40)).payload_share(Family::V4)
}

#[track_caller]
fn assert_held(cni: &Cni, pod: &str, max: f64) {
    let want = payload(max);
    let off = |rate: f64| (rate - want).abs() / want;
    let (first, later) = measure_once(|| cni.send(pod), |(_, later)| off(*later) <= 0.02);
    println!("{pod}: {first:.2} Mbit/s at first, then {later:.3}, of {want:.3}");
    // A burst of one super-packet may go before.
    let most = want + mbit(64 << 10, Duration::from_millis(400));
    assert!(first <= most, "{pod} was not held from its first packet: {first:.2} of {want:.2} Mbit/s");
    assert!(off(later) <= 0.02, "{pod} sends {later:.3} of {want:.3} Mbit/s");
}

#[test]
fn pods_of_cnitool_are_shaped_from_their_first_packet_until_del() {
    let tools = [Need::Program("cnitool"), Need::File("/usr/lib/cni/bridge"), Need::Program("iptables")];
    if !can_run(&tools) {
        return;
    }
    let Some(mut cni) = cni(|_, config| config) else { return };
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    let own = cni.own(&json!({ "weight": 2 }));
    cni.write_list(&[portmap, own.clone()]);
    let name = format!("{}pod", cni.node.topology.prefix());
    let path = cni.pod(&name);
    let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
    let result: Value = serde_json::from_str(&good(&cni.cnitool("add", &path, arguments, 4))).expect("JSON");
    assert_eq!(result["cniVersion"], "1.0.0");
    assert_eq!(result["ips"][0]["gateway"], "10.188.0.1", "the result of bridge passes: {result}");
    let class = cni.class("shop/web").expect("a class");
    assert_eq!((class.enforced, class.policy.max), (true, Some(BitRate::mbit(4))));
    assert_eq!(class.policy.weight.get(), 2);
    assert_held(&cni, &name, 4.0);
    // CHECK of portmap 1.1.1 fails for want of an IPv6 chain.
    cni.write_list(std::slice::from_ref(&own));
    good(&cni.cnitool("check", &path, arguments, 4));

    // A second ADD changes the policy in place.
    let container = fs::read_dir("/var/lib/cni/results").expect("libcni keeps results").flatten();
    let file = container
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .find(|text| text.contains(&cni.network()))
        .expect("libcni keeps this one");
    let cached: Value = serde_json::from_str(&file).expect("JSON");
    let id = cached["containerId"].as_str().expect("an id").to_owned();
    let more =
        json!({ "name": cni.network(), "runtimeConfig": { "bandwidth": { "EgressRate": 8_000_000 } } });
    let second = cni.plugin_for("ADD", (&id, "web"), &path, &more).wait().expect("it ends");
    assert!(second.success());
    let changed = cni.class("shop/web").expect("a class");
    assert_eq!((changed.policy.max, changed.handle), (Some(BitRate::mbit(8)), class.handle));
    assert_held(&cni, &name, 8.0);

    good(&cni.cnitool("del", &path, arguments, 4));
    cni.wait_for("no class is left", || cni.classes().is_empty());
    good(&cni.cnitool("del", &path, arguments, 4));
    assert_eq!(cni.files(), 0);
    // A pod without weir is not held: the measurement above can fail.
    cni.write_list(&[]);
    good(&cni.cnitool("add", &path, arguments, 4));
    let (first, _) = cni.send(&name);
    println!("without weir: {first:.2} Mbit/s at first");
    assert!(first > payload(4.0) * 3.0, "{first:.2} Mbit/s");
    good(&cni.cnitool("del", &path, arguments, 4));
}

#[test]
fn wishes_of_a_pod_are_told_where_they_are_not_in_force() {
    let Some(mut cni) = cni(|_, config| config.sections("[labels]\nmax_weight = 10\n")) else { return };
    let path = veth(&mut cni, "asks");
    let annotations = json!({
        "weir.dev/weight": "5000", "weir.dev/max": "fast", "weir.dev/group": "tenant-a",
        "kubernetes.io/ingress-bandwidth": "4M", "kubernetes.io/egress-bandwidth": "6M",
    });
    let more = json!({ "runtimeConfig": { "io.kubernetes.cri.pod-annotations": annotations } });
    cni.add("asks", &path, &more);
    let class = cni.class("cni:shop/asks").expect("a class");
    assert_eq!((class.policy.weight.get(), class.policy.max), (10, Some(BitRate::mbit(6))));
    assert_eq!(class.group.as_deref(), Some("tenant-a"));
    let why = class.not_enforced_because.clone().expect("a reason");
    assert!(
        why.starts_with("weir shapes no download, and annotation kubernetes.io/ingress-bandwidth"),
        "{why}"
    );
    let explained = cni.node.weir(&["explain", "shop/asks"]);
    for part in [
        "shop/asks (container from cni of group tenant-a)",
        "not enforced: weir shapes no download",
        "annotation weir.dev/max=fast is ignored",
        "weight 5000 by annotation weir.dev/weight, cut to 10 by [labels] max_weight",
        "max 6mbit: annotation kubernetes.io/egress-bandwidth",
    ] {
        assert!(explained.contains(part), "{part}:\n{explained}");
    }
    let events = cni.node.weir(&["events", "--json"]);
    assert!(events.contains("not-enforced") && events.contains("weir shapes no download"), "{events}");
    assert!(events.contains("cni reports it, and it"), "{events}");
    assert!(events.contains("label-cut") && events.contains("weir.dev/max=fast"), "{events}");
    // By hand it is named as in Kubernetes.
    cni.node.weir(&["set", "shop/asks", "weight=3"]);
    assert_eq!(cni.class("shop/asks").expect("it is here").policy.weight.get(), 3);
    // The node's own namespace is no pod.
    let node = cni.node.topology.node().path();
    let refused = cni.plugin("ADD", "evil", &node, &json!({ "onError": "refuse" })).wait_with_output();
    let refused = String::from_utf8_lossy(&refused.expect("it ends").stdout).into_owned();
    assert!(refused.contains("is the node's own network namespace"), "{refused}");
}

/// A pod with one interface, by hand.
fn veth(cni: &mut Cni, name: &str) -> PathBuf {
    let prefix = cni.node.topology.prefix().to_owned();
    let path = cni.pod(&format!("{prefix}{name}"));
    let netns = format!("{prefix}{name}");
    let batch =
        format!("link add v-{name} type veth peer name eth0 netns {netns}\nlink set dev v-{name} up\n");
    cni.node.topology.node().ip(&batch).unwrap_or_else(|e| panic!("{e:#}"));
    path
}

#[test]
fn a_restarted_agent_keeps_pods_and_forgets_those_that_ended() {
    let Some(mut cni) = cni(|_, config| config) else { return };
    let rate = json!({ "runtimeConfig": { "bandwidth": { "egressRate": 5_000_000 } } });
    for name in ["stays", "ends", "deleted"] {
        let path = veth(&mut cni, name);
        cni.add(name, &path, &rate);
    }
    let before = cni.class("shop/stays").expect("a class");
    cni.node.agent().kill();
    // Without an agent the pod may start or not, and it may always end.
    let path = veth(&mut cni, "away");
    let open = cni.plugin("ADD", "away", &path, &json!({})).wait_with_output().expect("it ends");
    good(&open);
    let told = String::from_utf8_lossy(&open.stderr).into_owned();
    assert!(told.contains("eth0 of container away starts unshaped: cannot reach the agent"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    let refused = cni.plugin("ADD", "away", &path, &json!({ "onError": "refuse" })).wait_with_output();
    let refused: Value = serde_json::from_slice(&refused.expect("it ends").stdout).expect("JSON");
    assert_eq!(refused["code"], 11, "{refused}");
    let node = cni.node.topology.prefix().to_owned();
    // One pod ends with its namespace. Of another one only its interface goes, as the plugin's DEL does.
    let gone = cni.plugin("DEL", "deleted", &path, &json!({})).wait().expect("it ends");
    assert!(gone.success());
    cni.pods.retain(|netns| netns.name() != format!("{node}ends"));
    cni.node.topology.node().ip("link del dev v-deleted\n").unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(cni.files(), 3);
    cni.node.restart();
    cni.wait_for("one pod is left", || cni.classes() == ["shop/stays"]);
    let after = cni.class("shop/stays").expect("a class");
    assert_eq!((after.handle, after.policy, after.enforced), (before.handle, before.policy, true));
    assert_eq!(cni.files(), 1);
}

#[test]
fn a_runtimes_namespace_waits_for_its_pod_and_is_one_class() {
    let uuid = |cni: &str| format!("cni-{:08x}-0000-4000-8000-{cni:0>12}", std::process::id());
    let (told, alone) = (uuid("1"), uuid("2"));
    let patterns = [told.clone(), alone.clone()];
    let Some(mut cni) = cni(|_, config| config.netns(&patterns)) else { return };
    // A wait that is measured from before its start is never too short.
    let begin = Instant::now();
    for (name, link) in [(&told, "v-1"), (&alone, "v-2")] {
        cni.pod(name);
        let batch =
            format!("link add {link} type veth peer name eth0 netns {name}\nlink set dev {link} up\n");
        cni.node.topology.node().ip(&batch).unwrap_or_else(|e| panic!("{e:#}"));
    }
    let path = cni.netns(&told).path();
    cni.add("web", &path, &json!({}));
    cni.wait_for("the other one is a class", || cni.class(&alone).is_some());
    let waited = begin.elapsed();
    println!("a namespace without a pod was a class after {waited:?}");
    assert!(waited >= OWNER_TIMEOUT, "it waited for its pod no longer than {waited:?}");
    let class = cni.class("shop/web").expect("a class");
    assert_eq!(class.source, "cni");
    assert!(cni.class(&told).is_none(), "one container has two classes");
    // The namespace outlives the pod, and waits again.
    let begin = Instant::now();
    assert!(cni.plugin("DEL", "web", &path, &json!({})).wait().expect("it ends").success());
    cni.wait_for("it is a class of its own", || cni.class(&told).is_some());
    let waited = begin.elapsed();
    assert!(waited >= OWNER_TIMEOUT, "it waited again no longer than {waited:?}");
    assert!(cni.class("shop/web").is_none(), "one container has two classes");
}

#[test]
fn hundreds_of_adds_and_dels_at_once_leave_no_class_behind() {
    let Some(mut cni) = cni(|_, config| config) else { return };
    let prefix = cni.node.topology.prefix().to_owned();
    let pods = Pods::make(&cni.node, &prefix, MANY);
    let begin = Instant::now();
    let path = |i: usize| PathBuf::from(format!("/run/netns/{prefix}m{i}"));
    // On a busy machine some calls may take too long. They may not pass for good.
    let max = json!({ "max": "5mbit", "onError": "refuse" });
    let mut adds: Vec<Child> =
        (0..MANY).map(|i| cni.plugin("ADD", &format!("p{i}"), &path(i), &max)).collect();
    // Each third is killed in the middle: some before they asked, some while they wait.
    for add in adds.iter_mut().skip(1).step_by(3) {
        add.kill().expect("it can be killed");
    }
    let ended: Vec<bool> = adds.iter_mut().map(|add| add.wait().expect("it ends").success()).collect();
    let took = begin.elapsed();
    let whole = ended.iter().filter(|good| **good).count();
    println!("{MANY} ADDs at once took {took:.1?}, {whole} of them to the end");
    assert!(whole >= MANY / 2, "only {whole} of {MANY} ADDs ended well");
    for (i, good) in ended.iter().enumerate() {
        let class = cni.class(&format!("shop/p{i}"));
        let is_held =
            class.as_ref().is_some_and(|class| class.enforced && class.policy.max == Some(BitRate::mbit(5)));
        assert!(is_held || !good, "p{i} was added, and it is {class:?}");
    }
    let dels: Vec<Child> =
        (0..MANY).map(|i| cni.plugin("DEL", &format!("p{i}"), &path(i), &json!({}))).collect();
    for mut del in dels {
        assert!(del.wait().expect("it ends").success());
    }
    cni.wait_for("no class is left", || cni.classes().is_empty());
    assert_eq!(cni.files(), 0);
    drop(pods);
    let left = cni.node.weir(&["status", "--json"]);
    let status: Value = serde_json::from_str(&left).expect("JSON");
    println!("the longest tick: {} us", status["max_tick_delay_us"]);
    assert_eq!(status["warnings"], json!([]));
}

/// Many namespaces with a veth each, made and removed by one `ip -batch`.
struct Pods(String);

impl Pods {
    fn make(node: &Node, prefix: &str, count: usize) -> Pods {
        let lines = |line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<String>();
        let pods = Pods(lines(&|i| format!("netns del {prefix}m{i}\n")));
        batch(&lines(&|i| format!("netns add {prefix}m{i}\n")));
        let links = lines(&|i| {
            format!("link add m{i} type veth peer name eth0 netns {prefix}m{i}\nlink set dev m{i} up\n")
        });
        node.topology.node().ip(&links).unwrap_or_else(|e| panic!("{e:#}"));
        pods
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        batch(&self.0);
    }
}

fn batch(lines: &str) {
    let mut child = std::process::Command::new("ip")
        .args(["-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("ip can be run");
    child.stdin.take().expect("it is piped").write_all(lines.as_bytes()).expect("it reads");
    child.wait().expect("it ends");
}
