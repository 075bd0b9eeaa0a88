//! `weir export`: the division as a script for use without an agent.

mod tc;
mod tcng;

use std::{process::ExitCode, time::SystemTime};

use clap::{Args, ValueEnum};
use weir_agent::config::check_interface;
use weir_agree::{Direction, Utc};
use weir_api::{ClassKind, Export, ExportClass, ExportQuery, ExportSelector};

use super::Session;

const EXAMPLES: &str = "Examples:
  weir export tc > shape.sh      what runs now, as a shell script of tc
                                 commands
  weir export tc --download      what arrives, where the download is shared
  weir export tc --link wwan0    of several links this one
  weir export tc --device eth1   the same for another device
  weir export tcng               as a configuration of tcng, for tcc
  weir export tc --json          the tree itself, for programs

The script is static: rate = minimum, ceil = maximum, quantum = weight. Its
first lines tell what it lacks. A link with a framing is refused: a script
would not charge it. Each direction of each link has a script of its own. Stop
the agent before one is run: both would divide the same link.

The script of a download sends what arrives through a device of its own (an
ifb), and knows a packet's class by its destination address. Behind NAT that is
the host's for all packets.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ExportArgs {
    /// The language
    form: Form,
    /// The division of what arrives, not of what leaves
    #[arg(long)]
    download: bool,
    /// Of several links this one; without it the main one, which the default route takes
    #[arg(long, value_name = "DEVICE")]
    link: Option<String>,
    /// The device to write it for, instead of the link's
    #[arg(long, value_name = "NAME", value_parser = interface)]
    device: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Form {
    /// A shell script of iproute2's tc commands
    Tc,
    /// The configuration language of tcng
    Tcng,
}

fn interface(name: &str) -> Result<String, String> {
    check_interface(name).map(|()| name.to_owned())
}

pub(super) fn run(args: &ExportArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let direction = if args.download { Direction::Download } else { Direction::Upload };
    let mut export = session.client.export(&ExportQuery { direction, link: args.link.clone() })?;
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

/// The first line of a script. `date` is that of the division.
fn title(export: &Export, date: &str) -> String {
    let Export { version, link, capacity, .. } = export;
    let of = match export.direction {
        Direction::Upload => "",
        Direction::Download => "what arrives by ",
    };
    format!("The division of {of}{link}, {capacity}, as weir {version} held it on {date}.")
}

/// Describes the limits of a static tree.
fn caveats(export: &Export) -> Vec<String> {
    let mut lines = [
        "A minimum here is had on top of a share by weight; weir lifts the share to the minimum.",
        "Minima are rates, maxima ceilings, and weights quanta: what minima leave is lent by quanta.",
    ]
    .map(str::to_owned)
    .to_vec();
    if of_kind(export, ClassKind::Group).is_some() {
        lines.push(
            "HTB has no quanta of groups: members divide their group's weight. While a member is idle, its group \
             lacks that member's part."
                .to_owned(),
        );
    }
    lines.extend(match export.direction {
        Direction::Upload => caveats_of_upload(),
        Direction::Download => caveats_of_download(export),
    });
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

fn caveats_of_upload() -> Vec<String> {
    [
        "Senders are not held back where they send: what a full queue does not take is lost.",
        "Traffic between containers of the node is charged if it passes the link's queue.",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn caveats_of_download(export: &Export) -> Vec<String> {
    let name = |kind, other: &str| of_kind(export, kind).map_or(other.to_owned(), |class| class.name.clone());
    let (host, rest) = (name(ClassKind::Host, "host"), name(ClassKind::Default, "default"));
    vec![
        "Packets have crossed the line when they arrive: the capacity has to be below the line's rate."
            .to_owned(),
        format!(
            "A packet's class is that of its destination address on the link. Behind NAT that is the node's: all \
             belongs to {host}. weir learns there whose flows have left."
        ),
        format!("The addresses are those of now. Packets for another one belong to {rest}."),
        "Packets that queues drop are not charged, whatever charge_drops says.".to_owned(),
    ]
}

/// A word of the shell. A device's name may hold quotes and dollars.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// The device through which a script sends what arrives by the link. The end of a long name tells links apart.
fn ifb(export: &Export) -> String {
    const MAX_NAME: usize = 15;
    let (prefix, link) = ("ifb4", &export.link);
    let long = link.chars().count().saturating_sub(MAX_NAME - prefix.len());
    prefix.chars().chain(link.chars().skip(long)).collect()
}

/// The class whose interfaces an export's selector applies to; `None` for all.
fn sender<'a>(export: &'a Export, selector: &ExportSelector) -> Option<&'a ExportClass> {
    let from = selector.from.as_ref()?;
    export.classes.iter().find(|class| class.handle == *from)
}

/// The class of unmatched packets. Of those that leave it is the host's own.
fn rest(export: &Export) -> Option<&ExportClass> {
    let kind = match export.direction {
        Direction::Upload => ClassKind::Host,
        Direction::Download => ClassKind::Default,
    };
    of_kind(export, kind)
}

fn of_kind(export: &Export, kind: ClassKind) -> Option<&ExportClass> {
    export.classes.iter().find(|class| class.kind == Some(kind))
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
