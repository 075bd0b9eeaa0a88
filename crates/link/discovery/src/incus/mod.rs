//! Instances of Incus and LXD with their keys `user.weir.*`: a list at first, then a fresh one after each change.
//!
//! [`crate::lxc`] finds a container, also while the daemon is away, and the keys are its labels. A virtual machine is
//! found here, by its interfaces on the host.

mod api;
#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch::{self, Sender},
    time::{Instant, sleep, timeout_at},
};

use self::api::{Events, Instance};
use crate::{
    BadLabel, Found, Location, Source, Warning, labels,
    runtime::{self, Pauses, Settle, Snapshot, Unavailable, Watcher},
};

/// Where the socket of Incus is unless the configuration says otherwise.
pub const SOCKET: &str = "/var/lib/incus/unix.socket";

/// The most changes that are read between two lists.
const FLOOD: usize = 1024;
/// How long nothing is read after that.
const FLOOD_PAUSE: Duration = Duration::from_secs(2);

/// How to follow Incus or LXD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Its socket.
    pub socket: PathBuf,
    /// The time after a change for which others are awaited.
    pub settle: Duration,
    /// The time limit of an answer.
    pub time_limit: Duration,
    /// The longest pause between two attempts to reach it.
    pub pause: Duration,
    /// The life of a connection, after which all is listed again.
    pub refresh: Duration,
}

impl Options {
    /// The usual times, with this socket.
    #[must_use]
    pub fn at(socket: impl Into<PathBuf>) -> Options {
        Options {
            socket: socket.into(),
            settle: Duration::from_millis(50),
            time_limit: Duration::from_secs(10),
            pause: Duration::from_secs(2),
            refresh: Duration::from_secs(60),
        }
    }
}

/// Starts to follow the daemon at a socket. Call it inside a tokio runtime.
#[must_use]
pub fn watch(options: Options) -> Watcher {
    let (sender, snapshots) = watch::channel(Snapshot::default());
    let socket = options.socket.clone();
    let task = tokio::spawn(Watch { options, sender }.run());
    // Its events come at once.
    Watcher::new(Source::Incus, socket, snapshots, Arc::default(), task)
}

struct Watch {
    options: Options,
    sender: Sender<Snapshot>,
}

impl Watch {
    async fn run(self) -> Infallible {
        let mut pauses = Pauses::new(self.options.pause);
        loop {
            if let Err(why) = self.session().await {
                pauses.after_loss(Source::Incus, why, &self.sender).await;
            }
        }
    }

    /// Follows the daemon for the life of a connection. A connection that tells nothing any more ends with it.
    async fn session(&self) -> Result<(), Unavailable> {
        let end = Instant::now() + self.options.refresh;
        // From before the list, so that no change falls between.
        let mut events = Events::open(&self.options).await?;
        let member = api::member(&self.options).await?;
        let mut settle = Settle::new(self.options.settle);
        loop {
            let mut instances = api::list(&self.options).await?;
            instances.retain(|instance| instance.is_on(&member));
            runtime::publish(&self.sender, snapshot(instances, &containers_of(&self.options.socket)));
            let waits = Instant::now();
            if !changes(&mut events, end, settle.present()).await? {
                return Ok(());
            }
            settle.note(waits.elapsed());
        }
    }
}

/// Waits for a change, then for those that follow closely. False at the end of the connection's life, or if more is
/// told than is read.
async fn changes(events: &mut Events, end: Instant, settle: Duration) -> Result<bool, Unavailable> {
    let (mut end, mut told) = (end, 0);
    while let Ok(change) = timeout_at(end, events.change()).await {
        change?;
        if told == 0 {
            end = Instant::now() + settle;
        }
        told += 1;
        if told > FLOOD {
            sleep(FLOOD_PAUSE).await;
            return Ok(false);
        }
    }
    Ok(told > 0)
}

/// The directory of the daemon's containers, which their monitors name. It is beside the socket, or in /var/lib if the
/// socket is in /run.
fn containers_of(socket: &Path) -> PathBuf {
    let home = socket.parent().unwrap_or(Path::new("/"));
    let home = home.strip_prefix("/run").map_or(home.to_owned(), |name| Path::new("/var/lib").join(name));
    home.join("containers")
}

/// The containers that are there, also those that do not run: their keys count from a start on. Of virtual machines,
/// those that run on this node.
fn snapshot(instances: Vec<Instance>, containers: &Path) -> Snapshot {
    let mut fresh = Snapshot { containers: Vec::new(), warnings: Vec::new(), error: None };
    for instance in instances {
        let location = match instance.is_machine() {
            false => Location::Monitor(containers.to_owned()),
            true if instance.runs() => Location::Interfaces(instance.interfaces()),
            true => continue,
        };
        let (name, labels) = (instance.full_name(), instance.labels());
        let (policy, group, bad) = labels::parse(&labels);
        if instance.runs() {
            let warning = |bad: BadLabel| {
                let bad = BadLabel { label: format!("user.{}", bad.label), ..bad };
                Warning::Label { container: name.clone(), bad }
            };
            fresh.warnings.extend(bad.into_iter().map(warning));
        }
        let found = Found::new(name.clone(), name, Source::Incus, location);
        fresh.containers.push(Found { labels, policy, group, ..found });
    }
    fresh
}
