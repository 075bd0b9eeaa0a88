//! Callers over TCP: who they are by their token.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use tokio::sync::Semaphore;
use weir_api::ErrorCode;
use weir_units::Instant;

use super::{
    Failure,
    connections::{Caller, Identity, LARGE_BODIES},
    tries::Tries,
};
use crate::tokens::{MAX_SECRET, Tokens};

/// The check of tokens. All connections share it.
#[derive(Debug, Clone)]
pub(super) struct Bearers {
    tokens: Tokens,
    tries: Arc<Mutex<Tries>>,
    large_bodies: Arc<Semaphore>,
    started: std::time::Instant,
}

fn refused(code: ErrorCode, message: impl Into<String>, more: Option<(HeaderName, HeaderValue)>) -> Response {
    let mut response = Failure::new(code, message).into_response();
    response.headers_mut().extend(more);
    response
}

/// The answer to a caller that asks too much at once or too often.
pub(super) fn later(wait: Duration, message: String) -> Response {
    let seconds = HeaderValue::from(wait.as_secs() + 1);
    refused(ErrorCode::TooManyRequests, message, Some((header::RETRY_AFTER, seconds)))
}

/// The answer to a caller without a good token. It does not tell whether a token is unknown or has expired.
fn unauthorized(message: &str) -> Response {
    let scheme = HeaderValue::from_static("Bearer realm=\"weir\"");
    refused(ErrorCode::Unauthorized, message, Some((header::WWW_AUTHENTICATE, scheme)))
}

impl Bearers {
    pub(super) fn new(tokens: Tokens) -> Bearers {
        Bearers {
            tokens,
            tries: Arc::default(),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
            started: std::time::Instant::now(),
        }
    }

    /// Failed authentications since the start.
    pub(super) fn failed(&self) -> u64 {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).failed
    }

    /// The answer to a caller without a token at a route that needs one, if tokens are taken.
    pub(super) fn missing(&self, is_private: bool) -> Option<Response> {
        let message =
            "this route needs a token: send `Authorization: Bearer SECRET` (`weir token add` makes one)";
        (is_private && !self.tokens.all().is_empty()).then(|| unauthorized(message))
    }

    /// The caller with its token, or `None` if it sent no token. `is_private` says that no one else reads the connection.
    ///
    /// # Errors
    /// The answer to a caller whose token is not taken.
    #[expect(clippy::result_large_err, reason = "the error is the answer")]
    pub(super) fn check(
        &self,
        headers: &HeaderMap,
        from: IpAddr,
        is_private: bool,
    ) -> Result<Option<Caller>, Response> {
        let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
        if !is_private {
            let message = "no token is taken here, because others can read this connection: set [api] certificate and \
                           key, or listen on loopback. Replace the token, which was sent in clear";
            return Err(refused(ErrorCode::Forbidden, message, None));
        }
        let now = Instant(self.started.elapsed());
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(wait) = tries.may_try(from, now) {
            let message =
                format!("too many failed authentications from {from}: try again in {} s", wait.as_secs() + 1);
            return Err(later(wait, message));
        }
        let secret = value.to_str().ok().and_then(|value| {
            let (scheme, secret) = value.split_once(' ')?;
            let secret = secret.trim();
            (scheme.eq_ignore_ascii_case("bearer") && secret.len() <= MAX_SECRET).then_some(secret)
        });
        let now_ms = SystemTime::UNIX_EPOCH.elapsed().map_or(u64::MAX, |since| since.as_millis() as u64);
        let Some(token) = secret.and_then(|secret| self.tokens.find(secret, now_ms)) else {
            tries.failed(from, now);
            return Err(unauthorized(
                "this token is not known, or has expired: `weir token ls` lists the tokens, and marks expired ones",
            ));
        };
        if let Err(wait) = tries.may_ask(token.name(), now) {
            return Err(later(wait, format!("token {} asks too often: try again in {wait:?}", token.name())));
        }
        let large_bodies = Arc::clone(&self.large_bodies);
        Ok(Some(Caller { identity: Identity::Token(token), large_bodies }))
    }
}
