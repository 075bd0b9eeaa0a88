//! The image cache with real clients: Docker, containerd, skopeo; a real registry behind a slow
//! link; processes that are killed, a disk that is full.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use weir_api::Client;
use weir_netns_tests::{Need, binary, can_run};
use weir_testkit::{Dockerd, IMAGE, Netns};

/// How long a program may take to be ready, on a machine that others use too.
const READY: Duration = Duration::from_secs(30);

/// A node with an image cache, and a registry at the other end of a link.
struct Site {
    cache: Option<Child>,
    registry: Child,
    client: Client,
    dir: TempDir,
    // Last: processes are in them.
    node: Netns,
    far: Netns,
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in self.cache.iter_mut().chain([&mut self.registry]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn inside(netns: &Netns, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns.path().display())).arg("--").arg(program);
    command.stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    if done.status.success() { Ok(said) } else { Err(format!("{command:?}: {said}")) }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < READY, "not {what} within {READY:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

impl Site {
    /// None, with the reason printed, if it cannot be built here.
    fn build(budget: &str) -> Option<Site> {
        for program in ["docker-registry", "skopeo", "nsenter"] {
            if !can_run(&[Need::Rights, Need::Program(program)]) {
                return None;
            }
        }
        let (node, far) = (Netns::new("node").unwrap(), Netns::new("far").unwrap());
        let peer = far.name().to_owned();
        node.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", &peer]).unwrap();
        for (netns, address) in [(&node, "10.9.0.1/24"), (&far, "10.9.0.2/24")] {
            netns.ip(&["addr", "add", address, "dev", "up0"]).unwrap();
            netns.ip(&["link", "set", "up0", "up"]).unwrap();
        }
        let dir = tempfile::Builder::new().prefix("weir-images-").tempdir().unwrap();
        let registry = {
            let config = dir.path().join("registry.yml");
            let root = dir.path().join("registry");
            let text = format!(
                "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: 10.9.0.2:5000}}\n",
                root.display()
            );
            fs::write(&config, text).unwrap();
            let log = File::create(dir.path().join("registry.log")).unwrap();
            let mut command = inside(&far, "docker-registry");
            command.arg("serve").arg(&config).env("OTEL_TRACES_EXPORTER", "none");
            command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
        };
        let text = format!(
            "[images]\nbudget = \"{budget}\"\nkeep_free = \"0\"\ndirectory = \"{0}/store/images\"\n\
             [[images.upstream]]\nregistry = \"docker.io\"\nurl = \"http://10.9.0.2:5000\"\n\
             [[images.upstream]]\nregistry = \"ghcr.io\"\nurl = \"http://10.9.0.2:5000\"\n",
            dir.path().display()
        );
        fs::write(dir.path().join("weir.toml"), text).unwrap();
        fs::create_dir(dir.path().join("store")).unwrap();
        let client = Client::new(dir.path().join("weir.sock"));
        let mut site = Site { cache: None, registry, client, dir, node, far };
        wait_until("answering: the registry", || {
            site.in_node("skopeo")
                .args(["list-tags", "--tls-verify=false", "docker://10.9.0.2:5000/none"])
                .output()
                .is_ok_and(|o| {
                    String::from_utf8_lossy(&o.stderr).contains("name unknown")
                        || String::from_utf8_lossy(&o.stderr).contains("not known")
                })
        });
        site.start();
        Some(site)
    }

    fn in_node(&self, program: &str) -> Command {
        inside(&self.node, program)
    }

    fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.dir.path().join("weir.log")).unwrap();
        let mut command = inside(&self.node, binary().to_str().unwrap());
        command.args(["--socket".as_ref(), self.dir.path().join("weir.sock").as_os_str()]);
        command.args(["image", "serve", "--config"]).arg(self.dir.path().join("weir.toml"));
        self.cache = Some(
            command.env("WEIR_LOG", "debug").stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap(),
        );
        wait_until("serving: the cache", || self.client.image_usage().is_ok());
    }

    /// SIGKILL.
    fn kill(&mut self) {
        if let Some(mut child) = self.cache.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn log(&self, name: &str) -> String {
        let mut text = String::new();
        File::open(self.dir.path().join(name)).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// GETs that the registry has answered, of paths with this in them.
    fn asked(&self, part: &str) -> Vec<String> {
        let log = self.log("registry.log");
        let gets = log.lines().filter(|line| line.contains("\"GET /v2/") && line.contains(part));
        let path = |line: &str| {
            line.split("\"GET ").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned)
        };
        gets.filter_map(path).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        self.client.image_usage().unwrap().counters[name]
    }

    /// Makes an image with one layer of noise, and puts it into the registry.
    fn push(&self, name: &str, bytes: usize) -> PathBuf {
        let layout = self.dir.path().join("made").join(name.replace('/', "_"));
        image(&layout, bytes);
        let to = format!("docker://10.9.0.2:5000/{name}");
        let from = format!("oci:{}:1", layout.display());
        run(self.in_node("skopeo").args(["copy", "--dest-tls-verify=false", &from, &to])).unwrap();
        layout
    }

    /// Pulls with skopeo from the cache, by the prefix form.
    fn pull(&self, name: &str, n: usize) -> Command {
        let to = self.dir.path().join(format!("pulled-{n}"));
        let _ = fs::remove_dir_all(&to);
        let mut command = self.in_node("skopeo");
        command.args(["copy", "--src-tls-verify=false"]);
        command.arg(format!("docker://127.0.0.1:5050/{name}")).arg(format!("dir:{}", to.display()));
        command
    }

    /// Throttles what comes from the registry.
    fn slow(&self, rate: &str) {
        let tc = [
            "qdisc", "replace", "dev", "up0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms",
        ];
        run(inside(&self.far, "tc").args(tc)).unwrap();
    }
}

