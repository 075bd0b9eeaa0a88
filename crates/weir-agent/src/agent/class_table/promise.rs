//! Promises of minima. The oldest promise comes first, and only a minimum that does not fit is left
//! out.

use std::collections::BTreeMap;

use weir_api::{ClassKind, Error, ErrorCode, Origin};
use weir_share::{Admission, AdmitError, Promisee, Reservation};
use weir_units::BitRate;

use super::{ClassEntry, bad};
use crate::agent::class_key::{ClassKey, ClassSource};
use crate::agent::store::{Ledger, Promise};

/// A minimum that is asked for and not promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unpromised {
    /// The minimum that is asked for.
    pub(crate) min: BitRate,
    /// The origin that asks for it.
    pub(crate) origin: Origin,
    /// The place of the wish, if it is no label of a container.
    asked_by: Option<String>,
    /// The part that was promised before, and stays.
    kept: Option<BitRate>,
    why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Why {
    DoesNotFit(AdmitError),
    AboveMax(BitRate),
    /// The limit of all minima by labels together.
    AboveTotal(BitRate),
    /// The part of the reservable rate that older agreements leave.
    BelowOlder(BitRate),
}

impl Unpromised {
    pub(super) fn above_max(min: BitRate, origin: Origin, max: BitRate) -> Unpromised {
        Unpromised { min, origin, asked_by: None, kept: None, why: Why::AboveMax(max) }
    }

    pub(super) fn above_total(min: BitRate, total: BitRate) -> Unpromised {
        Unpromised { min, origin: Origin::Label, asked_by: None, kept: None, why: Why::AboveTotal(total) }
    }

    /// The minimum of an agreement that was made before the capacity fell.
    pub(super) fn below_older(min: BitRate, free: BitRate) -> Unpromised {
        Unpromised { min, origin: Origin::Agreement, asked_by: None, kept: None, why: Why::BelowOlder(free) }
    }

    /// Tells the place of the wish, as a source of classes does. A class of the download has the keys of that alone.
    pub(super) fn tell_place(&mut self, asked_by: &BTreeMap<&'static str, String>) {
        if self.origin == Origin::Label {
            self.asked_by = asked_by.get("min").or_else(|| asked_by.get("down.min")).cloned();
        }
    }

    /// Whether it says the same as `other`. Numbers other than the minimum may differ.
    pub(super) fn is_as(&self, other: &Unpromised) -> bool {
        (self.min, self.kept) == (other.min, other.kept)
    }

    /// The refusal of a request with this effect. `None` for labels, because a label must not block an
    /// operator.
    pub(super) fn refusal(&self, name: &str) -> Option<Error> {
        match &self.why {
            _ if self.origin == Origin::Label => None,
            Why::DoesNotFit(error) => Some(Error {
                code: ErrorCode::NoCapacity,
                message: error.to_string(),
                asked: Some(error.asked()),
                free: Some(error.free()),
            }),
            Why::AboveTotal(_) | Why::BelowOlder(_) => None,
            Why::AboveMax(max) => Some(bad(format!(
                "class {name}: minimum {} is above maximum {max}: lower the minimum or raise the maximum",
                self.min
            ))),
        }
    }
}

impl std::fmt::Display for Unpromised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "its minimum of {}", self.min)?;
        match (&self.asked_by, self.origin) {
            (Some(place), _) => write!(f, ", by {place},")?,
            (None, Origin::Label) => f.write_str(", from its label weir.min,")?,
            (None, _) => {}
        }
        f.write_str(" is not promised: ")?;
        match &self.why {
            Why::DoesNotFit(error) => f.write_str(&error.reason())?,
            Why::AboveTotal(total) => {
                write!(f, "labels may ask for {total} together, and it does not fit ([labels] min_total)")?;
            }
            Why::BelowOlder(free) => {
                write!(
                    f,
                    "the capacity has fallen, and older agreements leave {free} of its reservable part"
                )?;
            }
            Why::AboveMax(max) => {
                write!(f, "it is above its maximum of {max} (lower the minimum or raise the maximum)")?;
            }
        }
        self.kept.map_or(Ok(()), |kept| write!(f, "; the {kept} promised before stay"))
    }
}

/// A minimum that an entry asks for.
pub(super) struct Want {
    pub(super) min: BitRate,
    pub(super) origin: Origin,
    /// The rank among minima that ask at the same time: those of the configuration, then those set by
    /// hand, then those of found classes.
    pub(super) rank: u8,
    /// The entry's place in the order of arrival.
    pub(super) arrival: usize,
}

/// The classes that may be present but were not looked for yet. Their promises are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// No discovery was made yet.
    Everyone,
    /// A runtime or the cluster has not reported its containers yet.
    Sources,
    Nobody,
}

impl Awaited {
    fn includes(self, key: &ClassKey) -> bool {
        match self {
            Awaited::Everyone => key.source().is_discovered(),
            // The cluster tells of pods that no call of the plugin reported, and Incus the labels of containers of LXC.
            Awaited::Sources => {
                key.source().is_runtime() || matches!(key.source(), ClassSource::Cni | ClassSource::Lxc)
            }
            Awaited::Nobody => false,
        }
    }
}

