//! Requests that a browser sends to the socket for a page of another site.
//!
//! `ssh -L 8080:/run/weir/weir.sock` gives each page in the browser a way to the socket, and the kernel then names the
//! user of ssh. Such a page can send a request without reading the answer, or have a name of its own lead to the
//! forwarded address and then read too.

use std::net::{IpAddr, Ipv6Addr};

use axum::{
    extract::Request,
    http::{HeaderMap, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use weir_api::ErrorCode;

use super::Failure;

/// Passes a request on unless it comes from a page of another site.
pub(super) async fn gate(request: Request, next: Next) -> Response {
    match reason(request.headers()) {
        None => next.run(request).await,
        Some(why) => {
            let (method, path) = (request.method(), request.uri().path());
            let message = format!("cannot answer {method} {path}: {why}");
            Failure::new(ErrorCode::Forbidden, message).into_response()
        }
    }
}

/// The reason why the request is not answered.
fn reason(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let host = text(header::HOST);
    // No site's page can have one of these names.
    if let Some(host) = host.as_deref().filter(|host| !is_local(host)) {
        let way_out = "use localhost, an address, or a name without a dot";
        return Some(format!("its host `{host}` can be a page of another site; {way_out}"));
    }
    let way_out = "use a page of this address, or send no such header";
    let site = text(header::HeaderName::from_static("sec-fetch-site"));
    if let Some(site) = site.filter(|site| *site != "same-origin" && *site != "none") {
        return Some(format!("a page of another site asks (Sec-Fetch-Site: {site}); {way_out}"));
    }
    let origin = text(header::ORIGIN)?;
    let from = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
    let is_own = from.zip(host.as_deref()).is_some_and(|(from, host)| from.eq_ignore_ascii_case(host));
    (!is_own).then(|| format!("a page of another site asks (Origin: {origin}); {way_out}"))
}

/// Whether a `Host` is an address, `localhost`, or a name without a dot. Sites have names with a dot.
fn is_local(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    let name = name.to_ascii_lowercase();
    name.parse::<IpAddr>().is_ok() || !name.contains('.') || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn reason_of(pairs: &[(&'static str, &'static str)]) -> Option<String> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        reason(&pairs.collect())
    }

    #[test]
    fn requests_of_programs_and_of_the_own_page_pass() {
        for pairs in [
            &[][..],
            &[("host", "weir")],
            &[("host", "localhost:8080"), ("sec-fetch-site", "same-origin")],
            &[
                ("host", "127.0.0.1:8080"),
                ("origin", "http://127.0.0.1:8080"),
                ("sec-fetch-site", "same-origin"),
            ],
            &[("host", "[::1]:8080"), ("origin", "http://[::1]:8080")],
            &[("host", "node.localhost"), ("origin", "https://NODE.localhost"), ("sec-fetch-site", "none")],
        ] {
            assert_eq!(reason_of(pairs), None, "{pairs:?}");
        }
    }

    #[test]
    fn requests_of_a_page_of_another_site_are_refused_with_the_reason() {
        for (pairs, told) in [
            // A name that leads to the forwarded address.
            (&[("host", "evil.example:8080")][..], "`evil.example:8080`"),
            (&[("host", "evil.example:8080"), ("origin", "http://evil.example:8080")], "`evil.example:8080`"),
            (&[("host", "127.0.0.1.evil.example")], "127.0.0.1.evil.example"),
            (&[("host", "evil.")], "`evil.`"),
            (&[("host", "[evil.example]")], "`[evil.example]`"),
            // A form or a picture of another page, also of another port of this machine.
            (
                &[("host", "localhost:8080"), ("origin", "https://evil.example")],
                "Origin: https://evil.example",
            ),
            (
                &[("host", "localhost:8080"), ("origin", "http://localhost:3000")],
                "Origin: http://localhost:3000",
            ),
            (&[("host", "localhost:8080"), ("origin", "null")], "Origin: null"),
            (&[("origin", "http://weir")], "Origin: http://weir"),
            (&[("host", "localhost:8080"), ("sec-fetch-site", "cross-site")], "Sec-Fetch-Site: cross-site"),
            (&[("host", "localhost:8080"), ("sec-fetch-site", "same-site")], "Sec-Fetch-Site: same-site"),
        ] {
            let why = reason_of(pairs).unwrap_or_else(|| panic!("{pairs:?} passes"));
            assert!(why.contains(told), "{pairs:?}: {why}");
        }
    }
}
