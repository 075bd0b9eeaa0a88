//! Follows containerd: all containers at first, then each one that changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use prost::Message;
use tokio::{
    sync::watch::{self, Sender},
    time::{Instant, timeout, timeout_at},
};

use super::{
    Client, List, Nothing, Unavailable,
    container::{Any, Entry, Labels, Told, is_dockers, wishes},
    grpc::Stream,
    image_labels, namespaces,
};
use crate::{
    Source, Warning, labels,
    node::Node,
    runtime::{self, Pauses, Snapshot, Watcher},
};

/// Where containerd's socket is unless the configuration says otherwise.
pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// The changes that are followed. Each names a container in its first field.
const TOPICS: [&str; 6] = [
    "/tasks/create",
    "/tasks/start",
    "/tasks/exit",
    "/tasks/delete",
    "/containers/update",
    "/containers/delete",
];
/// The most changed containers that are read one by one. Of more, all are listed.
const MAX_CHANGED: usize = 64;
/// The time after the first list when all is listed again: the stream of events may have begun after that list.
const SECOND_LIST: Duration = Duration::from_secs(1);

/// How to follow containerd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Its socket.
    pub socket: PathBuf,
    /// The time after a change for which others are awaited.
    pub settle: Duration,
    /// The time limit of an answer.
    pub time_limit: Duration,
    /// The longest pause between two attempts to reach containerd.
    pub pause: Duration,
    /// The time between two lists of everything.
    pub refresh: Duration,
}

impl Options {
    /// The usual times, with this socket.
    #[must_use]
    pub fn at(socket: impl Into<PathBuf>) -> Options {
        Options {
            socket: socket.into(),
            settle: Duration::from_millis(5),
            time_limit: Duration::from_secs(10),
            pause: Duration::from_secs(2),
            refresh: Duration::from_secs(60),
        }
    }
}

/// Starts to follow the containerd at a socket. Call it inside a tokio runtime.
#[must_use]
pub fn watch(options: Options) -> Watcher {
    let (sender, snapshots) = watch::channel(Snapshot::default());
    let socket = options.socket.clone();
    let watch = Watch { options, node: Node::here(), sender, entries: BTreeMap::new() };
    // Its events come at once.
    Watcher::new(Source::Containerd, socket, snapshots, Arc::default(), tokio::spawn(watch.run()))
}

#[derive(Clone, PartialEq, Message)]
struct Subscribe {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, optional, tag = "4")]
    event: Option<Any>,
}

/// The first field of each event.
#[derive(Clone, PartialEq, Message)]
struct About {
    #[prost(string, tag = "1")]
    container: String,
}

/// The question about one container or task.
#[derive(Clone, PartialEq, Message)]
struct ById {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct One<T: Message + Default + std::fmt::Debug> {
    #[prost(message, optional, tag = "1")]
    entry: Option<T>,
}

#[derive(Clone, PartialEq, Message)]
struct Process {
    #[prost(string, tag = "1")]
    container: String,
    #[prost(string, tag = "2")]
    id: String,
    #[prost(uint32, tag = "3")]
    pid: u32,
    #[prost(int32, tag = "4")]
    status: i32,
}

impl Process {
    /// Its id, unless it has ended: created, running, paused or being paused.
    fn lives(&self) -> Option<u32> {
        (self.pid != 0 && matches!(self.status, 1 | 2 | 4 | 5)).then_some(self.pid)
    }
}

/// A container's place in containerd: its namespace and its id.
type Key = (String, String);

struct Watch {
    options: Options,
    node: Node,
    sender: Sender<Snapshot>,
    /// The containers that have a process.
    entries: BTreeMap<Key, Entry>,
}

impl Watch {
    async fn run(mut self) -> Infallible {
        let mut pauses = Pauses::new(self.options.pause);
        loop {
            let Err(why) = self.session().await;
            pauses.after_loss(Source::Containerd, why.into(), &self.sender).await;
        }
    }

    /// Follows containerd for as long as it answers.
    async fn session(&mut self) -> Result<Infallible, Unavailable> {
        let limit = self.options.time_limit;
        let within = async |work: &mut (dyn Future<Output = Result<(), Unavailable>> + Send + Unpin)| {
            timeout(limit, work).await.map_err(|_| Unavailable::TimedOut(limit))?
        };
        let mut client = timeout(limit, Client::connect(&self.options.socket))
            .await
            .map_err(|_| Unavailable::TimedOut(limit))??;
        let filters = TOPICS.map(|topic| format!("topic=={topic:?}")).to_vec();
        let mut events =
            client.follow("containerd.services.events.v1.Events/Subscribe", &Subscribe { filters }).await?;
        within(&mut Box::pin(self.list(&mut client))).await?;
        self.publish();
        let mut everything = Instant::now() + SECOND_LIST;
        loop {
            match self.changes(&mut events, everything).await? {
                Some(changed) => {
                    for key in changed {
                        within(&mut Box::pin(self.read(&mut client, key))).await?;
                    }
                }
                None => {
                    within(&mut Box::pin(self.list(&mut client))).await?;
                    everything = Instant::now() + self.options.refresh;
                }
            }
            self.publish();
        }
    }

