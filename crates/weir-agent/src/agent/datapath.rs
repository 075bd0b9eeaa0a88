//! The agent's programs in the kernel, and the interfaces and cgroups that they give to classes.

use std::collections::{BTreeMap, BTreeSet};

use weir_bpf::{ClassifierConfig, RuleSet, SelectorRule, Way};
use weir_datapath::{
    engine::{
        Ahead, Attach, Attachments, CONTROL, Created, DEFAULT, EngineError, EngineKind, HOST, MAJOR,
        PortClass, plan,
    },
    pacing::{Pacing, Root},
    super_packets::SuperPackets,
};
use weir_discovery::NsId;
use weir_netlink::{Link, Netlink};
use weir_units::{Bytes, TcHandle, chain};

use super::{
    class_table::{ClassTable, DiscoveredClass},
    discover::Discovery,
    effects::{Effects, not_enforced},
    selector_rules,
};
use crate::config::{self, Config};

/// The programs that give packets to classes.
pub(crate) struct Datapath {
    pub(crate) attachments: Attachments,
    pub(crate) netlink: Netlink,
    /// Interfaces and other attachments that failed, by interface index, with the reason.
    pub(crate) failures: BTreeMap<u32, String>,
    /// The pacing of the classes' sockets, if it is asked for and possible.
    pub(crate) pacing: Option<Pacing>,
    /// The reason if sockets are not paced as configured.
    pub(crate) pacing_failure: Option<String>,
    /// The reason why an alteration of the pacing of sockets could not be undone at the last look.
    pub(crate) unrepaired_pacing: Option<String>,
    /// The length of TCP's super-packets in the containers.
    pub(crate) super_packets: Option<SuperPackets>,
    /// The reason if they may be long somewhere.
    pub(crate) super_packets_failure: Option<String>,
    /// The reason if the programs do not know the classes of the last discovery.
    pub(crate) attach_failure: Option<String>,
    /// The reason if selectors have no effect.
    pub(crate) rules_failure: Option<String>,
    /// Tunnels whose outer packets are charged beside the inner ones, with the reason.
    pub(crate) tunnel_failures: BTreeMap<String, String>,
    /// Classes whose packets the programs cannot distinguish from those of others.
    pub(crate) left_out: BTreeSet<u16>,
    /// The damage to programs and maps that the last check found and could not repair. A new division of
    /// the link does not repair it either.
    pub(super) unrepaired: Option<String>,
    /// The reason if what an earlier agent left could not be removed.
    pub(super) unswept: Option<String>,
    /// Programs and filters of others that see packets before weir's, at the last check.
    pub(super) ahead: Vec<Ahead>,
    /// Foreign changes undone since the start.
    pub(super) repairs: u64,
    pub(super) reconciled_at: std::time::Instant,
    /// The sockets were paced before the start, by an earlier agent.
    was_paced: bool,
}

pub(crate) fn handle(minor: u16) -> u32 {
    TcHandle::new(MAJOR, minor).0
}

/// The numbers by which the programs of this node know packets that passed the scheduler.
pub(crate) struct Marks {
    /// In `skb->tc_index`.
    pub(crate) cookie: u16,
    /// In the hash of packets in tunnels.
    pub(crate) tunnel_key: u32,
}

/// The shape of the tree for a link. `mtu` is the largest of its packets.
pub(crate) fn shape(config: &Config, mtu: u32, has_tunnels: bool) -> plan::Shape {
    let link = &config.link;
    let split = match link.split {
        config::Split::Always => true,
        config::Split::Never => false,
        config::Split::Auto => {
            link.line().is_some() || link.follows.is_some() || plan::Shape::split_by_default(link.capacity)
        }
    };
    // A socket's default send buffer and a quarter more. The sender blocks when the buffer is full.
    let buffer = std::fs::read_to_string("/proc/sys/net/core/wmem_default")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok())
        .unwrap_or(212_992);
    plan::Shape {
        capacity: link.capacity,
        split,
        mtu,
        delay_ms: link.delay_ms,
        least_queue: Bytes(buffer + buffer / 4),
        framing: link.line(),
        has_tunnels,
    }
}

/// The selectors of the class table as the programs' rules, those of earlier classes first. Also
/// returns the minors of the agreements left out because they do not fit the programs' tables.
pub(crate) fn rules(table: &ClassTable) -> (Vec<SelectorRule>, BTreeSet<u16>) {
    let minor_of = |claim: &DiscoveredClass| table.entries().get(&claim.key()).and_then(|entry| entry.minor);
    let senders = |name: &str| -> Vec<u32> {
        let entries = table.entries().values().filter(|entry| entry.class.sends_as(name));
        entries.filter_map(|entry| entry.minor.map(handle)).collect()
    };
    let rules_of = |claim: &DiscoveredClass, minor| -> Vec<SelectorRule> {
        claim.selectors.iter().flat_map(|s| selector_rules::rules(s, handle(minor), senders)).collect()
    };
    let all: Vec<(bool, u16, Vec<SelectorRule>)> = table
        .selecting()
        .filter_map(|claim| minor_of(claim).map(|minor| (claim.is_agreed(), minor, rules_of(claim, minor))))
        .collect();
    let agreed = all.iter().filter(|(is_agreed, ..)| *is_agreed).count();
    let first = |most: usize| -> Vec<SelectorRule> {
        let kept = all[..most].iter().chain(&all[agreed..]);
        kept.flat_map(|(.., rules)| rules.iter().cloned()).collect()
    };
    let fits = |most: &usize| RuleSet::new(&first(*most)).is_ok();
    if fits(&agreed) {
        return (first(agreed), BTreeSet::new());
    }
    let counts: Vec<usize> = (0..agreed).collect();
    let most = counts.partition_point(fits).saturating_sub(1);
    (first(most), all[most..agreed].iter().map(|(_, minor, _)| *minor).collect())
}

