//! A frame as a tap gives and takes it: how long it is on the wire, and a super-packet cut into
//! pieces. Pure.
//!
//! Layout: `virtio_net_hdr` (10 bytes, linux/virtio_net.h), Ethernet with the ticket as an outer tag,
//! IP, TCP or UDP.

/// Bytes of `virtio_net_hdr`.
pub(super) const VNET: usize = 10;
/// The ticket: a VLAN tag behind the two addresses. It is not on the wire.
const TICKET: usize = 4;
/// The largest frame: 64 KiB of IP and what is before it.
pub(super) const LARGEST: usize = VNET + 14 + TICKET + 2 * 4 + 65_536;
/// Headers are never longer: options of IPv4 and TCP, some extensions of IPv6.
const HEADERS: usize = 512;

const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
pub(super) const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// A frame, and what of it has left.
pub(super) struct Packet {
    bytes: Vec<u8>,
    len: usize,
    gso: Option<Super>,
    /// Bytes of payload that have left.
    sent: usize,
    headers: [u8; HEADERS],
}

/// Where what is in a super-packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Super {
    pub(super) ip: usize,
    pub(super) is_v6: bool,
    pub(super) transport: usize,
    pub(super) is_tcp: bool,
    pub(super) payload: usize,
    /// Bytes of payload of a segment.
    pub(super) segment: usize,
}

/// A part of a frame that is to be written by itself, as these two one after the other.
pub(super) struct Piece<'a> {
    pub(super) headers: &'a [u8],
    pub(super) payload: &'a [u8],
    /// Packets that it is on the wire.
    pub(super) segments: u32,
    /// Nothing is left of the frame.
    pub(super) is_last: bool,
}

impl Packet {
    pub(super) fn new() -> Packet {
        Packet { bytes: vec![0; LARGEST], len: 0, gso: None, sent: 0, headers: [0; HEADERS] }
    }

    /// Takes in what `read` puts into the memory that it is given, and tells the length of.
    pub(super) fn fill<E>(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<(), E> {
        self.len = read(&mut self.bytes)?.min(LARGEST);
        (self.sent, self.gso) = (0, find(&self.bytes[..self.len]));
        Ok(())
    }

    /// Bytes of the frame without the ticket, as one packet.
    pub(super) fn len(&self) -> usize {
        self.len.saturating_sub(VNET + TICKET)
    }

    /// Bytes on the wire of the next piece of at most this number of segments.
    pub(super) fn wire(&self, segments: usize) -> u32 {
        let Some(gso) = &self.gso else { return u32::try_from(self.len().max(1)).unwrap_or(u32::MAX) };
        let left = self.len - gso.payload - self.sent;
        let payload = left.min(segments.max(1) * gso.segment);
        let headers = payload.div_ceil(gso.segment) * (gso.payload - VNET - TICKET);
        u32::try_from(payload + headers).unwrap_or(u32::MAX)
    }

    /// Bytes on the wire of all that is left.
    pub(super) fn left(&self) -> u32 {
        self.wire(LARGEST)
    }

    /// The frame, if it is one packet on the wire that has not left.
    pub(super) fn single(&self) -> Option<&[u8]> {
        (self.gso.is_none() && self.sent == 0).then(|| &self.bytes[..self.len])
    }

    /// Cuts off the next piece of at most this number of segments.
    pub(super) fn cut(&mut self, segments: usize) -> Piece<'_> {
        let Some(gso) = self.gso else {
            self.sent = self.len;
            return Piece { headers: &self.bytes[..self.len], payload: &[], segments: 1, is_last: true };
        };
        let all = self.len - gso.payload;
        let from = self.sent;
        let len = (all - from).min(segments.max(1) * gso.segment);
        let count = len.div_ceil(gso.segment);
        self.sent = from + len;
        let is_last = self.sent == all;
        let payload = &self.bytes[gso.payload + from..gso.payload + from + len];
        let segments = u32::try_from(count).unwrap_or(u32::MAX);
        if len == all {
            return Piece { headers: &self.bytes[..gso.payload], payload, segments, is_last };
        }
        let headers = &mut self.headers[..gso.payload];
        headers.copy_from_slice(&self.bytes[..gso.payload]);
        rewrite(headers, &gso, Part { from, len, of: all });
        Piece { headers, payload, segments, is_last }
    }
}

