//! Agreements in the table of classes. An agreement in force takes precedence over every other origin of
//! a policy. Classes are not promised what agreements are promised.

use std::{collections::BTreeMap, sync::Arc};

use weir_agree::{Name, Utc};
use weir_api::{ClassKind, Origin};
use weir_share::{Admission, Policy, Weight};
use weir_units::BitRate;

use super::{ClassEntry, ClassTable, DiscoveredClass, Effective, is_discovered, promise::Unpromised};
use crate::agent::class_key::{ClassKey, ClassSource};
use crate::config::{Config, OTHER, RESERVED, Selector};

/// An agreement in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) id: Name,
    /// The traffic of the agreement.
    pub(crate) selector: weir_agree::Selector,
    /// Its weight for spare capacity; `None` leaves the weight to weaker origins.
    pub(crate) weight: Option<Weight>,
    pub(crate) min: BitRate,
    pub(crate) max: BitRate,
    /// The part of the reservable rate that older agreements leave, if the minimum does not fit into it. The minimum
    /// is not enforced then.
    pub(crate) suspended: Option<BitRate>,
    /// The time when its used-up quota renews, if any.
    pub(crate) limited_until: Option<Utc>,
}

/// An agreement in force and its class, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Enforced<'a> {
    pub(crate) agreed: &'a Agreed,
    pub(crate) class: Option<&'a ClassKey>,
}

impl Agreed {
    /// The minimum, or 0 while it is suspended.
    pub(crate) fn enforced_min(&self) -> BitRate {
        if self.suspended.is_some() { BitRate::ZERO } else { self.min }
    }
}

impl DiscoveredClass {
    /// Whether it is the class of an agreement that selects packets.
    pub(crate) fn is_agreed(&self) -> bool {
        self.source == ClassSource::Agreement
    }
}

impl ClassTable {
    /// Replaces the agreements in force. All agreements together promise at most `promised`, now or
    /// later. Returns whether something changed.
    pub(crate) fn agree(&mut self, agreed: impl Into<Arc<[Agreed]>>, promised: BitRate) -> bool {
        let agreed = agreed.into();
        let is_same = Arc::ptr_eq(&self.agreed, &agreed) || self.agreed == agreed;
        if is_same && self.promised == promised {
            return false;
        }
        (self.agreed, self.promised) = (agreed, promised);
        self.accept(self.resolve(&self.config, &self.set, &self.found));
        true
    }

    /// The promises to classes without an agreement, by configuration, label or hand.
    pub(crate) fn promised_to_classes(&self) -> BitRate {
        self.reservation.reserved.saturating_sub(self.promised)
    }

    /// The agreements in force.
    pub(crate) fn agreements(&self) -> &[Agreed] {
        &self.agreed
    }

    /// The agreement in force with this id, and its class.
    pub(crate) fn enforced(&self, id: &Name) -> Option<Enforced<'_>> {
        let agreed = self.agreed.iter().find(|agreed| agreed.id == *id)?;
        Some(Enforced { agreed, class: self.class_of(id) })
    }

    /// All agreements in force, and their classes, by id.
    pub(crate) fn all_enforced(&self) -> BTreeMap<&Name, Enforced<'_>> {
        let all = self.agreed.iter().map(|agreed| (&agreed.id, Enforced { agreed, class: None }));
        let mut all: BTreeMap<_, _> = all.collect();
        for (key, entry) in &self.entries {
            if let Some(enforced) = entry.agreement.as_ref().and_then(|id| all.get_mut(id)) {
                enforced.class.get_or_insert(key);
            }
        }
        all
    }

    /// Whether it is a class of the configuration that takes packets of any sender.
    pub(crate) fn is_of_any_sender(&self, name: &str) -> bool {
        let named = |(key, entry): (&ClassKey, &ClassEntry)| {
            let class = &entry.class;
            class.kind == ClassKind::Selector && (key.as_str() == name || class.name == name)
        };
        self.entries.iter().any(named)
    }

    /// The reason why an agreement in force is not enforced.
    pub(crate) fn unmet(&self, id: &Name) -> Option<&str> {
        self.unmet.get(id).map(String::as_str)
    }

    /// The class of an agreement in force.
    pub(crate) fn class_of(&self, id: &Name) -> Option<&ClassKey> {
        self.entries.iter().find(|(_, e)| e.agreement.as_ref() == Some(id)).map(|(key, _)| key)
    }

    /// The classes that select packets, in the order of the selection. Agreements come first, those with
    /// more conditions before the others.
    pub(crate) fn selecting(&self) -> impl Iterator<Item = &DiscoveredClass> {
        let of_agreements = self.entries.values().map(|e| &e.class).filter(|c| c.is_agreed());
        let mut of_agreements: Vec<&DiscoveredClass> = of_agreements.collect();
        let parts = |claim: &DiscoveredClass| claim.selectors.iter().map(Selector::parts).max();
        of_agreements.sort_by_key(|claim| std::cmp::Reverse(parts(claim)));
        of_agreements.into_iter().chain(&self.found)
    }

    pub(super) fn admission(&self, config: &Config) -> Admission {
        let link = &config.link;
        let own = link.reservable.of(link.assured());
        let promisable = config.agreements.as_ref().map_or(own, |a| a.promisable(link));
        Admission::beside(link.assured(), promisable, self.promised)
    }
}

