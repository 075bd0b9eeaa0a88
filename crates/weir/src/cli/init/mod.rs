//! `weir init`: writes the configuration of this node.

mod survey;
#[cfg(test)]
mod tests;

use std::{
    fs,
    io::{self, BufRead, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use weir_units::BitRate;

use self::survey::Survey;
use super::{CONFIG, Session, Usage};

const EXAMPLES: &str = "Examples:
  weir init                                     ask what this node does not
                                                tell
  weir init --dry-run --capacity 95mbit --yes   show the file, write nothing
  weir init --capacity 95mbit --yes             ask nothing, for scripts
  weir init --device wwan0 --capacity 18mbit --yes --config weir.toml

The uplink is the device of the default route. Its capacity is what the link
carries away from this node, less about 5 %, so that queues form here and not
in a modem. Take it from a contract or from a measurement. The speed of the
port is only an upper bound; weir proposes it if the port tells one. At most
three questions are asked, and none without a terminal: then `--capacity` and
`--yes` are needed, and `--device` if several devices have a default route.

An existing file is kept unless `--force` is given. A file as `make install`
writes it, with nothing filled in, counts as none.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct InitArgs {
    /// The uplink; by default the device of the default route
    #[arg(long, short, value_name = "DEVICE")]
    device: Option<String>,
    /// The rate that the uplink carries, less about 5 %
    #[arg(long, value_name = "RATE")]
    capacity: Option<BitRate>,
    /// The file to write
    #[arg(long, short, value_name = "FILE", default_value = "/etc/weir/weir.toml")]
    config: PathBuf,
    /// Ask nothing, and write the file
    #[arg(long, short)]
    yes: bool,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Show the file and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// The answer in JSON.
#[derive(Debug, Serialize)]
struct Answer {
    config: PathBuf,
    written: bool,
    device: String,
    capacity: BitRate,
    /// The findings on this node, one sentence each.
    found: Vec<String>,
    text: String,
    /// The command that comes next.
    next: String,
    /// The command that proves the shares on the link, before the agent runs for good.
    test: String,
}

/// A person who answers questions.
trait Person {
    /// The answer without its line break; empty for the proposal.
    fn ask(&mut self, question: &str) -> io::Result<String>;
}

/// The person at the terminal. Questions go to standard error.
struct Terminal;

impl Person for Terminal {
    fn ask(&mut self, question: &str) -> io::Result<String> {
        eprint!("{question} ");
        io::stderr().flush()?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "standard input has ended"));
        }
        Ok(line.trim().to_owned())
    }
}

pub(super) fn run(args: &InitArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let survey = Survey::of_this_node()?;
    let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    let mut terminal = Terminal;
    let person: Option<&mut dyn Person> = if is_terminal && !args.yes { Some(&mut terminal) } else { None };
    init(args, &survey, person, session)
}

fn init(
    args: &InitArgs,
    survey: &Survey,
    mut person: Option<&mut dyn Person>,
    session: &mut Session<'_>,
) -> anyhow::Result<ExitCode> {
    let replace = may_replace(args)?;
    let device = device(args, survey, &mut person)?;
    let capacity = capacity(args, survey, &device, &mut person)?;
    let text = configuration(survey, &device, capacity);
    // The agent would refuse what this refuses.
    weir_agent::config::parse(&text, &args.config)?;
    if let (Some(person), false) = (&mut person, args.dry_run) {
        let question = format!("\n{text}\nWrite this to {}? [Y/n]", args.config.display());
        if !is_yes(&ask(&mut **person, &question)?) {
            anyhow::bail!("nothing was written, as the answer was not yes");
        }
    } else if !args.yes && !args.dry_run {
        return Err(missing("--yes", "to write the file without a question").into());
    }
    if !args.dry_run {
        write(&args.config, &text, replace)?;
    }
    let answer = Answer {
        config: args.config.clone(),
        written: !args.dry_run,
        device,
        capacity,
        found: survey.words(),
        text,
        next: next(survey, &args.config),
        test: test(&args.config),
    };
    session.print(&answer, |out, _| show(out, &answer))?;
    Ok(ExitCode::SUCCESS)
}

fn show(out: &mut dyn Write, answer: &Answer) -> io::Result<()> {
    for found in &answer.found {
        writeln!(out, "{found}")?;
    }
    let config = answer.config.display();
    if !answer.written {
        writeln!(out, "would write {config}:\n\n{}", answer.text)?;
        return writeln!(
            out,
            "without --dry-run the file is written, and the next command is: {}",
            answer.next
        );
    }
    writeln!(out, "wrote {config}: weir shares {} of {}", answer.capacity, answer.device)?;
    writeln!(out, "next: {}", answer.next)?;
    writeln!(
        out,
        "before it, `{}` proves the shares on {} and leaves nothing behind",
        answer.test, answer.device
    )
}

/// Whether a file is there that may be replaced.
///
/// # Errors
/// It may not.
fn may_replace(args: &InitArgs) -> anyhow::Result<bool> {
    let path = args.config.display();
    // A link without a target is there, though its file is not.
    let is_there = fs::symlink_metadata(&args.config).is_ok();
    if fs::metadata(&args.config).is_ok_and(|found| !found.is_file()) {
        anyhow::bail!("cannot write {path}: it is there, and is not a regular file");
    }
    match fs::read_to_string(&args.config) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && !is_there => Ok(false),
        Ok(text) if text == CONFIG || args.force => Ok(true),
        Err(_) if args.force => Ok(true),
        Ok(_) => anyhow::bail!(
            "cannot write {path}: it is there, and something is filled in: `--force` replaces it, `weir plan` judges \
             another file"
        ),
        Err(e) => Err(e).with_context(|| format!("cannot read {path}")),
    }
}

