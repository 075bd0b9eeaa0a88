//! Clients, edge and cloud in network namespaces, and the links between them.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use weir_netlab::topology::{Netns, Wire, check_rights, unique_prefix};

use super::{
    scenario::{Link, Place},
    wires::{self, Carrier},
};

/// Largest number of packets behind a buffer; too large to be reached.
const ON_THE_WAY: u32 = 1_000_000;
/// Limits of the receive and send windows, bytes; they exceed 10 BDP of 100 ms at 100 Mbit/s.
const WINDOW: &str = "4096 131072 33554432";

/// The implementation of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// tbf and netem, in this kernel.
    Netem,
    /// This process.
    Wires,
}

/// All namespaces and links; removed when dropped.
pub(super) struct Network {
    links: Links,
    clients: Netns,
    edge: Netns,
    cloud: Netns,
    /// The other end of the access link, if there is one.
    hub: Option<Netns>,
}

/// The links, in the order of [`Place::ALL`]; then the access link, if there is one.
enum Links {
    Cables(Vec<Cable>),
    Wires(Carrier),
}

/// A netem link has two routers between its ends, so that neither end's own queue is the bottleneck.
///
/// ```text
///  end ──── near ──── far ──── end
///       ◀netem   tbf▶     netem▶
///                ◀tbf
/// ```
///
/// A packet first waits in the byte-limited queue of the rate, then is delayed or lost.
struct Cable {
    near: Netns,
    far: Netns,
}

/// The position of a link, from the middle (a hub or the clients) to a leaf.
struct Span<'a> {
    middle: &'a Netns,
    /// The device's name in the middle.
    name: &'a str,
    leaf: &'a Netns,
    /// The first of three networks; the leaf is in the last one.
    net: u8,
}

const ACCESS_NET: u8 = 1;

fn first_net(place: Place) -> u8 {
    match place {
        Place::Edge => 11,
        Place::Cloud => 21,
    }
}

/// An address in a network of two hosts: 10.96.`net`.1 and .2.
fn address(net: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, net, host)
}

impl Span<'_> {
    fn leaf_address(net: u8) -> Ipv4Addr {
        address(net + 2, 2)
    }

    /// Puts two routers between the ends.
    fn cable(&self, near: Netns, far: Netns) -> Result<Cable> {
        let net = self.net;
        join((self.middle, self.name), (&near, "near"), net)?;
        join((&near, "far"), (&far, "near"), net + 1)?;
        join((&far, "far"), (self.leaf, "eth0"), net + 2)?;
        let to_leaf = |via| format!("route add {} via {via}\n", Span::leaf_address(net));
        near.ip(&(format!("route add default via {}\n", address(net, 1)) + &to_leaf(address(net + 1, 2))))?;
        far.ip(&format!("route add default via {}\n", address(net + 1, 1)))?;
        for router in [&near, &far] {
            router.sysctl("net.ipv4.ip_forward", "1")?;
        }
        self.route(&format!("via {}", address(net, 2)), &format!("via {}", address(net + 2, 1)))?;
        Ok(Cable { near, far })
    }

    /// Puts only this process between the ends.
    fn wire(&self, link: Link) -> Result<wires::Wire> {
        let wire = wires::Wire::between((self.middle, self.name), (self.leaf, "eth0"), link)?;
        self.middle.ip(&format!("addr add {}/32 dev {}\n", address(self.net, 1), self.name))?;
        self.leaf.ip(&format!("addr add {}/32 dev eth0\n", Span::leaf_address(self.net)))?;
        self.route(&format!("dev {}", self.name), "dev eth0")?;
        Ok(wire)
    }

    fn route(&self, from_middle: &str, from_leaf: &str) -> Result<()> {
        self.middle.ip(&format!("route add {} {from_middle}\n", Span::leaf_address(self.net)))?;
        self.leaf.ip(&format!("route add default {from_leaf}\n"))
    }
}

/// Joins two namespaces by a pair of interfaces; `a` has the network's first address.
fn join(a: (&Netns, &str), b: (&Netns, &str), net: u8) -> Result<()> {
    a.0.ip(&format!(
        "link add {} type veth peer name {} netns {}\naddr add {}/30 dev {0}\nlink set dev {0} up\n",
        a.1,
        b.1,
        b.0.name(),
        address(net, 1)
    ))?;
    b.0.ip(&format!("addr add {}/30 dev {}\nlink set dev {1} up\n", address(net, 2), b.1))?;
    // Packets have their size on the wire, so the buffer counts real bytes and each packet is lost alone.
    for (netns, device) in [a, b] {
        netns.exec(&["ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off"])?;
    }
    Ok(())
}

