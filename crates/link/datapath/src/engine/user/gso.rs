//! Datagrams that leave together, coupled to a super-packet: what is the kernel's way for each it then is for
//! all. Pure.
//!
//! As the kernel's own `rx-udp-gro-forwarding` does, and what it makes of them where they have to be single
//! packets again (`__udp_gso_segment`) is what they were.

use super::packet::{GSO_UDP_L4, LARGEST, Super, UDP, VNET, half, layers, resize};

/// The most datagrams of a batch, as of the kernel's.
const LONGEST: u32 = 64;
/// The most bytes of payload, so that the length fits in either IP.
const HEAVIEST: usize = 65_000;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const UNFINISHED: u8 = 1;
/// UDP's header, and where the checksum is in it.
const HEADER: usize = 8;
const CHECKSUM: u16 = 6;
/// IPv4's flag that no router may make fragments; the identification is then unused.
const WHOLE: u16 = 0x4000;

/// Trains of several flows, so that datagrams of alternating flows need not go alone. A packet that
/// cannot be coupled waits until all have left: no packet overtakes another of its flow.
pub(super) struct GsoBatcher {
    /// The oldest first.
    trains: Vec<Batch>,
    spare: Vec<Batch>,
    /// Datagrams that were taken since all have left.
    taken: u32,
}

impl GsoBatcher {
    /// Flows whose batches wait for more at the same time.
    const TRACKS: usize = 64;
    /// Then all leave, whatever else there is: how long the first one may have waited is as long as it takes
    /// to read these.
    const MAX_WAITING: u32 = 256;

    pub(super) fn new() -> GsoBatcher {
        GsoBatcher { trains: Vec::with_capacity(GsoBatcher::TRACKS), spare: Vec::new(), taken: 0 }
    }

    /// At this number of waiting datagrams all leave.
    pub(super) fn is_full(&self) -> bool {
        self.taken >= GsoBatcher::MAX_WAITING
    }

    /// Takes a tap queue's frame with a batch; `write` has those leave that cannot wait. False: the
    /// packet fits no batch, and all have left.
    pub(super) fn push(&mut self, queue: usize, frame: &[u8], mut write: impl FnMut(Departure<'_>)) -> bool {
        let Some(this) = datagram(frame) else {
            self.clear(write);
            return false;
        };
        self.taken += 1;
        let known = self.trains.iter().position(|batch| batch.is_of(queue, frame, &this));
        if let Some(batch) = known
            && self.trains[batch].push(frame, &this)
        {
            return true;
        }
        let full = (self.trains.len() == GsoBatcher::TRACKS).then_some(0);
        if let Some(one) = known.or(full) {
            let mut batch = self.trains.remove(one);
            write(batch.departure());
            self.spare.push(batch);
        }
        let mut batch = self.spare.pop().unwrap_or_else(|| Batch::with(this));
        batch.begin(queue, frame, this);
        self.trains.push(batch);
        true
    }

    /// Has all of them leave.
    pub(super) fn clear(&mut self, mut write: impl FnMut(Departure<'_>)) {
        self.taken = 0;
        for mut batch in self.trains.drain(..) {
            write(batch.departure());
            self.spare.push(batch);
        }
    }
}

/// Datagrams of one flow that follow each other.
struct Batch {
    bytes: Vec<u8>,
    /// Of the first one; `segment` is the length of its payload.
    head: Super,
    /// By which most are told apart.
    ports: [u8; 4],
    queue: usize,
    count: u32,
    /// The last one was shorter, so that none may follow.
    is_closed: bool,
}

/// The packets to write at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Departure<'a> {
    pub(super) frame: &'a [u8],
    pub(super) queue: usize,
    /// Packets that it is on the wire.
    pub(super) segments: u32,
}

impl Batch {
    fn with(head: Super) -> Batch {
        Batch {
            bytes: Vec::with_capacity(LARGEST),
            head,
            ports: [0; 4],
            queue: 0,
            count: 0,
            is_closed: false,
        }
    }

    fn begin(&mut self, queue: usize, frame: &[u8], head: Super) {
        self.bytes.clear();
        self.bytes.extend_from_slice(frame);
        self.ports = ports(frame, &head);
        (self.head, self.queue, self.count, self.is_closed) = (head, queue, 1, false);
    }

    /// Whether a datagram is of the same flow: tap queue, ticket, addresses, ports.
    fn is_of(&self, queue: usize, frame: &[u8], this: &Super) -> bool {
        let Super { ip, is_v6, transport: udp, .. } = self.head;
        let addresses = if is_v6 { 8 } else { 12 };
        let same = |from: usize, to: usize| self.bytes[from..to] == frame[from..to];
        queue == self.queue
            && ports(frame, this) == self.ports
            && (this.ip, this.is_v6, this.transport) == (ip, is_v6, udp)
            && same(VNET, ip)
            && same(ip + addresses, udp)
    }

