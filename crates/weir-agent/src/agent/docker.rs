//! The watch of Docker's containers.

use std::time::Duration;

use tokio::sync::watch;
use weir_discovery::docker::{self, Snapshot};

use crate::{
    config::Config,
    images::runtime::{Wanted, notes_file},
};

/// How long the agent waits for Docker's first list of containers before it starts without one. Until
/// then the kernel keeps the state of an earlier agent.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// Docker's containers, if the configuration discovers them.
#[derive(Default)]
pub(super) struct DockerWatch {
    /// It watches as long as it lives.
    _watcher: Option<docker::Watcher>,
    snapshots: Option<watch::Receiver<Snapshot>>,
}

impl DockerWatch {
    pub(super) fn open(config: &Config) -> DockerWatch {
        let watcher =
            config.discover.docker.as_ref().map(|socket| docker::watch(docker::Options::at(socket)));
        DockerWatch { snapshots: watcher.as_ref().map(docker::Watcher::snapshots), _watcher: watcher }
    }

    /// The present containers. `None` if Docker is not watched.
    pub(super) fn snapshot(&mut self) -> Option<Snapshot> {
        self.snapshots.as_mut().map(|snapshots| snapshots.borrow_and_update().clone())
    }

    /// Waits for Docker's first answer. Without it the agent would take the classes of Docker's
    /// containers for leftovers, and would remove them with their queued packets.
    pub(super) async fn first_list(&mut self) {
        let Some(snapshots) = &mut self.snapshots else { return };
        let answered = snapshots.wait_for(|s| !matches!(s.error, Some(docker::Unavailable::NotYet)));
        if tokio::time::timeout(FIRST_LIST_TIMEOUT, answered).await.is_err() {
            tracing::warn!(
                "docker has not answered within {FIRST_LIST_TIMEOUT:?}: its containers follow when it does"
            );
        }
    }

    /// Waits for Docker to report a change, or without end if Docker is not watched.
    pub(super) async fn changed(&mut self) {
        if let Some(snapshots) = &mut self.snapshots
            && snapshots.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

/// The budget of Docker's images; none without `[images.runtime]`. It is the agent's also where another
/// process serves the cache, as that may not ask Docker.
pub(super) fn images_wanted(config: &Config) -> Option<Wanted> {
    let images = config.images.as_ref()?;
    let settings = images.runtime.clone()?;
    let socket = settings.docker.clone().or_else(|| config.discover.docker.clone())?;
    Some(Wanted { settings, socket, notes: notes_file(&config.agent.state), listen: images.listen })
}
