//! The figures of a class in one direction, for views.

use weir_api::{Activity, ClassKind, PolicyView};
use weir_share::Demand;
use weir_units::{BitRate, Bytes};

use super::{
    Agent, activity,
    allocate::{Allocations, Followed},
    class_key::ClassKey,
    class_table::{ClassEntry, ClassTable},
    queue_time::ClassQueueTimes,
};

/// The policy, the allocation and the counters of a class or group.
pub(super) struct Figures {
    pub(super) activity: Activity,
    pub(super) policy: PolicyView,
    pub(super) allocation: BitRate,
    pub(super) rate: BitRate,
    pub(super) demand: Option<BitRate>,
    pub(super) bytes: Bytes,
    pub(super) packets: u64,
    pub(super) drops: u64,
    pub(super) backlog: Bytes,
    pub(super) backlog_packets: u64,
    pub(super) backpressured_ms: u64,
    pub(super) unpromised: Option<BitRate>,
}

impl Figures {
    /// Those of an entry of a table.
    pub(super) fn of(table: &ClassTable, allocations: &Allocations, entry: &ClassEntry) -> Figures {
        let key = &entry.class.key();
        let followed = allocations.get(key);
        // A group's rate is the sum of its members' rates.
        let parts: Vec<&Followed> = if entry.class.kind == ClassKind::Group {
            let is_member = |e: &ClassEntry| e.class.group.as_deref() == Some(&entry.class.name);
            let members = table.entries().iter().filter(|(_, e)| is_member(e));
            members.filter_map(|(key, _)| allocations.get(key)).collect()
        } else {
            followed.into_iter().collect()
        };
        let sum = |part: fn(&Followed) -> u64| parts.iter().map(|f| part(f)).fold(0, u64::saturating_add);
        let demand = parts
            .iter()
            .map(|f| f.estimator.demand())
            .fold(Demand::NONE, |all, one| Demand::rate(all.get().saturating_add(one.get())));
        let effective = entry.effective;
        Figures {
            activity: activity(entry.minor, demand),
            policy: PolicyView {
                weight: effective.policy.weight(),
                min: effective.policy.min(),
                max: effective.policy.max(),
                weight_origin: effective.origins[0],
                min_origin: effective.origins[1],
                max_origin: effective.origins[2],
            },
            allocation: followed.map_or(BitRate::ZERO, |f| f.allocation),
            rate: BitRate(sum(|f| f.estimator.rate().0)),
            demand: (!demand.is_unlimited()).then(|| demand.get()),
            bytes: Bytes(sum(|f| f.before.bytes + f.counters.bytes)),
            packets: sum(|f| f.before.packets + f.counters.packets),
            drops: sum(|f| f.before.drops + f.drops()),
            backlog: Bytes(sum(|f| f.counters.backlog)),
            backlog_packets: sum(|f| f.counters.queued),
            backpressured_ms: sum(|f| {
                u64::try_from(f.estimator.backpressured().as_millis()).unwrap_or(u64::MAX)
            }),
            unpromised: entry.unpromised.as_ref().map(|unpromised| unpromised.min),
        }
    }
}

impl Agent {
    /// The times of each class that is here. A group has no queue of its own.
    pub(super) fn queue_times(&self) -> Vec<ClassQueueTimes> {
        let entries = self.classes.entries().iter().filter(|(_, entry)| entry.class.kind != ClassKind::Group);
        let of = |allocations: &Allocations, key: &ClassKey| {
            allocations.get(key).map(|followed| followed.queue_times)
        };
        let times = |(key, entry): (&ClassKey, &ClassEntry)| {
            Some(ClassQueueTimes {
                class: entry.class.name.clone(),
                source: entry.class.source.to_string(),
                sent: of(&self.link.allocations, key)?,
                received: self.link.download.as_ref().and_then(|download| of(&download.allocations, key)),
            })
        };
        entries.filter_map(times).collect()
    }
}
