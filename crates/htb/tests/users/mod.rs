//! The link of many users that speed is measured with.

use std::{ops::RangeInclusive, time::Duration};

use weir_htb::{ClassId, Departure, Htb, Limits, Packet, Params};
use weir_units::{BitRate, Bytes, Instant};

const LINK: ClassId = ClassId(0);
/// Packets that wait in each leaf.
const WAITING: u32 = 16;
/// Packets between two looks at the clock, as a data path takes them.
pub(crate) const BATCH: usize = 32;

#[inline]
fn next(random: u64) -> u64 {
    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1)
}

pub(crate) struct Users {
    htb: Htb,
    active: u32,
    len: u32,
    random: u64,
    now: Instant,
    /// How long a batch takes on the link.
    batch: Duration,
    left: [Departure; BATCH],
    sent: usize,
    pub(crate) count: u32,
    #[allow(dead_code, reason = "not every program that has this module asks")]
    pub(crate) link: BitRate,
}

impl Users {
    /// `count` users, half of them 0.5 Mbit/s up to 1 and half 2 up to 12, on a link of the sum of what
    /// they are assured of; the first `active` of them always have packets of `len` bytes.
    #[allow(dead_code, reason = "not every program that has this module asks")]
    pub(crate) fn new(count: u32, active: u32, len: u32) -> Users {
        Users::tuned(count, active, len..=len, |params| params)
    }

    /// The same with lengths uniform between two, and all users' settings as `tune` makes them.
    pub(crate) fn tuned(
        count: u32,
        active: u32,
        lens: RangeInclusive<u32>,
        tune: impl Fn(Params) -> Params,
    ) -> Users {
        let (least, most) = lens.into_inner();
        let mut users = Users::empty(count, active, least.midpoint(most), tune);
        for handle in 0..active * WAITING {
            let len = least + users.random() % (most - least + 1);
            users.htb.enqueue(ClassId(1 + handle % active), Packet { handle, len }).unwrap();
        }
        users
    }

    /// As [`Users::new`] without packets yet: [`Users::arrive`] brings them.
    #[allow(dead_code, reason = "not every program that has this module asks")]
    pub(crate) fn idle(count: u32, active: u32, len: u32) -> Users {
        Users::empty(count, active, len, |params| params)
    }

    fn empty(count: u32, active: u32, len: u32, tune: impl Fn(Params) -> Params) -> Users {
        let limits = Limits { classes: count + 1, packets: count * WAITING, depth: 8 };
        let mut htb = Htb::new(limits, Instant::default());
        let link = BitRate::kbit(1_250 * u64::from(count));
        htb.add(LINK, None, Params::new(link)).unwrap();
        for user in 1..=count {
            let (rate, ceil) = if user % 2 == 0 { (500, 1_000) } else { (2_000, 12_000) };
            let params = Params::new(BitRate::kbit(rate)).ceil(BitRate::kbit(ceil)).quantum(1_514);
            htb.add(ClassId(user), Some(LINK), tune(params)).unwrap();
        }
        let batch = link.time_to_send(Bytes(u64::from(len) * BATCH as u64));
        Users {
            htb,
            active,
            len,
            random: 1,
            now: Instant::default(),
            batch,
            left: [Departure::default(); BATCH],
            sent: 0,
            count,
            link,
        }
    }

    fn random(&mut self) -> u32 {
        self.random = next(self.random);
        (self.random >> 33) as u32
    }

    /// Packets that may leave do, at most a batch; then time goes on by a batch. How many left.
    #[inline]
    pub(crate) fn dequeue(&mut self) -> u64 {
        self.sent = self.htb.dequeue_batch(self.now, &mut self.left);
        self.now = self.now + self.batch;
        self.sent as u64
    }

    /// Packets that left come back.
    #[inline]
    pub(crate) fn enqueue(&mut self) {
        let back = self.left[..self.sent].iter().map(|Departure { leaf, packet }| (*leaf, *packet));
        self.htb.enqueue_batch(back, |leaf, _, error| panic!("{leaf:?}: {error}"));
    }

    /// A batch arrives of anybody's packets, in proportion to rates; who has too many loses it.
    #[allow(dead_code, reason = "not every program that has this module asks")]
    #[inline]
    pub(crate) fn arrive(&mut self) {
        let Users { htb, active, len, random, .. } = self;
        let packets = (0..BATCH).map(|_| {
            *random = next(*random);
            // Of five packets one is of the common service, which has the even numbers.
            let raw = (*random >> 33) as u32;
            let user = 2 * (raw % (*active / 2)) + if raw >> 20 & 31 < 6 { 2 } else { 1 };
            (ClassId(user), Packet { handle: 0, len: *len })
        });
        htb.enqueue_batch(packets, |_, _, _| ());
    }

    /// At least `packets` leave while others arrive, as fast as the link lets them go.
    #[allow(dead_code, reason = "not every program that has this module asks")]
    pub(crate) fn pass(&mut self, packets: u64) -> u64 {
        let mut through = 0;
        while through < packets {
            self.arrive();
            through += self.dequeue();
        }
        through
    }

    /// At least `packets` go through. Returns how many did, so that nothing is optimised away.
    #[allow(dead_code, reason = "not every program that has this module asks")]
    pub(crate) fn run(&mut self, packets: u64) -> u64 {
        let mut through = 0;
        while through < packets {
            through += self.dequeue();
            self.enqueue();
        }
        through
    }

    /// The same for some time, asked for twice as often as the link has sent a batch: so it is the tree that
    /// holds the link's rate, and not who asks.
    #[allow(dead_code, reason = "not every program that has this module asks")]
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        let step = self.batch / 2;
        while self.now < end {
            self.sent = self.htb.dequeue_batch(self.now, &mut self.left);
            self.now = self.now + step;
            self.enqueue();
        }
    }

    /// Bytes that left by user, from 1, and the virtual time they took.
    #[allow(dead_code, reason = "not every program that has this module asks")]
    pub(crate) fn sent(&self) -> (Vec<u64>, Duration) {
        let bytes = |user| self.htb.stats(ClassId(user)).unwrap().bytes.0;
        ((1..=self.count).map(bytes).collect(), self.now.0)
    }
}
