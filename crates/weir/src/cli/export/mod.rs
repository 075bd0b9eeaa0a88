//! `weir export`: the division as a script for use without an agent.

mod tc;
mod tcng;

use std::{process::ExitCode, time::SystemTime};

use clap::{Args, ValueEnum};
use weir_agree::Utc;
use weir_api::{ClassKind, Export, ExportClass, ExportSelector};

use super::Session;

const EXAMPLES: &str = "Examples:
  weir export tc > shape.sh            what runs now, as a shell script of tc commands
  weir export tc --device eth1         the same for another device
  weir export tcng                     as a configuration of tcng, for tcc
  weir export tc --json                the tree itself, for programs

The script is static: rate = minimum, ceil = maximum, quantum = weight. What it cannot say is in
its first lines. Stop the agent before it is run: both would divide the same link.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExportArgs {
    /// The language
    form: Form,
    /// The device to write it for, instead of the link's
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Form {
    /// A shell script of iproute2's tc commands
    Tc,
    /// The configuration language of tcng
    Tcng,
}

pub(super) fn run(args: &ExportArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let mut export = session.client.export()?;
    if let Some(device) = &args.device {
        export.link.clone_from(device);
    }
    let date = Utc::from(SystemTime::now()).second().to_string();
    session.print(&export, |out, _| {
        out.write_all(
            match args.form {
                Form::Tc => tc::script(&export, &date),
                Form::Tcng => tcng::script(&export, &date),
            }
            .as_bytes(),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Describes the limits of a static tree.
fn caveats(export: &Export) -> Vec<String> {
    let mut lines: Vec<String> = [
        "A minimum here is had on top of a share by weight; weir lifts the share to the minimum.",
        "Minima are rates, maxima ceilings, and weights quanta: what minima leave is lent by quanta.",
        "Senders are not held back where they send: what a full queue does not take is lost.",
        "Traffic between containers of the node is charged if it passes the link's queue.",
    ]
    .map(str::to_owned)
    .to_vec();
    if export.engine != "htb" {
        lines.push(format!("The division is held by weir's engine {} now, not by HTB.", export.engine));
    }
    if !export.selectors.is_empty() {
        lines.push(
            "Selectors see addresses and ports as they are on the link, after NAT; fragments that have no \
             ports match none; IP options and IPv6 extension headers hide ports."
                .to_owned(),
        );
    }
    lines
}

/// The class whose interfaces an export's selector applies to; `None` for all.
fn sender<'a>(export: &'a Export, selector: &ExportSelector) -> Option<&'a ExportClass> {
    let from = selector.from.as_ref()?;
    export.classes.iter().find(|class| class.handle == *from)
}

/// The class of unmatched packets: the host's own.
fn rest(export: &Export) -> Option<&ExportClass> {
    export.classes.iter().find(|class| class.kind == Some(ClassKind::Host))
}

/// The protocols that a selector must name, because ports need one.
fn protocols(selector: &ExportSelector) -> Vec<Option<u8>> {
    let with_ports = selector.source_ports.is_some() || selector.destination_ports.is_some();
    match (selector.protocol, with_ports) {
        (None, true) => vec![Some(6), Some(17)],
        (protocol, _) => vec![protocol],
    }
}

/// Whether a selector applies to this IP version.
fn is_about(selector: &ExportSelector, v6: bool) -> bool {
    let of = |net: &Option<String>| net.as_ref().is_none_or(|net| net.contains(':') == v6);
    of(&selector.source) && of(&selector.destination)
}

#[cfg(test)]
mod tests;
