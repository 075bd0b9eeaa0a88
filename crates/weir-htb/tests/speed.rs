//! Packets of 64 bytes a second, one thread, 800 and 1,600 users; and that these get their rates.

mod users;

use std::time::{Duration, Instant};

use users::Users;
use weir_units::{BitRate, Bytes};

/// Of virtual time.
const MILLIS: u64 = if cfg!(debug_assertions) { 100 } else { 5_000 };
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

/// The experiments of the paper whose users have 64 bytes, and the others' users with these.
#[test]
fn users_get_their_rates_to_a_few_packets_and_the_link_is_full() {
    for (count, active) in [(800, 800), (800, 533), (1_600, 1_600), (1_600, 1_067)] {
        let mut users = Users::new(count, active, 64);
        let packets = users.link.bytes_per_sec() / 64 * MILLIS / 1_000;
        // The first bursts, which are not counted.
        users.run(packets);
        let (before, then) = users.sent();
        users.run(packets);
        let (after, now) = users.sent();
        let time = now - then;
        let sent = |user: u32| after[user as usize - 1] - before[user as usize - 1];
        let all = (1..=count).map(sent).sum::<u64>();
        let mbit = |bytes| BitRate::of(Bytes(bytes), time).as_mbit();
        let link = users.link.as_mbit();
        println!(
            "{active} of {count} users in {time:?}: {:.4} and {:.4} Mbit/s, {:.3} of {link} in all",
            mbit(sent(1)),
            mbit(sent(2)),
            mbit(all)
        );
        assert!((mbit(all) / link - 1.0).abs() < 0.001, "{}", mbit(all));
        for user in (1..=count).filter(|_| active == count) {
            let rate = if user % 2 == 0 { BitRate::kbit(500) } else { BitRate::mbit(2) };
            // A turn sooner or later, and the bucket fuller or emptier.
            let burst = rate.bytes_per_sec() / 1_000 + 1_600;
            let (want, may) = (rate.bytes_in(time).0, 1_514 + burst + 64);
            assert!(sent(user).abs_diff(want) <= may, "user {user}: {}, not {want}", sent(user));
        }
    }
}
