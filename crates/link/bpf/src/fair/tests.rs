//! The qdisc in user space (`fair_user.c`), in a time of its own: whole links of random policies
//! and demands in milliseconds, each share against weir-share's water-filling.
//!
//! `WEIR_POLICIES` says how many policies, `WEIR_SEED` which.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_share::{Allocator, Demand, Policy, Sharer, Weight};
use weir_units::BitRate;

use super::{CHANGED, LinkParams, Mode, PARAMS, Params};

#[path = "case_tests.rs"]
mod cases;
#[path = "datagram_tests.rs"]
mod datagrams;

const CAPACITY: BitRate = BitRate::mbit(95);
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// The minors of the first class and of the first group.
const CLASS: u16 = 0x10;
const GROUP: u16 = 0x80;
const GROUPS: u32 = 2;
/// Classes of a random policy.
const MANY: usize = 7;
/// Policies between two draws of the groups' members.
const A_MEMBERSHIP: usize = 5;
/// The time for which the backlog of earlier demands may last beside the others' packets.
const PATIENCE: u64 = 2 * SECOND;
/// Lengths of packets: a frame, a super-packet; a socket's buffer.
const FRAME: u32 = 1514;
const SUPER_PACKET: u32 = 65_226;
const BUFFER: u32 = 212_992;

#[link(name = "weir_fair_user", kind = "static")]
unsafe extern "C" {
    fn user_init() -> *mut u64;
    fn user_enqueue(now: u64, minor: u32, len: u32, hash: u32, owned: i32, datagram: u32) -> i32;
    fn user_dequeue(now: u64, wake: *mut u64, datagram: *mut u32) -> u64;
}

/// The qdisc, which is one in a process; who holds it has a new one.
struct Qdisc {
    shared: *mut u64,
    _only: MutexGuard<'static, ()>,
}

impl Qdisc {
    fn new() -> Qdisc {
        static ONLY: Mutex<()> = Mutex::new(());
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the C side's state belongs to the holder of the lock.
        let shared = unsafe { user_init() };
        let qdisc = Qdisc { shared, _only: only };
        let link = LinkParams {
            mode: Mode::Fair,
            bytes_per_sec: CAPACITY.bytes_per_sec(),
            burst_ns: MS,
            express_ns: 5 * MS,
            small_bytes: 1518,
            codel_target_us: 5_000,
            codel_interval_us: 100_000,
        };
        link.words(1).into_iter().enumerate().for_each(|(i, word)| qdisc.write(2 + i, word));
        qdisc
    }

    fn write(&self, word: usize, value: u64) {
        assert!(word < super::WORDS);
        // SAFETY: a word of `struct fair_shared`, under the lock.
        unsafe { *self.shared.add(word) = value }
    }

    fn read(&self, word: usize) -> u64 {
        assert!(word < super::WORDS);
        // SAFETY: as above.
        unsafe { *self.shared.add(word) }
    }

    /// The effect of [`super::Fair::set`] on the map.
    fn set(&self, minor: u16, policy: &Policy, group: u16) {
        let ceil = policy.ceiling().min(CAPACITY);
        let params = Params {
            weight: policy.weight().get(),
            floor_bytes_per_sec: policy.floor().min(ceil).bytes_per_sec(),
            ceil_bytes_per_sec: if ceil < CAPACITY { ceil.bytes_per_sec() } else { 0 },
            group,
            limit_bytes: 2 * BUFFER,
            is_group: minor >= GROUP,
            is_urgent: false,
            is_present: true,
        };
        let at = super::place(minor, PARAMS);
        let words = params.words();
        let old = [0, 1, 3].map(|i| self.read(at + i));
        if old[0] != 0 && (old[..2] != words[..2] || old[2] as u32 != words[3] as u32) {
            self.write(CHANGED, 1);
        }
        words.into_iter().enumerate().for_each(|(i, word)| self.write(at + i, word));
    }

