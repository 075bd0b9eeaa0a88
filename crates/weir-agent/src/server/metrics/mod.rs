//! `GET /metrics`: classes, the link and agreements as OpenMetrics text, for Prometheus.

use std::sync::atomic::AtomicU64;

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use weir_agree::GuaranteeState;
use weir_api::{AgreementStatus, Class, CongestionView, RuntimeImages, Status};
use weir_cc::{AdviceView, Interval, StatsView};
use weir_image::{Mirror, now_utc, store::Usage};
use weir_units::BitRate;

use super::{Failure, ask, congestion::asked};
use crate::{
    agent::{agree::AgreementsRequest, congestion::CongestionRequest},
    control::{Control, Request},
    images::Images,
};

/// OpenMetrics 1.0.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The sources of the metrics.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    pub(super) control: Control,
    pub(super) images: Images,
}

pub(super) async fn metrics(State(measured): State<Measured>) -> Result<Response, Failure> {
    let Measured { control, images } = measured;
    let status = ask(&control, Request::Status).await?;
    let classes = ask(&control, Request::Classes).await?;
    // A node without `[agreements]` has none.
    let agreements = ask(&control, |reply| Request::Agreements(AgreementsRequest::Statuses(reply)))
        .await?
        .unwrap_or_default();
    let congestion =
        (asked(&control, CongestionRequest::View).await?, asked(&control, CongestionRequest::Stats).await?);
    let advice = asked(&control, CongestionRequest::Advice).await?;
    // The cache is asked on a thread where its disk cannot delay the loop.
    let (frozen, runtime) = (images.frozen(), images.runtime().state());
    let images = tokio::task::spawn_blocking(move || {
        images.get().ok().and_then(|(mirror, _)| Some((mirror.store().usage(now_utc()).ok()?, mirror)))
    });
    let images = images.await.ok().flatten();
    let agent = Some((&status, &*classes, &*agreements, &congestion, &*advice));
    Ok(answer(text(agent, images.as_ref(), frozen, runtime.as_ref())))
}

/// The metrics of the image cache alone.
pub(super) async fn of_images_alone(State(images): State<Images>) -> Response {
    let frozen = images.frozen();
    let images = tokio::task::spawn_blocking(move || {
        images.get().ok().and_then(|(mirror, _)| Some((mirror.store().usage(now_utc()).ok()?, mirror)))
    });
    answer(text(None, images.await.ok().flatten().as_ref(), frozen, None))
}

