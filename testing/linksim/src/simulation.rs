//! Senders, the scheduler, the modem's queue and the path, in steps of a millisecond. Packets have one length.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use weir_autorate::{Counts, Decision, Meter, Signals, State};
use weir_units::Instant;

use crate::{cubic::Cubic, probes::Probes, traces::Trace};

pub(crate) const PACKET: u64 = 1_514;
/// Each flow's queue in the scheduler, in packets.
const OWN_QUEUE: usize = 200;
/// The modem's queue lasts this long at the mean rate.
const MODEM_QUEUE: f64 = 1.0;

/// Traffic and faults of a run, by millisecond.
pub struct Scene<'a> {
    /// The link.
    pub trace: &'a Trace,
    /// TCP flows that send.
    pub flows: usize,
    /// Flows of datagrams, which nothing answers. The scheduler gives each the turns of a TCP flow.
    pub datagram_flows: usize,
    /// The rate of the datagrams together, Mbit/s.
    pub datagrams_mbit: f64,
    /// The time between two decisions.
    pub tick_ms: u64,
    /// Whether the flows send.
    pub sends: fn(u64) -> bool,
    /// A delay of the path that is not this link's queue, in ms.
    pub foreign: fn(u64) -> u32,
    /// The programs tell the signals.
    pub tells: fn(u64) -> bool,
}

impl Scene<'_> {
    /// Four TCP flows that always send, and a decision each 50 ms.
    #[must_use]
    pub fn of(trace: &Trace) -> Scene<'_> {
        Scene {
            trace,
            flows: 4,
            datagram_flows: 0,
            datagrams_mbit: 0.0,
            tick_ms: 50,
            sends: |_| true,
            foreign: |_| 0,
            tells: |_| true,
        }
    }
}

/// The time between two decisions. Rates are in Mbit/s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Its end, in milliseconds since the beginning.
    pub ms: u64,
    /// The scheme's capacity.
    pub capacity: f64,
    /// The link's rate.
    pub link: f64,
    /// The rate that the link carried.
    pub carried: f64,
    /// The longest wait of a packet that left the modem, in milliseconds.
    pub wait_ms: u32,
}

/// The outcome of a run.
#[derive(Default)]
pub struct Outcome {
    /// The part of the link's bytes that was used.
    pub used: f64,
    /// The part of the link's bytes that each class of a download received.
    pub received: Vec<f64>,
    /// The part of the link's bytes that it carried and the scheduler of a download dropped.
    pub dropped: f64,
    /// The milliseconds that packets waited in the modem's queue, sorted.
    waited: Vec<u32>,
    /// The run, by decision.
    pub moments: Vec<Moment>,
    capacities: Vec<(u64, f64)>,
    states: Vec<(u64, State)>,
}

/// The bytes of a millisecond at a rate in Mbit/s.
pub(crate) fn per_ms(mbit: f64) -> f64 {
    mbit * 1e6 / 8e3
}

impl Outcome {
    pub(crate) fn decided(&mut self, ms: u64, capacity: f64, state: State) {
        self.capacities.push((ms, capacity));
        self.states.push((ms, state));
    }

    pub(crate) fn waits(&mut self, ms: u32) {
        self.waited.push(ms);
    }

    pub(crate) fn sorted(mut self) -> Outcome {
        self.waited.sort_unstable();
        self
    }

    /// The wait that this part of the packets does not exceed.
    #[must_use]
    pub fn wait(&self, part: f64) -> u32 {
        self.waited.get((self.waited.len() as f64 * part) as usize).copied().unwrap_or(0)
    }

    /// The largest distance of a class's share from its weight's, as a part of the latter.
    #[must_use]
    pub fn share_error(&self, weights: &[u32]) -> f64 {
        let all: f64 = self.received.iter().sum();
        if all <= 0.0 {
            return 1.0;
        }
        let sum = f64::from(weights.iter().sum::<u32>());
        let errors = self.received.iter().zip(weights).map(|(received, weight)| {
            let due = f64::from(*weight) / sum;
            (received / all - due).abs() / due
        });
        errors.fold(0.0, f64::max)
    }

    /// Use, waits of 50 and 95 of 100 packets, and the part of packets that waited more than 30 ms.
    #[must_use]
    pub fn row(&self) -> String {
        let over = self.waited.len() - self.waited.partition_point(|ms| *ms <= 30);
        let over = 100.0 * over as f64 / self.waited.len().max(1) as f64;
        format!("{:5.1} %, {:4} / {:4} ms, {over:4.1} %", 100.0 * self.used, self.wait(0.5), self.wait(0.95))
    }

