//! Checks whether guarantees are met. The monitor gets each look at the link, and its findings go to
//! the database, to events and to callers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weir_agree::{
    ClockReading, Conditions, Direction, Fault, FaultCode, Look, MonitorEvent, Month, Name, Report, Utc,
};
use weir_api::EventKind;
use weir_netlink::tc::Counters;
use weir_units::chain;
use weir_units::{Bytes, TcHandle};

use super::{Agreements, Delivery};
use crate::agent::{
    Agent,
    allocate::Allocations,
    class_table::{ClassEntry, ClassTable},
    store::Store,
};

/// How long observations may wait to be written. A crash forgets at most this part of a month.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The counters of one direction of the link at the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct LinkSeen {
    /// The counters of the link's own queue, if it has one.
    queue: Option<Counters>,
    /// Bytes of all classes.
    sent: u64,
    /// Repairs so far.
    repairs: u64,
}

/// The traffic between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passed {
    conditions: Conditions,
    /// Bytes offered to the link by the scheduler or past it. At least the bytes carried.
    offered: u64,
}

impl LinkSeen {
    /// The traffic between an earlier look and this one. `up` says whether the link was up.
    fn since(&self, earlier: &LinkSeen, up: bool, fault: bool, capacity: weir_units::BitRate) -> Passed {
        let sent = self.sent.saturating_sub(earlier.sent);
        // A link without its own queue carries all that is sent.
        let (carried, offered, full) = match (self.queue, earlier.queue) {
            _ if !up => (0, sent, true),
            (Some(now), Some(before)) => {
                let carried = now.bytes.saturating_sub(before.bytes);
                let drops = now.drops.saturating_sub(before.drops);
                // The queue counts drops in packets. The mean size of carried packets stands for
                // theirs.
                let mean = carried / now.packets.saturating_sub(before.packets).max(1);
                let waits = now.backlog.saturating_sub(before.backlog);
                let full = drops > 0 || (now.backlog > 0 && before.backlog > 0);
                (carried, carried.saturating_add(drops.saturating_mul(mean)).saturating_add(waits), full)
            }
            _ => (sent, sent, false),
        };
        let offered = offered.max(sent);
        let conditions = Conditions {
            suspended: false,
            engine_fault: fault || self.repairs > earlier.repairs,
            link_full: full,
            capacity,
            carried: Bytes(carried),
            bypassed: part(offered - sent, carried, offered),
        };
        Passed { conditions, offered }
    }
}

/// The carried part of the bytes `of`. The link's queue drops the same part of each sender's traffic.
fn part(of: u64, carried: u64, offered: u64) -> Bytes {
    let kept = u128::from(of) * u128::from(carried.min(offered)) / u128::from(offered.max(1));
    Bytes(u64::try_from(kept).unwrap_or(u64::MAX))
}

/// Bytes of all classes. A group is left out, because its members count.
fn passed_by_all(table: &ClassTable, allocations: &Allocations) -> u64 {
    let classes = table.entries().iter().filter(|(_, e)| e.class.kind != weir_api::ClassKind::Group);
    let followed = classes.filter_map(|(key, _)| allocations.get(key));
    followed.map(|f| f.before.bytes + f.counters.bytes).sum()
}

/// The class of an agreement in the direction in which it was looked at.
fn entry_of<'a>(agent: &'a Agent, one: &Delivery) -> Option<&'a ClassEntry> {
    let table = match one.direction {
        Direction::Upload => &agent.classes,
        Direction::Download => &agent.link.download.as_ref()?.classes,
    };
    table.entries().get(&one.class)
}

/// The one of two looks in which more is missing of what was promised and waited for.
fn worse(one: Look, other: Look) -> Look {
    let lacks = |look: &Look| match look.waits {
        true => i128::from(look.guarantee.bytes_in(look.time).0) - i128::from(look.delivered.0),
        false => i128::MIN,
    };
    if lacks(&other) > lacks(&one) { other } else { one }
}

