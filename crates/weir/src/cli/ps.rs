//! `weir ps`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use weir_api::{Activity, Class, ClassKind, Status};

use super::{
    Session, Usage,
    format::{self, Look, Table, Tone},
    status,
};

const EXAMPLES: &str = "Examples:
  weir ps                 the classes of this node
  weir ps -o wide         with handle, interfaces, source, agreement and totals
  weir ps --link wwan0    of several links this one
  weir ps --json | jq '.[] | select(.activity == \"active\") | .name'

Columns:
  GROUP            the group whose part the class shares; `(group)` is a group
  WEIGHT MIN MAX   the policy in force; `weir explain NAME` says who set what
  ALLOCATED        what the class may send now
  SENDING          what it sent over the last second
  DROPS            packets lost because its queue was full
  BACKLOG          bytes waiting in its queue now
  DOWN RECEIVING   what the class may receive now and what it received over the
                   last second, where the download is shared
  STATE            active, idle or absent; `!` if the policy is not enforced,
                   with the reason below the table

Columns of -o wide:
  HANDLE          the class in the scheduler, as tc prints it
  SOURCE          the runtime or the section that the class comes from
  AGREEMENT       the agreement in force for it
  BYTES           bytes sent over the link since the class exists
  LOCAL           bytes to this node and to exempt networks, which are not
                  charged
  BACKPRESSURED   the time for which the class has had a queue
  INTERFACES      the interfaces or selectors of the class";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PsArgs {
    /// How much to show
    #[arg(long, short, value_name = "FORM")]
    output: Option<Output>,
    /// Of several links only this one
    #[arg(long, value_name = "DEVICE")]
    link: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// All columns
    Wide,
}

