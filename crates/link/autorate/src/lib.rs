//! Follows a link whose rate changes. The signals are those of the traffic itself; nothing probes.
//!
//! Each tick tells which bytes were acknowledged, and how long packets waited in the link's queue. While that
//! queue stands, the acknowledged rate is the link's rate, so that one step suffices after a fall of any depth.
//! While it is empty, the capacity grows.
//!
//! Where too little of the traffic is acknowledged, round trips tell what the link carried: all that left before
//! an answered packet.
//!
//! A download is followed by the same rules ([`Follower::of_arrivals`]). All that arrives was carried, and the
//! senders' timestamps tell how long it waited. Senders obey a round trip later, by drops.
//!
//! A tick should come every 50 ms. With longer ticks the queue swings further.
//!
//! No clock, no I/O: time and signals are arguments.

mod arrivals;
mod carried;
mod meter;
mod recent;
mod settings;
mod signals;
mod window;

use std::{ops::Range, time::Duration};

use weir_units::{BitRate, Bytes, Instant};

pub use arrivals::{ArrivalCounts, ArrivalMeter};
use carried::Carried;
pub use meter::{Counts, Meter};
use recent::Recent;
pub use settings::{DELAY, Settings, SettingsError};
pub use signals::{Decision, Signals, State};
use window::Window;

/// The acknowledged rate is the mean over this time.
const RATE_OVER: Duration = Duration::from_millis(100);
/// Both of these where round trips alone tell the rate. They come one by one, and an answer may be late.
const ALONE_OVER: Duration = Duration::from_millis(200);
const ALONE_DRAIN_TIME: Duration = Duration::from_millis(200);
const GROWTH_TIME: Duration = Duration::from_millis(250);
/// A queue below this is empty.
const EMPTY: Duration = Duration::from_millis(2);
/// After this time with a standing queue the link is drained, so that the base is seen again.
const LOOK_EVERY: Duration = Duration::from_millis(4000);
const LOOK_FOR: Duration = Duration::from_millis(200);
const LOOK_AT: f64 = 0.7;
/// Each answer moves the mean base of all paths by one part in this number.
const PATHS: u32 = 128;
/// Rates that are known for this time end the growth of a blind capacity.
const KNOWN_AFTER: Duration = Duration::from_secs(1);
/// An answer that is missing for longer than the base, the queue and this is silence.
const SILENCE: Duration = Duration::from_millis(30);
/// Beside datagrams a silence ends after this time. A TCP peer that has gone never answers.
const SILENT_AT_MOST: Duration = Duration::from_secs(3);
/// No decision for this time after a silence.
const AFTER_SILENCE: Duration = Duration::from_millis(20);
/// A queue that stays this many times too long, while less than [`GAVE_WAY`] of the rate is sent, is not
/// this node's.
const FOREIGN: u32 = 2;
const GAVE_WAY: f64 = 0.75;
/// A queue has become shorter if this part is left of it.
const SHORTER: f64 = 0.9;
const FOREIGN_AFTER: Duration = Duration::from_millis(400);
/// A queue that stays too long for this time is not this node's in any case.
const FOREIGN_AT_LAST: Duration = Duration::from_secs(3);
/// The sent rate is below this multiple of the capacity while the scheduler enforces it.
const HELD: f64 = 1.3;
/// Fewer samples in a second leave the queue unknown.
const FEW: u64 = 5;
/// Without any word of the programs for this time the signals are lost.
const LOST_AFTER: Duration = Duration::from_secs(3);
/// The growth in a second while the queue is unknown.
const BLIND_GROWTH: f64 = 1.01;
/// The capacity stays for this time when classes leave a part of it, and then falls half way to what was
/// usual, in each [`HALF_WAY`].
const IDLE_STAYS: Duration = Duration::from_secs(2);
const HALF_WAY: Duration = Duration::from_secs(10);
/// A queue is at most this long.
const LONGEST: Duration = Duration::from_secs(10);
/// The length of a packet.
const PACKET: Bytes = Bytes(1514);

/// The pace of decisions.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// The standing queue that is aimed at, in fifteenths of the allowed delay.
    queue: u32,
    /// The time in which a queue that is too long drains. Less than [`RATE_OVER`] makes the capacity swing.
    drain_time: Duration,
    /// The growth of the capacity in [`GROWTH_TIME`] while the queue is empty.
    growth: f64,
    /// The deepest cut below the rate in one step.
    deepest: f64,
    /// The time without samples on a busy link after which the queue counts as unknown.
    blind_after: Duration,
    /// The queue is told as a packet has passed it, not a round trip later.
    tells_at_once: bool,
}

