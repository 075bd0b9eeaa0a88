//! The container runtimes that the agent follows.

use std::{future::poll_fn, path::Path, pin::Pin, task::Poll, time::Duration};

use tokio::sync::watch;
use weir_discovery::{
    Found, Location, Source, containerd, docker, incus, merge,
    runtime::{Snapshot, Unavailable, Watcher},
};

use crate::{
    config::{Config, Discover},
    images::runtime::{Wanted, notes_file},
};

/// How long the agent waits for the runtimes' first lists of containers before it starts without one. Until
/// then the kernel keeps the state of an earlier agent.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// A runtime, and the last thing it told.
struct Watched {
    /// It watches as long as it lives.
    watcher: Watcher,
    snapshots: watch::Receiver<Snapshot>,
    /// The containers at the runtime's earlier socket. They count until the present one answers.
    earlier: Vec<Found>,
}

type Change<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

impl Watched {
    fn open(source: Source, socket: &Path) -> Option<Watched> {
        let watcher = match source {
            Source::Docker => docker::watch(docker::Options::at(socket)),
            Source::Podman => docker::watch(docker::Options::podman(socket)),
            Source::Containerd => containerd::watch(containerd::Options::at(socket)),
            Source::Incus => incus::watch(incus::Options::at(socket)),
            _ => return None,
        };
        Some(Watched { snapshots: watcher.snapshots(), watcher, earlier: Vec::new() })
    }

    /// Whether it watches this runtime.
    fn is(&self, source: Source, socket: &Path) -> bool {
        (self.watcher.source(), self.watcher.socket()) == (source, socket)
    }

    /// The containers that it told last.
    fn containers(&self) -> Vec<Found> {
        let snapshot = self.snapshots.borrow();
        let has_answered = snapshot.error.is_none() || !snapshot.containers.is_empty();
        if has_answered { snapshot.containers.clone() } else { self.earlier.clone() }
    }

    /// Waits for a change.
    fn changed(&mut self) -> Change<'_> {
        Box::pin(async {
            if self.snapshots.changed().await.is_err() {
                std::future::pending().await
            }
        })
    }
}

/// The runtimes of the configuration. An earlier one takes precedence where two tell of the same container.
#[derive(Default)]
pub(super) struct Runtimes {
    watched: Vec<Watched>,
}

/// The containers and warnings of all runtimes.
#[derive(Default)]
pub(super) struct Told {
    /// Each container once.
    pub(super) containers: Vec<Found>,
    /// The containers that LXC's source finds, and whose labels a runtime knows.
    pub(super) monitored: Vec<Found>,
    /// About single containers.
    pub(super) warnings: Vec<String>,
    /// The runtimes that do not answer, and why.
    pub(super) lost: Vec<String>,
    /// Whether each runtime has answered or was found away.
    pub(super) is_complete: bool,
}

/// The state of a runtime, for the doctor.
pub(super) struct State {
    /// `docker at /run/docker.sock`.
    pub(super) name: String,
    /// `2 containers are followed`, or why there is no answer.
    pub(super) told: Result<String, String>,
}

impl Runtimes {
    pub(super) fn open(discover: &Discover) -> Runtimes {
        let mut runtimes = Runtimes::default();
        runtimes.reopen(discover);
        runtimes
    }

    /// Follows the runtimes of another configuration. A runtime at the same socket is followed as before. The
    /// containers of a runtime at another socket stay until it answers there.
    pub(super) fn reopen(&mut self, discover: &Discover) {
        let mut before = std::mem::take(&mut self.watched);
        let mut kept: Vec<Option<Watched>> = discover
            .runtimes()
            .map(|(source, socket)| {
                let at = before.iter().position(|watched| watched.is(source, socket))?;
                Some(before.remove(at))
            })
            .collect();
        for ((source, socket), kept) in discover.runtimes().zip(&mut kept) {
            if kept.is_some() {
                continue;
            }
            *kept = Watched::open(source, socket);
            let moved = before.iter().position(|watched| watched.watcher.source() == source);
            if let (Some(at), Some(watched)) = (moved, kept) {
                watched.earlier = before.remove(at).containers();
            }
        }
        self.watched = kept.into_iter().flatten().collect();
    }

