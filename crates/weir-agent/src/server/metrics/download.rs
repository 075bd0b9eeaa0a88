//! Metrics of what arrives.

use prometheus_client::encoding::EncodeLabelSet;
use weir_api::{Activity, Class, Download, Status};

use super::{
    classes::{MAX_CLASSES, OfClass, OfReason},
    page::{BYTES, NONE, PER_SECOND, Page, bytes_per_second, flag},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDevice {
    device: String,
}

/// A value of a class, if it has one.
type Value = fn(&Download) -> Option<f64>;

const GAUGES: [(&str, &str, &str, Value); 10] = [
    ("class_receive_rate", PER_SECOND, "Received over the last second", |d| Some(bytes_per_second(d.rate))),
    ("class_receive_allocation", PER_SECOND, "The rate that it may receive at now", |d| {
        Some(bytes_per_second(d.allocation))
    }),
    (
        "class_receive_demand",
        PER_SECOND,
        "The rate that it would receive at; missing if it takes all that it is given",
        |d| d.demand.map(bytes_per_second),
    ),
    (
        "class_receive_charged",
        PER_SECOND,
        "The part of its share that pays for dropped packets, with charge_drops",
        |d| Some(bytes_per_second(d.charged)),
    ),
    ("class_receive_backlog", BYTES, "Received and waiting now", |d| Some(d.backlog.0 as f64)),
    ("class_receive_active", NONE, "1 if something arrived for it in the last moments, else 0", |d| {
        Some(flag(d.activity == Activity::Active))
    }),
    ("class_receive_policy_weight", NONE, "The relative share of what arrives, by policy", |d| {
        Some(f64::from(d.policy.weight.get()))
    }),
    (
        "class_receive_policy_min",
        PER_SECOND,
        "The promised minimum of what arrives; missing without one",
        |d| d.policy.min.map(bytes_per_second),
    ),
    ("class_receive_policy_max", PER_SECOND, "The maximum of what arrives; missing without one", |d| {
        d.policy.max.map(bytes_per_second)
    }),
    (
        "class_receive_unpromised_min",
        PER_SECOND,
        "The minimum of what arrives that is asked for and not promised; missing without one",
        |d| d.unpromised.map(bytes_per_second),
    ),
];

/// A count of what arrives for a class by a link.
type Count = fn(&Download) -> u64;

const COUNTERS: [(&str, &str, &str, Count); 3] = [
    ("class_received", BYTES, "Arrived by the link, without drops", |d| d.bytes.0),
    ("class_received_packets", NONE, "Packets that arrived, each segment of a large one", |d| d.packets),
    ("class_receive_dropped_packets", NONE, "Packets that arrived and were dropped at a full queue", |d| {
        d.drops
    }),
];

/// Writes nothing if the node does not share its download. Returns the number of classes that are left out.
pub(super) fn write(page: &mut Page, status: &Status, classes: &[Class]) -> usize {
    let Some(download) = &status.download else { return 0 };
    let device = || OfDevice { device: status.link.clone() };
    for (name, help, rate) in [
        ("download_capacity", "The rate that is shared of what arrives", download.capacity),
        ("download_rate", "Received by all classes over the last second", download.rate),
        ("download_reserved", "The promised minima of what arrives", download.reserved),
        (
            "download_reservable",
            "The sum of minima of what arrives that may be promised",
            download.reservable,
        ),
        (
            "download_charged",
            "The part of the download that pays for dropped packets, beside what classes pay",
            download.charged,
        ),
    ] {
        page.gauges(name, PER_SECOND, help, [(device(), bytes_per_second(rate))]);
    }
    if let Some(follows) = &download.follows {
        for (name, help, rate) in [
            ("download_capacity_min", "The lowest download of a link whose rate changes", follows.min),
            ("download_capacity_max", "The highest download of a link whose rate changes", follows.max),
        ] {
            page.gauges(name, PER_SECOND, help, [(device(), bytes_per_second(rate))]);
        }
    }
    let configured = download.configured_capacity.unwrap_or(download.capacity);
    let help =
        "The download of the configuration; it differs from download_capacity where that is set by hand";
    page.gauges("download_configured", PER_SECOND, help, [(device(), bytes_per_second(configured))]);
    let of_download = |class| Some((class, class_down(class)?));
    let mut shown: Vec<(&Class, &Download)> = classes.iter().filter_map(of_download).collect();
    let all = shown.len();
    // A class that is not enforced is never left out before one that is.
    shown.sort_by_key(|(_, down)| (down.enforced, down.activity == Activity::Absent));
    shown.truncate(MAX_CLASSES);
    let labels = |c: &Class| OfClass { class: c.name.clone(), source: c.source.clone() };
    let enforced = shown.iter().map(|(c, down)| {
        let OfClass { class, source } = labels(c);
        let reason = down.not_enforced.as_ref().map_or("", |reason| reason.as_str()).to_owned();
        (OfReason { class, source, reason }, flag(down.enforced))
    });
    let help = "1 if the kernel holds all of its policy of what arrives, 0 if not, with the kind of reason";
    page.gauges("class_receive_enforced", NONE, help, enforced);
    for (name, unit, help, value) in GAUGES {
        page.gauges(name, unit, help, shown.iter().filter_map(|(c, down)| Some((labels(c), value(down)?))));
    }
    for (name, unit, help, count) in COUNTERS {
        // The sum over all links, as of what leaves.
        let all = |c: &Class, down: &Download| {
            let others = c.on_links.iter().filter_map(|part| part.down.as_ref()).map(count);
            others.fold(count(down), u64::saturating_add)
        };
        page.counters(name, unit, help, shown.iter().map(|(c, down)| (labels(c), all(c, down))));
    }
    all - shown.len()
}

fn class_down(class: &Class) -> Option<&Download> {
    class.down.as_ref()
}
