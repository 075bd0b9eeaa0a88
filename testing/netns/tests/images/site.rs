//! A node with an image cache, and two registries at the other end of its link.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use weir_api::{Client, Image};
use weir_netns_tests::{Need, binary, can_run, skip};
use weir_testkit::{Dockerd, LOGIN, Netns, Registry, image_of_noise};

/// How long a program may take to be ready, on a machine that others use too.
pub(crate) const READY: Duration = Duration::from_secs(30);
/// Where the cache listens.
pub(crate) const LISTEN: &str = "127.0.0.1:5050";

/// One registry is `docker.io` and `ghcr.io`, for everybody; the other is `registry.example`, which
/// wants [`LOGIN`], and whose `acme/*` the node's configuration shares.
pub(crate) struct Site {
    cache: Option<Child>,
    pub(crate) public: Registry,
    pub(crate) private: Registry,
    pub(crate) client: Client,
    pub(crate) dir: TempDir,
    // Last: processes are in them.
    pub(crate) node: Netns,
    far: Netns,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    if done.status.success() { Ok(said) } else { Err(format!("{command:?}: {said}")) }
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < READY, "not {what} within {READY:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

impl Site {
    /// None, with the reason printed, if it cannot be built here.
    ///
    /// * `more`: of the configuration.
    pub(crate) fn build(more: &str) -> Option<Site> {
        if !can_run(&[Need::Rights, Need::Program("nsenter"), Need::Program("tc")]) {
            return None;
        }
        let (node, far) = (Netns::new("node").unwrap(), Netns::new("far").unwrap());
        let peer = far.name().to_owned();
        node.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", &peer]).unwrap();
        for (netns, address) in [(&node, "10.9.0.1/24"), (&far, "10.9.0.2/24")] {
            netns.ip(&["addr", "add", address, "dev", "up0"]).unwrap();
            netns.ip(&["link", "set", "up0", "up"]).unwrap();
        }
        let registry = |port: u16, is_public| {
            Registry::start(&far, ([10, 9, 0, 2], port).into(), is_public).map_err(skip).ok()
        };
        let (public, private) = (registry(5000, true)?, registry(5001, false)?);
        let dir = tempfile::Builder::new().prefix("weir-images-").tempdir().unwrap();
        let at = dir.path().display();
        fs::write(dir.path().join("password"), format!("{}\n", LOGIN.1)).unwrap();
        let config = format!(
            "[images]\nbudget = \"1GiB\"\nkeep_free = \"0\"\nlisten = \"{LISTEN}\"\n\
             directory = \"{at}/store/images\"\n{more}\n\
             [[images.upstream]]\nregistry = \"docker.io\"\nurl = \"http://{0}\"\n\
             [[images.upstream]]\nregistry = \"ghcr.io\"\nurl = \"http://{0}\"\n\
             [[images.upstream]]\nregistry = \"registry.example\"\nurl = \"http://{1}\"\n\
             username = \"{2}\"\npassword_file = \"{at}/password\"\nshare = [\"acme/*\"]\n",
            public.address(),
            private.address(),
            LOGIN.0,
        );
        fs::write(dir.path().join("weir.toml"), config).unwrap();
        fs::create_dir(dir.path().join("store")).unwrap();
        let client = Client::new(dir.path().join("weir.sock"));
        let mut site = Site { cache: None, public, private, client, dir, node, far };
        site.start();
        Some(site)
    }

    /// A Docker and a containerd on the node; none, with the reason printed, if there can be none.
    pub(crate) fn docker(&self) -> Option<Dockerd> {
        Dockerd::start(self.node.name()).map_err(skip).ok()
    }

    pub(crate) fn in_node(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.node.path().display())).arg("--").arg(program.as_ref());
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut command = self.in_node(binary());
        command.arg("--socket").arg(self.dir.path().join("weir.sock"));
        command.args(["image", "serve", "--config"]).arg(self.dir.path().join("weir.toml"));
        command.env("WEIR_LOG", "debug").stdout(log.try_clone().unwrap()).stderr(log);
        self.cache = Some(command.spawn().unwrap());
        wait_until("serving: the cache", || self.client.image_usage().is_ok());
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.cache.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store/images")
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.client.image_usage().unwrap().counters[name]
    }

    /// The line of `weir image ls` about an image.
    pub(crate) fn kept(&self, name: &str) -> Option<Image> {
        self.client.images().unwrap().images.into_iter().find(|image| image.image == name)
    }

    /// Makes an image with one layer of noise, and puts it into a registry.
    pub(crate) fn push(&self, to: &Registry, name: &str, bytes: u64) {
        // A colon ends the directory's name for skopeo.
        let made = self.dir.path().join("made").join(name.replace(['/', ':'], "_"));
        to.push(&image_of_noise(&made, &[bytes]).unwrap(), name).unwrap();
    }

    /// Pulls with skopeo, by a name that it takes.
    pub(crate) fn skopeo(&self, options: &[&str], name: &str, n: usize) -> Command {
        let to = self.dir.path().join(format!("pulled-{n}"));
        let _ = fs::remove_dir_all(&to);
        let mut command = self.in_node("skopeo");
        command.arg("--insecure-policy").args(options).args(["copy", "--src-tls-verify=false"]);
        command.arg(format!("docker://{name}")).arg(format!("dir:{}", to.display()));
        command
    }

    /// The same, from the cache, whose address is in front of the name.
    pub(crate) fn pull(&self, name: &str, n: usize) -> Command {
        self.skopeo(&[], &format!("{LISTEN}/{name}"), n)
    }

    /// A download through the same link, which goes on until it is dropped.
    pub(crate) fn download(&self) -> Download {
        let listener = self.far.run_in(|| TcpListener::bind(("10.9.0.2", 5002))).unwrap().unwrap();
        thread::spawn(move || {
            let Ok((mut to, _)) = listener.accept() else { return };
            while to.write_all(&[0; 16 << 10]).is_ok() {}
        });
        let connect = || TcpStream::connect(("10.9.0.2", 5002));
        let stream = self.node.run_in(connect).unwrap().unwrap();
        let (mut from, bytes) = (stream.try_clone().unwrap(), Arc::<AtomicU64>::default());
        let counted = Arc::clone(&bytes);
        thread::spawn(move || {
            let mut buffer = [0; 64 << 10];
            while let Ok(got @ 1..) = from.read(&mut buffer) {
                counted.fetch_add(got as u64, Ordering::Relaxed);
            }
        });
        Download { stream, bytes }
    }

    /// Throttles what comes from the registries.
    pub(crate) fn slow(&self, rate: &str) {
        let mut tc = Command::new("nsenter");
        tc.arg(format!("--net={}", self.far.path().display()));
        tc.args(["--", "tc", "qdisc", "replace", "dev", "up0", "root", "tbf"]);
        run(tc.args(["rate", rate, "burst", "64kb", "latency", "50ms"])).unwrap();
    }
}

/// The result of [`Site::download`].
pub(crate) struct Download {
    stream: TcpStream,
    bytes: Arc<AtomicU64>,
}

impl Download {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Those that are there more than once.
pub(crate) fn twice(of: &[String]) -> Vec<&String> {
    of.iter().enumerate().filter(|(n, path)| of[..*n].contains(path)).map(|(_, path)| path).collect()
}
