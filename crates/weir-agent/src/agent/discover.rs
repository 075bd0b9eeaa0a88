//! Finds the classes of this node: containers of CNI and of runtimes, named namespaces, configured interfaces and
//! cgroups. It also finds interfaces of unknown containers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    net::IpAddr,
    path::Path,
};

use weir_api::ClassKind;
use weir_datapath::engine::TunnelDevice;
use weir_discovery::{
    Found, Location, NetnsRef, NsId, Source,
    cgroup::{Cgroup2, CgroupError},
    combine, libvirt, lxc, merge, namespace,
    netns::{self, DIRS, Filter},
    ports::{self, Port},
};
use weir_netlink::{InterfaceAddress, Link, Netlink, NetlinkError};
use weir_units::Instant;

use super::class_key::{ClassKey, ClassSource};
use super::{
    class_table::discovered::DiscoveredClass,
    cni::Fate,
    local::LocalNetworks,
    port_owners::{Owner, PortOwners},
    processes::{self, Awaited},
    runtimes::Told,
    unclaimed::Unclaimed,
};
use crate::config::{Config, Granted, RESERVED, grant};

/// The result of a discovery.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    pub(crate) classes: Vec<DiscoveredClass>,
    /// Host-side interfaces (index and name) of namespaces that no source reported.
    pub(crate) strangers: Vec<(u32, String)>,
    /// The namespaces that ports lead to.
    pub(crate) namespaces: Vec<NetnsRef>,
    /// The network namespaces of classes, by the class's key.
    pub(crate) owners: Vec<(ClassKey, NetnsRef)>,
    /// The fates of the namespaces that CNI reported.
    pub(crate) fates: BTreeMap<NsId, Fate>,
    /// Addresses of classes, if the download is shared.
    pub(crate) addresses: OwnedAddresses,
    /// Networks that packets reach without the line.
    pub(crate) local: LocalNetworks,
    /// Where cgroups of classes and files of virtual machines appear.
    pub(crate) awaited: Awaited,
    /// The links that exist, by their configured devices.
    pub(crate) uplinks: BTreeMap<String, Link>,
    /// The configured devices to which interfaces lead, by index: the uplinks, their bridges and VLANs.
    pub(crate) leading: BTreeMap<u32, String>,
    /// The bridges (or bonds) of interfaces, by index.
    pub(crate) masters: BTreeMap<u32, u32>,
    /// Tunnels of WireGuard that are no link themselves, by the indices of their devices.
    pub(crate) tunnels: BTreeMap<u32, TunnelDevice>,
    /// The largest MTU of all ports.
    pub(crate) mtu: u32,
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
}

/// Addresses, and the classes that have them.
#[derive(Debug, Default)]
pub(crate) struct OwnedAddresses {
    /// Those that sources told, and this node's (the host's class).
    pub(crate) told: BTreeMap<IpAddr, ClassKey>,
    /// Those that the interfaces of one container show, and no source told.
    pub(crate) shown: BTreeMap<IpAddr, ClassKey>,
}

/// The reports of the sources.
pub(crate) struct Reports<'a> {
    /// The containers that CNI reported.
    pub(crate) attached: &'a [Found],
    /// The runtimes' containers.
    pub(crate) told: &'a Told,
    /// The namespaces that wait for an owner.
    pub(crate) unclaimed: &'a mut Unclaimed,
    /// The classes of interfaces so far.
    pub(crate) port_owners: &'a mut PortOwners,
    pub(crate) now: Instant,
}

/// Files that a look at the node has open at a time, at most.
const DESCRIPTORS: usize = 16;

/// The node cannot be looked at now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiscoverError {
    /// The kernel does not tell the node's links.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Namespaces and cgroups that cannot be opened would count as gone.
    #[error(
        "cannot open {DESCRIPTORS} files at a time, which a look at this node's containers needs (`LimitNOFILE`)"
    )]
    Descriptors(#[source] io::Error),
}

