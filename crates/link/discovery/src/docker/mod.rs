//! Containers that dockerd tells of: a list at first, then a fresh one after each change.
//!
//! [`watch()`] starts a task; its [`Snapshot`]s come over a channel that keeps the latest. A
//! daemon that is not there, hangs, restarts or talks nonsense is a state, not a failure: the
//! containers known before stay, because they run on while dockerd restarts.

mod api;
mod container;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
pub mod images;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{
        Notify,
        watch::{self, Sender},
    },
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use self::{
    api::{Api, Events, ImageError, Labels},
    container::Entry,
};
pub use crate::runtime::{Snapshot, Unavailable, Watcher};
use crate::{
    Source, Warning,
    node::Node,
    runtime::{self, Doubt, Settle},
};

/// Where Docker's socket is unless the configuration says otherwise.
pub const SOCKET: &str = "/var/run/docker.sock";

/// How to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The runtime: Docker, or Podman, which answers as Docker does.
    pub source: Source,
    /// Its socket.
    pub socket: PathBuf,
    /// How long after a change others are awaited, to be answered by one snapshot.
    pub settle: Duration,
    /// How long dockerd may take for an answer; for one container's a quarter of it.
    pub time_limit: Duration,
    /// The longest pause between two attempts to reach dockerd.
    pub pause: Duration,
    /// The time between two readings of everything, in case an event was lost.
    pub refresh: Duration,
    /// The first pause before a container that could not be read, or whose image could not, is asked about again.
    pub second_try: Duration,
    /// Its events come late. [`Watcher::look`] has it asked before.
    pub tells_late: bool,
}

impl Options {
    /// The usual times, with this socket.
    #[must_use]
    pub fn at(socket: impl Into<PathBuf>) -> Options {
        Options {
            source: Source::Docker,
            socket: socket.into(),
            settle: Duration::from_millis(50),
            time_limit: Duration::from_secs(10),
            pause: Duration::from_secs(2),
            refresh: Duration::from_secs(60),
            second_try: runtime::SECOND_TRY,
            tells_late: false,
        }
    }

    /// The same of Podman's socket. Podman 4 tells of a start a fifth of a second late.
    #[must_use]
    pub fn podman(socket: impl Into<PathBuf>) -> Options {
        Options { source: Source::Podman, tells_late: true, ..Options::at(socket) }
    }
}

/// Starts to watch the daemon at a socket. Call it inside a tokio runtime.
#[must_use]
pub fn watch(options: Options) -> Watcher {
    watch_on(options, Node::here())
}

/// The images that containers have, also those that do not run: Docker's ids of images, which are
/// digests of configurations or manifests.
///
/// # Errors
/// [`Unavailable`].
pub async fn images_in_use(options: &Options) -> Result<Vec<String>, Unavailable> {
    api::Api::connect(options.socket.clone(), options.time_limit).await?.images().await
}

fn watch_on(options: Options, node: Node) -> Watcher {
    let (sender, snapshots) = watch::channel(Snapshot::default());
    let (source, socket) = (options.source, options.socket.clone());
    let look = Arc::new(Notify::new());
    let watch = Watch {
        options,
        node,
        sender,
        entries: BTreeMap::new(),
        doubtful: BTreeMap::new(),
        look: Arc::clone(&look),
        next_look: None,
    };
    Watcher::new(source, socket, snapshots, look, tokio::spawn(watch.run()))
}

/// How many containers are asked about at once.
const AT_ONCE: usize = 8;

/// The most events that are read between two lists.
const FLOOD: usize = 1024;
/// How long nothing is read after that.
const FLOOD_PAUSE: Duration = Duration::from_secs(2);
/// The pauses, ms, before a runtime is asked whether a new interface is that of a container.
const LOOKS: [u64; 6] = [20, 40, 60, 80, 120, 180];

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

struct Watch {
    options: Options,
    node: Node,
    sender: Sender<Snapshot>,
    /// The running containers, by id.
    entries: BTreeMap<String, Entry>,
    /// Those that the last reading did not tell all of.
    doubtful: BTreeMap<String, Doubt>,
    /// A container seems to be new.
    look: Arc<Notify>,
    /// The index of the next one of [`LOOKS`], and its moment.
    next_look: Option<(usize, Instant)>,
}

impl Watch {
    async fn run(mut self) -> Infallible {
        let mut pauses = runtime::Pauses::new(self.options.pause);
        loop {
            let Err(why) = self.session().await;
            pauses.after_loss(self.options.source, why, &self.sender).await;
        }
    }

    /// Follows a daemon for as long as it answers.
    async fn session(&mut self) -> Result<Infallible, Unavailable> {
        // From before the list, so that no change falls between; a second more, as the
        // daemon's clock is read in whole ones.
        let since = now_s();
        let api = Api::connect(self.options.socket.clone(), self.options.time_limit).await?;
        let api = Arc::new(api);
        let mut events = api.events(since.saturating_sub(1)).await?;
        let mut settle = Settle::new(self.options.settle);
        let mut everything = Instant::now();
        let mut changed = BTreeSet::new();
        // The daemon may be another one, which answers.
        self.doubtful.clear();
        loop {
            if everything <= Instant::now() {
                changed = self.entries.keys().cloned().collect();
                everything = Instant::now() + self.options.refresh;
            }
            self.read(&api, changed).await?;
            self.publish();
            let until =
                self.doubtful.values().map(Doubt::next).min().map_or(everything, |next| next.min(everything));
            let waits = Instant::now();
            let Some(told) = self.changes(&mut events, until, settle.present()).await? else {
                // The events are more than the agent reads: it reads all containers again.
                sleep(FLOOD_PAUSE).await;
                events = api.events(now_s()).await?;
                everything = Instant::now();
                changed = BTreeSet::new();
                continue;
            };
            // A change right after a change: the next ones are gathered for longer.
            if !told.is_empty() {
                settle.note(waits.elapsed());
            }
            // An event without an id: any container may be another one.
            if told.contains("") {
                everything = Instant::now();
            }
            changed = told;
        }
    }

