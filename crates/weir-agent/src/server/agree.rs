//! The routes of agreements. Documents are read and written in the language of the request.
//!
//! Documents of clients are limited before they are read: in size, in number at a time, and in number
//! per second for each user.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::{self, RawPathParams, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use tokio::{sync::Semaphore, time};
use weir_agree::{
    Agreement, Direction, DirectionError, Document, Fault, FaultCode, Language, MAX_DOCUMENT, Offer, Pace,
    Throttle, ThrottleLimits, Utc,
};
use weir_api::OfferAnswer;

use super::{
    ask,
    body::{Asked, InPath},
    connections::Caller,
    language::{Refusal, of_answer, of_body, written},
};
use crate::{
    agent::{
        agree::{AgreementsRequest, unknown},
        maker::{Offeror, Owner},
    },
    control::{Control, Request},
    reply::Reply,
};

/// The number of offers read at a time. With [`MAX_DOCUMENT`] it bounds the memory.
const READERS: usize = 64;
/// The same for root, which has its own places.
const READERS_OF_ROOT: usize = 16;
/// The time limit for receiving an offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pace of one user's documents: a burst, then one per interval. It limits the cost of reading.
/// Each party has a second pace after it. One user gets half of the pace of all strangers together, so
/// a user who invents parties leaves room for others.
const USER: Pace = Pace { burst: 100, every: Duration::from_millis(80) };

#[derive(Clone)]
struct AgreementsState {
    control: Control,
    readers: Arc<Semaphore>,
    readers_of_root: Arc<Semaphore>,
    users: Arc<Mutex<Throttle>>,
    started: Instant,
}

pub(super) fn router(control: Control) -> Router {
    let limits = ThrottleLimits { party: USER, ..ThrottleLimits::default() };
    let state = AgreementsState {
        control,
        readers: Arc::new(Semaphore::new(READERS)),
        readers_of_root: Arc::new(Semaphore::new(READERS_OF_ROOT)),
        users: Arc::new(Mutex::new(Throttle::new(limits))),
        started: Instant::now(),
    };
    let of_one = Router::new()
        .route("/v1/agreements/{id}", get(one).delete(terminate))
        .route("/v1/agreements/{id}/status", get(status))
        .route("/v1/agreements/{id}/report", get(report))
        .route("/v1/agreements/{id}/renew", post(renew))
        .route("/v1/agreements/{id}/accept", post(accept))
        .route("/v1/agreements/{id}/reject", post(reject))
        .route_layer(middleware::from_fn_with_state(state.clone(), of_own_party));
    Router::new()
        .merge(of_one)
        .route("/v1/agreements", get(all).post(offer))
        .route("/v1/agreements/offers", post(offer_in_full))
        .route("/v1/agreements/status", get(statuses))
        .route("/v1/agreements/templates", get(templates))
        .route("/v1/agreements/templates/{id}", get(template))
        .route("/v1/agreements/calendar", get(calendar))
        .with_state(state)
}

type Answer = Result<Response, Refusal>;

impl AgreementsState {
    async fn ask<T>(
        &self,
        language: Language,
        question: impl FnOnce(Reply<Result<T, Fault>>) -> AgreementsRequest,
    ) -> Result<T, Refusal> {
        let refuse = |fault| Refusal::new(fault, language);
        let answer = ask(&self.control, |reply| Request::Agreements(question(reply))).await;
        answer.map_err(|failure| refuse(Fault::new(FaultCode::Busy, failure.0.message)))?.map_err(refuse)
    }

