//! A link whose rate changes: the capacity follows it, by what the link's own traffic tells.

use std::time::Duration;

use weir_api::{FollowState, Follows as View};
use weir_autorate::{ArrivalCounts, ArrivalMeter, Counts, Decision, Follower, Meter, State};
use weir_datapath::engine::{Attachments, EngineKind, LinkSignals, SignalCounts};
use weir_units::{BitRate, Instant, chain};

use crate::config::Follows;

/// The interval between two decisions. With 100 ms the link's queue swings twice as far.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// The scheduler is busy if this part of the capacity passed, per cent.
const BUSY_PERCENT: u64 = 90;
/// A change of the capacity below this part is not written, per cent.
const WRITTEN_PERCENT: u64 = 1;
/// A change by less than this is no event, per cent.
const TOLD_PERCENT: u64 = 25;
/// The shortest time between two events.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The programs at an uplink, which followers of both directions read.
pub(super) struct Programs {
    /// The error if they do not load or cannot be attached.
    loaded: Result<LinkSignals, String>,
    /// The error of the last use.
    fault: Option<String>,
}

/// The counts of the programs, and the time of the monotonic clock at which they were read, in nanoseconds.
pub(super) type Read = (u64, SignalCounts);

impl Programs {
    pub(super) fn open(number: u32, attachments: &mut Attachments) -> Programs {
        let loaded = LinkSignals::open(number, attachments).map_err(|e| unread(&e));
        Programs { loaded, fault: None }
    }

    /// Takes the programs away.
    pub(super) fn close(self, attachments: &mut Attachments) {
        if let Ok(programs) = self.loaded
            && let Err(e) = programs.close(attachments)
        {
            tracing::warn!("cannot take the programs of the link's signals away: {}", chain(&e));
        }
    }

    /// Reads the counts. `None` if the programs do not tell them.
    pub(super) fn read(&mut self) -> Option<Read> {
        let read = self.loaded.as_ref().ok()?.read();
        self.fault = read.as_ref().err().map(|errno| format!("the link's signals cannot be read: {errno}"));
        read.ok()
    }

    /// Has the bases of a direction measured again.
    pub(super) fn forget_bases(&mut self, of: Way) {
        let Ok(programs) = &mut self.loaded else { return };
        let forgotten = match of {
            Way::Up => programs.forget_bases(),
            Way::Down => programs.forget_arrival_bases(),
        };
        self.fault = forgotten.err().map(|e| chain(&e)).or(self.fault.take());
    }

    /// The error if they were not loaded and attached.
    pub(super) fn unopened(&self) -> Option<&String> {
        self.loaded.as_ref().err()
    }

    /// The error if they cannot be used now.
    fn failure(&self) -> Option<&String> {
        self.unopened().or(self.fault.as_ref())
    }
}

fn unread(why: &dyn std::error::Error) -> String {
    format!("the link's signals are not read: {}", chain(why))
}

/// The direction that a follower follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Up,
    Down,
}

/// The signals of a direction, from the counts of the programs.
enum Signals {
    Up(Meter),
    Down(ArrivalMeter),
}

impl Signals {
    fn of(way: Way) -> Signals {
        match way {
            Way::Up => Signals::Up(Meter::default()),
            Way::Down => Signals::Down(ArrivalMeter::default()),
        }
    }

    fn since_last(
        &mut self,
        now: Instant,
        (nanos, counts): &Read,
        has_backlog: bool,
    ) -> Option<weir_autorate::Signals> {
        let since = |at: u64| Duration::from_nanos(nanos.saturating_sub(at));
        match self {
            Signals::Up(meter) => {
                let counts = Counts {
                    sent: counts.sent,
                    sent_payload: counts.sent_payload,
                    acked_payload: counts.acked_payload,
                    acked_base_us: counts.acked_base_us,
                    samples: counts.samples,
                    on_the_way: counts.on_the_way,
                    queue: counts.least_queue.map(Duration::from_nanos),
                    unanswered: counts.waits_since.map(since),
                };
                meter.signals(now, &counts, has_backlog)
            }
            Signals::Down(meter) => {
                let queue = counts.least_delay.map(Duration::from_nanos);
                let counts = ArrivalCounts { arrived: counts.arrived, delays: counts.delays, queue };
                meter.signals(&counts, has_backlog)
            }
        }
    }
}

