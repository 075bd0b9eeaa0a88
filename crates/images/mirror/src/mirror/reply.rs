//! Answers: their heads, and the part of a blob that they carry.

use std::ops::Range;

use hyper::{
    HeaderMap, Method, Response, StatusCode,
    header::{self, HeaderName, HeaderValue},
};

use super::{
    body::{self, Body},
    manifests::Found,
    range::{self, Wanted},
};
use crate::Digest;

/// All lines of a header, as one.
pub(super) fn joined(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines: Vec<&str> = headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

fn set(response: &mut Response<Body>, name: HeaderName, value: impl ToString) {
    if let Ok(value) = HeaderValue::from_str(&value.to_string()) {
        response.headers_mut().insert(name, value);
    }
}

/// A refusal, in the specification's form.
pub(super) fn refuse(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let errors = serde_json::json!({ "errors": [{ "code": code, "message": message }] });
    let mut response = Response::new(body::whole(errors.to_string()));
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, "application/json");
    response
}

/// An answer with a manifest, unless it is known to who asks.
pub(super) fn manifest(found: &Found, headers: &HeaderMap) -> Response<Body> {
    let stored = &found.stored;
    let etag = format!("\"{}\"", stored.digest);
    let is_known = joined(headers, "if-none-match").is_some_and(|known| known.contains(&etag));
    let mut response =
        Response::new(body::whole(if is_known { Default::default() } else { stored.bytes.clone() }));
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        set(&mut response, header::CONTENT_LENGTH, stored.bytes.len());
    }
    set(&mut response, header::CONTENT_TYPE, &stored.media_type);
    set(&mut response, header::ETAG, etag);
    set(&mut response, header::AGE, found.age.as_secs());
    response.headers_mut().insert("docker-content-digest", digest_value(&stored.digest));
    if found.is_stale {
        set(&mut response, header::WARNING, "110 weir \"the registry cannot be asked\"");
    }
    response
}

fn digest_value(digest: &Digest) -> HeaderValue {
    HeaderValue::from_str(&digest.to_string()).unwrap_or(HeaderValue::from_static(""))
}

/// An answer with a blob, or the part of it that is asked for.
pub(super) fn send(
    digest: &Digest,
    size: u64,
    method: &Method,
    headers: &HeaderMap,
    body: impl FnOnce(Range<u64>) -> Body,
) -> Response<Body> {
    let etag = format!("\"{digest}\"");
    let condition = headers.get(header::IF_RANGE).and_then(|v| v.to_str().ok());
    // Ranges are of GET only (RFC 9110, 14.2).
    let range = headers.get(header::RANGE).filter(|_| method == Method::GET).and_then(|v| v.to_str().ok());
    let (status, range) = match range::wanted(range.filter(|_| condition.is_none_or(|c| c == etag)), size) {
        Wanted::All => (StatusCode::OK, 0..size),
        Wanted::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Wanted::Nothing => {
            let mut refusal = refuse(StatusCode::RANGE_NOT_SATISFIABLE, "BLOB_UNKNOWN", "beyond the end");
            set(&mut refusal, header::CONTENT_RANGE, format!("bytes */{size}"));
            return refusal;
        }
    };
    let (length, span) =
        (range.end - range.start, format!("bytes {}-{}/{size}", range.start, range.end.max(1) - 1));
    // A question about it is no reason to read it.
    let content = if method == Method::HEAD { body::whole("") } else { body(range) };
    let mut response = Response::new(content);
    *response.status_mut() = status;
    if status == StatusCode::PARTIAL_CONTENT {
        set(&mut response, header::CONTENT_RANGE, span);
    }
    set(&mut response, header::CONTENT_LENGTH, length);
    set(&mut response, header::CONTENT_TYPE, "application/octet-stream");
    set(&mut response, header::ACCEPT_RANGES, "bytes");
    set(&mut response, header::ETAG, etag);
    response.headers_mut().insert("docker-content-digest", digest_value(digest));
    response
}
