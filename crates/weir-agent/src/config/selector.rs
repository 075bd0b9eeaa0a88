//! `match = { ... }`: the packets of a class, from any sender.

use std::{fmt, ops::RangeInclusive};

use ipnet::IpNet;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use weir_agree::Protocol;

/// A filter for IP packets. A packet must match every given part. "Local" means the side that sends by
/// this node's link.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Selector {
    /// The class of the packets without selectors: a container's class, or `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<String>,
    /// Ports without it apply to TCP and UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<Protocol>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<Ports>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remote_port: Option<Ports>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) local: Option<IpNet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<IpNet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dscp: Option<u8>,
}

impl Selector {
    /// Refuses selectors that match no packet or all packets.
    pub(crate) fn check(&self) -> Result<(), String> {
        if *self == Selector::default() {
            return Err("it matches everything: name at least one of container, protocol, port, \
                remote_port, local, remote, dscp"
                .to_owned());
        }
        if let Some(dscp) = self.dscp.filter(|dscp| *dscp > 63) {
            return Err(format!("dscp {dscp} has more than six bits: write 0 to 63"));
        }
        for (key, net) in [("local", self.local), ("remote", self.remote)] {
            if let Some(net) = net.filter(|net| *net != net.trunc()) {
                return Err(format!("{key} = \"{net}\" has bits behind its prefix: write {}", net.trunc()));
            }
        }
        if let (Some(local), Some(remote)) = (self.local, self.remote)
            && local.addr().is_ipv4() != remote.addr().is_ipv4()
        {
            return Err(format!(
                "no packet is both from {local} and to {remote}: they are of two IP versions"
            ));
        }
        Ok(())
    }

    /// The number of given parts.
    pub(crate) fn parts(&self) -> usize {
        let ports = [&self.port, &self.remote_port].into_iter().flatten().count();
        let nets = [self.local, self.remote].into_iter().flatten().count();
        let others = [self.container.is_some(), self.protocol.is_some(), self.dscp.is_some()];
        ports + nets + others.into_iter().filter(|given| *given).count()
    }
}

/// The selector of an agreement's traffic.
impl From<&weir_agree::Selector> for Selector {
    fn from(selector: &weir_agree::Selector) -> Selector {
        let one = |port: u16| Ports(port..=port);
        Selector {
            container: selector.container.as_ref().map(ToString::to_string),
            protocol: selector.protocol,
            port: selector.source_port.map(one),
            remote_port: selector.destination_port.map(one),
            local: None,
            remote: selector.subnet,
            dscp: selector.dscp,
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.container.as_ref().map(|name| format!("container {name}")),
            self.protocol.map(|protocol| protocol.to_string()),
            self.port.as_ref().map(|ports| format!("port {ports}")),
            self.remote_port.as_ref().map(|ports| format!("remote port {ports}")),
            self.local.map(|net| format!("local {net}")),
            self.remote.map(|net| format!("remote {net}")),
            self.dscp.map(|dscp| format!("dscp {dscp}")),
        ];
        f.pad(&parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

/// A port or a range of ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ports(pub(crate) RangeInclusive<u16>);

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = (self.0.start(), self.0.end());
        f.pad(&if start == end { start.to_string() } else { format!("{start}-{end}") })
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (*self.0.start(), *self.0.end()) {
            (start, end) if start == end => serializer.serialize_u16(start),
            _ => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ports, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Ports;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port such as 8081 or a range such as \"8081-8090\"")
            }
            fn visit_i64<E: de::Error>(self, port: i64) -> Result<Ports, E> {
                self.visit_str(&port.to_string())
            }
            fn visit_u64<E: de::Error>(self, port: u64) -> Result<Ports, E> {
                self.visit_str(&port.to_string())
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ports, E> {
                let (start, end) = text.split_once('-').unwrap_or((text, text));
                let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
                match (port(start), port(end)) {
                    (Some(start), Some(end)) if start <= end => Ok(Ports(start..=end)),
                    _ => Err(E::custom(format!(
                        "cannot read `{text}` as ports: write 1 to 65535, or a range such as \"8081-8090\""
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// Reads one selector or a list of them.
pub(super) fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Selector>, D::Error> {
    struct Read;
    impl<'de> Visitor<'de> for Read {
        type Value = Vec<Selector>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a selector such as { protocol = \"tcp\", port = 8081 }, or a list of them")
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vec<Selector>, A::Error> {
            Ok(vec![Selector::deserialize(MapAccessDeserializer::new(map))?])
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Selector>, A::Error> {
            let mut selectors = Vec::new();
            while let Some(selector) = list.next_element()? {
                selectors.push(selector);
            }
            Ok(selectors)
        }
    }
    deserializer.deserialize_any(Read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Selector {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_an_agreement_selects_is_selected() {
        let of_agreement = weir_agree::Selector {
            container: Some(weir_agree::Name::new("web").unwrap()),
            protocol: Some(Protocol::Tcp),
            source_port: Some(8081),
            destination_port: Some(9),
            subnet: Some("10.0.0.0/8".parse().unwrap()),
            dscp: Some(46),
        };
        let want = "container = \"web\"\nprotocol = \"tcp\"\nport = 8081\nremote_port = 9\nremote = \"10.0.0.0/8\"\ndscp = 46\n";
        assert_eq!(Selector::from(&of_agreement), read(want));
        assert_eq!(toml::to_string(&read(want)).unwrap(), want);
    }
}
