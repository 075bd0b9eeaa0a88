//! A process without a free file descriptor. The limit counts for the whole process, so that this test has its own.

mod support;

use std::{fs::File, sync::mpsc, thread, time::Duration};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::{Registry, serve, settings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The start of the answer to `GET /v2/`.
async fn asked(client: &mut TcpStream) -> String {
    client.write_all(b"GET /v2/ HTTP/1.1\r\nHost: mirror\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn connect_without_a_free_descriptor() -> String {
    let registry = Registry::start().await;
    let dir = tempfile::tempdir().unwrap();
    let served = serve(settings(&dir.path().join("store"), vec![registry.settings("docker.io")])).await;
    let mut idle = TcpStream::connect(served.address).await.unwrap();
    assert_eq!(asked(&mut idle).await, "HTTP/1.1 200");

    let (soft, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let last = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok()).max().unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, last + 4, most).unwrap();
    let mut held: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(held.len() >= 3, "files were opened up to the limit");
    // One for the client, and none for the mirror's end.
    held.pop();
    let mut client = TcpStream::connect(served.address).await.unwrap();
    let answer = asked(&mut client).await;
    setrlimit(Resource::RLIMIT_NOFILE, soft, most).unwrap();
    answer
}

#[test]
fn mirror_without_a_free_descriptor_closes_an_idle_connection() {
    let (tell, told) = mpsc::channel();
    // A mirror that waits for itself holds its thread, and no time limit of that thread would end it.
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _ = tell.send(runtime.block_on(connect_without_a_free_descriptor()));
    });
    let answer = told.recv_timeout(Duration::from_secs(20)).expect("the mirror answers");
    assert_eq!(answer, "HTTP/1.1 200");
}
