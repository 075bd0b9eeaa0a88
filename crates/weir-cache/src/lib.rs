//! What an image cache keeps, and what that would have been worth.
//!
//! Pure: no clock, no I/O, no randomness; moments and seeds are arguments, traces are read from
//! and written to what the caller opened.
pub mod blob;
mod cache;
mod hash;
pub mod policy;
mod queue;
mod shadow;

pub use blob::{Blob, BlobId, FetchModel, GRACE, Holds, HoldsAt, ImageId, Protection, Unprotected};
pub use cache::{Access, Cache};
pub use policy::{Auto, Cost, Greedy, ImageLru, Lru, Policy, PolicyKind, PolicyKindError, S3Fifo};
pub use shadow::{Shadow, ShadowSettings};
pub(crate) mod rng;
pub mod trace;
pub mod generate; pub mod simulate;
