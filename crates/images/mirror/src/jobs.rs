//! Jobs that fetch images before a client asks for them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

/// The jobs that are remembered.
pub(crate) const JOBS_CAPACITY: usize = 64;

/// How far the fetching of an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warming {
    /// The image, in full.
    pub image: String,
    /// All its bytes; 0 while its manifest is not here.
    pub total: u64,
    /// Those that are here and verified.
    pub done: u64,
    /// It is over:
    pub is_over: bool,
    /// and failed for this.
    pub error: Option<String>,
}

/// The fetching of one image.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) image: String,
    pub(crate) total: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) end: Mutex<Option<Result<(), String>>>,
}

impl Job {
    /// Notes its end; the first one counts.
    fn ends(&self, result: Result<(), String>) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result);
    }
}

/// The work on a job. A task that is dropped with its mirror, or that panics, ends its job too.
#[derive(Debug)]
pub(crate) struct Working(pub(crate) Arc<Job>);

impl Working {
    /// Ends the job with its result.
    pub(crate) fn done(self, result: Result<(), String>) {
        self.0.ends(result);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.ends(Err("the mirror stopped before the image was here: warm it again".to_owned()));
    }
}

/// The images that are fetched now, and the last ones before.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) next: AtomicU64,
    pub(crate) jobs: Mutex<BTreeMap<u64, Arc<Job>>>,
}
