//! Packets that are charged as a line frames them: the C side beside weir-units', and no queue behind it.

use proptest::prelude::*;
use weir_units::{Bytes, Cells, Framing, LinkHeader};

use super::{CLASS, Departures, edt_user_bytes, edt_user_frame, edt_user_line_bytes, edt_user_send};
use crate::{
    FramingWord,
    simulation::{CAPACITY, MS, SECOND, Scheduler, policy},
};

fn framing() -> impl Strategy<Value = Framing> {
    let cells = prop_oneof![Just(Cells::None), Just(Cells::Atm), Just(Cells::Ptm)];
    let header = prop_oneof![Just(LinkHeader::Ethernet), Just(LinkHeader::None)];
    (-64..=256i32, 0..=256u32, cells, header).prop_map(|(overhead, mpu, cells, header)| Framing {
        overhead,
        mpu,
        cells,
        header,
    })
}

fn charged(framing: Framing, wire: u32, len: u32, segments: u32, gso_size: u32, excess: i32) -> u64 {
    let FramingWord(word) = Some(framing).into();
    // SAFETY: numbers alone.
    unsafe { edt_user_line_bytes(word, wire, len, segments, gso_size, excess) }.into()
}

proptest! {
    /// `excess`: bytes of each segment that the link does not carry, an Ethernet header more or less.
    #[test]
    fn packet_is_charged_the_lines_bytes_of_each_segment(
        framing in framing(),
        headers in 20..120u32,
        gso_size in 1..9000u32,
        payload in 0..65_000u32,
        excess in prop_oneof![Just(0), Just(14), Just(-14)],
    ) {
        // More segments than the kernel makes are not of interest.
        let gso_size = gso_size.max(payload / 128).max(1);
        let segments = payload.div_ceil(gso_size).max(1);
        let device = if excess > 0 { headers + 14 } else { headers };
        let on_link = |payload: u32| u64::from((device + payload).checked_add_signed(-excess).unwrap());
        let header = framing.header.bytes();
        prop_assume!(on_link(0) >= header);
        let each = (0..segments).map(|i| gso_size.min(payload - (i * gso_size).min(payload)));
        let line: u64 = each.map(|part| framing.line_bytes(on_link(part))).sum();
        let (wire, len) = (segments * device + payload, device + payload);
        let is_super = segments > 1;
        let charge = charged(framing, wire, len, segments, if is_super { gso_size } else { 0 }, excess);
        prop_assert_eq!(charge, line, "{} segments", segments);
    }

    /// The payload of a segment may be unknown. Such a super-packet is charged at least the line's bytes of
    /// segments that are equally long. Each has at most a byte more.
    #[test]
    fn segments_of_unknown_length_are_taken_for_equally_long(
        framing in framing(), len in 100..1500u32, segments in 2..44u32, more in 0..44u32,
    ) {
        let bytes = len * segments + more % segments;
        let charge = charged(framing, bytes, bytes, segments, 0, 0);
        let each = len + u32::from(more % segments > 0);
        prop_assert_eq!(charge, u64::from(segments) * framing.line_bytes(each.into()));
    }
}

/// A flood of three classes of weights 1, 2 and 5 at 99 % of a line for `time`, each packet of `len` bytes. The
/// longest queue behind the stamps in the second half, ns, and the line's bytes that the program counts.
fn queue_behind(line: Framing, charged: Option<Framing>, len: u32, time: u64) -> (u64, u64, u64) {
    let mut departures = Departures::new();
    let FramingWord(word) = charged.into();
    let packet = charged.map_or(1514, |framing| framing.line_bytes(1514));
    // SAFETY: the lock is held.
    unsafe { edt_user_frame(word, packet as u32) };
    for (class, weight) in [1, 2, 5].into_iter().enumerate() {
        departures.set_class(class as u16, &policy(weight, None, None), None);
    }
    let took = line.line_bytes(len.into());
    let rate = weir_units::BitRate(CAPACITY.0 / 99 * 100);
    let (mut now, mut wire_free, mut longest, mut sent) = (SECOND, 0u64, 0, 0);
    let mut waiting = std::collections::BinaryHeap::new();
    let end = now + time;
    while now < end {
        for class in 0..3u32 {
            // A socket's buffer of each class waits at most.
            loop {
                let minor = u32::from(CLASS) + class;
                // SAFETY: as above.
                let stamp = unsafe { edt_user_send(now, minor, len, 1, minor) };
                if stamp == u64::MAX || stamp > now + 20 * MS {
                    if stamp != u64::MAX {
                        waiting.push(std::cmp::Reverse(stamp));
                    }
                    break;
                }
                waiting.push(std::cmp::Reverse(stamp.max(now)));
            }
        }
        now += MS;
        while waiting.peek().is_some_and(|stamp| stamp.0 <= now) {
            let std::cmp::Reverse(stamp) = waiting.pop().unwrap();
            let queue = wire_free.saturating_sub(stamp);
            wire_free = wire_free.max(stamp) + rate.time_to_send(Bytes(took)).as_nanos() as u64;
            sent += 1;
            if now > end - time / 2 {
                longest = longest.max(queue);
            }
        }
    }
    // SAFETY: as above.
    let counted = (0..3).map(|class| unsafe { edt_user_bytes(u32::from(CLASS) + class) }).sum();
    (longest, counted, (sent + waiting.len() as u64) * took)
}

#[test]
fn packets_of_64_bytes_at_99_percent_of_a_line_make_no_queue() {
    for name in ["pppoe-ptm", "pppoe-llcsnap", "ethernet", "ipoa-vcmux"] {
        for header in [LinkHeader::Ethernet, LinkHeader::None] {
            let line = Framing { header, ..name.parse().unwrap() };
            let len = 64 + header.bytes() as u32;
            let (queue, counted, sent) = queue_behind(line, Some(line), len, 4 * SECOND);
            println!("{name} {header:?}: {:.2} ms", queue as f64 / 1e6);
            assert!(queue < 5 * MS, "{name} {header:?}: {queue} ns");
            assert_eq!(counted, sent, "{name} {header:?}: the counters are the line's bytes");
        }
        let line = name.parse().unwrap();
        let (unframed, ..) = queue_behind(line, None, 78, 4 * SECOND);
        // ipoa-vcmux: two cells instead of 78 bytes.
        assert!(unframed > 100 * MS, "{name}: {unframed} ns without a framing");
    }
}
