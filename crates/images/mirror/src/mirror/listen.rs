//! Connections of clients: how many, how slow, and who has to go.

use std::{
    collections::BTreeMap,
    io,
    net::TcpListener as StdListener,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    Asks, Mirror, MirrorError, SiteState,
    body::{Busy, sending, sending_bytes},
    wire::{Queue, Wire},
};
use crate::{
    coordination::{Nodes, SiteEvent},
    now_utc,
    store::{Store, StoreError},
};

/// Between two times of work that is done now and then.
const TEND: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Connection {
    /// Requests being answered.
    busy: Arc<AtomicUsize>,
    task: AbortHandle,
}

/// The connections that are open, oldest first.
#[derive(Debug, Default)]
struct Connections(Mutex<(u64, BTreeMap<u64, Connection>)>);

impl Connections {
    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, BTreeMap<u64, Connection>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for one more: the oldest that asks nothing is closed. `false`: all are busy.
    fn make_room(&self, most: usize) -> bool {
        let mut open = self.lock();
        while open.1.len() >= most {
            let idle = open.1.iter().find(|(_, c)| c.busy.load(Ordering::Relaxed) == 0).map(|(id, _)| *id);
            let Some(connection) = idle.and_then(|id| open.1.remove(&id)) else { return false };
            connection.task.abort();
        }
        true
    }
}

/// Whether a connection waits to be accepted.
fn is_awaited(listener: &TcpListener) -> bool {
    let mut listener = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    poll(&mut listener, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

impl Mirror {
    /// Listens where the settings say.
    ///
    /// # Errors
    /// [`MirrorError::Listen`].
    pub fn listen(&self) -> Result<StdListener, MirrorError> {
        let address = self.inner.settings.listen;
        let listen = || {
            let listener = StdListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        listen().map_err(|source| MirrorError::Listen { address, source })
    }

    /// Serves clients, and looks after the store. To stop, drop the future.
    ///
    /// # Errors
    /// The listener cannot be used in this runtime, or another program has removed the store.
    pub async fn serve(&self, listener: StdListener) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let connections = Arc::<Connections>::default();
        let peers = async {
            let address = self.inner.settings.pop.as_ref().and_then(|pop| pop.listen);
            let Some(address) = address else { return std::future::pending().await };
            let cannot =
                |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {address} for peers: {e}"));
            let listener = TcpListener::bind(address).await.map_err(cannot)?;
            self.accept(&listener, &Arc::default(), Asks::Peer).await;
            Ok(())
        };
        let tick = async {
            loop {
                self.maintain().await?;
                sleep(TEND).await;
            }
        };
        tokio::select! {
            () = self.accept(&listener, &connections, Asks::Client) => Ok(()),
            end = peers => end,
            end = tick => end,
            () = self.scrub_in_background() => Ok(()),
            () = self.hear_doubts() => Ok(()),
        }
    }

    /// Periodic work: the store's own, and the messages between the nodes of a site.
    ///
    /// # Errors
    /// [`StoreError::Replaced`]: nothing can be kept until it is opened again.
    async fn maintain(&self) -> io::Result<()> {
        let (store, coordination) = (self.inner.store.clone(), &self.inner.coordination);
        let ticking = tokio::task::spawn_blocking(move || (store.tick(now_utc()), store.take_gone()));
        let Ok((ticked, gone)) = ticking.await else { return Ok(()) };
        match ticked {
            Err(e @ StoreError::Replaced { .. }) => return Err(io::Error::other(e)),
            Err(e) => tracing::warn!("{}", weir_units::chain(&e)),
            Ok(()) => {}
        }
        for digest in gone {
            let _ = coordination.publish_event(&SiteEvent::Evicted(digest)).await;
        }
        self.ask_site().await;
        Ok(())
    }

    /// Tells the site what is in use here, and asks who is there.
    pub async fn ask_site(&self) {
        let coordination = &self.inner.coordination;
        let Ok(own) = self.ask_store(Store::in_use).await else { return };
        let asked = async {
            coordination.register(&own, now_utc()).await?;
            coordination.nodes(now_utc()).await
        };
        let mut site = self.inner.site.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match asked.await {
            Ok(Nodes { addresses, in_use }) => {
                // An error is that the mirror is stopping.
                let _ = self.ask_store(move |store| store.set_in_use_elsewhere(in_use)).await;
                if let Some(peers) = &self.inner.peers {
                    peers.set_known(&addresses);
                }
                site = SiteState { nodes: addresses, problem: None };
            }
            // Images that were in use count as in use.
            Err(e) => site.problem = Some(e.to_string()),
        }
        *self.inner.site.lock().unwrap_or_else(PoisonError::into_inner) = site;
    }

    async fn accept(&self, listener: &TcpListener, connections: &Arc<Connections>, asks: Asks) {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(e) => {
                    // Out of file descriptors, mostly: some are given back in a moment. The kernel says so also when
                    // no one waits (net/socket.c, do_accept), and then no one has to go.
                    if is_awaited(listener) {
                        tracing::warn!("cannot take a connection: {e}");
                        let open = connections.lock().1.len();
                        connections.make_room(open.max(1));
                    }
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            if !connections.make_room(self.inner.settings.connections) {
                continue;
            }
            let busy = Arc::<AtomicUsize>::default();
            let mut open = connections.lock();
            open.0 += 1;
            let id = open.0;
            let (mirror, marks, table) = (self.clone(), Arc::clone(&busy), Arc::clone(connections));
            let task = tokio::spawn(async move {
                match asks {
                    Asks::Client => mirror.converse(stream, &marks).await,
                    Asks::Peer => mirror.converse_with_peer(stream, &marks).await,
                }
                table.lock().1.remove(&id);
            });
            open.1.insert(id, Connection { busy, task: task.abort_handle() });
        }
    }

    /// Answers another node, over TLS. Bytes are encrypted here, so the kernel cannot send files itself.
    async fn converse_with_peer(&self, stream: TcpStream, busy: &Arc<AtomicUsize>) {
        let Some(peers) = &self.inner.peers else { return };
        let _ = stream.set_nodelay(true);
        let stream = Wire::new(stream, Queue::default(), self.inner.timing.send);
        let stream = match timeout(self.inner.timing.header, peers.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => return tracing::debug!("a connection of another node failed: {e}"),
            Err(_) => return tracing::debug!("a connection of another node said nothing"),
        };
        let answer = service_fn(|request| async move {
            let mark = Busy::mark(busy);
            let response = self.answer(request, Asks::Peer).await;
            Ok::<_, std::convert::Infallible>(response.map(|body| sending_bytes(body, mark)))
        });
        let served = self.http().serve_connection(TokioIo::new(stream), answer).await;
        if let Err(e) = served {
            tracing::debug!("a connection of another node ended: {e}");
        }
    }

    fn http(&self) -> http1::Builder {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.inner.timing.header).max_buf_size(64 << 10);
        http
    }

    async fn converse(&self, stream: TcpStream, busy: &Arc<AtomicUsize>) {
        let _ = stream.set_nodelay(true);
        let queue = &Queue::default();
        let stream = Wire::new(stream, queue.clone(), self.inner.timing.send);
        let answer = service_fn(|request| async move {
            let mark = Busy::mark(busy);
            let response = self.answer(request, Asks::Client).await;
            Ok::<_, std::convert::Infallible>(response.map(|body| sending(body, mark, queue.clone())))
        });
        let served = self.http().serve_connection(TokioIo::new(stream), answer).await;
        if let Err(e) = served {
            tracing::debug!("a client's connection ended: {e}");
        }
    }
}
