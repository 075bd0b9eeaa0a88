mod fake;

use std::{io, net::IpAddr, path::Path};

use serde_json::json;
use tokio::{sync::watch::Receiver, time::timeout};

use self::fake::{Fake, Fault, container, sandbox_number, with};
use super::*;
use crate::{FromImage, Location, NetnsRef, NsId, Source};

/// The namespace the agent is said to be in.
const OWN: u64 = 99;
/// A process that has ended when asked for.
const ENDED: u32 = 13;
/// A process in the root cgroup.
const IN_ROOT: u32 = 14;
/// A process that has moved to a cgroup below its container's, as systemd does.
const IN_CHILD: u32 = 15;
/// A process outside of the agent's cgroup namespace.
const OUTSIDE: u32 = 16;

fn node() -> Node {
    let netns = |path: &Path| {
        let own = (path == Path::new("/proc/98/ns/net")).then_some(OWN);
        let ino = own.or(sandbox_number(path)).ok_or_else(|| format!("no {}", path.display()))?;
        Ok(NetnsRef { path: path.into(), id: NsId { dev: 4, ino } })
    };
    let cgroup = |pid| match pid {
        ENDED => Err("no process".into()),
        IN_ROOT => Ok("/".into()),
        IN_CHILD => Ok("/docker/c15/init.scope".into()),
        OUTSIDE => Ok("/../docker-c16.scope".into()),
        _ => Ok(PathBuf::from(format!("/docker/c{pid}"))),
    };
    Node { netns, cgroup, own: Some(NsId { dev: 4, ino: OWN }) }
}

fn options(fake: &Fake) -> Options {
    Options {
        settle: Duration::from_millis(20),
        time_limit: Duration::from_secs(2),
        pause: Duration::from_millis(200),
        ..Options::at(fake.socket())
    }
}

fn start(fake: &Fake) -> (Watcher, Receiver<Snapshot>) {
    let watcher = watch_on(options(fake), node());
    let snapshots = watcher.snapshots();
    (watcher, snapshots)
}

/// The first snapshot that is as `wanted`.
async fn until(snapshots: &mut Receiver<Snapshot>, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let found = timeout(Duration::from_secs(10), snapshots.wait_for(|snapshot| wanted(snapshot))).await;
    let found = found.map(|found| found.expect("the watcher lives").clone());
    found.unwrap_or_else(|_| panic!("never came; the last: {:?}", snapshots.borrow().clone()))
}

fn names(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.containers.iter().map(|found| found.name.as_str()).collect()
}

fn is_well(snapshot: &Snapshot) -> bool {
    snapshot.error.is_none()
}

#[tokio::test]
async fn container_comes_with_name_labels_addresses_and_namespace() {
    let fake = Fake::started();
    let web = with(
        container("c7", "web"),
        "/Config/Labels",
        json!({"weir.weight": "3", "weir.max": "50mbit", "weir.group": "tenant-a", "other": "x"}),
    );
    let networks = json!({
        "lan": {"IPAddress": "10.0.0.2", "GlobalIPv6Address": "fd00::2"},
        "bridge": {"IPAddress": "172.17.0.7", "GlobalIPv6Address": ""},
        "odd": {"IPAddress": "not an address"},
    });
    fake.put(with(web, "/NetworkSettings/Networks", networks));
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    let [web] = &snapshot.containers[..] else { panic!("{snapshot:?}") };
    assert_eq!((web.name.as_str(), web.id.as_str(), web.source), ("web", "c7", Source::Docker));
    assert!(web.labels.keys().all(|key| key.starts_with("weir.")), "{:?}", web.labels);
    assert_eq!(web.policy.weight.map(|weight| weight.get()), Some(3));
    assert_eq!(web.policy.max.map(|max| max.bits_per_sec()), Some(50_000_000));
    assert_eq!(web.group.as_deref(), Some("tenant-a"));
    let addresses: Vec<IpAddr> =
        ["10.0.0.2", "172.17.0.7", "fd00::2"].map(|text| text.parse().expect("is an address")).into();
    assert_eq!(web.addresses, addresses);
    let netns = NetnsRef { path: "/sandbox/7".into(), id: NsId { dev: 4, ino: 7 } };
    assert_eq!(web.location, Location::Netns(netns));
    assert_eq!(snapshot.warnings, []);
}

