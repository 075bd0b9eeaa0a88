//! The command line. Each verb has its own file, and [`run`] calls them all.

mod agree;
mod beside;
mod bugreport;
mod cc;
mod cni;
mod doctor;
mod events;
mod explain;
mod export;
mod format;
mod fs;
mod history;
mod image;
mod init;
mod lab;
mod link;
mod log;
mod manual;
mod plan;
mod progress;
mod ps;
mod set;
mod status;
mod test_uplink;
mod token;
mod top;
mod undo;

#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    fmt,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, CommandFactory, Parser, Subcommand, error::ErrorKind};
use serde::Serialize;
use serde_json::json;
use weir_agent::config::ConfigError;
use weir_api::{BadRemote, Client, Remote};

pub(crate) use cni::arguments;
pub(crate) use format::Look;
use log::{LogFormat, log_to_stderr};

/// The exit code of a wrong request. The agent was not asked.
const USAGE: u8 = 2;

/// Quality of service for fog and edge nodes: divides a node's uplink between its
/// containers by weight, minimum and maximum.
///
/// `weir agent` runs on the node; the other verbs ask it, over its unix socket or with --url over TCP.
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  weir init                                      write a configuration
  weir test uplink                               prove the shares on the link
  weir agent --config /etc/weir/weir.toml        divide this node's uplink
  weir ps                                        who sends how much
  weir top                                       the same, live
  weir set web weight=3 min=20mbit               change a policy, at once
  weir undo                                      take the last change back
  weir plan weir.toml                            what a new file would change
  weir explain web                               why it gets what it gets
  weir --url https://gw:9798 --token-file t ps   the same of another node
  weir fs --help                                 the same as files
  weir agree --help                              promise bandwidth
  weir cc --help                                 congestion control by rule
  weir image --help                              pull each image once for all
  weir doctor                                    what this node can do

Exit codes: 0 done, 1 refused or failed, 2 the command line or its input is
wrong. Colours are left out when the output is not a terminal, or NO_COLOR is
set.";

#[derive(Debug, Args)]
struct Global {
    /// Where the agent listens
    #[arg(
        long,
        global = true,
        env = "WEIR_SOCKET",
        default_value = weir_api::DEFAULT_SOCKET,
        value_name = "PATH",
        help_heading = "Global options"
    )]
    socket: PathBuf,
    /// Ask an agent over TCP instead: https://HOST:PORT, as its `[api] listen` says
    #[arg(long, global = true, env = "WEIR_URL", value_name = "URL", help_heading = "Global options")]
    url: Option<String>,
    /// The file of a token's secret, for --url
    #[arg(
        long,
        global = true,
        env = "WEIR_TOKEN_FILE",
        value_name = "FILE",
        help_heading = "Global options"
    )]
    token_file: Option<PathBuf>,
    /// Certificates in PEM that --url trusts, of an authority or of the agent itself
    #[arg(long, global = true, env = "WEIR_CA_FILE", value_name = "FILE", help_heading = "Global options")]
    ca_file: Option<PathBuf>,
    /// Answer in JSON, for programs; rates in bit/s, sizes in bytes
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
}