/// The upload waits in this node's scheduler, and obeys at once.
const LEAVES: Pace = Pace {
    queue: 4,
    drain_time: Duration::from_millis(70),
    growth: 1.6,
    deepest: 0.95,
    blind_after: Duration::ZERO,
    tells_at_once: false,
};
/// The download's packets were sent before a drop told their sender. Faster growth fills the queue in between. The
/// clocks of new senders are learnt for half a second.
const ARRIVES: Pace = Pace {
    queue: 2,
    drain_time: Duration::from_millis(100),
    growth: 1.15,
    deepest: 0.7,
    blind_after: Duration::from_secs(1),
    tells_at_once: true,
};

/// A queue that stays too long.
#[derive(Debug, Clone, Copy)]
struct TooLong {
    begun: Instant,
    /// The longest one since `begun`.
    longest: Duration,
    /// Its begin, or the last time it had become shorter.
    since: Instant,
    /// The longest one since then.
    queue: Duration,
    /// The acknowledged rate then, bits per second.
    rate: f64,
}

/// The queue and the rate, in bits per second, before a look at the base.
#[derive(Debug, Clone, Copy)]
struct Look {
    queue: Duration,
    rate: f64,
}

/// The link's queue and rate as the signals tell them.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The longer one of what round trips tell and `comes`.
    queue: Duration,
    /// The queue by what is on the way.
    comes: Duration,
    /// Bits per second.
    rate: f64,
    /// Acknowledgements tell the rate, not round trips alone.
    by_acks: bool,
    /// The scheduler was busy, or a queue stands.
    is_full: bool,
}

/// The follower of one direction of a link.
#[derive(Debug, Clone)]
pub struct Follower {
    settings: Settings,
    pace: Pace,
    /// Bits per second, as all rates here.
    capacity: f64,
    state: State,
    acked: Window,
    sent: Window,
    carried: Carried,
    samples: Window,
    /// The queue that the last round trip told.
    queue: Duration,
    ticked: Option<Instant>,
    /// The last word of the programs.
    heard: Instant,
    /// The last time the queue was near empty.
    drained: Instant,
    looks_until: Instant,
    /// The look that has not been judged yet.
    look: Option<Look>,
    waits_until: Instant,
    too_long: Option<TooLong>,
    /// The last time the classes wanted all of the capacity.
    busy: Instant,
    /// The rates that the link carried while they were known.
    recent: Recent,
    /// The last blind capacity. `None` once rates were known for [`KNOWN_AFTER`] since.
    grown: Option<f64>,
    /// For how long the rate was known since the capacity was blind.
    known: Duration,
    /// The first tick since which a busy link brings few samples.
    few_since: Option<Instant>,
    /// The mean base of the flows that answered of late, where round trips alone tell the rate.
    path: Option<Duration>,
}

impl Follower {
    /// A follower of what leaves. It starts at the highest rate.
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Follower {
        Follower::with(settings, LEAVES, now)
    }

    /// A follower of what arrives, by the signals of an [`ArrivalMeter`]. It starts at the highest rate.
    #[must_use]
    pub fn of_arrivals(settings: Settings, now: Instant) -> Follower {
        Follower::with(settings, ARRIVES, now)
    }

    fn with(settings: Settings, pace: Pace, now: Instant) -> Follower {
        Follower {
            settings,
            pace,
            capacity: settings.max().0 as f64,
            state: State::Idle,
            acked: Window::new(RATE_OVER),
            sent: Window::new(RATE_OVER),
            carried: Carried::default(),
            samples: Window::new(Duration::from_secs(1)),
            queue: Duration::ZERO,
            ticked: None,
            heard: now,
            drained: now,
            looks_until: now,
            look: None,
            waits_until: now,
            too_long: None,
            busy: now,
            recent: Recent::default(),
            grown: None,
            known: Duration::ZERO,
            few_since: None,
            path: None,
        }
    }

    /// The present settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The capacity after a tick. `signals` is `None` if the programs do not answer.
    pub fn tick(&mut self, now: Instant, signals: Option<&Signals>) -> Decision {
        let tick = self.ticked.map_or(Duration::ZERO, |before| now.since(before));
        self.ticked = Some(now);
        let mut forgets_bases = false;
        match signals {
            None if now.since(self.heard) >= LOST_AFTER => {
                self.state = State::Lost;
                self.capacity = self.settings.min().0 as f64;
            }
            None => {}
            Some(signals) => {
                self.heard = now;
                let before = self.state;
                self.hear(now, tick, signals);
                forgets_bases = self.state == State::Foreign && before != State::Foreign;
            }
        }
        let (min, max) = (self.settings.min().0 as f64, self.settings.max().0 as f64);
        self.capacity = self.capacity.clamp(min, max);
        Decision { capacity: BitRate(self.capacity as u64), state: self.state, forgets_bases }
    }

