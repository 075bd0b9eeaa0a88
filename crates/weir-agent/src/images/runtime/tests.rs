//! The keeper and its thread beside a Docker that is a fake, over its socket.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use weir_api::EventKind;
use weir_cache::{
    PolicyKind,
    generate::{ZONES, generate},
    runtime::Notes,
    trace::Trace,
};
use weir_testkit::{FakeDocker, Store};
use weir_units::{Bytes, Instant};

use super::*;

const KEEP_NEW_S: u64 = 600;

fn wanted(docker: &FakeDocker, policy: PolicyKind, budget: u64, dry_run: bool) -> Wanted {
    Wanted {
        settings: RuntimeSettings {
            budget: Bytes(budget),
            dry_run,
            policy,
            keep_new_s: KEEP_NEW_S,
            pins: Vec::new(),
            docker: None,
        },
        socket: docker.socket(),
        notes: docker.socket().with_file_name("notes.json"),
        listen: "127.0.0.1:5050".parse().unwrap(),
    }
}

fn keeper(wanted: &Wanted, pins: CachePins) -> Keeper {
    let settings = &wanted.settings;
    let keep_new = Duration::from_secs(settings.keep_new_s);
    let bounds = Bounds { policy: settings.policy, budget: settings.budget, keep_new };
    Keeper::new(Order::new(bounds, Notes::default()), wanted, pins)
}

fn no_pins() -> CachePins {
    Arc::new(|| Ok(Vec::new()))
}

fn at(s: u64) -> Instant {
    Instant(Duration::from_secs(s))
}

/// Turns until nothing is left to remove.
async fn settle(keeper: &mut Keeper, docker: &mut Docker, s: u64) {
    while keeper.turn(docker, at(s)).await.unwrap() {}
}

async fn connect(docker: &FakeDocker) -> Docker {
    Docker::connect(&Options::at(docker.socket())).await.unwrap()
}

fn pull(docker: &FakeDocker, name: &str, bytes: u64) {
    let id = format!("sha256:{name}");
    docker.store().pull(&id, &format!("{name}:1"), &[(format!("sha256:layer-{name}"), bytes)]);
}

fn names(docker: &FakeDocker) -> Vec<String> {
    docker.store().images.keys().map(|id| id["sha256:".len()..].to_owned()).collect()
}

/// The pulls of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Pulls {
    deployments: u64,
    /// Of an image that was there before and is gone.
    again: u64,
    bytes: u64,
    removed: u64,
    largest: u64,
}

