use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Demand, Policy};

/// A class as the division of a link sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sharer {
    /// Weight, floor, ceiling.
    pub policy: Policy,
    /// Its demand.
    pub demand: Demand,
    /// Index into the list of groups, for a class that shares its group's part.
    pub group: Option<u32>,
}

impl Sharer {
    /// A class of its own, outside of every group.
    #[must_use]
    pub const fn new(policy: Policy, demand: Demand) -> Sharer {
        Sharer { policy, demand, group: None }
    }

    /// The same class as a member of the group with that index.
    #[must_use]
    pub const fn in_group(self, group: u32) -> Sharer {
        Sharer { group: Some(group), ..self }
    }
}

/// The reason for an allocation.
///
/// A class that could be named twice gets the first of this list that holds. For a member
/// of a group the word is about its place in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// It asks for nothing.
    Idle,
    /// It gets all it asks for.
    Demand,
    /// Its weight alone would give it less than its floor. An allocation below the floor
    /// under this word means that the capacity does not carry all floors.
    Floor,
    /// Its weight alone would give it more than its ceiling.
    Ceiling,
    /// Its weight, or its equal part of the spare in the additive form.
    Weight,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bound::Idle => "idle",
            Bound::Demand => "demand",
            Bound::Floor => "floor",
            Bound::Ceiling => "ceiling",
            Bound::Weight => "weight",
        })
    }
}

/// One claim on a capacity, by a class or by a whole group; rates in bit/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Demander {
    pub(crate) weight: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) demand: u64,
}

impl Demander {
    pub(crate) const NONE: Demander = Demander { weight: 1, min: 0, max: 0, demand: 0 };

    pub(crate) fn of(sharer: &Sharer) -> Demander {
        Demander {
            weight: sharer.policy.weight().get().into(),
            min: sharer.policy.floor().0,
            max: sharer.policy.ceiling().0,
            demand: sharer.demand.get().0,
        }
    }

    /// A group claims for its members: their demands together, and a floor that holds theirs.
    pub(crate) fn of_group(policy: &Policy, members: &[Demander]) -> Demander {
        let sum = |part: fn(&Demander) -> u64| members.iter().map(part).fold(0, u64::saturating_add);
        let max = policy.ceiling().0;
        Demander {
            weight: policy.weight().get().into(),
            min: policy.floor().0.max(sum(Demander::low)).min(max),
            max,
            demand: sum(Demander::high),
        }
    }

    /// The most it can take: `min(d, M)`.
    pub(crate) fn high(&self) -> u64 {
        self.demand.min(self.max)
    }

    /// The least it is promised: its floor, or all it can take if that is less.
    pub(crate) fn low(&self) -> u64 {
        self.min.min(self.high())
    }

    /// The reason why this claim gets `share`; `lifted`: by weight alone it would be less.
    pub(crate) fn bound(&self, share: u64, lifted: bool) -> Bound {
        if self.demand == 0 {
            Bound::Idle
        } else if share == self.demand {
            Bound::Demand
        } else if lifted {
            Bound::Floor
        } else if share == self.max {
            Bound::Ceiling
        } else {
            Bound::Weight
        }
    }
}

/// A rule that divides one capacity among claims without nesting.
pub(crate) trait Rule {
    /// Takes the memory that divisions among up to that many claims need.
    fn reserve(&mut self, claims: usize);

    /// Writes the share of each claim, bit/s, and what decided it. All slices have one length.
    fn share(&mut self, capacity: u64, claims: &[Demander], shares: &mut [u64], bounds: &mut [Bound]);
}

/// Empties `list` and gives it room for that many.
pub(crate) fn make_room<T>(list: &mut Vec<T>, entries: usize) {
    list.clear();
    list.reserve(entries);
}
