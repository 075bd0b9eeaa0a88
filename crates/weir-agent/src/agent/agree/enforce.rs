//! Agreements and the link: agreements in force become policies, and delivered bytes are counted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weir_agree::{ClockReading, Name};
use weir_share::Demand;
use weir_units::{BitRate, Bytes};

use crate::agent::{Agent, class_key::ClassKey, clock::since_boot};

/// The demand and the delivery of one agreement in force, between two looks at its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct Interval {
    pub(in crate::agent) id: Name,
    /// The class's key.
    pub(in crate::agent) class: ClassKey,
    /// The promised rate.
    pub(in crate::agent) guarantee: BitRate,
    /// The rate it would have sent at.
    pub(in crate::agent) demand: Demand,
    /// The bytes sent.
    pub(in crate::agent) delivered: Bytes,
    /// The length of the interval.
    pub(in crate::agent) time: Duration,
    /// Whether the class had a backlog at the beginning and at the end.
    pub(in crate::agent) waits: bool,
}

/// The state of a class's counters at the last count under its agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct Counted {
    bytes: u64,
    at: weir_units::Instant,
    waits: bool,
}

impl Agent {
    pub(in crate::agent) fn moment(&self) -> ClockReading {
        ClockReading { utc: self.clock.now(since_boot()), monotonic: self.now() }
    }

    /// The time until an agreement begins or ends; `Duration::MAX` if none does.
    pub(in crate::agent) fn until_change(&self) -> Duration {
        let now = self.moment().utc;
        let next = self.agreements.as_ref().and_then(|a| a.next_change(now));
        // The calendar counts in milliseconds, so the agent does not wake before the moment.
        next.map_or(Duration::MAX, |next| next.since(now))
    }

    /// Enforces the agreements in force, at every moment of change. Each class has its rates when this
    /// returns.
    pub(in crate::agent) fn keep_agreements(&mut self) {
        let now = self.moment().utc;
        let Some(agreements) = &mut self.agreements else { return };
        agreements.advance(now);
        let (agreed, promised) = (agreements.in_force(now), agreements.promised(now));
        let before = self.classes.minors().clone();
        let changed = self.classes.agree(agreed, promised);
        if changed {
            self.promises.save(&self.store, self.classes.ledger());
            if *self.classes.minors() != before
                && let Err(e) = self.store.save_minors(self.classes.minors())
            {
                tracing::warn!("{}", weir_units::chain(&e));
            }
        }
        if changed && !self.datapath.has_seen_link() {
            // The first survey enforces all agreements, together with the classes it finds.
            self.allocations.mark();
        } else if changed {
            // Selectors lead packets to a class only after it is created and before it is removed.
            let known: BTreeSet<u16> = self.allocations.all().map(|f| f.minor).collect();
            self.datapath.select(&self.classes, |minor| known.contains(&minor));
            self.allocations.follow(&self.classes);
            self.allocate();
            self.datapath.select(&self.classes, |_| true);
            self.keep_promises();
        }
        // Events are reported before the disk is written, because a write may take long.
        self.admit_both();
        if let Some(agreements) = &mut self.agreements {
            if !self.allocations.is_due() {
                agreements.finish(&self.store, now);
            }
            agreements.settle(&self.store, now);
        }
        self.admit_both();
    }

    /// Tells the agreements how much is promised to classes, and reports the changes of agreements.
    fn admit_both(&mut self) {
        let promised = self.classes.promised_to_classes();
        let Some(agreements) = &mut self.agreements else { return };
        agreements.promised_to_classes(promised);
        for one in agreements.happened() {
            let key = one.id.as_ref().and_then(|id| self.classes.class_of(id)).cloned();
            let detail = one.id.as_ref().map_or(String::new(), |id| format!("{id}: ")) + &one.detail;
            self.event_of(one.what, key.as_ref(), one.id.map(|id| id.to_string()), detail);
        }
    }

    /// Counts the bytes sent under each agreement since the last look.
    pub(in crate::agent) fn count_delivered(&mut self) {
        let now = self.moment();
        let Some(agreements) = &mut self.agreements else { return };
        let mut counted = BTreeMap::new();
        let mut intervals = Vec::new();
        for (key, entry) in self.classes.entries() {
            let (Some(id), Some(followed)) = (&entry.agreement, self.allocations.get(key)) else { continue };
            let bytes = followed.before.bytes + followed.counters.bytes;
            let waits = followed.counters.backlog > 0;
            let place = (id.clone(), key.clone());
            if let Some(old) = agreements.last_counts.get(&place) {
                intervals.push(Interval {
                    id: id.clone(),
                    class: key.clone(),
                    guarantee: self.classes.agreed(id).map_or(BitRate::ZERO, |agreed| agreed.min),
                    demand: followed.estimator.demand(),
                    delivered: Bytes(bytes.saturating_sub(old.bytes)),
                    time: now.monotonic.since(old.at),
                    waits: waits && old.waits,
                });
            }
            counted.insert(place, Counted { bytes, at: now.monotonic, waits });
        }
        agreements.last_counts = counted;
        for one in &intervals {
            let Interval { id, class, guarantee, demand, delivered, time, waits } = one;
            tracing::trace!(%id, %class, %guarantee, ?demand, ?delivered, ?time, waits, "delivered");
        }
        agreements.count(&intervals, &self.store, now);
        self.watch_agreements(&intervals, now);
    }
}
