//! A containerd on a unix socket, as good or bad as a test wants it.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard},
};

use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;
use tokio::{net::UnixListener, sync::watch::Receiver, task::JoinHandle, time::sleep};

use super::*;
use crate::{
    FromImage, NetnsRef, NsId,
    containerd::{Descriptor, Image, Namespace},
};

const MANIFEST: &str = r#"{"config":{"digest":"config","size":1}}"#;
const CONFIG: &str = r#"{"config":{"Labels":{"weir.min":"1mbit"}}}"#;

#[derive(Clone, PartialEq, Message)]
struct Content {
    #[prost(string, tag = "2")]
    data: String,
}

/// The time for which containerd waits for a shim.
const SHIM_TIMEOUT: Duration = Duration::from_millis(100);

/// The state of containerd.
#[derive(Debug, Default)]
struct World {
    containers: Vec<Told>,
    /// The process and the status of each task, by the container's id.
    tasks: BTreeMap<&'static str, (u32, i32)>,
    /// The containers whose shims hang. containerd waits for each of them.
    hung: BTreeSet<&'static str>,
    /// The questions about single tasks, in order.
    asked: Vec<String>,
    /// gRPC's status of each answer about an image.
    image_status: Option<u8>,
    /// The containers whose specifications are larger than an answer.
    too_large: BTreeSet<&'static str>,
    /// Whether those of all containers together are.
    is_list_too_large: bool,
}

impl World {
    /// Whether an answer about a container, or the list of all, is larger than containerd sends.
    fn is_too_large(&self, id: &str) -> bool {
        let is_container = self.containers.iter().any(|told| told.id == id);
        if is_container { self.too_large.contains(id) } else { self.is_list_too_large }
    }
}

struct Fake {
    dir: TempDir,
    world: Arc<Mutex<World>>,
    server: JoinHandle<()>,
}

impl Fake {
    fn started() -> Fake {
        let dir = TempDir::new().expect("can make a directory");
        let world: Arc<Mutex<World>> = Arc::default();
        let listener = UnixListener::bind(dir.path().join("containerd.sock")).expect("can listen");
        let of_server = Arc::clone(&world);
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let world = Arc::clone(&of_server);
                let service = service_fn(move |request| answer(request, Arc::clone(&world)));
                let builder = http2::Builder::new(TokioExecutor::new());
                connections.spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        Fake { dir, world, server }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no test panics while it changes the world")
    }

    /// Adds a container whose process runs.
    fn run(&self, id: &'static str, pid: u32, labels: &[(&str, &str)]) {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let spec = br#"{"linux":{"namespaces":[{"type":"network","path":"/run/netns/1"}]}}"#;
        let spec = Some(Any { value: spec.to_vec() });
        let mut world = self.world();
        world.containers.push(Told { id: id.to_owned(), labels, image: "app".to_owned(), spec });
        world.tasks.insert(id, (pid, 2));
    }

    /// Starts to follow it. All is listed after 1 s, and then in such times.
    fn watch(&self, refresh: Duration) -> (Watcher, Receiver<Snapshot>) {
        self.watch_as(Options { refresh, ..self.options() })
    }

    fn options(&self) -> Options {
        Options::at(self.dir.path().join("containerd.sock"))
    }

