//! Checks that runtimes ask the cache. Each pulls a tiny image that only the cache has.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use weir_api::{Check, Verdict};
use weir_image::PROBE;

use super::{
    super::progress::Waiting,
    step::{ask, check},
};

/// The longest time for a pull of the image.
const PULL_TIMEOUT: Duration = Duration::from_secs(30);

/// The sockets of this node's runtimes.
#[derive(Debug)]
pub(super) struct Sockets<'a> {
    pub(super) docker: &'a Path,
    pub(super) containerd: &'a Path,
    /// containerd of k3s and RKE2.
    pub(super) rancher: &'a Path,
    pub(super) crio: &'a Path,
}

/// A pull by a runtime.
struct Pull {
    runtime: &'static str,
    /// The program or the socket.
    by: String,
    /// The error of the runtime, if the pull failed.
    result: Result<(), String>,
    advice: &'static str,
}

/// One check for each installed runtime.
///
/// * `served`: the registries for which Podman and CRI-O ask the mirror. None: they are not asked to pull.
/// * `waiting`: tells the runtime that pulls.
pub(super) fn checks(
    sockets: &Sockets<'_>,
    mirror: SocketAddr,
    served: &[String],
    waiting: &Waiting,
) -> Vec<Check> {
    let mut checks = Vec::new();
    let pulls = |by: &str| waiting.step(&format!("{by} pulls a tiny image"));
    if sockets.docker.exists() {
        pulls("docker");
        checks.push(judge(mirror, |tag| docker(sockets.docker, tag)));
    }
    if sockets.containerd.exists() {
        let programs: Vec<&str> = ["crictl", "nerdctl", "ctr"].into_iter().filter(|p| is_here(p)).collect();
        for program in &programs {
            pulls(program);
            checks.push(judge(mirror, |tag| containerd("containerd", program, sockets.containerd, tag)));
        }
        if programs.is_empty() {
            let found = "its pulls cannot be tried: none of crictl, nerdctl and ctr is here";
            checks.push(check("containerd", Verdict::Warn, found, None));
        }
    }
    if let Some(registry) = served.iter().find(|name| *name == "docker.io").or(served.first()) {
        if is_here("podman") {
            pulls("podman");
            checks.push(judge(mirror, |tag| podman(registry, tag)));
        }
        if sockets.crio.exists() {
            pulls("cri-o");
            checks.push(by_crictl("cri-o", |name| {
                judge(mirror, |tag| crictl(name, sockets.crio, registry, tag))
            }));
        }
    }
    if sockets.rancher.exists() {
        pulls("k3s");
        let by = |name: &'static str| judge(mirror, |tag| containerd(name, "crictl", sockets.rancher, tag));
        checks.push(by_crictl("k3s", by));
    }
    checks
}

/// A check that needs crictl.
fn by_crictl(runtime: &'static str, judge: impl FnOnce(&'static str) -> Check) -> Check {
    if is_here("crictl") {
        return judge(runtime);
    }
    check(runtime, Verdict::Warn, "its pulls cannot be tried: there is no crictl here", None)
}

fn is_here(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|d| d.join(program).exists()))
}

/// Makes a runtime pull under a unique tag, and asks the cache whether the request arrived.
fn judge(mirror: SocketAddr, pull: impl FnOnce(&str) -> Pull) -> Check {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let tag = format!("{:x}-{now:x}", std::process::id());
    let Pull { runtime, by, result, advice } = pull(&tag);
    let arrived = ask(mirror, &format!("/v2/{PROBE}/arrived/{tag}")).is_ok_and(|status| status == 200);
    match (arrived, result) {
        (true, Ok(())) => {
            check(runtime, Verdict::Ok, format!("a pull by {by} arrives at http://{mirror}"), None)
        }
        (true, Err(why)) => {
            let found = format!("a pull by {by} arrives at http://{mirror}, and fails: {why}");
            check(runtime, Verdict::Warn, found, None)
        }
        (false, Err(why)) if why.starts_with(UNREACHABLE) => check(runtime, Verdict::Warn, why, None),
        (false, result) => {
            let said = result.err().map_or_else(String::new, |why| format!(": {why}"));
            let found = format!("a pull by {by} goes past the cache to the registry{said}");
            check(runtime, Verdict::Fail, found, Some(advice))
        }
    }
}

const UNREACHABLE: &str = "cannot be reached";

