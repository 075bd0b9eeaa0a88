//! The image cache of a site: a pull-through mirror of container registries over a bounded store of
//! blobs, for unmodified Docker and containerd.

mod check;
mod clock;
pub mod coordination;
pub mod digest;
mod download;
mod flight;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod jobs;
pub mod manifest;
pub mod mirror;
pub mod name;
mod network;
mod oci;
mod pace;
mod pattern;
mod peer;
pub mod pins;
mod scope;
mod scrub;
pub mod settings;
pub mod stats;
pub mod store;
mod upstream;
mod warm;

pub use clock::now_utc;
pub use digest::Digest;
pub use jobs::Warming;
pub use mirror::{Mirror, MirrorError, PROBE, SiteState};
pub use name::{Image, Reference, Registry, Repository, Source, Tag};
pub use network::{BadNetwork, Network};
pub use peer::Probed;
pub use pins::Pins;
pub use scope::Scope;
pub use scrub::Scrubbing;
pub use settings::{PopSettings, PopStore, RuntimeSettings, ServedBy, Settings, Timing, UpstreamSettings};
pub use upstream::Fault;
pub use weir_units::Utc;
