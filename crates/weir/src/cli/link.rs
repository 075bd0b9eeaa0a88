//! `weir link`.

use std::{
    io::{self, Write},
    process::ExitCode,
    str::FromStr,
};

use clap::{Args, Subcommand};
use weir_api::{Capacity, LinkView, OtherLink, SetCapacity};
use weir_units::BitRate;

use super::{Session, Usage, plan, status};

const EXAMPLES: &str = "Examples:
  weir link                                  capacities, promises
  weir link set capacity=30mbit              at once, under load too
  weir link set capacity=30mbit download=50mbit
  weir link set capacity=30mbit --dry-run    what it would change
  weir link set capacity=none                the configured capacity again
  weir link reset                            the configured capacities again
  weir link set --link=wwan0 capacity=5mbit    of several links this one

A capacity set by hand outlives a restart of the agent and a reload of its
file. Promises that do not fit any more are suspended, the latest first, and
`weir events` reports them. They come back in the order of their age when the
capacity does. `weir undo` takes the last change back.

Several [[link]] tables share several links, each with its own capacities. The
first one shown is the main link, which the default route takes. Promises of
agreements are about it.

A configured range follows the link's rate, as in capacity = { min = \"2mbit\",
max = \"40mbit\" }. A range of the download does too. The states are:
  track     the capacity follows the rate that the link carries, and its queue
  look      the queue drains for 0.2 s, to see the round trip without it
  idle      the classes leave a part of the capacity
  silent    the link answers nothing: the capacity stays
  foreign   the queue is another sender's, or the path is longer: the capacity
            of before
  blind     no packet tells the queue: what was usual, or the lowest rate
  lost      the signals cannot be read: the lowest rate
A rate set by hand replaces the range until it is reset.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(super) struct LinkArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Set the capacity of what leaves or of what arrives
    Set(SetArgs),
    /// Return to the configured capacities
    Reset(ResetArgs),
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct SetArgs {
    /// capacity=RATE of what leaves, download=RATE of what arrives; `none` returns to the configured one
    #[arg(required = true, value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Of several links this one; without it the main one, which the default route takes
    #[arg(long, value_name = "DEVICE")]
    link: Option<String>,
    /// Only show what would change; the agent refuses what it would refuse without this option
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct ResetArgs {
    /// Of several links this one; without it all
    #[arg(long, value_name = "DEVICE")]
    link: Option<String>,
}

/// One `key=value`. `None` stands for `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    Capacity(Option<BitRate>),
    Download(Option<BitRate>),
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let Some((key, value)) = text.split_once('=') else {
            return Err("write capacity=RATE, or download=RATE for what arrives".to_owned());
        };
        let rate = || match value {
            "" => Err(format!("`{key}=` lacks its rate: write one, or `{key}=none` for the configured one")),
            "none" => Ok(None),
            _ => value.parse::<BitRate>().map(Some).map_err(|e| e.to_string()),
        };
        match key {
            "capacity" => rate().map(Setting::Capacity),
            "download" => rate().map(Setting::Download),
            _ => Err(format!("there is no `{key}` of the link to set: write capacity or download")),
        }
    }
}

fn change(link: Option<&String>, settings: &[Setting]) -> Result<SetCapacity, Usage> {
    let mut change = SetCapacity { device: link.cloned(), ..SetCapacity::default() };
    for setting in settings {
        let (key, earlier) = match *setting {
            Setting::Capacity(rate) => ("capacity", change.capacity.replace(rate)),
            Setting::Download(rate) => ("download", change.download.replace(rate)),
        };
        if earlier.is_some() {
            return Err(Usage(format!("cannot set {key} of the link twice in one call")));
        }
    }
    Ok(change)
}

pub(super) fn run(args: &LinkArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let view = match &args.verb {
        None => session.client.link()?,
        Some(Verb::Set(SetArgs { settings, link, dry_run: true })) => {
            let plan = session.client.plan_link(&change(link.as_ref(), settings)?)?;
            session.print(&plan, |out, look| plan::write(out, look, &plan))?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Verb::Set(SetArgs { settings, link, .. })) => {
            session.client.set_link(&change(link.as_ref(), settings)?)?
        }
        Some(Verb::Reset(ResetArgs { link: None })) => session.client.reset_link()?,
        Some(Verb::Reset(ResetArgs { link })) => session
            .client
            .set_link(&change(link.as_ref(), &[Setting::Capacity(None), Setting::Download(None)])?)?,
    };
    session.print(&view, |out, _| write(out, &view))?;
    Ok(ExitCode::SUCCESS)
}