    /// Waits for a change, no longer than to a moment or to the next look, then for those that follow closely;
    /// the ids of what changed. None if more is told than is read.
    async fn changes(
        &mut self,
        events: &mut Events,
        until: Instant,
        settle: Duration,
    ) -> Result<Option<BTreeSet<String>>, Unavailable> {
        let mut changed = BTreeSet::new();
        let mut end = self.next_look.map_or(until, |(_, at)| until.min(at));
        let mut told = 0;
        loop {
            let event = tokio::select! {
                event = timeout_at(end, events.next()) => event,
                () = self.look.notified(), if self.options.tells_late => {
                    let first = Instant::now() + Duration::from_millis(LOOKS[0]);
                    self.next_look = Some((0, first));
                    end = end.min(first);
                    continue;
                }
            };
            let Ok(event) = event else { break };
            if changed.is_empty() {
                end = Instant::now() + settle;
            }
            changed.insert(event?);
            told += 1;
            if told > FLOOD {
                return Ok(None);
            }
        }
        if let Some((number, _)) = self.next_look.filter(|(_, at)| *at <= Instant::now()) {
            let pause = LOOKS.get(number + 1);
            self.next_look = pause.map(|ms| (number + 1, Instant::now() + Duration::from_millis(*ms)));
        }
        Ok(Some(changed))
    }

    /// Lists the containers, and reads those that are new or changed, and the doubtful ones that are due.
    async fn read(&mut self, api: &Arc<Api>, changed: BTreeSet<String>) -> Result<(), Unavailable> {
        let running: BTreeSet<String> = api.running().await?.into_iter().collect();
        self.entries.retain(|id, _| running.contains(id));
        self.doubtful.retain(|id, _| running.contains(id));
        let now = Instant::now();
        let stale = |id: &String| match self.doubtful.get(id) {
            Some(doubt) => changed.contains(id) || doubt.is_due(now),
            None => changed.contains(id) || !self.entries.contains_key(id),
        };
        let mut unread: Vec<String> = running.into_iter().filter(stale).collect();

        let mut asked = JoinSet::new();
        loop {
            while asked.len() < AT_ONCE
                && let Some(id) = unread.pop()
            {
                let api = api.clone();
                asked.spawn(async move {
                    let answer = api.inspect(&id).await;
                    let image = match &answer {
                        Ok(Some(inspected)) if inspected.has_our_labels() => {
                            api.image_labels(inspected).await
                        }
                        _ => Ok(Labels::new()),
                    };
                    (id, answer, image)
                });
            }
            let Some(done) = asked.join_next().await else { break };
            let (id, answer, image) = done.expect("asking does not panic, nor is it stopped");
            let before = self.doubtful.remove(&id);
            let doubt = |why| Doubt::after_try(why, before.as_ref(), self.options.second_try, Instant::now());
            match answer {
                Ok(Some(inspected)) => {
                    if let Some(why) = image.as_ref().err().and_then(ImageError::passing) {
                        self.doubtful.insert(id.clone(), doubt(why.clone()));
                    }
                    let image = image.map_err(|why| why.to_string());
                    let mut entry = Entry::read(inspected, image, (self.options.source, &self.node));
                    entry.keep_from_image(self.entries.get(&id));
                    self.entries.insert(id, entry);
                }
                Ok(None) => {
                    self.entries.remove(&id);
                }
                Err(why) if why.is_local() => {
                    self.doubtful.insert(id, doubt(why));
                }
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn publish(&self) {
        let names: BTreeMap<&str, &str> =
            self.entries.iter().filter_map(|(id, entry)| Some((id.as_str(), entry.name()?))).collect();
        let mut fresh = Snapshot { containers: Vec::new(), warnings: Vec::new(), error: None };
        for entry in self.entries.values() {
            match entry {
                Entry::NotRunning => {}
                Entry::Sharer { found, bad } => {
                    fresh.containers.push(found.as_ref().clone());
                    fresh.warnings.extend(
                        bad.iter()
                            .map(|bad| Warning::Label { container: found.name.clone(), bad: bad.clone() }),
                    );
                }
                Entry::Joined { name, owner } => fresh.warnings.push(Warning::SharesNetwork {
                    container: name.clone(),
                    owner: names.get(owner.as_str()).map_or(owner.clone(), |name| (*name).to_owned()),
                }),
                Entry::Unplaced(why) => fresh.warnings.push(why.clone()),
            }
        }
        let doubts = self.doubtful.iter();
        let warning =
            |(id, doubt): (&String, &Doubt)| Warning::NoAnswer { id: id.clone(), why: doubt.why.clone() };
        fresh.warnings.extend(doubts.map(warning));
        runtime::publish(&self.sender, fresh);
    }
}
