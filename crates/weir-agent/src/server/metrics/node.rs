//! Metrics of the agent and its link.

use prometheus_client::encoding::EncodeLabelSet;
use weir_api::Status;
use weir_units::BitRate;

use super::page::{NONE, PER_SECOND, Page, SECONDS, bytes_per_second, flag};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLink {
    device: String,
    engine: String,
    allocator: String,
    attach: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDevice {
    device: String,
}

/// A rate of a link.
type Rate = fn(&Status) -> BitRate;

const RATES: [(&str, &str, Rate); 4] = [
    ("link_capacity", "The rate that the link carries", |s| s.capacity),
    ("link_rate", "Sent by all classes over the last second", |s| s.rate),
    ("link_reserved", "The promised minima", |s| s.reserved),
    ("link_reservable", "The sum of minima that may be promised", |s| s.reservable),
];

pub(super) fn build(page: &mut Page) {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    page.info("build", "The version of weir", Build { version });
}

pub(super) fn write(page: &mut Page, status: &Status) {
    let device = || OfDevice { device: status.link.clone() };
    let link = OfLink {
        device: status.link.clone(),
        engine: status.engine.clone(),
        allocator: status.allocator.clone(),
        attach: status.attach.clone(),
    };
    page.info("link", "The link's device, and what divides it", link);
    let all: Vec<Status> = status.other_links.iter().map(|other| status.on(other)).collect();
    let all = || [status].into_iter().chain(&all);
    let of = |status: &Status| OfDevice { device: status.link.clone() };
    for (name, help, rate) in RATES {
        page.gauges(name, PER_SECOND, help, all().map(|link| (of(link), bytes_per_second(rate(link)))));
    }
    if !status.other_links.is_empty() {
        let main = all().map(|link| (of(link), flag(link.link == status.link)));
        page.gauges("link_main", NONE, "1 for the link that the default route takes, else 0", main);
        let here = status.other_links.iter().map(|other| (other.device.clone(), flag(other.is_here)));
        let here = here.map(|(device, is_here)| (OfDevice { device }, is_here));
        page.gauges("link_here", NONE, "1 if the node has the device of the link beside the main one", here);
    }
    if let Some(follows) = &status.follows {
        for (name, help, rate) in [
            ("link_capacity_min", "The lowest capacity of a link whose rate changes", follows.min),
            ("link_capacity_max", "The highest capacity of a link whose rate changes", follows.max),
        ] {
            page.gauges(name, PER_SECOND, help, [(device(), bytes_per_second(rate))]);
        }
    }
    let configured = status.configured_capacity.unwrap_or(status.capacity);
    let help = "The capacity of the configuration; it differs from link_capacity where that is set by hand";
    page.gauges("link_configured", PER_SECOND, help, [(device(), bytes_per_second(configured))]);
    let taken = status.config_taken_ms as f64 / 1000.0;
    let is_taken = status.config_error.is_none();
    let (ready, late) = (status.not_ready.is_empty(), status.max_tick_delay_us as f64 / 1e6);
    for (name, unit, help, value) in [
        ("ready", NONE, "1 if the link is divided as configured, else 0", flag(ready)),
        ("warnings", NONE, "Warnings that weir status shows", status.warnings.len() as f64),
        (
            "state_notices",
            NONE,
            "Notices of damage to the state, not acknowledged",
            status.notices.len() as f64,
        ),
        ("config_last_reload_successful", NONE, "0 if the present file was refused, else 1", flag(is_taken)),
        ("config_last_reload_success_timestamp", SECONDS, "When the configuration in force was taken", taken),
        ("tick_delay_max", SECONDS, "The longest delay of a tick of the agent's loop since the start", late),
        ("uptime", SECONDS, "Time since the agent started", status.uptime_s as f64),
    ] {
        page.gauge(name, unit, help, value);
    }
    page.counter("repairs", "Alterations by others that were repaired", status.repairs);
    let help = "Requests over TCP with a token that was not taken";
    page.counter("api_failed_authentications", help, status.failed_authentications);
    page.counter("kernel_writes", "Writes to the kernel's scheduler", status.class_changes);
    if let (Some(times), Some(us)) = (status.late, status.late_us) {
        page.counter("scheduler_late", "Delays of the scheduler's process that cost link time", times);
        let lost = [(device(), us as f64 / 1e6)];
        page.counters_of_fractions("scheduler_lost", SECONDS, "Link time that these delays cost", lost);
    }
}
