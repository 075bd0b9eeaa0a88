use std::{io, os::fd::AsRawFd as _, time::Duration};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::attrs::{attributes, str_of};

/// A refusal of the kernel, or the reason why no request reached it.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused a request.
    #[error("cannot {what}: {errno}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused {
        /// The request, e.g. `add class 1:a to weir0`.
        what: String,
        /// The kernel's error number.
        errno: nix::errno::Errno,
        /// The kernel's own words (extended ack), if it gave any.
        detail: String,
    },
    /// The socket failed.
    #[error("cannot talk to the kernel over netlink while trying to {what}")]
    Socket {
        /// The attempt.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// An answer that does not follow the protocol.
    #[error("cannot read the kernel's answer to `{what}`: {detail}")]
    Garbled {
        /// The request.
        what: String,
        /// The fault of the answer.
        detail: String,
    },
}

impl NetlinkError {
    /// The kernel's error number, if it was the kernel that said no.
    #[must_use]
    pub fn errno(&self) -> Option<nix::errno::Errno> {
        match self {
            NetlinkError::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether the thing to be changed or removed is not there (any more).
    #[must_use]
    pub fn is_gone(&self) -> bool {
        use nix::errno::Errno::{EINVAL, ENODEV, ENOENT, ENXIO};
        matches!(self.errno(), Some(ENOENT | ENODEV | ENXIO | EINVAL))
    }
}

/// One message to the kernel, and what it is for.
#[derive(Debug, Clone)]
pub struct Request {
    /// `RTM_*`.
    pub kind: u16,
    /// `NLM_F_*` beside request and ack.
    pub flags: u16,
    /// Fixed header and attributes.
    pub body: Vec<u8>,
    /// For errors: `add class 1:a to weir0`.
    pub what: String,
}

/// A message whose meaning is left to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Raw {
    kind: u16,
    body: Vec<u8>,
}

impl NetlinkSerializable for Raw {
    fn message_type(&self) -> u16 {
        self.kind
    }
    fn buffer_len(&self) -> usize {
        self.body.len()
    }
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for Raw {
    type Error = std::convert::Infallible;
    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Raw, Self::Error> {
        Ok(Raw { kind: header.message_type, body: payload.to_vec() })
    }
}

/// The objects of a dump.
#[derive(Debug, Default)]
struct Dump {
    objects: Vec<Raw>,
    /// A change between two of its pieces may have hidden an object.
    is_interrupted: bool,
}

impl Dump {
    /// Takes a message of the answer. The result at its end.
    fn take(&mut self, message: NetlinkMessage<Raw>, what: &str) -> Option<Result<(), NetlinkError>> {
        self.is_interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
        match message.payload {
            NetlinkPayload::InnerMessage(raw) => {
                self.objects.push(raw);
                None
            }
            // The kernel tells with its end that the dump failed on the way.
            NetlinkPayload::Done(done) => Some(refused(what, done.code.min(0), &[])),
            NetlinkPayload::Error(e) => Some(refused(what, e.raw_code(), &e.header)),
            _ => None,
        }
    }
}

/// A blocking rtnetlink socket. It works on the network namespace it was opened in.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Requests of a batch go out in pieces of this many bytes: below the kernel's default
/// send buffer (212,992), with room for its bookkeeping.
const BATCH_BYTES: usize = 32 * 1024;
/// Requests of a piece. The kernel answers all of them before the first answer is read. Each answer with the
/// kernel's words takes up to 2,304 bytes of the receive buffer, which has 425,984 by default.
const BATCH_REQUESTS: usize = 128;
/// How often a dump is asked for that changes interrupt.
const DUMPS: u32 = 8;
/// The kernel answers a request while it is sent, so an answer that is not there is lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

impl Netlink {
    /// Opens a socket in the current network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`] if the kernel has no rtnetlink or descriptors are used up.
    pub fn open() -> Result<Netlink, NetlinkError> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            socket.set_rx_buf_sz(1i32 << 20)?;
            bound_waiting(&socket)?;
            // Both only make answers better; old kernels may not know them.
            let _ = socket.set_ext_ack(true);
            let _ = socket.set_cap_ack(true);
            Ok(socket)
        };
        let socket =
            open().map_err(|source| NetlinkError::Socket { what: "open a netlink socket".into(), source })?;
        Ok(Netlink { socket, sequence: 0, buffer: Vec::with_capacity(BATCH_BYTES) })
    }