/// Bytes of a super-packet's payload.
#[derive(Debug, Clone, Copy)]
struct Part {
    from: usize,
    len: usize,
    of: usize,
}

pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

pub(super) fn put_half(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes());
}

/// The parts of a super-packet; none if it is no such one, or not one that can be cut.
fn find(frame: &[u8]) -> Option<Super> {
    let kind = frame.get(1)? & !GSO_ECN;
    let segment = usize::from(u16::from_ne_bytes([*frame.get(4)?, *frame.get(5)?]));
    if segment == 0 {
        return None;
    }
    let (ip, is_v6, transport, protocol) = layers(frame)?;
    let (is_tcp, header) = match (kind, protocol) {
        (GSO_TCPV4 | GSO_TCPV6, TCP) => (true, usize::from(frame.get(transport + 12)? >> 4) * 4),
        (GSO_UDP_L4, UDP) => (false, 8),
        _ => return None,
    };
    let payload = transport + header;
    let least = if is_tcp { 20 } else { 8 };
    let fits = header >= least && payload <= HEADERS && payload < frame.len();
    fits.then_some(Super { ip, is_v6, transport, is_tcp, payload, segment })
}

/// Where the network's and the transport's headers are, whether the former is IPv6, and what the latter is.
pub(super) fn layers(frame: &[u8]) -> Option<(usize, bool, usize, u8)> {
    let mut ip = VNET + 12;
    while matches!(half(frame, ip), 0x8100 | 0x88a8) {
        ip += 4;
    }
    let is_v6 = match half(frame, ip) {
        0x0800 => false,
        0x86dd => true,
        _ => return None,
    };
    ip += 2;
    let (transport, protocol) = if is_v6 { after_v6(frame, ip)? } else { after_v4(frame, ip)? };
    Some((ip, is_v6, transport, protocol))
}

fn after_v4(frame: &[u8], ip: usize) -> Option<(usize, u8)> {
    let length = usize::from(frame.get(ip)? & 0x0f) * 4;
    (length >= 20).then_some((ip + length, *frame.get(ip + 9)?))
}

fn after_v6(frame: &[u8], ip: usize) -> Option<(usize, u8)> {
    let (mut at, mut next) = (ip + 40, *frame.get(ip + 6)?);
    // Hop-by-hop, routing and destination options: length in units of 8 bytes, less one.
    while matches!(next, 0 | 43 | 60) {
        next = *frame.get(at)?;
        at += (usize::from(*frame.get(at + 1)?) + 1) * 8;
    }
    Some((at, next))
}

/// Makes a super-packet's headers those of a part of it, as the kernel does when it segments one
/// (`tcp_gso_segment`, `inet_gso_segment`).
fn rewrite(headers: &mut [u8], gso: &Super, part: Part) {
    let &Super { ip, is_v6, transport, is_tcp, segment, .. } = gso;
    let before = part.from / segment;
    if part.len <= segment {
        (headers[1], headers[4], headers[5]) = (0, 0, 0);
    }
    if !is_v6 {
        let id = usize::from(half(headers, ip + 4).wrapping_add(before as u16));
        put_half(headers, ip + 4, id);
    }
    resize(headers, gso, part.of, part.len);
    if is_tcp {
        let sequence = &mut headers[transport + 4..transport + 8];
        let first = u32::from_be_bytes(sequence.try_into().unwrap_or_default());
        sequence.copy_from_slice(&first.wrapping_add(part.from as u32).to_be_bytes());
        let flags = &mut headers[transport + 13];
        if part.from + part.len < part.of {
            *flags &= !FIN_PSH;
        }
        if part.from > 0 {
            *flags &= !CWR;
            headers[1] &= !GSO_ECN;
        }
    }
}

