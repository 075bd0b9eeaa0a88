//! Which minima may be promised.
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

    /// What may be promised of that capacity, rounded down.
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
    /// Its policy was admitted before and stays. Such claimants are counted first and never
    /// refused, even if the link has become too small for them.
    pub standing: bool,
}

/// How much of a link is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// The minima promised, together.
    pub reserved: BitRate,
    /// What may be promised in all.
    pub reservable: BitRate,
}

impl Reservation {
    /// What may still be promised.
    #[must_use]
    pub fn free(self) -> BitRate {
        self.reservable.saturating_sub(self.reserved)
    }
}

/// Which of a group's rates bounds its members' minima.
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// The link is slower than the minimum.
    #[error("cannot promise {name} a minimum of {asked}: the whole link has {capacity}, {free} are free")]
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
    /// What is free of the link does not hold the minimum.
    #[error(
        "cannot promise {name} a minimum of {asked}: {reserved} of the {reservable} that may be \
         promised are taken, {free} are free"
    )]
    NoCapacity {
        /// Class or group.
        name: String,
        /// Its minimum.
        asked: BitRate,
        /// The largest minimum that would have been accepted.
        free: BitRate,
        /// Promised to others.
        reserved: BitRate,
        /// What may be promised in all.
        reservable: BitRate,
    },
    /// What is free of the group does not hold its member's minimum.
    #[error(
        "cannot promise {name} a minimum of {asked}: group {group} has a {by} of {limit}, of which \
         {free} are free (raise the group's {by})"
    )]
    GroupOvercommitted {
        /// The member.
        name: String,
        /// Its group.
        group: String,
        /// The member's minimum.
        asked: BitRate,
        /// The largest minimum that would have been accepted.
        free: BitRate,
        /// What the members may have together.
        limit: BitRate,
        /// Which of the group's rates that is.
        by: GroupLimit,
    },
    /// A group's new policy does not hold what its members have been promised.
    #[error(
        "cannot give group {group} a {by} of {limit}: its members were promised {promised} (lower \
         their minima first)"
    )]
    GroupTooSmall {
        /// The group.
        group: String,
        /// What the members may have together.
        limit: BitRate,
        /// Which of the group's rates that is.
        by: GroupLimit,
        /// The sum of their minima.
        promised: BitRate,
    },
}

impl AdmitError {
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

    /// Tests a whole set of claimants as it is to be, after all changes: all of it is
    /// admitted, or none.
    ///
    /// # Errors
    /// [`AdmitError`] for the first claimant, standing ones aside, whose minimum does not
    /// fit: groups first, then classes, in their order.
    ///
    /// # Panics
    /// If a class names a group that is not in `groups`.
    pub fn check(
        &self,
        groups: &[Claimant<'_>],
        classes: &[Claimant<'_>],
    ) -> Result<Reservation, AdmitError> {
        let mut reservation = Reservation { reserved: self.elsewhere, reservable: self.reservable };
        let mut promised = vec![BitRate::ZERO; groups.len()];
        for standing in [true, false] {
            for (group, &promised) in groups.iter().zip(&promised).filter(|(g, _)| g.standing == standing) {
                if let (false, Some((limit, by))) = (standing, limit(group))
                    && promised > limit
                {
                    let group = group.name.to_owned();
                    return Err(AdmitError::GroupTooSmall { group, limit, by, promised });
                }
                self.promise(group, &mut reservation)?;
            }
            for class in classes.iter().filter(|class| class.standing == standing) {
                if let Some(g) = class.group {
                    let (group, promised) = (&groups[g as usize], &mut promised[g as usize]);
                    promise_in_group(class, group, promised)?;
                    if group.policy.min().is_some() {
                        continue; // the group's own minimum stands for it
                    }
                }
                self.promise(class, &mut reservation)?;
            }
        }
        Ok(reservation)
    }

    fn promise(&self, claimant: &Claimant<'_>, reservation: &mut Reservation) -> Result<(), AdmitError> {
        let asked = claimant.policy.floor();
        let free = reservation.free();
        if asked > free && !claimant.standing {
            let name = claimant.name.to_owned();
            return Err(if asked > self.capacity {
                AdmitError::AboveCapacity { name, asked, capacity: self.capacity, free }
            } else {
                let Reservation { reserved, reservable } = *reservation;
                AdmitError::NoCapacity { name, asked, free, reserved, reservable }
            });
        }
        reservation.reserved = reservation.reserved.saturating_add(asked);
        Ok(())
    }
}

/// What the members of a group may be promised together.
fn limit(group: &Claimant<'_>) -> Option<(BitRate, GroupLimit)> {
    let minimum = group.policy.min().map(|min| (min, GroupLimit::Minimum));
    minimum.or(group.policy.max().map(|max| (max, GroupLimit::Maximum)))
}

fn promise_in_group(
    class: &Claimant<'_>,
    group: &Claimant<'_>,
    promised: &mut BitRate,
) -> Result<(), AdmitError> {
    let asked = class.policy.floor();
    if let (false, Some((limit, by))) = (class.standing, limit(group)) {
        let free = limit.saturating_sub(*promised);
        if asked > free {
            let (name, group) = (class.name.to_owned(), group.name.to_owned());
            return Err(AdmitError::GroupOvercommitted { name, group, asked, free, limit, by });
        }
    }
    *promised = promised.saturating_add(asked);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Weight;

    const LINK: BitRate = BitRate::mbit(100);

    fn admission() -> Admission {
        Admission::new(LINK, Reservable::default())
    }

    #[test]
    fn what_is_promised_elsewhere_is_not_promised_again() {
        let admission = Admission::beside(LINK, BitRate::mbit(95), BitRate::mbit(60));
        let class = |min| Claimant { name: "web", policy: min_max(min, 0), group: None, standing: false };
        assert_eq!(admission.check(&[], &[class(35)]).unwrap().free(), BitRate::ZERO);
        let error = admission.check(&[], &[class(36)]).unwrap_err();
        assert_eq!(error.free(), BitRate::mbit(35));
        let standing = Claimant { standing: true, ..class(36) };
        assert_eq!(admission.check(&[], &[standing]).unwrap().reserved, BitRate::mbit(96));
    }

    fn min_max(min: u64, max: u64) -> Policy {
        let mbit = |n| (n > 0).then_some(BitRate::mbit(n));
        Policy::new(Weight::ONE, mbit(min), mbit(max)).unwrap()
    }

    fn standing(name: &str, min: u64) -> Claimant<'_> {
        Claimant { name, policy: min_max(min, 0), group: None, standing: true }
    }

    fn asks(name: &str, min: u64) -> Claimant<'_> {
        Claimant { standing: false, ..standing(name, min) }
    }

