//! Evictions are those of the simulator, also after a restart, and never for the rest of the same
//! image.

use std::time::Duration;

use weir_cache::{
    generate::{ZONES, generate},
    simulate::{Replay, Setup, Sharing, TimeModel},
    trace::Trace,
};
use weir_units::Bytes;

use super::*;
use crate::{digest::Algorithm, manifest::Part};

/// Deployments like those of zone fra, of layers a ten thousandth as large, at whole milliseconds.
fn small_trace() -> Trace {
    let mut trace = generate(&ZONES[0], 150, 3);
    for bytes in &mut trace.blobs {
        // Whole blocks, as files take them.
        *bytes = Bytes(on_disk(8 + bytes.0 / 10_000));
    }
    for deployment in &mut trace.deployments {
        deployment.at = Duration::from_millis(u64::try_from(deployment.at.as_millis()).unwrap());
    }
    trace
}

/// A blob's content: its number, again and again.
fn content(number: usize, size: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(usize::try_from(size).unwrap()).collect()
}

/// A directory without a disk, as thousands of files are synced.
fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn open(root: &Path, policy: PolicyKind, bytes: u64) -> Store {
    let budget = Budget { high: 1.0, low: 1.0, young: Duration::ZERO, ..Budget::of(bytes) };
    Store::open(root, budget, policy, Utc::from_unix_millis(0)).unwrap().0
}

#[test]
fn at_each_deployment_the_store_throws_out_what_the_simulator_does() {
    let trace = small_trace();
    let parts: Vec<Part> = (trace.blobs.iter().enumerate())
        .map(|(n, size)| Part { digest: Digest::of(Algorithm::Sha256, &content(n, size.0)), size: size.0 })
        .collect();
    let number: HashMap<&Digest, u64> = parts.iter().map(|part| &part.digest).zip(0..).collect();
    let budget = Bytes(trace.working_set().0 / 8);
    for policy in PolicyKind::ALL {
        let dir = memory();
        let store = open(dir.path(), policy, budget.0);
        let setup = Setup { nodes: 1, sharing: Sharing::Shared, budget, policy, time: TimeModel::PAPER };
        let mut replay = Replay::new(&trace, setup, 0);
        let mut thrown_out = 0;
        for (nth, deployment) in trace.deployments.iter().enumerate() {
            replay.advance(1);
            let now = Utc::from_unix_millis(u64::try_from(deployment.at.as_millis()).unwrap());
            let image: Vec<Part> =
                trace.images[deployment.image as usize].iter().map(|n| parts[*n as usize].clone()).collect();
            let name = Digest::of(Algorithm::Sha256, &deployment.image.to_le_bytes());
            let mut before: Vec<u64> = store.lock().blobs.keys().map(|digest| number[digest]).collect();
            store.used(&name, &image, now);
            store.expect(&image, now).unwrap();
            for part in image.iter().filter(|part| !store.is_too_big(part.size)) {
                let n = usize::try_from(number[&part.digest]).unwrap();
                store.put(&part.digest, &content(n, part.size), 1, now).unwrap();
            }
            before.retain(|n| !store.has(&parts[usize::try_from(*n).unwrap()].digest));
            before.sort_unstable();
            let mut wanted: Vec<u64> = replay.victims().iter().map(|id| id.0).collect();
            wanted.sort_unstable();
            assert_eq!(before, wanted, "{policy}: deployment {nth}");
            thrown_out += wanted.len();
        }
        assert!(thrown_out > 40, "{policy}: {thrown_out}");
        assert_eq!(
            store.usage(Utc::from_unix_millis(0)).unwrap().policy.1,
            replay.outcome().chosen.unwrap_or(policy)
        );
    }
}

/// Keeps a blob of a mebibyte, all `n`.
fn keep(store: &Store, n: u8, now: Utc) -> Digest {
    let bytes = vec![n; 1 << 20];
    let digest = Digest::of(Algorithm::Sha256, &bytes);
    store.put(&digest, &bytes, 1, now).unwrap();
    digest
}