    fn enqueue(&self, now: u64, minor: u16, len: u32) {
        // SAFETY: under the lock; all else is numbers.
        let refused = unsafe { user_enqueue(now, minor.into(), len, minor.into(), 1, 0) };
        assert_eq!(refused, 0, "class {minor:x} is refused {len} bytes");
    }

    /// A fragment that belongs to no socket here; whether it is taken.
    fn offer(&self, now: u64, minor: u16, len: u32, datagram: u32) -> bool {
        // SAFETY: as above.
        unsafe { user_enqueue(now, minor.into(), len, minor.into(), 0, datagram) == 0 }
    }

    /// The next packet's class and length, or when to ask again.
    fn dequeue(&self, now: u64) -> Result<(u16, u32), u64> {
        self.dequeue_fragment(now).map(|(minor, len, _)| (minor, len))
    }

    /// The same, and what it is a fragment of.
    fn dequeue_fragment(&self, now: u64) -> Result<(u16, u32, u32), u64> {
        let (mut wake, mut datagram) = (0, 0);
        // SAFETY: under the lock; what is pointed to lives as long as the call.
        let packet = unsafe { user_dequeue(now, &raw mut wake, &raw mut datagram) };
        if packet == 0 { Err(wake) } else { Ok(((packet >> 32) as u16, packet as u32, datagram)) }
    }
}

/// The traffic of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Load {
    /// Packets of this length, as many as fit into a socket's buffer.
    Greedy(u32),
    /// Frames at a rate.
    Rate(BitRate),
    Nothing,
}

#[derive(Debug, Clone)]
struct Class {
    policy: Policy,
    group: Option<u32>,
    load: Load,
}

#[derive(Debug, Clone)]
struct Division {
    classes: Vec<Class>,
    groups: Vec<Policy>,
}

impl Division {
    /// The share of each class, bit/s.
    fn due(&self) -> Vec<f64> {
        let sharer = |class: &Class| {
            let demand = match class.load {
                Load::Greedy(_) => Demand::UNLIMITED,
                Load::Rate(rate) => Demand::rate(rate),
                Load::Nothing => Demand::NONE,
            };
            let sharer = Sharer::new(class.policy, demand);
            class.group.map_or(sharer, |group| sharer.in_group(group))
        };
        let sharers: Vec<Sharer> = self.classes.iter().map(sharer).collect();
        let mut allocator = Allocator::water_filling();
        allocator.allocate(CAPACITY, &self.groups, &sharers).iter().map(|rate| rate.0 as f64).collect()
    }
}

/// A class's sender.
#[derive(Clone)]
struct Sender {
    load: Load,
    queued: u32,
    sent: u64,
    /// When its next packet comes, if it sends at a rate.
    next: u64,
}

/// A link with the qdisc, and who sends through it.
struct Link {
    qdisc: Qdisc,
    now: u64,
    senders: Vec<Sender>,
    late: Dice,
}

impl Link {
    fn new(division: &Division) -> Link {
        let sender = Sender { load: Load::Nothing, queued: 0, sent: 0, next: 0 };
        let senders = vec![sender; division.classes.len()];
        let mut link = Link { qdisc: Qdisc::new(), now: SECOND, senders, late: Dice(1) };
        link.apply(division);
        link
    }

    /// Policies and loads are these now.
    fn apply(&mut self, division: &Division) {
        let minor = |first: u16, i: usize| first + u16::try_from(i).unwrap();
        for (i, policy) in division.groups.iter().enumerate() {
            self.qdisc.set(minor(GROUP, i), policy, 0);
        }
        for (i, class) in division.classes.iter().enumerate() {
            let group = class.group.map_or(0, |group| minor(GROUP, group as usize));
            self.qdisc.set(minor(CLASS, i), &class.policy, group);
        }
        for (sender, class) in self.senders.iter_mut().zip(&division.classes) {
            (sender.load, sender.next) = (class.load, self.now);
        }
    }

    /// No class sends until all queues are empty.
    fn drain(&mut self) {
        self.senders.iter_mut().for_each(|sender| sender.load = Load::Nothing);
        self.run(20 * SECOND);
        assert!(self.senders.iter().all(|sender| sender.queued == 0), "packets are left after 20 s");
    }

