use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use weir_share::Weight;
use weir_units::BitRate;

use crate::{Directions, Quota, Selector, SelectorError, Utc};

/// The terms of a promise: the paper's two parameters and those that weir adds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// `NetMinBandwidth`, B_r: what "has to be always guaranteed".
    #[serde(deserialize_with = "crate::bounded::rate")]
    pub min: BitRate,
    /// `NetMaxBandwidth`, B_r^max: what may be given of the spare.
    #[serde(deserialize_with = "crate::bounded::rate")]
    pub max: BitRate,
    /// The first moment; none for the moment of acceptance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Utc>,
    /// The first moment after it; none for the context's expiration, or no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Utc>,
    /// Upload, download or both.
    #[serde(default, skip_serializing_if = "Directions::is_default")]
    pub direction: Directions,
    /// How the spare is shared.
    #[serde(default, skip_serializing_if = "Share::is_default")]
    pub share: Share,
    /// With [`Share::Weighted`]: its part of the spare, in proportion to the others'.
    #[serde(default, skip_serializing_if = "is_one")]
    pub weight: Weight,
    /// The packets; empty for those of the container that is named as the service.
    #[serde(default, skip_serializing_if = "Selector::is_empty")]
    pub selector: Selector,
    /// How much may be sent before the ceiling drops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

fn is_one(weight: &Weight) -> bool {
    *weight == Weight::ONE
}

/// How the spare bandwidth is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// In equal parts above the minima: the paper's Eq. 1.
    #[default]
    Additive,
    /// By weight, with the minimum inside of the share: weighted max-min fairness.
    Weighted,
}

impl Share {
    fn is_default(&self) -> bool {
        *self == Share::default()
    }
}

/// The text is not a way of sharing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot share by `{0}`: write additive or weighted")]
pub struct ShareError(pub String);

impl FromStr for Share {
    type Err = ShareError;
    fn from_str(text: &str) -> Result<Share, ShareError> {
        match text {
            "additive" => Ok(Share::Additive),
            "weighted" => Ok(Share::Weighted),
            other => Err(ShareError(other.chars().take(32).collect())),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Share::Additive => "additive",
            Share::Weighted => "weighted",
        })
    }
}

/// Terms that contradict themselves, apart from rates and times, which admission tests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// The selector.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A weight that would not be used.
    #[error(
        "cannot weigh by {0}: an offer without a share has an equal one; write share = weighted, or leave the weight out"
    )]
    WeightUnused(u32),
    /// A quota for neither a day nor a month.
    #[error("cannot keep a quota without a size: give bytes for a day, a month or both")]
    QuotaWithoutSize,
    /// A ceiling after the quota that is higher than before.
    #[error("cannot raise the ceiling to {after} when the quota is used up: the maximum is {max}")]
    QuotaRaises {
        /// The ceiling after the quota.
        after: BitRate,
        /// The maximum before.
        max: BitRate,
    },
    /// A ceiling after the quota that is less than the grain.
    #[error("cannot hold a ceiling of {after} when the quota is used up: write at least {least}")]
    QuotaTooLow {
        /// The ceiling after the quota.
        after: BitRate,
        /// The least.
        least: BitRate,
    },
}

impl Terms {
    /// Those two rates and nothing else.
    #[must_use]
    pub fn new(min: BitRate, max: BitRate) -> Terms {
        Terms {
            min,
            max,
            start: None,
            end: None,
            direction: Directions::default(),
            share: Share::default(),
            weight: Weight::ONE,
            selector: Selector::default(),
            quota: None,
        }
    }

    /// Tests selector, weight and quota.
    ///
    /// # Errors
    /// [`TermsError`] for the first contradiction.
    pub fn check(&self) -> Result<(), TermsError> {
        self.selector.check()?;
        if self.share == Share::Additive && self.weight != Weight::ONE {
            return Err(TermsError::WeightUnused(self.weight.get()));
        }
        match self.quota {
            Some(Quota { day: None, month: None, .. }) => Err(TermsError::QuotaWithoutSize),
            Some(Quota { after, .. }) if after < crate::GRAIN => {
                Err(TermsError::QuotaTooLow { after, least: crate::GRAIN })
            }
            Some(Quota { after, .. }) if after > self.max => {
                Err(TermsError::QuotaRaises { after, max: self.max })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_units::Bytes;

    #[test]
    fn terms_that_contradict_themselves_are_refused() {
        let good = Terms::new(BitRate::mbit(1), BitRate::mbit(2));
        assert_eq!(good.check(), Ok(()));
        let weighted = Terms { weight: Weight::new(3).unwrap(), ..good.clone() };
        assert_eq!(weighted.check(), Err(TermsError::WeightUnused(3)));
        assert_eq!(Terms { share: Share::Weighted, ..weighted }.check(), Ok(()));

        let quota = |day, after| Terms { quota: Some(Quota { day, month: None, after }), ..good.clone() };
        let day = Some(Bytes(1 << 30));
        assert_eq!(quota(day, BitRate::kbit(64)).check(), Ok(()));
        assert_eq!(quota(None, BitRate::kbit(64)).check(), Err(TermsError::QuotaWithoutSize));
        assert!(matches!(quota(day, BitRate::mbit(3)).check(), Err(TermsError::QuotaRaises { .. })));
        assert!(matches!(quota(day, BitRate(0)).check(), Err(TermsError::QuotaTooLow { .. })));
        let selector = Selector { dscp: Some(64), ..Selector::default() };
        assert!(matches!(Terms { selector, ..good }.check(), Err(TermsError::Selector(_))));
    }
}