impl Agent {
    /// Gives the monitor the rates that each agreement got.
    pub(in crate::agent) fn watch_agreements(&mut self, delivered: &[Delivery], now: ClockReading) {
        let mut looks: BTreeMap<Name, Look> = BTreeMap::new();
        for direction in Direction::ALL {
            let of_direction = || delivered.iter().filter(|one| one.direction == direction);
            if of_direction().next().is_none() {
                if let Some(agreements) = &mut self.agreements {
                    agreements.link_seen.remove(&direction);
                }
                continue;
            }
            let Some(passed) = self.passed(direction) else { continue };
            for one in of_direction() {
                let look = self.look(one, &passed, now);
                // A guarantee in both directions is kept if it is kept in the worse one.
                let worse = looks.get(&one.id).map_or(look, |other| worse(*other, look));
                looks.insert(one.id.clone(), worse);
            }
        }
        if looks.is_empty() {
            return;
        }
        let looks: Vec<(Name, Look)> = looks.into_iter().collect();
        if let Some(agreements) = &mut self.agreements {
            agreements.watch(&looks, &self.store, now);
        }
    }

    /// The traffic of a direction since the last look. `None` at the first one.
    fn passed(&mut self, direction: Direction) -> Option<Passed> {
        let up = self.link.scheduler.is_link_up();
        let (seen, fault, capacity) = match direction {
            Direction::Upload => (self.see_link(), self.link.scheduler.error.is_some(), self.in_force()),
            Direction::Download => {
                let download = self.link.download.as_ref()?;
                let sent = passed_by_all(&download.classes, &download.allocations);
                let seen = LinkSeen { queue: None, sent, repairs: download.repairs };
                (seen, download.fault().is_some(), download.in_force())
            }
        };
        let earlier = self.agreements.as_mut()?.link_seen.insert(direction, seen)?;
        Some(seen.since(&earlier, up, fault, capacity))
    }

    /// The look of the monitor at one agreement.
    fn look(&self, one: &Delivery, passed: &Passed, now: ClockReading) -> Look {
        let Passed { conditions, offered } = *passed;
        let carried = conditions.carried.0;
        let lost = conditions.link_full && carried < offered / 10 * 9;
        let delivered = if lost { part(one.delivered.0, carried, offered) } else { one.delivered };
        let (suspended, unmet) = match entry_of(self, one) {
            None => (false, false),
            Some(entry) if one.direction == Direction::Upload => {
                (entry.unpromised.is_some(), self.fault_of(entry).is_some() || entry.class.unmet.is_some())
            }
            Some(entry) => {
                (entry.unpromised.is_some(), self.download_fault().is_some() || entry.class.problem.is_some())
            }
        };
        Look {
            at: now.utc,
            time: one.time,
            guarantee: one.guarantee,
            delivered,
            waits: one.waits || (conditions.link_full && one.demand.is_active()),
            conditions: Conditions {
                engine_fault: conditions.engine_fault || unmet,
                suspended,
                ..conditions
            },
        }
    }

    fn see_link(&mut self) -> LinkSeen {
        let uplink = self.uplink();
        let qdiscs = uplink.map(|index| self.datapath.netlink.qdiscs(index)).transpose();
        let queue = qdiscs.unwrap_or_else(|e| {
            tracing::debug!("cannot read the link's queue: {}", chain(&e));
            None
        });
        let root = queue.and_then(|all| all.into_iter().find(|q| q.parent == TcHandle::ROOT));
        LinkSeen {
            queue: root.filter(|q| q.kind != "noqueue").map(|q| q.counters),
            sent: passed_by_all(&self.classes, &self.link.allocations),
            repairs: self.datapath.repairs + self.link.scheduler.repairs + self.congestion.repairs(),
        }
    }
}

