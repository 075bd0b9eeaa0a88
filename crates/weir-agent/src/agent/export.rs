//! The division of a link as a static tree without an agent, for `weir export`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use weir_agree::Direction;
use weir_api::{ClassKind, Error, ErrorCode, Export, ExportClass, ExportQuery, ExportSelector};
use weir_bpf::{LocalPrefix, SelectorRule};
use weir_datapath::engine::{EngineKind, Plan, plan, tree};
use weir_netlink::{Link, tc::Leaf};
use weir_units::chain;
use weir_units::{BitRate, TcHandle};

use super::{
    Agent,
    class_table::{ClassEntry, ClassTable},
    datapath::{handle, rules},
    download::Download,
    uplink::Uplink,
};

/// A direction of a link, as the agent divides it.
struct Divided<'a> {
    classes: &'a ClassTable,
    shape: plan::Shape,
    engine: EngineKind,
    direction: Direction,
    /// The other ports of the link's bridge. tc knows leaving packets by the port that they came from.
    ports: BTreeSet<u32>,
    /// Addresses with the handles of their classes. They are known if the download is shared.
    owners: Option<BTreeMap<IpAddr, u32>>,
    /// Networks beside the device.
    exempt: &'a BTreeSet<IpNet>,
}

impl Agent {
    /// The division in force of a direction of a link, with minima as rates.
    pub(super) fn export(&mut self, query: &ExportQuery) -> Result<Export, Error> {
        let interfaces = self.datapath.netlink.links().map_err(|e| {
            Error::new(ErrorCode::Engine, format!("cannot look at this node's interfaces: {}", chain(&e)))
        })?;
        let (classes, link) = self.link_to_export(query.link.as_deref())?;
        let device = &classes.config().link.device;
        let divided = match query.direction {
            Direction::Upload => Divided {
                classes,
                shape: link.scheduler.shape,
                engine: link.scheduler.engine.kind(),
                direction: Direction::Upload,
                ports: self.ports_beside(link, &interfaces),
                owners: link.download.as_ref().map(Download::addresses),
                exempt: &link.exempt,
            },
            Direction::Download => of_download(link, device)?,
        };
        if let Some(framing) = divided.shape.framing {
            let message = format!(
                "cannot export the division: its packets are charged with the framing of the line ({framing}), which \
                 a static script would lack"
            );
            return Err(Error::new(ErrorCode::BadRequest, message));
        }
        Ok(divided.export(device))
    }

    /// The link of a device with its classes. Without a device it is the main link.
    fn link_to_export(&self, device: Option<&str>) -> Result<(&ClassTable, &Uplink), Error> {
        let main = &self.classes.config().link;
        let Some(device) = device.filter(|device| *device != main.device) else {
            return Ok((&self.classes, &self.link));
        };
        if let Some(other) = self.others.iter().find(|other| other.device() == device) {
            return Ok((&other.classes, &other.link));
        }
        let refused = |code, why: String| {
            Err(Error::new(code, format!("cannot export the division of link {device}: {why}")))
        };
        if let Some(why) = self.unshared.get(device) {
            return refused(ErrorCode::Engine, why.clone());
        }
        let all: Vec<&str> = main.all().map(|link| link.device.as_str()).collect();
        match all[..] {
            [only] => refused(ErrorCode::BadRequest, format!("the only link is {only}")),
            _ => refused(ErrorCode::BadRequest, format!("the links are {}", all.join(", "))),
        }
    }

    /// The other ports of the bridge that a link's device is a port of.
    fn ports_beside(&self, link: &Uplink, interfaces: &[Link]) -> BTreeSet<u32> {
        let uplink = self.datapath.attachments.uplink(link.scheduler.number);
        let bridge = interfaces.iter().find(|found| Some(found.index) == uplink).and_then(|l| l.master);
        let ports = interfaces.iter().filter(|found| bridge.is_some() && found.master == bridge);
        ports.map(|port| port.index).collect()
    }
}

/// The download of the link of a device.
fn of_download<'a>(link: &'a Uplink, device: &str) -> Result<Divided<'a>, Error> {
    let Some(download) = &link.download else {
        let message = format!(
            "cannot export what arrives by {device}: the download is not shared; set [link] download in the \
             configuration"
        );
        return Err(Error::new(ErrorCode::BadRequest, message));
    };
    Ok(Divided {
        classes: &download.classes,
        shape: plan::Shape { capacity: download.in_force(), ..download.shape },
        engine: download.device().1,
        direction: Direction::Download,
        ports: BTreeSet::new(),
        owners: Some(download.addresses()),
        exempt: &link.exempt,
    })
}

