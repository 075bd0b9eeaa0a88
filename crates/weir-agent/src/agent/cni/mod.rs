//! The attachments that `weir cni` reported: kept over a restart of the agent, forgotten with their
//! namespaces.

mod answer;
mod files;
pub(super) mod wishes;

#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use weir_api::{CniAttachment, CniKeep, CniKey, Error, ErrorCode, Wish};
use weir_discovery::{Found, Location, NetnsRef, NsId, Source};

pub use self::answer::CniRequest;
use self::{answer::Waiting, files::Files, wishes::Wishes};
use super::pods::{PodId, PodWishes};
use crate::config::is_name;

/// The most attachments that the agent knows.
const MAX_KNOWN: usize = 4_096;
/// Bounds of the parts of an attachment: the number of wishes and addresses, and bytes of a text.
const MAX_WISHES: usize = 64;
const MAX_ADDRESSES: usize = 16;
const MAX_TEXT: usize = 512;
/// The longest id of a container: a file's name has room for an interface beside it.
const MAX_CONTAINER: usize = 200;

/// A reported attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    attachment: CniAttachment,
    /// The device of the namespace's file.
    dev: u64,
    /// The boot in which the namespace exists.
    boot_id: String,
    /// The position in the order of reports.
    sequence: u64,
    /// Whether an interface on the host's side led to the namespace.
    had_port: bool,
}

impl Record {
    fn namespace(&self) -> NsId {
        NsId { dev: self.dev, ino: self.attachment.inode }
    }

    /// The name of its class while no other container has the same one.
    fn name(&self) -> String {
        let CniAttachment { key, namespace, pod, .. } = &self.attachment;
        let name = match (namespace, pod) {
            (Some(namespace), Some(pod)) => format!("{namespace}/{pod}"),
            (None, Some(pod)) => pod.clone(),
            (_, None) => String::new(),
        };
        if is_name(&name) { name } else { key.container.clone() }
    }
}

/// The fate of a reported namespace at a discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// An interface on the host's side leads to it.
    HasPort,
    /// No interface does.
    NoPort,
    /// The namespace is gone.
    Gone,
}

/// All attachments.
pub(super) struct CniContainers {
    records: BTreeMap<CniKey, Record>,
    files: Files,
    boot_id: String,
    sequence: u64,
    /// The callers that wait until their class is in force.
    waiting: Vec<Waiting>,
    /// The reason if the last write to the disk failed.
    failure: Option<String>,
}

fn bad(message: String) -> Error {
    Error::new(ErrorCode::BadRequest, message)
}

/// Refuses an identity that CNI does not allow. It becomes a file's name.
fn check_key(key: &CniKey) -> Result<(), Error> {
    let CniKey { container, interface } = key;
    let ok = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let is_id = container.starts_with(|c: char| c.is_ascii_alphanumeric()) && container.chars().all(ok);
    if !is_id || container.len() > MAX_CONTAINER {
        return Err(bad(format!(
            "`{}` is not the id of a container: a letter or digit, then those and _ . - only, {MAX_CONTAINER} at most",
            container.escape_debug()
        )));
    }
    let is_free = |c: char| c.is_ascii_graphic() && c != '/' && c != ':';
    let is_interface = (1..=15).contains(&interface.len()) && interface.chars().all(is_free);
    if !is_interface || interface == "." || interface == ".." {
        return Err(bad(format!(
            "`{}` is not the name of an interface: 1 to 15 ASCII characters without space, / and :",
            interface.escape_debug()
        )));
    }
    Ok(())
}

fn check(attachment: &CniAttachment) -> Result<(), Error> {
    check_key(&attachment.key)?;
    let CniAttachment { network, namespace, pod, uid, addresses, wishes, .. } = attachment;
    let texts = wishes.iter().flat_map(|wish| [&wish.key, &wish.value]);
    if let Some(long) =
        texts.chain(namespace).chain(pod).chain(uid).chain([network]).find(|t| t.len() > MAX_TEXT)
    {
        return Err(bad(format!("a text has {} bytes: at most {MAX_TEXT}", long.len())));
    }
    if wishes.len() > MAX_WISHES || addresses.len() > MAX_ADDRESSES {
        let (wishes, addresses) = (wishes.len(), addresses.len());
        return Err(bad(format!(
            "{wishes} wishes and {addresses} addresses: at most {MAX_WISHES} and {MAX_ADDRESSES}"
        )));
    }
    Ok(())
}

