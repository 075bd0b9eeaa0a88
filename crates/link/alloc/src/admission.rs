//! Admission of minima.
//!
//! The test of Anastasi et al., Eq. 2, with minima as rates instead of fractions:
//!
//! ```text
//! sum of promised minima + asked <= reservable part of the link's capacity
//! ```
//!
//! A group with a minimum has bought that much for its members: it counts against the link,
//! and theirs count inside of it. Without one its members' minima count against the link
//! themselves, inside the group's maximum if it has one.

use serde::{Deserialize, Serialize};
use weir_units::BitRate;

use crate::Policy;

/// The part of a link that may be promised as minima; more than 0, at most 1. Kept in
/// millionths, so that sums of rates stay whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Reservable(u32);

/// The number is not a part of a link.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("cannot promise {0} of a link: write a part above 0, up to 1, such as 0.95")]
pub struct ReservableError(pub f64);

impl Reservable {
    /// The whole, in the unit of this type.
    const ONE: u32 = 1_000_000;

    /// That part, to six decimals.
    ///
    /// # Errors
    /// [`ReservableError`] unless `0 < part <= 1`.
    pub fn new(part: f64) -> Result<Reservable, ReservableError> {
        let millionths = (part * f64::from(Reservable::ONE)).round();
        if (1.0..=f64::from(Reservable::ONE)).contains(&millionths) {
            Ok(Reservable(millionths as u32))
        } else {
            Err(ReservableError(part))
        }
    }

    /// As a fraction.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from(self.0) / f64::from(Reservable::ONE)
    }

    /// The reservable part of that capacity, rounded down.
    #[must_use]
    pub fn of(self, capacity: BitRate) -> BitRate {
        capacity.scale(self.0.into(), Reservable::ONE.into())
    }
}

impl Default for Reservable {
    /// 0.95, the best trade-off of Anastasi et al., section 4.
    fn default() -> Reservable {
        Reservable(950_000)
    }
}

impl TryFrom<f64> for Reservable {
    type Error = ReservableError;
    fn try_from(part: f64) -> Result<Reservable, ReservableError> {
        Reservable::new(part)
    }
}

impl From<Reservable> for f64 {
    fn from(reservable: Reservable) -> f64 {
        reservable.get()
    }
}

/// A class or a group whose minimum is to be promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimant<'a> {
    /// For the refusal.
    pub name: &'a str,
    /// The policy that is to hold.
    pub policy: Policy,
    /// For a class in a group: its index in the list of groups. None for a group.
    pub group: Option<u32>,
}

/// How much of a link is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// The minima promised, together.
    pub reserved: BitRate,
    /// The rate that may be promised in all.
    pub reservable: BitRate,
}

impl Reservation {
    /// The rate that may still be promised.
    #[must_use]
    pub fn free(self) -> BitRate {
        self.reservable.saturating_sub(self.reserved)
    }
}

/// The rate of a group that bounds its members' minima.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupLimit {
    /// Its minimum: it has bought no more.
    Minimum,
    /// Its maximum, for a group without a minimum.
    Maximum,
}

impl std::fmt::Display for GroupLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            GroupLimit::Minimum => "minimum",
            GroupLimit::Maximum => "maximum",
        })
    }
}

