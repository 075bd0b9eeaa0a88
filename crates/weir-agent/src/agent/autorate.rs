//! A link whose rate changes: the capacity follows it, by what the link's own traffic tells.

use std::time::Duration;

use weir_api::{EventKind, FollowState, Follows as View};
use weir_autorate::{Counts, Decision, Follower, Meter, Signals, State};
use weir_datapath::engine::{Attachments, EngineKind, LinkSignals};
use weir_units::{BitRate, Instant, chain};

use super::Agent;
use crate::config::Follows;

/// The interval between two decisions. With 100 ms the link's queue swings twice as far.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// The scheduler is busy if this part of the capacity left, per cent.
const BUSY_PERCENT: u64 = 90;
/// A change of the capacity below this part is not written, per cent.
const WRITTEN_PERCENT: u64 = 1;
/// A change by less than this is no event, per cent.
const TOLD_PERCENT: u64 = 25;
/// The shortest time between two events.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The follower with its programs at the uplink.
pub(super) struct Autorate {
    follows: Follows,
    /// The error if they do not load or cannot be attached.
    programs: Result<LinkSignals, String>,
    /// The error of the last read.
    unread: Option<String>,
    follower: Follower,
    meter: Meter,
    ticked: Instant,
    decision: Decision,
    queue: Option<Duration>,
    /// The capacity that the scheduler has.
    applied: BitRate,
    told: (Instant, BitRate, State),
}

impl Autorate {
    fn open(
        follows: Follows,
        (number, engine): (u32, EngineKind),
        attachments: &mut Attachments,
        now: Instant,
    ) -> Autorate {
        let programs = LinkSignals::goes_with(engine).and_then(|()| LinkSignals::open(number, attachments));
        let programs = programs.map_err(|e| format!("the link's signals are not read: {}", chain(&e)));
        Autorate::with(follows, programs, now)
    }

    fn with(follows: Follows, programs: Result<LinkSignals, String>, now: Instant) -> Autorate {
        // Without signals no one knows what the link carries.
        let (state, capacity) = match &programs {
            Ok(_) => (State::Idle, follows.settings.max()),
            Err(_) => (State::Lost, follows.settings.min()),
        };
        Autorate {
            follows,
            programs,
            unread: None,
            follower: Follower::new(follows.settings, now),
            meter: Meter::default(),
            ticked: now,
            decision: Decision { capacity, state, forgets_bases: false },
            queue: None,
            applied: capacity,
            told: (now, capacity, state),
        }
    }

    /// The follower after a change of the bounds, of the link of this number and engine. The programs stay as
    /// long as there are bounds.
    pub(super) fn after(
        before: Option<Autorate>,
        follows: Option<Follows>,
        of: (u32, EngineKind),
        attachments: &mut Attachments,
        now: Instant,
    ) -> Option<Autorate> {
        match (before, follows) {
            (Some(Autorate { programs: Ok(programs), .. }), Some(follows)) => {
                Some(Autorate::with(follows, Ok(programs), now))
            }
            (_, Some(follows)) => Some(Autorate::open(follows, of, attachments, now)),
            (before, None) => {
                if let Some(before) = before {
                    before.close(attachments);
                }
                None
            }
        }
    }

    /// Takes the programs away.
    pub(super) fn close(self, attachments: &mut Attachments) {
        if let Ok(programs) = self.programs
            && let Err(e) = programs.close(attachments)
        {
            tracing::warn!("cannot take the programs of the link's signals away: {}", chain(&e));
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

    /// The error if the link cannot be followed.
    pub(super) fn failure(&self) -> Option<String> {
        self.programs.as_ref().err().cloned().or_else(|| self.unread.clone())
    }

    /// Reads the signals since the last tick.
    fn hear(&mut self, now: Instant, has_backlog: bool) -> Option<Signals> {
        let programs = self.programs.as_ref().ok()?;
        let (nanos, counts) = match programs.read() {
            Ok(read) => read,
            Err(errno) => {
                self.unread = Some(format!("the link's signals cannot be read: {errno}"));
                return None;
            }
        };
        self.unread = None;
        let since = |at: u64| Duration::from_nanos(nanos.saturating_sub(at));
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
        let mut signals = self.meter.signals(now, &counts, has_backlog)?;
        let whole = self.decision.capacity.bytes_in(now.since(self.ticked));
        signals.is_busy |= signals.sent.0 * 100 >= whole.0 * BUSY_PERCENT && signals.sent.0 > 0;
        self.queue = signals.queue;
        Some(signals)
    }

    /// Decides about the capacity. Returns the event to publish, if the decision is worth one.
    pub(super) fn tick(&mut self, now: Instant, has_backlog: bool) -> Option<String> {
        if self.programs.is_err() {
            return None;
        }
        let signals = self.hear(now, has_backlog);
        self.ticked = now;
        self.decision = self.follower.tick(now, signals.as_ref());
        if self.decision.forgets_bases
            && let Ok(programs) = &mut self.programs
            && let Err(e) = programs.forget_bases()
        {
            self.unread = Some(chain(&e));
        }
        self.news(now)
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
        Some(format!("capacity {capacity}, was {told}: {}{dry}", in_words(&self.view())))
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

    pub(super) fn view(&self) -> View {
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
            failure: self.failure(),
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
            "no round trip tells the link's queue, and the capacity is what was usual".to_owned()
        }
        FollowState::Idle => "the classes do not want all of it".to_owned(),
        FollowState::Lost => "the signals are lost, and the capacity is the lowest one".to_owned(),
    }
}

impl Agent {
    /// The capacity that the scheduler divides now.
    pub(super) fn in_force(&self) -> BitRate {
        self.link.in_force(self.classes.config().link.capacity)
    }

    /// The follower of the link's rate, for views.
    pub(super) fn follows(&self) -> Option<View> {
        self.link.autorate.as_ref().map(Autorate::view)
    }

    /// Follows the link between other bounds, or no longer.
    pub(super) fn follow_by(&mut self, follows: Option<Follows>) {
        let (configured, now) = (self.classes.config().link.capacity, self.now());
        self.link.follow_by(follows, configured, &mut self.datapath.attachments, now);
    }

    /// Decides about the capacity of a link whose rate changes, and has the scheduler follow.
    pub(super) fn follow_link(&mut self) {
        let (configured, now) = (self.classes.config().link.capacity, self.now());
        let (applies, news) = self.link.follow_link(configured, now);
        if applies {
            self.allocate();
        }
        if let Some(news) = news {
            self.event(EventKind::CapacityChanged, None, news);
        }
        for place in 0..self.others.len() {
            let followed = self.others[place].follow_link(now);
            self.follow_up(followed);
        }
    }

    /// Whether the rate of a link is followed.
    pub(super) fn follows_any(&self) -> bool {
        self.all_links().any(|link| link.autorate.is_some())
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
        let mut autorate = Autorate::with(follows, Err("no rights".to_owned()), Instant::default());
        for ms in (50..5_000).step_by(50) {
            assert_eq!(autorate.tick(Instant(Duration::from_millis(ms)), true), None);
            assert!(!autorate.applies());
            let view = autorate.view();
            assert_eq!((autorate.applied, view.capacity), (BitRate::mbit(2), BitRate::mbit(2)));
            assert_eq!((view.state, view.failure.as_deref()), (FollowState::Lost, Some("no rights")));
        }
    }
}