    /// The lowest and the highest capacity between two times, Mbit/s.
    #[must_use]
    pub fn capacity_between(&self, from_ms: u64, to_ms: u64) -> (f64, f64) {
        let within =
            self.capacities.iter().filter(|(ms, _)| (from_ms..to_ms).contains(ms)).map(|(_, mbit)| *mbit);
        within.fold((f64::MAX, 0.0), |(low, high), mbit| (low.min(mbit), high.max(mbit)))
    }

    /// Whether a decision between two times named this state.
    #[must_use]
    pub fn was(&self, state: State, from_ms: u64, to_ms: u64) -> bool {
        self.states.iter().any(|(ms, s)| (from_ms..to_ms).contains(ms) && *s == state)
    }
}

/// The least round trips of the last two periods of 10 s, as the programs keep them.
#[derive(Default)]
pub(crate) struct Base {
    halves: [Option<u32>; 2],
    period: u64,
}

impl Base {
    pub(crate) fn add(&mut self, ms: u64, rtt: u32) -> u32 {
        let period = ms / 4_000;
        if period != self.period {
            self.halves = if period == self.period + 1 { [None, self.halves[0]] } else { [None, None] };
            self.period = period;
        }
        self.halves[0] = Some(self.halves[0].map_or(rtt, |least| least.min(rtt)));
        self.least()
    }

    /// Whether it has a value of this period or of the one before.
    pub(crate) fn is_known(&self, ms: u64) -> bool {
        let [now, before] = self.halves;
        match (ms / 4_000).checked_sub(self.period) {
            Some(0) => now.or(before).is_some(),
            Some(1) => now.is_some(),
            _ => false,
        }
    }

    fn least(&self) -> u32 {
        self.halves.iter().flatten().copied().min().unwrap_or(0)
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    Acked { left: u64 },
    Lost,
}

/// The word to a scheme at a decision.
pub(crate) struct Told<'a> {
    /// The signals of weir's programs.
    pub(crate) signals: Option<&'a Signals>,
    /// The bytes that left the scheduler since the last decision.
    pub(crate) left: u64,
    /// The milliseconds that the probes waited whose answers came since the last decision.
    pub(crate) probes: &'a [u32],
}

