//! Datagrams that leave together, coupled to a super-packet: what is the kernel's way for each it then is for
//! all. Pure.
//!
//! As the kernel's own `rx-udp-gro-forwarding` does, and what it makes of them where they have to be single
//! packets again (`__udp_gso_segment`) is what they were.

use super::packet::{GSO_UDP_L4, LARGEST, Super, UDP, VNET, half, layers, resize};

/// Datagrams of a train at the most, as of the kernel's.
const LONGEST: u32 = 64;
/// Bytes of payload at the most, so that the length fits in either IP.
const HEAVIEST: usize = 65_000;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const UNFINISHED: u8 = 1;
/// UDP's header, and where the checksum is in it.
const HEADER: usize = 8;
const CHECKSUM: u16 = 6;
/// IPv4's flag that no router may make fragments; then nobody needs the identification.
const WHOLE: u16 = 0x4000;

/// Datagrams of one flow that follow each other.
pub(super) struct Train {
    bytes: Vec<u8>,
    /// Of the first one; `segment` is the length of its payload.
    head: Option<Super>,
    lane: usize,
    count: u32,
    /// The last one was shorter, so that none may follow.
    is_closed: bool,
}

/// What is to be written at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Departure<'a> {
    pub(super) frame: &'a [u8],
    pub(super) lane: usize,
    /// Packets that it is on the wire.
    pub(super) segments: u32,
}

impl Train {
    pub(super) fn new() -> Train {
        Train { bytes: Vec::with_capacity(LARGEST), head: None, lane: 0, count: 0, is_closed: false }
    }

    /// Takes a lane's frame with it, if it may follow what is there.
    pub(super) fn couple(&mut self, lane: usize, frame: &[u8]) -> bool {
        let Some(this) = datagram(frame) else { return false };
        let Some(head) = &self.head else {
            self.bytes.extend_from_slice(frame);
            (self.head, self.lane, self.count) = (Some(this), lane, 1);
            return true;
        };
        let fits = self.count < LONGEST && self.bytes.len() + this.segment <= head.payload + HEAVIEST;
        if self.is_closed
            || lane != self.lane
            || this.segment > head.segment
            || !fits
            || !follows(&self.bytes, head, self.count, frame, &this)
        {
            return false;
        }
        self.bytes.extend_from_slice(&frame[this.payload..]);
        self.count += 1;
        self.is_closed = this.segment < head.segment;
        true
    }

