//! Restores the classifier's maps: entries that another process added, altered or removed are found
//! and set right.

use std::collections::BTreeMap;

use libbpf_rs::{Error as BpfError, ErrorKind, MapCore, MapFlags};

use super::{
    rules::{self, RuleSet},
    skeleton::ClassifyMaps,
};
use crate::{
    Classifier, ClassifierConfig, Error, LocalPrefix, Locality, Pacer, Tunnel, Way,
    common::entries::{entries, ignore},
    pacing,
};

/// All that decides about a packet's class, as the agent wants it.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Where everything of each link is, by the links' numbers. The first names the set of rules in force.
    pub configs: &'a [ClassifierConfig],
    /// Indices of devices and the numbers of the links by which they lead out.
    pub links: &'a BTreeMap<u32, u32>,
    /// Indices of devices of tunnels that lead over a link.
    pub tunnels: &'a BTreeMap<u32, Tunnel>,
    /// Interface indices and how their packets go on, where several links are shared or a tunnel leads over one.
    pub ways: &'a BTreeMap<u32, Way>,
    /// Interface indices and the handles of their classes.
    pub ports: &'a BTreeMap<u32, u32>,
    /// Ids of cgroups and the handles of their classes.
    pub cgroups: &'a BTreeMap<u64, u32>,
    /// The networks that packets reach without the line.
    pub local: &'a BTreeMap<LocalPrefix, Locality>,
    /// The rules of selectors.
    pub rules: &'a RuleSet,
}

