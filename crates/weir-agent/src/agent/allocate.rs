//! Turns policies and demands into the scheduler's tree.

use std::collections::BTreeMap;

use weir_api::ClassKind;
use weir_datapath::engine::{Measured, plan};
use weir_netlink::tc::Counters;
use weir_share::{Allocator, Bound, Policy, Sharer};
use weir_units::{BitRate, Bytes, Instant};

use super::{
    Agent,
    charge::limited,
    class_key::ClassKey,
    class_table::ClassTable,
    demand::{Estimator, Sample},
    queue_time::QueueTimes,
};

/// The state of one class, by key.
pub(super) struct Followed {
    pub(super) minor: u16,
    pub(super) estimator: Estimator,
    /// The counters of the present scheduler class. `before` sums those of its predecessors.
    pub(super) counters: Counters,
    pub(super) before: Counters,
    /// Packets dropped by the present class's queue at the last read.
    pub(super) queue_drops: u64,
    pub(super) queue_times: QueueTimes,
    pub(super) allocation: BitRate,
    pub(super) bound: Bound,
}

impl Followed {
    /// Packets dropped by the present class.
    pub(super) fn drops(&self) -> u64 {
        self.counters.drops.max(self.queue_drops)
    }
}

/// The classes' demands and counters, and the division of the link between them.
pub(super) struct Allocations {
    allocator: Allocator,
    followed: BTreeMap<ClassKey, Followed>,
    /// The link must be divided again.
    is_due: bool,
}

impl Allocations {
    /// Before the first division, which is due.
    pub(super) fn new(allocator: Allocator) -> Allocations {
        Allocations { allocator, followed: BTreeMap::new(), is_due: true }
    }

    /// Marks that the link must be divided again.
    pub(super) fn mark(&mut self) {
        self.is_due = true;
    }

    /// Whether the link must be divided again.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Uses another allocator from the next division on.
    pub(super) fn set_allocator(&mut self, allocator: Allocator) {
        self.allocator = allocator;
    }

