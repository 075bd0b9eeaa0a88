//! Looks at the agent's own objects in the kernel: counters, and alterations by other programs.

use std::time::Duration;

use weir_api::EventKind;
use weir_datapath::engine::{Repairs, plan};
use weir_netlink::Link;
use weir_units::{Instant, chain};

use super::{Agent, datapath::Datapath, effects::Effects, link_state::LinkState};
use crate::config::ClassConfig;

/// The interval between two checks of the attachments and of the programs' maps. Together with a tick
/// it is less than the second within which damage is repaired or reported. While no class sends, ticks
/// are [`IDLE_TICK`](super::IDLE_TICK) apart, and the checks are a second apart.
pub(super) const RECONCILE_EVERY: Duration = Duration::from_millis(650);
/// After this time, an agent that has taken over knows which classes send.
pub(super) const ACQUAINTED: Duration = Duration::from_millis(250);

impl Datapath {
    /// Reads the counters of the classes.
    pub(super) fn poll_counters(&mut self, now: Instant) -> Effects {
        let mut measured = std::mem::take(&mut self.measured);
        let read = self.measure(&mut measured);
        self.measured = measured;
        let mut effects = match read {
            Ok(0) => Effects::default(),
            Ok(drift) => {
                let text = format!("{drift} objects of the scheduler had been altered or removed");
                self.repaired(text).and(Effects::reallocate(true))
            }
            // A write that failed is tried again.
            Err(e) => Effects::reallocate(true).and(self.fault(chain(&e))),
        };
        let since = *self.watches_since.get_or_insert(now);
        if self.is_new_here && now.since(since) >= ACQUAINTED {
            self.is_new_here = false;
            effects.reallocate = true;
        }
        effects
    }

    /// Makes the engine enforce these allocations. After a failure they must be enforced again.
    pub(super) fn enforce(&mut self, groups: &[plan::Group], members: &[plan::Member]) -> Effects {
        match self.apply(groups, members) {
            Ok(_) => {
                self.error = None;
                Effects::default()
            }
            Err(e) => Effects::reallocate(true).and(self.fault(chain(&e))),
        }
    }

    /// Checks that the attachments exist, and that the programs' maps still assign packets to the right
    /// classes.
    fn reconcile(&mut self) -> Effects {
        let Repairs { devices, entries, failure } = self.attachments.repair();
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
        if self.unrepaired != unrepaired {
            self.unrepaired.clone_from(&unrepaired);
            effects = unrepaired.into_iter().fold(effects, |all, why| all.and(not_enforced(why)));
        }
        // A fault that has passed ends with the next division of the link.
        effects.and(Effects::reallocate(self.error.is_some())).and(self.reconcile_pacing())
    }

    /// Remembers why the scheduler is at fault, and reports a new reason.
    pub(super) fn fault(&mut self, why: String) -> Effects {
        let is_new = self.error.as_ref() != Some(&why);
        let effects = if is_new { not_enforced(why.clone()) } else { Effects::default() };
        self.error = Some(why);
        effects
    }

    /// Counts a repair and reports it.
    pub(super) fn repaired(&mut self, detail: String) -> Effects {
        self.repairs += 1;
        Effects::event(EventKind::Repaired, detail)
    }

    /// The reason if the link is not divided as configured.
    pub(super) fn scheduler_fault(&self) -> Option<&String> {
        self.error.as_ref().or(self.unrepaired.as_ref())
    }

    /// Whether the node's classes were discovered since the agent started.
    pub(super) fn has_seen_link(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn is_link_up(&self) -> bool {
        matches!(self.link, Some(LinkState::Present { is_up: true, .. }))
    }

    /// Takes the link's present state, and reports what happened to it. `device` is its configured name.
    pub(super) fn follow_link(&mut self, device: &str, found: Option<&Link>) -> Effects {
        let now = LinkState::of(found);
        let before = self.link.replace(now.clone());
        let change = before.and_then(|before| now.change_since(&before, device));
        change.map_or(Effects::default(), |what| Effects::event(EventKind::Link, what))
    }

    /// Sets the scheduler's device up if another program set it down.
    pub(super) fn wake(&mut self) -> Effects {
        let Some(device) = self.engine.device() else { return Effects::default() };
        match device.wake() {
            Ok(false) => Effects::default(),
            Ok(true) => {
                let text = format!("{} had been set down", self.device);
                self.repaired(text)
            }
            Err(e) => self.fault(chain(&e)),
        }
    }
}

pub(super) fn not_enforced(why: String) -> Effects {
    tracing::error!("{why}");
    Effects::event(EventKind::NotEnforced, why)
}

impl Agent {
    /// Reads what each class sent and queued.
    pub(super) fn poll_counters(&mut self) {
        let now = self.now();
        let polled = self.datapath.poll_counters(now);
        self.allocations.observe(&self.datapath.measured, now);
        self.follow_up(polled);
        if let Some(download) = &mut self.download {
            let polled = download.poll_counters(now, &mut self.datapath.attachments);
            self.follow_up(polled);
        }
    }

    /// Reads the drops of the queues. This costs more than a look at the classes, so it happens only
    /// before an answer.
    pub(super) fn count_drops(&mut self) {
        match self.datapath.engine.drops() {
            Ok(drops) => self.allocations.set_drops(&drops),
            // The next look at the classes reports the fault.
            Err(e) => tracing::debug!("cannot read the queues: {}", chain(&e)),
        }
        if let Some(download) = &mut self.download {
            download.count_drops();
        }
    }

    /// Compares the agent's objects in the kernel with what they should be, and repairs them.
    pub(super) fn reconcile(&mut self) {
        self.datapath.reconciled_at = std::time::Instant::now();
        let repaired = self.datapath.reconcile();
        self.follow_up(repaired);
        let repaired = self.congestion.reconcile();
        self.follow_up(repaired);
        let now = self.now();
        if let Some(download) = &mut self.download {
            let repaired = download.reconcile(now);
            self.follow_up(repaired);
        }
        self.promises.save(&self.store, self.classes.ledger());
        // The next discovery is due for a cgroup, for a namespace without a link event, and for an uplink
        // that could not be attached.
        let is_incomplete = self.datapath.uplink_failure.is_some()
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
