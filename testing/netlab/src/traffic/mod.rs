//! Real traffic: iperf3 flows that start together, and pings beside them.

mod bulk;
mod eager;
mod flows;
mod iperf;
mod ping;

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_units::BitRate;

pub use bulk::Bulk;
pub use eager::Eager;
pub use flows::{Direction, Ends, Flows};
pub use ping::Rtts;

use crate::{
    interrupt,
    topology::{Family, MTU, Netns, Proc, Topology, Uplink},
};

/// A datagram's payload: fits one frame with room for IPv6 and a tunnel.
pub const UDP_PAYLOAD: u32 = 1400;
/// The bytes of one write to TCP, as in qCon section 4 ("16 KB TCP packets").
const TCP_WRITE: &str = "16K";
const ETHERNET: u32 = 14;
/// iperf3's reports: its shortest interval.
const INTERVAL: &str = "0.1";
/// Flows end within this of each other; the end is left out.
const TAIL: Duration = Duration::from_millis(200);
const FIRST_PORT: u16 = 5201;
const PING_INTERVAL: Duration = Duration::from_millis(20);

/// The traffic of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Load {
    /// Nothing: it is idle.
    Nothing,
    /// As much TCP as it is let, over one connection.
    #[default]
    Tcp,
    /// The same over several connections.
    TcpMany(u16),
    /// The same by BBR instead of CUBIC.
    Bbr(u16),
    /// UDP offered at a fixed payload rate.
    Udp(BitRate),
}

/// The text is not a load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read `{0}` as traffic: write tcp, tcp*3 (connections), bbr*3, udp 60mbit (payload), or nothing"
)]
pub struct ParseLoadError(String);

impl Load {
    /// Payload bytes for each byte that the link is charged for (tc counts layer 2): 1448 of
    /// 1514 for TCP with timestamps over IPv4, 1400 of 1442 for UDP.
    #[must_use]
    pub fn payload_share(self, family: Family) -> f64 {
        self.payload_share_on(Uplink::Ethernet, family)
    }

    /// The same on an uplink of this kind: packets of some have no Ethernet header.
    #[must_use]
    pub fn payload_share_on(self, uplink: Uplink, family: Family) -> f64 {
        let header = if uplink.has_ethernet() { ETHERNET } else { 0 };
        let ip = match family {
            Family::V4 => 20,
            Family::V6 => 40,
        };
        let (payload, packet) = match self {
            Load::Udp(_) => (UDP_PAYLOAD, UDP_PAYLOAD + 8 + ip),
            _ => (MTU - ip - 32, MTU),
        };
        f64::from(payload) / f64::from(packet + header)
    }

    /// Its demand on the link, layer 2; none for as much as it can get.
    #[must_use]
    pub fn demand(self, family: Family) -> Option<BitRate> {
        match self {
            Load::Nothing => Some(BitRate::ZERO),
            Load::Tcp | Load::TcpMany(_) | Load::Bbr(_) => None,
            Load::Udp(rate) => {
                Some(BitRate((rate.bits_per_sec() as f64 / self.payload_share(family)).round() as u64))
            }
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Nothing => f.pad("nothing"),
            Load::Tcp => f.pad("tcp"),
            Load::TcpMany(n) => f.pad(&format!("tcp*{n}")),
            Load::Bbr(n) => f.pad(&format!("bbr*{n}")),
            Load::Udp(rate) => f.pad(&format!("udp {rate}")),
        }
    }
}

impl FromStr for Load {
    type Err = ParseLoadError;

    fn from_str(text: &str) -> Result<Load, ParseLoadError> {
        let error = || ParseLoadError(text.to_owned());
        match text.trim() {
            "nothing" => Ok(Load::Nothing),
            "tcp" => Ok(Load::Tcp),
            other => {
                if let Some((kind @ ("tcp" | "bbr"), count)) = other.split_once('*') {
                    let count: u16 = count.trim().parse().map_err(|_| error())?;
                    let load = if kind == "bbr" { Load::Bbr(count) } else { Load::TcpMany(count) };
                    return if (1..=64).contains(&count) { Ok(load) } else { Err(error()) };
                }
                let rate: BitRate =
                    other.strip_prefix("udp ").and_then(|r| r.trim().parse().ok()).ok_or_else(error)?;
                if rate == BitRate::ZERO { Err(error()) } else { Ok(Load::Udp(rate)) }
            }
        }
    }
}

impl Serialize for Load {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Load {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Load, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A sender, and its traffic to the server.
#[derive(Debug, Clone, Copy)]
pub struct Flow<'a> {
    /// The name that the result carries.
    pub label: &'a str,
    /// Where it is sent from: a container, or the node for the host's own traffic.
    pub from: &'a Netns,
    /// What.
    pub load: Load,
}

/// How long, and what is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Left out at the start.
    pub(crate) warm_up: Duration,
    /// In all, whole seconds (iperf3 knows no fractions).
    pub(crate) total: Duration,
}