    fn hear(&mut self, now: Instant, tick: Duration, signals: &Signals) {
        let packet = BitRate(self.capacity as u64).time_to_send(PACKET);
        let goal = self.settings.delay() * self.pace.queue / 15 + packet;
        self.samples.add(now, signals.samples);
        self.sent.add(now, signals.sent.0);
        self.carried.leave(now, signals.sent);
        match signals.acked {
            Some(bytes) => self.acked.add(now, bytes.0),
            None => self.acked.clear(now),
        }
        if signals.is_busy {
            self.busy = now;
        }
        self.queue = signals.queue.unwrap_or(self.queue);
        let silent = self.silent(now, goal, signals);
        if signals.samples == 0 && signals.unanswered.is_some_and(|age| silent.contains(&age)) {
            self.state = State::Silent;
            self.waits_until = now + AFTER_SILENCE;
            return;
        }
        if now < self.waits_until {
            return;
        }
        if self.state == State::Silent {
            // The rate over the silence says nothing about the link.
            self.acked.clear(now);
            self.carried.forget_answers();
            self.waits_until = now + RATE_OVER;
            self.state = State::Track;
            return;
        }
        let is_few = signals.is_busy && self.samples.sum(now) < FEW;
        self.few_since = if is_few { self.few_since.or(Some(now)) } else { None };
        let is_blind = self.few_since.is_some_and(|since| now.since(since) >= self.pace.blind_after);
        match signals.queue.and_then(|queue| self.see(now, goal, queue, signals)) {
            Some(seen) if seen.is_full => self.track(now, tick, goal, seen, signals.base),
            _ if !signals.is_busy => self.idle(now, tick),
            _ if is_blind => self.blind(tick),
            _ => {}
        }
    }

    /// The times without an answer that are silence.
    fn silent(&self, now: Instant, goal: Duration, signals: &Signals) -> Range<Duration> {
        let packet = BitRate(self.capacity as u64).time_to_send(PACKET);
        let patience = signals.base + goal + SILENCE + 4 * packet;
        let sent = self.sent.rate(now).map_or(0.0, |bytes_per_sec| bytes_per_sec * 8.0);
        if signals.acked.is_some() || sent < self.settings.min().0 as f64 {
            return patience..Duration::MAX;
        }
        // The few packets of TCP may wait in a queue of the others, and their peer may have gone.
        let patience = patience + 2 * self.queue.min(LONGEST);
        patience..patience + SILENT_AT_MOST
    }

    /// The link's rate and queue. `None` if the rate is not known.
    fn see(&mut self, now: Instant, goal: Duration, queue: Duration, signals: &Signals) -> Option<Seen> {
        let packets = 2 * BitRate(self.capacity as u64).time_to_send(PACKET);
        let comes = |rate: f64, bytes, base: Duration| {
            BitRate(rate as u64).time_to_send(bytes).min(LONGEST).saturating_sub(base + packets)
        };
        let is_long = queue >= 2 * goal;
        if signals.acked.is_some() {
            let rate = self.acked.rate(now)? * 8.0;
            // A sample is as old as the queue is long. The bytes on the way tell its length now.
            let comes = signals.on_the_way.map(|bytes| comes(rate, bytes, signals.base));
            let (longer, comes) = (queue.max(comes.unwrap_or_default()), comes.unwrap_or(queue));
            let is_full = signals.is_busy || is_long;
            return Some(Seen { queue: longer, comes, rate, by_acks: true, is_full });
        }
        if self.samples.sum(now) < FEW {
            return None;
        }
        // A tick tells the base of the flows that it answered alone. Another path is no change of the link.
        let path = self.path.map_or(signals.base, |path| (path * (PATHS - 1) + signals.base) / PATHS);
        self.path = Some(path);
        self.carried.answer(now, path + queue);
        // At first, and after a pause of the answers, what is sent bounds the rate.
        let rate = self.carried.rate(now, ALONE_OVER).or_else(|| self.sent.rate(now))? * 8.0;
        let comes = self.carried.on_the_way().map_or(queue, |bytes| comes(rate, bytes, path));
        // A link that carries `min` has no queue of less. A late answer looks like one.
        let is_full = signals.is_busy || is_long && rate >= self.settings.min().0 as f64;
        Some(Seen { queue, comes, rate, by_acks: false, is_full })
    }