/// Surveys the node. It fails where descriptors run out in the meantime. `known` has the last indices of the links, by
/// their configured devices. A renamed link is found by it.
pub(crate) fn discover(
    netlink: &mut Netlink,
    config: &Config,
    reports: Reports<'_>,
    known: &BTreeMap<String, u32>,
) -> Result<Discovery, DiscoverError> {
    reserve().map_err(DiscoverError::Descriptors)?;
    let discovery = look(netlink, config, reports, known)?;
    reserve().map_err(DiscoverError::Descriptors)?;
    Ok(discovery)
}

/// Opens as many files as a look at the node needs, and closes them.
fn reserve() -> io::Result<()> {
    let files: io::Result<Vec<File>> = (0..DESCRIPTORS).map(|_| File::open("/proc/self/ns/net")).collect();
    files.map(drop)
}

/// The node on which classes are looked for.
struct Node<'a> {
    config: &'a Config,
    links: &'a [Link],
    uplinks: &'a BTreeMap<String, Link>,
    cgroups: Result<Cgroup2, CgroupError>,
}

impl Node<'_> {
    fn is_uplink(&self, index: u32) -> bool {
        self.uplinks.values().any(|uplink| uplink.index == index)
    }

    /// The interfaces that are neither uplinks nor those of a configured class.
    fn free(&self) -> Vec<&Link> {
        let configured: BTreeSet<&str> =
            self.config.classes.iter().filter_map(|class| class.interface.as_deref()).collect();
        let is_free = |link: &&Link| !self.is_uplink(link.index) && !configured.contains(link.name.as_str());
        self.links.iter().filter(is_free).collect()
    }

    /// The numbers of the namespaces that ports lead to.
    fn numbers(&self, ports: &[Port]) -> BTreeSet<i32> {
        let of_port = |link: &&Link| ports.iter().any(|port| port.index == link.index);
        self.links.iter().filter(of_port).filter_map(|link| link.peer_netnsid).collect()
    }
}

fn look(
    netlink: &mut Netlink,
    config: &Config,
    mut reports: Reports<'_>,
    known: &BTreeMap<String, u32>,
) -> Result<Discovery, NetlinkError> {
    let links = netlink.links()?;
    let uplinks = uplinks(config, &links, known);
    let leading = leading(&uplinks, &links);
    let masters = links.iter().filter_map(|link| Some((link.index, link.master?))).collect();
    let mut discovery = Discovery { masters, mtu: 1500, ..Discovery::default() };

    let found = found(config, &mut reports, &mut discovery.warnings);
    let owners = owners(&found);
    let mut ports = ports::find(netlink, owners.iter().map(|owner| (owner.place, owner.netns)))?;
    if config.discover.libvirt {
        discovery.awaited.directory(Path::new(libvirt::STATE_DIR));
    }
    let node = Node { config, links: &links, uplinks: &uplinks, cgroups: Cgroup2::find() };
    let left = reports.port_owners.follow(netlink, &node.free(), &owners, &mut ports, reports.now);
    discovery.warnings.extend(left);
    let mut addresses = Addresses::open(config, netlink)?;
    claim_found(&node, netlink, (&found, &ports), &mut addresses, &mut discovery);
    claim_configured(&node, &mut discovery);
    discovery.addresses = addresses.owners();
    settle_ports(&node, &mut discovery.classes);
    miss_containers(&mut discovery.classes);

    let taken: BTreeSet<u32> = discovery.classes.iter().flat_map(|c| &c.ports).map(|p| p.0).collect();
    discovery.strangers = strangers(&node, &taken);
    let caught = |l: &&Link| taken.contains(&l.index) || discovery.strangers.iter().any(|s| s.0 == l.index);
    let mtus = links.iter().filter(caught).chain(uplinks.values()).map(|l| l.mtu);
    discovery.mtu = mtus.max().unwrap_or(1500).clamp(576, 65_535);
    discovery.local = LocalNetworks::find(config, &netlink.addresses()?, &links, &leading, &found);
    discovery.tunnels = tunnels(&links, &leading);
    (discovery.uplinks, discovery.leading) = (uplinks, leading);
    Ok(discovery)
}

