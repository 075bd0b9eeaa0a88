mod fake;

use serde_json::json;
use tokio::{sync::watch::Receiver, time::timeout};
use tokio_tungstenite::tungstenite::Message;

use self::fake::{Fake, Fault, container, http, with};
use super::*;

const INSTANCES: &str = "/1.0/instances";
const EVENTS: &str = "/1.0/events";

fn options(fake: &Fake) -> Options {
    Options {
        settle: Duration::from_millis(20),
        time_limit: Duration::from_secs(2),
        pause: Duration::from_millis(200),
        ..Options::at(fake.socket())
    }
}

fn start(fake: &Fake) -> (Watcher, Receiver<Snapshot>) {
    let watcher = watch(options(fake));
    let snapshots = watcher.snapshots();
    (watcher, snapshots)
}

/// The first snapshot that is as `wanted`.
async fn until(snapshots: &mut Receiver<Snapshot>, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let found = timeout(Duration::from_secs(10), snapshots.wait_for(|snapshot| wanted(snapshot))).await;
    let found = found.map(|found| found.expect("the watcher lives").clone());
    found.unwrap_or_else(|_| panic!("never came; the last: {:?}", snapshots.borrow().clone()))
}

fn is_well(snapshot: &Snapshot) -> bool {
    snapshot.error.is_none()
}

/// The names, and the maxima in kbit/s.
fn maxima(snapshot: &Snapshot) -> Vec<(&str, Option<u64>)> {
    let max = |found: &Found| found.policy.max.map(|max| max.bits_per_sec() / 1000);
    snapshot.containers.iter().map(|found| (found.name.as_str(), max(found))).collect()
}

fn has_max(kbit: u64) -> impl Fn(&Snapshot) -> bool {
    move |snapshot| is_well(snapshot) && maxima(snapshot) == [("web", Some(kbit))]
}

#[tokio::test]
async fn containers_have_their_keys_as_labels_and_the_names_of_monitors() {
    let fake = Fake::started();
    let keys = json!({
        "user.weir.weight": "3", "user.weir.max": "2mbit", "user.weir.group": "tenant-a",
        "user.weir.down.max": "4mbit", "weir.min": "1mbit", "user.other": "x", "limits.cpu": "1",
    });
    fake.put(container("web", keys));
    let bad = json!({"user.weir.max": "fast", "user.weir.wieght": "3"});
    fake.put(with(container("db", bad.clone()), "project", json!("shop")));
    fake.put(with(container("off", bad), "status_code", json!(102)));
    fake.put(with(container("bare", json!(null)), "location", json!("here")));
    fake.put(with(container("far", json!({})), "location", json!("there")));
    let (watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!(maxima(&snapshot), [("bare", None), ("shop_db", None), ("off", None), ("web", Some(2000))]);
    let web = snapshot.containers.last().expect("it was compared");
    assert_eq!(
        web.labels.keys().collect::<Vec<_>>(),
        ["weir.down.max", "weir.group", "weir.max", "weir.weight"]
    );
    assert_eq!((web.policy.weight.map(|weight| weight.get()), web.policy.min), (Some(3), None));
    assert_eq!(web.policy.down.max.map(|max| max.bits_per_sec()), Some(4_000_000));
    assert_eq!((web.group.as_deref(), web.source), (Some("tenant-a"), Source::Incus));
    let directory = watcher.socket().with_file_name("containers");
    assert_eq!(web.location, Location::Monitor(directory));
    let said: Vec<String> = snapshot.warnings.iter().map(ToString::to_string).collect();
    let begins = ["user.weir.max=fast", "user.weir.wieght=3"]
        .map(|label| format!("container shop_db: label {label} is ignored: "));
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().zip(&begins).all(|(said, begin)| said.starts_with(begin)), "{said:?}");
}