    /// Takes a datagram of this flow with it, if it may follow what is there: if nothing but what tells its
    /// length and place makes its headers another than those of the first.
    fn push(&mut self, frame: &[u8], this: &Super) -> bool {
        let Super { ip, is_v6, payload, segment, .. } = self.head;
        let same = |from: usize, to: usize| self.bytes[from..to] == frame[from..to];
        let follows = if is_v6 {
            same(ip, ip + 4) && same(ip + 6, ip + 8)
        } else {
            let place = half(&self.bytes, ip + 4).wrapping_add(self.count as u16);
            let is_whole = half(frame, ip + 6) == WHOLE;
            same(ip, ip + 2) && same(ip + 6, ip + 10) && (is_whole || half(frame, ip + 4) == place)
        };
        let fits = self.count < LONGEST && self.bytes.len() + this.segment <= payload + HEAVIEST;
        if self.is_closed || this.segment > segment || !follows || !fits {
            return false;
        }
        self.bytes.extend_from_slice(&frame[this.payload..]);
        self.count += 1;
        self.is_closed = this.segment < segment;
        true
    }

    /// The packets to write now.
    fn departure(&mut self) -> Departure<'_> {
        let Super { payload, segment, .. } = self.head;
        if self.count > 1 {
            let all = self.bytes.len() - payload;
            self.bytes[1] = GSO_UDP_L4;
            self.bytes[2..4].copy_from_slice(&((payload - VNET) as u16).to_ne_bytes());
            self.bytes[4..6].copy_from_slice(&(segment as u16).to_ne_bytes());
            resize(&mut self.bytes, &self.head, segment, all);
        }
        Departure { frame: &self.bytes, queue: self.queue, segments: self.count }
    }
}

fn ports(frame: &[u8], of: &Super) -> [u8; 4] {
    std::array::from_fn(|i| frame[of.transport + i])
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

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

    /// Sends frames as the forwarder does: what is written, and as how many packets.
    fn pass(frames: &[Vec<u8>]) -> Vec<(Vec<u8>, u32)> {
        let (mut batcher, left) = (GsoBatcher::new(), RefCell::new(Vec::new()));
        let write = |d: Departure<'_>| left.borrow_mut().push((d.frame.to_vec(), d.segments));
        for frame in frames {
            if !batcher.push(LANE, frame, write) {
                left.borrow_mut().push((frame.clone(), 1));
            }
        }
        batcher.clear(write);
        left.into_inner()
    }

    proptest! {
        #[test]
        fn train_is_the_senders_super_packet_and_splits_into_its_datagrams(
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

    /// The datagram of a flow that begins at this byte of its payload.
    fn of(flow: u8, from: usize) -> Vec<u8> {
        let mut one = make(false, 18, from, 18);
        one[VNET + 18 + 20] = flow;
        one
    }

    #[test]
    fn a_train_has_an_end() {
        let frames = vec![of(0, 0); 1 + LONGEST as usize];
        let counts: Vec<u32> = pass(&frames).iter().map(|(_, segments)| *segments).collect();
        assert_eq!(counts, [LONGEST, 1]);
    }

    #[test]
    fn flows_that_come_by_turns_have_a_train_each_as_far_as_there_are_tracks() {
        let turns = |flows: u8| -> Vec<Vec<u8>> {
            (0..10).flat_map(|turn| (0..flows).map(move |flow| of(flow, turn * 18))).collect()
        };
        let tracks = GsoBatcher::TRACKS as u8;
        assert_eq!(written(&turns(tracks)), GsoBatcher::TRACKS);
        assert_eq!(
            written(&turns(tracks + 1)),
            10 * (GsoBatcher::TRACKS + 1),
            "each has left when its next one comes"
        );
    }

    #[test]
    fn so_many_are_read_before_all_leave() {
        let mut batcher = GsoBatcher::new();
        let taken =
            (0..).take_while(|i| !batcher.is_full() && batcher.push(LANE, &of(0, i * 18), |_| {})).count();
        assert_eq!(taken, GsoBatcher::MAX_WAITING as usize);
        batcher.clear(|_| {});
        assert!(!batcher.is_full());
    }

    #[test]
    fn nothing_overtakes_another_packet_of_its_flow() {
        // The second is longer, the third's checksum is finished, the fourth is of another flow.
        let mut finished = of(0, 36);
        finished[0] = 0;
        let frames = [of(0, 0), make(false, 19, 18, 19), of(1, 0), finished.clone(), of(0, 54)];
        let left: Vec<Vec<u8>> = pass(&frames).into_iter().map(|(frame, _)| frame).collect();
        let at = |frame: &Vec<u8>| left.iter().position(|one| one == frame).expect("it has left");
        let places: Vec<usize> = [&frames[0], &frames[3], &frames[4]].map(at).to_vec();
        assert!(places.is_sorted(), "{places:?}");
        assert!(at(&frames[2]) < at(&finished), "whatever it is of, it may not wait behind that");
    }

    #[test]
    fn a_train_is_of_one_lane() {
        let (mut batcher, one, mut left) = (GsoBatcher::new(), of(0, 0), Vec::new());
        for queue in [0, 1, 0] {
            assert!(batcher.push(queue, &one, |_| unreachable!("there is room")));
        }
        batcher.clear(|d| left.push((d.queue, d.segments)));
        assert_eq!(left, [(0, 2), (1, 1)], "whose they are counted for");
    }
}
