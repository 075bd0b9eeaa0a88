//! The command line of `weir-lab`, which `weir lab` runs.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};
use weir_netlab::{
    interrupt::{self, Interrupted},
    topology::{self, check_rights, is_leftover},
};

use crate::{
    choices::Choices,
    control, demo,
    experiment::{self, About, Call, Verdict},
    image,
    report::{self, Summary, table::new_table},
    terminal::{Usage, progress_bar, say},
};

/// Run the experiments: weir beside what people use today, with real traffic in network namespaces
///
/// `weir lab` runs this program.
#[derive(Debug, Parser)]
#[command(
    name = "weir-lab",
    bin_name = "weir lab",
    version,
    after_long_help = "\
Examples:
  weir lab list                            which experiments there are
  sudo weir lab run weights-3              one of them, under weir, tc and no control
  sudo weir lab run --all --json           all of them, one JSON object a line
  sudo weir lab run minimum --control weir --mode nat --tso off --seconds 10
  sudo weir lab run cpu --control weir:bpf,weir:htb,none
                                           what the engines cost beside no control
  sudo weir lab run sla-C --control tc,none
                                           the paper's own tc script beside no control
  weir lab run phtb-3                      packets a second of the scheduler in user space
  weir lab run pop-hits pop-macro          image caches of a site, simulated; needs no rights
  weir lab run pop-micro pop-real          the same with real Docker and containerd, and real pulls
  weir lab run variable-lte                a link whose rate changes, simulated; needs no rights
  weir lab run variable-download-lte       the same for a download
  sudo weir lab run download               shares of what arrives, and the ping of an idle container
  sudo weir lab run failover               the default route moves to another link under load
  weir lab run ecc-bbr --backend uml       completion times by congestion control, virtual time
  sudo weir lab run ./mine.toml            one of your own (start from lab/scenarios/weights-3.toml)
  sudo weir lab demo                       half a minute of weir at work
  weir lab image generate --zone fra > fra.json    a trace like that of a registry
  weir lab image simulate fra.json         what a cache of each size finds of it

Results are written to ./weir-lab-results/SCENARIO/: result.json, table.txt, plot.svg, tc.txt.
Needs iproute2, iperf3, ethtool, and for nat iptables. Nothing outside of the namespaces that
it makes is touched; Ctrl-C removes them too."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the scenarios
    List {
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Run scenarios; exit 0 only if weir meets each figure of all of them
    Run(RunArgs),
    /// Show two results side by side
    Compare {
        /// The first result.json
        a: PathBuf,
        /// The second result.json
        b: PathBuf,
    },
    /// Show three containers sharing a 100 Mbit/s uplink by weight, minimum and maximum
    Demo(DemoArgs),
    /// Remove what killed runs left behind
    Clean,
    /// Simulate image caches: traces of registries, sizes and policies
    Image(image::ImageArgs),
    /// Print a completion script for a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example: qCon's Fig. 9 through NAT, under weir and a hand-written tc script:
  sudo weir lab run minimum --mode nat --control weir,tc

Exit status: 0 weir meets every figure, 1 it falls short, 2 no verdict: without control weir, or as
intervals are too wide.")]
struct RunArgs {
    /// Names from `weir lab list`, or paths of .toml files
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// Run all built-in scenarios
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Print one JSON object a line on standard output, instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choices: Choices,
    /// Directory for the results, with one directory a scenario
    #[arg(long, default_value = "weir-lab-results", value_name = "DIR")]
    out: PathBuf,
    /// The weir program under test [default: the one beside this program, else the one on PATH]
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// Kind of container: Docker's, or network namespaces [default: Docker's if dockerd can run]
    #[arg(long, value_name = "KIND")]
    containers: Option<demo::ContainerKind>,
    /// Seconds of each of the three phases
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u64).range(5..=600))]
    seconds: u64,
    /// The weir program to show [default: the one beside this program, else the one on PATH]
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
}

/// Runs the command line `args`, which begins with the program's name.
///
/// Exit codes:
/// - 0: done, and each figure is met.
/// - 1: a figure falls short, or an error.
/// - 2: a wrong command line, or no verdict, because weir was not among the controls or intervals are too
///   wide.
/// - 130: Ctrl-C; nothing is left behind.
pub fn run(args: impl IntoIterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() => {
            let text = e.render().to_string();
            let _ = writeln!(err, "weir-lab: {}", text.strip_prefix("error: ").unwrap_or(&text).trim_end());
            return ExitCode::from(2);
        }
        Err(e) => {
            let _ = write!(out, "{}", e.render());
            return ExitCode::SUCCESS;
        }
    };
    interrupt::install();
    let done = match &cli.verb {
        Verb::List { json } => {
            list(*json);
            Ok(ExitCode::SUCCESS)
        }
        Verb::Run(args) => run_all(args),
        Verb::Compare { a, b } => compare(a, b),
        Verb::Demo(args) => demo(args),
        Verb::Clean => clean(),
        Verb::Image(args) => image::run(args, out),
        Verb::Completions { shell } => {
            // The generator panics if its output fails, so it writes to memory.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "weir-lab", &mut script);
            out.write_all(&script).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
    };
    match done {
        Ok(code) => code,
        Err(e) if e.is::<Interrupted>() => {
            let _ = writeln!(err, "{e}");
            ExitCode::from(130)
        }
        // The reader of the output closed the pipe (`weir lab image generate | head`).
        Err(e) if e.chain().any(is_broken_pipe) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(err, "weir-lab: {e:#}");
            ExitCode::from(if e.is::<Usage>() { 2 } else { 1 })
        }
    }
}

