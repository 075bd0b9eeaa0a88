//! Where a blob goes as it comes: into the store, or on to its readers without being kept.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, task::spawn_blocking};

use super::{Held, Window};
use crate::{
    Digest,
    digest::{Algorithm, Hasher},
    store::{PartWriter, StoreError},
};

/// Where a blob goes.
#[derive(Debug)]
pub(super) enum Sink {
    Keep(Kept),
    Pass(Passing),
}

/// A blob that is kept. To put its part away takes the store's lock, and the disk: wherever it is dropped, a thread
/// of its own does that.
#[derive(Debug)]
pub(super) struct Kept(Option<PartWriter>);

impl Kept {
    pub(super) fn new(part: PartWriter) -> Kept {
        Kept(Some(part))
    }

    fn part(&self) -> Option<&PartWriter> {
        self.0.as_ref()
    }

    /// The part itself, for a thread that may wait for the disk.
    pub(super) fn into_part(mut self) -> Option<PartWriter> {
        self.0.take()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(part) = self.0.take() else { return };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(part))),
            Err(_) => drop(part),
        }
    }
}

/// A blob that is passed on.
#[derive(Debug)]
pub(super) struct Passing {
    pub(super) window: Arc<Window>,
    /// How long the slowest reader has held up others.
    pub(super) waited: Duration,
    hasher: Hasher,
    written: u64,
    /// All of it, bytes, as its readers were told.
    size: Option<u64>,
}

impl Passing {
    pub(super) fn begin(algorithm: Algorithm) -> Passing {
        let window = Arc::new(Window::new());
        Passing { window, waited: Duration::ZERO, hasher: Hasher::new(algorithm), written: 0, size: None }
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
            Sink::Keep(kept) => kept.part().map_or(0, PartWriter::written),
            Sink::Pass(passing) => passing.written,
        }
    }

    /// All of it, bytes, as the answer said that it began with.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Sink::Keep(kept) => kept.part().map(PartWriter::size),
            Sink::Pass(passing) => passing.size,
        }
    }

    /// Notes what an answer says.
    pub(super) fn is_of(&mut self, size: u64) {
        if let Sink::Pass(passing) = self {
            passing.size = Some(size);
        }
    }

    /// Takes more of it in. Blocks for as long as the disk takes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self {
            Sink::Keep(kept) => kept.0.as_mut().map_or(Ok(()), |part| part.write(bytes)),
            Sink::Pass(passing) => {
                passing.hasher.update(bytes);
                passing.written += bytes.len() as u64;
                Ok(())
            }
        }
    }

    /// Where those who wait read it.
    pub(super) fn held(&self) -> Option<Held> {
        match self {
            Sink::Keep(kept) => Some(Held::File(Arc::clone(kept.part()?.file()))),
            Sink::Pass(passing) => Some(Held::Window(Arc::clone(&passing.window))),
        }
    }

    /// Gives it up: nothing of it is kept.
    pub(super) async fn discard(self) {
        self.end(PartWriter::discard).await;
    }

    /// Leaves what is written for the next download of the blob, and waits until it is left.
    pub(super) async fn leave(self) {
        self.end(drop).await;
    }

    async fn end(self, how: impl FnOnce(PartWriter) + Send + 'static) {
        if let Sink::Keep(kept) = self
            && let Some(part) = kept.into_part()
        {
            // An error is that the mirror is stopping.
            let _ = spawn_blocking(move || how(part)).await;
        }
    }
}
