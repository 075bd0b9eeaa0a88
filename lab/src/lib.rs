//! The lab: experiments with real traffic through the real kernel, in network namespaces.
//!
//! A [`scenario`] is a readable file with containers, policies, traffic and the paper's figures.
//! [`topology`](weir_netlab::topology) builds it and [`traffic`](weir_netlab::traffic) fills it. A
//! [`control`] shapes it: nothing, a hand-written tc script, or weir. The `oracle` computes section 3's
//! allocation for each flow, and [`report`] compares the result with it.
//!
//! The other experiments have a module each:
//! - `cost` measures the processor time and the latency of shaping.
//! - `agreements` checks whether promises are kept.
//! - `edge_cloud` measures completion times by congestion control.
//! - `user_htb` measures the speed of the scheduler in user space.
//! - `image_cache` simulates image caches.
//! - `download` measures shares and round trips of what arrives.
//! - `failover` moves the default route under load.
//! - `variable` simulates links whose rate changes.
//!
//! The lab removes everything at the end, also after a panic or Ctrl-C.

mod agreements;
mod choices;
pub mod cli;
pub mod control;
mod cost;
mod demo;
mod download;
pub mod edge_cloud;
mod experiment;
mod failover;
mod image;
mod image_cache;
pub mod options;
mod oracle;
pub mod report;
pub mod run;
pub mod scenario;
mod terminal;
mod user_htb;
mod variable;
