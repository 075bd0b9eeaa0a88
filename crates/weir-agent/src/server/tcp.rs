//! The part of the API that is open over TCP, at `[api] listen`: metrics, health and readiness.
//!
//! A caller over TCP is unknown, so these routes only read, and they need no right.

use std::{
    collections::BTreeMap,
    future::pending,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::get};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_service::Service as _;

use super::{
    bad_method,
    connections::{REST, http, refusal},
    health,
    metrics::{self, Measured},
    unknown_route,
};
use crate::{control::Control, images::Images};

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

/// The TCP port of the API. It follows the configuration; cheap to clone.
#[derive(Debug, Clone)]
pub struct Port {
    wanted: watch::Sender<Option<SocketAddr>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Port {
    /// The port at this address, or none.
    pub fn new(listen: Option<SocketAddr>) -> Port {
        Port { wanted: watch::Sender::new(listen), failure: Arc::default() }
    }

    /// Moves the port to another address. Connections to the old one end.
    pub(crate) fn set(&self, listen: Option<SocketAddr>) {
        self.wanted.send_if_modified(|wanted| std::mem::replace(wanted, listen) != listen);
    }

    /// The reason why the agent does not listen.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tell(&self, failure: Option<String>) {
        let mut told = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(why), true) = (&failure, *told != failure) {
            tracing::warn!("{why}");
        }
        *told = failure;
    }

    /// Answers requests until the future is dropped.
    pub async fn serve(self, control: Control, images: Images) {
        let router = router(control, images);
        let mut wanted = self.wanted.subscribe();
        loop {
            let listen = *wanted.borrow_and_update();
            self.tell(None);
            tokio::select! {
                never = self.listen(listen, &router) => match never {},
                changed = wanted.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn listen(&self, listen: Option<SocketAddr>, router: &Router) -> std::convert::Infallible {
        let Some(address) = listen else { return pending().await };
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    self.tell(None);
                    tracing::info!("metrics are at http://{address}/metrics");
                    answer(listener, router).await;
                }
                Err(e) => {
                    self.tell(Some(format!(
                        "cannot listen on {address} for `[api]`: {e}; the next attempt is in {AGAIN:?}"
                    )));
                    sleep(AGAIN).await;
                }
            }
        }
    }
}

/// The routes without a right. None of them changes anything.
fn router(control: Control, images: Images) -> Router {
    let measured = Measured { control: control.clone(), images };
    Router::new()
        .route("/metrics", get(metrics::metrics))
        .with_state(measured)
        .merge(health::router(control))
        .fallback(unknown_route)
        .method_not_allowed_fallback(bad_method)
}

/// Takes connections until the future is dropped, which ends the connections too.
async fn answer(listener: TcpListener, router: &Router) {
    let places = Arc::new(Places::default());
    // One answer at a time is made, so callers cannot fill the queue of the agent's loop.
    let turn = Arc::new(Semaphore::new(1));
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
        match places.take(from.ip()) {
            Ok(place) => drop(connections.spawn(converse(stream, router.clone(), Arc::clone(&turn), place))),
            Err(why) => drop(stream.try_write(refusal(&why).as_bytes())),
        }
    }
}

async fn converse(stream: TcpStream, router: Router, turn: Arc<Semaphore>, _place: Place) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let (mut router, turn) = (router.clone(), Arc::clone(&turn));
        async move {
            let _turn = turn.acquire_owned().await;
            router.call(request.map(Body::new)).await
        }
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
struct Place {
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
    fn take(self: &Arc<Places>, from: IpAddr) -> Result<Place, String> {
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
        Ok(Place { places: Arc::clone(self), from })
    }
}

impl Drop for Place {
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
