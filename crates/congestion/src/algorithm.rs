use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize};

/// Name of a congestion control algorithm, as the kernel knows it: `cubic`, `bbr`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Algorithm(String);

/// The text is no name that a kernel can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the name of a congestion control: 1 to {most} letters, digits, `_` or `-`",
    most = Algorithm::MAX_LENGTH
)]
pub struct AlgorithmError(pub String);

impl Algorithm {
    /// Characters at most: the kernel's `TCP_CA_NAME_MAX` without its final zero.
    pub const MAX_LENGTH: usize = 15;

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As the kernel has it: zeros to the end.
    #[must_use]
    pub fn to_kernel(&self) -> [u8; 16] {
        let mut name = [0; 16];
        name[..self.0.len()].copy_from_slice(self.0.as_bytes());
        name
    }

    /// As the kernel told it; none if that is no name.
    #[must_use]
    pub fn from_kernel(name: &[u8]) -> Option<Algorithm> {
        let end = name.iter().position(|c| *c == 0).unwrap_or(name.len());
        std::str::from_utf8(&name[..end]).ok()?.parse().ok()
    }
}

impl FromStr for Algorithm {
    type Err = AlgorithmError;

    fn from_str(text: &str) -> Result<Algorithm, AlgorithmError> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if text.is_empty() || text.len() > Algorithm::MAX_LENGTH || !text.chars().all(good) {
            return Err(AlgorithmError(text.to_owned()));
        }
        Ok(Algorithm(text.to_owned()))
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for Algorithm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Algorithm, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
