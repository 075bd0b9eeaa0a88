use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes. Text uses IEC prefixes: `64k`, `64KiB`, `1MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// The text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseSizeError {
    /// Not a number followed by a unit of the list.
    #[error("cannot read `{0}` as a size: write a number and a unit, such as 1500, 64k or 1MiB")]
    Syntax(String),
    /// More than 2^64 - 1 bytes.
    #[error("cannot read `{0}` as a size: more than {max} bytes", max = u64::MAX)]
    TooLarge(String),
}

/// `number * scale` for a decimal fraction such as `1.5`, rounded down; `None` unless the
/// text is digits with at most one point. Saturates far above every limit callers set.
pub(crate) fn decimal_times(number: &str, scale: u64) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || (number.contains('.') && part.is_empty()) {
        return None;
    }
    let whole = whole.parse::<u128>().unwrap_or(u128::MAX);
    let part = &part[..part.len().min(18)];
    let tenths = 10u128.pow(u32::try_from(part.len()).ok()?);
    let fraction = if part.is_empty() { 0 } else { part.parse::<u128>().ok()? * u128::from(scale) / tenths };
    Some(whole.saturating_mul(u128::from(scale)).saturating_add(fraction))
}

impl fmt::Display for Bytes {
    /// In the largest IEC unit that leaves a number of at least one: `1.5MiB`, `64KiB`, `1500B`.
    #[allow(clippy::cast_precision_loss)]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut unit = 0;
        while unit + 1 < units.len() && self.0 >> (10 * (unit + 1)) > 0 {
            unit += 1;
        }
        let value = self.0 as f64 / (1u64 << (10 * unit)) as f64;
        let text = if self.0.is_multiple_of(1 << (10 * unit)) {
            format!("{}{}", self.0 >> (10 * unit), units[unit])
        } else {
            format!("{value:.1}{}", units[unit])
        };
        f.pad(&text)
    }
}

impl FromStr for Bytes {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Bytes, ParseSizeError> {
        let syntax = || ParseSizeError::Syntax(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit = unit.trim_start().to_ascii_lowercase();
        let shift = match unit.strip_suffix('b').unwrap_or(&unit) {
            "" => 0,
            "k" | "ki" => 10,
            "m" | "mi" => 20,
            "g" | "gi" => 30,
            "t" | "ti" => 40,
            _ => return Err(syntax()),
        };
        let value = decimal_times(number, 1 << shift).ok_or_else(syntax)?;
        u64::try_from(value).map(Bytes).map_err(|_| ParseSizeError::TooLarge(text.to_owned()))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes that is not negative, or a text such as \"64MiB\"")
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Bytes, E> {
                Ok(Bytes(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Bytes, E> {
                u64::try_from(v).map(Bytes).map_err(|_| E::invalid_value(de::Unexpected::Signed(v), &self))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Bytes, E> {
                v.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_iec_prefixes() {
        for (text, want) in
            [("1500", 1500), ("64k", 65_536), ("64KiB", 65_536), ("1.5 MiB", 1_572_864), ("9B", 9)]
        {
            assert_eq!(text.parse(), Ok(Bytes(want)), "{text}");
        }
        assert!("-1".parse::<Bytes>().is_err());
        assert!(matches!("99999999999T".parse::<Bytes>(), Err(ParseSizeError::TooLarge(_))));
    }

    #[test]
    fn sizes_print_short() {
        assert_eq!(Bytes(65_536).to_string(), "64KiB");
        assert_eq!(Bytes(1_500).to_string(), "1.5KiB");
        assert_eq!(Bytes(12).to_string(), "12B");
        assert_eq!(Bytes(u64::MAX).to_string(), "16.0EiB");
    }
}
