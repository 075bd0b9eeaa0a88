//! Access to content, refusals, and bounds.

mod support;

use std::{
    collections::HashSet,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use support::{
    Registry, RegistryFault, Served, digest, memory::InMemoryCoordination, pair, serve, serve_with, settings,
    timing,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use weir_image::{
    Image, Scope, Utc,
    coordination::{AcquireResult, Coordination, LEASE},
    now_utc,
    store::{Budget, PolicyKind, Store, StoreError},
};

const APP: &str = "library/app";

#[tokio::test]
async fn private_content_needs_its_registrys_consent_or_a_share() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (login, secret) = (STANDARD.encode("bot:secret"), dir.path().join("token"));
    std::fs::write(&secret, "secret\n").unwrap();
    *registry.state.login.lock().unwrap() = Some(login.clone());
    let mut upstream = registry.settings("docker.io");
    upstream.username = Some("bot".to_owned());
    upstream.password_file = Some(secret);
    upstream.share = vec!["acme/*".to_owned()];
    let served = serve(settings(&dir.path().join("store"), vec![upstream])).await;
    registry.image("acme/app", "1", 20, &[1000]);
    let made = registry.image("other/app", "1", 20, &[1000]);
    // Shared: with each client of this node.
    served.pull("acme/app", "1").await.unwrap();
    // The same blobs under a name that is not: knowing the digest is not enough.
    for path in [
        format!("manifests/{}", made.manifest),
        "manifests/1".to_owned(),
        format!("blobs/{}", made.layers[0]),
    ] {
        assert_eq!(served.get(&format!("/v2/other/app/{path}")).await.status, 404, "{path}");
    }
    // With credentials of one's own, as long as the registry takes them.
    let (good, bad) = (format!("Basic {login}"), format!("Basic {}", STANDARD.encode("bot:wrong")));
    tokio::time::sleep(timing().negative * 2).await;
    let tag = "/v2/other/app/manifests/1";
    assert_eq!(served.request("GET", tag, &[("authorization", &bad)]).await.status, 404);
    assert_eq!(digest(served.request("GET", tag, &[("authorization", &good)]).await.bytes()), made.manifest);
    let blob = format!("/v2/other/app/blobs/{}", made.layers[0]);
    // It was here of another repository: this one delivers it once.
    for _ in 0..2 {
        let got = served.request("GET", &blob, &[("authorization", &good)]).await;
        assert_eq!(digest(got.bytes()), made.layers[0]);
    }
    assert_eq!(registry.asked_whole("other/app", &made.layers[0]), 1, "the permission is known");
    for other in [vec![], vec![("authorization", &*bad)]] {
        assert_eq!(served.request("GET", &blob, &other).await.status, 404, "{other:?}");
        assert_eq!(served.request("HEAD", &blob, &other).await.status, 404, "{other:?}");
    }
}

#[tokio::test]
async fn credentials_do_not_follow_to_another_host() {
    let (registry, cdn) = (Registry::start().await, Registry::start().await);
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("token");
    std::fs::write(&secret, "secret").unwrap();
    *registry.state.login.lock().unwrap() = Some(STANDARD.encode("bot:secret"));
    let mut upstream = registry.settings("docker.io");
    upstream.username = Some("bot".to_owned());
    upstream.password_file = Some(secret);
    upstream.share = vec!["*".to_owned()];
    upstream.redirects = vec![cdn.address.to_string().parse().unwrap()];
    let served = serve(settings(&dir.path().join("store"), vec![upstream])).await;
    let made = registry.image(APP, "1", 21, &[200_000]);
    cdn.image(APP, "1", 21, &[200_000]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    registry
        .trouble(RegistryFault::Redirect(format!("http://{}/v2/x/blobs/{}", cdn.address, made.layers[0])));
    assert_eq!(digest(served.blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    assert_eq!(cdn.asked("GET /v2/x/blobs/"), 1);
    let headers = cdn.state.headers.lock().unwrap().clone();
    assert!(!headers.contains_key("authorization"), "{headers:?}");
    assert_eq!(headers["accept-encoding"], "identity");
}

#[tokio::test]
async fn what_must_not_be_asked_is_not() {
    let (registry, served, _dir) = pair().await;
    registry.image(APP, "1", 22, &[10]);
    for ns in ["169.254.169.254", "[fe80::1]", "127.0.0.1", "localhost", "10.0.0.1", "registry.example:5000"]
    {
        let got = served.get(&format!("/v2/{APP}/manifests/1?ns={ns}")).await;
        assert_eq!(got.status, 404, "{ns}");
        let why = String::from_utf8(got.body.unwrap().to_vec()).unwrap();
        assert!(why.contains("does not ask") || why.contains("refused"), "{ns}: {why}");
    }
    for (path, status) in [
        ("/v2/a/../../etc/passwd/manifests/1", 400),
        ("/v2/a/blobs/sha256:..%2f..%2fetc", 404),
        ("/v2/a/blobs/sha256:123", 400),
        ("/v2/A/manifests/1", 400),
        ("/v2/a/manifests/1?ns=http://x", 400),
        ("/v2/_catalog", 404),
    ] {
        assert_eq!(served.get(path).await.status, status, "{path}");
    }
    assert_eq!(served.request("POST", "/v2/a/blobs/uploads/", &[]).await.status, 405);
    // A request that passed through here comes back: a circle.
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    let hop = registry.state.headers.lock().unwrap()["x-weir-hop"].to_str().unwrap().to_owned();
    let asked = registry.log().len();
    let circle = served.request("GET", "/v2/library/none/manifests/1", &[("x-weir-hop", &hop)]).await;
    assert_eq!((circle.status, registry.log().len()), (404, asked));
}

#[tokio::test]
async fn what_a_registry_says_of_a_digest_is_no_path_and_is_not_believed() {
    let (registry, served, dir) = pair().await;
    let made = registry.image(APP, "1", 27, &[1000]);
    let other = registry.image("library/other", "1", 28, &[1000]);
    // A header that is no digest counts as absent: the manifest itself has one.
    for said in
        ["sha256:../../../../etc/passwd", "../../x", "sha256:", "md5:d41d8cd98f00b204e9800998ecf8427e"]
    {
        *registry.state.digest_said.lock().unwrap() = Some(said.to_owned());
        let reference = format!("tag-{}", said.len());
        let manifests = &registry.state.manifests;
        let kept = manifests.lock().unwrap()[&format!("{APP}/1")].clone();
        manifests.lock().unwrap().insert(format!("{APP}/{reference}"), kept);
        let got = served.get(&format!("/v2/{APP}/manifests/{reference}")).await;
        assert_eq!(digest(got.bytes()), made.manifest, "{said}");
        assert_eq!(got.headers["docker-content-digest"], made.manifest.to_string().as_str());
    }
    // Another one's: that is what is fetched, and it is not in this repository; or it is something else.
    *registry.state.digest_said.lock().unwrap() = Some(other.manifest.to_string());
    let lie = served.get("/v2/library/app/manifests/1").await;
    assert_eq!(lie.status, 404, "{lie:?}");
    let kept = registry.state.manifests.lock().unwrap()[&format!("{APP}/1")].clone();
    let name = format!("{APP}/{}", other.manifest);
    registry.state.manifests.lock().unwrap().insert(name, kept);
    tokio::time::sleep(timing().negative * 2).await;
    let lie = served.get("/v2/library/app/manifests/1").await;
    let why = String::from_utf8(lie.body.unwrap().to_vec()).unwrap();
    assert!(lie.status == 404 && why.contains(&made.manifest.to_string()), "{why}");
    // Others are unaffected, and nothing lies outside of the store.
    *registry.state.digest_said.lock().unwrap() = None;
    served.pull("library/other", "1").await.unwrap();
    let all: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(all, ["store"]);
}

#[tokio::test]
async fn manifests_that_are_huge_or_none_are_refused() {
    let (registry, served, _dir) = pair().await;
    let huge = format!("{{\"schemaVersion\":2,\"x\":\"{}\"}}", "a".repeat(5 << 20));
    let oci = "application/vnd.oci.image.manifest.v1+json";
    for (tag, kind, text) in [
        ("huge", oci, huge.as_str()),
        ("html", "text/html", "<html>"),
        ("json", oci, "{}"),
        (
            "path",
            oci,
            r#"{"schemaVersion":2,"config":{"mediaType":"x","size":1,"digest":"sha256:../../x"},"layers":[]}"#,
        ),
        (
            "size",
            oci,
            r#"{"schemaVersion":2,"config":{"mediaType":"x","size":-1,"digest":"sha256:a"},"layers":[]}"#,
        ),
    ] {
        let bytes = bytes::Bytes::from(text.to_owned());
        for reference in [tag.to_owned(), digest(&bytes).to_string()] {
            let entry = (kind.to_owned(), bytes.clone());
            registry.state.manifests.lock().unwrap().insert(format!("{APP}/{reference}"), entry);
        }
        assert_eq!(served.get(&format!("/v2/{APP}/manifests/{tag}")).await.status, 404, "{tag}");
    }
    assert!(served.mirror.store().images().is_empty());
}

/// All bytes of blobs and downloads on the disk.
fn on_disk(served: &Served) -> u64 {
    let mut sum = 0;
    let mut dirs =
        vec![served.mirror.store().root().join("blobs"), served.mirror.store().root().join("part")];
    while let Some(dir) = dirs.pop() {
        // A blob that is being moved may be gone.
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => dirs.push(entry.path()),
                Ok(meta) => sum += meta.len(),
                Err(_) => {}
            }
        }
    }
    sum
}

#[tokio::test]
async fn the_budget_is_never_exceeded_and_what_is_held_stays() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let budget = 8 << 20;
    let mut given = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    given.budget = weir_units::Bytes(budget);
    let served = serve(given).await;
    let store = served.mirror.store();
    let images: Vec<_> =
        (0..14).map(|n| registry.image(&format!("acme/app{n}"), "1", 100 + n, &[7 << 17, 1 << 17])).collect();
    served.pull("acme/app0", "1").await.unwrap();
    served.pull("acme/app1", "1").await.unwrap();
    store.pin("docker.io/acme/app0:*", true).unwrap();
    store.set_in_use(HashSet::from([images[1].config.clone()]));
    for round in 0..2 {
        let pulls = (2..14).map(|n| {
            let (served, name) = (&served, format!("acme/app{n}"));
            async move {
                let result = served.pull(&name, "1").await;
                assert!(on_disk(served) <= budget, "{} of {budget}", on_disk(served));
                result
            }
        });
        // Two at once: all that comes fits.
        use futures_util::StreamExt;
        let results: Vec<_> = futures_util::stream::iter(pulls).buffer_unordered(2).collect().await;
        assert!(results.iter().all(Result::is_ok), "round {round}: {results:?}");
    }
    let usage = store.usage(now_utc()).unwrap();
    assert!(usage.bytes + usage.reserved <= budget && usage.counts.evicted > 10, "{usage:?}");
    for held in &images[..2] {
        assert!(held.layers.iter().chain([&held.config]).all(|blob| store.has(blob)));
    }
    let listed = store.images();
    let of = |name: &str| listed.iter().find(|i| i.image == name).unwrap();
    assert!(of("docker.io/acme/app0:1").pinned && of("docker.io/acme/app1:1").in_use);
    store.prune(0, now_utc()).unwrap();
    assert!(images[..2].iter().all(|held| held.layers.iter().all(|blob| store.has(blob))));
    assert!(images[2..].iter().all(|gone| gone.layers.iter().all(|blob| !store.has(blob))));
    // More than half of the budget is passed on, and not kept.
    let large = registry.image("acme/large", "1", 200, &[33 << 17]);
    served.get("/v2/acme/large/manifests/1").await;
    assert_eq!(digest(served.blob("acme/large", &large.layers[0]).await.bytes()), large.layers[0]);
    assert!(!store.has(&large.layers[0]));
    assert_eq!(served.counted("passed_on"), 1);
}

#[tokio::test]
async fn without_room_on_the_disk_pulls_are_passed_on_and_nothing_is_left() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let given = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let budget = Budget { floor: u64::MAX / 2, ..Budget::of(64 << 20) };
    let (store, _) = Store::open(&given.directory, budget, PolicyKind::Lru, now_utc()).unwrap();
    let alone = Arc::<weir_image::coordination::Embedded>::default();
    let served = serve_with(given, store, alone).await;
    let made = registry.image(APP, "1", 23, &[1000]);
    // A manifest is served all the same.
    assert_eq!(served.get(&format!("/v2/{APP}/manifests/1")).await.status, 200);
    assert_eq!(digest(served.blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    assert_eq!(registry.asked("GET /v2/library/app/blobs"), 1, "one request is enough");
    assert_eq!(on_disk(&served), 0);
}

/// Runs in a mount namespace of its own, with 8 MiB of memory mounted there; `None` without the right to.
fn on_a_small_disk(at: &Path, work: impl Future<Output = ()>) -> Option<()> {
    use nix::mount::{MsFlags, mount};
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).ok()?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    let options = Some("size=8m,mode=700");
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), options).unwrap();
    // Its threads are of this one, and so in its namespace.
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    Some(())
}

