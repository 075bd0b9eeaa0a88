//! Two stages do what one thread does: in step, the same packets at the same moments; out of step, what
//! it does with packets that come when the dequeue stage looks; and nothing is lost, on two threads.

use std::{collections::VecDeque, time::Duration};

use proptest::prelude::*;
use weir_htb::{ClassId, Departure, EnqueueError, Htb, Limits, Next, Packet, Params};
use weir_units::{BitRate, Instant};

const LEAVES: u32 = 12;
const LIMIT: u32 = 20;

/// Two levels of parents above twelve leaves of different rates, priorities and quanta.
fn tree(seed: u32) -> Htb {
    let mut htb = Htb::new(Limits { classes: 20, packets: 150, depth: 4 }, Instant::default());
    htb.add(ClassId(19), None, Params::new(BitRate::mbit(10))).unwrap();
    for parent in 16..19 {
        let params = Params::new(BitRate::mbit(3)).ceil(BitRate::mbit(8));
        htb.add(ClassId(parent), Some(ClassId(19)), params).unwrap();
    }
    for leaf in 0..LEAVES {
        let raw = seed.wrapping_mul(2_654_435_761).wrapping_add(leaf * 40_503);
        let params = Params::new(BitRate::kbit(u64::from(100 + raw % 1_500)))
            .ceil(BitRate::mbit(8))
            .prio((raw >> 8) as u8 % 3)
            .quantum(500 + (raw >> 12) % 3_000)
            .limit(LIMIT);
        htb.add(ClassId(leaf), Some(ClassId(16 + leaf % 3)), params).unwrap();
    }
    htb
}

