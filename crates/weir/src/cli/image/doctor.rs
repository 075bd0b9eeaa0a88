//! `weir image doctor`: checks the path from a runtime to a registry, step by step.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use weir_api::{Check, Doctor, ImagePeer, ImagePop, Verdict};

use super::{
    super::{Session, doctor, progress::Waiting},
    runtimes::{self, Sockets},
    setup::{containerd, registries},
    step::{ask, check},
};

const EXAMPLES: &str = "Examples:
  weir image doctor
  weir image doctor --try nginx:1.27   also ask for the manifest of this image
  weir image doctor --no-pull          ask no runtime to pull

Each runtime pulls a tiny image, weir.invalid/doctor, that only the cache has;
it is removed again. Exits with 1 if a check fails.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DoctorArgs {
    /// Ask for the manifest of this image, all the way
    #[arg(long = "try", value_name = "IMAGE")]
    image: Option<weir_image::Image>,
    /// Ask no runtime to pull: look at its files only
    #[arg(long)]
    no_pull: bool,
    /// Docker's socket
    #[arg(long, value_name = "SOCKET", default_value = weir_discovery::docker::SOCKET)]
    docker: PathBuf,
    /// containerd's socket
    #[arg(long, value_name = "SOCKET", default_value = "/run/containerd/containerd.sock")]
    containerd: PathBuf,
    /// Take this directory for the root of the file system
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

pub(super) fn run(args: &DoctorArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    session.local("image doctor")?;
    let waiting = Waiting::new(session.json, "asking the cache");
    let mut checks = Vec::new();
    match session.client.image_usage() {
        Err(e) => checks.push(check(
            "cache",
            Verdict::Fail,
            e.to_string(),
            Some("put [images] into the configuration and start `weir agent`, or `weir image serve`"),
        )),
        Ok(usage) => {
            let full = format!("{} of {} used in {}", usage.bytes, usage.budget, usage.directory);
            checks.push(check("cache", Verdict::Ok, full, None));
            if usage.free < usage.keep_free {
                let found = format!("{} free, {} are to stay free", usage.free, usage.keep_free);
                checks.push(check(
                    "disk",
                    Verdict::Warn,
                    found,
                    Some("no new blob is kept until there is room"),
                ));
            }
            checks.extend(usage.pop.as_ref().map(site));
            if usage.pop.as_ref().is_some_and(|pop| pop.store == "peer") {
                match session.client.image_peers() {
                    Ok(peers) => checks.extend(peers.iter().map(peer)),
                    Err(e) => checks.push(check("peers", Verdict::Warn, e.to_string(), None)),
                }
            }
            if let Ok(listen) = usage.listen.parse::<SocketAddr>() {
                checks.push(match ask(listen, "/v2/") {
                    Ok(200) => check("mirror", Verdict::Ok, format!("answers on http://{listen}"), None),
                    Ok(status) => {
                        check("mirror", Verdict::Fail, format!("answers {status} on {listen}"), None)
                    }
                    Err(e) => check("mirror", Verdict::Fail, format!("no answer on {listen}: {e}"), None),
                });
                if let Some(image) = &args.image {
                    waiting.step("asking for the manifest");
                    checks.push(way(listen, image));
                }
                checks.extend(clients(&args.root, listen));
                if !args.no_pull {
                    let served = registries::served(&args.root, listen).unwrap_or_default();
                    let sockets = Sockets {
                        docker: &args.docker,
                        containerd: &args.containerd,
                        rancher: Path::new("/run/k3s/containerd/containerd.sock"),
                        crio: Path::new("/run/crio/crio.sock"),
                    };
                    checks.extend(runtimes::checks(&sockets, listen, &served, &waiting));
                }
            }
        }
    }
    drop(waiting);
    let doctor = Doctor { checks };
    session.print(&doctor, |out, look| doctor::write(out, look, &doctor))?;
    let failed = doctor.checks.iter().any(|check| check.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Checks that the nodes of the site find each other.
fn site(pop: &ImagePop) -> Check {
    let name = format!("{} ({}) as {}", pop.name, pop.store, pop.node);
    if let Some(problem) = &pop.problem {
        let advice = "each node downloads by itself meanwhile: is the `redis` of [images.pop] there?";
        return check("site", Verdict::Warn, format!("{name}: {problem}"), Some(advice));
    }
    match pop.nodes.len() {
        0 | 1 => check(
            "site",
            Verdict::Warn,
            format!("{name}: no other node has registered"),
            Some("all nodes need the same name and redis in [images.pop], and a `node` of their own"),
        ),
        _ => check("site", Verdict::Ok, format!("{name}: {}", pop.nodes.join(" ")), None),
    }
}

/// The smallest reported difference of clocks, ms. A proof of membership is valid for a minute.
const CLOCK_MS: u64 = 20_000;

/// Checks that another node gives its blobs to this one.
fn peer(peer: &ImagePeer) -> Check {
    let ImagePeer { node, version, ahead_ms, problem } = peer;
    let clock = ahead_ms.map_or_else(String::new, |ms| format!(", its clock {:+.1} s", ms as f64 / 1e3));
    if let Some(why) = problem {
        let advice = "what it has is fetched from its registry meanwhile; a peer wants the same secret_file, \
                      a clock that is right to half a minute, and an open way to its `listen`";
        return check("peer", Verdict::Warn, format!("{node}: {why}{clock}"), Some(advice));
    }
    let version = version.as_deref().unwrap_or_default();
    let found = format!("{node} takes this node for a peer (weir {version}{clock})");
    if ahead_ms.is_some_and(|ms| ms.unsigned_abs() > CLOCK_MS) {
        let advice = "from a minute on they refuse each other: set the clocks";
        return check("peer", Verdict::Warn, found, Some(advice));
    }
    check("peer", Verdict::Ok, found, None)
}

/// Checks the whole path to an image.
fn way(listen: SocketAddr, image: &weir_image::Image) -> Check {
    let source = &image.source;
    let path = format!("/v2/{}/manifests/{}?ns={}", source.repository, image.reference, source.registry);
    match ask(listen, &path) {
        Ok(200) => check("pull", Verdict::Ok, format!("{image} can be had"), None),
        Ok(status) => check(
            "pull",
            Verdict::Fail,
            format!("{image}: {status}"),
            Some("the agent's log says why its registry does not give it"),
        ),
        Err(e) => check("pull", Verdict::Fail, format!("{image}: {e}"), None),
    }
}

/// Checks the files of the runtimes.
fn clients(root: &Path, listen: SocketAddr) -> Vec<Check> {
    let url = format!("http://{listen}");
    let mentions = |file: &str, what: &str| {
        std::fs::read_to_string(root.join(file)).is_ok_and(|text| text.contains(what))
    };
    let mut checks = Vec::new();
    let mut of_file = |name: &str, file: &str, what: &str| {
        checks.push(if mentions(file, what) {
            check(name, Verdict::Ok, format!("/{file} names {url}"), None)
        } else {
            let found = format!("/{file} does not name {url}");
            check(name, Verdict::Warn, found, Some("`weir image setup` points it here"))
        });
    };
    let is_there = |dir: &str| root.join(dir).is_dir();
    let config = containerd::Config::read(root);
    let hosts = config.as_ref().map_or("etc/containerd/certs.d", |config| config.directory());
    for (name, dir, file) in [
        ("docker", "etc/docker", "etc/docker/daemon.json"),
        ("containerd", "etc/containerd", &*format!("{hosts}/_default/hosts.toml")),
        ("k3s", "etc/rancher/k3s", "etc/rancher/k3s/registries.yaml"),
        ("rke2", "etc/rancher/rke2", "etc/rancher/rke2/registries.yaml"),
    ] {
        if is_there(dir) {
            of_file(name, file, &url);
        }
    }
    for name in ["k3s", "rke2"] {
        let (wanted, read) = (
            format!("etc/rancher/{name}/registries.yaml"),
            format!("var/lib/rancher/{name}/agent/etc/containerd/certs.d/_default/hosts.toml"),
        );
        if mentions(&wanted, &url) && !mentions(&read, &url) {
            let found = format!("it has not read /{wanted} yet: /{read} does not name {url}");
            checks.push(check(
                name,
                Verdict::Warn,
                found,
                Some("it reads the file when it starts: restart it"),
            ));
        }
    }
    if is_there("etc/containers") {
        checks.push(match registries::served(root, listen) {
            Err(why) => check("podman", Verdict::Warn, format!("{why:#}"), None),
            Ok(served) if served.is_empty() => {
                let found = format!("no registry of /etc/containers names {listen}");
                check("podman", Verdict::Warn, found, Some("`weir image setup --only podman` points it here"))
            }
            Ok(served) => {
                let found = format!("/etc/containers names {listen} for {}", served.join(" "));
                check("podman", Verdict::Ok, found, None)
            }
        });
    }
    match config {
        Err(why) => checks.push(check("containerd", Verdict::Warn, format!("{why:#}"), None)),
        Ok(config) if is_there("etc/containerd/certs.d") => {
            if let Some((found, advice)) = config.problem() {
                let advice = format!("{advice}; nerdctl and ctr --hosts-dir look by themselves");
                checks.push(check("containerd", Verdict::Warn, found, Some(&advice)));
            }
        }
        Ok(_) => {}
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that the checks of the files say, a line each.
    fn told(root: &Path) -> String {
        let checks = clients(root, "127.0.0.1:5050".parse().unwrap());
        checks.iter().map(|check| format!("{} {:?} {}\n", check.name, check.verdict, check.found)).collect()
    }

    #[test]
    fn files_of_each_runtime_are_told_good_or_without_the_cache() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let put = |path: &str, text: &str| {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), text).unwrap();
        };
        assert_eq!(told(root), "");
        for file in ["k3s/registries.yaml", "rke2/registries.yaml"] {
            put(&format!("etc/rancher/{file}"), "");
        }
        put("etc/containers/registries.conf", "");
        put("etc/containerd/config.toml", "version = 3\n");
        assert_eq!(told(root).matches("Warn").count(), 4, "{}", told(root));
        put("etc/rancher/k3s/registries.yaml", "http://127.0.0.1:5050");
        assert!(
            told(root).contains("k3s Warn it has not read /etc/rancher/k3s/registries.yaml yet"),
            "{}",
            told(root)
        );
        put("var/lib/rancher/k3s/agent/etc/containerd/certs.d/_default/hosts.toml", "http://127.0.0.1:5050");
        assert!(told(root).contains("k3s Ok") && !told(root).contains("k3s Warn"), "{}", told(root));
        let entry = |listen: &str| {
            let mirror = format!("[[registry.mirror]]\nlocation = \"{listen}/docker.io\"\n");
            format!("[[registry]]\nprefix = \"docker.io\"\nlocation = \"docker.io\"\n{mirror}")
        };
        put("etc/containers/registries.conf.d/50-weir.conf", &entry("127.0.0.1:5050"));
        assert!(
            told(root).contains("podman Ok /etc/containers names 127.0.0.1:5050 for docker.io\n"),
            "{}",
            told(root)
        );
        // A later file replaces the entry.
        put("etc/containers/registries.conf.d/60-own.conf", &entry("127.0.0.1:5051"));
        assert!(told(root).contains("podman Warn no registry of /etc/containers names"), "{}", told(root));
        put("etc/containers/registries.conf.d/70-bad.conf", "[[[");
        assert!(told(root).contains("70-bad.conf: it is not TOML"), "{}", told(root));
        put("etc/containerd/config.toml", "[[[");
        assert!(told(root).contains("containerd Warn cannot read"), "{}", told(root));
    }

    #[test]
    fn a_peer_is_good_unless_it_refuses_or_its_clock_will_have_it_refuse() {
        let told = |ahead_ms: i64, problem: Option<&str>| {
            let (node, version) = ("10.0.0.2:5051".to_owned(), Some("0.1.0".to_owned()));
            peer(&ImagePeer { node, version, ahead_ms: Some(ahead_ms), problem: problem.map(str::to_owned) })
        };
        let good = told(-300, None);
        assert_eq!(good.verdict, Verdict::Ok);
        assert_eq!(good.found, "10.0.0.2:5051 takes this node for a peer (weir 0.1.0, its clock -0.3 s)");
        for bad in [told(21_000, None), told(-21_000, None), told(0, Some("it refuses this node"))] {
            assert!(bad.verdict == Verdict::Warn && bad.advice.is_some(), "{bad:?}");
        }
    }
}
