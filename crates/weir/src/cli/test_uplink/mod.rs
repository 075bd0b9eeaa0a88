//! `weir test uplink`: proves on the real link that it is divided, and leaves nothing behind.

mod config;
mod interrupt;
mod judge;
mod look;
mod sender;
mod show;
mod stage;
mod traces;

use std::{
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{Args, Subcommand};
use ipnet::IpNet;
use weir_agent::FreeLink;
use weir_api::{Client, SetPolicies};
use weir_netlink::Netlink;
use weir_units::BitRate;

use self::{
    interrupt::Interrupted,
    judge::{Bounds, CLASSES, Counted, Line, Phase},
    look::Look,
    sender::{SendArgs, Sender},
    show::{Outcome, show},
    stage::{Stage, SweepArgs},
    traces::Traces,
};
use super::{Session, Usage, progress::Waiting};

const EXAMPLES: &str = "Examples:
  weir test uplink           prove the shares on the link of weir.toml
  weir test uplink --yes     ask nothing, for scripts

`weir test uplink --help` says what is sent, measured and judged.";

const UPLINK_EXAMPLES: &str = "Examples:
  weir test uplink                       before the first start of the agent
  weir test uplink --yes --json          for scripts
  weir test uplink --config weir.toml    another configuration
  weir test uplink --to 192.0.2.7:9000   send TCP to a server of yours, which
                                         reads and discards: `socat -u
                                         TCP-LISTEN:9000,fork OPEN:/dev/null`

The command runs an agent of its own for about half a minute, with what the
configuration says of the link and three classes of processes more. They fill
the link by UDP packets that the first router drops (TTL 1, to 192.0.2.1 or
2001:db8::1). The node's own traffic has its share by weight alone meanwhile,
so the command asks before it begins.

Phases:
  alone     one class takes the whole link, within 3 %
  weights   3 to 1, within 3 %
  maximum   weight 3, but no more than a quarter of the capacity (1 % over)
  minimum   weight 1 beside 3 and 3, but no less than 40 % of what may be
            promised (1 % under)

Policies change by the API while the senders send. Each class's bytes are the
agent's count. The device's own count must be the capacity in each phase. Then
the agent ends, and devices, qdiscs, filters and programs must be as before.
Ctrl-C ends the test in order, and a killed test leaves nothing.

It needs root, a cgroup v2 hierarchy, and no other agent on this node. Several
links: the one of the default route is tested.

Exit codes: 0 all holds, 1 a line misses or the test failed, 2 the command line
or the configuration is wrong. A line that the senders are too weak to show is
`not shown` and fails nothing.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TestArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Fill the uplink for half a minute, and judge weights, minimum and maximum
    #[command(after_help = UPLINK_EXAMPLES)]
    Uplink(UplinkArgs),
    /// Send for a class of the test, which starts it
    #[command(hide = true)]
    Send(SendArgs),
    /// Remove what the test made when it has ended, which starts it
    #[command(hide = true)]
    Sweep(SweepArgs),
}

#[derive(Debug, Args)]
struct UplinkArgs {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "/etc/weir/weir.toml")]
    config: PathBuf,
    /// Send TCP to this server, which reads and discards, instead of packets that the first router drops
    #[arg(long, value_name = "HOST:PORT")]
    to: Option<String>,
    /// Measure each phase for so long; by default 4 s, and longer on links below 5 Mbit/s
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=60))]
    seconds: Option<u64>,
    /// Ask nothing
    #[arg(long, short)]
    yes: bool,
}

/// The time between a change of policies and the measurement.
const SETTLE: Duration = Duration::from_millis(1_500);
/// The bits that a phase carries at least, so that one packet is no part of its tolerance.
const PHASE_BITS: u64 = 20_000_000;
/// The bounds of a phase, in seconds.
const PHASE_SECONDS: (u64, u64) = (4, 20);
/// How often the capacity is asked for.
const CAPACITY_PERIOD: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The port of the discard service (RFC 863).
const DISCARD: u16 = 9;

