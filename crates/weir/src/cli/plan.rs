//! `weir plan`, and the table of a plan.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::Args;
use weir_api::{
    ClientError, ConfigurationText, ErrorCode, Plan, PlannedChange, PlannedLink, PlannedSetting,
    PlannedState, PolicyView,
};

use weir_units::Bytes;

use super::{
    Session, Usage,
    format::{self, Look, Table, Tone},
};

const EXAMPLES: &str = "Examples:
  weir plan /etc/weir/weir.toml       what would it change?
  weir plan new.toml                  a file that is to become it
  weir plan new.toml --json | jq '.classes[] | .name'

The running agent judges the file as it would at a reload, against the
containers and policies of this moment, and changes nothing. It refuses what it
would refuse then, with the numbers. Each line of the table is a class;
`20mbit -> 5mbit` is its value now and then. It needs the right `operate`
([access] of the configuration). Without an agent,
`weir agent --check --config FILE` says whether a file is good.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PlanArgs {
    /// The configuration file to judge
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(args: &PlanArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let path = args.file.display().to_string();
    let text = fs::read_to_string(&args.file)
        .map_err(|e| Usage(format!("cannot read configuration {path}: {e}")))?;
    let bytes = Bytes(text.len() as u64);
    let plan = session.client.plan_configuration(&ConfigurationText { path: path.clone(), text });
    let plan = plan.map_err(|e| refused(e, &path, bytes))?;
    session.print(&plan, |out, look| write(out, look, &plan))?;
    Ok(ExitCode::SUCCESS)
}

/// The agent's refusal of a file. A fault of the file is an error of the command's input.
fn refused(error: ClientError, path: &str, bytes: Bytes) -> anyhow::Error {
    match error {
        ClientError::Refused(why) if why.code == ErrorCode::BadRequest => Usage(why.message).into(),
        ClientError::Refused(why) if why.code == ErrorCode::TooLarge => {
            let why = format!("its {bytes} are too many for one request (2MiB): shorten it");
            Usage(format!("cannot plan configuration {path}: {why}")).into()
        }
        other => other.into(),
    }
}

/// Writes a plan.
pub(super) fn write(out: &mut dyn Write, look: Look, plan: &Plan) -> io::Result<()> {
    if plan.settings.is_empty() && plan.classes.is_empty() && plan.links.is_empty() {
        return writeln!(out, "nothing would change");
    }
    if !plan.settings.is_empty() {
        write_settings(out, look, &plan.settings, ["NOW", "THEN"])?;
    }
    if !plan.classes.is_empty() {
        if !plan.settings.is_empty() {
            writeln!(out)?;
        }
        write_changes(out, look, &plan.classes)?;
    }
    write_links(out, look, &plan.links)?;
    writeln!(out, "\nnothing is changed yet")
}

/// Writes a table for each link beside the main one.
pub(super) fn write_links(out: &mut dyn Write, look: Look, links: &[PlannedLink]) -> io::Result<()> {
    links.iter().try_for_each(|on| {
        writeln!(out, "\non link {}:", on.link)?;
        write_changes(out, look, &on.classes)
    })
}

/// Writes the table of settings that change, with the headings of both values.
pub(super) fn write_settings(
    out: &mut dyn Write,
    look: Look,
    settings: &[PlannedSetting],
    [before, after]: [&'static str; 2],
) -> io::Result<()> {
    let mut table = Table::new(look, &["SETTING", before, after]);
    for setting in settings {
        table.row([&setting.key, &setting.before, &setting.after].map(|text| (text.clone(), Tone::Plain)));
    }
    write!(out, "{table}")
}

/// Writes the table of classes that change. Minima that would not be promised follow.
pub(super) fn write_changes(out: &mut dyn Write, look: Look, changes: &[PlannedChange]) -> io::Result<()> {
    let mut table = Table::new(look, &["NAME", "CHANGE", "GROUP", ">WEIGHT", ">MIN", ">MAX", "OTHERS"]);
    for change in changes {
        let (verb, tone) = match (&change.before, &change.after) {
            (None, _) => ("new", Tone::Good),
            (_, None) => ("gone", Tone::Bad),
            _ => ("changed", Tone::Plain),
        };
        let part = |text: fn(&PlannedState) -> String| (both(change, text), Tone::Plain);
        table.row([
            (change.name.clone(), Tone::Plain),
            (verb.to_owned(), tone),
            part(|state| state.group.clone().unwrap_or_else(|| "-".to_owned())),
            part(|state| state.policy.weight.to_string()),
            part(|state| format::bound(state.policy.min)),
            part(|state| format::bound(state.policy.max)),
            (others(change), Tone::Plain),
        ]);
    }
    write!(out, "{table}")?;
    for change in changes {
        let why = |state: &Option<PlannedState>| state.as_ref().and_then(|state| state.not_promised.clone());
        if let Some(why) = why(&change.after).filter(|after| why(&change.before).as_ref() != Some(after)) {
            writeln!(out, "! {}: {why}", change.name)?;
        }
        let why =
            |state: &Option<PlannedState>| state.as_ref().and_then(|state| state.down_not_promised.clone());
        if let Some(why) = why(&change.after).filter(|after| why(&change.before).as_ref() != Some(after)) {
            writeln!(out, "! {}: download: {why}", change.name)?;
        }
    }
    Ok(())
}

/// The value now and then, or one of them if both are the same or one is missing.
fn both(change: &PlannedChange, text: fn(&PlannedState) -> String) -> String {
    match (change.before.as_ref().map(text), change.after.as_ref().map(text)) {
        (Some(before), Some(after)) if before != after => format!("{before} -> {after}"),
        (before, after) => after.or(before).unwrap_or_default(),
    }
}

/// The changes of the policy of what arrives. A value that stays is left out.
fn download(change: &PlannedChange) -> Vec<String> {
    let down = |state: &Option<PlannedState>| state.as_ref().and_then(|state| state.down);
    let (before, after) = (down(&change.before), down(&change.after));
    match (before, after) {
        (None, None) => Vec::new(),
        (Some(_), None) => vec!["no policy of the download".to_owned()],
        (before, Some(after)) => {
            let values = |policy: PolicyView| {
                [policy.weight.to_string(), format::bound(policy.min), format::bound(policy.max)]
            };
            let new = values(after);
            let old = before.map_or_else(|| ["1", "-", "-"].map(str::to_owned), values);
            let parts = ["weight", "min", "max"].into_iter().zip(old.into_iter().zip(new));
            let differs = parts.filter(|(_, (old, new))| old != new);
            let all: Vec<String> = differs
                .map(|(key, (old, new))| match before {
                    Some(_) => format!("down.{key} {old} -> {new}"),
                    None => format!("down.{key} {new}"),
                })
                .collect();
            let is_same = before.is_some_and(|before| values(before) == values(after));
            match (before.is_some_and(|before| before != after) && is_same, all.is_empty(), before) {
                (true, ..) => vec!["origin of the download's policy".to_owned()],
                (_, true, None) if change.before.is_some() => vec!["shares the download".to_owned()],
                _ => all,
            }
        }
    }
}

/// Names the changes that have no column.
fn others(change: &PlannedChange) -> String {
    let down = download(change);
    let (Some(before), Some(after)) = (&change.before, &change.after) else {
        // A class that goes takes all of its policies away.
        return if change.after.is_some() { down.join(", ") } else { String::new() };
    };
    let values = |state: &PlannedState| (state.policy.weight, state.policy.min, state.policy.max);
    let parts = [
        ("interfaces", before.interfaces != after.interfaces),
        ("selectors", before.selects != after.selects),
        ("presence", before.present != after.present),
        ("origin of the policy", before.policy != after.policy && values(before) == values(after)),
    ];
    let parts = parts.iter().filter(|part| part.1).map(|part| part.0.to_owned());
    parts.chain(down).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use weir_api::{Plan, Undone};
    use weir_fake_agent::{self as fake, FakeAgent};

    use super::super::tests::{ask, weir};

    const TABLE: &str = "\
NAME    CHANGE   GROUP     WEIGHT     MIN          MAX  OTHERS
web     changed  tenant-a  2 -> 5  20mbit  50mbit -> -
backup  new      -              1       -            -
camera  gone     -              1       -            -
! backup: its minimum of 50mbit is not promised: 18mbit of 38mbit is free
";

    /// The command `weir plan` of a file with this text.
    fn plan_of(agent: &FakeAgent, text: &str, more: &[&str]) -> super::super::tests::Outcome {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        ask(agent, &[&["plan", file.path().to_str().unwrap()], more].concat())
    }

    #[test]
    fn plan_lists_settings_then_classes_then_what_is_not_promised() {
        let agent = FakeAgent::start();
        let expected = format!(
            "\
SETTING          NOW               THEN
[link] capacity  100mbit           40mbit
promised         20mbit of 95mbit  20mbit of 38mbit

{TABLE}
nothing is changed yet
"
        );
        assert_eq!(plan_of(&agent, "[link]", &[]).good(), expected);
        assert_eq!(plan_of(&agent, "[link]", &["--json"]).json::<Plan>(), fake::configuration_plan());
    }

    #[test]
    fn changes_on_another_link_have_a_table_of_their_own() {
        use super::{super::format::Look, write};
        let classes = fake::configuration_plan().classes;
        let links = vec![weir_api::PlannedLink { link: "wwan0".to_owned(), classes }];
        let plan = Plan { settings: Vec::new(), classes: Vec::new(), links };
        let mut out = Vec::new();
        write(&mut out, Look::PLAIN, &plan).unwrap();
        let expected = format!("\non link wwan0:\n{TABLE}\nnothing is changed yet\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn file_that_the_agent_refuses_or_that_is_missing_is_an_error() {
        let agent = FakeAgent::start();
        let refused = plan_of(&agent, "", &[]);
        assert_eq!(refused.code, ExitCode::from(2));
        assert!(refused.err.ends_with(": missing field `link`\n"), "{}", refused.err);
        let missing = weir(&["plan", "/nowhere/weir.toml"]);
        assert_eq!(missing.code, ExitCode::from(2));
        assert!(
            missing.err.starts_with("weir: cannot read configuration /nowhere/weir.toml: No such file"),
            "{}",
            missing.err
        );
    }

    #[test]
    fn dry_run_shows_what_set_would_do_and_changes_nothing() {
        let agent = FakeAgent::start();
        let shown = ask(&agent, &["set", "web", "weight=5", "max=none", "--dry-run"]).good();
        let expected = "\
NAME  CHANGE   GROUP     WEIGHT     MIN          MAX  OTHERS
web   changed  tenant-a  2 -> 5  20mbit  50mbit -> -

nothing is changed yet
";
        assert_eq!(
            shown.lines().map(str::trim_end).collect::<Vec<_>>(),
            expected.lines().collect::<Vec<_>>()
        );
        assert_eq!(agent.client().classes().unwrap(), fake::classes());
        let same = ask(&agent, &["set", "web", "max=50mbit", "--dry-run"]).good();
        assert!(same.contains("changed  tenant-a       2  20mbit  50mbit  origin of the policy\n"), "{same}");
        let nothing = ask(&agent, &["set", "video", "weight=3", "--dry-run"]).good();
        assert_eq!(nothing, "nothing would change\n");
        let refused = ask(&agent, &["set", "web", "min=80mbit", "max=90mbit", "--dry-run"]);
        assert_eq!(refused.err, "weir: cannot promise web 80mbit: 60mbit of 95mbit is free\n");
    }

    #[test]
    fn changes_of_the_download_are_named_beside_the_others() {
        use super::{super::format::Look, write_changes};
        let mut changes = fake::configuration_plan().classes;
        changes.truncate(2);
        let down = fake::download(weir_units::BitRate::mbit(1)).policy;
        let (web, backup) = changes.split_at_mut(1);
        let (before, after) = (web[0].before.as_mut().unwrap(), web[0].after.as_mut().unwrap());
        before.down = Some(weir_api::PolicyView { max: None, ..down });
        after.down = Some(down);
        after.down_not_promised = Some("its minimum is not promised".to_owned());
        backup[0].after.as_mut().unwrap().down = Some(down);
        let mut out = Vec::new();
        write_changes(&mut out, Look::PLAIN, &changes).unwrap();
        let out = String::from_utf8(out).unwrap();
        for part in
            ["down.max - -> 20mbit\n", "down.max 20mbit\n", "! web: download: its minimum is not promised\n"]
        {
            assert!(out.contains(part), "{part}:\n{out}");
        }
    }

    /// A capacity of a download may be taken back that is not shared now.
    #[test]
    fn undo_of_a_capacity_that_is_not_in_force_says_so() {
        use super::{
            super::{format::Look, undo},
            *,
        };
        let undone = |settings, links| Undone {
            made_ms: 1_700_000_000_000,
            names: Vec::new(),
            settings,
            changes: Vec::new(),
            links,
            classes: Vec::new(),
        };
        let told = |undone: &Undone| {
            let mut out = Vec::new();
            undo::write(&mut out, Look::PLAIN, undone).unwrap();
            String::from_utf8(out).unwrap()
        };
        let first = "took back the change of 2023-11-14T22:13:20.000Z to the link's capacity\n";
        assert_eq!(
            told(&undone(Vec::new(), Vec::new())),
            format!("{first}no capacity in force differs by it\n")
        );
        let plan = fake::configuration_plan();
        let links = vec![PlannedLink { link: "wwan0".to_owned(), classes: plan.classes }];
        let told = told(&undone(plan.settings, links));
        assert!(told.starts_with(first) && told.ends_with(&format!("\non link wwan0:\n{TABLE}")), "{told}");
    }

    #[test]
    fn undo_says_which_change_it_took_back_and_what_differs() {
        let agent = FakeAgent::start();
        let expected = format!("took back the change of 2023-11-14T22:13:20.000Z to docker:web\n{TABLE}");
        assert_eq!(ask(&agent, &["undo"]).good(), expected);
        let undone: Undone = ask(&agent, &["undo", "--json"]).json();
        assert_eq!(undone.names, ["docker:web"]);
        assert!(ask(&agent, &["undo", "--dry-run"]).good().ends_with("\nnothing is changed yet\n"));
    }
}
