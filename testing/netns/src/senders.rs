//! Senders in every container whose loads change while they run, and shares judged by the
//! packet.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use weir_netlab::{
    topology::Family,
    traffic::{Load, UDP_PAYLOAD},
};
use weir_units::BitRate;

use crate::{Division, EngineBounds, EngineKind, Node, Party, Rate, Share, Stream, stream::DATAGRAM_MEMORY};

/// More than the link: as much as the socket takes.
pub const FLOOD: Load = Load::Udp(BitRate::mbit(1000));
/// The offered load where senders are not held back: more than any share, and no more than a
/// machine can send and lose.
const OFFER: BitRate = BitRate::mbit(60);
/// How much a sender of datagrams may have waiting, as time at its share: enough for a machine
/// that is late to wake it, little enough that it stops soon when it is silenced.
const QUEUE: f64 = 0.020;
/// ... and at least this, datagrams: a queue that is never empty while the sender wakes.
const LEAST_QUEUE: usize = 4;
/// How often it is asked whether all has left.
const POLL: Duration = Duration::from_millis(10);
/// The largest payload of a super-packet.
const SUPER_PACKET: u32 = 64 << 10;
/// A segment's payload.
const SEGMENT: u32 = 1448;

/// A TCP connection and a stream of datagrams from every container to the server, silent until
/// told otherwise.
#[derive(Debug)]
pub struct Senders {
    labels: Vec<String>,
    /// TCP, UDP.
    streams: Vec<[Stream; 2]>,
    holds_back: bool,
}

impl Senders {
    /// From all containers of the node.
    ///
    /// # Panics
    /// If one cannot connect.
    #[must_use]
    #[track_caller]
    pub fn of(node: &Node, engine: EngineKind) -> Senders {
        let (srv, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
        let start = |from| {
            let tcp = Stream::tcp(from, srv, address);
            tcp.set(Rate::Of(BitRate::ZERO));
            // A sender that may be unlimited later is no real-time thread.
            let udp = Stream::udp(from, srv, address, Rate::Unlimited);
            udp.set(Rate::Of(BitRate::ZERO));
            [tcp, udp]
        };
        let containers = node.topology.containers();
        Senders {
            labels: containers.iter().map(|c| c.label().to_owned()).collect(),
            streams: containers.iter().map(|c| start(c.netns())).collect(),
            holds_back: engine.holds_back(),
        }
    }

    /// Lets each send what the division says; those it does not name are silent.
    pub fn follow(&self, division: &Division, expected: &[Share]) {
        self.make_room(division, expected);
        self.load(division);
    }

    /// The same with room for a few datagrams only, until [`Senders::make_room`]: an engine that
    /// stamps would stamp all that a socket suddenly takes at the rates that were.
    pub fn begin(&self, division: &Division) {
        self.streams.iter().for_each(|[_, udp]| udp.queue(LEAST_QUEUE));
        self.load(division);
    }

    /// Gives each sender of datagrams as much memory as its share needs.
    pub fn make_room(&self, division: &Division, expected: &[Share]) {
        for (label, [_, udp]) in self.labels.iter().zip(&self.streams) {
            let party = division.parties().iter().position(|p| p.label() == label);
            let share = party.map_or(0.0, |i| expected[i].goodput);
            let waiting = share * 1e6 / 8.0 * QUEUE / f64::from(UDP_PAYLOAD);
            udp.queue((waiting as usize).max(LEAST_QUEUE));
        }
    }

    fn load(&self, division: &Division) {
        for (label, [tcp, udp]) in self.labels.iter().zip(&self.streams) {
            let party = division.parties().iter().find(|p| p.label() == label);
            let load = party.map_or(Load::Nothing, Party::load);
            let silent = Rate::Of(BitRate::ZERO);
            tcp.set(if matches!(load, Load::Tcp | Load::TcpMany(_)) { Rate::Unlimited } else { silent });
            udp.set(match load {
                Load::Udp(rate) if rate < OFFER => Rate::Of(rate),
                Load::Udp(_) if self.holds_back => Rate::Unlimited,
                Load::Udp(_) => Rate::Of(OFFER),
                _ => silent,
            });
        }
    }

    /// How long the shares take to carry the last packet of a connection that the division
    /// silences and replaces by datagrams: so long, and for no longer, the class has sent ahead.
    /// `tso`: that packet may be a super-packet. To be asked before [`Senders::follow`].
    #[must_use]
    pub fn ahead(&self, division: &Division, expected: &[Share], tso: bool) -> Duration {
        let packet = f64::from(if tso { SUPER_PACKET } else { SEGMENT });
        let ahead = |(party, share): (&Party, &Share)| {
            let index = self.labels.iter().position(|label| label == party.label())?;
            let replaced = matches!(party.load(), Load::Udp(_)) && !self.streams[index][0].is_silent();
            (replaced && share.goodput > 0.0).then(|| packet * 8e-6 / share.goodput)
        };
        let longest = division.parties().iter().zip(expected).filter_map(ahead).fold(0.0, f64::max);
        Duration::from_secs_f64(longest)
    }

    /// Waits until all that is queued now has arrived, as if it left at its old rate.
    ///
    /// # Errors
    /// The queues that are not empty after `most`, and their bytes.
    pub fn renewed(&self, most: Duration) -> Result<(), String> {
        let end = Instant::now() + most;
        let goal = |[tcp, udp]: &[Stream; 2]| {
            let datagrams = udp.on_their_way() / DATAGRAM_MEMORY;
            [tcp.sent(), udp.received() + datagrams as u64 * u64::from(UDP_PAYLOAD)]
        };
        let goals: Vec<u64> = self.streams.iter().flat_map(goal).collect();
        while self.streams.iter().flatten().zip(&goals).any(|(s, goal)| s.received() < *goal) {
            if Instant::now() >= end {
                let missing = |(i, (s, goal)): (usize, (&Stream, &u64))| {
                    let bytes = goal.saturating_sub(s.received());
                    let kind = if i % 2 == 0 { "TCP" } else { "UDP" };
                    (bytes > 0).then(|| format!("{}: {bytes} B of {kind}", self.labels[i / 2]))
                };
                let late: Vec<String> =
                    self.streams.iter().flatten().zip(&goals).enumerate().filter_map(missing).collect();
                return Err(late.join(", "));
            }
            sleep(POLL);
        }
        Ok(())
    }

    /// Lets none of them send.
    pub fn pause(&self) {
        self.streams.iter().flatten().for_each(|stream| stream.set(Rate::Of(BitRate::ZERO)));
    }

    /// Waits until all has left that those who are silent now had sent before, which no division
    /// counts; false if it takes longer than `most`.
    #[must_use]
    pub fn drained(&self, most: Duration) -> bool {
        let end = Instant::now() + most;
        while self.streams.iter().flatten().any(|s| s.is_silent() && s.on_their_way() > 0) {
            if Instant::now() >= end {
                return false;
            }
            sleep(POLL);
        }
        true
    }

    /// The goodput of each container during this time, Mbit/s of payload.
    #[must_use]
    pub fn goodputs(&self, time: Duration) -> Vec<(String, f64)> {
        let all: Vec<&Stream> = self.streams.iter().flatten().collect();
        let rates = Stream::goodputs(&all, time);
        self.labels.iter().cloned().zip(rates.chunks(2).map(|pair| pair.iter().sum())).collect()
    }

    /// The stream of datagrams of each container, in the order of the containers.
    #[must_use]
    pub fn datagrams(&self) -> Vec<&Stream> {
        self.streams.iter().map(|[_, udp]| udp).collect()
    }

    /// The TCP connection of each container, in the order of the containers.
    #[must_use]
    pub fn connections(&self) -> Vec<&Stream> {
        self.streams.iter().map(|[tcp, _]| tcp).collect()
    }
}

/// How shares came out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Judged {
    /// The largest distance of a share from what it should be, as a fraction of that.
    pub worst: f64,
    /// The largest distance as a fraction of what is allowed.
    pub strain: f64,
    /// The arrivals in all, as a fraction of the expected ones.
    pub total: f64,
}

