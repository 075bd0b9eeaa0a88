//! The store by itself: room, order, what several images share, what a killed process leaves.

use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    Image,
    digest::Algorithm,
    manifest::{Manifest, Part},
    now_utc,
};

const MIB: u64 = 1 << 20;

fn open(root: &Path, bytes: u64) -> (Store, Recovered) {
    let budget = Budget { high: 1.0, low: 1.0, young: Duration::ZERO, ..Budget::of(bytes) };
    Store::open(root, budget, PolicyKind::Lru, Utc::from_unix_millis(0)).unwrap()
}

fn digest(bytes: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha256, bytes)
}

/// Keeps a blob of this number of bytes, all `n`.
fn keep(store: &Store, n: u8, size: u64) -> Digest {
    let bytes = vec![n; usize::try_from(size).unwrap()];
    let digest = digest(&bytes);
    store.put(&digest, &bytes, 1, Utc::from_unix_millis(0)).unwrap();
    digest
}

/// Keeps an image `name:1` of these blobs; answers its manifest's size too.
pub(super) fn image(store: &Store, name: &str, blobs: &[(&Digest, u64)]) -> (Image, u64) {
    let of = |(digest, size): &(&Digest, u64)| serde_json::json!({ "mediaType": "x", "digest": digest, "size": size });
    let layers: Vec<_> = blobs[1..].iter().map(of).collect();
    let text = serde_json::json!({ "schemaVersion": 2, "config": of(&blobs[0]), "layers": layers });
    let bytes = text.to_string().into_bytes();
    let (manifest, size) = (Manifest::read(&bytes).unwrap(), bytes.len() as u64);
    let stored = Stored {
        digest: digest(&bytes),
        media_type: "application/vnd.oci.image.manifest.v1+json".to_owned(),
        bytes: bytes.into(),
        manifest: Arc::new(manifest),
    };
    let image: Image = format!("{name}:1").parse().unwrap();
    let crate::Reference::Tag(tag) = &image.reference else { unreachable!() };
    store.put_manifest(&image.source, &stored, 1, Utc::from_unix_millis(0)).unwrap();
    store.set_tag(&image.source, tag, &stored.digest, Utc::from_unix_millis(0)).unwrap();
    (image, size)
}

#[test]
fn who_was_not_asked_for_for_longest_leaves_unless_it_is_being_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), 4 * MIB);
    let blobs: Vec<_> = (0..4).map(|n| keep(&store, n, MIB)).collect();
    let read = store.open_blob(&blobs[0], Utc::from_unix_millis(1)).unwrap().unwrap();
    store.open_blob(&blobs[1], Utc::from_unix_millis(2)).unwrap();
    // 0 is the oldest now but one, and being read.
    keep(&store, 4, MIB);
    keep(&store, 5, MIB);
    assert_eq!(blobs.iter().map(|b| store.has(b)).collect::<Vec<_>>(), [true, true, false, false]);
    keep(&store, 6, MIB);
    assert!(store.has(&blobs[0]) && !store.has(&blobs[1]));
    drop(read);
    for n in 7..10 {
        keep(&store, n, MIB);
    }
    assert!(!store.has(&blobs[0]));
    let usage = store.usage(Utc::from_unix_millis(2)).unwrap();
    assert_eq!((usage.bytes, usage.reserved, usage.counts.evicted), (4 * MIB, 0, 6));
}

#[test]
fn blob_from_before_the_clock_was_set_back_does_not_stay_new() {
    let dir = tempfile::tempdir().unwrap();
    let budget = Budget { high: 1.0, low: 1.0, young: Duration::from_secs(120), ..Budget::of(2 * MIB) };
    let (back, ahead) = (Utc::from_unix_millis(0), Utc::from_unix_millis(86_400_000));
    let (store, _) = Store::open(dir.path(), budget, PolicyKind::Lru, ahead).unwrap();
    let put = |n: u8, now| {
        let bytes = vec![n; usize::try_from(MIB).unwrap()];
        store.put(&digest(&bytes), &bytes, 1, now)
    };
    put(0, ahead).unwrap();
    put(1, ahead).unwrap();
    assert!(put(2, ahead).is_err(), "both are new");
    put(2, back).unwrap();
}

