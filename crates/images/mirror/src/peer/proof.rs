//! Proofs: a request of a peer shows that its sender knows the site's secret, for this request only.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use hyper::{
    HeaderMap,
    header::{AUTHORIZATION, RANGE},
};
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};

use super::tls::derive;
use crate::Utc;

/// A proof holds for so long before and after its time, as the clocks of nodes differ.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// The most proofs that are remembered. A site with more requests a window has the rest refused.
const MAX_SEEN: usize = 200_000;
/// Every proof begins like this.
const SCHEME: &str = "weir-peer ";

type Nonce = [u8; 16];

/// Makes proofs, and checks them. Invariant: no proof is accepted twice.
#[derive(Debug)]
pub(super) struct Proofs {
    key: hmac::Key,
    seen: Mutex<Seen>,
}

/// The proofs that were accepted, and those that can be forgotten first. Their times need not come in order: a clock
/// may be set back.
#[derive(Debug, Default)]
struct Seen {
    known: HashSet<Nonce>,
    until: BTreeSet<(Utc, Nonce)>,
}

/// A request, as far as a proof covers it: the node that is asked, the path with its query, and the range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) node: &'a str,
    pub(super) path: &'a str,
    pub(super) range: &'a str,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.len().is_multiple_of(2).then(|| text.as_bytes().chunks(2).map(pair).collect())?
}

impl Proofs {
    pub(super) fn new(secret: &[u8]) -> Proofs {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &derive(secret, "proof"));
        Proofs { key, seen: Mutex::default() }
    }

    /// The proof for a request; none if the system has no random numbers.
    pub(super) fn make(&self, asked: Asked<'_>, at: Utc) -> Option<String> {
        let mut nonce = Nonce::default();
        SystemRandom::new().fill(&mut nonce).ok()?;
        let tag = hmac::sign(&self.key, text(asked, at, &nonce).as_bytes());
        Some(format!("{SCHEME}{} {} {}", at.unix_millis(), hex(&nonce), hex(tag.as_ref())))
    }

    /// Whether a request to `node` for `path` has a proof, which is good once.
    pub(super) fn accept(&self, node: &str, path: &str, headers: &HeaderMap, now: Utc) -> bool {
        self.check(node, path, headers, now).is_some()
    }

    fn check(&self, node: &str, path: &str, headers: &HeaderMap, now: Utc) -> Option<()> {
        let mut parts = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix(SCHEME)?.split(' ');
        let at = Utc::from_unix_millis(parts.next()?.parse().ok()?);
        let nonce = Nonce::try_from(unhex(parts.next()?)?).ok()?;
        let tag = unhex(parts.next()?)?;
        let mut ranges = headers.get_all(RANGE).iter();
        let range = ranges.next().map_or(Some(""), |range| range.to_str().ok())?;
        if parts.next().is_some() || ranges.next().is_some() {
            return None;
        }
        let is_now = now.since(at) < WINDOW && at.since(now) < WINDOW;
        let said = text(Asked { node, path, range }, at, &nonce);
        if !is_now || hmac::verify(&self.key, said.as_bytes(), &tag).is_err() {
            return None;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.note(nonce, now).then_some(())
    }
}

impl Seen {
    /// Answers whether it is new, and there is room to remember it.
    fn note(&mut self, nonce: Nonce, now: Utc) -> bool {
        while let Some((until, old)) = self.until.first()
            && *until <= now
        {
            self.known.remove(old);
            self.until.pop_first();
        }
        if self.until.len() >= MAX_SEEN || !self.known.insert(nonce) {
            return false;
        }
        // Its own time may be a window ahead, and it holds for another one then.
        self.until.insert((now.after(WINDOW * 2), nonce));
        true
    }
}