/// Deploys a trace on one node: pulls what is missing, makes a container, and ends it after a while. After
/// each deployment the store is held to its budget.
///
/// Each removal is checked against a model of its own: no container has the image, none had it for
/// `KEEP_NEW_S`, and it was not pulled in that time.
async fn deploy(trace: &Trace, policy: Option<PolicyKind>, budget: u64, lifetime_s: u64) -> Pulls {
    let docker = FakeDocker::start();
    let wanted = wanted(&docker, policy.unwrap_or(PolicyKind::Lru), budget, false);
    let mut keeper = keeper(&wanted, Arc::new(|| Ok(vec!["app3:*".to_owned()])));
    let mut client = connect(&docker).await;
    keeper.turn(&mut client, at(0)).await.unwrap();
    // When each image was pulled or lost its last container.
    let touched: Arc<std::sync::Mutex<BTreeMap<String, u64>>> = Arc::default();
    let now = Arc::new(AtomicU64::new(0));
    let (model, clock) = (touched.clone(), now.clone());
    docker.store().before_change = Some(Box::new(move |store: &mut Store, request: &str| {
        let id = request.strip_prefix("DELETE /images/").expect("each image has one name");
        let now = clock.load(Ordering::Relaxed);
        assert!(!store.containers.values().any(|image| image == id), "{now} s: {id} is in use");
        let idle = now - model.lock().unwrap()[id];
        assert!(idle >= KEEP_NEW_S, "{now} s: {id} was used {idle} s ago");
        assert_ne!(id, "sha256:image3", "it is pinned");
    }));
    let (mut pulls, mut had) = (Pulls::default(), BTreeSet::new());
    let mut ends: BTreeMap<(u64, usize), String> = BTreeMap::new();
    for (n, deployment) in trace.deployments.iter().enumerate() {
        let s = 1_000 + deployment.at.as_secs();
        while let Some((&(end, which), _)) = ends.iter().next().filter(|((end, _), _)| *end <= s) {
            let image = ends.remove(&(end, which)).unwrap();
            docker.store().destroy(&format!("c{which}"));
            touched.lock().unwrap().insert(image, end);
        }
        now.store(s, Ordering::Relaxed);
        let id = format!("sha256:image{}", deployment.image);
        pulls.deployments += 1;
        let is_here = docker.store().images.contains_key(&id);
        if !is_here {
            let blobs = &trace.images[deployment.image as usize];
            let layers: Vec<(String, u64)> =
                blobs.iter().map(|blob| (format!("sha256:{blob}"), trace.blobs[*blob as usize].0)).collect();
            let before = docker.store().bytes();
            docker.store().pull(&id, &format!("app{}:1", deployment.image), &layers);
            pulls.bytes += docker.store().bytes() - before;
            pulls.again += u64::from(!had.insert(id.clone()));
        }
        docker.store().create(&format!("c{n}"), &id);
        touched.lock().unwrap().insert(id.clone(), s);
        // Half to one and a half of the mean, by the number alone.
        let lives = lifetime_s / 2 + lifetime_s * (n as u64 * 7919 % 1000) / 1000;
        ends.insert((s + lives, n), id);
        if policy.is_some() {
            settle(&mut keeper, &mut client, s).await;
            let held = docker.store().bytes();
            assert!(
                held <= budget,
                "deployment {n}: {held} of {budget} bytes; {:?}",
                keeper.view(at(s)).short
            );
        }
        pulls.largest = pulls.largest.max(docker.store().bytes());
    }
    let store = docker.store();
    assert_eq!(store.refused, 0, "weir asked for the removal of an image in use");
    let view = keeper.view(at(0));
    pulls.removed = store.removed.len() as u64;
    if policy.is_some() {
        assert_eq!((view.removed, view.refused), (pulls.removed, 0));
    }
    pulls
}

#[tokio::test]
async fn store_is_held_over_1000_deployments_and_nothing_in_use_goes() {
    const BUDGET: u64 = 10_000_000_000;
    for (zone, policies) in
        [("fra", &[PolicyKind::ImageLru, PolicyKind::Auto][..]), ("dal", &[PolicyKind::Auto])]
    {
        let zone = ZONES.iter().find(|known| known.name == zone).unwrap();
        // One node has all deployments of the zone: they are as close as on a busy node.
        let trace = generate(zone, 1000, 1);
        let none = deploy(&trace, None, BUDGET, 1200).await;
        println!("{} without weir: {none:?}", zone.name);
        assert_eq!((none.removed, none.again), (0, 0));
        assert!(none.largest > BUDGET, "nothing would have to go");
        for policy in policies {
            let pulls = deploy(&trace, Some(*policy), BUDGET, 1200).await;
            println!("{} with {policy}: {pulls:?}", zone.name);
            assert!(pulls.removed > 0 && pulls.largest <= BUDGET);
        }
    }
}

#[tokio::test]
async fn dry_run_removes_nothing_and_reports_each_image_once() {
    let docker = FakeDocker::start();
    for name in ["a", "b", "c"] {
        pull(&docker, name, 400);
    }
    docker.store().create("web", "sha256:a");
    let mut keeper = keeper(&wanted(&docker, PolicyKind::Lru, 700, true), no_pins());
    let mut client = connect(&docker).await;
    settle(&mut keeper, &mut client, 1000).await;
    // All are new.
    let events = keeper.take_events();
    let [(EventKind::ImageOverBudget, what)] = &events[..] else { panic!("{events:?}") };
    assert!(
        what.contains("1.2KiB of 700B: 500B too many") && what.contains("1 of 3 images are in use"),
        "{what}"
    );
    assert!(what.contains("3 new"), "{what}");
    for s in [1601, 1616] {
        settle(&mut keeper, &mut client, s).await;
    }
    let events = keeper.take_events();
    let [(EventKind::ImageWouldGo, what), (EventKind::ImageWouldGo, _)] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(what.starts_with("b:1 would be removed from docker, 400B freed, but for `dry_run`"), "{what}");
    let view = keeper.view(at(1616));
    let fates: Vec<_> = view.images.iter().map(|i| (i.names[0].as_str(), i.leaves, i.kept.clone())).collect();
    let kept = vec!["in use by web".to_owned()];
    assert_eq!(fates, [("a:1", None, kept), ("b:1", Some(1), vec![]), ("c:1", Some(2), vec![])]);
    assert_eq!((names(&docker).len(), view.removed, view.bytes), (3, 0, Bytes(1200)));
    assert!(docker.store().asked.iter().all(|request| request.starts_with("GET ")));
}

