//! The mirror in front of a registry that has troubles.

mod support;

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use support::{Registry, RegistryFault, digest, pair, serve, settings, timing};

const APP: &str = "library/app";

#[tokio::test]
async fn what_was_pulled_once_is_not_asked_of_the_registry_again() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 1, &[300_000, 5]);
    served.pull(APP, "1").await.unwrap();
    let asked = registry.log().len();
    // By ns, by path, as Docker asks its Hub mirror: the same repository.
    for path in [
        "/v2/library/app/manifests/1?ns=docker.io",
        "/v2/docker.io/library/app/manifests/1",
        "/v2/app/manifests/1",
    ] {
        let got = served.get(path).await;
        assert_eq!(digest(got.bytes()), made.manifest);
        assert_eq!(got.headers["docker-content-digest"], made.manifest.to_string().as_str());
        assert_eq!(got.headers["content-type"], "application/vnd.oci.image.manifest.v1+json");
    }
    let head = served.request("HEAD", &format!("/v2/app/blobs/{}", made.layers[0]), &[]).await;
    assert_eq!((head.status, head.headers["content-length"].to_str().unwrap()), (200, "300000"));
    served.pull(APP, "1").await.unwrap();
    assert_eq!(registry.log().len(), asked, "{:?}", registry.log());
    assert_eq!(served.get("/v2/").await.status, 200);
}

#[tokio::test]
async fn twenty_pullers_at_once_cost_one_get_per_blob_and_manifest() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 2, &[3_000_000, 200_000, 17]);
    for _ in 0..4 {
        registry.trouble(RegistryFault::Slow(Duration::from_millis(5)));
    }
    let pulls = (0..20).map(|_| served.pull(APP, "1"));
    for result in futures_util::future::join_all(pulls).await {
        result.unwrap();
    }
    assert_eq!(registry.asked(&format!("GET /v2/{APP}/manifests/")), 1, "{:?}", registry.log());
    for blob in made.layers.iter().chain([&made.config]) {
        assert_eq!(registry.asked_whole(APP, blob), 1, "{blob}");
    }
    let manifest = registry.state.manifests.lock().unwrap()[&format!("{APP}/1")].1.len() as u64;
    let blobs: u64 = registry.state.blobs.lock().unwrap().values().map(|b| b.len() as u64).sum();
    assert_eq!(served.counted("upstream_bytes"), blobs + manifest);
}

#[tokio::test]
async fn cut_or_stalled_download_continues_unseen_by_clients() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 3, &[1_000_000]);
    registry.trouble(RegistryFault::Cut(400_000));
    registry.trouble(RegistryFault::Stall(200_000));
    registry.trouble(RegistryFault::Cut(0));
    registry.trouble(RegistryFault::NoRange);
    let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    let got = served.get(&path).await;
    assert_eq!(digest(got.bytes()), made.layers[0]);
    let log = registry.log();
    let asked: Vec<_> = log.iter().filter(|l| l.starts_with(&format!("GET {path}"))).collect();
    assert_eq!(asked.len(), 4, "{log:?}");
    let from = |line: &str| {
        line.rsplit_once("bytes=").map(|(_, f)| f.trim_end_matches('-').parse::<usize>().unwrap())
    };
    let begun: Vec<_> = asked.iter().map(|line| from(line)).collect();
    assert_eq!(begun[0], None);
    // The bytes that reached the disk before the cut: all pieces but perhaps the last.
    assert!(begun[1].is_some_and(|at| (300_000..=400_000).contains(&at)), "{begun:?}");
    assert!(begun[2] > begun[1] && begun[3] == begun[2], "{begun:?}");
}

#[tokio::test]
async fn wrong_content_never_reaches_its_end_and_is_not_kept() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 4, &[500_000, 10]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    registry.trouble(RegistryFault::Lie);
    let got = served.blob(APP, &made.layers[0]).await;
    assert!(got.body.is_err(), "{} bytes came", got.body.unwrap().len());
    assert!(!served.mirror.store().has(&made.layers[0]));
    // At once again: refused, so that the client goes to the registry itself. Later: fetched again.
    assert_eq!(served.blob(APP, &made.layers[0]).await.status, 404);
    tokio::time::sleep(timing().negative * 2).await;
    assert_eq!(digest(served.blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    // A small one is verified before its first byte.
    registry.trouble(RegistryFault::Lie);
    let small = served.blob(APP, &made.layers[1]).await;
    assert!(small.status == 404 || small.body.is_err(), "{small:?}");
    assert_eq!(served.counted("wrong_content"), 2);
}

#[tokio::test]
async fn a_registry_that_fails_or_is_silent_is_answered_for_with_404_in_time() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 5, &[100, 101, 102]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    for (blob, trouble) in made.layers.iter().zip([
        RegistryFault::Status(500),
        RegistryFault::Silence,
        RegistryFault::Status(404),
    ]) {
        for _ in 0..1000 {
            registry.trouble(trouble.clone());
        }
        let begun = Instant::now();
        assert_eq!(served.blob(APP, blob).await.status, 404, "{trouble:?}");
        assert!(begun.elapsed() < timing().first_byte * 2, "{trouble:?} took {:?}", begun.elapsed());
        registry.state.blob_troubles.lock().unwrap().clear();
    }
    assert_eq!(served.get("/v2/library/none/manifests/1").await.status, 404);
}

