//! The parsers of what registries, clients and peers send, for the fuzz targets.

use crate::{
    Image,
    coordination::SiteEvent,
    manifest::Manifest,
    mirror::fuzz::{self, Asked},
};

pub use crate::{
    mirror::fuzz::list,
    peer::fuzz::{peer, proof},
    upstream::fuzz::{challenge, redirect},
};

/// A manifest. Each digest of it reads again as the same.
///
/// # Panics
/// A digest does not.
pub fn manifest(bytes: &[u8]) {
    let Ok(manifest) = Manifest::read(bytes) else { return };
    for part in manifest.parts() {
        assert_eq!(part.digest.to_string().parse().as_ref(), Ok(&part.digest));
    }
}

/// A request's path, query and range. No name leads out of its directory.
///
/// # Panics
/// A name does, or a range is not within its blob.
pub fn request(text: &str, size: u64) {
    let mut parts = text.splitn(3, '\n');
    let (path, query, range) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    if let Some(part) = fuzz::range(range, size) {
        assert!(part.start < part.end && part.end <= size, "{part:?} of {size}");
    }
    for asked in fuzz::route_parts(path, query) {
        match asked {
            Asked::Name(name) => {
                assert!(name.split('/').all(|part| !part.is_empty() && !part.starts_with('.')), "{name}");
                assert!(name.bytes().all(|b| b.is_ascii_graphic()), "{name}");
            }
            Asked::Digest(digest) => assert_eq!(digest.to_string().parse(), Ok(digest)),
        }
    }
}

/// An image's name. It reads as the same once written.
///
/// # Panics
/// It does not.
pub fn image(text: &str) {
    let Ok(image) = text.parse::<Image>() else { return };
    assert_eq!(image.to_string().parse::<Image>().as_ref(), Ok(&image), "{text}");
}

/// An event of a site. Its text is read as the same event.
///
/// # Panics
/// The text is read as another event, or not at all.
pub fn site_event(text: &str) {
    let Ok(event) = text.parse::<SiteEvent>() else { return };
    assert_eq!(event.to_string().parse(), Ok(event));
}
