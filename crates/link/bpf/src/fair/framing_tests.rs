//! Packets that the qdisc charges as a line frames them.

use weir_units::{Cells, Framing};

use super::{CLASS, Mode, Qdisc, link_params, user_bytes};
use crate::simulation::{BUFFER, CAPACITY, FRAME, SECOND, SUPER_PACKET, policy};

/// The line's bytes of a packet of the simulation. A super-packet is TCP over IPv4.
fn on_line(line: Framing, len: u32) -> u64 {
    let segment = |at: u32| line.line_bytes(FRAME.min(len - at).into());
    (0..len).step_by(FRAME as usize).map(segment).sum()
}

/// The line's bytes of two classes of weights 1 and 3 over four seconds, and how far the link was ahead of
/// the line, ms. The first class sends frames, the second one packets of `len` bytes.
fn sent(mode: Mode, charged: Option<Framing>, line: Framing, len: u32) -> ([u64; 2], f64) {
    let qdisc = Qdisc::in_mode(mode);
    qdisc.set_link(&link_params(mode, charged));
    let lens = [FRAME, len];
    for (class, weight) in [(0, 1), (1, 3)] {
        qdisc.set(CLASS + class, &policy(weight, None, None), 0);
    }
    let (mut now, mut queued, mut bytes, mut wire) = (SECOND, [0; 2], [0; 2], 0.0f64);
    let mut ahead = 0.0f64;
    let end = now + 4 * SECOND;
    while now < end {
        for class in 0..2 {
            while queued[class] + lens[class] <= BUFFER {
                qdisc.enqueue(now, CLASS + class as u16, lens[class]);
                queued[class] += lens[class];
            }
        }
        match qdisc.dequeue(now) {
            Ok((minor, len)) => {
                let class = usize::from(minor - CLASS);
                queued[class] -= len;
                let line = on_line(line, len);
                bytes[class] += line;
                wire = wire.max(now as f64) + line as f64 * 8e9 / CAPACITY.0 as f64;
                ahead = ahead.max(wire - now as f64);
            }
            Err(wake) => now = wake.max(now + 1),
        }
    }
    if charged.is_some() {
        for (class, bytes) in (0..).zip(bytes) {
            // SAFETY: the qdisc is this thread's.
            let counted = unsafe { user_bytes(u32::from(CLASS) + class) };
            assert_eq!(counted, bytes, "the counters are the line's bytes");
        }
    }
    (bytes, ahead / 1e6)
}

fn lines() -> [Framing; 5] {
    let own = Framing { overhead: -20, mpu: 100, cells: Cells::None, ..Framing::default() };
    let preset = |name: &str| name.parse::<Framing>().unwrap();
    [preset("pppoe-ptm"), preset("pppoe-llcsnap"), preset("ethernet"), preset("ipoa-vcmux"), own]
}

#[test]
fn framed_packets_fill_the_line_in_shares_of_its_bytes() {
    for mode in [Mode::Fair, Mode::Credit] {
        for line in lines() {
            for len in [78, FRAME, SUPER_PACKET] {
                let ([a, b], ahead) = sent(mode, Some(line), line, len);
                let (rate, share) = ((a + b) as f64 * 2.0 / CAPACITY.0 as f64, a as f64 / (a + b) as f64);
                println!("{mode:?} {line} {len}: {rate:.4} of the line, {share:.3}, {ahead:.2} ms ahead");
                assert!((rate - 1.0).abs() < 0.005, "{mode:?} {line} of {len}: {rate} of the line");
                assert!((share - 0.25).abs() < 0.01, "{mode:?} {line} of {len}: {a} and {b} of 1 and 3");
                assert!(ahead < 14.0, "{mode:?} {line} of {len}: {ahead} ms behind the scheduler");
            }
        }
    }
    // Without a framing the same flood takes far longer on the line than it was given.
    let line = lines()[1];
    let ([a, b], ahead) = sent(Mode::Fair, None, line, 78);
    assert!((a + b) as f64 * 2.0 > 1.3 * CAPACITY.0 as f64 && ahead > 1000.0, "{a} {b} {ahead}");
}
