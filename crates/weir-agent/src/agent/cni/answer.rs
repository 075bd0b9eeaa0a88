//! The requests of `weir cni` to the loop.

use std::time::Duration;

use weir_api::{CniAttached, CniAttachment, CniForgotten, CniKeep, CniKey, Error, ErrorCode};
use weir_discovery::{NetnsRef, NsId};
use weir_units::{Instant, chain};

use super::bad;
use crate::{
    agent::{
        Agent,
        class_key::{ClassKey, ClassSource},
    },
    reply::Reply,
};

/// The longest time that a caller waits for its class to be in force.
const MAX_WAIT: Duration = Duration::from_millis(300);
/// The interval between two looks at a class for which a caller waits.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A request about attachments.
#[derive(Debug)]
pub enum CniRequest {
    /// `PUT /v1/cni`.
    Put(CniAttachment, Reply<Result<CniAttached, Error>>),
    /// `POST /v1/cni/check`.
    Check(CniAttachment, Reply<Result<CniAttached, Error>>),
    /// `DELETE /v1/cni`.
    Remove(CniKey, Reply<CniForgotten>),
    /// `POST /v1/cni/keep`.
    Keep(CniKeep, Reply<CniForgotten>),
}

/// A caller that waits until its class is in force.
pub(super) struct Waiting {
    key: CniKey,
    since: Instant,
    reply: Reply<Result<CniAttached, Error>>,
}

impl Agent {
    pub(in crate::agent) fn ask_cni(&mut self, ask: CniRequest) {
        // A failed send is ignored: the caller has gone.
        match ask {
            CniRequest::Put(attachment, reply) => {
                let key = attachment.key.clone();
                match namespace(&attachment).and_then(|netns| self.sources.cni.put(attachment, &netns)) {
                    Ok(()) => {
                        self.sources.mark();
                        self.sources.cni.waiting.push(Waiting { key, since: self.now(), reply });
                    }
                    Err(why) => drop(reply.send(Err(why))),
                }
            }
            CniRequest::Check(attachment, reply) => {
                let known = self.sources.cni.check(&attachment);
                drop(reply.send(known.and_then(|()| self.attached(&attachment.key))));
            }
            CniRequest::Remove(key, reply) => {
                let was_known = self.sources.cni.forget(&key);
                if was_known {
                    self.sources.mark();
                }
                drop(
                    reply.send(CniForgotten { attachments: was_known.then_some(key).into_iter().collect() }),
                );
            }
            CniRequest::Keep(keep, reply) => {
                let attachments = self.sources.cni.keep(&keep);
                if !attachments.is_empty() {
                    self.sources.mark();
                }
                drop(reply.send(CniForgotten { attachments }));
            }
        }
    }

    /// Answers the callers whose class is in force, and those that have waited long enough.
    pub(in crate::agent) fn answer_cni(&mut self) {
        let now = self.now();
        for waiting in std::mem::take(&mut self.sources.cni.waiting) {
            let key = self.cni_class(&waiting.key);
            let entry = key.as_ref().and_then(|key| self.classes.entries().get(key));
            let is_in_force = entry.is_some_and(|entry| self.fault_of(entry).is_none());
            if is_in_force || now.since(waiting.since) >= MAX_WAIT {
                let answer = self.attached(&waiting.key);
                drop(waiting.reply.send(answer));
            } else if !waiting.reply.is_closed() {
                self.sources.mark();
                self.sources.cni.waiting.push(waiting);
            }
        }
    }

    fn cni_class(&self, key: &CniKey) -> Option<ClassKey> {
        self.sources.cni.class_name(key).map(|name| ClassKey::new(ClassSource::Cni, &name))
    }

    /// The state of a known attachment.
    fn attached(&self, key: &CniKey) -> Result<CniAttached, Error> {
        let class = self.cni_class(key).filter(|class| self.classes.entries().contains_key(class));
        let Some(class) = class else {
            let message =
                format!("{key} has no class: its network namespace is gone, or was not looked at yet");
            return Err(Error::new(ErrorCode::UnknownName, message));
        };
        let entry = &self.classes.entries()[&class];
        let discovered = &entry.class;
        let remarks = discovered.cut.iter().chain(&discovered.unmet).cloned().collect();
        Ok(CniAttached { class: self.class(&class), fault: self.fault_of(entry), remarks })
    }
}

impl super::CniContainers {
    /// Whether the attachment was reported like this.
    pub(super) fn check(&self, attachment: &CniAttachment) -> Result<(), Error> {
        let key = &attachment.key;
        match self.records.get(key) {
            None => Err(Error::new(ErrorCode::UnknownName, format!("weir knows no {key}"))),
            Some(record) if is_same(&record.attachment, attachment) => Ok(()),
            Some(_) => {
                let message = format!("{key} was reported with another namespace, network, pod or wishes");
                Err(Error::new(ErrorCode::UnknownName, message))
            }
        }
    }
}

/// Whether two reports say the same. An older plugin tells no uid.
fn is_same(record: &CniAttachment, attachment: &CniAttachment) -> bool {
    *record == CniAttachment { uid: record.uid.clone(), ..attachment.clone() }
}

/// The namespace of an attachment, if it is the one that the caller sees and not the agent's.
fn namespace(attachment: &CniAttachment) -> Result<NetnsRef, Error> {
    let CniAttachment { key, netns: path, inode, .. } = attachment;
    let netns = NetnsRef::at(path).map_err(|e| bad(format!("cannot attach {key}: {}", chain(&e))))?;
    let path = path.display();
    if netns.id.ino != *inode {
        let found = netns.id.ino;
        return Err(bad(format!(
            "cannot attach {key}: {path} is the network namespace {inode} for the plugin and {found} for the agent, which has other mounts"
        )));
    }
    if NsId::own().is_ok_and(|own| own == netns.id) {
        return Err(bad(format!("cannot attach {key}: {path} is the node's own network namespace")));
    }
    Ok(netns)
}
