//! Several links that are shared at a time. The one that the default route takes is the main one: agreements,
//! stored promises and answers without a link's name are about it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::swap,
};

use weir_api::{EventKind, OnLink};
use weir_datapath::engine::{self, EngineError, EngineKind};
use weir_netlink::{DefaultRoute, Link, Netlink};
use weir_share::Allocator;
use weir_units::{BitRate, chain};

use super::{
    Agent,
    class_key::ClassKey,
    discover::{self, Discovery},
    download::OpenError,
    effects::not_enforced,
    figures::Figures,
    other_link::OtherLink,
    uplink::Uplink,
};
use crate::config::{self, Config};

/// The link that the default route takes: the device among `links` with the best route. The link of now stays
/// if no route goes by a link, or if another one is only as good.
///
/// `routes` begin with the one that the kernel takes first. A route by a bridge goes by its ports. `interfaces` has
/// those of the links, by their configured devices.
fn taken<'a>(
    links: impl Iterator<Item = &'a str>,
    routes: &[DefaultRoute],
    interfaces: &BTreeMap<String, Link>,
    now: &str,
) -> Option<&'a str> {
    let metric_of = |device: &str| {
        let link = interfaces.get(device)?;
        let leads = |route: &&DefaultRoute| route.index == link.index || link.master == Some(route.index);
        routes.iter().find(leads).map(|route| route.metric)
    };
    let routed = links.filter_map(|device| Some((metric_of(device)?, device != now, device)));
    routed.min_by_key(|(metric, is_other, _)| (*metric, *is_other)).map(|(.., device)| device)
}

/// The numbers of links, by their devices. A device keeps the number that it has in `known`, and with it its
/// scheduler. A new device takes the number of no device in `known` while there is another. Filters at a device
/// that is shared no longer may still send packets to the scheduler of its number. No new device has a number in
/// `taken` while there is another: another program has a device of weir's name.
pub(super) fn numbers<'a>(
    devices: impl Iterator<Item = &'a str>,
    known: &BTreeMap<String, u32>,
    taken: &BTreeSet<u32>,
) -> BTreeMap<String, u32> {
    let (mut numbers, mut new) = (BTreeMap::new(), Vec::new());
    for device in devices {
        match known.get(device) {
            Some(number) => drop(numbers.insert(device.to_owned(), *number)),
            None => new.push(device),
        }
    }
    for device in new {
        let is_no_links = |number: &u32| !numbers.values().any(|of| of == number);
        let is_free = |number: &u32| is_no_links(number) && !taken.contains(number);
        let was_free = |number: &u32| is_free(number) && !known.values().any(|of| of == number);
        let all = 0..engine::MAX_LINKS;
        let free = all.clone().find(was_free).or_else(|| all.clone().find(is_free));
        // The fault names the device that is in the way, and no other link loses its scheduler.
        let free = free.or_else(|| all.clone().find(is_no_links)).unwrap_or(0);
        numbers.insert(device.to_owned(), free);
    }
    numbers
}

/// The configuration with the link of the default route as the main one. Without such a route it is the
/// first link that is there.
pub(super) fn of_route(config: Config, netlink: &mut Netlink) -> Config {
    if !config.link.is_one_of_several() {
        return config;
    }
    let (Ok(routes), Ok(links)) = (netlink.default_routes(), netlink.links()) else { return config };
    let interfaces = discover::uplinks(&config, &links, &BTreeMap::new());
    let devices = || config.link.all().map(|link| link.device.as_str());
    let is_there = |device: &&str| interfaces.contains_key(*device);
    let first = || devices().find(is_there);
    let device = taken(devices(), &routes, &interfaces, &config.link.device).or_else(first);
    device.and_then(|device| config.sharing(device)).unwrap_or(config)
}

impl Agent {
    /// Moves to the link that the default route takes now.
    pub(super) fn follow_route(&mut self) {
        if !self.classes.config().link.is_one_of_several() {
            return;
        }
        let known = self.uplinks();
        let netlink = &mut self.datapath.netlink;
        let (routes, links) = match netlink.default_routes().and_then(|r| Ok((r, netlink.links()?))) {
            Ok(found) => found,
            Err(e) => {
                let effects =
                    not_enforced(format!("cannot see which link the default route takes: {}", chain(&e)));
                return self.follow_up(effects);
            }
        };
        let config = self.classes.config();
        let link = &config.link;
        let interfaces = discover::uplinks(config, &links, &known);
        let devices = link.all().map(|link| link.device.as_str());
        let device = taken(devices, &routes, &interfaces, &link.device);
        let moved = device.filter(|device| *device != link.device);
        if let Some(config) = moved.and_then(|device| self.classes.config().sharing(device)) {
            self.move_to(config);
        }
    }

