//! Limits of connections to the socket: their number and their silence.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time,
};
use tower_service::Service as _;
use weir_agree::Name;
use weir_api::{Actor, ActorKind, ErrorCode};

use super::{
    Failure,
    peer::{Peer, speaker},
};
use crate::{
    agent::maker::Maker,
    config::{Right, Rights},
    tokens::Token,
};

/// The most connections at a time. Each takes a descriptor and some 20 KiB.
const MAX_CONNECTIONS: usize = 256;
/// The most connections of users other than root, so that root always gets in.
const MAX_OF_OTHERS: usize = 192;
/// The most connections of one user other than root.
const MAX_OF_USER: usize = 32;
/// The time limit of a request's head, and of silence between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause of the listener if the system lacks descriptors or memory for a connection.
pub(super) const REST: Duration = Duration::from_millis(100);
/// The number of bodies above [`SMALL_BODY`](super::body::SMALL_BODY) read at a time. Root has this
/// number, and all other users together have the same.
pub(super) const LARGE_BODIES: usize = 2;

/// The caller as the kernel or a token names it.
#[derive(Debug, Clone)]
pub(super) enum Identity {
    /// A user at the socket.
    User(Peer),
    /// The bearer of a token over TCP.
    Token(Arc<Token>),
}

/// The caller of a request, and the permits for large bodies.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) identity: Identity,
    pub(super) large_bodies: Arc<Semaphore>,
}

impl Caller {
    /// The caller as the maker of a change.
    pub(super) fn actor(&self) -> Actor {
        match &self.identity {
            Identity::User(peer) => Actor::user(peer.uid),
            Identity::Token(token) => Actor::new(ActorKind::Token, token.name()),
        }
    }

    /// The caller as the maker of an agreement.
    pub(super) fn maker(&self) -> Maker {
        match &self.identity {
            Identity::User(peer) => Maker::User(peer.uid),
            Identity::Token(token) => match token.party() {
                Some(party) => Maker::Party(party.to_owned()),
                None => Maker::Token(token.name().to_owned()),
            },
        }
    }

    /// Its right.
    pub(super) fn right(&self, rights: &Rights) -> Option<Right> {
        match &self.identity {
            Identity::User(peer) => peer.right(rights),
            Identity::Token(token) => token.right(),
        }
    }

    /// The party that it is held to, if any.
    pub(super) fn party(&self) -> Option<&str> {
        match &self.identity {
            Identity::User(_) => None,
            Identity::Token(token) => token.party(),
        }
    }

    /// Whether it is root or the agent's own user.
    pub(super) fn is_root(&self) -> bool {
        matches!(&self.identity, Identity::User(peer) if peer.is_root())
    }

    /// The name of the caller as the speaker of that party.
    pub(super) fn client(&self, party: Option<&Name>) -> Name {
        match &self.identity {
            Identity::User(peer) => peer.client(party),
            Identity::Token(token) => speaker(&format!("token:{}", token.name()), party),
        }
    }
}

/// The number of connections by user.
#[derive(Debug, Default)]
struct Places(Mutex<BTreeMap<u32, usize>>);

/// A connection's place. Its drop frees the place.
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    uid: u32,
}

impl Places {
    /// # Errors
    /// The limit that is reached.
    fn take(self: &Arc<Places>, peer: &Peer) -> Result<Place, String> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.get(&peer.uid).copied().unwrap_or(0);
        if all >= MAX_CONNECTIONS {
            return Err(format!("{all} of {MAX_CONNECTIONS} are open"));
        }
        if !peer.is_root() {
            let others = all - open.get(&0).copied().unwrap_or(0);
            if own >= MAX_OF_USER {
                return Err(format!("user {} has {own} of {MAX_OF_USER} open", peer.uid));
            }
            if others >= MAX_OF_OTHERS {
                return Err(format!("users other than root have {others} of {MAX_OF_OTHERS} open"));
            }
        }
        *open.entry(peer.uid).or_default() += 1;
        Ok(Place { places: Arc::clone(self), uid: peer.uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

/// Answers requests until the future is dropped. Open connections end with the runtime.
pub(super) async fn serve(listener: UnixListener, router: Router) -> Infallible {
    let places = Arc::new(Places::default());
    let [of_root, of_others] = [(); 2].map(|()| Arc::new(Semaphore::new(LARGE_BODIES)));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("cannot take a connection to the socket: {e}");
                time::sleep(REST).await;
                continue;
            }
        };
        let peer = match Peer::of(&stream) {
            Ok(peer) => peer,
            Err(e) => {
                tracing::warn!("cannot tell who connects to the socket: {e}");
                continue;
            }
        };
        let large_bodies = Arc::clone(if peer.is_root() { &of_root } else { &of_others });
        match places.take(&peer) {
            Ok(place) => {
                let caller = Caller { identity: Identity::User(peer), large_bodies };
                tokio::spawn(converse(stream, caller, router.clone(), place));
            }
            Err(why) => refuse(&stream, &why),
        }
    }
}

/// HTTP with a time limit of each head, and with a bound of the head in bytes.
pub(super) fn http(max_head: usize) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(max_head);
    http
}

async fn converse(stream: UnixStream, caller: Caller, router: Router, _place: Place) {
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        let mut router = router.clone();
        async move { router.call(request.map(Body::new)).await }
    });
    let http = http(64 << 10);
    if let Err(e) = http.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!("a connection to the socket ended: {e}");
    }
}

/// Sends the reason of the refusal, as far as the socket's buffer takes it.
fn refuse(stream: &UnixStream, why: &str) {
    let _ = stream.try_write(refusal(why).as_bytes());
}

/// The answer to a connection for which there is no place.
pub(super) fn refusal(why: &str) -> String {
    let failure =
        Failure::new(ErrorCode::Busy, format!("cannot take another connection: {why}; close some, or wait"));
    let body = serde_json::to_string(&failure.0).unwrap_or_default();
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32) -> Peer {
        Peer::made(uid, &[])
    }

    #[test]
    fn no_user_takes_the_places_of_another_or_of_root() {
        let places = Arc::new(Places::default());
        let mut held = Vec::new();
        for uid in 1_000..1_006 {
            held.extend((0..MAX_OF_USER).map(|_| places.take(&peer(uid)).unwrap()));
            let why = places.take(&peer(uid)).unwrap_err();
            assert!(why.starts_with(&format!("user {uid} has 32 of 32")), "{why}");
        }
        assert!(places.take(&peer(2_000)).unwrap_err().contains("192 of 192"));
        held.extend((0..MAX_CONNECTIONS - MAX_OF_OTHERS).map(|_| places.take(&peer(0)).unwrap()));
        assert!(places.take(&peer(0)).unwrap_err().contains("256 of 256"));
        drop(held.pop());
        assert!(places.take(&peer(0)).is_ok());
        held.clear();
        assert_eq!(places.0.lock().unwrap().len(), 0);
    }
}
