//! A network in which completion times follow from algorithm, buffer, loss and what the others use.
//! A model, not a measurement: its parts have the directions and sizes that were measured (buffers
//! that CUBIC fills, BBR's losses where buffers are shallow, whom it pushes aside, random loss that
//! only CUBIC minds), so that networks come out in which each of the algorithms is the right one.

use std::{cmp::Reverse, collections::BinaryHeap};

use weir_cc::{Action, Change, Trial, Turn};
use weir_units::Bytes;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Uniform in the logarithm.
    fn scale(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.uniform())
    }

    /// Standard normal (Box and Muller 1958).
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// CUBIC, BBR, and BBR for the first MiB.
pub(crate) fn actions() -> [Action; 3] {
    let action = |start: &str, change| Action { start: start.parse().unwrap(), change };
    let change = Change { after: Bytes(1 << 20), to: "cubic".parse().unwrap(), window: None };
    [action("cubic", None), action("bbr", None), action("bbr", Some(change))]
}

/// The draw for a flow, with any algorithm.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) bytes: f64,
    noise: f64,
    lucky: f64,
}

/// How the time is in which flows go.
#[derive(Clone, Copy)]
pub(crate) struct Weather(f64);

impl Weather {
    pub(crate) fn on(self, flow: Flow) -> Flow {
        Flow { noise: flow.noise + self.0, ..flow }
    }
}

/// A bottleneck of 100 Mbit/s that four large flows share at a time.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) rtt_s: f64,
    pub(crate) buffer_bdp: f64,
    pub(crate) loss: f64,
    spread: f64,
}

/// Parts of the flows that use each of [`actions`].
pub(crate) type Mix = [f64; 3];

const SEGMENT: f64 = 1448.0;
const RATE: f64 = 100e6 / 8.0;

impl Network {
    pub(crate) fn random(random: &mut Random) -> Network {
        let is_lossy = random.uniform() < 0.5;
        Network {
            rtt_s: random.scale(0.002, 0.1),
            buffer_bdp: random.scale(0.2, 10.0),
            loss: if is_lossy { random.scale(1e-4, 1e-2) } else { 0.0 },
            spread: 0.2 + 0.3 * random.uniform(),
        }
    }

    /// Times are longer or shorter by 5 % from turn to turn.
    pub(crate) fn weather(&self, random: &mut Random) -> Weather {
        Weather(0.05 / self.spread * random.normal())
    }

    pub(crate) fn flow(&self, random: &mut Random) -> Flow {
        let bytes = match random.uniform() {
            ..0.25 => random.scale(3e3, 1e4),
            ..0.6 => random.scale(1e4, 1e5),
            ..0.85 => random.scale(1e5, 1e6),
            ..0.95 => random.scale(1e6, 1e7),
            _ => random.scale(1e7, 1e8),
        };
        Flow { bytes, noise: random.normal(), lucky: random.uniform() }
    }

    /// Completion time, microseconds, of a flow that uses `action` while `mix` of the flows use each.
    pub(crate) fn took_us(&self, flow: Flow, action: usize, mix: Mix) -> u64 {
        let over = |of: [f64; 3]| of.iter().zip(mix).map(|(value, part)| value * part).sum::<f64>();
        let (buffer, shallow) = (self.buffer_bdp, (1.0 - self.buffer_bdp / 1.5).max(0.0));
        // The backlog of the buffer, in round trips.
        let queue = over([0.7 * buffer, 0.5 * buffer.min(1.0), 0.6 * buffer]);
        let round = self.rtt_s * (1.0 + queue);
        // The drops of the buffer; a flow that is paced from the start loses less of it.
        let dropped = over([0.002 / buffer.max(0.2), 0.002 + 0.05 * shallow, 0.003 / buffer.max(0.2)]);
        let own = if action == 0 { 1.0 } else { 0.6 };
        let lossy = (self.loss + dropped * own).min(0.3);
        let segments = (flow.bytes / SEGMENT).max(1.0);
        // A lost last segment is found by time-out.
        let is_late = flow.lucky < 1.0 - (1.0 - lossy).powf(segments.min(3.0));
        let rounds = 1.0 + (1.0 + segments.min(200.0) / 10.0).log2();
        let push = match buffer {
            ..1.0 => 2.0,
            ..3.0 => 1.2,
            _ => 0.6,
        };
        let weights = [1.0, push, 0.95];
        let fair = RATE / 4.0 * weights[action] / over(weights);
        // Mathis et al. 1997, half as much again for CUBIC.
        let held = 1.8 * SEGMENT / (self.rtt_s * self.loss.max(1e-9).sqrt());
        let rate = if action == 1 { fair } else { fair.min(held) };
        let fast = (1.0_f64 * (1 << 20) as f64).min(flow.bytes);
        let transfer = if action == 2 { fast / fair + (flow.bytes - fast) / rate } else { flow.bytes / rate };
        let time_out = if is_late { 0.2 + self.rtt_s } else { 0.0 };
        let took = (rounds * round + transfer) * (self.spread * flow.noise).exp() + time_out;
        (took * 1e6) as u64
    }
}