impl Divided<'_> {
    fn export(&self, device: &str) -> Export {
        let selectors = match self.direction {
            Direction::Upload => rules(self.classes).0.iter().map(selector).collect(),
            Direction::Download => Vec::new(),
        };
        Export {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            link: device.to_owned(),
            direction: self.direction,
            capacity: self.shape.capacity,
            engine: self.engine.name().to_owned(),
            classes: self.tree().iter().map(|node| self.class(node)).collect(),
            selectors,
            exempt: self.exempt.iter().copied().collect(),
        }
    }

    /// The classes that are here, with their minors.
    fn present(&self) -> impl Iterator<Item = (u16, &ClassEntry)> {
        self.classes.entries().values().filter_map(|entry| entry.minor.map(|minor| (minor, entry)))
    }

    fn tree(&self) -> Vec<tree::Node> {
        let of_kind =
            |group: bool| self.present().filter(move |(_, e)| (e.class.kind == ClassKind::Group) == group);
        let index: BTreeMap<&str, usize> =
            of_kind(true).map(|(_, e)| e.class.name.as_str()).zip(0..).collect();
        let group = |(minor, entry): (u16, &ClassEntry)| plan::Group {
            minor,
            policy: entry.effective.policy,
            allocation: BitRate::ZERO,
            share: BitRate::ZERO,
            target: BitRate::ZERO,
        };
        let member = |(minor, entry): (u16, &ClassEntry)| plan::Member {
            minor,
            group: entry.class.group.as_deref().and_then(|name| index.get(name).copied()),
            policy: entry.effective.policy,
            allocation: BitRate::ZERO,
            share: BitRate::ZERO,
            target: BitRate::ZERO,
            backlogged: false,
            takes_all: false,
            is_steady: false,
            prio: u32::from(entry.class.kind != ClassKind::Control),
        };
        let groups: Vec<plan::Group> = of_kind(true).map(group).collect();
        let members: Vec<plan::Member> = of_kind(false).map(member).collect();
        let mut nodes = Vec::new();
        tree::fixed(&Plan { shape: &self.shape, groups: &groups, members: &members }, &mut nodes);
        nodes
    }

    fn class(&self, node: &tree::Node) -> ExportClass {
        let minor = node.class.handle.minor();
        let found = self.present().find(|(other, _)| *other == minor).map(|(_, entry)| entry);
        let (queue, largest) = match node.leaf {
            None => (None, None),
            Some(Leaf::Fifo { limit }) => (Some(limit), None),
            Some(Leaf::Split { limit, largest }) => (Some(limit), Some(largest)),
        };
        let (interfaces, routed) = self.interfaces(found);
        ExportClass {
            name: found.map_or("link".to_owned(), |entry| entry.class.name.clone()),
            kind: found.map(|entry| entry.class.kind),
            handle: node.class.handle.to_string(),
            parent: node.class.parent.to_string(),
            rate: node.class.rate,
            ceil: node.class.ceil,
            burst: node.class.burst,
            cburst: node.class.cburst,
            quantum: node.class.quantum,
            prio: node.class.prio,
            queue,
            largest,
            interfaces,
            routed,
            addresses: self.addresses(minor),
        }
    }

    /// The interfaces of a class by which tc knows its packets, and the others. None for what arrives.
    fn interfaces(&self, entry: Option<&ClassEntry>) -> (Vec<String>, Vec<String>) {
        let (Direction::Upload, Some(entry)) = (self.direction, entry) else { return Default::default() };
        let (seen, other): (Vec<_>, Vec<_>) =
            entry.class.ports.iter().partition(|(index, _)| self.ports.contains(index));
        let names = |ports: Vec<&(u32, String)>| ports.into_iter().map(|(_, name)| name.clone()).collect();
        (names(seen), names(other))
    }

    /// The addresses of a class. A script leaves out those that each network has.
    fn addresses(&self, minor: u16) -> Vec<IpAddr> {
        let is_own = |address: &IpAddr| match address {
            IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        };
        let of_class = self.owners.iter().flatten().filter(|(_, owner)| **owner == handle(minor));
        of_class.map(|(address, _)| *address).filter(is_own).collect()
    }
}

fn selector(rule: &SelectorRule) -> ExportSelector {
    let ports =
        |range: &Option<std::ops::RangeInclusive<u16>>| range.as_ref().map(|r| [*r.start(), *r.end()]);
    let net = |prefix: Option<LocalPrefix>| prefix.map(|p| format!("{}/{}", p.network, p.len));
    ExportSelector {
        class: TcHandle(rule.handle).to_string(),
        from: rule.from.map(|from| TcHandle(from).to_string()),
        protocol: rule.protocol,
        source_ports: ports(&rule.source_ports),
        destination_ports: ports(&rule.destination_ports),
        source: net(rule.source),
        destination: net(rule.destination),
        dscp: rule.dscp,
    }
}
