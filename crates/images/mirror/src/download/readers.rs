//! Those who wait for a download: how many there are, and how far each has read.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, watch};

use super::Progress;
use crate::Source;

/// The places of all who wait, by number.
#[derive(Debug, Default)]
struct Places {
    next: u64,
    at: BTreeMap<u64, u64>,
}

/// All who wait for one download.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    places: Mutex<Places>,
    /// A reader has read on, or is gone.
    pub(super) moved: Notify,
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().at.is_empty()
    }

    /// The places of the slowest and of the fastest reader, of those who are not before `start`.
    pub(super) fn span(&self, start: u64) -> Option<(u64, u64)> {
        let places = self.lock();
        let at = || places.at.values().copied().filter(|at| *at >= start);
        Some((at().min()?, at().max()?))
    }
}

/// A download under way.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    /// The registry of this source is asked.
    source: Source,
    progress: watch::Receiver<Progress>,
    pub(super) readers: Arc<Readers>,
}

impl Running {
    /// A download that begins, and how those who wait are told.
    pub(crate) fn begin(source: &Source) -> (Running, watch::Sender<Progress>) {
        let (sender, progress) = watch::channel(Progress::Asking);
        (Running { source: source.clone(), progress, readers: Arc::default() }, sender)
    }

    /// One more who waits, for the first byte at first.
    pub(crate) fn waiter(&self) -> Waiter {
        let mut places = self.readers.lock();
        places.next += 1;
        let id = places.next;
        places.at.insert(id, 0);
        drop(places);
        let (source, progress) = (self.source.clone(), self.progress.clone());
        Waiter { source, progress, readers: Arc::clone(&self.readers), id }
    }
}

/// A download under way, as one who waits sees it.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// The registry of this source is asked: it may be another source of the same scope.
    pub(crate) source: Source,
    pub(crate) progress: watch::Receiver<Progress>,
    readers: Arc<Readers>,
    id: u64,
}

impl Waiter {
    /// Everything before `at` is read, or not wanted.
    pub(crate) fn reach(&self, at: u64) {
        self.readers.lock().at.insert(self.id, at);
        self.readers.moved.notify_waiters();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.readers.lock().at.remove(&self.id);
        self.readers.moved.notify_waiters();
    }
}