/// The repairs: names of maps, and the number of their entries.
#[derive(Debug, Default)]
pub struct Restored {
    /// In the order of the looks.
    pub maps: Vec<(&'static str, usize)>,
    /// The first map that could not be read or written; the others were.
    pub failure: Option<Error>,
}

impl Restored {
    pub(crate) fn note(&mut self, map: &'static str, what: &'static str, result: Result<usize, BpfError>) {
        match result {
            Ok(0) => {}
            Ok(entries) => self.maps.push((map, entries)),
            Err(source) => drop(self.failure.get_or_insert(Error { what, source })),
        }
    }
}

/// The writes that make a map's entries the wanted ones.
#[derive(Debug, PartialEq, Eq)]
struct Difference<K, V> {
    /// These entries are not wanted.
    remove: Vec<K>,
    /// These lack, or are others.
    write: Vec<(K, V)>,
}

impl<K: Ord + Copy, V: PartialEq + Copy> Difference<K, V> {
    fn between(wanted: &BTreeMap<K, V>, found: &BTreeMap<K, V>) -> Difference<K, V> {
        if wanted == found {
            return Difference { remove: Vec::new(), write: Vec::new() };
        }
        let remove = found.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
        let other = wanted.iter().filter(|(key, value)| found.get(key) != Some(value));
        Difference { remove, write: other.map(|(key, value)| (*key, *value)).collect() }
    }
}

/// Makes the entries of a map, of those that `is_ours` takes for its own, the wanted ones; says how many were
/// not. All are tried before an error is told.
pub(crate) fn restore<const K: usize, const V: usize>(
    map: &impl MapCore,
    wanted: impl IntoIterator<Item = ([u8; K], [u8; V])>,
    is_ours: impl Fn(&[u8; K]) -> bool,
) -> Result<usize, BpfError> {
    // `collect` would bring a sort of these types into the program, 4 KB for each.
    let mut all = BTreeMap::new();
    all.extend(wanted);
    let mut found = entries(map, all.len()).map_err(refused)?;
    found.retain(|key, _| is_ours(key));
    let Difference { remove, write } = Difference::between(&all, &found);
    // A map full of strangers has no room before.
    let removed = remove.iter().map(|key| ignore(map.delete(key), &[ErrorKind::NotFound]));
    let written = write.iter().map(|(key, value)| map.update(key, value, MapFlags::ANY));
    let results: Vec<Result<(), BpfError>> = removed.chain(written).collect();
    let count = results.len();
    results.into_iter().collect::<Result<(), BpfError>>().map(|()| count)
}

pub(super) fn refused(errno: nix::errno::Errno) -> BpfError {
    BpfError::from_raw_os_error(errno as i32)
}

/// The same for one value of an array.
pub(crate) fn restore_row(map: &impl MapCore, row: u32, wanted: &[u8]) -> Result<usize, BpfError> {
    let row = row.to_ne_bytes();
    if map.lookup(&row, MapFlags::ANY)?.as_deref() == Some(wanted) {
        return Ok(0);
    }
    map.update(&row, wanted, MapFlags::ANY).map(|()| 1)
}

/// Makes the entries of the maps the wanted ones; says how many were not, by map.
pub(super) fn write_local(
    maps: &ClassifyMaps<'_>,
    networks: &BTreeMap<LocalPrefix, Locality>,
) -> Result<[usize; 2], BpfError> {
    // Addresses of one network have one key.
    let mut keyed: BTreeMap<[u8; 20], Locality> = BTreeMap::new();
    for (network, locality) in networks {
        let known = keyed.entry(network.key()).or_default();
        *known = *known | *locality;
    }
    let local =
        restore(&maps.weir_local, keyed.into_iter().map(|(key, value)| (key, value.bytes())), |_| true)?;
    let mut exempt = 0;
    for link in 0..ClassifierConfig::LINKS {
        let has = u32::from(networks.values().any(|locality| locality.is_exempt(link)));
        exempt += restore_row(&maps.weir_exempt, link, &has.to_ne_bytes())?;
    }
    Ok([local, exempt])
}

impl Classifier {
    /// Compares the maps with the wanted entries, and writes the difference. Entries that another
    /// process added, altered or removed would give packets to other classes. Counters and the
    /// kernel's own memory (of sockets, of fragments) are left alone.
    #[must_use]
    pub fn restore(&self, wanted: &Wanted<'_>) -> Restored {
        let maps = &self.skeleton.maps;
        let mut restored = Restored::default();
        let config = (0..).zip(wanted.configs).try_fold(0, |sum, (link, config)| {
            restore_row(&maps.weir_config, link, &config.bytes()).map(|count| sum + count)
        });
        restored.note("weir_config", "restore the classifier's configuration", config);
        let keyed = wanted.links.iter().map(|(index, number)| (index.to_ne_bytes(), number.to_ne_bytes()));
        let links = restore(&maps.weir_links, keyed, |_| true);
        restored.note("weir_links", "restore which devices lead out by each link", links);
        let keyed = wanted.tunnels.iter().map(|(index, tunnel)| (index.to_ne_bytes(), tunnel.bytes()));
        let tunnels = restore(&maps.weir_tunnels, keyed, |_| true);
        restored.note("weir_tunnels", "restore which tunnels lead over a link", tunnels);
        let keyed = wanted.ways.iter().map(|(index, way)| (index.to_ne_bytes(), way.bytes()));
        let ways = restore(&maps.weir_ways, keyed, |_| true);
        restored.note("weir_ways", "restore how each interface's packets go on", ways);
        let keyed = wanted.ports.iter().map(|(index, handle)| (index.to_ne_bytes(), handle.to_ne_bytes()));
        let ports = restore(&maps.weir_ports, keyed, |_| true);
        restored.note("weir_ports", "restore which class each interface belongs to", ports);
        let keyed = wanted.cgroups.iter().map(|(id, handle)| (id.to_ne_bytes(), handle.to_ne_bytes()));
        let cgroups = restore(&maps.weir_cgroups, keyed, |_| true);
        restored.note("weir_cgroups", "restore which class each cgroup belongs to", cgroups);
        let written = write_local(maps, wanted.local);
        let what = "restore which networks packets reach without the line";
        let exempt = written.as_ref().map_or(0, |[_, exempt]| *exempt);
        restored.note("weir_local", what, written.map(|[local, _]| local));
        restored.note("weir_exempt", what, Ok(exempt));
        let rules = wanted.configs.first().map_or(0, |config| config.rules);
        if rules != 0 {
            let set = (rules - 1) & 1;
            let masks = restore_row(&maps.weir_masks, set, &wanted.rules.masks_value());
            restored.note("weir_masks", "restore the kinds of selectors' rules", masks);
            // The set that is not in force is left over.
            let in_force = |key: &[u8; rules::KEY]| rules::set_of(key) == Some(set);
            let rules = restore(&maps.weir_rules, wanted.rules.entries(set as usize), in_force);
            restored.note("weir_rules", "restore the rules of selectors", rules);
        }
        restored.note(
            "weir_user",
            "restore the way to the scheduler in user space",
            self.handover().restore(),
        );
        restored
    }
}

impl Pacer {
    /// Gives the rates of classes' sockets their wanted values (by handle, bytes per second, as
    /// [`set_share`](Pacer::set_share)) if another process altered, removed or added some. Returns
    /// their number.
    ///
    /// # Errors
    /// [`Error`].
    pub fn restore_shares(&self, wanted: &BTreeMap<u32, u64>) -> Result<usize, Error> {
        let error = |source| Error { what: "restore the rates of classes' sockets", source };
        let keyed = wanted.iter().map(|(handle, rate)| (handle.to_ne_bytes(), rate.to_ne_bytes()));
        let shares = restore(self.shares(), keyed, |_| true).map_err(error)?;
        // The kernel counts in them; that they exist is weir's affair.
        let class_flows = entries::<4, { pacing::CLASS_FLOWS }>(self.class_flows(), wanted.len())
            .map_err(refused)
            .map_err(error)?;
        let lost: Vec<_> =
            wanted.iter().filter(|(handle, _)| !class_flows.contains_key(&handle.to_ne_bytes())).collect();
        lost.iter().try_for_each(|(handle, rate)| self.set_share(**handle, Some(**rate)))?;
        Ok(shares + lost.len())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;
    use crate::attach;

    proptest! {
        #[test]
        fn removing_and_writing_the_difference_makes_any_entries_the_wanted_ones(
            wanted in prop::collection::btree_map(0..20u8, 0..3u8, 0..12),
            found in prop::collection::btree_map(0..20u8, 0..3u8, 0..12),
        ) {
            let difference = Difference::between(&wanted, &found);
            let mut after = found.clone();
            for key in &difference.remove {
                prop_assert!(after.remove(key).is_some());
                prop_assert!(!wanted.contains_key(key));
            }
            for (key, value) in &difference.write {
                prop_assert_ne!(after.insert(*key, *value), Some(*value));
            }
            prop_assert_eq!(after, wanted);
        }
    }

    #[test]
    fn what_lacks_is_other_or_is_nobodys_differs_and_nothing_else() {
        let wanted = BTreeMap::from([(1, 'a'), (2, 'b'), (3, 'c')]);
        let found = BTreeMap::from([(1, 'a'), (2, 'x'), (4, 'd')]);
        let Difference { remove, write } = Difference::between(&wanted, &found);
        assert_eq!((remove, write), (vec![4], vec![(2, 'b'), (3, 'c')]));
    }

    fn classifier() -> Option<Classifier> {
        if nix::unistd::geteuid().is_root() {
            return Some(Classifier::load().expect("this kernel takes the programs"));
        }
        println!("SKIPPED: loading BPF programs needs root");
        None
    }

    /// All that an agent wants.
    #[derive(Default)]
    struct All {
        configs: Vec<ClassifierConfig>,
        links: BTreeMap<u32, u32>,
        tunnels: BTreeMap<u32, Tunnel>,
        ways: BTreeMap<u32, Way>,
        ports: BTreeMap<u32, u32>,
        cgroups: BTreeMap<u64, u32>,
        local: BTreeMap<LocalPrefix, Locality>,
        rules: RuleSet,
    }

    impl All {
        fn wanted(&self) -> Wanted<'_> {
            Wanted {
                configs: &self.configs,
                links: &self.links,
                tunnels: &self.tunnels,
                ways: &self.ways,
                ports: &self.ports,
                cgroups: &self.cgroups,
                local: &self.local,
                rules: &self.rules,
            }
        }
    }

