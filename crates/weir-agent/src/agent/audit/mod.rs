//! The audit: who changed which policy, agreement, configuration or pin, from what to what.
//!
//! The audit follows values. It keeps the values that its files lead to, and writes the difference from the present
//! ones. So it misses no change, and after a crash it writes what it had not written. The agent writes it before an
//! answer leaves. [`Audit::ready`] takes the disk space before a change is made.

mod allowance;
mod facts;
mod files;
mod follow;
mod line;
mod page;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use weir_api::{Actor, ActorKind, ChangeKind, HistoryChange, HistoryRecord};
use weir_units::Instant;

use self::{allowance::Allowance, files::Files, line::FactKey};

pub(crate) use self::{files::Bounds, line::Facts};

/// The most makers that are named while the audit cannot be written.
const MAX_LATE: usize = 16;

/// The audit of a node.
pub(super) struct Audit {
    files: Files,
    /// The values that the files lead to. `None` if they must be read again.
    recorded: Option<Facts>,
    /// The number of the last record.
    last: u64,
    allowance: Allowance,
    /// Whether changes wait for the allowance.
    waits: bool,
    /// The makers of changes that could not be written.
    late: BTreeSet<Actor>,
    failure: Option<String>,
    /// Changes may have been seen that the files do not have.
    is_due: bool,
    /// A changed configuration is among them.
    has_reload: bool,
    /// Whether the values at the start are recorded.
    is_started: bool,
    /// No try after a failure comes earlier.
    not_before: Instant,
    /// The pins of the image cache, as callers left them.
    pins: BTreeSet<String>,
}

impl Audit {
    /// The audit in this directory.
    pub(super) fn open(directory: &Path, bounds: Bounds, now: Instant) -> Audit {
        let mut audit = Audit::new(directory, bounds, now);
        audit.pins = audit.recorded_pins();
        audit
    }

    /// The same without the recorded pins. The files are read at the first use.
    fn new(directory: &Path, bounds: Bounds, now: Instant) -> Audit {
        Audit {
            files: Files::new(directory, bounds),
            recorded: None,
            last: 0,
            allowance: Allowance::new(now),
            waits: false,
            late: BTreeSet::new(),
            failure: None,
            is_due: true,
            has_reload: false,
            is_started: false,
            not_before: Instant::default(),
            pins: BTreeSet::new(),
        }
    }

    /// Marks that changes may have been seen.
    pub(super) fn mark(&mut self) {
        self.is_due = true;
    }

    /// Marks that a changed configuration is in force.
    pub(super) fn mark_reload(&mut self) {
        (self.is_due, self.has_reload) = (true, true);
    }

    /// The directory of the files.
    pub(super) fn directory(&self) -> PathBuf {
        self.files.directory().to_owned()
    }

    /// The reason if the audit is not whole now.
    pub(super) fn warning(&self) -> Option<String> {
        let waits = || {
            "changes of containers and customers come faster than the audit records them; it records their result \
             every two minutes"
        };
        self.failure.clone().or_else(|| self.waits.then(waits).map(str::to_owned))
    }

    fn told<T>(&mut self, result: io::Result<T>) -> Result<T, String> {
        let result = result.map_err(|e| {
            let directory = self.files.directory().display();
            format!("cannot write the audit in {directory}: {e}")
        });
        let failure = result.as_ref().err().cloned();
        if let (Some(why), true) = (&failure, failure != self.failure) {
            tracing::error!("{why}");
        }
        self.failure = failure;
        if result.is_err() {
            // It is unknown how much is on disk.
            self.files.close();
            self.recorded = None;
        }
        result
    }

    /// Reads the files if that was not done, or after a failure.
    fn recorded(&mut self) -> io::Result<&Facts> {
        if self.recorded.is_none() {
            self.files.open()?;
            let (mut facts, mut last, mut unreadable) = (Facts::new(), 0, 0);
            for (_, path) in files::list(self.files.directory())? {
                let mut is_first = true;
                unreadable += files::read(&path, |record| {
                    last = last.max(record.n);
                    line::apply(&mut facts, &record, is_first);
                    is_first &= !record.is_whole;
                    true
                })?;
            }
            if unreadable > 0 {
                tracing::warn!("{unreadable} lines of the audit are torn or damaged, and are passed over");
            }
            // A crash before the first whole line leaves a file with a number that is taken.
            let taken = files::list(self.files.directory())?.last().map_or(0, |(number, _)| *number);
            self.last = last.max(taken);
            self.recorded = Some(facts);
        }
        Ok(self.recorded.get_or_insert_default())
    }

    /// Makes sure that the record of the next change can be written.
    ///
    /// # Errors
    /// The disk is full, or the files cannot be written.
    pub(super) fn ready(&mut self, time_ms: u64) -> Result<(), String> {
        let ready = self.prepare(time_ms).and_then(|()| self.files.reserve());
        self.told(ready)
    }

