//! Sources of classes beside Docker, CNI and namespaces: systemd's units and slices by their cgroups, and taps of
//! virtual machines.

use std::{
    fs,
    net::IpAddr,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use weir_netlab::{
    topology::{Family, Mode, Proc, Spec},
    traffic::wait_until_listening,
};
use weir_netns_tests::{Need, Node, can_run, measure_once, wait_within};

/// How soon a class must be enforced. Without events the agent looks every 0.65 s.
const EVENT_TIMEOUT: Duration = Duration::from_millis(300);

/// Cgroups as systemd makes them, below one slice of this process. Gone when dropped.
struct Units {
    root: PathBuf,
    made: Vec<PathBuf>,
}

impl Units {
    fn new() -> Units {
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let root = mounts.into_iter().find(|m| m.join("cgroup.procs").exists()).expect("asked before");
        Units { root, made: Vec::new() }
    }

    /// Makes a cgroup.
    fn make(&mut self, path: &str) -> PathBuf {
        let dir = self.root.join(path);
        fs::create_dir(&dir).expect("a cgroup can be made");
        self.made.push(dir.clone());
        dir
    }

    /// Removes a cgroup, whose last process may not be reaped yet.
    fn remove(dir: &PathBuf) {
        let begin = Instant::now();
        while fs::remove_dir(dir).is_err() && dir.exists() && begin.elapsed() < Duration::from_secs(2) {
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        self.made.iter().rev().for_each(Units::remove);
    }
}

/// The name of this process's slice, without its end.
fn own() -> String {
    format!("weirtest{}", std::process::id())
}

/// A sink at the server, and a sender of TCP in a cgroup of the node.
fn send(node: &Node, cgroup: &std::path::Path, port: u16) -> (Proc, Proc) {
    send_by(node, cgroup, port, "-C cubic")
}

/// The same with these arguments of iperf3.
fn send_by(node: &Node, cgroup: &std::path::Path, port: u16, how: &str) -> (Proc, Proc) {
    let port_text = port.to_string();
    let mut sink = node.topology.srv().spawn(&["iperf3", "-s", "-1", "-p", &port_text]).expect("it starts");
    wait_until_listening(&mut sink, port).expect("it listens");
    let server: IpAddr = node.topology.server_address(Family::V4);
    let procs = cgroup.join("cgroup.procs");
    let script = format!("echo $$ > {} && exec iperf3 -c {server} -p {port} -t 60 {how}", procs.display());
    let sender = node.topology.node().spawn(&["sh", "-c", &script]).expect("it starts");
    (sink, sender)
}

/// The time until a class is enforced.
fn until_enforced(node: &Node, name: &str) -> Duration {
    let took = wait_within(EVENT_TIMEOUT, || {
        let class = node.client().class(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let is_enforced = class.handle.is_some() && class.not_enforced_because.is_none();
        if is_enforced { Ok(()) } else { Err(class.not_enforced_because) }
    });
    took.unwrap_or_else(|late| panic!("not enforced after {EVENT_TIMEOUT:?}: {late}"))
}

/// The rate of a class over some time, Mbit/s on the wire.
fn rate(node: &Node, name: &str, time: Duration) -> f64 {
    let before = (Instant::now(), node.class(name).bytes.0);
    sleep(time);
    let after = (Instant::now(), node.class(name).bytes.0);
    (after.1 - before.1) as f64 * 8e-6 / (after.0 - before.0).as_secs_f64()
}

/// A unit's cgroup is another one after each start. The agent learns of it by events, and its policy changes while
/// it runs. `weir explain` says when the unit does not run.
#[test]
fn unit_is_shaped_at_once_also_after_each_restart() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Cgroup2]) {
        return;
    }
    let mut node = Node::build(&Spec { mode: Mode::Routed, ..Spec::default() });
    let mut units = Units::new();
    let slice = format!("{}.slice", own());
    let unit = format!("{}-backup.service", own());
    let section = format!("[[class]]\nname = \"backup\"\nunit = \"{unit}\"\nmax = \"5mbit\"\n");
    node.start(&node.config().sections(&section));
    let idle = node.class("backup").not_enforced_because.expect("it does not run");
    assert!(idle.contains(&format!("unit {unit} does not run")), "{idle}");
    units.make(&slice);
    let path = format!("{slice}/{unit}");
    let mut took = Vec::new();
    for _ in 0..5 {
        let dir = units.make(&path);
        took.push(until_enforced(&node, "backup"));
        Units::remove(&dir);
        let is_over = || node.class("backup").not_enforced_because.is_some().then_some(()).ok_or(());
        wait_within(EVENT_TIMEOUT, is_over).expect("an ended unit counts as running");
    }
    println!("a unit is enforced {took:.1?} after its cgroup is there");

    let dir = units.make(&path);
    let (sink, sender) = send(&node, &dir, 5301);
    until_enforced(&node, "backup");
    sleep(Duration::from_secs(1));
    let second = Duration::from_secs(2);
    let limited = measure_once(|| rate(&node, "backup", second), |rate| (rate / 5.0 - 1.0).abs() < 0.02);
    assert!((limited / 5.0 - 1.0).abs() < 0.02, "{limited:.2} Mbit/s with a maximum of 5");
    node.weir(&["set", "backup", "max=20mbit"]);
    sleep(Duration::from_millis(900));
    let raised = measure_once(|| rate(&node, "backup", second), |rate| (rate / 20.0 - 1.0).abs() < 0.02);
    println!("{limited:.2} Mbit/s with a maximum of 5, and {raised:.2} with one of 20 set while it runs");
    assert!((raised / 20.0 - 1.0).abs() < 0.02, "{raised:.2} Mbit/s with a maximum of 20");
    drop((sender, sink));
}

