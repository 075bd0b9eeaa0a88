//! A download by a link: servers, the provider's queue before the link, and the scheduler behind it. In steps
//! of a millisecond, with packets of one length.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use weir_autorate::{ArrivalCounts, ArrivalMeter, Decision};
use weir_units::Instant;

use crate::{
    cubic::Cubic,
    probes::Probes,
    simulation::{Base, Heard, Moment, Outcome, PACKET, Told, per_ms},
    traces::Trace,
    turns::Turns,
};

/// The provider's queue lasts this long at the mean rate.
const PROVIDERS_QUEUE: f64 = 1.0;
/// Each flow's queue behind the link: this many packets, or this time at the capacity.
const OWN_QUEUE: usize = 40;
const OWN_DELAY_MS: f64 = 20.0;
/// Samples are of this time.
const RECENT_MS: u64 = 60;
/// The programs learn a sender's clock for this time.
const LEARNS_MS: u64 = 500;

/// The senders' clocks are this far behind. Another difference of clocks means the same.
const CLOCK_MS: u32 = 1_000_000;

/// Traffic of a run, by millisecond.
pub struct Arrivals<'a> {
    /// The link.
    pub trace: &'a Trace,
    /// TCP flows that arrive, for each class in turn.
    pub flows: usize,
    /// The weights of the classes.
    pub weights: &'a [u32],
    /// The rate of datagrams that arrive beside them and do not give way, Mbit/s.
    pub flood_mbit: f64,
    /// The time between two decisions.
    pub tick_ms: u64,
    /// Whether the servers send.
    pub sends: fn(u64) -> bool,
    /// Use, shares and waits count from here on.
    pub judged_from_ms: u64,
    /// Each flow ends after this time, and another one begins in its place. `None`: they never end.
    pub lasts_ms: Option<u64>,
}

impl Arrivals<'_> {
    /// Eight TCP flows of one class that always send, and a decision each 50 ms.
    #[must_use]
    pub fn of(trace: &Trace) -> Arrivals<'_> {
        Arrivals {
            trace,
            flows: 8,
            weights: &[1],
            flood_mbit: 0.0,
            tick_ms: 50,
            sends: |_| true,
            judged_from_ms: 0,
            lasts_ms: None,
        }
    }
}

/// A flow at its server, in the scheduler and in the programs.
struct Flow {
    class: usize,
    sender: Cubic,
    own: VecDeque<u64>,
    /// The arrival of its first packet.
    first: Option<u64>,
    base: Base,
}

impl Flow {
    fn new(class: usize) -> Flow {
        Flow { class, sender: Cubic::new(), own: VecDeque::new(), first: None, base: Base::default() }
    }

    /// The queue that a packet tells by its delay and the clocks' difference, beside the last one that others told.
    fn tells(&mut self, ms: u64, delay: u32, others: Option<u32>) -> Option<u32> {
        let is_first = self.first.is_none();
        let first = *self.first.get_or_insert(ms);
        if is_first || !self.base.is_known(ms) {
            // It begins in the queue of the others.
            self.base.add(ms, delay - others.unwrap_or(0));
        }
        (ms >= first + LEARNS_MS).then(|| delay - self.base.add(ms, delay))
    }
}

/// Packets on the way to the link: when each comes, of which flow, and when it was sent. `None` is a datagram.
type Coming = BinaryHeap<Reverse<(u64, Option<usize>, u64)>>;

