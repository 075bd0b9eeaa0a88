//! `weir lab image`: the simulator of `weir-cache` and its traces.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use comfy_table::CellAlignment;
use serde::Serialize;
use weir_cache::{
    PolicyKind,
    generate::{ZONES, Zone},
    simulate::{Outcome, Replay, Setup, Sharing, TimeModel, simulate_closed},
    trace::{RegistryReader, Skipped, Trace, WriteOptions, read_oracle_general, write_registry},
};
use weir_units::Bytes;

use crate::{
    image_cache::{Panel, chart, gib},
    report::table::new_table,
    terminal::{Usage, progress_bar},
};

const EXAMPLES: &str = "Examples:
  weir lab image simulate prod-fra02-*.json                        a registry's log, as published
  weir lab image simulate --zone fra --policy image-lru,auto       a trace made for it
  weir lab image simulate --zone dal --nodes 5 --sharing per-node,shared --budget 50GiB
  weir lab image simulate --zone dal --nodes 5 --sharing per-node,shared --budget 50GiB --at-once
  weir lab image simulate trace.bin --format oracle-general --budget 1%,5%,20% --plot hits.svg

images, blobs, bytes: what was found, as parts of what was asked for. fetch: time that what was
missing takes, a deployment; deployment: until the container runs, after Table III of Ahmed and
Pierre (2019): 0.99 s, 1.23 with a shared cache, and 0.3 s a blob and 80 Mbit/s for what is missing.
Traces made with --zone are like those of IBM's registry: fra, syd, dal, lon, prs, stg, dev.";

/// The verbs of `weir lab image`.
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Replay a trace in virtual time, on caches of several sizes and policies
    Simulate(SimulateArgs),
    /// Write a trace like those of the IBM registry, in their published format
    Generate(GenerateArgs),
}

pub(crate) fn run(args: &ImageArgs, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Verb::Simulate(args) => simulate(args, out),
        Verb::Generate(args) => generate(args, out),
    }
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct SimulateArgs {
    /// Files of one trace
    #[arg(value_name = "TRACE", required_unless_present = "zone", conflicts_with = "zone")]
    traces: Vec<PathBuf>,
    /// Format of the files [default: oracle-general for names that end in .bin, else registry]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    #[command(flatten)]
    made: TraceArgs,
    /// Total size of all caches, or a part of the trace's working set
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "2%,5%,10%,20%,50%")]
    budget: Vec<Budget>,
    /// Eviction policies of a full cache: image-lru, lru, s3-fifo, gds, gdsf, gdsf-ghost, gdsf-count, auto
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "image-lru,lru,auto")]
    policy: Vec<PolicyKind>,
    /// Nodes of the site; deployments go to them in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    nodes: u16,
    /// One cache for all nodes, or an equal part of the size for each
    #[arg(long, value_name = "HOW", value_delimiter = ',', default_value = "shared")]
    sharing: Vec<SharingArg>,
    /// All nodes deploy as fast as they can and share one uplink; the trace's times are ignored
    #[arg(long)]
    at_once: bool,
    /// Write a picture of the image hits and of deployment times, by size
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
    /// Print JSON, for programs; sizes in bytes
    #[arg(long)]
    json: bool,
}

const GENERATE_EXAMPLES: &str = "Examples:
  weir lab image generate --zone dal --deployments 100000 > dal.json
  weir lab image generate --zone fra --seed 7 --output fra.json";

#[derive(Debug, Args)]
#[command(after_help = GENERATE_EXAMPLES)]
struct GenerateArgs {
    #[command(flatten)]
    made: TraceArgs,
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The properties of a made trace.
#[derive(Debug, Args)]
struct TraceArgs {
    /// Make a trace like this zone's: fra, syd, dal, lon, prs, stg, dev
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Number of deployments in it [default: 20000]
    #[arg(long, value_name = "N", requires = "zone")]
    deployments: Option<usize>,
    /// Seed of the made trace [default: 1]
    #[arg(long, value_name = "N", requires = "zone")]
    seed: Option<u64>,
}

impl TraceArgs {
    fn zone(&self) -> anyhow::Result<&'static Zone> {
        let name = self.zone.as_deref().unwrap_or(ZONES[0].name);
        let known: Vec<_> = ZONES.iter().map(|zone| zone.name).collect();
        let found = ZONES.iter().find(|zone| zone.name == name);
        found.ok_or_else(|| Usage(format!("there is no zone `{name}`: take {}", known.join(", "))).into())
    }