#[tokio::test]
async fn machines_that_run_are_found_by_their_interfaces() {
    let fake = Fake::started();
    let keys = json!({
        "volatile.eth0.host_name": "tap0", "volatile.eth1.host_name": "tap1", "volatile.eth2.host_name": "",
        "volatile.eth0.hwaddr": "00:16:3e:00:00:01", "user.weir.max": "5mbit",
    });
    let machine = with(container("vm", keys), "type", json!("virtual-machine"));
    fake.put(machine.clone());
    let (_watcher, mut snapshots) = start(&fake);
    let snapshot = until(&mut snapshots, is_well).await;
    assert_eq!(maxima(&snapshot), [("vm", Some(5000))]);
    assert_eq!(snapshot.containers[0].location, Location::Interfaces(vec!["tap0".into(), "tap1".into()]));
    fake.put(with(machine, "status_code", json!(102)));
    fake.tell("instance-stopped");
    until(&mut snapshots, |snapshot| snapshot.containers.is_empty()).await;
}

#[tokio::test]
async fn changes_of_instances_and_profiles_are_listed_and_commands_are_not() {
    let fake = Fake::started();
    fake.put(container("web", json!({"user.weir.max": "2mbit"})));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, has_max(2000)).await;
    for (action, kbit) in [("instance-updated", 1000), ("container-updated", 3000), ("profile-updated", 4000)]
    {
        fake.put(container("web", json!({"user.weir.max": format!("{kbit}kbit")})));
        let begun = Instant::now();
        fake.tell(action);
        until(&mut snapshots, has_max(kbit)).await;
        assert!(begun.elapsed() < Duration::from_millis(500), "{action}: {:?}", begun.elapsed());
    }
    let before = fake.asked(INSTANCES);
    for action in
        ["instance-exec", "instance-snapshot-created", "instance-console", "image-updated", "warning-reset"]
    {
        fake.tell(action);
    }
    sleep(Duration::from_millis(600)).await;
    assert_eq!(fake.asked(INSTANCES), before);
    assert_eq!(fake.asked(EVENTS), 1);
}

#[tokio::test]
async fn a_burst_of_events_is_answered_by_one_list() {
    let fake = Fake::started();
    let watcher = watch(Options { settle: Duration::from_secs(1), ..options(&fake) });
    let mut snapshots = watcher.snapshots();
    until(&mut snapshots, is_well).await;
    for n in 1..=20 {
        fake.put(container(&format!("c{n:02}"), json!({})));
        fake.tell("instance-created");
        sleep(Duration::from_millis(5)).await;
    }
    let snapshot = until(&mut snapshots, |snapshot| !snapshot.containers.is_empty()).await;
    assert_eq!((snapshot.containers.len(), fake.asked(INSTANCES)), (20, 2));
}

/// Without the bound each of them would put off the end of a row.
#[tokio::test]
async fn a_flood_of_events_is_cut_off_and_all_is_listed_after_it() {
    let fake = Fake::started();
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, is_well).await;
    fake.put(container("web", json!({"user.weir.max": "2mbit"})));
    let begun = Instant::now();
    for _ in 0..3000 {
        fake.tell("instance-updated");
    }
    until(&mut snapshots, has_max(2000)).await;
    assert!(begun.elapsed() >= FLOOD_PAUSE, "{:?}", begun.elapsed());
    assert_eq!((fake.asked(INSTANCES), fake.asked(EVENTS)), (2, 2));
}

#[tokio::test]
async fn keys_stay_while_the_daemon_is_away_and_follow_when_it_is_back() {
    let mut fake = Fake::started();
    fake.put(container("web", json!({"user.weir.max": "2mbit"})));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, has_max(2000)).await;
    fake.stop().await;
    let lost =
        until(&mut snapshots, |snapshot| matches!(snapshot.error, Some(Unavailable::NoConnection { .. })));
    assert_eq!(maxima(&lost.await), [("web", Some(2000))]);
    fake.put(container("web", json!({"user.weir.max": "1mbit"})));
    fake.start();
    until(&mut snapshots, has_max(1000)).await;
}

#[tokio::test]
async fn before_the_first_answer_the_state_is_not_known_rather_than_empty() {
    let fake = Fake::started();
    fake.world().faults.insert(EVENTS, Fault::Hang);
    let (_watcher, mut snapshots) = start(&fake);
    assert_eq!(snapshots.borrow().error, Some(Unavailable::NotYet));
    until(&mut snapshots, |snapshot| matches!(snapshot.error, Some(Unavailable::TimedOut { .. }))).await;
}

