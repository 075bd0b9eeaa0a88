//! The kit itself, on a real daemon.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use weir_testkit::{Dockerd, Netns, Unavailable};

/// A daemon in a namespace of its own, or a line with the reason why it cannot run.
fn daemon() -> Option<(Dockerd, Netns)> {
    let started = Netns::new("kit").and_then(|netns| Ok((Dockerd::start(netns.name())?, netns)));
    started.map_err(|why| println!("skipped: {why}")).ok()
}

/// Everything on this machine that names the daemon's directory.
fn traces(dir: &Path) -> Vec<String> {
    let name = dir.file_name().expect("has a name").to_string_lossy().into_owned();
    let mut found = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("can read mounts");
    found.extend(mounts.lines().filter(|line| line.contains(&name)).map(str::to_owned));
    for process in fs::read_dir("/proc").expect("can read /proc").flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        found.extend(line.contains(&name).then_some(line));
    }
    let find = Command::new("find").args(["/sys/fs/cgroup", "/tmp", "-name", &name]).output();
    let find = String::from_utf8_lossy(&find.expect("can run find").stdout).into_owned();
    found.extend(find.lines().map(str::to_owned));
    found
}

/// Sockets of the shims of the containerd in `dir`; they lie elsewhere.
fn shim_sockets(dir: &Path) -> Vec<PathBuf> {
    let tasks = dir.join("containerd-state/io.containerd.runtime.v2.task/moby");
    let tasks = fs::read_dir(tasks).expect("can read containerd's tasks").flatten();
    let addresses = tasks.map(|task| fs::read_to_string(task.path().join("address")).expect("is text"));
    addresses.map(|address| PathBuf::from(address.trim().trim_start_matches("unix://"))).collect()
}

#[test]
fn containers_run_send_survive_their_daemon_and_leave_nothing_behind() {
    let Some((mut docker, _netns)) = daemon() else { return };
    let dir = docker.socket().parent().expect("has a parent").to_owned();

    let id = docker.run("web", &[("weir.weight", "2")], &[], &["sleep", "600"]).expect("web runs");
    assert_eq!(id.len(), 64, "{id}");
    docker.run("hosted", &[], &["--network", "host"], &["sleep", "600"]).expect("hosted runs");
    let label = docker.docker(&["inspect", "--format", "{{index .Config.Labels \"weir.weight\"}}", "web"]);
    assert_eq!(label.expect("can inspect"), "2");
    docker.exec("web", &["ping", "-c", "1", "-W", "2", "172.17.0.1"]).expect("the bridge answers");
    let iperf = docker.exec("web", &["iperf3", "--version"]).expect("iperf3 has its libraries");
    assert!(iperf.starts_with("iperf 3"), "{iperf}");

    let pid = |docker: &Dockerd| docker.docker(&["inspect", "--format", "{{.State.Pid}}", "web"]);
    let first = pid(&docker).expect("can inspect");
    docker.kill_daemon();
    assert!(pid(&docker).is_err(), "a dead daemon answers");
    docker.restart_daemon().expect("starts again");
    assert_eq!(pid(&docker).expect("can inspect"), first, "the container was restarted");

    docker.stop("web").expect("stops");
    docker.docker(&["start", "web"]).expect("starts");
    docker.kill("web").expect("dies");
    docker.rm("web").expect("goes");
    assert!(docker.docker(&["inspect", "web"]).is_err());

    let sockets = shim_sockets(&dir);
    assert!(sockets.len() == 1 && sockets.iter().all(|socket| socket.exists()), "{sockets:?}");
    assert!(traces(&dir).len() > 3, "the search for traces finds none of a running daemon");
    drop(docker);
    assert_eq!(traces(&dir), Vec::<String>::new());
    assert!(!sockets.iter().any(|socket| socket.exists()), "{sockets:?}");
}

#[test]
fn a_namespace_that_is_not_there_or_is_the_machines_own_is_refused() {
    let netns = match Netns::new("refuse") {
        Ok(netns) => netns,
        Err(why) => return println!("skipped: {why}"),
    };
    match Dockerd::start("no-such-namespace") {
        Err(Unavailable::NoNetns { path, .. }) => assert!(path.ends_with("no-such-namespace")),
        Err(why @ Unavailable::NoProgram { .. }) => return println!("skipped: {why}"),
        other => panic!("{other:?}"),
    }
    let own = format!("{}-own", netns.name());
    let ip = |args: &[&str]| assert!(Command::new("ip").args(args).status().expect("ip runs").success());
    ip(&["netns", "attach", &own, &std::process::id().to_string()]);
    let started = Dockerd::start(&own);
    ip(&["netns", "del", &own]);
    assert!(matches!(&started, Err(Unavailable::HostNetns { name }) if *name == own), "{started:?}");
}

#[test]
fn what_runs_in_a_namespace_sees_its_interfaces_and_the_machines_cgroups() {
    let netns = match Netns::new("inside") {
        Ok(netns) => netns,
        Err(why) => return println!("skipped: {why}"),
    };
    netns.ip(&["link", "add", "seen", "type", "veth", "peer", "name", "other"]).expect("can add a pair");
    let links = netns.run_in(|| Command::new("ip").args(["-br", "link"]).output()).expect("can enter");
    let links = String::from_utf8(links.expect("can run ip").stdout).expect("is text");
    assert!(links.contains("seen"), "{links}");
    let cgroups = |_| fs::read_dir("/sys/fs/cgroup").expect("is there").count();
    assert_eq!(netns.run_in(|| cgroups(())).expect("can enter"), cgroups(()));
    let file = netns.path();
    drop(netns);
    assert!(!file.exists());
}
