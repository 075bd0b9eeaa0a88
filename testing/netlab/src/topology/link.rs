//! The kinds of device that an uplink can be.

use std::fmt;

use anyhow::Result;

use super::{Netns, UPLINK, ppp, tun, wireguard};

/// The server's end of the uplink.
const FAR_END: &str = "eth0";

/// The kind of device that the uplink is. All but `Ethernet` lead to the server without a wire: nothing
/// but weir holds them to a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Uplink {
    /// A veth, to a wire of a rate.
    #[default]
    Ethernet,
    /// A tunnel device of this process (`ARPHRD_NONE`), whose packets begin with their IP header.
    Tunnel,
    /// The same with the device type of a modem in raw-IP mode (`ARPHRD_RAWIP`).
    RawIp,
    /// PPP over a serial line (`ARPHRD_PPP`).
    Ppp,
    /// WireGuard, to a peer at the server. The encrypted packets pass through another namespace.
    WireGuard,
}

impl Uplink {
    /// Kinds without an Ethernet header.
    pub const BARE: [Uplink; 4] = [Uplink::Tunnel, Uplink::RawIp, Uplink::Ppp, Uplink::WireGuard];

    /// Whether its packets begin with an Ethernet header.
    #[must_use]
    pub fn has_ethernet(self) -> bool {
        self == Uplink::Ethernet
    }

    /// The part of the kernel or the program that it needs and that is missing here; none if all is here.
    #[must_use]
    pub fn lacks(self) -> Option<&'static str> {
        match self {
            Uplink::Ethernet => None,
            Uplink::Tunnel | Uplink::RawIp => tun::lacks(),
            Uplink::Ppp => ppp::lacks(),
            Uplink::WireGuard => wireguard::lacks(),
        }
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Uplink::Ethernet => "Ethernet",
            Uplink::Tunnel => "tun",
            Uplink::RawIp => "raw IP",
            Uplink::Ppp => "ppp",
            Uplink::WireGuard => "WireGuard",
        })
    }
}

/// The carrier of packets between the two ends of an uplink without an Ethernet header.
#[derive(Debug)]
pub(super) enum Line {
    /// A thread of this process.
    Tunnel { _relay: tun::Relay },
    /// A pair of terminals.
    Serial { _line: ppp::Line },
}

impl Line {
    /// Makes the uplink of the node and its other end at the server, both up.
    ///
    /// # Errors
    /// If this machine lacks what it needs ([`Uplink::lacks`]).
    pub(super) fn build(uplink: Uplink, node: &Netns, wire: &Netns, srv: &Netns) -> Result<Option<Line>> {
        let (near, far) = ((node, UPLINK), (srv, FAR_END));
        match uplink {
            Uplink::Ethernet => Ok(None),
            Uplink::Tunnel => {
                Ok(Some(Line::Tunnel { _relay: tun::Relay::between(near, far, tun::Kind::None)? }))
            }
            Uplink::RawIp => {
                Ok(Some(Line::Tunnel { _relay: tun::Relay::between(near, far, tun::Kind::RawIp)? }))
            }
            Uplink::Ppp => Ok(Some(Line::Serial { _line: ppp::Line::between(near, far)? })),
            // The kernel carries the packets by itself.
            Uplink::WireGuard => wireguard::connect(near, far, wire).map(|()| None),
        }
    }
}
