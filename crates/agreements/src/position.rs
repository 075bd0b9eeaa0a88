//! Places in a text.

/// Line and column, from 1, of a byte of the text.
pub(crate) fn position(text: &str, byte: usize) -> (u64, u64) {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let line = 1 + before.iter().filter(|&&b| b == b'\n').count() as u64;
    let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
    // A byte that continues a character counts for nothing.
    let column = 1 + before[start..].iter().filter(|&&b| b & 0xc0 != 0x80).count() as u64;
    (line, column)
}
