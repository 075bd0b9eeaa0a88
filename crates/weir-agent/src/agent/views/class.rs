//! Classes, as they are told.

use weir_api::Class;
use weir_units::{Bytes, TcHandle};

use crate::agent::{Agent, class_key::ClassKey, datapath::handle, figures::Figures};

impl Agent {
    pub(in crate::agent) fn classes(&self) -> Vec<Class> {
        self.classes.entries().keys().map(|key| self.class(key)).collect()
    }

    pub(in crate::agent) fn class(&self, key: &ClassKey) -> Class {
        let entry = &self.classes.entries()[key];
        let figures = Figures::of(&self.classes, &self.link.allocations, entry);
        let local = match entry.minor {
            // A class without ports has none but what goes to exempt networks.
            Some(minor) if !entry.class.ports.is_empty() || self.has_exempt() => {
                self.datapath.attachments.local_bytes(handle(minor)).unwrap_or(0)
            }
            _ => 0,
        };
        let moved = match entry.minor {
            Some(minor) if !self.others.is_empty() => {
                self.datapath.attachments.moved_packets(handle(minor)).unwrap_or(0)
            }
            _ => 0,
        };
        let (not_enforced, problem) = self.not_enforced(entry).unzip();
        Class {
            name: entry.class.name.clone(),
            source: entry.class.source.to_string(),
            kind: entry.class.kind,
            group: entry.class.group.clone(),
            handle: entry.minor.map(|minor| TcHandle::new(weir_datapath::engine::MAJOR, minor).to_string()),
            interfaces: entry.class.ports.iter().map(|p| p.1.clone()).collect(),
            selects: entry.class.selectors.iter().map(ToString::to_string).collect(),
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
            local_bytes: Bytes(local),
            enforced: problem.is_none(),
            not_enforced,
            not_enforced_because: problem,
            unpromised: figures.unpromised,
            agreement: entry.agreement.as_ref().map(ToString::to_string),
            down: self.down(key),
            on_links: self.on_links(key),
            moved_packets: moved,
        }
    }
}