pub(super) fn run(args: &PsArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let classes = session.client.classes()?;
    let wide = args.output == Some(Output::Wide);
    // The JSON form is the list of classes alone.
    let status = if session.json { None } else { Some(session.client.status()?) };
    let classes = match &args.link {
        None => classes,
        Some(link) => on_link(&session.client.status()?, classes, link)?,
    };
    session.print(&classes, |out, look| {
        let Some(status) = &status else { return Ok(()) };
        if status.other_links.is_empty() || args.link.is_some() {
            write(out, look, &classes, wide)?;
        } else {
            write_links(out, look, status, &classes, wide)?;
        }
        let others = status.other_links.iter().map(|other| status.on(other));
        let all = [status.clone()].into_iter().chain(others);
        let is_shown = |link: &Status| args.link.as_ref().is_none_or(|device| *device == link.link);
        all.filter(is_shown).try_for_each(|link| write_capacity(out, &link))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The classes with their figures on the link of a device.
fn on_link(status: &Status, classes: Vec<Class>, device: &str) -> Result<Vec<Class>, Usage> {
    if status.link == device {
        return Ok(classes);
    }
    let others = status.other_links.iter().map(|other| other.device.as_str());
    if !others.clone().any(|other| other == device) {
        let all: Vec<&str> = [status.link.as_str()].into_iter().chain(others).collect();
        return Err(Usage(format!("no link {device} is shared, but {}", all.join(", "))));
    }
    let on =
        |class: &Class| class.on_links.iter().find(|part| part.link == device).map(|part| class.on(part));
    Ok(classes.iter().filter_map(on).collect())
}

/// Writes a table for each link.
fn write_links(
    out: &mut dyn Write,
    look: Look,
    status: &Status,
    classes: &[Class],
    wide: bool,
) -> io::Result<()> {
    writeln!(out, "{}, which the default route takes: {}", status.link, status.capacity)?;
    write(out, look, classes, wide)?;
    for other in &status.other_links {
        let is_gone = if other.is_here { "" } else { ", which is not here now" };
        writeln!(out, "\n{}{is_gone}: {}", other.device, other.capacity)?;
        if let Some(why) = &other.not_enforced_because {
            writeln!(out, "! not enforced: {why}")?;
        }
        let on = |class: &Class| {
            let part = class.on_links.iter().find(|part| part.link == other.device)?;
            Some(class.on(part))
        };
        write(out, look, &classes.iter().filter_map(on).collect::<Vec<_>>(), wide)?;
    }
    let moved: Vec<&Class> = classes.iter().filter(|class| class.moved_packets > 0).collect();
    for class in moved {
        let count = class.moved_packets;
        let what = "left by another link than their route said, and were charged to both";
        writeln!(out, "\n! {}: {count} packets {what}", class.name)?;
    }
    Ok(())
}

/// Writes the capacities that are not the configured ones.
fn write_capacity(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    let up = status.configured_capacity.map(|configured| ("capacity", status.capacity, configured));
    let down = status.download.as_ref();
    let down = down.and_then(|down| Some(("download", down.capacity, down.configured_capacity?)));
    for (what, now, configured) in up.into_iter().chain(down) {
        let now = status::capacity(now, Some(configured));
        writeln!(out, "\nthe {what} of {} is {now}; `weir link reset` returns to that", status.link)?;
    }
    Ok(())
}

/// Writes the table of classes. The reasons why some are not enforced follow.
pub(super) fn write(out: &mut dyn Write, look: Look, classes: &[Class], wide: bool) -> io::Result<()> {
    const SHORT: [&str; 10] =
        ["NAME", "GROUP", ">WEIGHT", ">MIN", ">MAX", ">ALLOCATED", ">SENDING", ">DROPS", ">BACKLOG", "STATE"];
    const WIDE: [&str; 7] =
        ["HANDLE", "SOURCE", "AGREEMENT", ">BYTES", ">LOCAL", ">BACKPRESSURED", "INTERFACES"];
    const DOWN: [&str; 2] = [">DOWN", ">RECEIVING"];
    const WIDE_DOWN: [&str; 4] = [">DOWN WEIGHT", ">DOWN MIN", ">DOWN MAX", ">DOWN DROPS"];
    let has_down = classes.iter().any(|class| class.down.is_some());
    let state = SHORT.len() - 1;
    let mut headings: Vec<&str> = SHORT[..state].to_vec();
    headings.extend(DOWN.into_iter().filter(|_| has_down));
    headings.push(SHORT[state]);
    headings.extend(WIDE.into_iter().filter(|_| wide));
    headings.extend(WIDE_DOWN.into_iter().filter(|_| wide && has_down));
    let mut table = Table::new(look, &headings);
    let mut sorted: Vec<&Class> = classes.iter().collect();
    sorted.sort_by(|a, b| rank(a).cmp(&rank(b)));
    for class in &sorted {
        let mut cells = short_cells(class).to_vec();
        if has_down {
            cells.splice(state..state, down_cells(class));
        }
        cells.extend(wide_cells(class).into_iter().filter(|_| wide));
        cells.extend(wide_down_cells(class).into_iter().filter(|_| wide && has_down));
        table.row(cells);
    }
    write!(out, "{table}")?;
    let lacks_down = |class: &&&Class| class.down.as_ref().is_some_and(|down| !down.enforced);
    if sorted.iter().any(|class| !class.enforced || lacks_down(&class)) {
        writeln!(out)?;
    }
    let not_enforced = sorted.iter().filter(|class| !class.enforced);
    for class in not_enforced {
        let why = class.not_enforced_because.as_deref().unwrap_or("the agent does not say why");
        writeln!(out, "! {} is not enforced: {why}", class.name)?;
    }
    for class in sorted.iter().filter(lacks_down) {
        let down = class.down.as_ref().and_then(|down| down.not_enforced_because.as_deref());
        let why = down.unwrap_or("the agent does not say why");
        writeln!(out, "! {}: its download is not enforced: {why}", class.name)?;
    }
    Ok(())
}

/// The order of the table: a group before its members, and weir's own classes last.
fn rank(class: &Class) -> (bool, &str, bool, &str) {
    let own = matches!(class.kind, ClassKind::Host | ClassKind::Default | ClassKind::Control);
    let is_group = class.kind == ClassKind::Group;
    let group = if is_group { &class.name } else { class.group.as_deref().unwrap_or(&class.name) };
    (own, group, !is_group, &class.name)
}

fn short_cells(class: &Class) -> [(String, Tone); 10] {
    let plain = |text: String| (text, Tone::Plain);
    let tone = match (class.enforced, class.activity) {
        (false, _) => Tone::Bad,
        (true, Activity::Active) => Tone::Good,
        (true, _) => Tone::Dim,
    };
    let here = class.activity != Activity::Absent;
    let measured = |text: String| if here { text } else { "-".to_owned() };
    let group = if class.kind == ClassKind::Group { Some("(group)") } else { class.group.as_deref() };
    [
        plain(class.name.clone()),
        plain(group.unwrap_or("-").to_owned()),
        plain(class.policy.weight.to_string()),
        plain(format::bound(class.policy.min)),
        plain(format::bound(class.policy.max)),
        plain(measured(format::rate(class.allocation))),
        plain(measured(format::rate(class.rate))),
        (measured(class.drops.to_string()), if class.drops > 0 { Tone::Warn } else { Tone::Plain }),
        plain(measured(class.backlog.to_string())),
        (format::state(class), tone),
    ]
}

/// The cells of what arrives; `-` for a class that has no part of it.
fn down_cells(class: &Class) -> [(String, Tone); 2] {
    let here = class.activity != Activity::Absent;
    let down = class.down.as_ref().filter(|_| here);
    let tone = if class.down.as_ref().is_some_and(|down| !down.enforced) { Tone::Bad } else { Tone::Plain };
    let rate = |rate: Option<_>| rate.map_or_else(|| "-".to_owned(), format::rate);
    [(rate(down.map(|down| down.allocation)), tone), (rate(down.map(|down| down.rate)), Tone::Plain)]
}

fn wide_down_cells(class: &Class) -> [(String, Tone); 4] {
    let cells = match &class.down {
        None => [(); 4].map(|()| "-".to_owned()),
        Some(down) => [
            down.policy.weight.to_string(),
            format::bound(down.policy.min),
            format::bound(down.policy.max),
            down.drops.to_string(),
        ],
    };
    cells.map(|text| (text, Tone::Plain))
}

fn wide_cells(class: &Class) -> [(String, Tone); 7] {
    let or_none = |text: String| (if text.is_empty() { "-".to_owned() } else { text }, Tone::Plain);
    [
        or_none(class.handle.clone().unwrap_or_default()),
        or_none(class.source.clone()),
        or_none(class.agreement.clone().unwrap_or_default()),
        or_none(class.bytes.to_string()),
        or_none(class.local_bytes.to_string()),
        or_none(format::millis(class.backpressured_ms)),
        or_none(class.interfaces.iter().chain(&class.selects).cloned().collect::<Vec<_>>().join(", ")),
    ]
}

#[cfg(test)]
mod tests {
    use weir_fake_agent as fake;

    use super::*;

    fn several() -> (Status, Vec<Class>) {
        let mut classes = fake::classes();
        classes[1].on_links = vec![fake::on_link(&classes[1])];
        classes[1].moved_packets = 7;
        (Status { other_links: vec![fake::other_link()], ..fake::status() }, classes)
    }

    #[test]
    fn each_link_has_a_table_of_its_own() {
        let (status, classes) = several();
        let mut out = Vec::new();
        write_links(&mut out, Look::PLAIN, &status, &classes, false).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.starts_with("eth0, which the default route takes: 100mbit\nNAME "), "{out}");
        let (_, second) = out.split_once("\nwwan0: 9mbit\nNAME ").expect("a second table");
        let line = second.lines().find(|line| line.starts_with("video ")).expect("video is there too");
        assert!(line.contains(" 9mbit ") && line.contains(" 4mbit "), "{line}");
        assert!(!second.contains("camera"), "{second}");
        assert!(
            out.ends_with(
                "! video: 7 packets left by another link than their route said, and were charged to both\n"
            ),
            "{out}"
        );
    }

    #[test]
    fn link_that_is_not_shared_has_its_reason_in_place_of_figures() {
        let (mut status, classes) = several();
        status.other_links[0].not_enforced_because = Some("cannot share link wwan0: no room".to_owned());
        let mut out = Vec::new();
        write_links(&mut out, Look::PLAIN, &status, &classes, false).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("\nwwan0: 9mbit\n! not enforced: cannot share link wwan0: no room\n"), "{out}");
    }

    #[test]
    fn one_link_is_chosen_by_its_device() {
        let (status, classes) = several();
        assert_eq!(on_link(&status, classes.clone(), "eth0").unwrap(), classes);
        let there = on_link(&status, classes.clone(), "wwan0").unwrap();
        assert_eq!(there.iter().map(|class| (&*class.name, class.drops)).collect::<Vec<_>>(), [("video", 2)]);
        let error = on_link(&status, classes, "eth9").unwrap_err().0;
        assert_eq!(error, "no link eth9 is shared, but eth0, wwan0");
    }
}
