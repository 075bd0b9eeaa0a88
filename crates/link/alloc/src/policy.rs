use std::{fmt, num::NonZeroU32, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use weir_units::BitRate;

/// A class's relative share of the link; 1 unless set (qCon 3.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU32);

/// The number is not a weight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use `{0}` as a weight: write a whole number from 1 to {max}", max = Weight::MAX)]
pub struct WeightError(pub String);

impl Weight {
    /// The largest weight: enough for a thousandfold difference with three digits.
    pub const MAX: u32 = 1_000_000;
    /// The weight of a class without a configured one.
    pub const ONE: Weight = Weight(NonZeroU32::MIN);

    /// A weight from 1 to [`Weight::MAX`].
    ///
    /// # Errors
    /// [`WeightError`] outside of that range.
    pub fn new(weight: u32) -> Result<Weight, WeightError> {
        match NonZeroU32::new(weight) {
            Some(w) if weight <= Weight::MAX => Ok(Weight(w)),
            _ => Err(WeightError(weight.to_string())),
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight::ONE
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Weight {
    type Err = WeightError;
    fn from_str(text: &str) -> Result<Weight, WeightError> {
        text.trim().parse().ok().and_then(|w| Weight::new(w).ok()).ok_or_else(|| WeightError(text.to_owned()))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Weight {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Weight".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "integer", "minimum": 1, "maximum": Weight::MAX })
    }
}

impl Serialize for Weight {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.get())
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Weight, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Weight;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 1 to {}", Weight::MAX)
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Weight, E> {
                let weight = u32::try_from(v).ok().and_then(|v| Weight::new(v).ok());
                weight.ok_or_else(|| E::custom(WeightError(v.to_string())))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Weight, E> {
                u64::try_from(v)
                    .map_err(|_| E::custom(WeightError(v.to_string())))
                    .and_then(|v| self.visit_u64(v))
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Weight, E> {
                // A large number without its hundred zeros.
                let text = if v.abs() < 1e9 { v.to_string() } else { format!("{v:e}") };
                Err(E::custom(WeightError(text)))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// The policy of a class: its weight, its floor `m` and its ceiling `M` (weight, minimum and
/// maximum of qCon 3.3), all at once.
///
/// Invariants: a floor and a ceiling are positive, and the floor is not above the ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Policy {
    weight: Weight,
    min: Option<BitRate>,
    max: Option<BitRate>,
}

/// The parts do not make a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A floor of zero.
    #[error("a minimum of 0 bit/s promises nothing: leave it out (`min=none`), or give at least 8kbit")]
    MinZero,
    /// A ceiling of zero would cut the class off.
    #[error(
        "a maximum of 0 bit/s would cut the class off: leave it out (`max=none`), or give at least 8kbit"
    )]
    MaxZero,
    /// Floor or ceiling below what a scheduler can keep.
    #[error("{0} is less than {least}, the smallest rate weir enforces", least = Policy::MIN_RATE)]
    TooSmall(BitRate),
    /// Floor or ceiling above [`BitRate::MAX`].
    #[error("{0} is more than {max}, the largest rate weir can count", max = BitRate::MAX)]
    TooLarge(BitRate),
    /// The floor is above the ceiling.
    #[error("minimum {min} is above maximum {max}: lower the minimum or raise the maximum")]
    MinAboveMax {
        /// The floor asked for.
        min: BitRate,
        /// The ceiling asked for.
        max: BitRate,
    },
}

impl Policy {
    /// The smallest floor or ceiling: below it one packet takes more than a second.
    pub const MIN_RATE: BitRate = BitRate::kbit(8);

    /// Puts the parts together.
    ///
    /// # Errors
    /// [`PolicyError`] if a rate is zero or out of range, or the floor is above the ceiling.
    pub fn new(weight: Weight, min: Option<BitRate>, max: Option<BitRate>) -> Result<Policy, PolicyError> {
        if min == Some(BitRate::ZERO) {
            return Err(PolicyError::MinZero);
        }
        if max == Some(BitRate::ZERO) {
            return Err(PolicyError::MaxZero);
        }
        for rate in [min, max].into_iter().flatten() {
            if rate < Policy::MIN_RATE {
                return Err(PolicyError::TooSmall(rate));
            }
            if rate > BitRate::MAX {
                return Err(PolicyError::TooLarge(rate));
            }
        }
        match (min, max) {
            (Some(min), Some(max)) if min > max => Err(PolicyError::MinAboveMax { min, max }),
            _ => Ok(Policy { weight, min, max }),
        }
    }

    /// Weight.
    #[must_use]
    pub const fn weight(&self) -> Weight {
        self.weight
    }

    /// Floor, if any.
    #[must_use]
    pub const fn min(&self) -> Option<BitRate> {
        self.min
    }

    /// Ceiling, if any.
    #[must_use]
    pub const fn max(&self) -> Option<BitRate> {
        self.max
    }

    /// Floor as a number: zero if none.
    #[must_use]
    pub fn floor(&self) -> BitRate {
        self.min.unwrap_or(BitRate::ZERO)
    }

    /// Ceiling as a number: `u64::MAX` if none.
    #[must_use]
    pub fn ceiling(&self) -> BitRate {
        self.max.unwrap_or(BitRate(u64::MAX))
    }
}

/// The rate that a class would send if it were not held back: a rate, or more than any link gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Demand(BitRate);

impl Demand {
    /// Nothing to send; the class is not active.
    pub const NONE: Demand = Demand(BitRate::ZERO);
    /// Backlogged: takes whatever it is given.
    pub const UNLIMITED: Demand = Demand(BitRate(u64::MAX));

    /// A known rate.
    #[must_use]
    pub const fn rate(rate: BitRate) -> Demand {
        Demand(rate)
    }

    /// The rate; `u64::MAX` if unlimited.
    #[must_use]
    pub const fn get(self) -> BitRate {
        self.0
    }

    /// Whether there is anything to send.
    #[must_use]
    pub fn is_active(self) -> bool {
        self.0 > BitRate::ZERO
    }

    /// Whether the class takes whatever it is given.
    #[must_use]
    pub fn is_unlimited(self) -> bool {
        self == Demand::UNLIMITED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_refuses_parts_that_contradict_each_other() {
        let mbit = |n| Some(BitRate::mbit(n));
        assert_eq!(
            Policy::new(Weight::ONE, mbit(30), mbit(20)),
            Err(PolicyError::MinAboveMax { min: BitRate::mbit(30), max: BitRate::mbit(20) })
        );
        assert_eq!(Policy::new(Weight::ONE, Some(BitRate(0)), None), Err(PolicyError::MinZero));
        assert_eq!(Policy::new(Weight::ONE, None, Some(BitRate(0))), Err(PolicyError::MaxZero));
        assert_eq!(
            Policy::new(Weight::ONE, Some(BitRate(u64::MAX)), None),
            Err(PolicyError::TooLarge(BitRate(u64::MAX)))
        );
        assert!(Policy::new(Weight::ONE, mbit(20), mbit(20)).is_ok());
    }

    #[test]
    fn a_weight_is_a_whole_number_from_one() {
        assert!(Weight::new(0).is_err());
        assert!("0".parse::<Weight>().is_err());
        assert!("-3".parse::<Weight>().is_err());
        assert!("1.5".parse::<Weight>().is_err());
        assert!("4294967297".parse::<Weight>().is_err());
        assert_eq!(" 7".parse::<Weight>().unwrap().get(), 7);
    }

    #[test]
    fn number_that_is_no_weight_is_refused_with_the_range() {
        for (json, told) in [
            ("-1", "cannot use `-1` as a weight: write a whole number from 1 to 1000000"),
            ("0", "cannot use `0` as a weight"),
            ("1e99", "cannot use `1e99` as a weight: write a whole number from 1 to 1000000"),
            ("1.5", "cannot use `1.5` as a weight"),
            ("20000000000000000000", "as a weight: write a whole number from 1 to 1000000"),
            ("true", "boolean `true`, expected a whole number from 1 to 1000000"),
        ] {
            let error = serde_json::from_str::<Weight>(json).unwrap_err().to_string();
            assert!(error.contains(told), "{json}: {error}");
        }
    }
}
