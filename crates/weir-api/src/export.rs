//! A link's division as a static HTB tree, for `weir export`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weir_agree::Direction;
use weir_units::{BitRate, Bytes};

use crate::ClassKind;

/// The query of `GET /v1/export`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportQuery {
    /// The direction of the link.
    pub direction: Direction,
    /// The device of one of several links. Without it the main link is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// A direction of a link, a tree of classes, and the traffic of each class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Export {
    /// weir's version.
    pub version: String,
    /// The link's device.
    pub link: String,
    /// The direction of the link.
    #[serde(default)]
    pub direction: Direction,
    /// The capacity of this direction of the link.
    pub capacity: BitRate,
    /// The engine that holds the division now.
    pub engine: String,
    /// Root, groups and members, each after its parent.
    pub classes: Vec<ExportClass>,
    /// Selectors. The first match decides.
    pub selectors: Vec<ExportSelector>,
    /// Networks beside the link's device (`[link] exempt`), whose packets pass unscheduled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub exempt: Vec<IpNet>,
}

/// A class of HTB. Its rate is the minimum, its ceiling the maximum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExportClass {
    /// The name people use; `link` for the root.
    pub name: String,
    /// The kind of class; none for the root.
    pub kind: Option<ClassKind>,
    /// The handle as tc prints it, e.g. `1:1a`.
    pub handle: String,
    /// The handle of the class above; the root has the qdisc `1:`.
    pub parent: String,
    /// The guaranteed rate.
    pub rate: BitRate,
    /// The rate it may borrow up to.
    pub ceil: BitRate,
    /// The bucket of the rate.
    pub burst: Bytes,
    /// The bucket of the ceiling.
    pub cburst: Bytes,
    /// Bytes served in one turn while borrowing, in proportion to its weight.
    pub quantum: Bytes,
    /// Lower values are served first.
    pub prio: u32,
    /// The size of its queue; none for a class with children.
    pub queue: Option<Bytes>,
    /// The queue splits super-packets above this size. None: it splits nothing.
    #[serde(default)]
    pub largest: Option<Bytes>,
    /// Interfaces that are ports of the link's own bridge. tc can tell their packets apart there.
    /// Only for what leaves.
    pub interfaces: Vec<String>,
    /// Interfaces behind a route or behind another bridge. tc knows their packets by an address or not at all.
    /// Only for what leaves.
    pub routed: Vec<String>,
    /// The addresses of the class, if the download is shared. tc tells its arriving packets apart by them, and
    /// those that leave by a route if NAT keeps them.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

/// A filter for IP packets of a class. A packet must match every part given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExportSelector {
    /// Handle of the class.
    pub class: String,
    /// Handle of the packets' class without selectors.
    pub from: Option<String>,
    /// Number of the protocol above IP. Ports without it apply to TCP and UDP.
    pub protocol: Option<u8>,
    /// First and last source port.
    pub source_ports: Option<[u16; 2]>,
    /// First and last destination port.
    pub destination_ports: Option<[u16; 2]>,
    /// The source network, e.g. `10.0.0.0/8`.
    pub source: Option<String>,
    /// The destination network.
    pub destination: Option<String>,
    /// Differentiated services code point.
    pub dscp: Option<u8>,
}