/// A minimum that cannot be promised.
///
/// Shown whole, it names the claimant; [`AdmitError::reason`] is what follows the colon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// The link is slower than the minimum.
    #[error("cannot promise {name} a minimum of {asked}: {}", self.reason())]
    AboveCapacity {
        /// Class or group.
        name: String,
        /// Its minimum.
        asked: BitRate,
        /// The link's capacity.
        capacity: BitRate,
        /// The largest minimum that would have been accepted.
        free: BitRate,
    },
    /// The free part of the link does not hold the minimum.
    #[error("cannot promise {name} a minimum of {asked}: {}", self.reason())]
    NoCapacity {
        /// Class or group.
        name: String,
        /// Its minimum.
        asked: BitRate,
        /// The largest minimum that would have been accepted.
        free: BitRate,
        /// Promised to others.
        reserved: BitRate,
        /// The rate that may be promised in all.
        reservable: BitRate,
    },
    /// The free part of the group does not hold its member's minimum.
    #[error("cannot promise {name} a minimum of {asked}: {}", self.reason())]
    GroupOvercommitted {
        /// The member.
        name: String,
        /// Its group.
        group: String,
        /// The member's minimum.
        asked: BitRate,
        /// The largest minimum that would have been accepted.
        free: BitRate,
        /// The rate that the members may have together.
        limit: BitRate,
        /// The rate of the group that this is.
        by: GroupLimit,
    },
    /// A group's minimum does not hold what its members have been promised.
    #[error("cannot give group {group} a minimum of {limit}: {}", self.reason())]
    GroupTooSmall {
        /// The group.
        group: String,
        /// Its minimum.
        limit: BitRate,
        /// The sum of their minima.
        promised: BitRate,
    },
}

impl AdmitError {
    /// Why, with the numbers: the error without the name of the claimant.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            AdmitError::AboveCapacity { capacity, free, .. } => {
                format!("the whole link has {capacity}, {free} are free")
            }
            AdmitError::NoCapacity { free, reserved, reservable, .. } => {
                format!("{reserved} of the {reservable} that may be promised are taken, {free} are free")
            }
            AdmitError::GroupOvercommitted { group, free, limit, by, .. } => {
                format!(
                    "group {group} has a {by} of {limit}, of which {free} are free (raise the group's {by})"
                )
            }
            AdmitError::GroupTooSmall { promised, .. } => {
                format!("its members were promised {promised} (lower their minima first)")
            }
        }
    }

    /// The class or group that is not promised its minimum.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            AdmitError::AboveCapacity { name, .. }
            | AdmitError::NoCapacity { name, .. }
            | AdmitError::GroupOvercommitted { name, .. }
            | AdmitError::GroupTooSmall { group: name, .. } => name,
        }
    }

    /// The rate that was refused.
    #[must_use]
    pub fn asked(&self) -> BitRate {
        match self {
            AdmitError::AboveCapacity { asked, .. }
            | AdmitError::NoCapacity { asked, .. }
            | AdmitError::GroupOvercommitted { asked, .. }
            | AdmitError::GroupTooSmall { limit: asked, .. } => *asked,
        }
    }

    /// The nearest rate that could have been accepted as far as this refusal goes: the
    /// largest minimum, or for [`AdmitError::GroupTooSmall`] the smallest that holds the members.
    #[must_use]
    pub fn free(&self) -> BitRate {
        match self {
            AdmitError::AboveCapacity { free, .. }
            | AdmitError::NoCapacity { free, .. }
            | AdmitError::GroupOvercommitted { free, .. }
            | AdmitError::GroupTooSmall { promised: free, .. } => *free,
        }
    }
}

/// The test of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    capacity: BitRate,
    reservable: BitRate,
    elsewhere: BitRate,
}

impl Admission {
    /// For a link of that capacity.
    #[must_use]
    pub fn new(capacity: BitRate, reservable: Reservable) -> Admission {
        Admission::beside(capacity, reservable.of(capacity), BitRate::ZERO)
    }

    /// For a link of which `reservable` may be promised, and `elsewhere` is, to others than the
    /// claimants.
    #[must_use]
    pub fn beside(capacity: BitRate, reservable: BitRate, elsewhere: BitRate) -> Admission {
        Admission { capacity, reservable, elsewhere }
    }

