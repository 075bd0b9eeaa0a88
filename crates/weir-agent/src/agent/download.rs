//! The download: classes, demands, and the scheduler of what arrives by the link.
//!
//! It has the classes of the upload, with policies, promises and allocations of its own. One scheduler
//! (HTB) serves beside every engine of the upload.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use weir_api::{ClassKind, EventKind};
use weir_datapath::engine::{self, Attachments, EngineError, EngineKind, Measured, Plan, plan};
use weir_share::Allocator;
use weir_units::{BitRate, Bytes, Instant, chain};

use super::{
    allocate::Allocations,
    autorate::Autorate,
    by_hand::SetLayers,
    charge::Charges,
    class_key::ClassKey,
    class_table::{Agreed, Change, ClassTable, DiscoveredClass, discovered::asked_of_download},
    datapath,
    discover::Discovery,
    effects::{Effects, not_enforced},
    promises::Promises,
    reconcile::ACQUAINTED,
    store::{Store, StoreError},
    work::Work,
};
use crate::config::{Config, Layer};

/// A full queue of a class drains in this time at the class's ceiling. No socket is held back here, so
/// that a longer queue gains nothing.
const DELAY_MS: u32 = 20;
/// No queue is shorter. One CUBIC flow loses a tenth of its rate behind half of it.
const LEAST_QUEUE: Bytes = Bytes(60_000);
/// The interval between two looks at the addresses of containers, which change without an event.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The part of the agent that shares the download.
pub(super) struct Download {
    /// The classes with their policies of what arrives.
    pub(super) classes: ClassTable,
    pub(super) allocations: Allocations,
    pub(super) promises: Promises,
    scheduler: engine::Download,
    /// The follower of the link's rate, if the capacity is a range.
    pub(super) follower: Option<Autorate>,
    pub(super) shape: plan::Shape,
    measured: Vec<Measured>,
    /// Debts for packets that the queues have dropped.
    pub(super) charges: Charges,
    /// The fault at the last attempt.
    error: Option<String>,
    /// The damage to the programs' maps that the last check could not repair.
    unrepaired: Option<String>,
    /// Foreign changes undone since the start.
    pub(super) repairs: u64,
    /// Writes of schedulers that were replaced.
    replaced_writes: u64,
    /// The agent has not watched for long enough to know which classes receive.
    is_new_here: bool,
    watches_since: Option<Instant>,
    looked_at: Instant,
}

/// The reason why the download cannot be shared.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The classes as the download sees them. A class of selectors has none: they select what leaves.
pub(super) fn discovered(classes: &[DiscoveredClass]) -> Vec<DiscoveredClass> {
    let own = classes.iter().filter(|class| class.kind != ClassKind::Selector);
    let of_download = |class: &DiscoveredClass| DiscoveredClass {
        label: class.down_label,
        down_label: Layer::default(),
        cut: Vec::new(),
        asked_by: asked_of_download(&class.asked_by),
        ..class.clone()
    };
    own.map(of_download).collect()
}

/// The classes of the download, as stored. No one has been discovered yet. Agreements are promised `promised`.
pub(super) fn table(config: Config, store: &Store, promised: BitRate) -> Result<ClassTable, StoreError> {
    let (set, promises) = (store.down_policies()?, store.down_promises()?);
    Ok(ClassTable::new(config, set, store.minors()?, promises, promised))
}

fn shape(config: &Config, mtu: u32) -> plan::Shape {
    plan::Shape { delay_ms: DELAY_MS, least_queue: LEAST_QUEUE, ..datapath::shape(config, mtu, false) }
}

