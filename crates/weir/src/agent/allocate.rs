//! Turns policies and demands into the scheduler's tree.

use std::collections::BTreeMap;

use weir_api::Kind;
use weir_datapath::engine::plan;
use weir_netlink::tc::Counters;
use weir_share::{Bound, Policy, Sharer};
use weir_units::BitRate;
use weir_units::chain;

use super::{Agent, class_key::ClassKey, demand::Estimator};

/// The state of one class, by key.
pub(super) struct Followed {
    pub(super) minor: u16,
    pub(super) estimator: Estimator,
    /// The counters of the present scheduler class. `before` sums those of its predecessors.
    pub(super) counters: Counters,
    pub(super) before: Counters,
    /// Packets dropped by the present class's queue at the last read.
    pub(super) queue_drops: u64,
    pub(super) allocation: BitRate,
    pub(super) bound: Bound,
}

impl Followed {
    /// Packets dropped by the present class.
    pub(super) fn drops(&self) -> u64 {
        self.counters.drops.max(self.queue_drops)
    }
}

impl Agent {
    /// Whether the node was surveyed since the agent started.
    pub(super) fn has_discovered(&self) -> bool {
        self.link.is_some()
    }

    /// Follows exactly the classes of the class table.
    pub(super) fn follow(&mut self) {
        let entries = self.classes.entries();
        self.followed.retain(|key, f| entries.get(key).is_some_and(|e| e.minor == Some(f.minor)));
        for (key, entry) in entries {
            if let Some(minor) = entry.minor {
                self.followed.entry(key.clone()).or_insert_with(|| Followed {
                    minor,
                    estimator: Estimator::new(),
                    counters: Default::default(),
                    before: Default::default(),
                    queue_drops: 0,
                    allocation: BitRate::ZERO,
                    bound: Bound::Idle,
                });
            }
        }
    }

    /// Divides the link by policy and demand, and makes the scheduler enforce the division.
    ///
    /// Before the first discovery it writes nothing. It would otherwise remove the classes of the previous
    /// agent with their queued packets.
    pub(super) fn allocate(&mut self) {
        if !self.has_discovered() {
            return;
        }
        let mut group_keys: BTreeMap<&str, usize> = BTreeMap::new();
        let mut group_policies: Vec<Policy> = Vec::new();
        let mut groups: Vec<plan::Group> = Vec::new();
        for entry in self.classes.entries().values().filter(|e| e.class.kind == Kind::Group) {
            let Some(minor) = entry.minor else { continue };
            group_keys.insert(&entry.class.name, groups.len());
            group_policies.push(entry.effective.policy);
            groups.push(plan::Group { minor, policy: entry.effective.policy, allocation: BitRate::ZERO });
        }
        let mut keys: Vec<&ClassKey> = Vec::new();
        let mut sharers: Vec<Sharer> = Vec::new();
        let mut members: Vec<plan::Member> = Vec::new();
        for (key, entry) in self.classes.entries() {
            let (Some(minor), Some(followed)) = (entry.minor, self.followed.get(key)) else { continue };
            if entry.class.kind == Kind::Group {
                continue;
            }
            let demand = followed.estimator.demand();
            let group = entry.class.group.as_deref().and_then(|g| group_keys.get(g).copied());
            let policy = entry.effective.policy;
            keys.push(key);
            sharers.push(Sharer { policy, demand, group: group.and_then(|g| u32::try_from(g).ok()) });
            members.push(plan::Member {
                minor,
                group,
                policy,
                allocation: BitRate::ZERO,
                hungry: demand.is_unlimited(),
                prio: u32::from(entry.class.kind != Kind::Control),
            });
        }
        let capacity = self.classes.config().link.capacity;
        self.allocator.allocate(capacity, &group_policies, &sharers);
        for (i, key) in keys.iter().enumerate() {
            members[i].allocation = self.allocator.allocations()[i];
            if let Some(followed) = self.followed.get_mut(*key) {
                followed.allocation = self.allocator.allocations()[i];
                followed.bound = self.allocator.bounds()[i];
            }
        }
        for (i, group) in groups.iter_mut().enumerate() {
            group.allocation = self.allocator.group_allocations()[i];
        }
        for (name, i) in &group_keys {
            if let Some(followed) = self.followed.get_mut(&ClassKey::group(name)) {
                followed.allocation = groups[*i].allocation;
                followed.bound = self.allocator.group_bounds()[*i];
            }
        }
        match self.datapath.apply(&groups, &members, self.is_new_here) {
            Ok(_) => {
                self.dirty = false;
                self.engine_error = None;
            }
            Err(e) => self.fault(chain(&e)),
        }
    }
}
