use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use crate::{
    Bound, CreditForm, Policy, Sharer, Spare, additive::Additive, credit::Fluid, fill::WaterFilling,
    nest::GroupAllocator, sharer::Rule,
};

/// The way of dividing a link, by the name that the configuration uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AllocatorKind {
    /// `water-filling`: weighted max-min fairness with floors and ceilings. The default: it is
    /// exact to a bit, and a division costs less than the credits need to come to rest.
    #[default]
    WaterFilling,
    /// `credit`: qCon's credit allocator, repaired where one pass misses the contract.
    Credit,
    /// `additive`: floor plus an equal part of the spare.
    Additive,
}

/// The text names no allocator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no allocator is called `{0}`: write water-filling, credit or additive")]
pub struct AllocatorKindError(pub String);

impl fmt::Display for AllocatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AllocatorKind::WaterFilling => "water-filling",
            AllocatorKind::Credit => "credit",
            AllocatorKind::Additive => "additive",
        })
    }
}

impl FromStr for AllocatorKind {
    type Err = AllocatorKindError;
    fn from_str(text: &str) -> Result<AllocatorKind, AllocatorKindError> {
        [AllocatorKind::WaterFilling, AllocatorKind::Credit, AllocatorKind::Additive]
            .into_iter()
            .find(|kind| kind.to_string() == text)
            .ok_or_else(|| AllocatorKindError(text.to_owned()))
    }
}

/// Divides a link among classes and groups of classes.
///
/// Groups nest one level. A group shares the link by its own policy, for its members: its
/// demand is the sum of `min(demand, max)` over them, its floor the larger of its own and the
/// sum of theirs. The members share what the group gets by their policies.
///
/// The answer depends on nothing but the arguments. Memory is kept from call to call: a call that
/// is not larger than one before it allocates none.
#[derive(Debug)]
pub struct Allocator {
    nest: GroupAllocator,
    rules: Rules,
}

#[derive(Debug)]
enum Rules {
    WaterFilling(WaterFilling),
    Credit(Fluid),
    Additive(Additive),
}

impl Allocator {
    /// The allocator of that name, in its default form.
    #[must_use]
    pub fn new(kind: AllocatorKind) -> Allocator {
        match kind {
            AllocatorKind::WaterFilling => Allocator::water_filling(),
            AllocatorKind::Credit => Allocator::credit(CreditForm::default()),
            AllocatorKind::Additive => Allocator::additive(Spare::default()),
        }
    }

    /// Exact to a bit: the allocations add up to `min(capacity, sum of min(demand, max))`.
    #[must_use]
    pub fn water_filling() -> Allocator {
        Allocator::of(Rules::WaterFilling(WaterFilling::default()))
    }

    /// The long-run rate of each class under qCon's credits, within 1 % of water-filling for
    /// [`CreditForm::Repaired`].
    #[must_use]
    pub fn credit(form: CreditForm) -> Allocator {
        Allocator::of(Rules::Credit(Fluid::new(form)))
    }

    /// Anastasi's Eq. 1, or its work-conserving form.
    #[must_use]
    pub fn additive(spare: Spare) -> Allocator {
        Allocator::of(Rules::Additive(Additive::new(spare)))
    }

    fn of(rules: Rules) -> Allocator {
        Allocator { nest: GroupAllocator::default(), rules }
    }

    /// The allocation of each class, bit/s, in the order of `sharers`.
    ///
    /// # Panics
    /// If a class names a group that is not in `groups`.
    pub fn allocate(&mut self, capacity: BitRate, groups: &[Policy], sharers: &[Sharer]) -> &[BitRate] {
        let mut divide = |rule: &mut dyn Rule| self.nest.allocate(rule, capacity, groups, sharers);
        match &mut self.rules {
            Rules::WaterFilling(fill) => divide(fill),
            Rules::Credit(fluid) => divide(fluid),
            Rules::Additive(additive) => divide(additive),
        }
        &self.nest.allocations
    }

    /// The allocation of each class, as of the last [`Allocator::allocate`].
    #[must_use]
    pub fn allocations(&self) -> &[BitRate] {
        &self.nest.allocations
    }

    /// The reason for each class's allocation, as of the last [`Allocator::allocate`].
    #[must_use]
    pub fn bounds(&self) -> &[Bound] {
        &self.nest.bounds
    }

    /// The allocation of each group, as of the last [`Allocator::allocate`].
    #[must_use]
    pub fn group_allocations(&self) -> &[BitRate] {
        &self.nest.group_allocations
    }

    /// The reason for each group's allocation, as of the last [`Allocator::allocate`].
    #[must_use]
    pub fn group_bounds(&self) -> &[Bound] {
        &self.nest.group_bounds
    }
}

impl Default for Allocator {
    fn default() -> Allocator {
        Allocator::new(AllocatorKind::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocator_is_chosen_by_its_name_in_the_configuration() {
        for (name, kind) in [
            ("water-filling", AllocatorKind::WaterFilling),
            ("credit", AllocatorKind::Credit),
            ("additive", AllocatorKind::Additive),
        ] {
            assert_eq!(name.parse(), Ok(kind));
            assert_eq!(kind.to_string(), name);
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{name}\""));
        }
        let error = "drr".parse::<AllocatorKind>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "no allocator is called `drr`: write water-filling, credit or additive"
        );
    }
}