/// Runs a scheme that names the capacity of what arrives.
pub(crate) fn arrive(
    scene: &Arrivals<'_>,
    mut capacity: impl FnMut(Instant, &Told<'_>) -> Decision,
) -> Outcome {
    let trace = scene.trace;
    let limit = (per_ms(trace.mean()) * 1_000.0 * PROVIDERS_QUEUE / PACKET as f64) as usize;
    let begin = |place: usize| Flow::new(place % scene.weights.len());
    let mut flows: Vec<Flow> = (0..scene.flows).map(begin).collect();
    // The flows that have not ended.
    let mut open: Vec<usize> = (0..scene.flows).collect();
    let mut coming = Coming::new();
    // Of which flow, when it was sent, and when it came to the queue.
    let mut provider: VecDeque<(Option<usize>, u64, u64)> = VecDeque::new();
    let mut heard: BinaryHeap<Reverse<(u64, usize, Heard)>> = BinaryHeap::new();
    let mut turns = Turns::new(scene.weights);
    let (mut received, mut dropped) = (vec![0.0; scene.weights.len()], 0u64);
    let (mut probes, mut joined, mut passed, mut left) = (Probes::default(), 0u64, 0u64, 0u64);
    let (mut credit, mut grant, mut could, mut carried) = (0.0, 0.0, 0.0, 0u64);
    let mut samples: VecDeque<(u64, u32)> = VecDeque::new();
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
            let told = Told { signals: Some(&signals), left, probes: &probes.heard(ms) };
            let decision = capacity(Instant(Duration::from_millis(ms)), &told);
            left = 0;
            if decision.forgets_bases {
                flows.iter_mut().for_each(|flow| flow.base = Base::default());
                samples.clear();
            }
            now_capacity = decision.capacity.as_mbit();
            outcome.decided(ms, now_capacity, decision.state);
        }
        while heard.peek().is_some_and(|Reverse((at, ..))| *at <= ms) {
            let Some(Reverse((at, flow, what))) = heard.pop() else { break };
            match what {
                Heard::Lost => flows[flow].sender.loses(at),
                Heard::Acked { left } => flows[flow].sender.acks(at, (at - left) as u32),
            }
        }
        for (place, number) in open.iter_mut().enumerate() {
            let ends =
                |lasts: u64| ms > 0 && (ms + place as u64 * lasts / scene.flows as u64).is_multiple_of(lasts);
            if scene.lasts_ms.is_some_and(ends) {
                *number = flows.len();
                flows.push(begin(place));
            }
            let sender = &mut flows[*number].sender;
            while (scene.sends)(ms) && sender.may_send() {
                sender.sends();
                coming.push(Reverse((ms + path, Some(*number), ms)));
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
                joined += 1;
            } else if let Some(flow) = flow {
                heard.push(Reverse((ms + path, flow, Heard::Lost)));
            }
        }
        probes.begin(ms, joined);
        let rate = per_ms(trace.rate[ms as usize]);
        let is_judged = ms >= scene.judged_from_ms;
        could += if is_judged { rate } else { 0.0 };
        moment.link += rate;
        grant = if provider.is_empty() { rate.min(grant + rate) } else { grant + rate };
        let room = OWN_QUEUE.max((per_ms(now_capacity) * OWN_DELAY_MS / PACKET as f64) as usize);
        while grant >= PACKET as f64 {
            let Some((flow, sent, came)) = provider.pop_front() else { break };
            grant -= PACKET as f64;
            passed += 1;
            carried += if is_judged { PACKET } else { 0 };
            counts.arrived += PACKET;
            moment.carried += PACKET as f64;
            moment.wait_ms = moment.wait_ms.max((ms - came) as u32);
            if is_judged {
                outcome.waits((ms - came) as u32);
            }
            let Some(number) = flow else { continue };
            let flow = &mut flows[number];
            let last = samples.back().filter(|(at, _)| *at + RECENT_MS >= ms).map(|(_, wait)| *wait);
            if let Some(wait) = flow.tells(ms, CLOCK_MS + (ms - sent) as u32, last) {
                samples.push_back((ms, wait));
                counts.delays += 1;
            }
            if flow.own.len() < room {
                if flow.own.is_empty() {
                    turns.wait(flow.class, number);
                }
                flow.own.push_back(sent);
            } else {
                dropped += if is_judged { PACKET } else { 0 };
                heard.push(Reverse((ms + path, number, Heard::Lost)));
            }
        }
        if rate > 0.0 {
            // The scheduler sends a packet of a flow without a queue first.
            probes.pass(ms, passed, 0);
        }
        was_busy |= !turns.is_empty();
        let whole = per_ms(now_capacity);
        credit = if turns.is_empty() { whole.min(PACKET as f64) } else { credit + whole };
        while credit >= PACKET as f64 {
            let Some(number) = turns.next() else { break };
            let flow = &mut flows[number];
            let Some(sent) = flow.own.pop_front() else { continue };
            credit -= PACKET as f64;
            left += PACKET;
            received[flow.class] += if is_judged { PACKET as f64 } else { 0.0 };
            heard.push(Reverse((ms + path, number, Heard::Acked { left: sent })));
            if !flow.own.is_empty() {
                turns.wait(flow.class, number);
            }
        }
    }
    outcome.used = carried as f64 / could;
    outcome.dropped = dropped as f64 / could;
    outcome.received = received.iter().map(|bytes| bytes / could).collect();
    outcome.sorted()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The others may tell more than a packet's whole delay. A base below zero is as good as another one.
    #[test]
    fn flow_begins_in_the_queue_that_others_tell_however_long_it_is() {
        let mut flow = Flow::new(0);
        assert_eq!(flow.tells(0, CLOCK_MS + 15, Some(30)), None, "its clock is not known yet");
        assert_eq!(flow.tells(600, CLOCK_MS + 15, None), Some(30));
        assert_eq!(flow.tells(700, CLOCK_MS - 15, None), Some(0));
    }
}
