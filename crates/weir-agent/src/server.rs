//! The agent's HTTP API on its unix socket, and a part of it over TCP. Each route of [`weir_api`]'s table
//! is one request to the agent's loop.

mod accept;
mod access;
mod agree;
mod bearer;
mod body;
mod cni;
mod congestion;
mod connections;
mod dashboard;
mod events;
mod foreign;
mod health;
mod images;
mod language;
mod metrics;
mod peer;
mod socket;
mod stream;
mod tcp;
mod tls;
mod tries;
mod turns;

#[cfg(test)]
mod agree_tests;
#[cfg(test)]
mod dashboard_tests;
#[cfg(test)]
mod remote_tests;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tcp_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod token_tests;

use std::{convert::Infallible, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{delete, get, patch, post},
};
use tokio::{net::UnixListener, sync::oneshot, time};
use weir_api::{
    Class, ConfigurationText, Doctor, Error, ErrorCode, Explanation, Export, ExportQuery, History,
    HistoryQuery, LinkView, NewToken, Plan, SetCapacity, SetPolicies, Status, TokenMade, TokenView, Undone,
};

use crate::{
    control::{Control, Request},
    images::Images,
    reply::Reply,
};

pub use access::Access;
use body::{Asked, Body, EventsQuery, InPath};
use connections::Caller;
pub use socket::Socket;
pub(crate) use socket::{admit, is_listened, remove_dead};
pub use stream::Stream;
pub use tcp::Port;

/// The time limit of the agent's loop. It is shorter than a client's limit, so that the client gets the
/// reason.
const LOOP_TIMEOUT: Duration = Duration::from_secs(8);
/// The time limit of trying each engine with traffic, also on a small machine.
const DOCTOR_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers requests until the future is dropped.
pub async fn serve(
    listener: UnixListener,
    control: Control,
    images: Images,
    stream: Stream,
    access: Access,
) -> Infallible {
    let data = guarded(router(control, images, stream), access).layer(middleware::from_fn(foreign::gate));
    connections::serve(listener, data.merge(dashboard::router())).await
}

/// Answers requests for an image cache without an agent.
pub(crate) async fn serve_images(listener: UnixListener, images: Images, access: Access) -> Infallible {
    let routes = guarded(images::alone(images), access).fallback(unknown_route_of_images);
    let data = routes.layer(middleware::from_fn(foreign::gate));
    connections::serve(listener, data).await
}

/// The routes, each open only to callers with its right.
fn guarded(router: Router, access: Access) -> Router {
    router
        .route_layer(middleware::from_fn_with_state(access, access::gate))
        .fallback(unknown_route)
        .method_not_allowed_fallback(bad_method)
}

fn router(control: Control, images: Images, stream: Stream) -> Router {
    let measured = metrics::Measured { control: control.clone(), images: images.clone() };
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/classes", get(classes))
        .route("/v1/classes/{name}", get(class))
        .route("/v1/classes/{name}/explain", get(explain))
        .route("/v1/policies", patch(set).delete(undo))
        .route("/v1/policies/{name}", delete(unset))
        .route("/v1/link", get(link).patch(set_link).delete(reset_link))
        .route("/v1/plan/link", post(plan_link))
        .route("/v1/plan/policies", post(plan_policies))
        .route("/v1/plan/undo", post(plan_undo))
        .route("/v1/plan/configuration", post(plan_configuration))
        .route("/v1/history", get(history))
        .route("/v1/tokens", get(tokens).post(add_token))
        .route("/v1/tokens/{name}", delete(remove_token))
        .route("/v1/notices", delete(acknowledge))
        .route("/v1/doctor", get(doctor))
        .route("/v1/export", get(export))
        .route("/openapi.json", get(openapi))
        .route("/v1/events", get(events))
        .with_state(control.clone())
        .merge(stream.router())
        .merge(cni::router(control.clone()))
        .merge(health::router(control.clone()))
        .merge(congestion::router(control.clone()))
        .merge(agree::router(control.clone()))
        .merge(images::router(images).layer(Extension(images::Recorder(Some(control)))))
        .merge(Router::new().route("/metrics", get(metrics::metrics)).with_state(measured))
}

type Answer<T> = Result<Json<T>, Failure>;

async fn status(State(control): State<Control>) -> Answer<Status> {
    ask(&control, Request::Status).await.map(Json)
}

async fn classes(State(control): State<Control>) -> Answer<Vec<Class>> {
    ask(&control, Request::Classes).await.map(Json)
}

async fn class(State(control): State<Control>, InPath(name): InPath<String>) -> Answer<Class> {
    Ok(Json(ask(&control, |reply| Request::Class(name, reply)).await??))
}

async fn explain(State(control): State<Control>, InPath(name): InPath<String>) -> Answer<Explanation> {
    Ok(Json(ask(&control, |reply| Request::Explain(name, reply)).await??))
}

async fn set(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    Body(changes): Body<SetPolicies>,
) -> Answer<Vec<Class>> {
    Ok(Json(ask(&control, |reply| Request::Set(changes, caller.actor(), reply)).await??))
}

async fn unset(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    InPath(name): InPath<String>,
) -> Answer<Class> {
    Ok(Json(ask(&control, |reply| Request::Unset(name, caller.actor(), reply)).await??))
}

async fn undo(State(control): State<Control>, Extension(caller): Extension<Caller>) -> Answer<Undone> {
    Ok(Json(ask(&control, |reply| Request::Undo(caller.actor(), reply)).await??))
}

async fn link(State(control): State<Control>) -> Answer<LinkView> {
    ask(&control, Request::Link).await.map(Json)
}

