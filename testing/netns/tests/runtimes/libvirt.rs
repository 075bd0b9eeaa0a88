//! Virtual machines of libvirt, started by its own programs. They run no system: the class is known by the state
//! file and the host's end of the interface.

use super::*;

/// A libvirtd in the node's namespace. Its state is in the usual place.
struct Libvirt {
    _daemon: Proc,
    dir: TempDir,
}

const STATE: &str = "/run/libvirt/qemu";
/// It starts no agent of its own and keeps its hands off the machine's cgroups and security modules.
const SETTINGS: &str = "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\nnamespaces = []\n\
                        stdio_handler = \"file\"\ncgroup_controllers = []\nremember_owner = 0\n";

impl Libvirt {
    fn start(node: &Node) -> Libvirt {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().display();
        fs::write(dir.path().join("qemu.conf"), SETTINGS).expect("a file");
        let config = format!(
            "unix_sock_dir = \"{at}\"\nauth_unix_rw = \"none\"\nunix_sock_group = \"root\"\n\
             log_outputs = \"2:file:{at}/log\"\n"
        );
        fs::write(dir.path().join("libvirtd.conf"), config).expect("a file");
        // The driver asks for a user that only the package of its service makes.
        let script = format!(
            "for f in passwd group; do cp /etc/$f {at}/$f; done\n\
             echo libvirt-qemu:x:64055:64055::/:/bin/false >> {at}/passwd\n\
             echo libvirt-qemu:x:64055: >> {at}/group; echo kvm:x:64056: >> {at}/group\n\
             for f in passwd group; do mount --bind {at}/$f /etc/$f; done\n\
             mkdir -p /etc/libvirt; mount -t tmpfs none /etc/libvirt; cp {at}/qemu.conf /etc/libvirt\n\
             exec libvirtd --config {at}/libvirtd.conf --pid-file {at}/pid"
        );
        let home = node.topology.node();
        let mut daemon = home.spawn(&["unshare", "-m", "sh", "-euc", &script]).expect("it starts");
        wait_for(&dir.path().join("libvirt-sock"), &mut daemon);
        Libvirt { _daemon: daemon, dir }
    }

    fn virsh(&self, node: &Node, words: &[&str]) {
        let socket = format!("qemu:///system?socket={}/libvirt-sock", self.dir.path().display());
        if let Err(why) = node.topology.node().exec(&[&["virsh", "-q", "-c", &socket], words].concat()) {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            panic!("{why:#}\n{log}");
        }
    }

    /// Starts a domain with this policy and an interface of this name.
    fn create(&self, node: &Node, name: &str, policy: &str, tap: &str) {
        let text = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>\n\
             <metadata><weir:policy xmlns:weir='urn:weir:policy:1' {policy}/></metadata>\n\
             <os><type arch='x86_64' machine='pc'>hvm</type></os>\n\
             <devices><interface type='ethernet'><target dev='{tap}'/><model type='virtio'/><rom enabled='no'/>\
             </interface></devices></domain>"
        );
        let file = self.dir.path().join(format!("{name}.xml"));
        fs::write(&file, text).expect("a file");
        self.virsh(node, &["create", file.to_str().expect("UTF-8")]);
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // A domain outlives its libvirtd.
        for entry in fs::read_dir(STATE).into_iter().flatten().flatten() {
            if let Some(pid) = entry
                .path()
                .extension()
                .filter(|kind| *kind == "pid")
                .and_then(|_| fs::read_to_string(entry.path()).ok()?.trim().parse().ok())
            {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
        let _ = fs::remove_dir_all(STATE);
    }
}

#[test]
fn machines_of_libvirt_are_classes_with_the_policy_of_their_metadata() {
    if !can_run(&Need::TRAFFIC) || !have(&["libvirtd", "virsh", "qemu-system-x86_64"]) {
        return;
    }
    let is_domain = |entry: fs::DirEntry| entry.path().extension().is_some_and(|kind| kind == "xml");
    if fs::read_dir(STATE).is_ok_and(|entries| entries.flatten().any(is_domain)) {
        return skip(format!("another libvirtd has its state in {STATE}"));
    }
    let mut node = Node::build(&Spec::default());
    node.start(&Config::new(CAPACITY));
    let libvirt = Libvirt::start(&node);
    libvirt.create(&node, "web", "weight='3' max='20mbit' min='0'", "vmweb0");
    let late = until_enforced(&node, "web");
    println!("web is enforced {late:.1?} after `virsh create`");
    assert!(late < SOON);
    let web = known(&node, "libvirt:web").expect("it is a class");
    assert_eq!((web.source.as_str(), web.kind), ("libvirt", weir_api::ClassKind::Interface));
    assert_eq!((web.policy.weight.get(), web.policy.max, web.policy.min), (3, Some(BitRate::mbit(20)), None));
    let said = node.weir(&["explain", "web"]);
    assert!(said.contains("min=\"0\" of the domain's metadata is ignored"), "{said}");

    let checks = node.client().doctor().expect("it answers").checks;
    let check = checks.iter().find(|check| check.name == "libvirt").expect("there is a domain");
    assert_eq!(check.found, "1 virtual machine is followed");

    // The metadata of a running domain changes.
    let set = ["metadata", "web", "--live", "--uri", "urn:weir:policy:1", "--key", "weir", "--set"];
    libvirt.virsh(&node, &[&set[..], &["<policy weight='5'/>"]].concat());
    let begin = Instant::now();
    while known(&node, "web").is_none_or(|web| (web.policy.weight.get(), web.policy.max) != (5, None)) {
        assert!(
            begin.elapsed() < Duration::from_secs(1),
            "the new policy does not count: {:?}",
            known(&node, "web")
        );
        sleep(Duration::from_millis(2));
    }
    println!("the new policy counts {:.1?} after `virsh metadata`", begin.elapsed());

    // The next agent finds it, and the end of the domain is seen.
    node.agent().kill();
    node.restart();
    until_enforced(&node, "web");
    libvirt.virsh(&node, &["destroy", "web"]);
    until_gone(&node, "web");
}
