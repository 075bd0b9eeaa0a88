//! The image cache with real clients, unmodified: Docker, containerd, skopeo; real registries, one
//! of them behind a slow link; processes that are killed, a disk that is full.

#[path = "images/containerd.rs"]
mod containerd;
#[path = "images/site.rs"]
mod site;

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use site::{LISTEN, READY, Site, run, twice, wait_until};
use weir_api::PruneImages;
use weir_netns_tests::{Need, binary, can_run};
use weir_testkit::{Dockerd, IMAGE};
use weir_units::Bytes;

/// `weir image setup` or `undo` below a root.
fn image_verb(verb: &str, root: &Path) {
    let mut command = Command::new(binary());
    command.args(["image", verb, "--root"]).arg(root);
    if verb == "setup" {
        command.args(["--listen", LISTEN]);
    }
    run(&mut command).unwrap();
}

/// All files below a directory, and what is in them.
fn files(root: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let (mut found, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                dirs.push(entry)
            } else {
                found.push((entry.clone(), fs::read(entry).unwrap()))
            }
        }
    }
    found.sort();
    found
}

fn mirrors(docker: &Dockerd) -> String {
    docker.docker(&["info", "--format", "{{.RegistryConfig.Mirrors}}"]).unwrap()
}

#[test]
fn docker_pulls_each_blob_once_after_setup_and_undo_restores() {
    let Some(site) = Site::build("") else { return };
    let Some(mut docker) = site.docker() else { return };
    // dockerd does not push without TLS: skopeo does, what dockerd saves.
    let saved = site.dir.path().join("saved.tar");
    docker.docker(&["save", "-o", saved.to_str().unwrap(), IMAGE]).unwrap();
    let from = format!("docker-archive:{}", saved.display());
    site.public.push(&from, "library/app:1").unwrap();
    site.public.push(&from, "acme/app:1").unwrap();
    site.private.push(&from, "acme/secret:1").unwrap();
    // Docker does not pull images that it has: the base has to go.
    docker.docker(&["rmi", IMAGE]).unwrap();
    let before = files(&docker.root());
    image_verb("setup", &docker.root());
    docker.reload().unwrap();
    wait_until("read: daemon.json", || mirrors(&docker).contains(LISTEN));
    // Docker Hub's image, by the mirror.
    docker.docker(&["pull", "app:1"]).unwrap();
    docker.docker(&["run", "--rm", "--network", "none", "app:1", "true"]).unwrap();
    let first = site.public.gets("/blobs/");
    assert!(first.len() >= 2 && twice(&first).is_empty(), "{first:?}");
    let kept = site.kept("docker.io/library/app:1").unwrap();
    assert!(kept.present == kept.total && kept.total.0 > 0, "{kept:?}");
    docker.docker(&["rmi", "app:1"]).unwrap();
    // Another registry's, by the name of the mirror, and one that wants a login: the layers are here.
    for name in ["ghcr.io/acme/app:1", "registry.example/acme/secret:1"] {
        let name = format!("{LISTEN}/{name}");
        docker.docker(&["pull", &name]).unwrap();
        docker.docker(&["rmi", &name]).unwrap();
    }
    // And Docker Hub's again, without a byte from the registry.
    let fetched = site.counter("upstream_bytes");
    docker.docker(&["pull", "app:1"]).unwrap();
    assert_eq!(site.counter("upstream_bytes"), fetched);
    assert!(site.counter("blob_hits") >= first.len() as u64);
    assert_eq!(site.public.gets("/blobs/"), first);
    assert_eq!(site.private.gets("/blobs/"), Vec::<String>::new());
    image_verb("undo", &docker.root());
    assert_eq!(files(&docker.root()), before);
    docker.restart_daemon().unwrap();
    assert!(!mirrors(&docker).contains(LISTEN));
}

#[test]
fn containerd_pulls_from_several_registries_by_what_setup_wrote() {
    let Some(site) = Site::build("") else { return };
    if !can_run(&[Need::Program("ctr")]) {
        return;
    }
    let Some(docker) = site.docker() else { return };
    site.push(&site.public, "acme/app:1", 3 << 20);
    site.push(&site.private, "acme/secret:1", 2 << 20);
    fs::create_dir_all(docker.root().join("etc/containerd")).unwrap();
    let before = files(&docker.root());
    image_verb("setup", &docker.root());
    let pull = |image: &str| {
        let mut ctr = site.in_node("ctr");
        ctr.arg("--address").arg(docker.containerd_socket()).args(["images", "pull", "--hosts-dir"]);
        ctr.arg(docker.root().join("etc/containerd/certs.d")).arg(image);
        run(&mut ctr)
    };
    // The last is not shared: containerd is told so, and finds its registry nowhere.
    for image in ["docker.io/acme/app:1", "ghcr.io/acme/app:1", "registry.example/acme/secret:1"] {
        pull(image).unwrap();
    }
    site.push(&site.private, "other/secret:1", 1 << 10);
    assert!(pull("registry.example/other/secret:1").is_err());
    for registry in [&site.public, &site.private] {
        let blobs = registry.gets("/blobs/");
        assert!(blobs.len() == 2 && twice(&blobs).is_empty(), "{blobs:?}");
    }
    image_verb("undo", &docker.root());
    assert_eq!(files(&docker.root()), before);
}