/// No part of it has a line break.
fn text(Asked { node, path, range }: Asked<'_>, at: Utc, nonce: &Nonce) -> String {
    format!("weir 2\n{node}\n{path}\n{range}\n{}\n{}", at.unix_millis(), hex(nonce))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/v2/a/blobs/x?ns=docker.io";
    const NODE: &str = "10.0.0.2:5051";
    const NOW: Utc = Utc::from_unix_millis(1_000_000);

    fn with(proof: &str, ranges: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, proof.parse().unwrap())]);
        for range in ranges {
            headers.append(RANGE, range.parse().unwrap());
        }
        headers
    }

    fn made(range: &str, at: Utc) -> String {
        Proofs::new(b"secret").make(Asked { node: NODE, path: PATH, range }, at).unwrap()
    }

    #[test]
    fn proof_is_good_for_one_node_path_and_range_and_once() {
        let two = Proofs::new(b"secret");
        let late = NOW.after(WINDOW - Duration::from_secs(1));
        let proof = made("bytes=5-", NOW);
        assert!(!two.accept("10.0.0.3:5051", PATH, &with(&proof, &["bytes=5-"]), NOW));
        assert!(!two.accept(NODE, "/v2/b/blobs/x?ns=docker.io", &with(&proof, &["bytes=5-"]), NOW));
        for ranges in [&[][..], &["bytes=0-"], &["bytes=5-", "bytes=0-"], &["bytes=5-9"]] {
            assert!(!two.accept(NODE, PATH, &with(&proof, ranges), NOW), "{ranges:?}");
        }
        assert!(two.accept(NODE, PATH, &with(&proof, &["bytes=5-"]), late));
        for at in [NOW, late, NOW.after(WINDOW * 3)] {
            assert!(!two.accept(NODE, PATH, &with(&proof, &["bytes=5-"]), at), "a replay at {at:?}");
        }
        assert!(two.accept(NODE, PATH, &with(&made("", NOW), &[]), NOW));
        // From the future, and again when that has come.
        let ahead = made("", NOW.after(WINDOW - Duration::from_secs(1)));
        assert!(two.accept(NODE, PATH, &with(&ahead, &[]), NOW));
        assert!(!two.accept(NODE, PATH, &with(&ahead, &[]), NOW.after(WINDOW * 2 - Duration::from_secs(2))));
    }

    #[test]
    fn proof_of_another_secret_or_time_or_shape_is_refused() {
        let two = Proofs::new(b"secret");
        assert!(!two.accept(NODE, PATH, &with(&made("", NOW), &[]), NOW.after(WINDOW)));
        assert!(!two.accept(NODE, PATH, &with(&made("", NOW.after(WINDOW)), &[]), NOW));
        let other = Proofs::new(b"other").make(Asked { node: NODE, path: PATH, range: "" }, NOW).unwrap();
        assert!(!two.accept(NODE, PATH, &with(&other, &[]), NOW));
        let good = made("", NOW);
        let cut = &good[..good.len() - 2];
        for text in ["", "weir-peer", "weir-peer 1000000 ", "weir-peer 1000000 zz zz", "Basic x", cut] {
            assert!(!two.accept(NODE, PATH, &with(text, &[]), NOW), "{text}");
        }
        assert!(!two.accept(NODE, PATH, &with(&format!("{good} x"), &[]), NOW));
        assert!(!two.accept(NODE, PATH, &HeaderMap::new(), NOW));
        assert!(two.accept(NODE, PATH, &with(&good, &[]), NOW));
    }

    #[test]
    fn remembered_proofs_are_bounded_and_forgotten_when_they_hold_no_more() {
        let mut seen = Seen::default();
        let nonce = |n: usize| u128::try_from(n).unwrap().to_be_bytes();
        for n in 0..MAX_SEEN {
            assert!(seen.note(nonce(n), NOW));
        }
        assert!(!seen.note(nonce(MAX_SEEN), NOW) && !seen.note(nonce(0), NOW));
        assert!(seen.note(nonce(MAX_SEEN), NOW.after(WINDOW * 2)));
        assert_eq!((seen.known.len(), seen.until.len()), (1, 1));
    }

    #[test]
    fn proofs_after_the_clock_was_set_back_are_forgotten_in_time() {
        let mut seen = Seen::default();
        let day = Duration::from_secs(86_400);
        assert!(seen.note([0; 16], NOW.after(day)));
        assert!(seen.note([1; 16], NOW));
        assert!(seen.note([2; 16], NOW.after(WINDOW * 2)));
        assert!(!seen.note([0; 16], NOW.after(day)), "it holds again by then");
        assert_eq!(seen.known.len(), 1);
    }
}
