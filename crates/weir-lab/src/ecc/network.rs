//! Clients, edge and cloud in network namespaces, and the links between them.

use std::{fmt::Write as _, net::Ipv4Addr};

use anyhow::{Context, Result};

use super::{Link, Place};
use crate::topology::{Netns, Wire, check_rights, unique_prefix};

/// Packets that may be on their way behind a buffer: never the limit.
const ON_THE_WAY: u32 = 1_000_000;
/// A receiver's and sender's window may grow beyond 10 BDP of 100 ms at 100 Mbit/s, bytes.
const WINDOW: &str = "4096 131072 33554432";

/// A link: two routers between its ends, so that neither end's own queue is the bottleneck.
///
/// ```text
///  end ──── near ──── far ──── end
///       ◀netem   tbf▶     netem▶
///                ◀tbf
/// ```
///
/// A packet first waits in the byte-limited queue of the rate, then takes its time, or gets lost.
#[derive(Debug)]
struct Cable {
    near: Netns,
    far: Netns,
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

/// All namespaces; gone when dropped.
#[derive(Debug)]
pub(super) struct Network {
    clients: Netns,
    edge: Netns,
    cloud: Netns,
    edge_cable: Cable,
    cloud_cable: Cable,
    /// Where the access link's other end is, if there is one.
    _hub: Option<Netns>,
    _access: Option<Cable>,
}

/// Of a network of two: 10.96.`net`.1 and .2.
fn address(net: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, net, host)
}

/// Of the networks of a cable, the first one; two more follow.
fn first_net(place: Place) -> u8 {
    match place {
        Place::Edge => 11,
        Place::Cloud => 21,
    }
}

const ACCESS_NET: u8 = 1;

/// The last network of a place's cable: its server's.
fn server_net(place: Place) -> u8 {
    first_net(place) + 2
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

fn route(netns: &Netns, lines: &[(Option<u8>, Ipv4Addr)]) -> Result<()> {
    let mut batch = String::new();
    for (net, via) in lines {
        let _ = match net {
            Some(net) => writeln!(batch, "route add {}/30 via {via}", address(*net, 0)),
            None => writeln!(batch, "route add default via {via}"),
        };
    }
    netns.ip(&batch)
}

impl Network {
    /// Builds it; the links are as fast as memory until [`Network::set`].
    ///
    /// # Errors
    /// If rights, a program or a kernel feature is missing (named in the error). What was built until
    /// then is removed.
    pub(super) fn build(access: Option<Link>) -> Result<Network> {
        check_rights()?;
        let prefix = unique_prefix();
        let make = |label: &str| Netns::create(&format!("{prefix}{label}"));
        let cable = |label: &str| -> Result<Cable> {
            Ok(Cable { near: make(&format!("{label}-near"))?, far: make(&format!("{label}-far"))? })
        };
        let clients = make("clients")?;
        let hub = access.map(|_| make("hub")).transpose()?;
        let access_cable = access.map(|_| cable("access")).transpose()?;
        let (edge, cloud) = (make("edge")?, make("cloud")?);
        let (edge_cable, cloud_cable) = (cable("e")?, cable("c")?);

        let end = hub.as_ref().unwrap_or(&clients);
        for (place, cable, server) in
            [(Place::Edge, &edge_cable, &edge), (Place::Cloud, &cloud_cable, &cloud)]
        {
            let net = first_net(place);
            join((end, place.name()), (&cable.near, "near"), net)?;
            join((&cable.near, "far"), (&cable.far, "near"), net + 1)?;
            join((&cable.far, "far"), (server, "eth0"), net + 2)?;
            route(end, &[(Some(server_net(place)), address(net, 2))])?;
            let to_server = (Some(server_net(place)), address(net + 1, 2));
            route(&cable.near, &[(None, address(net, 1)), to_server])?;
            route(&cable.far, &[(None, address(net + 1, 1))])?;
            route(server, &[(None, address(net + 2, 1))])?;
        }
        if let (Some(hub), Some(cable), Some(link)) = (&hub, &access_cable, access) {
            let net = ACCESS_NET;
            join((&clients, "access"), (&cable.near, "near"), net)?;
            join((&cable.near, "far"), (&cable.far, "near"), net + 1)?;
            join((&cable.far, "far"), (hub, "access"), net + 2)?;
            let back = Some(net);
            route(&clients, &[(None, address(net, 2))])?;
            route(&cable.near, &[(None, address(net + 1, 2))])?;
            route(&cable.far, &[(None, address(net + 2, 2)), (back, address(net + 1, 1))])?;
            route(hub, &[(back, address(net + 2, 1))])?;
            cable.set(link)?;
        }
        let routers = [&edge_cable, &cloud_cable].into_iter().chain(&access_cable);
        for router in routers.flat_map(|cable| [&cable.near, &cable.far]).chain(&hub) {
            router.sysctl("net.ipv4.ip_forward", "1")?;
        }
        for host in [&clients, &edge, &cloud] {
            // What one measurement has learnt of a path is not to help the next.
            host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
            host.sysctl("net.ipv4.tcp_rmem", WINDOW)?;
            host.sysctl("net.ipv4.tcp_wmem", WINDOW)?;
        }
        Ok(Network { clients, edge, cloud, edge_cable, cloud_cable, _hub: hub, _access: access_cable })
    }

    /// Makes the links like this, also if they were others before.
    ///
    /// # Errors
    /// If the kernel has no tbf or no netem.
    pub(super) fn set(&self, edge: Link, cloud: Link) -> Result<()> {
        self.edge_cable.set(edge).context("the edge link")?;
        self.cloud_cable.set(cloud).context("the cloud link")
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

    /// Its address.
    pub(super) fn server_address(place: Place) -> Ipv4Addr {
        address(server_net(place), 2)
    }
}
