//! The pods of this node as the cluster's API server knows them: their wishes at any time, and reports back.
//!
//! The tasks here follow pods and namespaces, and write events and the node's status. They decide nothing.
//! [`followed`], [`remarks`], [`capacity`] and [`place`] have no clock and no network.

mod capacity;
mod client;
mod endpoint;
mod follow;
mod followed;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod kept;
mod objects;
pub(crate) mod place;
mod remarks;
mod requests;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod tests;
mod write;

use std::path::Path;

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

pub(crate) use self::{
    capacity::Published,
    endpoint::{Endpoint, environment},
    followed::Collection,
    objects::{Annotations, Limits, Namespace, Pod},
    remarks::{Reason, Remark, Remarks},
};
use self::{
    client::Fault,
    followed::{Lines, MAX_OBJECTS},
    kept::Kept,
};
use crate::config::Kubernetes;

/// The most events that wait to be written.
const MAX_WAITING: usize = 64;

/// The objects that the API server told of.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Followed {
    pub(crate) pods: Collection<Pod>,
    pub(crate) namespaces: Collection<Namespace>,
    /// Whether a list of pods has arrived since the agent's start.
    pub(crate) is_listed: bool,
    pub(crate) pods_fault: Option<Fault>,
    pub(crate) namespaces_fault: Option<Fault>,
}

impl Followed {
    /// The reasons why it may be out of date.
    pub(crate) fn faults(&self) -> Vec<String> {
        let of = |what: &str, fault: &Option<Fault>| {
            fault.as_ref().map(|why| format!("{what} may be out of date: {why}"))
        };
        let mut faults: Vec<String> = of("pods", &self.pods_fault).into_iter().collect();
        faults.extend(of("namespaces", &self.namespaces_fault));
        for (what, is_full) in [("pods", self.pods.is_full()), ("namespaces", self.namespaces.is_full())] {
            if is_full {
                faults.push(format!("some {what} are left out: the agent keeps {MAX_OBJECTS} at most"));
            }
        }
        let mut add_large = |what: &str, key: &str| {
            let most = Lines::LONGEST >> 20;
            faults.push(format!("{what} {key} is left out: a change of it is larger than {most} MiB"));
        };
        self.pods.too_large().for_each(|key| add_large("pod", key));
        self.namespaces.too_large().for_each(|key| add_large("namespace", key));
        faults
    }

    /// Whether the pods are known, or cannot be had.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_listed || self.pods_fault.is_some()
    }
}

/// The extended resources that the node's status is to have, Mbit/s. `None` for one that weir does not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Resources {
    pub(crate) egress: Option<u64>,
    pub(crate) ingress: Option<u64>,
}

/// The cluster, followed as long as this lives.
pub(crate) struct Source {
    endpoint: Endpoint,
    followed: watch::Receiver<Followed>,
    resources: watch::Sender<Resources>,
    events: mpsc::Sender<Remark>,
    /// The remarks that could not be written. As many come back as were handed out.
    unwritten: mpsc::UnboundedReceiver<Remark>,
    /// The reason if the last write of a kind failed: the node's status, an event.
    write_faults: watch::Sender<[Option<Fault>; 2]>,
    kept: Kept,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Source {
    /// Begins to follow a cluster. `state` is the directory that has what an earlier agent was told.
    pub(crate) fn open(config: &Kubernetes, endpoint: Endpoint, state: &Path) -> Source {
        let kept = Kept::at(state.join("kubernetes.json"), &endpoint);
        let (sender, followed) = watch::channel(kept.read());
        let (resources, wanted) = watch::channel(Resources::default());
        let (events, waiting) = mpsc::channel(MAX_WAITING);
        let (gives_back, unwritten) = mpsc::unbounded_channel();
        let write_faults = watch::Sender::new([None, None]);
        let mut tasks = vec![tokio::spawn(follow::follow::<Pod>(endpoint.clone(), sender.clone()))];
        if config.namespace_groups {
            tasks.push(tokio::spawn(follow::follow::<Namespace>(endpoint.clone(), sender)));
        }
        if config.publish {
            tasks.push(tokio::spawn(write::keep_status(endpoint.clone(), wanted, write_faults.clone())));
        }
        if config.events {
            tasks.push(tokio::spawn(write::write_events(
                endpoint.clone(),
                waiting,
                gives_back,
                write_faults.clone(),
            )));
        }
        Source { endpoint, followed, resources, events, unwritten, write_faults, kept, tasks }
    }

    /// `kubernetes at https://10.0.0.1:6443`.
    pub(crate) fn name(&self) -> String {
        format!("kubernetes at {}", self.endpoint.server)
    }

    pub(crate) fn node(&self) -> &str {
        &self.endpoint.node
    }

    /// The present knowledge.
    pub(crate) fn followed(&self) -> watch::Ref<'_, Followed> {
        self.followed.borrow()
    }

    /// Takes note of what is known now: a change is a later one. An agent that starts while the server is away
    /// finds it on the disk.
    pub(crate) fn take_note(&mut self) {
        let followed = self.followed.borrow_and_update();
        self.kept.write(&followed);
    }

    /// Waits for a change.
    pub(crate) async fn changed(&mut self) {
        if self.followed.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// The reasons why the server's answers are old, or nothing can be written there.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = self.followed.borrow().faults();
        let [status, event] = &*self.write_faults.borrow();
        faults.extend(status.iter().map(|why| format!("the node's status cannot be written: {why}")));
        faults.extend(event.iter().map(|why| format!("events of pods cannot be written: {why}")));
        faults.extend(self.kept.failure().cloned());
        faults
    }

    /// Has the node's status hold these resources.
    pub(crate) fn publish(&self, wanted: Resources) {
        self.resources.send_if_modified(|resources| {
            let is_new = *resources != wanted;
            *resources = wanted;
            is_new
        });
    }

    /// Has a pod get an event. While too many wait, the remark comes back at once.
    pub(crate) fn event(&self, remark: Remark) -> Result<(), Remark> {
        self.events.try_send(remark).map_err(mpsc::error::TrySendError::into_inner)
    }

    /// The next remark that could not be written, if there is one.
    pub(crate) fn unwritten(&mut self) -> Option<Remark> {
        self.unwritten.try_recv().ok()
    }

    /// Forgets that an event could not be written, as none is to be written any more.
    pub(crate) fn no_event_waits(&self) {
        self.write_faults.send_if_modified(|faults| faults[1].take().is_some());
    }
}
