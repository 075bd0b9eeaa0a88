//! Who shares the link, and by which policy: names, origins, admission. No kernel here.

mod agreed;

use std::collections::{BTreeMap, BTreeSet};

use weir_api::{Error, Kind, Origin, PolicyChange, SetPolicies};
use weir_host::engine::{CONTROL, DEFAULT, FIRST, HOST};
use weir_share::{Admission, AdmitError, Claimant, Policy, Reservation, Weight};
use weir_units::BitRate;

use super::store::{Minors, SetLayers};
use crate::config::{Config, Layer, OTHER, Selector};

pub(crate) use agreed::Agreed;

/// Key of the one class whose policy is weir's own.
const CONTROL_KEY: &str = "weir:control";

/// A class that somebody told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// `docker`, `netns`, `config`.
    pub(crate) source: &'static str,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) group: Option<String>,
    pub(crate) label: Layer,
    /// Host-side interfaces: index and name.
    pub(crate) ports: Vec<(u32, String)>,
    /// Cgroups: id and depth.
    pub(crate) cgroups: Vec<(u64, u32)>,
    /// Packets that are its, of whomever they come from; an earlier claim's go first.
    pub(crate) selectors: Vec<Selector>,
    /// Why its traffic cannot be caught.
    pub(crate) problem: Option<String>,
}

impl Claim {
    pub(crate) fn key(&self) -> String {
        format!("{}:{}", self.source, self.name)
    }
}

/// A policy with the origin of each of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Effective {
    pub(crate) policy: Policy,
    pub(crate) origins: [Origin; 3],
}

/// A class or a group.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) claim: Claim,
    /// The policy in force.
    pub(crate) effective: Effective,
    /// The policy without an agreement: what admission of classes is about.
    own: Effective,
    /// The group without an agreement.
    home: Option<String>,
    /// The agreement that its policy is from, if it is.
    pub(crate) agreement: Option<weir_agree::Name>,
    /// The scheduler's class; none while absent.
    pub(crate) minor: Option<u16>,
    /// What of its labels was refused, and why.
    pub(crate) refused: Option<String>,
}

/// What changed in the book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Added(String),
    Removed(String),
    Refused { key: String, why: String },
}

/// All sharers.
pub(crate) struct Book {
    config: Config,
    set: SetLayers,
    minors: Minors,
    entries: BTreeMap<String, Entry>,
    /// What was found to be here, as it was found.
    found: Vec<Claim>,
    /// The agreements in force.
    agreed: Vec<Agreed>,
    /// Why some of them are not enforced.
    unmet: BTreeMap<weir_agree::Name, String>,
    /// The most that agreements promise together, now or at any later time.
    promised: BitRate,
    /// Present classes in the order of their arrival: who came first is promised first.
    arrivals: Vec<String>,
    reservation: Reservation,
}

/// One named layer of a policy.
type Layers = [(Origin, Layer); 4];

fn effective(layers: &Layers) -> Result<Effective, weir_share::PolicyError> {
    fn pick<T: Copy>(layers: &Layers, part: impl Fn(&Layer) -> Option<T>) -> (Option<T>, Origin) {
        let strongest =
            layers.iter().filter_map(|(origin, layer)| part(layer).map(|v| (*origin, v))).max_by_key(|l| l.0);
        strongest.map_or((None, Origin::Default), |(origin, value)| (Some(value), origin))
    }
    let (weight, w) = pick(layers, |l| l.weight);
    let (min, m) = pick(layers, |l| l.min);
    let (max, x) = pick(layers, |l| l.max);
    let policy = Policy::new(weight.unwrap_or_default(), min, max)?;
    Ok(Effective { policy, origins: [w, m, x] })
}

fn bad(message: impl Into<String>) -> Error {
    Error { code: "bad-request".into(), message: message.into(), asked: None, free: None }
}

fn refusal(error: &AdmitError) -> Error {
    Error {
        code: "no-capacity".into(),
        message: error.to_string(),
        asked: Some(error.asked()),
        free: Some(error.free()),
    }
}

/// A set of sharers whose policies were found to be sound together.
struct Resolved {
    entries: BTreeMap<String, Entry>,
    reservation: Reservation,
    unmet: BTreeMap<weir_agree::Name, String>,
}