impl Download {
    /// Sets up the scheduler of the download, or takes over that of an earlier agent. `None` if the
    /// configuration does not share the download. Nothing is sent to it yet.
    pub(super) fn open(
        config: &Config,
        (number, engine): (u32, EngineKind),
        store: &Store,
        promised: BitRate,
        attachments: &Attachments,
    ) -> Result<Option<Download>, OpenError> {
        let Some(config) = config.download() else { return Ok(None) };
        engine::Download::goes_with(engine)?;
        let allocations = Allocations::new(Allocator::new(config.allocator()));
        let uplink = engine::Uplink { number, device: &config.link.device };
        let scheduler = engine::Download::open(uplink, attachments)?;
        let shape = shape(&config, 1500);
        let classes = table(config, store, promised)?;
        Ok(Some(Download {
            classes,
            allocations,
            promises: Promises::new(store.down_promises()?, Store::save_down_promises),
            scheduler,
            follower: None,
            shape,
            measured: Vec::new(),
            charges: Charges::default(),
            error: None,
            unrepaired: None,
            repairs: 0,
            replaced_writes: 0,
            is_new_here: true,
            watches_since: None,
            looked_at: Instant::default(),
        }))
    }

    /// Swaps classes and promises with those of another link.
    pub(super) fn swap_classes(&mut self, other: &mut Download) {
        std::mem::swap(&mut self.classes, &mut other.classes);
        std::mem::swap(&mut self.promises, &mut other.promises);
        self.allocations.mark();
        other.allocations.mark();
    }

    /// Replaces the scheduler, for a link whose packets have another header. Nothing is sent to it yet.
    pub(super) fn reopen(
        &mut self,
        uplink: engine::Uplink<'_>,
        attachments: &mut Attachments,
    ) -> Result<(), EngineError> {
        self.end(attachments)?;
        let scheduler = engine::Download::open(uplink, attachments)?;
        self.replaced_writes += std::mem::replace(&mut self.scheduler, scheduler).writes();
        self.allocations.mark();
        Ok(())
    }

    /// The capacity that is divided.
    pub(super) fn in_force(&self) -> BitRate {
        let followed = self.follower.as_ref().and_then(Autorate::in_force);
        followed.unwrap_or(self.classes.config().link.capacity)
    }

    /// The scheduler's device and engine.
    pub(super) fn device(&self) -> (&str, EngineKind) {
        (self.scheduler.device(), self.scheduler.kind())
    }

    /// The addresses by which packets are known, with the handles of their classes.
    pub(super) fn addresses(&self) -> BTreeMap<IpAddr, u32> {
        self.scheduler.owners()
    }

    /// Whether conntrack tells flows behind NAT of which nothing has left.
    pub(super) fn asks_conntrack(&self) -> bool {
        self.scheduler.asks_conntrack()
    }

    /// The work of the scheduler since the start.
    pub(super) fn work(&self) -> Work {
        Work { writes: self.replaced_writes + self.scheduler.writes(), repairs: self.repairs }
    }

    /// The reason if the download is not divided as configured.
    pub(super) fn fault(&self) -> Option<&String> {
        self.error.as_ref().or(self.unrepaired.as_ref())
    }

    /// Follows the classes of a discovery, which `upload` knows already, and has packets come here.
    pub(super) fn follow(
        &mut self,
        upload: &ClassTable,
        discovery: &Discovery,
        is_complete: bool,
        store: &Store,
        attachments: &mut Attachments,
    ) -> (Vec<Change>, Effects) {
        self.classes.number_as(upload);
        let groups = upload.group_wishes().iter().map(|(name, wish)| (name.clone(), wish.of_download()));
        if self.classes.set_group_wishes(groups.collect()) {
            self.allocations.mark();
        }
        let changes = self.classes.update(discovered(&discovery.classes), is_complete);
        self.promises.save(store, self.classes.ledger());
        self.allocations.follow(&self.classes);
        self.shape = shape(self.classes.config(), discovery.mtu);
        self.scheduler.set_addresses(self.addresses_by_minor(discovery));
        let woken = self.wake();
        // A class must exist before packets are sent to it.
        let effects = woken.and(self.divide());
        let effects = match self.scheduler.attach(attachments) {
            Ok(()) => effects,
            Err(e) => effects.and(self.fail(chain(&e))).and(Effects::rediscover(true)),
        };
        // Arrivals and departures of classes are events of the upload.
        let is_promise = |change: &Change| !matches!(change, Change::Added(_) | Change::Removed(_));
        (changes.into_iter().filter(is_promise).collect(), effects)
    }