#[tokio::test]
async fn before_the_first_answer_the_state_is_not_known_rather_than_empty() {
    let fake = Fake::started();
    fake.world().faults.insert("json", Fault::Hang);
    let (_watcher, snapshots) = start(&fake);
    assert_eq!(snapshots.borrow().error, Some(Unavailable::NotYet));
}

#[tokio::test]
async fn changes_come_and_only_what_changed_is_asked_about() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    fake.put(container("c2", "two"));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, |snapshot| names(snapshot) == ["one", "two"]).await;
    assert_eq!((fake.asked("/c1/"), fake.asked("/c2/")), (1, 1));

    fake.put(container("c3", "three"));
    until(&mut snapshots, |snapshot| names(snapshot) == ["one", "two", "three"]).await;
    fake.put(container("c2", "renamed"));
    until(&mut snapshots, |snapshot| names(snapshot) == ["one", "renamed", "three"]).await;
    fake.remove("c3");
    until(&mut snapshots, |snapshot| names(snapshot) == ["one", "renamed"]).await;

    let moved = with(container("c1", "one"), "/NetworkSettings/Networks", json!({}));
    fake.world().containers.insert("c1".into(), moved);
    fake.tell("network", "c1");
    until(&mut snapshots, |snapshot| snapshot.containers[0].addresses.is_empty()).await;
    assert_eq!((fake.asked("/c1/"), fake.asked("/c2/")), (2, 2));
}

#[tokio::test]
async fn a_burst_of_events_is_answered_by_one_list_and_one_snapshot() {
    let fake = Fake::started();
    let watcher = watch_on(Options { settle: Duration::from_secs(2), ..options(&fake) }, node());
    let mut snapshots = watcher.snapshots();
    until(&mut snapshots, is_well).await;
    let before = fake.asked("containers/json");
    for n in 1..=20 {
        fake.put(container(&format!("c{n}"), &format!("n{n}")));
        sleep(Duration::from_millis(5)).await;
    }
    let snapshot = until(&mut snapshots, |snapshot| !snapshot.containers.is_empty()).await;
    assert_eq!(snapshot.containers.len(), 20);
    assert_eq!(fake.asked("containers/json") - before, 1);
}

#[tokio::test]
async fn container_that_is_told_of_late_is_found_by_looks_that_end() {
    let fake = Fake::started();
    let watcher = watch_on(Options { tells_late: true, ..options(&fake) }, node());
    let mut snapshots = watcher.snapshots();
    until(&mut snapshots, is_well).await;
    let before = fake.asked("containers/json");
    watcher.look();
    // Its interface is there before it runs.
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    fake.world().containers.insert("c1".into(), container("c1", "one"));
    until(&mut snapshots, |snapshot| names(snapshot) == ["one"]).await;
    assert!(begun.elapsed() < Duration::from_millis(400), "{:?}", begun.elapsed());
    // Another one may have come with it.
    sleep(Duration::from_millis(50)).await;
    fake.world().containers.insert("c2".into(), container("c2", "two"));
    until(&mut snapshots, |snapshot| names(snapshot) == ["one", "two"]).await;
    assert!(begun.elapsed() < Duration::from_millis(600), "{:?}", begun.elapsed());
    sleep(Duration::from_millis(900)).await;
    assert_eq!(fake.asked("containers/json") - before, LOOKS.len());
}

#[tokio::test]
async fn nobody_is_woken_when_nothing_changes() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, is_well).await;
    let before = fake.asked("containers/json");
    fake.tell("container", "c1");
    fake.tell("container", "c2");
    fake.say("\n{\"Type\":\"image\"}\n");
    while fake.asked("containers/json") == before {
        sleep(Duration::from_millis(5)).await;
    }
    sleep(Duration::from_millis(50)).await;
    assert!(!snapshots.has_changed().expect("the watcher lives"));
}

#[tokio::test]
async fn everything_is_read_anew_now_and_then_in_case_an_event_was_lost() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    let options = Options { refresh: Duration::from_millis(200), ..options(&fake) };
    let watcher = watch_on(options, node());
    let mut snapshots = watcher.snapshots();
    until(&mut snapshots, is_well).await;
    fake.world().containers.insert("c1".into(), container("c1", "silent"));
    until(&mut snapshots, |snapshot| names(snapshot) == ["silent"]).await;
}

