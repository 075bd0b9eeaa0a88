use netlink_packet_core::Parseable;
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};

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

/// The next hops of a default route.
fn default_routes_of(message: &RouteMessage) -> Vec<DefaultRoute> {
    let RouteHeader { destination_prefix_length, table, kind, .. } = message.header;
    if destination_prefix_length != 0 || table != RouteHeader::RT_TABLE_MAIN || kind != RouteType::Unicast {
        return Vec::new();
    }
    let mut metric = 0;
    let mut hops = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => hops.push(*index),
            RouteAttribute::MultiPath(all) => hops.extend(all.iter().map(|hop| hop.interface_index)),
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

    /// Routes of other tables, to a network, or that refuse packets are no default routes. The kernel lists IPv4
    /// first, whatever the metric.
    #[test]
    fn default_routes_come_by_metric_and_their_changes_are_told() {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).ok()?;
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
                let done = Command::new("ip").args(line.split(' ')).status().expect("ip can run");
                assert!(done.success(), "ip {line}");
            }
            let mut netlink = Netlink::open().unwrap();
            let events = crate::Events::of_default_routes().unwrap();
            let ip = |line: &str| Command::new("ip").args(line.split(' ')).status().expect("ip can run");
            assert!(ip("route add 10.9.0.0/16 dev lo").success());
            assert!(!events.drain(), "no default route changed");
            assert!(ip("route change default dev b0 metric 200 mtu 1400").success());
            assert!(events.drain() && !events.drain(), "a default route changed once");
            let [a, b] = ["a0", "b0"].map(|name| netlink.link(name).unwrap().index);
            Some((netlink.default_routes().unwrap(), a, b))
        });
        let Some((routes, a, b)) = made.join().unwrap() else {
            println!("SKIPPED: making a network namespace needs CAP_SYS_ADMIN");
            return;
        };
        let of = |metric, index| DefaultRoute { metric, index };
        assert_eq!(routes, [of(100, a), of(200, b)]);
    }
}
