//! Networks that packets reach without the line: on this node, behind its other interfaces, or beside an uplink's
//! device (`[link] exempt`).

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use weir_bpf::{LocalPrefix, Locality};
use weir_discovery::Found;
use weir_netlink::{InterfaceAddress, Link};

use crate::config::Config;

/// The networks of a discovery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalNetworks {
    /// This node's addresses, and networks behind interfaces that are no uplink.
    on_node: BTreeSet<IpNet>,
    /// Networks beside the devices of links, by the configured devices.
    exempt: BTreeMap<String, BTreeSet<IpNet>>,
}

impl LocalNetworks {
    /// `leading` has the interfaces that lead out, with the configured devices of their links.
    pub(super) fn find(
        config: &Config,
        addresses: &[InterfaceAddress],
        links: &[Link],
        leading: &BTreeMap<u32, String>,
        found: &[Found],
    ) -> LocalNetworks {
        let by_index: BTreeMap<u32, &Link> = links.iter().map(|l| (l.index, l)).collect();
        let mut on_node = BTreeSet::new();
        for InterfaceAddress { index, net } in addresses {
            let link_local = matches!(net.addr(), std::net::IpAddr::V6(a) if a.is_unicast_link_local());
            on_node.insert(net.addr().into());
            // Packets lose their sender's class in these devices. Elsewhere the uplink charges a tunnel's
            // packets to it.
            let forgets_class =
                by_index.get(index).is_some_and(|l| matches!(l.kind.as_deref(), Some("wireguard" | "tun")));
            if !leading.contains_key(index) && !forgets_class && !link_local {
                on_node.insert(net.trunc());
            }
        }
        on_node.extend(found.iter().flat_map(|f| &f.addresses).map(|address| IpNet::from(*address)));
        on_node.extend(config.link.all().flat_map(|link| &link.local).map(IpNet::trunc));

        let mut exempt = BTreeMap::new();
        for link in config.link.all().filter(|link| !link.exempt.is_empty()) {
            let mut networks = link.exempt.networks.clone();
            if link.exempt.is_on_link {
                // Beyond a device without an Ethernet header everything is across the line.
                let is_beside = |index: &u32| {
                    leading.get(index) == Some(&link.device)
                        && by_index.get(index).is_some_and(|device| device.has_ethernet())
                };
                let own = addresses.iter().filter(|a| is_beside(&a.index)).map(|a| a.net.trunc());
                // A network of one address is this node itself.
                networks.extend(own.filter(|network| network.prefix_len() < network.max_prefix_len()));
            }
            exempt.insert(link.device.clone(), networks);
        }
        LocalNetworks { on_node, exempt }
    }

    /// The networks beside the device of a link.
    pub(super) fn beside(&self, device: &str) -> BTreeSet<IpNet> {
        self.exempt.get(device).cloned().unwrap_or_default()
    }

    /// The networks as the programs know them. The longest network that holds an address decides. `numbers` are
    /// those of the links, by their devices.
    pub(super) fn known(&self, numbers: &BTreeMap<String, u32>) -> BTreeMap<LocalPrefix, Locality> {
        let mut exempt: BTreeMap<IpNet, Locality> = BTreeMap::new();
        for (device, networks) in &self.exempt {
            let Some(number) = numbers.get(device) else { continue };
            for network in networks {
                let known = exempt.entry(*network).or_default();
                *known = *known | Locality::exempt(*number);
            }
        }
        let wider = |network: &IpNet| std::iter::successors(network.supernet(), IpNet::supernet);
        // A part of another link's network is beside both devices.
        let of = |(network, own): (&IpNet, &Locality)| {
            let all = wider(network).filter_map(|wider| exempt.get(&wider)).fold(*own, |all, one| all | *one);
            (local_prefix(*network), all)
        };
        let mut known: BTreeMap<LocalPrefix, Locality> = exempt.iter().map(of).collect();
        for network in &self.on_node {
            let known = known.entry(local_prefix(*network)).or_default();
            *known = *known | Locality::ON_NODE;
        }
        known
    }
}

