//! The parts of a request, for the fuzz targets.

use std::ops::Range;

use super::{
    range::{Wanted, wanted},
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
