//! `GET /metrics` for Prometheus: classes, the link, agreements, congestion control and images.
//!
//! The number of series is bounded. Each kind of object has a bound, and `weir_left_out` counts the
//! objects beyond it. A label has a value of an object or of a fixed list, and never a free text.

mod agreements;
mod classes;
mod congestion;
mod download;
mod format;
mod images;
mod links;
mod node;
mod page;
#[cfg(test)]
mod tests;

use axum::{
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use prometheus_client::encoding::EncodeLabelSet;
use weir_api::{Class, CongestionView, RuntimeImages, Status};
use weir_cc::{AdviceView, StatsView};
use weir_image::{Mirror, now_utc, store::Usage};

use super::{Failure, ask, congestion::asked};
use crate::{
    agent::{
        agree::{AgreementsRequest, Figures},
        congestion::CongestionRequest,
    },
    control::{ClassQueueTimes, Control, Request},
    images::Images,
};
use format::Format;
use page::{NONE, Page};

/// The sources of the metrics.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    pub(super) control: Control,
    pub(super) images: Images,
}

/// The answers of the agent's loop.
struct OfAgent {
    status: Status,
    classes: Vec<Class>,
    queue_times: Vec<ClassQueueTimes>,
    agreements: Figures,
    congestion: (CongestionView, StatsView),
    advice: Vec<AdviceView>,
}

/// The answers of the images' threads.
#[derive(Default)]
struct OfImages {
    cache: Option<(Usage, Mirror)>,
    /// Whether the cache serves, if there is one.
    serves: Option<bool>,
    /// How often a mirror was given up.
    frozen: u64,
    runtime: Option<RuntimeImages>,
}

pub(super) async fn metrics(
    State(measured): State<Measured>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let Measured { control, images } = measured;
    let agent = OfAgent {
        status: ask(&control, Request::Status).await?,
        classes: ask(&control, Request::Classes).await?,
        queue_times: ask(&control, Request::QueueTimes).await?,
        // A node without `[agreements]` has none.
        agreements: ask(&control, |reply| {
            Request::Agreements(AgreementsRequest::Figures(agreements::MAX_AGREEMENTS, reply))
        })
        .await?
        .unwrap_or_default(),
        congestion: (
            asked(&control, CongestionRequest::View).await?,
            asked(&control, CongestionRequest::Stats).await?,
        ),
        advice: asked(&control, CongestionRequest::Advice).await?,
    };
    let runtime = images.runtime().state();
    let images = OfImages { runtime, ..of_cache(images).await };
    Ok(answer(&headers, text(Some(&agent), &images)))
}

/// The metrics of the image cache alone.
pub(super) async fn of_images_alone(State(images): State<Images>, headers: HeaderMap) -> Response {
    answer(&headers, text(None, &of_cache(images).await))
}

/// Asks the cache, on a thread where its disk cannot delay the loop.
async fn of_cache(images: Images) -> OfImages {
    let (frozen, serves) = (images.frozen(), images.is_serving());
    let cache = tokio::task::spawn_blocking(move || {
        images.get().ok().and_then(|(mirror, _)| Some((mirror.store().usage(now_utc()).ok()?, mirror)))
    });
    OfImages { cache: cache.await.ok().flatten(), serves, frozen, runtime: None }
}

fn answer(headers: &HeaderMap, openmetrics: String) -> Response {
    let format = Format::accepted(headers);
    ([(header::CONTENT_TYPE, format.media_type())], format.of(openmetrics)).into_response()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// The metrics as OpenMetrics' text.
fn text(agent: Option<&OfAgent>, images: &OfImages) -> String {
    page(agent, images).openmetrics()
}

fn page(agent: Option<&OfAgent>, images: &OfImages) -> Page {
    let mut page = Page::new();
    node::build(&mut page);
    if let Some(agent) = agent {
        node::write(&mut page, &agent.status);
        let left_out = [
            ("classes", classes::write(&mut page, &agent.classes, &agent.queue_times)),
            ("downloads", download::write(&mut page, &agent.status, &agent.classes)),
            ("agreements", agreements::write(&mut page, &agent.agreements)),
            ("flows", congestion::write(&mut page, &agent.congestion)),
        ];
        links::write(&mut page, &agent.status, &agent.classes);
        congestion::advice(&mut page, &agent.advice);
        let left_out = left_out.map(|(kind, count)| (Kind { kind }, count as f64));
        page.gauges("left_out", NONE, "Objects beyond the bounds of these metrics", left_out);
    }
    if let Some(serves) = images.serves {
        images::serves(&mut page, serves);
    }
    if let Some((usage, mirror)) = &images.cache {
        images::cache(&mut page, usage, mirror);
    }
    if images.cache.is_some() || images.frozen > 0 {
        images::frozen(&mut page, images.frozen);
    }
    if let Some(runtime) = &images.runtime {
        images::runtime(&mut page, runtime);
    }
    page
}