#[tokio::test]
async fn tag_is_stale_while_its_registry_fails_and_gone_with_it() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut fresh = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    fresh.tag_ttl_s = 0;
    let served = serve(fresh).await;
    let old = registry.image(APP, "1", 6, &[10]);
    let tag = format!("/v2/{APP}/manifests/1");
    assert_eq!(digest(served.get(&tag).await.bytes()), old.manifest);
    for code in [500, 503] {
        *registry.state.manifest_status.lock().unwrap() = Some((code, 0));
        let stale = served.get(&tag).await;
        assert_eq!(digest(stale.bytes()), old.manifest, "{code}");
        assert!(stale.headers.contains_key("warning"));
        tokio::time::sleep(timing().negative * 2).await;
    }
    *registry.state.manifest_status.lock().unwrap() = Some((429, 1));
    assert_eq!(digest(served.get(&tag).await.bytes()), old.manifest);
    // It wants to be left alone for a second: it is.
    let asked = registry.log().len();
    assert_eq!(digest(served.get(&tag).await.bytes()), old.manifest);
    assert_eq!(registry.log().len(), asked);
    tokio::time::sleep(Duration::from_millis(1300)).await;
    // It moves: seen, for one GET.
    *registry.state.manifest_status.lock().unwrap() = None;
    let new = registry.image(APP, "1", 7, &[10]);
    assert_eq!(digest(served.get(&tag).await.bytes()), new.manifest);
    assert_eq!(registry.asked(&format!("GET {tag}")), 0, "by tag only HEAD: {:?}", registry.log());
    registry.state.manifests.lock().unwrap().clear();
    assert_eq!(served.get(&tag).await.status, 404);
    assert!(served.mirror.store().images().iter().all(|i| !i.image.ends_with(":1")));
}

#[tokio::test]
async fn ranges_are_served_of_what_is_here_and_of_what_is_coming() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 8, &[2_000_000]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    registry.trouble(RegistryFault::Slow(Duration::from_millis(20)));
    let (path, want) = (format!("/v2/{APP}/blobs/{}", made.layers[0]), support::noise(801, 2_000_000));
    let whole = served.get(&path);
    let part = async {
        // The other one leads.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let got = served.request("GET", &path, &[("range", "bytes=500000-")]).await;
        assert!(!served.mirror.store().has(&made.layers[0]) || got.body.is_ok());
        got
    };
    let early = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let got = served.request("GET", &path, &[("range", "bytes=0-99")]).await;
        assert!(!served.mirror.store().has(&made.layers[0]), "the beginning has to be there before the end");
        got
    };
    let (whole, part, early) = futures_util::future::join3(whole, part, early).await;
    assert_eq!(whole.bytes(), &want);
    assert_eq!((part.status, part.bytes()), (206, &want.slice(500_000..)));
    assert_eq!(part.headers["content-range"], "bytes 500000-1999999/2000000");
    assert_eq!((early.status, early.bytes()), (206, &want.slice(..100)));
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 1);
    let end = served.request("GET", &path, &[("range", "bytes=-7")]).await;
    assert_eq!((end.status, end.bytes()), (206, &want.slice(1_999_993..)));
    let beyond = served.request("GET", &path, &[("range", "bytes=2000000-")]).await;
    assert_eq!((beyond.status, beyond.headers["content-range"].to_str().unwrap()), (416, "bytes */2000000"));
    let other = served.request("GET", &path, &[("range", "bytes=5-"), ("if-range", "\"x\"")]).await;
    assert_eq!((other.status, other.bytes().len()), (200, 2_000_000));
}

#[tokio::test]
async fn a_client_that_leaves_does_not_take_the_download_with_it() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 9, &[1_000_000]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    registry.trouble(RegistryFault::Slow(Duration::from_millis(10)));
    let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    let left = tokio::time::timeout(Duration::from_millis(120), served.get(&path)).await;
    assert!(left.is_err());
    assert_eq!(digest(served.get(&path).await.bytes()), made.layers[0]);
    assert_eq!(registry.asked(&format!("GET {path}")), 1);
}

