//! The same packets leave at the same moments as from a naive model of the kernel's HTB, with random
//! trees, random traffic, and classes that come, change and go meanwhile.

mod model;

use std::time::Duration;

use model::Model;
use proptest::prelude::*;
use weir_htb::{ClassId, Departure, Htb, Limits, Next, Packet, Params, Tokens};
use weir_units::{BitRate, Bytes, Instant};

const CLASSES: u32 = 24;
const PACKETS: u32 = 120;

/// Something that happens; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Op {
    Add {
        id: u32,
        parent: Option<u32>,
        params: Params,
    },
    Change {
        id: u32,
        params: Params,
    },
    Remove {
        id: u32,
    },
    Drain {
        id: u32,
    },
    Enqueue {
        leaf: u32,
        lens: Vec<u32>,
    },
    /// Leaves, and packets of each, that come together.
    Together {
        runs: Vec<(u32, Vec<u32>)>,
    },
    /// Some packets for every leaf, so that all compete.
    Fill {
        lens: Vec<u32>,
    },
    /// This number of packets leave now, if they may.
    Dequeue(u8),
    /// The same, asked for together.
    Batch(u8),
    /// To the moment that was announced, that many times, with all that leaves.
    Follow(u8),
    /// Some time passes.
    Pass(u64),
}

fn params() -> impl Strategy<Value = Params> {
    let rate = prop_oneof![
        4 => 500_000..20_000_000u64,
        2 => 8_000..100_000u64,
        1 => 1_000_000_000..400_000_000_000u64,
        1 => Just(8u64),
    ];
    // How much higher the ceiling is, in eighths.
    let above = prop_oneof![3 => Just(0u64), 3 => 1..80u64];
    let burst = || prop::option::of(prop_oneof![0..5_000u64, 5_000..200_000u64]);
    let quantum = prop::option::of(prop_oneof![1..1_600u32, 1_600..70_000u32]);
    let prio = prop_oneof![4 => Just(0u8), 1 => 0..8u8];
    let limit = prop_oneof![4 => Just(50u32), 1 => 0..4u32];
    (rate, above, burst(), burst(), quantum, prio, limit).prop_map(
        |(rate, above, burst, cburst, quantum, prio, limit)| Params {
            rate: BitRate(rate),
            ceil: BitRate(rate + rate / 8 * above),
            burst: burst.map(Bytes),
            cburst: cburst.map(Bytes),
            quantum,
            prio,
            limit,
        },
    )
}

fn add() -> impl Strategy<Value = Op> {
    (0..CLASSES + 1, prop::option::weighted(0.8, 0..CLASSES), params())
        .prop_map(|(id, parent, params)| Op::Add { id, parent, params })
}

/// Few classes at the top, so that trees are found that are deep and that are wide.
fn tree() -> impl Strategy<Value = Vec<Op>> {
    let classes = prop::collection::vec((any::<u32>(), params(), 0..6u32), 2..CLASSES as usize);
    (classes, any::<bool>()).prop_map(|(classes, lending)| {
        let classes = (0..).zip(classes);
        classes
            .map(|(i, (raw, params, shape))| {
                let parent = match shape {
                    _ if i == 0 => None,
                    0 => Some(i - 1),
                    1 => (raw % 8 != 0).then_some(0),
                    _ => Some(raw % i),
                };
                // Numbers in another order than that of their making.
                let id = |i: u32| i * 7 % CLASSES;
                // Half of the trees lend almost all from the top, in small turns.
                let params = match (lending, i) {
                    (false, _) => params,
                    (true, 0) => Params { rate: BitRate::mbit(20), ceil: BitRate::mbit(20), ..params },
                    (true, _) => Params {
                        rate: BitRate::kbit(8),
                        ceil: BitRate::mbit(20),
                        quantum: Some(1 + raw % 3_000),
                        limit: 50,
                        ..params
                    },
                };
                Op::Add { id: id(i), parent: parent.map(id), params }
            })
            .collect()
    })
}