impl Timing {
    /// The first 2 s left out of `seconds`.
    ///
    /// # Errors
    /// Less than 3 s leave too little to measure.
    pub fn seconds(seconds: u64) -> Result<Timing> {
        if !(3..=3600).contains(&seconds) {
            bail!("cannot measure for {seconds} s a case: the first 2 s are left out, give 3 to 3600");
        }
        Ok(Timing { warm_up: Duration::from_secs(2), total: Duration::from_secs(seconds) })
    }
}

/// The result of a flow, in the steady state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The flow's.
    pub label: String,
    /// Payload that arrived, Mbit/s.
    pub goodput: f64,
    /// Payload that the sender got rid of, Mbit/s.
    pub sent: f64,
    /// UDP only: the fraction of datagrams that did not arrive.
    pub loss: Option<f64>,
    /// TCP only: segments sent again.
    pub retransmits: Option<u64>,
    /// Payload that arrived in each tenth of a second, Mbit/s.
    pub series: Vec<f64>,
}

/// The measurements while all flows ran.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// One a flow that sent something, in the order given.
    pub flows: Vec<Measured>,
    /// One a ping, in the order given.
    pub pings: Vec<Rtts>,
}

/// Runs all flows at once, and a ping from each namespace of `pings`, to the topology's
/// server. Flows that send nothing are left out.
///
/// # Errors
/// If iperf3 or ping fails, or on Ctrl-C.
pub fn run(
    topology: &Topology,
    flows: &[Flow<'_>],
    pings: &[&Netns],
    family: Family,
    timing: Timing,
) -> Result<Outcome> {
    let address = topology.server_address(family).to_string();
    let seconds = timing.total.as_secs().to_string();
    let active: Vec<&Flow<'_>> = flows.iter().filter(|f| f.load != Load::Nothing).collect();

    let mut servers = Vec::with_capacity(active.len());
    for port in (FIRST_PORT..).take(active.len()) {
        let port = port.to_string();
        servers.push(topology.srv().spawn(&["iperf3", "-s", "-1", "-J", "-i", INTERVAL, "-p", &port])?);
    }
    for (server, port) in servers.iter_mut().zip(FIRST_PORT..) {
        wait_until_listening(server, port)?;
    }

    let end = Instant::now() + timing.total;
    let mut clients = Vec::with_capacity(active.len());
    for (flow, port) in active.iter().zip(FIRST_PORT..) {
        let port = port.to_string();
        let common = ["iperf3", "-c", &address, "-p", &port, "-t", &seconds, "-J", "-i", INTERVAL];
        let own = client_arguments(flow.load);
        let arguments: Vec<&str> = common.into_iter().chain(own.iter().map(String::as_str)).collect();
        clients.push(flow.from.spawn(&arguments)?);
    }
    let mut probes = Vec::with_capacity(pings.len());
    for netns in pings {
        let interval = PING_INTERVAL.as_secs_f64().to_string();
        probes.push(netns.spawn(&["ping", "-n", "-i", &interval, "-w", &seconds, &address])?);
    }

    interrupt::sleep_until(end)?;
    // Control messages may have to wait behind what a flood has queued.
    let deadline = Instant::now() + Duration::from_secs(15);
    let mut outcome = Outcome::default();
    for ((flow, client), server) in active.iter().zip(&mut clients).zip(&mut servers) {
        let measured = account(flow, client, server, timing, deadline)
            .with_context(|| format!("{} of {}", flow.load, flow.label))?;
        outcome.flows.push(measured);
    }
    for probe in &mut probes {
        // ping fails if nothing was answered; that is a result here.
        let _ = probe.finish(deadline);
        interrupt::check()?;
        let skip = timing.warm_up.as_millis() / PING_INTERVAL.as_millis();
        outcome.pings.push(ping::parse(&probe.output()?.stdout, u64::try_from(skip)?));
    }
    Ok(outcome)
}

/// Round trips from a namespace to the topology's server, `count` of them, 20 ms apart.
///
/// # Errors
/// If ping cannot be run, or on Ctrl-C.
pub fn ping(topology: &Topology, from: &Netns, family: Family, count: u32) -> Result<Rtts> {
    let [rtts] = pings(topology, [from], family, count)?;
    Ok(rtts)
}

/// The same from several namespaces at once.
///
/// # Errors
/// As [`ping()`].
pub fn pings<const N: usize>(
    topology: &Topology,
    from: [&Netns; N],
    family: Family,
    count: u32,
) -> Result<[Rtts; N]> {
    let address = topology.server_address(family).to_string();
    let (interval, count) = (PING_INTERVAL.as_secs_f64().to_string(), count.to_string());
    let arguments = ["ping", "-n", "-i", &interval, "-c", &count, "-W", "2", &address];
    let probes = from.map(|netns| netns.spawn(&arguments));
    let mut rtts = std::array::from_fn(|_| Rtts::default());
    for (probe, rtts) in probes.into_iter().zip(&mut rtts) {
        let mut probe = probe?;
        // ping fails if nothing was answered; that is a result here.
        let _ = probe.finish(Instant::now() + Duration::from_secs(90));
        interrupt::check()?;
        *rtts = ping::parse(&probe.output()?.stdout, 0);
    }
    Ok(rtts)
}

/// Algorithms by name: the host's default may be another.
fn client_arguments(load: Load) -> Vec<String> {
    let tcp =
        |by: &str, n: u16| ["-C", by, "-l", TCP_WRITE, "-P", &n.to_string()].map(str::to_owned).to_vec();
    match load {
        Load::Nothing => Vec::new(),
        Load::Tcp => tcp("cubic", 1),
        Load::TcpMany(n) => tcp("cubic", n),
        Load::Bbr(n) => tcp("bbr", n),
        Load::Udp(rate) => ["-u", "-b", &rate.bits_per_sec().to_string(), "-l", &UDP_PAYLOAD.to_string()]
            .map(str::to_owned)
            .to_vec(),
    }
}

fn account(
    flow: &Flow<'_>,
    client: &mut Proc,
    server: &mut Proc,
    timing: Timing,
    deadline: Instant,
) -> Result<Measured> {
    // iperf3 ends with an error if its control connection broke, yet what it counted is in
    // the JSON: only that decides. Its own words come first if there is no count.
    let sender_end = client.finish(deadline).map(drop);
    interrupt::check()?;
    let receiver_end = server.finish(deadline.max(Instant::now() + Duration::from_secs(1))).map(drop);
    interrupt::check()?;
    let read = |proc: &mut Proc, end: Result<()>| -> Result<_> {
        let account = iperf::Account::parse(&proc.output()?.stdout);
        let account = match (account, end) {
            (Ok(account), _) => account,
            (Err(_), Err(end)) => return Err(end),
            (Err(error), Ok(())) => return Err(error),
        };
        Ok(account.between(timing.warm_up, timing.total - TAIL))
    };
    let sender = read(client, sender_end)?;
    let receiver = read(server, receiver_end)?;
    if receiver.series.is_empty() {
        bail!("the receiver counted nothing after the first {} s", timing.warm_up.as_secs());
    }
    let udp = matches!(flow.load, Load::Udp(_));
    Ok(Measured {
        label: flow.label.to_owned(),
        goodput: receiver.mbit(),
        sent: sender.mbit(),
        loss: udp.then(|| receiver.lost as f64 / receiver.packets.max(1) as f64),
        retransmits: (!udp).then_some(sender.retransmits),
        series: receiver.series,
    })
}

/// Waits until a server listens to a port of TCP, by its own view of its network, since it is in
/// another namespace.
///
/// # Errors
/// If it ends, or does not listen within 5 s.
pub fn wait_until_listening(server: &mut Proc, port: u16) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let tables =
            ["tcp", "tcp6"].map(|t| std::fs::read_to_string(format!("/proc/{}/net/{t}", server.id())));
        if tables.iter().flatten().any(|table| is_listening(table, port)) {
            return Ok(());
        }
        if let Some(status) = server.ended()? {
            let output = server.output()?;
            bail!("`{}` ended at once ({status}): {}{}", server.what(), output.stdout, output.stderr);
        }
        interrupt::check()?;
        if Instant::now() >= deadline {
            bail!("`{}` does not listen after 5 s", server.what());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// In a table of /proc/net: local address in hex, state 0A.
fn is_listening(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&suffix)) && words.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_read_as_they_are_written() {
        for (text, load) in [
            ("tcp", Load::Tcp),
            ("tcp*3", Load::TcpMany(3)),
            ("bbr*4", Load::Bbr(4)),
            ("udp 60mbit", Load::Udp(BitRate::mbit(60))),
            ("nothing", Load::Nothing),
        ] {
            assert_eq!(text.parse(), Ok(load));
            assert_eq!(load.to_string(), text);
        }
        for wrong in ["", "udp", "udp 0", "udp 60 apples", "tcp*0", "tcp*65", "sctp"] {
            assert!(wrong.parse::<Load>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_payload_share_is_what_the_headers_leave() {
        assert_eq!(Load::Tcp.payload_share(Family::V4), 1448.0 / 1514.0);
        assert_eq!(Load::Tcp.payload_share(Family::V6), 1428.0 / 1514.0);
        assert_eq!(Load::Udp(BitRate::mbit(1)).payload_share(Family::V4), 1400.0 / 1442.0);
        assert_eq!(Load::Tcp.payload_share_on(Uplink::Ppp, Family::V4), 1448.0 / 1500.0);
    }

    #[test]
    fn a_listening_port_is_told_from_a_connected_one() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                        0: 00000000:1451 00000000:0000 0A 00000000:00000000\n\
                        1: 0100007F:1452 0100007F:9C40 01 00000000:00000000\n";
        assert!(is_listening(table, 0x1451));
        assert!(!is_listening(table, 0x1452));
        assert!(!is_listening(table, 0x9C40));
    }

    #[test]
    fn too_short_a_case_is_refused() {
        assert!(Timing::seconds(2).is_err());
        assert_eq!(Timing::seconds(5).unwrap().total, Duration::from_secs(5));
    }
}