    /// Takes what is known now as seen.
    pub(super) fn take_note(&mut self) {
        for watched in &mut self.watched {
            if watched.snapshots.borrow_and_update().error.is_none() {
                watched.earlier.clear();
            }
        }
    }

    /// The present containers of the runtimes that a configuration names. As [`Runtimes::reopen`] has it, those of
    /// a runtime at another socket stay until it answers there.
    pub(super) fn told(&self, discover: &Discover) -> Told {
        let mut told = Told { is_complete: true, ..Told::default() };
        for (source, socket) in discover.runtimes() {
            let at = |watched: &&Watched| watched.is(source, socket);
            let Some(watched) = self.watched.iter().find(at) else {
                let moved = self.watched.iter().find(|watched| watched.watcher.source() == source);
                told.containers.extend(moved.map(Watched::containers).unwrap_or_default());
                told.is_complete = false;
                continue;
            };
            told.containers.extend(watched.containers());
            let Watched { watcher, snapshots, .. } = watched;
            let snapshot = snapshots.borrow();
            told.warnings.extend(snapshot.warnings.iter().map(ToString::to_string));
            told.lost.extend(snapshot.error.iter().map(|why| lost(watcher, why)));
            told.is_complete &= !matches!(snapshot.error, Some(Unavailable::NotYet));
        }
        let is_monitored = |found: &Found| matches!(found.location, Location::Monitor(_));
        let (monitored, containers) = told.containers.into_iter().partition(is_monitored);
        (told.monitored, told.containers) = (monitored, merge(containers));
        told
    }

    /// Has the runtimes looked at that tell of new containers late.
    pub(super) fn look(&self) {
        self.watched.iter().for_each(|watched| watched.watcher.look());
    }

    /// The warnings about runtimes that do not answer.
    pub(super) fn lost(&self) -> Vec<String> {
        let lost = |Watched { watcher, snapshots, .. }: &Watched| {
            snapshots.borrow().error.as_ref().map(|why| lost(watcher, why))
        };
        self.watched.iter().filter_map(lost).collect()
    }

    /// The state of each runtime.
    pub(super) fn states(&self) -> Vec<State> {
        let state = |watched: &Watched| {
            let Watched { watcher, snapshots, .. } = watched;
            let followed = match (watcher.source(), watched.containers().len()) {
                (Source::Incus, 1) => "the keys of 1 instance are known".to_owned(),
                (Source::Incus, count) => format!("the keys of {count} instances are known"),
                (_, 1) => "1 container is followed".to_owned(),
                (_, count) => format!("{count} containers are followed"),
            };
            let error = snapshots.borrow().error.as_ref().map(ToString::to_string);
            State {
                name: format!("{} at {}", watcher.source(), watcher.socket().display()),
                told: error.map_or(Ok(followed), Err),
            }
        };
        self.watched.iter().map(state).collect()
    }

    /// Waits for the runtimes' first answers. Without them the agent would take the classes of their containers for
    /// leftovers, and would remove them with their queued packets.
    pub(super) async fn first_list(&mut self) {
        let end = tokio::time::Instant::now() + FIRST_LIST_TIMEOUT;
        for Watched { watcher, snapshots, .. } in &mut self.watched {
            let answered = snapshots.wait_for(|s| !matches!(s.error, Some(Unavailable::NotYet)));
            if tokio::time::timeout_at(end, answered).await.is_err() {
                let source = watcher.source();
                tracing::warn!(
                    "{source} has not answered within {FIRST_LIST_TIMEOUT:?}: its containers follow when it does"
                );
            }
        }
    }