    /// Waits for a change, and gathers those that follow at once. `None` if all containers are to be listed: they are
    /// due, or too many changed.
    async fn changes(
        &self,
        events: &mut Stream,
        until: Instant,
    ) -> Result<Option<BTreeSet<Key>>, Unavailable> {
        let mut changed = BTreeSet::new();
        let mut end = until;
        while let Ok(envelope) = timeout_at(end, events.next::<Envelope>()).await {
            let Envelope { namespace, event } = envelope?;
            let about = event.and_then(|event| About::decode(&*event.value).ok());
            if let Some(About { container }) = about.filter(|about| !about.container.is_empty())
                && !is_dockers(&namespace)
            {
                if changed.is_empty() {
                    end = Instant::now() + self.options.settle;
                }
                changed.insert((namespace, container));
            }
        }
        let is_due = changed.is_empty() || changed.len() > MAX_CHANGED;
        Ok((!is_due).then_some(changed))
    }

    /// Reads all containers of all namespaces.
    async fn list(&mut self, client: &mut Client) -> Result<(), Unavailable> {
        let mut entries = BTreeMap::new();
        for namespace in namespaces(client).await?.into_iter().filter(|name| !is_dockers(name)) {
            let tasks: List<Process> =
                client.call("containerd.services.tasks.v1.Tasks/List", &namespace, &Nothing {}).await?;
            if tasks.entries.is_empty() {
                continue;
            }
            let id = |task: &Process| match task.container.as_str() {
                "" => task.id.clone(),
                container => container.to_owned(),
            };
            let pids: BTreeMap<String, u32> =
                tasks.entries.iter().filter_map(|task| Some((id(task), task.lives()?))).collect();
            let containers: List<Told> = client
                .call("containerd.services.containers.v1.Containers/List", &namespace, &Nothing {})
                .await?;
            for told in containers.entries {
                let Some(pid) = pids.get(&told.id) else { continue };
                let key = (namespace.clone(), told.id.clone());
                entries.insert(key, self.entry(client, &namespace, told, *pid).await?);
            }
        }
        self.entries = entries;
        Ok(())
    }

    /// Reads one container.
    async fn read(&mut self, client: &mut Client, key: Key) -> Result<(), Unavailable> {
        let (namespace, id) = &key;
        let question = ById { id: id.clone() };
        let task =
            client.call::<One<Process>>("containerd.services.tasks.v1.Tasks/Get", namespace, &question).await;
        let told = client
            .call::<One<Told>>("containerd.services.containers.v1.Containers/Get", namespace, &question)
            .await;
        let (task, told) = match (task, told) {
            (Err(why), _) | (_, Err(why)) if why.is_unknown() => {
                self.entries.remove(&key);
                return Ok(());
            }
            (task, told) => (task?.entry, told?.entry),
        };
        match (task.and_then(|task| task.lives()), told) {
            (Some(pid), Some(told)) => {
                let entry = self.entry(client, namespace, told, pid).await?;
                self.entries.insert(key, entry);
            }
            _ => {
                self.entries.remove(&key);
            }
        }
        Ok(())
    }

    async fn entry(
        &self,
        client: &mut Client,
        namespace: &str,
        told: Told,
        pid: u32,
    ) -> Result<Entry, Unavailable> {
        let has_ours = wishes(&told).keys().any(|key| labels::is_ours(key));
        let images: Result<Vec<Labels>, String> = if has_ours && !told.image.is_empty() {
            image_labels::of(client, namespace, &told.image).await.map_err(|why| why.to_string())
        } else {
            Ok(Vec::new())
        };
        Ok(Entry::read(namespace, told, pid, images, &self.node))
    }

    fn publish(&self) {
        let mut fresh = Snapshot { error: None, ..Snapshot::default() };
        for entry in self.entries.values() {
            match entry {
                Entry::InPod => {}
                Entry::Class { found, bad } => {
                    fresh.containers.push(found.as_ref().clone());
                    let bad = bad.iter().cloned();
                    let warning = |bad| Warning::Label { container: found.name.clone(), bad };
                    fresh.warnings.extend(bad.map(warning));
                }
                Entry::Unplaced(why) => fresh.warnings.push(why.clone()),
            }
        }
        runtime::publish(&self.sender, fresh);
    }
}

impl From<Unavailable> for runtime::Unavailable {
    fn from(why: Unavailable) -> runtime::Unavailable {
        match why {
            Unavailable::NoConnection { socket, source } => {
                runtime::Unavailable::NoConnection { socket, kind: source.kind() }
            }
            Unavailable::TimedOut(after) => {
                runtime::Unavailable::TimedOut { request: "a call".to_owned(), after }
            }
            Unavailable::Refused { method, status, said } => {
                runtime::Unavailable::broken(method, format!("status {status}, {said}"))
            }
            Unavailable::Broken { method, why } => runtime::Unavailable::broken(method, why),
        }
    }
}
