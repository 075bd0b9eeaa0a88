//! Token buckets as moments, in ticks of 1/256 ns.
//!
//! The kernel keeps tokens and when they were counted, `(tokens, t_c)`. Both become one moment,
//! `empty_until = t_c - tokens`: tokens are there from then on, and `now - empty_until` is how
//! many, at most the burst. Nothing has to be refilled.

use weir_units::{BitRate, Bytes};

/// Ticks in a nanosecond. At 400 Gbit/s 64 bytes are 1.28 ns; a tick holds that to 0.1 %.
pub(crate) const TICKS_PER_NS: u64 = 256;
/// Debt that is forgiven, as the kernel's `mbuffer`: no class waits longer for one packet.
pub(crate) const MAX_DEBT: u64 = 60_000_000_000 * TICKS_PER_NS;
/// The deepest bucket: 104 days.
pub(crate) const MAX_DEPTH: u64 = 1 << 61;
/// Fraction bits of a price.
const FRACTION: u32 = 24;

/// The cost of a byte at a rate, in ticks with 24 bits behind the point, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Price(u64);

impl Price {
    /// `rate` is at least 8 bit/s, so that a byte costs less than 2^38 ticks.
    pub(crate) fn at(rate: BitRate) -> Price {
        let per_byte = (u128::from(8_000_000_000 * TICKS_PER_NS) << FRACTION).div_ceil(u128::from(rate.0));
        Price(u64::try_from(per_byte).unwrap_or(u64::MAX))
    }

    /// Ticks for `len` bytes, rounded up so that no rate is exceeded; `len` is below 2^24.
    #[inline]
    pub(crate) fn of(self, len: u32) -> u64 {
        let scaled = u128::from(self.0) * u128::from(len) + ((1 << FRACTION) - 1);
        (scaled >> FRACTION) as u64
    }

    /// How deep a bucket of `burst` is, in ticks; at most [`MAX_DEPTH`].
    pub(crate) fn depth(self, burst: Bytes) -> u64 {
        let scaled = (u128::from(self.0) * u128::from(burst.0)) >> FRACTION;
        u64::try_from(scaled).unwrap_or(u64::MAX).min(MAX_DEPTH)
    }
}

/// The bucket's moment after `cost` was taken at `now`.
#[inline]
pub(crate) fn take(empty_until: u64, now: u64, depth: u64, cost: u64) -> u64 {
    empty_until.max(now - depth).saturating_add(cost).min(now + (MAX_DEBT - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn price_is_at_most_a_tick_and_a_hundred_millionth_too_long(
            rate in prop_oneof![8..1_000_000u64, 1_000_000..=400_000_000_000u64, Just(10_000_000_000_000)],
            len in 1..1u32 << 24,
        ) {
            let cost = u128::from(Price::at(BitRate(rate)).of(len));
            let exact = u128::from(len) * 8_000_000_000 * u128::from(TICKS_PER_NS);
            prop_assert!(cost * u128::from(rate) >= exact, "too fast");
            // The price itself is rounded up by less than 2^-24 ticks a byte.
            let allowed = exact / u128::from(rate) + 2 + (u128::from(len) >> FRACTION);
            prop_assert!(cost <= allowed, "{cost} > {allowed}");
        }
    }

    #[test]
    fn sixty_four_bytes_at_400_gbit_are_held_to_a_thousandth() {
        let cost = Price::at(BitRate::gbit(400)).of(64);
        assert_eq!(cost, 328, "1.28 ns are 327.68 ticks");
    }
}
