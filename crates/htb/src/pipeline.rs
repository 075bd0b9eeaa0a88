//! The tree over two threads, as in "A Novel Parallel Traffic Control Mechanism for Cloud
//! Computing": one takes packets in, the other lets them go.
//!
//! The paper's threads share a queue for each leaf, which is always looked into, empty or not. Here
//! they share one ring, and one for the way back, with room for all packets that may be on their way;
//! the tree with its bitmaps belongs to the dequeue stage alone, so that there is nothing to lock and no
//! empty queue to look into.

use weir_units::Instant;

use crate::{
    ClassError, ClassId, Departure, EnqueueError, Htb, Next, Packet, Params, Stats, Warnings,
    ring::{Emptier, Filler, ring},
};

/// The enqueue stage: decides who has room, from counters of its own.
#[derive(Debug)]
pub struct Intake {
    gates: Box<[Gate]>,
    /// Packets that may be on their way, in all leaves.
    most: u32,
    on_their_way: u32,
    ring: Filler,
    back: Emptier,
    words: Words,
}

#[derive(Debug, Clone, Copy, Default)]
struct Gate {
    /// Packets taken in and not yet come back.
    on_their_way: u32,
    limit: u32,
    drops: u32,
    open: bool,
}

/// The dequeue stage: has the tree.
#[derive(Debug)]
pub struct Outlet {
    htb: Htb,
    /// Packets that came, or waited before, and have not been given back.
    here: u32,
    ring: Emptier,
    back: Filler,
    words: Words,
    strays: u64,
}

/// Words that go into a ring, or have come out of it, together: eight lines of the cache.
type Words = [u64; 64];

impl Htb {
    /// Splits the tree into two stages, one for each of two threads.
    ///
    /// ```
    /// use weir_htb::{ClassId, Departure, Htb, Limits, Packet, Params};
    /// use weir_units::{BitRate, Instant};
    ///
    /// let mut htb = Htb::new(Limits::default(), Instant::default());
    /// htb.add(ClassId(1), None, Params::new(BitRate::gbit(1)))?;
    /// let (mut intake, mut outlet) = htb.into_pipeline();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || intake.enqueue(ClassId(1), Packet { handle: 7, len: 64 }));
    ///     let mut left = [Departure::default(); 32];
    ///     while outlet.dequeue_batch(Instant::default(), &mut left) == 0 {}
    ///     assert_eq!(left[0].packet.handle, 7);
    ///     outlet.give_back(&left[..1]);
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn into_pipeline(self) -> (Intake, Outlet) {
        let gate = |(class, leaf_queue): (&crate::class::Class, &crate::class::LeafQueue)| Gate {
            on_their_way: class.backlog,
            limit: leaf_queue.limit,
            drops: leaf_queue.drops,
            open: class.level == 0,
        };
        let most = self.packets.len();
        let (filler, emptier) = ring(2 * most as usize);
        let (back_filler, back_emptier) = ring(most as usize);
        let intake = Intake {
            gates: self.class.iter().zip(&self.leaf_queue).map(gate).collect(),
            most,
            on_their_way: self.waiting(),
            ring: filler,
            back: back_emptier,
            words: [0; 64],
        };
        let here = self.waiting();
        (intake, Outlet { here, htb: self, ring: emptier, back: back_filler, words: [0; 64], strays: 0 })
    }
}

/// Says that the length is in a word of its own.
const LONG: u64 = 1 << 62;
/// Numbers and lengths below these share a word.
const SHORT: (u32, u32) = (1 << 14, 1 << 16);

/// A packet on its way: mostly one word, so that a line of the cache has eight. There is room for
/// two for each that may be on its way. If it is one, there is no second.
#[inline]
fn words_there(leaf: u32, Packet { handle, len }: Packet) -> (u64, Option<u64>) {
    if leaf < SHORT.0 && len < SHORT.1 {
        (u64::from(leaf) << 48 | u64::from(len) << 32 | u64::from(handle), None)
    } else {
        (LONG | word_back(leaf, handle), Some(len.into()))
    }
}

/// The packet of [`words_there`]; `second` is asked if there are two.
#[inline]
fn packet_here(word: u64, second: impl FnOnce() -> Option<u64>) -> Option<(ClassId, Packet)> {
    let handle = word as u32;
    if word & LONG == 0 {
        let len = (word >> 32) as u32 & (SHORT.1 - 1);
        return Some((ClassId((word >> 48) as u32), Packet { handle, len }));
    }
    Some((ClassId(((word & !LONG) >> 32) as u32), Packet { handle, len: second()? as u32 }))
}