#[tokio::test]
async fn a_daemon_that_starts_later_is_found() {
    let mut fake = Fake::stopped();
    let (_watcher, mut snapshots) = start(&fake);
    let want = Unavailable::NoConnection { socket: fake.socket(), kind: io::ErrorKind::NotFound };
    let snapshot = until(&mut snapshots, |snapshot| snapshot.error.as_ref() == Some(&want)).await;
    assert_eq!(snapshot.containers, []);
    fake.start();
    fake.put(container("c1", "one"));
    until(&mut snapshots, |snapshot| is_well(snapshot) && names(snapshot) == ["one"]).await;
}

#[tokio::test]
async fn containers_stay_while_the_daemon_restarts_and_catch_up() {
    let mut fake = Fake::started();
    fake.put(container("c1", "one"));
    fake.put(container("c2", "two"));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, is_well).await;
    fake.stop().await;
    let refused = io::ErrorKind::ConnectionRefused;
    let is_refused = |snapshot: &Snapshot| matches!(&snapshot.error, Some(Unavailable::NoConnection { kind, .. }) if *kind == refused);
    let lost = until(&mut snapshots, is_refused).await;
    assert_eq!(names(&lost), ["one", "two"]);
    fake.remove("c1");
    fake.put(container("c2", "changed"));
    fake.put(container("c3", "three"));
    fake.start();
    let back = until(&mut snapshots, is_well).await;
    assert_eq!(names(&back), ["changed", "three"]);
}

#[tokio::test]
async fn nonsense_is_told_and_outlived() {
    type Told = fn(&Unavailable) -> bool;
    let garbled: Told = |why| matches!(why, Unavailable::Garbled { .. });
    let broken: Told = |why| matches!(why, Unavailable::Broken { .. });
    let late: Told = |why| matches!(why, Unavailable::TimedOut { .. });
    let refused: Told =
        |why| matches!(why, Unavailable::Refused { status: 500, said, .. } if said == "no thanks");
    let cases: [(&'static str, Fault, Told); 12] = [
        ("containers/json", Fault::Body("<html>"), garbled),
        ("containers/json", Fault::Body(""), garbled),
        ("containers/json", Fault::Body("{\"Id\": 1}"), garbled),
        ("containers/json", Fault::Body("[{\"Id\": \"c1\"}, 7]"), garbled),
        ("containers/json", Fault::Raw(b"SSH-2.0-OpenSSH_9.2\r\n"), broken),
        ("containers/json", Fault::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n[{"), broken),
        ("containers/json", Fault::Raw(b""), broken),
        ("containers/json", Fault::Status(500), refused),
        ("containers/json", Fault::Hang, late),
        ("_ping", Fault::Status(500), refused),
        ("_ping", Fault::Hang, late),
        ("events", Fault::Raw(b"\xff\xfe\x00"), broken),
    ];
    let mut fake = Fake::started();
    fake.put(container("c1", "one"));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, is_well).await;
    for (part, fault, told) in cases {
        fake.world().faults.insert(part, fault.clone());
        fake.stop().await;
        fake.start();
        let lost = until(&mut snapshots, |snapshot| snapshot.error.as_ref().is_some_and(told)).await;
        assert_eq!(names(&lost), ["one"], "{fault:?}");
        fake.world().faults.clear();
        until(&mut snapshots, is_well).await;
    }
}

#[tokio::test]
async fn a_stream_of_events_that_turns_into_nonsense_is_opened_again() {
    for nonsense in ["}{\n", "[1]\n", "{\"Type\": 7}\n"] {
        let fake = Fake::started();
        let (_watcher, mut snapshots) = start(&fake);
        until(&mut snapshots, is_well).await;
        fake.say(nonsense);
        until(&mut snapshots, |s| matches!(s.error, Some(Unavailable::Garbled { .. }))).await;
        fake.put(container("c1", "one"));
        until(&mut snapshots, |snapshot| is_well(snapshot) && names(snapshot) == ["one"]).await;
    }
}

#[tokio::test]
async fn an_event_may_come_in_pieces() {
    let fake = Fake::started();
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, is_well).await;
    fake.world().containers.insert("c1".into(), container("c1", "one"));
    fake.say("{\"Type\":\"container\",\"Actor\":");
    sleep(Duration::from_millis(50)).await;
    assert_eq!(snapshots.borrow().containers, []);
    fake.say("{\"ID\":\"c1\"}}\n");
    until(&mut snapshots, |snapshot| names(snapshot) == ["one"]).await;
}

#[tokio::test]
async fn a_slow_daemon_is_waited_for() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    fake.world().faults.insert("containers/json", Fault::Slow(Duration::from_millis(200)));
    let (_watcher, mut snapshots) = start(&fake);
    let first = until(&mut snapshots, |snapshot| snapshot.error != Some(Unavailable::NotYet)).await;
    assert_eq!((first.error.as_ref(), names(&first)), (None, vec!["one"]));
}

#[tokio::test]
async fn container_that_hangs_or_is_garbled_hides_no_other() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, is_well).await;
    for (fault, n) in [Fault::Hang, Fault::Body("{\"Id\": null}"), Fault::Status(500)].into_iter().zip(2..) {
        fake.world().faults.insert("/c1/", fault);
        fake.tell("container", "c1");
        let (id, name) = (format!("c{n}"), format!("n{n}"));
        fake.put(container(&id, &name));
        let snapshot =
            until(&mut snapshots, |s| names(s).contains(&name.as_str()) && !s.warnings.is_empty()).await;
        assert_eq!((names(&snapshot)[0], &snapshot.error), ("one", &None));
        assert!(matches!(&snapshot.warnings[..], [Warning::NoAnswer { id, .. }] if id == "c1"));
    }
    fake.world().faults.clear();
    fake.put(container("c1", "well"));
    let snapshot = until(&mut snapshots, |snapshot| names(snapshot)[0] == "well").await;
    assert_eq!(snapshot.warnings, []);
}

