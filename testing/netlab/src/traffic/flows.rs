//! Flows between two namespaces as threads, in either direction, counted while they run.

use std::{
    ffi::OsString,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use weir_units::BitRate;

use super::UDP_PAYLOAD;
use crate::topology::Netns;

/// A blocked thread looks this often whether it is to stop.
const IO_TIMEOUT: Duration = Duration::from_millis(200);
/// The time limit for a connection, and for a question of datagrams.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);
/// The bytes of one write to TCP.
const WRITE: usize = 16 << 10;
/// The receive buffer of datagrams: a busy machine must not lose what the network carried.
const SINK: usize = 8 << 20;
/// A sender that is late makes up for at most this time.
const LATENESS: Duration = Duration::from_millis(100);

/// The direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// A client, and a server with the address that the client asks. The client opens each flow, since it may be
/// behind NAT.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    /// The client's namespace.
    pub client: &'a Netns,
    /// The server's namespace.
    pub server: &'a Netns,
    /// An address of the server.
    pub address: IpAddr,
    /// The direction of the data.
    pub direction: Direction,
}

/// Flows of one client, until they are dropped.
#[derive(Debug)]
pub struct Flows {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Flows {
    /// `count` TCP connections with a congestion control, each as fast as it goes.
    ///
    /// # Errors
    /// If one cannot connect, or the kernel lacks the algorithm.
    pub fn tcp(ends: Ends<'_>, algorithm: &str, count: usize) -> Result<Flows> {
        let Ends { client, server, address, direction } = ends;
        let listener = server.within(|| TcpListener::bind((address, 0)))??;
        let target = listener.local_addr()?;
        let mut flows = Flows::idle();
        for _ in 0..count {
            let opened = client
                .within(|| TcpStream::connect_timeout(&target, SETUP_TIMEOUT))?
                .with_context(|| format!("cannot connect from {} to {target}", client.name()))?;
            let (accepted, _) = listener.accept()?;
            let (mut sender, mut receiver) = match direction {
                Direction::Up => (opened, accepted),
                Direction::Down => (accepted, opened),
            };
            setsockopt(&sender, sockopt::TcpCongestion, &OsString::from(algorithm))
                .with_context(|| format!("cannot use the congestion control {algorithm}"))?;
            sender.set_write_timeout(Some(IO_TIMEOUT))?;
            receiver.set_read_timeout(Some(IO_TIMEOUT))?;
            let mut buffer = vec![0; 128 << 10];
            flows.spawn(move || sender.write(&[0; WRITE]), |_| {});
            let received = flows.received.clone();
            flows.spawn(move || receiver.read(&mut buffer), move |n| add(&received, n));
        }
        Ok(flows)
    }

    /// Datagrams of [`UDP_PAYLOAD`] bytes at a rate of payload.
    ///
    /// # Errors
    /// If a socket cannot be made, or the client's first datagram does not arrive.
    pub fn udp(ends: Ends<'_>, rate: BitRate) -> Result<Flows> {
        let Ends { client, server, address, direction } = ends;
        let listening = server.within(|| UdpSocket::bind((address, 0)))??;
        listening.set_read_timeout(Some(SETUP_TIMEOUT))?;
        let target = listening.local_addr()?;
        let any: SocketAddr = match address {
            IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            IpAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let asking = client.within(|| UdpSocket::bind(any))??;
        asking.connect(target)?;
        asking.send(b"?")?;
        let (_, asker) = listening
            .recv_from(&mut [0; 16])
            .with_context(|| format!("no datagram of {} arrived at {target}", client.name()))?;
        listening.connect(asker)?;
        let (sender, sink) = match direction {
            Direction::Up => (asking, listening),
            Direction::Down => (listening, asking),
        };
        sender.set_write_timeout(Some(IO_TIMEOUT))?;
        sink.set_read_timeout(Some(IO_TIMEOUT))?;
        setsockopt(&sink, sockopt::RcvBufForce, &SINK).context("cannot set a receive buffer")?;
        let mut flows = Flows::idle();
        let (mut pace, payload) = (Pace::new(rate), [0; UDP_PAYLOAD as usize]);
        flows.spawn(
            move || {
                pace.wait(payload.len());
                sender.send(&payload)
            },
            |_| {},
        );
        let (received, mut buffer) = (flows.received.clone(), vec![0; 65_536]);
        flows.spawn(move || sink.recv(&mut buffer), move |n| add(&received, n));
        Ok(flows)
    }

    /// Payload bytes that have arrived so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn idle() -> Flows {
        Flows { stop: Arc::default(), received: Arc::default(), threads: Vec::new() }
    }

    /// Repeats a step until the flows are dropped.
    fn spawn(
        &mut self,
        mut step: impl FnMut() -> std::io::Result<usize> + Send + 'static,
        mut done: impl FnMut(usize) + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match step() {
                    Ok(0) => return,
                    Ok(n) => done(n),
                    Err(error) if is_passing(&error) => thread::yield_now(),
                    Err(_) => return,
                }
            }
        }));
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn add(received: &AtomicU64, n: usize) {
    received.fetch_add(n as u64, Ordering::Relaxed);
}

/// A link that moves refuses datagrams for a moment, and a full device has no buffer.
fn is_passing(error: &std::io::Error) -> bool {
    use ErrorKind::{
        ConnectionRefused, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable, TimedOut,
        WouldBlock,
    };
    let passes = [
        WouldBlock,
        TimedOut,
        Interrupted,
        NetworkDown,
        NetworkUnreachable,
        HostUnreachable,
        ConnectionRefused,
    ];
    passes.contains(&error.kind()) || error.raw_os_error() == Some(nix::libc::ENOBUFS)
}

/// The times at which datagrams are due.
struct Pace {
    rate: f64,
    start: Instant,
    bytes: f64,
}

impl Pace {
    fn new(rate: BitRate) -> Pace {
        Pace { rate: rate.bits_per_sec() as f64, start: Instant::now(), bytes: 0.0 }
    }

    fn wait(&mut self, length: usize) {
        let due = Duration::from_secs_f64(self.bytes * 8.0 / self.rate);
        let behind = self.start.elapsed().saturating_sub(due);
        self.start += behind.saturating_sub(LATENESS);
        thread::sleep(due.saturating_sub(self.start.elapsed()));
        self.bytes += length as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_paced_and_lateness_is_not_made_up_for() {
        let mut pace = Pace::new(BitRate::mbit(10));
        let begin = Instant::now();
        for _ in 0..50 {
            pace.wait(1_250);
        }
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(49), "1 ms each: {took:?}");
        thread::sleep(Duration::from_millis(400));
        let begin = Instant::now();
        for _ in 0..200 {
            pace.wait(1_250);
        }
        assert!(begin.elapsed() >= Duration::from_millis(85), "at most 100 ms are made up for");
    }
}