/// Packets of a unit in the shape of DHCP are control traffic up to 20 kbit/s, and count in its class beyond that.
#[test]
fn unit_does_not_leave_its_maximum_in_the_shape_of_control_traffic() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Cgroup2]) {
        return;
    }
    let mut node = Node::build(&Spec { mode: Mode::Routed, ..Spec::default() });
    let mut units = Units::new();
    let slice = format!("{}.slice", own());
    let unit = format!("{}-dhcp.service", own());
    node.start(
        &node.config().sections(&format!("[[class]]\nname = \"dhcp\"\nunit = \"{unit}\"\nmax = \"5mbit\"\n")),
    );
    units.make(&slice);
    let dir = units.make(&format!("{slice}/{unit}"));
    until_enforced(&node, "dhcp");
    let (sink, sender) = send_by(&node, &dir, 67, "--udp --bitrate 40M --length 1200 --cport 68");
    sleep(Duration::from_secs(1));
    let time = Duration::from_secs(2);
    let measure = || {
        let control = node.class("control").bytes.0;
        (rate(&node, "dhcp", time), node.class("control").bytes.0 - control)
    };
    let is_held = |(rate, control): &(f64, u64)| (rate / 5.0 - 1.0).abs() < 0.02 && *control < 12_000;
    let held = measure_once(measure, is_held);
    println!("{:.2} Mbit/s in its class, and {} bytes of control traffic in {time:?}", held.0, held.1);
    assert!(is_held(&held), "{held:?}");
    drop((sender, sink));
}

/// A slice is the class of all its units but those that have classes of their own.
#[test]
fn slice_is_the_class_of_its_units_without_one() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Cgroup2]) {
        return;
    }
    let mut node = Node::build(&Spec { mode: Mode::Routed, ..Spec::default() });
    let mut units = Units::new();
    let (outer, inner) = (format!("{}.slice", own()), format!("{}-a.slice", own()));
    let sections = format!(
        "[[class]]\nname = \"tenant\"\nslice = \"{inner}\"\nweight = 1\n\
         [[class]]\nname = \"web\"\nunit = \"{}-web.service\"\nweight = 3\n",
        own()
    );
    node.start(&node.config().sections(&sections));
    let idle = node.class("tenant").not_enforced_because.expect("it has no cgroup");
    assert!(idle.contains(&format!("/{outer}/{inner}")), "{idle}");
    units.make(&outer);
    units.make(&format!("{outer}/{inner}"));
    let web = units.make(&format!("{outer}/{inner}/{}-web.service", own()));
    let other = units.make(&format!("{outer}/{inner}/{}-other.service", own()));
    until_enforced(&node, "tenant");
    until_enforced(&node, "web");
    let (first, second) = (send(&node, &web, 5302), send(&node, &other, 5303));
    sleep(Duration::from_secs(2));
    let measure = || {
        let before = (node.class("web").bytes.0, node.class("tenant").bytes.0);
        sleep(Duration::from_secs(3));
        let after = (node.class("web").bytes.0, node.class("tenant").bytes.0);
        (after.0 - before.0) as f64 / (after.0 - before.0 + after.1 - before.1) as f64
    };
    let share = measure_once(measure, |share| (share / 0.75 - 1.0).abs() < 0.02);
    println!("the unit of weight 3 has {share:.3} of the link, its slice of weight 1 the rest");
    assert!((share / 0.75 - 1.0).abs() < 0.02, "{share:.3} of the link");
    drop((first, second));
}