/// The labels of an image are its author's. Docker takes 32 MiB of them, and repeats them in each list and event.
#[tokio::test]
async fn labels_of_any_size_hide_no_other_container() {
    let fake = Fake::started();
    let labels = |mib: usize| {
        let mut labels = json!({"weir.weight": "3", "weir.max": "9".repeat(2_000)});
        (0..mib).for_each(|n| labels[format!("x{n}")] = "y".repeat(1 << 20).into());
        labels
    };
    fake.put(with(container("c1", "large"), "/Config/Labels", labels(2)));
    fake.put(with(container("c2", "huge"), "/Config/Labels", labels(33)));
    let api = Api::connect(fake.socket(), Duration::from_secs(60)).await.unwrap();
    assert_eq!(api.running().await.unwrap(), ["c1", "c2"]);
    let large = api.inspect("c1").await.unwrap().unwrap().config.labels;
    assert!(large.keys().eq(["weir.max", "weir.weight"]), "{large:?}");
    assert!(large["weir.weight"] == "3" && large["weir.max"].len() < 200, "{large:?}");
    let why = api.inspect("c2").await.unwrap_err();
    assert!(why.is_local(), "{why}");
    assert!(why.to_string().ends_with("/containers/c2/json: it is larger than 16 MiB"), "{why}");
    let mut many = json!({"weir.max": "2mbit", "weir.weight": "3"});
    (0..300).for_each(|n| many[format!("weir.{n}")] = "an image's".into());
    fake.put(with(container("c4", "many"), "/Config/Labels", many));
    let many = api.inspect("c4").await.unwrap().unwrap().config.labels;
    assert!(many["weir.max"] == "2mbit" && many["weir.weight"] == "3" && many.len() == 258, "{}", many.len());

    let mut events = api.events(0).await.unwrap();
    let event =
        json!({"Type": "container", "Action": "start", "Actor": {"ID": "c2", "Attributes": labels(6)}});
    fake.say(&format!("{event}\n"));
    fake.tell("container", "c3");
    assert_eq!(events.next().await.unwrap(), "", "all are listed");
    assert_eq!(events.next().await.unwrap(), "c3");
}

#[tokio::test]
async fn container_that_never_answers_is_asked_about_less_and_less() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    fake.put(container("c2", "two"));
    fake.world().faults.insert("/c1/", Fault::Status(500));
    let options = Options { second_try: Duration::from_millis(20), ..options(&fake) };
    let watcher = watch_on(options, node());
    let mut snapshots = watcher.snapshots();
    until(&mut snapshots, |snapshot| names(snapshot) == ["two"]).await;
    // The pauses are 20, 20, 20, 40, 80, 160 and then 240 ms.
    sleep(Duration::from_secs(2)).await;
    let asked = fake.asked("/c1/");
    assert!((4..=14).contains(&asked), "{asked} questions in 2 s");
    fake.world().faults.clear();
    until(&mut snapshots, |snapshot| names(snapshot)[0] == "one" && snapshot.warnings.is_empty()).await;
}

