//! TCP senders and receivers as threads: as many as wanted, without a program each, so that
//! what is measured is not the measuring.

use std::{
    ffi::OsString,
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use crate::topology::{Family, Netns, Topology};

/// A blocked thread looks this often whether it is to stop.
const IO_TIMEOUT: Duration = Duration::from_millis(200);
/// The bytes of one write to TCP, as in qCon section 4 ("16 KB TCP packets").
const WRITE: usize = 16 << 10;

/// TCP connections to the server, each as fast as it goes, until they are dropped.
#[derive(Debug)]
pub struct Bulk {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Bulk {
    /// One connection from each of these namespaces.
    ///
    /// # Errors
    /// If one cannot connect.
    pub fn start(topology: &Topology, from: &[&Netns], family: Family) -> Result<Bulk> {
        let address = topology.server_address(family);
        let listener = topology.srv().within(|| TcpListener::bind((address, 0)))??;
        let target = listener.local_addr()?;
        let mut bulk = Bulk { stop: Arc::default(), received: Arc::default(), threads: Vec::new() };
        for netns in from {
            let connect = || TcpStream::connect_timeout(&target, Duration::from_secs(5));
            let mut sender = netns
                .within(connect)?
                .with_context(|| format!("cannot connect from {} to {target}", netns.name()))?;
            let (mut receiver, _) = listener.accept()?;
            // By name: the host's default may be another.
            setsockopt(&sender, sockopt::TcpCongestion, &OsString::from("cubic"))?;
            sender.set_write_timeout(Some(IO_TIMEOUT))?;
            receiver.set_read_timeout(Some(IO_TIMEOUT))?;
            let stop = bulk.stop.clone();
            bulk.spawn(move || until(&stop, || sender.write(&[0; WRITE]), |_| {}));
            let (stop, received) = (bulk.stop.clone(), bulk.received.clone());
            let mut buffer = vec![0; 128 << 10];
            let count = move |n| {
                received.fetch_add(n as u64, Ordering::Relaxed);
            };
            bulk.spawn(move || until(&stop, || receiver.read(&mut buffer), count));
        }
        Ok(bulk)
    }

    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) {
        self.threads.push(thread::spawn(work));
    }

    /// Payload bytes that have arrived so far, of all connections.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Repeats a step until told to stop or until it fails; waiting is no failure.
fn until(stop: &AtomicBool, mut step: impl FnMut() -> std::io::Result<usize>, mut done: impl FnMut(usize)) {
    while !stop.load(Ordering::Relaxed) {
        match step() {
            Ok(0) => return,
            Ok(n) => done(n),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(_) => return,
        }
    }
}
