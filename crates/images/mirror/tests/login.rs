//! Logging in with what `docker login` left.

mod support;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use support::{Registry, serve, settings};

#[tokio::test]
async fn credentials_of_docker_login_open_shared_repositories_alone() {
    let (private, public) = (Registry::start().await, Registry::start().await);
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    *private.state.login.lock().unwrap() = Some(STANDARD.encode("bot:secret"));
    let mut upstream = private.settings("ghcr.io");
    upstream.docker_config = Some(config.clone());
    upstream.share = vec!["acme/*".to_owned()];
    let upstreams = vec![upstream, public.settings("quay.io")];
    let served = serve(settings(&dir.path().join("store"), upstreams)).await;
    private.image("acme/one", "1", 60, &[1000]);
    private.image("acme/two", "1", 61, &[1000]);
    public.image("acme/app", "1", 62, &[1000]);
    // It is not there yet.
    let refused = served.get("/v2/ghcr.io/acme/two/manifests/1").await;
    let why = String::from_utf8(refused.body.unwrap().to_vec()).unwrap();
    assert!(refused.status == 404 && why.contains("config.json"), "{why}");
    served.pull("quay.io/acme/app", "1").await.unwrap();
    let login = STANDARD.encode("bot:secret");
    std::fs::write(&config, format!("{{\"auths\":{{\"ghcr.io\":{{\"auth\":\"{login}\"}}}}}}")).unwrap();
    served.pull("ghcr.io/acme/one", "1").await.unwrap();
    assert_eq!(served.get("/v2/ghcr.io/other/app/manifests/1").await.status, 404, "it is not shared");
}

#[tokio::test]
async fn an_identity_token_is_exchanged_and_one_that_is_not_taken_opens_nothing() {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    // A client without a password can only exchange.
    *registry.state.login.lock().unwrap() = Some("nobody's".to_owned());
    *registry.state.identity.lock().unwrap() = Some("good".to_owned());
    let mut upstream = registry.settings("ghcr.io");
    upstream.docker_config = Some(config.clone());
    upstream.share = vec!["acme/*".to_owned()];
    let served = serve(settings(&dir.path().join("store"), vec![upstream])).await;
    registry.image("acme/one", "1", 60, &[1000]);
    registry.image("acme/two", "1", 61, &[1000]);
    let write = |token: &str| {
        let text = format!("{{\"auths\":{{\"ghcr.io\":{{\"auth\":\"\",\"identitytoken\":\"{token}\"}}}}}}");
        std::fs::write(&config, text).unwrap();
    };
    write("bad");
    assert_eq!(served.get("/v2/ghcr.io/acme/one/manifests/1").await.status, 404);
    write("good");
    served.pull("ghcr.io/acme/two", "1").await.unwrap();
}
