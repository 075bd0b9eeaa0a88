//! The parts of a request, for the fuzz targets.

use std::ops::Range;

use hyper::{HeaderMap, header::LINK};
use serde_json::Value;

use super::{
    range::{Wanted, wanted},
    relay::{self, next_target, query_of, referrers, tags},
    route::{Route, route},
};
use crate::{Digest, Reference, Source};

/// A part of a path that the mirror acts on.
pub(crate) enum Asked {
    /// A registry, a repository or a tag.
    Name(String),
    /// A digest.
    Digest(Digest),
}

/// The names and digests of a request.
pub(crate) fn route_parts(path: &str, query: Option<&str>) -> Vec<Asked> {
    let names = |source: Source| {
        vec![Asked::Name(source.repository.to_string()), Asked::Name(source.registry.to_string())]
    };
    match route(path, query, &|_| true) {
        Ok((Route::Manifest(source, Reference::Tag(tag)), _)) => {
            let mut parts = names(source);
            parts.push(Asked::Name(tag.to_string()));
            parts
        }
        Ok((Route::Manifest(source, Reference::Digest(digest)) | Route::Blob(source, digest), _)) => {
            let mut parts = names(source);
            parts.push(Asked::Digest(digest));
            parts
        }
        Ok((Route::Relay(source, _), _)) => names(source),
        Ok((Route::Base, _)) | Err(_) => Vec::new(),
    }
}

/// The bytes that a `Range` asks for.
pub(crate) fn range(header: Option<&str>, size: u64) -> Option<Range<u64>> {
    match wanted(header, size) {
        Wanted::Part(part) => Some(part),
        Wanted::All | Wanted::Nothing => None,
    }
}

/// A registry's list of tags or of referrers, and its link to the next page. A list reads as the same once
/// written, and a page is below the client's own name of the list.
///
/// # Panics
/// They are not.
pub fn list(is_tags: bool, body: &[u8], link: &str) {
    let read = if is_tags { tags } else { referrers };
    if let Ok((written, _)) = read(body) {
        let value = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("it is JSON");
        let (again, _) = read(&written).expect("it reads again");
        assert_eq!(value(&written), value(&again));
    }
    const PATH: &str = "/v2/acme/app/tags/list";
    let Ok(link) = link.parse() else { return };
    let headers = HeaderMap::from_iter([(LINK, link)]);
    let asked = relay::Asked { path: PATH, ns: Some("ghcr.io") };
    let query = next_target(&headers).and_then(|target| query_of(target, PATH));
    let Some(page) = query.and_then(|query| asked.page(query)) else { return };
    let page = page.to_str().expect("it is ASCII");
    let (target, behind) = page[1..].split_once('>').expect("a target ends");
    assert!(page.starts_with("</v2/acme/app/tags/list?") && behind == "; rel=\"next\"", "{page}");
    assert!(target.ends_with("ns=ghcr.io") && target.matches("ns=").count() >= 1, "{page}");
}
