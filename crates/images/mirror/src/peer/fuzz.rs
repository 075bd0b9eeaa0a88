//! Proofs and addresses of peers, for the fuzz targets.

use hyper::{
    HeaderMap,
    header::{AUTHORIZATION, RANGE},
};

use super::{
    proof::{Asked, Proofs},
    site::Site,
};
use crate::{Network, Utc};

/// A proof of which a piece is another text. It is good only if the request has been made so, and once.
///
/// * `text`: a line each of the piece, the range and the path.
///
/// # Panics
/// Another proof is good, or one is good twice.
pub fn proof(at: usize, len: usize, text: &str) {
    const NODE: &str = "10.0.0.2:5051";
    const NOW: Utc = Utc::from_unix_millis(1_000_000);
    let mut lines = text.splitn(3, '\n');
    let (piece, range, path) =
        (lines.next().unwrap_or_default(), lines.next().unwrap_or_default(), lines.next());
    let path = path.unwrap_or("/v2/");
    let with = |proof: &str| {
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, proof.parse().ok()?)]);
        if !range.is_empty() {
            headers.append(RANGE, range.parse().ok()?);
        }
        Some(headers)
    };
    let proofs = Proofs::new(b"secret");
    if let Some(headers) = with(piece) {
        assert!(!proofs.accept(NODE, path, &headers, NOW), "{piece}");
    }
    let good = proofs.make(Asked { node: NODE, path, range }, NOW).expect("there are random numbers");
    let (at, end) = (at.min(good.len()), (at + len).min(good.len()));
    let mut edited = good.clone();
    edited.replace_range(at..end, piece);
    let Some(headers) = with(&edited) else { return };
    let other = Proofs::new(b"secret").accept(NODE, "/v2/other", &headers, NOW);
    assert!(!other || path == "/v2/other", "{edited}");
    let edited_is_good = proofs.accept(NODE, path, &headers, NOW);
    assert!(edited_is_good || edited != good || range.chars().any(|c| !(' '..='~').contains(&c)), "{edited}");
    if edited_is_good && let Some(headers) = with(&good) {
        assert!(!proofs.accept(NODE, path, &headers, NOW), "{edited} is good again");
    }
}

/// A site's network and a peer's address, a line each. A peer is in a network of the site.
///
/// # Panics
/// It is not.
pub fn peer(text: &str) {
    let (network, address) = text.split_once('\n').unwrap_or((text, text));
    let own = "10.0.0.1:5051".parse().expect("an address");
    let near = Site { own, networks: Vec::new() };
    if let Some(peer) = near.read(address) {
        let ip = peer.ip().to_canonical();
        assert!(
            !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && peer.port() != 0,
            "{peer}"
        );
    }
    let Ok(network) = network.parse::<Network>() else { return };
    if let Some(peer) = (Site { own, networks: vec![network] }).read(address) {
        assert!(network.has(peer.ip()), "{peer} in {network:?}");
    }
}
