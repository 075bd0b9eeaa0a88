//! `Range`: which bytes of a blob a client asks for (RFC 9110, 14.1.2).

use std::ops::Range;

/// The part to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of it: no range was asked for, or none that has a meaning here.
    All,
    /// These bytes; not empty.
    Part(Range<u64>),
    /// None: it begins beyond the end.
    Nothing,
}

/// Reads a `Range` header for something of `size` bytes. Several ranges at once are as none: a
/// server may send all of it instead.
pub(super) fn wanted(header: Option<&str>, size: u64) -> Wanted {
    let Some(spec) = header.and_then(|h| h.trim().strip_prefix("bytes=")) else { return Wanted::All };
    let Some((first, last)) = spec.split_once('-') else { return Wanted::All };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(from), None) if last.is_empty() && from < size => Wanted::Part(from..size),
        (Some(from), Some(to)) if from <= to && from < size => {
            Wanted::Part(from..to.saturating_add(1).min(size))
        }
        (Some(from), Some(to)) if from > to => Wanted::All,
        (Some(_), Some(_)) => Wanted::Nothing,
        (Some(_), None) if last.is_empty() => Wanted::Nothing,
        (None, Some(0)) if first.is_empty() => Wanted::Nothing,
        (None, Some(length)) if first.is_empty() && size > 0 => {
            Wanted::Part(size.saturating_sub(length)..size)
        }
        _ => Wanted::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_by_the_standard() {
        for (header, want) in [
            ("bytes=0-99", Wanted::Part(0..100)),
            ("bytes=0-0", Wanted::Part(0..1)),
            ("bytes=50-", Wanted::Part(50..100)),
            ("bytes=99-", Wanted::Part(99..100)),
            ("bytes=-10", Wanted::Part(90..100)),
            ("bytes=-1000", Wanted::Part(0..100)),
            ("bytes=10-99999999999999999999999", Wanted::Part(10..100)),
            ("bytes=100-", Wanted::Nothing),
            ("bytes=100-200", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=9-5", Wanted::All),
            ("bytes=0-1,5-6", Wanted::All),
            ("bytes=a-b", Wanted::All),
            ("bytes=-", Wanted::All),
            ("items=0-1", Wanted::All),
        ] {
            assert_eq!(wanted(Some(header), 100), want, "{header}");
        }
        assert_eq!(wanted(None, 100), Wanted::All);
        assert_eq!(wanted(Some("bytes=-5"), 0), Wanted::All);
    }
}