    /// The same, for requests that name another namespace: the kernel then heeds all attributes of a dump.
    ///
    /// # Errors
    /// As [`Netlink::open`]; kernels before 4.20 refuse.
    pub fn open_strict() -> Result<Netlink, NetlinkError> {
        let netlink = Netlink::open()?;
        let what = "have the kernel heed all attributes of a request".to_owned();
        netlink
            .socket
            .set_netlink_get_strict_chk(true)
            .map_err(|source| NetlinkError::Socket { what, source })?;
        Ok(netlink)
    }

    /// Sends one request and waits for its acknowledgement.
    ///
    /// # Errors
    /// [`NetlinkError`], with the kernel's words.
    pub fn call(&mut self, request: Request) -> Result<(), NetlinkError> {
        self.batch(std::slice::from_ref(&request)).pop().unwrap_or(Ok(()))
    }

    /// Sends many requests in few system calls; one result each, in order. A refused
    /// request does not keep later ones from being carried out.
    pub fn batch(&mut self, requests: &[Request]) -> Vec<Result<(), NetlinkError>> {
        let mut results = Vec::with_capacity(requests.len());
        let mut rest = requests;
        while !rest.is_empty() {
            self.buffer.clear();
            let first = self.sequence.wrapping_add(1);
            let mut count = 0;
            while count < rest.len().min(BATCH_REQUESTS)
                && (count == 0 || self.buffer.len() + rest[count].body.len() < BATCH_BYTES)
            {
                self.push(&rest[count], NLM_F_ACK);
                count += 1;
            }
            let (now, later) = rest.split_at(count);
            rest = later;
            match self.exchange(now, first) {
                Ok(mut answers) => results.append(&mut answers),
                Err(error) => {
                    // The socket is in an unknown state: whatever else was asked is not done.
                    results.push(Err(error));
                    while results.len() < requests.len() {
                        let what = requests[results.len()].what.clone();
                        let detail = "the socket failed on an earlier request of the batch".to_owned();
                        results.push(Err(NetlinkError::Garbled { what, detail }));
                    }
                    return results;
                }
            }
        }
        results
    }

    /// Asks for a dump and hands each object's message (type, body) to `each`. A dump that a change interrupts may
    /// lack objects, so it is asked for again.
    ///
    /// # Errors
    /// [`NetlinkError`] if the kernel refuses, or each of eight dumps was interrupted.
    pub fn dump(&mut self, request: Request, mut each: impl FnMut(u16, &[u8])) -> Result<(), NetlinkError> {
        for _ in 0..DUMPS {
            self.buffer.clear();
            self.push(&request, NLM_F_DUMP);
            let mut dump = Dump::default();
            self.ask(&request.what, |message| dump.take(message, &request.what))?;
            if !dump.is_interrupted {
                dump.objects.iter().for_each(|raw| each(raw.kind, &raw.body));
                return Ok(());
            }
        }
        let detail = format!("what it lists changed during each of {DUMPS} attempts");
        Err(NetlinkError::Garbled { what: request.what, detail })
    }

