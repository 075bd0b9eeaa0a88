//! The files of the dashboard. They hold no data, so no route of them needs a right.

use std::sync::LazyLock;

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use ring::digest::{SHA256, digest};

use super::{Failure, unknown_route};
use weir_api::ErrorCode;

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    body: &'static [u8],
}

macro_rules! files {
    ($($path:literal $kind:ident $name:literal,)*) => {
        [$(File {
            path: $path,
            kind: $kind,
            body: include_bytes!(concat!("../../dashboard/", $name)),
        }),*]
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

static FILES: [File; 14] = files![
    "/" HTML "index.html",
    "/dashboard/icon.svg" SVG "icon.svg",
    "/dashboard/style.css" CSS "style.css",
    "/dashboard/uplot.css" CSS "uplot.css",
    "/dashboard/uplot.js" SCRIPT "uplot.js",
    "/dashboard/main.js" SCRIPT "main.js",
    "/dashboard/api.js" SCRIPT "api.js",
    "/dashboard/live.js" SCRIPT "live.js",
    "/dashboard/dom.js" SCRIPT "dom.js",
    "/dashboard/units.js" SCRIPT "units.js",
    "/dashboard/charts.js" SCRIPT "charts.js",
    "/dashboard/overview.js" SCRIPT "overview.js",
    "/dashboard/classes.js" SCRIPT "classes.js",
    "/dashboard/lists.js" SCRIPT "lists.js",
];

/// The tag of each file, in the order of [`FILES`].
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| FILES.iter().map(|file| tag(file.body)).collect());

/// Each request of the page goes to the node that it came from, and no other page frames it.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // A browser asks again each time, and is told that a file is unchanged.
    (header::CACHE_CONTROL, "no-cache"),
];

fn tag(body: &[u8]) -> HeaderValue {
    let hash = digest(&SHA256, body);
    let hex: String = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::try_from(format!("\"{hex}\"")).expect("hexadecimal digits are a header's value")
}

/// Whether the path is one of the page's files.
pub(super) fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

/// The routes of the files.
pub(super) fn router() -> Router {
    Router::new().route("/", get(file)).route("/dashboard/{file}", get(file))
}

async fn file(uri: Uri, headers: HeaderMap) -> Response {
    let found = FILES.iter().zip(TAGS.iter()).find(|(file, _)| file.path == uri.path());
    let Some((file, tag)) = found else {
        return unknown_route(axum::http::Method::GET, uri).await.into_response();
    };
    let has = headers.get_all(header::IF_NONE_MATCH).iter().any(|known| known == tag);
    let mut response = if has { StatusCode::NOT_MODIFIED.into_response() } else { file.body.into_response() };
    let answered = response.headers_mut();
    for (name, value) in HEADERS {
        answered.insert(name, HeaderValue::from_static(value));
    }
    answered.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    answered.insert(header::ETAG, tag.clone());
    response
}

/// The answer where others read the connection. A token that is typed into the page would travel in clear.
pub(super) fn refusal() -> Response {
    let message = "the dashboard is at a loopback address or over TLS only, because others can read this connection: \
                   set [api] certificate and key, or listen on loopback";
    Failure::new(ErrorCode::Forbidden, message).into_response()
}