/// A packet on the way back.
#[inline]
fn word_back(leaf: u32, handle: u32) -> u64 {
    u64::from(leaf) << 32 | u64::from(handle)
}

impl Intake {
    /// Lets a packet in, to wait in a leaf. The limits are those of [`Htb::enqueue`], except that a
    /// packet counts until [`Intake::collect`] has seen it back: never more wait than may, and what
    /// is too much costs the other stage nothing.
    ///
    /// # Errors
    /// As [`Htb::enqueue`].
    #[inline]
    pub fn enqueue(&mut self, leaf: ClassId, packet: Packet) -> Result<(), EnqueueError> {
        let (word, second) = self.let_in(leaf, packet)?;
        match second {
            None => self.ring.push(word),
            Some(second) => self.ring.push_all([word, second].into_iter()),
        }
        Ok(())
    }

    /// The same for packets that have come together. The other stage sees them together, eight lines of
    /// the cache at once, which costs both less than a line that is filled while it is being looked at.
    /// `refused` hears of those that are not let in.
    #[inline]
    pub fn enqueue_batch(
        &mut self,
        packets: impl IntoIterator<Item = (ClassId, Packet)>,
        mut refused: impl FnMut(ClassId, Packet, EnqueueError),
    ) {
        let mut filled = 0;
        for (leaf, packet) in packets {
            match self.let_in(leaf, packet) {
                Ok((word, None)) => {
                    self.words[filled] = word;
                    filled += 1;
                }
                Ok((word, Some(second))) => {
                    self.words[filled..filled + 2].copy_from_slice(&[word, second]);
                    filled += 2;
                }
                Err(error) => refused(leaf, packet, error),
            }
            // The next one may be two.
            if filled + 2 > self.words.len() {
                self.ring.push_all(self.words[..filled].iter().copied());
                filled = 0;
            }
        }
        self.ring.push_all(self.words[..filled].iter().copied());
    }

    /// Counts a packet, if there is room for it: its words for the ring, which has room for all that may
    /// be on their way.
    #[inline]
    fn let_in(&mut self, leaf: ClassId, packet: Packet) -> Result<(u64, Option<u64>), EnqueueError> {
        let Some(gate) = self.gates.get_mut(leaf.0 as usize).filter(|gate| gate.open) else {
            return Err(EnqueueError::NotALeaf { class: leaf });
        };
        if gate.on_their_way >= gate.limit
            || self.on_their_way >= self.most
            || packet.len.wrapping_sub(1) >= Packet::MAX_LEN
        {
            return Err(self.refuse(leaf, packet));
        }
        gate.on_their_way += 1;
        self.on_their_way += 1;
        Ok(words_there(leaf.0, packet))
    }

    #[cold]
    fn refuse(&mut self, leaf: ClassId, packet: Packet) -> EnqueueError {
        let gate = &mut self.gates[leaf.0 as usize];
        gate.drops = gate.drops.saturating_add(1);
        if packet.len == 0 || packet.len > Packet::MAX_LEN {
            EnqueueError::Length { class: leaf, len: packet.len }
        } else if gate.on_their_way >= gate.limit {
            EnqueueError::LeafFull { class: leaf, limit: gate.limit }
        } else {
            EnqueueError::AllFull { class: leaf, packets: self.most }
        }
    }

    /// Sees what has come back: leaves and handles, which are free again. To be called now and then,
    /// or leaves fill up. Returns how many.
    #[inline]
    pub fn collect(&mut self, mut each: impl FnMut(ClassId, u32)) -> usize {
        let mut collected = 0;
        loop {
            let came = self.back.pop_all(&mut self.words);
            for word in &self.words[..came] {
                let (class, handle) = (word >> 32, *word as u32);
                if let Some(gate) = self.gates.get_mut(class as usize) {
                    gate.on_their_way = gate.on_their_way.saturating_sub(1);
                }
                each(ClassId(class as u32), handle);
            }
            self.on_their_way = self.on_their_way.saturating_sub(came as u32);
            collected += came;
            if came < self.words.len() {
                return collected;
            }
        }
    }

