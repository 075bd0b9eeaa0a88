//! weir's BPF programs, and the maps through which the agent configures them.
//!
//! Each feature has a folder with its programs, its headers and its loader:
//!
//! * `classify`: the class of a packet.
//! * `fair`: the qdisc of the engine `bpf`. `edt`: the departure times of the engine `edt`. `user`: the
//!   way of packets to the scheduler of the engine `user`.
//! * `credit`: the credit of classes where no qdisc queues. `pacing`: the rates of TCP sockets.
//! * `download`: the class of a packet that arrives.
//! * `signals`: the queue and the rate of the link, as its traffic tells them.
//! * `congestion`: the congestion control of flows.
//! * `common`: what several features share.
//!
//! **Invariant**: every `unsafe` block of weir's BPF side is in [`attach`], `common/entries.rs` or
//! `common/mapped.rs`, or calls a program compiled for user space in tests. Both sides assert the layouts that
//! they share.

mod classify;
mod common;
mod congestion;
mod credit;
mod download;
mod edt;
pub mod fair;
mod pacing;
mod signals;
#[cfg(test)]
mod simulation;
mod user;

pub use classify::{
    Classifier, ClassifierConfig, ENTRIES, Handover, LocalMaps, LocalPrefix, Locality, MASKS, Restored,
    RuleSet, RulesError, SelectorRule, SparseFlows, Tunnel, Wanted, Way, Weights, port_blocks,
};
pub use common::{Error, attach, framing::FramingWord};
pub use congestion::{
    Congestion, CongestionConfig, CongestionCounts, CongestionRecord, CongestionRule, CongestionTrial,
    EarlierCongestion,
};
pub use credit::{Credit, Credits, Refill};
pub use download::{Download, DownloadConfig, DownloadMaps, EarlierDownload};
pub use edt::{Edt, EdtClass, EdtLink, EdtRule, Tried};
pub use pacing::{EarlierPacing, Pacer};
pub use signals::{LinkSignals, SignalCounts};
pub use user::{Entered, MAX_QUEUES, UserPath};