    fn member(claimant: Claimant<'_>) -> Claimant<'_> {
        Claimant { group: Some(0), ..claimant }
    }

    #[test]
    fn minima_are_admitted_up_to_the_reservable_part_and_not_a_bit_further() {
        let web = standing("web", 55);
        let fits = admission().check(&[], &[asks("video", 40), web]).unwrap();
        assert_eq!(fits, Reservation { reserved: BitRate::mbit(95), reservable: BitRate::mbit(95) });
        assert_eq!(fits.free(), BitRate::ZERO);

        let policy = Policy::new(Weight::ONE, Some(BitRate(40_000_001)), None).unwrap();
        let error = admission().check(&[], &[Claimant { policy, ..asks("video", 40) }, web]).unwrap_err();
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
        let error = admission().check(&[], &[standing("web", 70), asks("video", 40)]).unwrap_err();
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
    fn of_two_that_ask_the_one_that_no_longer_fits_is_refused_and_with_it_both() {
        let error = admission().check(&[], &[asks("a", 50), asks("b", 50)]).unwrap_err();
        assert!(
            matches!(error, AdmitError::NoCapacity { name, free, .. } if name == "b" && free == BitRate::mbit(45))
        );
    }

    #[test]
    fn what_stands_is_not_refused_when_the_link_has_shrunk_and_neither_is_asking_for_nothing() {
        let fits = admission().check(&[], &[standing("a", 80), standing("b", 80), asks("c", 0)]).unwrap();
        assert_eq!(fits.reserved, BitRate::mbit(160));
        assert_eq!(fits.free(), BitRate::ZERO);
        assert!(admission().check(&[], &[standing("a", 80), standing("b", 80), asks("c", 1)]).is_err());
    }

    #[test]
    fn members_count_inside_their_groups_minimum_and_the_group_outside() {
        let group = standing("tenant", 30);
        let fits = admission().check(&[group], &[member(asks("a", 20)), member(asks("b", 10))]).unwrap();
        assert_eq!(fits.reserved, BitRate::mbit(30));

        let error =
            admission().check(&[group], &[member(standing("a", 20)), member(asks("b", 11))]).unwrap_err();
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
    fn members_of_a_group_without_a_minimum_count_against_the_link_and_the_groups_maximum() {
        let free_group = standing("tenant", 0);
        let members = [member(standing("a", 60)), member(asks("b", 36))];
        let error = admission().check(&[free_group], &members).unwrap_err();
        assert!(matches!(error, AdmitError::NoCapacity { free, .. } if free == BitRate::mbit(35)));

        let capped = Claimant { policy: min_max(0, 70), ..free_group };
        let error = admission().check(&[capped], &[members[0], member(asks("b", 11))]).unwrap_err();
        assert!(
            matches!(error, AdmitError::GroupOvercommitted { free, by: GroupLimit::Maximum, .. } if free == BitRate::mbit(10))
        );
    }

    #[test]
    fn a_group_is_not_shrunk_below_what_its_members_were_promised() {
        let group = asks("tenant", 20);
        let error =
            admission().check(&[group], &[member(standing("a", 15)), member(standing("b", 15))]).unwrap_err();
        assert_eq!(
            error,
            AdmitError::GroupTooSmall {
                group: "tenant".into(),
                limit: BitRate::mbit(20),
                by: GroupLimit::Minimum,
                promised: BitRate::mbit(30),
            }
        );
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