impl Agreements {
    /// Resumes the months that agreements had before a restart.
    pub(super) fn resume(&mut self, store: &Store, now: Utc) {
        for id in self.ledger.in_force(now).into_iter().map(|f| f.id.clone()).collect::<Vec<_>>() {
            match store.month(&id, now.month()) {
                Ok(Some(month)) => self.monitor.restore(id, month),
                Ok(None) => {}
                Err(e) => tracing::warn!("{e}"),
            }
        }
    }

    /// Goes on with the stored record of a month that begins for an agreement. A clock that was set back
    /// leads to a month that has one.
    fn month_from_before(&mut self, id: &Name, at: Utc, store: &Store) -> Vec<MonitorEvent> {
        if self.monitor.watched_month(id) == Some(at.month()) {
            return Vec::new();
        }
        match store.month(id, at.month()) {
            Ok(month) => month.map_or(Vec::new(), |month| self.monitor.return_to(id, month)),
            Err(e) => {
                tracing::warn!("{e}");
                Vec::new()
            }
        }
    }

    /// Runs the monitor, then reports and stores its findings.
    fn watch(&mut self, looks: &[(Name, Look)], store: &Store, now: ClockReading) {
        let mut months: Vec<(Name, Month)> = Vec::new();
        for (id, look) in looks {
            let mut all_news = self.month_from_before(id, look.at, store);
            all_news.extend(self.monitor.look(id, look));
            for news in all_news {
                match news {
                    MonitorEvent::Violated(violation) => {
                        let cause = violation.cause;
                        let text =
                            format!("{} short of {}; cause: {cause}", violation.mean, violation.guarantee);
                        self.publish(EventKind::GuaranteeViolated, Some(id), text);
                    }
                    MonitorEvent::Restored(violation) => {
                        self.publish(EventKind::GuaranteeRestored, Some(id), violation.to_string())
                    }
                    MonitorEvent::MonthEnded(month) => months.push((id.clone(), *month)),
                }
                months.extend(self.monitor.month(id).map(|month| (id.clone(), month)));
            }
            // The book knows the agreement: its delivered bytes were counted just now.
            let _ = self.ledger.set_guarantee(id, self.monitor.state(id));
        }
        let in_force: BTreeSet<Name> =
            self.ledger.in_force(now.utc).into_iter().map(|f| f.id.clone()).collect();
        let over: Vec<Name> = self.monitor.watched().filter(|id| !in_force.contains(id)).cloned().collect();
        for id in over {
            months.extend(self.monitor.forget(&id).map(|month| (id.clone(), month)));
        }
        if now.monotonic.since(self.months_saved) >= SAVE_EVERY {
            self.months_saved = now.monotonic;
            let watched = self.monitor.watched();
            months.extend(watched.filter_map(|id| Some((id.clone(), self.monitor.month(id)?))));
        }
        if !months.is_empty()
            && let Err(e) = store.save_months(&months)
        {
            tracing::warn!("{e}");
        }
    }

    /// Writes the observations of all watched agreements.
    pub(crate) fn save_months(&self, store: &Store) {
        let month = |id: &Name| Some((id.clone(), self.monitor.month(id)?));
        let months: Vec<(Name, Month)> = self.monitor.watched().filter_map(month).collect();
        if !months.is_empty()
            && let Err(e) = store.save_months(&months)
        {
            tracing::warn!("{e}");
        }
    }

    /// The promises of the month that contains `month`, and how far they were kept.
    ///
    /// # Errors
    /// There is no such agreement, it was not watched in that month, or the month cannot be read.
    pub fn report(&self, id: &str, month: Utc, store: &Store, now: Utc) -> Result<Report, Fault> {
        let agreement = self.one(id)?;
        let watched = self.monitor.month(&agreement.id).filter(|seen| seen.month() == month.month());
        let stored = || {
            let read = store.month(&agreement.id, month.month());
            read.map_err(|e| Fault::new(FaultCode::NotRecorded, e.to_string()))
        };
        let seen = match watched {
            Some(seen) => Some(seen),
            None => stored()?,
        };
        let seen = seen.ok_or_else(|| {
            let month = month.to_string().chars().take(7).collect::<String>();
            let message = format!(
                "cannot report on agreement {id} in {month}: it was not in force then, or not watched"
            );
            Fault::new(FaultCode::UnknownAgreement, message)
        })?;
        Ok(Report::new(agreement, seen, now))
    }
}

