//! Reservations: the room that is set aside for blobs which are not here yet.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{RESUME, State, bounds::on_disk};
use crate::{Digest, Utc, clock::holds, scope::Mark};

/// Room for a blob that is not here yet.
#[derive(Debug)]
pub(super) struct Reservation {
    /// Bytes of the file or files.
    pub(super) size: u64,
    /// Of the lease that it is for; 0 while it has none.
    pub(super) fence: u64,
    /// Of the scope of its download.
    pub(super) mark: Mark,
    /// Bytes that are on the disk already.
    pub(super) written: Arc<AtomicU64>,
    /// When it ends; never while a download has it.
    pub(super) expires: Option<Utc>,
}

impl Reservation {
    /// Nothing of it is there, and no node fetches it yet.
    pub(super) fn is_expected(&self) -> bool {
        self.fence == 0 && self.written.load(Ordering::Relaxed) == 0
    }

    /// No download has come for it in time.
    pub(super) fn is_over(&self, now: Utc) -> bool {
        self.expires.is_some_and(|until| !holds(until, now, RESUME))
    }

    /// The bytes that it takes of the budget: whole blocks, as the blob will.
    pub(super) fn room(&self) -> u64 {
        on_disk(self.size)
    }
}

impl State {
    /// Sets room aside, in place of what was set aside for this blob.
    pub(super) fn reserve(&mut self, digest: Digest, reservation: Reservation) {
        self.used += reservation.room();
        if let Some(before) = self.reserved.insert(digest, reservation) {
            self.used -= before.room();
        }
    }

    /// Gives the room of a blob back.
    pub(super) fn unreserve(&mut self, digest: &Digest) {
        if let Some(reservation) = self.reserved.remove(digest) {
            self.used -= reservation.room();
        }
    }

    /// Gives the room of a writer back; that of a later one is its own.
    pub(super) fn unreserve_of(&mut self, digest: &Digest, fence: u64) {
        if self.reserved.get(digest).is_some_and(|r| r.fence == fence) {
            self.unreserve(digest);
        }
    }

    /// Leaves this number of bytes to a writer.
    pub(super) fn resize(&mut self, digest: &Digest, fence: u64, size: u64) -> Option<&mut Reservation> {
        let reservation = self.reserved.get_mut(digest).filter(|r| r.fence == fence)?;
        self.used -= reservation.room();
        reservation.size = size;
        self.used += reservation.room();
        Some(reservation)
    }

    /// Gives room back that was reserved for a blob which this node does not fetch.
    pub(super) fn forget_expected(&mut self, digest: &Digest) {
        if self.reserved.get(digest).is_some_and(Reservation::is_expected) {
            self.unreserve(digest);
        }
    }

    /// Gives room back for which no download has come in time.
    pub(super) fn expire(&mut self, now: Utc) {
        let mut freed = 0;
        self.reserved.retain(|_, r| {
            let over = r.is_over(now) && r.written.load(Ordering::Relaxed) == 0;
            freed += if over { r.room() } else { 0 };
            !over
        });
        self.used -= freed;
    }

    /// Bytes that are set aside and not on the disk yet.
    pub(super) fn outstanding(&self) -> u64 {
        self.reserved.values().map(|r| r.room().saturating_sub(r.written.load(Ordering::Relaxed))).sum()
    }
}