#[tokio::test]
async fn container_that_does_not_answer_is_not_asked_for_others_changes() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    fake.put(container("c2", "two"));
    fake.world().faults.insert("/c1/", Fault::Status(500));
    let options = Options { second_try: Duration::from_secs(60), ..options(&fake) };
    let watcher = watch_on(options, node());
    let mut snapshots = watcher.snapshots();
    until(&mut snapshots, |snapshot| names(snapshot) == ["two"]).await;
    for n in 3..6 {
        fake.put(container(&format!("c{n}"), &format!("n{n}")));
        until(&mut snapshots, |snapshot| snapshot.containers.len() == n - 1).await;
    }
    assert_eq!(fake.asked("/c1/"), 1);
    // A change of its own is.
    fake.world().faults.clear();
    fake.tell("container", "c1");
    until(&mut snapshots, |snapshot| names(snapshot)[0] == "one" && snapshot.warnings.is_empty()).await;
}

#[tokio::test]
async fn a_container_that_ends_between_list_and_question_is_no_error() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    fake.world().faults.insert("/c1/", Fault::Status(404));
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!((snapshot.containers, snapshot.warnings), (vec![], vec![]));
}

#[tokio::test]
async fn a_bad_label_is_a_warning_and_the_container_is_found() {
    let fake = Fake::started();
    fake.put(with(container("c1", "one"), "/Config/Labels", json!({"weir.weight": "many"})));
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!(names(&snapshot), ["one"]);
    assert_eq!(snapshot.containers[0].policy.weight, None);
    let [warning] = &snapshot.warnings[..] else { panic!("{:?}", snapshot.warnings) };
    assert!(
        warning.to_string().starts_with("container one: label weir.weight=many is ignored: "),
        "{warning}"
    );
}

