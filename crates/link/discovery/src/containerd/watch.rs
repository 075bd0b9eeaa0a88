//! Follows containerd: all containers at first, then each one that changes.

#[cfg(test)]
mod tests;

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
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};

use super::{
    Client, List, Nothing, Unavailable,
    container::{Any, Entry, Inherited, KIND, Labels, Told, inherited, is_dockers, wishes},
    grpc::Stream,
    image_labels, namespaces,
    task::{ById, GET_TASK, One, Process, Task, Verdict, judge, task},
};
use crate::{
    Source, Warning, labels,
    node::{Node, is_process_of},
    runtime::{self, Doubt, Pauses, Snapshot, Watcher},
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
/// The most tasks that are asked about at once.
const AT_ONCE: usize = 8;
/// The time limit of an answer about one task. containerd waits 2 s for a shim that hangs.
const TASK_TIMEOUT: Duration = Duration::from_secs(3);

const LIST_TASKS: &str = "containerd.services.tasks.v1.Tasks/List";
const LIST_CONTAINERS: &str = "containerd.services.containers.v1.Containers/List";
const GET_CONTAINER: &str = "containerd.services.containers.v1.Containers/Get";

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
    /// The first pause before a container that containerd did not tell of is asked about again.
    pub second_try: Duration,
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
            second_try: runtime::SECOND_TRY,
        }
    }
}

/// Starts to follow the containerd at a socket. Call it inside a tokio runtime.
#[must_use]
pub fn watch(options: Options) -> Watcher {
    watch_on(options, Node::here())
}

fn watch_on(options: Options, node: Node) -> Watcher {
    let (sender, snapshots) = watch::channel(Snapshot::default());
    let socket = options.socket.clone();
    let watch = Watch {
        options,
        node,
        sender,
        entries: BTreeMap::new(),
        doubtful: BTreeMap::new(),
        asks_singly: false,
        inherited: BTreeMap::new(),
    };
    // Its events come at once.
    Watcher::new(Source::Containerd, socket, snapshots, Arc::default(), tokio::spawn(watch.run()))
}

/// The question for events, or for containers.
#[derive(Clone, PartialEq, Message)]
struct Filters {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

/// A container in a list. All else of it is skipped.
#[derive(Clone, PartialEq, Message)]
struct Listed {
    #[prost(string, tag = "1")]
    id: String,
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

/// A container's place in containerd: its namespace and its id.
type Key = (String, String);

struct Watch {
    options: Options,
    node: Node,
    sender: Sender<Snapshot>,
    /// The containers that have a process, with its number.
    entries: BTreeMap<Key, (u32, Entry)>,
    /// The containers that containerd did not tell all of.
    doubtful: BTreeMap<Key, Doubt>,
    /// A list of tasks did not come in time, and there is a task of unknown state. containerd waits for each shim
    /// that hangs before it answers.
    asks_singly: bool,
    /// The labels of containers from their images, once an image was read. They stay while a container has no task.
    inherited: BTreeMap<Key, Inherited>,
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
            client.follow("containerd.services.events.v1.Events/Subscribe", &Filters { filters }).await?;
        // containerd may be another one, which answers.
        self.doubtful.clear();
        self.asks_singly = false;
        self.list(&mut client).await?;
        self.publish();
        let mut everything = Instant::now() + SECOND_LIST;
        let (mut probes, mut probed) = (JoinSet::new(), Vec::new());
        loop {
            if probes.is_empty() {
                self.note_tries(&probed);
                probed = self.due(Instant::now());
                if !probed.is_empty() {
                    probes.spawn(answering(self.options.socket.clone(), limit, probed.clone()));
                }
            }
            let changed = self.changes(&mut events, &mut probes, everything).await?;
            if changed.len() > MAX_CHANGED || everything <= Instant::now() {
                self.list(&mut client).await?;
                everything = Instant::now() + self.options.refresh;
            } else {
                for key in changed {
                    within(&mut Box::pin(self.read(&mut client, key))).await?;
                }
                self.forget_ended();
            }
            self.publish();
        }
    }

