//! Was the guarantee met? Looks at what each agreement asked for, was promised and got.
//!
//! A customer who asks for less than the guarantee is not wronged by getting less: only time
//! counts in which more was waiting to be sent. It is judged second by second; seconds that fall
//! short are one violation unless five seconds without any lie between them.

mod month;
mod violation;

use std::{collections::BTreeMap, time::Duration};

use weir_units::{BitRate, Bytes};

pub use month::{Hour, MAX_VIOLATIONS, Month};
pub use violation::{Cause, Violation};

use crate::{GuaranteeState, Name, Utc};

/// The time that is judged at once.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Violations that are less apart than this are one.
pub const MERGE: Duration = Duration::from_secs(5);
/// A guarantee is met to this part of it, in percent: a scheduler moves whole packets, and a
/// second of 19 Mbit/s is 37 super-packets.
pub const MET_PERCENT: u64 = 95;
/// Looks that are further apart do not belong together: no agent looked between them.
const BLIND: Duration = Duration::from_secs(5);

/// The state of the link between two looks, the same for all agreements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conditions {
    /// The engine could not hold the division, or another process had altered it.
    pub engine_fault: bool,
    /// The link is down, or its own queue keeps packets waiting or drops them.
    pub link_full: bool,
    /// The capacity is less than what is promised, and this promise is not enforced.
    pub suspended: bool,
    /// The configured capacity of the link.
    pub capacity: BitRate,
    /// The bytes that left by it in all.
    pub carried: Bytes,
    /// The part of them that had not passed the scheduler.
    pub bypassed: Bytes,
}

/// One look at one agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// When.
    pub at: Utc,
    /// Since the look before.
    pub time: Duration,
    /// The promise now.
    pub guarantee: BitRate,
    /// The bytes that left by the link since the look before.
    pub delivered: Bytes,
    /// Whether more was waiting, at this look and at the one before.
    pub waits: bool,
    /// The state of the link.
    pub conditions: Conditions,
}

/// The news of a look.
#[derive(Debug, Clone, PartialEq)]
pub enum MonitorEvent {
    /// A violation has begun.
    Violated(Violation),
    /// It is over, and will not change any more.
    Restored(Violation),
    /// A month is over, and will not change any more.
    MonthEnded(Box<Month>),
}

/// Watches agreements. Its memory is bounded by the number of those that are told of and not
/// [forgotten](Monitor::forget).
#[derive(Debug, Clone, Default)]
pub struct Monitor {
    watched: BTreeMap<Name, Watch>,
}

#[derive(Debug, Clone)]
struct Watch {
    state: GuaranteeState,
    second: Second,
    open: Option<Violation>,
    month: Month,
}

/// The sums of the present interval.
#[derive(Debug, Clone, Copy, Default)]
struct Second {
    time: Duration,
    /// In which more was waiting.
    waiting: Duration,
    /// The guarantee over that time, in bits times nanoseconds per second.
    promised: u128,
    /// Delivered in that time.
    delivered: u64,
    /// Delivered in all.
    sent: u64,
    guarantee: BitRate,
    conditions: Conditions,
}

impl Second {
    fn add(&mut self, look: &Look) {
        self.time += look.time;
        self.sent = self.sent.saturating_add(look.delivered.0);
        self.guarantee = self.guarantee.max(look.guarantee);
        let (all, one) = (&mut self.conditions, &look.conditions);
        all.engine_fault |= one.engine_fault;
        all.link_full |= one.link_full;
        all.suspended |= one.suspended;
        all.capacity = all.capacity.max(one.capacity);
        all.carried.0 = all.carried.0.saturating_add(one.carried.0);
        all.bypassed.0 = all.bypassed.0.saturating_add(one.bypassed.0);
        if look.waits {
            self.waiting += look.time;
            self.promised += u128::from(look.guarantee.0) * look.time.as_nanos();
            self.delivered = self.delivered.saturating_add(look.delivered.0);
        }
    }

    /// The guarantee over the time in which more was waiting.
    fn promised(&self) -> Bytes {
        Bytes(u64::try_from(self.promised / 8_000_000_000).unwrap_or(u64::MAX))
    }

    /// The missing bytes, if they are more than a scheduler's grain and the customer had asked for
    /// long enough to tell.
    fn lacks(&self) -> Option<Bytes> {
        let promised = self.promised().0;
        let met = u128::from(self.delivered) * 100 >= u128::from(promised) * u128::from(MET_PERCENT);
        (!met && self.waiting * 2 >= self.time).then(|| Bytes(promised - self.delivered))
    }

    /// The likeliest reason for a shortfall.
    fn cause(&self, lacking: Bytes) -> Cause {
        let Conditions { engine_fault, link_full, suspended, capacity, carried, bypassed } = self.conditions;
        // Super-packets' headers are not in an interface's counters.
        let slower = carried.0 < capacity.bytes_in(self.time).0 / 10 * 9;
        if engine_fault {
            Cause::EngineFault
        } else if suspended {
            Cause::LinkSlower
        } else if bypassed.0 >= lacking.0 / 2 && bypassed.0 > carried.0 / 10 {
            Cause::HostTraffic
        } else if link_full && slower {
            Cause::LinkSlower
        } else {
            Cause::Unknown
        }
    }
}

