//! `/healthz` and `/readyz`: whether the agent works, and whether the link is divided as configured.

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use weir_api::{Health, Ready};

use super::{Answer, Failure, ask};
use crate::control::{Control, Request};

pub(super) fn router(control: Control) -> Router {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz)).with_state(control)
}

/// The agent is healthy if its loop answers.
async fn healthz(State(control): State<Control>) -> Answer<Health> {
    let status = ask(&control, Request::Status).await?;
    Ok(Json(Health { healthy: true, uptime_s: status.uptime_s }))
}

/// The agent is ready if the link is divided as configured. Else the status is 503, with the reasons.
async fn readyz(State(control): State<Control>) -> Result<Response, Failure> {
    let reasons = ask(&control, Request::Status).await?.not_ready;
    let ready = reasons.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(Ready { ready, reasons })).into_response())
}
