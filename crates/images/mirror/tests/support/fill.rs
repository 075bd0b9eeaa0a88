//! Stores that hostile registries fill.

use std::{os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use weir_image::{
    Image,
    manifest::Manifest,
    now_utc,
    store::{Budget, PolicyKind, Store, StoreError, Stored},
};

use super::digest;

/// The disk budget of each store, bytes.
pub(crate) const BUDGET: u64 = 64 << 20;
/// The media type of each manifest.
pub(crate) const KIND: &str = "application/vnd.oci.image.manifest.v1+json";

/// Bytes and inodes on the disk, as `du` counts them.
pub(crate) fn du(dir: &Path) -> (u64, u64) {
    let meta = std::fs::symlink_metadata(dir).unwrap();
    let (mut bytes, mut inodes) = (meta.blocks() * 512, 1);
    if meta.is_dir() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let (more, others) = du(&entry.unwrap().path());
            (bytes, inodes) = (bytes + more, inodes + others);
        }
    }
    (bytes, inodes)
}

/// A store with this budget that protects nothing.
pub(crate) fn open(root: &Path) -> Store {
    let budget = Budget { young: Duration::ZERO, ..Budget::of(BUDGET) };
    Store::open(root, budget, PolicyKind::Lru, now_utc()).unwrap().0
}

/// A manifest of `layers` layers that are not there.
pub(crate) fn fat(seed: usize, layers: usize) -> Bytes {
    let of = |n: usize| serde_json::json!({ "mediaType": "x", "digest": digest(&[seed.to_le_bytes(), n.to_le_bytes()].concat()), "size": 10 });
    let layers: Vec<_> = (1..=layers).map(of).collect();
    serde_json::json!({ "schemaVersion": 2, "mediaType": KIND, "config": of(0), "layers": layers })
        .to_string()
        .into()
}

/// The manifest as a store takes it.
pub(crate) fn stored(bytes: Bytes) -> Stored {
    let manifest = Arc::new(Manifest::read(&bytes).unwrap());
    Stored { digest: digest(&bytes), media_type: KIND.to_owned(), bytes, manifest }
}

/// Puts the manifest under a name, and its tag. A lack of room is no fault.
pub(crate) fn add(store: &Store, name: &str, of: &Stored) {
    let image: Image = name.parse().unwrap();
    let now = now_utc();
    let kept = store.put_manifest(&image.source, of, now.unix_millis(), now);
    assert!(matches!(kept, Ok(()) | Err(StoreError::NoRoom { .. })), "{kept:?}");
    store.set_public(&image.source, true).unwrap();
    if let weir_image::Reference::Tag(tag) = &image.reference {
        store.set_tag(&image.source, tag, &of.digest, now).unwrap();
    }
}