    fn make(&self) -> anyhow::Result<Trace> {
        let deployments = self.deployments.unwrap_or(20_000);
        Ok(weir_cache::generate::generate(self.zone()?, deployments, self.seed.unwrap_or(1)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// JSON of the IBM registry trace: an array of requests a file
    Registry,
    /// Binary: u32 time, u64 object, u32 size, i64 next access
    OracleGeneral,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SharingArg {
    /// One cache for all nodes
    Shared,
    /// One cache a node
    PerNode,
}

/// The size of the caches.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Budget {
    Size(Bytes),
    /// A part of the working set.
    Part(f64),
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Budget, String> {
        let Some(percent) = text.strip_suffix('%') else {
            let size: Bytes = text.parse().map_err(|e| format!("{e}; or a part of the working set: 5%"))?;
            return Ok(Budget::Size(size));
        };
        match percent.trim().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent.is_finite() => Ok(Budget::Part(percent / 100.0)),
            _ => Err(format!("cannot read `{text}` as a part of the working set: write 5%, or 0.5%")),
        }
    }
}

/// The answer of `simulate`.
#[derive(Debug, Serialize)]
struct Answer {
    deployments: usize,
    images: usize,
    blobs: usize,
    requests: u64,
    working_set: Bytes,
    /// Records of a registry's log that belong to no pull.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<SkippedRecords>,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct SkippedRecords {
    other_methods: u64,
    unanswered: u64,
    other_addresses: u64,
    malformed: u64,
}

#[derive(Debug, Serialize)]
struct Run {
    policy: PolicyKind,
    sharing: Sharing,
    nodes: usize,
    at_once: bool,
    /// The total size of all caches.
    budget: Bytes,
    image_hit_ratio: f64,
    blob_hit_ratio: f64,
    byte_hit_ratio: f64,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Deployments between two steps of the progress bar.
const PROGRESS_STEP: usize = 1_000;

fn simulate(args: &SimulateArgs, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let (trace, skipped) = match args.made.zone {
        Some(_) => (args.made.make()?, None),
        None => read(args)?,
    };
    if trace.deployments.is_empty() {
        anyhow::bail!("there is no deployment in the trace: nothing to simulate");
    }
    let working_set = trace.working_set();
    let mut setups = Vec::new();
    for sharing in &args.sharing {
        for policy in &args.policy {
            for budget in &args.budget {
                setups.push((*sharing, *policy, size(*budget, working_set)));
            }
        }
    }
    let bar = progress_bar(setups.len() * trace.deployments.len());
    let runs = setups.into_iter().map(|(sharing, policy, budget)| {
        let nodes = usize::from(args.nodes);
        let (sharing, each) = match sharing {
            SharingArg::Shared => (Sharing::Shared, budget),
            SharingArg::PerNode => (Sharing::PerNode, Bytes(budget.0 / u64::from(args.nodes))),
        };
        bar.set_message(format!("{policy}, {}, {budget}", sharing.name()));
        let setup = Setup { nodes, sharing, budget: each, policy, time: TimeModel::PAPER };
        let outcome = if args.at_once {
            simulate_closed(&trace, setup, 0, || bar.inc(1))
        } else {
            let mut replay = Replay::new(&trace, setup, 0);
            while replay.advance(PROGRESS_STEP) {
                bar.inc(PROGRESS_STEP as u64);
            }
            replay.outcome()
        };
        Run {
            policy,
            sharing,
            nodes,
            at_once: args.at_once,
            budget,
            image_hit_ratio: outcome.image_hit_ratio(),
            blob_hit_ratio: outcome.blob_hit_ratio(),
            byte_hit_ratio: outcome.byte_hit_ratio(),
            outcome,
        }
    });
    let runs = runs.collect();
    bar.finish_and_clear();
    let answer = Answer {
        deployments: trace.deployments.len(),
        images: trace.images.len(),
        blobs: trace.blobs.len(),
        requests: trace.requests(),
        working_set,
        skipped,
        runs,
    };
    if let Some(path) = &args.plot {
        let picture = picture(&answer)?;
        fs::write(path, picture).with_context(|| format!("cannot write the picture {}", path.display()))?;
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &answer).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{} deployments of {} images, {} blobs; working set {working_set}",
        answer.deployments, answer.images, answer.blobs
    )?;
    if let Some(skipped) = answer.skipped.as_ref().filter(|skipped| skipped.malformed > 0) {
        writeln!(out, "{} records were malformed, and left out", skipped.malformed)?;
    }
    writeln!(out, "\n{}", table(&answer))?;
    Ok(ExitCode::SUCCESS)
}

fn size(budget: Budget, working_set: Bytes) -> Bytes {
    match budget {
        Budget::Size(size) => size,
        Budget::Part(part) => Bytes((working_set.0 as f64 * part) as u64),
    }
}

fn read(args: &SimulateArgs) -> anyhow::Result<(Trace, Option<SkippedRecords>)> {
    let first = &args.traces[0];
    let by_name = |path: &Path| match path.extension().is_some_and(|extension| extension == "bin") {
        true => Format::OracleGeneral,
        false => Format::Registry,
    };
    let open = |path: &Path| {
        let file = File::open(path).with_context(|| format!("cannot open the trace {}", path.display()))?;
        anyhow::Ok(BufReader::with_capacity(1 << 20, file))
    };
    match args.format.unwrap_or_else(|| by_name(first)) {
        Format::OracleGeneral => {
            if args.traces.len() > 1 {
                return Err(Usage("an oracleGeneral trace is one file".to_owned()).into());
            }
            let trace = read_oracle_general(open(first)?);
            Ok((trace.with_context(|| format!("in {}", first.display()))?, None))
        }
        Format::Registry => {
            let mut reader = RegistryReader::default();
            let bar = progress_bar(args.traces.len());
            for path in &args.traces {
                bar.set_message(format!("reads {}", path.display()));
                reader.read(open(path)?).with_context(|| format!("in {}", path.display()))?;
                bar.inc(1);
            }
            bar.finish_and_clear();
            let Skipped { methods, unanswered, others, malformed } = reader.skipped();
            let skipped =
                SkippedRecords { other_methods: methods, unanswered, other_addresses: others, malformed };
            Ok((reader.finish()?, Some(skipped)))
        }
    }
}

fn table(answer: &Answer) -> comfy_table::Table {
    let headings = [
        "policy",
        "cache",
        "budget",
        "images",
        "blobs",
        "bytes",
        "fetch",
        "deployment",
        "std.dev",
        "evicted",
    ];
    let mut table = new_table();
    table.set_header(headings);
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
    for run in &answer.runs {
        let outcome = &run.outcome;
        let policy = match outcome.chosen {
            Some(chosen) => format!("{} ({chosen})", run.policy),
            None => run.policy.to_string(),
        };
        let cells = [
            policy,
            run.sharing.name().to_owned(),
            run.budget.to_string(),
            percent(run.image_hit_ratio),
            percent(run.blob_hit_ratio),
            percent(run.byte_hit_ratio),
            format!("{:.2}s", outcome.fetch_s / outcome.deployments.max(1) as f64),
            format!("{:.2}s", outcome.mean_s),
            format!("{:.2}s", outcome.std_s),
            outcome.evictions.to_string(),
        ];
        table.add_row(cells);
    }
    table
}

fn picture(answer: &Answer) -> anyhow::Result<String> {
    let panel = |title: &str| Panel {
        title: title.to_owned(),
        below: "size of all caches together",
        log: true,
        mark: gib,
        lines: Vec::new(),
    };
    let mut panels = [panel("deployments that find their image"), panel("mean time of a deployment, s")];
    let mut runs: Vec<&Run> = answer.runs.iter().collect();
    runs.sort_by_key(|run| run.budget);
    for run in runs {
        let name = format!("{}, {}", run.policy, run.sharing.name());
        let x = run.budget.0 as f64 / f64::from(1 << 30);
        panels[0].add(&name, (x, run.image_hit_ratio));
        panels[1].add(&name, (x, run.outcome.mean_s));
    }
    let under = format!("{} deployments, working set {}", answer.deployments, answer.working_set);
    chart("Image caches by size, simulated", &under, &panels)
}

fn generate(args: &GenerateArgs, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let trace = args.made.make()?;
    let bar = progress_bar(trace.deployments.len());
    let options = WriteOptions::default();
    match &args.output {
        Some(path) => {
            let cannot = || format!("cannot write the trace {}", path.display());
            let file = BufWriter::new(File::create(path).with_context(cannot)?);
            let records = write_registry(&trace, options, file, || bar.inc(1)).with_context(cannot)?;
            bar.finish_and_clear();
            writeln!(out, "{records} requests are in {}", path.display())?;
        }
        None => {
            write_registry(&trace, options, BufWriter::new(&mut *out), || bar.inc(1)).map_err(unwrapped)?;
            bar.finish_and_clear();
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A closed pipe becomes an I/O error, in whichever layer it occurred.
fn unwrapped(error: weir_cache::trace::TraceError) -> anyhow::Error {
    match error {
        weir_cache::trace::TraceError::Io(error) => error.into(),
        weir_cache::trace::TraceError::Json(error) => match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => error.into(),
        },
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exit code and the program's output.
    struct Done {
        code: ExitCode,
        out: String,
        err: String,
    }

    fn lab(words: &[&str]) -> Done {
        let args = ["weir-lab", "image"].iter().chain(words).map(Into::into);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = crate::cli::run(args, &mut out, &mut err);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Done { code, out: text(out), err: text(err) }
    }

    fn good(words: &[&str]) -> String {
        let done = lab(words);
        assert_eq!(done.code, ExitCode::SUCCESS, "{words:?}: {}", done.err);
        done.out
    }

    #[test]
    fn a_made_trace_is_written_read_and_simulated() {
        let dir = tempfile::tempdir().unwrap();
        let (trace, picture) = (dir.path().join("fra.json"), dir.path().join("fra.svg"));
        let (trace, picture) = (trace.to_str().unwrap(), picture.to_str().unwrap());
        let made = ["--zone", "fra", "--deployments", "300", "--seed", "3"];
        let said = good(&[&["generate", "--output", trace][..], &made].concat());
        assert!(said.contains("requests are in"), "{said}");
        let printed = good(&[&["generate"][..], &made].concat());
        assert!(printed == fs::read_to_string(trace).unwrap());

        let of = |words: &[&str]| -> serde_json::Value {
            serde_json::from_str(&good(&[&["simulate"], words].concat())).unwrap()
        };
        let options = ["--policy", "lru,auto", "--budget", "1GiB,50%", "--json", "--plot", picture];
        let (read, made) = (of(&[&[trace][..], &options].concat()), of(&[&made[..], &options].concat()));
        assert_eq!((&read["deployments"], read["runs"].as_array().unwrap().len()), (&300.into(), 4));
        // The log lacks each blob that all clients already had. Clients that keep nothing reveal most of
        // them.
        let part =
            read["working_set"].as_u64().unwrap() as f64 / made["working_set"].as_u64().unwrap() as f64;
        assert!((0.99..=1.0).contains(&part), "{part}");
        assert_eq!((&read["skipped"]["malformed"], &made["skipped"]), (&0.into(), &serde_json::Value::Null));
        assert!(fs::read_to_string(picture).unwrap().contains("auto, shared"));
    }

    #[test]
    fn nodes_and_sharing_are_lines_of_the_table() {
        let words = ["simulate", "--zone", "dal", "--deployments", "200", "--nodes", "5", "--sharing"];
        let words =
            [&words[..], &["per-node,shared", "--budget", "10GiB", "--policy", "image-lru", "--at-once"]];
        let text = good(&words.concat());
        assert!(text.starts_with("200 deployments of "), "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("image-lru")).collect();
        assert!(lines.len() == 2 && lines[0].contains("per-node") && lines[1].contains("shared"), "{text}");
    }

    #[test]
    fn what_cannot_be_simulated_is_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (object, empty, cut) = (file("o.json", "{}"), file("e.json", "[]"), file("c.bin", "12345"));
        let missing = dir.path().join("missing").to_str().unwrap().to_owned();
        for (words, code, reason) in [
            (vec![&object[..]], 1, "array of records"),
            (vec![&empty], 1, "no deployment"),
            (vec![&cut], 1, "5 bytes after record 0"),
            (vec![&missing], 1, "cannot open the trace"),
            (vec![&cut, &cut], 2, "one file"),
            (vec!["--zone", "par"], 2, "take fra, syd"),
            (vec!["--zone", "fra", "--budget", "much"], 2, "5%"),
            (vec!["--zone", "fra", "--budget", "0%"], 2, "part of the working set"),
            (vec!["--zone", "fra", "--policy", "clock"], 2, "s3-fifo"),
            (vec!["--zone", "fra", "--nodes", "0"], 2, "0"),
            (vec![], 2, "TRACE"),
        ] {
            let refused = lab(&[&["simulate"], &words[..]].concat());
            assert_eq!(refused.code, ExitCode::from(code), "{words:?}: {}", refused.err);
            assert!(refused.err.contains(reason), "{words:?}: {}", refused.err);
        }
    }
}