#[tokio::test]
async fn container_made_between_look_and_removal_keeps_its_image() {
    let docker = FakeDocker::start();
    for name in ["a", "b", "c"] {
        pull(&docker, name, 400);
    }
    let mut keeper = keeper(&wanted(&docker, PolicyKind::Lru, 900, false), no_pins());
    let mut client = connect(&docker).await;
    settle(&mut keeper, &mut client, 1000).await;
    let mut is_first = true;
    docker.store().before_change = Some(Box::new(move |store, _| {
        if std::mem::take(&mut is_first) {
            store.create("late", "sha256:a");
        }
    }));
    settle(&mut keeper, &mut client, 1700).await;
    assert_eq!(names(&docker), ["a", "c"], "b goes in its place");
    let view = keeper.view(at(1700));
    assert_eq!((view.removed, view.removed_bytes, view.refused), (1, Bytes(400), 1));
    assert_eq!(view.images[0].kept.len(), 2, "{:?}", view.images[0]);
    assert!(view.images[0].kept[1].starts_with("refused by docker 0 s ago: conflict: unable to delete"));
    let events = keeper.take_events();
    let (_, what) = events.iter().find(|event| event.0 == EventKind::ImageRemoved).unwrap();
    assert!(
        what.starts_with("b:1 is removed from docker, 400B freed: its images had 1.2KiB of 900B"),
        "{what}"
    );
}

#[tokio::test]
async fn image_that_docker_does_not_give_up_holds_up_no_other() {
    let docker = FakeDocker::start();
    for name in ["a", "b", "c"] {
        pull(&docker, name, 400);
    }
    let mut keeper = keeper(&wanted(&docker, PolicyKind::Lru, 900, false), no_pins());
    let mut client = connect(&docker).await;
    settle(&mut keeper, &mut client, 1000).await;
    docker.store().faults.insert("/images/sha256:a", (500, "device or resource busy"));
    settle(&mut keeper, &mut client, 1700).await;
    assert_eq!(names(&docker), ["a", "c"]);
    docker.store().faults.clear();
    pull(&docker, "d", 400);
    settle(&mut keeper, &mut client, 2400).await;
    assert_eq!(names(&docker), ["c", "d"], "it is tried again after a while");
}

#[tokio::test]
async fn nothing_goes_before_the_pins_of_the_cache_are_known() {
    let docker = FakeDocker::start();
    for name in ["a", "b"] {
        pull(&docker, name, 400);
    }
    let known = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asked = known.clone();
    let pins = Arc::new(move || match asked.load(Ordering::Relaxed) {
        true => Ok(vec!["a".to_owned(), "docker.io/library/a:*".to_owned()]),
        false => Err("it is starting".to_owned()),
    });
    let mut keeper = keeper(&wanted(&docker, PolicyKind::Lru, 100, false), pins);
    let mut client = connect(&docker).await;
    for s in [1000, 2000] {
        settle(&mut keeper, &mut client, s).await;
    }
    let problem = keeper.view(at(2000)).problem.unwrap();
    assert_eq!(problem, "the pins of the image cache are not known: it is starting");
    assert_eq!(names(&docker).len(), 2);
    known.store(true, Ordering::Relaxed);
    settle(&mut keeper, &mut client, 2015).await;
    assert_eq!(names(&docker), ["a"]);
    known.store(false, Ordering::Relaxed);
    settle(&mut keeper, &mut client, 2030).await;
    let view = keeper.view(at(2030));
    assert_eq!((view.problem, view.short), (None, Bytes(300)), "the pins are still known");
    assert_eq!(view.images[0].kept, ["pinned by docker.io/library/a:*"]);
}

