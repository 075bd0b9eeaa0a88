//! `weir image doctor` says of each configuration of containerd 2 whether its pulls ask the cache.

use std::{
    env, fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use weir_api::{Check, Doctor, Verdict};
use weir_netns_tests::binary;

use super::{LISTEN, Site, image_verb, run, wait_until};

/// A directory with containerd 2 and crictl.
const PROGRAMS: &str = "WEIR_CONTAINERD";

/// How the registry section of containerd's configuration names its directories.
struct Case {
    what: &'static str,
    /// `DIR` stands for the directory that `weir image setup` writes.
    config_path: &'static str,
    /// Without the transfer service.
    local_pull: bool,
    /// Whether pulls ask the cache, where all versions agree.
    asks: Option<bool>,
}

const CASES: [Case; 4] = [
    Case { what: "one directory", config_path: "DIR", local_pull: false, asks: Some(true) },
    Case { what: "no directory", config_path: "", local_pull: false, asks: Some(false) },
    Case { what: "a list", config_path: "DIR:/etc/docker/certs.d", local_pull: false, asks: None },
    Case {
        what: "a list, pulled locally",
        config_path: "DIR:/etc/docker/certs.d",
        local_pull: true,
        asks: Some(true),
    },
];

/// A containerd with CRI, in the node's namespace.
struct Containerd {
    child: Child,
    socket: PathBuf,
}

impl Containerd {
    fn start(site: &Site, programs: &Path, case: &Case) -> Containerd {
        let dir = site.dir.path().join("containerd");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let (at, socket) = (dir.display(), dir.join("containerd.sock"));
        let certs = site.dir.path().join("root/etc/containerd/certs.d");
        let config_path = case.config_path.replace("DIR", certs.to_str().unwrap());
        let text = format!(
            "version = 3\nroot = '{at}/root'\nstate = '{at}/state'\n\
             disabled_plugins = ['io.containerd.nri.v1.nri']\n\
             [grpc]\naddress = '{at}/containerd.sock'\n[ttrpc]\naddress = '{at}/containerd.sock.ttrpc'\n\
             [plugins.'io.containerd.cri.v1.images']\nuse_local_image_pull = {}\n\
             [plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '{config_path}'\n\
             [plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = true\n\
             enable_unprivileged_ports = false\nenable_unprivileged_icmp = false\n\
             [plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = '{at}/cni'\n",
            case.local_pull
        );
        let config = site.dir.path().join("root/etc/containerd/config.toml");
        fs::write(&config, text).unwrap();
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut command = site.in_node(programs.join("containerd"));
        command.arg("--config").arg(config).stdout(log.try_clone().unwrap()).stderr(log);
        let started = Containerd { child: command.spawn().unwrap(), socket };
        wait_until("ready: containerd", || {
            UnixStream::connect(&started.socket).is_ok()
                && run(&mut started.crictl(site, programs, &["images"])).is_ok()
        });
        started
    }

    fn crictl(&self, site: &Site, programs: &Path, verb: &[&str]) -> Command {
        let unix = format!("unix://{}", self.socket.display());
        let mut command = site.in_node(programs.join("crictl"));
        command.args(["--runtime-endpoint", &unix, "--image-endpoint", &unix]).args(verb);
        command
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The verdict of `weir image doctor` about a pull by crictl.
fn verdict(site: &Site, programs: &Path, containerd: &Containerd) -> Check {
    let mut command = site.in_node(binary());
    command.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
    command.arg("--socket").arg(site.dir.path().join("weir.sock"));
    command.args(["--json", "image", "doctor", "--docker", "/run/weir-no-such.sock", "--containerd"]);
    command.arg(&containerd.socket).arg("--root").arg(site.dir.path().join("root"));
    let out = command.output().unwrap();
    let doctor: Doctor = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)));
    let of_crictl = doctor.checks.into_iter().find(|check| check.found.contains("crictl"));
    of_crictl.expect("doctor pulls by crictl")
}

#[test]
fn doctor_tells_whether_containerd_2_asks_the_cache() {
    let Some(programs) = env::var_os(PROGRAMS).map(PathBuf::from) else {
        println!(
            "SKIPPED: {PROGRAMS} names no directory with containerd 2 (`make test-containerd` builds one)"
        );
        return;
    };
    let Some(site) = Site::build("") else { return };
    let root = site.dir.path().join("root");
    fs::create_dir_all(root.join("etc/containerd")).unwrap();
    image_verb("setup", &root);
    for (n, case) in CASES.iter().enumerate() {
        let containerd = Containerd::start(&site, &programs, case);
        let name = format!("acme/app:{n}");
        site.push(&site.public, &name, 1 << 20);
        // The namespace reaches no registry but by the cache.
        let pulled = run(&mut containerd.crictl(&site, &programs, &["pull", &format!("docker.io/{name}")]));
        let asked = site.kept(&format!("docker.io/{name}")).is_some();
        let check = verdict(&site, &programs, &containerd);
        println!("{}: the cache is asked: {asked}; doctor: {:?}, {}", case.what, check.verdict, check.found);
        assert_eq!(pulled.is_ok(), asked, "{}: {pulled:?}", case.what);
        assert!(case.asks.is_none_or(|asks| asks == asked), "{}: {pulled:?}", case.what);
        assert_eq!(
            check.verdict,
            if asked { Verdict::Ok } else { Verdict::Fail },
            "{}: {check:?}",
            case.what
        );
        assert!(!asked || check.found.contains(LISTEN), "{check:?}");
        // The way out is what makes the first case ask the cache.
        let way_out = check.advice.unwrap_or_default();
        assert!(asked || way_out.contains("config_path = \"/etc/containerd/certs.d\""), "{way_out}");
    }
}
