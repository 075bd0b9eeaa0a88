//! Content digests: the names of blobs, and the hash that proves them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How a digest is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// SHA-256: 64 hexadecimal digits.
    Sha256,
    /// SHA-512: 128 hexadecimal digits.
    Sha512,
}

impl Algorithm {
    /// As it is written before the colon, and as the directory is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    fn digits(self) -> usize {
        match self {
            Algorithm::Sha256 => 64,
            Algorithm::Sha512 => 128,
        }
    }
}

/// `sha256:` or `sha512:` and lower-case hexadecimal digits, as the OCI image specification
/// has it ("Digests"). Invariant: nothing else, so it is safe as the name of a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    hex: Box<str>,
}

/// The text is not a digest that weir can verify.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{0}` as a digest: sha256: and 64, or sha512: and 128, lower-case hexadecimal digits")]
pub struct BadDigest(String);

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(algorithm: Algorithm, bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    /// How it is computed.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// Whether these bytes are what it names.
    #[must_use]
    pub fn names(&self, bytes: &[u8]) -> bool {
        Digest::of(self.algorithm, bytes) == *self
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Digest, BadDigest> {
        let bad = || BadDigest(text.chars().take(160).collect());
        let (name, hex) = text.split_once(':').ok_or_else(bad)?;
        let algorithm =
            [Algorithm::Sha256, Algorithm::Sha512].into_iter().find(|a| a.name() == name).ok_or_else(bad)?;
        let is_hex = hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if hex.len() != algorithm.digits() || !is_hex {
            return Err(bad());
        }
        Ok(Digest { algorithm, hex: hex.into() })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A digest in the making.
#[derive(Clone)]
pub struct Hasher {
    algorithm: Algorithm,
    context: ring::digest::Context,
}

impl Hasher {
    /// Of nothing yet.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Hasher {
        let how = match algorithm {
            Algorithm::Sha256 => &ring::digest::SHA256,
            Algorithm::Sha512 => &ring::digest::SHA512,
        };
        Hasher { algorithm, context: ring::digest::Context::new(how) }
    }

    /// Takes more bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    /// The digest of all bytes taken in.
    #[must_use]
    pub fn finish(self) -> Digest {
        use fmt::Write;
        let done = self.context.finish();
        let mut hex = String::with_capacity(2 * done.as_ref().len());
        for byte in done.as_ref() {
            // Writing to a string does not fail.
            let _ = write!(hex, "{byte:02x}");
        }
        Digest { algorithm: self.algorithm, hex: hex.into() }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        // FIPS 180-4's example, and the empty text.
        assert_eq!(
            Digest::of(Algorithm::Sha256, b"abc").to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(Digest::of(Algorithm::Sha512, b"").hex().starts_with("cf83e1357eefb8bdf1542850d66d8007"));
    }

    #[test]
    fn what_is_not_a_digest_is_no_file_name() {
        let hex = "a".repeat(64);
        assert!(format!("sha256:{hex}").parse::<Digest>().is_ok());
        for text in [
            String::new(),
            hex.clone(),
            format!("sha256:{}", &hex[1..]),
            format!("sha256:{hex}a"),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha512:{hex}"),
            format!("md5:{}", &hex[32..]),
            format!("sha256:../../{}", &hex[6..]),
            format!("sha256:{}é", &hex[2..]),
        ] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