#[tokio::test]
async fn who_uses_the_hosts_network_is_known_by_cgroup() {
    let fake = Fake::started();
    let hosted = |id: &str, name: &str| with(container(id, name), "/HostConfig/NetworkMode", json!("host"));
    fake.put(hosted("c1", "hosted"));
    fake.put(hosted("c13", "ended"));
    fake.put(hosted("c14", "rooted"));
    // Joins one that uses the host's network: its process 98 is in the agent's namespace.
    fake.put(with(container("c98", "joined"), "/HostConfig/NetworkMode", json!("container:c1")));
    // Podman and others may hand over the agent's namespace without calling it the host's.
    fake.put(with(container("c5", "given"), "/NetworkSettings/SandboxKey", json!("/sandbox/99")));
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!(names(&snapshot), ["hosted", "given", "joined"]);
    for (found, pid) in snapshot.containers.iter().zip([1, 5, 98]) {
        let cgroup = format!("/docker/c{pid}").into();
        assert_eq!(found.location, Location::HostNetwork { cgroup, pid });
    }
    let of = |warning: &Warning| match warning {
        Warning::NoCgroup { container, .. } => container.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(snapshot.warnings.iter().map(of).collect::<Vec<_>>(), ["ended", "rooted"]);
}

#[tokio::test]
async fn container_on_the_hosts_network_has_its_whole_cgroup_or_a_reason() {
    let fake = Fake::started();
    let hosted = |id: &str, name: &str| with(container(id, name), "/HostConfig/NetworkMode", json!("host"));
    fake.put(hosted("c15", "systemd"));
    fake.put(hosted("c16", "outside"));
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!(names(&snapshot), ["systemd"]);
    let cgroup = "/docker/c15".into();
    assert_eq!(snapshot.containers[0].location, Location::HostNetwork { cgroup, pid: IN_CHILD });
    let [warning] = &snapshot.warnings[..] else { panic!("{:?}", snapshot.warnings) };
    assert!(warning.to_string().contains("needs the host's (`--cgroupns host`)"), "{warning}");
}

#[tokio::test]
async fn container_that_joins_another_belongs_to_its_class() {
    let fake = Fake::started();
    fake.put(container("c1", "owner"));
    let joins = |id: &str| {
        with(container("c2", "guest"), "/HostConfig/NetworkMode", json!(format!("container:{id}")))
    };
    fake.put(joins("c1"));
    let (_watcher, mut snapshots) = start(&fake);
    let shares =
        |owner: &str| vec![Warning::SharesNetwork { container: "guest".into(), owner: owner.into() }];
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!((names(&snapshot), snapshot.warnings.clone()), (vec!["owner"], shares("owner")));
    fake.put(container("c1", "renamed"));
    until(&mut snapshots, |snapshot| snapshot.warnings == shares("renamed")).await;
    fake.put(joins("c77"));
    until(&mut snapshots, |snapshot| snapshot.warnings == shares("c77")).await;
}

#[tokio::test]
async fn a_namespace_that_cannot_be_seen_is_found_through_the_process_or_told() {
    let fake = Fake::started();
    let hidden =
        |id: &str, name: &str| with(container(id, name), "/NetworkSettings/SandboxKey", json!("/hidden"));
    fake.put(hidden("c1", "lost"));
    fake.put(hidden("c13", "ended"));
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!(snapshot.containers, []);
    let want = [("lost", "no /proc/1/ns/net"), ("ended", "no /hidden")]
        .map(|(name, why)| Warning::NoNetns { container: name.into(), why: why.into() });
    assert_eq!(snapshot.warnings, want);
}

#[tokio::test]
async fn paused_ones_stay_and_those_without_a_process_go() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, |snapshot| names(snapshot) == ["one"]).await;
    let state = |running: bool, paused: bool, restarting: bool, pid: u32| {
        let state = json!({"Running": running, "Paused": paused, "Restarting": restarting, "Pid": pid});
        with(container("c1", "one"), "/State", state)
    };
    fake.put(state(true, true, false, 1));
    fake.put(container("c2", "two"));
    until(&mut snapshots, |snapshot| names(snapshot) == ["one", "two"]).await;
    fake.put(state(true, false, true, 0));
    until(&mut snapshots, |snapshot| names(snapshot) == ["two"]).await;
    fake.put(state(true, false, false, 1));
    until(&mut snapshots, |snapshot| names(snapshot) == ["one", "two"]).await;
    fake.put(state(false, false, false, 0));
    until(&mut snapshots, |snapshot| names(snapshot) == ["two"]).await;
}

#[tokio::test]
async fn what_docker_leaves_out_or_adds_does_no_harm() {
    let fake = Fake::started();
    let bare = json!({
        "Id": "c1", "Name": "bare", "New": {"Field": [1]},
        "State": {"Running": true, "Pid": 1, "Status": "from-the-future"},
        "Config": {"Labels": null},
        "HostConfig": {"NetworkMode": "none"},
        "NetworkSettings": {"SandboxKey": "/sandbox/1", "Networks": null},
    });
    fake.put(bare);
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!((names(&snapshot), snapshot.warnings.clone()), (vec!["bare"], vec![]));
    assert_eq!(snapshot.containers[0].addresses, Vec::<IpAddr>::new());
}

#[tokio::test]
async fn no_connection_stays_open_but_the_one_for_events() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    fake.put(container("c2", "two"));
    fake.world().faults.insert("/c1/", Fault::Hang);
    let (watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, |snapshot| !snapshot.warnings.is_empty()).await;
    until_open(&fake, 1).await;
    drop(watcher);
    until_open(&fake, 0).await;
}

async fn until_open(fake: &Fake, count: usize) {
    let reached = async {
        while fake.open() != count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), reached).await.unwrap_or_else(|_| panic!("{} are open", fake.open()));
}

#[tokio::test]
async fn a_watcher_that_is_dropped_lets_the_daemon_go() {
    let fake = Fake::started();
    let (watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, is_well).await;
    drop(watcher);
    let ended = async { while snapshots.changed().await.is_ok() {} };
    timeout(Duration::from_secs(10), ended).await.expect("the channel closes");
    let before = fake.world().asked.len();
    fake.put(container("c1", "one"));
    sleep(Duration::from_millis(100)).await;
    assert_eq!(fake.world().asked.len(), before);
}

