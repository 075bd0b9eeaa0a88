//! A sender with CUBIC (RFC 9438), in packets and milliseconds, without time-outs.

const BETA: f64 = 0.7;
const C: f64 = 0.4;

pub(crate) struct Cubic {
    window: f64,
    threshold: f64,
    on_the_way: f64,
    largest: f64,
    /// Begin of the present growth.
    epoch: Option<u64>,
    recovers_until: u64,
    rtt: u32,
}

impl Cubic {
    pub(crate) fn new() -> Cubic {
        Cubic {
            window: 10.0,
            threshold: f64::MAX,
            on_the_way: 0.0,
            largest: 0.0,
            epoch: None,
            recovers_until: 0,
            rtt: 100,
        }
    }

    pub(crate) fn may_send(&self) -> bool {
        self.on_the_way < self.window
    }

    pub(crate) fn sends(&mut self) {
        self.on_the_way += 1.0;
    }

    pub(crate) fn acks(&mut self, ms: u64, rtt: u32) {
        (self.on_the_way, self.rtt) = (self.on_the_way - 1.0, rtt);
        if ms < self.recovers_until {
            return;
        }
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let epoch = *self.epoch.get_or_insert(ms);
        let seconds = (ms - epoch + u64::from(rtt)) as f64 / 1e3;
        let k = (self.largest * (1.0 - BETA) / C).cbrt();
        let target = C * (seconds - k).powi(3) + self.largest;
        self.window += ((target - self.window) / self.window).clamp(0.01 / self.window, 0.5);
    }

    pub(crate) fn loses(&mut self, ms: u64) {
        self.on_the_way -= 1.0;
        if ms < self.recovers_until {
            return;
        }
        self.largest = self.window;
        self.window = (self.window * BETA).max(2.0);
        (self.threshold, self.epoch) = (self.window, None);
        self.recovers_until = ms + u64::from(self.rtt);
    }
}
