//! Traffic that can be watched while it flows: senders and receivers as threads of the test,
//! with sockets in the namespaces. (What is only to be measured as a whole is iperf3's, in
//! the lab.)

use std::{
    ffi::OsString,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, setsockopt, sockopt},
    unistd::Pid,
};
use weir_netlab::{topology::Netns, traffic::UDP_PAYLOAD};
use weir_testkit::set_realtime;
use weir_units::BitRate;

/// A blocked socket looks this often whether it is to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long what is on its way may take to arrive.
const LATE: Duration = Duration::from_secs(3);
/// The receive buffer of datagrams: a busy machine must not lose what the network carried.
const SINK: usize = 8 << 20;

/// A sender that is behind does not make up for more than this: it would ask for more than its
/// rate.
const LATENESS: Duration = Duration::from_millis(100);
/// A sender that is to be silent looks this often whether it still is.
const SILENCE: Duration = Duration::from_millis(10);

/// The bytes that TCP takes from a sender before it can send them.
const UNSENT: u32 = 64 << 10;
/// The memory that the kernel needs to keep a datagram of [`UDP_PAYLOAD`].
pub(crate) const DATAGRAM_MEMORY: usize = 2304;

/// How much a sender offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// As much as the socket takes: it blocks when its class is held back.
    Unlimited,
    /// That much payload; zero is silence.
    Of(BitRate),
}

impl Rate {
    fn bits_per_sec(self) -> u64 {
        match self {
            Rate::Unlimited => u64::MAX,
            Rate::Of(rate) => rate.bits_per_sec(),
        }
    }
}

/// Where a stream comes from, and how its packets are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// Its port; 0 for any.
    pub port: u16,
    /// Differentiated services code point.
    pub dscp: u8,
}

impl Origin {
    /// A connected socket.
    fn socket(self, kind: SockType, target: SocketAddr) -> std::io::Result<OwnedFd> {
        let (family, any): (_, SocketAddr) = match target {
            SocketAddr::V4(_) => (AddressFamily::Inet, ([0, 0, 0, 0], self.port).into()),
            SocketAddr::V6(_) => (AddressFamily::Inet6, ([0u16; 8], self.port).into()),
        };
        let socket = socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        let class = i32::from(self.dscp) << 2;
        match target {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4Tos, &class)?,
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6TClass, &class)?,
        }
        socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(any))?;
        socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(target))?;
        Ok(socket)
    }
}

/// Tells a sender when its next block is due, at a rate that others change.
struct Pace {
    wanted: Arc<AtomicU64>,
    /// The rate that the two below are about.
    rate: u64,
    start: Instant,
    bytes: u64,
}

impl Pace {
    fn new(wanted: Arc<AtomicU64>) -> Pace {
        let rate = wanted.load(Ordering::Relaxed);
        Pace { wanted, rate, start: Instant::now(), bytes: 0 }
    }

    /// Waits until a block of that length is due; false if nothing is wanted now.
    fn wait(&mut self, length: usize) -> bool {
        let rate = self.wanted.load(Ordering::Relaxed);
        if rate != self.rate {
            *self = Pace { rate, start: Instant::now(), bytes: 0, wanted: self.wanted.clone() };
        }
        match rate {
            0 => thread::sleep(SILENCE),
            u64::MAX => {}
            _ => {
                let due = Duration::from_secs_f64(self.bytes as f64 * 8.0 / rate as f64);
                let behind = self.start.elapsed().saturating_sub(due);
                self.start += behind.saturating_sub(LATENESS);
                thread::sleep(due.saturating_sub(self.start.elapsed()));
                self.bytes += length as u64;
            }
        }
        rate > 0
    }
}

