//! Containers of LXD, whose API Incus has too, with a daemon and a directory of their own.

use super::*;

/// How soon after `lxc config set` the key must be in force.
const KEY_TIMEOUT: Duration = Duration::from_secs(1);

/// A daemon in the node's namespace.
struct Lxd<'a> {
    node: &'a Node,
    daemon: Option<Proc>,
    dir: &'a Path,
}

impl Lxd<'_> {
    fn socket(dir: &Path) -> PathBuf {
        dir.join("unix.socket")
    }

    fn line<'b>(environment: &'b [String; 2], words: &[&'b str]) -> Vec<&'b str> {
        [&["env", &environment[0], &environment[1]], words].concat()
    }

    fn environment(&self) -> [String; 2] {
        ["LXD_DIR", "HOME"].map(|name| format!("{name}={}", self.dir.display()))
    }

    fn start(&mut self) {
        let _ = fs::remove_file(Lxd::socket(self.dir));
        let (environment, cgroups) = (self.environment(), self.dir.join("cgroups"));
        fs::create_dir_all(&cgroups).expect("a directory");
        // LXD looks for interfaces in /sys, which is that of another network namespace here.
        let lxd = format!(
            "mount --rbind /sys/fs/cgroup {at}; mount -t sysfs sysfs /sys; mount --rbind {at} /sys/fs/cgroup; \
             exec lxd --group root",
            at = cgroups.display()
        );
        let line = Lxd::line(&environment, &["unshare", "--mount", "sh", "-c", &lxd]);
        let mut daemon = self.node.topology.node().spawn(&line).expect("it starts");
        wait_for(&Lxd::socket(self.dir), &mut daemon);
        self.daemon = Some(daemon);
        self.lxc("query --wait /1.0");
    }

    /// Runs the client with these words.
    #[track_caller]
    fn lxc(&self, words: &str) {
        let environment = self.environment();
        let words: Vec<&str> = ["lxc"].into_iter().chain(words.split(' ')).collect();
        if let Err(why) = self.node.topology.node().exec(&Lxd::line(&environment, &words)) {
            panic!("{words:?}: {why:#}");
        }
    }

    /// Starts a container with an interface on the host.
    fn launch(&self, project: &str, name: &str, keys: &str) {
        let it = format!("--project {project} {name}");
        self.lxc(&format!("init --project {project} bare {name} -c security.privileged=true {keys}"));
        self.lxc(&format!("config device add {it} eth0 nic nictype=p2p host_name=v{name}"));
        self.lxc(&format!("start {it}"));
    }

    /// The time until a class has this maximum by label, since now.
    fn until_max(&self, name: &str, max: BitRate) -> Duration {
        let begin = Instant::now();
        let is_set = |class: Class| (class.policy.max, class.policy.max_origin) == (Some(max), Origin::Label);
        while !known(self.node, name).is_some_and(is_set) {
            assert!(begin.elapsed() < KEY_TIMEOUT, "{name} has not {max}: {:?}", known(self.node, name));
            sleep(Duration::from_millis(5));
        }
        begin.elapsed()
    }
}

impl Drop for Lxd<'_> {
    fn drop(&mut self) {
        let environment = self.environment();
        for (project, name) in [("default", "web"), ("shop", "db")] {
            // They are gone if the test has passed.
            let words = ["lxc", "delete", "--project", project, "--force", name];
            let _ = self.node.topology.node().exec(&Lxd::line(&environment, &words));
        }
        self.daemon = None;
    }
}

/// An image whose init sleeps.
fn image(dir: &Path) -> PathBuf {
    let rootfs = root(dir);
    for place in ["proc", "dev", "sys", "tmp", "etc", "run", "sbin"] {
        fs::create_dir_all(rootfs.join(place)).expect("a directory");
    }
    symlink("../bin/busybox", rootfs.join("sbin/init")).expect("a link");
    fs::write(rootfs.join("etc/inittab"), "::respawn:/bin/sleep 1000\n").expect("a file");
    let metadata = "architecture: x86_64\ncreation_date: 1767225600\n";
    fs::write(dir.join("metadata.yaml"), metadata.replace("x86_64", std::env::consts::ARCH)).expect("a file");
    let image = dir.join("image.tar");
    let line = ["-cf", image.to_str().expect("UTF-8"), "metadata.yaml", "rootfs"];
    let done = Command::new("tar").current_dir(dir).args(line).status().expect("there is tar");
    assert!(done.success());
    image
}