impl Cable {
    fn set(&self, link: Link) -> Result<()> {
        let Wire { rate, queue, burst } = Wire::of(link.rate, link.buffer());
        let delay_us = (link.rtt_ms * 500.0).round();
        let loss = if link.loss > 0.0 { format!(" loss {}%", link.loss * 100.0) } else { String::new() };
        let shape = |device| {
            let (rate, limit) = (rate.bits_per_sec(), queue.0);
            format!("qdisc replace dev {device} root tbf rate {rate}bit burst {} limit {limit}\n", burst.0)
        };
        let delay = |device| {
            format!("qdisc replace dev {device} root netem delay {delay_us}us{loss} limit {ON_THE_WAY}\n")
        };
        self.near.tc(&(shape("far") + &delay("near")))?;
        self.far.tc(&(shape("near") + &delay("far")))
    }
}

impl Links {
    fn set(&self, nth: usize, link: Link) -> Result<()> {
        match self {
            Links::Cables(cables) => cables[nth].set(link)?,
            Links::Wires(carrier) => carrier.set(nth, link),
        }
        Ok(())
    }
}

impl Network {
    /// Builds the namespaces and links. The links to edge and cloud still need [`set`](Network::set).
    ///
    /// # Errors
    /// If rights, a program or a kernel feature is missing (named in the error). The parts built so far are
    /// removed.
    pub(super) fn build(medium: Medium, access: Option<Link>, edge: Link, cloud: Link) -> Result<Network> {
        check_rights()?;
        let prefix = unique_prefix();
        let make = |label: &str| Netns::create(&format!("{prefix}{label}"));
        let clients = make("clients")?;
        let hub = access.map(|_| make("hub")).transpose()?;
        let (edge_server, cloud_server) = (make("edge")?, make("cloud")?);
        let middle = hub.as_ref().unwrap_or(&clients);
        let span = |name, leaf, net| Span { middle, name, leaf, net };
        let mut spans = vec![
            (span("edge", &edge_server, first_net(Place::Edge)), edge),
            (span("cloud", &cloud_server, first_net(Place::Cloud)), cloud),
        ];
        spans.extend(access.map(|link| (span("access", &clients, ACCESS_NET), link)));
        let links = match medium {
            Medium::Netem => Links::Cables(
                spans
                    .iter()
                    .map(|(span, _)| {
                        let router = |side| make(&format!("{}-{side}", span.name));
                        span.cable(router("near")?, router("far")?)
                    })
                    .collect::<Result<_>>()?,
            ),
            Medium::Wires => {
                let wires = spans.iter().map(|(span, link)| span.wire(*link));
                Links::Wires(Carrier::start(wires.collect::<Result<_>>()?))
            }
        };
        for (nth, (span, link)) in spans.iter().enumerate() {
            links.set(nth, *link).with_context(|| format!("the {} link", span.name))?;
        }
        if let Some(hub) = &hub {
            hub.sysctl("net.ipv4.ip_forward", "1")?;
        }
        for host in [&clients, &edge_server, &cloud_server] {
            // TCP must not reuse path metrics of an earlier measurement.
            host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
            host.sysctl("net.ipv4.tcp_rmem", WINDOW)?;
            host.sysctl("net.ipv4.tcp_wmem", WINDOW)?;
        }
        Ok(Network { links, clients, edge: edge_server, cloud: cloud_server, hub })
    }

    /// Changes the link to a place.
    ///
    /// # Errors
    /// If the kernel has no tbf or no netem.
    pub(super) fn set(&self, place: Place, link: Link) -> Result<()> {
        let nth = Place::ALL.iter().position(|one| *one == place).expect("one of all");
        self.links.set(nth, link).with_context(|| format!("the {} link", place.name()))
    }

    /// The clients' namespace.
    pub(super) fn clients(&self) -> &Netns {
        &self.clients
    }

    /// A server's namespace.
    pub(super) fn server(&self, place: Place) -> &Netns {
        match place {
            Place::Edge => &self.edge,
            Place::Cloud => &self.cloud,
        }
    }

    /// The clients' address for the server at a place.
    pub(super) fn client_address(&self, place: Place) -> Ipv4Addr {
        if self.hub.is_some() { Span::leaf_address(ACCESS_NET) } else { address(first_net(place), 1) }
    }

    /// A server's address.
    pub(super) fn server_address(place: Place) -> Ipv4Addr {
        Span::leaf_address(first_net(place))
    }
}