impl Monitor {
    /// No agreement is watched.
    #[must_use]
    pub fn new() -> Monitor {
        Monitor::default()
    }

    /// Goes on with a month from before a restart, instead of what is known of it.
    pub fn restore(&mut self, id: Name, month: Month) {
        self.watched.insert(id, Watch::new(month));
    }

    /// Goes on with a month that was recorded before, where another one is the present one. A clock that is
    /// set back leads there.
    pub fn return_to(&mut self, id: &Name, month: Month) -> Vec<MonitorEvent> {
        match self.watched.get_mut(id) {
            Some(watch) if watch.month.month() == month.month() => Vec::new(),
            Some(watch) => watch.change_month(month),
            None => {
                self.restore(id.clone(), month);
                Vec::new()
            }
        }
    }

    /// The first moment of the month that an agreement is watched in.
    #[must_use]
    pub fn watched_month(&self, id: &Name) -> Option<Utc> {
        self.watched.get(id).map(|watch| watch.month.month())
    }

    /// Takes in a look at an agreement that is in force.
    pub fn look(&mut self, id: &Name, look: &Look) -> Vec<MonitorEvent> {
        let mut news = Vec::new();
        let month = look.at.month();
        if !self.watched.contains_key(id) {
            self.watched.insert(id.clone(), Watch::new(Month::new(month)));
        }
        let Some(watch) = self.watched.get_mut(id) else { return news };
        if look.time > BLIND {
            // The time in between is unknown.
            watch.second = Second::default();
            news.extend(watch.close());
            return news;
        }
        // A clock that is set back leads to an earlier month.
        if watch.month.month() != month {
            news.extend(watch.change_month(Month::new(month)));
        }
        watch.second.add(look);
        if watch.second.time >= INTERVAL {
            news.extend(watch.judge(look.at));
        }
        news
    }

    /// No longer watches: the agreement is not in force. The record of its month comes back, and a
    /// violation that has not ended ends here.
    pub fn forget(&mut self, id: &Name) -> Option<Month> {
        let mut watch = self.watched.remove(id)?;
        watch.close();
        Some(watch.month)
    }

    /// The watched agreements.
    pub fn watched(&self) -> impl Iterator<Item = &Name> {
        self.watched.keys()
    }

    /// The state of a guarantee.
    #[must_use]
    pub fn state(&self, id: &Name) -> GuaranteeState {
        self.watched.get(id).map_or(GuaranteeState::NotDetermined, |watch| watch.state)
    }

    /// The record of an agreement's present month; a violation that has not ended is in it as it is
    /// now.
    #[must_use]
    pub fn month(&self, id: &Name) -> Option<Month> {
        let watch = self.watched.get(id)?;
        let mut month = watch.month.clone();
        if let Some(open) = &watch.open {
            month.record(*open);
        }
        Some(month)
    }
}

impl Watch {
    fn new(month: Month) -> Watch {
        Watch { state: GuaranteeState::NotDetermined, second: Second::default(), open: None, month }
    }

    fn change_month(&mut self, to: Month) -> Vec<MonitorEvent> {
        let mut news: Vec<_> = self.close().into_iter().collect();
        self.second = Second::default();
        let ended = std::mem::replace(&mut self.month, to);
        news.push(MonitorEvent::MonthEnded(Box::new(ended)));
        news
    }

    /// Judges what has been seen of the interval that ends here.
    fn judge(&mut self, at: Utc) -> Vec<MonitorEvent> {
        let second = std::mem::take(&mut self.second);
        let mut news = Vec::new();
        let lacking = second.lacks();
        self.month.add(at, &second, lacking.is_some());
        let Some(lacking) = lacking else {
            if second.waiting * 2 >= second.time {
                self.state = GuaranteeState::Fulfilled;
            }
            if self.open.is_some_and(|open| apart(at, open.end) >= MERGE) {
                news.extend(self.close());
            }
            return news;
        };
        self.state = GuaranteeState::Violated;
        let seen = Violation::seen(at, second.time, second.guarantee, lacking, second.cause(lacking));
        match &mut self.open {
            Some(open) if apart(seen.start, open.end) < MERGE => open.merge(&seen),
            _ => {
                news.extend(self.close());
                self.open = Some(seen);
                news.push(MonitorEvent::Violated(seen));
            }
        }
        news
    }

    fn close(&mut self) -> Option<MonitorEvent> {
        let open = self.open.take()?;
        self.month.record(open);
        if self.state == GuaranteeState::Violated {
            self.state = GuaranteeState::NotDetermined;
        }
        Some(MonitorEvent::Restored(open))
    }
}

/// The time between two moments in either order. A clock that is set back leads to the earlier one.
fn apart(one: Utc, other: Utc) -> Duration {
    one.since(other).max(other.since(one))
}

#[cfg(test)]
mod tests;