/// Pulls with Docker. Its own store asks mirrors for Docker Hub only, so the image has a Hub name.
fn docker(socket: &Path, tag: &str) -> Pull {
    let by = format!("Docker at {}", socket.display());
    let request = |line: String| -> std::io::Result<(u16, String)> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PULL_TIMEOUT))?;
        stream
            .write_all(format!("{line} HTTP/1.0\r\nhost: docker\r\ncontent-length: 0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let status = answer.get(9..12).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
        Ok((status.ok_or_else(|| std::io::Error::other("the answer is not HTTP"))?, body))
    };
    let result = match request(format!("POST /images/create?fromImage=docker.io/{PROBE}&tag={tag}")) {
        Err(e) => Err(format!("{UNREACHABLE} at {}: {e}", socket.display())),
        Ok((200, body)) => match body.split_once("\"error\":\"") {
            Some((_, why)) => Err(why.split('"').next().unwrap_or(why).to_owned()),
            None => Ok(()),
        },
        Ok((status, body)) => Err(format!("{status} {}", body.trim())),
    };
    if result.is_ok() {
        let _ = request(format!("DELETE /images/docker.io/{PROBE}:{tag}"));
    }
    let advice = "`weir image setup --only docker` names the cache in daemon.json, and `systemctl reload \
                  docker` has Docker read it; Docker asks a mirror for Docker Hub only";
    Pull { runtime: "docker", by, result, advice }
}

/// Pulls with Podman, by the files in /etc/containers.
fn podman(registry: &str, tag: &str) -> Pull {
    let image = format!("{registry}/{PROBE}:{tag}");
    let result = run(Command::new("podman").args(["pull", "--quiet"]).arg(&image));
    if result.is_ok() {
        let _ = run(Command::new("podman").arg("rmi").arg(&image));
    }
    let advice = "another file names the registry: of /etc/containers/registries.conf.d and \
                  ~/.config/containers the last one counts";
    Pull { runtime: "podman", by: format!("podman for {registry}"), result, advice }
}

/// Pulls with CRI-O.
fn crictl(runtime: &'static str, socket: &Path, registry: &str, tag: &str) -> Pull {
    let image = format!("{registry}/{PROBE}:{tag}");
    let unix = format!("unix://{}", socket.display());
    let crictl = |verb: &str| {
        let mut command = Command::new("crictl");
        run(command.args(["--runtime-endpoint", &unix, "--image-endpoint", &unix, verb]).arg(&image))
    };
    let result = crictl("pull");
    if result.is_ok() {
        let _ = crictl("rmi");
    }
    let advice = "`systemctl reload crio` has CRI-O read /etc/containers";
    Pull { runtime, by: format!("crictl at {} for {registry}", socket.display()), result, advice }
}

/// Pulls with crictl, as Kubernetes does, or with nerdctl or ctr, as `setup` configures them.
fn containerd(runtime: &'static str, program: &'static str, socket: &Path, tag: &str) -> Pull {
    let image = format!("docker.io/{PROBE}:{tag}");
    let address = socket.display().to_string();
    let unix = format!("unix://{address}");
    let hosts = ["--hosts-dir", "/etc/containerd/certs.d"];
    let (global, pull, remove) = match program {
        "crictl" => (vec!["--runtime-endpoint", &unix, "--image-endpoint", &unix], vec!["pull"], vec!["rmi"]),
        "nerdctl" => (vec!["--address", &address], vec!["pull", "--quiet"], vec!["rmi"]),
        _ => (vec!["--address", &*address], [&["images", "pull"][..], &hosts].concat(), vec!["images", "rm"]),
    };
    let run = |verb: &[&str]| run(Command::new(program).args(&global).args(verb).arg(&image));
    let result = run(&pull);
    if result.is_ok() {
        let _ = run(&remove);
    }
    let advice = match program {
        "crictl" if runtime == "k3s" => {
            "`weir image setup` writes registries.yaml, and k3s and RKE2 read it when they are restarted"
        }
        "crictl" => {
            "set config_path = \"/etc/containerd/certs.d\" in the registry section of containerd's \
             configuration, one directory instead of a list with colons, which is the default of containerd 2.2 \
             and later, and restart containerd"
        }
        _ => "`weir image setup --only containerd` writes /etc/containerd/certs.d/_default/hosts.toml",
    };
    Pull { runtime, by: format!("{program} at {address}"), result, advice }
}

