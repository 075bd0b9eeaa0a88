//! The table of classes: names, policies, origins, admission. It does not use the kernel.

mod agreed;
pub(crate) mod discovered;
mod entries;
mod names;
mod promise;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_api::{ClassKind, Error, ErrorCode, Origin, PolicyChange, SetPolicies};
use weir_datapath::engine::FIRST;
use weir_share::{Policy, Reservation, Weight};
use weir_units::BitRate;

use self::{
    names::Names,
    promise::{Awaited, Want},
};
use super::class_key::{ClassKey, ClassSource};
use super::{
    by_hand::SetLayers,
    store::{Ledger, Minors},
};
use crate::config::{Config, Layer, is_name, no_name, within};

pub(crate) use agreed::{Agreed, Enforced, own_class};
pub(crate) use discovered::{DiscoveredClass, GroupWish, GroupWishes};
pub(crate) use promise::Unpromised;

/// The most policies that one request changes.
const MAX_CHANGES: usize = 10_000;
/// The most policies kept for absent classes.
const MAX_ABSENT: usize = 1_000;
/// The key of the control class. Its policy is fixed by weir.
const CONTROL_KEY: &str = "weir:control";

/// A policy with the origin of each of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Effective {
    pub(crate) policy: Policy,
    pub(crate) origins: [Origin; 3],
}

impl Effective {
    /// The same with another minimum. A minimum above the maximum is left out.
    fn with_min(self, min: Option<BitRate>) -> Effective {
        let Effective { policy, origins } = self;
        let with = |min| Policy::new(policy.weight(), min, policy.max());
        Effective { policy: with(min).or_else(|_| with(None)).unwrap_or(policy), origins }
    }
}

/// A class or a group.
#[derive(Debug, Clone)]
pub(crate) struct ClassEntry {
    pub(crate) class: DiscoveredClass,
    /// The policy in force.
    pub(crate) effective: Effective,
    /// The agreement that its policy comes from, if any.
    pub(crate) agreement: Option<weir_agree::Name>,
    /// The scheduler's class; none while absent.
    pub(crate) minor: Option<u16>,
    /// The minimum that it asks for and was not promised.
    pub(crate) unpromised: Option<Unpromised>,
}

/// A change of the class table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Added(ClassKey),
    Removed(ClassKey),
    /// The source of a present class reports another policy or group than before.
    AskedAnew(ClassKey),
    /// A minimum is not promised, or no longer.
    Unpromised {
        key: ClassKey,
        why: String,
    },
    /// A minimum that [`Change::Unpromised`] reported is promised.
    Promised {
        key: ClassKey,
        min: BitRate,
    },
}

/// All classes and groups. A copy shows what a change would do.
#[derive(Clone)]
pub(crate) struct ClassTable {
    config: Config,
    set: SetLayers,
    minors: Minors,
    entries: BTreeMap<ClassKey, ClassEntry>,
    /// The classes of the last discovery.
    found: Vec<DiscoveredClass>,
    /// The wishes for groups.
    group_wishes: GroupWishes,
    /// The agreements in force.
    agreed: Arc<[Agreed]>,
    /// The reasons why some agreements are not enforced.
    unmet: BTreeMap<weir_agree::Name, String>,
    /// The highest sum that agreements promise at any moment from now on.
    promised: BitRate,
    /// Present classes in the order of their arrival. The first of those that wait for a promise gets
    /// it first.
    arrivals: Vec<ClassKey>,
    /// The promises made to classes and groups.
    ledger: Ledger,
    awaited: Awaited,
    /// Minima reported as not promised.
    told: BTreeMap<ClassKey, Unpromised>,
    reservation: Reservation,
}

/// The layers of a policy with their origins.
type Layers = [(Origin, Layer); 4];

/// The strongest value of each part of a policy. The minimum is returned separately, because it is not
/// promised yet.
fn effective(layers: &Layers) -> (Effective, Option<BitRate>) {
    fn pick<T: Copy>(layers: &Layers, part: impl Fn(&Layer) -> Option<T>) -> (Option<T>, Origin) {
        let strongest =
            layers.iter().filter_map(|(origin, layer)| part(layer).map(|v| (*origin, v))).max_by_key(|l| l.0);
        strongest.map_or((None, Origin::Default), |(origin, value)| (Some(value), origin))
    }
    let (weight, w) = pick(layers, |l| l.weight);
    let (min, m) = pick(layers, |l| l.min);
    let (max, x) = pick(layers, |l| l.max);
    // Each layer was checked at its source.
    let policy = Policy::new(weight.unwrap_or_default(), None, max).unwrap_or_default();
    (Effective { policy, origins: [w, m, x] }, min)
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::BadRequest, message)
}