#[tokio::test]
async fn container_that_went_before_a_look_counts_as_a_use() {
    let docker = FakeDocker::start();
    for name in ["a", "b"] {
        pull(&docker, name, 400);
    }
    let mut keeper = keeper(&wanted(&docker, PolicyKind::Lru, 500, false), no_pins());
    let mut client = connect(&docker).await;
    settle(&mut keeper, &mut client, 1000).await;
    let mut changes = client.changes(0).await.unwrap();
    docker.store().create("short", "sha256:a");
    docker.store().destroy("short");
    for _ in 0..2 {
        keeper.tell(changes.next().await.unwrap());
    }
    settle(&mut keeper, &mut client, 1599).await;
    settle(&mut keeper, &mut client, 1601).await;
    assert_eq!(names(&docker), ["a"], "a was used later");
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn thread_follows_docker_and_the_configuration_and_says_what_is_wrong() {
    let docker = FakeDocker::start();
    for name in ["a", "b", "c"] {
        pull(&docker, name, 400);
    }
    docker.store().create("web", "sha256:a");
    let events = broadcast::Sender::new(64);
    let mut told = events.subscribe();
    let runtime = Runtime::off(events);
    assert!(runtime.state().is_none() && runtime.warning().is_none());
    let mut wanted = wanted(&docker, PolicyKind::Auto, 500, true);
    wanted.settings.keep_new_s = 0;
    // Docker comes later.
    wanted.socket = docker.socket().with_file_name("later.sock");
    runtime.set(Some(wanted.clone()), no_pins()).unwrap();
    until("the missing Docker is told", || runtime.warning().is_some());
    let warning = runtime.warning().unwrap();
    assert!(warning.contains("not held to their budget: cannot connect to"), "{warning}");
    std::os::unix::fs::symlink(docker.socket(), &wanted.socket).unwrap();
    until("it is found", || runtime.state().unwrap().looked_ms.is_some());
    assert_eq!((runtime.warning(), names(&docker).len()), (None, 3));
    until("victims are told", || told.len() >= 2);
    assert_eq!(told.try_recv().unwrap().0, EventKind::ImageWouldGo);
    // The dry run ends.
    wanted.settings.dry_run = false;
    runtime.set(Some(wanted.clone()), no_pins()).unwrap();
    until("two are removed", || names(&docker) == ["a"]);
    until("it is shown", || runtime.state().unwrap().removed == 2);
    // A container makes its image known at once, long before the next look is due.
    pull(&docker, "d", 400);
    until("the new one goes", || runtime.state().unwrap().removed == 3);
    let notes = notes::read(&wanted.notes);
    assert_eq!(notes.images.iter().map(|image| image.id.as_str()).collect::<Vec<_>>(), ["sha256:a"]);
    runtime.set(None, no_pins()).unwrap();
    assert!(runtime.state().is_none());
    pull(&docker, "e", 400);
    runtime.stop();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(names(&docker), ["a", "e"], "without a budget nothing goes");
}

#[test]
fn thread_that_ends_by_a_panic_is_told_and_begun_again_by_a_change() {
    let docker = FakeDocker::start();
    let runtime = Runtime::off(broadcast::Sender::new(64));
    let mut wanted = wanted(&docker, PolicyKind::Auto, 500, true);
    runtime.set(Some(wanted.clone()), Arc::new(|| panic!("a fault of the pins"))).unwrap();
    until("the end is told", || runtime.warning().is_some_and(|why| why.contains("its thread has ended")));
    wanted.settings.keep_new_s += 1;
    runtime.set(Some(wanted), no_pins()).unwrap();
    until("it looks again", || runtime.state().unwrap().looked_ms.is_some());
    assert_eq!(runtime.warning(), None);
    runtime.stop();
}