#[tokio::test]
async fn labels_that_the_image_has_too_are_told_as_the_images() {
    let fake = Fake::started();
    let image =
        json!({"Id": "sha256:plain", "Config": {"Labels": {"weir.weight": "10000", "weir.max": "9mbit"}}});
    fake.world().images.insert("sha256:plain".into(), image);
    let labels = json!({"weir.weight": "10000", "weir.max": "5mbit", "weir.group": "a"});
    fake.put(with(container("c1", "miner"), "/Config/Labels", labels.clone()));
    fake.put(with(container("c2", "other"), "/Config/Labels", labels));
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, |s| is_well(s) && s.containers.len() == 2).await;
    let keys = ["weir.weight".to_owned()].into();
    assert_eq!(snapshot.containers[0].from_image, FromImage::Keys(keys));
}

#[tokio::test]
async fn labels_may_be_the_images_while_the_image_cannot_be_asked() {
    let fake = Fake::started();
    fake.world().faults.insert("/images/", Fault::Status(500));
    fake.put(with(container("c1", "miner"), "/Config/Labels", json!({"weir.weight": "10000"})));
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, |s| is_well(s) && s.containers.len() == 1).await;
    let from_image = &snapshot.containers[0].from_image;
    assert!(matches!(from_image, FromImage::Unknown(why) if why.contains("500")), "{from_image:?}");
}

/// A daemon that has restarted is asked about all containers and images again.
#[tokio::test]
async fn labels_of_a_known_image_stay_the_images_while_it_cannot_be_asked() {
    let mut fake = Fake::started();
    let labels = json!({"weir.weight": "10000"});
    fake.world()
        .images
        .insert("sha256:plain".into(), json!({"Id": "sha256:plain", "Config": {"Labels": labels}}));
    let own = json!({"weir.weight": "10000", "weir.max": "5mbit"});
    fake.put(with(container("c1", "miner"), "/Config/Labels", own));
    let (_watcher, mut snapshots) = start(&fake);
    let keys = FromImage::Keys(["weir.weight".to_owned()].into());
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!(snapshot.containers[0].from_image, keys);
    fake.world().faults.insert("/images/", Fault::Status(500));
    fake.stop().await;
    until(&mut snapshots, |snapshot| !is_well(snapshot)).await;
    fake.start();
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!(snapshot.containers[0].from_image, keys);
    assert!(
        matches!(&snapshot.warnings[..], [Warning::NoAnswer { id, .. }] if id == "c1"),
        "{:?}",
        snapshot.warnings
    );
    fake.world().faults.clear();
    let snapshot = until(&mut snapshots, |snapshot| snapshot.warnings.is_empty()).await;
    assert_eq!(snapshot.containers[0].from_image, keys);
}

#[tokio::test]
async fn image_that_cannot_be_asked_about_is_asked_about_again_soon() {
    let fake = Fake::started();
    fake.world().faults.insert("%3Aplain", Fault::Status(500));
    fake.put(with(container("c1", "new"), "/Config/Labels", json!({"weir.weight": "3"})));
    fake.put(with(container("c2", "odd"), "/Config/Labels", json!({"weir.weight": "3"})));
    fake.world().containers.entry("c2".into()).and_modify(|odd| odd["Image"] = json!("sha256:gone"));
    fake.world().faults.insert("%3Agone", Fault::Status(404));
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    assert!(matches!(&snapshot.warnings[..], [Warning::NoAnswer { id, .. }] if id == "c1"));
    fake.world().faults.remove("%3Aplain");
    let snapshot = until(&mut snapshots, |snapshot| snapshot.warnings.is_empty()).await;
    let of = |n: usize| &snapshot.containers[n].from_image;
    assert_eq!(*of(0), FromImage::default());
    assert!(matches!(of(1), FromImage::Unknown(why) if why.contains("404")), "{:?}", of(1));
}

#[tokio::test]
async fn endless_events_cost_a_bounded_number_of_questions() {
    let fake = Fake::started();
    fake.put(container("c1", "one"));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, |snapshot| names(snapshot) == ["one"]).await;
    let before = fake.asked("/containers/json");
    for _ in 0..150 {
        fake.tell("container", "c1");
        sleep(Duration::from_millis(20)).await;
    }
    let lists = fake.asked("/containers/json") - before;
    assert!((1..=12).contains(&lists), "{lists} lists in 3 s");
    fake.put(container("c2", "two"));
    until(&mut snapshots, |snapshot| names(snapshot) == ["one", "two"]).await;
}
