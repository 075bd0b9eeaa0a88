//! Names that clients make up and manifests that registries make large: disk, inodes and memory stay bounded.

mod support;

use std::time::{Duration, Instant};

use support::{
    Registry, digest,
    fill::{BUDGET, KIND, add, du, fat, open, stored},
    pair, serve, settings,
};
use weir_image::{
    Image, now_utc,
    store::{StoreError, Stored},
};

#[test]
fn pins_of_all_do_not_let_repositories_grow_without_bound() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let (store, one) = (open(&root), stored(fat(1, 1)));
    store.pin("*", true).unwrap();
    for n in 0..400 {
        add(&store, &format!("evil.example/a{n}/b{n}:1"), &one);
    }
    assert!(du(&root.join("refs")).0 <= BUDGET / 8);
    assert!(store.is_public(&"evil.example/a0/b0:1".parse::<Image>().unwrap().source), "it was pinned first");
}

#[test]
fn repository_below_another_outlives_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let (store, one) = (open(&root), stored(fat(1, 1)));
    add(&store, "evil.example/a:1", &one);
    add(&store, "evil.example/a/b:1", &one);
    store.pin("evil.example/a/b:1", true).unwrap();
    store.prune(0, now_utc()).unwrap();
    drop(store);
    let listed: Vec<String> = open(&root).images().into_iter().map(|image| image.image).collect();
    assert_eq!(listed, ["evil.example/a/b:1"]);
}

#[test]
fn image_in_use_keeps_its_name_when_all_else_is_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store"));
    let [used, other] = [stored(fat(1, 1)), stored(fat(2, 1))];
    add(&store, "ghcr.io/acme/used:1", &used);
    add(&store, "ghcr.io/acme/other:1", &other);
    store.set_in_use([used.digest.clone()].into());
    store.prune(0, now_utc()).unwrap();
    let listed: Vec<String> = store.images().into_iter().map(|image| image.image).collect();
    assert_eq!(listed, ["ghcr.io/acme/used:1"]);
}

#[tokio::test]
async fn manifest_of_23000_layers_is_refused_with_the_numbers() {
    let (registry, served, _dir) = pair().await;
    for (tag, layers) in [("most", 1000), ("more", 1001), ("fat", 23_000)] {
        let bytes = fat(1, layers);
        let name = format!("library/app/{}", if layers > 1000 { tag } else { "most" });
        registry.state.manifests.lock().unwrap().insert(name, (KIND.to_owned(), bytes.clone()));
        registry
            .state
            .manifests
            .lock()
            .unwrap()
            .insert(format!("library/app/{}", digest(&bytes)), (KIND.to_owned(), bytes));
        let got = served.get(&format!("/v2/library/app/manifests/{tag}")).await;
        if layers <= 1000 {
            assert_eq!(got.status, 200, "{got:?}");
            continue;
        }
        let why = String::from_utf8(got.body.unwrap().to_vec()).unwrap();
        assert!(got.status == 404 && why.contains(&layers.to_string()) && why.contains("1000"), "{why}");
    }
}

#[test]
fn pins_are_bounded_in_length_and_number() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store"));
    let refused = store.pin(&"a".repeat(513), true).unwrap_err().to_string();
    assert!(refused.contains("513") && refused.contains("512"), "{refused}");
    for n in 0..256 {
        assert!(store.pin(&format!("ghcr.io/a{n}:*"), true).unwrap());
    }
    let refused = store.pin("one:more", true).unwrap_err().to_string();
    assert!(refused.contains("256"), "{refused}");
    assert!(store.pin("ghcr.io/a0:*", false).unwrap() && store.pin("one:more", true).unwrap());
}

/// The pin and the repository of an attack: no answer came within 20 s.
#[tokio::test]
async fn pin_with_stars_does_not_stop_the_mirror() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let served = serve(settings(&dir.path().join("store"), vec![registry.settings("docker.io")])).await;
    let name = format!("library/{}", "a".repeat(100));
    registry.image(&name, "1", 1, &[1000]);
    served.pull(&name, "1").await.unwrap();
    served.mirror.store().pin(&("*a".repeat(10) + "b"), true).unwrap();
    let store = served.mirror.store().clone();
    let listing = tokio::task::spawn_blocking(move || store.images().len());
    let listed = tokio::time::timeout(Duration::from_secs(5), listing).await;
    assert_eq!(listed.expect("the list of images does not end").unwrap(), 1);
    served.pull(&name, "1").await.unwrap();
}

#[test]
fn index_that_names_an_index_a_thousand_times_is_removed_at_once() {
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store"));
    let mut last = stored(fat(1, 1));
    add(&store, "evil.example/a:0", &last);
    for level in 1..=3 {
        let part = serde_json::json!({
            "mediaType": last.media_type, "digest": last.digest.to_string(), "size": last.bytes.len()
        });
        let index =
            serde_json::json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": vec![part; 1000] });
        last = Stored { media_type: INDEX.to_owned(), ..stored(index.to_string().into()) };
        add(&store, &format!("evil.example/a:{level}"), &last);
    }
    let begun = Instant::now();
    for level in 0..3 {
        let image = format!("evil.example/a:{level}").parse().unwrap();
        assert!(store.remove(&image).unwrap().is_some());
    }
    assert!(store.remove(&"evil.example/a:3".parse().unwrap()).unwrap().is_some());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(store.images().is_empty());
}

#[test]
fn pinned_image_is_removed_only_if_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (store, one) = (open(&dir.path().join("store")), stored(fat(1, 1)));
    add(&store, "ghcr.io/acme/app:1", &one);
    store.pin("ghcr.io/acme/*:1", true).unwrap();
    for name in ["ghcr.io/acme/app:1".to_owned(), format!("ghcr.io/acme/app@{}", one.digest)] {
        let refused = store.remove_unpinned(&name.parse().unwrap());
        assert!(matches!(refused, Err(StoreError::Pinned(_))), "{refused:?}");
    }
    let image = "ghcr.io/acme/app:1".parse().unwrap();
    assert!(store.remove(&image).unwrap().is_some());
    assert_eq!(store.remove_unpinned(&image).unwrap(), None);
}