pub(super) fn run(args: &TestArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Uplink(args) => uplink(args, session),
        What::Send(args) => sender::run(args, session.out).map(|()| ExitCode::SUCCESS),
        What::Sweep(args) => stage::sweep(args).map(|()| ExitCode::SUCCESS),
    }
}

fn uplink(args: &UplinkArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    session.local("test uplink")?;
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !may_ask {
        return Err(Usage(
            "--yes is missing: the test fills the uplink, and no one can be asked (`weir test uplink --help`)"
                .to_owned(),
        )
        .into());
    }
    if !nix::unistd::geteuid().is_root() {
        anyhow::bail!("cannot test the uplink: this needs root (`sudo weir test uplink`)");
    }
    let link = weir_agent::free_link(&args.config).context("cannot test the uplink")?;
    let seconds = args.seconds.unwrap_or_else(|| phase_seconds(link.capacity));
    let target = target(&link, args.to.as_deref())?;
    if !args.yes {
        ask(&link, seconds)?;
    }
    interrupt::install()?;
    let outcome = Test { args, link, target, seconds }.run(session.json)?;
    session.print(&outcome, |out, look| show(out, look, &outcome))?;
    Ok(if outcome.holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The length of a phase on a link of this capacity.
fn phase_seconds(capacity: BitRate) -> u64 {
    let (least, most) = PHASE_SECONDS;
    PHASE_BITS.div_ceil(capacity.0.max(1)).clamp(least, most)
}

/// Asks whether the link may be filled.
///
/// # Errors
/// It may not.
fn ask(link: &FreeLink, seconds: u64) -> anyhow::Result<()> {
    let whole = (seconds + SETTLE.as_secs() + 1) * Phase::ALL.len() as u64;
    eprint!(
        "The test fills {} with {} for about {whole} s. This node's own traffic has its share by weight alone \
         meanwhile.\nGo on? [y/N] ",
        link.device, link.capacity
    );
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    let is_yes = ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes));
    anyhow::ensure!(is_yes, "nothing was sent, as the answer was not yes");
    Ok(())
}

/// Where the senders send.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    /// The link's device, or the bridge or bond that it belongs to.
    by: String,
    address: SocketAddr,
    is_tcp: bool,
}

/// The operator's server, or an address of documentation in a family that the device has.
///
/// # Errors
/// The server does not answer, or the device has no address.
fn target(link: &FreeLink, to: Option<&str>) -> anyhow::Result<Target> {
    let mut netlink = Netlink::open()?;
    let device = netlink.link(&link.device)?;
    let addresses = netlink.addresses()?;
    let nets_of = |index| addresses.iter().filter(move |found| found.index == index).map(|found| found.net);
    let by = match device.master {
        // A bridge or a bond has the addresses, and a VRF has not.
        Some(master) if documentation(nets_of(device.index)).is_none() => {
            netlink.links()?.into_iter().find(|found| found.index == master).unwrap_or(device)
        }
        _ => device,
    };
    if let Some(to) = to {
        return Ok(Target { by: by.name, address: server(to)?, is_tcp: true });
    }
    let address = documentation(nets_of(by.index)).with_context(|| {
        format!("cannot send by {0}: it has no address but link-local ones (`ip address show {0}`)", by.name)
    })?;
    Ok(Target { by: by.name, address, is_tcp: false })
}

/// The address of a server that answers.
fn server(to: &str) -> anyhow::Result<SocketAddr> {
    let unusable = |why: String| Usage(format!("cannot use --to {to}: {why}; write HOST:PORT"));
    let mut found = to.to_socket_addrs().map_err(|e| unusable(e.to_string()))?;
    let address = found.next().ok_or_else(|| unusable("it has no address".to_owned()))?;
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).with_context(|| {
        format!("cannot reach {to}: a TCP server that reads and discards must listen there")
    })?;
    Ok(address)
}