    fn track(&mut self, now: Instant, tick: Duration, goal: Duration, seen: Seen, base: Duration) {
        let Seen { queue, rate, by_acks, .. } = seen;
        if queue < goal / 2 {
            self.drained = now;
        }
        if now < self.looks_until {
            return;
        }
        // A look before an idle time says nothing about the present queue.
        let look = self.look.take().filter(|_| now.since(self.looks_until) <= RATE_OVER);
        if self.is_foreign(now, goal, seen, base) {
            return;
        }
        if let Some(look) = look
            && self.is_false(now, goal, queue, look)
        {
            self.tell_foreign(now, look.rate, base);
            return;
        }
        if now.since(self.drained) >= LOOK_EVERY {
            (self.drained, self.looks_until) = (now, now + LOOK_FOR);
            self.look = Some(Look { queue, rate });
            (self.state, self.capacity) = (State::Look, LOOK_AT * rate);
            return;
        }
        self.state = State::Track;
        if by_acks || queue < 2 * goal {
            // A full queue takes more than the link carries, and round trips do not tell what is lost.
            self.recent.add(now, rate);
            self.known += tick;
            self.grown = self.grown.filter(|_| self.known < KNOWN_AFTER);
        }
        let drain_time = if by_acks { self.pace.drain_time } else { ALONE_DRAIN_TIME };
        let grows = self.pace.growth.powf(tick.as_secs_f64() / GROWTH_TIME.as_secs_f64());
        self.capacity = if queue < EMPTY {
            self.capacity.max(rate) * grows
        } else {
            let error = (goal.as_secs_f64() - queue.as_secs_f64()) / drain_time.as_secs_f64();
            rate * (1.0 + error.clamp(-self.pace.deepest, grows - 1.0))
        };
    }

    /// Whether the queue stays although this node gave way. The capacity of before comes back then.
    fn is_foreign(&mut self, now: Instant, goal: Duration, seen: Seen, base: Duration) -> bool {
        let Seen { queue, comes, rate, .. } = seen;
        if queue <= FOREIGN * goal {
            self.too_long = None;
            return false;
        }
        let too_long = self.too_long.get_or_insert(TooLong {
            begun: now,
            longest: comes,
            since: now,
            queue: comes,
            rate,
        });
        if comes < too_long.queue.mul_f64(SHORTER) {
            // It drains: it is this node's.
            (too_long.since, too_long.queue) = (now, comes);
        }
        too_long.queue = too_long.queue.max(comes);
        too_long.longest = too_long.longest.max(comes);
        let TooLong { begun, longest, since, rate: before, .. } = *too_long;
        let sent = self.sent.rate(now).map_or(f64::MAX, |bytes_per_sec| bytes_per_sec * 8.0);
        let gave_way = sent < GAVE_WAY * before && now.since(since) >= FOREIGN_AFTER.max(3 * base);
        // A scheduler that sends more than was decided cannot have given way: a dry run.
        let holds = sent <= self.capacity * HELD;
        // This node's own queue has drained by then.
        let at_last = holds && now.since(begun) >= FOREIGN_AT_LAST + 2 * longest;
        if !gave_way && !at_last {
            return false;
        }
        self.tell_foreign(now, before, base);
        true
    }

    /// Whether a look left a short queue as it was, although the senders gave way: bases lie below the path then.
    /// [`Self::is_foreign`] judges a longer one.
    fn is_false(&self, now: Instant, goal: Duration, queue: Duration, look: Look) -> bool {
        let arrives = self.sent.rate(now).map_or(f64::MAX, |bytes_per_sec| bytes_per_sec * 8.0);
        self.pace.tells_at_once
            && (goal / 2..=FOREIGN * goal).contains(&queue)
            && queue >= look.queue.mul_f64(SHORTER)
            && arrives < GAVE_WAY * look.rate
    }

    fn tell_foreign(&mut self, now: Instant, rate: f64, base: Duration) {
        (self.state, self.capacity, self.too_long) = (State::Foreign, rate, None);
        self.path = None;
        // The bases that are measured now decide after it.
        self.waits_until = now + RATE_OVER + base;
    }

    /// The rate that was usual, or up to which a blind capacity has grown since.
    fn usual(&self) -> Option<f64> {
        self.grown.or_else(|| self.recent.low())
    }

    fn blind(&mut self, tick: Duration) {
        if self.state != State::Blind {
            let usual = self.recent.low().unwrap_or(self.settings.min().0 as f64);
            self.capacity = self.grown.unwrap_or(self.capacity.min(usual));
            self.known = Duration::ZERO;
        }
        self.state = State::Blind;
        self.capacity *= BLIND_GROWTH.powf(tick.as_secs_f64());
        self.grown = Some(self.capacity);
    }

    fn idle(&mut self, now: Instant, tick: Duration) {
        self.state = State::Idle;
        if now.since(self.busy) < IDLE_STAYS {
            return;
        }
        let usual = self.usual().unwrap_or(self.settings.max().0 as f64);
        if self.capacity > usual {
            let stays = 0.5f64.powf(tick.as_secs_f64() / HALF_WAY.as_secs_f64());
            self.capacity = usual + (self.capacity - usual) * stays;
        }
    }
}
