//! `weir image doctor`: checks the path from a runtime to a registry, step by step.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use weir_api::{Check, Doctor, ImagePeer, ImagePop, Verdict};

use super::{
    super::{Session, doctor},
    runtimes::{self, Sockets},
    step::{ask, check},
};

const EXAMPLES: &str = "Examples:
  weir image doctor
  weir image doctor --try nginx:1.27      also ask for the manifest of this image
  weir image doctor --no-pull             ask no runtime to pull

Each runtime pulls a tiny image, weir.invalid/doctor, that only the cache has; it is removed again.
Exits with 1 if a check fails.";

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
                    checks.push(way(listen, image));
                }
                checks.extend(clients(&args.root, listen));
                if !args.no_pull {
                    let sockets = Sockets { docker: &args.docker, containerd: &args.containerd };
                    checks.extend(runtimes::checks(&sockets, listen));
                }
            }
        }
    }
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

/// Checks Docker's and containerd's files.
fn clients(root: &Path, listen: SocketAddr) -> Vec<Check> {
    let url = format!("http://{listen}");
    let mentions =
        |file: &str| std::fs::read_to_string(root.join(file)).is_ok_and(|text| text.contains(&url));
    let mut checks = Vec::new();
    for (name, dir, file) in [
        ("docker", "etc/docker", "etc/docker/daemon.json"),
        ("containerd", "etc/containerd", "etc/containerd/certs.d/_default/hosts.toml"),
    ] {
        if !root.join(dir).is_dir() {
            continue;
        }
        checks.push(if mentions(file) {
            check(name, Verdict::Ok, format!("/{file} names {url}"), None)
        } else {
            let found = format!("/{file} does not name {url}");
            check(name, Verdict::Warn, found, Some("`weir image setup` points it here"))
        });
    }
    let config = std::fs::read_to_string(root.join("etc/containerd/config.toml")).unwrap_or_default();
    if root.join("etc/containerd/certs.d").is_dir() {
        checks.extend(registry_section(&config));
    }
    checks
}

/// Judges containerd's `config_path`, by which the pulls of Kubernetes find the cache.
fn registry_section(config: &str) -> Option<Check> {
    let found = match config_paths(config) {
        paths if paths.is_empty() => {
            "its configuration has no config_path, so Kubernetes' pulls do not look into certs.d"
        }
        paths if paths.iter().any(|path| path.contains(':')) && !pulls_locally(config) => {
            "its config_path names several directories, and pulls of containerd 2.1 and later go past the cache then"
        }
        _ => return None,
    };
    let advice = "set config_path = \"/etc/containerd/certs.d\" in its registry section, and restart containerd; \
                  nerdctl and ctr --hosts-dir look by themselves";
    Some(check("containerd", Verdict::Warn, found, Some(advice)))
}

/// The values of a key, without quotes and comments.
fn values<'a>(config: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    config.lines().filter_map(move |line| {
        let (name, value) = line.trim().split_once('=')?;
        (name.trim() == key)
            .then(|| value.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']))
    })
}

/// The values of `config_path` that name a directory, or several with colons between them.
fn config_paths(config: &str) -> Vec<&str> {
    values(config, "config_path").filter(|path| !path.is_empty()).collect()
}

/// Whether containerd 2 pulls without its transfer service, which takes a list for one directory.
fn pulls_locally(config: &str) -> bool {
    values(config, "use_local_image_pull").any(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_path_that_containerd_does_not_read_is_named() {
        let section = "[plugins.\"io.containerd.cri.v1.images\".registry]\n";
        let found = |text: &str| registry_section(&format!("{section}{text}\n")).map(|check| check.found);
        let list = "  config_path = '/etc/containerd/certs.d:/etc/docker/certs.d'";
        assert!(found(list).is_some_and(|text| text.contains("several directories")));
        assert_eq!(found(&format!("use_local_image_pull = true\n{list}")), None);
        assert_eq!(found("  config_path = \"/etc/containerd/certs.d\" # one: no list"), None);
        for none in
            ["", "config_path = ''", "# config_path = \"/etc/containerd/certs.d\"", "root = \"/a:/b\""]
        {
            assert!(found(none).is_some_and(|text| text.contains("no config_path")), "{none}");
        }
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
