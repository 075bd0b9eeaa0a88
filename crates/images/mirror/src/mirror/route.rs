//! The meaning of a request, by its path and query.

use percent_encoding::percent_decode_str;

use crate::{
    Digest, Reference, Registry, Source,
    name::{BadName, source_of},
};

/// A request that can be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// `/v2/`: is this a registry?
    Base,
    /// A manifest.
    Manifest(Source, Reference),
    /// A blob.
    Blob(Source, Digest),
    /// `tags/list` or `referrers/…`, with its query: asked of the registry each time.
    Relay(Source, String),
}

impl Route {
    /// The specification's code for what is not there.
    pub(super) fn unknown(&self) -> &'static str {
        match self {
            Route::Base | Route::Relay(..) => "NAME_UNKNOWN",
            Route::Manifest(..) => "MANIFEST_UNKNOWN",
            Route::Blob(..) => "BLOB_UNKNOWN",
        }
    }
}

/// Why not.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unroutable {
    /// No such path.
    Unknown,
    /// A name or digest that cannot be one: the specification's code, and why.
    Bad(&'static str, String),
    /// An impossible tag, which therefore does not exist.
    NoTag(String),
}

impl From<BadName> for Unroutable {
    fn from(e: BadName) -> Unroutable {
        Unroutable::Bad("NAME_INVALID", e.to_string())
    }
}

/// The query that a registry gets for a list: all but the namespace, which is the mirror's.
///
/// Registries call the mark of a page as they like: `last`, `next_page`, `token`.
fn list_query(query: Option<&str>) -> String {
    let of_registry = |pair: &&str| !pair.is_empty() && !pair.starts_with("ns=");
    let kept: Vec<&str> = query.unwrap_or_default().split('&').filter(of_registry).collect();
    if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) }
}

pub(super) fn route(
    path: &str,
    query: Option<&str>,
    is_upstream: &dyn Fn(&Registry) -> bool,
) -> Result<(Route, Option<String>), Unroutable> {
    let decoded = percent_decode_str(path).decode_utf8().map_err(|_| Unroutable::Unknown)?;
    let ns = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("ns="));
    let ns = match ns {
        Some(ns) => Some(percent_decode_str(ns).decode_utf8().map_err(|_| Unroutable::Unknown)?.into_owned()),
        None => None,
    };
    let rest = match &*decoded {
        "/v2" | "/v2/" => return Ok((Route::Base, ns)),
        other => other.strip_prefix("/v2/").ok_or(Unroutable::Unknown)?,
    };
    let source = |name: &str| source_of(ns.as_deref(), name, is_upstream);
    // Repositories may have such words in their names: the last two parts of the path decide.
    let (head, last) = rest.rsplit_once('/').ok_or(Unroutable::Unknown)?;
    let (name, word) = head.rsplit_once('/').ok_or(Unroutable::Unknown)?;
    let digest = || last.parse::<Digest>().map_err(|e| Unroutable::Bad("DIGEST_INVALID", e.to_string()));
    let route = match word {
        "manifests" if last.contains(':') => Route::Manifest(source(name)?, Reference::Digest(digest()?)),
        "manifests" => {
            let tag = last.parse().map_err(|e: BadName| Unroutable::NoTag(e.to_string()))?;
            Route::Manifest(source(name)?, Reference::Tag(tag))
        }
        "blobs" => Route::Blob(source(name)?, digest()?),
        "referrers" => Route::Relay(source(name)?, format!("referrers/{}{}", digest()?, list_query(query))),
        "tags" if last == "list" => Route::Relay(source(name)?, format!("tags/list{}", list_query(query))),
        _ => return Err(Unroutable::Unknown),
    };
    Ok((route, ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str, query: Option<&str>) -> Result<Route, Unroutable> {
        route(path, query, &|_| true).map(|(route, _)| route)
    }

    #[test]
    fn what_is_asked_for_is_in_the_path_and_the_namespace_in_the_query() {
        let hex = "a".repeat(64);
        let source = |text: &str| text.parse::<crate::Image>().unwrap().source;
        assert_eq!(path("/v2/", None), Ok(Route::Base));
        assert_eq!(
            path("/v2/library/demo/manifests/1", Some("ns=docker.io")),
            Ok(Route::Manifest(source("demo"), "1".parse().unwrap()))
        );
        assert_eq!(
            path(&format!("/v2/ghcr.io/a/manifests/blobs/sha256%3A{hex}"), None),
            Ok(Route::Blob(source("ghcr.io/a/manifests"), format!("sha256:{hex}").parse().unwrap()))
        );
        assert_eq!(
            path("/v2/a/tags/list", Some("n=5&ns=quay.io&next_page=gAA%3D")),
            Ok(Route::Relay(source("quay.io/a"), "tags/list?n=5&next_page=gAA%3D".to_owned()))
        );
        assert_eq!(
            path(&format!("/v2/a/referrers/sha256:{hex}"), Some("ns=quay.io&artifactType=x%2Fy")),
            Ok(Route::Relay(source("quay.io/a"), format!("referrers/sha256:{hex}?artifactType=x%2Fy")))
        );
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        let hex = "a".repeat(64);
        for (at, query) in [
            ("/v2/../etc/manifests/1".to_owned(), None),
            ("/v2/a/%2e%2e/b/manifests/1".to_owned(), None),
            ("/v2/a/manifests/..".to_owned(), None),
            ("/v2/a/manifests/%2e%2e%2fx".to_owned(), None),
            ("/v2/a/blobs/sha256:../../../etc/passwd".to_owned(), None),
            (format!("/v2/a/blobs/sha256:{hex}/../x"), None),
            ("/v2/a/blobs/uploads/".to_owned(), None),
            ("/v2/a/manifests/1".to_owned(), Some("ns=http://x")),
            ("/v2/a/manifests/1".to_owned(), Some("ns=..")),
            ("/v2/a/manifests/1".to_owned(), Some("ns=x%2fy")),
        ] {
            assert!(path(&at, query).is_err(), "{at}");
        }
        for at in ["/", "/v1/x", "/v2/_catalog", "/v2/a", "/v2/%ff/manifests/1"] {
            assert_eq!(path(at, None), Err(Unroutable::Unknown), "{at}");
        }
    }
}
