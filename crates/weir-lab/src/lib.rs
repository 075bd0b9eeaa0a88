//! The lab: experiments with real traffic through the real kernel, in network namespaces.
//!
//! A [`scenario`] is a readable file: containers, policies, traffic, what the paper reports.
//! [`topology`] builds it, [`control`] shapes it (not at all, by a hand-written tc script, or
//! by weir), [`traffic`] fills it, [`oracle`] says what section 3's allocation gives each
//! flow, and [`report`] how far the result is from that; [`cost`] measures what it takes, [`sla`]
//! whether promises are kept, [`ecc`] completion times by congestion control, [`phtb`] how fast the
//! scheduler in user space is, and [`pop`] simulates image caches. Everything is removed at the end, also after a panic or Ctrl-C.
//!
//! Tests of other crates use the same parts:
//!
//! ```no_run
//! use weir_lab::{
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

pub mod cli;
pub mod control;
pub mod cost;
pub mod demo;
pub mod ecc;
pub mod experiment;
pub mod interrupt;
pub mod oracle;
pub mod phtb;
pub mod pop;
pub mod report;
pub mod run;
pub mod scenario;
pub mod sla;
pub mod stats;
pub mod topology;
pub mod traffic;