/// The numbers of the links to which interfaces lead, and how packets of the ports go on. Nothing if one link
/// is shared and no tunnel leads over it.
fn ways(
    discovery: &Discovery,
    ports: impl Iterator<Item = u32>,
    numbers: &BTreeMap<String, u32>,
) -> (BTreeMap<u32, u32>, BTreeMap<u32, Way>) {
    if numbers.len() < 2 && discovery.tunnels.is_empty() {
        return Default::default();
    }
    let leading =
        discovery.leading.iter().filter_map(|(index, device)| Some((*index, *numbers.get(device)?)));
    let bridged = |(device, link): (&String, &Link)| Some((link.master?, *numbers.get(device)?));
    let bridges: BTreeMap<u32, u32> = discovery.uplinks.iter().filter_map(bridged).collect();
    let way = |port: u32| match discovery.masters.get(&port) {
        Some(master) => bridges.get(master).map_or(Way::Routed(*master), |number| Way::Bridged(*number)),
        None => Way::Routed(port),
    };
    (leading.collect(), ports.map(|port| (port, way(port))).collect())
}

impl Datapath {
    /// Sets up the programs with what an earlier agent's knew. No interface is attached yet.
    pub(crate) fn open(
        config: &Config,
        kind: EngineKind,
        marks: &Marks,
        created: Created,
    ) -> Result<Datapath, EngineError> {
        let how = match config.link.attach {
            config::Attach::Auto => Attach::best(),
            config::Attach::Tcx => Attach::Tcx,
            config::Attach::Clsact => Attach::Clsact,
        };
        // Engine `pacing` always paces. Its credit alone would cost TCP much of the link.
        let wanted = config.link.pacing || kind == EngineKind::Pacing;
        let mut flags = if wanted { ClassifierConfig::PACED } else { 0 } | kind.programs();
        if config.link.download.is_some() {
            // An earlier agent's packets are marked so.
            flags |= ClassifierConfig::NAMED;
        }
        let programs = ClassifierConfig {
            control_handle: handle(CONTROL),
            host_handle: handle(HOST),
            default_handle: handle(DEFAULT),
            charge_local: u32::from(config.link.charge_local),
            cookie: u32::from(marks.cookie),
            flags,
            tunnel_key: marks.tunnel_key,
            ..ClassifierConfig::default()
        };
        let netlink = Netlink::open()?;
        let own = NsId::own().map_err(|e| e.to_string());
        let super_packets = own.as_ref().ok().map(|own| SuperPackets::new(*own));
        let root = own.and_then(|own| Root::find(own).map_err(|e| chain(&e)));
        let earlier = root.as_ref().ok().and_then(Root::earlier);
        let attachments = Attachments::open(how, programs, created, earlier.as_ref())?;
        let pacing = match root {
            Ok(root) if wanted || earlier.is_some() => {
                Pacing::open(root, &attachments, earlier.as_ref()).map(Some).map_err(|e| chain(&e))
            }
            Ok(_) => Ok(None),
            Err(why) => {
                if wanted {
                    Err(why)
                } else {
                    Ok(None)
                }
            }
        };
        let (pacing, pacing_failure) = match pacing {
            Ok(Some(mut left)) if !wanted => (None, left.remove().err().map(|e| chain(&e))),
            Ok(pacing) => (pacing, None),
            Err(why) => (None, Some(why)),
        };
        Ok(Datapath {
            attachments,
            pacing,
            pacing_failure,
            unrepaired_pacing: None,
            super_packets,
            super_packets_failure: None,
            netlink,
            failures: BTreeMap::new(),
            attach_failure: None,
            rules_failure: None,
            tunnel_failures: BTreeMap::new(),
            left_out: BTreeSet::new(),
            unrepaired: None,
            unswept: None,
            ahead: Vec::new(),
            repairs: 0,
            reconciled_at: std::time::Instant::now(),
            was_paced: earlier.is_some(),
        })
    }

    /// Ends the pacing that a failed start began. An earlier agent's place at the root stays taken.
    pub(super) fn undo_pacing(&mut self) {
        let pacing = self.pacing.take().filter(|_| !self.was_paced);
        if let Some(Err(e)) = pacing.map(|mut pacing| pacing.remove()) {
            tracing::warn!("sockets may still be paced: {}", chain(&e));
        }
    }

