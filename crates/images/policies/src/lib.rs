//! Policies of an image cache, and the fetch time that each would save.
//!
//! Pure: no clock, no I/O, no randomness; moments and seeds are arguments, traces are read from
//! and written to what the caller opened.
//!
//! * [`EvictionPolicy`]: who leaves when there is no room. LRU at image grain, exactly the paper's
//!   Algorithm 1 ([`ImageLru`]), and at blob grain ([`Lru`]); [`S3Fifo`]; [`Greedy`]: GDS and GDSF
//!   with fetch time as cost. A predicate names the blobs that must stay: [`Protection`].
//! * [`Shadow`], [`Auto`]: the same requests on several policies, and whichever saves most fetch time
//!   decides.
//! * [`trace`]: deployments from the IBM registry trace's JSON or from oracleGeneral, and back to
//!   JSON; [`generate`]: traces like those of its zones, with the table of how like.
//! * [`runtime`]: which images of Docker or containerd are removed, so that their store fits a budget.
//! * [`simulate`]: a site of some nodes, each with a cache or all with one, in virtual time.
//!
//! The paper is Ahmed and Pierre, "Docker Image Sharing in Distributed Fog Infrastructures" (2019).
//!
//! ```
//! use std::time::Duration;
//! use weir_cache::{Access, Blob, BlobId, Cache, FetchModel, PolicyKind};
//! use weir_units::{Bytes, Instant};
//!
//! let mut cache = Cache::new(PolicyKind::Lru, Bytes(100));
//! let mut ask = |id, bytes| {
//!     let fetch = FetchModel::PAPER.time(Bytes(bytes));
//!     cache.request(Blob { id: BlobId(id), bytes: Bytes(bytes), fetch, uses: 1 }, Instant::default())
//! };
//! assert_eq!([ask(1, 40), ask(2, 40), ask(1, 40)], [Access::Stored, Access::Stored, Access::Hit]);
//! assert_eq!([ask(3, 40), ask(2, 40)], [Access::Stored, Access::Stored], "2 had to leave for 3");
//! assert_eq!(ask(4, 51), Access::Passed, "more than half of the budget");
//! ```

pub mod blob;
mod cache;
pub mod generate;
mod hash;
pub mod policy;
mod queue;
mod rng;
pub mod runtime;
mod shadow;
pub mod simulate;
pub mod trace;

pub use blob::{Blob, BlobId, FetchModel, ImageId, Protection, Unprotected};
pub use cache::{Access, Cache};
pub use policy::{Auto, Cost, EvictionPolicy, Greedy, ImageLru, Lru, PolicyKind, PolicyKindError, S3Fifo};
pub use shadow::{Shadow, ShadowSettings};