/// One flow, from now until it is dropped.
#[derive(Debug)]
pub struct Stream {
    /// For the sender, and for the receiver.
    stop: [Arc<AtomicBool>; 2],
    sent: Arc<AtomicU64>,
    pub(crate) received: Arc<AtomicU64>,
    /// Bits a second; `u64::MAX` is no limit.
    rate: Arc<AtomicU64>,
    /// The sender's.
    socket: Option<OwnedFd>,
    datagrams: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    /// One TCP connection from a namespace to an address in another, as fast as it goes.
    ///
    /// # Panics
    /// If it cannot connect.
    #[must_use]
    #[track_caller]
    pub fn tcp(from: &Netns, to: &Netns, address: IpAddr) -> Stream {
        Stream::connect(from, to, address, |_| {})
            .unwrap_or_else(|e| panic!("tcp from {}: {e:#}", from.name()))
    }

    /// The same with that congestion control.
    ///
    /// # Panics
    /// If it cannot connect, or the kernel has no such algorithm.
    #[must_use]
    #[track_caller]
    pub fn tcp_with(from: &Netns, to: &Netns, address: IpAddr, algorithm: &str) -> Stream {
        let choose = |socket: &TcpStream| {
            let set = setsockopt(socket, sockopt::TcpCongestion, &OsString::from(algorithm));
            set.unwrap_or_else(|e| panic!("{algorithm}: {e}"));
        };
        Stream::connect(from, to, address, choose)
            .unwrap_or_else(|e| panic!("tcp from {}: {e:#}", from.name()))
    }

    /// The same from that port, marked with that code point.
    ///
    /// # Panics
    /// If it cannot connect.
    #[must_use]
    #[track_caller]
    pub fn tcp_from(from: &Netns, origin: Origin, to: &Netns, address: IpAddr) -> Stream {
        Stream::connect_from(from, Some(origin), to, address, |_| {})
            .unwrap_or_else(|e| panic!("tcp from {} {origin:?}: {e:#}", from.name()))
    }

    /// A TCP connection that is opened from a namespace and whose data comes back to it.
    ///
    /// # Panics
    /// If it cannot connect.
    #[must_use]
    #[track_caller]
    pub fn tcp_back(to: &Netns, from: &Netns, address: IpAddr) -> Stream {
        let open = || -> Result<Stream> {
            let (opened, accepted) = Stream::pair(to, None, from, address)?;
            Stream::set_up(&accepted)?;
            Stream::start(accepted, opened)
        };
        open().unwrap_or_else(|e| panic!("tcp back to {}: {e:#}", to.name()))
    }

    /// Datagrams that come back to a namespace, which has sent one to ask for them.
    ///
    /// # Panics
    /// If a socket cannot be made, or the question does not arrive.
    #[must_use]
    #[track_caller]
    pub fn udp_back(to: &Netns, from: &Netns, address: IpAddr, rate: BitRate, payload: usize) -> Stream {
        let open = || -> Result<Stream> {
            let socket = from.within(|| UdpSocket::bind((address, 0)))??;
            socket.set_read_timeout(Some(LATE))?;
            let target = socket.local_addr()?;
            let ask = || Origin::default().socket(SockType::Datagram, target);
            let sink = UdpSocket::from(to.within(ask)??);
            sink.send(b"?")?;
            let (_, asker) = socket.recv_from(&mut [0; 16]).context("nothing has asked")?;
            socket.connect(asker)?;
            Stream::between(socket, sink, Rate::Of(rate), payload)
        };
        open().unwrap_or_else(|e| panic!("udp back to {}: {e:#}", to.name()))
    }

    /// Datagrams from a namespace to an address that the network translates to that of the sink in another.
    ///
    /// # Panics
    /// If a socket cannot be made.
    #[must_use]
    #[track_caller]
    pub fn udp_through(
        from: &Netns,
        target: SocketAddr,
        to: &Netns,
        sink: SocketAddr,
        rate: BitRate,
    ) -> Stream {
        let (payload, rate) = (UDP_PAYLOAD as usize, Rate::Of(rate));
        let open = || -> Result<Stream> {
            let sink = to.within(|| UdpSocket::bind(sink))??;
            Stream::datagrams(from, Origin::default(), sink, target, rate, payload)
        };
        open().unwrap_or_else(|e| panic!("udp from {} to {target}: {e:#}", from.name()))
    }