    /// Reads the offer in a body.
    async fn read(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(Offer, Language), Refusal> {
        let said = of_body(headers).map_err(|mut refusal| {
            refusal.language = of_answer(headers, Language::Json).unwrap_or(Language::Json);
            refusal
        })?;
        let language = of_answer(headers, said.unwrap_or(Language::Json))?;
        let refuse = |code, message: String| Refusal::new(Fault::new(code, message), language);
        let now = weir_units::Instant(self.started.elapsed());
        let user = caller.client(None);
        let pace = self.users.lock().unwrap_or_else(PoisonError::into_inner).pass(&user, true, now);
        let busy = |wait: Duration| {
            let message = format!("cannot read more offers of user {user} now: try again in {wait:?}");
            let mut refusal = refuse(FaultCode::TooManyOffers, message);
            refusal.fault.retry_after_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1));
            refusal
        };
        pace.map_err(busy)?;
        let readers = if caller.is_root() { &self.readers_of_root } else { &self.readers };
        let _reader = readers.try_acquire().map_err(|_| busy(Duration::from_secs(1)))?;
        let bytes = time::timeout(OFFER_TIMEOUT, to_bytes(body, MAX_DOCUMENT))
            .await
            .map_err(|_| {
                refuse(
                    FaultCode::Malformed,
                    format!("cannot read the offer: it did not come within {OFFER_TIMEOUT:?}"),
                )
            })?
            .map_err(|_| {
                let message = format!("cannot read a document of more than {MAX_DOCUMENT} bytes");
                refuse(FaultCode::DocumentTooLarge, message)
            })?;
        let text = std::str::from_utf8(&bytes).map_err(|e| {
            refuse(FaultCode::Malformed, format!("cannot read the offer: it is not UTF-8: {e}"))
        })?;
        let language_of_body = said.unwrap_or_else(|| Language::guess(text));
        // A client that names no language gets the answer in the language of its document.
        let language = of_answer(headers, language_of_body)?;
        let offer = Offer::read(text, language_of_body).map_err(|fault| Refusal::new(fault, language))?;
        Ok((offer, language))
    }

    async fn answer_offer(
        &self,
        (caller, owner): (&Caller, Owner),
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(OfferAnswer, StatusCode, Language), Refusal> {
        let (offer, language) = self.read(caller, headers, body).await?;
        let party = &offer.context.initiator;
        if let Some(own) = caller.party().filter(|own| *own != party.as_str()) {
            let message = format!(
                "cannot make an agreement of {party}: this token is of party {own}, so name that as initiator"
            );
            return Err(Refusal::new(Fault::new(FaultCode::Forbidden, message), language));
        }
        let (client, maker, by) = (caller.client(Some(party)), caller.maker(), caller.actor());
        let from = Box::new(Offeror { client, maker, owner, by });
        let offer = Box::new(offer);
        let answer = self.ask(language, |reply| AgreementsRequest::Offer(from, offer, reply)).await?;
        let status = match answer {
            OfferAnswer { repeated: true, .. } => StatusCode::OK,
            OfferAnswer {
                agreement: Agreement { state: weir_agree::AgreementState::Pending, .. }, ..
            } => StatusCode::ACCEPTED,
            _ => StatusCode::CREATED,
        };
        Ok((answer, status, language))
    }
}

async fn offer(
    State(state): State<AgreementsState>,
    Extension(caller): Extension<Caller>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (answer, status, language) = state.answer_offer((&caller, owner), &headers, body).await?;
    let mut response = written(status, language, answer.agreement.write(language));
    let location = HeaderValue::from_str(&format!("/v1/agreements/{}", answer.agreement.id));
    response.headers_mut().extend(location.ok().map(|place| (header::LOCATION, place)));
    Ok(response)
}

async fn offer_in_full(
    State(state): State<AgreementsState>,
    Extension(caller): Extension<Caller>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (answer, status, _) = state.answer_offer((&caller, owner), &headers, body).await?;
    Ok((status, axum::Json(answer)).into_response())
}