    pub(super) fn get(&self, key: &ClassKey) -> Option<&Followed> {
        self.followed.get(key)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Followed> {
        self.followed.values()
    }

    /// Whether no class sends.
    pub(super) fn is_idle(&self) -> bool {
        self.all().all(|followed| !followed.estimator.demand().is_active())
    }

    /// Follows exactly the classes of the table.
    pub(super) fn follow(&mut self, table: &ClassTable) {
        let entries = table.entries();
        self.followed.retain(|key, f| entries.get(key).is_some_and(|e| e.minor == Some(f.minor)));
        for (key, entry) in entries {
            if let Some(minor) = entry.minor {
                self.followed.entry(key.clone()).or_insert_with(|| Followed {
                    minor,
                    estimator: Estimator::new(),
                    counters: Default::default(),
                    before: Default::default(),
                    queue_drops: 0,
                    queue_times: QueueTimes::default(),
                    allocation: BitRate::ZERO,
                    bound: Bound::Idle,
                });
            }
        }
    }

    /// Takes new counters of the classes. After a changed demand another division is due.
    pub(super) fn observe(&mut self, measured: &[Measured], now: Instant) {
        let by_minor: BTreeMap<u16, _> = measured.iter().map(|m| (m.minor, m.counters)).collect();
        for followed in self.followed.values_mut() {
            let Some(&counters) = by_minor.get(&followed.minor) else { continue };
            if counters.bytes < followed.counters.bytes {
                followed.before.bytes += followed.counters.bytes;
                followed.before.packets += followed.counters.packets;
                followed.before.drops += followed.drops();
                followed.queue_drops = 0;
            }
            let has_sent = counters.bytes != followed.counters.bytes;
            followed.counters = counters;
            if has_sent || counters.backlog > 0 {
                followed.queue_times.look(Bytes(counters.backlog), followed.allocation);
            }
            let sample = Sample { bytes: counters.bytes, backlog: counters.backlog };
            self.is_due |= followed.estimator.observe(now, sample, followed.allocation);
        }
    }

    /// Takes the drops of the queues, by minor.
    pub(super) fn set_drops(&mut self, drops: &BTreeMap<u16, u64>) {
        for followed in self.followed.values_mut() {
            followed.queue_drops = drops.get(&followed.minor).copied().unwrap_or(0);
        }
    }

    /// Divides the capacity by policy and demand. Returns the groups and classes of the scheduler's tree.
    pub(super) fn divide(
        &mut self,
        table: &ClassTable,
        capacity: BitRate,
    ) -> (Vec<plan::Group>, Vec<plan::Member>) {
        self.divide_under(table, capacity, &BTreeMap::new())
    }

    /// The same with limits for some classes and groups, by minor.
    pub(super) fn divide_under(
        &mut self,
        table: &ClassTable,
        capacity: BitRate,
        limits: &BTreeMap<u16, BitRate>,
    ) -> (Vec<plan::Group>, Vec<plan::Member>) {
        self.is_due = false;
        let mut group_keys: BTreeMap<&str, usize> = BTreeMap::new();
        let mut group_policies: Vec<Policy> = Vec::new();
        let mut groups: Vec<plan::Group> = Vec::new();
        for entry in table.entries().values().filter(|e| e.class.kind == ClassKind::Group) {
            let Some(minor) = entry.minor else { continue };
            group_keys.insert(&entry.class.name, groups.len());
            let (policy, zero) = (limited(entry.effective.policy, limits.get(&minor)), BitRate::ZERO);
            group_policies.push(policy);
            groups.push(plan::Group { minor, policy, allocation: zero, share: zero, target: zero });
        }
        let mut keys: Vec<&ClassKey> = Vec::new();
        let mut sharers: Vec<Sharer> = Vec::new();
        let mut members: Vec<plan::Member> = Vec::new();
        for (key, entry) in table.entries() {
            let (Some(minor), Some(followed)) = (entry.minor, self.followed.get(key)) else { continue };
            if entry.class.kind == ClassKind::Group {
                continue;
            }
            let demand = followed.estimator.demand();
            let group = entry.class.group.as_deref().and_then(|g| group_keys.get(g).copied());
            let policy = limited(entry.effective.policy, limits.get(&minor));
            keys.push(key);
            sharers.push(Sharer { policy, demand, group: group.and_then(|g| u32::try_from(g).ok()) });
            members.push(plan::Member {
                minor,
                group,
                policy,
                allocation: BitRate::ZERO,
                share: BitRate::ZERO,
                target: BitRate::ZERO,
                backlogged: demand.is_unlimited(),
                takes_all: followed.estimator.present().is_unlimited(),
                is_steady: followed.estimator.is_steady(),
                prio: u32::from(entry.class.kind != ClassKind::Control),
            });
        }
        let takers: Vec<Sharer> = sharers
            .iter()
            .zip(&keys)
            .map(|(sharer, key)| Sharer { demand: self.followed[*key].estimator.present(), ..*sharer })
            .collect();
        let awake: Vec<Sharer> = sharers
            .iter()
            .zip(&takers)
            .map(|(sharer, taker)| if sharer.demand.is_unlimited() { *sharer } else { *taker })
            .collect();
        let mut run = |sharers: &[Sharer],
                       of_member: fn(&mut plan::Member) -> &mut BitRate,
                       of_group: fn(&mut plan::Group) -> &mut BitRate| {
            self.allocator.allocate(capacity, &group_policies, sharers);
            for (member, rate) in members.iter_mut().zip(self.allocator.allocations()) {
                *of_member(member) = *rate;
            }
            for (group, rate) in groups.iter_mut().zip(self.allocator.group_allocations()) {
                *of_group(group) = *rate;
            }
        };
        run(&takers, |member| &mut member.target, |group| &mut group.target);
        run(&awake, |member| &mut member.share, |group| &mut group.share);
        // The last division is in force, and explained by its bounds.
        run(&sharers, |member| &mut member.allocation, |group| &mut group.allocation);
        for (i, key) in keys.iter().enumerate() {
            if let Some(followed) = self.followed.get_mut(*key) {
                followed.allocation = members[i].allocation;
                followed.bound = self.allocator.bounds()[i];
            }
        }
        for (name, i) in &group_keys {
            if let Some(followed) = self.followed.get_mut(&ClassKey::group(name)) {
                followed.allocation = groups[*i].allocation;
                followed.bound = self.allocator.group_bounds()[*i];
            }
        }
        (groups, members)
    }
}

impl Agent {
    /// Divides the link, and makes the scheduler enforce the division.
    ///
    /// Before the first discovery it writes nothing. It would otherwise remove the classes of the previous
    /// agent with their queued packets.
    pub(super) fn allocate(&mut self) {
        if !self.link.scheduler.has_seen_link() {
            return;
        }
        let (groups, members) = self.link.allocations.divide(&self.classes, self.in_force());
        let effects = self.link.scheduler.enforce(&groups, &members);
        self.follow_up(effects);
    }
}