    fn prefix(network: &str, len: u8) -> LocalPrefix {
        LocalPrefix { network: network.parse().expect("an address"), len }
    }

    #[test]
    fn altered_maps_are_restored_and_counted_once() {
        let Some(classifier) = classifier() else { return };
        let config =
            ClassifierConfig { ifb_index: 7, rules: 2, cgroup_levels: 4, ..ClassifierConfig::default() };
        let rule = |port| crate::SelectorRule {
            handle: 0x1_0020,
            destination_ports: Some(port..=port),
            ..crate::SelectorRule::default()
        };
        let second = ClassifierConfig { ifb_index: 8, ..config };
        let all = All {
            configs: vec![config, second],
            links: BTreeMap::from([(2, 0), (3, 1)]),
            tunnels: BTreeMap::from([(8, Tunnel { number: 0, mtu: 1420 })]),
            ways: BTreeMap::from([(1, Way::Routed(5)), (2, Way::Bridged(1))]),
            ports: (1..=1000).map(|n| (n, 0x1_0000 + n)).collect(),
            cgroups: BTreeMap::from([(77, 0x1_0010), (78, 0x1_0011)]),
            // Written as an address of the network: what counts is the network.
            local: BTreeMap::from([
                (prefix("10.1.2.3", 16), Locality::ON_NODE),
                (prefix("10.1.0.0", 16), Locality::ON_NODE),
                (prefix("fd00::1", 128), Locality::exempt(1)),
            ]),
            rules: RuleSet::new(&[rule(80), rule(443)]).unwrap(),
        };
        let (wanted, All { local, rules, .. }) = (all.wanted(), &all);
        // An empty classifier is one to which all was done: TCP and UDP make two rules of each.
        let restored = classifier.restore(&wanted);
        assert!(restored.failure.is_none(), "{restored:?}");
        let written = [
            ("weir_config", 2),
            ("weir_links", 2),
            ("weir_tunnels", 1),
            ("weir_ways", 2),
            ("weir_ports", 1000),
            ("weir_cgroups", 2),
            ("weir_local", 2),
            ("weir_exempt", 1),
            ("weir_masks", 1),
            ("weir_rules", 4),
        ];
        assert_eq!(restored.maps, written);
        // The agent's own writes are wanted.
        classifier.configure(0, &config).unwrap();
        classifier.load_rules(2, rules).unwrap();
        classifier.set_links(&all.links).unwrap();
        classifier.set_tunnels(&all.tunnels).unwrap();
        classifier.set_way(1, Some(Way::Routed(5))).unwrap();
        classifier.set_local(local).unwrap();
        assert_eq!(classifier.restore(&wanted).maps, []);
        // Rules of the set that is not in force are no strangers.
        classifier.load_rules(1, &RuleSet::new(&[rule(22)]).unwrap()).unwrap();
        assert_eq!(classifier.restore(&wanted).maps, []);

        let maps = &classifier.skeleton.maps;
        classifier.configure(1, &ClassifierConfig::default()).unwrap();
        classifier.set_links(&BTreeMap::from([(2, 0), (3, 0)])).unwrap();
        classifier.set_tunnels(&BTreeMap::from([(9, Tunnel { number: 0, mtu: 1420 })])).unwrap();
        classifier.set_way(1, Some(Way::Bridged(1))).unwrap();
        classifier.set_way(2, None).unwrap();
        classifier.set_way(9, Some(Way::Routed(9))).unwrap();
        classifier.set_port(1, None).unwrap();
        classifier.set_port(2, Some(0x1_0003)).unwrap();
        classifier.set_port(4096, Some(0x1_0003)).unwrap();
        classifier.set_cgroup(77, None).unwrap();
        let stranger = BTreeMap::from([(prefix("0.0.0.0", 0), Locality::exempt(0))]);
        classifier.set_local(&local.clone().into_iter().chain(stranger).collect()).unwrap();
        maps.weir_masks.update(&1u32.to_ne_bytes(), &[0; 3584], MapFlags::ANY).unwrap();
        let (key, _) = rules.entries(1).next().unwrap();
        maps.weir_rules.update(&key, &[0; 8], MapFlags::ANY).unwrap();
        let restored = classifier.restore(&wanted);
        assert!(restored.failure.is_none(), "{restored:?}");
        let some = [
            ("weir_config", 1),
            ("weir_links", 1),
            ("weir_tunnels", 2),
            ("weir_ways", 3),
            ("weir_ports", 3),
            ("weir_cgroups", 1),
            ("weir_local", 1),
            ("weir_exempt", 1),
            ("weir_masks", 1),
            ("weir_rules", 1),
        ];
        assert_eq!(restored.maps, some);
        let began = Instant::now();
        const LOOKS: u32 = 20;
        (0..LOOKS).for_each(|_| assert_eq!(classifier.restore(&wanted).maps, []));
        println!("a look at all maps, 1000 ports: {:?}", began.elapsed() / LOOKS);
    }

