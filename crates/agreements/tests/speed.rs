//! With a million reservations in the calendar, an admission takes less than 50 microseconds.

use std::time::{Duration, Instant};

use weir_agree::{Calendar, Earliest, Interval, Limits, Refusal, Request, Utc};
use weir_units::BitRate;

const RESERVATIONS: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
const ADMISSIONS: usize = 20_000;

/// The promise holds for optimised code; without optimisation the test is a guard against a
/// slower order of growth only.
const LIMIT: Duration = Duration::from_micros(if cfg!(debug_assertions) { 2_000 } else { 50 });

/// Five years in milliseconds.
const SPAN: i64 = 5 * 365 * 86_400_000;

/// Numbers without an order that the calendar could profit from.
struct Scrambled(u64);

impl Scrambled {
    fn below(&mut self, bound: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * bound as u128) >> 64) as i64
    }
}

/// From an hour to a month, anywhere in the span; 10 kbit/s to 10 Mbit/s.
fn request(numbers: &mut Scrambled) -> Request {
    let start = numbers.below(SPAN);
    let end = start + 3_600_000 + numbers.below(30 * 86_400_000);
    let min = BitRate(10_000 * (1 + numbers.below(1_000) as u64));
    let (start, end) = (Some(Utc::from_millis(start)), Some(Utc::from_millis(end)));
    Request { min, max: BitRate::mbit(10), start, end }
}

/// The lower quartile of a call's time: the machine may be busy with something else meanwhile.
#[expect(clippy::disallowed_methods, reason = "a test of speed reads the clock")]
fn quartile(calls: usize, mut call: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..calls)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[calls / 4]
}

#[test]
fn an_admission_among_a_million_reservations_is_within_the_limit() {
    let mut numbers = Scrambled(1);
    let mut calendar = Calendar::new(Limits::new(BitRate(BitRate::MAX.0 / 100)));
    for _ in 0..RESERVATIONS {
        let Request { min, start, end, .. } = request(&mut numbers);
        let _kept = calendar.insert(min, Interval { start: start.unwrap(), end });
    }
    let now = Utc::MIN;
    let bytes = calendar.memory() / RESERVATIONS;

    let admit = quartile(ADMISSIONS, || {
        let (booking, _) = calendar.reserve(&request(&mut numbers), now).unwrap();
        calendar.release(booking, now);
    });
    let instants = calendar.instants();
    // Half of the moments are now too full for ten more Mbit/s: each request passes many of them.
    let typical = calendar.reserved_at(Utc::from_millis(SPAN / 2));
    let link = BitRate((typical.0 + 10_000_000) * 10 / 9);
    calendar.set_limits(Limits { link, ..*calendar.limits() });
    let (mut refused, mut unknown) = (0, 0);
    let refuse = quartile(ADMISSIONS / 10, || {
        let request = Request { min: BitRate::mbit(10), ..request(&mut numbers) };
        if let Err(Refusal::NoCapacity(shortage)) = calendar.check(&request, now) {
            refused += 1;
            unknown += u32::from(matches!(shortage.earliest, Earliest::NotBefore(_)));
        }
    });

    println!(
        "{RESERVATIONS} reservations, {instants} instants, {bytes} bytes a reservation: admitted and given back in \
         {admit:?} (lower quartile), limit {LIMIT:?}; tested with counter-offers in {refuse:?} ({refused} refused, {unknown} of them \
         without an earliest start); debug assertions: {}",
        cfg!(debug_assertions)
    );
    assert!(refused > 0);
    assert!(admit < LIMIT, "{admit:?}");
    assert!(refuse < LIMIT, "{refuse:?}");
    assert!(bytes <= 2 * 2 * 56, "{bytes}");
}
