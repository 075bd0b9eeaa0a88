//! Each configuration is accepted, refused or warned about with numbers and a way out; nothing
//! panics.

use proptest::prelude::*;
use weir_htb::{
    ClassError, ClassId, ClassSpec, EnqueueError, Htb, Limits, Next, Packet, Params, Tokens, Warning,
};
use weir_units::{BitRate, Bytes, Instant};

const LIMITS: Limits = Limits { classes: 16, packets: 8, depth: 3 };

fn htb() -> Htb {
    Htb::new(LIMITS, Instant::default())
}

fn mbit(n: u64) -> Params {
    Params::new(BitRate::mbit(n))
}

fn id(n: u32) -> ClassId {
    ClassId(n)
}

#[test]
fn what_cannot_be_is_refused_with_its_numbers_and_changes_nothing() {
    let mut htb = htb();
    htb.add(id(1), None, mbit(10)).unwrap();
    htb.add(id(2), Some(id(1)), mbit(5)).unwrap();
    htb.add(id(3), Some(id(2)), mbit(5)).unwrap();
    let (class, rate, ceil) = (id(4), BitRate::mbit(5), BitRate::mbit(4));
    let too_fast = BitRate(BitRate::MAX.0 + 1);
    for (class, parent, params, want) in [
        (id(16), None, mbit(5), ClassError::TooManyClasses { class: id(16), classes: 16 }),
        (id(1), None, mbit(5), ClassError::Exists { class: id(1) }),
        (class, Some(id(9)), mbit(5), ClassError::UnknownParent { class, parent: id(9) }),
        (class, Some(class), mbit(5), ClassError::UnknownParent { class, parent: class }),
        (class, Some(id(99)), mbit(5), ClassError::UnknownParent { class, parent: id(99) }),
        (class, Some(id(3)), mbit(5), ClassError::TooDeep { class, depth: 3 }),
        (class, None, Params::new(BitRate(7)), ClassError::Rate { class, rate: BitRate(7) }),
        (class, None, mbit(5).ceil(too_fast), ClassError::Rate { class, rate: too_fast }),
        (class, None, mbit(5).ceil(ceil), ClassError::CeilBelowRate { class, ceil, rate }),
        (class, None, mbit(5).quantum(0), ClassError::Quantum { class, quantum: 0 }),
        (class, None, mbit(5).quantum(1 << 31), ClassError::Quantum { class, quantum: 1 << 31 }),
        (class, None, mbit(5).prio(8), ClassError::Prio { class, prio: 8 }),
    ] {
        assert_eq!(htb.add(class, parent, params), Err(want));
        assert!(class == id(1) || !htb.exists(class));
    }
    assert_eq!(
        htb.change(id(3), mbit(5).ceil(ceil)),
        Err(ClassError::CeilBelowRate { class: id(3), ceil, rate })
    );
    assert_eq!(htb.params(id(3)), Some(mbit(5)));
    assert_eq!(htb.change(class, mbit(5)), Err(ClassError::Unknown { class }));
    assert_eq!(htb.remove(class), Err(ClassError::Unknown { class }));
    assert_eq!(htb.remove(id(2)), Err(ClassError::HasChildren { class: id(2), children: 1 }));
    assert_eq!(htb.drain(class, |_| ()), Err(ClassError::Unknown { class }));

    htb.add(id(5), Some(id(1)), mbit(1)).unwrap();
    htb.enqueue(id(5), Packet { handle: 0, len: 64 }).unwrap();
    let busy = ClassError::HasPackets { class: id(5), packets: 1 };
    assert_eq!(htb.add(class, Some(id(5)), mbit(1)), Err(busy));
    assert_eq!(htb.remove(id(5)), Err(busy));
    assert_eq!(htb.drain(id(5), |packet| assert_eq!(packet.len, 64)), Ok(1));
    assert_eq!(htb.remove(id(5)), Ok(()));
    assert_eq!(htb.stats(id(5)), None);
}

#[test]
fn an_error_says_what_to_do() {
    let mut htb = htb();
    let error = htb.add(id(4), None, mbit(5).ceil(BitRate::mbit(4))).unwrap_err();
    let want = "cannot give class 4 a ceil of 4mbit: its rate is 5mbit (raise ceil or lower rate)";
    assert_eq!(error.to_string(), want);
    let error = htb.add(id(16), None, mbit(5)).unwrap_err();
    let want = "cannot add class 16: numbers are below 16 here (raise `Limits::classes`, at most 262144)";
    assert_eq!(error.to_string(), want);
}