/// Adds the classes that sources reported.
fn claim_found(
    node: &Node<'_>,
    netlink: &mut Netlink,
    (found, ports): (&[Found], &ports::Ports<usize>),
    addresses: &mut Addresses,
    discovery: &mut Discovery,
) {
    for (i, found) in found.iter().enumerate() {
        let mut claim = claim(node.config, found);
        let remarks = claim.cut.iter().chain(&claim.unmet);
        discovery.warnings.extend(remarks.map(|cut| cut_text(&claim.name, cut)));
        if let (Source::Cni, Location::Netns(netns)) = (found.source, &found.location)
            && let Some(fate) = fate(ports, i)
        {
            discovery.fates.insert(netns.id, fate);
        }
        match &found.location {
            Location::Netns(netns) => match ports.of.get(&i) {
                Some(own) => {
                    claim.ports = own.iter().map(|p| (p.index, p.name.clone())).collect();
                    if own.is_empty() && found.source == Source::Netns {
                        // The namespace belongs to no container of this node, because no interface
                        // leads to it.
                        continue;
                    }
                    discovery.namespaces.push(netns.clone());
                    discovery.owners.push((claim.key(), netns.clone()));
                    let inside = addresses.inside(netlink, netns, node.numbers(own));
                    discovery.warnings.extend(addresses.add(found, inside, &claim.key()));
                    if own.is_empty() {
                        claim.problem = Some(
                            "no interface on the host leads to it (no network, or a macvlan or ipvlan one, which bypasses the host)".into(),
                        );
                    }
                }
                None if ports.gone.iter().any(|(k, _)| *k == i) => continue,
                None => {
                    claim.problem = Some("it shares another container's network and that one's class".into())
                }
            },
            Location::HostNetwork { cgroup, .. } => {
                processes::resolve(&mut claim, node.cgroups.as_ref(), cgroup);
            }
            Location::Interfaces(names) => on_interfaces(&mut claim, names, node.links),
            Location::Interface(_) | Location::Monitor(_) | Location::Cgroup(_) => {}
        }
        discovery.classes.push(claim);
    }
}

/// Adds the classes that the configuration places by an interface, by processes or by selectors.
fn claim_configured(node: &Node<'_>, discovery: &mut Discovery) {
    for class in node.config.classes.iter().filter(|c| c.is_static()) {
        let kind = match (&class.interface, class.names_processes()) {
            (Some(_), _) => ClassKind::Interface,
            (None, true) => ClassKind::Cgroup,
            (None, false) => ClassKind::Selector,
        };
        let mut claim = DiscoveredClass {
            group: class.group.clone(),
            selectors: class.selectors.clone(),
            ..DiscoveredClass::new(ClassSource::Config, &class.name, kind)
        };
        if let Some(name) = &class.interface {
            match node.links.iter().find(|l| l.name == *name) {
                Some(link) if node.is_uplink(link.index) => {
                    claim.problem = Some(format!("interface {name} is the link itself"));
                }
                Some(link) => claim.ports.push((link.index, link.name.clone())),
                None => {
                    claim.problem =
                        Some(format!("there is no interface {name} (it is caught as soon as it appears)"))
                }
            }
        }
        if class.names_processes() {
            processes::place(&mut claim, class, node.cgroups.as_ref(), &mut discovery.awaited);
        }
        discovery.classes.push(claim);
    }
}

/// Leaves an interface to one class, and an uplink to none. A configured class takes precedence.
fn settle_ports(node: &Node<'_>, classes: &mut [DiscoveredClass]) {
    let configured = classes.iter().filter(|c| c.source == ClassSource::Config);
    let named: BTreeSet<u32> = configured.flat_map(|c| &c.ports).map(|p| p.0).collect();
    for claim in classes.iter_mut().filter(|c| c.source != ClassSource::Config) {
        claim.ports.retain(|(index, _)| !named.contains(index));
    }
    for claim in classes {
        claim.ports.retain(|(index, _)| !node.is_uplink(*index));
    }
}

