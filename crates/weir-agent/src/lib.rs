//! The agent of a node: its loop, its configuration, its state, and the server of its API.
//!
//! [`run`] is the agent. [`standalone::serve`] is the image cache without an agent, [`forward`] the scheduler of
//! engine `user`. The other public items are
//! the seams at which tests put a loop of their own behind the real [`server`].

mod agent;
pub mod config;
pub mod control;
pub mod doctor;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod images;
mod kubernetes;
mod reply;
pub mod server;
pub mod standalone;
mod tokens;

pub use agent::{
    FreeLink,
    agree::Agreements,
    check, free_link,
    restore::{Restored, restore},
    run,
    store::Store,
};
pub use weir_datapath::engine::{forward, is_scheduler};