#[test]
fn room_for_an_image_is_reserved_whole_and_returned_if_unused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), 4 * MIB);
    let old = keep(&store, 1, MIB);
    let part = |n: u8, size| Part { digest: digest(&[n]), size };
    // A blob that is here is not evicted for the rest of its own image.
    let parts = [Part { digest: old.clone(), size: MIB }, part(2, 2 * MIB), part(3, MIB)];
    assert_eq!(store.expect(&parts, Utc::from_unix_millis(0)).unwrap(), 3 * MIB);
    let usage = store.usage(Utc::from_unix_millis(0)).unwrap();
    assert_eq!((usage.bytes, usage.reserved), (MIB, 3 * MIB));
    assert_eq!(store.expect(&parts, Utc::from_unix_millis(0)).unwrap(), 3 * MIB, "once only");
    let refused = store.expect(&[part(4, 2 * MIB), part(5, 2 * MIB)], Utc::from_unix_millis(1));
    assert!(matches!(refused, Err(StoreError::NoRoom { need: 4_194_304, .. })), "{refused:?}");
    store.tick(Utc::from_unix_millis(61_000)).unwrap();
    assert_eq!(store.usage(Utc::from_unix_millis(61_000)).unwrap().reserved, 0);
    let large = store.begin(&digest(b"x"), 2 * MIB + 1, 1, Utc::from_unix_millis(0));
    assert!(matches!(large, Err(StoreError::TooBig { .. })));
}

/// A part without a mark is of the version before, which did not note where its bytes came from.
#[test]
fn part_of_another_scope_or_of_the_version_before_is_not_continued() {
    use crate::scope::{Mark, Scope};
    let dir = tempfile::tempdir().unwrap();
    let (bytes, mark) =
        (vec![7; 1000], |name: &str| Scope::of(&name.parse::<Image>().unwrap().source, false).mark());
    let (name, ours, theirs) = (digest(&bytes), mark("acme/ours"), mark("evil.example/theirs"));
    let parts = dir.path().join("part").join(name.hex());
    let begin = |store: &Store, mark: Mark, fence| store.begin_in(mark, &name, 1000, fence, true, now_utc());
    for is_reopened in [false, true] {
        let (mut store, _) = open(dir.path(), MIB);
        std::fs::create_dir_all(&parts).unwrap();
        std::fs::write(parts.join("17-1000-only"), &bytes[..900]).unwrap();
        if is_reopened {
            drop(store);
            (store, _) = open(dir.path(), MIB);
        }
        let mut first = begin(&store, ours, 1).unwrap();
        assert_eq!(first.written(), 0, "reopened: {is_reopened}");
        assert!(matches!(begin(&store, theirs, 2), Err(StoreError::Elsewhere(_))), "it is under way");
        first.write(&bytes[..900]).unwrap();
        drop(first);
        let again = begin(&store, ours, 3).unwrap();
        assert_eq!(again.written(), 900);
        drop(again);
        let other = begin(&store, theirs, 4).unwrap();
        assert_eq!(other.written(), 0);
        other.discard();
        assert_eq!(store.usage(now_utc()).unwrap().reserved, 0);
    }
}

/// Anyone who writes to the Redis of a site can say that a node uses all there is.
#[test]
fn use_by_other_nodes_keeps_at_most_half_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), 16 * MIB);
    let layers: Vec<Digest> = (1..8).map(|n| keep(&store, n, 2 * MIB)).collect();
    let mut all = HashSet::new();
    for (n, layer) in layers.iter().enumerate() {
        let config = keep(&store, 100 + n as u8, 10);
        image(&store, &format!("acme/app{n}"), &[(&config, 10), (layer, 2 * MIB)]);
        all.extend([layer.clone(), config]);
    }
    store.set_in_use(HashSet::from([layers[0].clone()]));
    store.set_in_use_elsewhere(all);
    let held = store.usage(Utc::from_unix_millis(0)).unwrap().held;
    assert!((8 * MIB..10 * MIB).contains(&held), "{held} bytes, 2 MiB of them by this node");
    for n in 50..60 {
        keep(&store, n, 2 * MIB);
    }
    assert!(store.has(&layers[0]), "this node uses it");
    assert_eq!(layers.iter().filter(|layer| store.has(layer)).count(), 4);
}

