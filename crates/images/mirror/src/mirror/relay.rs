//! Lists of tags and of referrers: the registry answers each time, and a client can turn the page.
//!
//! An answer is parsed and written again: only what the specification names in a list reaches the client.

use http_body_util::{BodyExt, Limited};
use hyper::{
    HeaderMap, Response,
    header::{self, HeaderName, HeaderValue},
};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{
    Mirror,
    body::{self, Body},
};
use crate::{
    Repository, Tag,
    manifest::MAX_MANIFEST,
    now_utc,
    oci::ImageIndex,
    stats::count,
    upstream::{Ask, Fault, outage},
};

/// Names the filters that the registry applied to a list of referrers.
const FILTERS: HeaderName = HeaderName::from_static("oci-filters-applied");

/// The client's own name of the list, as it asked the mirror.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) path: &'a str,
    pub(super) ns: Option<&'a str>,
}

impl Asked<'_> {
    /// The list's next page, by the client's name of the list.
    pub(super) fn page(&self, query: &str) -> Option<HeaderValue> {
        let is_clean = |c: char| c.is_ascii_graphic() && !"<>\"#".contains(c);
        if !query.chars().all(is_clean) {
            return None;
        }
        let ns = self.ns.map(|ns| format!("ns={ns}"));
        let own = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("ns="));
        let pairs: Vec<&str> = own.chain(ns.as_deref()).collect();
        HeaderValue::from_str(&format!("<{}?{}>; rel=\"next\"", self.path, pairs.join("&"))).ok()
    }
}

/// The target of the first link to a next page.
///
/// A target may hold commas and semicolons, so the text is read from one `<` to the next.
pub(super) fn next_target(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(header::LINK).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split('<').skip(1)).find_map(|link| {
        let (target, parameters) = link.split_once('>')?;
        let is_next = parameters.split([';', ',']).any(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or_default();
            let value = value.trim().trim_matches('"');
            name.trim().eq_ignore_ascii_case("rel")
                && value.split(' ').any(|rel| rel.eq_ignore_ascii_case("next"))
        });
        is_next.then_some(target)
    })
}

/// The query of a link that leads on in the list at this path of the registry.
///
/// The host does not matter: the client asks the mirror, and the mirror asks its own registry.
pub(super) fn query_of<'a>(target: &'a str, list: &str) -> Option<&'a str> {
    let (place, query) = target.split_once('?')?;
    let path = match place.split_once("//") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None => place,
    };
    let path = percent_decode_str(path).decode_utf8().ok()?;
    (list.ends_with(&*path) || path.ends_with(list)).then_some(query)
}

/// A list of tags as specified. Some registries write `null` for an empty list.
#[derive(Serialize, Deserialize)]
struct Tags {
    name: Repository,
    tags: Option<Vec<Tag>>,
}

/// A list of tags, parsed and written again, and its type.
pub(super) fn tags(bytes: &[u8]) -> serde_json::Result<(Vec<u8>, &'static str)> {
    let list: Tags = serde_json::from_slice(bytes)?;
    Ok((serde_json::to_vec(&list)?, "application/json"))
}

/// A list of referrers, which is an image index, parsed and written again, and its type.
pub(super) fn referrers(bytes: &[u8]) -> serde_json::Result<(Vec<u8>, &'static str)> {
    let list: ImageIndex = serde_json::from_slice(bytes)?;
    Ok((serde_json::to_vec(&list)?, "application/vnd.oci.image.index.v1+json"))
}

