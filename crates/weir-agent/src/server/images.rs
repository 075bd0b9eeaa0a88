//! The routes of the image cache.

use axum::{
    Extension, Json, Router,
    extract::State,
    routing::{get, post},
};
use tokio::runtime::Handle;
use weir_api::{
    ErrorCode, Freed, Image, ImagePeer, ImagePop, ImageUsage, Images as Listed, NamedImage, PinImage, Pinned,
    PruneImages, RuntimeImages, Scrub, ScrubImages, WarmId, Warming,
};
use weir_image::{Mirror, Utc, now_utc, store::StoreError};
use weir_units::Bytes;

use super::{
    Answer, Failure, ask,
    body::{Body, InPath},
    connections::Caller,
    metrics,
};
use crate::{
    control::{Control, Request},
    images::{Absent, Images},
};

pub(super) fn router(images: Images) -> Router {
    Router::new()
        .route("/v1/images", get(list))
        .route("/v1/images/usage", get(usage))
        .route("/v1/images/peers", get(peers))
        .route("/v1/images/runtime", get(runtime))
        .route("/v1/images/pin", post(pin))
        .route("/v1/images/remove", post(remove))
        .route("/v1/images/prune", post(prune))
        .route("/v1/images/warm", post(warm))
        .route("/v1/images/warm/{id}", get(warming))
        .route("/v1/images/scrub", get(scrubbing).post(scrub))
        .with_state(images)
}

/// The routes of a cache without an agent.
pub(super) fn alone(images: Images) -> Router {
    let measured = Router::new().route("/metrics", get(metrics::of_images_alone)).with_state(images.clone());
    measured.merge(router(images).layer(Extension(Recorder(None))))
}

fn mirror(images: &Images) -> Result<(Mirror, Handle), Failure> {
    images.get().map_err(|absent| match absent {
        Absent::Off => Failure::new(
            ErrorCode::NoImages,
            "this agent keeps no images: its configuration has no [images] (docs/weir.toml shows one)",
        ),
        Absent::Down(why) => {
            Failure::new(ErrorCode::Busy, format!("the image cache does not serve now: {why}"))
        }
    })
}

/// Runs work on the store, outside the agent's loop.
async fn on_store<T: Send + 'static>(
    images: &Images,
    work: impl FnOnce(&Mirror) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Failure> {
    let (mirror, runtime) = mirror(images)?;
    let done = runtime.spawn_blocking(move || work(&mirror)).await;
    let stopping = |_| Failure::new(ErrorCode::Stopping, "the image cache is stopping");
    done.map_err(stopping)?.map_err(|e| Failure::new(ErrorCode::Store, weir_units::chain(&e)))
}

async fn list(State(images): State<Images>) -> Answer<Listed> {
    let listed = on_store(&images, |mirror| {
        let images = mirror.store().images().into_iter().map(|one| Image {
            image: one.image,
            digest: one.digest.to_string(),
            platforms: one.platforms,
            present: Bytes(one.present),
            total: Bytes(one.total),
            used_ms: one.used_ms,
            hits: one.hits,
            pinned: one.pinned,
            in_use: one.in_use,
        });
        Ok(Listed { images: images.collect(), pins: mirror.store().pins() })
    });
    listed.await.map(Json)
}

/// The time limit of a query for the site's nodes.
const SITE: std::time::Duration = std::time::Duration::from_secs(1);

