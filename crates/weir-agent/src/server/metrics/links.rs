//! Metrics of classes by link, where several links are shared.

use prometheus_client::encoding::EncodeLabelSet;
use weir_api::{Activity, Class, Status};

use super::{
    classes::MAX_CLASSES,
    page::{BYTES, NONE, PER_SECOND, Page, bytes_per_second, flag},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLink {
    link: String,
    class: String,
    source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    link: String,
    class: String,
    source: String,
    reason: String,
}

/// A value of a class on a link, if it has one.
type Value = fn(&Class) -> Option<f64>;

const GAUGES: [(&str, &str, &str, Value); 5] = [
    ("link_class_rate", PER_SECOND, "Sent by the link over the last second", |c| {
        Some(bytes_per_second(c.rate))
    }),
    ("link_class_allocation", PER_SECOND, "The rate that the class may send at by the link now", |c| {
        Some(bytes_per_second(c.allocation))
    }),
    ("link_class_backlog", BYTES, "Waiting for the link now", |c| Some(c.backlog.0 as f64)),
    ("link_class_policy_min", PER_SECOND, "The minimum promised on the link; missing without one", |c| {
        c.policy.min.map(bytes_per_second)
    }),
    ("link_class_receive_rate", PER_SECOND, "Received by the link over the last second", |c| {
        c.down.as_ref().map(|down| bytes_per_second(down.rate))
    }),
];

/// A count of a class on a link, if it has one.
type Count = fn(&Class) -> Option<u64>;

const COUNTERS: [(&str, &str, &str, Count); 4] = [
    ("link_class_sent", BYTES, "Sent by the link", |c| Some(c.bytes.0)),
    ("link_class_sent_packets", NONE, "Packets sent by the link, each segment of a large one", |c| {
        Some(c.packets)
    }),
    ("link_class_dropped_packets", NONE, "Packets dropped at the link because the queue was full", |c| {
        Some(c.drops)
    }),
    ("link_class_received", BYTES, "Arrived by the link, without drops", |c| {
        c.down.as_ref().map(|down| down.bytes.0)
    }),
];

/// Writes nothing if the node shares one link.
pub(super) fn write(page: &mut Page, status: &Status, classes: &[Class]) {
    if status.other_links.is_empty() {
        return;
    }
    let mut shown: Vec<&Class> = classes.iter().collect();
    // A class that is not enforced is never left out before one that is.
    shown.sort_by_key(|class| (class.enforced, class.activity == Activity::Absent));
    shown.truncate(MAX_CLASSES);
    let on_others = |class: &Class| -> Vec<(String, Class)> {
        class.on_links.iter().map(|part| (part.link.clone(), class.on(part))).collect()
    };
    let on_main = |class: &Class| (status.link.clone(), class.clone());
    let parts: Vec<(String, Class)> =
        shown.iter().flat_map(|class| on_others(class).into_iter().chain([on_main(class)])).collect();
    let labels = |(link, class): &(String, Class)| OfLink {
        link: link.clone(),
        class: class.name.clone(),
        source: class.source.clone(),
    };
    let enforced = parts.iter().map(|part| {
        let OfLink { link, class, source } = labels(part);
        let reason = part.1.not_enforced.as_ref().map_or("", |reason| reason.as_str()).to_owned();
        (OfReason { link, class, source, reason }, flag(part.1.enforced))
    });
    let help =
        "1 if the kernel holds all of the class's policy on the link, 0 if not, with the kind of reason";
    page.gauges("link_class_enforced", NONE, help, enforced);
    for (name, unit, help, value) in GAUGES {
        page.gauges(name, unit, help, parts.iter().filter_map(|part| Some((labels(part), value(&part.1)?))));
    }
    for (name, unit, help, count) in COUNTERS {
        page.counters(
            name,
            unit,
            help,
            parts.iter().filter_map(|part| Some((labels(part), count(&part.1)?))),
        );
    }
    let moved = shown.iter().map(|class| {
        let labels = super::classes::OfClass { class: class.name.clone(), source: class.source.clone() };
        (labels, class.moved_packets)
    });
    let help = "Packets that left by another link than their route said, and were charged to both";
    page.counters("class_moved_packets", NONE, help, moved);
}
