//! A site whose Redis an attacker writes to, and whose network an attacker listens on.

mod support;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use support::{
    digest,
    site::{APP, Cluster},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use weir_image::{PopStore, coordination::Coordination, now_utc};

const LOGIN: (&str, &str) = ("authorization", "Basic dXNlcjpwYXNz");

/// Listens, and keeps what each connection says first.
async fn listen(at: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind(at).await.unwrap();
    let address = listener.local_addr().unwrap();
    let heard = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let keep = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let keep = Arc::clone(&keep);
            tokio::spawn(async move {
                let mut said = vec![0; 4096];
                let got = stream.read(&mut said).await.unwrap_or(0);
                said.truncate(got);
                keep.lock().unwrap().push(said);
            });
        }
    });
    (address, heard)
}

/// An attacker in the site's network, whose address is in Redis, hears the proofs of nodes and repeats them.
#[tokio::test]
async fn proof_that_an_attacker_hears_is_of_no_use() {
    let mut world = Cluster::plan(PopStore::Peer, 2, 64 << 20).await;
    let node = world.settings[0].pop.as_ref().unwrap().listen.unwrap();
    let IpAddr::V4(ip) = node.ip() else { panic!("{node}") };
    let [a, b, c, _] = ip.octets();
    let (inside, heard) = listen(SocketAddr::from(([a, b, c, 250], 0))).await;
    let attacker = world.site.node(&inside.to_string());
    attacker.register(&Default::default(), now_utc()).await.unwrap();
    world.begin_in_memory().await;
    *world.registry.state.login.lock().unwrap() = Some("dXNlcjpwYXNz".to_owned());
    let made = world.registry.image(APP, "1", 40, &[100_000]);
    let at = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    for path in [&format!("/v2/{APP}/manifests/1"), &at] {
        assert_eq!(world.nodes[0].puller().request("GET", path, &[LOGIN]).await.status, 200);
    }
    // The other node asks all whom Redis names, and the attacker too.
    let got = world.nodes[1].puller().request("GET", &at, &[LOGIN]).await;
    assert_eq!(digest(got.bytes()), made.layers[0]);
    let heard = heard.lock().unwrap().clone();
    assert!(!heard.is_empty(), "the attacker was not asked");
    for said in &heard {
        let text = String::from_utf8_lossy(said).into_owned();
        assert!(!text.contains("GET ") && !text.contains("weir-peer"), "it hears {text}");
        // Another node and another range, within the minute.
        let mut stream = TcpStream::connect(node).await.unwrap();
        let again = text.replacen("\r\n\r\n", "\r\nrange: bytes=0-99\r\n\r\n", 1);
        stream.write_all(again.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(3), stream.read_to_end(&mut answer));
        let _ = read.await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    }
}

#[tokio::test]
async fn address_of_redis_outside_the_site_is_not_asked() {
    let mut world = Cluster::plan(PopStore::Peer, 2, 64 << 20).await;
    let (outside, heard) = listen("127.0.0.1:0".parse().unwrap()).await;
    let port = outside.port();
    let names = [
        outside.to_string(),
        format!("localhost:{port}"),
        format!("x@127.0.0.1:{port}"),
        format!("127.0.0.1:{port}/secret?x="),
        format!("[::ffff:127.0.0.1]:{port}"),
    ];
    for name in &names {
        world.site.node(name).register(&Default::default(), now_utc()).await.unwrap();
    }
    world.begin_in_memory().await;
    let made = world.registry.image(APP, "1", 41, &[100_000]);
    // One of them says that it brings the blob.
    let public =
        weir_image::Scope::of(&"docker.io/library/app".parse::<weir_image::Image>().unwrap().source, true);
    let lease = public.lease(&made.layers[0]);
    world.site.node(&names[0]).acquire(&lease, now_utc()).await.unwrap();
    world.nodes[0].puller().pull(APP, "1").await.unwrap();
    world.nodes[1].puller().pull(APP, "1").await.unwrap();
    assert!(heard.lock().unwrap().is_empty(), "{} connections", heard.lock().unwrap().len());
    assert_eq!(world.nodes[0].mirror.probe_peers().await.len(), 1, "it knows one other node");
}
