//! Settings of a policy as text, `weight=3`, for the command line and the file system.

use std::str::FromStr;

use weir_share::{Policy, PolicyError, Weight, WeightError};
use weir_units::{BitRate, ParseRateError};

use crate::{DownChange, PolicyChange};

/// One `key=value`. `None` stands for `none`, which takes back what was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// `weight=N`.
    Weight(Option<Weight>),
    /// `min=RATE`.
    Min(Option<BitRate>),
    /// `max=RATE`.
    Max(Option<BitRate>),
    /// `down.weight=N`: of what arrives.
    DownWeight(Option<Weight>),
    /// `down.min=RATE`.
    DownMin(Option<BitRate>),
    /// `down.max=RATE`.
    DownMax(Option<BitRate>),
}

/// The error of a text that is no setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The text is not `key=value`.
    #[error("write weight=N, min=RATE or max=RATE, or down.max=RATE for what arrives")]
    Syntax,
    /// A policy has no such key.
    #[error("there is no `{0}` to set: write weight, min or max, or down.weight, down.min or down.max")]
    UnknownKey(String),
    /// The text ends after `key=`.
    #[error("`{0}=` lacks its value: write one, or `{0}=none` to take back what was set")]
    NoValue(String),
    /// The value is no weight.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// The value is no rate.
    #[error(transparent)]
    Rate(#[from] ParseRateError),
    /// The kernel cannot enforce the value.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The error of settings that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Two settings have the same key.
    #[error("cannot set {key} of {name} twice in one call")]
    Twice {
        /// The key.
        key: &'static str,
        /// The class.
        name: String,
    },
    /// No policy has these values.
    #[error("cannot set {name}: {why}")]
    Contradiction {
        /// The class.
        name: String,
        /// The rule that they break.
        why: PolicyError,
    },
}

impl Setting {
    /// The key: `weight`, `min` or `max`, or one of these after `down.`.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Setting::Weight(_) => "weight",
            Setting::Min(_) => "min",
            Setting::Max(_) => "max",
            Setting::DownWeight(_) => "down.weight",
            Setting::DownMin(_) => "down.min",
            Setting::DownMax(_) => "down.max",
        }
    }
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Setting, SettingError> {
        let (key, value) = text.split_once('=').ok_or(SettingError::Syntax)?;
        let (is_down, part) = key.strip_prefix("down.").map_or((false, key), |part| (true, part));
        if !["weight", "min", "max"].contains(&part) {
            return Err(SettingError::UnknownKey(key.to_owned()));
        }
        if value.is_empty() {
            return Err(SettingError::NoValue(key.to_owned()));
        }
        let given = Some(value).filter(|value| *value != "none");
        let rate = || given.map(str::parse::<BitRate>).transpose();
        Ok(match part {
            "weight" => {
                let weight = given.map(str::parse).transpose()?;
                if is_down { Setting::DownWeight(weight) } else { Setting::Weight(weight) }
            }
            "min" => {
                let min = rate()?;
                Policy::new(Weight::ONE, min, None)?;
                if is_down { Setting::DownMin(min) } else { Setting::Min(min) }
            }
            _ => {
                let max = rate()?;
                Policy::new(Weight::ONE, None, max)?;
                if is_down { Setting::DownMax(max) } else { Setting::Max(max) }
            }
        })
    }
}

