//! `weir bugreport`: one file with what a developer asks for first.

mod kernel;
mod secrets;
#[cfg(test)]
mod tests;
mod tools;

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use weir_api::{ClientError, ExportQuery};

use self::secrets::Secrets;
use super::{Session, doctor, format, progress::Waiting};

const EXAMPLES: &str = "Examples:
  weir bugreport                     weir-bugreport-TIME.tar.gz, here
  weir bugreport --out /tmp/report.tar.gz
  tar -tzf weir-bugreport-*.tar.gz   what is in it: read it before you send it

It holds what the agent says (status, classes, events, doctor, division), the
kernel's queues and programs, the log's last lines, and the configuration. It
works without an agent too. Each part that is missing is named with its reason.

Passwords, tokens and names of accounts are replaced by [removed], wherever
they occur. These are values of the configuration, contents of the files it
names, and credentials in addresses. Names of containers, interfaces and
networks stay. Only the user who runs the command can read the file.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct BugreportArgs {
    /// The file to write; it must not exist
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "/etc/weir/weir.toml")]
    config: PathBuf,
}

/// The longest part of a report. The beginning of a longer one is cut off, as the end is newer.
const MAX_PART: usize = 4 << 20;

/// The answer in JSON, and the file `contents` of the report.
#[derive(Debug, Serialize)]
struct Answer {
    file: PathBuf,
    parts: Vec<String>,
    missing: Vec<Missing>,
}

#[derive(Debug, Serialize)]
struct Missing {
    part: String,
    why: String,
}

/// The parts gathered so far, without secrets.
struct Report {
    secrets: Secrets,
    parts: Vec<(&'static str, String)>,
    missing: Vec<Missing>,
}

impl Report {
    fn add(&mut self, name: &'static str, text: Result<String, String>) {
        match text {
            Ok(text) => {
                let text = self.secrets.remove(&text);
                let cut = text.len().saturating_sub(MAX_PART);
                let begin = (cut..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
                let note = if cut > 0 {
                    format!("[{begin} bytes before this are cut off]\n")
                } else {
                    String::new()
                };
                self.parts.push((name, note + &text[begin..]));
            }
            Err(why) => {
                let why = self.secrets.remove(&why);
                self.missing.push(Missing { part: name.to_owned(), why });
            }
        }
    }

    fn contents(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let mut text = format!("A report of weir {version}. `[removed]` stands for each secret.\n\n");
        for (name, part) in &self.parts {
            text += &format!("{name}: {} bytes\n", part.len());
        }
        for Missing { part, why } in &self.missing {
            text += &format!("{part}: missing: {why}\n");
        }
        text
    }
}

pub(super) fn run(args: &BugreportArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    session.local("bugreport")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    make(args, now, &path, session)
}

/// Gathers and writes a report. Programs are looked for in `path`.
fn make(
    args: &BugreportArgs,
    now: Duration,
    path: &OsString,
    session: &mut Session<'_>,
) -> anyhow::Result<ExitCode> {
    let name = format!(
        "weir-bugreport-{}",
        format::moment(now.as_millis().try_into().unwrap_or(0)).replace(':', "")
    );
    let name = name.split('.').next().unwrap_or(&name).to_owned();
    let file = args.out.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    let cannot = || format!("cannot write the report {}", file.display());
    // The file is made first: whatever it takes to gather the parts is for nothing if it cannot be written.
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).with_context(cannot)?;
    let done = gather(args, path, session).and_then(|report| {
        pack(&report, &file, &name).with_context(cannot)?;
        Ok(report)
    });
    let report = match done {
        Ok(report) => report,
        Err(e) => {
            let _ = fs::remove_file(&file);
            return Err(e);
        }
    };
    let parts = report.parts.iter().map(|(name, _)| (*name).to_owned()).collect();
    let answer = Answer { file, parts, missing: report.missing };
    session.print(&answer, |out, _| {
        writeln!(
            out,
            "{} has {} parts; read it before you send it",
            answer.file.display(),
            answer.parts.len()
        )?;
        answer.missing.iter().try_for_each(|m| writeln!(out, "! {} is missing: {}", m.part, m.why))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn gather(args: &BugreportArgs, path: &OsString, session: &Session<'_>) -> anyhow::Result<Report> {
    let config = fs::read_to_string(&args.config);
    let secrets = Secrets::of(config.as_deref().unwrap_or_default());
    let mut report = Report { secrets, parts: Vec::new(), missing: Vec::new() };
    // The secrets go first: without the rest of its value a part of one would not be found.
    let config = config.map(|text| secrets::without_values(&report.secrets.remove(&text)));
    report.add("weir.toml", config.map_err(|e| format!("cannot read {}: {e}", args.config.display())));

    let client = &session.client;
    report.add("agent/status.json", json(client.status()));
    report.add("agent/classes.json", json(client.classes()));
    report.add("agent/export.json", json(client.export(&ExportQuery::default())));
    report.add("agent/congestion.json", json(client.congestion()));
    report.add(
        "agent/events.json",
        json(client.events(false).and_then(Iterator::collect::<Result<Vec<_>, _>>)),
    );
    let waiting = Waiting::new(session.json, "the agent checks this node");
    report.add("doctor.json", json(doctor::look(client, &waiting)));
    drop(waiting);
    report.add("kernel/links-and-queues.txt", kernel::links_and_queues());
    report.add("kernel/programs.txt", kernel::programs());
    report.add("system.txt", Ok(system()));
    for tool in tools::TOOLS {
        report.add(tool.part, tool.run(path));
    }
    Ok(report)
}

fn json<T: Serialize>(answer: Result<T, ClientError>) -> Result<String, String> {
    let answer = answer.map_err(|e| format!("{:#}", anyhow::Error::from(e)))?;
    serde_json::to_string_pretty(&answer).map_err(|e| e.to_string())
}

/// Versions of weir, the kernel and the distribution.
fn system() -> String {
    let kernel = fs::read_to_string("/proc/version").unwrap_or_default();
    let distribution = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().take(3).collect::<Vec<_>>().join("\n");
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "weir {}\n{kernel}\n{distribution}\n{memory}\nprocessors: {processors}\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Packs the parts with `tar` into an existing file.
fn pack(report: &Report, file: &Path, name: &str) -> anyhow::Result<()> {
    let mut stage = file.as_os_str().to_owned();
    stage.push(".parts");
    let stage = PathBuf::from(stage);
    fs::DirBuilder::new().mode(0o700).create(&stage)?;
    let packed = (|| -> anyhow::Result<()> {
        let root = stage.join(name);
        let contents = report.contents();
        let parts = report.parts.iter().map(|(name, text)| (*name, text.as_str()));
        for (name, text) in parts.chain([("contents", contents.as_str())]) {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&root))?;
            fs::write(path, text)?;
        }
        let out = Command::new("tar").arg("-czf").arg(file).arg("-C").arg(&stage).arg(name).output();
        let out = out.context("cannot run tar, which packs the parts")?;
        anyhow::ensure!(out.status.success(), "tar failed: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(())
    })();
    fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
    packed
}
