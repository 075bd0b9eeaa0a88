//! Looks at the agent's own objects in the kernel: counters, and alterations by other programs.

use std::time::Duration;

use weir_api::EventKind;
use weir_datapath::engine::{Ahead, Repairs, describe_ahead};
use weir_units::chain;

use super::{
    Agent,
    datapath::Datapath,
    effects::{Effects, not_enforced},
};
use crate::config::ClassConfig;

/// The interval between two checks of the attachments and of the programs' maps. Together with a tick
/// it is less than the second within which damage is repaired or reported. While no class sends, ticks
/// are [`IDLE_TICK`](super::IDLE_TICK) apart, and the checks are a second apart.
pub(super) const RECONCILE_EVERY: Duration = Duration::from_millis(650);
/// After this time, an agent that has taken over knows which classes send.
pub(super) const ACQUAINTED: Duration = Duration::from_millis(250);

impl Datapath {
    /// Checks that the attachments exist, and that the programs' maps still assign packets to the right
    /// classes.
    fn reconcile(&mut self) -> Effects {
        let Repairs { devices, entries, ahead, failure } = self.attachments.repair();
        self.repairs += u64::from(!(devices.is_empty() && entries.is_empty()));
        let mut effects = Effects::default();
        if !devices.is_empty() {
            let message = format!("weir's program was missing from {}", devices.join(", "));
            effects = effects.and(Effects::event(EventKind::Repaired, message));
        }
        if !entries.is_empty() {
            let each = entries.iter().map(|(map, count)| format!("{count} of {map}"));
            let maps = each.collect::<Vec<_>>().join(", ");
            let message = format!("entries of the programs' maps had been altered, added or removed: {maps}");
            effects = effects.and(Effects::event(EventKind::Repaired, message));
        }
        let unrepaired = failure.map(|e| chain(&e));
        // An uplink may be among what could not be repaired.
        effects = effects.and(Effects::rediscover(unrepaired.is_some()));
        if self.unrepaired != unrepaired {
            self.unrepaired.clone_from(&unrepaired);
            effects = unrepaired.into_iter().fold(effects, |all, why| all.and(not_enforced(why)));
        }
        effects.and(self.note_ahead(ahead)).and(self.reconcile_pacing())
    }

    /// Keeps what runs before weir's programs, and reports what does so newly.
    fn note_ahead(&mut self, ahead: Vec<Ahead>) -> Effects {
        if ahead == self.ahead {
            return Effects::default();
        }
        let before = std::mem::replace(&mut self.ahead, ahead);
        if self.ahead.is_empty() {
            let none = "no program or filter of others runs before weir's any more";
            return Effects::event(EventKind::ForeignProgram, none);
        }
        let known = describe_ahead(&before);
        let new = describe_ahead(&self.ahead).into_iter().filter(|(group, _)| !known.contains_key(group));
        new.fold(Effects::default(), |all, (_, why)| all.and(Effects::event(EventKind::ForeignProgram, why)))
    }

    /// Counts a repair and reports it.
    pub(super) fn repaired(&mut self, detail: String) -> Effects {
        self.repairs += 1;
        Effects::event(EventKind::Repaired, detail)
    }
}

impl Agent {
    /// The reason if the link is not divided as configured.
    pub(super) fn scheduler_fault(&self) -> Option<&String> {
        self.link.scheduler.error.as_ref().or(self.datapath.fault())
    }

    /// Reads what each class sent and queued.
    pub(super) fn poll_counters(&mut self) {
        let now = self.now();
        let polled = self.link.poll_counters(now, &mut self.datapath.attachments);
        self.follow_up(polled);
        for place in 0..self.others.len() {
            let polled = self.others[place].poll_counters(now, &mut self.datapath.attachments);
            self.follow_up(polled);
        }
    }

    /// Reads the drops of the queues. This costs more than a look at the classes, so it happens only
    /// before an answer.
    pub(super) fn count_drops(&mut self) {
        self.link.count_drops();
        self.others.iter_mut().for_each(|other| other.link.count_drops());
    }

    /// Compares the agent's objects in the kernel with what they should be, and repairs them.
    pub(super) fn reconcile(&mut self) {
        self.datapath.reconciled_at = std::time::Instant::now();
        // A fault that has passed ends with the next division of the link.
        let is_faulty = self.link.scheduler.error.is_some();
        let repaired = self.datapath.reconcile().and(Effects::reallocate(is_faulty));
        self.follow_up(repaired);
        let repaired = self.congestion.reconcile();
        self.follow_up(repaired);
        if self.datapath.unswept.is_some() {
            self.sweep();
        }
        let now = self.now();
        if let Some(download) = &mut self.link.download {
            let repaired = download.reconcile(now);
            self.follow_up(repaired);
        }
        for place in 0..self.others.len() {
            let checked = self.others[place].reconcile(now);
            self.follow_up(checked);
        }
        self.promises.save(&self.store, self.classes.ledger());
        // The next discovery is due for a cgroup, for a namespace without a link event, and for an uplink
        // that could not be attached.
        let is_incomplete = self.link.scheduler.uplink_failure.is_some()
            || !self.datapath.failures.is_empty()
            || self
                .classes
                .entries()
                .values()
                .any(|e| e.class.problem.is_some() || !e.class.cgroups.is_empty())
            || self.classes.config().classes.iter().any(ClassConfig::names_processes);
        self.follow_up(Effects::rediscover(is_incomplete));
    }
}