#[test]
fn what_may_not_be_meant_is_warned_about() {
    let mut htb = htb();
    assert!(htb.add(id(1), None, mbit(10)).unwrap().is_empty());
    assert!(htb.add(id(2), Some(id(1)), mbit(6)).unwrap().is_empty());
    let params = mbit(6).ceil(BitRate::mbit(20)).burst(Bytes(100)).quantum(200);
    let warnings = htb.add(id(3), Some(id(1)), params).unwrap();
    let exceeded = |mbit| Warning::ChildrenExceedParent {
        parent: id(1),
        rate: BitRate::mbit(10),
        children: BitRate::mbit(mbit),
    };
    let want = [
        exceeded(12),
        Warning::CeilAboveParent { class: id(3), ceil: BitRate::mbit(20), parent: BitRate::mbit(10) },
        Warning::BurstBelowPacket { class: id(3), burst: Bytes(100) },
        Warning::QuantumBelowPacket { class: id(3), quantum: 200 },
    ];
    assert_eq!(warnings.iter().collect::<Vec<_>>(), want);
    let text = want[0].to_string();
    assert!(text.contains("rate of 10mbit") && text.contains("12mbit") && text.contains("raise"), "{text}");
    assert!(htb.change(id(3), mbit(4)).unwrap().is_empty());
    assert_eq!(htb.change(id(1), mbit(9)).unwrap().iter().count(), 1);
    htb.remove(id(3)).unwrap();
    assert!(htb.change(id(1), mbit(6)).unwrap().is_empty());
}

#[test]
fn a_packet_that_is_not_taken_is_counted_and_says_which_limit() {
    let mut htb = htb();
    htb.add(id(1), None, mbit(10)).unwrap();
    htb.add(id(2), Some(id(1)), mbit(5).limit(2)).unwrap();
    htb.add(id(3), Some(id(1)), mbit(5)).unwrap();
    let packet = |len| Packet { handle: 7, len };
    assert_eq!(htb.enqueue(id(1), packet(64)), Err(EnqueueError::NotALeaf { class: id(1) }));
    assert_eq!(htb.enqueue(id(4), packet(64)), Err(EnqueueError::NotALeaf { class: id(4) }));
    assert_eq!(htb.enqueue(id(400), packet(64)), Err(EnqueueError::NotALeaf { class: id(400) }));
    for len in [0, Packet::MAX_LEN + 1, u32::MAX] {
        assert_eq!(htb.enqueue(id(2), packet(len)), Err(EnqueueError::Length { class: id(2), len }));
    }
    htb.enqueue(id(2), packet(64)).unwrap();
    htb.enqueue(id(2), packet(64)).unwrap();
    assert_eq!(htb.enqueue(id(2), packet(64)), Err(EnqueueError::LeafFull { class: id(2), limit: 2 }));
    (0..6).for_each(|_| htb.enqueue(id(3), packet(64)).unwrap());
    assert_eq!(htb.enqueue(id(3), packet(64)), Err(EnqueueError::AllFull { class: id(3), packets: 8 }));
    assert_eq!(htb.stats(id(2)).unwrap().drops, 4);
    assert_eq!(htb.stats(id(3)).unwrap().drops, 1);
    assert_eq!(htb.waiting(), 8);
}

#[test]
fn a_packet_larger_than_the_burst_leaves_and_is_a_giant() {
    let mut htb = htb();
    htb.add(id(1), None, mbit(8).burst(Bytes(2_000)).cburst(Bytes(2_000))).unwrap();
    htb.enqueue(id(1), Packet { handle: 0, len: 64_000 }).unwrap();
    htb.enqueue(id(1), Packet { handle: 1, len: 64 }).unwrap();
    assert!(matches!(htb.dequeue(Instant::default()), Next::Packet(_)));
    // 62,000 bytes of debt at 1,000,000 bytes a second.
    let ms = |n| std::time::Duration::from_millis(n);
    assert_eq!(htb.dequeue(Instant::default()), Next::At(Instant(ms(62))));
    let stats = htb.stats(id(1)).unwrap();
    assert_eq!((stats.giants, stats.tokens, stats.overlimits), (1, Tokens::Owe(ms(62)), 1));
    assert!(matches!(htb.dequeue(Instant(ms(62))), Next::Packet(_)));
    assert_eq!(htb.dequeue(Instant(ms(62))), Next::Empty);
}