/// The classifier's form of a network.
pub(super) fn local_prefix(net: IpNet) -> LocalPrefix {
    LocalPrefix { network: net.network(), len: net.prefix_len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn config(text: &str) -> Config {
        crate::config::parse(text, std::path::Path::new("test.toml")).unwrap()
    }

    fn device(index: u32, name: &str, kind: Option<&str>, mac: usize) -> Link {
        let (name, kind) = (name.to_owned(), kind.map(str::to_owned));
        Link { index, name, kind, mac: vec![2; mac], ..Link::default() }
    }

    #[test]
    fn own_networks_of_an_uplink_are_beside_it_if_it_has_an_ethernet_header() {
        let links = [
            device(2, "eth0", None, 6),
            device(3, "wwan0", None, 0),
            device(4, "docker0", Some("bridge"), 6),
        ];
        let leading = [(2, "eth0"), (3, "wwan0")].map(|(index, device)| (index, device.to_owned())).into();
        let addresses = [
            (2, "192.168.1.7/24"),
            (2, "2001:db8::7/64"),
            (2, "fe80::7/64"),
            (2, "192.168.2.7/32"),
            (3, "10.64.0.7/30"),
            (4, "172.17.0.1/16"),
        ];
        let addresses = addresses.map(|(index, text)| InterfaceAddress { index, net: net(text) });
        let find = |exempt: &str| {
            let text = format!(
                "[[link]]\ndevice = \"eth0\"\ncapacity = \"9mbit\"\nlocal = [\"10.1.0.0/16\"]\nexempt = {exempt}\n\
                 [[link]]\ndevice = \"wwan0\"\ncapacity = \"9mbit\"\nexempt = {exempt}\n"
            );
            LocalNetworks::find(&config(&text), &addresses, &links, &leading, &[])
        };
        let none = find("[]");
        assert!(none.beside("eth0").is_empty() && none.beside("wwan0").is_empty());
        let on_node = [
            "10.1.0.0/16",
            "10.64.0.7/32",
            "172.17.0.0/16",
            "172.17.0.1/32",
            "192.168.1.7/32",
            "192.168.2.7/32",
            "2001:db8::7/128",
            "fe80::7/128",
        ];
        assert_eq!(none.on_node, on_node.map(net).into());
        let on_link = find("[\"on-link\", \"10.42.0.0/16\"]");
        assert_eq!(on_link.on_node, none.on_node);
        let beside = ["10.42.0.0/16", "192.168.1.0/24", "2001:db8::/64", "fe80::/64"].map(net);
        assert_eq!(on_link.beside("eth0"), beside.into());
        assert_eq!(on_link.beside("wwan0"), [net("10.42.0.0/16")].into());
    }

    #[test]
    fn part_of_a_network_is_beside_the_devices_of_all_that_hold_it() {
        let networks = |texts: &[&str]| texts.iter().map(|text| net(text)).collect::<BTreeSet<_>>();
        let local = LocalNetworks {
            on_node: networks(&["10.1.0.7/32", "10.0.0.0/8", "10.2.0.0/16"]),
            exempt: BTreeMap::from([
                ("eth0".to_owned(), networks(&["10.0.0.0/8", "fd00::/8"])),
                ("eth1".to_owned(), networks(&["10.1.0.0/16", "fd00::/8"])),
                ("gone".to_owned(), networks(&["10.3.0.0/16"])),
            ]),
        };
        let numbers = BTreeMap::from([("eth0".to_owned(), 2), ("eth1".to_owned(), 0)]);
        let [first, second] = [Locality::exempt(2), Locality::exempt(0)];
        let known = [
            ("10.0.0.0/8", Locality::ON_NODE | first),
            ("10.1.0.0/16", first | second),
            ("10.1.0.7/32", Locality::ON_NODE),
            ("10.2.0.0/16", Locality::ON_NODE),
            ("fd00::/8", first | second),
        ];
        assert_eq!(local.known(&numbers), known.map(|(text, known)| (local_prefix(net(text)), known)).into());
    }
}