/// The interfaces of containers that no class has taken.
fn strangers(node: &Node<'_>, taken: &BTreeSet<u32>) -> Vec<(u32, String)> {
    let leads_to_namespace =
        |l: &&Link| matches!(l.kind.as_deref(), Some("veth" | "netkit")) && l.peer_netnsid.is_some();
    let is_free = |l: &&Link| !node.is_uplink(l.index) && !taken.contains(&l.index);
    let links = node.links.iter().filter(leads_to_namespace).filter(is_free);
    links.map(|l| (l.index, l.name.clone())).collect()
}

/// The links of the configuration that exist, by their configured devices. `known` has their last indices, by which a
/// renamed one is found.
pub(crate) fn uplinks(
    config: &Config,
    links: &[Link],
    known: &BTreeMap<String, u32>,
) -> BTreeMap<String, Link> {
    let find = |device: &String| {
        let named = links.iter().find(|link| link.name == *device);
        let renamed = || links.iter().find(|link| known.get(device) == Some(&link.index));
        Some((device.clone(), named.or_else(renamed)?.clone()))
    };
    config.link.all().filter_map(|link| find(&link.device)).collect()
}

/// The interfaces that lead out by a link: the uplinks, their bridges, and VLANs on those. Each has the configured
/// device of its link.
fn leading(uplinks: &BTreeMap<String, Link>, links: &[Link]) -> BTreeMap<u32, String> {
    let mut leading = BTreeMap::new();
    for (device, link) in uplinks {
        for index in link.master.into_iter().chain([link.index]) {
            leading.insert(index, device.clone());
        }
    }
    let over = |link: &&Link| link.kind.as_deref() == Some("vlan") && !leading.contains_key(&link.index);
    let device_below = |link: &Link| Some((link.index, leading.get(&link.peer_index?)?.clone()));
    let vlans: Vec<_> = links.iter().filter(over).filter_map(device_below).collect();
    leading.extend(vlans);
    leading
}

/// The tunnels that lead over a link. One that leads out by itself is a link.
fn tunnels(links: &[Link], leading: &BTreeMap<u32, String>) -> BTreeMap<u32, TunnelDevice> {
    let is_tunnel = |l: &&Link| l.kind.as_deref() == Some("wireguard") && !leading.contains_key(&l.index);
    let device = |l: &Link| (l.index, TunnelDevice { device: l.name.clone(), mtu: l.mtu });
    links.iter().filter(is_tunnel).map(device).collect()
}

/// The fate of the `i`th namespace. `None` if the kernel does not tell.
fn fate(ports: &ports::Ports<usize>, i: usize) -> Option<Fate> {
    if let Some(own) = ports.of.get(&i) {
        return Some(if own.is_empty() { Fate::NoPort } else { Fate::HasPort });
    }
    let (_, why) = ports.gone.iter().find(|(k, _)| *k == i)?;
    why.is_gone().then_some(Fate::Gone)
}

/// Addresses on a container's interfaces that count, at most. A container may give itself any.
const MAX_OWN_ADDRESSES: usize = 64;
/// Addresses of a container's interfaces that are read, at most: loopback's and those of each link are among them.
const MAX_READ_ADDRESSES: usize = 4 * MAX_OWN_ADDRESSES;

/// Collects whose address is which, if the download is shared.
struct Addresses {
    /// Of this node, and what runtimes said of their containers. The first to have one keeps it.
    told: BTreeMap<IpAddr, ClassKey>,
    /// Addresses on containers' interfaces. `None`: containers of several classes have it.
    seen: BTreeMap<IpAddr, Option<ClassKey>>,
    /// For questions about other namespaces. Kernels before 4.20 answer none.
    strict: Option<Netlink>,
    is_wanted: bool,
}