/// An OCI layout with one image: a layer of noise in a tar archive.
fn image(layout: &Path, bytes: usize) {
    let blobs = layout.join("blobs/sha256");
    let tree = layout.join("tree");
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&tree).unwrap();
    let mut noise = vec![0; bytes];
    File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    fs::write(tree.join("noise"), noise).unwrap();
    run(Command::new("tar").arg("-cf").arg(layout.join("layer")).arg("-C").arg(&tree).arg("noise")).unwrap();
    let add = |from: &Path| {
        let sum = run(Command::new("sha256sum").arg(from)).unwrap();
        let hex = sum.split(' ').next().unwrap().to_owned();
        let size = fs::metadata(from).unwrap().len();
        fs::rename(from, blobs.join(&hex)).unwrap();
        (format!("sha256:{hex}"), size)
    };
    let (layer, layer_size) = add(&layout.join("layer"));
    let text = layout.join("text");
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [layer] },
    });
    fs::write(&text, config.to_string()).unwrap();
    let (config, config_size) = add(&text);
    let kind = |what: &str| format!("application/vnd.oci.image.{what}");
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": kind("manifest.v1+json"),
        "config": { "mediaType": kind("config.v1+json"), "digest": config, "size": config_size },
        "layers": [{ "mediaType": kind("layer.v1.tar"), "digest": layer, "size": layer_size }],
    });
    fs::write(&text, manifest.to_string()).unwrap();
    let (manifest, manifest_size) = add(&text);
    let index = serde_json::json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": kind("manifest.v1+json"), "digest": manifest, "size": manifest_size,
            "annotations": { "org.opencontainers.image.ref.name": "1" },
        }],
    });
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    fs::remove_dir_all(tree).unwrap();
}

fn twice(of: &[String]) -> Vec<&String> {
    of.iter().enumerate().filter(|(n, path)| of[..*n].contains(path)).map(|(_, path)| path).collect()
}