/// All classes and groups with their policies and promises.
struct Resolved {
    entries: BTreeMap<ClassKey, ClassEntry>,
    ledger: Ledger,
    reservation: Reservation,
    unmet: BTreeMap<weir_agree::Name, String>,
}

impl ClassTable {
    /// A class table with weir's own classes and the configured groups only. Agreements promise at most
    /// `promised`. The promises of `ledger` are kept for their classes until [`ClassTable::update`] reports
    /// the present classes.
    pub(crate) fn new(
        config: Config,
        mut set: SetLayers,
        minors: Minors,
        ledger: Ledger,
        promised: BitRate,
    ) -> ClassTable {
        set.retain(|name, layer| match layer.policy() {
            Ok(_) => true,
            Err(why) => {
                tracing::warn!("ignoring the stored policy of {name}: {why}");
                false
            }
        });
        let empty = Reservation { reserved: BitRate::ZERO, reservable: BitRate::ZERO };
        let mut table = ClassTable {
            config,
            set,
            minors,
            entries: BTreeMap::new(),
            found: Vec::new(),
            group_wishes: GroupWishes::new(),
            agreed: Arc::default(),
            unmet: BTreeMap::new(),
            promised,
            arrivals: Vec::new(),
            ledger,
            awaited: Awaited::Everyone,
            told: BTreeMap::new(),
            reservation: empty,
        };
        table.accept(table.resolve(&table.config, &table.set, &[]));
        table
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Takes what a source asks for groups, and returns whether it differs from before. The next
    /// [`ClassTable::update`] applies it.
    pub(crate) fn set_group_wishes(&mut self, wishes: GroupWishes) -> bool {
        let is_new = self.group_wishes != wishes;
        self.group_wishes = wishes;
        is_new
    }

    pub(crate) fn group_wishes(&self) -> &GroupWishes {
        &self.group_wishes
    }

    /// Whether the present classes are known, so that the promises are those in force.
    pub(crate) fn is_settled(&self) -> bool {
        self.awaited == Awaited::Nobody
    }

    /// The policies set by hand.
    pub(crate) fn set_layers(&self) -> &SetLayers {
        &self.set
    }

    pub(crate) fn minors(&self) -> &Minors {
        &self.minors
    }

    /// The promises made. They must be stored before they are relied on.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn reservation(&self) -> Reservation {
        self.reservation
    }

    /// The minima that are not promised, with reasons.
    pub(crate) fn unpromised_minima(&self) -> Vec<String> {
        let why = |e: &ClassEntry| Some(format!("{}: {}", e.class.name, e.unpromised.as_ref()?));
        self.entries.values().filter_map(why).collect()
    }

    /// Gives its classes the numbers that they have in another table.
    pub(crate) fn number_as(&mut self, other: &ClassTable) {
        self.minors.clone_from(&other.minors);
    }

    /// All entries by key, including groups and absent classes.
    pub(crate) fn entries(&self) -> &BTreeMap<ClassKey, ClassEntry> {
        &self.entries
    }

    /// Replaces the present classes. Without `is_complete`, `discovered` may lack containers with
    /// a promised minimum. Their promises are kept.
    pub(crate) fn update(&mut self, discovered: Vec<DiscoveredClass>, is_complete: bool) -> Vec<Change> {
        let before: BTreeSet<ClassKey> = self.found.iter().map(DiscoveredClass::key).collect();
        let asked_anew = discovered::asked_anew(&self.found, &discovered);
        let keys: BTreeSet<ClassKey> = discovered.iter().map(DiscoveredClass::key).collect();
        self.awaited = if is_complete { Awaited::Nobody } else { Awaited::Sources };
        self.arrivals.retain(|key| keys.contains(key));
        let mut arrived: BTreeSet<ClassKey> = self.arrivals.iter().cloned().collect();
        for key in discovered.iter().map(DiscoveredClass::key) {
            if arrived.insert(key.clone()) {
                self.arrivals.push(key);
            }
        }
        self.found = discovered;
        self.accept(self.resolve(&self.config, &self.set, &self.found));
        let mut changes: Vec<Change> = before.difference(&keys).cloned().map(Change::Removed).collect();
        changes.extend(keys.difference(&before).cloned().map(Change::Added));
        changes.extend(asked_anew.into_iter().map(Change::AskedAnew));
        changes.extend(self.promise_changes());
        changes
    }