impl CniContainers {
    /// The attachments that an earlier agent kept in its directory of state.
    pub(super) fn open(state: &Path, boot_id: String) -> CniContainers {
        let files = Files::at(state.join("cni"));
        let read = files.read(&boot_id).into_iter();
        let records: BTreeMap<CniKey, Record> =
            read.map(|record| (record.attachment.key.clone(), record)).collect();
        let sequence = records.values().map(|record| record.sequence).max().unwrap_or(0);
        CniContainers { records, files, boot_id, sequence, waiting: Vec::new(), failure: None }
    }

    /// The reason if attachments are not kept over a restart.
    pub(super) fn failure(&self) -> Option<&String> {
        self.failure.as_ref()
    }

    /// Takes a report in place of an earlier one of the same attachment. `netns` is its namespace.
    fn put(&mut self, attachment: CniAttachment, netns: &NetnsRef) -> Result<(), Error> {
        check(&attachment)?;
        let key = attachment.key.clone();
        if self.records.len() >= MAX_KNOWN && !self.records.contains_key(&key) {
            let message = format!("cannot attach {key}: {MAX_KNOWN} attachments are known, at most");
            return Err(Error::new(ErrorCode::Busy, message));
        }
        self.sequence += 1;
        let (dev, boot_id) = (netns.id.dev, self.boot_id.clone());
        let record = Record { attachment, dev, boot_id, sequence: self.sequence, had_port: false };
        self.write(&record);
        self.records.insert(key, record);
        Ok(())
    }

    fn write(&mut self, record: &Record) {
        let written = self.files.write(record);
        self.failure = written
            .err()
            .map(|e| format!("{} is not kept over a restart of the agent: {e}", record.attachment.key));
    }

    /// Forgets an attachment, and returns whether it was known.
    fn forget(&mut self, key: &CniKey) -> bool {
        if check_key(key).is_err() {
            return false;
        }
        if let Err(e) = self.files.remove(key) {
            self.failure = Some(format!("{key} may come back after a restart of the agent: {e}"));
        }
        self.records.remove(key).is_some()
    }

    /// Forgets the attachments of a network that are not to stay, and returns them.
    fn keep(&mut self, keep: &CniKeep) -> Vec<CniKey> {
        let valid: BTreeSet<&CniKey> = keep.valid.iter().collect();
        let others = self.records.values().map(|record| &record.attachment);
        let others = others.filter(|a| a.network == keep.network && !valid.contains(&a.key));
        let gone: Vec<CniKey> = others.map(|a| a.key.clone()).collect();
        for key in &gone {
            self.forget(key);
        }
        gone
    }

    /// The newest report of each namespace. A pod on two networks is one class.
    fn newest(&self) -> BTreeMap<NsId, &Record> {
        let mut newest: BTreeMap<NsId, &Record> = BTreeMap::new();
        for record in self.records.values() {
            let kept = newest.entry(record.namespace()).or_insert(record);
            if kept.sequence < record.sequence {
                *kept = record;
            }
        }
        newest
    }

    /// The name of each namespace's class. Where two containers have one name, the newest has it alone, and
    /// the others have their id behind an `@`.
    fn names(&self) -> BTreeMap<NsId, String> {
        let newest = self.newest();
        let mut holders: BTreeMap<String, u64> = BTreeMap::new();
        for record in newest.values() {
            let holder = holders.entry(record.name()).or_default();
            *holder = record.sequence.max(*holder);
        }
        let name = |record: &Record| {
            let name = record.name();
            let container = &record.attachment.key.container;
            if holders[&name] == record.sequence {
                return name;
            }
            let longer = format!("{name}@{container}");
            if is_name(&longer) { longer } else { container.clone() }
        };
        newest.into_iter().map(|(namespace, record)| (namespace, name(record))).collect()
    }