impl Judged {
    /// Whether all of it is as it must be.
    #[must_use]
    pub fn holds(&self, engine: EngineKind) -> bool {
        self.strain <= 1.0 && self.total >= engine.least_total()
    }
}

/// The allowance beside the engine's tolerance.
///
/// A scheduler that cannot cut packets is ahead or behind by one of them, whatever it does, and
/// a window that sees only whole packets miscounts by another one: at 95 kbit/s, twelve
/// datagrams in 1.5 s, that is more than any percentage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slack {
    /// Nothing: the window is so long that a packet is less than the tolerance.
    None,
    /// Two packets of the kind that the class sends, and the engine's grain.
    Packets {
        /// Segmentation offload in the containers: TCP's packets are super-packets.
        tso: bool,
        /// How fine the engine's shares are.
        grain: BitRate,
    },
}

impl Slack {
    /// Mbit/s, seen over that time.
    fn mbit(self, load: Load, time: Duration) -> f64 {
        let Slack::Packets { tso, grain } = self else { return 0.0 };
        let packet = match load {
            Load::Udp(_) => UDP_PAYLOAD,
            _ if tso => SUPER_PACKET,
            _ => SEGMENT,
        };
        f64::from(2 * packet) * 8e-6 / time.as_secs_f64() + grain.as_mbit()
    }
}

/// Compares what arrived during `time` with what the division makes of the node's capacity, and
/// prints all of it on one line.
#[must_use]
pub fn judge(
    what: &str,
    division: &Division,
    measured: &[(String, f64)],
    expected: &[Share],
    (time, tolerance, slack): (Duration, f64, Slack),
) -> Judged {
    let mut judged = Judged::default();
    let (mut sum, mut wanted) = (0.0, 0.0);
    let mut line = String::new();
    for (party, share) in division.parties().iter().zip(expected) {
        let got = measured.iter().find(|(label, _)| *label == share.label).map_or(0.0, |(_, got)| *got);
        sum += got;
        wanted += share.goodput;
        if share.goodput == 0.0 {
            continue;
        }
        let off = (got - share.goodput).abs();
        let strain = off / (tolerance * share.goodput + slack.mbit(party.load(), time));
        judged.worst = judged.worst.max(off / share.goodput);
        judged.strain = judged.strain.max(strain);
        let kind = if matches!(party.load(), Load::Udp(_)) { "u" } else { "t" };
        let mark = if strain > 1.0 { "!" } else { "" };
        line += &format!("  {got:.2}/{:.2}{kind}{mark}", share.goodput);
    }
    judged.total = if wanted > 0.0 { sum / wanted } else { 1.0 };
    println!(
        "{what:<38}{line}  worst {:.2} %, {:.2} of what is allowed, total {:.3}",
        judged.worst * 100.0,
        judged.strain,
        judged.total
    );
    judged
}