async fn all(
    State(state): State<AgreementsState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Answer {
    let language = of_answer(&headers, Language::Json)?;
    let mut agreements = state.ask(language, AgreementsRequest::All).await?;
    if let Some(party) = caller.party() {
        agreements.retain(|agreement| agreement.offer.context.initiator.as_str() == party);
    }
    Ok(list(language, "agreement", "Agreements", &agreements))
}

/// Lets the bearer of a party's token to the agreements of that party only. Others seem not to exist.
async fn of_own_party(
    State(state): State<AgreementsState>,
    Extension(caller): Extension<Caller>,
    params: RawPathParams,
    request: extract::Request,
    next: Next,
) -> Response {
    let id = params.iter().find(|(key, _)| *key == "id").map(|(_, id)| id.to_owned());
    if let (Some(party), Some(id)) = (caller.party(), id) {
        let language = of_answer(request.headers(), Language::Json).unwrap_or(Language::Json);
        let name = id.clone();
        let found = match state.ask(language, |reply| AgreementsRequest::One(name, reply)).await {
            Ok(found) => found,
            Err(refusal) => return refusal.into_response(),
        };
        if found.offer.context.initiator.as_str() != party {
            return Refusal::new(unknown(&id), language).into_response();
        }
    }
    next.run(request).await
}

async fn templates(State(state): State<AgreementsState>, headers: HeaderMap) -> Answer {
    let language = of_answer(&headers, Language::Json)?;
    Ok(list(language, "template", "Templates", &state.ask(language, AgreementsRequest::Templates).await?))
}

async fn template(
    State(state): State<AgreementsState>,
    InPath(id): InPath<String>,
    headers: HeaderMap,
) -> Answer {
    let language = of_answer(&headers, Language::Json)?;
    let templates = state.ask(language, AgreementsRequest::Templates).await?;
    match templates.iter().find(|template| template.id.as_str() == id) {
        Some(template) => Ok(written(StatusCode::OK, language, template.write(language))),
        None => {
            let accepted = templates.iter().map(|template| template.id.to_string()).collect();
            let message = format!("cannot find a template with the id {id}");
            let fault = Fault { accepted, ..Fault::new(FaultCode::UnknownTemplate, message) };
            Err(Refusal { status: Some(StatusCode::NOT_FOUND), fault, language })
        }
    }
}

async fn one(State(state): State<AgreementsState>, InPath(id): InPath<String>, headers: HeaderMap) -> Answer {
    agreement(&state, &headers, |reply| AgreementsRequest::One(id, reply)).await
}

async fn terminate(
    State(state): State<AgreementsState>,
    Extension(owner): Extension<Owner>,
    Extension(caller): Extension<Caller>,
    InPath(id): InPath<String>,
    headers: HeaderMap,
) -> Answer {
    let by = caller.actor();
    agreement(&state, &headers, |reply| AgreementsRequest::Terminate(id, owner, by, reply)).await
}

async fn accept(
    State(state): State<AgreementsState>,
    Extension(caller): Extension<Caller>,
    InPath(id): InPath<String>,
    headers: HeaderMap,
) -> Answer {
    let by = caller.actor();
    agreement(&state, &headers, |reply| AgreementsRequest::Decide(id, true, by, reply)).await
}

async fn reject(
    State(state): State<AgreementsState>,
    Extension(caller): Extension<Caller>,
    InPath(id): InPath<String>,
    headers: HeaderMap,
) -> Answer {
    let by = caller.actor();
    agreement(&state, &headers, |reply| AgreementsRequest::Decide(id, false, by, reply)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Renewal {
    end: Option<String>,
}

async fn renew(
    State(state): State<AgreementsState>,
    Extension(owner): Extension<Owner>,
    Extension(caller): Extension<Caller>,
    InPath(id): InPath<String>,
    Asked(renewal): Asked<Renewal>,
    headers: HeaderMap,
) -> Answer {
    let language = of_answer(&headers, Language::Json)?;
    let end = match renewal.end.as_deref() {
        Some("never") => None,
        Some(end) => Some(moment(end, language)?),
        None => {
            let message =
                "cannot renew: say until when, `end=2027-12-31T00:00:00Z` or `end=never`".to_owned();
            return Err(Refusal::new(Fault::new(FaultCode::Missing, message), language));
        }
    };
    agreement(&state, &headers, |reply| AgreementsRequest::Renew(id, end, owner, caller.actor(), reply)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Span {
    direction: Option<String>,
    from: Option<String>,
    to: Option<String>,
}

async fn calendar(
    State(state): State<AgreementsState>,
    Asked(span): Asked<Span>,
    headers: HeaderMap,
) -> Answer {
    let language = of_answer(&headers, Language::Json)?;
    let read = |text: Option<String>| text.map(|text| moment(&text, language)).transpose();
    let (from, to) = (read(span.from)?, read(span.to)?);
    let direction = span.direction.map_or(Ok(Direction::Upload), |text| text.parse());
    let direction = direction.map_err(|e: DirectionError| {
        Refusal::new(Fault::new(FaultCode::BadValue, e.to_string()), language)
    })?;
    let view = state.ask(language, |reply| AgreementsRequest::Calendar(direction, from, to, reply)).await?;
    Ok(axum::Json(view).into_response())
}

async fn statuses(State(state): State<AgreementsState>, Extension(caller): Extension<Caller>) -> Answer {
    let mut statuses = state.ask(Language::Json, AgreementsRequest::Statuses).await?;
    if let Some(party) = caller.party() {
        statuses.retain(|status| status.agreement.offer.context.initiator.as_str() == party);
    }
    Ok(axum::Json(statuses).into_response())
}

async fn status(State(state): State<AgreementsState>, InPath(id): InPath<String>) -> Answer {
    Ok(axum::Json(state.ask(Language::Json, |reply| AgreementsRequest::Status(id, reply)).await?)
        .into_response())
}

/// The month of a report.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Of {
    month: Option<String>,
}

async fn report(
    State(state): State<AgreementsState>,
    InPath(id): InPath<String>,
    Asked(of): Asked<Of>,
) -> Answer {
    let month = of.month.map(|month| first_of(&month)).transpose()?;
    Ok(axum::Json(state.ask(Language::Json, |reply| AgreementsRequest::Report(id, month, reply)).await?)
        .into_response())
}

/// The first moment of a month.
fn first_of(month: &str) -> Result<Utc, Refusal> {
    let message =
        format!("cannot read `{}` as a month: write it as in `month=2026-01`", weir_api::plain(month));
    let refusal = Refusal::new(Fault::new(FaultCode::BadValue, message), Language::Json);
    format!("{month}-01T00:00:00Z").parse().map_err(|_| refusal)
}

async fn agreement(
    state: &AgreementsState,
    headers: &HeaderMap,
    question: impl FnOnce(Reply<Result<Agreement, Fault>>) -> AgreementsRequest,
) -> Answer {
    let language = of_answer(headers, Language::Json)?;
    let agreement = state.ask(language, question).await?;
    Ok(written(StatusCode::OK, language, agreement.write(language)))
}

fn moment(text: &str, language: Language) -> Result<Utc, Refusal> {
    text.parse().map_err(|e: weir_agree::ParseUtcError| {
        Refusal::new(Fault::new(FaultCode::BadValue, e.to_string()), language)
    })
}

/// Several documents as one answer: an array, an array of tables, or an enclosing element.
fn list<T: Document + Serialize>(language: Language, key: &str, element: &str, all: &[T]) -> Response {
    let text = match language {
        Language::Json => serde_json::to_string_pretty(all).unwrap_or_default(),
        Language::Toml => {
            toml::to_string_pretty(&std::collections::BTreeMap::from([(key, all)])).unwrap_or_default()
        }
        Language::Xml => {
            const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
            let one = |document: &T| {
                let text = document.write(language);
                text.strip_prefix(DECLARATION).unwrap_or(&text).to_owned()
            };
            let all: String = all.iter().map(one).collect();
            format!(
                "{DECLARATION}<weir:{element} xmlns:weir=\"{}\">\n{all}</weir:{element}>\n",
                weir_agree::WEIR
            )
        }
    };
    written(StatusCode::OK, language, text)
}