impl PolicyChange {
    /// The change of class `name` that these settings describe.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn of(name: impl Into<String>, settings: &[Setting]) -> Result<PolicyChange, ChangeError> {
        let mut change = PolicyChange { name: name.into(), ..PolicyChange::default() };
        fn down(change: &mut PolicyChange) -> &mut DownChange {
            change.down.get_or_insert_default()
        }
        for setting in settings {
            let again = match *setting {
                Setting::Weight(weight) => change.weight.replace(weight).is_some(),
                Setting::Min(min) => change.min.replace(min).is_some(),
                Setting::Max(max) => change.max.replace(max).is_some(),
                Setting::DownWeight(weight) => down(&mut change).weight.replace(weight).is_some(),
                Setting::DownMin(min) => down(&mut change).min.replace(min).is_some(),
                Setting::DownMax(max) => down(&mut change).max.replace(max).is_some(),
            };
            if again {
                return Err(ChangeError::Twice { key: setting.key(), name: change.name });
            }
        }
        change.check()?;
        Ok(change)
    }

    /// Refuses a change that an agent would refuse in any state.
    ///
    /// # Errors
    /// [`ChangeError::Contradiction`].
    pub fn check(&self) -> Result<(), ChangeError> {
        let down = self.down.unwrap_or_default();
        for (min, max) in [(self.min, self.max), (down.min, down.max)] {
            Policy::new(Weight::ONE, min.flatten(), max.flatten())
                .map_err(|why| ChangeError::Contradiction { name: self.name.clone(), why })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_in_the_units_people_use() {
        assert_eq!("weight=3".parse(), Ok(Setting::Weight(Some(Weight::new(3).unwrap()))));
        assert_eq!("min=20mbit".parse(), Ok(Setting::Min(Some(BitRate::mbit(20)))));
        assert_eq!("max=1.5Gbps".parse(), Ok(Setting::Max(Some(BitRate::mbit(1_500)))));
        assert_eq!("max=none".parse(), Ok(Setting::Max(None)));
        assert_eq!("weight=none".parse(), Ok(Setting::Weight(None)));
        assert_eq!("down.weight=2".parse(), Ok(Setting::DownWeight(Some(Weight::new(2).unwrap()))));
        assert_eq!("down.min=1mbit".parse(), Ok(Setting::DownMin(Some(BitRate::mbit(1)))));
        assert_eq!("down.max=none".parse(), Ok(Setting::DownMax(None)));
    }

    #[test]
    fn each_wrong_setting_is_refused_for_its_own_reason() {
        use SettingError as E;
        let refused = |text: &str| text.parse::<Setting>().unwrap_err();
        assert_eq!(refused("weight"), E::Syntax);
        assert_eq!(refused("wieght=3"), E::UnknownKey("wieght".to_owned()));
        assert_eq!(refused("=3"), E::UnknownKey(String::new()));
        assert_eq!(refused("down.rate=3"), E::UnknownKey("down.rate".to_owned()));
        assert_eq!(refused("min="), E::NoValue("min".to_owned()));
        for text in ["weight=0", "weight=-1", "weight=1.5", "weight=3x", "weight=99999999999"] {
            assert!(matches!(refused(text), E::Weight(_)), "{text}");
        }
        assert!(matches!(refused("min=-5mbit"), E::Rate(ParseRateError::Negative(_))));
        assert!(matches!(refused("min=fast"), E::Rate(ParseRateError::Syntax(_))));
        assert!(matches!(refused("min=20 apples"), E::Rate(ParseRateError::Syntax(_))));
        assert!(matches!(refused("max=999999gbit"), E::Rate(ParseRateError::TooLarge(_))));
        assert_eq!(refused("min=0"), E::Policy(PolicyError::MinZero));
        assert_eq!(refused("max=0mbit"), E::Policy(PolicyError::MaxZero));
        assert_eq!(refused("max=1bit"), E::Policy(PolicyError::TooSmall(BitRate(1))));
    }

    #[test]
    fn settings_that_contradict_each_other_make_no_change() {
        let of = |texts: &[&str]| {
            let settings: Vec<Setting> = texts.iter().map(|text| text.parse().unwrap()).collect();
            PolicyChange::of("web", &settings)
        };
        let change = of(&["weight=3", "min=none"]).unwrap();
        assert_eq!(
            (change.weight, change.min, change.max),
            (Some(Some(Weight::new(3).unwrap())), Some(None), None)
        );
        assert_eq!(
            of(&["weight=1", "weight=2"]).unwrap_err(),
            ChangeError::Twice { key: "weight", name: "web".to_owned() }
        );
        assert!(matches!(of(&["min=30mbit", "max=20mbit"]), Err(ChangeError::Contradiction { .. })));
        let down = of(&["min=30mbit", "down.max=20mbit"]).unwrap().down.unwrap();
        assert_eq!((down.weight, down.min, down.max), (None, None, Some(Some(BitRate::mbit(20)))));
        assert!(matches!(of(&["down.min=3mbit", "down.max=2mbit"]), Err(ChangeError::Contradiction { .. })));
        let twice = ChangeError::Twice { key: "down.max", name: "web".to_owned() };
        assert_eq!(of(&["down.max=1mbit", "max=1mbit", "down.max=2mbit"]).unwrap_err(), twice);
    }
}
