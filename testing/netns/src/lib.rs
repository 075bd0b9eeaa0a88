//! Tests of the whole: the `weir` binary on a node made of network namespaces, real traffic
//! through the real kernel, and section by section what must hold.
//!
//! A [`Node`] is a topology of the lab (containers, bridge, uplink, a wire of 120 Mbit/s and a
//! server) with an [`Agent`] on it. A [`Division`] says who shares by which policy and who
//! sends what; from the same value come the agent's configuration and what the oracle expects,
//! and [`check`] measures and compares, printing every figure:
//!
//! ```no_run
//! use weir_netlab::{topology::Spec, traffic::Load};
//! use weir_netns_tests::{Division, Node, SECONDS, check, containers, party};
//!
//! let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
//! let division = Division::of([
//!     party("C1").min(30).sends(Load::Tcp),
//!     party("C2").weight(3).sends(Load::Tcp),
//! ]);
//! let config = node.config().division(&node, &division);
//! node.start(&config);
//! check(&node, "two of them", &division, Default::default(), SECONDS);
//! ```
//!
//! The harness panics where a test could only unwrap; then the agent's log, its classes and the
//! scheduler's counters are printed. A test that cannot run here says so: [`can_run`].
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod agent;
pub mod attack;
pub mod connections;
mod division;
mod echo;
mod engines;
mod frames;
mod http;
pub mod kernel;
mod lab;
mod needs;
mod node;
mod record;
mod senders;
mod sockops;
mod stream;
pub mod two_links;
mod users;
pub mod wireguard;

pub use agent::{Agent, Config, Ran, binary, is_optimised};
pub use division::{Division, Party, Share, TOLERANCE, assert_shares, check, compare, party, title};
pub use echo::{Echo, RoundTrips};
pub use engines::{EngineBounds, EngineKind};
pub use frames::{Frames, RawFrames, drain};
pub use http::http;
pub use lab::run_scenario;
pub use needs::{Need, can_have, can_run, skip};
pub use node::{CAPACITY, Node, WIRE, containers};
pub use record::{Record, Sample};
pub use senders::{FLOOD, Judged, Senders, Slack, judge};
pub use sockops::{Counting, Foreign};
pub use stream::{Origin, Rate, Stream, on_one_processor};
pub use users::as_user;
pub use weir_testkit::{
    Stalls, in_virtual_time, measure_once, measure_unless_still, sleep_running, wait_within,
};

/// How long a measurement takes; its first 2 s are left out.
pub const SECONDS: u64 = 5;