    fn addresses_by_minor(&self, discovery: &Discovery) -> engine::Addresses {
        let minor = |key: &ClassKey| self.classes.entries().get(key).and_then(|entry| entry.minor);
        let minors = |addresses: &BTreeMap<IpAddr, ClassKey>| {
            addresses.iter().filter_map(|(address, key)| Some((*address, minor(key)?))).collect()
        };
        engine::Addresses {
            told: minors(&discovery.addresses.told),
            shown: minors(&discovery.addresses.shown),
            showing: discovery.owners.iter().filter_map(|(key, _)| minor(key)).collect(),
        }
    }

    /// Applies a new configuration.
    pub(super) fn reconfigure(&mut self, config: Config) {
        self.allocations.set_allocator(Allocator::new(config.allocator()));
        if !config.link.charge_drops {
            self.charges = Charges::default();
        }
        self.shape = shape(&config, self.shape.mtu);
        self.classes.reconfigure(config);
        self.allocations.mark();
    }

    /// Enforces the agreements in force. All agreements together promise at most `promised`, now or later.
    /// `None` if nothing changed.
    pub(super) fn agree(
        &mut self,
        agreed: Arc<[Agreed]>,
        promised: BitRate,
        store: &Store,
    ) -> Option<Effects> {
        if !self.classes.agree(agreed, promised) {
            return None;
        }
        self.promises.save(store, self.classes.ledger());
        self.allocations.follow(&self.classes);
        self.allocations.mark();
        Some(self.divide_if_due())
    }

    /// Takes policies by hand, and agreements that promise nothing: those of the main link.
    pub(super) fn keep(&mut self, set: SetLayers, agreed: Vec<Agreed>) {
        self.classes.agree(agreed, BitRate::ZERO);
        self.classes.commit(set);
        self.allocations.follow(&self.classes);
        self.allocations.mark();
    }

    /// Divides the download if a demand, a policy or a class changed.
    pub(super) fn divide_if_due(&mut self) -> Effects {
        if self.allocations.is_due() && self.watches_since.is_some() {
            self.divide()
        } else {
            Effects::default()
        }
    }

    /// Divides the download, and has the scheduler and the programs follow.
    pub(super) fn divide(&mut self) -> Effects {
        let applied = self.apply_division();
        let (_, failure) = self.scheduler.restore();
        self.ended(applied.err().or(failure))
    }

    /// Divides the download, and has the scheduler follow. Damage to the programs' maps is left to the check that
    /// tells of it.
    pub(super) fn divide_only(&mut self) -> Effects {
        let applied = self.apply_division();
        self.ended(applied.err())
    }

    fn apply_division(&mut self) -> Result<(), EngineError> {
        let mut capacity = self.in_force();
        let is_charged = self.classes.config().link.charge_drops;
        if is_charged {
            capacity = self.charges.charged(capacity);
        }
        let (mut groups, mut members) = self.allocations.divide(&self.classes, capacity);
        if is_charged {
            let (limits, paid) = self.charges.settle(&groups, &members);
            if !limits.is_empty() {
                capacity = capacity.saturating_sub(paid);
                (groups, members) = self.allocations.divide_under(&self.classes, capacity, &limits);
            }
        }
        let shape = plan::Shape { capacity, ..self.shape };
        let plan = Plan { shape: &shape, groups: &groups, members: &members };
        self.scheduler.apply(&plan, self.is_new_here)
    }

    /// The effects of a division that ended so.
    fn ended(&mut self, error: Option<EngineError>) -> Effects {
        match error {
            None => {
                self.error = None;
                Effects::default()
            }
            Some(e) => {
                self.allocations.mark();
                self.fail(chain(&e))
            }
        }
    }