    /// Lets packets into a class that has become a leaf, at most this number. With `None` no more
    /// come into one that is to be removed or become a parent.
    pub fn set_limit(&mut self, class: ClassId, limit: Option<u32>) {
        if let Some(gate) = self.gates.get_mut(class.0 as usize) {
            (gate.open, gate.limit) = (limit.is_some(), limit.unwrap_or(0));
        }
    }

    /// Packets of a leaf that were let in and have not been seen back.
    #[must_use]
    pub fn on_their_way(&self, leaf: ClassId) -> u32 {
        self.gates.get(leaf.0 as usize).map_or(0, |gate| gate.on_their_way)
    }

    /// Packets that were refused at a leaf, also before the tree was split.
    #[must_use]
    pub fn drops(&self, leaf: ClassId) -> u32 {
        self.gates.get(leaf.0 as usize).map_or(0, |gate| gate.drops)
    }
}

impl Outlet {
    /// The packets that leave at `now`, as [`Htb::dequeue_batch`] if all that is in the ring had been
    /// enqueued just before. To be [given back](Outlet::give_back) when they are sent.
    #[inline]
    pub fn dequeue_batch(&mut self, now: Instant, left: &mut [Departure]) -> usize {
        self.take_in();
        self.htb.dequeue_batch(now, left)
    }

    /// The same for one packet; and if none may leave, when to ask again. Packets that come into
    /// the ring meanwhile may leave sooner.
    pub fn dequeue(&mut self, now: Instant) -> Next {
        self.take_in();
        self.htb.dequeue(now)
    }

    #[inline]
    fn take_in(&mut self) {
        let most = self.words.len();
        // Not more than may wait, so that this ends however fast the other stage is.
        for _ in 0..=self.htb.packets.len() as usize / most {
            let Outlet { htb, here, ring, back, words, strays } = self;
            let came = ring.pop_all(words);
            let mut at = 0;
            let packets = std::iter::from_fn(|| {
                let word = *words[..came].get(at)?;
                at += 1;
                packet_here(word, || {
                    at += 1;
                    // Both were seen together, but there may have been room for one.
                    words[..came].get(at - 1).copied().or_else(|| ring.pop())
                })
            });
            let before = htb.waiting();
            htb.admit(false, packets, |_, leaf, packet| {
                // Its class has gone since it was let in.
                *strays += 1;
                back.push(word_back(leaf.0, packet.handle));
            });
            *here += htb.waiting() - before;
            if came < most {
                return;
            }
        }
    }

    /// Tells the enqueue stage that packets have been sent, so that others have room. Each that left is
    /// to be given back once; more than have come are not taken.
    #[inline]
    pub fn give_back(&mut self, sent: &[Departure]) {
        let taken = &sent[..sent.len().min(self.here as usize)];
        self.here -= taken.len() as u32;
        self.back.push_all(taken.iter().map(|sent| word_back(sent.leaf.0, sent.packet.handle)));
    }

    /// As [`Htb::add`]. The enqueue stage lets packets in once it is [told](Intake::set_limit).
    ///
    /// # Errors
    /// As [`Htb::add`].
    pub fn add(
        &mut self,
        id: ClassId,
        parent: Option<ClassId>,
        params: Params,
    ) -> Result<Warnings, ClassError> {
        self.htb.add(id, parent, params)
    }

    /// As [`Htb::change`], except that the limit is the [enqueue stage's](Intake::set_limit) matter.
    ///
    /// # Errors
    /// As [`Htb::change`].
    pub fn change(&mut self, id: ClassId, params: Params) -> Result<Warnings, ClassError> {
        self.htb.change(id, params)
    }

    /// As [`Htb::remove`]; packets that wait are given back unsent. Those still in the ring will be
    /// too, and are [counted](Outlet::strays).
    ///
    /// # Errors
    /// There is no such class, or it has children.
    pub fn remove(&mut self, id: ClassId) -> Result<(), ClassError> {
        let (back, here) = (&mut self.back, &mut self.here);
        self.htb.drain(id, |packet| {
            *here -= 1;
            back.push(word_back(id.0, packet.handle));
        })?;
        self.htb.remove(id)
    }

    /// As [`Htb::stats`], but for drops, which the [enqueue stage](Intake::drops) counts.
    #[must_use]
    pub fn stats(&self, class: ClassId) -> Option<Stats> {
        self.htb.stats(class)
    }

    /// Packets that were let in for a class that was no leaf any more when they came; given back unsent.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays
    }
}
