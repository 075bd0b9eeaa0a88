//! Metrics of what arrives, if the node shares its download.

use weir_api::{Activity, Class, Download, Status};

use super::{
    classes::{MAX_CLASSES, OfClass},
    page::{BYTES, NONE, PER_SECOND, Page, bytes_per_second, flag},
};

/// A value of a class.
type Value = fn(&Download) -> f64;

const GAUGES: [(&str, &str, &str, Value); 3] = [
    ("class_receive_rate", PER_SECOND, "Received over the last second", |d| bytes_per_second(d.rate)),
    ("class_receive_allocation", PER_SECOND, "The rate that it may receive at now", |d| {
        bytes_per_second(d.allocation)
    }),
    ("class_receive_enforced", NONE, "1 if all of its policy of what arrives holds, 0 if not", |d| {
        flag(d.enforced)
    }),
];

/// A count of a class.
type Count = fn(&Download) -> u64;

const COUNTERS: [(&str, &str, &str, Count); 2] = [
    ("class_received", BYTES, "Arrived by the link", |d| d.bytes.0),
    ("class_receive_dropped_packets", NONE, "Packets that arrived and found the queue full", |d| d.drops),
];

/// Writes them. Classes are bounded as those of the upload are.
pub(super) fn write(page: &mut Page, status: &Status, classes: &[Class]) {
    let Some(download) = &status.download else { return };
    for (name, help, rate) in [
        ("download_capacity", "The rate of what arrives that is shared", download.capacity),
        ("download_rate", "Received by all classes over the last second", download.rate),
        ("download_reserved", "The promised minima of what arrives", download.reserved),
        (
            "download_reservable",
            "The sum of minima of what arrives that may be promised",
            download.reservable,
        ),
    ] {
        page.gauge(name, PER_SECOND, help, bytes_per_second(rate));
    }
    let mut shown: Vec<(&Class, &Download)> =
        classes.iter().filter_map(|class| Some((class, class.down.as_ref()?))).collect();
    shown.sort_by_key(|(class, down)| (down.enforced, class.activity == Activity::Absent));
    shown.truncate(MAX_CLASSES);
    let labels = |c: &Class| OfClass { class: c.name.clone(), source: c.source.clone() };
    for (name, unit, help, value) in GAUGES {
        page.gauges(name, unit, help, shown.iter().map(|(class, down)| (labels(class), value(down))));
    }
    for (name, unit, help, count) in COUNTERS {
        page.counters(name, unit, help, shown.iter().map(|(class, down)| (labels(class), count(down))));
    }
}