impl Addresses {
    /// Begins with those of this node.
    fn open(config: &Config, netlink: &mut Netlink) -> Result<Addresses, NetlinkError> {
        let is_wanted = config.link.download.is_some();
        let mut addresses =
            Addresses { told: BTreeMap::new(), seen: BTreeMap::new(), strict: None, is_wanted };
        if is_wanted {
            addresses.strict = Netlink::open_strict().ok();
            let host = |address: InterfaceAddress| (address.net.addr(), ClassKey::own("host"));
            addresses.told = netlink.addresses()?.into_iter().map(host).collect();
        }
        Ok(addresses)
    }

    /// The addresses on a container's interfaces, in its namespace and in those with these numbers, and whether it has
    /// more.
    fn inside(
        &mut self,
        netlink: &mut Netlink,
        netns: &NetnsRef,
        mut numbers: BTreeSet<i32>,
    ) -> (Vec<IpAddr>, bool) {
        let Some(strict) = &mut self.strict else { return Default::default() };
        numbers.extend(netns.open().ok().and_then(|file| netlink.nsid_of(&file).ok().flatten()));
        let (mut inside, mut are_more) = (Vec::new(), false);
        for number in numbers {
            let (read, has_more) = strict.addresses_in(number, MAX_READ_ADDRESSES).unwrap_or_default();
            inside.extend(read.iter().map(|address| address.net.addr()));
            are_more |= has_more;
        }
        (inside, are_more)
    }

    /// Adds those of a container: what its source said, and what its interfaces have. Returns a warning if the
    /// interfaces have more than count.
    fn add(
        &mut self,
        found: &Found,
        (inside, are_more): (Vec<IpAddr>, bool),
        key: &ClassKey,
    ) -> Option<String> {
        if !self.is_wanted {
            return None;
        }
        let are_more = self.insert(&found.addresses, &inside, key) || are_more;
        are_more.then(|| {
            format!(
                "class {}: its interfaces have more addresses than the {MAX_OWN_ADDRESSES} that count; what arrives \
                 for the others is classified by its flows alone",
                found.name
            )
        })
    }

    /// Returns whether addresses of the interfaces do not count.
    fn insert(&mut self, told: &[IpAddr], inside: &[IpAddr], key: &ClassKey) -> bool {
        // Each namespace has the same addresses of these kinds.
        let is_own = |address: &&IpAddr| {
            !address.is_loopback() && !matches!(address, IpAddr::V6(a) if a.is_unicast_link_local())
        };
        for address in told.iter().filter(is_own) {
            self.told.entry(*address).or_insert_with(|| key.clone());
        }
        let mut inside = inside.iter().filter(is_own);
        for address in inside.by_ref().take(MAX_OWN_ADDRESSES) {
            let owner = self.seen.entry(*address).or_insert_with(|| Some(key.clone()));
            owner.take_if(|owner| owner != key);
        }
        inside.next().is_some()
    }

    /// The class of each address. A container cannot take another's by giving it to itself.
    fn owners(self) -> OwnedAddresses {
        let is_free = |address: &IpAddr| !self.told.contains_key(address);
        let seen = self.seen.into_iter().filter(|(address, _)| is_free(address));
        let shown = seen.filter_map(|(address, key)| Some((address, key?))).collect();
        OwnedAddresses { told: self.told, shown }
    }
}

/// The namespaces of the classes that sources reported.
fn owners(found: &[Found]) -> Vec<Owner<'_>> {
    let mut owners = Vec::new();
    for (place, found) in found.iter().enumerate() {
        if let Location::Netns(netns) = &found.location {
            owners.push(Owner {
                place,
                class: ClassKey::new(class_source(found.source), &found.name),
                netns,
            });
        }
    }
    owners
}