    /// The same, whose application has set a limit of pacing, bytes per second.
    ///
    /// # Panics
    /// If it cannot connect, or the socket refuses.
    #[must_use]
    #[track_caller]
    pub fn paced(from: &Netns, to: &Netns, address: IpAddr, bytes_per_sec: u32) -> Stream {
        let set = |socket: &TcpStream| {
            let (option, len) = (libc::SO_MAX_PACING_RATE, size_of_val(&bytes_per_sec) as libc::socklen_t);
            // SAFETY: the descriptor is open, and the value is as long as said.
            let code = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const bytes_per_sec).cast(),
                    len,
                )
            };
            assert_eq!(code, 0, "the socket takes a limit of pacing");
        };
        Stream::connect(from, to, address, set).unwrap_or_else(|e| panic!("tcp from {}: {e:#}", from.name()))
    }

    /// Datagrams from a namespace to an address in another.
    ///
    /// # Panics
    /// If a socket cannot be made.
    #[must_use]
    #[track_caller]
    pub fn udp(from: &Netns, to: &Netns, address: IpAddr, rate: Rate) -> Stream {
        let payload = UDP_PAYLOAD as usize;
        Stream::flood(from, Origin::default(), to, address, rate, payload)
            .unwrap_or_else(|e| panic!("udp from {}: {e:#}", from.name()))
    }

    /// The same from that port, marked with that code point, in datagrams of `payload` bytes.
    ///
    /// # Panics
    /// If a socket cannot be made.
    #[must_use]
    #[track_caller]
    pub fn udp_from(
        from: &Netns,
        origin: Origin,
        to: &Netns,
        address: IpAddr,
        rate: Rate,
        payload: usize,
    ) -> Stream {
        Stream::flood(from, origin, to, address, rate, payload)
            .unwrap_or_else(|e| panic!("udp from {} {origin:?}: {e:#}", from.name()))
    }

    fn connect(
        from: &Netns,
        to: &Netns,
        address: IpAddr,
        prepare: impl FnOnce(&TcpStream),
    ) -> Result<Stream> {
        Stream::connect_from(from, None, to, address, prepare)
    }

    fn connect_from(
        from: &Netns,
        origin: Option<Origin>,
        to: &Netns,
        address: IpAddr,
        prepare: impl FnOnce(&TcpStream),
    ) -> Result<Stream> {
        let (socket, peer) = Stream::pair(from, origin, to, address)?;
        Stream::set_up(&socket)?;
        prepare(&socket);
        Stream::start(socket, peer)
    }

    /// A connection: its end where it is opened, and the other one.
    fn pair(
        from: &Netns,
        origin: Option<Origin>,
        to: &Netns,
        address: IpAddr,
    ) -> Result<(TcpStream, TcpStream)> {
        let listener = to.within(|| TcpListener::bind((address, 0)))??;
        let target = listener.local_addr()?;
        let connect = || match origin {
            None => TcpStream::connect_timeout(&target, Duration::from_secs(5)),
            Some(origin) => Ok(TcpStream::from(origin.socket(SockType::Stream, target)?)),
        };
        let socket = from.within(connect)?.with_context(|| format!("cannot connect to {target}"))?;
        let (peer, _) = listener.accept()?;
        Ok((socket, peer))
    }

    /// Prepares the sending end.
    fn set_up(socket: &TcpStream) -> Result<()> {
        // By name, as the lab does: the host's default may be another.
        setsockopt(socket, sockopt::TcpCongestion, &OsString::from("cubic"))?;
        // Little that is not sent yet: a stream that is silenced stops soon.
        let lowat = libc::c_int::try_from(UNSENT)?;
        // SAFETY: a plain system call on an open socket, with a valid integer of that size.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_NOTSENT_LOWAT,
                (&raw const lowat).cast(),
                libc::socklen_t::try_from(size_of_val(&lowat))?,
            )
        };
        anyhow::ensure!(set == 0, "cannot set TCP_NOTSENT_LOWAT: {}", std::io::Error::last_os_error());
        Ok(())
    }

    fn start(mut socket: TcpStream, mut peer: TcpStream) -> Result<Stream> {
        socket.set_write_timeout(Some(STOP_CHECK_INTERVAL))?;
        peer.set_read_timeout(Some(STOP_CHECK_INTERVAL))?;
        let mut stream = Stream::idle();
        stream.socket = Some(socket.try_clone()?.into());
        let (stop, sent, rate) = (stream.stop[0].clone(), stream.sent.clone(), stream.rate.clone());
        let sender = thread::spawn(move || {
            set_realtime();
            let block = [0u8; 16 << 10];
            let mut pace = Pace::new(rate);
            count(&stop, &sent, || {
                if pace.wait(block.len()) { socket.write(&block) } else { Err(ErrorKind::WouldBlock.into()) }
            });
        });
        let (stop, received) = (stream.stop[1].clone(), stream.received.clone());
        let receiver = thread::spawn(move || {
            set_realtime();
            let mut buffer = vec![0u8; 256 << 10];
            count(&stop, &received, || peer.read(&mut buffer));
        });
        stream.threads = vec![sender, receiver];
        Ok(stream)
    }

    fn flood(
        from: &Netns,
        origin: Origin,
        to: &Netns,
        address: IpAddr,
        rate: Rate,
        payload: usize,
    ) -> Result<Stream> {
        let sink = to.within(|| UdpSocket::bind((address, 0)))??;
        let target = sink.local_addr()?;
        Stream::datagrams(from, origin, sink, target, rate, payload)
    }

    fn datagrams(
        from: &Netns,
        origin: Origin,
        sink: UdpSocket,
        target: SocketAddr,
        rate: Rate,
        payload: usize,
    ) -> Result<Stream> {
        let socket = UdpSocket::from(from.within(|| origin.socket(SockType::Datagram, target))??);
        Stream::between(socket, sink, rate, payload)
    }

    /// Datagrams from a connected socket to a sink.
    fn between(socket: UdpSocket, sink: UdpSocket, rate: Rate, payload: usize) -> Result<Stream> {
        sink.set_read_timeout(Some(STOP_CHECK_INTERVAL))?;
        setsockopt(&sink, sockopt::RcvBufForce, &SINK)?;
        socket.set_write_timeout(Some(STOP_CHECK_INTERVAL))?;
        let mut stream = Stream::idle();
        stream.set(rate);
        stream.socket = Some(socket.try_clone()?.into());
        stream.datagrams = true;
        let (stop, sent, wanted) = (stream.stop[0].clone(), stream.sent.clone(), stream.rate.clone());
        let sender = thread::spawn(move || {
            if rate != Rate::Unlimited {
                set_realtime();
            }
            let payload = vec![0; payload];
            let mut pace = Pace::new(wanted);
            count(&stop, &sent, || {
                if pace.wait(payload.len()) {
                    socket.send(&payload)
                } else {
                    Err(ErrorKind::WouldBlock.into())
                }
            });
        });
        let (stop, received) = (stream.stop[1].clone(), stream.received.clone());
        let receiver = thread::spawn(move || {
            set_realtime();
            let mut buffer = vec![0; 65_536];
            count(&stop, &received, || sink.recv(&mut buffer));
        });
        stream.threads = vec![sender, receiver];
        Ok(stream)
    }

    fn idle() -> Stream {
        Stream {
            stop: Default::default(),
            sent: Arc::default(),
            received: Arc::default(),
            rate: Arc::new(AtomicU64::new(u64::MAX)),
            socket: None,
            datagrams: false,
            threads: Vec::new(),
        }
    }

    /// Changes what it offers, from its next block on.
    pub fn set(&self, rate: Rate) {
        self.rate.store(rate.bits_per_sec(), Ordering::Relaxed);
    }

    /// The most datagrams of a sender that may wait in the network. A stream that is silenced goes
    /// on for as long as they take to leave. Nothing for TCP, which sees to that itself.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn queue(&self, datagrams: usize) {
        let Some(socket) = self.socket.as_ref().filter(|_| self.datagrams) else { return };
        // The kernel doubles it, and counts what a datagram takes of its memory.
        setsockopt(socket, sockopt::SndBuf, &(datagrams * DATAGRAM_MEMORY / 2)).expect("any size will do");
    }

    /// Bytes of the sender's socket that are on their way: with the kernel's own memory for
    /// datagrams, until they left the node; TCP's until they are acknowledged.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn on_their_way(&self) -> usize {
        let Some(socket) = &self.socket else { return 0 };
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open, and this call (SIOCOUTQ) writes an integer.
        let code = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        assert_eq!(code, 0, "cannot ask a socket what it has not sent: {}", std::io::Error::last_os_error());
        usize::try_from(bytes).expect("no less than nothing")
    }

    /// Whether it is to send nothing.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.rate.load(Ordering::Relaxed) == 0
    }

    /// Payload bytes that the sender got rid of so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Payload bytes that have arrived so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Ends it, and waits for what is on its way: payload bytes sent, and those that arrived.
    #[must_use]
    pub fn finish(mut self) -> (u64, u64) {
        self.stop[0].store(true, Ordering::Relaxed);
        let _ = self.threads.remove(0).join();
        let end = Instant::now() + LATE;
        while self.received() < self.sent() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
        (self.sent(), self.received())
    }

    /// The arrivals during this time, Mbit/s of payload.
    #[must_use]
    pub fn goodput(&self, time: Duration) -> f64 {
        Stream::goodputs(&[self], time)[0]
    }

    /// The arrivals by each of these during the same time, Mbit/s of payload.
    #[must_use]
    pub fn goodputs(streams: &[&Stream], time: Duration) -> Vec<f64> {
        let (start, before): (_, Vec<u64>) = (Instant::now(), streams.iter().map(|s| s.received()).collect());
        thread::sleep(time);
        let seconds = start.elapsed().as_secs_f64();
        let rate = |(s, before): (&&Stream, u64)| (s.received() - before) as f64 * 8e-6 / seconds;
        streams.iter().zip(before).map(rate).collect()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        for stop in &self.stop {
            stop.store(true, Ordering::Relaxed);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Counts what `step` does until told to stop or until it fails; waiting is no failure.
fn count(stop: &AtomicBool, bytes: &AtomicU64, mut step: impl FnMut() -> std::io::Result<usize>) {
    while !stop.load(Ordering::Relaxed) {
        match step() {
            Ok(0) => return,
            Ok(n) => {
                bytes.fetch_add(n as u64, Ordering::Relaxed);
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            // A container that goes away takes its flow with it.
            Err(_) => return,
        }
    }
}

/// Threads that are started meanwhile run on one processor. Where the sender and the receiver of a flow wake is
/// otherwise chance, and moves a rate by a fifth.
///
/// # Panics
/// If the kernel refuses.
pub fn on_one_processor<T>(start: impl FnOnce() -> T) -> T {
    let me = Pid::from_raw(0);
    let before = sched_getaffinity(me).expect("a thread has processors");
    let first = (0..CpuSet::count()).find(|&cpu| before.is_set(cpu) == Ok(true)).expect("there is one");
    let mut one = CpuSet::new();
    one.set(first).expect("it was there");
    sched_setaffinity(me, &one).expect("it is one of the allowed");
    let started = start();
    sched_setaffinity(me, &before).expect("they were allowed");
    started
}
