//! The shares that the contract gives to senders of the model, which change at each moment.

use std::time::Duration;

use weir_share::{Allocator, Demand};
use weir_units::{BitRate, Bytes, Instant};

use super::{Case, FRAME, LIMIT, Load, QUEUE};

/// The time between two divisions.
pub(super) const STEP: Duration = Duration::from_millis(1);

/// The contract as a fluid, with queues of its own: the rates that are due to the classes at each moment.
pub(super) struct Contract {
    pub(super) seen: Instant,
    allocator: Allocator,
    /// Bytes that wait.
    pub(super) queues: Vec<f64>,
    demands: Vec<Demand>,
    rates: Vec<BitRate>,
    /// Bits of each class since counting began.
    pub(super) sent: Vec<f64>,
}

impl Contract {
    pub(super) fn new(classes: usize) -> Contract {
        Contract {
            seen: Instant::default(),
            allocator: Allocator::water_filling(),
            queues: vec![0.0; classes],
            demands: Vec::new(),
            rates: Vec::new(),
            sent: vec![0.0; classes],
        }
    }

    /// Takes what comes until a moment, evenly, and serves.
    pub(super) fn serve(&mut self, case: &Case, is_on: &[bool], then: Instant, counts: bool) {
        let seconds = then.since(self.seen).as_secs_f64();
        self.seen = then;
        let demands: Vec<Demand> = case
            .senders
            .iter()
            .zip(&mut self.queues)
            .zip(is_on)
            .map(|((sender, queue), is_on)| {
                let arrives = |rate: BitRate| rate.0 as f64 / 8.0 * seconds;
                *queue = match sender.load {
                    Load::Flood | Load::OnOff(..) if *is_on => f64::from(QUEUE * FRAME),
                    Load::Steady(rate) => *queue + arrives(rate),
                    Load::Bursts(frames, every) => {
                        *queue + arrives(BitRate::of(Bytes(u64::from(frames * FRAME)), every))
                    }
                    _ => *queue,
                };
                *queue = queue.min(f64::from(LIMIT * FRAME));
                Demand::rate(BitRate((*queue * 8.0 / seconds) as u64))
            })
            .collect();
        if demands != self.demands {
            self.rates = case.due(&demands, &mut self.allocator);
            self.demands = demands;
        }
        for ((queue, rate), sent) in self.queues.iter_mut().zip(&self.rates).zip(&mut self.sent) {
            let served = (rate.0 as f64 / 8.0 * seconds).min(*queue);
            *queue -= served;
            *sent += if counts { served * 8.0 } else { 0.0 };
        }
    }
}
