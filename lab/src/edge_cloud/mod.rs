//! Congestion control between clients, edge and cloud, in the experiments of Sakashita and Koslovski, "Um
//! estudo preliminar sobre o impacto de protocolos para controle de congestionamento em Edge-Cloud
//! Continuum", Fig. 2. The conditions that decide their outcome are parameters.
//!
//! ```text
//!             ┌ edge ┐                                        ┌ edge ┐
//!  clients ───┤      ├── edge server      clients ── access ──┤      ├── edge server
//!             │ cloud│                                        │ cloud│
//!             └──────┴── cloud server                         └──────┴── cloud server
//! ```
//!
//! Each link has a rate, a round trip, a buffer in BDPs and a random loss, the same in both directions. A
//! client's job moves a volume V. Each leg of the job carries a part of V up. After its last byte the
//! application returns another part down. All four cases move V, as "25 % to 50 % on each link" requires.
//!
//! A flow's completion time ends with its last byte, and begins with its connection. A job's completion time
//! ends with the last byte of its last flow. The paper shows the first; a user waits for the second.
//!
//! The experiments need only netem from the kernel, which many kernels lack; [`guest`] runs them in one that
//! has it.

pub(crate) mod advice;
pub mod guest;
mod iperf;
mod line;
mod measure;
mod network;
mod plot;
mod report;
mod rule;
mod scenario;
mod show;
mod standing;
mod table;
mod transfer;
mod wires;
mod workload;

pub use guest::{Backend, run};
pub use iperf::Generator;
pub use report::Report;
pub use scenario::{Algorithm, Case, Scenario};