    /// Tests a whole set of claimants as it is to be: all of it is admitted, or none.
    ///
    /// # Errors
    /// [`AdmitError`] for the first claimant whose minimum does not fit: groups first, then
    /// classes, in their order.
    ///
    /// # Panics
    /// If a class names a group that is not in `groups`.
    pub fn check(
        &self,
        groups: &[Claimant<'_>],
        classes: &[Claimant<'_>],
    ) -> Result<Reservation, AdmitError> {
        let mut promises = self.promises(groups.iter().map(|group| (group.name, group.policy.max())));
        for (group, index) in groups.iter().zip(0..).filter(|(group, _)| group.policy.min().is_some()) {
            promises.promise(Promisee::Group(index), group.policy.floor(), BitRate::ZERO)?;
        }
        for class in classes {
            let promisee = Promisee::Class { name: class.name, group: class.group };
            promises.promise(promisee, class.policy.floor(), BitRate::ZERO)?;
        }
        Ok(promises.reservation())
    }

    /// Begins to make promises one after another; `groups` are names and maxima.
    pub fn promises<'a>(&self, groups: impl Iterator<Item = (&'a str, Option<BitRate>)>) -> Promises<'a> {
        let group = |(name, max)| Group { name, max, min: None, members: BitRate::ZERO };
        Promises {
            capacity: self.capacity,
            reservation: Reservation { reserved: self.elsewhere, reservable: self.reservable },
            groups: groups.map(group).collect(),
        }
    }
}

/// The party that a promise is made to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promisee<'a> {
    /// A group, by its index.
    Group(u32),
    /// A class: its name, and the index of its group.
    Class {
        /// For the refusal.
        name: &'a str,
        /// In the list of groups.
        group: Option<u32>,
    },
}

/// A group among [`Promises`].
#[derive(Debug, Clone)]
struct Group<'a> {
    name: &'a str,
    max: Option<BitRate>,
    /// The minimum promised to it, once it is.
    min: Option<BitRate>,
    /// Promised to its members.
    members: BitRate,
}

/// Promises on one link, made one after another: a later one never takes from an earlier one.
///
/// Invariants: the sum against the link is at most what may be promised, unless more was
/// promised elsewhere; members have at most their group's minimum, or without one its maximum.
/// Each part of a set of promises that fits fits too, so their order decides only who loses.
#[derive(Debug, Clone)]
pub struct Promises<'a> {
    capacity: BitRate,
    reservation: Reservation,
    groups: Vec<Group<'a>>,
}