/// The follower of one direction.
pub(super) struct Autorate {
    follows: Follows,
    /// The error if it cannot follow.
    failure: Option<String>,
    follower: Follower,
    signals: Signals,
    ticked: Instant,
    decision: Decision,
    queue: Option<Duration>,
    /// The capacity that the scheduler has.
    applied: BitRate,
    told: (Instant, BitRate, State),
}

impl Autorate {
    /// A follower that reads these programs.
    pub(super) fn new(follows: Follows, way: Way, programs: &Programs, now: Instant) -> Autorate {
        Autorate::with(follows, way, programs.unopened().cloned(), now)
    }

    /// A follower of what leaves by an engine.
    pub(super) fn of_engine(
        follows: Follows,
        engine: EngineKind,
        programs: &Programs,
        now: Instant,
    ) -> Autorate {
        let unfit = LinkSignals::goes_with(engine).err().map(|e| unread(&e));
        Autorate::with(follows, Way::Up, unfit.or_else(|| programs.unopened().cloned()), now)
    }

    fn with(follows: Follows, way: Way, failure: Option<String>, now: Instant) -> Autorate {
        // Without signals no one knows what the link carries.
        let (state, capacity) = match &failure {
            None => (State::Idle, follows.settings.max()),
            Some(_) => (State::Lost, follows.settings.min()),
        };
        let follower = match way {
            Way::Up => Follower::new(follows.settings, now),
            Way::Down => Follower::of_arrivals(follows.settings, now),
        };
        Autorate {
            follows,
            failure,
            follower,
            signals: Signals::of(way),
            ticked: now,
            decision: Decision { capacity, state, forgets_bases: false },
            queue: None,
            applied: capacity,
            told: (now, capacity, state),
        }
    }

    /// The bounds.
    pub(super) fn follows(&self) -> Follows {
        self.follows
    }

    /// The capacity that the scheduler has, unless the run is dry.
    pub(super) fn in_force(&self) -> Option<BitRate> {
        (!self.follows.dry_run).then_some(self.applied)
    }

    /// Decides about the capacity. Returns the event to publish, if the decision is worth one.
    pub(super) fn tick(&mut self, now: Instant, read: Option<&Read>, has_backlog: bool) -> Option<String> {
        if self.failure.is_some() {
            return None;
        }
        let mut signals = read.and_then(|read| self.signals.since_last(now, read, has_backlog));
        if let Some(signals) = &mut signals {
            let whole = self.decision.capacity.bytes_in(now.since(self.ticked));
            signals.is_busy |= signals.sent.0 * 100 >= whole.0 * BUSY_PERCENT && signals.sent.0 > 0;
            self.queue = signals.queue;
        }
        self.ticked = now;
        self.decision = self.follower.tick(now, signals.as_ref());
        self.news(now)
    }

    /// Whether the last decision wants the bases measured again.
    pub(super) fn forgets_bases(&self) -> bool {
        self.decision.forgets_bases
    }

    /// The error if the link cannot be followed.
    pub(super) fn failure(&self, programs: Option<&Programs>) -> Option<String> {
        self.failure.clone().or_else(|| programs?.failure().cloned())
    }

