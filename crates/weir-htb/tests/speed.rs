//! Packets of 64 bytes a second, one thread, 800 and 1,600 users; and that these get their rates.

mod users;

use std::time::{Duration, Instant};

use users::Users;

/// Of virtual time.
const SECONDS: u64 = if cfg!(debug_assertions) { 1 } else { 5 };
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

#[test]
fn users_get_their_rates_to_a_thousandth_and_the_link_is_full() {
    for (count, active) in [(800, 800), (800, 533), (1_600, 1_600), (1_600, 1_067)] {
        let mut users = Users::new(count, active, 64);
        // Bursts first: 5 s, then the next 5 s are counted. In virtual time.
        let (before, then) = {
            users.run(users.link.bytes_per_sec() / 64 * SECONDS);
            users.sent()
        };
        users.run(users.link.bytes_per_sec() / 64 * SECONDS);
        let (after, now) = users.sent();
        let seconds = (now - then).as_secs_f64();
        let mbit = |user: u32| {
            let user = user as usize - 1;
            (after[user] - before[user]) as f64 * 8.0 / 1e6 / seconds
        };
        let total: f64 = (1..=count).map(mbit).sum();
        let link = users.link.as_mbit();
        println!(
            "{active} of {count} users: {:.4} and {:.4} Mbit/s, {total:.2} of {link} in all",
            mbit(1),
            mbit(2)
        );
        assert!((total / link - 1.0).abs() < 0.001, "{total}");
        if active == count {
            for user in 1..=count {
                let want = if user % 2 == 0 { 0.5 } else { 2.0 };
                assert!((mbit(user) / want - 1.0).abs() < 0.001, "user {user}: {}", mbit(user));
            }
        }
    }
}