/// Runs a program with a time limit. The last line of its errors tells the reason of a failure.
fn run(command: &mut Command) -> Result<(), String> {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|e| format!("{UNREACHABLE}: {e}"))?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < PULL_TIMEOUT => thread::sleep(Duration::from_millis(50)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it takes longer than {PULL_TIMEOUT:?}"));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    let _ = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason").to_owned();
    let is_gone = ["connection refused", "context deadline exceeded\" while dialing", "no such file"];
    if is_gone.iter().any(|sign| last.contains(sign)) && last.contains("dial") && last.contains("unix") {
        return Err(format!("{UNREACHABLE}: {last}"));
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, os::unix::net::UnixListener, sync::mpsc};

    use super::*;

    /// A mirror that records the tags it is asked for, with the shortest possible answers.
    fn mirror() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut tags = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 512];
                let length = stream.read(&mut head).unwrap();
                let head = String::from_utf8_lossy(&head[..length]).into_owned();
                let path = head.split(' ').nth(1).unwrap_or_default();
                let tag = path.rsplit('/').next().unwrap_or_default().to_owned();
                let is_known = path.contains("/manifests/") || tags.contains(&tag);
                if path.contains("/manifests/") {
                    tags.push(tag);
                }
                let status = if is_known { "200 OK" } else { "404 Not Found" };
                let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            }
        });
        address
    }

    /// A fake Docker that asks this mirror, if any, and reports its own requests.
    fn dockerd(socket: &Path, mirror: Option<SocketAddr>) -> mpsc::Receiver<String> {
        let listener = UnixListener::bind(socket).unwrap();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 512];
                let length = stream.read(&mut head).unwrap();
                let line = String::from_utf8_lossy(&head[..length]).lines().next().unwrap().to_owned();
                let tag = line.split("tag=").nth(1).and_then(|rest| rest.split(' ').next());
                let body = match (mirror, tag) {
                    (Some(mirror), Some(tag)) => {
                        ask(mirror, &format!("/v2/{PROBE}/manifests/{tag}")).unwrap();
                        "{\"status\":\"Downloaded\"}"
                    }
                    (None, Some(_)) => "{\"error\":\"pull access denied\"}",
                    _ => "[]",
                };
                let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}");
                let _ = tell.send(line);
            }
        });
        told
    }

    #[test]
    fn docker_that_asks_the_cache_is_good_and_its_image_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, mirror) = (dir.path().join("docker.sock"), mirror());
        let told = dockerd(&socket, Some(mirror));
        let none = dir.path().join("none");
        let sockets = Sockets { docker: &socket, containerd: &none, rancher: &none, crio: &none };
        let checks = checks(&sockets, mirror, &[], &Waiting::new(true, ""));
        assert_eq!(checks.len(), 1, "{checks:?}");
        assert_eq!(checks[0].verdict, Verdict::Ok, "{checks:?}");
        assert!(
            told.recv().unwrap().starts_with("POST /images/create?fromImage=docker.io/weir.invalid/doctor")
        );
        assert!(told.recv().unwrap().starts_with("DELETE /images/docker.io/weir.invalid/doctor:"));
    }

    #[test]
    fn docker_that_goes_past_the_cache_fails_with_its_words_and_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, mirror) = (dir.path().join("docker.sock"), mirror());
        let _told = dockerd(&socket, None);
        let none = dir.path().join("none");
        let sockets = Sockets { docker: &socket, containerd: &none, rancher: &none, crio: &none };
        let checks = checks(&sockets, mirror, &[], &Waiting::new(true, ""));
        assert_eq!(checks[0].verdict, Verdict::Fail, "{checks:?}");
        assert!(checks[0].found.ends_with("goes past the cache to the registry: pull access denied"));
        assert!(checks[0].advice.as_ref().unwrap().contains("weir image setup --only docker"));
    }

    #[test]
    fn runtime_that_does_not_answer_is_named_with_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        drop(UnixListener::bind(&socket).unwrap());
        let none = dir.path().join("none");
        let sockets = Sockets { docker: &socket, containerd: &none, rancher: &none, crio: &none };
        let checks = checks(&sockets, mirror(), &[], &Waiting::new(true, ""));
        assert_eq!(checks[0].verdict, Verdict::Warn, "{checks:?}");
        assert!(checks[0].found.starts_with(&format!("cannot be reached at {}", socket.display())));
    }
}