/// The address of documentation (RFC 5737, RFC 3849) for a device of these networks.
fn documentation(nets: impl Iterator<Item = IpNet>) -> Option<SocketAddr> {
    let (mut has_v4, mut has_v6) = (false, false);
    for net in nets {
        match net {
            IpNet::V4(net) => has_v4 |= !net.addr().is_link_local(),
            IpNet::V6(net) => has_v6 |= !net.addr().is_unicast_link_local(),
        }
    }
    let v4 = || SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), DISCARD));
    let v6 = || SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), DISCARD));
    has_v4.then(v4).or(has_v6.then(v6))
}

/// A test that may begin.
struct Test<'a> {
    args: &'a UplinkArgs,
    link: FreeLink,
    target: Target,
    seconds: u64,
}

impl Test<'_> {
    /// Builds the stage, plays the phases and removes everything.
    ///
    /// # Errors
    /// The test could not be made, was interrupted, or left something.
    fn run(&self, is_json: bool) -> anyhow::Result<Outcome> {
        let before = Traces::look()?;
        let waiting = Waiting::new(is_json, "the test's agent starts");
        let (played, ended) = match Stage::build(&self.args.config) {
            Ok(stage) => {
                let played = self.play(&stage, &waiting);
                waiting.step("the agent puts everything back");
                (played, stage.end())
            }
            Err(error) => (Err(error), Ok(())),
        };
        drop(waiting);
        let mut faults: Vec<String> = ended.err().map(|error| format!("{error:#}")).into_iter().collect();
        faults.extend(before.differences(&Traces::look()?));
        let mut outcome = played.map_err(|error| with_faults(error, &faults))?;
        outcome.faults.extend(faults);
        Ok(outcome.judged())
    }

    fn play(&self, stage: &Stage, waiting: &Waiting) -> anyhow::Result<Outcome> {
        let status = stage.client.status()?;
        let mut netlink = Netlink::open()?;
        let mut outcome = Outcome {
            device: status.link.clone(),
            engine: status.engine,
            capacity: status.capacity,
            seconds: self.seconds,
            lines: Vec::new(),
            others: BitRate::ZERO,
            remarks: Vec::new(),
            faults: Vec::new(),
            holds: false,
        };
        for (n, phase) in Phase::ALL.into_iter().enumerate() {
            waiting.step(&format!("phase {} of {}, {}", n + 1, Phase::ALL.len(), phase.name()));
            let (lines, others) = self.phase(phase, stage, &mut netlink)?;
            if phase == Phase::Minimum && lines.len() < 2 {
                let why = "no minimum was tested: all that may be promised is promised to other classes";
                outcome.remarks.push(why.to_owned());
            }
            outcome.lines.extend(lines);
            outcome.others = outcome.others.max(others);
        }
        Ok(outcome)
    }

    /// Plays a phase. Returns its lines, and the rate of the node's other traffic.
    fn phase(
        &self,
        phase: Phase,
        stage: &Stage,
        netlink: &mut Netlink,
    ) -> anyhow::Result<(Vec<Line>, BitRate)> {
        let status = stage.client.status()?;
        let bounds = Bounds::of(status.capacity, status.reservable, reserved(stage)?);
        let device = &self.link.device;
        let args = SendArgs {
            device: self.target.by.clone(),
            rate: status.capacity.scale(3, 2),
            to: self.target.address,
            tcp: self.target.is_tcp,
        };
        let start = |class| Sender::start(&args, &stage.cgroup(class));
        let senders: Vec<_> = (0..phase.senders()).map(start).collect::<anyhow::Result<_>>()?;
        let changes = phase.policies(bounds);
        stage.client.set(&SetPolicies { changes, allow_absent: false })?;
        interrupt::sleep(SETTLE)?;
        let from = Look::take(&stage.client, netlink, device)?;
        let capacity = mean_capacity(&stage.client, Duration::from_secs(self.seconds))?;
        let to = Look::take(&stage.client, netlink, device)?;
        let made = senders.into_iter().map(Sender::end).collect::<anyhow::Result<_>>()?;
        let rates = from.until(&to, self.link.framing);
        if rates.classes[0] == BitRate::ZERO {
            anyhow::bail!("{}", self.nothing_left(stage)?);
        }
        let counted = Counted {
            capacity,
            device: rates.device,
            has_exempt: !status.exempt.is_empty(),
            is_tcp: self.target.is_tcp,
            classes: rates.classes[..phase.senders()].to_vec(),
            made,
            others: rates.others,
        };
        Ok((judge::judge(phase, bounds, device, &counted), rates.others))
    }

    /// Why nothing of the first class has left.
    fn nothing_left(&self, stage: &Stage) -> anyhow::Result<String> {
        let (device, to) = (&self.target.by, self.target.address.ip());
        let local = stage.client.class(CLASSES[0])?.local_bytes;
        Ok(if local.0 > 0 {
            format!(
                "cannot test the uplink: {to} is in an exempt network, so its packets are not charged; give another \
                 --to"
            )
        } else {
            format!(
                "cannot test the uplink: no packet to {to} left by {device}; its router does not answer (`ip neigh \
                 show dev {device}`, `ip route get {to} oif {device}`)"
            )
        })
    }
}

