//! Where a blob goes as it comes: into the store, or on to its readers without being kept.

use std::{sync::Arc, time::Duration};

use super::{Held, Job, Window};
use crate::{
    Digest,
    digest::{Algorithm, Hasher},
    store::{PartWriter, StoreError},
    upstream::Fault,
};

/// Where a blob goes.
#[derive(Debug)]
pub(super) enum Sink {
    Keep(PartWriter),
    Pass(Passing),
}

/// A blob that is passed on.
#[derive(Debug)]
pub(super) struct Passing {
    pub(super) window: Arc<Window>,
    /// How long the slowest reader has held up others.
    pub(super) waited: Duration,
    hasher: Hasher,
    written: u64,
}

impl Passing {
    pub(super) fn begin(algorithm: Algorithm) -> Passing {
        let window = Arc::new(Window::new());
        Passing { window, waited: Duration::ZERO, hasher: Hasher::new(algorithm), written: 0 }
    }

    /// Whether what came is what it is called.
    pub(super) fn finish(self, digest: &Digest) -> Result<(), StoreError> {
        let (found, size) = (self.hasher.finish(), self.written);
        if found == *digest {
            return Ok(());
        }
        Err(StoreError::Mismatch { expected: digest.clone(), found, size })
    }
}

impl Sink {
    /// How much has come, bytes.
    pub(super) fn written(&self) -> u64 {
        match self {
            Sink::Keep(part) => part.written(),
            Sink::Pass(passing) => passing.written,
        }
    }

    /// Takes more of it in. Blocks for as long as the disk takes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self {
            Sink::Keep(part) => part.write(bytes),
            Sink::Pass(passing) => {
                passing.hasher.update(bytes);
                passing.written += bytes.len() as u64;
                Ok(())
            }
        }
    }

    /// Where those who wait read it.
    pub(super) fn held(&self, job: &Job) -> Result<Held, Fault> {
        match self {
            Sink::Keep(part) => Ok(Held::File(Arc::new(part.reader().map_err(|e| job.kept(&e))?))),
            Sink::Pass(passing) => Ok(Held::Window(Arc::clone(&passing.window))),
        }
    }

    /// Gives it up: nothing of it is kept.
    pub(super) fn discard(self) {
        if let Sink::Keep(part) = self {
            part.discard();
        }
    }
}
