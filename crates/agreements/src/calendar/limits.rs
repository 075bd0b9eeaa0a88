use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_share::Reservable;
use weir_units::BitRate;

/// The unit in which bandwidth is allocated: 10 kbit/s, "a minimum grain of 10Kbps per tenant"
/// (section 4.1).
pub const GRAIN: BitRate = BitRate::kbit(10);

/// How a link is divided between promises and the rest.
///
/// Invariant: U_res + U_oth is not above the bound it was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    reserved: Reservable,
    other: Option<Reservable>,
}

/// The parts are too much of a link.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "cannot divide the link: U_res {reserved} and U_oth {other} together are above {bound} (lower one of them; \
     above 0.95 guarantees lose their precision)"
)]
pub struct SplitError {
    /// U_res.
    pub reserved: f64,
    /// U_oth.
    pub other: f64,
    /// The bound of both together.
    pub bound: f64,
}

impl Split {
    /// `reserved` is U_res, the part that may be promised; `other` is U_oth, the part of the
    /// traffic without an agreement, none to have no class for it. `bound` is what they may be
    /// together: [`Reservable::default`], 0.95, is the paper's "best trade-off".
    ///
    /// # Errors
    /// [`SplitError`] if they are more.
    pub fn new(
        reserved: Reservable,
        other: Option<Reservable>,
        bound: Reservable,
    ) -> Result<Split, SplitError> {
        let millionths = |part: Reservable| part.of(BitRate(1_000_000)).0;
        if millionths(reserved) + other.map_or(0, millionths) > millionths(bound) {
            let other = other.map_or(0.0, Reservable::get);
            return Err(SplitError { reserved: reserved.get(), other, bound: bound.get() });
        }
        Ok(Split { reserved, other })
    }

    /// U_res.
    #[must_use]
    pub fn reserved(&self) -> Reservable {
        self.reserved
    }

    /// U_oth.
    #[must_use]
    pub fn other(&self) -> Option<Reservable> {
        self.other
    }
}

/// How many times the reservable part may be promised; above 1, at most 100, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "f64", into = "f64")]
pub struct Oversubscription(u32);

/// The number is not such a factor.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("cannot oversubscribe {0} times: write a factor above 1, up to 100, such as 1.5")]
pub struct OversubscriptionError(pub f64);

impl Oversubscription {
    /// That factor, to three decimals.
    ///
    /// # Errors
    /// [`OversubscriptionError`] unless `1 < factor <= 100`.
    pub fn new(factor: f64) -> Result<Oversubscription, OversubscriptionError> {
        let thousandths = (factor * 1e3).round();
        if (1_001.0..=100_000.0).contains(&thousandths) {
            Ok(Oversubscription(thousandths as u32))
        } else {
            Err(OversubscriptionError(factor))
        }
    }

    /// As a number.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from(self.0) / 1e3
    }
}

impl TryFrom<f64> for Oversubscription {
    type Error = OversubscriptionError;
    fn try_from(factor: f64) -> Result<Oversubscription, OversubscriptionError> {
        Oversubscription::new(factor)
    }
}

impl From<Oversubscription> for f64 {
    fn from(factor: Oversubscription) -> f64 {
        factor.get()
    }
}

/// The limits of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// B_eth, the rate of the link.
    pub link: BitRate,
    /// U_res and U_oth.
    pub split: Split,
    /// None unless more is to be promised than there is.
    pub oversubscription: Option<Oversubscription>,
    /// The part of the reservable rate that is promised to others than this calendar's customers,
    /// without an end.
    pub elsewhere: BitRate,
    /// How far in the past a start may lie, for customers' clocks and the way here. Such a
    /// start is one now.
    pub skew: Duration,
    /// How far in the future a start may lie.
    pub ahead: Duration,
    /// How many busy times a refusal looks behind for the earliest start that fits.
    pub search: u32,
}

impl Limits {
    /// For a link of that rate: U_res 0.90, U_oth 0.05, no oversubscription, 30 s of skew, ten
    /// years ahead, and 32 busy times looked behind.
    #[must_use]
    pub fn new(link: BitRate) -> Limits {
        let part = |part: f64| Reservable::new(part).ok();
        let split = Split { reserved: part(0.9).unwrap_or_default(), other: part(0.05) };
        let ahead = Duration::from_secs(3_653 * 86_400);
        Limits {
            link,
            split,
            oversubscription: None,
            elsewhere: BitRate::ZERO,
            skew: Duration::from_secs(30),
            ahead,
            search: 32,
        }
    }

    /// U_res B_eth, what may be promised without oversubscription, and the most that one
    /// maximum may be.
    #[must_use]
    pub fn reservable(&self) -> BitRate {
        self.split.reserved.of(self.link)
    }

    /// U_oth B_eth, rate and ceiling of the class of what has no agreement.
    #[must_use]
    pub fn other(&self) -> BitRate {
        self.split.other.map_or(BitRate::ZERO, |part| part.of(self.link))
    }

    /// The rate that may be promised in all.
    #[must_use]
    pub fn promisable(&self) -> BitRate {
        let whole = match self.oversubscription {
            Some(factor) => self.reservable().scale(factor.0.into(), 1_000),
            None => self.reservable(),
        };
        whole.saturating_sub(self.elsewhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(part: f64) -> Reservable {
        Reservable::new(part).unwrap()
    }

    #[test]
    fn what_is_reserved_and_what_is_not_are_within_the_bound_together() {
        let bound = Reservable::default();
        assert!(Split::new(part(0.9), Some(part(0.05)), bound).is_ok());
        assert!(Split::new(part(0.95), None, bound).is_ok());
        let error = Split::new(part(0.95), Some(part(0.000_001)), bound).unwrap_err();
        assert_eq!((error.reserved, error.other, error.bound), (0.95, 0.000_001, 0.95));
        assert!(Split::new(part(0.95), Some(part(0.05)), part(1.0)).is_ok());
    }

    #[test]
    fn the_papers_link_divides_into_95_and_5() {
        let split = Split::new(part(0.95), Some(part(0.05)), part(1.0)).unwrap();
        let limits = Limits { split, ..Limits::new(BitRate::mbit(100)) };
        assert_eq!((limits.reservable(), limits.other()), (BitRate::mbit(95), BitRate::mbit(5)));
        assert_eq!(limits.promisable(), BitRate::mbit(95));
        let oversubscription = Some(Oversubscription::new(1.5).unwrap());
        assert_eq!(Limits { oversubscription, ..limits }.promisable(), BitRate(142_500_000));
    }

    #[test]
    fn what_is_promised_elsewhere_is_not_promised_again() {
        let limits = Limits { elsewhere: BitRate::mbit(30), ..Limits::new(BitRate::mbit(100)) };
        assert_eq!((limits.reservable(), limits.promisable()), (BitRate::mbit(90), BitRate::mbit(60)));
        let limits = Limits { elsewhere: BitRate::mbit(91), ..limits };
        assert_eq!(limits.promisable(), BitRate::ZERO);
    }

    #[test]
    fn an_oversubscription_is_above_one_and_finite() {
        for factor in [1.0, 0.5, -2.0, 0.0, 100.1, f64::NAN, f64::INFINITY] {
            assert!(Oversubscription::new(factor).is_err(), "{factor}");
        }
        assert_eq!(Oversubscription::new(1.25).unwrap().get(), 1.25);
    }
}
