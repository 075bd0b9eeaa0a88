//! Packets of 64 bytes a second, one thread, 800 and 1,600 users. That these get their rates: `rates.rs`.

mod users;

use std::time::{Duration, Instant};

use users::Users;

const PACKETS: u64 = if cfg!(debug_assertions) { 100_000 } else { 2_000_000 };

/// Nanoseconds a packet: as a whole, and with a clock read after each part of each batch.
#[expect(clippy::disallowed_methods, reason = "a test of speed reads the clock")]
fn round(users: &mut Users) -> (f64, f64, f64) {
    let each = |time: Duration, packets: u64| time.as_secs_f64() * 1e9 / packets as f64;
    let start = Instant::now();
    let packets = users.run(PACKETS);
    let whole = each(start.elapsed(), packets);
    let (mut enqueue, mut dequeue, mut packets) = (Duration::ZERO, Duration::ZERO, 0);
    while packets < PACKETS / 4 {
        let start = Instant::now();
        packets += users.dequeue();
        let middle = Instant::now();
        users.enqueue();
        enqueue += middle.elapsed();
        dequeue += middle - start;
    }
    (whole, each(enqueue, packets), each(dequeue, packets))
}

/// No limit is asserted but for one that another order of growth would miss: this may run
/// beside anything.
#[test]
fn packets_go_through_the_scheduler_in_much_less_than_a_microsecond() {
    for count in [800, 1_600] {
        for (name, active) in [("all", count), ("two of three", count * 2 / 3)] {
            let mut users = Users::new(count, active, 64);
            users.run(u64::from(count) * 50);
            let mut rounds = (0..7).map(|_| round(&mut users)).collect::<Vec<_>>();
            rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (whole, enqueue, dequeue) = rounds[3];
            println!(
                "{count} users, {name}: {:.1} Mpps, {whole:.1} ns a packet; enqueue {enqueue:.1}, dequeue {dequeue:.1}",
                1_000.0 / whole
            );
            assert!(whole < if cfg!(debug_assertions) { 50_000.0 } else { 1_000.0 });
        }
    }
}