/// Promises minima, and marks the entries without a promise. The promises of `ledger` come first, by
/// age. A promise that does not fit any more is suspended: it takes no room, and it comes back before those
/// that were never made, in the order of age. A promise in force never ends because another one comes back.
pub(super) fn make(
    admission: &Admission,
    ledger: &Ledger,
    awaited: Awaited,
    entries: &mut BTreeMap<ClassKey, ClassEntry>,
    wants: &BTreeMap<ClassKey, Want>,
) -> (Ledger, Reservation) {
    let ledger = carry_over(ledger, wants);
    let members: BTreeMap<ClassKey, (String, Option<String>, bool)> = entries
        .iter()
        .map(|(key, e)| {
            (key.clone(), (e.class.name.clone(), e.class.group.clone(), e.class.kind == ClassKind::Group))
        })
        .collect();
    let groups: Vec<(&str, Option<BitRate>)> = entries
        .values()
        .filter(|e| e.class.kind == ClassKind::Group)
        .map(|e| (e.class.name.as_str(), e.effective.policy.max()))
        .collect();
    let index: BTreeMap<&str, u32> = groups.iter().map(|(name, _)| *name).zip(0..).collect();
    let promisee = |key: &ClassKey| match members.get(key) {
        Some((name, _, true)) => index.get(name.as_str()).map(|i| Promisee::Group(*i)),
        Some((name, group, false)) => {
            let group = group.as_deref().and_then(|group| index.get(group).copied());
            Some(Promisee::Class { name, group })
        }
        None => None,
    };
    let mut promises = admission.promises(groups.iter().copied());
    let mut made = Ledger::new();
    let mut standing: Vec<(&ClassKey, &Promise)> = ledger.iter().collect();
    standing.sort_by_key(|(key, promise)| (promise.is_suspended, promise.since, *key));
    for (key, promise) in standing {
        match (wants.get(key), promisee(key)) {
            (Some(want), Some(to)) => {
                let min = want.min.min(promise.min);
                let is_suspended = promises.promise(to, min, BitRate::ZERO).is_err();
                made.insert(key.clone(), Promise { min, is_suspended, ..*promise });
            }
            _ if awaited.includes(key) => {
                // Its group is unknown. A promise without room is checked again when its class appears.
                let to = Promisee::Class { name: key.as_str(), group: None };
                let _ = promise.in_force().map(|min| promises.promise(to, min, BitRate::ZERO));
                made.insert(key.clone(), *promise);
            }
            _ => {}
        }
    }
    let in_force = |made: &Ledger, key: &ClassKey| made.get(key).and_then(Promise::in_force);
    let mut waiting: Vec<(&ClassKey, &Want)> =
        wants.iter().filter(|(key, want)| in_force(&made, key).is_none_or(|min| min < want.min)).collect();
    let is_group = |key: &ClassKey| matches!(promisee(key), Some(Promisee::Group(_)));
    waiting.sort_by_key(|(key, want)| (want.rank, !is_group(key), want.arrival, *key));
    let mut next = ledger.values().map(|promise| promise.since + 1).max().unwrap_or(0);
    let mut unpromised = BTreeMap::new();
    for (key, want) in waiting {
        let Some(to) = promisee(key) else { continue };
        let kept = in_force(&made, key);
        match promises.promise(to, want.min, kept.unwrap_or(BitRate::ZERO)) {
            Ok(()) => {
                made.insert(key.clone(), Promise::new(next, want.min));
                next += 1;
            }
            Err(error) => {
                let (min, origin) = (want.min, want.origin);
                let why = Why::DoesNotFit(error);
                unpromised.insert(key.clone(), Unpromised { min, origin, asked_by: None, kept, why });
            }
        }
    }
    let reservation = promises.reservation();
    for (key, entry) in entries {
        if wants.contains_key(key) {
            entry.effective = entry.effective.with_min(in_force(&made, key));
            entry.unpromised = unpromised.remove(key);
        }
    }
    (made, reservation)
}

/// Moves promises between a class and its absent entry, as a class of that name appears or leaves.
fn carry_over(ledger: &Ledger, wants: &BTreeMap<ClassKey, Want>) -> Ledger {
    let mut carried: Ledger = ledger.clone();
    let mut missing: Vec<&ClassKey> = ledger.keys().filter(|key| !wants.contains_key(*key)).collect();
    missing.sort_by_key(|key| ledger[*key].since);
    for old in missing {
        let candidates: &[ClassSource] = match old.source() {
            ClassSource::Absent => &ClassSource::DISCOVERED,
            source if source.is_discovered() => &[ClassSource::Absent],
            _ => continue,
        };
        let free = |key: &ClassKey| wants.contains_key(key) && !carried.contains_key(key);
        let new = candidates.iter().map(|source| ClassKey::new(*source, old.name())).find(free);
        if let Some(new) = new
            && let Some(promise) = carried.remove(old)
        {
            carried.insert(new, promise);
        }
    }
    carried
}