    #[test]
    fn path_to_user_space_closed_or_led_elsewhere_is_restored() {
        let Some(classifier) = classifier() else { return };
        let all = All { configs: vec![ClassifierConfig::default()], ..All::default() };
        let wanted = all.wanted();
        let [path, other] = [(), ()].map(|()| crate::UserPath::load().expect("this kernel takes them"));
        assert_eq!(classifier.restore(&wanted).maps, [], "no engine user, no way");
        let program = |path: &crate::UserPath| path.enter_program().try_clone_to_owned().unwrap();
        classifier.handover().to(program(&path)).unwrap();
        assert_eq!(classifier.restore(&wanted).maps, []);
        let map = &classifier.skeleton.maps.weir_user;
        map.delete(&0u32.to_ne_bytes()).unwrap();
        assert_eq!(classifier.restore(&wanted).maps, [("weir_user", 1)]);
        classifier.handover().put(other.enter_program()).unwrap();
        assert_eq!(classifier.restore(&wanted).maps, [("weir_user", 1)]);
        let found = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        assert_eq!(found, attach::program_id(&path.enter_program()).unwrap().to_ne_bytes());
        assert_eq!(classifier.restore(&wanted).maps, []);
    }

    #[test]
    fn rates_of_sockets_that_somebody_altered_removed_or_added_are_restored() {
        let Some(classifier) = classifier() else { return };
        let pacer = Pacer::load(&classifier).expect("this kernel takes the programs");
        let wanted: BTreeMap<u32, u64> = (1..=9).map(|n| (0x1_0010 + n, 1_000_000 * u64::from(n))).collect();
        wanted.iter().for_each(|(handle, rate)| pacer.set_share(*handle, Some(*rate)).unwrap());
        assert_eq!(pacer.restore_shares(&wanted).unwrap(), 0);
        pacer.set_share(0x1_0011, None).unwrap();
        pacer.set_share(0x1_0012, Some(1)).unwrap();
        pacer.set_share(0x1_0099, Some(1)).unwrap();
        pacer.class_flows().delete(&0x1_0013u32.to_ne_bytes()).unwrap();
        // The first lacks both its rate and what its sockets are counted in.
        assert_eq!(pacer.restore_shares(&wanted).unwrap(), 5);
        assert_eq!(pacer.restore_shares(&wanted).unwrap(), 0);
    }

