//! The division as a static tree without an agent, for `weir export`.

use std::collections::BTreeMap;

use weir_api::{ClassKind, Error, ErrorCode, Export, ExportClass, ExportSelector};
use weir_bpf::{LocalPrefix, SelectorRule};
use weir_datapath::engine::{Plan, plan, tree};
use weir_netlink::tc::Leaf;
use weir_units::chain;
use weir_units::{BitRate, TcHandle};

use super::{Agent, class_table::ClassEntry, datapath::rules};

impl Agent {
    /// The division in force, with minima as rates.
    pub(super) fn export(&mut self) -> Result<Export, Error> {
        if let Some(framing) = self.link.scheduler.shape.framing {
            let message = format!(
                "cannot export the division: its packets are charged with the framing of the line ({framing}), which \
                 a static script would lack"
            );
            return Err(Error::new(ErrorCode::BadRequest, message));
        }
        let links = self.datapath.netlink.links().map_err(|e| Error {
            code: ErrorCode::Engine,
            message: format!("cannot look at this node's interfaces: {}", chain(&e)),
            asked: None,
            free: None,
        })?;
        let bridge = links.iter().find(|l| Some(l.index) == self.uplink()).and_then(|l| l.master);
        let is_seen = |index: u32| {
            bridge.is_some() && links.iter().any(|link| link.index == index && link.master == bridge)
        };
        let present = || self.classes.entries().values().filter_map(|e| e.minor.map(|minor| (minor, e)));
        let of_kind =
            |group: bool| present().filter(move |(_, e)| (e.class.kind == ClassKind::Group) == group);
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
        tree::fixed(
            &Plan { shape: &self.link.scheduler.shape, groups: &groups, members: &members },
            &mut nodes,
        );
        let class = |node: &tree::Node| {
            let found = present().find(|(minor, _)| *minor == node.class.handle.minor()).map(|(_, e)| e);
            let ports = found.map_or(&[][..], |entry| &entry.class.ports);
            let named = |seen: bool| {
                let of = ports.iter().filter(|(index, _)| is_seen(*index) == seen);
                of.map(|(_, name)| name.clone()).collect()
            };
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
                queue: node.leaf.map(|(Leaf::Fifo { limit } | Leaf::Split { limit, .. })| limit),
                interfaces: named(true),
                routed: named(false),
            }
        };
        let link = &self.classes.config().link;
        Ok(Export {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            link: link.device.clone(),
            capacity: link.capacity,
            engine: self.link.scheduler.engine.kind().name().to_owned(),
            classes: nodes.iter().map(class).collect(),
            selectors: rules(&self.classes).0.iter().map(selector).collect(),
        })
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
