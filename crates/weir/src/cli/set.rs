//! `weir set` and `weir unset`.

use std::{
    collections::HashSet,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};

use clap::Args;
use serde::de::DeserializeOwned;
use weir_api::{PolicyChange, SetPolicies};
use weir_share::{Policy, PolicyError, Weight, WeightError};
use weir_units::{BitRate, ParseRateError};

use super::{Session, Usage, ps};

const SET_EXAMPLES: &str = "Examples:
  weir set web weight=3                    three shares where others have one
  weir set web min=20mbit max=50mbit       never less (while it sends), never more
  weir set web min=none                    take that back: the file's or label's minimum counts again
  weir set docker:web weight=2             where two sources know a `web`
  weir set batch max=5mbit --keep          for when `batch` comes
  weir set --file changes.json             many at once: all of them, or none

A file, or `-` for standard input, holds a list:
  [{\"name\": \"web\", \"weight\": 3}, {\"name\": \"batch\", \"min\": null, \"max\": \"5mbit\"}]

Rates are 500kbit, 20mbit, 1.5gbit, 20Mbps or 20M, in bits. What is not named stays as it
is. A change takes effect at once, under load too, and outlives a restart of the agent.";

#[derive(Debug, Args)]
#[command(after_help = SET_EXAMPLES)]
pub(super) struct SetArgs {
    /// The class to change
    #[arg(required_unless_present = "file", value_parser = class_name)]
    name: Option<String>,
    /// weight=N, min=RATE, max=RATE; `none` takes back what was set
    #[arg(required_unless_present = "file", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Read many changes from a JSON file
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "settings"])]
    file: Option<PathBuf>,
    /// Keep the policy for a class that is not here now
    #[arg(long)]
    keep: bool,
}

const UNSET_EXAMPLES: &str = "Examples:
  weir unset web       what the configuration file, labels or defaults say counts again

To take back one value only: weir set web min=none";

#[derive(Debug, Args)]
#[command(after_help = UNSET_EXAMPLES)]
pub(super) struct UnsetArgs {
    /// The class whose policy goes back
    name: String,
}

pub(super) fn set(args: SetArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let mut asked = match (args.file, args.name) {
        (Some(file), _) => from_file(&file)?,
        (None, Some(name)) => {
            SetPolicies { changes: vec![from_settings(name, &args.settings)?], allow_absent: false }
        }
        (None, None) => return Err(Usage("name a class, or a file with --file".to_owned()).into()),
    };
    asked.allow_absent |= args.keep;
    check(&asked)?;
    let changed = session.client.set(&asked)?;
    session.print(&changed, |out, look| ps::write(out, look, &changed, false))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn unset(args: &UnsetArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let class = session.client.unset(&args.name)?;
    session.print(&class, |out, look| ps::write(out, look, std::slice::from_ref(&class), false))?;
    Ok(ExitCode::SUCCESS)
}

/// One `key=value`. `None` stands for `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    Weight(Option<Weight>),
    Min(Option<BitRate>),
    Max(Option<BitRate>),
}

/// The error of a text that is no setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum SettingError {
    #[error("write weight=N, min=RATE or max=RATE")]
    Syntax,
    #[error("there is no `{0}` to set: write weight, min or max")]
    UnknownKey(String),
    #[error("`{0}=` lacks its value: write one, or `{0}=none` to take back what was set")]
    NoValue(String),
    #[error(transparent)]
    Weight(#[from] WeightError),
    #[error(transparent)]
    Rate(#[from] ParseRateError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl Setting {
    fn key(self) -> &'static str {
        match self {
            Setting::Weight(_) => "weight",
            Setting::Min(_) => "min",
            Setting::Max(_) => "max",
        }
    }
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Setting, SettingError> {
        let (key, value) = text.split_once('=').ok_or(SettingError::Syntax)?;
        if !["weight", "min", "max"].contains(&key) {
            return Err(SettingError::UnknownKey(key.to_owned()));
        }
        if value.is_empty() {
            return Err(SettingError::NoValue(key.to_owned()));
        }
        let given = Some(value).filter(|value| *value != "none");
        let rate = || given.map(str::parse::<BitRate>).transpose();
        Ok(match key {
            "weight" => Setting::Weight(given.map(str::parse).transpose()?),
            "min" => {
                let min = rate()?;
                Policy::new(Weight::ONE, min, None)?;
                Setting::Min(min)
            }
            _ => {
                let max = rate()?;
                Policy::new(Weight::ONE, None, max)?;
                Setting::Max(max)
            }
        })
    }
}

/// Parses a class's name, and detects a forgotten one.
fn class_name(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some(("weight" | "min" | "max", _)) => {
            Err("the class comes first: weir set NAME KEY=VALUE".to_owned())
        }
        _ if text.is_empty() => Err("a name has at least one character".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn from_settings(name: String, settings: &[Setting]) -> Result<PolicyChange, Usage> {
    let mut change = PolicyChange { name, ..PolicyChange::default() };
    for setting in settings {
        let again = match *setting {
            Setting::Weight(weight) => change.weight.replace(weight).is_some(),
            Setting::Min(min) => change.min.replace(min).is_some(),
            Setting::Max(max) => change.max.replace(max).is_some(),
        };
        if again {
            return Err(Usage(format!("cannot set {} of {} twice in one call", setting.key(), change.name)));
        }
    }
    Ok(change)
}

/// Reads changes from a file: a list, or the whole body of an API request.
fn from_file(file: &Path) -> Result<SetPolicies, Usage> {
    let mut text = String::new();
    let (name, read) = if file == Path::new("-") {
        ("standard input".to_owned(), io::stdin().read_to_string(&mut text).map(drop))
    } else {
        (file.display().to_string(), fs::read_to_string(file).map(|read| text = read))
    };
    read.map_err(|e| Usage(format!("cannot read changes from {name}: {e}")))?;
    let wrong = |e: String| Usage(format!("cannot read changes from {name}: {e}"));
    if text.trim_start().starts_with('[') {
        Ok(SetPolicies { changes: json(&text).map_err(wrong)?, allow_absent: false })
    } else {
        json(&text).map_err(wrong)
    }
}

/// Parses JSON. An error names the field.
fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|e| e.to_string())?;
    json.end().map_err(|e| e.to_string())?;
    Ok(value)
}

/// Refuses a request that the agent would refuse in any state.
fn check(asked: &SetPolicies) -> Result<(), Usage> {
    if asked.changes.is_empty() {
        return Err(Usage("there is no change in the file".to_owned()));
    }
    let mut names = HashSet::new();
    for change in &asked.changes {
        if !names.insert(&change.name) {
            return Err(Usage(format!("cannot set {} twice in one call", change.name)));
        }
        Policy::new(Weight::ONE, change.min.flatten(), change.max.flatten())
            .map_err(|e| Usage(format!("cannot set {}: {e}", change.name)))?;
    }
    Ok(())
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
    }

    #[test]
    fn each_wrong_setting_is_refused_for_its_own_reason() {
        use SettingError as E;
        let refused = |text: &str| text.parse::<Setting>().unwrap_err();
        assert_eq!(refused("weight"), E::Syntax);
        assert_eq!(refused("wieght=3"), E::UnknownKey("wieght".to_owned()));
        assert_eq!(refused("=3"), E::UnknownKey(String::new()));
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
}