    /// What is there to leave; then nothing is.
    pub(super) fn depart<T>(&mut self, write: impl FnOnce(Departure<'_>) -> T) -> Option<T> {
        let head = self.head.take()?;
        if self.count > 1 {
            let payload = self.bytes.len() - head.payload;
            self.bytes[1] = GSO_UDP_L4;
            self.bytes[2..4].copy_from_slice(&((head.payload - VNET) as u16).to_ne_bytes());
            self.bytes[4..6].copy_from_slice(&(head.segment as u16).to_ne_bytes());
            resize(&mut self.bytes, &head, head.segment, payload);
        }
        let result = write(Departure { frame: &self.bytes, lane: self.lane, segments: self.count });
        self.bytes.clear();
        (self.count, self.is_closed) = (0, false);
        Some(result)
    }
}

/// A datagram that may be coupled: no fragment, nothing behind it, no options of IP, a checksum that is the
/// kernel's to finish (one that is finished may be wrong, and must stay so).
fn datagram(frame: &[u8]) -> Option<Super> {
    let (ip, is_v6, transport, protocol) = layers(frame)?;
    let payload = transport + HEADER;
    let segment = frame.len().checked_sub(payload).filter(|len| *len > 0)?;
    let native = |at: usize| u16::from_ne_bytes([frame[at], frame[at + 1]]);
    let is_plain = protocol == UDP
        && transport - ip == if is_v6 { 40 } else { 20 }
        && (frame[0], frame[1]) == (UNFINISHED, 0)
        && (usize::from(native(6)), native(8)) == (transport - VNET, CHECKSUM)
        && usize::from(half(frame, transport + 4)) == HEADER + segment;
    let is_whole = if is_v6 {
        usize::from(half(frame, ip + 4)) == HEADER + segment
    } else {
        half(frame, ip + 6) & !WHOLE == 0 && usize::from(half(frame, ip + 2)) == 20 + HEADER + segment
    };
    (is_plain && is_whole).then_some(Super { ip, is_v6, transport, is_tcp: false, payload, segment })
}

/// Whether nothing but what tells its length and place makes a datagram's headers another than those of the
/// first, `before` datagrams ago.
fn follows(first: &[u8], head: &Super, before: u32, frame: &[u8], this: &Super) -> bool {
    let (ip, udp) = (head.ip, head.transport);
    if (this.ip, this.is_v6, this.transport) != (ip, head.is_v6, udp) {
        return false;
    }
    let same = |from: usize, to: usize| first[from..to] == frame[from..to];
    // Addresses of either layer, the ticket, ports.
    if !(same(VNET, ip) && same(udp, udp + 4)) {
        return false;
    }
    if head.is_v6 {
        return same(ip, ip + 4) && same(ip + 6, udp);
    }
    let in_place = half(frame, ip + 4) == half(first, ip + 4).wrapping_add(before as u16);
    same(ip, ip + 2)
        && same(ip + 6, ip + 10)
        && same(ip + 12, udp)
        && (in_place || half(frame, ip + 6) == WHOLE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::packet::{
            Packet,
            tests::{Make, frame},
        },
        *,
    };

    const LANE: usize = 7;

    /// A datagram whose payload begins with this byte and counts on.
    fn make(is_v6: bool, segment: usize, from: usize, len: usize) -> Vec<u8> {
        frame(Make { is_v6, is_tcp: false, segment, from, len, flags: 0 })
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

    /// Sends frames as the pump does: what is written, and as how many packets.
    fn pass(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, u32)> {
        let (mut train, mut left) = (Train::new(), Vec::new());
        let depart = |train: &mut Train, left: &mut Vec<_>| {
            train.depart(|d| left.push((d.frame.to_vec(), d.segments)));
        };
        for frame in frames {
            if !train.couple(LANE, frame) {
                depart(&mut train, &mut left);
                if !train.couple(LANE, frame) {
                    left.push((frame.clone(), 1));
                }
            }
        }
        depart(&mut train, &mut left);
        left
    }

    proptest! {
        #[test]
        fn a_train_is_the_super_packet_that_its_sender_would_have_sent_and_comes_apart_into_the_same_datagrams(
            is_v6: bool, segment in 1..1449usize, count in 2..64usize, last in 1..1449usize,
        ) {
            let count = count.min(HEAVIEST / segment);
            let all = (count - 1) * segment + last.min(segment);
            let frames: Vec<Vec<u8>> = (0..all)
                .step_by(segment)
                .map(|from| make(is_v6, segment, from, segment.min(all - from)))
                .collect();
            let left = pass(&frames);
            prop_assert_eq!(left.len(), 1);
            prop_assert_eq!(left[0].1 as usize, count);
            let mut whole = packet(&left[0].0);
            for expected in &frames {
                let piece = whole.cut(1);
                let piece = [piece.headers, piece.payload].concat();
                // The length of the headers tells how a super-packet may be laid out.
                prop_assert_eq!(&piece[VNET..], &expected[VNET..]);
                prop_assert_eq!(piece[0], expected[0]);
            }
        }

        #[test]
        fn any_bytes_leave_in_their_order_and_as_many_as_came(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..9),
            at in 0..60usize, byte: u8,
        ) {
            let mut frames = frames;
            // Some that are nearly datagrams that follow each other.
            frames.extend([0, 40, 80].map(|from| make(false, 40, from, 40)));
            frames.extend([0, 40, 80].map(|from| {
                let mut one = make(true, 40, from, 40);
                one[at] = byte;
                one
            }));
            let left = pass(&frames);
            prop_assert_eq!(left.iter().map(|(_, segments)| *segments as usize).sum::<usize>(), frames.len());
            let mut frames = frames.into_iter();
            for (frame, segments) in left {
                let first = frames.next().expect("there is one");
                let mut whole = packet(&frame);
                if segments == 1 {
                    prop_assert_eq!(frame, first);
                } else {
                    prop_assert_eq!(&whole.cut(1).payload, &&first[first.len() - 40..]);
                    for _ in 1..segments {
                        let next = frames.next().expect("there is one");
                        let piece = whole.cut(1);
                        prop_assert_eq!(&[piece.headers, piece.payload].concat()[VNET..], &next[VNET..]);
                    }
                }
            }
        }
    }

    /// How many packets these are written as.
    fn written(frames: &[Vec<u8>]) -> usize {
        pass(frames).len()
    }

    #[test]
    fn what_differs_by_more_than_its_place_leaves_by_itself() {
        for is_v6 in [false, true] {
            let first = make(is_v6, 18, 0, 18);
            let second = make(is_v6, 18, 18, 18);
            assert_eq!(written(&[first.clone(), second.clone()]), 1);
            let changed = |at: usize| {
                let mut other = second.clone();
                other[at] ^= 1;
                other
            };
            let udp = VNET + 18 + if is_v6 { 40 } else { 20 };
            // The ticket, an address, the class, the hops, a port, a length that is wrong.
            let class = VNET + 18 + 1;
            let hops = VNET + 18 + if is_v6 { 7 } else { 8 };
            for at in [VNET, VNET + 15, class, hops, udp - 1, udp, udp + 3, udp + 5, 0, 1] {
                assert_eq!(written(&[first.clone(), changed(at)]), 2, "byte {at}, v6 {is_v6}");
            }
        }
        let small = |from| make(false, 18, from, 18);
        assert_eq!(written(&[small(0), make(false, 18, 18, 17), small(36)]), 2, "none follows a shorter one");
        assert_eq!(written(&[small(0), make(false, 19, 19, 19)]), 2, "a longer one begins another");
        assert_eq!(written(&[small(0), make(false, 18, 18, 0)]), 2, "nothing is in it");
    }

    #[test]
    fn who_may_be_made_fragments_of_keeps_the_identification() {
        let may_be_cut = |from| {
            let mut one = make(false, 18, from, 18);
            let flags = VNET + 18 + 6;
            one[flags] = 0;
            one
        };
        assert_eq!(written(&[may_be_cut(0), may_be_cut(18)]), 1);
        assert_eq!(written(&[may_be_cut(0), may_be_cut(36)]), 2, "one of another flow was between them");
        let whole = |from| make(false, 18, from, 18);
        assert_eq!(written(&[whole(0), whole(36)]), 1, "nobody looks at it");
    }

    #[test]
    fn a_train_is_of_one_lane_and_has_an_end() {
        let mut train = Train::new();
        let one = make(false, 18, 0, 18);
        assert!(train.couple(0, &one));
        assert!(!train.couple(1, &one), "whose it is counted for");
        for _ in 1..LONGEST {
            assert!(train.couple(0, &one));
        }
        assert!(!train.couple(0, &one));
        assert_eq!(train.depart(|d| (d.lane, d.segments)), Some((0, LONGEST)));
        assert_eq!(train.depart(|d| d.segments), None);
    }
}
