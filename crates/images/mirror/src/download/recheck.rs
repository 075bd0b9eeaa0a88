//! Blobs of the store are hashed again while they are sent: after a restart no one knows whether they are right.

use std::sync::Arc;

use tokio::{sync::watch, task::spawn_blocking};

use super::{Downloads, Held, Progress, readable, readers::Running, readers::Waiter};
use crate::{
    Source, now_utc,
    store::{Opened, StoreError},
    upstream::Fault,
};

/// Hashed between two words to those who wait, bytes.
const STRETCH: u64 = 1 << 20;

impl Downloads {
    /// Hashes a blob that is here, once for all who want it now. Those who wait may read what is hashed, and the end
    /// of it only if all of it is right.
    pub(crate) fn recheck(self: &Arc<Self>, source: &Source, blob: &Opened) -> Waiter {
        let mut rechecking = self.rechecking();
        if let Some(one) = rechecking.get(blob.digest()) {
            return one.waiter();
        }
        let (one, sender) = Running::begin(source);
        let waiter = one.waiter();
        rechecking.insert(blob.digest().clone(), one);
        drop(rechecking);
        let (this, blob) = (Arc::clone(self), blob.clone());
        tokio::spawn(async move {
            let hashed = this.hash(&blob, &sender).await;
            this.rechecking().remove(blob.digest());
            let what = || blob.digest().to_string();
            sender.send_replace(match hashed {
                Ok(true) => {
                    let (held, size) = (Held::Blob(blob.clone()), blob.size());
                    Progress::Flowing { held, size, ready: size }
                }
                Ok(false) => {
                    let why = "the disk has changed it since".to_owned();
                    Progress::Failed(Fault::Wrong { what: what(), why })
                }
                Err(e) => Progress::Failed(Fault::Store { what: what(), why: weir_units::chain(&e) }),
            });
        });
        waiter
    }

    async fn hash(&self, blob: &Opened, sender: &watch::Sender<Progress>) -> Result<bool, StoreError> {
        let (size, mut check) = (blob.size(), self.store.recheck(blob));
        loop {
            let stepping = spawn_blocking(move || {
                let stepped = check.stretch(STRETCH);
                (check, stepped)
            });
            let Ok((back, stepped)) = stepping.await else { return Ok(false) };
            check = back;
            let store = self.store.clone();
            match stepped {
                Ok((_, false)) => {
                    let (held, ready) = (Held::Blob(blob.clone()), readable(check.hashed(), size));
                    sender.send_replace(Progress::Flowing { held, size, ready });
                }
                Ok((_, true)) => {
                    let ended = spawn_blocking(move || store.checked(check, now_utc())).await;
                    return ended.unwrap_or(Ok(false));
                }
                Err(e) => {
                    let ended = spawn_blocking(move || store.unreadable(&check, e)).await;
                    return ended.unwrap_or(Ok(())).map(|()| false);
                }
            }
        }
    }
}
