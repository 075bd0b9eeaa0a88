//! The container runtimes that the agent follows.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use tokio::sync::watch;
use weir_discovery::{
    Found, containerd, docker, merge,
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
}

type Change<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

impl Watched {
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
pub(super) struct Told {
    /// Each container once.
    pub(super) containers: Vec<Found>,
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
    pub(super) containers: usize,
    pub(super) error: Option<String>,
}

impl Runtimes {
    pub(super) fn open(discover: &Discover) -> Runtimes {
        let docker = discover.docker.iter().map(|socket| docker::watch(docker::Options::at(socket)));
        let podman = discover.podman.iter().map(|socket| docker::watch(docker::Options::podman(socket)));
        let containerd =
            discover.containerd.iter().map(|socket| containerd::watch(containerd::Options::at(socket)));
        let watchers = docker.chain(podman).chain(containerd);
        let watched = watchers.map(|watcher| Watched { snapshots: watcher.snapshots(), watcher });
        Runtimes { watched: watched.collect() }
    }

    /// The present containers.
    pub(super) fn told(&mut self) -> Told {
        let mut told =
            Told { containers: Vec::new(), warnings: Vec::new(), lost: Vec::new(), is_complete: true };
        for Watched { watcher, snapshots } in &mut self.watched {
            let snapshot = snapshots.borrow_and_update();
            told.containers.extend(snapshot.containers.iter().cloned());
            told.warnings.extend(snapshot.warnings.iter().map(ToString::to_string));
            told.lost.extend(snapshot.error.iter().map(|why| lost(watcher, why)));
            told.is_complete &= !matches!(snapshot.error, Some(Unavailable::NotYet));
        }
        told.containers = merge(told.containers);
        told
    }

    /// Has the runtimes looked at that tell of new containers late.
    pub(super) fn look(&self) {
        self.watched.iter().for_each(|watched| watched.watcher.look());
    }

    /// The warnings about runtimes that do not answer.
    pub(super) fn lost(&self) -> Vec<String> {
        let lost = |Watched { watcher, snapshots }: &Watched| {
            snapshots.borrow().error.as_ref().map(|why| lost(watcher, why))
        };
        self.watched.iter().filter_map(lost).collect()
    }

    /// The state of each runtime.
    pub(super) fn states(&self) -> Vec<State> {
        let state = |Watched { watcher, snapshots }: &Watched| {
            let snapshot = snapshots.borrow();
            State {
                name: format!("{} at {}", watcher.source(), watcher.socket().display()),
                containers: snapshot.containers.len(),
                error: snapshot.error.as_ref().map(ToString::to_string),
            }
        };
        self.watched.iter().map(state).collect()
    }

    /// Waits for the runtimes' first answers. Without them the agent would take the classes of their containers for
    /// leftovers, and would remove them with their queued packets.
    pub(super) async fn first_list(&mut self) {
        let end = tokio::time::Instant::now() + FIRST_LIST_TIMEOUT;
        for Watched { watcher, snapshots } in &mut self.watched {
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
