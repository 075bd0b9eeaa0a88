use netlink_packet_core::Parseable;
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHopFlags, RouteType,
};

use super::{Netlink, NetlinkError, Request};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

/// A way to all destinations without another route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DefaultRoute {
    /// The kernel takes the route with the lowest metric.
    pub metric: u32,
    /// The index of its interface.
    pub index: u32,
}

impl Netlink {
    /// The default routes of the main table, IPv4 and IPv6, the one that the kernel takes first. An interface
    /// is listed once, with its lowest metric.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn default_routes(&mut self) -> Result<Vec<DefaultRoute>, NetlinkError> {
        let mut routes: Vec<DefaultRoute> = Vec::new();
        let request = Request { kind: RTM_GETROUTE, flags: 0, body: vec![0; 12], what: "list routes".into() };
        self.dump(request, |kind, body| {
            if kind == RTM_NEWROUTE
                && let Ok(message) = RouteMessage::parse(body)
            {
                routes.extend(default_routes_of(&message));
            }
        })?;
        routes.sort_unstable();
        let mut seen = Vec::new();
        routes.retain(|route| {
            let is_new = !seen.contains(&route.index);
            seen.push(route.index);
            is_new
        });
        Ok(routes)
    }
}

/// The next hops of a default route that the kernel takes. A dead one has no device that is up, or none with a
/// carrier where `ignore_routes_with_linkdown` is set (`fib_nexthop_info` in `net/ipv4/fib_semantics.c`).
fn default_routes_of(message: &RouteMessage) -> Vec<DefaultRoute> {
    let RouteHeader { destination_prefix_length, table, kind, flags, .. } = message.header;
    if destination_prefix_length != 0 || table != RouteHeader::RT_TABLE_MAIN || kind != RouteType::Unicast {
        return Vec::new();
    }
    let mut metric = 0;
    let mut hops = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) if !flags.contains(RouteFlags::Dead) => hops.push(*index),
            RouteAttribute::MultiPath(all) => {
                let alive = all.iter().filter(|hop| !hop.flags.contains(RouteNextHopFlags::Dead));
                hops.extend(alive.map(|hop| hop.interface_index));
            }
            _ => {}
        }
    }
    hops.into_iter().map(|index| DefaultRoute { metric, index }).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    fn ip(line: &str) {
        let done = Command::new("ip").args(line.split(' ')).status().expect("ip can run");
        assert!(done.success(), "ip {line}");
    }

    /// Runs `work` in a network namespace of its own. `None`, said as a skip, without the right to make one.
    fn in_namespace<T: Send + 'static>(work: fn() -> T) -> Option<T> {
        let made = std::thread::spawn(move || unshare(CloneFlags::CLONE_NEWNET).ok().map(|()| work()));
        let done = made.join().unwrap();
        if done.is_none() {
            println!("SKIPPED: making a network namespace needs CAP_SYS_ADMIN");
        }
        done
    }

    /// Routes of other tables, to a network, or that refuse packets are no default routes. The kernel lists IPv4
    /// first, whatever the metric.
    #[test]
    fn default_routes_come_by_metric_and_their_changes_are_told() {
        let told = in_namespace(|| {
            for line in [
                "link set lo up",
                "link add a0 type ifb",
                "link add b0 type ifb",
                "link set a0 up",
                "link set b0 up",
                "route add unreachable default metric 1",
                "route add default dev lo table 7",
                "route add 10.0.0.0/8 dev lo",
                "route add default dev a0 metric 300",
                "route add default dev b0 metric 200",
                "-6 route add default dev a0 metric 100",
            ] {
                ip(line);
            }
            let mut netlink = Netlink::open().unwrap();
            let events = crate::Events::of_default_routes().unwrap();
            ip("route add 10.9.0.0/16 dev lo");
            assert!(!events.drain(), "no default route changed");
            ip("route change default dev b0 metric 200 mtu 1400");
            assert!(events.drain() && !events.drain(), "a default route changed once");
            let [a, b] = ["a0", "b0"].map(|name| netlink.link(name).unwrap().index);
            (netlink.default_routes().unwrap(), a, b)
        });
        let Some((routes, a, b)) = told else { return };
        let of = |metric, index| DefaultRoute { metric, index };
        assert_eq!(routes, [of(100, a), of(200, b)]);
    }

    #[test]
    fn default_route_without_a_carrier_counts_only_where_the_kernel_takes_it() {
        let told = in_namespace(|| {
            for line in [
                "link add a0 type veth peer name a1",
                "link add b0 type ifb",
                "link set a0 up",
                "link set a1 up",
                "link set b0 up",
                "address add 10.7.0.1/24 dev a0",
                "address add 10.8.0.1/24 dev b0",
                "route add default via 10.7.0.2 dev a0 metric 100",
                "route add default nexthop via 10.7.0.2 dev a0 nexthop via 10.8.0.2 dev b0",
            ] {
                ip(line);
            }
            let mut netlink = Netlink::open().unwrap();
            let [a, b] = ["a0", "b0"].map(|name| netlink.link(name).unwrap().index);
            ip("link set a1 down");
            let mut with = |sysctl: &str| {
                std::fs::write("/proc/sys/net/ipv4/conf/a0/ignore_routes_with_linkdown", sysctl).unwrap();
                netlink.default_routes().unwrap().iter().map(|route| route.index).collect::<Vec<_>>()
            };
            (with("0"), with("1"), a, b)
        });
        let Some((taken, ignored, a, b)) = told else { return };
        assert_eq!((taken, ignored), (vec![a, b], vec![b]));
    }
}
