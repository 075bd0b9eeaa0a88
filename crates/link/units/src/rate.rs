use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Bytes;

/// Bits per second, counted on the wire as tc counts (layer 2, without preamble and gap).
///
/// Zero is a valid value of a measurement ("sent nothing"); what is configured is checked
/// to be positive where it is configured. Serialised as a plain number of bit/s; read
/// from a number of bit/s or from text such as `"20mbit"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BitRate(pub u64);

/// The text is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseRateError {
    /// Not a number followed by a unit of the list.
    #[error(
        "cannot read `{0}` as a rate: write a number and a unit, such as 500kbit, 20mbit, 1.5gbit, 20Mbps or 20M"
    )]
    Syntax(String),
    /// Below zero.
    #[error("cannot read `{0}` as a rate: a rate is not negative")]
    Negative(String),
    /// More than [`BitRate::MAX`].
    #[error("cannot read `{0}` as a rate: more than {max}", max = BitRate::MAX)]
    TooLarge(String),
}

impl BitRate {
    /// The largest rate that can be configured: 10 Tbit/s, a hundred times today's links,
    /// low enough that no sum of a million of them overflows.
    pub const MAX: BitRate = BitRate(10_000_000_000_000);
    /// No traffic.
    pub const ZERO: BitRate = BitRate(0);

    /// Kilobits per second (10^3).
    #[must_use]
    pub const fn kbit(n: u64) -> BitRate {
        BitRate(n * 1_000)
    }

    /// Megabits per second (10^6).
    #[must_use]
    pub const fn mbit(n: u64) -> BitRate {
        BitRate(n * 1_000_000)
    }

    /// Gigabits per second (10^9).
    #[must_use]
    pub const fn gbit(n: u64) -> BitRate {
        BitRate(n * 1_000_000_000)
    }

    /// The number of bits per second.
    #[must_use]
    pub const fn bits_per_sec(self) -> u64 {
        self.0
    }

    /// tc's and the kernel's unit, rounded down.
    #[must_use]
    pub const fn bytes_per_sec(self) -> u64 {
        self.0 / 8
    }

    /// In megabits, for people and plots.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn as_mbit(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The bytes that this rate carries in `time`, rounded down; saturates.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> Bytes {
        let bytes = u128::from(self.0) * time.as_nanos() / 8_000_000_000;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Time to put `len` on the wire, rounded up so that pacing never exceeds the rate.
    /// At a rate of zero: the longest `Duration` of whole nanoseconds in a `u64`.
    #[must_use]
    pub fn time_to_send(self, len: Bytes) -> Duration {
        if self.0 == 0 {
            return Duration::from_nanos(u64::MAX);
        }
        let nanos = (u128::from(len.0) * 8_000_000_000).div_ceil(u128::from(self.0));
        Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX))
    }

    /// The mean rate of `len` over `time`; zero if `time` is zero.
    #[must_use]
    pub fn of(len: Bytes, time: Duration) -> BitRate {
        if time.is_zero() {
            return BitRate::ZERO;
        }
        let bits = u128::from(len.0) * 8_000_000_000 / time.as_nanos();
        BitRate(u64::try_from(bits).unwrap_or(u64::MAX))
    }

    /// `self * num / den` in 128 bits, rounded down; saturates. `den` is not zero.
    #[must_use]
    pub fn scale(self, num: u64, den: u64) -> BitRate {
        let v = u128::from(self.0) * u128::from(num) / u128::from(den);
        BitRate(u64::try_from(v).unwrap_or(u64::MAX))
    }

    /// Difference, at least zero.
    #[must_use]
    pub fn saturating_sub(self, rhs: BitRate) -> BitRate {
        BitRate(self.0.saturating_sub(rhs.0))
    }

    /// Sum, at most `u64::MAX`.
    #[must_use]
    pub fn saturating_add(self, rhs: BitRate) -> BitRate {
        BitRate(self.0.saturating_add(rhs.0))
    }
}

impl fmt::Display for BitRate {
    /// As `tc` prints: `20mbit`, `1.5gbit`, `800kbit`, `12345bit`; at most three decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0 => return f.pad("0bit"),
            v if v >= 1_000_000_000 => (1_000_000_000, "gbit"),
            v if v >= 1_000_000 => (1_000_000, "mbit"),
            v if v >= 1_000 => (1_000, "kbit"),
            _ => (1, "bit"),
        };
        let (whole, part) = (self.0 / unit, self.0 % unit * 1_000 / unit);
        let text = if part == 0 {
            format!("{whole}{name}")
        } else {
            let digits = format!("{part:03}");
            format!("{whole}.{}{name}", digits.trim_end_matches('0'))
        };
        f.pad(&text)
    }
}