#[test]
fn a_blob_of_two_images_outlives_one_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), 16 * MIB);
    let [shared, one, two] = [1, 2, 3].map(|n| keep(&store, n, MIB));
    let (first, size) = image(&store, "acme/a", &[(&one, MIB), (&shared, MIB)]);
    image(&store, "acme/b", &[(&two, MIB), (&shared, MIB)]);
    assert_eq!(store.images().iter().map(|i| i.present).collect::<Vec<_>>(), [2 * MIB + size; 2]);
    assert_eq!(store.remove(&first).unwrap(), Some(MIB + size));
    assert!(store.has(&shared) && !store.has(&one));
    assert_eq!(store.remove(&first).unwrap(), None);
    assert_eq!(store.images().len(), 1);
    // It is the same when it is opened again.
    drop(store);
    let (store, recovered) = open(dir.path(), 16 * MIB);
    assert_eq!((recovered.blobs, recovered.bytes, recovered.removed), (3, 2 * MIB + size, 0));
    assert_eq!(store.images()[0].image, "docker.io/acme/b:1");
    assert!(store.part_of(&first.source, &shared).is_none());
}

#[test]
fn pin_that_cannot_be_written_is_not_in_force_and_can_be_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), MIB);
    store.pin("acme/a:1", true).unwrap();
    // A file cannot be made under the name of a directory. Root cannot do so either.
    let blocked = dir.path().join(".new-only");
    std::fs::create_dir(&blocked).unwrap();
    assert!(store.pin("acme/b:1", true).is_err() && store.pin("acme/a:1", false).is_err());
    assert_eq!(store.pins(), ["acme/a:1"]);
    std::fs::remove_dir(&blocked).unwrap();
    assert!(store.pin("acme/b:1", true).unwrap() && store.pin("acme/a:1", false).unwrap());
    drop(store);
    assert_eq!(open(dir.path(), MIB).0.pins(), ["acme/b:1"]);
}

/// Above the upper mark all may go down to the lower one but manifests, which take no room to speak of.
#[test]
fn manifests_stay_if_the_new_blob_fits_and_while_their_image_is_fetched() {
    for (layers, fits) in [([7 * MIB + MIB / 2, 1000], true), ([4 * MIB, 5 * MIB], false)] {
        let dir = tempfile::tempdir().unwrap();
        let budget = Budget { young: Duration::ZERO, ..Budget::of(16 * MIB) };
        let at = Utc::from_unix_millis(0);
        let (store, _) = Store::open(dir.path(), budget, PolicyKind::Lru, at).unwrap();
        let [config, layer] = [keep(&store, 1, 10), keep(&store, 2, 8 * MIB)];
        image(&store, "acme/pinned", &[(&config, 10), (&layer, 8 * MIB)]);
        store.pin("*acme/pinned:1", true).unwrap();
        let absent = digest(b"absent");
        image(&store, "acme/other", &[(&absent, 10)]);
        let bytes = layers.map(|size| vec![3; usize::try_from(size).unwrap()]);
        let parts = [0, 1].map(|n| (digest(&bytes[n]), layers[n]));
        let (of, _) = image(&store, "acme/new", &[(&parts[1].0, layers[1]), (&parts[0].0, layers[0])]);
        let crate::Reference::Tag(tag) = &of.reference else { unreachable!() };
        let manifest = store.tag(&of.source, tag).unwrap().digest;
        store.announce(&manifest, at);
        let mut read = Vec::new();
        for (bytes, (digest, size)) in bytes.iter().zip(&parts) {
            let Ok(mut part) = store.begin(digest, *size, 1, at) else { continue };
            part.write(bytes).unwrap();
            part.finish(at).unwrap();
            read.push(store.open_blob(digest, at).unwrap());
        }
        assert!(store.has(&parts[0].0) && store.has(&layer), "{layers:?}");
        let wanted = ["new", "other", "pinned"].into_iter().filter(|name| fits || *name != "other");
        let wanted: Vec<_> = wanted.map(|name| format!("docker.io/acme/{name}:1")).collect();
        assert_eq!(store.images().into_iter().map(|i| i.image).collect::<Vec<_>>(), wanted, "{layers:?}");
    }
}