fn write(out: &mut dyn Write, view: &LinkView) -> io::Result<()> {
    let text = |Capacity { capacity, configured }: Capacity| status::capacity(capacity, configured);
    writeln!(out, "link       {}", view.device)?;
    writeln!(out, "capacity   {}", text(view.upload))?;
    if let Some(follows) = &view.follows {
        writeln!(out, "follows    {}", status::follows(follows))?;
    }
    if let Some(framing) = &view.framing {
        writeln!(out, "framing    {framing}")?;
    }
    status::write_exempt(out, &view.exempt)?;
    writeln!(out, "download   {}", view.download.map_or("not shared".to_owned(), text))?;
    if let Some(follows) = &view.download_follows {
        writeln!(out, "follows    {}", status::follows(follows))?;
    }
    for why in &view.unpromised {
        writeln!(out, "! {why}")?;
    }
    view.others.iter().try_for_each(|other| write_other(out, other))
}

/// Writes a link that the default route does not take.
fn write_other(out: &mut dyn Write, other: &OtherLink) -> io::Result<()> {
    writeln!(out, "\nlink       {}, for what other routes send there", other.device)?;
    if !other.is_here {
        return writeln!(out, "! there is no such device now");
    }
    writeln!(out, "capacity   {}", status::capacity(other.capacity, other.configured_capacity))?;
    if let Some(follows) = &other.follows {
        writeln!(out, "follows    {}", status::follows(follows))?;
    }
    status::write_exempt(out, &other.exempt)?;
    let text = |d: &weir_api::DownloadStatus| status::capacity(d.capacity, d.configured_capacity);
    let download = other.download.as_ref().map(text);
    writeln!(out, "download   {}", download.unwrap_or_else(|| "not shared".to_owned()))?;
    if let Some(follows) = other.download.as_ref().and_then(|d| d.follows.as_ref()) {
        writeln!(out, "follows    {}", status::follows(follows))?;
    }
    let fault = other.not_enforced_because.as_ref().map(|why| format!("not enforced: {why}"));
    fault.iter().chain(&other.unpromised).try_for_each(|why| writeln!(out, "! {why}"))
}

#[cfg(test)]
mod tests {
    use weir_fake_agent as fake;

    use super::*;

    #[test]
    fn settings_of_the_link_are_read_and_wrong_ones_say_why() {
        let read = |text: &str| text.parse::<Setting>();
        assert_eq!(read("capacity=30mbit"), Ok(Setting::Capacity(Some(BitRate::mbit(30)))));
        assert_eq!(read("download=none"), Ok(Setting::Download(None)));
        for (text, why) in [
            ("30mbit", "write capacity=RATE"),
            ("rate=30mbit", "there is no `rate` of the link"),
            ("capacity=", "`capacity=none`"),
            ("capacity=fast", "fast"),
            ("download=-3mbit", "-3mbit"),
        ] {
            assert!(read(text).unwrap_err().contains(why), "{text}");
        }
        let twice = ["capacity=1mbit", "download=2mbit", "capacity=none"].map(|text| read(text).unwrap());
        assert!(change(None, &twice).unwrap_err().0.contains("capacity of the link twice"));
        assert_eq!(change(None, &twice[..2]).unwrap().download, Some(Some(BitRate::mbit(2))));
    }

    #[test]
    fn each_direction_has_a_follower_of_its_own() {
        let capacity = |mbit| Capacity { capacity: BitRate::mbit(mbit), configured: None };
        let view = LinkView {
            device: "eth0".to_owned(),
            others: Vec::new(),
            upload: capacity(100),
            framing: None,
            follows: None,
            download: Some(capacity(40)),
            download_follows: Some(fake::follows()),
            exempt: Vec::new(),
            unpromised: Vec::new(),
        };
        let mut out = Vec::new();
        write(&mut out, &view).unwrap();
        let want = "link       eth0\ncapacity   100mbit\ndownload   40mbit\n\
                    follows    2mbit to 120mbit, queue of 30 ms allowed: track, queue 7.5 ms\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn capacity_by_hand_is_shown_with_the_configured_one_and_its_cost() {
        let view = LinkView {
            device: "eth0".to_owned(),
            others: [("wwan0", true), ("wwan1", false)]
                .map(|(device, is_here)| OtherLink {
                    device: device.to_owned(),
                    is_here,
                    exempt: vec!["10.9.0.0/24".to_owned()],
                    ..fake::other_link()
                })
                .into(),
            upload: Capacity { capacity: BitRate::mbit(30), configured: Some(BitRate::mbit(95)) },
            framing: Some("pppoe-ptm".to_owned()),
            follows: None,
            download: None,
            download_follows: None,
            exempt: ["192.168.1.0/24", "fe80::/64"].map(str::to_owned).into(),
            unpromised: vec!["web: its minimum of 40mbit is not promised".to_owned()],
        };
        let mut out = Vec::new();
        write(&mut out, &view).unwrap();
        let want = "link       eth0\ncapacity   30mbit by hand (95mbit configured)\nframing    pppoe-ptm\nexempt     192.168.1.0/24, fe80::/64\ndownload   not shared\n\
                    ! web: its minimum of 40mbit is not promised\n\n\
                    link       wwan0, for what other routes send there\ncapacity   9mbit\nexempt     10.9.0.0/24\ndownload   50mbit\n\
                    ! web: its minimum of 40mbit is not promised\n\n\
                    link       wwan1, for what other routes send there\n! there is no such device now\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
