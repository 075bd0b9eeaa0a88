//! The answer to a registry's challenge: credentials, or a token that they are exchanged for.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, Uri,
    body::Incoming,
    header::{self, HeaderValue},
};

use super::{
    AGENT, Ask, Fault, Identity, Known, Upstreams,
    auth::{Challenge, Token},
    is_basic,
    login::{Login, Secret},
    outage,
};

impl Upstreams {
    /// The answer to a challenge without a token service; none without credentials.
    pub(super) async fn basic(&self, ask: &Ask, entry: &Known) -> Result<Option<HeaderValue>, Fault> {
        let text = match (&ask.identity, &entry.login) {
            (Identity::Client(text), _) if is_basic(text) => text.to_string(),
            (Identity::Own, Some(login)) => match self.secret(ask, login).await? {
                Secret::Password(text) => format!("Basic {}", STANDARD.encode(text)),
                // Of no use without a token service.
                Secret::Identity(_) => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(HeaderValue::from_str(&text).ok().map(|mut value| {
            value.set_sensitive(true);
            value
        }))
    }

    async fn secret(&self, ask: &Ask, login: &Login) -> Result<Secret, Fault> {
        let secret = login.secret(&ask.source.registry, self.timing.first_byte).await;
        secret.map_err(|why| outage(ask, why))
    }

    /// Shows a token service an identity token; it is sent to no other host than that of its challenge.
    async fn exchange(
        &self,
        ask: &Ask,
        entry: &Known,
        url: &str,
        form: String,
    ) -> Result<Response<Incoming>, Fault> {
        let url: Uri = url.parse().map_err(|_| outage(ask, format!("{url} is not a URL")))?;
        let client = self.client(ask, entry, &url)?;
        let request = Request::post(url)
            .header(header::USER_AGENT, AGENT)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::from(form))
            .map_err(|e| outage(ask, e.to_string()))?;
        let sent = client.request(request);
        self.in_time(ask, "no token", sent).await?.map_err(|e| outage(ask, weir_units::chain(&e)))
    }

    /// A token for an identity, and for how long it holds, s.
    pub(super) async fn token(
        &self,
        ask: &Ask,
        entry: &Known,
        challenge: &Challenge,
    ) -> Result<(HeaderValue, u64), Fault> {
        let repository = ask.source.repository.as_str();
        let identity = match (&ask.identity, &entry.login) {
            (Identity::Own, Some(login)) => match self.secret(ask, login).await? {
                Secret::Identity(token) => challenge.exchange(repository, &token),
                Secret::Password(_) => None,
            },
            _ => None,
        };
        let response = if let Some((url, form)) = identity {
            self.exchange(ask, entry, &url, form).await?
        } else {
            let url = challenge.token_url(repository).unwrap_or_default();
            let login = self.basic(ask, entry).await?;
            let of_token = Ask { method: Method::GET, accept: None, from: 0, ..ask.clone() };
            self.follow(&of_token, entry, &url, login.as_ref()).await?
        };
        match response.status().as_u16() {
            200 => {}
            code @ 400..=403 => return Err(Fault::Denied { what: ask.what(), status: code }),
            429 => return Err(Fault::Limited { what: ask.what(), status: 429, retry: self.timing.negative }),
            code => return Err(outage(ask, format!("its token service answers {code}"))),
        }
        let body = Limited::new(response.into_body(), 256 << 10).collect();
        let body = self.in_time(ask, "no token", body).await?;
        let body = body.map_err(|e| outage(ask, format!("its token service: {e}")))?.to_bytes();
        let token: Option<Token> = serde_json::from_slice(&body).ok();
        let value = token.as_ref().and_then(Token::text).and_then(|t| format!("Bearer {t}").parse().ok());
        let mut value: HeaderValue = value.ok_or_else(|| outage(ask, "its token service gives no token"))?;
        value.set_sensitive(true);
        Ok((value, token.map_or(60, |t| t.lifetime_s())))
    }
}