    /// The reason if no class is enforced because of the programs.
    pub(crate) fn fault(&self) -> Option<&String> {
        self.attach_failure.as_ref().or(self.unrepaired.as_ref())
    }

    /// Keeps the result of [`Datapath::attach`] until the next one. A failure is tried again.
    pub(crate) fn keep(&mut self, attached: Result<(), String>) -> Effects {
        let before = std::mem::replace(&mut self.attach_failure, attached.err());
        let Some(why) = &self.attach_failure else { return Effects::default() };
        let told = if before.as_ref() == Some(why) { Effects::default() } else { not_enforced(why.clone()) };
        told.and(Effects::rediscover(true))
    }

    /// Attaches the programs to the interfaces and cgroups of a discovery.
    /// `numbers` are those of the links, by their devices.
    pub(crate) fn attach(
        &mut self,
        table: &ClassTable,
        discovery: &Discovery,
        numbers: &BTreeMap<String, u32>,
    ) -> Result<(), EngineError> {
        let mut ports = BTreeMap::new();
        let mut cgroups = BTreeMap::new();
        let mut levels = 0;
        let mut tracked: BTreeSet<u32> = [handle(DEFAULT)].into();
        for entry in table.entries().values() {
            let Some(minor) = entry.minor else { continue };
            let handle = handle(minor);
            // The classifier accepts a packet's mark only for tracked classes.
            if minor != CONTROL {
                tracked.insert(handle);
            }
            for (index, name) in &entry.class.ports {
                ports.insert(*index, PortClass { device: name.clone(), handle });
            }
            for (id, at) in &entry.class.cgroups {
                cgroups.insert(*id, handle);
                levels |= at;
            }
        }
        for (index, name) in &discovery.strangers {
            ports.insert(*index, PortClass { device: name.clone(), handle: handle(DEFAULT) });
        }
        self.attachments.track(tracked)?;
        // A port's way is known before its first packet.
        let (leading, ways) = ways(discovery, ports.keys().copied(), numbers);
        self.attachments.set_ways(leading, &ways)?;
        let failed = self.attachments.set_tunnels(&discovery.tunnels);
        self.tunnel_failures = failed.iter().map(|(device, e)| (device.clone(), chain(e))).collect();
        self.attachments.set_local(discovery.local.known(numbers))?;
        self.attachments.set_cgroups(&cgroups, levels)?;
        // The rules are written before any program is attached, because the programs of an earlier
        // agent had their rules.
        self.select(table, |_| true);
        self.failures =
            self.attachments.set_ports(&ports).into_iter().map(|(index, e)| (index, chain(&e))).collect();
        if let Some(pacing) = &mut self.pacing {
            for why in pacing.visit(&discovery.namespaces) {
                tracing::debug!("{why}");
            }
        }
        if let Some(super_packets) = &mut self.super_packets {
            let failures = super_packets.follow(&discovery.namespaces);
            self.super_packets_failure = failures.into_iter().next();
        }
        Ok(())
    }

    /// Applies the selectors of the classes for which `is_ready` returns true.
    pub(crate) fn select(&mut self, table: &ClassTable, is_ready: impl Fn(u16) -> bool) {
        let (mut rules, left_out) = rules(table);
        rules.retain(|rule| is_ready(TcHandle(rule.handle).minor()));
        self.left_out = left_out;
        self.rules_failure = self.attachments.set_rules(&rules).err().map(|e| chain(&e));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{class_table::Agreed, store};

    /// The programs' tables distinguish 64 kinds of selectors.
    #[test]
    fn indistinct_agreements_are_left_out_and_the_others_hold() {
        let config = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n[agreements]\n\
            [[class]]\nname = \"voice\"\nmatch = { dscp = 46 }\n";
        let config = crate::config::parse(config, std::path::Path::new("test.toml")).unwrap();
        let (set, minors) = (crate::agent::by_hand::SetLayers::new(), store::Minors::new());
        let ledger = store::Ledger::new();
        let mut table = ClassTable::new(config, set, minors, ledger, weir_units::BitRate::ZERO);
        // Each prefix length is a kind of its own.
        let agreed = (1..=80).map(|len| Agreed {
            suspended: None,
            id: weir_agree::Name::new(&format!("a-{len}")).unwrap(),
            selector: weir_agree::Selector {
                subnet: Some(format!("fd00::/{len}").parse::<ipnet::IpNet>().unwrap().trunc()),
                ..weir_agree::Selector::default()
            },
            weight: None,
            min: weir_units::BitRate::kbit(10),
            max: weir_units::BitRate::kbit(10),
            limited_until: None,
        });
        let agreed: Vec<Agreed> = agreed.collect();
        assert!(table.agree(agreed[..60].to_vec(), weir_units::BitRate::ZERO));
        assert_eq!((rules(&table).0.len(), rules(&table).1.len()), (60, 0));
        assert!(table.agree(agreed, weir_units::BitRate::ZERO));
        let (fit, left_out) = rules(&table);
        assert!(RuleSet::new(&fit).is_ok());
        assert_eq!((fit.len(), left_out.len()), (64, 16));
    }
}
