//! Sizes of flows that are told apart.

use weir_units::Bytes;

/// Upper bounds; a last size has none.
pub(crate) const BOUNDS: [Bytes; 6] = [
    Bytes(10_000),
    Bytes(100_000),
    Bytes(1_000_000),
    Bytes(10_000_000),
    Bytes(100_000_000),
    Bytes(1_000_000_000),
];

/// How many there are.
pub const COUNT: usize = BOUNDS.len() + 1;

/// The size of a flow that sent this number of bytes.
#[must_use]
pub fn of(sent: u64) -> usize {
    BOUNDS.iter().position(|bound| sent < bound.0).unwrap_or(BOUNDS.len())
}

/// A size in words: `below 10 kB`, `100 kB to 1 MB`. Decimal, as the bounds are.
#[must_use]
pub fn label(size: usize) -> String {
    let text = |bytes: Bytes| match bytes.0 {
        ..1_000_000 => format!("{} kB", bytes.0 / 1_000),
        1_000_000..1_000_000_000 => format!("{} MB", bytes.0 / 1_000_000),
        _ => format!("{} GB", bytes.0 / 1_000_000_000),
    };
    match (size.checked_sub(1).and_then(|at| BOUNDS.get(at)), BOUNDS.get(size)) {
        (None, Some(most)) => format!("below {}", text(*most)),
        (Some(least), Some(most)) => format!("{} to {}", text(*least), text(*most)),
        (Some(least), None) => format!("{} and more", text(*least)),
        (None, None) => "all".to_owned(),
    }
}
