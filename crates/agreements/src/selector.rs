use std::{fmt, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Name;

/// The packets that an agreement is about: those that match each given part.
///
/// The paper's filter, "based on the provider port used by the client", is a `source_port`: the
/// provider's answers leave from it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Selector {
    /// The packets of the container with that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Name>,
    /// The transport. Ports without it are those of TCP and of UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The provider's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// The customer's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
    /// The customer's network, in CIDR notation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub subnet: Option<IpNet>,
    /// The packets' differentiated services code point, 0 to 63 (RFC 2474).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
}

/// A transport with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 9260.
    Sctp,
}

/// The parts do not make a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Port 0.
    #[error("cannot select {0} 0: no packet has it, write 1 to 65535 or leave it out")]
    PortZero(&'static str),
    /// More than six bits.
    #[error("cannot select dscp {0}: it has six bits, write 0 to 63")]
    Dscp(u8),
    /// Bits behind the prefix are set.
    #[error("cannot select subnet {given}: it has bits behind its prefix, write {meant}")]
    HostBits {
        /// As written.
        given: IpNet,
        /// The network that holds it.
        meant: IpNet,
    },
    /// Not a transport with ports.
    #[error("cannot select protocol `{0}`: write tcp, udp or sctp")]
    Protocol(String),
}

impl Selector {
    /// The packets of the container that has the name of the service: the meaning of an offer
    /// without a selector, as the paper's Fig. 2.
    #[must_use]
    pub fn service(name: &Name) -> Selector {
        Selector { container: Some(name.clone()), ..Selector::default() }
    }

    /// The container, if all of its packets are selected and no others.
    #[must_use]
    pub fn whole_container(&self) -> Option<&Name> {
        let container = self.container.as_ref()?;
        (*self == Selector::service(container)).then_some(container)
    }

    /// Whether nothing is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Selector::default()
    }

    /// Tests the parts.
    ///
    /// # Errors
    /// [`SelectorError`] for the first part that no packet could match, or that says two things.
    pub fn check(&self) -> Result<(), SelectorError> {
        for (name, port) in [("source port", self.source_port), ("destination port", self.destination_port)] {
            if port == Some(0) {
                return Err(SelectorError::PortZero(name));
            }
        }
        match (self.dscp, self.subnet) {
            (Some(dscp), _) if dscp > 63 => Err(SelectorError::Dscp(dscp)),
            (_, Some(given)) if given != given.trunc() => {
                Err(SelectorError::HostBits { given, meant: given.trunc() })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.container.as_ref().map(|name| format!("container {name}")),
            self.protocol.map(|protocol| protocol.to_string()),
            self.source_port.map(|port| format!("source port {port}")),
            self.destination_port.map(|port| format!("destination port {port}")),
            self.subnet.map(|subnet| format!("subnet {subnet}")),
            self.dscp.map(|dscp| format!("dscp {dscp}")),
        ];
        let text = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        f.pad(if text.is_empty() { "everything" } else { &text })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

impl FromStr for Protocol {
    type Err = SelectorError;
    fn from_str(text: &str) -> Result<Protocol, SelectorError> {
        match text {
            "tcp" => Ok(Protocol::Tcp),
            "udp" => Ok(Protocol::Udp),
            "sctp" => Ok(Protocol::Sctp),
            other => Err(SelectorError::Protocol(other.chars().take(32).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_that_no_packet_matches_is_refused() {
        let good = Selector { source_port: Some(8001), dscp: Some(63), ..Selector::default() };
        assert_eq!(good.check(), Ok(()));
        let zero = Selector { source_port: Some(0), ..good.clone() };
        assert_eq!(zero.check(), Err(SelectorError::PortZero("source port")));
        let zero = Selector { destination_port: Some(0), ..good.clone() };
        assert_eq!(zero.check(), Err(SelectorError::PortZero("destination port")));
        assert_eq!(Selector { dscp: Some(64), ..good }.check(), Err(SelectorError::Dscp(64)));
    }

    #[test]
    fn a_subnet_with_host_bits_is_refused_with_the_one_that_was_meant() {
        let selector = Selector { subnet: Some("10.1.2.3/8".parse().unwrap()), ..Selector::default() };
        let error = selector.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot select subnet 10.1.2.3/8: it has bits behind its prefix, write 10.0.0.0/8"
        );
    }
}