    /// Minima whose promise changed since the last call.
    pub(crate) fn promise_changes(&mut self) -> Vec<Change> {
        if self.awaited == Awaited::Everyone {
            return Vec::new();
        }
        let now: BTreeMap<ClassKey, Unpromised> = self
            .entries
            .iter()
            .filter_map(|(key, e)| e.unpromised.clone().map(|unpromised| (key.clone(), unpromised)))
            .collect();
        let mut changes = Vec::new();
        for key in self.told.keys().filter(|key| !now.contains_key(*key)) {
            if let (Some(promise), Some(entry)) = (self.ledger.get(key), self.entries.get(key))
                && entry.agreement.is_none()
            {
                changes.push(Change::Promised { key: key.clone(), min: promise.min });
            }
        }
        for (key, unpromised) in &now {
            if self.told.get(key).is_none_or(|told| !told.is_as(unpromised)) {
                changes.push(Change::Unpromised { key: key.clone(), why: unpromised.to_string() });
            }
        }
        self.told = now;
        changes
    }

    /// Applies a new configuration. Its own minima fit, because it was checked when it was read.
    pub(crate) fn reconfigure(&mut self, config: Config) {
        self.config = config;
        self.accept(self.resolve(&self.config, &self.set, &self.found));
    }

    /// The policies set by hand as they are after `changes`. Nothing is changed yet.
    ///
    /// # Errors
    /// Unknown or ambiguous names, contradictions, minima that do not fit.
    pub(crate) fn plan(&self, changes: &SetPolicies) -> Result<SetLayers, Error> {
        if changes.changes.len() > MAX_CHANGES {
            return Err(bad(format!(
                "cannot change {} classes in one request: at most {MAX_CHANGES}",
                changes.changes.len()
            )));
        }
        let names = self.names();
        let mut set = self.set.clone();
        let mut seen = BTreeSet::new();
        for change in &changes.changes {
            let key = self.key_for(&names, &change.name, changes.allow_absent).map_err(|mut e| {
                if e.code == ErrorCode::UnknownName {
                    e.message += "; `--keep` keeps a policy for one that is yet to come";
                }
                e
            })?;
            if !seen.insert(key.clone()) {
                return Err(bad(format!("class {} is there twice in one request", change.name)));
            }
            let PolicyChange { weight, min, max, .. } = change;
            if !set.contains_key(&key) {
                if weight.is_none() && min.is_none() && max.is_none() {
                    // It is about what arrives alone.
                    continue;
                }
                names.hand_out_kept(&mut set, &key, self.awaited);
            }
            let layer = set.entry(key).or_default();
            layer.weight = weight.unwrap_or(layer.weight);
            layer.min = min.unwrap_or(layer.min);
            layer.max = max.unwrap_or(layer.max);
            layer.policy().map_err(|why| bad(format!("class {}: {why}", change.name)))?;
        }
        let kept = set.clone();
        set.retain(|key, layer| !layer.is_empty() || names.is_exempt(&kept, key));
        let absent = |set: &SetLayers| set.keys().filter(|key| !names.is_present(key)).count();
        let (before, after) = (absent(&self.set), absent(&set));
        if after > MAX_ABSENT && after > before {
            return Err(bad(format!(
                "cannot keep policies for {after} classes that are not here: at most {MAX_ABSENT}, and {before} are \
                 kept now (`weir ps` lists them, `weir unset` removes one)"
            )));
        }
        self.try_out(&set)?;
        Ok(set)
    }

