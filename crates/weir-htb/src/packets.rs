use crate::{Packet, class::NONE};

/// The packets of all leaves in one pool: each leaf's linked from its first to its last, and the
/// free places too.
#[derive(Debug, Clone)]
pub(crate) struct Packets {
    slots: Box<[Slot]>,
    free: u32,
    waiting: u32,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    packet: Packet,
    next: u32,
}

impl Packets {
    pub(crate) fn new(packets: u32) -> Packets {
        let slot = |i| Slot { packet: Packet { handle: 0, len: 0 }, next: i + 1 };
        let mut slots = (0..packets).map(slot).collect::<Box<[_]>>();
        if let Some(last) = slots.last_mut() {
            last.next = NONE;
        }
        Packets { slots, free: 0, waiting: 0 }
    }

    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Puts a packet into a free place; `None` if there is none.
    #[inline]
    pub(crate) fn put(&mut self, packet: Packet) -> Option<u32> {
        let i = self.free;
        let slot = self.slots.get_mut(i as usize)?;
        self.free = slot.next;
        *slot = Slot { packet, next: NONE };
        self.waiting += 1;
        Some(i)
    }

    /// Lets place `i` be followed by place `next`.
    #[inline]
    pub(crate) fn chain(&mut self, i: u32, next: u32) {
        self.slots[i as usize].next = next;
    }

    /// Frees place `i`: what was in it, and which follows.
    #[inline]
    pub(crate) fn take(&mut self, i: u32) -> (Packet, u32) {
        let slot = &mut self.slots[i as usize];
        let Slot { packet, next } = *slot;
        slot.next = self.free;
        self.free = i;
        self.waiting -= 1;
        (packet, next)
    }

    /// Bytes from place `i` to its leaf's last.
    pub(crate) fn bytes_from(&self, mut i: u32) -> u64 {
        let mut bytes = 0;
        while i != NONE {
            let slot = &self.slots[i as usize];
            bytes += u64::from(slot.packet.len);
            i = slot.next;
        }
        bytes
    }
}
