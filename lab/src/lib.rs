//! The lab: experiments with real traffic through the real kernel, in network namespaces.
//!
//! A [`scenario`] is a readable file: containers, policies, traffic, what the paper reports.
//! [`topology`](weir_netlab::topology) builds it, [`control`] shapes it (not at all, by a hand-written tc script, or
//! by weir), [`traffic`](weir_netlab::traffic) fills it, [`oracle`] says what section 3's allocation gives each
//! flow, and [`report`] how far the result is from that; [`cost`] measures what it takes, [`sla`]
//! whether promises are kept, [`ecc`] completion times by congestion control, [`phtb`] how fast the
//! scheduler in user space is, and [`pop`] simulates image caches. Everything is removed at the end, also after a panic or Ctrl-C.

pub mod cli;
pub mod control;
pub mod cost;
pub mod demo;
pub mod ecc;
pub mod experiment;
mod image;
pub mod oracle;
pub mod phtb;
pub mod pop;
pub mod report;
pub mod run;
pub mod scenario;
pub mod sla;