#[cfg(test)]
mod tests {
    use weir_agree::GuaranteeState;
    use weir_units::{BitRate, Instant};

    use super::{
        super::tests::{client, config, moment, offer},
        *,
    };

    /// Watches an agreement of 20 Mbit/s with a backlog, one second per value, from that moment on.
    /// Each value is the delivered part in percent.
    fn watched(agreements: &mut Agreements, store: &Store, id: &Name, from: ClockReading, percents: &[u64]) {
        let guarantee = BitRate::mbit(20);
        for (n, percent) in (1..).zip(percents) {
            let time = Duration::from_secs(1);
            let utc = from.utc.after(time * n);
            let now = ClockReading { utc, monotonic: Instant(from.monotonic.0 + time * n) };
            let delivered = Bytes(guarantee.bytes_in(time).0 * percent / 100);
            let conditions = Conditions::default();
            let look = Look { at: utc, time, guarantee, delivered, waits: true, conditions };
            agreements.watch(&[(id.clone(), look)], store, now);
        }
    }

    /// The report is available after the end of the agreement too.
    #[test]
    fn month_is_written_each_minute_and_outlives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let config = config("");
        let (january, observed) = (moment(0).utc, |month: Option<Month>| month.map(|m| m.observed_ms));
        let id = {
            let store = Store::open(dir.path()).unwrap();
            let mut agreements = Agreements::open(&config, &store, january).unwrap().unwrap();
            let id =
                agreements.offer(&client(), None, offer("web", 20), &store, moment(0)).unwrap().agreement.id;
            watched(&mut agreements, &store, &id, moment(0), &[100; 90]);
            assert_eq!(agreements.one(id.as_str()).unwrap().guarantee_state, GuaranteeState::Fulfilled);
            assert_eq!(observed(store.month(&id, january).unwrap()), Some(61_000), "a crash forgets 29 s");
            id
        };
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config, &store, moment(100).utc).unwrap().unwrap();
        watched(&mut agreements, &store, &id, moment(100), &[50; 3]);
        assert_eq!(agreements.one(id.as_str()).unwrap().guarantee_state, GuaranteeState::Violated);
        let report = agreements.report(id.as_str(), january, &store, moment(104).utc).unwrap();
        assert_eq!((report.seen.observed_ms, report.seen.violated_ms), (64_000, 3_000));
        watched(&mut agreements, &store, &id, moment(103), &[100; 2]);
        agreements.terminate(id.as_str(), &store, moment(106).utc).unwrap();
        agreements.watch(&[], &store, moment(107));
        assert_eq!(observed(store.month(&id, january).unwrap()), Some(66_000), "its end is written");
        let report = agreements.report(id.as_str(), january, &store, moment(108).utc).unwrap();
        assert_eq!(report.seen.violations.len(), 1);
        let other = agreements.report(id.as_str(), moment(40 * 86_400).utc, &store, moment(108).utc);
        assert_eq!(other.unwrap_err().code, FaultCode::UnknownAgreement);
    }

    #[test]
    fn a_month_that_ends_is_written_whole() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config(""), &store, moment(0).utc).unwrap().unwrap();
        let id = agreements.offer(&client(), None, offer("web", 20), &store, moment(0)).unwrap().agreement.id;
        let late = ClockReading { utc: "2027-01-31T23:59:50Z".parse().unwrap(), ..moment(100) };
        watched(&mut agreements, &store, &id, late, &[100; 12]);
        let month = store.month(&id, late.utc).unwrap().unwrap();
        assert_eq!(month.observed_ms, 9_000, "up to the last look of it");
    }

    /// The step is 400 days ahead and back. Without the record, an empty month would replace it.
    #[test]
    fn month_goes_on_after_the_clock_was_ahead_and_is_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let mut agreements = Agreements::open(&config(""), &store, moment(0).utc).unwrap().unwrap();
        let id = agreements.offer(&client(), None, offer("web", 20), &store, moment(0)).unwrap().agreement.id;
        watched(&mut agreements, &store, &id, moment(0), &[100; 10]);
        watched(&mut agreements, &store, &id, moment(400 * 86_400), &[100; 3]);
        watched(&mut agreements, &store, &id, moment(20), &[100; 5]);
        let observed = |at| {
            let at = moment(at).utc;
            agreements.report(id.as_str(), at, &store, at).map(|report| report.seen.observed_ms)
        };
        assert_eq!((observed(25), observed(400 * 86_400)), (Ok(15_000), Ok(3_000)));
    }

    /// The counters of a link whose queue let `bytes` through, in packets of 100.
    fn seen(bytes: u64, drops: u64, backlog: u64, sent: u64) -> LinkSeen {
        let queue = Counters { bytes, packets: bytes / 100, drops, backlog, ..Counters::default() };
        LinkSeen { queue: Some(queue), sent, repairs: 1 }
    }

    #[test]
    fn the_link_is_full_when_its_own_queue_drops_or_stays_filled() {
        let (before, link) = (seen(1000, 5, 3000, 900), BitRate::mbit(95));
        for (after, full) in
            [(seen(2000, 6, 0, 1900), true), (seen(2000, 5, 1, 1900), true), (seen(2000, 5, 0, 1900), false)]
        {
            let conditions = after.since(&before, true, false, link).conditions;
            assert_eq!((conditions.link_full, conditions.carried), (full, Bytes(1000)), "{after:?}");
        }
        let down = seen(2000, 5, 0, 1900).since(&before, false, false, link);
        assert_eq!(
            (down.conditions.link_full, down.conditions.carried, down.offered),
            (true, Bytes(0), 1000)
        );
    }

    #[test]
    fn what_left_beside_the_classes_has_bypassed_them_and_a_repair_is_a_fault() {
        let (before, link) = (seen(1000, 0, 0, 900), BitRate::mbit(95));
        let conditions = seen(5000, 0, 0, 1900).since(&before, true, false, link).conditions;
        assert_eq!((conditions.bypassed, conditions.engine_fault), (Bytes(3000), false));
        let repaired = LinkSeen { repairs: 2, ..seen(2000, 0, 0, 1900) };
        assert!(repaired.since(&before, true, false, link).conditions.engine_fault);
        let without = |sent| LinkSeen { queue: None, ..seen(0, 0, 0, sent) };
        let passed = without(1900).since(&without(900), true, false, link);
        assert_eq!((passed.conditions.link_full, passed.conditions.carried), (false, Bytes(1000)));
        assert_eq!((passed.conditions.bypassed, passed.offered), (Bytes(0), 1000));
    }

    #[test]
    fn what_bypasses_the_classes_is_seen_where_the_link_has_no_room_for_it() {
        let (before, link) = (seen(0, 0, 0, 0), BitRate::mbit(95));
        // The classes fill the link, and half as much traffic bypasses them. A third is dropped.
        let passed = seen(10_000, 40, 1_000, 10_000).since(&before, true, false, link);
        assert_eq!(passed.offered, 15_000);
        assert_eq!(passed.conditions.bypassed, Bytes(3_333));
        assert_eq!(part(6_000, 10_000, passed.offered), Bytes(4_000));
        // On a slow link, no traffic bypasses the classes.
        let passed = seen(2_000, 80, 0, 10_000).since(&before, true, false, link);
        assert_eq!((passed.offered, passed.conditions.bypassed), (10_000, Bytes(0)));
    }
}