/// Made again without its lock, a second process could take it, and each would have a budget.
#[test]
fn store_whose_directory_was_removed_or_replaced_is_not_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    for is_remade in [false, true] {
        let (store, _) = open(&root, MIB);
        let kept = keep(&store, 1, 100);
        std::fs::remove_dir_all(&root).unwrap();
        let second = is_remade.then(|| open(&root, MIB));
        let put = store.put(&digest(&[2; 100]), &[2; 100], 1, now_utc());
        assert!(matches!(put, Err(StoreError::Replaced { .. })), "{put:?}");
        assert!(matches!(store.tick(now_utc()), Err(StoreError::Replaced { .. })));
        assert_eq!(root.exists(), is_remade);
        // The earlier blobs are not served from another's directory.
        assert!(store.open_blob(&kept, now_utc()).unwrap().is_none());
        if let Some((second, _)) = second {
            assert_eq!(second.usage(now_utc()).unwrap().blobs, 0);
        }
    }
}

#[test]
fn part_that_cannot_be_read_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), 16 * MIB);
    let name = digest(b"large");
    let mut cut = store.begin(&name, MIB, 1, now_utc()).unwrap();
    cut.write(&[7; 600]).unwrap();
    drop(cut);
    // A read of a directory fails, as one of a bad sector does.
    let part = layout::list(&store.inner.layout.parts(&name)).unwrap().remove(0);
    let large = dir.path().join("large");
    std::fs::create_dir(&large).unwrap();
    std::fs::remove_file(&part).unwrap();
    std::os::unix::fs::symlink(&large, &part).unwrap();
    let again = store.begin(&name, MIB, 2, now_utc()).unwrap();
    assert_eq!(again.written(), 0);
    assert_eq!(layout::list(&store.inner.layout.parts(&name)).unwrap().len(), 1);
    assert_eq!(store.usage(now_utc()).unwrap().reserved, MIB);
}

#[test]
fn room_that_was_set_aside_before_the_clock_was_set_back_is_returned() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), 4 * MIB);
    let (ahead, back) = (Utc::from_unix_millis(86_400_000), Utc::from_unix_millis(0));
    store.expect(&[Part { digest: digest(b"never"), size: MIB }], ahead).unwrap();
    assert_eq!(store.usage(ahead).unwrap().reserved, MIB);
    store.tick(back).unwrap();
    assert_eq!(store.usage(back).unwrap().reserved, 0);
}

/// Each takes a block, however few its bytes are.
#[test]
fn many_small_blobs_at_once_take_no_more_than_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), 16 * 4096);
    let at = Utc::from_unix_millis(0);
    let writers: Vec<_> =
        (0..40u8).filter_map(|n| Some((n, store.begin(&digest(&[n; 100]), 100, 1, at).ok()?))).collect();
    for (n, mut writer) in writers {
        writer.write(&[n; 100]).unwrap();
        writer.finish(at).unwrap();
    }
    let blobs = store.usage(at).unwrap().blobs;
    assert_eq!((blobs, store.lock().used), (16, 16 * 4096));
    // Expected blobs count in blocks too.
    let parts: Vec<_> = (100..120u8).map(|n| Part { digest: digest(&[n]), size: 1 }).collect();
    assert!(matches!(store.expect(&parts, at), Err(StoreError::NoRoom { need: 81_920, .. })));
    store.expect(&parts[..8], at).unwrap();
    assert!(store.lock().used <= 16 * 4096);
}