impl Global {
    /// # Errors
    /// The URL or one of the files for it cannot be used.
    fn client(&self) -> Result<Client, BadRemote> {
        let Some(url) = &self.url else { return Ok(Client::new(&self.socket)) };
        Remote::new(url, self.token_file.as_deref(), self.ca_file.as_deref()).map(Client::over_tcp)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the configuration of this node: three questions at most
    Init(init::InitArgs),
    /// Divide this node's uplink, until told to stop
    Agent(AgentArgs),
    /// List the classes: policy, allocation, what each sends
    Ps(ps::PsArgs),
    /// Watch the classes, full screen
    Top(top::TopArgs),
    /// Change a class's weight, minimum or maximum, at once
    Set(set::SetArgs),
    /// Take back what `weir set` changed
    Unset(set::UnsetArgs),
    /// Take back the last change of policy or capacity
    Undo(undo::UndoArgs),
    /// Show what a configuration file would change, before it does
    Plan(plan::PlanArgs),
    /// Say why a class gets what it gets, now
    Explain(explain::ExplainArgs),
    /// Promise bandwidth: offers, agreements, what is reserved when
    Agree(agree::AgreeArgs),
    /// Choose congestion control: rules, flows, completion times
    Cc(cc::CcArgs),
    /// Shape pods from their first packet: the CNI plugin, run by a container runtime
    Cni(cni::CniArgs),
    /// Pull images once for all: the cache, and who is pointed at it
    Image(image::ImageArgs),
    /// Show the classes as files, one each, that can be read and written
    Fs(fs::FsArgs),
    /// Show the agent and its link
    Status(status::StatusArgs),
    /// Show or set the link's capacity, at once
    Link(link::LinkArgs),
    /// Prove on the real link that it is divided, and leave nothing behind
    Test(test_uplink::TestArgs),
    /// Check what this node can do, and what not
    Doctor(doctor::DoctorArgs),
    /// Write one file with what a report of a fault needs, without secrets
    Bugreport(bugreport::BugreportArgs),
    /// Show what happened, or what happens
    Events(events::EventsArgs),
    /// Show who changed what, from what to what
    History(history::HistoryArgs),
    /// Make tokens for the API over TCP, and take them away
    Token(token::TokenArgs),
    /// Print a script that divides the link as now, for plain tc or for tcng
    Export(export::ExportArgs),
    /// Run the experiments (runs the program `weir-lab`)
    #[command(after_help = lab::EXAMPLES)]
    Lab(lab::Forwarded),
    /// Print a completion script for a shell
    Completions(manual::CompletionsArgs),
    /// Write the manual pages into a directory
    Man(manual::ManArgs),
    /// Move the packets of engine `user`. The agent starts it
    #[command(hide = true)]
    Forward,
}

const AGENT_EXAMPLES: &str = "Examples:
  weir agent --config /etc/weir/weir.toml
  weir agent --config weir.toml --check   is the file good, here? change
                                          nothing
  weir agent --print-config > weir.toml   a file to begin with: fill in the
                                          link
  weir agent --restore                    put back what an agent left that was
                                          killed
  WEIR_LOG=weir=debug weir agent          say more, on standard error
  weir agent --log-format json            one object a line: time, level,
                                          target, message, and for an event its
                                          class and agreement

Needs root. Reads its file again on SIGHUP and when it changes; a file that is
wrong is refused and the old one stays in force. On SIGTERM it leaves the
network as it found it, and on SIGUSR2 it leaves the division in force for the
next agent, as an upgrade does.";

#[derive(Debug, Args)]
#[command(after_help = AGENT_EXAMPLES)]
struct AgentArgs {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "/etc/weir/weir.toml")]
    config: PathBuf,
    /// Only read the file and say what is wrong with it, by itself or on this node
    #[arg(long)]
    check: bool,
    /// Only print a configuration to fill in
    #[arg(long, conflicts_with_all = ["config", "check"])]
    print_config: bool,
    /// Only put back what an agent that has ended left on this node
    #[arg(long, conflicts_with_all = ["check", "print_config"])]
    restore: bool,
    /// The directory of the state for --restore, if it is another one than the file names
    #[arg(long, value_name = "DIR", requires = "restore")]
    state: Option<PathBuf>,
    /// The form of the log on standard error: text, json, or journal (with sd-daemon's priorities)
    #[arg(long, value_enum, value_name = "FORMAT", env = log::FORMAT, default_value = "text")]
    #[arg(hide_possible_values = true)]
    log_format: LogFormat,
}

/// The context of a verb.
struct Session<'a> {
    client: Client,
    /// Where an agent of this node listens.
    socket: PathBuf,
    json: bool,
    look: Look,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl Session<'_> {
    /// The socket, for a verb that needs an agent of this node.
    ///
    /// # Errors
    /// The agent is asked over TCP.
    fn local(&self, verb: &str) -> Result<&Path, Usage> {
        self.client.socket().map(|_| self.socket.as_path()).ok_or_else(|| {
            Usage(format!("`weir {verb}` works on the agent's own node only: leave --url and WEIR_URL out"))
        })
    }

    /// Prints an answer: as JSON if asked for, else with `text`.
    fn print<T: Serialize>(
        &mut self,
        answer: &T,
        text: impl FnOnce(&mut dyn Write, Look) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        if self.json {
            serde_json::to_writer_pretty(&mut *self.out, answer)?;
            writeln!(self.out)?;
        } else {
            text(self.out, self.look)?;
        }
        Ok(())
    }
}

/// The error of a command line, or of a file it names, that cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// The definition of the command line.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line `args`, which starts with the program's name. Errors go to `err` and into the
/// exit code.
pub(crate) fn run(
    args: impl IntoIterator<Item = OsString>,
    look: Look,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        // Without a verb the help is printed, but as an error.
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = write!(err, "{}", e.render());
            return ExitCode::from(USAGE);
        }
        Err(e) if e.use_stderr() => {
            let text = e.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            say(err, &text.trim_end());
            return ExitCode::from(USAGE);
        }
        // The help or the version is no error.
        Err(e) => {
            let written = write!(out, "{}", e.render()).and_then(|()| out.flush());
            return code(written.map(|()| ExitCode::SUCCESS).map_err(anyhow::Error::from), err);
        }
    };
    let client = match cli.global.client() {
        Ok(client) => client,
        Err(e) => {
            say(err, &format_args!("{:#}", anyhow::Error::new(e)));
            return ExitCode::from(USAGE);
        }
    };
    // JSON is printed as the agent sent it.
    let client = if cli.global.json { client } else { client.for_terminal() };
    let Global { socket, json, .. } = cli.global;
    let done = dispatch(cli.command, Session { client, socket, json, look, out: &mut *out, err: &mut *err });
    // Text without a newline at its end is not written yet.
    code(done.and_then(|code| Ok(out.flush().map(|()| code)?)), err)
}

