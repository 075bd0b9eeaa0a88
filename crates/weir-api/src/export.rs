//! The link's division as a static HTB tree would hold it: what `weir export` prints.

use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes};

use crate::Kind;

/// A link, a tree of classes, and who belongs where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// weir's version.
    pub version: String,
    /// The link's device.
    pub link: String,
    /// The rate that it carries.
    pub capacity: BitRate,
    /// The engine that holds the division now.
    pub engine: String,
    /// Root, groups, members, each after its parent.
    pub classes: Vec<ExportClass>,
    /// Selectors; the first one that matches decides.
    pub selectors: Vec<ExportSelector>,
}

/// A class of HTB. Its rate is its minimum, its ceiling its maximum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportClass {
    /// The name people use; `link` for the root.
    pub name: String,
    /// The kind of the class; none for the root.
    pub kind: Option<Kind>,
    /// As tc prints it, e.g. `1:1a`.
    pub handle: String,
    /// The class above; the root's is the qdisc, `1:`.
    pub parent: String,
    /// Its own.
    pub rate: BitRate,
    /// The most it may borrow to.
    pub ceil: BitRate,
    /// Bucket of the rate.
    pub burst: Bytes,
    /// Bucket of the ceiling.
    pub cburst: Bytes,
    /// Served at a time when it borrows, in proportion to its weight.
    pub quantum: Bytes,
    /// Served first if smaller.
    pub prio: u32,
    /// The most that waits in its queue; none if it has classes below it.
    pub queue: Option<Bytes>,
    /// Interfaces on the bridge that the link is a port of: their packets can be told apart there.
    pub interfaces: Vec<String>,
    /// Interfaces behind a route or a bridge without the link: theirs cannot.
    pub routed: Vec<String>,
}

/// IP packets that belong to a class, those that match every part given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportSelector {
    /// Handle of the class.
    pub class: String,
    /// Handle of the class that the packets would be in without selectors.
    pub from: Option<String>,
    /// Number of the protocol above IP. Ports without it are those of TCP and of UDP.
    pub protocol: Option<u8>,
    /// First and last of the sender's ports.
    pub source_ports: Option<[u16; 2]>,
    /// First and last of the receiver's ports.
    pub destination_ports: Option<[u16; 2]>,
    /// The sender's network, `10.0.0.0/8`.
    pub source: Option<String>,
    /// The receiver's.
    pub destination: Option<String>,
    /// Differentiated services code point.
    pub dscp: Option<u8>,
}