    /// Reads what arrived for each class, and waits.
    pub(super) fn poll_counters(&mut self, now: Instant, attachments: &mut Attachments) -> Effects {
        let mut measured = std::mem::take(&mut self.measured);
        let read = self.scheduler.measure(&mut measured, attachments);
        self.measured = measured;
        let effects = match read {
            Ok(0) => Effects::default(),
            Ok(drift) => {
                self.allocations.mark();
                self.repaired(format!("{drift} objects of its scheduler had been altered or removed"))
            }
            Err(e) => {
                self.allocations.mark();
                self.fail(chain(&e))
            }
        };
        let since = *self.watches_since.get_or_insert(now);
        if self.is_new_here && now.since(since) >= ACQUAINTED {
            self.is_new_here = false;
            self.allocations.mark();
        }
        self.allocations.observe(&self.measured, now);
        if self.classes.config().link.charge_drops && self.charges.observe(&self.measured, now) {
            self.allocations.mark();
        }
        effects
    }

    /// Reads the drops of the queues.
    pub(super) fn count_drops(&mut self) {
        match self.scheduler.drops() {
            Ok(drops) => self.allocations.set_drops(&drops),
            Err(e) => tracing::debug!("cannot read the queues of the download: {}", chain(&e)),
        }
    }

    /// Checks the programs' maps. (The attachments check the filters.)
    pub(super) fn reconcile(&mut self, now: Instant) -> Effects {
        let (entries, failure) = self.scheduler.restore();
        let mut effects = Effects::default();
        if !entries.is_empty() {
            let each: Vec<String> = entries.iter().map(|(map, count)| format!("{count} of {map}")).collect();
            let maps = each.join(", ");
            effects = self.repaired(format!(
                "entries of the programs' maps had been altered, added or removed: {maps}"
            ));
        }
        let unrepaired = failure.map(|e| chain(&e));
        if self.unrepaired != unrepaired {
            self.unrepaired.clone_from(&unrepaired);
            effects = unrepaired.into_iter().fold(effects, |all, why| all.and(not_enforced(told(&why))));
        }
        // A fault that has passed ends with the next division.
        if self.error.is_some() {
            self.allocations.mark();
        }
        let is_time = now.since(self.looked_at) >= LOOK_AGAIN;
        if is_time {
            self.looked_at = now;
        }
        effects.and(Effects::rediscover(is_time))
    }

    fn wake(&mut self) -> Effects {
        match self.scheduler.wake() {
            Ok(false) => Effects::default(),
            Ok(true) => self.repaired(format!("{} had been set down", self.scheduler.device())),
            Err(e) => self.fail(chain(&e)),
        }
    }

    fn fail(&mut self, why: String) -> Effects {
        let is_new = self.error.as_ref() != Some(&why);
        let effects = if is_new { not_enforced(told(&why)) } else { Effects::default() };
        self.error = Some(why);
        effects
    }

    fn repaired(&mut self, detail: String) -> Effects {
        self.repairs += 1;
        Effects::event(EventKind::Repaired, told(&detail))
    }

    /// Bytes that wait in all queues.
    pub(super) fn backlog(&mut self) -> u64 {
        self.scheduler.backlog().unwrap_or(0)
    }

    /// Has what arrives pass unscheduled, and removes the scheduler.
    pub(super) fn end(&mut self, attachments: &mut Attachments) -> Result<(), EngineError> {
        self.scheduler.detach(attachments)?;
        // No filter sends to the device any more. One that has gone need not be removed.
        self.remove().or_else(|e| if e.is_gone() { Ok(()) } else { Err(e) })
    }

    /// Removes the scheduler. Its filters have gone.
    pub(super) fn remove(&mut self) -> Result<(), EngineError> {
        self.scheduler.remove()
    }
}

/// An event's words, which say that they are about the download.
pub(super) fn told(what: &str) -> String {
    format!("download: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promise_to_an_agreement_leaves_no_room_for_a_class_after_a_restart() {
        let text = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\ndownload = \"50mbit\"\n[agreements]\n\
            [[class]]\nname = \"web\"\ndown = { min = \"20mbit\" }\n";
        let config = crate::config::parse(text, std::path::Path::new("test.toml")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        // 47.5 of 50 Mbit/s may be promised.
        for (to_agreements, to_classes) in [(28, 0), (27, 20)] {
            let promised = BitRate::mbit(to_agreements);
            let table = table(config.download().unwrap(), &store, promised).unwrap();
            assert_eq!(table.promised_to_classes(), BitRate::mbit(to_classes), "beside {promised}");
        }
    }
}
