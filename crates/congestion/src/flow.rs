use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes};

use crate::{Algorithm, Direction};

/// A flow that has ended: what this side sent on one connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowRecord {
    /// When it ended, milliseconds since the epoch.
    pub ended_ms: u64,
    /// The class that sent it; none if it is gone.
    pub class: Option<String>,
    /// The far end.
    pub to: IpAddr,
    /// Its port.
    pub remote_port: u16,
    /// The own port.
    pub local_port: u16,
    /// The opener of the connection; none if it is older than the agent.
    pub direction: Option<Direction>,
    /// Payload that was sent and acknowledged.
    pub sent: Bytes,
    /// Payload that came back.
    pub received: Bytes,
    /// From the first SYN, or from when it was accepted, until the last byte sent was
    /// acknowledged, microseconds.
    pub took_us: u64,
    /// The algorithm of its first packet.
    pub first: Algorithm,
    /// The algorithm at its end.
    pub last: Algorithm,
    /// Acknowledged when weir changed the algorithm; none if it did not.
    pub switched_at: Option<Bytes>,
    /// The least round trip, microseconds.
    pub least_rtt_us: u32,
    /// The smoothed round trip at its end, microseconds.
    pub smoothed_rtt_us: u32,
    /// The greatest smoothed round trip, microseconds.
    pub most_rtt_us: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// The kernel's last estimate of what the path delivers.
    pub delivery_rate: BitRate,
    /// The rule, from 1, if it is one of those in force now.
    pub rule: Option<usize>,
    /// Whether it was given another algorithm to try it out.
    #[serde(default)]
    pub tried: bool,
}

impl FlowRecord {
    /// The algorithm, or both with `>` between them.
    #[must_use]
    pub fn algorithms(&self) -> String {
        if self.first == self.last { self.first.to_string() } else { format!("{}>{}", self.first, self.last) }
    }
}
