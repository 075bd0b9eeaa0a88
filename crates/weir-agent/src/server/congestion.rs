//! `/v1/congestion`: rules of congestion control, and the records of flows.

use axum::{
    Extension, Json, Router,
    extract::State,
    routing::{get, post},
};
use weir_api::{AdviceRequest, CongestionMoved, CongestionQuery, CongestionRule, CongestionView};
use weir_cc::{AdviceView, Explained, FlowRecord, Rule, StatsView};

use super::{
    Answer, Failure, ask,
    body::{Asked, Body},
    connections::Caller,
};
use crate::{
    agent::congestion::CongestionRequest,
    control::{Control, Request},
    reply::Reply,
};

pub(super) fn router(control: Control) -> Router {
    Router::new()
        .route("/v1/congestion", get(view))
        .route("/v1/congestion/explain", get(explain))
        .route("/v1/congestion/flows", get(flows))
        .route("/v1/congestion/stats", get(stats))
        .route("/v1/congestion/move", post(move_all))
        .route("/v1/congestion/rules", post(set).delete(unset))
        .route("/v1/congestion/advice", get(advice).post(advise))
        .with_state(control)
}

pub(super) async fn asked<T>(
    control: &Control,
    question: impl FnOnce(Reply<T>) -> CongestionRequest,
) -> Result<T, Failure> {
    ask(control, |reply| Request::Congestion(question(reply))).await
}

async fn view(State(control): State<Control>) -> Answer<CongestionView> {
    asked(&control, CongestionRequest::View).await.map(Json)
}

async fn explain(State(control): State<Control>, Asked(query): Asked<CongestionQuery>) -> Answer<Explained> {
    Ok(Json(asked(&control, |reply| CongestionRequest::Explain(query, reply)).await??))
}

async fn flows(State(control): State<Control>) -> Answer<Vec<FlowRecord>> {
    asked(&control, CongestionRequest::Flows).await.map(Json)
}

async fn stats(State(control): State<Control>) -> Answer<StatsView> {
    asked(&control, CongestionRequest::Stats).await.map(Json)
}

async fn move_all(State(control): State<Control>) -> Answer<CongestionMoved> {
    Ok(Json(asked(&control, CongestionRequest::Move).await??))
}

async fn set(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    Body(rule): Body<Rule>,
) -> Answer<CongestionRule> {
    Ok(Json(asked(&control, |reply| CongestionRequest::Set(rule, caller.actor(), reply)).await??))
}

async fn unset(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    Body(about): Body<Rule>,
) -> Answer<CongestionView> {
    Ok(Json(asked(&control, |reply| CongestionRequest::Unset(about, caller.actor(), reply)).await??))
}

async fn advice(State(control): State<Control>) -> Answer<Vec<AdviceView>> {
    asked(&control, CongestionRequest::Advice).await.map(Json)
}

async fn advise(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<AdviceRequest>,
) -> Answer<Vec<AdviceView>> {
    Ok(Json(asked(&control, |reply| CongestionRequest::Advise(request, caller.actor(), reply)).await??))
}
