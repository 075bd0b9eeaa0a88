//! `weir status`.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Args;
use weir_api::{Follows, Status};
use weir_units::BitRate;

use super::{Session, format};

const EXAMPLES: &str = "Examples:
  weir status
  weir status --json | jq .rate   what the link carries, bit/s
  weir status --acknowledge       what happened to the state is read: say it no
                                  more";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct StatusArgs {
    /// Acknowledge the notices about the stored state
    #[arg(long)]
    acknowledge: bool,
}

pub(super) fn run(args: &StatusArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    if args.acknowledge {
        session.client.acknowledge()?;
    }
    let status = session.client.status()?;
    session.print(&status, |out, _| write(out, &status))?;
    Ok(ExitCode::SUCCESS)
}

/// A capacity with its origin, if that is not the configuration.
pub(super) fn capacity(now: BitRate, configured: Option<BitRate>) -> String {
    match configured {
        None => now.to_string(),
        Some(configured) => format!("{now} by hand ({configured} configured)"),
    }
}

/// The follower of a link whose rate changes.
pub(super) fn follows(follows: &Follows) -> String {
    let Follows { min, max, delay_ms, capacity, state, .. } = follows;
    let queue = follows.queue_us.map_or(String::new(), |us| format!(", queue {:.1} ms", us as f64 / 1e3));
    let dry = if follows.dry_run { " (dry run: nothing is changed)" } else { "" };
    let decided = if follows.dry_run { format!(" {capacity}") } else { String::new() };
    format!("{min} to {max}, queue of {delay_ms} ms allowed: {state}{decided}{queue}{dry}")
}

/// The line of the networks whose packets are not scheduled, if there are some.
pub(super) fn write_exempt(out: &mut dyn Write, exempt: &[String]) -> io::Result<()> {
    if exempt.is_empty() { Ok(()) } else { writeln!(out, "exempt     {}", exempt.join(", ")) }
}

