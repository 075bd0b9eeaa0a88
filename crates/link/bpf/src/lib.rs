//! weir's BPF programs and the maps through which the agent tells them what belongs where.
//!
//! **Invariant**: every `unsafe` block of weir's BPF side is in [`attach`], `entries` or `mapped` (or calls the
//! qdisc in user space, in tests); the layouts shared with the programs are asserted against
//! `intf.h`, `select.h`, `fair.h`, `edt.h`, `congestion.h` and `user.h` on both sides.

pub mod attach;
mod classifier;
mod congestion;
mod credits;
mod edt;
mod entries;
pub mod fair;
mod mapped;
mod pacer;
mod restore;
mod rules;
mod user;

pub use classifier::{Classifier, Config, Error, LocalPrefix};
pub use congestion::{
    Congestion, CongestionConfig, CongestionCounts, CongestionRecord, CongestionRule, CongestionTrial,
    EarlierCongestion,
};
pub use credits::{Credit, Credits, Refill};
pub use edt::{Edt, EdtClass, EdtLink, EdtRule, Tried};
pub use pacer::{Earlier, Pacer};
pub use restore::{Restored, Wanted};
pub use rules::{ENTRIES, MASKS, Rule, RuleSet, RulesError, port_blocks};
pub use user::{Entered, LANES, UserPath};

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/classify.skel.rs"));
}

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]
mod pacing_skeleton {
    include!(concat!(env!("OUT_DIR"), "/pacing.skel.rs"));
}

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]
mod congestion_skeleton {
    include!(concat!(env!("OUT_DIR"), "/congestion.skel.rs"));
}
