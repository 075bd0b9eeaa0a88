//! Reads the parts of a request, so that each refusal is the API's JSON error.

use std::{error::Error as _, time::Duration};

use axum::{
    body::to_bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{header::CONTENT_LENGTH, request::Parts},
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time;
use weir_api::ErrorCode;
use weir_units::plain_words;

use super::{Failure, connections::Caller};

/// The largest body of a request. A change of 10,000 classes takes half of it.
pub(super) const MAX_BODY: usize = 2 << 20;
/// The largest body that needs no permit for large bodies.
pub(super) const SMALL_BODY: usize = 64 << 10;

/// The time limit for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The JSON body. The content type is ignored, because the server understands only JSON.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Body<T>, Failure> {
        let bad =
            |why: String| Failure::new(ErrorCode::BadRequest, format!("cannot read the request: {why}"));
        let length =
            request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let caller = request.extensions().get::<Caller>().cloned();
        let (most, _place) = match (length, caller) {
            (Some(0..=SMALL_BODY), _) | (_, None) => (SMALL_BODY, None),
            (_, Some(caller)) => {
                let place = time::timeout(BODY_TIMEOUT, caller.large_bodies.acquire_owned()).await;
                let busy = |_| {
                    let message = format!(
                        "cannot read a body of more than {SMALL_BODY} bytes now: others are still coming; try \
                         again, or change fewer classes in one call"
                    );
                    Failure::new(ErrorCode::Busy, message)
                };
                (MAX_BODY, Some(place.map_err(busy)?))
            }
        };
        let bytes = time::timeout(BODY_TIMEOUT, to_bytes(request.into_body(), most))
            .await
            .map_err(|_| bad(format!("its body did not come within {BODY_TIMEOUT:?}")))?
            .map_err(|e| match e.source() {
                Some(cause) if cause.is::<http_body_util::LengthLimitError>() => Failure::new(
                    ErrorCode::TooLarge,
                    format!("cannot take a request of more than {MAX_BODY} bytes: send less in one call"),
                ),
                _ => bad(e.to_string()),
            })?;
        // The parser would take a list of values for an object of them.
        if bytes.trim_ascii_start().first() == Some(&b'[') {
            return Err(bad("it is a list, and an object is wanted".to_owned()));
        }
        let mut json = serde_json::Deserializer::from_slice(&bytes);
        let value = serde_path_to_error::deserialize(&mut json).map_err(|e| {
            let field = e.path().to_string();
            match field.as_str() {
                "." | "?" => bad(plain_words(&e.inner().to_string())),
                field => bad(format!("{field}: {}", plain_words(&e.inner().to_string()))),
            }
        })?;
        json.end().map_err(|e| bad(e.to_string()))?;
        Ok(Body(value))
    }
}

/// The variable part of the path, as a value.
pub(super) struct InPath<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<InPath<T>, Failure> {
        let part = Path::from_request_parts(parts, state).await;
        let bad = |words: String| Failure::new(ErrorCode::BadRequest, plain_words(&words));
        part.map(|Path(part)| InPath(part)).map_err(|e| bad(e.body_text()))
    }
}

/// The query, as a value.
pub(super) struct Asked<T>(pub(super) T);

/// The query of `GET /v1/events`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    #[serde(default)]
    pub(super) follow: bool,
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Asked<T>, Failure> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        let bad = |words: String| Failure::new(ErrorCode::BadRequest, plain_words(&words));
        query.map(|Query(query)| Asked(query)).map_err(|e| bad(e.body_text()))
    }
}