#[derive(Debug, Clone)]
enum Op {
    Enqueue {
        leaf: u32,
        lens: Vec<u32>,
    },
    /// This number leave, if they may; the two stages are in step before.
    Batch(u8),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..LEAVES + 2, prop::collection::vec(0..1_600u32, 1..9))
            .prop_map(|(leaf, lens)| Op::Enqueue { leaf, lens }),
        3 => (1..40u8).prop_map(Op::Batch),
        3 => (0..5_000_000u64).prop_map(Op::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn pipeline_in_step_sends_and_refuses_as_one_thread_does(
        seed in any::<u32>(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut single = tree(seed);
        let (mut intake, mut outlet) = tree(seed).into_pipeline();
        let (mut now, mut handle) = (Instant::default(), 0);
        for op in ops {
            match op {
                Op::Enqueue { leaf, lens } => for len in lens {
                    let packet = Packet { handle, len };
                    handle += 1;
                    let want = single.enqueue(ClassId(leaf), packet);
                    prop_assert_eq!(intake.enqueue(ClassId(leaf), packet), want);
                },
                Op::Batch(most) => {
                    let mut want = vec![Departure::default(); most.into()];
                    let mut got = want.clone();
                    let sent = single.dequeue_batch(now, &mut want);
                    prop_assert_eq!(outlet.dequeue_batch(now, &mut got), sent);
                    prop_assert_eq!(&got, &want);
                    if sent < got.len() {
                        prop_assert_eq!(outlet.dequeue(now), single.dequeue(now));
                    }
                    outlet.give_back(&got[..sent]);
                    let mut back = Vec::new();
                    intake.collect(|leaf, handle| back.push((leaf, handle)));
                    let left = want[..sent].iter().map(|d| (d.leaf, d.packet.handle));
                    prop_assert_eq!(back, left.collect::<Vec<_>>());
                }
                Op::Pass(ns) => now = now + Duration::from_nanos(ns),
            }
        }
        for class in 0..20 {
            let got = outlet.stats(ClassId(class));
            let want = single.stats(ClassId(class));
            prop_assert_eq!(intake.drops(ClassId(class)), want.map_or(0, |want| want.drops));
            // A packet that is still in the ring is in no leaf yet.
            if got.map(|got| got.backlog) == want.map(|want| want.backlog) {
                prop_assert_eq!(got.map(|got| (got.packets, got.tokens)), want.map(|want| (want.packets, want.tokens)));
            }
        }
    }

    /// The dequeue stage looks at moments of its own. A leaf never has more than may wait, and what
    /// leaves is what one thread lets leave to which the packets come at those moments.
    #[test]
    fn out_of_step_it_is_as_if_packets_came_when_the_dequeue_stage_looks(
        seed in any::<u32>(),
        rounds in prop::collection::vec((0..LEAVES, 1..1_500u32, 0..12u8, any::<bool>(), any::<bool>(), 0..400_000u64), 1..200),
    ) {
        let mut single = tree(seed);
        let (mut intake, mut outlet) = tree(seed).into_pipeline();
        let (mut now, mut ring) = (Instant::default(), VecDeque::new());
        for (handle, (leaf, len, packets, looks, collects, ns)) in (0..).zip(rounds) {
            for _ in 0..packets {
                let packet = Packet { handle, len };
                match intake.enqueue(ClassId(leaf), packet) {
                    Ok(()) => ring.push_back((ClassId(leaf), packet)),
                    Err(error) => {
                        let full = matches!(error, EnqueueError::LeafFull { .. } | EnqueueError::AllFull { .. });
                        prop_assert!(full, "{}", error);
                    }
                }
            }
            if looks {
                for (leaf, packet) in ring.drain(..) {
                    single.enqueue(leaf, packet).expect("what was let in has room");
                }
                let (mut got, mut want) = ([Departure::default(); 9], [Departure::default(); 9]);
                let sent = outlet.dequeue_batch(now, &mut got);
                prop_assert_eq!(single.dequeue_batch(now, &mut want), sent);
                prop_assert_eq!(got, want);
                outlet.give_back(&got[..sent]);
            }
            if collects {
                intake.collect(|_, _| ());
            }
            prop_assert!(intake.on_their_way(ClassId(leaf)) <= LIMIT);
            now = now + Duration::from_nanos(ns);
        }
    }
}

/// Lengths of 64 KiB and more take two words in the ring, which come apart wherever words are taken out.
#[test]
fn packets_in_a_batch_fare_as_packets_one_by_one() {
    let (mut single, (mut intake, mut outlet)) = (tree(2), tree(2).into_pipeline());
    let mut handle = 0;
    for round in 0..200u32 {
        let packets = (0..1 + round % 90).map(|i| {
            handle += 1;
            let len = if (round + i) % 3 == 0 { 70_000 + i } else { 64 + i };
            (ClassId((round * 7 + i * 5) % (LEAVES + 1)), Packet { handle, len })
        });
        let packets = packets.collect::<Vec<_>>();
        let (mut refused, mut want) = (Vec::new(), Vec::new());
        intake.enqueue_batch(packets.iter().copied(), |leaf, packet, error| {
            refused.push((leaf, packet, error))
        });
        for (leaf, packet) in packets {
            want.extend(single.enqueue(leaf, packet).err().map(|error| (leaf, packet, error)));
        }
        assert_eq!(refused, want);
        let now = Instant(Duration::from_millis(u64::from(round) * 40));
        let (mut got, mut want) = ([Departure::default(); 70], [Departure::default(); 70]);
        let sent = outlet.dequeue_batch(now, &mut got);
        assert_eq!((sent, got), (single.dequeue_batch(now, &mut want), want));
        outlet.give_back(&got[..sent]);
        assert_eq!(intake.collect(|_, _| ()), sent);
    }
    assert!(single.stats(ClassId(0)).unwrap().packets > 20 && single.stats(ClassId(0)).unwrap().drops > 20);
}

#[test]
fn on_two_threads_every_packet_leaves_once_and_in_the_order_of_its_leaf() {
    const EACH: u32 = if cfg!(miri) { 40 } else { 3_000 };
    let (mut intake, mut outlet) = tree(1).into_pipeline();
    let mut next = [0; LEAVES as usize];
    let mut collected = 0;
    std::thread::scope(|scope| {
        let enqueue = scope.spawn(move || {
            for handle in 0..EACH {
                for leaf in 0..LEAVES {
                    // A full leaf is tried again, which leaves no order to chance.
                    while intake.enqueue(ClassId(leaf), Packet { handle, len: 64 + handle % 1_000 }).is_err()
                    {
                        collected += intake.collect(|_, _| ());
                        std::thread::yield_now();
                    }
                }
            }
            while collected < (EACH * LEAVES) as usize {
                collected += intake.collect(|_, _| ());
                std::thread::yield_now();
            }
            (0..LEAVES).map(|leaf| intake.on_their_way(ClassId(leaf))).sum::<u32>()
        });
        let (mut now, mut left) = (Instant::default(), [Departure::default(); 32]);
        let mut all = 0;
        while all < EACH * LEAVES {
            let sent = outlet.dequeue_batch(now, &mut left);
            for departure in &left[..sent] {
                let want = &mut next[departure.leaf.0 as usize];
                assert_eq!(departure.packet.handle, *want, "leaf {}", departure.leaf);
                *want += 1;
            }
            outlet.give_back(&left[..sent]);
            all += sent as u32;
            match outlet.dequeue(now) {
                // That one counts too.
                Next::Packet(departure) => {
                    assert_eq!(departure.packet.handle, next[departure.leaf.0 as usize]);
                    next[departure.leaf.0 as usize] += 1;
                    outlet.give_back(&[departure]);
                    all += 1;
                }
                Next::At(then) => now = then,
                Next::Empty => std::thread::yield_now(),
            }
        }
        assert_eq!(enqueue.join().unwrap(), 0, "all came back");
        assert_eq!(outlet.strays(), 0);
    });
    assert!(next.iter().all(|sent| *sent == EACH));
}

#[test]
fn classes_come_and_go_while_packets_are_on_their_way_and_none_is_lost() {
    let (mut intake, mut outlet) = tree(1).into_pipeline();
    let packet = |handle| Packet { handle, len: 100 };
    let (old, new) = (ClassId(3), ClassId(13));
    (0..5).for_each(|handle| intake.enqueue(old, packet(handle)).unwrap());
    let mut left = [Departure::default(); 2];
    assert_eq!(outlet.dequeue_batch(Instant::default(), &mut left), 2);
    intake.enqueue(old, packet(5)).unwrap();
    intake.set_limit(old, None);
    assert_eq!(intake.enqueue(old, packet(6)), Err(EnqueueError::NotALeaf { class: old }));

    outlet.remove(old).unwrap();
    outlet.add(new, Some(ClassId(16)), Params::new(BitRate::mbit(1))).unwrap();
    outlet.change(ClassId(4), Params::new(BitRate::mbit(2))).unwrap();
    assert!(outlet.remove(ClassId(16)).is_err(), "it has children");
    outlet.give_back(&left);
    assert_eq!(intake.enqueue(new, packet(7)), Err(EnqueueError::NotALeaf { class: new }));
    intake.set_limit(new, Some(1));
    intake.enqueue(new, packet(7)).unwrap();
    assert_eq!(intake.enqueue(new, packet(8)), Err(EnqueueError::LeafFull { class: new, limit: 1 }));

    // Three that waited, two that left, one that came too late.
    assert_eq!(outlet.dequeue_batch(Instant::default(), &mut left), 1);
    assert_eq!((left[0].leaf, left[0].packet), (new, packet(7)));
    assert_eq!(outlet.strays(), 1);
    let mut back = Vec::new();
    intake.collect(|leaf, handle| back.push((leaf.0, handle)));
    assert_eq!(back, [(3, 2), (3, 3), (3, 4), (3, 0), (3, 1), (3, 5)]);
    assert_eq!((intake.on_their_way(old), intake.on_their_way(new)), (0, 1));
}