fn found(config: &Config, reports: &mut Reports<'_>, warnings: &mut Vec<String>) -> Vec<Found> {
    let filter = match &config.discover.netns {
        None => Filter::None,
        Some(names) => Filter::names(names.iter().map(String::as_str)).unwrap_or_else(|e| {
            warnings.push(format!("[discover] netns: {e}"));
            Filter::None
        }),
    };
    let own = NsId::own().unwrap_or(NsId { dev: 0, ino: 0 });
    let (namespaces, said) = netns::scan(&DIRS, &filter, own);
    warnings.extend(said.iter().map(ToString::to_string));
    let Reports { attached, told, ref mut unclaimed, now, .. } = *reports;
    warnings.extend(told.warnings.iter().chain(&told.lost).cloned());
    let containers = containers(config, told, warnings);
    let claimed = attached.iter().chain(&containers).filter_map(namespace).collect();
    combine(attached, &containers, &unclaimed.settle(namespaces, &claimed, now))
}

/// The containers of the runtimes and of LXC, and the virtual machines of libvirt.
fn containers(config: &Config, told: &Told, warnings: &mut Vec<String>) -> Vec<Found> {
    let mut containers = told.containers.clone();
    if config.discover.lxc
        && let Ok(cgroups) = Cgroup2::find()
    {
        let (found, said) = lxc::scan(&cgroups, &told.monitored);
        warnings.extend(said.iter().map(ToString::to_string));
        containers.extend(found);
    }
    if config.discover.libvirt {
        let (found, said) = libvirt::scan();
        warnings.extend(said.iter().map(ToString::to_string));
        containers.extend(found);
    }
    merge(containers)
}

fn claim(config: &Config, found: &Found) -> DiscoveredClass {
    let kind = match (found.source, &found.location) {
        (Source::Incus | Source::Libvirt | Source::Config, _) => ClassKind::Interface,
        (Source::Netns, _) => ClassKind::Netns,
        (_, place) => kind_at(place),
    };
    let Granted { layer, down, group, cut } = grant(config, found);
    DiscoveredClass {
        group,
        label: layer,
        down_label: down,
        cut,
        asked_by: found.asked_by.clone(),
        unmet: found.unmet.clone(),
        ..DiscoveredClass::new(class_source(found.source), &found.name, kind)
    }
}

fn class_source(source: Source) -> ClassSource {
    match source {
        Source::Cni => ClassSource::Cni,
        Source::Docker => ClassSource::Docker,
        Source::Podman => ClassSource::Podman,
        Source::Containerd => ClassSource::Containerd,
        Source::Incus => ClassSource::Incus,
        Source::Libvirt => ClassSource::Libvirt,
        Source::Lxc => ClassSource::Lxc,
        Source::Netns => ClassSource::Netns,
        Source::Config => ClassSource::Config,
    }
}

/// Finds the host's end of a virtual machine's interfaces.
fn on_interfaces(claim: &mut DiscoveredClass, names: &[String], links: &[Link]) {
    let is = |name: &String| links.iter().find(|link| link.name == *name);
    let ends: Vec<&Link> = names.iter().filter_map(is).collect();
    let beside = ends.iter().find(|link| matches!(link.kind.as_deref(), Some("macvtap" | "ipvtap")));
    claim.problem = if let Some(link) = beside {
        Some(format!("interface {} is a macvtap, which bypasses the host", link.name))
    } else if ends.is_empty() {
        let names = names.join(", ");
        Some(format!(
            "no interface on the host leads to it ({})",
            if names.is_empty() { "it has none" } else { &names }
        ))
    } else {
        None
    };
    let caught = ends.iter().filter(|link| !matches!(link.kind.as_deref(), Some("macvtap" | "ipvtap")));
    claim.ports = caught.map(|link| (link.index, link.name.clone())).collect();
}

/// The kind of a runtime's container.
fn kind_at(place: &Location) -> ClassKind {
    match place {
        Location::HostNetwork { .. } => ClassKind::Cgroup,
        _ => ClassKind::Container,
    }
}