#[test]
fn what_containerds_containers_are_made_of_stays() {
    let Some(mut site) = Site::build("containerd = \"/run/weir-no-such/containerd.sock\"") else { return };
    if !can_run(&[Need::Program("ctr")]) {
        return;
    }
    let Some(docker) = site.docker() else { return };
    let ctr = |args: &[&str]| {
        let mut ctr = site.in_node("ctr");
        run(ctr.arg("--address").arg(docker.containerd_socket()).args(args)).unwrap()
    };
    let images = ["docker.io/acme/app:1", "docker.io/acme/other:1"];
    fs::create_dir_all(docker.root().join("etc/containerd")).unwrap();
    image_verb("setup", &docker.root());
    let hosts = docker.root().join("etc/containerd/certs.d");
    for image in images {
        site.push(&site.public, image.trim_start_matches("docker.io/"), 1 << 20);
        ctr(&["images", "pull", "--hosts-dir", hosts.to_str().unwrap(), image]);
    }
    ctr(&["containers", "create", images[0], "one", "/bin/true"]);
    // The cache as it is after some minutes, with a containerd to ask.
    site.kill();
    let config = site.dir.path().join("weir.toml");
    let socket = docker.containerd_socket();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("/run/weir-no-such/containerd.sock", socket.to_str().unwrap())).unwrap();
    let old = SystemTime::now() - Duration::from_secs(600);
    for (file, _) in files(&site.store().join("blobs")) {
        File::options().write(true).open(file).unwrap().set_modified(old).unwrap();
    }
    site.start();
    wait_until("asked: containerd", || site.client.image_usage().unwrap().held.0 > 1 << 20);
    site.client.prune_images(&PruneImages { down_to: Bytes(0) }).unwrap();
    let [used, unused] = images.map(|image| site.kept(image));
    assert!(used.as_ref().is_some_and(|image| image.in_use && image.present == image.total), "{used:?}");
    assert!(unused.as_ref().is_none_or(|image| image.present < Bytes(1 << 20)), "{unused:?}");
}

#[test]
fn skopeo_pulls_by_the_caches_address_and_as_a_mirror() {
    let Some(site) = Site::build("") else { return };
    site.push(&site.public, "acme/app:1", 1 << 20);
    site.push(&site.private, "acme/secret:1", 1 << 20);
    for name in ["ghcr.io/acme/app:1", "registry.example/acme/secret:1"] {
        run(&mut site.pull(name, 0)).unwrap();
    }
    let conf = site.dir.path().join("registries.conf");
    let registry = |name: &str| {
        format!(
            "[[registry]]\nlocation = \"{name}\"\n[[registry.mirror]]\nlocation = \"{LISTEN}/{name}\"\ninsecure = true\n"
        )
    };
    fs::write(&conf, registry("ghcr.io") + &registry("registry.example")).unwrap();
    let fetched = site.counter("upstream_bytes");
    for name in ["ghcr.io/acme/app:1", "registry.example/acme/secret:1"] {
        let conf = format!("--registries-conf={}", conf.display());
        run(&mut site.skopeo(&[&conf], name, 1)).unwrap();
    }
    assert_eq!(site.counter("upstream_bytes"), fetched);
    assert!(site.counter("served_bytes") > 4 << 20);
}

#[test]
fn twenty_clients_at_once_cost_one_download() {
    let Some(site) = Site::build("") else { return };
    site.push(&site.public, "acme/app:1", 4 << 20);
    site.slow("100mbit");
    let pull = |n| site.pull("docker.io/acme/app:1", n).stdout(Stdio::null()).spawn().unwrap();
    let pulls: Vec<Child> = (0..20).map(pull).collect();
    for mut pull in pulls {
        assert!(pull.wait().unwrap().success(), "{}", site.log());
    }
    let (blobs, manifests) = (site.public.gets("/blobs/"), site.public.gets("/manifests/"));
    assert_eq!((blobs.len(), manifests.len()), (2, 1), "{blobs:?} {manifests:?}");
}