/// Makes headers of `from` bytes of payload those of `to`: lengths, and the checksums they are in.
pub(super) fn resize(headers: &mut [u8], gso: &Super, from: usize, to: usize) {
    let &Super { ip, is_v6, transport, is_tcp, payload, .. } = gso;
    if is_v6 {
        put_half(headers, ip + 4, payload - ip - 40 + to);
    } else {
        put_half(headers, ip + 2, payload - ip + to);
        put_half(headers, ip + 10, 0);
        let sum = (ip..transport).step_by(2).fold(0, |sum, at| sum + u32::from(half(headers, at)));
        put_half(headers, ip + 10, usize::from(!fold(sum)));
    }
    // The unfinished checksum is the sum of the pseudo-header, in which the length is.
    let length = |of: usize| (payload - transport + of) as u16;
    let at = transport + if is_tcp { 16 } else { 6 };
    let sum = u32::from(half(headers, at)) + u32::from(!length(from)) + u32::from(length(to));
    put_half(headers, at, usize::from(fold(sum)));
    if !is_tcp {
        put_half(headers, transport + 4, 8 + to);
    }
}

/// A sum in one's complement.
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The parts of a frame.
    #[derive(Debug, Clone, Copy)]
    pub(in super::super) struct Make {
        pub(in super::super) is_v6: bool,
        pub(in super::super) is_tcp: bool,
        pub(in super::super) segment: usize,
        /// Where its payload begins in that of the super-packet, and how much of it there is.
        pub(in super::super) from: usize,
        pub(in super::super) len: usize,
        pub(in super::super) flags: u8,
    }

    /// The frame as a sender's kernel makes it, with the sum of the pseudo-header for a checksum.
    pub(in super::super) fn frame(make: Make) -> Vec<u8> {
        let Make { is_v6, is_tcp, segment, from, len, flags } = make;
        let (protocol, header) = if is_tcp { (TCP, 32) } else { (UDP, 8) };
        let (kind, size) = match (len > segment, is_tcp, is_v6) {
            (false, ..) => (0, 0),
            (true, true, false) => (GSO_TCPV4 | if flags & CWR == 0 { 0 } else { GSO_ECN }, segment),
            (true, true, true) => (GSO_TCPV6 | if flags & CWR == 0 { 0 } else { GSO_ECN }, segment),
            (true, false, _) => (GSO_UDP_L4, segment),
        };
        let mut out = vec![1, kind, 70, 0];
        out.extend_from_slice(&(size as u16).to_ne_bytes());
        // Where the checksum begins to count, and where from there it is.
        let (start, at) = (18 + if is_v6 { 40 } else { 20 }, if is_tcp { 16 } else { 6 });
        out.extend([start as u16, at].map(u16::to_ne_bytes).as_flattened());
        out.extend_from_slice(&[2; 12]);
        out.extend_from_slice(&[0x88, 0xa8, 0x12, 0x34]);
        let length = header + len;
        let (addresses, ip) = if is_v6 {
            let mut ip = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            put_half(&mut ip, 4, length);
            (vec![9; 32], ip)
        } else {
            let id = 0xfffe_u16.wrapping_add((from / segment) as u16);
            let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            put_half(&mut ip, 2, 20 + length);
            put_half(&mut ip, 4, usize::from(id));
            (vec![9; 8], ip)
        };
        out.extend_from_slice(if is_v6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
        let at = out.len();
        out.extend_from_slice(&ip);
        out.extend_from_slice(&addresses);
        if !is_v6 {
            let sum = sum(&out[at..]);
            put_half(&mut out, at + 10, usize::from(!sum));
        }
        let mut pseudo = addresses;
        pseudo.extend_from_slice(&[0, protocol]);
        pseudo.extend_from_slice(&(length as u16).to_be_bytes());
        let at = out.len();
        out.resize(at + header, 0);
        if is_tcp {
            let sequence = 0xffff_ff00_u32.wrapping_add(from as u32);
            out[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
            (out[at + 12], out[at + 13]) = (8 << 4, flags);
        } else {
            put_half(&mut out, at + 4, length);
        }
        put_half(&mut out, at + if is_tcp { 16 } else { 6 }, usize::from(sum(&pseudo)));
        out.extend((from..from + len).map(|i| i as u8));
        out
    }

    fn sum(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0, |sum, pair| {
            let word = u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            u32::from(fold(sum + word))
        }) as u16
    }

    fn packet(bytes: &[u8]) -> Packet {
        let mut packet = Packet::new();
        let read = |memory: &mut [u8]| {
            memory[..bytes.len()].copy_from_slice(bytes);
            Ok::<_, ()>(bytes.len())
        };
        packet.fill(read).unwrap();
        packet
    }

    proptest! {
        #[test]
        fn pieces_of_a_super_packet_are_its_senders_own_segments(
            is_v6: bool,
            is_tcp: bool,
            segment in 500..1449usize,
            all in 1500..60_000usize,
            segments in 1..50usize,
            cwr: bool,
        ) {
            const ACK: u8 = 0x10;
            let first = if cwr { CWR } else { 0 };
            let make = Make { is_v6, is_tcp, segment, from: 0, len: all, flags: ACK | FIN_PSH | first };
            let mut whole = packet(&frame(make));
            let (mut from, mut wire) = (0, 0);
            let total = whole.left();
            while from < all {
                let len = (all - from).min(segments * segment);
                let is_last = from + len == all;
                let flags = ACK | if from == 0 { first } else { 0 } | if is_last { FIN_PSH } else { 0 };
                let expected = frame(Make { from, len, flags, ..make });
                let on_the_wire = whole.wire(segments);
                let piece = whole.cut(segments);
                prop_assert_eq!([piece.headers, piece.payload].concat(), expected.clone());
                prop_assert_eq!((piece.is_last, piece.segments as usize), (is_last, len.div_ceil(segment)));
                let headers = expected.len() - len - VNET - TICKET;
                prop_assert_eq!(on_the_wire as usize, len + len.div_ceil(segment) * headers);
                (from, wire) = (from + len, wire + on_the_wire);
            }
            prop_assert_eq!(wire, total, "no byte is charged twice or not at all");
        }

        #[test]
        fn any_bytes_are_a_frame_that_leaves_whole_or_in_pieces(
            mut bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0..6u8, v6: bool,
        ) {
            // Some that look like super-packets.
            if bytes.len() > 40 && kind > 0 {
                (bytes[1], bytes[4], bytes[5]) = (kind, 40, 0);
                let (a, b) = if v6 { (0x86, 0xdd) } else { (0x08, 0x00) };
                (bytes[22], bytes[23], bytes[26], bytes[27]) = (0x88, 0xa8, a, b);
                // With no options, of a protocol that fits: headers of any length behind that.
                (bytes[28], bytes[if v6 { 34 } else { 37 }]) = (0x45, if kind == GSO_UDP_L4 { UDP } else { TCP });
            }
            let mut packet = packet(&bytes);
            let mut pieces = 0;
            while { prop_assert!(packet.wire(1) > 0); !packet.cut(1).is_last } {
                pieces += 1;
                prop_assert!(pieces < 400);
            }
        }
    }

    #[test]
    fn a_frame_that_is_no_super_packet_leaves_as_it_came() {
        let make = Make { is_v6: false, is_tcp: false, segment: 1400, from: 0, len: 1000, flags: 0 };
        let bytes = frame(make);
        let mut packet = packet(&bytes);
        assert_eq!(packet.wire(1) as usize, 14 + 20 + 8 + 1000, "as tc counts, without the ticket");
        let piece = packet.cut(1);
        assert_eq!((piece.headers, piece.payload, piece.is_last), (&bytes[..], &[][..], true));
    }
}