/// The ceiling of traffic without an agreement while one is in force, if configured.
pub(super) fn ceiling(config: &Config) -> Option<BitRate> {
    config.agreements.as_ref()?.ceiling(&config.link)
}

/// Whether it is the group of traffic without an agreement.
pub(super) fn is_other(claim: &DiscoveredClass) -> bool {
    claim.kind == ClassKind::Group && claim.name == OTHER
}

pub(super) fn bounded(min: Option<BitRate>, max: BitRate) -> Effective {
    let policy = Policy::new(Weight::ONE, min, Some(max)).unwrap_or_default();
    Effective { policy, origins: [Origin::Default, Origin::Agreement, Origin::Agreement] }
}

/// Applies agreements in force over the classes' own policies. Returns the reasons why some cannot be
/// applied.
pub(super) fn overlay(
    entries: &mut BTreeMap<ClassKey, ClassEntry>,
    agreed: &[Agreed],
    ceiling: Option<BitRate>,
) -> BTreeMap<Name, String> {
    let mut unmet = BTreeMap::new();
    if let (Some(ceiling), Some(other)) = (ceiling, entries.get_mut(&ClassKey::group(OTHER))) {
        other.effective = match agreed {
            [] => Effective { policy: Policy::default(), origins: [Origin::Default; 3] },
            _ => bounded(Some(ceiling), ceiling),
        };
    }
    for one in agreed {
        match lay(entries, one) {
            Ok(()) => {}
            Err(why) => drop(unmet.insert(one.id.clone(), why)),
        }
    }
    unmet
}

fn lay(entries: &mut BTreeMap<ClassKey, ClassEntry>, agreed: &Agreed) -> Result<(), String> {
    let key = target(entries, agreed)?;
    let entry = entries.get_mut(&key).ok_or("its class has gone")?;
    if let Some(other) = &entry.agreement {
        return Err(format!("agreement {other} is about the same container"));
    }
    let weight = agreed.weight.unwrap_or(entry.effective.policy.weight());
    let is_promised = agreed.suspended.is_none() && agreed.min > BitRate::ZERO;
    let min = is_promised.then_some(agreed.min);
    let policy = Policy::new(weight, min, Some(agreed.max)).map_err(|e| e.to_string())?;
    let origin = if agreed.weight.is_some() { Origin::Agreement } else { entry.effective.origins[0] };
    entry.effective = Effective { policy, origins: [origin, Origin::Agreement, Origin::Agreement] };
    // The link carries the promise, not the group.
    entry.class.group = None;
    entry.agreement = Some(agreed.id.clone());
    entry.unpromised = agreed.suspended.map(|free| Unpromised::below_older(agreed.min, free));
    Ok(())
}

/// The classes of agreements that select packets.
pub(super) fn discovered<'a>(
    agreed: &'a [Agreed],
    here: &'a [DiscoveredClass],
) -> impl Iterator<Item = DiscoveredClass> + 'a {
    let selecting = agreed.iter().filter(|agreed| whole_container(&agreed.selector).is_none());
    selecting.map(|agreed| {
        let missing = agreed.selector.container.as_ref().filter(|name| {
            let name = name.as_str();
            own_class(name).is_none() && !here.iter().any(|claim| claim.sends_as(name))
        });
        DiscoveredClass {
            selectors: vec![Selector::from(&agreed.selector)],
            problem: missing.map(|name| absent(name.as_str())),
            ..DiscoveredClass::new(ClassSource::Agreement, agreed.id.to_string(), ClassKind::Selector)
        }
    })
}

fn absent(container: &str) -> String {
    format!("there is no container {container} now; it is enforced as soon as there is")
}

/// The key of the class of weir's own that an agreement names, as `host` or as `weir:host`.
pub(crate) fn own_class(container: &str) -> Option<ClassKey> {
    let name = container.strip_prefix("weir:").unwrap_or(container);
    RESERVED.contains(&name).then(|| ClassKey::own(name))
}

/// The container, if the selector names all its packets.
fn whole_container(selector: &weir_agree::Selector) -> Option<&str> {
    let container = selector.container.as_ref()?;
    (*selector == weir_agree::Selector::service(container)).then_some(container.as_str())
}

/// The class that an agreement applies to.
fn target(entries: &BTreeMap<ClassKey, ClassEntry>, agreed: &Agreed) -> Result<ClassKey, String> {
    let Some(container) = whole_container(&agreed.selector) else {
        return Ok(ClassKey::new(ClassSource::Agreement, agreed.id.as_str()));
    };
    let named =
        |key: &ClassKey, entry: &ClassEntry| key.as_str() == container || entry.class.name == container;
    let sends = |entry: &ClassEntry| is_discovered(&entry.class) || entry.class.kind == ClassKind::Host;
    let is_here = |entry: &ClassEntry| entry.minor.is_some() && sends(entry);
    // A reserved name always means weir's class. `docker:host` means the container.
    if let Some(own) = own_class(container) {
        return entries.get(&own).filter(|e| is_here(e)).map(|_| own).ok_or_else(|| absent(container));
    }
    let found: Vec<&ClassKey> =
        entries.iter().filter(|(k, e)| named(k, e) && is_here(e)).map(|(k, _)| k).collect();
    match found.as_slice() {
        [key] => Ok((*key).clone()),
        [] => Err(absent(container)),
        _ => {
            let keys: Vec<&str> = found.iter().map(|k| k.as_str()).collect();
            Err(format!("{container} could be {}", keys.join(" or ")))
        }
    }
}