#[test]
fn blob_that_cannot_be_removed_keeps_no_other_of_its_image_here() {
    let dir = tempfile::tempdir().unwrap();
    let budget = Budget { high: 1.0, low: 1.0, young: Duration::ZERO, ..Budget::of(4 * MIB) };
    let (at, later) = (Utc::from_unix_millis(0), Utc::from_unix_millis(1000));
    let (store, _) = Store::open(dir.path(), budget, PolicyKind::ImageLru, at).unwrap();
    let blobs: Vec<_> = (0..3).map(|n| keep(&store, n, MIB)).collect();
    let of: Vec<_> = blobs.iter().map(|blob| (blob, MIB)).collect();
    image(&store, "acme/a", &of);
    // A file cannot take the name of a directory. Root cannot have it so either.
    let block = |at: Utc| {
        let blocked = blobs.iter().map(|blob| format!("trash/{}-sha256-{}", at.unix_millis(), blob.hex()));
        blocked.map(|name| dir.path().join(name)).collect::<Vec<_>>()
    };
    let all = block(at);
    std::fs::create_dir(&all[1]).unwrap();
    let freed = store.prune(MIB, at);
    assert!(matches!(freed, Err(StoreError::Io { what: "remove", .. })), "{freed:?}");
    assert_eq!(blobs.iter().map(|b| store.has(b)).collect::<Vec<_>>(), [false, true, false]);
    // The removal is tried again. Its failure refuses no blob for which there is room without it.
    let other = digest(&[9; 100]);
    store.put(&other, &[9; 100], 1, later).unwrap();
    assert!(store.has(&other));
    store.prune(0, later).unwrap();
    assert!(!store.has(&blobs[1]));
}

#[test]
fn wrong_content_gets_no_name_and_a_cut_download_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path(), 16 * MIB);
    let bytes = vec![7; 1000];
    let name = digest(&bytes);
    let mut wrong = store.begin(&name, 1000, 1, Utc::from_unix_millis(0)).unwrap();
    wrong.write(&[8; 1000]).unwrap();
    assert!(matches!(wrong.finish(Utc::from_unix_millis(0)), Err(StoreError::Mismatch { .. })));
    let mut long = store.begin(&name, 1000, 2, Utc::from_unix_millis(0)).unwrap();
    assert!(matches!(long.write(&[7; 1001]), Err(StoreError::Length { got: 1001, want: 1000, .. })));
    drop(long);
    assert!(!store.has(&name) && store.usage(Utc::from_unix_millis(0)).unwrap().reserved == 0);
    let mut cut = store.begin(&name, 1000, 3, now_utc()).unwrap();
    cut.write(&bytes[..600]).unwrap();
    drop(cut);
    assert_eq!(store.usage(now_utc()).unwrap().reserved, 600);
    drop(store);
    let budget = Budget::of(16 * MIB);
    let (store, recovered) = Store::open(dir.path(), budget, PolicyKind::Lru, now_utc()).unwrap();
    assert_eq!(recovered.resumable, 1);
    let mut rest = store.begin(&name, 1000, 4, now_utc()).unwrap();
    assert_eq!(rest.written(), 600);
    rest.write(&bytes[600..]).unwrap();
    rest.finish(now_utc()).unwrap();
    assert!(store.has(&name));
    // This one is not continued.
    let mut lost = store.begin(&digest(b"lost"), 4, 5, now_utc()).unwrap();
    lost.write(b"lo").unwrap();
    drop(lost);
    store.tick(now_utc().after(RESUME * 2)).unwrap();
    assert_eq!(layout::list(&dir.path().join("part")).unwrap().len(), 0);
    assert_eq!(store.usage(now_utc()).unwrap().reserved, 0);
}
