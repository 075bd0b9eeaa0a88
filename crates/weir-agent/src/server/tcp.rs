//! The API over TCP, at `[api] listen`.
//!
//! Metrics, health and readiness answer each caller, and so do the files of the dashboard. They only read. All other
//! routes need a token, which is taken over TLS and on loopback only.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::pending,
    net::{IpAddr, Ipv6Addr},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::Request,
    response::{IntoResponse as _, Response},
    routing::get,
};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use super::{
    Access, Stream, bad_method,
    bearer::Bearers,
    connections::{REST, http, refusal},
    dashboard, guarded, health,
    metrics::{self, Measured},
    tls::Certificate,
    turns::Turns,
    unknown_route,
};
use crate::{config::Place, control::Control, images::Images, tokens::Tokens};

/// The most connections at a time.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// The most connections of one address, or of one IPv6 network of 64 bits.
pub(super) const MAX_OF_ADDRESS: usize = 16;
/// The largest head of a request.
pub(super) const MAX_HEAD: usize = 16 << 10;
/// The time after which a connection takes no more requests.
const MAX_AGE: Duration = Duration::from_secs(60);
/// The time limit of the last answer.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause before another attempt to listen.
const AGAIN: Duration = Duration::from_secs(5);

/// The routes that need no token.
pub(super) const OPEN: [&str; 3] = ["/metrics", "/healthz", "/readyz"];
/// The time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The TCP port of the API. It follows the configuration; cheap to clone.
#[derive(Debug, Clone)]
pub struct Port {
    wanted: watch::Sender<Option<Place>>,
    failure: Arc<Mutex<Option<String>>>,
    bearers: Bearers,
}

impl Port {
    /// The port at this place, or none.
    pub(crate) fn new(place: Option<Place>, tokens: Tokens) -> Port {
        Port { wanted: watch::Sender::new(place), failure: Arc::default(), bearers: Bearers::new(tokens) }
    }

    /// Moves the port to another place. Connections to the old one end.
    pub(crate) fn set(&self, place: Option<Place>) {
        self.wanted.send_if_modified(|wanted| std::mem::replace(wanted, place.clone()) != place);
    }

    /// The reason why the agent does not listen, or not with the present certificate.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Failed authentications since the start.
    pub(crate) fn failed_authentications(&self) -> u64 {
        self.bearers.failed()
    }

    fn tell(&self, failure: Option<String>) {
        let mut told = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(why), true) = (&failure, *told != failure) {
            tracing::warn!("{why}");
        }
        *told = failure;
    }

    /// Answers requests until the future is dropped.
    pub async fn serve(self, control: Control, images: Images, stream: Stream) {
        let routes = Arc::new(Routes::new(control, images, stream, self.bearers.clone()));
        let mut wanted = self.wanted.subscribe();
        loop {
            let place = wanted.borrow_and_update().clone();
            self.tell(None);
            tokio::select! {
                never = self.listen(place, &routes) => match never {},
                changed = wanted.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn listen(&self, place: Option<Place>, routes: &Arc<Routes>) -> Infallible {
        let Some(Place { listen: address, pem }) = place else { return pending().await };
        loop {
            let certificate = pem.clone().map(Certificate::open).transpose();
            let bound = TcpListener::bind(address).await;
            let why = match (certificate, bound) {
                (Ok(certificate), Ok(listener)) => {
                    self.tell(None);
                    let scheme = if certificate.is_some() { "https" } else { "http" };
                    tracing::info!("metrics are at {scheme}://{address}/metrics");
                    self.answer(listener, certificate, routes).await;
                    continue;
                }
                (Err(why), _) => why,
                (_, Err(e)) => format!("cannot listen on {address} for `[api]`: {e}"),
            };
            self.tell(Some(format!("{why}; the next attempt is in {AGAIN:?}")));
            sleep(AGAIN).await;
        }
    }

    /// Takes connections until the future is dropped, which ends the connections too.
    async fn answer(
        &self,
        listener: TcpListener,
        mut certificate: Option<Certificate>,
        routes: &Arc<Routes>,
    ) {
        let places = Arc::new(Places::default());
        let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
        let is_private = certificate.is_some() || is_loopback;
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(e) => {
                    tracing::warn!("cannot take a connection over TCP: {e}");
                    sleep(REST).await;
                    continue;
                }
            };
            let config = certificate.as_mut().map(Certificate::present);
            if let Some(certificate) = &certificate {
                self.tell(certificate.failure.clone());
            }
            let place = match places.take(from.ip()) {
                Ok(place) => place,
                // A refusal in clear is no answer over TLS, so that connection just ends.
                Err(why) if config.is_none() => {
                    drop(stream.try_write(refusal(&why).as_bytes()));
                    continue;
                }
                Err(_) => continue,
            };
            let (routes, from) = (Arc::clone(routes), network(from.ip()));
            connections.spawn(async move {
                match config {
                    None => converse(stream, routes, from, is_private, place).await,
                    Some(config) => {
                        let shaken = TlsAcceptor::from(config).accept(stream);
                        match timeout(HANDSHAKE_TIMEOUT, shaken).await {
                            Ok(Ok(stream)) => converse(stream, routes, from, is_private, place).await,
                            Ok(Err(e)) => tracing::debug!("no TLS with {from}: {e}"),
                            Err(_) => tracing::debug!("no TLS with {from} within {HANDSHAKE_TIMEOUT:?}"),
                        }
                    }
                }
            });
        }
    }
}

