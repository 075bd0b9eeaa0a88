//! Metrics of classes.

use std::collections::HashSet;

use prometheus_client::encoding::EncodeLabelSet;
use weir_api::{Activity, Class, OnLink};

use super::page::{BYTES, Histogram, NONE, PER_SECOND, Page, SECONDS, bytes_per_second, flag};
use crate::{
    agent::queue_time::{BOUNDS_MS, QueueTimes},
    control::ClassQueueTimes,
};

/// The most classes with metrics of their own. A policy for an absent name has metrics too.
pub(super) const MAX_CLASSES: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfClass {
    pub(super) class: String,
    pub(super) source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfReason {
    pub(super) class: String,
    pub(super) source: String,
    pub(super) reason: String,
}

/// A value of a class, if it has one.
type Value = fn(&Class) -> Option<f64>;

const GAUGES: [(&str, &str, &str, Value); 9] = [
    ("class_rate", PER_SECOND, "Sent over the last second", |c| Some(bytes_per_second(c.rate))),
    ("class_allocation", PER_SECOND, "The rate that it may send at now", |c| {
        Some(bytes_per_second(c.allocation))
    }),
    (
        "class_demand",
        PER_SECOND,
        "The rate that it would send at; missing if it takes all that it is given",
        |c| c.demand.map(bytes_per_second),
    ),
    ("class_backlog", BYTES, "Waiting now", |c| Some(c.backlog.0 as f64)),
    ("class_active", NONE, "1 if it sent or queued something in the last moments, else 0", |c| {
        Some(flag(c.activity == Activity::Active))
    }),
    ("class_policy_weight", NONE, "The relative share by policy", |c| Some(f64::from(c.policy.weight.get()))),
    ("class_policy_min", PER_SECOND, "The promised minimum; missing without one", |c| {
        c.policy.min.map(bytes_per_second)
    }),
    ("class_policy_max", PER_SECOND, "The maximum; missing without one", |c| {
        c.policy.max.map(bytes_per_second)
    }),
    (
        "class_unpromised_min",
        PER_SECOND,
        "The minimum that is asked for and not promised; missing without one",
        |c| c.unpromised.map(bytes_per_second),
    ),
];

/// A count of a class.
type Count = fn(&Class) -> u64;

/// The sum over all links. The main link, to which a class's own figures belong, is another one after the default
/// route has moved.
fn on_all_links(main: u64, class: &Class, part: fn(&OnLink) -> u64) -> u64 {
    class.on_links.iter().map(part).fold(main, u64::saturating_add)
}

const COUNTERS: [(&str, &str, &str, Count); 4] = [
    ("class_sent", BYTES, "Sent over all links", |c| on_all_links(c.bytes.0, c, |part| part.bytes.0)),
    ("class_sent_packets", NONE, "Packets sent over all links, each segment of a large one", |c| {
        on_all_links(c.packets, c, |part| part.packets)
    }),
    ("class_dropped_packets", NONE, "Packets dropped because the queue was full", |c| {
        on_all_links(c.drops, c, |part| part.drops)
    }),
    ("class_local", BYTES, "Sent on this node or to exempt networks, and not charged to the link", |c| {
        c.local_bytes.0
    }),
];

/// Writes the times that packets wait, of the same classes.
fn queue_times(page: &mut Page, shown: &[&Class], all: &[ClassQueueTimes]) {
    let is_shown: HashSet<(&str, &str)> = shown.iter().map(|c| (&*c.name, &*c.source)).collect();
    let shown: Vec<&ClassQueueTimes> =
        all.iter().filter(|times| is_shown.contains(&(&*times.class, &*times.source))).collect();
    let labels = |t: &ClassQueueTimes| OfClass { class: t.class.clone(), source: t.source.clone() };
    let of = |times: &QueueTimes| (!times.is_empty()).then(|| histogram(times));
    let sent = shown.iter().filter_map(|t| Some((labels(t), of(&t.sent)?)));
    let help = "The time that its queue takes to leave, at each look at which it sent or waited";
    page.histograms("class_queue", SECONDS, help, sent);
    let received = shown.iter().filter_map(|t| Some((labels(t), of(t.received.as_ref()?)?)));
    let help = "The time that its queue of what arrived takes, at each look at which it received or waited";
    page.histograms("class_receive_queue", SECONDS, help, received);
}

fn histogram(times: &QueueTimes) -> Histogram {
    let bounds = BOUNDS_MS.iter().map(|ms| *ms as f64 / 1e3).chain([f64::INFINITY]);
    Histogram { sum: times.sum.as_secs_f64(), buckets: bounds.zip(times.looks).collect() }
}

/// Returns the number of classes that are left out.
pub(super) fn write(page: &mut Page, classes: &[Class], queues: &[ClassQueueTimes]) -> usize {
    page.gauge("classes", NONE, "Classes, also those that are not here now", classes.len() as f64);
    let mut shown: Vec<&Class> = classes.iter().collect();
    // A class that is not enforced is never left out before one that is.
    shown.sort_by_key(|class| (class.enforced, class.activity == Activity::Absent));
    shown.truncate(MAX_CLASSES);
    let labels = |c: &Class| OfClass { class: c.name.clone(), source: c.source.clone() };
    let enforced = shown.iter().map(|c| {
        let OfClass { class, source } = labels(c);
        let reason = c.not_enforced.as_ref().map_or("", |reason| reason.as_str()).to_owned();
        (OfReason { class, source, reason }, flag(c.enforced))
    });
    let help = "1 if the kernel holds all of its policy, 0 if not, with the kind of reason";
    page.gauges("class_enforced", NONE, help, enforced);
    for (name, unit, help, value) in GAUGES {
        page.gauges(name, unit, help, shown.iter().filter_map(|c| Some((labels(c), value(c)?))));
    }
    for (name, unit, help, count) in COUNTERS {
        page.counters(name, unit, help, shown.iter().map(|c| (labels(c), count(c))));
    }
    let held = shown.iter().map(|c| {
        let ms = on_all_links(c.backpressured_ms, c, |part| part.backpressured_ms);
        (labels(c), ms as f64 / 1000.0)
    });
    page.counters_of_fractions(
        "class_backpressured",
        SECONDS,
        "Time with a queue, which holds senders back",
        held,
    );
    queue_times(page, &shown, queues);
    classes.len() - shown.len()
}
