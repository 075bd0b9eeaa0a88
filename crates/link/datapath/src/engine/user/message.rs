//! The messages between the agent and the forwarder's process: JSON, one message a packet of a unix socket.
//! Each request has one answer.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use weir_netlink::tc::HtbClass;
use weir_units::{BitRate, Bytes, Cells, Framing, TcHandle};

/// Another number is another language. It changes with each change of these messages or of what the
/// programs in the kernel expect.
pub(super) const PROTOCOL: u32 = 2;

/// The longest message: 1,024 classes, all of them new, take about 100 KB.
const MAX_MESSAGE: usize = 512 << 10;

/// A request of an agent. The first one of each agent comes with its classifier's array of programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Make the device, with these many tap queues, on this ifb. The first request to a new forwarder.
    Begin { protocol: u32, ifb: u32, queues: usize, cookie: u32 },
    /// Another agent takes over.
    Join { protocol: u32, cookie: u32 },
    /// Change the tree, in this order and at once.
    Write(Vec<Change>),
    /// Say what has become of packets.
    Measure,
    /// Go before other threads, or be one of many.
    Ahead(bool),
    /// End, and leave nothing. It has no answer: the connection ends.
    End,
}

/// A change of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Change {
    /// Cut super-packets into single segments, or leave them whole.
    Split(bool),
    /// Remove a class from the tree. It keeps its tap queue.
    Remove(u16),
    /// Take a class's tap queue away.
    Release(u16),
    /// Make, or change, a class.
    Set(Class),
    /// Give a class a tap queue if it has none.
    Lead(u16),
    /// Charge packets as the line frames them, or as tc counts them.
    Frame(Option<Line>),
}

/// An answer of the forwarder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// To [`Request::Begin`] and [`Request::Join`]; with the program that takes packets to it.
    State(State),
    /// Done. `full`: the first class for which there was no tap queue.
    Written { full: Option<u16> },
    /// To [`Request::Measure`].
    Report(Report),
    /// Not done, and why.
    Refused(String),
}

/// The forwarder's state at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) protocol: u32,
    /// Indices of its devices.
    pub(super) ifb: u32,
    pub(super) tap: u32,
    /// Tap queues.
    pub(super) queues: usize,
    pub(super) split: Option<bool>,
    pub(super) line: Option<Line>,
    pub(super) classes: Vec<Class>,
    /// Minors of classes with a tap queue.
    pub(super) leaves: Vec<u16>,
}

/// The fate of packets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) classes: Vec<Measured>,
    /// Times that the thread was too late, and the link's time lost so.
    pub(super) late: (u64, Duration),
}

/// Of one class: minor, bytes, packets, drops, backlog, times over its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Measured(
    pub(super) u16,
    pub(super) u64,
    pub(super) u64,
    pub(super) u64,
    pub(super) u64,
    pub(super) u64,
);

/// A [`Framing`]: overhead, least bytes, and 1 for ATM or 2 for PTM. The device has an Ethernet header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line(i32, u32, u8);

impl From<Framing> for Line {
    fn from(Framing { overhead, mpu, cells, header: _ }: Framing) -> Line {
        let cells = match cells {
            Cells::None => 0,
            Cells::Atm => 1,
            Cells::Ptm => 2,
        };
        Line(overhead, mpu, cells)
    }
}

impl From<Line> for Framing {
    fn from(Line(overhead, mpu, cells): Line) -> Framing {
        let cells = match cells {
            1 => Cells::Atm,
            2 => Cells::Ptm,
            _ => Cells::None,
        };
        Framing { overhead, mpu, cells, ..Framing::default() }
    }
}

/// An [`HtbClass`]: handles; rates in bit/s; buckets and quantum in bytes; priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Class([u32; 2], [u64; 2], [u64; 3], u32);

impl From<HtbClass> for Class {
    fn from(class: HtbClass) -> Class {
        Class(
            [class.handle.0, class.parent.0],
            [class.rate.0, class.ceil.0],
            [class.burst.0, class.cburst.0, class.quantum.0],
            class.prio,
        )
    }
}