/// Keys of instances, profiles and projects are labels of the classes that LXC's source finds. They stay in force while
/// the daemon is away, and changes follow within a second.
#[test]
fn keys_of_lxd_are_labels_of_its_containers_over_its_restart() {
    if !can_run(&Need::TRAFFIC) || !have(&["lxd", "lxc", "python3"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::build(&Spec::default());
    node.start(&Config::new(CAPACITY).discover(&format!("incus = {:?}", Lxd::socket(dir.path()))));
    let mut lxd = Lxd { node: &node, daemon: None, dir: dir.path() };
    lxd.start();
    lxd.lxc(&format!("image import {} --alias bare", image(dir.path()).display()));
    lxd.lxc("storage create default dir");
    lxd.lxc("profile device add default root disk path=/ pool=default");
    lxd.lxc("project create shop -c features.images=false -c features.profiles=false");

    lxd.launch("default", "web", "-c user.weir.max=5mbit -c user.weir.absurd=1");
    let late = until_enforced(&node, "web");
    println!("web is enforced {late:.1?} after `lxc start`");
    assert!(late < SOON);
    let web = known(&node, "lxc:web").expect("it is a class");
    assert_eq!((web.policy.max, web.policy.max_origin), (Some(BitRate::mbit(5)), Origin::Label));
    lxd.launch("shop", "db", "-c user.weir.weight=3");
    until_enforced(&node, "shop_db");
    assert_eq!(known(&node, "lxc:shop_db").expect("it is a class").policy.weight.get(), 3);
    let doctor = node.ran(&["doctor"]).stdout;
    assert!(doctor.contains("the keys of 2 instances are known"), "{doctor}");
    let status = node.ran(&["status"]).stdout;
    assert!(status.contains("container web: label user.weir.absurd=1 is ignored"), "{status}");

    lxd.lxc("config set web user.weir.max 3mbit");
    println!("a key is in force {:.1?} after `lxc config set`", lxd.until_max("web", BitRate::mbit(3)));
    lxd.lxc("profile set default user.weir.max 2mbit");
    println!("a key is in force {:.1?} after `lxc profile set`", lxd.until_max("shop_db", BitRate::mbit(2)));

    let before = known(&node, "web").and_then(|class| class.handle);
    lxd.daemon = None;
    sleep(Duration::from_millis(500));
    let doctor = node.ran(&["doctor"]).stdout;
    assert!(doctor.contains("cannot connect to"), "{doctor}");
    lxd.until_max("web", BitRate::mbit(3));
    lxd.start();
    sleep(Duration::from_millis(2500));
    lxd.lxc("config set web user.weir.max 5mbit");
    lxd.until_max("web", BitRate::mbit(5));
    assert_eq!(known(&node, "web").and_then(|class| class.handle), before, "it is the same class");

    node.sh(&["ip", "link", "set", "dev", "vweb", "master", "br0"]);
    lxd.lxc("exec web -- /bin/busybox ip link set eth0 up");
    lxd.lxc("exec web -- /bin/busybox ip address add 10.97.9.78/16 dev eth0");
    let server = node.topology.server_address(Family::V4).to_string();
    let sink = "import socket\nc = socket.create_server(('', 5403)).accept()[0]\nwhile c.recv(65536): pass";
    let mut sink = node.topology.srv().spawn(&["python3", "-c", sink]).expect("it starts");
    wait_until_listening(&mut sink, 5403).expect("it listens");
    let environment = lxd.environment();
    let send = format!("nc {server} 5403 < /dev/zero");
    let line = Lxd::line(&environment, &["lxc", "exec", "web", "--", "/bin/sh", "-c", &send]);
    let sender = node.topology.node().spawn(&line).expect("it starts");
    assert_held(&node, "web", BitRate::mbit(5));
    drop((sender, sink));
    lxd.lxc("delete --force web");
    until_gone(&node, "web");
}
