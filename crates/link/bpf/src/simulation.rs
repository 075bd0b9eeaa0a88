//! Links of random policies and demands in a time of their own, divided by what a scheduler compiled for
//! user space does. Each share is compared with weir-share's water-filling.
//!
//! `WEIR_POLICIES` says how many policies, `WEIR_SEED` which.

use weir_share::{Allocator, Demand, Policy, Sharer, Weight};
use weir_units::BitRate;

pub(crate) const CAPACITY: BitRate = BitRate::mbit(95);
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;
pub(crate) const GROUPS: u32 = 2;
/// Classes of a random policy.
pub(crate) const MANY: usize = 7;
/// Policies between two draws of the groups' members.
pub(crate) const A_MEMBERSHIP: usize = 5;
/// The time for which the backlog of earlier demands may last beside the others' packets.
pub(crate) const FORGET_TIMEOUT: u64 = 2 * SECOND;
/// Lengths of packets: a frame, a super-packet; a socket's buffer.
pub(crate) const FRAME: u32 = 1514;
pub(crate) const SUPER_PACKET: u32 = 65_226;
pub(crate) const BUFFER: u32 = 212_992;

/// The traffic of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Load {
    /// Packets of this length, as many as fit into a socket's buffer.
    Greedy(u32),
    /// Frames at a rate.
    Rate(BitRate),
    Nothing,
}

#[derive(Debug, Clone)]
pub(crate) struct Class {
    pub(crate) policy: Policy,
    pub(crate) group: Option<u32>,
    pub(crate) load: Load,
}

#[derive(Debug, Clone)]
pub(crate) struct Division {
    pub(crate) classes: Vec<Class>,
    pub(crate) groups: Vec<Policy>,
}

