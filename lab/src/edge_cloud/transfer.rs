//! Flows: a client sends a number of bytes; then the server returns another number.

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

/// The servers' port for flows whose application chooses the algorithm.
const PORT: u16 = 5300;
/// The servers' port for flows whose algorithm a rule chooses.
pub(super) const RULED: u16 = 5301;
/// Largest number of bytes in one system call. A large block saves calls, which cost more than packets in a
/// guest.
const BLOCK: usize = 1 << 20;
/// The sent bytes.
static ZEROS: [u8; BLOCK] = [0; BLOCK];
/// Time between two checks for an end or a stall.
const LOOK: Duration = Duration::from_secs(1);
/// Time without progress after which a flow fails.
const STALLED: Duration = Duration::from_secs(120);

/// The bytes of a flow and its algorithms; `None` leaves the algorithm to a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(crate) up: u64,
    pub(crate) down: u64,
    pub(crate) up_by: Option<&'static str>,
    pub(crate) down_by: Option<&'static str>,
}

/// Bytes of the head, which a client sends first.
const HEAD: usize = 32;

impl Transfer {
    /// Whether a rule chooses the algorithm.
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

/// The numbers of bytes and the algorithm of the way back, as [`Transfer::head`] wrote them.
fn read_head(head: &[u8; HEAD]) -> (u64, u64, String) {
    let number =
        |at: usize| head[at..at + 8].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let name = head[16..].iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
    (number(0), number(8), name)
}

/// A server, which ends when dropped.
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
                    // The client reports an error itself, because its connection ends too soon.
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
        // Wakes the accepting thread.
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
    // `read_exact` would give up at a time-out, but a lost head may take seconds.
    step(HEAD as u64, |left| stream.read(&mut head[HEAD - left..]))?;
    let (up, down, by) = read_head(&head);
    if !by.is_empty() {
        setsockopt(&stream, TcpCongestion, &by.into())?;
    }
    receive(&stream, up)?;
    // A server with nothing to return sends one byte to confirm that it has everything.
    send(&mut stream, down.max(1))?;
    stream.shutdown(Shutdown::Write)?;
    Ok(())
}

fn prepare(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK))?;
    Ok(stream.set_write_timeout(Some(LOOK))?)
}

/// Moves the bytes, from the calling thread's namespace. Returns the time from the connection's start to the
/// last byte.
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

/// Takes bytes off the queue without copying them.
///
/// The kernel waits until a block is full. It opens its window as for single reads, but does not wake the
/// thread for each packet.
fn receive(stream: &TcpStream, bytes: u64) -> Result<()> {
    let mut unused = vec![0u8; usize::try_from(bytes).unwrap_or(BLOCK).min(BLOCK)];
    step(bytes, |left| {
        let block = &mut unused[..left.min(BLOCK)];
        let flags = MsgFlags::MSG_WAITALL | MsgFlags::MSG_TRUNC;
        socket::recv(stream.as_raw_fd(), block, flags).map_err(Into::into)
    })
}

/// Repeats `move_some`, which gets the number of bytes left and returns the number moved.
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
