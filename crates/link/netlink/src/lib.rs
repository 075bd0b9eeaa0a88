//! rtnetlink, as far as weir needs it: links, addresses, default routes, namespaces, traffic control.
//!
//! Framing, links and addresses come from the `netlink-packet-*` crates; the options of
//! HTB, TBF and cls_bpf, which they do not know, are written in [`tc`]. Requests are
//! batched: one system call for many class changes.

mod attrs;
mod events;
mod link;
mod route;
mod socket;
pub mod tc;

pub use attrs::{Attrs, attributes};
pub use events::Events;
pub use link::{InterfaceAddress, Link, Sent};
pub use route::DefaultRoute;
pub use socket::{Netlink, NetlinkError, Request};
