//! A line of the audit, and the values that lines lead to.
//!
//! A line is a JSON object: `{"sum":"…","record":{…}}`. The sum is the beginning of the SHA-256 of the record's text.
//! It finds torn and damaged lines. It does not stop root, who can compute it too.

use std::collections::BTreeMap;

use weir_api::{ChangeKind, HistoryChange, HistoryRecord};

use crate::config::hidden_value;

/// The longest line that is read, in bytes.
pub(super) const MAX_LINE: usize = 8 << 20;
const BEFORE_SUM: &str = "{\"sum\":\"";
const BEFORE_RECORD: &str = "\",\"record\":";
const SUM_LENGTH: usize = 16;

/// The kind and the name of a value.
pub(crate) type FactKey = (ChangeKind, String);

/// All values that the audit follows.
pub(crate) type Facts = BTreeMap<FactKey, String>;

fn sum(record: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, record);
    digest.as_ref().iter().take(SUM_LENGTH / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// A record as a line.
pub(super) fn write(record: &HistoryRecord) -> Vec<u8> {
    let record = serde_json::to_string(record).expect("strings and numbers always have a JSON form");
    format!("{BEFORE_SUM}{}{BEFORE_RECORD}{record}}}\n", sum(record.as_bytes())).into_bytes()
}

/// Reads a line without its end. `None` if it is torn or damaged. Secrets that an earlier version has written are hidden.
pub(super) fn read(line: &[u8]) -> Option<HistoryRecord> {
    let rest = line.strip_prefix(BEFORE_SUM.as_bytes())?;
    let (found, rest) = rest.split_at_checked(SUM_LENGTH)?;
    let record = rest.strip_prefix(BEFORE_RECORD.as_bytes())?.strip_suffix(b"}")?;
    if sum(record).as_bytes() != found {
        return None;
    }
    let mut record: HistoryRecord = serde_json::from_slice(record).ok()?;
    for change in record.changes.iter_mut().filter(|change| change.what == ChangeKind::Configuration) {
        for value in [&mut change.old, &mut change.new].into_iter().flatten() {
            *value = hidden_value(&change.name, value);
        }
    }
    Some(record)
}

/// The most changes of one line.
const MAX_CHANGES: usize = 500;
/// The most bytes of the changes of one line, if it has several. JSON makes at most six bytes of one.
const MAX_BYTES: usize = MAX_LINE / 8;

/// The bytes that a change takes.
fn length(change: &HistoryChange) -> usize {
    let value = |value: &Option<String>| value.as_ref().map_or(0, String::len);
    change.name.len() + value(&change.old) + value(&change.new) + 64
}

/// Changes in parts that fit into a line each.
pub(super) fn parts(mut changes: Vec<HistoryChange>) -> Vec<Vec<HistoryChange>> {
    let mut parts = Vec::new();
    while !changes.is_empty() {
        let mut bytes = 0;
        let fits = changes.iter().take(MAX_CHANGES).take_while(|change| {
            bytes += length(change);
            bytes <= MAX_BYTES
        });
        let rest = changes.split_off(fits.count().max(1));
        parts.push(std::mem::replace(&mut changes, rest));
    }
    parts
}

/// Applies a record to the values before it. The first record of all values in a file clears those before it.
pub(super) fn apply(facts: &mut Facts, record: &HistoryRecord, is_first: bool) {
    if record.is_whole && is_first {
        facts.clear();
    }
    for HistoryChange { what, name, new, .. } in &record.changes {
        let key = (what.clone(), name.clone());
        match new {
            Some(new) => drop(facts.insert(key, new.clone())),
            None => drop(facts.remove(&key)),
        }
    }
}

/// The changes that lead from `old` to `new`.
pub(super) fn difference(old: &Facts, new: &Facts) -> Vec<HistoryChange> {
    let change = |(what, name): &FactKey| HistoryChange {
        what: what.clone(),
        name: name.clone(),
        old: old.get(&(what.clone(), name.clone())).cloned(),
        new: new.get(&(what.clone(), name.clone())).cloned(),
    };
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let other = new.iter().filter(|(key, value)| old.get(*key) != Some(*value)).map(|(key, _)| key);
    gone.chain(other).map(change).collect()
}

#[cfg(test)]
mod tests {
    use weir_api::Actor;

    use super::*;

    fn record() -> HistoryRecord {
        let change = |name: &str, old: Option<&str>, new: Option<&str>| HistoryChange {
            what: ChangeKind::Policy,
            name: name.to_owned(),
            old: old.map(str::to_owned),
            new: new.map(str::to_owned),
        };
        let changes = vec![change("docker:we\"b\n", None, Some("weight=3")), change("b", Some("x"), None)];
        let by = Actor::user(1000);
        HistoryRecord { n: 7, time_ms: 9, by, cause: "set".to_owned(), changes, is_whole: false }
    }

    #[test]
    fn a_line_is_json_and_reads_as_it_was_written() {
        let line = write(&record());
        let text = std::str::from_utf8(&line).unwrap().strip_suffix('\n').unwrap();
        assert!(!text.contains('\n'), "one record is one line: {text}");
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(json["record"]["by"]["name"], "1000");
        assert_eq!(read(text.as_bytes()), Some(record()));
    }

    #[test]
    fn a_line_that_is_cut_or_has_a_flipped_bit_is_not_read() {
        let line = write(&record());
        let line = line.strip_suffix(b"\n").unwrap();
        for at in 0..line.len() {
            assert_eq!(read(&line[..at]), None, "cut at {at}");
            for bit in 0..8 {
                let mut other = line.to_vec();
                other[at] ^= 1 << bit;
                assert_eq!(read(&other), None, "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_difference_applied_leads_from_the_old_values_to_the_new() {
        let fact = |name: &str, value: &str| ((ChangeKind::Policy, name.to_owned()), value.to_owned());
        let old = Facts::from([fact("a", "1"), fact("b", "2"), fact("c", "3")]);
        let new = Facts::from([fact("a", "1"), fact("b", "9"), fact("d", "4")]);
        let changes = difference(&old, &new);
        assert_eq!(changes.len(), 3, "{changes:?}");
        let mut now = old.clone();
        apply(&mut now, &HistoryRecord { changes, ..record() }, true);
        assert_eq!(now, new);
        assert_eq!(difference(&new, &new), []);
        let whole = HistoryRecord { changes: Vec::new(), is_whole: true, ..record() };
        apply(&mut now, &whole, false);
        assert_eq!(now, new, "a further part of all values adds to the first");
        apply(&mut now, &whole, true);
        assert_eq!(now, Facts::new());
    }

    #[test]
    fn parts_of_changes_are_lines_that_are_read_and_lose_none() {
        let change = |n: usize, length: usize| HistoryChange {
            what: ChangeKind::Configuration,
            name: format!("key{n}"),
            old: Some("\u{1}".repeat(length)),
            new: None,
        };
        let long = MAX_BYTES / 3;
        let changes: Vec<_> = (0..1_200).map(|n| change(n, if n < 40 { long } else { 9 })).collect();
        let parts = parts(changes.clone());
        for part in &parts {
            let line = write(&HistoryRecord { changes: part.clone(), ..record() });
            assert!((1..=MAX_CHANGES).contains(&part.len()) && line.len() < MAX_LINE, "{}", line.len());
        }
        assert_eq!(parts.concat(), changes);
        assert_eq!(super::parts(Vec::new()), Vec::<Vec<HistoryChange>>::new());
    }
}
