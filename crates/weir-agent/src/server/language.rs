//! The languages of a document and of its answer.

use std::time::SystemTime;

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use weir_agree::{Fault, FaultCode, Language, Utc};

use super::accept::ranges;

/// The supported media types.
const TYPES: [(&str, Language); 6] = [
    ("application/xml", Language::Xml),
    ("text/xml", Language::Xml),
    ("application/json", Language::Json),
    ("application/toml", Language::Toml),
    ("text/toml", Language::Toml),
    ("text/x-toml", Language::Toml),
];

fn language(media_type: &str) -> Option<Language> {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    TYPES.iter().find(|(name, _)| essence.eq_ignore_ascii_case(name)).map(|(_, language)| *language)
}

fn unknown(status: StatusCode, what: String) -> Refusal {
    let accepted = TYPES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let fault = Fault { accepted, ..Fault::new(FaultCode::UnknownLanguage, what) };
    Refusal { status: Some(status), fault, language: Language::Json }
}

/// A fault to be sent, in the language of the answer.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The status, if it does not follow from the fault's code.
    pub(super) status: Option<StatusCode>,
    pub(super) fault: Fault,
    pub(super) language: Language,
}

/// The language of a request's body. `None` if the header is missing, or is the one that curl sends by
/// default.
pub(super) fn of_body(headers: &HeaderMap) -> Result<Option<Language>, Refusal> {
    let Some(said) = headers.get(header::CONTENT_TYPE) else { return Ok(None) };
    let said = said.to_str().unwrap_or("?");
    if said.starts_with("application/x-www-form-urlencoded") {
        return Ok(None);
    }
    let what = || format!("cannot read documents of the type {said}");
    language(said).map(Some).ok_or_else(|| unknown(StatusCode::UNSUPPORTED_MEDIA_TYPE, what()))
}

/// The language of the answer: the one that `Accept` prefers, or `otherwise` without a preference.
pub(super) fn of_answer(headers: &HeaderMap, otherwise: Language) -> Result<Language, Refusal> {
    let mut best: Option<(f32, Language)> = None;
    let mut said = Vec::new();
    for range in ranges(headers) {
        said.push(range.essence);
        let found = match range.essence {
            "*/*" | "application/*" => Some(otherwise),
            "text/*" => Some(Language::Xml),
            essence => language(essence),
        };
        if let Some(found) = found
            && range.weight > 0.0
            && best.is_none_or(|(other, _)| range.weight > other)
        {
            best = Some((range.weight, found));
        }
    }
    if said.is_empty() {
        return Ok(otherwise);
    }
    best.map(|(_, language)| language)
        .ok_or_else(|| unknown(StatusCode::NOT_ACCEPTABLE, format!("cannot answer with {}", said.join(", "))))
}

/// The HTTP status of a fault.
fn status(code: FaultCode) -> StatusCode {
    use FaultCode::*;
    match code {
        DocumentTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        UnknownLanguage => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Forbidden => StatusCode::FORBIDDEN,
        UnknownAgreement | AgreementsOff => StatusCode::NOT_FOUND,
        TooManyOffers => StatusCode::TOO_MANY_REQUESTS,
        NotRecorded | Busy => StatusCode::SERVICE_UNAVAILABLE,
        NoCapacity | SelectorTaken | OfferIdReused | AgreementIdTaken | TooManyAgreements | CannotExtend
        | IllegalTransition => StatusCode::CONFLICT,
        Contradiction | BelowGrain | RateTooLarge | MinAboveMax | MaxAboveReservable | EndBeforeStart
        | ZeroLength | StartInPast | TooFarAhead | EndAfterExpiration | UnknownTemplate | OutsideTemplate
        | ShareNotOffered | DirectionNotOffered => StatusCode::UNPROCESSABLE_ENTITY,
        Malformed | Dtd | Entity | TooDeep | TooManyAttributes | TooLong | WrongDocument
        | UnknownNamespace | UnknownElement | UnknownAttribute | Missing | Repeated | BadValue
        | UnknownUnit | Negative | NotANumber => StatusCode::BAD_REQUEST,
    }
}

impl Refusal {
    pub(super) fn new(fault: Fault, language: Language) -> Refusal {
        Refusal { status: None, fault, language }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal { fault, language, .. } = &self;
        let now = Utc::from(SystemTime::now());
        let status = self.status.unwrap_or_else(|| status(fault.code));
        let mut response = written(status, *language, fault.write(*language, now));
        if let Some(wait) = fault.retry_after_ms {
            let seconds = HeaderValue::from(wait.div_ceil(1_000).max(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// A document as an answer.
pub(super) fn written(status: StatusCode, language: Language, text: String) -> Response {
    let kind: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, language.media_type())];
    (status, kind, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn the_language_is_the_one_that_the_headers_say() {
        for (said, language) in [
            ("text/xml; charset=utf-8", Some(Language::Xml)),
            ("Application/XML", Some(Language::Xml)),
            ("application/json", Some(Language::Json)),
            ("application/toml", Some(Language::Toml)),
            ("application/x-www-form-urlencoded", None),
        ] {
            assert_eq!(of_body(&headers(header::CONTENT_TYPE, said)).unwrap(), language, "{said}");
        }
        let refusal = of_body(&headers(header::CONTENT_TYPE, "image/png")).unwrap_err();
        assert_eq!(refusal.status, Some(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        for (said, language) in [
            ("*/*", Language::Toml),
            ("text/html, application/xml;q=0.9, */*;q=0.1", Language::Xml),
            ("application/xml;q=0.2, application/json;q=0.8", Language::Json),
            ("text/xml", Language::Xml),
        ] {
            assert_eq!(
                of_answer(&headers(header::ACCEPT, said), Language::Toml).unwrap(),
                language,
                "{said}"
            );
        }
        let refusal = of_answer(&headers(header::ACCEPT, "text/html"), Language::Xml).unwrap_err();
        assert_eq!(refusal.status, Some(StatusCode::NOT_ACCEPTABLE));
        assert!(refusal.fault.accepted.iter().any(|name| name == "application/toml"));
    }
}
