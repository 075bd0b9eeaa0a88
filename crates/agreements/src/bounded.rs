//! Numbers in JSON and TOML that every language can hold: TOML's integers have 63 bits.

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};
use weir_units::{BitRate, Bytes};

/// A rate up to [`BitRate::MAX`].
pub(crate) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BitRate, D::Error> {
    let rate = BitRate::deserialize(deserializer)?;
    if rate > BitRate::MAX {
        return Err(D::Error::custom(format!("{} bit/s are more than {}", rate.0, BitRate::MAX)));
    }
    Ok(rate)
}

/// A rate up to [`BitRate::MAX`], if there is one.
pub(crate) fn optional_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BitRate>, D::Error> {
    rate(deserializer).map(Some)
}

/// A size as a number of bytes, or as text if it has 64 bits.
pub(crate) fn optional_size<S: Serializer>(size: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
    match size {
        None => serializer.serialize_none(),
        Some(Bytes(bytes)) if i64::try_from(*bytes).is_err() => serializer.collect_str(&format!("{bytes}B")),
        Some(Bytes(bytes)) => serializer.serialize_u64(*bytes),
    }
}
