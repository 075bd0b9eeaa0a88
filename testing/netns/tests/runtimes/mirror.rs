//! `weir image setup` beside a real Podman: its pulls reach the cache, and the registry itself after `undo`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use weir_netns_tests::binary;

use super::{
    have,
    site::{LISTEN, Site, run},
};

/// A registry that Podman reaches without the cache too, as an operator names it.
const OPERATOR: &str = "unqualified-search-registries = [\"docker.io\"]\n\n# The registry of the site.\n\
                        [[registry]]\nlocation = \"10.9.0.2:5000\"\ninsecure = true # no TLS\n";

/// Podman on the node of a site, with stores and files of its own.
struct Podman<'a> {
    site: &'a Site,
    dir: PathBuf,
}

impl Podman<'_> {
    fn new(site: &Site) -> Podman<'_> {
        let dir = site.dir.path().join("podman");
        fs::create_dir_all(dir.join("etc/containers")).unwrap();
        let put = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
        put("etc/containers/registries.conf", OPERATOR);
        put("etc/containers/policy.json", "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}");
        let at = dir.display();
        put(
            "storage.conf",
            &format!("[storage]\ndriver = \"vfs\"\ngraphroot = \"{at}/root\"\nrunroot = \"{at}/run\"\n"),
        );
        put(
            "containers.conf",
            "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n",
        );
        Podman { site, dir }
    }

    /// A program on the node, for which the files of this Podman are those in /etc/containers.
    fn beside(&self, program: &Path) -> Command {
        let etc = self.dir.join("etc/containers");
        let mount = format!("mount --bind {} /etc/containers && exec \"$0\" \"$@\"", etc.display());
        let mut command = self.site.in_node("unshare");
        command.args(["--mount", "sh", "-c", &mount]).arg(program).env("HOME", &self.dir);
        command.env("CONTAINERS_STORAGE_CONF", self.dir.join("storage.conf"));
        command.env("CONTAINERS_CONF", self.dir.join("containers.conf"));
        command
    }

    fn podman(&self, arguments: &[&str]) -> Result<String, String> {
        run(self.beside(Path::new("podman")).args(arguments))
    }

    /// Pulls an image that is not there.
    #[track_caller]
    fn pull(&self, image: &str) {
        self.podman(&["pull", "--quiet", image]).unwrap();
        self.podman(&["rmi", image]).unwrap();
    }

    fn weir(&self, arguments: &[&str]) -> String {
        let mut weir = self.beside(&binary());
        weir.arg("--socket").arg(self.site.dir.path().join("weir.sock"));
        run(weir.arg("image").args(arguments).arg("--root").arg(&self.dir)).unwrap()
    }

    /// The files that Podman reads.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut found, mut dirs) = (BTreeMap::new(), vec![self.dir.join("etc")]);
        while let Some(dir) = dirs.pop() {
            for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                let bytes = if path.is_dir() { Vec::new() } else { fs::read(&path).unwrap() };
                dirs.extend(path.is_dir().then(|| path.clone()));
                found.insert(path, bytes);
            }
        }
        found
    }
}

/// Podman asks the cache for Docker Hub by weir's own file, and for a registry with a port by the operator's file. It
/// goes on to the registry when the cache is dead, and after `undo`.
#[test]
fn podman_pulls_through_the_cache_by_setup_and_directly_after_undo() {
    let upstream = "[[images.upstream]]\nregistry = \"10.9.0.2:5000\"\nurl = \"http://10.9.0.2:5000\"\n";
    if !have(&["podman", "skopeo"]) {
        return;
    }
    let Some(mut site) = Site::build(upstream) else { return };
    site.push(&site.public, "acme/app:1", 2 << 20);
    site.push(&site.public, "acme/other:1", 1 << 20);
    let podman = Podman::new(&site);
    let before = podman.files();
    let config = site.dir.path().join("weir.toml");
    let config = config.to_str().unwrap();
    let said = podman.weir(&["setup", "--only", "podman", "--config", config]);
    assert!(said.contains("50-weir.conf names") && !said.contains("usual ones"), "{said}");

    // The operator's entry has the mirror, and weir's file the other registries.
    for image in ["docker.io/acme/app:1", "10.9.0.2:5000/acme/app:1", "docker.io/acme/app:1"] {
        podman.pull(image);
    }
    let blobs = site.public.gets("/blobs/");
    println!("{} blobs from the registry for three pulls, {} hits", blobs.len(), site.counter("blob_hits"));
    assert_eq!(blobs.len(), 2, "each blob once: {blobs:?}");
    assert!(site.counter("blob_hits") >= 4);
    for image in ["docker.io/acme/app:1", "10.9.0.2:5000/acme/app:1"] {
        let kept = site.kept(image).unwrap();
        assert!(kept.present == kept.total && kept.total.0 > 2 << 20, "{kept:?}");
    }
    let doctor = podman.weir(&["doctor", "--docker", "/none", "--containerd", "/none"]);
    println!("{doctor}");
    assert!(
        doctor.contains(&format!("a pull by podman for docker.io arrives at http://{LISTEN}")),
        "{doctor}"
    );
    let images = podman.podman(&["images", "--quiet"]).unwrap();
    assert_eq!(images.trim(), "", "the image of the doctor is removed");

    // A dead cache is passed by.
    let counted = site.counter("served_bytes");
    let dir = podman.dir.clone();
    site.kill();
    let podman = Podman { site: &site, dir: dir.clone() };
    podman.pull("10.9.0.2:5000/acme/other:1");
    assert_eq!(site.public.gets("/blobs/").len(), 4);
    site.start();
    let podman = Podman { site: &site, dir };
    assert!(counted > 0);
    podman.weir(&["undo"]);
    assert_eq!(podman.files(), before);
    podman.pull("10.9.0.2:5000/acme/app:1");
    assert_eq!(site.public.gets("/blobs/").len(), 6, "the registry itself is asked");
    assert_eq!(site.counter("served_bytes"), 0, "and the cache, which started anew, is not");
}