fn write(out: &mut dyn Write, s: &Status) -> io::Result<()> {
    writeln!(out, "weir {}, process {}, up {}", s.version, s.pid, format::seconds(s.uptime_s))?;
    let share = format::percent(s.rate, s.capacity);
    let capacity = capacity(s.capacity, s.configured_capacity);
    writeln!(out, "link       {}, {capacity}; sending {} ({share})", s.link, format::rate(s.rate))?;
    if let Some(follows) = &s.follows {
        writeln!(out, "follows    {}", self::follows(follows))?;
    }
    if let Some(framing) = &s.framing {
        writeln!(out, "framing    {framing}")?;
    }
    write_exempt(out, &s.exempt)?;
    writeln!(out, "promised   {} of {} that may be", s.reserved, s.reservable)?;
    if let Some(d) = &s.download {
        let share = format::percent(d.rate, d.capacity);
        let rate = format::rate(d.rate);
        writeln!(
            out,
            "download   {} by {} on {}; receiving {rate} ({share})",
            self::capacity(d.capacity, d.configured_capacity),
            d.engine,
            d.device
        )?;
        if let Some(follows) = &d.follows {
            writeln!(out, "follows    {}", self::follows(follows))?;
        }
        writeln!(out, "promised   {} of {} that may be, of the download", d.reserved, d.reservable)?;
        if d.charged > BitRate::ZERO {
            writeln!(out, "charged    {} of the download pay for dropped packets", d.charged)?;
        }
    }
    for other in &s.other_links {
        let share = format::percent(other.rate, other.capacity);
        let rate = format::rate(other.rate);
        let is = match (&other.not_enforced_because, other.is_here) {
            (Some(_), _) => "not enforced".to_owned(),
            (None, true) => format!("sending {rate} ({share})"),
            (None, false) => "not here now".to_owned(),
        };
        writeln!(out, "beside     {}, {}; {is}", other.device, other.capacity)?;
        if let Some(d) = other.download.as_ref().filter(|_| other.is_here) {
            let (share, rate) = (format::percent(d.rate, d.capacity), format::rate(d.rate));
            writeln!(out, "           download {}; receiving {rate} ({share})", d.capacity)?;
        }
    }
    let pacing = if s.pacing { ", TCP paced" } else { "" };
    writeln!(out, "engine     {}, allocator {}, attached by {}{pacing}", s.engine, s.allocator, s.attach)?;
    writeln!(out, "classes    {}, {} active", s.classes, s.active)?;
    writeln!(out, "scheduler  {} writes, {} repairs", s.class_changes, s.repairs)?;
    if let (Some(times @ 1..), Some(us)) = (s.late, s.late_us) {
        writeln!(out, "late       {times} times, {} ms of the link lost", us / 1000)?;
    }
    writeln!(out, "config     {}", s.config)?;
    if let Some(error) = &s.config_error {
        writeln!(out, "! the file was refused, the old one is in force: {error}")?;
    }
    for notice in &s.notices {
        writeln!(out, "! {notice}")?;
    }
    if !s.notices.is_empty() {
        writeln!(out, "  (`weir status --acknowledge` when you have read this)")?;
    }
    let is_told = |why: &&String| s.warnings.iter().any(|warning| why.contains(warning.as_str()));
    for why in s.not_ready.iter().filter(|why| !is_told(why)) {
        writeln!(out, "! not ready: {why}")?;
    }
    for warning in &s.warnings {
        writeln!(out, "! {warning}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_api::FollowState;
    use weir_fake_agent as fake;

    #[test]
    fn follower_is_printed_with_its_bounds_and_its_state() {
        let mut follows = Follows {
            min: BitRate::mbit(2),
            max: BitRate::mbit(40),
            delay_ms: 30,
            capacity: BitRate::mbit(12),
            state: FollowState::Track,
            queue_us: Some(7_500),
            dry_run: false,
            failure: None,
        };
        let text = "2mbit to 40mbit, queue of 30 ms allowed: track, queue 7.5 ms";
        assert_eq!(self::follows(&follows), text);
        (follows.dry_run, follows.queue_us) = (true, None);
        let dry = "2mbit to 40mbit, queue of 30 ms allowed: track 12mbit (dry run: nothing is changed)";
        assert_eq!(self::follows(&follows), dry);
        let mut out = Vec::new();
        write(&mut out, &Status { follows: Some(follows), ..fake::status() }).unwrap();
        assert!(String::from_utf8(out).unwrap().contains(&format!("\nfollows    {dry}\n")));
    }

    #[test]
    fn capacity_by_hand_is_printed_beside_the_configured_one() {
        let mut out = Vec::new();
        let configured_capacity = Some(BitRate::mbit(120));
        write(&mut out, &Status { configured_capacity, ..fake::status() }).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains("eth0, 100mbit by hand (120mbit configured); sending"), "{out}");
    }

    #[test]
    fn links_beside_the_main_one_are_printed_with_what_they_carry() {
        let gone = weir_api::OtherLink { device: "wwan1".to_owned(), is_here: false, ..fake::other_link() };
        let why = Some("the device has a fault".to_owned());
        let faulty = weir_api::OtherLink { not_enforced_because: why, download: None, ..fake::other_link() };
        let other_links = vec![fake::other_link(), gone, faulty];
        let mut out = Vec::new();
        write(&mut out, &Status { other_links, ..fake::status() }).unwrap();
        let out = String::from_utf8(out).unwrap();
        let lines = "beside     wwan0, 9mbit; sending 4mbit (44.4 %)\n           download 50mbit; receiving 16mbit \
                     (32.0 %)\nbeside     wwan1, 9mbit; not here now\nbeside     wwan0, 9mbit; not enforced\nengine";
        assert!(out.contains(lines), "{out}");
    }

    #[test]
    fn what_happened_to_the_state_is_printed_with_the_way_to_acknowledge_it() {
        let notices = vec!["2026-11-23T00:00:00Z: weir.redb was damaged".to_owned()];
        let mut out = Vec::new();
        write(&mut out, &Status { notices, ..fake::status() }).unwrap();
        let out = String::from_utf8(out).unwrap();
        let lines = "! 2026-11-23T00:00:00Z: weir.redb was damaged\n  (`weir status --acknowledge` when you have read \
                     this)\n! not ready: camera: veth7 is not there: check `interface` in `[[class]]`\n! camera is \
                     not enforced";
        assert!(out.contains(lines), "{out}");
    }
}