    fn watch_as(&self, options: Options) -> (Watcher, Receiver<Snapshot>) {
        let watcher = watch_on(options, node());
        let snapshots = watcher.snapshots();
        (watcher, snapshots)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Process 13 has ended. Each other one is in the cgroup of its container.
fn node() -> Node {
    let netns = |path: &Path| Ok(NetnsRef { path: path.into(), id: NsId { dev: 4, ino: 1 } });
    let cgroup = |pid| match pid {
        13 => Err("no process".to_owned()),
        _ => Ok(PathBuf::from(format!("/default/c{pid}"))),
    };
    Node { netns, cgroup, own: None }
}

async fn answer(
    request: Request<Incoming>,
    world: Arc<Mutex<World>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let method =
        request.uri().path().rsplit_once(".v1.").map_or_else(String::new, |(_, method)| method.into());
    let body = request.into_body().collect().await.expect("the question comes").to_bytes();
    let about = About::decode(&body[5..]).unwrap_or_default().container;
    if method == "Events/Subscribe" {
        std::future::pending::<()>().await;
    }
    let hung = {
        let mut world = world.lock().expect("no test panics while it changes the world");
        match method.as_str() {
            "Tasks/List" => world.hung.len(),
            "Tasks/Get" => {
                world.asked.push(about.clone());
                usize::from(world.hung.contains(about.as_str()))
            }
            _ => 0,
        }
    };
    sleep(SHIM_TIMEOUT * u32::try_from(hung).expect("are few")).await;
    let world = world.lock().expect("no test panics while it changes the world");
    let process = |(id, (pid, status)): (&&str, &(u32, i32))| {
        let (pid, status) = if world.hung.contains(id) { (0, 0) } else { (*pid, *status) };
        Process { id: (*id).to_owned(), pid, status, ..Process::default() }
    };
    let message = match method.as_str() {
        "Namespaces/List" => {
            Ok(List { entries: vec![Namespace { name: "default".to_owned() }] }.encode_to_vec())
        }
        "Tasks/List" => Ok(List { entries: world.tasks.iter().map(process).collect() }.encode_to_vec()),
        "Containers/List" | "Containers/Get" if world.is_too_large(&about) => Err(8),
        "Containers/List" => Ok(List { entries: world.containers.clone() }.encode_to_vec()),
        "Tasks/Get" => match world.tasks.get_key_value(about.as_str()) {
            Some(task) => Ok(One { entry: Some(process(task)) }.encode_to_vec()),
            None => Err(14),
        },
        "Containers/Get" => {
            let entry = world.containers.iter().find(|told| told.id == about).cloned();
            Ok(One { entry }.encode_to_vec())
        }
        "Images/Get" => world.image_status.map_or_else(
            || {
                let target = Some(Descriptor { digest: "manifest".to_owned(), size: 1 });
                Ok(One { entry: Some(Image { name: "app".to_owned(), target }) }.encode_to_vec())
            },
            Err,
        ),
        "Content/Read" => {
            let data = if about == "manifest" { MANIFEST } else { CONFIG };
            Ok(Content { data: data.to_owned() }.encode_to_vec())
        }
        other => panic!("{other}"),
    };
    Ok(match message {
        Ok(message) => {
            let length = u32::try_from(message.len()).expect("is short").to_be_bytes();
            Response::new(Full::from([&[0][..], &length, &message].concat()))
        }
        Err(status) => {
            let response = Response::builder().header("grpc-status", status.to_string());
            response.body(Full::default()).expect("is an answer")
        }
    })
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

/// The containers that containerd does not tell all of.
fn doubtful(snapshot: &Snapshot) -> Vec<&str> {
    let doubts = snapshot.warnings.iter().map(|warning| match warning {
        Warning::NoAnswer { id, .. } => id.as_str(),
        other => panic!("{other}"),
    });
    doubts.collect()
}

#[test]
fn a_task_of_unknown_state_ends_with_its_process_alone() {
    let task = |status, pid| Process { status, pid, ..Process::default() }.state();
    for (status, pid, want) in [
        (1, 7, Verdict::Read(7)),
        (2, 7, Verdict::Read(7)),
        (4, 7, Verdict::Read(7)),
        (5, 7, Verdict::Read(7)),
        (2, 0, Verdict::Forget),
        (3, 7, Verdict::Forget),
        (0, 0, Verdict::Keep),
    ] {
        assert_eq!(judge(task(status, pid), || true), want, "{status} {pid}");
    }
    assert_eq!(judge(Task::Unlisted, || true), Verdict::Keep);
    assert_eq!(judge(Task::Unlisted, || false), Verdict::Forget);
    assert_eq!(judge(task(0, 0), || false), Verdict::ForgetAndAsk);
}

#[tokio::test]
async fn container_stays_while_its_task_is_unknown_or_not_in_the_list() {
    let fake = Fake::started();
    fake.run("c13", 13, &[]);
    fake.run("c7", 7, &[]);
    let (_watcher, mut snapshots) = fake.watch(Duration::from_millis(50));
    until(&mut snapshots, |snapshot| names(snapshot) == ["c13", "c7"]).await;
    fake.world().tasks.extend([("c13", (0, 0)), ("c7", (0, 0))]);
    let snapshot = until(&mut snapshots, |snapshot| names(snapshot) != ["c13", "c7"]).await;
    assert_eq!((names(&snapshot), doubtful(&snapshot)), (vec!["c7"], vec!["c13", "c7"]));
    fake.world().tasks.clear();
    let snapshot = until(&mut snapshots, |snapshot| doubtful(snapshot) != ["c13", "c7"]).await;
    assert_eq!((names(&snapshot), doubtful(&snapshot)), (vec!["c7"], vec!["c7"]));
    fake.world().tasks.insert("c7", (7, 3));
    until(&mut snapshots, |snapshot| names(snapshot).is_empty() && doubtful(snapshot).is_empty()).await;
}

#[tokio::test]
async fn container_of_unknown_state_is_asked_about_before_the_next_list() {
    let fake = Fake::started();
    fake.run("c7", 7, &[]);
    let (_watcher, mut snapshots) = fake.watch(Duration::from_secs(60));
    until(&mut snapshots, |snapshot| names(snapshot) == ["c7"]).await;
    fake.world().tasks.clear();
    until(&mut snapshots, |snapshot| doubtful(snapshot) == ["c7"]).await;
    fake.world().tasks.insert("c7", (7, 2));
    let snapshot = until(&mut snapshots, |snapshot| doubtful(snapshot).is_empty()).await;
    assert_eq!(names(&snapshot), ["c7"]);
}

#[tokio::test]
async fn labels_of_an_image_stay_while_it_cannot_be_read_or_is_gone() {
    let fake = Fake::started();
    fake.run("c7", 7, &[("weir.min", "1mbit"), ("weir.max", "9mbit")]);
    let (_watcher, mut snapshots) = fake.watch(Duration::from_millis(50));
    let keys = FromImage::Keys(["weir.min".to_owned()].into());
    let snapshot = until(&mut snapshots, |snapshot| names(snapshot) == ["c7"]).await;
    assert_eq!((&snapshot.containers[0].from_image, doubtful(&snapshot)), (&keys, vec![]));
    fake.world().image_status = Some(13);
    let snapshot = until(&mut snapshots, |snapshot| !snapshot.warnings.is_empty()).await;
    assert_eq!((&snapshot.containers[0].from_image, doubtful(&snapshot)), (&keys, vec!["c7"]));
    let said = snapshot.warnings[0].to_string();
    assert!(said.ends_with("Images/Get was refused with status 13: without a reason"), "{said}");
    fake.world().image_status = Some(5);
    let snapshot = until(&mut snapshots, |snapshot| snapshot.warnings.is_empty()).await;
    assert_eq!(snapshot.containers[0].from_image, keys);
}

#[tokio::test]
async fn shims_that_hang_hide_no_other_container() {
    let fake = Fake::started();
    let hung = ["c1", "c2", "c3", "c4", "c5"];
    for (id, pid) in hung.into_iter().zip(1..) {
        fake.run(id, pid, &[]);
    }
    fake.run("c7", 7, &[]);
    fake.world().hung.extend(hung);
    // Five shims take longer than the list may.
    let time_limit = Duration::from_millis(300);
    let second_try = Duration::from_millis(100);
    let refresh = Duration::from_millis(50);
    let (_watcher, mut snapshots) =
        fake.watch_as(Options { time_limit, second_try, refresh, ..fake.options() });
    let snapshot = until(&mut snapshots, |snapshot| names(snapshot) == ["c7"]).await;
    assert_eq!((&snapshot.error, doubtful(&snapshot)), (&None, hung.to_vec()));
    fake.run("c8", 8, &[]);
    until(&mut snapshots, |snapshot| names(snapshot) == ["c7", "c8"]).await;
    fake.world().hung.clear();
    let snapshot = until(&mut snapshots, |snapshot| names(snapshot).len() == 7).await;
    assert_eq!((&snapshot.error, doubtful(&snapshot)), (&None, vec![]));
}

/// containerd refuses an answer above 16 MiB. It holds the specifications of some thousand containers, or of one.
#[tokio::test]
async fn specifications_beyond_an_answer_hide_no_other_container() {
    let fake = Fake::started();
    fake.run("c1", 1, &[]);
    fake.run("c2", 2, &[]);
    fake.world().is_list_too_large = true;
    fake.world().too_large.insert("c2");
    let refresh = Duration::from_millis(50);
    let second_try = Duration::from_millis(20);
    let (_watcher, mut snapshots) = fake.watch_as(Options { refresh, second_try, ..fake.options() });
    let snapshot = until(&mut snapshots, |snapshot| names(snapshot) == ["c1"]).await;
    assert_eq!((&snapshot.error, doubtful(&snapshot)), (&None, vec!["c2"]));
    let said = snapshot.warnings[0].to_string();
    assert!(said.contains("Containers/Get was refused with status 8"), "{said}");
    fake.run("c3", 3, &[]);
    until(&mut snapshots, |snapshot| names(snapshot) == ["c1", "c3"] && snapshot.error.is_none()).await;
    fake.world().tasks.insert("c2", (2, 3));
    until(&mut snapshots, |snapshot| doubtful(snapshot).is_empty()).await;
}

#[tokio::test]
async fn known_containers_stay_if_neither_tasks_nor_containers_are_listed() {
    let fake = Fake::started();
    let shims = ["c1", "c2", "c3", "c4"];
    for (id, pid) in shims.into_iter().zip(1..) {
        fake.run(id, pid, &[]);
    }
    fake.run("c7", 7, &[]);
    fake.world().is_list_too_large = true;
    let time_limit = Duration::from_millis(300);
    let refresh = Duration::from_millis(50);
    let (_watcher, mut snapshots) = fake.watch_as(Options { refresh, time_limit, ..fake.options() });
    until(&mut snapshots, |snapshot| names(snapshot).len() == 5).await;
    fake.world().hung.extend(shims);
    let snapshot = until(&mut snapshots, |snapshot| doubtful(snapshot) == shims).await;
    assert_eq!((names(&snapshot).len(), &snapshot.error), (5, &None));
}

#[tokio::test]
async fn container_whose_shim_never_answers_is_asked_about_less_and_less() {
    let fake = Fake::started();
    fake.run("c7", 7, &[]);
    fake.world().hung.insert("c7");
    let second_try = Duration::from_millis(20);
    let (_watcher, mut snapshots) = fake.watch_as(Options { second_try, ..fake.options() });
    until(&mut snapshots, |snapshot| doubtful(snapshot) == ["c7"]).await;
    // The pauses are 20, 20, 20, 40, 80, 160 and then 240 ms. Each answer takes 100 ms.
    sleep(Duration::from_secs(3)).await;
    let asked = fake.world().asked.len();
    assert!((4..=13).contains(&asked), "{asked} questions in 3 s");
    fake.world().hung.clear();
    until(&mut snapshots, |snapshot| names(snapshot) == ["c7"] && doubtful(snapshot).is_empty()).await;
}
