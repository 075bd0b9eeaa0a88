//! Flows: a client sends so many bytes, a server gives back so many when it has them all.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, setsockopt,
    sockopt::{ReuseAddr, TcpCongestion},
};
use weir_netlab::{interrupt, topology::Netns};

/// Where servers listen,
const PORT: u16 = 5300;
/// and where for flows whose algorithm is a rule's business.
pub(super) const RULED: u16 = 5301;
/// What one system call moves at the most: in a guest each costs more than the packets of a small one.
const BLOCK: usize = 1 << 20;
/// What is sent.
static ZEROS: [u8; BLOCK] = [0; BLOCK];
/// How long an end waits before it looks whether to go on.
const LOOK: Duration = Duration::from_secs(1);
/// A flow that moves nothing for so long is given up.
const STALLED: Duration = Duration::from_secs(120);

/// What a flow moves, and by which algorithm; none for what a rule chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub up: u64,
    pub down: u64,
    pub up_by: Option<&'static str>,
    pub down_by: Option<&'static str>,
}

/// What a client tells a server first.
const HEAD: usize = 32;

impl Transfer {
    /// Whether a rule chooses its algorithm.
    pub(super) fn is_ruled(&self) -> bool {
        self.up_by.is_none()
    }

    fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&self.up.to_le_bytes());
        head[8..16].copy_from_slice(&self.down.to_le_bytes());
        let name = self.down_by.unwrap_or_default().as_bytes();
        head[16..16 + name.len()].copy_from_slice(name);
        head
    }
}

/// Numbers and the algorithm of what comes back, as [`Transfer::head`] wrote them.
fn read_head(head: &[u8; HEAD]) -> (u64, u64, String) {
    let number =
        |at: usize| head[at..at + 8].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let name = head[16..].iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
    (number(0), number(8), name)
}

/// A server; ends when dropped.
pub(super) struct Server {
    _listeners: Vec<Listener>,
}

