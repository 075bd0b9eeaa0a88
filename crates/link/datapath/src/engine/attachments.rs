//! Brings packets to the scheduler: the BPF programs, and where they are attached.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsRawFd,
};

use nix::errno::Errno;
use weir_bpf::{
    Classifier, ClassifierConfig, EarlierPacing, LocalMaps, LocalPrefix, Locality, RuleSet, SelectorRule,
    Tunnel, Way, attach,
};
use weir_netlink::{
    Link, Netlink, Request,
    tc::{self, Hook, Verdict},
};

pub(crate) use self::beside::{DownloadHooks, SignalHooks, earlier_download};
pub use self::{
    ahead::{Ahead, Foreign, describe_ahead},
    repair::Repairs,
    tunnels::TunnelDevice,
};
use super::{EngineError, EngineKind, MAX_LINKS};

mod ahead;
mod beside;
mod repair;
mod tunnels;
mod uplinks;

/// Priority of weir's filters: late enough for others to come first.
const PREF: u16 = 0x7e00;

/// How programs get to the containers' ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// TCX, from kernel 6.6: no qdisc needed, several programs in an order.
    Tcx,
    /// A filter on a clsact qdisc, any kernel with BPF.
    Clsact,
}

impl Attach {
    /// As the configuration writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Attach::Tcx => "tcx",
            Attach::Clsact => "clsact",
        }
    }

    /// TCX if this kernel has it.
    #[must_use]
    pub fn best() -> Attach {
        // The loopback device is always there; asking changes nothing.
        if attach::tcx_ingress(1).is_ok() { Attach::Tcx } else { Attach::Clsact }
    }
}

/// An interface and the class its packets belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortClass {
    /// The interface's name, for messages.
    pub device: String,
    /// Handle of the class.
    pub handle: u32,
}

/// Qdiscs that weir added and must take away again, by interface index and name: what an
/// agent that takes over after a crash has to be told.
pub type Created = BTreeSet<(u32, String)>;

/// The programs' knowledge of one link, and the filters at its uplink.
#[derive(Debug, Clone, Default)]
struct OfLink {
    /// Index of the device of the scheduler; 0: the link is not shared.
    scheduler: u32,
    /// [`ClassifierConfig::BARE`], or nothing.
    bare: u32,
    /// The device whose egress is caught.
    uplink: Option<(u32, String)>,
    /// The programs for what arrives at the uplink, if it is scheduled.
    download: Option<DownloadHooks>,
    /// The programs that watch the link's signals, if they are wanted.
    signals: Option<SignalHooks>,
}

/// The programs and their attachments.
pub struct Attachments {
    classifier: Classifier,
    netlink: Netlink,
    how: Attach,
    /// The values that are the same for all links.
    config: ClassifierConfig,
    /// By the links' numbers.
    of_link: [OfLink; MAX_LINKS as usize],
    /// Devices that lead out and the numbers of their links, by their indices, where several links are shared.
    leading: BTreeMap<u32, u32>,
    /// How the ports' packets go on, where several links are shared or a tunnel leads over one.
    ways: BTreeMap<u32, Way>,
    /// By the indices of the tunnels' devices.
    tunnels: BTreeMap<u32, tunnels::Caught>,
    /// The tunnels that the programs know.
    told_tunnels: BTreeMap<u32, Tunnel>,
    ports: BTreeMap<u32, PortClass>,
    /// Ports without an Ethernet header, from which a program cannot redirect: a filter does.
    headless: BTreeSet<u32>,
    cgroups: BTreeMap<u64, u32>,
    local: BTreeMap<LocalPrefix, Locality>,
    tracked: BTreeSet<u32>,
    rules: RuleSet,
    created: Created,
}

