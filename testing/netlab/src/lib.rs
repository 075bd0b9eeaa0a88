//! Networks of namespaces, real traffic through them, and statistics of it.
//!
//! [`topology`] builds a node with containers and a wire behind its uplink. [`traffic`] sends
//! through it and measures what arrives. [`stats`] has medians, confidence intervals and a seeded
//! generator. All of it is removed at the end, also after a panic or Ctrl-C ([`interrupt`]).
//!
//! The tests with real traffic and the experiments of the lab both use it.
//!
//! ```no_run
//! use weir_netlab::{
//!     topology::{Family, Spec, Topology},
//!     traffic::{self, Flow, Load, Timing},
//! };
//!
//! # fn main() -> anyhow::Result<()> {
//! let topology = Topology::build(&Spec { containers: vec!["a".into()], ..Spec::default() })?;
//! let a = topology.container("a")?;
//! let flow = Flow { label: "a", from: a.netns(), load: Load::Tcp };
//! let outcome = traffic::run(&topology, &[flow], &[], Family::V4, Timing::seconds(5)?)?;
//! assert!(outcome.flows[0].goodput > 90.0);
//! # Ok(())
//! # }
//! ```

pub mod interrupt;
pub mod stats;
pub mod topology;
pub mod traffic;
