//! The task that wants all of the line: 12.5 KB of UDP each millisecond, 100 Mbit/s.

use std::{
    io::ErrorKind,
    net::{IpAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::topology::Netns;

/// The bytes of one datagram: the paper's 12.5 KB, nine fragments on Ethernet.
const DATAGRAM: usize = 12_500;
/// How often.
const PERIOD: Duration = Duration::from_millis(1);
/// A blocked thread looks this often whether it is to stop.
const IO_TIMEOUT: Duration = Duration::from_millis(100);

/// The task at work, until it is dropped.
#[derive(Debug)]
pub struct Eager {
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Eager {
    /// Sends from one namespace to an address in another.
    ///
    /// A send waits while the socket's buffer is full, as it does on a machine whose own
    /// interface is the bottleneck; what was missed meanwhile is not caught up.
    ///
    /// # Errors
    /// If a socket cannot be had.
    pub fn start(from: &Netns, to: &Netns, address: IpAddr) -> Result<Eager> {
        let sink = to.within(|| UdpSocket::bind((address, 0)))?.context("cannot receive UDP")?;
        let target = sink.local_addr()?;
        let unspecified: IpAddr = match address {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let source = from.within(|| UdpSocket::bind((unspecified, 0)))?.context("cannot send UDP")?;
        sink.set_read_timeout(Some(IO_TIMEOUT))?;
        source.set_write_timeout(Some(IO_TIMEOUT))?;
        let mut eager = Eager { stop: Arc::default(), arrived: Arc::default(), threads: Vec::new() };
        let (stop, arrived) = (eager.stop.clone(), eager.arrived.clone());
        eager.threads.push(thread::spawn(move || {
            let mut buffer = vec![0; DATAGRAM];
            while !stop.load(Ordering::Relaxed) {
                match sink.recv(&mut buffer) {
                    Ok(bytes) => drop(arrived.fetch_add(bytes as u64, Ordering::Relaxed)),
                    Err(e) if is_waiting(e.kind()) => {}
                    Err(_) => return,
                }
            }
        }));
        let stop = eager.stop.clone();
        eager.threads.push(thread::spawn(move || {
            let mut next = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                // A full queue may refuse (ENOBUFS) instead of making it wait.
                let _ = source.send_to(&[0; DATAGRAM], target);
                next = (next + PERIOD).max(Instant::now());
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        }));
        Ok(eager)
    }

    /// Payload bytes that have arrived so far.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }
}

impl Drop for Eager {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn is_waiting(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
