//! A download by a link: servers, the provider's queue before the link, and the scheduler behind it. In steps
//! of a millisecond, with packets of one length.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use weir_autorate::{ArrivalCounts, ArrivalMeter, Decision, Signals};
use weir_units::Instant;

use crate::{
    cubic::Cubic,
    simulation::{Base, Heard, Moment, Outcome, PACKET, per_ms},
    traces::Trace,
};

/// The provider's queue lasts this long at the mean rate.
const PROVIDERS_QUEUE: f64 = 1.0;
/// Each flow's queue behind the link: this many packets, or this time at the capacity.
const OWN_QUEUE: usize = 40;
const OWN_DELAY_MS: f64 = 20.0;
/// Samples are of this time.
const RECENT_MS: u64 = 60;

/// Traffic of a run, by millisecond.
pub struct Arrivals<'a> {
    /// The link.
    pub trace: &'a Trace,
    /// TCP flows that arrive.
    pub flows: usize,
    /// The rate of datagrams that arrive beside them and do not give way, Mbit/s.
    pub flood_mbit: f64,
    /// The time between two decisions.
    pub tick_ms: u64,
    /// Whether the servers send.
    pub sends: fn(u64) -> bool,
}

impl Arrivals<'_> {
    /// Eight TCP flows that always send, and a decision each 50 ms.
    #[must_use]
    pub fn of(trace: &Trace) -> Arrivals<'_> {
        Arrivals { trace, flows: 8, flood_mbit: 0.0, tick_ms: 50, sends: |_| true }
    }
}

/// Packets on the way to the link: when each comes, of which flow, and when it was sent. `None` is a datagram.
type Coming = BinaryHeap<Reverse<(u64, Option<usize>, u64)>>;

/// Runs a scheme that names the capacity of what arrives.
pub fn arrive(scene: &Arrivals<'_>, mut capacity: impl FnMut(Instant, &Signals) -> Decision) -> Outcome {
    let trace = scene.trace;
    let limit = (per_ms(trace.mean()) * 1_000.0 * PROVIDERS_QUEUE / PACKET as f64) as usize;
    let mut flows: Vec<Cubic> = (0..scene.flows).map(|_| Cubic::new()).collect();
    let mut own: Vec<VecDeque<u64>> = vec![VecDeque::new(); scene.flows];
    let mut coming = Coming::new();
    // Of which flow, when it was sent, and when it came to the queue.
    let mut provider: VecDeque<(Option<usize>, u64, u64)> = VecDeque::new();
    let mut heard: BinaryHeap<Reverse<(u64, usize, Heard)>> = BinaryHeap::new();
    let (mut credit, mut grant, mut next, mut could, mut carried) = (0.0, 0.0, 0, 0.0, 0u64);
    let (mut base, mut samples) = (Base::default(), VecDeque::new());
    let (mut counts, mut meter) = (ArrivalCounts::default(), ArrivalMeter::default());
    let (mut told, mut was_busy, mut floods) = (0u64, false, 0.0);
    let (mut outcome, mut now_capacity, mut moment) = (Outcome::default(), 0.0, Moment::default());
    let mbit_per_byte = 8e3 / 1e6 / scene.tick_ms as f64;
    for ms in 0..trace.rate.len() as u64 {
        let path = u64::from(trace.base[ms as usize]) / 2;
        if ms % scene.tick_ms == 0 {
            if ms > 0 {
                let [link, carried] = [moment.link, moment.carried].map(|bytes| bytes * mbit_per_byte);
                outcome.moments.push(Moment { ms, capacity: now_capacity, link, carried, ..moment });
                moment = Moment::default();
            }
            while samples.front().is_some_and(|(at, _)| *at + RECENT_MS < ms) {
                samples.pop_front();
            }
            counts.queue = samples.iter().map(|(_, wait)| Duration::from_millis(u64::from(*wait))).min();
            let arrived = counts.arrived - told;
            let is_busy = was_busy || arrived as f64 >= 0.9 * per_ms(now_capacity) * scene.tick_ms as f64;
            let signals = meter.signals(&counts, is_busy).unwrap_or_default();
            (told, was_busy) = (counts.arrived, false);
            let decision = capacity(Instant(Duration::from_millis(ms)), &signals);
            if decision.forgets_bases {
                base = Base::default();
                samples.clear();
            }
            now_capacity = decision.capacity.as_mbit();
            outcome.decided(ms, now_capacity, decision.state);
        }
        while heard.peek().is_some_and(|Reverse((at, ..))| *at <= ms) {
            let Some(Reverse((at, flow, what))) = heard.pop() else { break };
            match what {
                Heard::Lost => flows[flow].loses(at),
                Heard::Acked { left } => flows[flow].acks(at, (at - left) as u32),
            }
        }
        for (place, flow) in flows.iter_mut().enumerate() {
            while (scene.sends)(ms) && flow.may_send() {
                flow.sends();
                coming.push(Reverse((ms + path, Some(place), ms)));
            }
        }
        floods += per_ms(scene.flood_mbit) / PACKET as f64;
        while floods >= 1.0 {
            floods -= 1.0;
            coming.push(Reverse((ms + path, None, ms)));
        }
        while coming.peek().is_some_and(|Reverse((at, ..))| *at <= ms) {
            let Some(Reverse((_, flow, sent))) = coming.pop() else { break };
            if provider.len() < limit {
                provider.push_back((flow, sent, ms));
            } else if let Some(flow) = flow {
                heard.push(Reverse((ms + path, flow, Heard::Lost)));
            }
        }
        let rate = per_ms(trace.rate[ms as usize]);
        could += rate;
        moment.link += rate;
        grant = if provider.is_empty() { rate.min(grant + rate) } else { grant + rate };
        let room = OWN_QUEUE.max((per_ms(now_capacity) * OWN_DELAY_MS / PACKET as f64) as usize);
        while grant >= PACKET as f64 {
            let Some((flow, sent, came)) = provider.pop_front() else { break };
            grant -= PACKET as f64;
            carried += PACKET;
            counts.arrived += PACKET;
            moment.carried += PACKET as f64;
            moment.wait_ms = moment.wait_ms.max((ms - came) as u32);
            outcome.waits((ms - came) as u32);
            let Some(flow) = flow else { continue };
            let delay = (ms - sent) as u32;
            let least = base.add(ms, delay);
            samples.push_back((ms, delay - least));
            counts.delays += 1;
            if own[flow].len() < room {
                own[flow].push_back(sent);
            } else {
                heard.push(Reverse((ms + path, flow, Heard::Lost)));
            }
        }
        let waits = own.iter().any(|queue| !queue.is_empty());
        was_busy |= waits;
        credit = if waits { credit + per_ms(now_capacity) } else { per_ms(now_capacity).min(PACKET as f64) };
        while credit >= PACKET as f64 && own.iter().any(|queue| !queue.is_empty()) {
            while own[next].is_empty() {
                next = (next + 1) % own.len();
            }
            let Some(sent) = own[next].pop_front() else { break };
            credit -= PACKET as f64;
            heard.push(Reverse((ms + path, next, Heard::Acked { left: sent })));
            next = (next + 1) % own.len();
        }
    }
    outcome.used = carried as f64 / could;
    outcome.sorted()
}