    /// Whether who asks for less than is queued of it gets rid of that beside the others.
    fn forgets(&mut self, division: &Division, patience: u64) -> bool {
        let due = division.due();
        let end = self.now + patience;
        loop {
            let old = |(sender, due): (&Sender, &f64)| match sender.load {
                Load::Greedy(_) => false,
                Load::Rate(rate) => *due >= rate.0 as f64 && sender.queued > 10 * FRAME,
                Load::Nothing => sender.queued > 0,
            };
            let any = self.senders.iter().zip(&due).any(old);
            if !any || self.now >= end {
                return !any;
            }
            self.run(100 * MS);
        }
    }

    fn arrive(&mut self) {
        for (minor, sender) in (CLASS..).zip(&mut self.senders) {
            let send = |len, queued: &mut u32| {
                let fits = *queued + len <= BUFFER;
                if fits {
                    self.qdisc.enqueue(self.now, minor, len);
                    *queued += len;
                }
                fits
            };
            match sender.load {
                Load::Greedy(len) => while send(len, &mut sender.queued) {},
                Load::Rate(rate) => {
                    while sender.next <= self.now {
                        send(FRAME, &mut sender.queued);
                        sender.next += u64::from(FRAME) * 8 * SECOND / rate.0;
                    }
                }
                Load::Nothing => {}
            }
        }
    }

    fn run(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.arrive();
            let wake = loop {
                match self.qdisc.dequeue(self.now) {
                    Err(wake) => break wake,
                    Ok((minor, len)) => {
                        let sender = &mut self.senders[usize::from(minor - CLASS)];
                        sender.queued -= len;
                        sender.sent += u64::from(len);
                        self.arrive();
                    }
                }
            };
            let rates = self.senders.iter().filter(|sender| matches!(sender.load, Load::Rate(_)));
            let arrival = rates.map(|sender| sender.next).min().unwrap_or(end);
            // A timer is up to 20 us late.
            let wake = if wake == 0 { end } else { wake + self.late.below(20_000) };
            self.now = wake.min(arrival).min(end).max(self.now + 1);
        }
    }

    /// The rate of each class, bit/s, without the part that left its queue before.
    fn rates(&mut self, time: u64) -> Vec<f64> {
        let before = self.senders.clone();
        self.run(time);
        let rate = |(now, before): (&Sender, &Sender)| {
            let less = u64::from(before.queued.saturating_sub(now.queued));
            (now.sent - before.sent).saturating_sub(less) as f64 * 8e9 / time as f64
        };
        self.senders.iter().zip(&before).map(rate).collect()
    }

    /// Each share of these is what it is due, but for this part and some of the largest packets; else a
    /// line for each.
    fn judge(&mut self, division: &Division, time: u64, tolerance: f64, largest: u32) -> Option<String> {
        let (got, due) = (self.rates(time), division.due());
        let slack = 3.0 * f64::from(largest) * 8e9 / time as f64;
        let is_off = |got: f64, due: f64| (got - due).abs() > tolerance * due + slack;
        if !got.iter().zip(&due).any(|(got, due)| is_off(*got, *due)) {
            return None;
        }
        let lines = division.classes.iter().zip(got.iter().zip(&due)).map(|(class, (got, due))| {
            let mark = if is_off(*got, *due) { "<-- OFF" } else { "" };
            format!("{class:?}: {:.3} of {:.3} Mbit/s {mark}", got / 1e6, due / 1e6)
        });
        let groups = division.groups.iter().map(|group| format!("group {group:?}"));
        Some(groups.chain(lines).collect::<Vec<_>>().join("\n"))
    }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(n)) >> 64) as u64
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Whole numbers whose logarithms are spread evenly.
    fn magnitude(&mut self, least: u64, most: u64) -> u64 {
        let part = self.below(1 << 20) as f64 / f64::from(1 << 20);
        let (low, high) = ((least as f64).ln(), (most as f64 + 1.0).ln());
        ((low + (high - low) * part).exp() as u64).clamp(least, most)
    }

    /// The members of each group.
    fn membership(&mut self) -> Vec<Option<u32>> {
        (0..MANY).map(|_| self.chance(50).then(|| self.below(GROUPS.into()) as u32)).collect()
    }

    /// A policy whose minimum is one that can still be promised, kbit/s, and whose maximum holds `least`.
    fn policy(&mut self, promised: &mut u64, least: u64) -> Policy {
        let weight = u32::try_from(self.magnitude(1, 1000)).unwrap();
        let min = (self.chance(30) && *promised >= 500).then(|| self.magnitude(500, (*promised).min(30_000)));
        *promised -= min.unwrap_or(0);
        let least = min.unwrap_or(0).max(least).max(1000);
        let max = self.chance(30).then(|| self.magnitude(least, 90_000));
        policy(weight, min, max)
    }

    fn load(&mut self, largest: u32) -> Load {
        match self.below(100) {
            0..35 => Load::Greedy(FRAME),
            35..60 => Load::Greedy(largest),
            60..85 => Load::Rate(BitRate::kbit(self.magnitude(300, 50_000))),
            _ => Load::Nothing,
        }
    }

    fn division(&mut self, membership: &[Option<u32>], largest: u32) -> Division {
        let mut promised = 60_000;
        let mut class = |group: &Option<u32>| Class {
            policy: self.policy(&mut promised, 0),
            group: *group,
            load: self.load(largest),
        };
        let classes: Vec<Class> = membership.iter().map(&mut class).collect();
        let floors = |g| classes.iter().filter(move |c| c.group == Some(g)).map(|c| c.policy.floor().0);
        let groups = (0..GROUPS).map(|g| self.policy(&mut 0, floors(g).sum::<u64>() / 1000)).collect();
        Division { classes, groups }
    }
}