/// The status text for a wish that was cut or is not enforced.
pub(crate) fn cut_text(class: &str, cut: &str) -> String {
    format!("class {class}: {cut}")
}

/// Marks selectors whose container is absent.
fn miss_containers(discovered: &mut [DiscoveredClass]) {
    // Weir creates the reserved classes itself.
    let is_here = |name: &str, discovered: &[DiscoveredClass]| {
        RESERVED.contains(&name) || discovered.iter().any(|claim| claim.sends_as(name))
    };
    for i in 0..discovered.len() {
        let mut named = discovered[i].selectors.iter().filter_map(|selector| selector.container.as_deref());
        if let Some(name) = named.find(|name| !is_here(name, discovered)) {
            let why =
                format!("there is no container {name} (its packets are selected as soon as it appears)");
            discovered[i].problem = Some(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_takes_no_address_of_another_by_giving_it_to_itself() {
        let mut addresses =
            Addresses { told: BTreeMap::new(), seen: BTreeMap::new(), strict: None, is_wanted: true };
        let [a, b] = ["a", "b"].map(ClassKey::own);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let [of_a, of_b, own, both] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(ip);
        // A's runtime says its address. A also has that of B, which comes later, and one that B has too.
        assert!(!addresses.insert(&[of_a], &[of_a, of_b, own, both, ip("127.0.0.1")], &a));
        let many: Vec<IpAddr> = (0..100).map(|n| ip(&format!("10.1.0.{n}"))).chain([of_b, both]).collect();
        assert!(!addresses.insert(&[of_b], &[both], &b));
        assert!(addresses.insert(&[], &many, &b), "38 do not count");
        let owners = addresses.owners();
        assert_eq!(owners.told, BTreeMap::from([(of_a, a.clone()), (of_b, b)]));
        let shown = |address| owners.shown.get(&address);
        assert_eq!([shown(of_a), shown(of_b), shown(own), shown(both)], [None, None, Some(&a), None]);
        assert_eq!(owners.shown.len(), 1 + MAX_OWN_ADDRESSES);
    }

    #[test]
    fn uplinks_their_bridges_and_their_vlans_lead_out_by_their_links() {
        let link = |index, name: &str, master, below: Option<u32>| Link {
            index,
            name: name.to_owned(),
            master,
            kind: below.map(|_| "vlan".to_owned()),
            peer_index: below,
            ..Link::default()
        };
        let links = [
            link(2, "eth0", Some(5), None),
            link(3, "wan", None, None),
            link(4, "lan0", None, None),
            link(5, "br0", None, None),
            link(6, "br0.7", None, Some(5)),
            link(7, "lan0.7", None, Some(4)),
            link(8, "wan.9", None, Some(3)),
        ];
        let text = "[[link]]\ndevice = \"eth0\"\ncapacity = \"9mbit\"\n[[link]]\ndevice = \"wwan0\"\ncapacity = \"9mbit\"\n\
                    [[link]]\ndevice = \"wan.9\"\ncapacity = \"9mbit\"\n[[link]]\ndevice = \"eth9\"\ncapacity = \"9mbit\"\n";
        let config = crate::config::parse(text, std::path::Path::new("test.toml")).unwrap();
        // wwan0 has been renamed, and eth9 is not here.
        let known = BTreeMap::from([("wwan0".to_owned(), 3)]);
        let found = uplinks(&config, &links, &known);
        let names: Vec<(&str, &str)> =
            found.iter().map(|(device, l)| (device.as_str(), l.name.as_str())).collect();
        assert_eq!(names, [("eth0", "eth0"), ("wan.9", "wan.9"), ("wwan0", "wan")]);
        let leading = leading(&found, &links);
        let leading: Vec<(u32, &str)> =
            leading.iter().map(|(index, device)| (*index, device.as_str())).collect();
        assert_eq!(leading, [(2, "eth0"), (3, "wwan0"), (5, "eth0"), (6, "eth0"), (8, "wan.9")]);
    }
}
