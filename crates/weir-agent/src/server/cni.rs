//! The routes of `weir cni`.

use axum::{
    Json, Router,
    extract::State,
    routing::{post, put},
};
use weir_api::{CniAttached, CniAttachment, CniForgotten, CniKeep, CniKey, ErrorCode};

use super::{Answer, Failure, ask, body::Body};
use crate::control::{CniRequest as Asked, Control, Request};

pub(super) fn router(control: Control) -> Router {
    Router::new()
        .route("/v1/cni", put(attach).delete(detach))
        .route("/v1/cni/check", post(check))
        .route("/v1/cni/keep", post(keep))
        .with_state(control)
}

/// A plugin that is ended in the middle of its call has made its report all the same: the runtime may start
/// the pod.
async fn attach(
    State(control): State<Control>,
    Body(attachment): Body<CniAttachment>,
) -> Answer<CniAttached> {
    let asked = |reply| Request::Cni(Asked::Put(attachment, reply));
    let asking = tokio::spawn(async move { ask(&control, asked).await });
    let answer = asking.await.map_err(|_| Failure::new(ErrorCode::Stopping, "the agent is stopping"))?;
    Ok(Json(answer??))
}

async fn detach(State(control): State<Control>, Body(key): Body<CniKey>) -> Answer<CniForgotten> {
    Ok(Json(ask(&control, |reply| Request::Cni(Asked::Remove(key, reply))).await?))
}

async fn check(State(control): State<Control>, Body(attachment): Body<CniAttachment>) -> Answer<CniAttached> {
    let asked = |reply| Request::Cni(Asked::Check(attachment, reply));
    Ok(Json(ask(&control, asked).await??))
}

async fn keep(State(control): State<Control>, Body(keep): Body<CniKeep>) -> Answer<CniForgotten> {
    Ok(Json(ask(&control, |reply| Request::Cni(Asked::Keep(keep, reply))).await?))
}