#[tokio::test]
async fn a_mirror_that_died_in_the_middle_goes_on_where_it_was() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let made = registry.image(APP, "1", 10, &[2_000_000]);
    let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    let given = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let first = serve(given.clone()).await;
    first.get(&format!("/v2/{APP}/manifests/1")).await;
    registry.trouble(RegistryFault::Slow(Duration::from_millis(30)));
    let _ = tokio::time::timeout(Duration::from_millis(500), first.get(&path)).await;
    // As if it were killed: a copy of what is on the disk, taken in the middle.
    let copy = dir.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(dir.path().join("store")).arg(&copy).status();
    assert!(copied.unwrap().success() && !first.mirror.store().has(&made.layers[0]));
    std::fs::write(copy.join("trash/left"), "x").unwrap();
    std::fs::write(copy.join("refs/.new-1"), "x").unwrap();
    drop(first);
    let second = serve(support::settings(&copy, vec![registry.settings("docker.io")])).await;
    assert!(!copy.join("trash/left").exists() && !copy.join("refs/.new-1").exists());
    assert_eq!(digest(second.get(&path).await.bytes()), made.layers[0]);
    let last = registry.log().pop().unwrap();
    assert!(last.starts_with(&format!("GET {path} bytes=")), "{last}");
    assert_eq!(std::fs::read_dir(copy.join("part")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_blob_that_was_changed_on_the_disk_is_fetched_again_and_never_served() {
    let (registry, served, dir) = pair().await;
    let made = registry.image(APP, "1", 11, &[400_000]);
    served.pull(APP, "1").await.unwrap();
    let hex = made.layers[0].hex();
    let file = dir.path().join("store/blobs/sha256").join(&hex[..2]).join(hex);
    for damage in ["flip", "cut", "gone"] {
        match damage {
            "flip" => {
                let mut bytes = std::fs::read(&file).unwrap();
                bytes[200_000] ^= 1;
                std::fs::write(&file, bytes).unwrap();
            }
            "cut" => std::fs::File::options().write(true).open(&file).unwrap().set_len(1000).unwrap(),
            _ => std::fs::remove_file(&file).unwrap(),
        }
        let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
        let range = served.request("GET", &path, &[("range", "bytes=0-9")]);
        assert_eq!(range.await.bytes(), &support::noise(1101, 400_000).slice(..10), "{damage}");
        assert_eq!(digest(served.blob(APP, &made.layers[0]).await.bytes()), made.layers[0], "{damage}");
    }
    assert_eq!(registry.asked(&format!("GET /v2/{APP}/blobs/{}", made.layers[0])), 4);
}

#[tokio::test]
async fn downloads_together_obey_max_rate_and_its_change_at_once() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut given = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    given.max_rate = Some(weir_units::BitRate::mbit(8));
    let served = serve(given.clone()).await;
    let made = registry.image(APP, "1", 12, &[900_000, 900_000, 30_000_000]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    let begun = Instant::now();
    let both = [0, 1].map(|n| served.blob(APP, &made.layers[n]));
    let ends = futures_util::future::join_all(both).await;
    assert!(ends.iter().zip(&made.layers).all(|(got, blob)| digest(got.bytes()) == *blob));
    // 1.8 MB at 1 MB/s, but for what passes at once.
    assert!(begun.elapsed() > Duration::from_millis(1700), "{:?}", begun.elapsed());
    // 30 s at this rate; blobs that are here need no download.
    let (puller, blob) = (support::Puller(served.address), made.layers[2].clone());
    let large = tokio::spawn(async move { puller.blob(APP, &blob).await });
    served.blob(APP, &made.layers[0]).await.bytes();
    assert!(!large.is_finished());
    served.mirror.reconfigure(&weir_image::Settings { max_rate: None, ..given });
    let got = tokio::time::timeout(Duration::from_secs(30), large).await.unwrap().unwrap();
    assert_eq!(digest(got.bytes()), made.layers[2]);
}

/// No manifest says how long the blob is, and the registry has thought better of it.
#[tokio::test]
async fn blob_that_is_of_another_size_by_now_is_fetched_from_its_beginning() {
    let (registry, served, _dir) = support::pair().await;
    let made = registry.image(APP, "1", 50, &[250_000]);
    let name = made.layers[0].to_string();
    let put = |bytes| registry.state.blobs.lock().unwrap().insert(name.clone(), bytes);
    let right = put(support::noise(51, 300_000)).unwrap();
    registry.trouble(RegistryFault::Stall(200_000));
    let path = format!("/v2/{APP}/blobs/{name}");
    let response = support::Puller(served.address).send("GET", &path, &[]).await;
    assert_eq!(response.headers()["content-length"], "300000");
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    put(right);
    assert!(body.collect().await.is_err(), "it has the beginning of something else");
    assert_eq!(digest(served.blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    assert_eq!(registry.asked_whole(APP, &made.layers[0]), 2);
}

#[tokio::test]
async fn head_of_a_blob_is_answered_without_a_download_and_without_ranges() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 60, &[300_000]);
    let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    let head = async || {
        let head = served.request("HEAD", &path, &[("range", "bytes=0-9")]).await;
        (head.status, head.headers["content-length"].to_str().unwrap().to_owned())
    };
    let want = (200, "300000".to_owned());
    assert_eq!(head().await, want);
    tokio::time::sleep(timing().orphan).await;
    assert_eq!(registry.asked(&format!("GET {path}")), 0, "{:?}", registry.log());
    assert_eq!(digest(served.blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    assert_eq!(head().await, want, "also of what is here");
}