/// The uplink.
fn device(args: &InitArgs, survey: &Survey, person: &mut Option<&mut dyn Person>) -> anyhow::Result<String> {
    let is_here = |name: &str| survey.devices.iter().any(|device| device == name);
    let chosen = match (&args.device, survey.uplinks.as_slice(), person) {
        (Some(device), ..) => device.clone(),
        (None, [only], _) => only.name.clone(),
        (None, [], None) => return Err(missing("--device", "no device has a default route").into()),
        (None, several, None) => {
            let names: Vec<&str> = several.iter().map(|uplink| uplink.name.as_str()).collect();
            let why = format!("default routes lead to {}", names.join(" and "));
            return Err(missing("--device", &why).into());
        }
        (None, [], Some(person)) => {
            ask(&mut **person, "No device has a default route. Which device is the uplink?")?
        }
        (None, several @ [first, ..], Some(person)) => {
            let names: Vec<&str> = several.iter().map(|uplink| uplink.name.as_str()).collect();
            let question = format!(
                "Default routes lead to {}. Which one is the uplink? [{}]",
                names.join(" and "),
                first.name
            );
            let answer = ask(&mut **person, &question)?;
            if answer.is_empty() { first.name.clone() } else { answer }
        }
    };
    if !is_here(&chosen) {
        let here = match survey.devices.join(", ") {
            none if none.is_empty() => "this node has none but the loopback".to_owned(),
            devices => format!("here are {devices} (`ip -br link` tells more)"),
        };
        return Err(Usage(format!("there is no interface `{chosen}`: {here}")).into());
    }
    Ok(chosen)
}

/// The rate that the uplink carries.
fn capacity(
    args: &InitArgs,
    survey: &Survey,
    device: &str,
    person: &mut Option<&mut dyn Person>,
) -> anyhow::Result<BitRate> {
    if let Some(capacity) = args.capacity {
        return Ok(capacity);
    }
    let speed = survey.speed(device);
    let proposal = speed.map(|speed| speed.scale(95, 100));
    let Some(person) = person else {
        let port =
            speed.map(|speed| format!("; its port runs at {speed}, and the way behind it may be slower"));
        let why = format!("no one says what {device} carries{}", port.unwrap_or_default());
        return Err(missing("--capacity", &why).into());
    };
    let hint = match (speed, proposal) {
        (Some(speed), Some(proposal)) => {
            format!(" Its port runs at {speed}; the way behind it may be slower. [{proposal}]")
        }
        _ => " (as 18mbit)".to_owned(),
    };
    let question = format!("What does {device} carry away from this node, less about 5 %?{hint}");
    let answer = ask(&mut **person, &question)?;
    match (answer.is_empty(), proposal) {
        (true, Some(proposal)) => Ok(proposal),
        (true, None) => Err(missing("--capacity", "the answer was empty").into()),
        (false, _) => answer.parse().map_err(|e| Usage(format!("{e}")).into()),
    }
}

/// The text of the file, at most ten lines.
fn configuration(survey: &Survey, device: &str, capacity: BitRate) -> String {
    let docker = if survey.has_docker { "true" } else { "false         # no Docker here" };
    // A device's name may hold quotes and backslashes.
    let device = toml::Value::String(device.to_owned());
    let mut text = format!(
        "# Written by `weir init`. `man weir.toml` lists all keys; `weir plan` judges a change before it is made.\n\
         [link]\ndevice = {device}\ncapacity = \"{capacity}\"\n\n\
         [discover]\ndocker = {docker}\n"
    );
    for (key, value) in survey.others.iter().filter_map(|runtime| runtime.discover) {
        text += &format!("{key} = {value}\n");
    }
    text
}

/// Writes the file as a whole or not at all, and makes its directory.
fn write(path: &Path, text: &str, replace: bool) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory).with_context(cannot)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(name);
    let put = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        // A link fails where another file has appeared meanwhile.
        if replace { fs::rename(&new, path) } else { fs::hard_link(&new, path) }
    };
    let done = put();
    let _ = fs::remove_file(&new);
    done.with_context(cannot)
}

/// The command that comes after this one.
fn next(survey: &Survey, config: &Path) -> String {
    if survey.has_unit && config == Path::new("/etc/weir/weir.toml") {
        "systemctl enable --now weir".to_owned()
    } else {
        format!("weir agent --config {}", config.display())
    }
}

/// The command that proves the shares on the link.
fn test(config: &Path) -> String {
    match config.to_str() {
        Some("/etc/weir/weir.toml") => "weir test uplink".to_owned(),
        _ => format!("weir test uplink --config {}", config.display()),
    }
}

fn ask(person: &mut dyn Person, question: &str) -> anyhow::Result<String> {
    person.ask(question).context("cannot ask (`weir init --help` lists what can be given)")
}

fn is_yes(answer: &str) -> bool {
    answer.is_empty() || ["y", "yes"].iter().any(|yes| answer.eq_ignore_ascii_case(yes))
}

fn missing(option: &str, why: &str) -> Usage {
    Usage(format!("{option} is missing: {why}, and no one can be asked (`weir init --help`)"))
}