    /// Opens a file with room for another record.
    fn prepare(&mut self, time_ms: u64) -> io::Result<()> {
        self.recorded()?;
        let facts = self.recorded.get_or_insert_default();
        let length = |(key, value): (&FactKey, &String)| key.1.len() + value.len() + 64;
        let whole: usize = facts.iter().map(length).sum();
        if !self.files.is_full(whole as u64) {
            return Ok(());
        }
        let (first, by) = (self.last + 1, Actor::agent());
        let mut parts = line::parts(line::difference(&Facts::new(), facts));
        // A node without values has a file too.
        parts.resize_with(parts.len().max(1), Vec::new);
        let mut lines = Vec::new();
        for changes in parts {
            self.last += 1;
            let (n, cause) = (self.last, "all values at the beginning of a file".to_owned());
            lines.extend(line::write(&HistoryRecord {
                n,
                time_ms,
                by: by.clone(),
                cause,
                changes,
                is_whole: true,
            }));
        }
        self.files.begin(first, &lines)
    }

    /// The changes from the recorded values.
    ///
    /// # Errors
    /// The files cannot be read.
    fn changes(&mut self, facts: &Facts) -> Result<Vec<HistoryChange>, String> {
        let read = self.recorded().map(|recorded| line::difference(recorded, facts));
        self.told(read)
    }

    /// Writes the changes of each maker as records of its own, in one write.
    fn write(
        &mut self,
        facts: &Facts,
        changes: BTreeMap<Actor, Vec<HistoryChange>>,
        cause: &str,
        time_ms: u64,
    ) -> Result<u64, String> {
        if changes.is_empty() {
            return Ok(0);
        }
        let late = self.late.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let cause = match late.as_str() {
            "" => cause.to_owned(),
            late => format!("{cause}; with what could not be written before, by {late}"),
        };
        let makers: Vec<Actor> = changes.keys().cloned().collect();
        let mut written = || {
            self.prepare(time_ms)?;
            let mut lines = Vec::new();
            for (by, changes) in &changes {
                for changes in line::parts(changes.clone()) {
                    self.last += 1;
                    let (n, by, cause) = (self.last, by.clone(), cause.clone());
                    let record = HistoryRecord { n, time_ms, by, cause, changes, is_whole: false };
                    lines.extend(line::write(&record));
                }
            }
            self.files.append(&lines)?;
            Ok(lines.len() as u64)
        };
        let written = written();
        let written = self.told(written);
        match &written {
            Ok(_) => {
                self.late.clear();
                self.recorded = Some(facts.clone());
            }
            Err(_) => self.late.extend(makers.into_iter().take(MAX_LATE - self.late.len().min(MAX_LATE))),
        }
        written
    }

    /// Records the changes of one maker.
    ///
    /// # Errors
    /// The files cannot be written. The next record has these changes too.
    pub(super) fn note(
        &mut self,
        facts: &Facts,
        by: &Actor,
        cause: &str,
        time_ms: u64,
    ) -> Result<u64, String> {
        let changes = self.changes(facts)?;
        let changes = if changes.is_empty() { BTreeMap::new() } else { [(by.clone(), changes)].into() };
        self.write(facts, changes, cause, time_ms)
    }

    /// Records what the agent saw: containers, calendars, the configuration. `by` names the maker of a change.
    ///
    /// # Errors
    /// As of [`Audit::note`].
    pub(super) fn observe(
        &mut self,
        facts: &Facts,
        by: impl Fn(&HistoryChange) -> Actor,
        cause: &str,
        time_ms: u64,
    ) -> Result<u64, String> {
        let mut of: BTreeMap<Actor, Vec<HistoryChange>> = BTreeMap::new();
        for change in self.changes(facts)? {
            of.entry(by(&change)).or_default().push(change);
        }
        let cause = if self.waits { "the result of several changes" } else { cause };
        let written = self.write(facts, of, cause, time_ms)?;
        self.waits = false;
        Ok(written)
    }

    /// Whether changes without an operator may be recorded now. If not, they wait.
    pub(super) fn may_observe(&mut self, now: Instant) -> bool {
        let may = self.allowance.is_open(now);
        self.waits |= !may;
        may
    }

    /// Whether changes wait for the allowance.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Takes the bytes of such records from the allowance.
    pub(super) fn took(&mut self, bytes: u64) {
        self.allowance.take(bytes);
    }

    /// The recorded pins of the image cache.
    fn recorded_pins(&mut self) -> BTreeSet<String> {
        let pins = |facts: &Facts| {
            let of_pins = facts.keys().filter(|(kind, _)| *kind == ChangeKind::Pin);
            of_pins.map(|(_, name)| name.clone()).collect()
        };
        let read = self.recorded().map(pins);
        self.told(read).unwrap_or_default()
    }
}

/// The maker of a change that the agent saw. `waited` says that several changes became one, so that only a container is
/// known as a maker.
fn seen_by(change: &HistoryChange, configuration: &str, is_reload: bool, waited: bool) -> Actor {
    use super::class_key::{ClassKey, ClassSource};

    let is_container = |key: ClassKey| {
        let source = key.source();
        source.is_runtime() || matches!(source, ClassSource::Cni | ClassSource::Lxc | ClassSource::Netns)
    };
    match change.what {
        ChangeKind::Configuration => Actor::new(ActorKind::Configuration, configuration),
        _ if is_reload => Actor::new(ActorKind::Configuration, configuration),
        ChangeKind::Policy | ChangeKind::PolicyDown
            if ClassKey::parse(&change.name).is_some_and(is_container) =>
        {
            Actor::new(ActorKind::Container, &change.name)
        }
        _ if waited => Actor::agent(),
        ChangeKind::Agreement => Actor::new(ActorKind::Calendar, &change.name),
        ChangeKind::Congestion => Actor::new(ActorKind::Advice, ""),
        _ => Actor::agent(),
    }
}