    /// The name of an attachment's class.
    fn class_name(&self, key: &CniKey) -> Option<String> {
        let namespace = self.records.get(key)?.namespace();
        self.names().remove(&namespace)
    }

    /// The pods that were reported, by namespace and name.
    pub(super) fn pods(&self) -> BTreeSet<(&str, &str)> {
        let attachments = self.records.values().map(|record| &record.attachment);
        attachments.filter_map(|a| Some((a.namespace.as_deref()?, a.pod.as_deref()?))).collect()
    }

    /// The wishes of all attachments of a record's container, those of the newest report first. A network that asks for
    /// nothing takes nothing away.
    fn wishes(&self, of: &Record) -> Vec<Wish> {
        let container = &of.attachment.key.container;
        let first = CniKey { container: container.clone(), interface: String::new() };
        let own = self.records.range(first..).take_while(|(key, _)| key.container == *container);
        let mut own: Vec<&Record> = own.map(|(_, r)| r).filter(|r| r.namespace() == of.namespace()).collect();
        own.sort_by_key(|record| Reverse(record.sequence));
        let mut seen = BTreeSet::new();
        let all = own.into_iter().flat_map(|record| &record.attachment.wishes);
        all.filter(|wish| seen.insert(*wish)).cloned().collect()
    }

    /// The containers with their wishes, on a node that shares its download or does not. The annotations of a pod
    /// that its cluster tells of are the present ones.
    pub(super) fn found(&self, shares_download: bool, pods: &PodWishes<'_>) -> Vec<Found> {
        let mut names = self.names();
        let found = |(id, record): (NsId, &Record)| {
            let CniAttachment { key, netns, namespace, pod, uid, .. } = &record.attachment;
            let of_pod = namespace.as_deref().zip(pod.as_deref());
            let of_pod = of_pod.map(|(namespace, name)| PodId { namespace, name, uid: uid.as_deref() });
            let Wishes { policy, group, asked_by, remarks, unmet, .. } =
                pods.read(&self.wishes(record), of_pod, shares_download);
            let of_namespace = self.records.values().filter(|other| other.namespace() == id);
            let name = names.remove(&id).unwrap_or_else(|| record.name());
            let location = Location::Netns(NetnsRef { path: netns.clone(), id });
            Found {
                policy,
                group,
                asked_by,
                remarks,
                unmet,
                addresses: of_namespace.flat_map(|r| r.attachment.addresses.iter().copied()).collect(),
                ..Found::new(key.container.clone(), name, Source::Cni, location)
            }
        };
        self.newest().into_iter().map(found).collect()
    }

    /// Forgets the attachments that are over, and returns whether there were any: the namespace is gone, or
    /// the interface that led to it. An agent that is away at the plugin's DEL learns of the end so.
    pub(super) fn follow(&mut self, fates: &BTreeMap<NsId, Fate>) -> bool {
        let mut over = Vec::new();
        let mut caught = Vec::new();
        for (key, record) in &self.records {
            match fates.get(&record.namespace()) {
                Some(Fate::Gone) => over.push(key.clone()),
                Some(Fate::NoPort) if record.had_port => over.push(key.clone()),
                Some(Fate::HasPort) if !record.had_port => caught.push(key.clone()),
                _ => {}
            }
        }
        for key in &over {
            tracing::info!("{key} is over: its namespace or its interface is gone");
            self.forget(key);
        }
        for key in caught {
            if let Some(record) = self.records.get_mut(&key) {
                record.had_port = true;
                let record = record.clone();
                self.write(&record);
            }
        }
        !over.is_empty()
    }

    /// The time until a class is looked at again for which a caller waits.
    pub(super) fn until_look(&self) -> Duration {
        if self.waiting.is_empty() { Duration::MAX } else { answer::LOOK_AGAIN }
    }

    /// Whether a caller waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }
}
