//! Reads a part of the audit for `GET /v1/history`. It runs outside the agent's loop.

use std::{io, path::Path};

use weir_api::{History, HistoryQuery, HistoryRecord};

use super::files;

/// The most records in one answer.
const MAX_RECORDS: usize = 1_000;
/// The most changes in one answer. The last record may exceed it.
const MAX_CHANGES: usize = 10_000;

/// The changes of a record that a query asks for, if any.
fn wanted(mut record: HistoryRecord, query: &HistoryQuery) -> Option<HistoryRecord> {
    if record.is_whole || record.time_ms < query.since_ms {
        return None;
    }
    if let Some(name) = &query.name {
        let is_it =
            |found: &str| found == name || found.split_once(':').is_some_and(|(_, bare)| bare == name);
        record.changes.retain(|change| is_it(&change.name));
    }
    (!record.changes.is_empty()).then_some(record)
}

/// The records that a query asks for. No further file is read once `is_wanted` says no.
pub(super) fn read(
    directory: &Path,
    query: &HistoryQuery,
    is_wanted: impl Fn() -> bool,
) -> io::Result<History> {
    let limit = query.limit.unwrap_or(MAX_RECORDS).min(MAX_RECORDS);
    let all = files::list(directory)?;
    // A file ends where the next one begins.
    let first = all.iter().rposition(|(number, _)| *number <= query.after.saturating_add(1)).unwrap_or(0);
    let (mut history, mut changes) = (History::default(), 0);
    let mut last: Option<u64> = None;
    for (_, path) in &all[first..] {
        if !is_wanted() {
            break;
        }
        let unreadable = files::read(path, |record| {
            let n = record.n;
            // A record that was written again after a crash has the same number.
            history.missing += last.map_or(0, |last| n.saturating_sub(last + 1));
            last = Some(n);
            if n <= query.after {
                history.missing = 0;
                return true;
            }
            let Some(record) = wanted(record, query) else { return true };
            changes += record.changes.len();
            history.records.push(record);
            if history.records.len() >= limit || changes >= MAX_CHANGES {
                history.next = Some(n);
            }
            history.next.is_none()
        });
        match unreadable {
            Ok(unreadable) => history.unreadable += unreadable,
            // Another file was begun meanwhile, and the oldest is removed.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        if history.next.is_some() {
            break;
        }
    }
    Ok(history)
}