struct Listener {
    socket: Arc<TcpListener>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Listens in a namespace.
    ///
    /// # Errors
    /// If a port is taken.
    pub(super) fn start(netns: &Netns, address: Ipv4Addr) -> Result<Server> {
        let start = |port| {
            let socket = netns
                .within(|| listen(SocketAddrV4::new(address, port)))?
                .with_context(|| format!("cannot listen at {address}:{port}"))?;
            let socket = Arc::new(socket);
            let accepting = Arc::clone(&socket);
            let thread = thread::spawn(move || {
                while let Ok((stream, _)) = accepting.accept() {
                    // A client says by itself what went wrong: its connection ends too soon.
                    thread::spawn(move || serve(stream));
                }
            });
            Ok(Listener { socket, thread: Some(thread) })
        };
        Ok(Server { _listeners: [PORT, RULED].into_iter().map(start).collect::<Result<_>>()? })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Wakes who accepts.
        let _ = socket::shutdown(self.socket.as_raw_fd(), socket::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(at: SocketAddrV4) -> Result<TcpListener> {
    let socket = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    socket::bind(socket.as_raw_fd(), &SockaddrIn::from(at))?;
    socket::listen(&socket, socket::Backlog::new(4096)?)?;
    Ok(TcpListener::from(socket))
}

fn serve(mut stream: TcpStream) -> Result<()> {
    prepare(&stream)?;
    let mut head = [0; HEAD];
    // Not `read_exact`, which gives up at a time-out: a head that is lost may take seconds.
    step(HEAD as u64, |left| stream.read(&mut head[HEAD - left..]))?;
    let (up, down, by) = read_head(&head);
    if !by.is_empty() {
        setsockopt(&stream, TcpCongestion, &by.into())?;
    }
    receive(&stream, up)?;
    // What has nothing to give back says that it has everything.
    send(&mut stream, down.max(1))?;
    stream.shutdown(Shutdown::Write)?;
    Ok(())
}

fn prepare(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK))?;
    Ok(stream.set_write_timeout(Some(LOOK))?)
}

/// Moves it, from the calling thread's namespace; comes back with the time from the connection's
/// beginning to the last byte.
///
/// # Errors
/// If the connection fails, or stands still for two minutes; on Ctrl-C.
pub(super) fn carry(server: Ipv4Addr, transfer: Transfer) -> Result<Duration> {
    let begun = Instant::now();
    let socket = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    if let Some(name) = transfer.up_by {
        setsockopt(&socket, TcpCongestion, &name.into())
            .with_context(|| format!("this kernel has no congestion control {name}"))?;
    }
    let to = SocketAddrV4::new(server, if transfer.is_ruled() { RULED } else { PORT });
    socket::connect(socket.as_raw_fd(), &SockaddrIn::from(to))
        .with_context(|| format!("cannot connect to {to}"))?;
    let mut stream = TcpStream::from(socket);
    prepare(&stream)?;
    stream.write_all(&transfer.head())?;
    send(&mut stream, transfer.up).context("on the way up")?;
    receive(&stream, transfer.down.max(1)).context("on the way down")?;
    Ok(begun.elapsed())
}

fn send(stream: &mut TcpStream, bytes: u64) -> Result<()> {
    step(bytes, |left| stream.write(&ZEROS[..left.min(BLOCK)]))
}

/// Takes what comes off the queue without copying it. The kernel waits until a block is full: it opens
/// its window as it would for single reads, and nobody is woken for each packet.
fn receive(stream: &TcpStream, bytes: u64) -> Result<()> {
    let mut unused = vec![0u8; usize::try_from(bytes).unwrap_or(BLOCK).min(BLOCK)];
    step(bytes, |left| {
        let block = &mut unused[..left.min(BLOCK)];
        let flags = MsgFlags::MSG_WAITALL | MsgFlags::MSG_TRUNC;
        socket::recv(stream.as_raw_fd(), block, flags).map_err(Into::into)
    })
}

/// Repeats `move_some`, which is told how much is left and says how much it moved.
fn step(bytes: u64, mut move_some: impl FnMut(usize) -> std::io::Result<usize>) -> Result<()> {
    let (mut left, mut moved_at) = (bytes, Instant::now());
    while left > 0 {
        match move_some(usize::try_from(left).unwrap_or(usize::MAX)) {
            Ok(0) => bail!("the connection ended {left} bytes of {bytes} too soon"),
            Ok(moved) => {
                left -= moved as u64;
                moved_at = Instant::now();
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                interrupt::check()?;
                if moved_at.elapsed() > STALLED {
                    bail!("nothing moved for {} s, {left} bytes of {bytes} are left", STALLED.as_secs());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_what_comes_and_what_goes_back_by_what() {
        let transfer = Transfer { up: 1 << 40 | 7, down: 99, up_by: None, down_by: Some("cubic") };
        assert_eq!(read_head(&transfer.head()), (1 << 40 | 7, 99, "cubic".to_owned()));
        let by_the_kernel = Transfer { down_by: None, ..transfer };
        assert_eq!(read_head(&by_the_kernel.head()).2, "");
    }

    #[test]
    fn a_head_that_comes_late_and_in_pieces_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let server = thread::spawn(move || serve(stream));
        let head = Transfer { up: 3, down: 2, up_by: Some("cubic"), down_by: Some("cubic") }.head();
        client.write_all(&head[..10]).unwrap();
        thread::sleep(LOOK + LOOK / 5);
        client.write_all(&head[10..]).unwrap();
        client.write_all(&[0; 3]).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), 2, "{:?}", server.join().unwrap());
    }

    #[test]
    fn a_connection_that_ends_too_soon_is_an_error_with_what_is_missing() {
        let mut parts = [10usize, 0].into_iter();
        let error = step(30, |_| Ok(parts.next().unwrap_or(0))).unwrap_err().to_string();
        assert_eq!(error, "the connection ended 20 bytes of 30 too soon");
    }
}