fn is_broken_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

fn compare(a: &Path, b: &Path) -> Result<ExitCode> {
    say(&report::compare(&Summary::read(a)?, &Summary::read(b)?));
    Ok(ExitCode::SUCCESS)
}

fn demo(args: &DemoArgs) -> Result<ExitCode> {
    check_rights()?;
    demo::run(&demo::Options {
        weir: program(args.weir.as_ref())?,
        containers: args.containers,
        seconds: args.seconds,
    })
}

/// Removes namespaces, agents' directories and the leftovers of the demo's dockerd.
fn clean() -> Result<ExitCode> {
    let namespaces = topology::clean()?.len();
    let temporary = std::env::temp_dir();
    let entries = fs::read_dir(&temporary).with_context(|| format!("cannot list {}", temporary.display()))?;
    let mut directories = 0;
    for entry in entries.flatten() {
        if is_leftover(&entry.file_name().to_string_lossy(), control::TEMP_PREFIX) {
            let path = entry.path();
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            directories += 1;
        }
    }
    if let Err(left) = weir_testkit::sweep() {
        bail!("cannot undo all that a killed dockerd left: {}", left.join("; "));
    }
    say(&format!("removed what dead runs left: {namespaces} namespaces, {directories} directories"));
    Ok(ExitCode::SUCCESS)
}

fn list(json: bool) {
    let all = experiment::built_in();
    if json {
        for e in &all {
            let (About { name, title, source, about }, (cases, seconds)) = (e.about(), e.cases());
            let line = serde_json::json!({
                "scenario": name, "title": title, "source": source, "about": about,
                "cases": cases, "seconds": seconds,
            });
            say(&line.to_string());
        }
        return;
    }
    let mut table = new_table();
    table.set_header(["scenario", "source", "cases", "shows"]);
    for e in &all {
        let About { name, title, source, .. } = e.about();
        table.add_row([name, source, &e.cases().0.to_string(), title]);
    }
    say(&table.to_string());
}

fn run_all(args: &RunArgs) -> Result<ExitCode> {
    let mut experiments = if args.all {
        experiment::built_in()
    } else {
        let find = |name: &String| {
            experiment::find(name).map_err(|e| Usage(format!("{:#}", anyhow::Error::from(e))))
        };
        args.names.iter().map(find).collect::<Result<Vec<_>, _>>()?
    };
    experiments.iter_mut().for_each(|experiment| experiment.adapt(&args.choices));
    if experiments.iter().any(|experiment| experiment.needs_rights()) {
        check_rights()?;
    }
    let options = args.choices.options(program(args.weir.as_ref())?);
    let progress = progress_bar(experiments.iter().map(|experiment| experiment.steps()).sum());
    let mut verdicts = Vec::new();
    for experiment in &experiments {
        let name = experiment.about().name;
        let watch = |step: &str| {
            progress.set_message(format!("{name}{step}"));
            progress.inc(1);
        };
        let dir = args.out.join(name);
        let call =
            Call { choices: &args.choices, options: &options, watch: &watch, dir: &dir, json: args.json };
        let (verdict, text) = experiment.run(&call).with_context(|| format!("scenario {name}"))?;
        verdicts.push(verdict);
        progress.suspend(|| say(&text));
    }
    progress.finish_and_clear();
    Ok(if verdicts.contains(&Verdict::Fail) {
        ExitCode::FAILURE
    } else if verdicts.contains(&Verdict::Open) {
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    })
}

/// The weir program: the named one, else the one beside this program, else the one on PATH.
fn program(named: Option<&PathBuf>) -> Result<PathBuf> {
    match named {
        Some(path) => {
            let path =
                path.canonicalize().with_context(|| format!("no weir program at {}", path.display()))?;
            if !path.is_file() {
                bail!("{} is not a program", path.display());
            }
            Ok(path)
        }
        None => {
            let own =
                env::current_exe().context("cannot find the path of this program (give weir's by --weir)")?;
            let beside = own.parent().map(Path::to_owned);
            let on_path =
                env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
            let mut candidates = beside.into_iter().chain(on_path).map(|directory| directory.join("weir"));
            candidates.find(|path| path.is_file()).with_context(|| {
                format!("there is no program weir beside {} or on PATH: name one by --weir", own.display())
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_args(words: &[&str]) -> RunArgs {
        let lab = Cli::try_parse_from([&["lab", "run"], words].concat()).unwrap();
        let Verb::Run(args) = lab.verb else { panic!("run") };
        args
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_run_needs_a_name_or_all_and_enough_seconds() {
        for words in [&["run"][..], &["run", "--all", "minimum"], &["run", "minimum", "--seconds", "2"]] {
            assert!(Cli::try_parse_from([&["lab"], words].concat()).is_err(), "{words:?}");
        }
        assert!(run_args(&["--all"]).all);
    }

    #[test]
    fn a_scenario_that_does_not_exist_is_a_wrong_command_line() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(["weir-lab", "run", "nosuch"].map(OsString::from), &mut out, &mut err);
        let said = String::from_utf8(err).unwrap();
        assert!(code == ExitCode::from(2) && said.contains("no scenario `nosuch`"), "{said}");
    }
}