impl Book {
    /// A book without classes but weir's own and the configured groups; agreements promise
    /// `promised` at most.
    ///
    /// # Errors
    /// The configured and stored minima do not fit the link.
    pub(crate) fn new(
        config: Config,
        set: SetLayers,
        minors: Minors,
        promised: BitRate,
    ) -> Result<Book, Error> {
        let empty = Reservation { reserved: BitRate::ZERO, reservable: BitRate::ZERO };
        let mut book = Book {
            config,
            set,
            minors,
            entries: BTreeMap::new(),
            found: Vec::new(),
            agreed: Vec::new(),
            unmet: BTreeMap::new(),
            promised,
            arrivals: Vec::new(),
            reservation: empty,
        };
        let resolved = book.resolve(&book.config, &book.set, &[])?;
        let known = book.minors.clone();
        book.accept(resolved);
        // Who had which class before the restart has it again, once it is known who is here.
        book.minors.extend(known);
        Ok(book)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    #[cfg(test)]
    fn set_layers(&self) -> &SetLayers {
        &self.set
    }

    pub(crate) fn minors(&self) -> &Minors {
        &self.minors
    }

    pub(crate) fn reservation(&self) -> Reservation {
        self.reservation
    }

    /// All entries by key, groups and absent ones too.
    pub(crate) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Replaces what is known to be here.
    pub(crate) fn update(&mut self, claims: Vec<Claim>) -> Vec<Change> {
        let before: BTreeSet<String> = self.present().cloned().collect();
        let keys: BTreeSet<String> = claims.iter().map(Claim::key).collect();
        let refused_before: BTreeMap<String, Option<String>> =
            self.entries.iter().map(|(k, e)| (k.clone(), e.refused.clone())).collect();
        self.arrivals.retain(|key| keys.contains(key));
        for claim in &claims {
            let key = claim.key();
            if !self.arrivals.contains(&key) {
                self.arrivals.push(key);
            }
        }
        match self.resolve(&self.config, &self.set, &claims) {
            Ok(resolved) => {
                self.found = claims;
                self.accept(resolved);
            }
            // Labels are dropped one by one, so nothing that arrives can make this fail.
            Err(error) => tracing::error!("cannot take in what was found: {error}"),
        }
        let mut changes: Vec<Change> = before.difference(&keys).cloned().map(Change::Removed).collect();
        changes.extend(keys.difference(&before).cloned().map(Change::Added));
        for (key, entry) in &self.entries {
            if let Some(why) = &entry.refused
                && refused_before.get(key).is_none_or(|old| old.as_ref() != Some(why))
            {
                changes.push(Change::Refused { key: key.clone(), why: why.clone() });
            }
        }
        changes
    }

    fn present(&self) -> impl Iterator<Item = &String> {
        self.entries.iter().filter(|(_, e)| e.minor.is_some() && is_claimed(&e.claim)).map(|(k, _)| k)
    }

    /// Puts a new configuration in force, or leaves everything as it was.
    ///
    /// # Errors
    /// Its minima do not fit, or it contradicts what was set by hand.
    pub(crate) fn reconfigure(&mut self, config: Config) -> Result<(), Error> {
        let resolved = self.resolve(&config, &self.set, &self.found)?;
        self.config = config;
        self.accept(resolved);
        Ok(())
    }

    /// What `changes` would make of the policies set by hand; nothing is changed yet.
    ///
    /// # Errors
    /// Unknown or ambiguous names, contradictions, minima that do not fit.
    pub(crate) fn plan(&self, changes: &SetPolicies) -> Result<SetLayers, Error> {
        let mut set = self.set.clone();
        let mut seen = BTreeSet::new();
        for change in &changes.changes {
            let key = self.key_for(&change.name, changes.allow_absent).map_err(|mut e| {
                if e.code == "unknown-name" {
                    e.message += "; `--keep` keeps a policy for one that is yet to come";
                }
                e
            })?;
            if !seen.insert(key.clone()) {
                return Err(bad(format!("class {} is there twice in one request", change.name)));
            }
            let PolicyChange { weight, min, max, .. } = change;
            let layer = set.entry(key).or_default();
            layer.weight = weight.unwrap_or(layer.weight);
            layer.min = min.unwrap_or(layer.min);
            layer.max = max.unwrap_or(layer.max);
        }
        set.retain(|_, layer| !layer.is_empty());
        self.resolve(&self.config, &set, &self.found)?;
        Ok(set)
    }

    /// What is left of the policies set by hand without those of one name.
    ///
    /// # Errors
    /// Unknown or ambiguous names; what shows through does not fit.
    pub(crate) fn plan_unset(&self, name: &str) -> Result<SetLayers, Error> {
        let key = self.key_for(name, false)?;
        let mut set = self.set.clone();
        set.remove(&key);
        self.resolve(&self.config, &set, &self.found)?;
        Ok(set)
    }

    /// Puts planned policies in force.
    pub(crate) fn commit(&mut self, set: SetLayers) {
        if let Ok(resolved) = self.resolve(&self.config, &set, &self.found) {
            self.set = set;
            self.accept(resolved);
        }
    }

    /// The key of the class or group that people call `name`.
    ///
    /// # Errors
    /// `unknown-name`, `ambiguous-name`.
    pub(crate) fn find(&self, name: &str) -> Result<&str, Error> {
        if let Some((key, _)) = self.entries.get_key_value(name) {
            return Ok(key);
        }
        let found: Vec<&String> =
            self.entries.iter().filter(|(_, e)| e.claim.name == name).map(|(k, _)| k).collect();
        match found.as_slice() {
            [key] => Ok(key),
            [] => {
                let known: Vec<&str> = self.entries.values().map(|e| e.claim.name.as_str()).take(8).collect();
                let more = if self.entries.len() > 8 { ", ..." } else { "" };
                let message = format!(
                    "no class or group is called {name}; there are {}{more} (`weir ps` lists all)",
                    known.join(", ")
                );
                Err(Error { code: "unknown-name".into(), message, asked: None, free: None })
            }
            _ => {
                let names: Vec<&str> = found.iter().map(|k| k.as_str()).collect();
                let message = format!("{name} could be {}: say which", names.join(" or "));
                Err(Error { code: "ambiguous-name".into(), message, asked: None, free: None })
            }
        }
    }

    fn key_for(&self, name: &str, allow_absent: bool) -> Result<String, Error> {
        match self.find(name) {
            Ok(CONTROL_KEY) => Err(bad(
                "the class control is weir's own and cannot be changed: it carries ARP, neighbour discovery and DHCP",
            )),
            // Whoever of this name comes first is meant.
            Ok(key) => Ok(key.strip_prefix("absent:").unwrap_or(key).to_owned()),
            Err(e) if e.code == "unknown-name" && allow_absent => {
                let ok = |c: char| c.is_ascii_alphanumeric() || "_.-@+:".contains(c);
                if name.is_empty() || name.len() > 255 || !name.chars().all(ok) {
                    return Err(bad(format!(
                        "`{name}` is not a name: letters, digits and _ . - @ + only, 255 at most"
                    )));
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
        self.minors = self
            .entries
            .iter()
            .filter_map(|(k, e)| e.minor.map(|m| (k.clone(), m)))
            .filter(|(_, m)| *m >= FIRST)
            .collect();
    }

    /// Works out everyone's policy and whether all of them together hold.
    fn resolve(&self, config: &Config, set: &SetLayers, claims: &[Claim]) -> Result<Resolved, Error> {
        let mut entries = self.entries_for(config, set, claims)?;
        let by_arrival: Vec<String> = self.arrivals.clone();
        let admission = self.admission(config);
        let ceiling = agreed::ceiling(config);
        // First without what labels ask for: that must hold, or the whole is refused.
        let mut asked: Vec<(String, Effective)> = Vec::new();
        for (key, entry) in &mut entries {
            if let (Some(ceiling), true) = (ceiling, agreed::is_other(&entry.claim)) {
                entry.effective = agreed::bounded(None, ceiling);
                continue;
            }
            if entry.claim.is_agreed() {
                // Promised by the agreement, and by nothing else.
                continue;
            }
            let layers = layers(config, set, key, &entry.claim);
            match effective(&layers) {
                Ok(full) if full.policy.min().is_some() && full.origins[1] == Origin::Label => {
                    let mut without = layers;
                    without[1].1.min = None;
                    entry.effective = effective(&without).map_err(|e| bad(format!("class {key}: {e}")))?;
                    asked.push((key.clone(), full));
                }
                Ok(full) => entry.effective = full,
                Err(why) => {
                    // The label is the weakest that can be wrong here: try without it.
                    let mut without = layers;
                    without[1].1 = Layer::default();
                    entry.effective =
                        effective(&without).map_err(|_| bad(format!("class {}: {why}", entry.claim.name)))?;
                    entry.refused = Some(format!("its labels are ignored: {why}"));
                }
            }
        }
        let mut reservation = admit(&admission, &entries, &self.entries)?;
        asked.sort_by_key(|(key, _)| by_arrival.iter().position(|k| k == key));
        for (key, full) in asked {
            let Some(entry) = entries.get_mut(&key) else { continue };
            let without = std::mem::replace(&mut entry.effective, full);
            match admit(&admission, &entries, &self.entries) {
                Ok(better) => reservation = better,
                Err(why) => {
                    if let Some(entry) = entries.get_mut(&key) {
                        entry.effective = without;
                        entry.refused = Some(format!("its label weir.min is not promised: {}", why.message));
                    }
                }
            }
        }
        for entry in entries.values_mut() {
            (entry.own, entry.home) = (entry.effective, entry.claim.group.clone());
        }
        let unmet = agreed::overlay(&mut entries, &self.agreed, ceiling);
        Ok(Resolved { entries, reservation, unmet })
    }

    /// Everyone there is, present or not, with minors but without policies.
    fn entries_for(
        &self,
        config: &Config,
        set: &SetLayers,
        claims: &[Claim],
    ) -> Result<BTreeMap<String, Entry>, Error> {
        let nobody = Effective { policy: Policy::default(), origins: [Origin::Default; 3] };
        let mut entries = BTreeMap::new();
        let mut add = |claim: Claim, minor| {
            let (own, home) = (nobody, None);
            let entry = Entry { claim, effective: nobody, own, home, agreement: None, minor, refused: None };
            entries.entry(entry.claim.key()).or_insert(entry);
        };
        let other = agreed::ceiling(config).map(|_| OTHER);
        let own = |name: &str, kind| Claim {
            source: "weir",
            name: name.to_owned(),
            kind,
            group: None,
            label: Layer::default(),
            ports: Vec::new(),
            cgroups: Vec::new(),
            selectors: Vec::new(),
            problem: None,
        };
        let unreserved = |claim: Claim| Claim { group: other.map(str::to_owned), ..claim };
        add(unreserved(own("host", Kind::Host)), Some(HOST));
        add(unreserved(own("default", Kind::Default)), Some(DEFAULT));
        add(own("control", Kind::Control), Some(CONTROL));

        let mut taken: BTreeSet<u16> = self.minors.values().copied().collect();
        let mut next = FIRST;
        let mut minor_of = |key: &str| -> Option<u16> {
            if let Some(minor) = self.minors.get(key) {
                return Some(*minor);
            }
            while taken.contains(&next) {
                next = next.checked_add(1).filter(|m| *m < u16::MAX)?;
            }
            taken.insert(next);
            Some(next)
        };
        let full = || bad("the scheduler has room for 65,518 classes and they are used up");

        let mut groups: BTreeSet<&str> = config.groups.iter().map(|g| g.name.as_str()).collect();
        match other {
            // Groups do not nest.
            Some(other) => drop(groups.insert(other)),
            None => claims.iter().for_each(|claim| groups.extend(group_of(config, claim))),
        }
        for name in groups {
            let claim = Claim { source: "group", ..own(name, Kind::Group) };
            let minor = minor_of(&claim.key()).ok_or_else(full)?;
            add(claim, Some(minor));
        }
        for claim in claims {
            let minor = minor_of(&claim.key()).ok_or_else(full)?;
            let group = other.or_else(|| group_of(config, claim)).map(str::to_owned);
            add(Claim { group, ..claim.clone() }, Some(minor));
        }
        for claim in agreed::claims(&self.agreed, claims) {
            let minor = minor_of(&claim.key()).ok_or_else(full)?;
            add(claim, Some(minor));
        }
        // Whom the configuration or a hand gave a policy, and who is not here.
        let is_here = |name: &str| claims.iter().any(|c| c.name == name || c.key() == name);
        let mut absent: BTreeMap<&str, Option<&String>> = BTreeMap::new();
        for class in config.classes.iter().filter(|c| !c.is_static() && !is_here(&c.name)) {
            absent.insert(&class.name, class.group.as_ref());
        }
        for name in set.keys().filter(|name| !is_here(name)) {
            let known = ["weir:", "group:"].iter().any(|p| name.starts_with(p));
            if !known {
                absent.entry(name).or_insert(None);
            }
        }
        for (name, group) in absent {
            let (source, bare) = match name.split_once(':') {
                Some(("docker", bare)) => ("docker", bare),
                Some(("netns", bare)) => ("netns", bare),
                Some(("config", bare)) => ("config", bare),
                _ => ("absent", name),
            };
            add(Claim { source, group: group.cloned(), ..own(bare, Kind::Container) }, None);
        }
        Ok(entries)
    }
}

/// Whether somebody told of this class, rather than weir or the configuration making it.
fn is_claimed(claim: &Claim) -> bool {
    !matches!(claim.source, "weir" | "group" | agreed::SOURCE)
}

fn group_of<'a>(config: &'a Config, claim: &'a Claim) -> Option<&'a str> {
    let configured = config.classes.iter().find(|c| c.is_about(claim.source, &claim.name));
    configured.and_then(|c| c.group.as_deref()).or(claim.group.as_deref())
}

/// The layers of a policy, weakest first.
fn layers(config: &Config, set: &SetLayers, key: &str, claim: &Claim) -> Layers {
    let by_hand = set.get(key).or_else(|| set.get(&claim.name)).copied().unwrap_or_default();
    let class = || {
        let mut about = config.classes.iter().filter(|c| c.is_about(claim.source, &claim.name));
        let exact = about.clone().find(|c| c.name == key);
        exact.or_else(|| about.next()).map(crate::config::Class::layer)
    };
    let (defaults, configured) = match claim.kind {
        Kind::Host => (Layer::default(), config.host),
        Kind::Default => (Layer::default(), config.default),
        Kind::Control => {
            let capacity = config.link.capacity;
            let rate = |part, least| Some(capacity.scale(1, part).max(least).min(capacity));
            let own = Layer {
                weight: Some(Weight::ONE),
                min: rate(100, BitRate::kbit(64)),
                max: rate(20, BitRate::mbit(1)),
            };
            (own, Layer::default())
        }
        Kind::Group => {
            let group = config.groups.iter().find(|g| g.name == claim.name);
            (Layer::default(), group.map(crate::config::Group::layer).unwrap_or_default())
        }
        _ => (config.defaults, class().unwrap_or_default()),
    };
    [
        (Origin::Defaults, defaults),
        (Origin::Label, claim.label),
        (Origin::Config, configured),
        (Origin::Set, by_hand),
    ]
}

/// Whether everyone's minima can be kept together. Those whose minimum is no higher than
/// it was stand: they are not refused for what others ask.
fn admit(
    admission: &Admission,
    entries: &BTreeMap<String, Entry>,
    before: &BTreeMap<String, Entry>,
) -> Result<Reservation, Error> {
    let stands = |key: &str, entry: &Entry| {
        before.get(key).is_some_and(|old| {
            let (was, is) = (old.own.policy, entry.effective.policy);
            match entry.claim.kind {
                Kind::Group => was.min() == is.min() && was.max() == is.max(),
                _ => is.min() <= was.min() && old.home == entry.claim.group,
            }
        })
    };
    let of_kind = |group: bool| entries.iter().filter(move |(_, e)| (e.claim.kind == Kind::Group) == group);
    let index: BTreeMap<&str, u32> = of_kind(true).map(|(_, e)| e.claim.name.as_str()).zip(0..).collect();
    let claimants = |group: bool| -> Vec<Claimant<'_>> {
        // The control class lives in the part that is not for promising.
        of_kind(group)
            .filter(|(_, e)| e.claim.kind != Kind::Control)
            .map(|(key, entry)| Claimant {
                name: &entry.claim.name,
                policy: entry.effective.policy,
                group: entry.claim.group.as_deref().and_then(|g| index.get(g).copied()),
                standing: stands(key, entry),
            })
            .collect()
    };
    admission.check(&claimants(true), &claimants(false)).map_err(|e| refusal(&e))
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