    /// Waits for a runtime to report a change, or without end if none is followed.
    pub(super) async fn changed(&mut self) {
        let mut waiting: Vec<Change<'_>> = self.watched.iter_mut().map(Watched::changed).collect();
        poll_fn(|context| {
            let is_any = waiting.iter_mut().any(|change| change.as_mut().poll(context).is_ready());
            if is_any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

fn lost(watcher: &Watcher, why: &Unavailable) -> String {
    format!("{}: {why}", watcher.source())
}

/// The budget of Docker's images; none without `[images.runtime]`. It is the agent's also where another
/// process serves the cache, as that may not ask Docker.
pub(super) fn images_wanted(config: &Config) -> Option<Wanted> {
    let images = config.images.as_ref()?;
    let settings = images.runtime.clone()?;
    let socket = settings.docker.clone().or_else(|| config.discover.docker.clone())?;
    Some(Wanted { settings, socket, notes: notes_file(&config.agent.state), listen: images.listen })
}

#[cfg(test)]
mod tests {
    use weir_discovery::{NetnsRef, NsId};

    use super::*;

    fn discover(text: &str) -> Discover {
        toml::from_str(text).expect(text)
    }

    fn container(name: &str, source: Source) -> Found {
        let id = NsId { dev: 4, ino: name.bytes().map(u64::from).sum() };
        let netns = NetnsRef { path: format!("/run/netns/{name}").into(), id };
        Found::new(name.to_owned(), name.to_owned(), source, Location::Netns(netns))
    }

    /// Makes a runtime tell of one container. The sender ends with the test.
    fn tell(runtimes: &mut Runtimes, at: usize, name: &str) -> watch::Sender<Snapshot> {
        let watched = &mut runtimes.watched[at];
        let containers = vec![container(name, watched.watcher.source())];
        let (sender, snapshots) = watch::channel(Snapshot { containers, warnings: Vec::new(), error: None });
        watched.snapshots = snapshots;
        sender
    }

    fn names(told: &Told) -> Vec<&str> {
        told.containers.iter().map(|found| found.name.as_str()).collect()
    }

    #[tokio::test]
    async fn a_runtime_at_the_same_socket_is_followed_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("{:?}", dir.path().join(name));
        let mut runtimes = Runtimes::open(&discover(&format!("docker = {}", at("d"))));
        let _docker = tell(&mut runtimes, 0, "web");
        let before = runtimes.watched[0].snapshots.clone();
        let both = discover(&format!("docker = {}\npodman = {}", at("d"), at("p")));
        runtimes.reopen(&both);
        assert!(runtimes.watched[0].snapshots.same_channel(&before));
        let told = runtimes.told(&both);
        assert_eq!((names(&told), told.is_complete), (vec!["web"], false));
        let podman = discover(&format!("docker = false\npodman = {}", at("p")));
        runtimes.reopen(&podman);
        assert_eq!((names(&runtimes.told(&podman)), runtimes.watched.len()), (vec![], 1));
    }

    #[tokio::test]
    async fn containers_stay_until_a_runtime_answers_at_another_socket() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("docker = {:?}", dir.path().join(name));
        let mut runtimes = Runtimes::open(&discover(&at("d")));
        let _docker = tell(&mut runtimes, 0, "web");
        runtimes.reopen(&discover(&at("e")));
        let last = discover(&at("f"));
        runtimes.reopen(&last);
        runtimes.take_note();
        let told = runtimes.told(&last);
        assert_eq!((names(&told), told.is_complete), (vec!["web"], false));
        let sender = tell(&mut runtimes, 0, "db");
        runtimes.take_note();
        assert_eq!(names(&runtimes.told(&last)), ["db"]);
        sender.send_replace(Snapshot::default());
        assert_eq!(names(&runtimes.told(&last)), Vec::<&str>::new());
    }

    /// A plan asks for them. The change waits for a discovery, which takes note of it.
    #[tokio::test]
    async fn containers_of_a_runtime_that_another_configuration_lacks_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("{:?}", dir.path().join(name));
        let both = discover(&format!("docker = {}\npodman = {}", at("d"), at("p")));
        let mut runtimes = Runtimes::open(&both);
        let docker = tell(&mut runtimes, 0, "web");
        let _podman = tell(&mut runtimes, 1, "db");
        docker.send_modify(|snapshot| snapshot.error = Some(Unavailable::NotYet));
        let podman = discover(&format!("docker = false\npodman = {}", at("p")));
        let told = runtimes.told(&podman);
        assert_eq!((names(&told), told.lost.len(), told.is_complete), (vec!["db"], 0, true));
        assert_eq!(names(&runtimes.told(&both)), ["web", "db"]);
        let elsewhere = discover(&format!("docker = {}\npodman = {}", at("e"), at("p")));
        let told = runtimes.told(&elsewhere);
        assert_eq!((names(&told), told.is_complete), (vec!["web", "db"], false));
        assert!(runtimes.watched[0].snapshots.has_changed().unwrap());
        runtimes.take_note();
        assert!(!runtimes.watched[0].snapshots.has_changed().unwrap());
    }
}