#[test]
fn a_cache_that_is_killed_in_the_middle_goes_on_where_it_was() {
    let Some(mut site) = Site::build("") else { return };
    site.push(&site.public, "acme/app:1", 24 << 20);
    site.slow("40mbit");
    let part = || fs::read_dir(site.store().join("part")).unwrap().flatten();
    let sizes = || part().flat_map(|d| fs::read_dir(d.path()).unwrap().flatten()).flat_map(|f| f.metadata());
    let mut pull = site.pull("docker.io/acme/app:1", 0);
    let mut pull = pull.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("at a third", || sizes().any(|meta| meta.len() > 8 << 20));
    site.kill();
    let _ = pull.kill();
    let _ = pull.wait();
    site.start();
    run(&mut site.pull("docker.io/acme/app:1", 1)).unwrap();
    assert!(site.counter("downloads_resumed") >= 1);
    let fetched = site.counter("upstream_bytes");
    assert!(fetched < 17 << 20, "{fetched} bytes after the kill");
    for dir in ["part", "trash"] {
        assert_eq!(fs::read_dir(site.store().join(dir)).unwrap().count(), 0, "{dir}");
    }
}

/// The rate of a container that downloads through the node's link beside a pull, bit/s.
fn beside_a_pull(more: &str) -> Option<f64> {
    let site = Site::build(more)?;
    site.push(&site.public, "acme/app:1", 32 << 20);
    site.slow("20mbit");
    let mut pull = site.pull("docker.io/acme/app:1", 0);
    let mut pull = pull.stdout(Stdio::null()).spawn().unwrap();
    wait_until("pulled: some", || site.counter("served_bytes") > 1 << 20);
    let download = site.download();
    // Both are at their rates.
    std::thread::sleep(Duration::from_secs(1));
    let (before, pulled, begun) = (download.bytes(), site.counter("served_bytes"), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let rate = |bytes: u64| bytes as f64 * 8.0 / begun.elapsed().as_secs_f64();
    let rates = (rate(download.bytes() - before), rate(site.counter("served_bytes") - pulled));
    println!("{more}: the container has {:.1} Mbit/s, the pull {:.1}", rates.0 / 1e6, rates.1 / 1e6);
    assert!(pull.try_wait().unwrap().is_none(), "the pull was over too soon");
    // Bounded, it may have less than its bound: the other fills the queue.
    assert!(rates.1 > 2e5, "the pull stands still");
    let _ = pull.kill();
    let _ = pull.wait();
    Some(rates.0)
}

#[test]
fn bounded_pull_leaves_a_container_its_rate() {
    // 20 Mbit/s, of which 14 are promised: the rest is the pulls'.
    let Some(with) = beside_a_pull("max_rate = \"5mbit\"") else { return };
    let Some(without) = beside_a_pull("") else { return };
    // But for headers, and what a pull that begins sends before it is held back.
    assert!(with > 13e6, "{with} bit/s of 14 Mbit/s");
    assert!(without < with, "{without} bit/s without a bound");
}

#[test]
fn a_full_disk_passes_new_blobs_on_and_serves_those_it_has() {
    let Some(mut site) = Site::build("") else { return };
    site.kill();
    fs::remove_dir_all(site.store()).unwrap();
    let disk = Disk::mount(site.store().parent().unwrap());
    site.start();
    site.push(&site.public, "acme/small:1", 6 << 20);
    site.push(&site.public, "acme/large:1", 12 << 20);
    run(&mut site.pull("docker.io/acme/small:1", 0)).unwrap();
    // Another process fills the rest.
    fs::write(disk.0.join("other"), vec![1; 6 << 20]).unwrap();
    let begun = Instant::now();
    let passed_on = run(&mut site.pull("docker.io/acme/large:1", 1));
    assert!(passed_on.is_ok() && begun.elapsed() < READY, "{:?}: {passed_on:?}", begun.elapsed());
    run(&mut site.pull("docker.io/acme/small:1", 2)).unwrap();
    let usage = site.client.image_usage().unwrap();
    let counted = |name| usage.counters[name];
    assert!(counted("no_room") >= 1 && counted("passed_on") >= 1 && usage.reserved.0 == 0, "{usage:?}");
    // Its store is on the disk.
    site.kill();
}

/// 16 MiB of memory, mounted.
struct Disk(std::path::PathBuf);

impl Disk {
    fn mount(at: &Path) -> Disk {
        let options = ["-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs"];
        run(Command::new("mount").args(options).arg(at)).unwrap();
        Disk(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("-l").arg(&self.0));
    }
}