    /// Waits for a change, for the end of a probe or for the moment of the next one, and gathers the changes that follow at once.
    async fn changes(
        &self,
        events: &mut Stream,
        probes: &mut JoinSet<BTreeSet<Key>>,
        until: Instant,
    ) -> Result<BTreeSet<Key>, Unavailable> {
        let mut changed = BTreeSet::new();
        let mut end = until;
        if probes.is_empty() {
            end = self.doubtful.values().map(Doubt::next).min().map_or(until, |next| next.min(until));
        }
        loop {
            let envelope = tokio::select! {
                envelope = timeout_at(end, events.next::<Envelope>()) => envelope,
                Some(answering) = probes.join_next() => {
                    changed.extend(answering.unwrap_or_default());
                    break;
                }
            };
            let Ok(envelope) = envelope else { break };
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
        Ok(changed)
    }

    /// Reads all containers of all namespaces that have a task, or had one.
    async fn list(&mut self, client: &mut Client) -> Result<(), Unavailable> {
        let mut listed = BTreeSet::new();
        let limit = self.options.time_limit;
        let late = |_| Unavailable::TimedOut(limit);
        let namespaces = timeout(limit, namespaces(client)).await.map_err(late)??;
        for namespace in namespaces.into_iter().filter(|name| !is_dockers(name)) {
            let (tasks, asked) = match self.list_tasks(client, &namespace).await? {
                Some(tasks) => (tasks, LIST_TASKS),
                None => {
                    let mut ids = timeout(limit, self.ids(client, &namespace)).await.map_err(late)??;
                    // Known containers in pods have a task, too.
                    ids.extend(self.known(&namespace));
                    (self.ask_singly(client, &namespace, ids).await?, GET_TASK)
                }
            };
            let ids: BTreeSet<String> = tasks.keys().cloned().chain(self.known(&namespace)).collect();
            for id in ids {
                let task = tasks.get(&id).copied().unwrap_or(Task::Unlisted);
                let key = (namespace.clone(), id);
                listed.insert(key.clone());
                timeout(limit, self.look(client, key, (task, asked))).await.map_err(late)??;
            }
        }
        self.entries.retain(|key, _| listed.contains(key));
        self.doubtful.retain(|key, _| listed.contains(key));
        self.inherited.retain(|key, _| listed.contains(key));
        let is_any_unknown = self.unknown().next().is_some();
        self.asks_singly &= is_any_unknown;
        Ok(())
    }

    /// The known containers of a namespace.
    fn known(&self, namespace: &str) -> Vec<String> {
        let keys = self.entries.keys().chain(self.doubtful.keys()).chain(self.inherited.keys());
        keys.filter(|(of, _)| of == namespace).map(|(_, id)| id.clone()).collect()
    }

    /// The containers of a namespace that are no containers in a pod. If the specifications are more than one answer
    /// holds, only known ones are told: an event tells of another.
    async fn ids(&self, client: &mut Client, namespace: &str) -> Result<Vec<String>, Unavailable> {
        let outside_pods = Filters { filters: vec![format!("labels.{KIND:?}!=container")] };
        match client.call::<List<Listed>>(LIST_CONTAINERS, namespace, &outside_pods).await {
            Err(why) if why.is_too_large() => Ok(self.known(namespace)),
            listed => Ok(listed?.entries.into_iter().map(|listed| listed.id).collect()),
        }
    }

    /// The states of all tasks of a namespace, by container. `None` if the tasks are to be asked about one by one.
    async fn list_tasks(
        &mut self,
        client: &mut Client,
        namespace: &str,
    ) -> Result<Option<BTreeMap<String, Task>>, Unavailable> {
        if self.asks_singly {
            return Ok(None);
        }
        let list = client.call::<List<Process>>(LIST_TASKS, namespace, &Nothing {});
        let Ok(tasks) = timeout(self.options.time_limit, list).await else {
            self.asks_singly = true;
            return Ok(None);
        };
        let id = |task: &Process| match task.container.as_str() {
            "" => task.id.clone(),
            container => container.to_owned(),
        };
        Ok(Some(tasks?.entries.iter().map(|task| (id(task), task.state())).collect()))
    }

    /// The states of the tasks of containers, which are asked about one by one. The state of one that is not told in
    /// time is unknown. A container of unknown state is not asked about: a probe does that.
    async fn ask_singly(
        &self,
        client: &Client,
        namespace: &str,
        containers: Vec<String>,
    ) -> Result<BTreeMap<String, Task>, Unavailable> {
        let mut states: BTreeMap<String, Task> =
            containers.into_iter().map(|id| (id, Task::Unknown)).collect();
        let unknown: BTreeSet<&Key> = self.unknown().collect();
        let key = |id: &String| (namespace.to_owned(), id.clone());
        let mut unasked: Vec<String> =
            states.keys().filter(|id| !unknown.contains(&key(id))).cloned().collect();
        // The last one is asked about first. A container without an entry has no class yet.
        unasked.sort_by_key(|id| !self.entries.contains_key(&key(id)));
        let end = Instant::now() + self.options.time_limit;
        let mut asked = JoinSet::new();
        loop {
            while asked.len() < AT_ONCE
                && let Some(id) = unasked.pop()
            {
                let (mut client, namespace) = (client.clone(), namespace.to_owned());
                asked.spawn(async move {
                    let state = timeout(TASK_TIMEOUT, task(&mut client, &namespace, &id)).await;
                    (id, state.unwrap_or(Ok(Task::Unknown)))
                });
            }
            let Ok(Some(done)) = timeout_at(end, asked.join_next()).await else { return Ok(states) };
            let (id, state) = done.expect("asking does not panic, nor is it stopped");
            states.insert(id, state?);
        }
    }

    /// Reads one container.
    async fn read(&mut self, client: &mut Client, key: Key) -> Result<(), Unavailable> {
        let (namespace, id) = &key;
        let task = task(client, namespace, id).await?;
        self.look(client, key, (task, GET_TASK)).await
    }

    /// Asks about one container, and takes the answer. The specifications of all containers together may be larger than
    /// an answer, and one that is too large alone costs its container alone.
    async fn look(
        &mut self,
        client: &mut Client,
        key: Key,
        (task, asked): (Task, &str),
    ) -> Result<(), Unavailable> {
        // A container in a pod stays one.
        if let (Task::Lives(pid), Some((known, Entry::InPod))) = (task, self.entries.get(&key))
            && pid == *known
        {
            self.doubtful.remove(&key);
            return Ok(());
        }
        let (namespace, id) = &key;
        let question = ById { id: id.clone() };
        match client.call::<One<Told>>(GET_CONTAINER, namespace, &question).await {
            Ok(One { entry: Some(told) }) => return self.take(client, key, (task, asked), told).await,
            Err(why) if why.is_too_large() && task != Task::Ended => {
                let before = self.doubtful.remove(&key);
                let doubt = self.doubt(before, why.into());
                self.doubtful.insert(key, doubt);
                return Ok(());
            }
            Err(why) if !why.is_unknown() && !why.is_too_large() => return Err(why),
            Ok(One { entry: None }) | Err(_) => {}
        }
        self.entries.remove(&key);
        self.doubtful.remove(&key);
        self.inherited.remove(&key);
        Ok(())
    }

    /// The doubt about a container for a reason. A probe counts the questions.
    fn doubt(&self, before: Option<Doubt>, why: runtime::Unavailable) -> Doubt {
        match before {
            Some(before) => before.because(why),
            None => Doubt::after_try(why, None, self.options.second_try, Instant::now()),
        }
    }

    /// Takes what containerd says of a container, and of its task in the answer to `asked`.
    async fn take(
        &mut self,
        client: &mut Client,
        key: Key,
        (task, asked): (Task, &str),
        told: Told,
    ) -> Result<(), Unavailable> {
        let before = self.doubtful.remove(&key);
        let verdict = judge(task, || self.has_process(&key));
        match verdict {
            Verdict::Read(pid) => {
                let images = images(client, &key.0, &told).await;
                // An image that is not there does not come back.
                let images = images.map_err(|why| (why.is_unknown(), runtime::Unavailable::from(why)));
                let doubt = images.as_ref().err().filter(|(is_gone, _)| !is_gone).map(|(_, why)| why.clone());
                let inherited = inherited(self.inherited.get(&key), &told.labels, images);
                let known = inherited.as_ref().map_err(|(_, why)| why.to_string());
                let entry = Entry::read(&key.0, told, pid, known, &self.node);
                self.inherited.extend(inherited.ok().map(|inherited| (key.clone(), inherited)));
                if let (Some(why), Entry::Class { .. }) = (doubt, &entry) {
                    let doubt = self.doubt(before, why);
                    self.doubtful.insert(key.clone(), doubt);
                }
                self.entries.insert(key, (pid, entry));
                return Ok(());
            }
            Verdict::Keep => {}
            Verdict::Forget | Verdict::ForgetAndAsk => {
                self.entries.remove(&key);
            }
        }
        if verdict != Verdict::Forget {
            let doubt = self.doubt(before, runtime::Unavailable::NoState { request: asked.to_owned() });
            self.doubtful.insert(key, doubt);
        }
        Ok(())
    }

    /// Whether a container still has the process that it had.
    fn has_process(&self, key: &Key) -> bool {
        self.entries.get(key).is_some_and(|(pid, _)| is_process_of(&key.1, *pid, &self.node))
    }

    /// The containers of unknown state.
    fn unknown(&self) -> impl Iterator<Item = &Key> {
        let is_unknown = |doubt: &Doubt| matches!(doubt.why, runtime::Unavailable::NoState { .. });
        self.doubtful.iter().filter(move |(_, doubt)| is_unknown(doubt)).map(|(key, _)| key)
    }

    /// The doubtful containers that are to be asked about now.
    fn due(&self, now: Instant) -> Vec<Key> {
        self.doubtful.iter().filter(|(_, doubt)| doubt.is_due(now)).map(|(key, _)| key.clone()).collect()
    }

    /// Puts off the next questions about containers that were asked about and are still doubtful.
    fn note_tries(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some(doubt) = self.doubtful.get_mut(key) {
                let (why, first) = (doubt.why.clone(), self.options.second_try);
                *doubt = Doubt::after_try(why, Some(&*doubt), first, Instant::now());
            }
        }
    }