    fn news(&mut self, now: Instant) -> Option<String> {
        let Decision { capacity, state, .. } = self.decision;
        let (at, told, was) = self.told;
        let is_far = capacity.0.abs_diff(told.0) * 100 > told.0 * TOLD_PERCENT;
        // Tracking and idling follow each other all the time.
        let plain = |state: State| matches!(state, State::Track | State::Idle | State::Look);
        let is_other = state != was && !(plain(state) && plain(was));
        if !(is_far || is_other) || now.since(at) < TOLD_EVERY {
            return None;
        }
        self.told = (now, capacity, state);
        let dry = if self.follows.dry_run { " (dry run: nothing is changed)" } else { "" };
        Some(format!("capacity {capacity}, was {told}: {}{dry}", in_words(&self.view(None))))
    }

    /// Whether the scheduler should have another capacity. Takes note of it.
    pub(super) fn applies(&mut self) -> bool {
        let Decision { capacity, .. } = self.decision;
        let is_other = capacity.0.abs_diff(self.applied.0) * 100 > self.applied.0 * WRITTEN_PERCENT;
        // The bounds are reached exactly.
        let bounds = [self.follows.settings.min(), self.follows.settings.max()];
        let is_other = is_other || capacity != self.applied && bounds.contains(&capacity);
        if self.follows.dry_run || !is_other {
            return false;
        }
        self.applied = capacity;
        true
    }

    /// The follower, for views.
    pub(super) fn view(&self, programs: Option<&Programs>) -> View {
        let settings = self.follows.settings;
        View {
            min: settings.min(),
            max: settings.max(),
            delay_ms: u64::try_from(settings.delay().as_millis()).unwrap_or(u64::MAX),
            capacity: self.decision.capacity,
            state: match self.decision.state {
                State::Track => FollowState::Track,
                State::Silent => FollowState::Silent,
                State::Look => FollowState::Look,
                State::Foreign => FollowState::Foreign,
                State::Blind => FollowState::Blind,
                State::Idle => FollowState::Idle,
                State::Lost => FollowState::Lost,
            },
            queue_us: self.queue.map(|queue| u64::try_from(queue.as_micros()).unwrap_or(u64::MAX)),
            dry_run: self.follows.dry_run,
            failure: self.failure(programs),
        }
    }
}

/// The reason for the capacity, in words.
pub(super) fn in_words(view: &View) -> String {
    let queue = view.queue_us.map_or("unknown".to_owned(), |us| format!("{:.1} ms", us as f64 / 1e3));
    match view.state {
        FollowState::Track => format!("the link's queue is {queue}, {} ms are allowed", view.delay_ms),
        FollowState::Silent => "the link answers nothing, and the capacity stays".to_owned(),
        FollowState::Look => "the link's queue is drained to see the round trip without it".to_owned(),
        FollowState::Foreign => {
            format!(
                "a queue of {queue} stays although this node gave way: it is another sender's, or the path is longer"
            )
        }
        FollowState::Blind => {
            "no packet tells the link's queue, and the capacity is what was usual".to_owned()
        }
        FollowState::Idle => "the classes do not want all of it".to_owned(),
        FollowState::Lost => "the signals are lost, and the capacity is the lowest one".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use weir_autorate::Settings;

    use super::*;

    #[test]
    fn link_without_programs_has_the_lowest_capacity_at_once() {
        let settings = Settings::new(BitRate::mbit(2), BitRate::mbit(40), Duration::from_millis(30)).unwrap();
        let follows = Follows { settings, dry_run: false };
        for way in [Way::Up, Way::Down] {
            let why = Some("no rights".to_owned());
            let mut autorate = Autorate::with(follows, way, why, Instant::default());
            for ms in (50..5_000).step_by(50) {
                assert_eq!(autorate.tick(Instant(Duration::from_millis(ms)), None, true), None);
                assert!(!autorate.applies());
                let view = autorate.view(None);
                assert_eq!((autorate.applied, view.capacity), (BitRate::mbit(2), BitRate::mbit(2)));
                assert_eq!((view.state, view.failure.as_deref()), (FollowState::Lost, Some("no rights")));
            }
        }
    }
}
