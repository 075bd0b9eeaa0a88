use crate::{Packet, class::NONE};

/// The packets of all leaves, in chunks from one pool: each leaf's are linked from its first to its last.
///
/// A chunk is a line of the cache: of a leaf's packets seven are read for one miss, and what follows is
/// known before it is read. A place is a chunk's number and, in the three lowest bits, which of its
/// packets.
#[derive(Debug, Clone)]
pub(crate) struct Packets {
    chunks: Box<[Chunk]>,
    /// The first free chunk.
    free: u32,
    waiting: u32,
    most: u32,
}

/// The handle of the eighth says which chunk follows: of the same leaf, or of the free ones.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Chunk([Packet; 8]);

const LINK: u32 = 7;

impl Packets {
    /// Room for `packets` of at most `leaves`.
    pub(crate) fn new(packets: u32, leaves: u32) -> Packets {
        // Of a leaf's first chunk and of its last there may be six places unused.
        let places = u64::from(packets) + 12 * u64::from(packets.min(leaves));
        let chunks = u32::try_from(places.div_ceil(LINK.into())).unwrap_or(NONE);
        let mut packets = Packets {
            chunks: vec![Chunk([Packet::default(); 8]); chunks as usize].into(),
            free: NONE,
            waiting: 0,
            most: packets,
        };
        (0..chunks).rev().for_each(|chunk| packets.give_back(chunk));
        packets
    }

    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// How many there is room for.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.most
    }

    /// For how many more there is room.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.most - self.waiting
    }

    /// Puts a packet, for which there is room, behind a leaf's last one, [`NONE`] if it has none. Where it
    /// is. To be [counted](Packets::came).
    #[inline]
    pub(crate) fn put(&mut self, packet: Packet, last: u32) -> Option<u32> {
        let place = if last != NONE && last % 8 + 1 < LINK { last + 1 } else { self.begin_chunk(last)? };
        self.chunks[place as usize / 8].0[place as usize % 8] = packet;
        Some(place)
    }

    /// The number of packets put.
    #[inline]
    pub(crate) fn came(&mut self, packets: u32) {
        self.waiting += packets;
    }

    #[inline]
    fn begin_chunk(&mut self, last: u32) -> Option<u32> {
        let chunk = self.free;
        self.free = self.chunks.get(chunk as usize)?.0[LINK as usize].handle;
        if last != NONE {
            self.chunks[last as usize / 8].0[LINK as usize].handle = chunk;
        }
        Some(chunk * 8)
    }

    /// The packet at `place`, and where the leaf's next one is, if it has any. To be
    /// [counted](Packets::taken).
    #[inline]
    pub(crate) fn take(&mut self, place: u32) -> (Packet, u32) {
        let chunk = &self.chunks[place as usize / 8].0;
        let (packet, mut next) = (chunk[place as usize % 8], place + 1);
        if next % 8 == LINK {
            next = chunk[LINK as usize].handle.wrapping_mul(8);
            self.give_back(place / 8);
        }
        (packet, next)
    }

    /// This number of a leaf's packets have been taken; `next`: the place of another one, if that
    /// was all.
    #[inline]
    pub(crate) fn taken(&mut self, packets: u32, next: Option<u32>) {
        self.waiting -= packets;
        if let Some(next) = next.filter(|next| next % 8 != 0) {
            self.give_back(next / 8);
        }
    }

    #[inline]
    fn give_back(&mut self, chunk: u32) {
        self.chunks[chunk as usize].0[LINK as usize].handle = self.free;
        self.free = chunk;
    }

    /// Bytes of a leaf's `packets`, from its first on, which is at `place`.
    pub(crate) fn bytes_from(&self, mut place: u32, packets: u32) -> u64 {
        let mut bytes = 0;
        for _ in 0..packets {
            let chunk = &self.chunks[place as usize / 8].0;
            bytes += u64::from(chunk[place as usize % 8].len);
            place += 1;
            if place % 8 == LINK {
                place = chunk[LINK as usize].handle.wrapping_mul(8);
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn leaf_keeps_the_order_of_its_packets_and_all_fit(
            most in 1..40u32,
            ops in prop::collection::vec((0..5usize, any::<bool>(), 1..9u32), 1..300),
        ) {
            let mut packets = Packets::new(most, 5);
            let mut leaves = vec![(NONE, NONE, VecDeque::new()); 5];
            let mut handle = 0;
            for (leaf, puts, times) in ops {
                let waiting = leaves.iter().map(|leaf| leaf.2.len() as u32).sum::<u32>();
                prop_assert_eq!(packets.waiting(), waiting);
                let (head, tail, queue) = &mut leaves[leaf];
                if puts {
                    for _ in 0..times {
                        handle += 1;
                        let packet = Packet { handle, len: handle };
                        let last = if queue.is_empty() { NONE } else { *tail };
                        match (packets.room() > 0).then(|| packets.put(packet, last)) {
                            Some(place) => {
                                let place = place.expect("there is room");
                                packets.came(1);
                                *tail = place;
                                if queue.is_empty() {
                                    *head = place;
                                }
                                queue.push_back(packet);
                            }
                            None => prop_assert_eq!(packets.waiting(), most),
                        }
                    }
                } else {
                    let taken = times.min(queue.len() as u32);
                    for packet in queue.drain(..taken as usize) {
                        let (got, next) = packets.take(*head);
                        prop_assert_eq!(got, packet);
                        *head = next;
                    }
                    if taken > 0 {
                        packets.taken(taken, queue.is_empty().then_some(*head));
                    }
                }
                let bytes = queue.iter().map(|packet| u64::from(packet.len)).sum::<u64>();
                prop_assert_eq!(packets.bytes_from(*head, queue.len() as u32), bytes);
            }
        }
    }
}
