//! More connections than the mirror keeps.

mod support;

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::{Registry, digest, serve, settings};
use tokio::{io::AsyncReadExt, net::TcpStream};

const APP: &str = "library/app";

#[tokio::test]
async fn ten_thousand_idle_connections_are_bounded_and_hold_up_nobody() {
    const MANY: usize = 10_000;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if most < MANY as u64 + 3000 {
        return println!(
            "SKIPPED: {MANY} connections need as many file descriptors; {most} may be open here"
        );
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(&dir.path().join("store"), vec![registry.settings("docker.io")]);
    settings.connections = 1024;
    let served = serve(settings).await;
    let made = registry.image(APP, "1", 70, &[300_000]);
    let mut idle = Vec::with_capacity(MANY);
    for n in 0..MANY {
        idle.push(TcpStream::connect(served.address).await.unwrap());
        if n % 2500 == 0 {
            served.pull(APP, "1").await.unwrap();
        }
    }
    assert_eq!(digest(served.blob(APP, &made.layers[0]).await.bytes()), made.layers[0]);
    // The oldest had to go, and was told.
    let mut byte = [0];
    let end = tokio::time::timeout(Duration::from_secs(20), idle[0].read(&mut byte)).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < MANY + 1024 + 200, "{open} file descriptors with those of {MANY} clients");
}
