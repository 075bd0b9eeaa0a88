//! Clients, edge and cloud in network namespaces, and the links between them.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use weir_netlab::topology::{Netns, Wire, check_rights, unique_prefix};

use super::{
    Link, Place,
    wires::{self, Carrier},
};

/// Packets that may be on their way behind a buffer: never the limit.
const ON_THE_WAY: u32 = 1_000_000;
/// A receiver's and sender's window may grow beyond 10 BDP of 100 ms at 100 Mbit/s, bytes.
const WINDOW: &str = "4096 131072 33554432";

/// What links are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// tbf and netem, in this kernel.
    Netem,
    /// This process.
    Wires,
}

/// All namespaces and links; gone when dropped.
pub(super) struct Network {
    links: Links,
    clients: Netns,
    edge: Netns,
    cloud: Netns,
    /// Where the access link's other end is, if there is one.
    hub: Option<Netns>,
}

/// The links, in the order of [`Place::ALL`]; then the access link, if there is one.
enum Links {
    Cables(Vec<Cable>),
    Wires(Carrier),
}

/// A link of netem: two routers between its ends, so that neither end's own queue is the bottleneck.
///
/// ```text
///  end ──── near ──── far ──── end
///       ◀netem   tbf▶     netem▶
///                ◀tbf
/// ```
///
/// A packet first waits in the byte-limited queue of the rate, then takes its time, or gets lost.
struct Cable {
    near: Netns,
    far: Netns,
}

/// Where a link is to be: from the middle of all, which is a hub or the clients, to a leaf.
struct Span<'a> {
    middle: &'a Netns,
    /// What the middle calls it.
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

/// In a network of two: 10.96.`net`.1 and .2.
fn address(net: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, net, host)
}

impl Span<'_> {
    fn leaf_address(net: u8) -> Ipv4Addr {
        address(net + 2, 2)
    }

    /// Routers between its ends.
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

    /// Nothing between its ends but this process.
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
    // Packets as they are on a wire: the buffer's bytes are theirs, and each is lost alone.
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
    /// Builds it; the links to edge and cloud are to be [`set`](Network::set).
    ///
    /// # Errors
    /// If rights, a program or a kernel feature is missing (named in the error). What was built until
    /// then is removed.
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
            // What one measurement has learnt of a path is not to help the next.
            host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
            host.sysctl("net.ipv4.tcp_rmem", WINDOW)?;
            host.sysctl("net.ipv4.tcp_wmem", WINDOW)?;
        }
        Ok(Network { links, clients, edge: edge_server, cloud: cloud_server, hub })
    }

    /// Makes the link to a place another one.
    ///
    /// # Errors
    /// If the kernel has no tbf or no netem.
    pub(super) fn set(&self, place: Place, link: Link) -> Result<()> {
        let nth = Place::ALL.iter().position(|one| *one == place).expect("one of all");
        self.links.set(nth, link).with_context(|| format!("the {} link", place.name()))
    }

    /// Where the clients are.
    pub(super) fn clients(&self) -> &Netns {
        &self.clients
    }

    /// Where a server is.
    pub(super) fn server(&self, place: Place) -> &Netns {
        match place {
            Place::Edge => &self.edge,
            Place::Cloud => &self.cloud,
        }
    }

    /// The address by which the server at a place reaches the clients.
    pub(super) fn client_address(&self, place: Place) -> Ipv4Addr {
        if self.hub.is_some() { Span::leaf_address(ACCESS_NET) } else { address(first_net(place), 1) }
    }

    /// A server's address.
    pub(super) fn server_address(place: Place) -> Ipv4Addr {
        Span::leaf_address(first_net(place))
    }
}