    /// Refuses policies set by hand with a minimum that cannot be promised, or that take another
    /// class's minimum.
    pub(crate) fn try_out(&self, set: &SetLayers) -> Result<(), Error> {
        for (key, entry) in &self.resolve(&self.config, set, &self.found).entries {
            let Some(unpromised) = &entry.unpromised else { continue };
            let before = self.entries.get(key).and_then(|e| e.unpromised.as_ref());
            if before.is_some_and(|before| before.is_as(unpromised)) {
                continue;
            }
            if let Some(error) = unpromised.refusal(&entry.class.name) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The policies set by hand without those of one name.
    ///
    /// # Errors
    /// Unknown or ambiguous names, or a weaker origin's policy that does not fit.
    pub(crate) fn plan_unset(&self, name: &str) -> Result<SetLayers, Error> {
        let names = self.names();
        let key = self.key_for(&names, name, false)?;
        let mut set = self.set.clone();
        names.hand_out_kept(&mut set, &key, self.awaited);
        if names.is_exempt(&set, &key) {
            set.insert(key, Layer::default());
        } else {
            set.remove(&key);
        }
        self.try_out(&set)?;
        Ok(set)
    }

    /// The promises as they are after [`ClassTable::commit`] of `set`.
    pub(crate) fn ledger_after(&self, set: &SetLayers) -> Ledger {
        if self.awaited == Awaited::Everyone {
            return self.ledger.clone();
        }
        self.resolve(&self.config, set, &self.found).ledger
    }

    /// Applies planned policies.
    pub(crate) fn commit(&mut self, set: SetLayers) {
        self.set = set;
        self.accept(self.resolve(&self.config, &self.set, &self.found));
    }

    /// The class table as it is under another configuration.
    pub(crate) fn under(&self, config: Config) -> ClassTable {
        let mut after = self.clone();
        after.reconfigure(config);
        after
    }

    /// The entries by their names in commands.
    pub(crate) fn names(&self) -> Names<'_> {
        Names::of(&self.entries)
    }

    /// The key of the class or group called `name`.
    ///
    /// # Errors
    /// `unknown-name`, `ambiguous-name`.
    pub(crate) fn find(&self, name: &str) -> Result<&ClassKey, Error> {
        self.names().find(name)
    }

    fn key_for(&self, names: &Names<'_>, name: &str, allow_absent: bool) -> Result<String, Error> {
        match names.find(name) {
            Ok(key) if *key == CONTROL_KEY => Err(bad(
                "the class control is weir's own and cannot be changed: it carries ARP, neighbour discovery and DHCP",
            )),
            // The first class of this name is meant.
            Ok(key) if key.source() == ClassSource::Absent => Ok(key.name().to_owned()),
            Ok(key) => Ok(key.to_string()),
            Err(e) if e.code == ErrorCode::UnknownName && allow_absent => {
                let (_, bare) = name.split_once(':').unwrap_or_default();
                if !is_name(name) && !is_name(bare) {
                    return Err(bad(no_name(name)));
                }
                Ok(name.to_owned())
            }
            Err(e) => Err(e),
        }
    }

    fn accept(&mut self, resolved: Resolved) {
        self.entries = resolved.entries;
        self.reservation = resolved.reservation;
        self.unmet = resolved.unmet;
        // The stored promises stay unchanged until the present classes are known.
        if self.awaited != Awaited::Everyone {
            self.ledger = resolved.ledger;
        }
        let minors = self.entries.iter().filter_map(|(k, e)| e.minor.map(|m| (k.clone(), m)));
        let minors: Minors = minors.filter(|(_, m)| *m >= FIRST).collect();
        if self.awaited == Awaited::Everyone {
            // A class found after a restart keeps its earlier minor.
            self.minors.extend(minors);
        } else {
            self.minors = minors;
        }
    }

    /// Computes each class's policy. A class whose minimum does not fit loses only that minimum.
    fn resolve(&self, config: &Config, set: &SetLayers, discovered: &[DiscoveredClass]) -> Resolved {
        let mut entries = self.entries_for(config, set, discovered);
        let ceiling = agreed::ceiling(config);
        let mut wants = BTreeMap::new();
        let arrivals: BTreeMap<&ClassKey, usize> = self.arrivals.iter().zip(0..).collect();
        for (key, entry) in &mut entries {
            if let (Some(ceiling), true) = (ceiling, agreed::is_other(&entry.class)) {
                entry.effective = agreed::bounded(None, ceiling);
                continue;
            }
            if entry.class.is_agreed() {
                // The agreement's admission promised this minimum.
                continue;
            }
            let (without, min) = effective(&layers(config, set, key, &entry.class));
            entry.effective = without;
            let (Some(min), origin) = (min, without.origins[1]) else { continue };
            match without.policy.max() {
                // The control class uses the part of the link that is not promised.
                _ if entry.class.kind == ClassKind::Control => entry.effective = without.with_min(Some(min)),
                Some(max) if min > max => entry.unpromised = Some(Unpromised::above_max(min, origin, max)),
                _ => {
                    let rank = rank(config, &entry.class, origin);
                    let arrival = arrivals.get(key).copied().unwrap_or(usize::MAX);
                    wants.insert(key.clone(), Want { min, origin, rank, arrival });
                }
            }
        }
        leave_out_labels(config.labels.min_total, &mut entries, &mut wants);
        let admission = self.admission(config);
        let (ledger, reservation) =
            promise::make(&admission, &self.ledger, self.awaited, &mut entries, &wants);
        let unmet = agreed::overlay(&mut entries, &self.agreed, ceiling);
        for entry in entries.values_mut() {
            if let Some(unpromised) = &mut entry.unpromised {
                unpromised.tell_place(&entry.class.asked_by);
            }
        }
        Resolved { entries, ledger, reservation, unmet }
    }
}

/// Leaves out the minima of labels that exceed the total allowed for labels.
fn leave_out_labels(
    total: Option<BitRate>,
    entries: &mut BTreeMap<ClassKey, ClassEntry>,
    wants: &mut BTreeMap<ClassKey, Want>,
) {
    let Some(total) = total else { return };
    let mut asked: Vec<(usize, ClassKey, BitRate)> = wants
        .iter()
        .filter(|(_, want)| want.origin == Origin::Label)
        .map(|(key, want)| (want.arrival, key.clone(), want.min))
        .collect();
    asked.sort_unstable();
    let minima: Vec<BitRate> = asked.iter().map(|(_, _, min)| *min).collect();
    for ((_, key, min), fits) in asked.into_iter().zip(within(Some(total), &minima)) {
        if !fits && let Some(entry) = entries.get_mut(&key) {
            entry.unpromised = Some(Unpromised::above_total(min, total));
            wants.remove(&key);
        }
    }
}

/// Whether a source reported this class. Classes of weir and of the configuration do not count.
fn is_discovered(claim: &DiscoveredClass) -> bool {
    !matches!(claim.source, ClassSource::Weir | ClassSource::Group | ClassSource::Agreement)
}

/// The layers of a policy, weakest first.
fn layers(config: &Config, set: &SetLayers, key: &ClassKey, claim: &DiscoveredClass) -> Layers {
    let by_hand = set.get(key.as_str()).or_else(|| set.get(&claim.name)).copied().unwrap_or_default();
    let class = || {
        let mut about = config.classes.iter().filter(|c| c.is_about(claim.source.as_str(), &claim.name));
        let exact = about.clone().find(|c| c.name == key.as_str());
        exact.or_else(|| about.next()).map(crate::config::ClassConfig::layer)
    };
    let nothing = (Origin::Defaults, Layer::default());
    let (weakest, configured) = match claim.kind {
        ClassKind::Host => (nothing, config.host.layer()),
        ClassKind::Default => (nothing, config.default.layer()),
        ClassKind::Control => {
            let rate = |of: BitRate, part, least| Some(of.scale(1, part).max(least).min(of));
            let own = Layer {
                weight: Some(Weight::ONE),
                min: rate(config.link.assured(), 100, BitRate::kbit(64)),
                max: rate(config.link.capacity, 20, BitRate::mbit(1)),
            };
            // No section of the configuration has it.
            ((Origin::Default, own), Layer::default())
        }
        ClassKind::Group => {
            let group = config.groups.iter().find(|g| g.name == claim.name);
            (nothing, group.map(crate::config::Group::layer).unwrap_or_default())
        }
        _ => ((Origin::Defaults, config.defaults.layer()), class().unwrap_or_default()),
    };
    [weakest, (Origin::Label, claim.label), (Origin::Config, configured), (Origin::Set, by_hand)]
}

/// The rank of a minimum among those that ask for a promise at the same time. All minima of the first
/// rank fit, because the check of a configuration counts them.
fn rank(config: &Config, claim: &DiscoveredClass, origin: Origin) -> u8 {
    let is_configured = !is_discovered(claim)
        || claim.source == ClassSource::Absent
        || config.classes.iter().any(|class| class.is_about(claim.source.as_str(), &claim.name));
    match origin {
        Origin::Config => 0,
        Origin::Defaults if is_configured => 0,
        Origin::Set => 1,
        _ => 2,
    }
}

#[cfg(test)]
#[path = "class_table_tests.rs"]
mod tests;
