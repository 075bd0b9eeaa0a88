//! Several links, of which the one that the default route takes is shared.

use weir_api::{Error, ErrorCode, EventKind, OtherLink};
use weir_netlink::{DefaultRoute, Link, Netlink};
use weir_units::chain;

use super::{Agent, by_hand::ByHand, datapath, reconcile::not_enforced};
use crate::config::Config;

/// The link that the default route takes: the device among `links` with the best route. The link of now stays
/// if no route goes by a link, or if another one is only as good.
///
/// `routes` begin with the one that the kernel takes first. A route by a bridge goes by its ports.
fn taken<'a>(
    links: impl Iterator<Item = &'a str>,
    routes: &[DefaultRoute],
    interfaces: &[Link],
    now: &str,
) -> Option<&'a str> {
    let metric_of = |device: &str| {
        let link = interfaces.iter().find(|link| link.name == device)?;
        let leads = |route: &&DefaultRoute| route.index == link.index || link.master == Some(route.index);
        routes.iter().find(leads).map(|route| route.metric)
    };
    let routed = links.filter_map(|device| Some((metric_of(device)?, device != now, device)));
    routed.min_by_key(|(metric, is_other, _)| (*metric, *is_other)).map(|(.., device)| device)
}

/// The configuration with the link of the default route as the shared one. Without such a route it is the
/// first link that is there.
pub(super) fn of_route(config: Config, netlink: &mut Netlink) -> Config {
    if !config.link.is_one_of_several() {
        return config;
    }
    let (Ok(routes), Ok(interfaces)) = (netlink.default_routes(), netlink.links()) else { return config };
    let devices = || config.link.all().map(|link| link.device.as_str());
    let is_there = |device: &&str| interfaces.iter().any(|link| link.name == *device);
    let first = || devices().find(is_there);
    let device = taken(devices(), &routes, &interfaces, &config.link.device).or_else(first);
    device.and_then(|device| config.sharing(device)).unwrap_or(config)
}

impl Agent {
    /// Moves to the link that the default route takes now.
    pub(super) fn follow_route(&mut self) {
        let link = &self.classes.config().link;
        if !link.is_one_of_several() {
            return;
        }
        let netlink = &mut self.datapath.netlink;
        let (routes, interfaces) = match netlink.default_routes().and_then(|r| Ok((r, netlink.links()?))) {
            Ok(found) => found,
            Err(e) => {
                let effects =
                    not_enforced(format!("cannot see which link the default route takes: {}", chain(&e)));
                return self.follow_up(effects);
            }
        };
        let devices = link.all().map(|link| link.device.as_str());
        let device = taken(devices, &routes, &interfaces, &link.device);
        let moved = device.filter(|device| *device != link.device);
        if let Some(config) = moved.and_then(|device| self.classes.config().sharing(device)) {
            self.move_to(config);
        }
    }

    /// Shares the link of this configuration in place of the present one. The discovery that follows brings
    /// the programs there.
    fn move_to(&mut self, config: Config) {
        let was = self.classes.config().link.device.clone();
        let (link, download) = (config.link.clone(), config.download());
        self.capacities.reconfigure(&config);
        if let (Some(agreements), Some(rules)) = (&mut self.agreements, config.agreements.clone()) {
            agreements.reconfigure(rules, &link);
        }
        self.datapath.shape = datapath::shape(&config, self.datapath.shape.mtu);
        // The signals of the other link say nothing about this one.
        self.follow_by(None);
        self.classes.reconfigure(config);
        self.follow_by(link.follows);
        if let (Some(download), Some(config)) = (&mut self.download, download) {
            download.reconfigure(config);
        }
        let excess = self.excess().map_or(String::new(), |why| format!("; {why}"));
        let text = format!(
            "the default route goes by {}: {}, and {was} is not shared{excess}",
            link.device,
            link.in_words()
        );
        tracing::info!("{text}");
        self.event(EventKind::Link, None, text);
        self.keep_promises();
        self.keep_download_promises();
        self.allocations.mark();
    }

    /// The links that are not shared now, for views.
    pub(super) fn other_links(&self) -> Vec<OtherLink> {
        let other = |link: &crate::config::Link| OtherLink {
            device: link.device.clone(),
            capacity: link.capacity,
            download: link.download,
            is_here: nix::net::if_::if_nametoindex(link.device.as_str()).is_ok(),
        };
        self.classes.config().link.spare.iter().map(other).collect()
    }

    /// Refuses capacities by hand beside several links: they would be those of whichever link is shared.
    pub(super) fn is_settable(&self, set: ByHand) -> Result<(), Error> {
        if set == ByHand::default() || !self.classes.config().link.is_one_of_several() {
            return Ok(());
        }
        let why = "cannot set the capacity of the link: the configuration has several links (change capacity in its \
                   [[link]] table, which a reload takes)";
        Err(Error::new(ErrorCode::BadRequest, why.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str, master: Option<u32>) -> Link {
        Link { index, name: name.to_owned(), master, ..Link::default() }
    }

    #[test]
    fn best_default_route_names_the_link_and_a_tie_changes_nothing() {
        let interfaces =
            [interface(2, "eth0", None), interface(3, "wwan0", None), interface(4, "tun0", None)];
        let route = |metric, index| DefaultRoute { metric, index };
        for (routes, now, link) in [
            (vec![route(100, 2), route(700, 3)], "eth0", Some("eth0")),
            (vec![route(100, 2), route(700, 3)], "wwan0", Some("eth0")),
            (vec![route(700, 3)], "eth0", Some("wwan0")),
            (vec![route(100, 2), route(100, 3)], "eth0", Some("eth0")),
            (vec![route(100, 2), route(100, 3)], "wwan0", Some("wwan0")),
            // A tunnel is no link of the configuration.
            (vec![route(50, 4), route(700, 3)], "eth0", Some("wwan0")),
            (vec![route(50, 4)], "eth0", None),
            (vec![], "eth0", None),
        ] {
            let links = ["eth0", "wwan0", "eth9"].into_iter();
            assert_eq!(taken(links, &routes, &interfaces, now), link, "{routes:?} beside {now}");
        }
    }

    #[test]
    fn default_route_by_a_bridge_goes_by_the_link_that_is_its_port() {
        let interfaces =
            [interface(2, "eth0", Some(5)), interface(3, "wwan0", None), interface(5, "br0", None)];
        let routes = [DefaultRoute { metric: 0, index: 5 }, DefaultRoute { metric: 9, index: 3 }];
        let links = ["eth0", "wwan0"].into_iter();
        assert_eq!(taken(links, &routes, &interfaces, "wwan0"), Some("eth0"));
    }
}