#[tokio::test]
async fn nonsense_is_told_and_outlived() {
    let fake = Fake::started();
    fake.put(container("web", json!({"user.weir.max": "2mbit"})));
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, has_max(2000)).await;
    let huge = http(200, &" ".repeat(33 << 20));
    let refusal = r#"{"type":"error","error":"not authorized","error_code":403}"#;
    type Right = fn(&Unavailable) -> bool;
    let cases: [(&str, Vec<u8>, Right); 7] = [
        (INSTANCES, b"what?\r\n\r\n".into(), |why| matches!(why, Unavailable::Broken { .. })),
        (INSTANCES, http(200, "[1,"), |why| matches!(why, Unavailable::Garbled { .. })),
        (INSTANCES, http(200, r#"{"metadata":{}}"#), |why| matches!(why, Unavailable::Garbled { .. })),
        (INSTANCES, huge, |why| matches!(why, Unavailable::Broken { why, .. } if why.contains("limit"))),
        (EVENTS, http(200, "{}"), |why| matches!(why, Unavailable::Garbled { .. })),
        (
            EVENTS,
            http(403, refusal),
            |why| matches!(why, Unavailable::Refused { status: 403, said, .. } if said == "not authorized"),
        ),
        (EVENTS, b"HTTP/1.1 101 Any\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n".into(), |why| {
            matches!(why, Unavailable::Garbled { .. })
        }),
    ];
    for (path, raw, right) in cases {
        fake.world().faults.insert(path, Fault::Raw(raw));
        // One session ends with it, and the next ones meet the fault.
        fake.say(Message::text("{"));
        let told = until(&mut snapshots, |snapshot| snapshot.error.as_ref().is_some_and(right)).await;
        assert_eq!(maxima(&told), [("web", Some(2000))]);
        fake.world().faults.clear();
        until(&mut snapshots, is_well).await;
    }
    fake.say(Message::text(" ".repeat(2 << 20)));
    let told = until(&mut snapshots, |snapshot| !is_well(snapshot)).await;
    assert!(told.error.is_some_and(|why| why.to_string().contains("too long")));
    until(&mut snapshots, is_well).await;
}

/// The connection is there and tells nothing, as that of a daemon whose events hang.
#[tokio::test]
async fn a_connection_that_tells_nothing_is_left_after_its_life() {
    let fake = Fake::started();
    fake.put(container("web", json!({"user.weir.max": "2mbit"})));
    let watcher = watch(Options { refresh: Duration::from_millis(300), ..options(&fake) });
    let mut snapshots = watcher.snapshots();
    until(&mut snapshots, has_max(2000)).await;
    fake.put(container("web", json!({"user.weir.max": "1mbit"})));
    let begun = Instant::now();
    until(&mut snapshots, has_max(1000)).await;
    assert!(begun.elapsed() > Duration::from_millis(100), "{:?}", begun.elapsed());
    assert_eq!((fake.asked(INSTANCES), fake.asked(EVENTS)), (2, 2));
}

#[tokio::test]
async fn pings_are_answered_and_other_messages_are_passed_over() {
    let fake = Fake::started();
    let (_watcher, mut snapshots) = start(&fake);
    until(&mut snapshots, is_well).await;
    for _ in 0..3 {
        fake.say(Message::Ping("keepalive".into()));
        fake.say(Message::binary(vec![0, 1]));
        fake.say(Message::text(r#"{"type":"operation","metadata":{"class":"task"}}"#));
    }
    timeout(Duration::from_secs(5), async {
        while fake.pongs() < 3 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("each ping is answered");
    assert!(is_well(&snapshots.borrow()));
}

#[test]
fn containers_are_beside_the_socket_or_in_the_directory_of_state() {
    let of = |socket: &str| containers_of(Path::new(socket)).display().to_string();
    assert_eq!(of(SOCKET), "/var/lib/incus/containers");
    assert_eq!(of("/run/incus/unix.socket"), "/var/lib/incus/containers");
    assert_eq!(of("/var/snap/lxd/common/lxd/unix.socket"), "/var/snap/lxd/common/lxd/containers");
}
