//! Containers of LXC, started by its own programs.

use super::*;

/// The containers of one path, in the node's namespace.
struct Lxc<'a> {
    node: &'a Node,
    dir: TempDir,
}

impl Lxc<'_> {
    fn words<'b>(&'b self, program: &'b str, name: &'b str) -> Vec<&'b str> {
        vec![program, "-P", self.dir.path().to_str().expect("UTF-8"), "-n", name]
    }

    /// Starts a container with these lines of configuration.
    fn start(&self, name: &str, network: &str) {
        let rootfs = root(&self.dir.path().join(format!("{name}.root")));
        for place in ["proc", "dev", "sys", "tmp"] {
            fs::create_dir_all(rootfs.join(place)).expect("a directory");
        }
        let config = format!(
            "lxc.rootfs.path = dir:{}\nlxc.uts.name = {name}\nlxc.mount.auto = proc:mixed\n\
             lxc.apparmor.profile = unconfined\n{network}",
            rootfs.display()
        );
        let file = self.dir.path().join(format!("{name}.conf"));
        fs::write(&file, config).expect("a file");
        let log = self.dir.path().join("log").display().to_string();
        let mut line = self.words("lxc-start", name);
        line.extend(["-f", file.to_str().expect("UTF-8"), "-o", &log, "-l", "WARN"]);
        line.extend(["--", "/bin/sleep", "1000"]);
        if let Err(why) = self.node.topology.node().exec(&line) {
            panic!("{why:#}\n{}", fs::read_to_string(&log).unwrap_or_default());
        }
    }

    fn stop(&self, name: &str) {
        let mut line = self.words("lxc-stop", name);
        line.push("-k");
        self.node.topology.node().exec(&line).expect("it stops");
    }
}

impl Drop for Lxc<'_> {
    fn drop(&mut self) {
        for name in ["web", "hosted"] {
            // It is gone if the test has passed.
            let _ = Command::new("lxc-stop").arg("-P").arg(self.dir.path()).args(["-n", name, "-k"]).output();
        }
    }
}

/// A container of LXC is a class by its name alone, also over a restart of the agent. Its end is seen.
#[test]
fn containers_of_lxc_are_classes_by_their_monitors() {
    if !can_run(&Need::TRAFFIC) || !have(&["lxc-start", "lxc-attach", "python3"]) {
        return;
    }
    let mut node = Node::build(&Spec::default());
    node.start(&Config::new(CAPACITY));
    let lxc = Lxc { node: &node, dir: tempfile::tempdir().expect("a directory") };
    let address = "10.97.9.77/16";
    let veth = format!(
        "lxc.net.0.type = veth\nlxc.net.0.veth.pair = vweb\nlxc.net.0.flags = up\nlxc.net.0.ipv4.address = {address}\n"
    );
    lxc.start("web", &veth);
    let late = until_enforced(&node, "web");
    println!("web is enforced {late:.1?} after `lxc-start`");
    assert!(late < SOON);
    // LXC looks for bridges in /sys, which is that of another network namespace here.
    node.sh(&["ip", "link", "set", "dev", "vweb", "master", "br0"]);
    let web = known(&node, "lxc:web").expect("it is a class");
    assert_eq!((web.source.as_str(), web.kind), ("lxc", weir_api::ClassKind::Container));
    node.weir(&["set", "web", "max=5mbit"]);

    let server = node.topology.server_address(Family::V4).to_string();
    let sink = "import socket\nc = socket.create_server(('', 5402)).accept()[0]\nwhile c.recv(65536): pass";
    let mut sink = node.topology.srv().spawn(&["python3", "-c", sink]).expect("it starts");
    wait_until_listening(&mut sink, 5402).expect("it listens");
    let send = format!("nc {server} 5402 < /dev/zero");
    let mut line = lxc.words("lxc-attach", "web");
    line.extend(["--", "/bin/sh", "-c", &send]);
    let sender = node.topology.node().spawn(&line).expect("it starts");
    assert_held(&node, "web", BitRate::mbit(5));
    drop((sender, sink));

    lxc.start("hosted", "lxc.net.0.type = none\n");
    node.sh(&["ip", "link", "set", "dev", "br0", "alias", "a change of the node"]);
    until_enforced(&node, "hosted");
    assert_eq!(known(&node, "hosted").expect("it is a class").kind, weir_api::ClassKind::Cgroup);
    lxc.stop("hosted");
    lxc.stop("web");
    until_gone(&node, "web");
}