#[test]
fn docker_containerd_and_skopeo_pull_through_it_unmodified_and_each_blob_comes_once() {
    let Some(site) = Site::build("1GiB") else { return };
    let docker = match Dockerd::start_mirrored(site.node.name(), "http://127.0.0.1:5050") {
        Ok(docker) => docker,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let docker = |args: &[&str]| docker_of(&docker, args);
    // dockerd does not push by http to other machines: skopeo does, from what dockerd exports.
    let saved = site.dir.path().join("saved.tar");
    docker(&["save", "-o", saved.to_str().unwrap(), IMAGE]).unwrap();
    for name in ["library/app:1", "acme/app:1"] {
        let from = format!("docker-archive:{}", saved.display());
        let to = format!("docker://10.9.0.2:5000/{name}");
        run(site.in_node("skopeo").args(["copy", "--dest-tls-verify=false", &from, &to])).unwrap();
    }
    let before = site.asked("/blobs/").len();
    // Docker Hub's image, by the mirror.
    docker(&["pull", "app:1"]).unwrap();
    docker(&["run", "--rm", "--network", "none", "app:1", "busybox", "true"]).unwrap();
    let first = site.asked("/blobs/").split_off(before);
    assert!(first.len() >= 2 && twice(&first).is_empty(), "{first:?}");
    // Another registry's, by the name of the mirror: its layers are here.
    docker(&["rmi", "app:1"]).unwrap();
    docker(&["pull", "127.0.0.1:5050/ghcr.io/acme/app:1"]).unwrap();
    // And Docker Hub's again, without a byte from the registry.
    docker(&["rmi", "127.0.0.1:5050/ghcr.io/acme/app:1"]).unwrap();
    let fetched = site.counter("upstream_bytes");
    docker(&["pull", "app:1"]).unwrap();
    assert_eq!(site.counter("upstream_bytes"), fetched);
    run(&mut site.pull("ghcr.io/acme/app:1", 0)).unwrap();
    assert_eq!(twice(&site.asked("/blobs/").split_off(before)), Vec::<&String>::new());
    assert!(site.counter("blob_hits") > 0);
    let images = site.client.images().unwrap().images;
    assert!(
        images.iter().any(|i| i.image == "docker.io/library/app:1" && i.present == i.total),
        "{images:?}"
    );
}

fn docker_of(docker: &Dockerd, args: &[&str]) -> Result<String, String> {
    docker.docker(args).map_err(|e| e.to_string())
}

#[test]
fn containerd_pulls_through_its_hosts_file() {
    let Some(site) = Site::build("1GiB") else { return };
    if !can_run(&[Need::Program("ctr")]) {
        return;
    }
    let docker = match Dockerd::start(site.node.name()) {
        Ok(docker) => docker,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    site.push("acme/app:1", 3 << 20);
    // As `weir image setup` writes it.
    let root = site.dir.path().join("root");
    let mut setup = Command::new(binary());
    setup.args(["image", "setup", "--only", "containerd", "--listen", "127.0.0.1:5050", "--root"]).arg(&root);
    run(&mut setup).unwrap();
    for registry in ["docker.io", "ghcr.io"] {
        let mut ctr = site.in_node("ctr");
        ctr.arg("--address").arg(docker.containerd_socket()).args(["images", "pull", "--hosts-dir"]);
        run(ctr.arg(root.join("etc/containerd/certs.d")).arg(format!("{registry}/acme/app:1"))).unwrap();
    }
    let blobs = site.asked("/blobs/");
    assert!(blobs.len() >= 2 && twice(&blobs).is_empty(), "{blobs:?}");
}

#[test]
fn twenty_clients_at_once_cost_one_download() {
    let Some(site) = Site::build("1GiB") else { return };
    site.push("acme/app:1", 4 << 20);
    site.slow("100mbit");
    let pulls: Vec<Child> = (0..20)
        .map(|n| site.pull("docker.io/acme/app:1", n).stdout(Stdio::null()).spawn().unwrap())
        .collect();
    for mut pull in pulls {
        assert!(pull.wait().unwrap().success(), "{}", site.log("weir.log"));
    }
    let (blobs, manifests) = (site.asked("/blobs/"), site.asked("/manifests/"));
    assert_eq!((blobs.len(), manifests.len()), (2, 1), "{blobs:?} {manifests:?}");
}

#[test]
fn a_cache_that_is_killed_in_the_middle_goes_on_where_it_was() {
    let Some(mut site) = Site::build("1GiB") else { return };
    site.push("acme/app:1", 24 << 20);
    site.slow("40mbit");
    let part = || fs::read_dir(site.dir.path().join("store/images/part")).unwrap().flatten();
    let size = || {
        part()
            .flat_map(|d| fs::read_dir(d.path()).unwrap().flatten())
            .map(|f| f.metadata().map_or(0, |m| m.len()))
            .max()
    };
    let mut pull =
        site.pull("docker.io/acme/app:1", 0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("at a third", || size().is_some_and(|size| size > 8 << 20));
    site.kill();
    let _ = pull.kill();
    let _ = pull.wait();
    site.start();
    run(&mut site.pull("docker.io/acme/app:1", 1)).unwrap();
    assert!(site.counter("downloads_resumed") >= 1);
    let fetched = site.counter("upstream_bytes");
    assert!(fetched < 17 << 20, "{fetched} bytes after the kill");
    assert_eq!(fs::read_dir(site.dir.path().join("store/images/part")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(site.dir.path().join("store/images/trash")).unwrap().count(), 0);
}

#[test]
fn a_full_disk_refuses_new_blobs_and_serves_those_it_has() {
    let Some(mut site) = Site::build("1GiB") else { return };
    site.kill();
    let store = site.dir.path().join("store");
    fs::remove_dir_all(store.join("images")).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs"]).arg(&store)).unwrap();
    site.start();
    site.push("acme/small:1", 6 << 20);
    site.push("acme/large:1", 12 << 20);
    let pulled = run(&mut site.pull("docker.io/acme/small:1", 0));
    // Somebody else fills what is left.
    fs::write(store.join("other"), vec![1; 6 << 20]).unwrap();
    let begun = Instant::now();
    let refused = run(&mut site.pull("docker.io/acme/large:1", 1));
    let took = begun.elapsed();
    let again = run(&mut site.pull("docker.io/acme/small:1", 2));
    let usage = site.client.image_usage().unwrap();
    site.kill();
    run(Command::new("umount").arg(&store)).unwrap();
    pulled.unwrap();
    assert!(refused.is_err() && took < READY, "{took:?}");
    again.unwrap();
    assert!(usage.counters["no_room"] >= 1 && usage.reserved.0 == 0, "{usage:?}");
}