    /// The first objects of a dump, at most `most`. Returns their bodies, and whether there are more.
    ///
    /// The kernel makes a dump while it is read, so the rest of it costs nothing. A socket with such a rest takes no other
    /// request, and a new one of [`Netlink::open_strict`] replaces it.
    ///
    /// # Errors
    /// As [`Netlink::dump`].
    pub(crate) fn first_of_dump(
        &mut self,
        request: &Request,
        most: usize,
    ) -> Result<(Vec<Vec<u8>>, bool), NetlinkError> {
        for _ in 0..DUMPS {
            self.buffer.clear();
            self.push(request, NLM_F_DUMP);
            let mut dump = Dump::default();
            let is_whole = self.ask(&request.what, |message| {
                let end = dump.take(message, &request.what).map(|end| end.map(|()| true));
                end.or_else(|| (dump.objects.len() > most).then_some(Ok(false)))
            })?;
            if !is_whole {
                *self = Netlink::open_strict()?;
            }
            if !dump.is_interrupted {
                let bodies = dump.objects.into_iter().take(most).map(|raw| raw.body);
                return Ok((bodies.collect(), !is_whole));
            }
        }
        let detail = format!("what it lists changed during each of {DUMPS} attempts");
        Err(NetlinkError::Garbled { what: request.what.clone(), detail })
    }

    /// Sends one request whose answer is an object, not an acknowledgement.
    ///
    /// # Errors
    /// [`NetlinkError`], with the kernel's words.
    pub fn get(&mut self, request: &Request) -> Result<Vec<u8>, NetlinkError> {
        self.buffer.clear();
        self.push(request, 0);
        self.ask(&request.what, |message| match message.payload {
            NetlinkPayload::InnerMessage(raw) => Some(Ok(raw.body)),
            NetlinkPayload::Error(e) => {
                Some(refused(&request.what, e.raw_code(), &e.header).map(|()| Vec::new()))
            }
            _ => None,
        })
    }

    /// Sends what was pushed last and hands the answers to `take` until it has what it wants.
    fn ask<T>(
        &self,
        what: &str,
        mut take: impl FnMut(NetlinkMessage<Raw>) -> Option<Result<T, NetlinkError>>,
    ) -> Result<T, NetlinkError> {
        self.send(what)?;
        loop {
            let datagram = self.receive(what)?;
            for message in messages(&datagram, what) {
                let message = message?;
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                if let Some(result) = take(message) {
                    return result;
                }
            }
        }
    }

    fn push(&mut self, request: &Request, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.sequence_number = self.sequence;
        header.flags = NLM_F_REQUEST | request.flags | flags;
        let raw = Raw { kind: request.kind, body: request.body.clone() };
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(raw));
        message.finalize();
        let start = self.buffer.len();
        self.buffer.resize((start + message.buffer_len()).next_multiple_of(4), 0);
        message.serialize(&mut self.buffer[start..start + message.buffer_len()]);
    }

    fn send(&self, what: &str) -> Result<(), NetlinkError> {
        match self.socket.send(&self.buffer, 0) {
            Ok(n) if n == self.buffer.len() => Ok(()),
            Ok(n) => {
                let source = io::Error::other(format!("sent {n} of {} bytes", self.buffer.len()));
                Err(NetlinkError::Socket { what: what.to_owned(), source })
            }
            Err(source) => Err(NetlinkError::Socket { what: what.to_owned(), source }),
        }
    }

    fn receive(&self, what: &str) -> Result<Vec<u8>, NetlinkError> {
        loop {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => return Ok(datagram),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let source = io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("no answer came within {} s", ANSWER_WITHIN.as_secs()),
                    );
                    return Err(NetlinkError::Socket { what: what.to_owned(), source });
                }
                Err(source) => return Err(NetlinkError::Socket { what: what.to_owned(), source }),
            }
        }
    }

    fn exchange(
        &mut self,
        requests: &[Request],
        first: u32,
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        self.send(&requests[0].what)?;
        let mut answers: Vec<Option<Result<(), NetlinkError>>> = Vec::new();
        answers.resize_with(requests.len(), || None);
        let mut missing = requests.len();
        while missing > 0 {
            let datagram = self.receive(&requests[0].what)?;
            for message in messages(&datagram, &requests[0].what) {
                let message = message?;
                let index = message.header.sequence_number.wrapping_sub(first) as usize;
                let NetlinkPayload::Error(error) = message.payload else { continue };
                if let Some(slot) = answers.get_mut(index)
                    && slot.is_none()
                {
                    *slot = Some(refused(&requests[index].what, error.raw_code(), &error.header));
                    missing -= 1;
                }
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

/// Has each receive end after [`ANSWER_WITHIN`].
fn bound_waiting(socket: &Socket) -> io::Result<()> {
    use nix::sys::{
        socket::{setsockopt, sockopt},
        time::TimeVal,
    };
    // SAFETY: the socket owns the descriptor, and lives longer than the call.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    let time = TimeVal::new(ANSWER_WITHIN.as_secs().cast_signed(), 0);
    Ok(setsockopt(&fd, sockopt::ReceiveTimeout, &time)?)
}

/// Splits a datagram into messages.
fn messages<'a>(
    datagram: &'a [u8],
    what: &'a str,
) -> impl Iterator<Item = Result<NetlinkMessage<Raw>, NetlinkError>> + 'a {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.len() < 16 {
            return None;
        }
        let garbled = |detail: String| NetlinkError::Garbled { what: what.to_owned(), detail };
        match NetlinkMessage::<Raw>::deserialize(rest) {
            Ok(message) => {
                let len = (message.header.length as usize).next_multiple_of(4).max(16);
                rest = rest.get(len..).unwrap_or(&[]);
                Some(Ok(message))
            }
            Err(error) => {
                rest = &[];
                Some(Err(garbled(error.to_string())))
            }
        }
    })
}

