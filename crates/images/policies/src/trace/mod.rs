//! Deployments of images over time, from whatever they were recorded in.

mod oracle;
mod registry;
mod write;

use std::{io, time::Duration};

use weir_units::Bytes;

pub use oracle::read_oracle_general;
pub use registry::{RegistryReader, Skipped};
#[cfg(test)]
pub(crate) use write::forgets;
pub use write::{WriteOptions, write_registry};

/// A container starts: its image must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deployment {
    /// Since the beginning of the trace.
    pub at: Duration,
    /// Index of the image in [`Trace::images`].
    pub image: u32,
    /// The client that pulled it, as a number.
    pub client: u32,
}

/// Deployments over time, and the parts of each image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// Sizes of the blobs.
    pub blobs: Vec<Bytes>,
    /// Blobs of each image, as indices of `blobs`, each once.
    pub images: Vec<Box<[u32]>>,
    /// In order of time.
    pub deployments: Vec<Deployment>,
}

impl Trace {
    /// The size of all that is deployed at least once, in these deployments.
    #[must_use]
    pub fn working_set(&self) -> Bytes {
        let mut seen = vec![false; self.blobs.len()];
        for deployment in &self.deployments {
            for blob in &*self.images[deployment.image as usize] {
                seen[*blob as usize] = true;
            }
        }
        Bytes(self.blobs.iter().zip(seen).filter(|(_, seen)| *seen).map(|(size, _)| size.0).sum())
    }

    /// How many blobs are asked for in all.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.deployments.iter().map(|d| self.images[d.image as usize].len() as u64).sum()
    }

    /// The first deployments of it.
    #[must_use]
    pub fn first(mut self, deployments: usize) -> Trace {
        self.deployments.truncate(deployments);
        self
    }
}

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading or writing failed.
    #[error("cannot read or write the trace")]
    Io(#[from] io::Error),
    /// Not the JSON that the registry trace is published in.
    #[error("cannot read the trace as the IBM registry trace's JSON, one array of records a file")]
    Json(#[from] serde_json::Error),
    /// The file ends within a record.
    #[error(
        "cannot read the trace as oracleGeneral: {rest} bytes after record {records}, and a record has 24"
    )]
    Cut {
        /// Whole records before it.
        records: u64,
        /// Bytes that are left over.
        rest: usize,
    },
    /// More different names than are counted.
    #[error("cannot read the trace: more than {} different blobs, images or clients", u32::MAX)]
    TooMany,
}