impl Promises<'_> {
    /// The minima promised so far.
    #[must_use]
    pub fn reservation(&self) -> Reservation {
        self.reservation
    }

    /// Promises a minimum of `min`, of which `held` is promised already. Nothing changes with
    /// an error.
    ///
    /// # Errors
    /// [`AdmitError`] if it does not fit.
    ///
    /// # Panics
    /// If there is no group of that index.
    pub fn promise(&mut self, to: Promisee<'_>, min: BitRate, held: BitRate) -> Result<(), AdmitError> {
        match to {
            Promisee::Group(index) => {
                let group = &self.groups[index as usize];
                let (name, members) = (group.name.to_owned(), group.members);
                if members > min {
                    return Err(AdmitError::GroupTooSmall { group: name, limit: min, promised: members });
                }
                // Without a minimum of the group its members' count against the link.
                self.take(&name, min, group.min.unwrap_or(members))?;
                self.groups[index as usize].min = Some(min);
            }
            Promisee::Class { name, group: None } => self.take(name, min, held)?,
            Promisee::Class { name, group: Some(index) } => {
                let group = &self.groups[index as usize];
                let bound = group.min.map(|min| (min, GroupLimit::Minimum));
                if let Some((limit, by)) = bound.or(group.max.map(|max| (max, GroupLimit::Maximum))) {
                    let free = limit.saturating_sub(group.members.saturating_sub(held));
                    if min > free {
                        let (name, group) = (name.to_owned(), group.name.to_owned());
                        return Err(AdmitError::GroupOvercommitted {
                            name,
                            group,
                            asked: min,
                            free,
                            limit,
                            by,
                        });
                    }
                }
                if group.min.is_none() {
                    self.take(name, min, held)?;
                }
                let members = &mut self.groups[index as usize].members;
                *members = members.saturating_sub(held).saturating_add(min);
            }
        }
        Ok(())
    }

    /// Counts a minimum against the link, of which `held` is counted already.
    fn take(&mut self, name: &str, min: BitRate, held: BitRate) -> Result<(), AdmitError> {
        let Reservation { reserved, reservable } = self.reservation;
        let reserved = reserved.saturating_sub(held);
        let free = reservable.saturating_sub(reserved);
        if min > free {
            let name = name.to_owned();
            return Err(if min > self.capacity {
                AdmitError::AboveCapacity { name, asked: min, capacity: self.capacity, free }
            } else {
                AdmitError::NoCapacity { name, asked: min, free, reserved, reservable }
            });
        }
        self.reservation.reserved = reserved.saturating_add(min);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Weight;

    const LINK: BitRate = BitRate::mbit(100);

    fn admission() -> Admission {
        Admission::new(LINK, Reservable::default())
    }

    fn min_max(min: u64, max: u64) -> Policy {
        let mbit = |n| (n > 0).then_some(BitRate::mbit(n));
        Policy::new(Weight::ONE, mbit(min), mbit(max)).unwrap()
    }

    fn asks(name: &str, min: u64) -> Claimant<'_> {
        Claimant { name, policy: min_max(min, 0), group: None }
    }

    fn member(claimant: Claimant<'_>) -> Claimant<'_> {
        Claimant { group: Some(0), ..claimant }
    }

    #[test]
    fn what_is_promised_elsewhere_is_not_promised_again() {
        let admission = Admission::beside(LINK, BitRate::mbit(95), BitRate::mbit(60));
        assert_eq!(admission.check(&[], &[asks("web", 35)]).unwrap().free(), BitRate::ZERO);
        let error = admission.check(&[], &[asks("web", 36)]).unwrap_err();
        assert_eq!(error.free(), BitRate::mbit(35));
    }

    #[test]
    fn minima_are_admitted_up_to_the_reservable_part_and_not_a_bit_further() {
        let web = asks("web", 55);
        let fits = admission().check(&[], &[web, asks("video", 40)]).unwrap();
        assert_eq!(fits, Reservation { reserved: BitRate::mbit(95), reservable: BitRate::mbit(95) });
        assert_eq!(fits.free(), BitRate::ZERO);

        let policy = Policy::new(Weight::ONE, Some(BitRate(40_000_001)), None).unwrap();
        let error = admission().check(&[], &[web, Claimant { policy, ..asks("video", 40) }]).unwrap_err();
        assert_eq!(
            error,
            AdmitError::NoCapacity {
                name: "video".into(),
                asked: BitRate(40_000_001),
                free: BitRate::mbit(40),
                reserved: BitRate::mbit(55),
                reservable: BitRate::mbit(95),
            }
        );
    }

    #[test]
    fn a_refusal_names_asked_taken_and_free() {
        let error = admission().check(&[], &[asks("web", 70), asks("video", 40)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot promise video a minimum of 40mbit: 70mbit of the 95mbit that may be promised are taken, \
             25mbit are free"
        );
        assert_eq!((error.asked(), error.free()), (BitRate::mbit(40), BitRate::mbit(25)));
    }

    #[test]
    fn a_minimum_above_the_capacity_is_refused_as_that() {
        let error = admission().check(&[], &[asks("video", 101)]).unwrap_err();
        assert_eq!(
            error,
            AdmitError::AboveCapacity {
                name: "video".into(),
                asked: BitRate::mbit(101),
                capacity: LINK,
                free: BitRate::mbit(95),
            }
        );
    }

    #[test]
    fn request_of_two_is_refused_whole_if_one_does_not_fit() {
        let error = admission().check(&[], &[asks("a", 50), asks("b", 50)]).unwrap_err();
        assert!(
            matches!(error, AdmitError::NoCapacity { name, free, .. } if name == "b" && free == BitRate::mbit(45))
        );
    }

    #[test]
    fn members_count_inside_their_groups_minimum_and_the_group_outside() {
        let group = asks("tenant", 30);
        let fits = admission().check(&[group], &[member(asks("a", 20)), member(asks("b", 10))]).unwrap();
        assert_eq!(fits.reserved, BitRate::mbit(30));

        let error = admission().check(&[group], &[member(asks("a", 20)), member(asks("b", 11))]).unwrap_err();
        assert_eq!(
            error,
            AdmitError::GroupOvercommitted {
                name: "b".into(),
                group: "tenant".into(),
                asked: BitRate::mbit(11),
                free: BitRate::mbit(10),
                limit: BitRate::mbit(30),
                by: GroupLimit::Minimum,
            }
        );
    }

    #[test]
    fn members_count_against_the_link_and_the_groups_maximum() {
        let free_group = asks("tenant", 0);
        let members = [member(asks("a", 60)), member(asks("b", 36))];
        let error = admission().check(&[free_group], &members).unwrap_err();
        assert!(matches!(error, AdmitError::NoCapacity { free, .. } if free == BitRate::mbit(35)));

        let capped = Claimant { policy: min_max(0, 70), ..free_group };
        let error = admission().check(&[capped], &[members[0], member(asks("b", 11))]).unwrap_err();
        assert!(
            matches!(error, AdmitError::GroupOvercommitted { free, by: GroupLimit::Maximum, .. } if free == BitRate::mbit(10))
        );
    }

    #[test]
    fn group_minimum_below_its_members_promises_is_refused() {
        let mut promises = admission().promises([("tenant", None)].into_iter());
        let class = |name| Promisee::Class { name, group: Some(0) };
        promises.promise(class("a"), BitRate::mbit(15), BitRate::ZERO).unwrap();
        promises.promise(class("b"), BitRate::mbit(15), BitRate::ZERO).unwrap();
        let error = promises.promise(Promisee::Group(0), BitRate::mbit(20), BitRate::ZERO).unwrap_err();
        let (limit, promised) = (BitRate::mbit(20), BitRate::mbit(30));
        assert_eq!(error, AdmitError::GroupTooSmall { group: "tenant".into(), limit, promised });
        assert_eq!(promises.reservation().reserved, BitRate::mbit(30));
        promises.promise(Promisee::Group(0), BitRate::mbit(40), BitRate::ZERO).unwrap();
        assert_eq!(promises.reservation().reserved, BitRate::mbit(40));
    }

    #[test]
    fn a_raised_minimum_counts_only_the_difference() {
        let mut promises = admission().promises([("tenant", None)].into_iter());
        for group in [None, Some(0)] {
            let class = Promisee::Class { name: "a", group };
            promises.promise(class, BitRate::mbit(10), BitRate::ZERO).unwrap();
            promises.promise(class, BitRate::mbit(20), BitRate::mbit(10)).unwrap();
        }
        assert_eq!(promises.reservation().reserved, BitRate::mbit(40));
        let group = Promisee::Group(0);
        promises.promise(group, BitRate::mbit(30), BitRate::ZERO).unwrap();
        promises.promise(group, BitRate::mbit(75), BitRate::mbit(30)).unwrap();
        assert_eq!(promises.reservation().free(), BitRate::ZERO);
        let error = promises.promise(group, BitRate::mbit(76), BitRate::mbit(75)).unwrap_err();
        assert_eq!(error.free(), BitRate::mbit(75));
    }

    #[test]
    fn a_part_of_a_link_is_above_0_and_at_most_1() {
        for part in [0.0, -0.5, 1.000_001, f64::NAN, f64::INFINITY, 1e-9] {
            assert!(Reservable::new(part).is_err(), "{part}");
        }
        assert_eq!(Reservable::new(1.0).unwrap().of(LINK), LINK);
        assert_eq!(Reservable::new(0.95).unwrap(), Reservable::default());
        assert_eq!(serde_json::from_str::<Reservable>("0.5").unwrap().of(BitRate(7)), BitRate(3));
        assert!(serde_json::from_str::<Reservable>("1.5").is_err());
    }
}
