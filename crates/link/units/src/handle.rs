use std::{fmt, str::FromStr};

/// A traffic-control handle, `major:minor`, both printed and read in hex as tc does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TcHandle(pub u32);

/// The text is not `major:minor` in hex.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{0}` as a tc handle: write major:minor in hex, such as 1:a")]
pub struct ParseHandleError(String);

impl TcHandle {
    /// The parent of a root qdisc (`TC_H_ROOT`, linux/pkt_sched.h).
    pub const ROOT: TcHandle = TcHandle(0xffff_ffff);
    /// The parent and handle of the clsact qdisc (`TC_H_CLSACT`).
    pub const CLSACT: TcHandle = TcHandle(0xffff_fff1);

    /// From its two halves.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> TcHandle {
        TcHandle((major as u32) << 16 | minor as u32)
    }

    /// The qdisc's half.
    #[must_use]
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The class's half.
    #[must_use]
    pub const fn minor(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

impl fmt::Display for TcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.major(), self.minor()) {
            (major, 0) => f.pad(&format!("{major:x}:")),
            (major, minor) => f.pad(&format!("{major:x}:{minor:x}")),
        }
    }
}

impl FromStr for TcHandle {
    type Err = ParseHandleError;

    fn from_str(text: &str) -> Result<TcHandle, ParseHandleError> {
        let error = || ParseHandleError(text.to_owned());
        let (major, minor) = text.split_once(':').ok_or_else(error)?;
        let half = |s: &str| match s {
            "" => Ok(0),
            _ => u16::from_str_radix(s, 16).map_err(|_| error()),
        };
        Ok(TcHandle::new(half(major)?, half(minor)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_hex_both_ways() {
        assert_eq!("1:100".parse(), Ok(TcHandle(0x0001_0100)));
        assert_eq!(TcHandle::new(1, 100).to_string(), "1:64");
        assert_eq!("7e:".parse::<TcHandle>().unwrap().to_string(), "7e:");
        assert!("1".parse::<TcHandle>().is_err());
        assert!("1:12345".parse::<TcHandle>().is_err());
    }
}