    #[test]
    fn a_map_that_cannot_be_written_is_told_of_and_the_others_are_set_right() {
        let Some(classifier) = classifier() else { return };
        let config = ClassifierConfig { ifb_index: 7, ..ClassifierConfig::default() };
        let all = All {
            configs: vec![config],
            ports: BTreeMap::from([(1, 0x1_0010)]),
            cgroups: BTreeMap::from([(77, 0x1_0011)]),
            ..All::default()
        };
        let wanted = all.wanted();
        let frozen = libbpf_rs::MapHandle::try_from(&classifier.skeleton.maps.weir_ports).unwrap();
        frozen.freeze().unwrap();
        let restored = classifier.restore(&wanted);
        assert_eq!(restored.maps, [("weir_config", 1), ("weir_cgroups", 1)]);
        let failure = restored.failure.expect("a frozen map takes nothing");
        assert_eq!(failure.source.kind(), ErrorKind::PermissionDenied);
        assert!(failure.what.contains("each interface"), "{failure:?}");
    }

    #[test]
    fn a_map_that_strangers_have_filled_is_emptied_of_them() {
        let Some(classifier) = classifier() else { return };
        let (configs, ports) = (vec![ClassifierConfig::default()], BTreeMap::from([(70_000, 1)]));
        let all = All { configs, ports, ..All::default() };
        let wanted = all.wanted();
        (0..65_536).for_each(|index| classifier.set_port(index, Some(1)).unwrap());
        classifier.set_port(70_000, Some(1)).expect_err("there is no room");
        let restored = classifier.restore(&wanted);
        assert!(restored.failure.is_none(), "{restored:?}");
        assert_eq!(restored.maps, [("weir_ports", 65_537)]);
        assert_eq!(classifier.restore(&wanted).maps, []);
    }
}