    /// Has the link of this configuration be the main one in place of the present one. Each link keeps its
    /// scheduler.
    fn move_to(&mut self, config: Config) {
        let was = self.classes.config().link.device.clone();
        let Some(place) = self.others.iter().position(|other| other.device() == config.link.device) else {
            return;
        };
        let (link, download) = (config.link.clone(), config.download());
        let other_config = config.sharing(&was);
        let other = &mut self.others[place];
        swap(&mut self.link, &mut other.link);
        if let (Some(main), Some(other)) = (&mut self.link.download, &mut other.link.download) {
            // Promises and agreements stay with the main link.
            main.swap_classes(other);
        }
        if let (Some(agreements), Some(rules)) = (&mut self.agreements, config.agreements.clone()) {
            agreements.reconfigure(rules, &link);
            // The counters are other ones.
            agreements.forget_counts();
        }
        self.link.allocations.set_allocator(Allocator::new(config.allocator()));
        self.classes.reconfigure(config);
        if let (Some(download), Some(config)) = (&mut self.link.download, download) {
            download.reconfigure(config);
        }
        if let Some(config) = other_config {
            self.others[place].reconfigure(config);
        }
        if let Err(e) = self.datapath.attachments.set_links(self.link.scheduler.number, true) {
            let effects = self.link.scheduler.fault(chain(&e));
            self.follow_up(effects);
        }
        let excess = self.excess().map_or(String::new(), |why| format!("; {why}"));
        let text = format!("the default route goes by {}, and no longer by {was}{excess}", link.device);
        tracing::info!("{text}");
        self.event(EventKind::Link, None, text);
        self.keep_promises();
        self.keep_download_promises();
        self.link.allocations.mark();
    }

    /// The main link and the others.
    pub(super) fn all_links(&self) -> impl Iterator<Item = &Uplink> {
        [&self.link].into_iter().chain(self.others.iter().map(|other| &other.link))
    }

    /// Whether packets to some networks pass an uplink unscheduled.
    pub(super) fn has_exempt(&self) -> bool {
        self.all_links().any(|link| !link.exempt.is_empty())
    }

    /// Index of the device whose egress is caught for the main link.
    pub(super) fn uplink(&self) -> Option<u32> {
        self.datapath.attachments.uplink(self.link.scheduler.number)
    }

    /// The indices of the devices whose egress is caught, by the links' devices.
    pub(super) fn uplinks(&self) -> BTreeMap<String, u32> {
        let uplink =
            |(device, number): (String, u32)| Some((device, self.datapath.attachments.uplink(number)?));
        self.numbers().into_iter().filter_map(uplink).collect()
    }

    /// The numbers of the links, by their devices.
    pub(super) fn numbers(&self) -> BTreeMap<String, u32> {
        let main = (self.classes.config().link.device.clone(), self.link.scheduler.number);
        let others = self.others.iter().map(|o| (o.device().to_owned(), o.link.scheduler.number));
        others.chain([main]).collect()
    }