impl Attachments {
    /// Loads the programs; nothing is attached yet. `created` is what an earlier agent on
    /// this node had added, `earlier` what it knew of sockets.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn open(
        how: Attach,
        config: ClassifierConfig,
        created: Created,
        earlier: Option<&EarlierPacing>,
    ) -> Result<Attachments, EngineError> {
        let classifier = Classifier::load_after(earlier)?;
        let attachments = Attachments {
            classifier,
            netlink: Netlink::open()?,
            how,
            config,
            of_link: Default::default(),
            leading: BTreeMap::new(),
            ways: BTreeMap::new(),
            tunnels: BTreeMap::new(),
            told_tunnels: BTreeMap::new(),
            ports: BTreeMap::new(),
            headless: BTreeSet::new(),
            cgroups: BTreeMap::new(),
            local: BTreeMap::new(),
            tracked: BTreeSet::new(),
            rules: RuleSet::default(),
            created,
        };
        attachments.write_configs()?;
        Ok(attachments)
    }

    /// The programs and their maps.
    pub(crate) fn classifier(&self) -> &Classifier {
        &self.classifier
    }

    /// The mark of packets that have passed the scheduler of this link.
    pub(crate) fn cookie(&self, link: u32) -> u32 {
        ClassifierConfig::cookie_of(self.config.cookie, link)
    }

    /// How the ports' programs are attached.
    #[must_use]
    pub fn how(&self) -> Attach {
        self.how
    }

    /// The qdiscs to take away at the end.
    #[must_use]
    pub fn created(&self) -> &Created {
        &self.created
    }

    /// Whether an interface's packets reach the scheduler.
    #[must_use]
    pub fn catches(&self, ifindex: u32) -> bool {
        self.ports.contains_key(&ifindex)
    }

    /// Makes the caught interfaces the given ones. The others' failures do not keep an
    /// interface from being caught: failures come back by interface.
    pub fn set_ports(&mut self, wanted: &BTreeMap<u32, PortClass>) -> Vec<(u32, EngineError)> {
        let mut failures = Vec::new();
        let gone: Vec<u32> = self.ports.keys().copied().filter(|i| !wanted.contains_key(i)).collect();
        for index in gone {
            if let Some(port) = self.ports.remove(&index)
                && let Err(e) = self.release(index, &port.device)
            {
                failures.push((index, e));
            }
        }
        for (&index, port) in wanted {
            if let Some(known) = self.ports.get_mut(&index)
                && known.handle == port.handle
            {
                // It may have been renamed.
                known.device.clone_from(&port.device);
                continue;
            }
            let result = self.set_port(index, port);
            if let Err(e) = result {
                // An interface without an entry is not a caught one: the next call catches it.
                self.ports.remove(&index);
                let _ = self.classifier.set_port(index, None);
                failures.push((index, e));
            }
        }
        failures
    }

    /// Gives a port's packets to its class, and catches them unless they are.
    fn set_port(&mut self, index: u32, port: &PortClass) -> Result<(), EngineError> {
        let known = self.ports.contains_key(&index);
        if !known {
            self.look_at_port(index, &port.device)?;
        }
        self.classifier.set_port(index, Some(self.port_value(index, port.handle)))?;
        if !known {
            self.catch(index, &port.device)?;
        }
        self.ports.insert(index, port.clone());
        Ok(())
    }

    /// Whether the device has an Ethernet header; an error if it has none and the engine needs one.
    fn look_for_ethernet(&mut self, device: &str) -> Result<bool, EngineError> {
        let link = self.netlink.link(device)?;
        if self.config.flags & ClassifierConfig::USER != 0 {
            EngineKind::User.takes(&link)?;
        }
        Ok(link.has_ethernet())
    }

    /// Remembers whether a port's packets have an Ethernet header.
    fn look_at_port(&mut self, index: u32, device: &str) -> Result<(), EngineError> {
        if self.look_for_ethernet(device)? {
            self.headless.remove(&index);
        } else {
            self.headless.insert(index);
        }
        Ok(())
    }

    /// The programs' entry for a port.
    fn port_value(&self, index: u32, handle: u32) -> u32 {
        if self.headless.contains(&index) { handle | ClassifierConfig::BARE_PORT } else { handle }
    }

    /// How the port's program is attached.
    fn how_at(&self, index: u32) -> Attach {
        if self.headless.contains(&index) { Attach::Clsact } else { self.how }
    }

    fn catch(&mut self, index: u32, device: &str) -> Result<(), EngineError> {
        match self.how_at(index) {
            Attach::Tcx => {
                let error = |errno| EngineError::Attach {
                    device: device.to_owned(),
                    how: "tcx",
                    errno,
                    hint: if errno == Errno::EINVAL {
                        " (tcx needs kernel >= 6.6: use `attach = \"clsact\"`)"
                    } else {
                        ""
                    },
                };
                let old = ours_at(index).map_err(error)?;
                attach::attach_tcx_ingress(&self.classifier.port_program(), index, old.first().copied())
                    .map_err(error)?;
                // An earlier agent may have attached the other way.
                self.unfilter(index, device, Hook::Ingress)
            }
            Attach::Clsact => {
                self.clsact(index, device, Hook::Ingress)?;
                self.netlink.call(self.port_filter(index, device))?;
                uncatch_tcx(index, device)
            }
        }
    }

    fn release(&mut self, index: u32, device: &str) -> Result<(), EngineError> {
        self.classifier.set_port(index, None)?;
        self.headless.remove(&index);
        if self.ways.remove(&index).is_some() {
            self.classifier.set_way(index, None)?;
        }
        let removed = uncatch_tcx(index, device);
        self.unfilter(index, device, Hook::Ingress)?;
        removed
    }

    /// Gives filters at `hook` a place: adds a clsact qdisc unless there is one, and remembers
    /// which. An ingress qdisc has a place for those at ingress only, but takes any: one meant
    /// for egress would see what arrives.
    fn clsact(&mut self, index: u32, device: &str, hook: Hook) -> Result<(), EngineError> {
        match self.netlink.call(tc::add_clsact(index, device)) {
            Ok(()) => {
                self.created.insert((index, device.to_owned()));
                Ok(())
            }
            Err(e) if e.errno() == Some(Errno::EEXIST) => {
                let qdiscs = self.netlink.qdiscs(index)?;
                if hook == Hook::Ingress || qdiscs.iter().any(|q| q.kind == "clsact") {
                    return Ok(());
                }
                Err(EngineError::Attach {
                    device: device.to_owned(),
                    how: "clsact",
                    errno: Errno::EEXIST,
                    hint: " (an ingress qdisc is in its place: make it a clsact, which has room for the same filters)",
                })
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Takes weir's filter away. The qdisc goes too if weir made it and no other filter uses it.
    fn unfilter(&mut self, index: u32, device: &str, hook: Hook) -> Result<(), EngineError> {
        let ours = self
            .netlink
            .filters(index, hook)?
            .iter()
            .any(|f| f.pref == PREF && is_ours(f.bpf_name.as_deref()));
        if ours {
            self.netlink.call(tc::delete_filter(index, device, hook, PREF))?;
        }
        let made = self.created.iter().find(|(i, _)| *i == index).cloned();
        if let Some(made) = made {
            let used = !self.netlink.filters(index, Hook::Ingress)?.is_empty()
                || !self.netlink.filters(index, Hook::Egress)?.is_empty();
            if !used {
                let (handle, parent) = (weir_units::TcHandle(0xffff_0000), weir_units::TcHandle::CLSACT);
                match self.netlink.call(tc::delete_qdisc(index, device, handle, parent)) {
                    Err(e) if !e.is_gone() => return Err(e.into()),
                    _ => {}
                }
                self.created.remove(&made);
            }
        }
        Ok(())
    }

    fn port_filter(&self, index: u32, device: &str) -> Request {
        let verdict = self.verdict(self.config.main_link);
        let program = match verdict {
            Verdict::Program | Verdict::None => self.classifier.port_program().as_raw_fd(),
            Verdict::Redirect { .. } => self.classifier.port_filter(),
        };
        let program = (program, Classifier::PORT_PROGRAM);
        tc::set_bpf_filter(index, device, Hook::Ingress, PREF, program, verdict)
    }

    /// Makes the caught cgroups (v2 ids) the given ones; `levels` as in [`ClassifierConfig`].
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn set_cgroups(&mut self, wanted: &BTreeMap<u64, u32>, levels: u32) -> Result<(), EngineError> {
        for id in self.cgroups.keys().filter(|id| !wanted.contains_key(id)) {
            self.classifier.set_cgroup(*id, None)?;
        }
        for (&id, &handle) in wanted {
            if self.cgroups.get(&id) != Some(&handle) {
                self.classifier.set_cgroup(id, Some(handle))?;
            }
        }
        self.cgroups.clone_from(wanted);
        self.configure(|c| c.cgroup_levels = levels)
    }

    /// Makes the networks that packets reach without the line the given ones.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn set_local(&mut self, wanted: BTreeMap<LocalPrefix, Locality>) -> Result<(), EngineError> {
        if self.local != wanted {
            self.classifier.set_local(&wanted)?;
            self.local = wanted;
        }
        Ok(())
    }

    /// The same networks, for the programs of the download and of the link's signals.
    pub(super) fn local_maps(&self) -> Result<LocalMaps, EngineError> {
        Ok(self.classifier.local_maps()?)
    }

    /// Makes the rules that give packets to other classes than their senders' the given ones, all
    /// at once for a packet; the first that matches decides.
    ///
    /// # Errors
    /// [`EngineError`]; those before stay in force.
    pub fn set_rules(&mut self, wanted: &[SelectorRule]) -> Result<(), EngineError> {
        let wanted = RuleSet::new(wanted)?;
        if wanted == self.rules {
            return Ok(());
        }
        let set = match (wanted.is_empty(), self.config.rules) {
            (true, _) => 0,
            (false, 1) => 2,
            (false, _) => 1,
        };
        if set != 0 {
            self.classifier.load_rules(set, &wanted)?;
        }
        self.configure(|c| c.rules = set)?;
        self.rules = wanted;
        Ok(())
    }

    /// Makes the classes whose local traffic is counted the given ones.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn track(&mut self, wanted: BTreeSet<u32>) -> Result<(), EngineError> {
        for handle in self.tracked.difference(&wanted) {
            self.classifier.track(*handle, false)?;
        }
        for handle in wanted.difference(&self.tracked) {
            self.classifier.track(*handle, true)?;
        }
        self.tracked = wanted;
        Ok(())
    }

    /// Packets of a class that left by another link than their route said.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn moved_packets(&self, handle: u32) -> Result<u64, EngineError> {
        Ok(self.classifier.moved_packets(handle)?)
    }

    /// Bytes of a class that stayed on this node.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn local_bytes(&self, handle: u32) -> Result<u64, EngineError> {
        Ok(self.classifier.local_bytes(handle)?)
    }

    /// Detaches everything: from here on traffic flows as if weir had never been. Returns what could not be
    /// detached.
    pub fn remove(&mut self) -> Vec<EngineError> {
        // A program that stays attached then passes packets on.
        self.of_link.iter_mut().for_each(|link| link.scheduler = 0);
        self.config.flags &= !ClassifierConfig::IN_PLACE;
        let _ = self.write_configs();
        // The sweep tries all of these again.
        let _ = self.set_ports(&BTreeMap::new());
        for link in 0..MAX_LINKS {
            let _ = self.release_uplink(link);
        }
        let _ = self.set_tunnels(&BTreeMap::new());
        self.sweep()
    }

    /// Detaches weir's programs from interfaces that do not want them now, also those of an earlier agent. Returns
    /// what could not be detached.
    pub fn sweep(&mut self) -> Vec<EngineError> {
        let links = match self.netlink.links() {
            Ok(links) => links,
            Err(e) => return vec![e.into()],
        };
        let is_here = |index: u32| links.iter().any(|link| link.index == index);
        self.created.retain(|(index, _)| is_here(*index));
        let swept = links.iter().filter_map(|link| self.sweep_link(link).err());
        swept.filter(|error| !error.is_gone()).collect()
    }

    /// A port keeps the program that catches its packets. It may have been an earlier agent's uplink or tunnel.
    fn sweep_link(&mut self, link: &Link) -> Result<(), EngineError> {
        let is_port = self.ports.contains_key(&link.index);
        if !is_port {
            uncatch_tcx(link.index, &link.name)?;
        }
        let is_tunnel = self.tunnels.contains_key(&link.index);
        if !is_tunnel {
            tunnels::uncatch_tunnel(link.index, &link.name)?;
        }
        let number = (0..MAX_LINKS).find(|number| self.uplink(*number) == Some(link.index));
        let beside = number.map_or_else(beside::all, |number| self.unwanted_beside(number));
        self.unfilter_beside(link.index, &link.name, &beside)?;
        if !is_port {
            self.unfilter(link.index, &link.name, Hook::Ingress)?;
        }
        if number.is_none() && !is_tunnel {
            self.unfilter(link.index, &link.name, Hook::Egress)?;
        }
        Ok(())
    }
}

/// Ids of weir's programs at an interface's TCX ingress.
fn ours_at(index: u32) -> Result<Vec<u32>, Errno> {
    let names = [Classifier::PORT_PROGRAM, Classifier::UPLINK_PROGRAM];
    attach::named(attach::tcx_ingress(index)?, &names)
}

/// Takes weir's programs away from an interface's TCX ingress.
///
/// A program or an interface that has gone is no error, nor is a kernel without TCX.
fn uncatch_tcx(index: u32, device: &str) -> Result<(), EngineError> {
    let detach = |ids: Vec<u32>| ids.into_iter().try_for_each(|id| attach::detach_tcx_ingress(id, index));
    match ours_at(index).and_then(detach) {
        Err(errno @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EPERM)) => {
            Err(EngineError::Look { device: device.to_owned(), errno })
        }
        _ => Ok(()),
    }
}

fn is_ours(name: Option<&str>) -> bool {
    matches!(name, Some(Classifier::PORT_PROGRAM | Classifier::UPLINK_PROGRAM | Classifier::TUNNEL_PROGRAM))
}
