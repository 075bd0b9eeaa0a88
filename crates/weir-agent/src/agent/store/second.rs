//! The second copy of the state: a text file of rows beside the database.
//!
//! Each line is one change: a checksum, the number of the change, and its rows as JSON. A whole copy
//! has one line per row, with the number 0. Its last line has no rows and has the number of the last
//! change included. A change is written here first and to the database second, and answered after both. A
//! line is cut off again if the database does not take its change.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
};

use serde::{Deserialize, Serialize};

/// The present content of a row. `None` as value means that it was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Row(pub(super) String, pub(super) String, pub(super) Option<String>);

/// Rows by table and key.
pub(super) type Rows = BTreeMap<(String, String), String>;

/// The contents of a second copy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    /// Its readable rows.
    pub(super) rows: Rows,
    /// The number of its last change.
    pub(super) sequence: u64,
    /// The rows of its last line. The end of a whole copy has none.
    pub(super) last: Vec<Row>,
    /// The number of its unreadable lines.
    pub(super) bad: u64,
    /// The last line is unreadable.
    pub(super) is_torn: bool,
    /// Its length in bytes.
    pub(super) length: u64,
}

fn checksum(text: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text);
    digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A change as a line.
pub(super) fn line(sequence: u64, rows: &[Row]) -> Vec<u8> {
    summed(&format!("{sequence} {}", serde_json::to_string(rows).unwrap_or_default()))
}

/// The line for a text, with its checksum.
pub(super) fn summed(text: &str) -> Vec<u8> {
    format!("{} {text}\n", checksum(text.as_bytes())).into_bytes()
}

fn parse(line: &[u8]) -> Option<(u64, Vec<Row>)> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, text) = line.split_at_checked(16)?;
    let text = text.strip_prefix(b" ")?;
    if checksum(text).as_bytes() != sum {
        return None;
    }
    let (sequence, rows) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    Some((sequence.parse().ok()?, serde_json::from_slice(rows.as_bytes()).ok()?))
}

/// Reads a second copy. The rows are returned only if `wants_rows`.
pub(super) fn read(mut from: impl BufRead, wants_rows: bool) -> io::Result<Read> {
    let (mut read, mut buffer) = (Read::default(), Vec::new());
    while from.read_until(b'\n', &mut buffer)? > 0 {
        read.length += buffer.len() as u64;
        let parsed = parse(&buffer);
        read.is_torn = parsed.is_none();
        match parsed {
            Some((sequence, rows)) => {
                read.sequence = read.sequence.max(sequence);
                for Row(table, key, value) in rows.iter().filter(|_| wants_rows).cloned() {
                    match value {
                        Some(value) => drop(read.rows.insert((table, key), value)),
                        None => drop(read.rows.remove(&(table, key))),
                    }
                }
                read.last = rows;
            }
            None => read.bad += 1,
        }
        buffer.clear();
    }
    Ok(read)
}

/// Counts the bytes written.
pub(super) struct Counting<W>(pub(super) W, pub(super) u64);

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        self.1 += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, value: Option<&str>) -> Row {
        Row("t".to_owned(), key.to_owned(), value.map(str::to_owned))
    }

    #[test]
    fn a_copy_is_its_rows_as_the_last_changes_left_them() {
        let text = [
            line(0, &[row("a", Some("1"))]),
            line(0, &[row("b", Some("2\n"))]),
            line(7, &[]),
            line(8, &[row("a", None), row("c", Some("3"))]),
        ]
        .concat();
        let whole = read(text.as_slice(), true).unwrap();
        let rows: Vec<_> =
            whole.rows.iter().map(|((_, key), value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(rows, [("b", "2\n"), ("c", "3")]);
        assert_eq!((whole.sequence, whole.bad, whole.length), (8, 0, text.len() as u64));
    }

    #[test]
    fn a_flipped_bit_anywhere_costs_the_lines_that_it_touches_and_is_counted() {
        let lines: Vec<_> = (1..=5).map(|n| line(n, &[row(&n.to_string(), Some("v"))])).collect();
        let good = lines.concat();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut text = good.clone();
                text[at] ^= 1 << bit;
                let found = read(text.as_slice(), true).unwrap();
                assert!(found.bad >= 1, "byte {at}, bit {bit}");
                assert!(found.rows.len() >= 3, "byte {at}, bit {bit}: {:?}", found.rows);
                assert!(found.rows.values().all(|value| value == "v"), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_whole_copy_that_is_cut_has_not_the_number_of_its_end() {
        let text = [line(0, &[row("a", Some("1"))]), line(9, &[])].concat();
        let cut = line(0, &[row("a", Some("1"))]);
        assert_eq!(read(text.as_slice(), false).unwrap().sequence, 9);
        assert_eq!(read(cut.as_slice(), false).unwrap().sequence, 0);
    }
}