    /// Shares the other links of the configuration, and no longer those that it lacks. A link that cannot be shared
    /// is tried again at the next discovery. `known` has the numbers that devices keep.
    ///
    /// # Errors
    /// The first fault. The other links are shared.
    pub(super) fn share_others(
        &mut self,
        kind: EngineKind,
        known: &BTreeMap<String, u32>,
    ) -> Result<(), String> {
        let config = self.classes.config().clone();
        let mut faults = Vec::new();
        let is_in = |other: &OtherLink| config.link.others.iter().any(|link| link.device == other.device());
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.others).into_iter().partition(is_in);
        self.others = kept;
        for mut other in gone {
            let undone = other.end(&mut self.datapath.attachments);
            self.ended += other.link.work();
            faults
                .extend(undone.err().map(|e| format!("cannot leave link {}: {}", other.device(), chain(&e))));
        }
        // Without an answer a name that is taken is a fault of its link.
        let taken = engine::numbers_taken(&mut self.datapath.netlink).unwrap_or_default();
        let numbers = numbers(config.link.all().map(|link| link.device.as_str()), known, &taken);
        self.unshared.clear();
        for link in &config.link.others {
            let Some(of_link) = config.sharing(&link.device) else { continue };
            if let Err(e) = self.share_other(of_link, (numbers[&link.device], kind)) {
                let why = format!("cannot share link {}: {}", link.device, chain(&e));
                self.unshared.insert(link.device.clone(), why.clone());
                faults.push(why);
            }
        }
        let (main, is_several) = (self.link.scheduler.number, !self.others.is_empty());
        faults.extend(self.datapath.attachments.set_links(main, is_several).err().map(|e| chain(&e)));
        faults.into_iter().next().map_or(Ok(()), Err)
    }

    /// Shares the link of a configuration beside the main one, or applies the configuration to it.
    fn share_other(&mut self, config: Config, of: (u32, EngineKind)) -> Result<(), OpenError> {
        let now = self.now();
        let attachments = &mut self.datapath.attachments;
        match self.others.iter_mut().find(|other| other.device() == config.link.device) {
            Some(other) => {
                other.share_download(&config, of, &self.store, attachments)?;
                other.reconfigure(config);
                other.follow_rate(attachments, now);
            }
            None => {
                let mut other = OtherLink::open(config, of, &self.classes, &self.store, attachments)?;
                other.follow_rate(attachments, now);
                self.others.push(other);
            }
        }
        Ok(())
    }

    /// Tries again to share links that could not be shared.
    fn share_unshared(&mut self) {
        if self.unshared.is_empty() {
            return;
        }
        let before = self.unshared.clone();
        let (kind, numbers) = (self.link.scheduler.engine.kind(), self.numbers());
        let tried = self.share_others(kind, &numbers);
        if let Err(why) = tried
            && self.unshared != before
        {
            self.follow_up(not_enforced(why));
        }
    }

    /// Applies the present configuration to the other links.
    pub(super) fn reconfigure_others(&mut self) {
        let now = self.now();
        for other in &mut self.others {
            if let Some(config) = self.classes.config().sharing(other.device()) {
                other.reconfigure(config);
                other.follow_rate(&mut self.datapath.attachments, now);
            }
        }
        self.divide_others();
    }

    /// Has the other links follow a discovery.
    pub(super) fn follow_others(&mut self, discovery: &Discovery, is_complete: bool) {
        self.share_unshared();
        for place in 0..self.others.len() {
            let attachments = &mut self.datapath.attachments;
            let other = &mut self.others[place];
            let effects = other.follow(&self.classes, discovery, is_complete, &self.store, attachments);
            self.follow_up(effects);
        }
    }

    /// Catches what leaves by the links' devices and no port has seen.
    pub(super) fn catch_uplinks(&mut self, discovery: &Discovery) {
        let attachments = &mut self.datapath.attachments;
        let main = self.classes.config().link.device.clone();
        self.link.scheduler.catch(&main, discovery.uplinks.get(&main), attachments);
        self.link.exempt = discovery.local.beside(&main);
        for other in &mut self.others {
            let device = other.device().to_owned();
            other.link.exempt = discovery.local.beside(&device);
            match discovery.uplinks.get(&device) {
                Some(found) => other.link.scheduler.catch(&device, Some(found), attachments),
                // Nothing leaves by a modem that is not plugged in.
                None => other.link.scheduler.uplink_failure = None,
            }
        }
    }

    /// Has the other links take the policies by hand and the agreements of the main one, and enforce them.
    pub(super) fn keep_others(&mut self) {
        let down = self.link.download.as_ref().map(|download| &download.classes);
        for other in &mut self.others {
            other.keep(&self.classes, down);
        }
        self.divide_others();
    }

    /// Divides each other link if that is due.
    pub(super) fn divide_others(&mut self) {
        for place in 0..self.others.len() {
            let divided = self.others[place].divide_if_due();
            self.follow_up(divided);
        }
    }

    /// Removes the schedulers of all links. Nothing is sent to them any more.
    pub(super) fn remove_schedulers(&mut self) -> Result<(), EngineError> {
        let others: Vec<_> = self.others.iter_mut().map(|other| other.link.remove()).collect();
        self.link.remove()?;
        others.into_iter().collect()
    }

    /// The links beside the main one, for views.
    pub(super) fn other_links(&self) -> Vec<weir_api::OtherLink> {
        let configured = |other: &OtherLink| self.capacities.replaced(other.device());
        let unshared = |link: &config::Link| {
            let is_shared = self.others.iter().any(|other| other.device() == link.device);
            let why = self.unshared.get(&link.device).filter(|_| !is_shared)?;
            Some(weir_api::OtherLink {
                device: link.device.clone(),
                capacity: link.capacity,
                configured_capacity: None,
                rate: BitRate::ZERO,
                reserved: BitRate::ZERO,
                reservable: BitRate::ZERO,
                active: 0,
                follows: None,
                download: None,
                is_here: nix::net::if_::if_nametoindex(link.device.as_str()).is_ok(),
                not_enforced_because: Some(why.clone()),
                exempt: Vec::new(),
                unpromised: Vec::new(),
            })
        };
        let shared = self.others.iter().map(|other| other.view(configured(other)));
        shared.chain(self.classes.config().link.others.iter().filter_map(unshared)).collect()
    }

    /// A class's parts of the links beside the main one.
    pub(super) fn on_links(&self, key: &ClassKey) -> Vec<OnLink> {
        let part = |other: &OtherLink| {
            let entry = other.classes.entries().get(key)?;
            let figures = Figures::of(&other.classes, &other.link.allocations, entry);
            let (not_enforced, problem) = self.not_enforced_on(&other.link, entry).unzip();
            Some(OnLink {
                link: other.device().to_owned(),
                activity: figures.activity,
                policy: figures.policy,
                allocation: figures.allocation,
                rate: figures.rate,
                demand: figures.demand,
                bytes: figures.bytes,
                packets: figures.packets,
                drops: figures.drops,
                backlog: figures.backlog,
                backlog_packets: figures.backlog_packets,
                backpressured_ms: figures.backpressured_ms,
                enforced: problem.is_none(),
                not_enforced,
                not_enforced_because: problem,
                unpromised: figures.unpromised,
                down: other.link.down(key),
            })
        };
        self.others.iter().filter_map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The interface of a configured device.
    fn interface(index: u32, device: &str, master: Option<u32>) -> (String, Link) {
        (device.to_owned(), Link { index, name: device.to_owned(), master, ..Link::default() })
    }

    #[test]
    fn best_default_route_names_the_link_and_a_tie_changes_nothing() {
        let mut interfaces = BTreeMap::from([interface(2, "eth0", None), interface(3, "wwan0", None)]);
        // It has been renamed.
        interfaces.get_mut("eth0").unwrap().name = "wan".to_owned();
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
        let interfaces = BTreeMap::from([interface(2, "eth0", Some(5)), interface(3, "wwan0", None)]);
        let routes = [DefaultRoute { metric: 0, index: 5 }, DefaultRoute { metric: 9, index: 3 }];
        let links = ["eth0", "wwan0"].into_iter();
        assert_eq!(taken(links, &routes, &interfaces, "wwan0"), Some("eth0"));
    }

    #[test]
    fn device_keeps_its_number_whatever_the_order_of_the_tables() {
        let known = BTreeMap::from([("eth0".to_owned(), 0), ("wwan0".to_owned(), 1)]);
        let told = |devices: &[&str]| -> Vec<(String, u32)> {
            numbers(devices.iter().copied(), &known, &BTreeSet::new()).into_iter().collect()
        };
        let of = |all: &[(&str, u32)]| -> Vec<(String, u32)> {
            all.iter().map(|(device, number)| ((*device).to_owned(), *number)).collect()
        };
        assert_eq!(told(&["wwan0", "eth0"]), of(&[("eth0", 0), ("wwan0", 1)]));
        assert_eq!(told(&["wwan1", "wwan0"]), of(&[("wwan0", 1), ("wwan1", 2)]));
        assert_eq!(
            told(&["wwan1", "eth0", "wwan2", "wwan3"]),
            of(&[("eth0", 0), ("wwan1", 2), ("wwan2", 3), ("wwan3", 1)])
        );
        let first = |taken: &[u32]| {
            let taken = taken.iter().copied().collect();
            numbers(["eth0"].into_iter(), &BTreeMap::new(), &taken)["eth0"]
        };
        assert_eq!((first(&[]), first(&[0, 2]), first(&[0, 1, 2])), (0, 1, 3));
        // No name is left, and the fault says so of the first one.
        assert_eq!(first(&[0, 1, 2, 3]), 0);
        let four = ["eth0", "eth1", "eth2", "eth3"];
        let numbers = numbers(four.into_iter(), &BTreeMap::new(), &BTreeSet::from([2]));
        let all: BTreeSet<u32> = numbers.into_values().collect();
        assert_eq!(all, BTreeSet::from([0, 1, 2, 3]), "no two links have one number");
    }
}