#[test]
fn uses_of_blobs_and_the_choice_of_auto_outlive_a_restart() {
    let dir = memory();
    let store = open(dir.path(), PolicyKind::Gdsf, 4 << 20);
    let old = keep(&store, 0, Utc::from_unix_millis(1));
    for second in 2..7 {
        store.open_blob(&old, Utc::from_unix_millis(second * 1000)).unwrap();
    }
    let new: Vec<Digest> = (1..4).map(|n| keep(&store, n, Utc::from_unix_millis(9000))).collect();
    drop(store);
    let store = open(dir.path(), PolicyKind::Gdsf, 4 << 20);
    keep(&store, 4, Utc::from_unix_millis(10_000));
    assert!(store.has(&old), "used six times");
    assert_eq!(new.iter().filter(|digest| store.has(digest)).count(), 2);
    drop(store);
    let noted = r#"{"chosen":"gdsf","spent":[["lru",9.0],["gdsf",7.0]],"uses":{}}"#;
    std::fs::write(dir.path().join("order/only"), noted).unwrap();
    let store = open(dir.path(), PolicyKind::Auto, 4 << 20);
    assert_eq!(store.usage(Utc::from_unix_millis(0)).unwrap().policy, (PolicyKind::Auto, PolicyKind::Gdsf));
    // Unreadable notes count as none.
    drop(store);
    std::fs::write(dir.path().join("order/only"), "{").unwrap();
    let store = open(dir.path(), PolicyKind::Auto, 4 << 20);
    assert_eq!(
        store.usage(Utc::from_unix_millis(0)).unwrap().policy,
        (PolicyKind::Auto, PolicyKind::GdsfGhost)
    );
}

#[test]
fn an_image_and_the_layers_that_follow_it_are_one_use() {
    let dir = memory();
    let store = open(dir.path(), PolicyKind::Gdsf, 4 << 20);
    let layer = keep(&store, 0, Utc::from_unix_millis(1));
    let image = Digest::of(Algorithm::Sha256, b"image");
    let uses = || store.lock().blobs[&layer].uses;
    store.used(&image, &[Part { digest: layer.clone(), size: 1 << 20 }], Utc::from_unix_millis(2));
    store.open_blob(&layer, Utc::from_unix_millis(3)).unwrap();
    assert_eq!(uses(), 2);
    store.open_blob(&layer, Utc::from_unix_millis(4)).unwrap();
    assert_eq!(uses(), 3, "by itself");
}

#[test]
fn what_is_here_of_an_image_does_not_leave_for_the_rest_of_it() {
    let dir = memory();
    let store = open(dir.path(), PolicyKind::Gdsf, 4 << 20);
    let part = |digest: &Digest, size| Part { digest: digest.clone(), size };
    let own = keep(&store, 0, Utc::from_unix_millis(1));
    // Used more often than what the image has.
    let other = keep(&store, 1, Utc::from_unix_millis(2));
    store.open_blob(&other, Utc::from_unix_millis(3)).unwrap();
    store.open_blob(&other, Utc::from_unix_millis(4)).unwrap();
    let rest = [
        part(&Digest::of(Algorithm::Sha256, b"a"), 2 << 20),
        part(&Digest::of(Algorithm::Sha256, b"b"), 1 << 20),
    ];
    store.expect(&[&[part(&own, 1 << 20)], &rest[..]].concat(), Utc::from_unix_millis(5)).unwrap();
    assert!(store.has(&own) && !store.has(&other));
}

#[test]
fn image_lru_keeps_images_in_use_and_evicts_whole_images() {
    let dir = memory();
    let store = open(dir.path(), PolicyKind::ImageLru, (4 << 20) + 4096);
    let layers: Vec<Digest> = (0..4).map(|n| keep(&store, n, Utc::from_unix_millis(n.into()))).collect();
    let mut images = Vec::new();
    for (name, two) in [("acme/used", &layers[..2]), ("acme/old", &layers[2..])] {
        let parts: Vec<Part> = two.iter().map(|d| Part { digest: d.clone(), size: 1 << 20 }).collect();
        let (image, _) = super::tests::image(&store, name, &[(&two[0], 1 << 20), (&two[1], 1 << 20)]);
        let crate::Reference::Tag(tag) = &image.reference else { unreachable!() };
        let manifest = store.tag(&image.source, tag).unwrap().digest;
        store.used(&manifest, &parts, Utc::from_unix_millis(10));
        images.push(manifest);
    }
    store.set_in_use([images[0].clone()].into());
    keep(&store, 4, Utc::from_unix_millis(12));
    assert_eq!(layers.iter().map(|digest| store.has(digest)).collect::<Vec<_>>(), [true, true, false, false]);
    assert!(store.has(&images[1]), "manifests go last");
    store.set_in_use(HashSet::new());
    keep(&store, 5, Utc::from_unix_millis(13));
    keep(&store, 6, Utc::from_unix_millis(14));
    assert!(!layers.iter().any(|digest| store.has(digest)), "it was one image all the time");
}