impl Mirror {
    /// Asks the registry for a list, and gives the client its page with a link to the next one.
    ///
    /// # Errors
    /// [`Fault`]; also where the next page has no name here, as a list cut short looks like a whole one.
    pub(super) async fn relay(&self, ask: &Ask, asked: Asked<'_>) -> Result<Response<Body>, Fault> {
        count(&self.inner.stats.upstream_requests, 1);
        let answer = self.inner.upstreams.ask(ask, now_utc()).await?;
        let (parts, body) = answer.response.into_parts();
        let read = timeout(self.inner.timing.stall, Limited::new(body, MAX_MANIFEST).collect()).await;
        let read = read.map_err(|_| outage(ask, "it did not come in time"))?;
        let bytes = read.map_err(|e| outage(ask, e.to_string()))?.to_bytes();
        let wrong = |e: serde_json::Error| Fault::Wrong {
            what: format!("{}/{}", ask.source, ask.path),
            why: format!("it is no such list ({e})"),
        };
        let is_tags = ask.path.starts_with("tags/");
        let (list, kind) = if is_tags { tags(&bytes) } else { referrers(&bytes) }.map_err(wrong)?;
        let mut response = Response::new(body::whole(list));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        // Its only filter so far.
        let is_filtered = parts.headers.get(&FILTERS).is_some_and(|filters| filters == "artifactType");
        if is_filtered && !is_tags {
            response.headers_mut().insert(FILTERS, HeaderValue::from_static("artifactType"));
        }
        if let Some(target) = next_target(&parts.headers) {
            let path = ask.path.split_once('?').map_or(&*ask.path, |(path, _)| path);
            let list = format!("/v2/{}/{path}", ask.source.repository);
            let link = query_of(target, &list).and_then(|query| asked.page(query));
            let link = link.ok_or_else(|| outage(ask, format!("its next page is elsewhere, at {target}")))?;
            response.headers_mut().insert(header::LINK, link);
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(lines: &[&str], asked: Asked<'_>) -> Option<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::LINK, line.parse().unwrap());
        }
        let query = query_of(next_target(&headers)?, "/v2/acme/app/tags/list")?;
        Some(asked.page(query)?.to_str().unwrap().to_owned())
    }

    const BY_PATH: Asked<'_> = Asked { path: "/v2/ghcr.io/acme/app/tags/list", ns: None };
    const BY_NS: Asked<'_> = Asked { path: "/v2/acme/app/tags/list", ns: Some("ghcr.io") };

    #[test]
    fn a_next_link_leads_to_the_list_as_the_client_calls_it() {
        let page = "/v2/ghcr.io/acme/app/tags/list";
        for (line, query) in [
            ("</v2/acme/app/tags/list?last=v99&n=100>; rel=\"next\"", "last=v99&n=100"),
            ("<https://ghcr.io/v2/acme/app/tags/list?last=v99>; rel=next", "last=v99"),
            ("<http://inner.example:5000/v2/acme/app/tags/list?n=1&ns=evil.example>;rel=\"next\"", "n=1"),
            ("</artifactory/v2/acme/app/tags/list?last=a,b;c>; rel=\"next\"", "last=a,b;c"),
            ("<?next_page=gAAAA%3D%3D>; rel=\"next\"", "next_page=gAAAA%3D%3D"),
            ("</other?a=1>; rel=\"prev\", <list?last=x>; title=\"x\"; rel=\"next last\"", "last=x"),
        ] {
            assert_eq!(link(&[line], BY_PATH), Some(format!("<{page}?{query}>; rel=\"next\"")), "{line}");
        }
        let line = "</v2/acme/app/tags/list?last=v99&n=100>; rel=\"next\"";
        let with_ns = "</v2/acme/app/tags/list?last=v99&n=100&ns=ghcr.io>; rel=\"next\"";
        assert_eq!(link(&["<x>; rel=help", line], BY_NS).as_deref(), Some(with_ns));
    }

    #[test]
    fn a_link_to_another_list_has_no_name_here() {
        for line in [
            "</v2/other/app/tags/list?last=a>; rel=\"next\"",
            "<https://evil.example/steal?last=a>; rel=\"next\"",
            "<//evil.example/v2/acme/app/blobs/x?last=a>; rel=\"next\"",
            "</v2/acme/app/tags/list>; rel=\"next\"",
            "</v2/acme/app/tags/list?last=a b>; rel=\"next\"",
            "</v2/acme/app/tags/list?last=a>; rel=\"prev\"",
            "</v2/acme/app/tags/list?last=a; rel=\"next\"",
        ] {
            assert_eq!(link(&[line], BY_PATH), None, "{line}");
        }
    }
}
