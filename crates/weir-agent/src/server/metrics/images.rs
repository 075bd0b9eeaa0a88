//! Metrics of the image cache, and of Docker's own images.

use weir_api::RuntimeImages;
use weir_image::{Mirror, store::Usage};

use super::page::{BYTES, NONE, PER_SECOND, Page, SECONDS, flag};

pub(super) fn cache(page: &mut Page, usage: &Usage, mirror: &Mirror) {
    let site = mirror.site();
    for (name, unit, help, value) in [
        ("images_site_nodes", NONE, "Nodes that have one cache together", site.nodes.len() as f64),
        ("images_site_lost", NONE, "1 if the nodes cannot coordinate, else 0", flag(site.problem.is_some())),
        ("images_used", BYTES, "Blobs of images", usage.bytes as f64),
        ("images_reserved", BYTES, "Set aside for downloads of images", usage.reserved as f64),
        ("images_held", BYTES, "Blobs that may not be evicted now", usage.held as f64),
        ("images_budget", BYTES, "The bound of blobs and reservations", usage.budget as f64),
        ("images_disk_free", BYTES, "Free space of the file system of images", usage.free as f64),
    ] {
        page.gauge(name, unit, help, value);
    }
    if let Some(at) = mirror.store().oldest_check() {
        let help = "When the blob with the oldest check was checked";
        page.gauge("images_oldest_check_timestamp", SECONDS, help, at.unix_millis() as f64 / 1000.0);
    }
    if let Some(rate) = mirror.max_rate() {
        page.gauge(
            "images_max_rate",
            PER_SECOND,
            "The bound of downloads from registries",
            rate.0 as f64 / 8.0,
        );
    }
    let counts = [
        ("evicted", "Blobs that left to make room", usage.counts.evicted),
        ("evicted_bytes", "Bytes of blobs that left to make room", usage.counts.evicted_bytes),
        ("corrupt", "Files whose content was not that of their name", usage.counts.corrupt),
        ("no_room", "Downloads refused for want of room", usage.counts.refused),
    ];
    let counted = mirror.counted();
    for (name, help, value) in counted.iter().map(|c| (c.name, c.help, c.value)).chain(counts) {
        page.counter(format!("images_{name}"), help, value);
    }
}

pub(super) fn serves(page: &mut Page, serves: bool) {
    page.gauge("images_serving", NONE, "1 if the image cache serves, else 0", flag(serves));
}

pub(super) fn frozen(page: &mut Page, times: u64) {
    page.counter("images_frozen", "Mirrors given up because they did not answer themselves", times);
}

/// The images that Docker keeps.
pub(super) fn runtime(page: &mut Page, runtime: &RuntimeImages) {
    let leaving = runtime.images.iter().filter(|image| image.leaves.is_some()).count();
    for (name, unit, help, value) in [
        ("runtime_images", NONE, "Images that Docker keeps", runtime.images.len() as f64),
        ("runtime_images_used", BYTES, "Layers of images that Docker keeps", runtime.bytes.0 as f64),
        ("runtime_images_budget", BYTES, "The bound of their layers", runtime.budget.0 as f64),
        ("runtime_images_short", BYTES, "Excess that no removal can free now", runtime.short.0 as f64),
        ("runtime_images_leaving", NONE, "Images that have to go now", leaving as f64),
        ("runtime_images_lost", NONE, "1 if Docker does not answer, else 0", flag(runtime.problem.is_some())),
    ] {
        page.gauge(name, unit, help, value);
    }
    for (name, help, value) in [
        ("runtime_images_removed", "Images of Docker that were removed", runtime.removed),
        ("runtime_images_removed_bytes", "Bytes that removals freed", runtime.removed_bytes.0),
        ("runtime_images_refused", "Removals that Docker refused", runtime.refused),
    ] {
        page.counter(name, help, value);
    }
}