    /// Forgets the containers of unknown state whose process has ended.
    fn forget_ended(&mut self) {
        let ended: Vec<Key> = self.unknown().filter(|key| !self.has_process(key)).cloned().collect();
        for key in ended {
            self.entries.remove(&key);
        }
    }

    fn publish(&self) {
        let mut fresh = Snapshot { error: None, ..Snapshot::default() };
        for (_, entry) in self.entries.values() {
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
        let doubts = self.doubtful.iter();
        let warning =
            |((_, id), doubt): (&Key, &Doubt)| Warning::NoAnswer { id: id.clone(), why: doubt.why.clone() };
        fresh.warnings.extend(doubts.map(warning));
        runtime::publish(&self.sender, fresh);
    }
}

/// Asks for the labels of a container's image, unless none of the container's labels is weir's.
async fn images(client: &mut Client, namespace: &str, told: &Told) -> Result<Vec<Labels>, Unavailable> {
    let has_ours = wishes(told).keys().any(|key| labels::is_ours(key));
    if has_ours && !told.image.is_empty() {
        image_labels::of(client, namespace, &told.image).await
    } else {
        Ok(Vec::new())
    }
}

/// Asks about doubtful containers; those that containerd tells of again. A connection of its own leaves the changes of
/// other containers in time: containerd waits 2 s for a shim that hangs.
async fn answering(socket: PathBuf, limit: Duration, keys: Vec<Key>) -> BTreeSet<Key> {
    let Ok(Ok(client)) = timeout(limit, Client::connect(&socket)).await else { return BTreeSet::new() };
    let (mut answering, mut asked, mut keys) = (BTreeSet::new(), JoinSet::new(), keys.into_iter());
    loop {
        while asked.len() < AT_ONCE
            && let Some(key) = keys.next()
        {
            let mut client = client.clone();
            asked.spawn(async move {
                let state = timeout(limit, task(&mut client, &key.0, &key.1)).await;
                matches!(state, Ok(Ok(Task::Lives(_) | Task::Ended))).then_some(key)
            });
        }
        let Some(done) = asked.join_next().await else { return answering };
        answering.extend(done.ok().flatten());
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
            Unavailable::Refused { method, status, said } => match status.parse() {
                Ok(status) => runtime::Unavailable::Refused { request: method.to_owned(), status, said },
                Err(_) => runtime::Unavailable::broken(method, format!("status {status}, {said}")),
            },
            Unavailable::TooLarge { method } => runtime::Unavailable::garbled(method, "it is too large"),
            Unavailable::Broken { method, why } => runtime::Unavailable::broken(method, why),
        }
    }
}