impl FromStr for BitRate {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<BitRate, ParseRateError> {
        let syntax = || ParseRateError::Syntax(text.to_owned());
        let trimmed = text.trim();
        if let Some(rest) = trimmed.strip_prefix('-') {
            let number = rest.trim_start().starts_with(|c: char| c.is_ascii_digit());
            return Err(if number { ParseRateError::Negative(text.to_owned()) } else { syntax() });
        }
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit.trim_start().to_ascii_lowercase();
        let stem =
            ["bit/s", "bits", "bit", "bps", "b/s"].iter().find_map(|s| unit.strip_suffix(s)).unwrap_or(&unit);
        let scale: u64 = match stem {
            "" => 1,
            "k" => 1_000,
            "m" => 1_000_000,
            "g" => 1_000_000_000,
            "t" => 1_000_000_000_000,
            "ki" => 1 << 10,
            "mi" => 1 << 20,
            "gi" => 1 << 30,
            "ti" => 1 << 40,
            _ => return Err(syntax()),
        };
        let value = crate::size::decimal_times(number, scale).ok_or_else(syntax)?;
        match u64::try_from(value) {
            Ok(v) if v <= BitRate::MAX.0 => Ok(BitRate(v)),
            _ => Err(ParseRateError::TooLarge(text.to_owned())),
        }
    }
}

impl Serialize for BitRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for BitRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BitRate, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = BitRate;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate in bit/s, as a number or as text such as \"20mbit\"")
            }
            fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<BitRate, E> {
                Ok(BitRate(v))
            }
            fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<BitRate, E> {
                u64::try_from(v).map(BitRate).map_err(|_| E::custom(ParseRateError::Negative(v.to_string())))
            }
            fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<BitRate, E> {
                v.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_read_in_the_syntaxes_people_use() {
        for (text, want) in [
            ("20mbit", 20_000_000),
            ("20Mbit", 20_000_000),
            ("20Mbps", 20_000_000),
            ("20 Mbit/s", 20_000_000),
            ("20M", 20_000_000),
            ("1.5gbit", 1_500_000_000),
            ("500kbit", 500_000),
            ("8kibit", 8_192),
            ("1Mibps", 1_048_576),
            ("64000", 64_000),
            ("9bit", 9),
        ] {
            assert_eq!(text.parse(), Ok(BitRate(want)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_rate_is_refused_with_its_reason() {
        for text in ["", "mbit", "20 apples", "1.2.3mbit", "--5", "1e9", "20mbitx", "."] {
            assert!(matches!(text.parse::<BitRate>(), Err(ParseRateError::Syntax(_))), "{text}");
        }
        assert!(matches!("-5mbit".parse::<BitRate>(), Err(ParseRateError::Negative(_))));
        for text in ["99999999gbit", "340282366920938463463374607431768211456", "18446744073709551616tbit"] {
            assert!(matches!(text.parse::<BitRate>(), Err(ParseRateError::TooLarge(_))), "{text}");
        }
    }

    #[test]
    fn a_rate_reads_from_json_as_number_or_text() {
        assert_eq!(serde_json::from_str::<BitRate>("5000").unwrap(), BitRate(5000));
        assert_eq!(serde_json::from_str::<BitRate>("\"5kbit\"").unwrap(), BitRate(5000));
        assert!(serde_json::from_str::<BitRate>("-1").is_err());
    }

    proptest! {
        #[test]
        fn printing_and_reading_keep_four_digits(rate in 1..BitRate::MAX.0) {
            let back: BitRate = BitRate(rate).to_string().parse().unwrap();
            prop_assert!(back.0 <= rate && rate - back.0 <= rate / 1_000 + 1);
        }

        #[test]
        fn pacing_by_time_to_send_never_exceeds_the_rate(rate in 1..BitRate::MAX.0, len in 1..10_000_000u64) {
            let time = BitRate(rate).time_to_send(Bytes(len));
            prop_assert!(u128::from(rate) * time.as_nanos() >= u128::from(len) * 8_000_000_000);
        }
    }
}