fn any_params() -> impl Strategy<Value = Params> {
    let number = || prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>(), 0..100_000_000_000u64];
    let small = || prop_oneof![Just(0), Just(1), Just(u32::MAX), any::<u32>()];
    (
        number(),
        number(),
        prop::option::of(number()),
        prop::option::of(number()),
        prop::option::of(small()),
        any::<u8>(),
        small(),
    )
        .prop_map(|(rate, ceil, burst, cburst, quantum, prio, limit)| Params {
            rate: BitRate(rate),
            ceil: BitRate(ceil),
            burst: burst.map(Bytes),
            cburst: cburst.map(Bytes),
            quantum,
            prio: prio % 10,
            limit,
        })
}

proptest! {
    #[test]
    fn no_configuration_and_no_time_makes_it_panic(
        limits in (0..40u32, 0..200u32, any::<u8>()),
        specs in prop::collection::vec((0..50u32, prop::option::of(0..50u32), any_params()), 0..60),
        sane in any::<bool>(),
        ops in prop::collection::vec((0..50u32, any::<u32>(), any::<u64>(), 0..6u8, any_params()), 0..100),
        from in any::<u64>(),
    ) {
        let limits = Limits { classes: limits.0, packets: limits.1, depth: limits.2 };
        let specs = specs.into_iter().map(|(class, parent, params)| {
            // Half of the cases with parameters that are accepted, so that packets flow.
            let params = if sane { Params { prio: params.prio % 8, ..mbit(1) } } else { params };
            ClassSpec { id: id(class), parent: parent.map(id), params }
        });
        let specs = specs.collect::<Vec<_>>();
        let mut now = Instant(std::time::Duration::from_nanos(from));
        match Htb::build(limits, now, &specs) {
            Ok((_, warnings)) => { let _ = warnings.iter().map(Warning::to_string).collect::<String>(); }
            Err(error) => { let _ = error.to_string(); }
        }
        let mut htb = Htb::new(limits, now);
        for spec in &specs {
            let _ = htb.add(spec.id, spec.parent, spec.params);
        }
        for (class, raw, time, op, params) in ops {
            match op {
                0 => { let _ = htb.change(id(class), params); }
                1 => { let _ = htb.remove(id(class)); }
                2 => {
                    now = Instant(std::time::Duration::new(time >> (raw & 63), 0));
                    while let Next::Packet(_) = htb.dequeue(now) {}
                }
                _ => { let _ = htb.enqueue(id(class), Packet { handle: 0, len: raw >> (time & 31) }); }
            }
        }
    }
}

#[test]
fn a_configuration_may_be_in_any_order() {
    let spec =
        |class, parent: Option<u32>| ClassSpec { id: id(class), parent: parent.map(id), params: mbit(1) };
    let lines = [spec(3, Some(2)), spec(2, Some(1)), spec(5, Some(1)), spec(1, None)];
    let (htb, warnings) = Htb::build(LIMITS, Instant::default(), &lines).unwrap();
    assert!([1, 2, 3, 5].iter().all(|class| htb.exists(id(*class))));
    assert_eq!(warnings.len(), 1, "two children of 1 Mbit/s below one of 1 Mbit/s");
    let refused = |lines: &[ClassSpec]| Htb::build(LIMITS, Instant::default(), lines).unwrap_err();
    assert_eq!(refused(&[spec(1, Some(1))]), ClassError::Cycle { class: id(1) });
    assert_eq!(
        refused(&[spec(1, Some(2)), spec(2, Some(3)), spec(3, Some(2))]),
        ClassError::Cycle { class: id(2) }
    );
    assert_eq!(refused(&[spec(1, Some(2))]), ClassError::UnknownParent { class: id(1), parent: id(2) });
    assert_eq!(refused(&[spec(1, None), spec(1, None)]), ClassError::Exists { class: id(1) });
}