/// An error message's code and the bytes behind it (the request's header, then attributes
/// if extended ack is on) as a result; code 0 is an acknowledgement.
fn refused(what: &str, code: i32, rest: &[u8]) -> Result<(), NetlinkError> {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    if code == 0 {
        return Ok(());
    }
    let detail = rest
        .get(16..)
        .and_then(|tail| attributes(tail).find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG))
        .map(|(_, text)| str_of(text))
        .unwrap_or_default();
    Err(NetlinkError::Refused {
        what: what.to_owned(),
        errno: nix::errno::Errno::from_raw(code.wrapping_neg()),
        detail,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(flags: u16, payload: NetlinkPayload<Raw>) -> NetlinkMessage<Raw> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        NetlinkMessage::new(header, payload)
    }

    fn done(code: i32) -> NetlinkMessage<Raw> {
        let mut done = netlink_packet_core::DoneMessage::default();
        done.code = code;
        message(0, NetlinkPayload::Done(done))
    }

    #[test]
    fn dump_that_was_interrupted_or_failed_is_not_taken_as_whole() {
        let object = || NetlinkPayload::InnerMessage(Raw { kind: 16, body: vec![1] });
        let mut whole = Dump::default();
        assert!(whole.take(message(0, object()), "list").is_none());
        assert!(whole.take(done(0), "list").unwrap().is_ok());
        assert_eq!((whole.objects.len(), whole.is_interrupted), (1, false));

        let mut interrupted = Dump::default();
        assert!(interrupted.take(message(NLM_F_DUMP_INTR, object()), "list").is_none());
        assert!(interrupted.take(message(0, object()), "list").is_none());
        assert!(interrupted.is_interrupted);

        let failed = Dump::default().take(done(-libc::ENOMEM), "list").unwrap().unwrap_err();
        assert_eq!(failed.errno(), Some(nix::errno::Errno::ENOMEM));
    }

    /// More requests than there is room for answers in the receive buffer that older kernels give at most.
    #[test]
    fn each_request_of_a_long_batch_has_its_answer() {
        let Ok(mut netlink) = Netlink::open() else { panic!("this kernel has rtnetlink") };
        netlink.socket.set_rx_buf_sz(212_992).unwrap();
        // No device has this index. A user without rights has another refusal.
        let mut body = vec![0; 20];
        body[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
        let request = Request { kind: 41, flags: 0, body, what: "delete a class".into() };
        let results = netlink.batch(&vec![request; 5_000]);
        assert_eq!(results.len(), 5_000);
        for result in results {
            assert!(matches!(result, Err(NetlinkError::Refused { .. })), "{result:?}");
        }
    }
}