/// The error of a test, with the faults of its roll-back.
fn with_faults(error: anyhow::Error, faults: &[String]) -> anyhow::Error {
    match faults {
        [] if error.is::<Interrupted>() => anyhow::anyhow!("{error}: what it made is removed"),
        [] => error,
        faults => error.context(format!("not all is as before the test ({})", faults.join("; "))),
    }
}

/// The mean capacity of a link, whose rate may change, over some time.
fn mean_capacity(client: &Client, time: Duration) -> anyhow::Result<BitRate> {
    let (begin, mut sum, mut count) = (Instant::now(), 0, 0);
    while begin.elapsed() < time {
        sum += client.status()?.capacity.0;
        count += 1;
        interrupt::sleep(CAPACITY_PERIOD.min(time.saturating_sub(begin.elapsed())))?;
    }
    Ok(BitRate(sum / count.max(1)))
}

/// The minima of all classes but the test's.
fn reserved(stage: &Stage) -> anyhow::Result<BitRate> {
    let classes = stage.client.classes()?;
    let own = classes.iter().filter(|class| CLASSES.contains(&class.name.as_str()));
    let own = own.filter_map(|class| class.policy.min).fold(BitRate::ZERO, BitRate::saturating_add);
    Ok(stage.client.status()?.reserved.saturating_sub(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_test_says_what_it_has_not_put_back() {
        let said = |error: anyhow::Error, faults: &[&str]| {
            let faults: Vec<String> = faults.iter().map(|fault| (*fault).to_owned()).collect();
            format!("{:#}", with_faults(error, &faults))
        };
        assert_eq!(said(Interrupted.into(), &[]), "the test was interrupted: what it made is removed");
        let left = "not all is as before the test (device weir0 is new): the test was interrupted";
        assert_eq!(said(Interrupted.into(), &["device weir0 is new"]), left);
        assert_eq!(said(anyhow::anyhow!("no answer"), &[]), "no answer");
    }

    #[test]
    fn slow_links_are_measured_for_longer() {
        assert_eq!(phase_seconds(BitRate::mbit(100)), 4);
        assert_eq!(phase_seconds(BitRate::mbit(2)), 10);
        assert_eq!(phase_seconds(BitRate::kbit(64)), 20);
    }

    #[test]
    fn target_is_an_address_of_documentation_in_a_family_of_the_device() {
        let of = |nets: &[&str]| {
            let address = documentation(nets.iter().map(|net| net.parse().unwrap()));
            address.map(|address| address.to_string())
        };
        assert_eq!(of(&["10.0.0.2/24", "fd00::2/64"]).as_deref(), Some("192.0.2.1:9"));
        assert_eq!(of(&["169.254.3.4/16", "fd00::2/64"]).as_deref(), Some("[2001:db8::1]:9"));
        assert_eq!(of(&["fe80::1/64"]), None);
    }
}