async fn set_link(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    Body(change): Body<SetCapacity>,
) -> Answer<LinkView> {
    Ok(Json(ask(&control, |reply| Request::SetLink(change, caller.actor(), reply)).await??))
}

async fn reset_link(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
) -> Answer<LinkView> {
    Ok(Json(ask(&control, |reply| Request::ResetLink(caller.actor(), reply)).await??))
}

async fn plan_link(State(control): State<Control>, Body(change): Body<SetCapacity>) -> Answer<Plan> {
    Ok(Json(ask(&control, |reply| Request::PlanLink(change, reply)).await??))
}

async fn plan_policies(State(control): State<Control>, Body(changes): Body<SetPolicies>) -> Answer<Plan> {
    Ok(Json(ask(&control, |reply| Request::PlanPolicies(changes, reply)).await??))
}

async fn plan_undo(State(control): State<Control>) -> Answer<Plan> {
    Ok(Json(ask(&control, Request::PlanUndo).await??))
}

async fn plan_configuration(
    State(control): State<Control>,
    Body(file): Body<ConfigurationText>,
) -> Answer<Plan> {
    Ok(Json(ask(&control, |reply| Request::PlanConfiguration(file, reply)).await??))
}

async fn history(State(control): State<Control>, Asked(query): Asked<HistoryQuery>) -> Answer<History> {
    if query.limit == Some(0) {
        let message = "limit=0 asks for no record: write 1 to 1000, or leave it out for 1000";
        return Err(Failure::new(ErrorCode::BadRequest, message));
    }
    Ok(Json(ask(&control, |reply| Request::History(query, reply)).await??))
}

async fn tokens(State(control): State<Control>) -> Answer<Vec<TokenView>> {
    ask(&control, Request::Tokens).await.map(Json)
}

async fn add_token(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    Body(new): Body<NewToken>,
) -> Answer<TokenMade> {
    Ok(Json(ask(&control, |reply| Request::AddToken(new, caller.actor(), reply)).await??))
}

async fn remove_token(
    State(control): State<Control>,
    Extension(caller): Extension<Caller>,
    InPath(name): InPath<String>,
) -> Answer<TokenView> {
    Ok(Json(ask(&control, |reply| Request::RemoveToken(name, caller.actor(), reply)).await??))
}

async fn acknowledge(State(control): State<Control>) -> Answer<Vec<String>> {
    Ok(Json(ask(&control, Request::Acknowledge).await??))
}

async fn doctor(State(control): State<Control>) -> Answer<Doctor> {
    Ok(Json(ask_within(DOCTOR_TIMEOUT, &control, Request::Doctor).await??))
}

/// The description of all routes.
async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("../../../docs/openapi.json"))
}

async fn export(State(control): State<Control>, Asked(query): Asked<ExportQuery>) -> Answer<Export> {
    Ok(Json(ask(&control, |reply| Request::Export(query, reply)).await??))
}

async fn events(
    State(control): State<Control>,
    Asked(EventsQuery { follow }): Asked<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let (kept, live) = ask(&control, Request::Events).await?;
    Ok(events::response(kept, follow.then_some(live), &headers))
}

async fn unknown_route(method: Method, uri: Uri) -> Failure {
    Failure::new(
        ErrorCode::UnknownRoute,
        format!("there is no {method} {}: GET /openapi.json names all routes", uri.path()),
    )
}

async fn unknown_route_of_images(method: Method, uri: Uri) -> Failure {
    Failure::new(
        ErrorCode::UnknownRoute,
        format!(
            "there is no {method} {} here: `weir image serve` serves the image cache alone, for the verbs of \
             `weir image`; the others need `weir agent`",
            uri.path()
        ),
    )
}

async fn bad_method(method: Method, uri: Uri) -> Failure {
    Failure::new(ErrorCode::BadMethod, format!("{} does not take {method}", uri.path()))
}

/// Sends one request to the agent's loop and waits for the answer.
async fn ask<T>(control: &Control, question: impl FnOnce(Reply<T>) -> Request) -> Result<T, Failure> {
    ask_within(LOOP_TIMEOUT, control, question).await
}

/// Like [`ask`], with another time limit.
async fn ask_within<T>(
    time_limit: Duration,
    control: &Control,
    question: impl FnOnce(Reply<T>) -> Request,
) -> Result<T, Failure> {
    let stopping = || Failure::new(ErrorCode::Stopping, "the agent is stopping; ask again when it is back");
    let (reply, answer) = oneshot::channel();
    let work = async {
        control.send(question(reply)).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())
    };
    time::timeout(time_limit, work).await.map_err(|_| {
        Failure::new(ErrorCode::Busy, format!("the agent's loop gave no answer within {time_limit:?}"))
    })?
}

/// A refusal to be sent. Its status follows from its code.
#[derive(Debug)]
struct Failure(Error);

impl Failure {
    fn new(code: ErrorCode, message: impl Into<String>) -> Failure {
        Failure(Error::new(code, message))
    }

    fn status(&self) -> StatusCode {
        match &self.0.code {
            ErrorCode::BadRequest => StatusCode::BAD_REQUEST,
            ErrorCode::UnknownName | ErrorCode::UnknownRoute | ErrorCode::NoImages => StatusCode::NOT_FOUND,
            ErrorCode::BadMethod => StatusCode::METHOD_NOT_ALLOWED,
            ErrorCode::Forbidden => StatusCode::FORBIDDEN,
            ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
            ErrorCode::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            ErrorCode::AmbiguousName | ErrorCode::NoCapacity | ErrorCode::Pinned => StatusCode::CONFLICT,
            ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorCode::Busy | ErrorCode::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status(), Json(self.0)).into_response()
    }
}
