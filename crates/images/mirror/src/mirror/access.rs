//! Decides which client may have which blob: a blob in the store is not open to all for that.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use crate::{
    Digest, Source, Utc, clock::holds, digest::Algorithm, settings::Timing, store::Store, upstream::Identity,
};

/// The most permissions that are remembered; beyond them the registry is asked each time.
const MAX_GRANTED: usize = 16_384;

/// The clients' credentials that are good for each repository, as its registry said a moment ago.
#[derive(Debug, Default)]
pub(super) struct Permissions {
    granted: Mutex<HashMap<(Digest, Source), Utc>>,
}

fn key(text: &str, source: &Source) -> (Digest, Source) {
    // Not the secret itself.
    (Digest::of(Algorithm::Sha256, text.as_bytes()), source.clone())
}

impl Permissions {
    /// Whether this identity may have what belongs to the repository, without asking its registry.
    pub(super) fn has(
        &self,
        store: &Store,
        source: &Source,
        identity: &Identity,
        timing: Timing,
        now: Utc,
    ) -> bool {
        match identity {
            // The configuration says so.
            Identity::Own => true,
            _ if store.is_public(source) => true,
            Identity::Anonymous => false,
            Identity::Client(text) => {
                let granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
                granted.get(&key(text, source)).is_some_and(|until| holds(*until, now, timing.permission))
            }
        }
    }

    /// Its registry has given something of the repository to this identity.
    pub(super) fn grant(
        &self,
        store: &Store,
        source: &Source,
        identity: &Identity,
        timing: Timing,
        now: Utc,
    ) {
        match identity {
            Identity::Own => {}
            Identity::Anonymous => {
                if let Err(e) = store.set_public(source, true) {
                    tracing::warn!("{e}");
                }
            }
            Identity::Client(text) => {
                let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
                granted.retain(|_, until| holds(*until, now, timing.permission));
                if granted.len() < MAX_GRANTED {
                    granted.insert(key(text, source), now.after(timing.permission));
                }
            }
        }
    }

    /// Its registry has refused it.
    pub(super) fn revoke(&self, store: &Store, source: &Source, identity: &Identity) {
        match identity {
            Identity::Own => {}
            Identity::Anonymous => {
                if let Err(e) = store.set_public(source, false) {
                    tracing::warn!("{e}");
                }
            }
            Identity::Client(text) => {
                let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
                granted.remove(&key(text, source));
            }
        }
    }
}
