//! Round trips of single small packets.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use weir_netlab::{stats, topology::Netns};
use weir_testkit::set_realtime;

/// An answer that takes longer counts as lost, with this time.
const LOST: Duration = Duration::from_secs(1);
/// Payload of a frame of 64 bytes, its check sum counted: 14 + 20 + 8 + 18 + 4.
const PAYLOAD: [u8; 18] = [0; 18];

/// A server that sends back what it gets, until it is dropped.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Round trips, ms.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundTrips(pub Vec<f64>);

impl Echo {
    /// On a port of its own.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    #[track_caller]
    pub fn at(netns: &Netns, address: IpAddr) -> Echo {
        let bound = netns.within(|| UdpSocket::bind((address, 0))).expect("the namespace can be entered");
        let socket = bound.expect("a port is free");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("it can be told");
        let address = socket.local_addr().expect("it has one");
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            set_realtime();
            let mut buffer = [0; 64];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        });
        Echo { address, stop, thread: Some(thread) }
    }

    /// Asks from a namespace, `count` times with that pause between; each time as a flow of its
    /// own, from another port.
    ///
    /// # Panics
    /// If a socket cannot be made.
    #[must_use]
    #[track_caller]
    pub fn ask(&self, netns: &Netns, count: usize, pause: Duration) -> RoundTrips {
        let any: SocketAddr = match self.address {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let once = || {
            let socket = UdpSocket::bind(any).and_then(|s| s.connect(self.address).map(|()| s));
            let socket = socket.expect("a port is free");
            socket.set_read_timeout(Some(LOST)).expect("it can be told");
            let start = Instant::now();
            socket.send(&PAYLOAD).expect("it can send");
            loop {
                match socket.recv(&mut [0; 64]) {
                    Ok(_) => return start.elapsed(),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return LOST,
                }
            }
        };
        let all = || {
            set_realtime();
            (0..count)
                .map(|_| {
                    thread::sleep(pause);
                    once().as_secs_f64() * 1e3
                })
                .collect()
        };
        RoundTrips(netns.within(all).expect("the namespace can be entered"))
    }
}

impl RoundTrips {
    /// That percentile, ms.
    ///
    /// # Panics
    /// Without any.
    #[must_use]
    #[track_caller]
    pub fn percentile(&self, p: f64) -> f64 {
        stats::percentile(&self.0, p).expect("there are some")
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
