//! From 8 kbit/s to 400 Gbit/s, from one leaf to 65,536, from two levels to 64.

use std::time::Duration;

use weir_htb::{ClassId, Departure, Htb, Limits, Next, Packet, Params};
use weir_units::{BitRate, Bytes, Instant};

fn packet(len: u32) -> Packet {
    Packet { handle: 0, len }
}

/// Sends all that waits. When the last packet left, and the leaves in their order.
fn send_all(htb: &mut Htb) -> (Instant, Vec<u32>) {
    let (mut now, mut leaves) = (Instant::default(), Vec::new());
    loop {
        match htb.dequeue(now) {
            Next::Packet(Departure { leaf, .. }) => leaves.push(leaf.0),
            Next::At(then) => now = then,
            Next::Empty => return (now, leaves),
        }
    }
}

#[test]
fn a_rate_is_held_to_a_thousandth_from_8_kbit_to_400_gbit() {
    for rate in [8_000, 1_234_567, 100_000_000, 10_000_000_000, 100_000_000_000, 400_000_000_000u64] {
        for len in [64, 782, 1_514, 65_536] {
            let count = 2_000;
            let limits = Limits { classes: 2, packets: count, depth: 2 };
            let mut htb = Htb::new(limits, Instant::default());
            let burst = Bytes(len.into());
            let params = Params::new(BitRate(rate)).burst(burst).cburst(burst).limit(count);
            htb.add(ClassId(1), None, params).unwrap();
            (0..count).for_each(|_| htb.enqueue(ClassId(1), packet(len)).unwrap());
            let (last, _) = send_all(&mut htb);
            // Debt beyond 60 s is forgiven. The first leaves at once, and one more from the burst.
            let each = (f64::from(len) * 8.0 / rate as f64).min(60.0);
            let (want, last) = (each * f64::from(count - 1), last.0.as_secs_f64());
            assert!(last >= (want - 1.1 * each) * 0.999_999, "{rate} bit/s, {len} bytes: {last} for {want}");
            assert!(last <= want * 1.001 + 1e-9, "{rate} bit/s, {len} bytes: {last} for {want}");
        }
    }
}

#[test]
fn sixty_five_thousand_leaves_take_turns_in_the_order_of_their_numbers() {
    let leaves = 65_536;
    let limits = Limits { classes: leaves + 1, packets: 2 * leaves, depth: 2 };
    let mut htb = Htb::new(limits, Instant::default());
    htb.add(ClassId(leaves), None, Params::new(BitRate::gbit(10))).unwrap();
    let params = Params::new(BitRate::kbit(8)).ceil(BitRate::gbit(10)).burst(Bytes(0)).quantum(64);
    // From both ends, so that they have to be put in order.
    let half = leaves / 2;
    for leaf in (0..half).flat_map(|i| [i, leaves - 1 - i]) {
        htb.add(ClassId(leaf), Some(ClassId(leaves)), params).unwrap();
    }
    for leaf in 0..leaves {
        (0..2).for_each(|_| htb.enqueue(ClassId(leaf), packet(64)).unwrap());
    }
    let (last, order) = send_all(&mut htb);
    let link = BitRate::gbit(10).time_to_send(Bytes(2 * u64::from(leaves) * 64));
    assert!(last.0 <= link, "lent at once: {last:?} instead of {link:?}");
    // One packet of each by its own tokens, then one of each by the link's.
    let (own, lent) = order.split_at(leaves as usize);
    let each_once = (0..leaves).collect::<Vec<_>>();
    assert_eq!((own, lent), (&*each_once, &*each_once));
}

#[test]
fn sixty_four_levels_lend_from_the_top() {
    let depth = Limits::MAX_DEPTH;
    let limits = Limits { classes: depth.into(), packets: 2_000, depth };
    let mut htb = Htb::new(limits, Instant::default());
    let (low, high) = (BitRate::kbit(8), BitRate::mbit(100));
    for i in 0..u32::from(depth) {
        let params = Params::new(if i == 0 { high } else { low }).ceil(high).limit(2_000);
        htb.add(ClassId(i), i.checked_sub(1).map(ClassId), params).unwrap();
    }
    let leaf = ClassId(u32::from(depth) - 1);
    (0..2_000).for_each(|_| htb.enqueue(leaf, packet(1_250)).unwrap());
    let (last, _) = send_all(&mut htb);
    let full = Duration::from_micros(100) * 2_000;
    assert!(last.0 <= full && last.0 > full * 98 / 100, "{last:?} for {full:?}");
    let stats = |i| htb.stats(ClassId(i)).unwrap();
    assert!(stats(0).lended > 1_900 && stats(leaf.0).borrowed > 1_900);
    assert_eq!(stats(0).packets, 2_000);
}