/// Rates in kbit/s.
fn policy(weight: u32, min: Option<u64>, max: Option<u64>) -> Policy {
    Policy::new(Weight::new(weight).unwrap(), min.map(BitRate::kbit), max.map(BitRate::kbit)).unwrap()
}

/// A class that floods.
fn flood(weight: u32, min: Option<u64>, max: Option<u64>, group: Option<u32>) -> Class {
    Class { policy: policy(weight, min, max), group, load: Load::Greedy(FRAME) }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Random policies, each with the demands it began with and with others.
fn random_policies(largest: u32, tolerance: f64, settle: u64, time: u64) {
    let (count, seed) = (number("WEIR_POLICIES", 40), number("WEIR_SEED", 11));
    let mut dice = Dice(seed);
    let mut failed = Vec::new();
    let (mut membership, mut link) = (Vec::new(), None::<Link>);
    for i in 0..usize::try_from(count).unwrap() {
        if i % A_MEMBERSHIP == 0 {
            membership = dice.membership();
        }
        let mut division = dice.division(&membership, largest);
        let link = link.get_or_insert_with(|| Link::new(&division));
        for step in ["", " changed"] {
            if !step.is_empty() {
                for class in &mut division.classes {
                    let load = dice.load(largest);
                    if dice.chance(50) {
                        class.load = load;
                    }
                }
            }
            link.apply(&division);
            if !link.forgets(&division, PATIENCE) {
                link.drain();
                link.apply(&division);
            }
            link.run(settle);
            if let Some(how) = link.judge(&division, time, tolerance, largest) {
                failed.push(format!("{i}{step}:\n{how}"));
            }
        }
    }
    assert!(failed.is_empty(), "{} with WEIR_SEED={seed}:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn random_policies_give_the_oracles_shares() {
    random_policies(FRAME, 0.01, SECOND, 4 * SECOND);
}

#[test]
fn random_policies_give_the_oracles_shares_with_super_packets() {
    random_policies(SUPER_PACKET, 0.02, 4 * SECOND, 6 * SECOND);
}