impl From<Class> for HtbClass {
    fn from(Class([handle, parent], [rate, ceil], [burst, cburst, quantum], prio): Class) -> HtbClass {
        HtbClass {
            handle: TcHandle(handle),
            parent: TcHandle(parent),
            rate: BitRate(rate),
            ceil: BitRate(ceil),
            burst: Bytes(burst),
            cburst: Bytes(cburst),
            quantum: Bytes(quantum),
            prio,
            // The forwarder charges the framing itself (`Change::Frame`).
            framing: weir_units::RateFraming::default(),
        }
    }
}

/// Sends a message, with an open file if one is given.
///
/// # Errors
/// The other side is gone, or takes no more messages now.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = file.as_slice();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Receives a message, and the open file that came with it.
///
/// # Errors
/// The other side is gone (`UnexpectedEof`), nothing has come yet, or it is no such message (`InvalidData`).
pub(super) fn receive<M: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<(M, Option<OwnedFd>)> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket.as_fd(), &mut parts, &mut ancillary, flags)?;
    let mut file = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.last();
        }
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    Ok((decode(&bytes[..received.bytes])?, file))
}

fn decode<M: DeserializeOwned>(bytes: &[u8]) -> io::Result<M> {
    serde_json::from_slice(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn class() -> impl Strategy<Value = Class> {
        (any::<[u32; 2]>(), any::<[u64; 2]>(), any::<[u64; 3]>(), any::<u32>())
            .prop_map(|(handles, rates, sizes, prio)| Class(handles, rates, sizes, prio))
    }

    fn line() -> impl Strategy<Value = Option<Line>> {
        prop::option::of((any::<i32>(), any::<u32>(), 0..3u8).prop_map(|(o, m, c)| Line(o, m, c)))
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            any::<bool>().prop_map(Change::Split),
            any::<u16>().prop_map(Change::Remove),
            any::<u16>().prop_map(Change::Release),
            class().prop_map(Change::Set),
            any::<u16>().prop_map(Change::Lead),
            line().prop_map(Change::Frame),
        ]
    }

    proptest! {
        #[test]
        fn message_arrives_as_it_was_sent(changes in prop::collection::vec(change(), 0..50)) {
            let (from, to) = pair();
            let sent = Request::Write(changes);
            send(from.as_fd(), &sent, None).unwrap();
            let (received, file) = receive::<Request>(to.as_fd()).unwrap();
            prop_assert_eq!(received, sent);
            prop_assert!(file.is_none());
        }

        #[test]
        fn class_is_the_same_behind_the_socket(class in class()) {
            prop_assert_eq!(Class::from(HtbClass::from(class)), class);
        }

        #[test]
        fn framing_is_the_same_behind_the_socket(line in line()) {
            prop_assert_eq!(line.map(|line| Line::from(Framing::from(line))), line);
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 1..2000)) {
            // A message of the format begins with a brace or a quotation mark; random ones may, too.
            prop_assert!(decode::<Request>(&bytes).is_err() || bytes[0] == b'"');
            prop_assert!(decode::<Answer>(&bytes).is_err());
        }

        #[test]
        fn damaged_message_is_read_or_refused(
            changes in prop::collection::vec(change(), 1..5), at: prop::sample::Index, byte: u8, cut: bool,
        ) {
            let mut bytes = serde_json::to_vec(&Request::Write(changes)).unwrap();
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
                prop_assert!(decode::<Request>(&bytes).is_err());
            } else {
                bytes[at] = byte;
                let _ = decode::<Request>(&bytes);
            }
        }
    }

    #[test]
    fn open_file_comes_with_its_message() {
        let (from, to) = pair();
        let (reader, writer) = io::pipe().unwrap();
        send(from.as_fd(), &Request::Measure, Some(writer.as_fd())).unwrap();
        drop(writer);
        let (request, file) = receive::<Request>(to.as_fd()).unwrap();
        assert_eq!(request, Request::Measure);
        rustix::io::write(file.unwrap(), b"x").unwrap();
        assert_eq!(io::read_to_string(reader).unwrap(), "x");
    }

    #[test]
    fn socket_that_closes_and_a_long_message_are_errors() {
        let (from, to) = pair();
        assert_eq!(receive::<Request>(to.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        rustix::net::sockopt::set_socket_send_buffer_size(&from, 4 << 20).unwrap();
        let long = "x".repeat(100_000);
        send(from.as_fd(), &long, None).unwrap();
        assert_eq!(receive::<Request>(to.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(from);
        assert_eq!(receive::<Request>(to.as_fd()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