fn answer(text: String) -> Response {
    ([(header::CONTENT_TYPE, TYPE)], text).into_response()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfClass {
    class: String,
    source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAgreement {
    agreement: String,
    party: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFlows {
    to: String,
    below: String,
    algorithm: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQuantile {
    to: String,
    below: String,
    algorithm: String,
    quantile: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPath {
    to: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTrial {
    to: String,
    algorithm: String,
    of: &'static str,
}

type Gauges<L> = Family<L, Gauge<f64, AtomicU64>>;
type Counters<L> = Family<L, Counter>;

/// The rate in bytes per second, as is usual in Prometheus.
fn bytes_per_second(rate: BitRate) -> f64 {
    rate.0 as f64 / 8.0
}

/// The answers of the agent's loop: status, classes, agreements, congestion control.
type OfAgent<'a> =
    (&'a Status, &'a [Class], &'a [AgreementStatus], &'a (CongestionView, StatsView), &'a [AdviceView]);

fn text(
    agent: Option<OfAgent<'_>>,
    images: Option<&(Usage, Mirror)>,
    frozen: u64,
    runtime: Option<&RuntimeImages>,
) -> String {
    let mut registry = Registry::with_prefix("weir");
    if let Some((status, classes, agreements, congestion, advice)) = agent {
        of_link(&mut registry, status);
        of_classes(&mut registry, classes);
        of_agreements(&mut registry, agreements);
        of_congestion(&mut registry, congestion);
        of_advice(&mut registry, advice);
    }
    if let Some((usage, mirror)) = images {
        of_images(&mut registry, usage, mirror);
    }
    if let Some(runtime) = runtime {
        of_runtime(&mut registry, runtime);
    }
    if images.is_some() || frozen > 0 {
        let counter = Counter::<u64>::default();
        counter.inc_by(frozen);
        registry.register(
            "images_frozen",
            "Mirrors given up because they did not answer themselves",
            counter,
        );
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

fn of_images(registry: &mut Registry, usage: &Usage, mirror: &Mirror) {
    let (site, counted) = (mirror.site(), mirror.counted());
    let gauges = [
        ("images_site_nodes", "Nodes that have one cache together", site.nodes.len() as u64),
        ("images_site_lost", "Whether the nodes cannot coordinate", u64::from(site.problem.is_some())),
        ("images_used", "Blobs of images, bytes", usage.bytes),
        ("images_reserved", "Set aside for downloads of images, bytes", usage.reserved),
        ("images_held", "Blobs that may not be evicted now, bytes", usage.held),
        ("images_budget", "The most that blobs of images may take, bytes", usage.budget),
        (
            "images_oldest_check",
            "When the blob that was checked the longest ago was, seconds since 1970",
            mirror.store().oldest_check().map_or(0, |at| at.unix_millis() / 1000),
        ),
        (
            "images_max_rate",
            "The most that is downloaded from registries, bytes per second; 0: no bound",
            mirror.max_rate().map_or(0, |rate| rate.0 / 8),
        ),
        ("images_disk_free", "What the file system of images has left, bytes", usage.free),
    ];
    for (name, help, value) in gauges {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value as f64);
        registry.register(name, help, gauge);
    }
    let counts = [
        ("evicted", "Blobs that left to make room", usage.counts.evicted),
        ("evicted_bytes", "Their bytes", usage.counts.evicted_bytes),
        ("corrupt", "Files that were not what they were called", usage.counts.corrupt),
        ("no_room", "Downloads refused for want of room", usage.counts.refused),
    ];
    let counted = counted.iter().map(|c| (c.name, c.help, c.value));
    for (name, help, value) in counted.chain(counts) {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(format!("images_{name}"), help, counter);
    }
}

/// The images that Docker keeps.
fn of_runtime(registry: &mut Registry, runtime: &RuntimeImages) {
    let leaving: Vec<_> = runtime.images.iter().filter(|image| image.leaves.is_some()).collect();
    let gauges = [
        ("runtime_images", "Images that Docker keeps", runtime.images.len() as u64),
        ("runtime_images_used", "Their layers, bytes", runtime.bytes.0),
        ("runtime_images_budget", "The most that their layers may take, bytes", runtime.budget.0),
        ("runtime_images_short", "Bytes above the budget that no removal can free now", runtime.short.0),
        ("runtime_images_leaving", "Images that have to go now", leaving.len() as u64),
        ("runtime_images_lost", "Whether Docker does not answer", u64::from(runtime.problem.is_some())),
    ];
    for (name, help, value) in gauges {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value as f64);
        registry.register(name, help, gauge);
    }
    let counts = [
        ("runtime_images_removed", "Images of Docker that were removed", runtime.removed),
        ("runtime_images_removed_bytes", "Bytes that this freed", runtime.removed_bytes.0),
        ("runtime_images_refused", "Removals that Docker refused", runtime.refused),
    ];
    for (name, help, value) in counts {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
}

fn of_link(registry: &mut Registry, status: &Status) {
    let rates = [
        ("link_capacity", "What the link carries, bytes per second", status.capacity),
        ("link_rate", "What all classes sent over the last second, bytes per second", status.rate),
        ("link_reserved", "The promised minima, bytes per second", status.reserved),
        ("link_reservable", "What may be promised, bytes per second", status.reservable),
    ];
    for (name, help, rate) in rates {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(bytes_per_second(rate));
        registry.register(name, help, gauge);
    }
    let states = [
        ("warnings", "Warnings that weir status shows", status.warnings.len()),
        (
            "state_notices",
            "Notices of damage to the stored state, not yet acknowledged",
            status.notices.len(),
        ),
        (
            "config_refused",
            "Whether the file was refused and an older one is in force",
            usize::from(status.config_error.is_some()),
        ),
    ];
    for (name, help, value) in states {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value as f64);
        registry.register(name, help, gauge);
    }
    let repairs = Counter::<u64>::default();
    repairs.inc_by(status.repairs);
    registry.register("repairs", "Alterations by others that were mended", repairs);
    let delay = Gauge::<f64, AtomicU64>::default();
    delay.set(status.max_tick_delay_us as f64 / 1e6);
    let help = "The longest delay of a tick of the agent's loop since the start";
    registry.register_with_unit("tick_delay_max", help, Unit::Seconds, delay);
    if let (Some(times), Some(us)) = (status.late, status.late_us) {
        let late = Counter::<u64>::default();
        late.inc_by(times);
        registry.register("scheduler_late", "Times that the scheduler was later than it makes up for", late);
        let lost = Counter::<f64, AtomicU64>::default();
        lost.inc_by(us as f64 / 1e6);
        let help = "Time of the link that was lost as the scheduler was late";
        registry.register_with_unit("scheduler_lost", help, Unit::Seconds, lost);
    }
}

fn of_classes(registry: &mut Registry, classes: &[Class]) {
    let (sent, drops) = (Counters::<OfClass>::default(), Counters::<OfClass>::default());
    let (rate, share, backlog) =
        (Gauges::<OfClass>::default(), Gauges::<OfClass>::default(), Gauges::<OfClass>::default());
    let (enforced, min, unpromised) =
        (Gauges::<OfClass>::default(), Gauges::<OfClass>::default(), Gauges::<OfClass>::default());
    for class in classes {
        let labels = OfClass { class: class.name.clone(), source: class.source.clone() };
        sent.get_or_create(&labels).inc_by(class.bytes.0);
        drops.get_or_create(&labels).inc_by(class.drops);
        rate.get_or_create(&labels).set(bytes_per_second(class.rate));
        share.get_or_create(&labels).set(bytes_per_second(class.allocation));
        backlog.get_or_create(&labels).set(class.backlog.0 as f64);
        enforced.get_or_create(&labels).set(f64::from(u8::from(class.enforced)));
        min.get_or_create(&labels).set(class.policy.min.map_or(0.0, bytes_per_second));
        unpromised.get_or_create(&labels).set(class.unpromised.map_or(0.0, bytes_per_second));
    }
    registry.register_with_unit("class_sent", "Sent over the link", Unit::Bytes, sent);
    registry.register("class_dropped_packets", "Dropped because the queue was full", drops);
    registry.register("class_rate", "Sent over the last second, bytes per second", rate);
    registry.register("class_allocation", "What it may send now, bytes per second", share);
    registry.register_with_unit("class_backlog", "Waiting now", Unit::Bytes, backlog);
    registry.register("class_enforced", "1 if all of its policy holds, 0 if not", enforced);
    registry.register("class_min", "The minimum that is promised, bytes per second", min);
    registry.register(
        "class_unpromised_min",
        "The minimum that is asked for and not promised, bytes per second; 0 if none",
        unpromised,
    );
}

fn of_agreements(registry: &mut Registry, agreements: &[AgreementStatus]) {
    let (min, met) = (Gauges::<OfAgreement>::default(), Gauges::<OfAgreement>::default());
    let (violations, violated, lacking) = (
        Gauges::<OfAgreement>::default(),
        Gauges::<OfAgreement>::default(),
        Gauges::<OfAgreement>::default(),
    );
    for status in agreements {
        let Some(now) = &status.in_force else { continue };
        let labels = OfAgreement {
            agreement: status.agreement.id.to_string(),
            party: status.agreement.offer.context.initiator.to_string(),
        };
        let is_met = status.agreement.guarantee_state != GuaranteeState::Violated;
        min.get_or_create(&labels).set(bytes_per_second(now.min));
        met.get_or_create(&labels).set(f64::from(u8::from(is_met)));
        violations.get_or_create(&labels).set(status.violations.len() as f64);
        let sum =
            |part: fn(&weir_agree::Violation) -> u64| status.violations.iter().map(part).sum::<u64>() as f64;
        violated.get_or_create(&labels).set(sum(|v| v.violated_ms) / 1000.0);
        lacking.get_or_create(&labels).set(sum(|v| v.lacking.0));
    }
    registry.register("agreement_guarantee", "The minimum in force, bytes per second", min);
    registry.register("agreement_met", "1 unless the guarantee is violated now", met);
    registry.register("agreement_violations", "Violations of this month", violations);
    registry.register_with_unit("agreement_violated", "Violated this month", Unit::Seconds, violated);
    registry.register_with_unit(
        "agreement_lacking",
        "Promised this month and not delivered",
        Unit::Bytes,
        lacking,
    );
}

/// Ended flows by destination, size and algorithm. Without rules the list is empty.
fn of_congestion(registry: &mut Registry, (view, stats): &(CongestionView, StatsView)) {
    if view.rules.is_empty() {
        return;
    }
    let (flows, sent) = (Counters::<OfFlows>::default(), Counters::<OfFlows>::default());
    let (again, completion) = (Counters::<OfFlows>::default(), Gauges::<OfQuantile>::default());
    for row in &stats.rows {
        let labels = OfFlows {
            to: row.to.to_string(),
            below: row.below.map_or("+Inf".to_owned(), |bytes| bytes.0.to_string()),
            algorithm: row.algorithm.clone(),
        };
        flows.get_or_create(&labels).inc_by(row.flows);
        sent.get_or_create(&labels).inc_by(row.bytes.0);
        again.get_or_create(&labels).inc_by(row.retransmits);
        let done = &row.completion;
        for (quantile, us) in [("0.5", done.p50_us), ("0.9", done.p90_us), ("0.99", done.p99_us)] {
            let OfFlows { to, below, algorithm } = labels.clone();
            let labels = OfQuantile { to, below, algorithm, quantile };
            completion.get_or_create(&labels).set(us as f64 / 1e6);
        }
    }
    let buffer = Gauges::<OfPath>::default();
    for path in &stats.paths {
        buffer.get_or_create(&OfPath { to: path.to.to_string() }).set(path.buffer_bdp);
    }
    registry.register("cc_flows", "Flows that have ended, by network, size and algorithm", flows);
    registry.register_with_unit("cc_sent", "Payload of flows that have ended", Unit::Bytes, sent);
    registry.register("cc_retransmits", "Segments sent again by flows that have ended", again);
    registry.register_with_unit("cc_completion", "How long flows took", Unit::Seconds, completion);
    registry.register(
        "cc_buffer_bdp",
        "The bottleneck holds so much or more, of bandwidth times delay",
        buffer,
    );
    for (name, help, count) in [
        ("cc_set", "Connections that were given the algorithm of a rule", view.set),
        ("cc_switched", "Changes of the algorithm in the flow", view.switched),
        ("cc_refused", "Algorithms that the kernel refused", view.failed),
        ("cc_tried", "Connections that have ended and tried another algorithm", view.tried),
        ("cc_hinted", "Times that applications said how much they will send", view.hinted),
        ("cc_lost_records", "Connections that ended and of which nothing is known", view.lost),
    ] {
        let counter = Counter::<u64>::default();
        counter.inc_by(count);
        registry.register(name, help, counter);
    }
}

/// Trials: the measured effects of algorithms.
fn of_advice(registry: &mut Registry, advice: &[AdviceView]) {
    if advice.is_empty() {
        return;
    }
    let (share, effect) = (Gauges::<OfTrial>::default(), Gauges::<OfTrial>::default());
    for (trial, arm) in advice.iter().flat_map(|trial| trial.arms.iter().map(move |arm| (trial, arm))) {
        let labels = |of| OfTrial { to: trial.to.to_string(), algorithm: arm.action.clone(), of };
        share.get_or_create(&labels("own")).set(if arm.dropped.is_none() { arm.share } else { 0.0 });
        let known = |of: &Interval| of.least.is_some() && of.most.is_some();
        for (of, interval) in [("own", arm.own), ("neighbours", arm.neighbours), ("all", arm.all)] {
            if known(&interval) {
                effect.get_or_create(&labels(of)).set(interval.estimate);
            }
        }
    }
    registry.register("cc_trial_share", "The part of connections that try an algorithm in its turns", share);
    registry.register("cc_trial_effect", "How much longer flows take, 0.1 for 10 % longer", effect);
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_fake_agent as fake;

    #[test]
    fn images_of_docker_have_metrics_if_they_have_a_budget() {
        let text = |runtime| text(None, None, 0, runtime);
        let images = fake::runtime_images();
        let all = text(Some(&images));
        for line in [
            "weir_runtime_images 3.0",
            "weir_runtime_images_used 9663676416.0",
            "weir_runtime_images_budget 8589934592.0",
            "weir_runtime_images_leaving 1.0",
            "weir_runtime_images_lost 0.0",
            "weir_runtime_images_removed_total 4",
            "weir_runtime_images_removed_bytes_total 1073741824",
            "weir_runtime_images_refused_total 1",
        ] {
            assert!(all.lines().any(|l| l == line), "{line}\nis not in\n{all}");
        }
        assert!(!text(None).contains("runtime_images"));
    }

    #[test]
    fn metrics_are_text_that_prometheus_reads() {
        let mut stats = weir_cc::Stats::default();
        stats.add("10.1.2.0/24".parse().unwrap(), &fake::flow());
        let congestion = (fake::congestion_view(), stats.view());
        let status = Status {
            notices: vec!["the database was damaged".to_owned(), "and again".to_owned()],
            config_error: Some("no such key".to_owned()),
            ..fake::status()
        };
        let text = text(Some((&status, &fake::classes(), &[], &congestion, &fake::advice())), None, 0, None);
        let flows = "weir_cc_flows_total{to=\"10.1.2.0/24\",below=\"10000000\",algorithm=\"bbr>cubic\"} 1";
        let trial = "weir_cc_trial_share{to=\"10.1.2.0/24\",algorithm=\"bbr\",of=\"own\"} 0.0";
        for line in [
            flows,
            trial,
            "weir_state_notices 2.0",
            "weir_config_refused 1.0",
            "weir_link_capacity 12500000.0",
            "# TYPE weir_class_sent_bytes counter",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
        }
        assert!(
            text.lines().any(|l| l.starts_with("weir_class_sent_bytes_total{class=\"web\",source=")),
            "{text}"
        );
    }
}