#[test]
fn a_disk_that_fills_up_in_mid_write_ends_that_download_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().to_owned();
    let ran = std::thread::spawn(move || {
        on_a_small_disk(&disk, async {
            let registry = Registry::start().await;
            let served = serve(settings(&disk.join("store"), vec![registry.settings("docker.io")])).await;
            registry.image("acme/small", "1", 30, &[200_000]);
            served.pull("acme/small", "1").await.unwrap();
            let large = registry.image(APP, "1", 31, &[4 << 20]);
            served.get(&format!("/v2/{APP}/manifests/1")).await;
            registry.trouble(RegistryFault::Slow(Duration::from_millis(20)));
            let (puller, blob) = (support::Puller(served.address), large.layers[0].clone());
            let pull = tokio::spawn(async move { puller.blob(APP, &blob).await });
            let begun = Instant::now();
            while on_disk(&served) < 1 << 20 {
                assert!(begun.elapsed() < Duration::from_secs(60), "it does not come");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // There was room, and another process took it: ENOSPC.
            let other = disk.join("other");
            let _ = std::fs::write(&other, vec![1; 8 << 20]);
            let got = tokio::time::timeout(Duration::from_secs(30), pull).await.unwrap().unwrap();
            assert!(got.status == 404 || got.body.is_err(), "{got:?}");
            served.pull("acme/small", "1").await.unwrap();
            // The written bytes stay, to be continued when there is room again.
            std::fs::remove_file(other).unwrap();
            let begun = Instant::now();
            while served.pull(APP, "1").await.is_err() {
                assert!(begun.elapsed() < Duration::from_secs(60), "it does not heal");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let kept = on_disk(&served);
            assert!(kept < (4 << 20) + 210_000, "nothing is left over: {kept}");
        })
    });
    if ran.join().unwrap().is_none() {
        println!("SKIPPED: mounting needs CAP_SYS_ADMIN");
    }
}

#[tokio::test]
async fn slow_and_idle_clients_are_closed_and_others_are_served() {
    let (registry, served, _dir) = pair().await;
    registry.image(APP, "1", 24, &[10]);
    // As many as there may be, and as many again, that say nothing or begin to say something.
    let mut idle = Vec::new();
    for n in 0..128 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        if n % 2 == 0 {
            let _ = stream.write_all(b"GET /v2/ HT").await;
        }
        idle.push(stream);
    }
    let begun = Instant::now();
    served.pull(APP, "1").await.unwrap();
    assert!(begun.elapsed() < timing().header * 5, "{:?}", begun.elapsed());
    tokio::time::sleep(timing().header + Duration::from_millis(500)).await;
    for stream in &mut idle {
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "an idle connection is still open");
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_closed() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1", 25, &[24 << 20]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let request = format!("GET /v2/{APP}/blobs/{} HTTP/1.1\r\nhost: x\r\n\r\n", made.layers[0]);
    stream.write_all(request.as_bytes()).await.unwrap();
    tokio::time::sleep(timing().send * 3).await;
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all).await;
    assert!(all.len() < 24 << 20, "it was cut: {} bytes", all.len());
}

