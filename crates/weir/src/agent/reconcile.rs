//! Looks at the agent's own objects in the kernel: counters, and alterations by other programs.

use std::{collections::BTreeMap, time::Duration};

use weir_api::EventKind;
use weir_datapath::engine::Repairs;
use weir_netlink::Link;
use weir_units::chain;

use super::{ACQUAINTED, Agent, demand::Sample};

/// The interval between two checks of the attachments and of the programs' maps. Together with a tick
/// it is less than the second within which damage is repaired or reported. While no class sends, ticks
/// are [`IDLE_TICK`](super::IDLE_TICK) apart, and the checks are a second apart.
pub(super) const RECONCILE_EVERY: Duration = Duration::from_millis(650);

impl Agent {
    /// Reads what each class sent and queued.
    pub(super) fn poll_counters(&mut self) {
        let mut measured = std::mem::take(&mut self.measured);
        match self.datapath.measure(&mut measured) {
            Ok(0) => {}
            Ok(drift) => {
                self.repairs += 1;
                self.dirty = true;
                self.event(
                    EventKind::Repaired,
                    None,
                    format!("{drift} objects of the scheduler had been altered or removed"),
                );
            }
            Err(e) => self.fault(chain(&e)),
        }
        let now = self.now();
        let since = *self.watches_since.get_or_insert(now);
        if self.is_new_here && now.since(since) >= ACQUAINTED {
            (self.is_new_here, self.dirty) = (false, true);
        }
        let by_minor: BTreeMap<u16, _> = measured.iter().map(|m| (m.minor, m.counters)).collect();
        for followed in self.followed.values_mut() {
            let Some(&counters) = by_minor.get(&followed.minor) else { continue };
            if counters.bytes < followed.counters.bytes {
                followed.before.bytes += followed.counters.bytes;
                followed.before.packets += followed.counters.packets;
                followed.before.drops += followed.drops();
                followed.queue_drops = 0;
            }
            followed.counters = counters;
            let sample = Sample { bytes: counters.bytes, backlog: counters.backlog };
            let before = followed.estimator.demand();
            if followed.estimator.observe(now, sample, followed.allocation) != before {
                self.dirty = true;
            }
        }
        self.measured = measured;
    }

    /// Reads the drops of the queues. This costs more than a look at the classes, so it happens only
    /// before an answer.
    pub(super) fn count_drops(&mut self) {
        match self.datapath.engine.drops() {
            Ok(drops) => {
                for followed in self.followed.values_mut() {
                    followed.queue_drops = drops.get(&followed.minor).copied().unwrap_or(0);
                }
            }
            // The next look at the classes reports the fault.
            Err(e) => tracing::debug!("cannot read the queues: {}", chain(&e)),
        }
    }

    /// Checks that the attachments exist, and that the programs' maps still assign packets to the right
    /// classes.
    pub(super) fn reconcile(&mut self) {
        self.reconciled_at = std::time::Instant::now();
        let Repairs { devices, entries, failure } = self.datapath.attachments.repair();
        self.repairs += u64::from(!(devices.is_empty() && entries.is_empty()));
        if !devices.is_empty() {
            let message = format!("weir's program was missing from {}", devices.join(", "));
            self.event(EventKind::Repaired, None, message);
        }
        if !entries.is_empty() {
            let each = entries.iter().map(|(map, count)| format!("{count} of {map}"));
            let maps = each.collect::<Vec<_>>().join(", ");
            let message = format!("entries of the programs' maps had been altered, added or removed: {maps}");
            self.event(EventKind::Repaired, None, message);
        }
        let unrepaired = failure.map(|e| chain(&e));
        if self.unrepaired != unrepaired {
            self.unrepaired.clone_from(&unrepaired);
            unrepaired.into_iter().for_each(|why| self.say_fault(why));
        }
        // A fault that has passed ends with the next division of the link.
        self.dirty |= self.engine_error.is_some();
        self.reconcile_pacing();
        self.keep_steering();
        self.save_promises();
        // The next discovery is due for a cgroup, for a namespace without a link event, and for an uplink
        // that could not be attached.
        let restless = self.datapath.uplink_failure.is_some()
            || !self.datapath.failures.is_empty()
            || self
                .classes
                .entries()
                .values()
                .any(|e| e.class.problem.is_some() || !e.class.cgroups.is_empty());
        self.stale |= restless || self.classes.config().classes.iter().any(|c| c.cgroup.is_some());
    }

    pub(super) fn fault(&mut self, why: String) {
        if self.engine_error.as_ref() != Some(&why) {
            self.say_fault(why.clone());
        }
        self.engine_error = Some(why);
    }

    fn say_fault(&mut self, why: String) {
        tracing::error!("{why}");
        self.event(EventKind::NotEnforced, None, why);
    }

    /// The reason if the link is not divided as configured.
    pub(super) fn scheduler_fault(&self) -> Option<&String> {
        self.engine_error.as_ref().or(self.unrepaired.as_ref())
    }

    /// Reports what happened to the link: renamed, replaced, gone, down.
    pub(super) fn follow_link(&mut self, found: Option<&Link>) {
        let now = found.map(|l| (l.index, l.name.clone(), l.up));
        let Some(before) = self.link.replace(now.clone()) else { return };
        if before == now {
            return;
        }
        let device = &self.classes.config().link.device;
        let what = match (before, now) {
            (_, None) => format!("{device} is gone: nothing leaves by it until it is back"),
            (Some((old, ..)), Some((new, name, _))) if old != new => format!("{name} is the link now"),
            (None, Some((_, name, _))) => format!("{name} is back"),
            (Some((_, was, _)), Some((_, name, _))) if was != name => {
                format!("{was} is called {name} now, and stays the link")
            }
            (_, Some((_, name, up))) => format!("{name} is {}", if up { "up" } else { "down" }),
        };
        self.event(EventKind::Link, None, what);
    }

    /// Sets the scheduler's device up if another program set it down.
    pub(super) fn wake(&mut self) {
        match self.datapath.engine.wake() {
            Ok(false) => {}
            Ok(true) => {
                self.repairs += 1;
                let device = self.datapath.engine.device().to_owned();
                self.event(EventKind::Repaired, None, format!("{device} had been set down"));
            }
            Err(e) => self.fault(chain(&e)),
        }
    }
}