/// A flow under way: when it ends, the number of its turn, and what is observed of it. Times are microseconds.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct UnderWay {
    pub(crate) ends_us: u64,
    pub(crate) number: u32,
    pub(crate) turn: Turn,
    pub(crate) is_drawn: bool,
    pub(crate) is_tried: bool,
    pub(crate) bytes: u64,
    pub(crate) took_us: u64,
}

impl Eq for UnderWay {}

impl PartialOrd for UnderWay {
    fn partial_cmp(&self, other: &UnderWay) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for UnderWay {
    fn cmp(&self, other: &UnderWay) -> std::cmp::Ordering {
        (self.ends_us, self.number).cmp(&(other.ends_us, other.number))
    }
}

/// The agent's interval.
const TICK_US: u64 = 100_000;
/// The length of a turn.
pub(crate) const TURN_US: u64 = 10_000_000;

/// The kernel's part of a trial, and the agent's: flows are drawn while there is room, and their ends are read every 100 ms.
pub(crate) struct Kernel {
    pub(crate) now_us: u64,
    pub(crate) turn: Turn,
    number: u32,
    is_closed: bool,
    share: f64,
    drawn: u64,
    told: u64,
    limit: u64,
    ticked_us: u64,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    /// Flows of which the trial has heard, in order.
    pub(crate) ended: Vec<UnderWay>,
    /// Whether `ended` is kept.
    pub(crate) keeps: bool,
}

/// The draw for a flow that begins.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Lot {
    /// It has no part in the trial.
    Outside,
    Beside,
    Drawn,
}

impl Kernel {
    pub(crate) fn new() -> Kernel {
        Kernel {
            now_us: 0,
            turn: Turn::Control,
            number: 0,
            is_closed: true,
            share: 0.0,
            drawn: 0,
            told: 0,
            limit: 0,
            ticked_us: 0,
            under_way: BinaryHeap::new(),
            ended: Vec::new(),
            keeps: false,
        }
    }

    pub(crate) fn begin_turn(&mut self, trial: &mut Trial, turn: Turn) {
        self.tick(trial);
        self.number += 1;
        (self.turn, self.share, self.is_closed) = (turn, trial.share(), false);
        trial.began(self.number, 0);
    }

    /// The next flow begins now.
    pub(crate) fn draw(&mut self, random: &mut Random) -> Lot {
        let is_lucky = random.uniform() < self.share;
        if self.is_closed || !is_lucky {
            return if self.is_closed { Lot::Outside } else { Lot::Beside };
        }
        self.is_closed = self.drawn >= self.limit;
        self.drawn += u64::from(!self.is_closed);
        if self.is_closed { Lot::Outside } else { Lot::Drawn }
    }

    pub(crate) fn is_tried(&self, lot: Lot) -> bool {
        lot == Lot::Drawn && self.turn != Turn::Control
    }

    /// It will take so long.
    pub(crate) fn begin(&mut self, lot: Lot, bytes: u64, took_us: u64) {
        if lot != Lot::Outside {
            self.under_way.push(Reverse(UnderWay {
                ends_us: self.now_us + took_us,
                number: self.number,
                turn: self.turn,
                is_drawn: lot == Lot::Drawn,
                is_tried: self.is_tried(lot),
                bytes,
                took_us,
            }));
        }
    }

    /// Time passes, up to this moment.
    pub(crate) fn pass(&mut self, trial: &mut Trial, until_us: u64) {
        self.now_us = until_us;
        if until_us - self.ticked_us >= TICK_US {
            self.tick(trial);
        }
    }

    fn tick(&mut self, trial: &mut Trial) {
        trial.began(self.number, self.drawn - self.told);
        (self.told, self.ticked_us) = (self.drawn, self.now_us);
        while let Some(Reverse(flow)) = self.under_way.peek().copied().filter(|f| f.0.ends_us <= self.now_us)
        {
            self.under_way.pop();
            if flow.is_drawn {
                trial.ended(flow.number);
            }
            trial.observe(flow.turn, flow.is_tried, flow.bytes, flow.took_us);
            if self.keeps {
                self.ended.push(flow);
            }
        }
        self.limit = self.drawn + trial.room();
    }
}