/// The exit code. An error is told.
fn code(done: anyhow::Result<ExitCode>, err: &mut dyn Write) -> ExitCode {
    match done {
        Ok(code) => code,
        // The reader closed the pipe early (`weir ps | head`).
        Err(e) if e.chain().any(is_broken_pipe) => ExitCode::SUCCESS,
        Err(e) => {
            say(err, &format_args!("{e:#}"));
            // weir.service does not start again after this code (`RestartPreventExitStatus=2`).
            let is_input = e.is::<Usage>() || e.downcast_ref::<ConfigError>().is_some_and(ConfigError::lasts);
            ExitCode::from(if is_input { USAGE } else { 1 })
        }
    }
}

fn dispatch(command: Command, mut session: Session<'_>) -> anyhow::Result<ExitCode> {
    let session = &mut session;
    match command {
        Command::Init(args) => init::run(&args, session),
        Command::Agent(args) => agent(&args, session),
        Command::Ps(args) => ps::run(&args, session),
        Command::Top(args) => top::run(&args, session),
        Command::Set(args) => set::set(args, session),
        Command::Unset(args) => set::unset(&args, session),
        Command::Undo(args) => undo::run(&args, session),
        Command::Plan(args) => plan::run(&args, session),
        Command::Explain(args) => explain::run(&args, session),
        Command::Agree(args) => agree::run(args, session),
        Command::Cc(args) => cc::run(args, session),
        Command::Cni(cni::CniArgs {}) => cni::run(session),
        Command::Image(args) => image::run(args, session),
        Command::Fs(args) => fs::run(&args, session),
        Command::Status(args) => status::run(&args, session),
        Command::Link(args) => link::run(&args, session),
        Command::Test(args) => test_uplink::run(&args, session),
        Command::Doctor(doctor::DoctorArgs {}) => doctor::run(session),
        Command::Bugreport(args) => bugreport::run(&args, session),
        Command::Events(args) => events::run(&args, session),
        Command::History(args) => history::run(&args, session),
        Command::Token(args) => token::run(&args, session),
        Command::Export(args) => export::run(&args, session),
        Command::Lab(args) => lab::run(&[], &args),
        Command::Completions(args) => manual::completions(&args, session),
        Command::Man(args) => manual::pages(&args, session),
        Command::Forward => {
            log_to_stderr(LogFormat::of_environment()?)?;
            weir_agent::forward()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The configuration that the package installs.
const CONFIG: &str = include_str!("../../../../packaging/weir.toml");

fn agent(args: &AgentArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let config = &args.config;
    if args.print_config {
        write!(session.out, "{CONFIG}")?;
    } else if args.check {
        weir_agent::check(config)?;
        let answer = json!({ "config": config.display().to_string(), "good": true });
        session.print(&answer, |out, _| writeln!(out, "{} is good", config.display()))?;
    } else {
        if std::env::var_os(log::FORMAT).is_none_or(|format| format != args.log_format.word()) {
            // The forwarder of engine `user` inherits the format.
            // SAFETY: the program has one thread so early.
            unsafe { std::env::set_var(log::FORMAT, args.log_format.word()) };
        }
        log_to_stderr(args.log_format)?;
        if args.restore {
            restore(args, session)?;
        } else {
            weir_agent::run(config)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn restore(args: &AgentArgs, session: &mut Session<'_>) -> anyhow::Result<()> {
    let weir_agent::Restored { devices, state, is_whole } =
        weir_agent::restore(&args.config, args.state.as_deref())?;
    let answer = json!({
        "config": args.config.display().to_string(),
        "restored": true,
        "state": state.as_ref().map(|state| state.display().to_string()),
        "devices": devices,
    });
    session.print(&answer, |out, _| match is_whole {
        true => writeln!(out, "everything is put back"),
        false => {
            writeln!(out, "everything is put back but clsact qdiscs, which only the state could tell apart")
        }
    })
}

/// Parses a name, and detects a variable of a script that is empty.
fn name(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("a name has at least one character".to_owned()) } else { Ok(text.to_owned()) }
}

fn say(err: &mut dyn Write, what: &dyn fmt::Display) {
    // Standard error may be gone, and then there is no place to report it.
    let _ = writeln!(err, "weir: {}", weir_api::plain_lines(&what.to_string()));
}

fn is_broken_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
    let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
    io.or(json) == Some(io::ErrorKind::BrokenPipe)
}