#[tokio::test]
async fn node_without_a_lease_waits_and_one_cut_off_goes_on_alone() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let given = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    let site = InMemoryCoordination::default();
    let (store, _) = Store::open(&given.directory, Budget::of(64 << 20), PolicyKind::Lru, now_utc()).unwrap();
    let served = serve_with(given, store, Arc::new(site.node("a"))).await;
    let made = registry.image(APP, "1", 26, &[300_000, 10]);
    served.get(&format!("/v2/{APP}/manifests/1")).await;
    // Another node has it, and dies: what it held ends by itself.
    let almost =
        Utc::from_unix_millis(now_utc().unix_millis() - u64::try_from(LEASE.as_millis()).unwrap() + 700);
    let scope = Scope::of(&"docker.io/library/app".parse::<Image>().unwrap().source, true);
    let claim = site.node("b").acquire(&scope.lease(&made.layers[0]), almost).await.unwrap();
    assert!(matches!(claim, AcquireResult::Granted(_)));
    assert_eq!(digest(served.blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    site.set_lost(true);
    assert_eq!(digest(served.blob(APP, &made.layers[1]).await.bytes()), made.layers[1]);
}

#[tokio::test]
async fn a_directory_of_another_version_owner_or_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let root = dir.path().join(name);
        Store::open(&root, Budget::of(64 << 20), PolicyKind::Lru, now_utc()).map(|(store, _)| store)
    };
    let held = open("a").unwrap();
    assert!(matches!(open("a"), Err(StoreError::InUse(_))));
    drop(held);
    let again = open("a").unwrap();
    drop(again);
    std::fs::write(dir.path().join("a/version"), "weir image store 9\n").unwrap();
    let error = open("a").unwrap_err();
    assert!(error.to_string().contains("its layout is `weir image store 9`"), "{error}");
    std::fs::create_dir(dir.path().join("b")).unwrap();
    std::fs::write(dir.path().join("b/precious"), "x").unwrap();
    assert!(matches!(open("b"), Err(StoreError::NotAStore(_))));
    std::fs::create_dir(dir.path().join("c")).unwrap();
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path().join("c"), open_to_all).unwrap();
    assert!(matches!(open("c"), Err(StoreError::Owner { mode: 0o777, .. })));
    if !nix::unistd::geteuid().is_root() {
        return println!("SKIPPED: only root gives a directory to somebody else");
    }
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::os::unix::fs::chown(dir.path().join("d"), Some(4321), None).unwrap();
    let error = open("d").unwrap_err();
    assert!(matches!(error, StoreError::Owner { owner: 4321, user: 0, .. }), "{error}");
}