impl Division {
    /// The share of each class, bit/s.
    pub(crate) fn due(&self) -> Vec<f64> {
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
pub(crate) struct Sender {
    pub(crate) load: Load,
    pub(crate) queued: u32,
    pub(crate) sent: u64,
    /// When its next packet comes, if it sends at a rate.
    pub(crate) next: u64,
}

/// A scheduler in user space: a qdisc, or a program of departure times before a wire.
pub(crate) trait Scheduler {
    /// A new one, without classes. No other is used meanwhile.
    fn new() -> Self;

    /// States the policy of a group, from 0.
    fn set_group(&mut self, group: u16, policy: &Policy);

    /// States the policy of a class, from 0.
    fn set_class(&mut self, class: u16, policy: &Policy, group: Option<u16>);

    /// A packet of a class comes; whether it is taken.
    fn enqueue(&mut self, now: u64, class: u16, len: u32) -> bool;

    /// The next packet's class and length, or when to ask again: 0 if none waits.
    fn dequeue(&mut self, now: u64) -> Result<(u16, u32), u64>;
}

/// A link with a scheduler, and the senders of its classes.
pub(crate) struct Link<S> {
    pub(crate) scheduler: S,
    pub(crate) now: u64,
    pub(crate) senders: Vec<Sender>,
    pub(crate) late: Dice,
}

impl<S: Scheduler> Link<S> {
    pub(crate) fn new(division: &Division) -> Link<S> {
        let sender = Sender { load: Load::Nothing, queued: 0, sent: 0, next: 0 };
        let senders = vec![sender; division.classes.len()];
        let mut link = Link { scheduler: S::new(), now: SECOND, senders, late: Dice(1) };
        link.apply(division);
        link
    }

    /// Policies and loads are these now.
    pub(crate) fn apply(&mut self, division: &Division) {
        let number = |i: usize| u16::try_from(i).unwrap();
        for (i, policy) in division.groups.iter().enumerate() {
            self.scheduler.set_group(number(i), policy);
        }
        for (i, class) in division.classes.iter().enumerate() {
            self.scheduler.set_class(
                number(i),
                &class.policy,
                class.group.map(|group| number(group as usize)),
            );
        }
        for (sender, class) in self.senders.iter_mut().zip(&division.classes) {
            (sender.load, sender.next) = (class.load, self.now);
        }
    }

    /// No class sends until all queues are empty.
    pub(crate) fn drain(&mut self) {
        self.senders.iter_mut().for_each(|sender| sender.load = Load::Nothing);
        self.run(20 * SECOND);
        assert!(self.senders.iter().all(|sender| sender.queued == 0), "packets are left after 20 s");
    }

    /// Whether who asks for less than is queued of it gets rid of that beside the others.
    pub(crate) fn forgets(&mut self, division: &Division, time_limit: u64) -> bool {
        let due = division.due();
        let end = self.now + time_limit;
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

    pub(crate) fn arrive(&mut self) {
        for (class, sender) in (0..).zip(&mut self.senders) {
            let mut send = |len, queued: &mut u32| {
                let is_taken = *queued + len <= BUFFER && self.scheduler.enqueue(self.now, class, len);
                *queued += if is_taken { len } else { 0 };
                is_taken
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

    pub(crate) fn run(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.arrive();
            let wake = loop {
                match self.scheduler.dequeue(self.now) {
                    Err(wake) => break wake,
                    Ok((class, len)) => {
                        let sender = &mut self.senders[usize::from(class)];
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
    pub(crate) fn rates(&mut self, time: u64) -> Vec<f64> {
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
    pub(crate) fn judge(
        &mut self,
        division: &Division,
        time: u64,
        tolerance: f64,
        largest: u32,
    ) -> Option<String> {
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
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(n)) >> 64) as u64
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Whole numbers whose logarithms are spread evenly.
    pub(crate) fn magnitude(&mut self, least: u64, most: u64) -> u64 {
        let part = self.below(1 << 20) as f64 / f64::from(1 << 20);
        let (low, high) = ((least as f64).ln(), (most as f64 + 1.0).ln());
        ((low + (high - low) * part).exp() as u64).clamp(least, most)
    }

    /// The members of each group.
    pub(crate) fn membership(&mut self) -> Vec<Option<u32>> {
        (0..MANY).map(|_| self.chance(50).then(|| self.below(GROUPS.into()) as u32)).collect()
    }

    /// A policy whose minimum is one that can still be promised, kbit/s, and whose maximum holds `least`.
    pub(crate) fn policy(&mut self, promised: &mut u64, least: u64) -> Policy {
        let weight = u32::try_from(self.magnitude(1, 1000)).unwrap();
        let min = (self.chance(30) && *promised >= 500).then(|| self.magnitude(500, (*promised).min(30_000)));
        *promised -= min.unwrap_or(0);
        let least = min.unwrap_or(0).max(least).max(1000);
        let max = self.chance(30).then(|| self.magnitude(least, 90_000));
        policy(weight, min, max)
    }

    pub(crate) fn load(&mut self, largest: u32) -> Load {
        match self.below(100) {
            0..35 => Load::Greedy(FRAME),
            35..60 => Load::Greedy(largest),
            60..85 => Load::Rate(BitRate::kbit(self.magnitude(300, 50_000))),
            _ => Load::Nothing,
        }
    }

    pub(crate) fn division(&mut self, membership: &[Option<u32>], largest: u32) -> Division {
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
pub(crate) fn policy(weight: u32, min: Option<u64>, max: Option<u64>) -> Policy {
    Policy::new(Weight::new(weight).unwrap(), min.map(BitRate::kbit), max.map(BitRate::kbit)).unwrap()
}

/// A class that floods.
pub(crate) fn flood(weight: u32, min: Option<u64>, max: Option<u64>, group: Option<u32>) -> Class {
    Class { policy: policy(weight, min, max), group, load: Load::Greedy(FRAME) }
}

pub(crate) fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Random policies, each with the demands it began with and with others.
pub(crate) fn random_policies<S: Scheduler>(largest: u32, tolerance: f64, settle: u64, time: u64) {
    let (count, seed) = (number("WEIR_POLICIES", 40), number("WEIR_SEED", 11));
    let mut dice = Dice(seed);
    let mut failed = Vec::new();
    let (mut membership, mut link) = (Vec::new(), None::<Link<S>>);
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
            if !link.forgets(&division, FORGET_TIMEOUT) {
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

/// Random policies and demands, each on a link of its own. Each class that sends has a share of at least
/// `least`; other draws are left out, and more are drawn for them.
pub(crate) fn random_links<S: Scheduler>(
    largest: u32,
    least: BitRate,
    tolerance: f64,
    settle: u64,
    time: u64,
) {
    let (count, seed) = (number("WEIR_POLICIES", 40), number("WEIR_SEED", 11));
    let mut dice = Dice(seed);
    let mut failed = Vec::new();
    let mut judged = 0;
    while judged < count {
        let membership = dice.membership();
        let division = dice.division(&membership, largest);
        let due = division.due();
        let is_served = |(class, due): (&Class, &f64)| class.load == Load::Nothing || *due >= least.0 as f64;
        if !division.classes.iter().zip(&due).all(is_served) {
            continue;
        }
        let mut link = Link::<S>::new(&division);
        link.run(settle);
        if let Some(how) = link.judge(&division, time, tolerance, largest) {
            failed.push(format!("{judged}:\n{how}"));
        }
        judged += 1;
    }
    assert!(failed.is_empty(), "{} of {count} with WEIR_SEED={seed}:\n{}", failed.len(), failed.join("\n"));
}