/// Runs a scheme that names the capacity against a scene.
pub(crate) fn run(scene: &Scene<'_>, mut capacity: impl FnMut(Instant, &Told<'_>) -> Decision) -> Outcome {
    let trace = scene.trace;
    let modem_packets = (per_ms(trace.mean()) * 1_000.0 * MODEM_QUEUE / PACKET as f64) as usize;
    let mut flows: Vec<Cubic> = (0..scene.flows).map(|_| Cubic::new()).collect();
    // The queues of the TCP flows, then those of the datagrams.
    let mut own: Vec<usize> = vec![0; scene.flows + scene.datagram_flows];
    let mut datagrams = 0.0;
    let mut modem: VecDeque<(usize, u64)> = VecDeque::new();
    let mut heard: BinaryHeap<Reverse<(u64, usize, Heard)>> = BinaryHeap::new();
    let (mut credit, mut grant, mut next, mut could, mut carried) = (0.0, 0.0, 0, 0.0, 0u64);
    let mut counts = Counts::default();
    let mut meter = Meter::default();
    meter.signals(Instant::default(), &counts, false);
    let mut base = Base::default();
    let (mut probes, mut pushed, mut popped) = (Probes::default(), 0u64, 0u64);
    let mut queues: VecDeque<(u64, u32)> = VecDeque::new();
    let mut waiting_since: Option<u64> = None;
    let mut outcome = Outcome::default();
    let mut now_capacity = 0.0;
    let mut moment = Moment::default();
    let mbit_per_byte = 8e3 / 1e6 / scene.tick_ms as f64;
    for ms in 0..trace.rate.len() as u64 {
        if ms % scene.tick_ms == 0 {
            if ms > 0 {
                let [link, carried] = [moment.link, moment.carried].map(|bytes| bytes * mbit_per_byte);
                outcome.moments.push(Moment { ms, capacity: now_capacity, link, carried, ..moment });
                moment = Moment::default();
            }
            while queues.front().is_some_and(|(at, _)| *at + 60 < ms) {
                queues.pop_front();
            }
            let in_modem = modem.iter().filter(|(flow, _)| *flow < flows.len()).count();
            counts.on_the_way = (in_modem + heard.len()) as u64 * PACKET;
            counts.queue = queues.iter().map(|(_, q)| Duration::from_millis(u64::from(*q))).min();
            counts.unanswered = waiting_since.map(|since| Duration::from_millis(ms - since));
            let has_backlog = own.iter().any(|waiting| *waiting > 0);
            let signals = meter.signals(Instant(Duration::from_millis(ms)), &counts, has_backlog);
            let mut signals = signals.unwrap_or_default();
            signals.base = Duration::from_millis(base.least().into());
            let told = Told {
                signals: (scene.tells)(ms).then_some(&signals),
                left: signals.sent.0,
                probes: &probes.heard(ms),
            };
            let decision = capacity(Instant(Duration::from_millis(ms)), &told);
            if decision.forgets_bases {
                base = Base::default();
                queues.clear();
            }
            now_capacity = decision.capacity.as_mbit();
            outcome.decided(ms, now_capacity, decision.state);
        }
        while heard.peek().is_some_and(|Reverse((at, ..))| *at <= ms) {
            let Some(Reverse((at, flow, what))) = heard.pop() else { break };
            match what {
                Heard::Lost => flows[flow].loses(at),
                Heard::Acked { left } => {
                    let rtt = (at - left) as u32;
                    flows[flow].acks(at, rtt);
                    counts.acked_payload += PACKET;
                    counts.samples += 1;
                    let least = base.add(at, rtt);
                    queues.push_back((at, rtt - least));
                    waiting_since = None;
                }
            }
        }
        for (flow, waiting) in flows.iter_mut().zip(&mut own) {
            // A full queue holds the sender back.
            while (scene.sends)(ms) && flow.may_send() && *waiting < OWN_QUEUE {
                flow.sends();
                *waiting += 1;
            }
        }
        if (scene.sends)(ms) {
            datagrams += per_ms(scene.datagrams_mbit) / PACKET as f64;
        }
        while datagrams >= 1.0 {
            datagrams -= 1.0;
            // A full queue drops.
            let shortest = own.iter_mut().skip(scene.flows).min();
            if let Some(waiting) = shortest.filter(|waiting| **waiting < OWN_QUEUE) {
                *waiting += 1;
            }
        }
        let waits = own.iter().any(|waiting| *waiting > 0);
        credit = if waits { credit + per_ms(now_capacity) } else { per_ms(now_capacity).min(PACKET as f64) };
        while credit >= PACKET as f64 && own.iter().any(|waiting| *waiting > 0) {
            while own[next] == 0 {
                next = (next + 1) % own.len();
            }
            own[next] -= 1;
            credit -= PACKET as f64;
            counts.sent += PACKET;
            let is_tcp = next < flows.len();
            if is_tcp {
                counts.sent_payload += PACKET;
                waiting_since.get_or_insert(ms);
            }
            let base_ms = trace.base[ms as usize] + (scene.foreign)(ms);
            if modem.len() < modem_packets {
                modem.push_back((next, ms));
                pushed += 1;
            } else if is_tcp {
                heard.push(Reverse((ms + u64::from(base_ms), next, Heard::Lost)));
            }
            next = (next + 1) % own.len();
        }
        probes.begin(ms, pushed);
        let rate = per_ms(trace.rate[ms as usize]);
        could += rate;
        moment.link += rate;
        grant = if modem.is_empty() { rate.min(grant + rate) } else { grant + rate };
        while grant >= PACKET as f64 {
            let Some((flow, left)) = modem.pop_front() else { break };
            grant -= PACKET as f64;
            carried += PACKET;
            moment.carried += PACKET as f64;
            moment.wait_ms = moment.wait_ms.max((ms - left) as u32);
            popped += 1;
            outcome.waits((ms - left) as u32);
            if flow < flows.len() {
                let back = ms + u64::from(trace.base[ms as usize] + (scene.foreign)(ms));
                heard.push(Reverse((back, flow, Heard::Acked { left })));
            }
        }
        // An outage holds probes up too.
        if rate > 0.0 {
            probes.pass(ms, popped, trace.base[ms as usize]);
        }
    }
    outcome.used = carried as f64 / could;
    outcome.sorted()
}