/// Nanoseconds: within a packet's time, some packets', seconds, and up to 231 days.
fn pass() -> impl Strategy<Value = u64> {
    prop_oneof![
        10 => 0..2_000u64,
        20 => 0..5_000_000u64,
        5 => 0..5_000_000_000u64,
        1 => 0..20_000_000_000_000_000u64,
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![6 => 64..1_515u32, 1 => 1_515..66_000u32, 1 => Just(0u32), 1 => Just(64u32)];
    let lens = prop::collection::vec(64..1_515u32, 1..6);
    // Also to who is no leaf, to one twice, and too many.
    let runs = prop::collection::vec((0..CLASSES + 2, prop::collection::vec(len.clone(), 1..20)), 1..6);
    prop_oneof![
        8 => runs.prop_map(|runs| Op::Together { runs }),
        6 => lens.prop_map(|lens| Op::Fill { lens }),
        12 => (0..CLASSES, prop::collection::vec(len, 1..8)).prop_map(|(leaf, lens)| Op::Enqueue { leaf, lens }),
        4 => (1..20u8).prop_map(Op::Dequeue),
        4 => (1..40u8).prop_map(Op::Batch),
        8 => (1..12u8).prop_map(Op::Follow),
        4 => pass().prop_map(Op::Pass),
        1 => add(),
        1 => (0..CLASSES, params()).prop_map(|(id, params)| Op::Change { id, params }),
        1 => (0..CLASSES).prop_map(|id| Op::Remove { id }),
        1 => (0..CLASSES).prop_map(|id| Op::Drain { id }),
    ]
}

struct Pair {
    core: Htb,
    model: Model,
    depth: u8,
    now: u64,
    /// When both are to be asked again.
    announced: u64,
    handle: u32,
    left: usize,
}

fn instant(ns: u64) -> Instant {
    Instant(Duration::from_nanos(ns))
}

impl Pair {
    fn new(depth: u8) -> Pair {
        let limits = Limits { classes: CLASSES, packets: PACKETS, depth };
        // The origin is not zero, as no clock's is.
        let core = Htb::new(limits, instant(ORIGIN));
        let model = Model::new(CLASSES, PACKETS as usize, depth);
        Pair { core, model, depth, now: 0, announced: 0, handle: 0, left: 0 }
    }

    /// Both are asked once; whether a packet left.
    fn dequeue(&mut self) -> bool {
        let next = self.core.dequeue(instant(ORIGIN + self.now));
        let want = self.model.dequeue(self.now);
        match next {
            Next::Packet(departure) => {
                assert_eq!(Some((departure.leaf, departure.packet)), want, "at {}", self.now);
                assert!(self.announced <= self.now, "announced {}, left at {}", self.announced, self.now);
                self.left += 1;
                return true;
            }
            Next::At(then) => {
                assert_eq!(want, None, "at {}", self.now);
                let then = u64::try_from(then.0.as_nanos()).unwrap() - ORIGIN;
                let first = self.model.next_event().expect("packets wait for something");
                assert!(then > self.now && then <= first, "at {}: {then}, {first}", self.now);
                self.announced = then;
            }
            Next::Empty => {
                assert_eq!(want, None);
                assert_eq!(self.model.waiting(), 0);
            }
        }
        false
    }

    /// Up to `most` packets leave together, from the model one after the other.
    fn batch(&mut self, most: usize) -> usize {
        let mut left = vec![Departure::default(); most];
        let sent = self.core.dequeue_batch(instant(ORIGIN + self.now), &mut left);
        for (n, departure) in left.iter().enumerate() {
            let got = (n < sent).then_some((departure.leaf, departure.packet));
            assert_eq!(got, self.model.dequeue(self.now), "packet {n} of {sent} at {}", self.now);
            if n >= sent {
                break;
            }
        }
        self.left += sent;
        sent
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Add { id, parent, params } => {
                let added = self.core.add(ClassId(*id), parent.map(ClassId), *params);
                assert_eq!(added.is_ok(), self.model.add(*id, *parent, *params), "{added:?}");
            }
            Op::Change { id, params } => {
                let changed = self.core.change(ClassId(*id), *params);
                assert_eq!(changed.is_ok(), self.model.change(*id, *params), "{changed:?}");
            }
            Op::Remove { id } => {
                let removed = self.core.remove(ClassId(*id));
                assert_eq!(removed.is_ok(), self.model.remove(*id), "{removed:?}");
            }
            Op::Drain { id } => {
                let mut drained = Vec::new();
                let _ = self.core.drain(ClassId(*id), |packet| drained.push(packet));
                assert_eq!(drained, self.model.drain(*id));
            }
            Op::Enqueue { leaf, lens } => {
                for len in lens {
                    let packet = Packet { handle: self.handle, len: *len };
                    self.handle += 1;
                    let taken = self.core.enqueue(ClassId(*leaf), packet);
                    assert_eq!(taken.is_ok(), self.model.enqueue(*leaf, packet), "{taken:?}");
                }
            }
            Op::Together { runs } => {
                let lens = runs.iter().flat_map(|(leaf, lens)| lens.iter().map(|len| (ClassId(*leaf), *len)));
                let packets = (self.handle..).zip(lens);
                let packets = packets.map(|(handle, (leaf, len))| (leaf, Packet { handle, len }));
                let packets = packets.collect::<Vec<_>>();
                self.handle += packets.len() as u32;
                let mut refused = Vec::new();
                self.core.enqueue_batch(packets.iter().copied(), |leaf, packet, error| {
                    refused.push((leaf, packet, error.to_string()));
                });
                let want = packets.iter().filter(|(leaf, packet)| !self.model.enqueue(leaf.0, *packet));
                let want = want.copied().collect::<Vec<_>>();
                let got = refused.iter().map(|(leaf, packet, _)| (*leaf, *packet)).collect::<Vec<_>>();
                assert_eq!(got, want, "{refused:?}");
            }
            Op::Fill { lens } => {
                for leaf in 0..CLASSES {
                    self.run(&Op::Enqueue { leaf, lens: lens.clone() });
                }
            }
            Op::Dequeue(n) => {
                let _ = (0..*n).all(|_| self.dequeue());
            }
            Op::Batch(most) => {
                self.batch(usize::from(*most));
            }
            Op::Follow(n) => {
                for i in 0..*n {
                    // Alternately together and one by one.
                    while i % 2 == 1 && self.batch(7) == 7 {}
                    while self.dequeue() {}
                    self.now = self.now.max(self.announced);
                }
                return;
            }
            Op::Pass(ns) => self.now += ns,
        }
        // The announcement held for the packets that were there.
        self.announced = 0;
    }

    fn compare_counters(&self) {
        for i in 0..CLASSES {
            let Some(stats) = self.core.stats(ClassId(i)) else {
                assert!(!self.model.class.contains_key(&i));
                continue;
            };
            let class = &self.model.class[&i];
            let got = (stats.packets, stats.bytes.0, stats.lended, stats.borrowed, stats.overlimits);
            let want = (class.packets, class.bytes, class.lended, class.borrowed, class.overlimits);
            assert_eq!(got, want, "class {i} at depth {}", self.depth);
            assert_eq!((stats.drops, stats.giants), (class.drops, class.giants));
            assert_eq!(stats.backlog as usize, class.queue.len());
            let bytes = class.queue.iter().map(|packet| u64::from(packet.len)).sum::<u64>();
            assert_eq!(stats.backlog_bytes.0, bytes);
            let nanos = |tokens| match tokens {
                Tokens::Have(time) => i128::try_from(time.as_nanos()).unwrap(),
                Tokens::Owe(time) => -i128::try_from(time.as_nanos()).unwrap(),
            };
            assert_eq!([nanos(stats.tokens), nanos(stats.ctokens)], self.model.tokens(i), "class {i}");
            assert_eq!(self.core.params(ClassId(i)), Some(class.params));
        }
        assert_eq!(self.core.waiting() as usize, self.model.waiting());
    }
}

/// A year's uptime.
const ORIGIN: u64 = 31_536_000_000_000_000;

fn check(depth: u8, tree: &[Op], ops: &[Op]) -> usize {
    let mut pair = Pair::new(depth);
    for op in tree.iter().chain(ops) {
        pair.run(op);
        if !matches!(op, Op::Enqueue { .. } | Op::Together { .. } | Op::Fill { .. } | Op::Add { .. }) {
            pair.compare_counters();
        }
    }
    pair.run(&Op::Follow(40));
    pair.compare_counters();
    pair.left
}

fn cases() -> u32 {
    let asked = std::env::var("WEIR_HTB_CASES").ok().and_then(|cases| cases.parse().ok());
    asked.unwrap_or(if cfg!(debug_assertions) { 300 } else { 5_000 })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn the_same_packets_leave_at_the_same_moments_as_from_a_naive_htb(
        depth in prop_oneof![Just(2u8), Just(3), Just(4), Just(8), Just(24)],
        tree in tree(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        check(depth, &tree, &ops);
    }
}