async fn usage(State(images): State<Images>) -> Answer<ImageUsage> {
    let (site, runtime) = mirror(&images)?;
    if site.settings().pop.is_some() {
        // The site is asked now, because earlier answers may be outdated. A late answer serves the next
        // request.
        let asked = runtime.spawn(async move { site.ask_site().await });
        let _ = tokio::time::timeout(SITE, asked).await;
    }
    let frozen = images.frozen();
    let usage = on_store(&images, move |mirror| {
        let usage = mirror.store().usage(now_utc())?;
        let mut counters: std::collections::BTreeMap<String, u64> =
            mirror.counted().iter().map(|c| (c.name.to_owned(), c.value)).collect();
        let counts = usage.counts;
        counters.extend(
            [
                ("evicted", counts.evicted),
                ("evicted_bytes", counts.evicted_bytes),
                ("corrupt", counts.corrupt),
                ("no_room", counts.refused),
                ("frozen", frozen),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        Ok(ImageUsage {
            listen: mirror.settings().listen.to_string(),
            directory: mirror.settings().directory.display().to_string(),
            blobs: usage.blobs,
            bytes: Bytes(usage.bytes),
            reserved: Bytes(usage.reserved),
            held: Bytes(usage.held),
            budget: Bytes(usage.budget),
            free: Bytes(usage.free),
            keep_free: Bytes(usage.floor),
            policy: usage.policy.0.to_string(),
            follows: usage.policy.1.to_string(),
            counters,
            oldest_check_ms: mirror.store().oldest_check().map(Utc::unix_millis),
            max_rate: mirror.max_rate(),
            pop: mirror.settings().pop.as_ref().map(|pop| {
                let site = mirror.site();
                ImagePop {
                    name: pop.name.clone(),
                    node: pop.node().unwrap_or_default(),
                    store: pop.store.name().to_owned(),
                    nodes: site.nodes,
                    problem: site.problem,
                }
            }),
        })
    });
    usage.await.map(Json)
}

async fn peers(State(images): State<Images>) -> Answer<Vec<ImagePeer>> {
    let (mirror, runtime) = mirror(&images)?;
    let asked = runtime.spawn(async move { mirror.probe_peers().await }).await;
    let asked = asked.map_err(|_| Failure::new(ErrorCode::Stopping, "the image cache is stopping"))?;
    let told = asked.into_iter().map(|peer| ImagePeer {
        node: peer.node,
        version: peer.version,
        ahead_ms: peer.ahead_ms,
        problem: peer.problem,
    });
    Ok(Json(told.collect()))
}

async fn runtime(State(images): State<Images>) -> Answer<RuntimeImages> {
    let off = || {
        let why = "the images of Docker have no budget here: the agent's configuration has no [images.runtime] \
                   (docs/weir.toml shows one)";
        Failure::new(ErrorCode::NoImages, why)
    };
    images.runtime().state().map(Json).ok_or_else(off)
}

/// The agent's loop, which records changed pins. A cache without an agent has no audit.
#[derive(Clone)]
pub(super) struct Recorder(pub(super) Option<Control>);

async fn pin(
    State(images): State<Images>,
    Extension(Recorder(control)): Extension<Recorder>,
    Extension(caller): Extension<Caller>,
    Body(pin): Body<PinImage>,
) -> Answer<Pinned> {
    if !weir_image::pins::is_pattern(&pin.pattern) {
        let why =
            "cannot pin this: write an image in full, such as ghcr.io/acme/*:prod (* stands for anything)";
        return Err(Failure::new(ErrorCode::BadRequest, why));
    }
    mirror(&images)?;
    if let Some(control) = &control {
        ask(control, Request::BeforePin).await??;
    }
    let pinned = on_store(&images, move |mirror| {
        let changed = mirror.store().pin(&pin.pattern, pin.stays)?;
        Ok((changed, mirror.store().pins()))
    });
    let (changed, pins) = pinned.await?;
    if let Some(control) = &control {
        ask(control, |reply| Request::Pinned(pins, caller.actor(), reply)).await?;
    }
    Ok(Json(Pinned { changed }))
}

fn named(image: &NamedImage) -> Result<weir_image::Image, Failure> {
    image
        .image
        .parse()
        .map_err(|e: weir_image::name::BadName| Failure::new(ErrorCode::BadRequest, e.to_string()))
}

async fn remove(State(images): State<Images>, Body(image): Body<NamedImage>) -> Answer<Freed> {
    let name = named(&image)?;
    let unknown = format!("there is no image {name} in the cache: `weir image ls` lists them");
    let removed = on_store(&images, move |mirror| {
        let store = mirror.store();
        match if image.force { store.remove(&name) } else { store.remove_unpinned(&name) } {
            Err(e @ StoreError::Pinned(_)) => Ok(Err(Failure::new(ErrorCode::Pinned, e.to_string()))),
            removed => removed.map(Ok),
        }
    });
    let freed = removed.await??;
    let freed = freed.ok_or_else(|| Failure::new(ErrorCode::UnknownName, unknown))?;
    Ok(Json(Freed { freed: Bytes(freed) }))
}

async fn prune(State(images): State<Images>, Body(prune): Body<PruneImages>) -> Answer<Freed> {
    let freed = on_store(&images, move |mirror| mirror.store().prune(prune.down_to.0, now_utc())).await?;
    Ok(Json(Freed { freed: Bytes(freed) }))
}

async fn warm(State(images): State<Images>, Body(image): Body<NamedImage>) -> Answer<WarmId> {
    let name = named(&image)?;
    let (mirror, runtime) = mirror(&images)?;
    let platform = image.platform.unwrap_or_else(platform_here);
    Ok(Json(WarmId { id: mirror.warm(&name, &platform, &runtime) }))
}

async fn warming(State(images): State<Images>, InPath(id): InPath<u64>) -> Answer<Warming> {
    let (mirror, _) = mirror(&images)?;
    let unknown = || {
        Failure::new(
            ErrorCode::UnknownName,
            format!("no fetch has the number {id}; only the last ones are remembered"),
        )
    };
    let seen = mirror.warming(id).ok_or_else(unknown)?;
    Ok(Json(Warming {
        image: seen.image,
        total: Bytes(seen.total),
        done: Bytes(seen.done),
        is_over: seen.is_over,
        error: seen.error,
    }))
}

async fn scrub(State(images): State<Images>, Body(how): Body<ScrubImages>) -> Answer<Scrub> {
    if how.rate == Some(Bytes(0)) {
        return Err(Failure::new(
            ErrorCode::BadRequest,
            "cannot check 0 bytes a second: name a rate such as 50MiB",
        ));
    }
    let (mirror, runtime) = mirror(&images)?;
    mirror.scrub(how.rate, &runtime);
    scrubbing(State(images)).await
}

async fn scrubbing(State(images): State<Images>) -> Answer<Scrub> {
    let (mirror, _) = mirror(&images)?;
    let unknown =
        || Failure::new(ErrorCode::UnknownName, "no check of all blobs was asked for since the start");
    let seen = mirror.scrubbing().ok_or_else(unknown)?;
    Ok(Json(Scrub {
        blobs: seen.blobs,
        of_blobs: seen.of_blobs,
        bytes: Bytes(seen.bytes),
        of_bytes: Bytes(seen.of_bytes),
        corrupt: seen.corrupt.iter().map(ToString::to_string).collect(),
        missing: seen.missing.iter().map(ToString::to_string).collect(),
        is_over: seen.is_over,
        error: seen.error,
    }))
}

/// This node's platform in the syntax of images.
fn platform_here() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    format!("linux/{architecture}")
}