/// The routes, and who may ask them.
pub(super) struct Routes {
    /// Those without a token. None of them changes anything.
    open: Router,
    /// All routes, each for tokens with its right.
    all: Router,
    bearers: Bearers,
    /// One answer without a token at a time is made, so unknown callers cannot fill the queue of the agent's loop.
    turn: Semaphore,
    /// Those with a token.
    turns: Turns,
}

impl Routes {
    pub(super) fn new(control: Control, images: Images, stream: Stream, bearers: Bearers) -> Routes {
        let measured = Measured { control: control.clone(), images: images.clone() };
        let open = Router::new()
            .route("/metrics", get(metrics::metrics))
            .with_state(measured)
            .merge(health::router(control.clone()))
            .merge(dashboard::router())
            .fallback(unknown_route)
            .method_not_allowed_fallback(bad_method);
        // The right of a token is its scope; `[access]` is about users.
        let all =
            guarded(super::router(control, images, stream), Access::default()).merge(dashboard::router());
        Routes { open, all, bearers, turn: Semaphore::new(1), turns: Turns::new() }
    }

    /// Answers a request from this network. `is_private` says that no one else reads the connection.
    pub(super) async fn answer(
        &self,
        mut request: Request<Body>,
        from: IpAddr,
        is_private: bool,
    ) -> Response {
        let is_page = dashboard::has(request.uri().path());
        if is_page && !is_private {
            return dashboard::refusal();
        }
        let is_open = OPEN.contains(&request.uri().path());
        // An open route looks at no token. One in clear is refused, so that it is replaced.
        let caller = match is_open && is_private {
            true => Ok(None),
            false => self.bearers.check(request.headers(), from, is_private),
        };
        // The turns end with the answer.
        let (_open, _of_token);
        let mut router = match caller {
            Err(refusal) => return refusal,
            Ok(Some(caller)) => {
                _of_token = match self.turns.take(&caller).await {
                    Ok(turn) => turn,
                    Err(refusal) => return refusal,
                };
                request.extensions_mut().insert(caller);
                self.all.clone()
            }
            Ok(None) => {
                if let Some(refusal) = self.bearers.missing(is_private).filter(|_| !is_open && !is_page) {
                    return refusal;
                }
                _open = self.turn.acquire().await;
                self.open.clone()
            }
        };
        router.call(request).await.into_response()
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: Arc<Routes>,
    from: IpAddr,
    is_private: bool,
    _place: Occupied,
) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let routes = Arc::clone(&routes);
        async move { Ok::<_, Infallible>(routes.answer(request.map(Body::new), from, is_private).await) }
    });
    let mut connection = pin!(http(MAX_HEAD).serve_connection(TokioIo::new(stream), answer));
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(e) = ended {
                tracing::debug!("a connection over TCP ended: {e}");
            }
        }
        () = sleep(MAX_AGE) => {
            connection.as_mut().graceful_shutdown();
            let _ = timeout(LAST_ANSWER_TIMEOUT, connection).await;
        }
    }
}

/// The number of connections by address.
#[derive(Debug, Default)]
struct Places(Mutex<BTreeMap<IpAddr, usize>>);

/// A connection's place. Its drop frees the place.
#[derive(Debug)]
struct Occupied {
    places: Arc<Places>,
    from: IpAddr,
}

/// The address, or the network of 64 bits that one IPv6 host can have for itself.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

impl Places {
    /// # Errors
    /// The limit that is reached.
    fn take(self: &Arc<Places>, from: IpAddr) -> Result<Occupied, String> {
        let from = network(from);
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.get(&from).copied().unwrap_or(0);
        if own >= MAX_OF_ADDRESS {
            return Err(format!("{from} has {own} of {MAX_OF_ADDRESS} open"));
        }
        if all >= MAX_CONNECTIONS {
            return Err(format!("{all} of {MAX_CONNECTIONS} are open"));
        }
        *open.entry(from).or_default() += 1;
        Ok(Occupied { places: Arc::clone(self), from })
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        let mut open = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_takes_the_places_of_all_others() {
        let places = Arc::new(Places::default());
        let address = |i: u8| IpAddr::from([192, 0, 2, i]);
        let mut held: Vec<_> = (0..MAX_OF_ADDRESS).map(|_| places.take(address(1)).unwrap()).collect();
        assert!(places.take(address(1)).unwrap_err().starts_with("192.0.2.1 has 16 of 16"));
        // The same host over a mapped address is the same.
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        assert!(places.take(mapped).is_err());
        for i in 2..5 {
            held.extend((0..MAX_OF_ADDRESS).map(|_| places.take(address(i)).unwrap()));
        }
        assert!(places.take(address(9)).unwrap_err().contains("64 of 64"));
        held.clear();
        assert!(places.0.lock().unwrap().is_empty());
        let hosts: Vec<IpAddr> = vec!["2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        held.extend((0..MAX_OF_ADDRESS).map(|i| places.take(hosts[i % 2]).unwrap()));
        assert!(places.take(hosts[0]).is_err(), "a host with many addresses takes more places");
    }
}
