//! `weir set` and `weir unset`.

use std::{
    collections::HashSet,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde::de::DeserializeOwned;
use weir_api::{Activity, ChangeError, Class, Origin, PolicyChange, PolicyView, SetPolicies, Setting};
use weir_units::{BitRate, plain_words};

use super::{Session, Usage, name, plan, ps};

const SET_EXAMPLES: &str = "Examples:
  weir set web weight=3                    three shares where others have one
  weir set web min=20mbit max=50mbit       never less, never more
  weir set web min=none                    that of the file or label again
  weir set web down.max=20mbit             of what arrives
  weir set docker:web weight=2             where two sources know a `web`
  weir set batch max=5mbit --keep          for when `batch` comes
  weir set --file changes.json             many at once: all of them, or none
  weir set web min=30mbit --dry-run        what it would change

A file, or `-` for standard input, holds a list:
  [{\"name\": \"web\", \"weight\": 3},
   {\"name\": \"batch\", \"min\": null, \"max\": \"5mbit\"}]

Rates are 500kbit, 20mbit, 1.5gbit, 20Mbps or 20M, in bits. Values that are
not named stay as they are. A change takes effect at once, under load too, and
outlives a restart of the agent. `weir undo` takes the last change back.";

#[derive(Debug, Args)]
#[command(after_help = SET_EXAMPLES)]
pub(super) struct SetArgs {
    /// The class to change
    #[arg(required_unless_present = "file", value_parser = class_name)]
    name: Option<String>,
    /// weight=N, min=RATE, max=RATE, and down.weight, down.min, down.max of what arrives; `none` takes
    /// back what was set
    #[arg(required_unless_present = "file", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Read many changes from a JSON file
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "settings"])]
    file: Option<PathBuf>,
    /// Keep the policy for a class that is not here now
    #[arg(long)]
    keep: bool,
    /// Only show what would change; the agent refuses what it would refuse without this option
    #[arg(long)]
    dry_run: bool,
}

const UNSET_EXAMPLES: &str = "Examples:
  weir unset web   what the configuration file, labels or defaults say counts
                   again

To take back one value only: weir set web min=none";

#[derive(Debug, Args)]
#[command(after_help = UNSET_EXAMPLES)]
pub(super) struct UnsetArgs {
    /// The class whose policy goes back
    #[arg(value_parser = name)]
    name: String,
}

pub(super) fn set(args: SetArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let mut asked = match (args.file, args.name) {
        (Some(file), _) => from_file(&file)?,
        (None, Some(name)) => {
            let change = PolicyChange::of(name, &args.settings).map_err(usage)?;
            SetPolicies { changes: vec![change], allow_absent: false }
        }
        (None, None) => return Err(Usage("name a class, or a file with --file".to_owned()).into()),
    };
    asked.allow_absent |= args.keep;
    check(&asked)?;
    if args.dry_run {
        let plan = session.client.plan(&asked)?;
        session.print(&plan, |out, look| plan::write(out, look, &plan))?;
        return Ok(ExitCode::SUCCESS);
    }
    let changed = session.client.set(&asked)?;
    session.print(&changed, |out, look| {
        ps::write(out, look, &changed, false)?;
        overruled(&asked, &changed).iter().try_for_each(|why| writeln!(out, "! {why}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The values that were set and do not count, because an agreement says otherwise.
fn overruled(asked: &SetPolicies, changed: &[Class]) -> Vec<String> {
    let of_agreement = |class: &Class| {
        let id = class.agreement.clone()?;
        let is_about = |name: &str| name == class.name || name == format!("{}:{}", class.source, class.name);
        let change = asked.changes.iter().find(|change| is_about(&change.name))?;
        let policy = &class.policy;
        let text = |key: &str, value: Option<String>, origin| {
            value.filter(|_| origin == Origin::Agreement).map(|value| format!("{key}={value}"))
        };
        let rate = |rate: Option<Option<BitRate>>| rate.flatten().map(|rate| rate.to_string());
        let weight = change.weight.flatten().map(|weight| weight.to_string());
        let values: Vec<String> = [
            text("weight", weight, policy.weight_origin),
            text("min", rate(change.min), policy.min_origin),
            text("max", rate(change.max), policy.max_origin),
        ]
        .into_iter()
        .flatten()
        .collect();
        let verb = if values.len() == 1 { "does" } else { "do" };
        let (name, values) = (&class.name, (!values.is_empty()).then(|| values.join(" "))?);
        Some(format!(
            "{name}: {values} {verb} not count while agreement {id} is in force (`weir agree show {id}`)"
        ))
    };
    changed.iter().filter_map(of_agreement).collect()
}

pub(super) fn unset(args: &UnsetArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let class = session.client.unset(&args.name)?;
    session.print(&class, |out, look| match kept(&class) {
        Some(values) => writeln!(out, "took away the policy that was kept for {}: {values}", class.name),
        None => ps::write(out, look, std::slice::from_ref(&class), false),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The policy of a class that was not here, which was taken away. Others are answered as they are now.
fn kept(class: &Class) -> Option<String> {
    let values = |policy: &PolicyView, of: &str| -> Vec<String> {
        let rate = |rate: Option<BitRate>| rate.map_or("none".to_owned(), |rate| rate.to_string());
        let all = [
            ("weight", policy.weight.to_string(), policy.weight_origin),
            ("min", rate(policy.min.or(class.unpromised.filter(|_| of.is_empty()))), policy.min_origin),
            ("max", rate(policy.max), policy.max_origin),
        ];
        let set = all.into_iter().filter(|(.., origin)| *origin == Origin::Set);
        set.map(|(key, value, _)| format!("{of}{key}={value}")).collect()
    };
    let mut all = values(&class.policy, "");
    all.extend(class.down.iter().flat_map(|down| values(&down.policy, "down.")));
    (class.activity == Activity::Absent && !all.is_empty()).then(|| all.join(" "))
}

/// Parses a class's name, and detects a forgotten one.
fn class_name(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some(("weight" | "min" | "max" | "down.weight" | "down.min" | "down.max", _)) => {
            Err("the class comes first: weir set NAME KEY=VALUE".to_owned())
        }
        _ => name(text),
    }
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
    // Editors of Windows write it. The configuration may begin with one too.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let wrong = |e: String| Usage(format!("cannot read changes from {name}: {e}"));
    if text.trim_start().starts_with('[') {
        Ok(SetPolicies { changes: json(text).map_err(wrong)?, allow_absent: false })
    } else {
        json(text).map_err(wrong)
    }
}

/// Parses JSON. An error names the field.
fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(text.as_bytes());
    let value = serde_path_to_error::deserialize(&mut json).map_err(|e| plain_words(&e.to_string()))?;
    json.end().map_err(|e| e.to_string())?;
    Ok(value)
}

fn usage(error: ChangeError) -> Usage {
    Usage(error.to_string())
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
        change.check().map_err(usage)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str) -> Class {
        weir_fake_agent::class(name, BitRate::ZERO, BitRate::ZERO)
    }

    #[test]
    fn policy_kept_for_an_absent_class_is_named_when_it_goes() {
        let mut ghost = Class { activity: Activity::Absent, ..class("ghost") };
        assert_eq!(kept(&ghost), None, "nothing was set");
        ghost.policy.weight = "2".parse().unwrap();
        ghost.policy.weight_origin = Origin::Set;
        assert_eq!(kept(&ghost).as_deref(), Some("weight=2"));
        // An absent class's minimum is not promised.
        (ghost.policy.min_origin, ghost.unpromised) = (Origin::Set, Some(BitRate::mbit(5)));
        let mut down = weir_fake_agent::download(BitRate::ZERO);
        down.policy.max_origin = Origin::Set;
        ghost.down = Some(down);
        assert_eq!(kept(&ghost).as_deref(), Some("weight=2 min=5mbit down.max=20mbit"));
        ghost.activity = Activity::Idle;
        assert_eq!(kept(&ghost), None, "a class that is here has another policy now");
    }

    #[test]
    fn value_that_an_agreement_overrules_is_named_with_it() {
        let change = PolicyChange {
            name: "docker:web".to_owned(),
            weight: Some("2".parse().ok()),
            max: Some(Some(BitRate::mbit(2))),
            ..PolicyChange::default()
        };
        let asked = SetPolicies { changes: vec![change], allow_absent: false };
        let mut web = class("web");
        web.policy.max_origin = Origin::Agreement;
        assert_eq!(overruled(&asked, &[web.clone()]), Vec::<String>::new(), "there is no agreement");
        web.agreement = Some("a-17".to_owned());
        let expected =
            "web: max=2mbit does not count while agreement a-17 is in force (`weir agree show a-17`)";
        assert_eq!(overruled(&asked, &[web.clone(), class("db")]), [expected]);
        web.policy.weight_origin = Origin::Agreement;
        assert!(overruled(&asked, &[web])[0].starts_with("web: weight=2 max=2mbit do not count"));
    }

    #[test]
    fn file_of_changes_may_begin_with_a_byte_order_mark() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "\u{feff}[{\"name\": \"web\", \"weight\": 3}]").unwrap();
        assert_eq!(from_file(file.path()).unwrap().changes[0].name, "web");
    }
}
