//! Agreements and the link: agreements in force become policies, and delivered bytes are counted.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use weir_agree::{ClockReading, Direction, Name};
use weir_share::Demand;
use weir_units::{BitRate, Bytes};

use crate::agent::{
    Agent,
    allocate::Allocations,
    class_key::ClassKey,
    class_table::{Agreed, ClassTable},
    clock::since_boot,
    download::Download,
};

/// The demand and the delivery of one agreement in force, between two looks at its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct Interval {
    pub(in crate::agent) id: Name,
    /// The direction in which the class was looked at.
    pub(in crate::agent) direction: Direction,
    /// The class's key.
    pub(in crate::agent) class: ClassKey,
    /// The promised rate.
    pub(in crate::agent) guarantee: BitRate,
    /// The rate it would have had.
    pub(in crate::agent) demand: Demand,
    /// The bytes that passed.
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
        let (agreed, promised) = agreements.enforceable_now(Direction::Upload, now);
        let of_download = agreements.enforceable_now(Direction::Download, now);
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
        if changed && !self.link.scheduler.has_seen_link() {
            // The first survey enforces all agreements, together with the classes it finds.
            self.link.allocations.mark();
        } else if changed {
            // Selectors lead packets to a class only after it is created and before it is removed.
            let known: BTreeSet<u16> = self.link.allocations.all().map(|f| f.minor).collect();
            self.datapath.select(&self.classes, |minor| known.contains(&minor));
            self.link.allocations.follow(&self.classes);
            self.allocate();
            self.keep_others();
            self.datapath.select(&self.classes, |_| true);
            self.keep_promises();
        }
        self.keep_download_agreements(of_download);
        // Events are reported before the disk is written, because a write may take long.
        self.admit_both();
        if let Some(agreements) = &mut self.agreements {
            let is_settled = |direction| match direction {
                Direction::Upload => !self.link.allocations.is_due(),
                Direction::Download => self.link.download.as_ref().is_none_or(|d| !d.allocations.is_due()),
            };
            agreements.finish(is_settled, &self.store, now);
            agreements.settle(&self.store, now);
        }
        self.admit_both();
    }

    /// Enforces the agreements on what arrives.
    fn keep_download_agreements(&mut self, (agreed, promised): (Arc<[Agreed]>, BitRate)) {
        let Some(download) = &mut self.link.download else { return };
        if let Some(effects) = download.agree(agreed, promised, &self.store) {
            self.follow_up(effects);
            self.keep_download_promises();
            self.keep_others();
        }
    }

    /// All that agreements promise of what arrives, now or later.
    pub(in crate::agent) fn promised_of_download(&self) -> BitRate {
        let now = self.moment().utc;
        self.agreements.as_ref().map_or(BitRate::ZERO, |a| a.promised(Direction::Download, now))
    }

    /// Tells the agreements how much is promised to classes, and reports the changes of agreements.
    pub(super) fn admit_both(&mut self) {
        let promised = self.classes.promised_to_classes();
        let Some(agreements) = &mut self.agreements else { return };
        agreements.promised_to_classes(Direction::Upload, promised);
        let of_download = self.link.download.as_ref().map(|download| &download.classes);
        if let Some(table) = of_download {
            agreements.promised_to_classes(Direction::Download, table.promised_to_classes());
        }
        let mut told = Vec::new();
        for one in agreements.happened() {
            let class_of = |id| self.classes.class_of(id).or_else(|| of_download?.class_of(id));
            let key = one.id.as_ref().and_then(class_of).cloned();
            let detail = one.id.as_ref().map_or(String::new(), |id| format!("{id}: ")) + &one.detail;
            told.push((one.what, key, one.id.map(|id| id.to_string()), detail));
        }
        for (what, key, id, detail) in told {
            self.event_of(what, key.as_ref(), id, detail);
        }
    }

    /// Counts the bytes that passed under each agreement since the last look.
    pub(in crate::agent) fn count_delivered(&mut self) {
        let now = self.moment();
        let Some(agreements) = &mut self.agreements else { return };
        let earlier = std::mem::take(&mut agreements.last_counts);
        let mut intervals = Vec::new();
        let mut count = |direction, table: &ClassTable, allocations: &Allocations| {
            let enforced = table.all_enforced();
            for (key, entry) in table.entries() {
                let (Some(id), Some(followed)) = (&entry.agreement, allocations.get(key)) else { continue };
                let bytes = followed.before.bytes + followed.counters.bytes;
                let waits = followed.counters.backlog > 0;
                let place = (direction, id.clone(), key.clone());
                if let Some(old) = earlier.get(&place) {
                    intervals.push(Interval {
                        id: id.clone(),
                        direction,
                        class: key.clone(),
                        guarantee: enforced.get(id).map_or(BitRate::ZERO, |enforced| enforced.agreed.min),
                        demand: followed.estimator.demand(),
                        delivered: Bytes(bytes.saturating_sub(old.bytes)),
                        time: now.monotonic.since(old.at),
                        waits: waits && old.waits,
                    });
                }
                agreements.last_counts.insert(place, Counted { bytes, at: now.monotonic, waits });
            }
        };
        count(Direction::Upload, &self.classes, &self.link.allocations);
        if let Some(Download { classes, allocations, .. }) = &self.link.download {
            count(Direction::Download, classes, allocations);
        }
        for one in &intervals {
            let Interval { id, direction, class, guarantee, demand, delivered, time, waits } = one;
            tracing::trace!(%id, %direction, %class, %guarantee, ?demand, ?delivered, ?time, waits, "delivered");
        }
        agreements.count(&intervals, &self.store, now);
        self.watch_agreements(&intervals, now);
    }
}
