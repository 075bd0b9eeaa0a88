//! The state that outlives the agent: policies set by hand, agreements, minors of classes, and qdiscs
//! added to the host. One embedded database holds it, with a second copy of its rows beside it. Each
//! change is on disk in both before it is answered. A change that is refused is in neither.

mod agreements;
mod congestion;
#[cfg(test)]
mod damage;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod history;
mod opening;
pub(super) mod place;
mod promises;
pub(super) mod room;
mod second;
mod tokens;

pub(crate) use promises::{Ledger, Promise};

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    path::{Path, PathBuf},
    str::FromStr,
};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use weir_datapath::engine::Created;

use self::{
    opening::guarded,
    place::{Directory, Place},
    second::Row,
};
use crate::agent::{by_hand::SetLayers, class_key::ClassKey};
use crate::{
    agent::{clock::Mark, history::History},
    config::Layer,
};

/// A table whose rows are text.
type Text = TableDefinition<'static, &'static str, &'static str>;

const POLICIES: Text = TableDefinition::new("policies");
/// The same of what arrives.
const DOWN_POLICIES: Text = TableDefinition::new("down-policies");
const META: Text = TableDefinition::new("meta");
/// The one table whose rows are numbers.
const MINORS: &str = "minors";
const MINORS_TABLE: TableDefinition<'_, &str, u16> = TableDefinition::new(MINORS);
/// The second copy is rewritten when its growth exceeds twice its first length by more than this, in
/// bytes.
const GROWS: u64 = 4 << 20;

/// The error if the database could not be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the state in {path}: {detail}")]
pub struct StoreError {
    what: &'static str,
    path: PathBuf,
    detail: String,
    /// A failed change may be on disk.
    is_uncertain: bool,
}

impl StoreError {
    /// The outcome of a failed change, in words.
    pub(crate) fn outcome(&self) -> &'static str {
        match self.is_uncertain {
            false => "nothing was changed",
            true => "it is not in force; whether it is after a restart is not known: make it again",
        }
    }
}

/// An open database.
struct Open {
    database: Database,
    /// The number of its last change.
    sequence: u64,
    /// The length of the second copy when it was last rewritten, in bytes.
    length: u64,
    /// Bytes added to it since.
    added: u64,
    /// Notices of damage that no one has acknowledged.
    notices: Vec<String>,
    /// The notices among them that are new.
    said: Vec<String>,
}

/// The database and its second copy.
///
/// A failed write leaves the database closed, because it is unknown how much is on disk. The next
/// access opens it again, and its content counts then. A database found damaged at that point is set
/// aside, and the second copy counts.
pub struct Store {
    slot: RefCell<Option<Open>>,
    place: Box<dyn Place>,
    openings: Cell<u64>,
    path: PathBuf,
    notices: RefCell<Vec<String>>,
    said: RefCell<Vec<String>>,
    /// The reason if it could not be used at the last access.
    failure: RefCell<Option<String>>,
}

/// The scheduler's classes, by `source:name`.
pub(crate) type Minors = BTreeMap<ClassKey, u16>;

/// A transaction that records its changes for the second copy.
pub(super) struct Change<'t> {
    tx: &'t WriteTransaction,
    rows: RefCell<Vec<Row>>,
}

impl Change<'_> {
    fn new(tx: &WriteTransaction) -> Change<'_> {
        Change { tx, rows: RefCell::new(Vec::new()) }
    }

    /// Writes or removes a row.
    fn put(&self, row: Row) -> Result<(), redb::Error> {
        let Row(table, key, value) = &row;
        let differs = if table == MINORS {
            let mut table = self.tx.open_table(MINORS_TABLE)?;
            let value = value.as_ref().and_then(|value| value.parse::<u16>().ok());
            let differs = table.get(key.as_str())?.map(|old| old.value()) != value;
            match value {
                _ if !differs => {}
                Some(value) => drop(table.insert(key.as_str(), value)?),
                None => drop(table.remove(key.as_str())?),
            }
            differs
        } else {
            let mut table = self.tx.open_table(TableDefinition::<&str, &str>::new(table))?;
            let differs = table.get(key.as_str())?.as_ref().map(|old| old.value()) != value.as_deref();
            match value {
                _ if !differs => {}
                Some(value) => drop(table.insert(key.as_str(), value.as_str())?),
                None => drop(table.remove(key.as_str())?),
            }
            differs
        };
        if differs {
            self.rows.borrow_mut().push(row);
        }
        Ok(())
    }

    fn insert(&self, table: Text, key: &str, value: &str) -> Result<(), redb::Error> {
        self.put(Row(name(table), key.to_owned(), Some(value.to_owned())))
    }

    fn remove(&self, table: Text, key: &str) -> Result<(), redb::Error> {
        self.put(Row(name(table), key.to_owned(), None))
    }

    /// The keys of a table with this beginning.
    fn keys(&self, table: Text, beginning: &str) -> Result<Vec<String>, redb::Error> {
        let table = self.tx.open_table(table)?;
        let mut keys = Vec::new();
        for row in table.range(beginning..)? {
            let key = row?.0.value().to_owned();
            if !key.starts_with(beginning) {
                break;
            }
            keys.push(key);
        }
        Ok(keys)
    }

    /// Replaces the rows of a table.
    fn replace(&self, table: Text, rows: &BTreeMap<String, String>) -> Result<(), redb::Error> {
        for key in self.keys(table, "")?.iter().filter(|key| !rows.contains_key(*key)) {
            self.remove(table, key)?;
        }
        rows.iter().try_for_each(|(key, text)| self.insert(table, key, text))
    }
}

/// The rows that a change alters.
fn rows_of(
    tx: &WriteTransaction,
    change: impl Fn(&Change<'_>) -> Result<(), redb::Error>,
) -> Result<Vec<Row>, redb::Error> {
    let noted = Change::new(tx);
    change(&noted)?;
    Ok(noted.rows.into_inner())
}

fn name(table: Text) -> String {
    redb::TableHandle::name(&table).to_owned()
}

/// Creates the tables.
fn prepare(tx: &WriteTransaction) -> Result<(), redb::Error> {
    tx.open_table(POLICIES)?;
    tx.open_table(DOWN_POLICIES)?;
    tx.open_table(MINORS_TABLE)?;
    agreements::prepare(tx)?;
    promises::prepare(tx)?;
    congestion::prepare(tx)?;
    tokens::prepare(tx)
}

impl Store {
    /// Opens or creates `weir.redb` and `weir.promises` in this directory.
    pub fn open(dir: &Path) -> Result<Store, StoreError> {
        let directory = Directory::new(dir);
        let path = directory.file(place::Copy::First);
        let error =
            |what, detail: String| StoreError { what, path: path.clone(), detail, is_uncertain: false };
        std::fs::create_dir_all(dir).map_err(|e| error("create", e.to_string()))?;
        Store::opened_in(Box::new(directory), path)
    }

    pub(super) fn opened_in(place: Box<dyn Place>, path: PathBuf) -> Result<Store, StoreError> {
        let store = Store {
            slot: RefCell::new(None),
            place,
            openings: Cell::new(0),
            path,
            notices: RefCell::default(),
            said: RefCell::default(),
            failure: RefCell::default(),
        };
        store.with("open", |_| Ok(()))?;
        Ok(store)
    }

    /// The number of times the database was opened. A higher number than before means that its content
    /// may differ from what was written. The call opens a closed database.
    pub(crate) fn openings(&self) -> Result<u64, StoreError> {
        self.with("open", |_| Ok(()))?;
        Ok(self.openings.get())
    }

    fn with<T>(
        &self,
        what: &'static str,
        act: impl FnOnce(&mut Open) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let mut slot = self.slot.borrow_mut();
        let run = || -> Result<T, String> {
            let open = match &mut *slot {
                Some(open) => open,
                none => {
                    let mut open = opening::open(&*self.place)?;
                    self.openings.set(self.openings.get() + 1);
                    self.said.borrow_mut().append(&mut open.said);
                    self.notices.borrow_mut().clone_from(&open.notices);
                    none.insert(open)
                }
            };
            guarded(|| act(open))?.map_err(|e| e.to_string())
        };
        let result = run();
        if result.is_err() {
            let closed = slot.take();
            drop(guarded(|| drop(closed)));
        }
        let error = |detail| StoreError { what, path: self.path.clone(), detail, is_uncertain: false };
        let result = result.map_err(error);
        *self.failure.borrow_mut() = result.as_ref().err().map(ToString::to_string);
        result
    }

    /// Makes one change. It is on disk in both copies when this returns. A change that failed is in neither,
    /// unless its error is uncertain.
    fn write(
        &self,
        what: &'static str,
        change: impl Fn(&Change<'_>) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        let is_undone = Cell::new(true);
        match self.with(what, |open| self.put(open, &change, &is_undone)) {
            Err(error) if !is_undone.get() => self.judge(error, &change),
            result => result,
        }
    }

    /// Writes a change to both copies. The second copy is first, because its line can be cut off again. A
    /// failure clears `is_undone` if either copy may hold the change.
    fn put(
        &self,
        open: &mut Open,
        change: impl Fn(&Change<'_>) -> Result<(), redb::Error>,
        is_undone: &Cell<bool>,
    ) -> Result<(), redb::Error> {
        let tx = open.database.begin_write()?;
        let rows = rows_of(&tx, change)?;
        if rows.is_empty() {
            return Ok(tx.abort()?);
        }
        opening::set_sequence(&tx, open.sequence + 1)?;
        let line = second::line(open.sequence + 1, &rows);
        let length = self.place.length()?;
        if let Err(error) = self.place.append(&line) {
            is_undone.set(self.place.cut(length).is_ok());
            return Err(error.into());
        }
        is_undone.set(false);
        if let Err(error) = tx.commit() {
            // The database tells at its next opening whether it has the change.
            let _ = self.place.cut(length);
            return Err(error.into());
        }
        open.sequence += 1;
        open.added += line.len() as u64;
        if open.added > 2 * open.length + GROWS
            && let Err(e) = opening::rewrite(&*self.place, open)
        {
            tracing::warn!("cannot shorten the second copy of the state: {e}");
            open.added = 0;
        }
        Ok(())
    }

    /// Whether the change is stored whose write failed with this error.
    fn judge(
        &self,
        error: StoreError,
        change: impl Fn(&Change<'_>) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        let is_stored = self.with(error.what, |open| {
            let tx = open.database.begin_write()?;
            let is_stored = rows_of(&tx, change)?.is_empty();
            tx.abort()?;
            // The length that was read is on disk after this.
            self.place.cut(self.place.length()?)?;
            Ok(is_stored)
        });
        match is_stored {
            Ok(true) => Ok(()),
            found => {
                *self.failure.borrow_mut() = Some(error.to_string());
                Err(StoreError { is_uncertain: found.is_err(), ..error })
            }
        }
    }

    fn read<T>(
        &self,
        what: &'static str,
        look: impl FnOnce(&redb::ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        self.with(what, |open| look(&open.database.begin_read()?))
    }

    /// Notices of damage that no one has acknowledged.
    pub(crate) fn notices(&self) -> Vec<String> {
        self.notices.borrow().clone()
    }

    /// The notices since the last call.
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.take()
    }

    /// The reason if the state could not be read or written at the last access.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Deletes the notices, because an operator has read them.
    pub(crate) fn acknowledge(&self) -> Result<(), StoreError> {
        self.write("write what is acknowledged to", |change| opening::note(change, &[]))?;
        self.notices.borrow_mut().clear();
        Ok(())
    }

    /// The policies set by hand. An unreadable policy is left out and logged.
    pub(crate) fn policies(&self) -> Result<SetLayers, StoreError> {
        self.policies_in(POLICIES)
    }

    /// The same of what arrives.
    pub(crate) fn down_policies(&self) -> Result<SetLayers, StoreError> {
        self.policies_in(DOWN_POLICIES)
    }

    fn policies_in(&self, table: Text) -> Result<SetLayers, StoreError> {
        self.read("read the policies of", |tx| {
            let mut layers = SetLayers::new();
            for row in tx.open_table(table)?.iter()? {
                let (name, text) = row?;
                match toml::from_str(text.value()) {
                    Ok(layer) => {
                        layers.insert(name.value().to_owned(), layer);
                    }
                    Err(e) => tracing::warn!("ignoring the stored policy of {}: {e}", name.value()),
                }
            }
            Ok(layers)
        })
    }

    /// Replaces all policies set by hand, the promises that follow from them, and the last changes, in one
    /// change. Without `down` the policies of what arrives stay as they are. After a crash a class has all
    /// or nothing of it.
    pub(crate) fn save_policies(
        &self,
        (layers, ledger): (&SetLayers, &Ledger),
        down: Option<(&SetLayers, &Ledger)>,
        past: &History,
    ) -> Result<(), StoreError> {
        let rows = |layers: &SetLayers| {
            let row =
                |(name, layer): (&String, &Layer)| (name.clone(), toml::to_string(layer).unwrap_or_default());
            layers.iter().map(row).collect()
        };
        self.write("write the policies of", |change| {
            change.replace(POLICIES, &rows(layers))?;
            history::write(change, past)?;
            promises::replace(change, ledger)?;
            let Some((layers, ledger)) = down else { return Ok(()) };
            change.replace(DOWN_POLICIES, &rows(layers))?;
            promises::replace_down(change, ledger)
        })
    }

    /// The minor of each class.
    pub(crate) fn minors(&self) -> Result<Minors, StoreError> {
        self.read("read the classes of", |tx| {
            let table = tx.open_table(MINORS_TABLE)?;
            let mut minors = Minors::new();
            for row in table.iter()? {
                let (key, minor) = row?;
                // A class of a source that this version does not know has no minor here.
                minors.extend(ClassKey::parse(key.value()).map(|key| (key, minor.value())));
            }
            Ok(minors)
        })
    }

    /// Records the minor of each class.
    pub(crate) fn save_minors(&self, minors: &Minors) -> Result<(), StoreError> {
        self.write("write the classes of", |change| {
            let table = change.tx.open_table(MINORS_TABLE)?;
            let keys = table.iter()?.map(|row| row.map(|(key, _)| key.value().to_owned()));
            let keys = keys.collect::<Result<Vec<String>, _>>()?;
            drop(table);
            let gone =
                keys.into_iter().filter(|key| !minors.contains_key(key.as_str())).map(|key| (key, None));
            let rows = minors.iter().map(|(key, minor)| (key.to_string(), Some(minor.to_string())));
            gone.chain(rows).try_for_each(|(key, value)| change.put(Row(MINORS.to_owned(), key, value)))
        })
    }

    /// The qdiscs that weir added to the host's interfaces.
    pub(crate) fn created(&self) -> Result<Created, StoreError> {
        self.read("read what was added, from", |tx| {
            let table = tx.open_table(META)?;
            let text = table.get("created")?.map(|v| v.value().to_owned()).unwrap_or_default();
            Ok(serde_json::from_slice(text.as_bytes()).unwrap_or_default())
        })
    }

    /// Records the qdiscs that weir added to the host's interfaces. It writes to the disk only if they
    /// changed.
    pub(crate) fn save_created(&self, created: &Created) -> Result<(), StoreError> {
        if self.created()? == *created {
            return Ok(());
        }
        let text = serde_json::to_string(created).unwrap_or_default();
        self.write("write what was added, to", |change| change.insert(META, "created", &text))
    }

    /// The last engine used. `None` if it was removed from the kernel.
    pub(crate) fn engine(&self) -> Result<Option<String>, StoreError> {
        self.read("read the engine of", |tx| {
            let table = tx.open_table(META)?;
            Ok(table.get("engine")?.map(|v| v.value().to_owned()).filter(|name| !name.is_empty()))
        })
    }

    /// Records the engine in use. `None` means that it was removed from the kernel.
    pub(crate) fn save_engine(&self, name: Option<&str>) -> Result<(), StoreError> {
        self.write("write the engine of", |change| change.insert(META, "engine", name.unwrap_or_default()))
    }

    /// The time that the last agent believed.
    pub(crate) fn clock(&self) -> Result<Option<Mark>, StoreError> {
        self.read("read the time from", |tx| {
            let found = tx.open_table(META)?.get("clock")?;
            Ok(found.and_then(|text| serde_json::from_slice(text.value().as_bytes()).ok()))
        })
    }

    /// Records the believed time.
    pub(crate) fn save_clock(&self, mark: &Mark) -> Result<(), StoreError> {
        let text = serde_json::to_string(mark).unwrap_or_default();
        self.write("write the time to", |change| change.insert(META, "clock", &text))
    }

    /// A number that stays the same on this node. It marks packets that passed the scheduler.
    pub(crate) fn cookie(&self) -> Result<u16, StoreError> {
        // The number is no secret. It only has to differ from the values of other software.
        let seed = std::process::id() ^ std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.subsec_nanos());
        self.constant("cookie", (seed ^ seed >> 16) as u16 | 0x4001)
    }

    /// A secret number that stays the same on this node. Packets in tunnels carry their marks by it, so that the
    /// programs of two agents understand each other.
    pub(crate) fn tunnel_key(&self) -> Result<u32, StoreError> {
        let random = RandomState::new().hash_one(());
        self.constant("tunnel-key", (random ^ random >> 32) as u32)
    }

    /// The number of this name; at first the given one.
    fn constant<T: ToString + FromStr>(&self, name: &str, first: T) -> Result<T, StoreError> {
        let found =
            self.read("read", |tx| Ok(tx.open_table(META)?.get(name)?.and_then(|v| v.value().parse().ok())))?;
        match found {
            Some(number) => Ok(number),
            None => {
                self.write("write", |change| change.insert(META, name, &first.to_string()))?;
                Ok(first)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::history::BothLayers;
    use weir_units::BitRate;

    #[test]
    fn what_is_saved_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let layers = SetLayers::from([
            (
                "docker:web".to_owned(),
                Layer { weight: "3".parse().ok(), min: None, max: Some(BitRate::mbit(5)) },
            ),
            ("db".to_owned(), Layer { weight: None, min: Some(BitRate::kbit(800)), max: None }),
        ]);
        let minors = Minors::from([("docker:web".into(), 16)]);
        let created = Created::from([(3, "eth0".to_owned())]);
        let down =
            SetLayers::from([("db".to_owned(), Layer { max: Some(BitRate::mbit(2)), ..Layer::default() })]);
        let set = BothLayers { up: layers.clone(), down: down.clone() };
        let history = History::default().after(&BothLayers::default(), &set, 7);
        let cookie = {
            let store = Store::open(dir.path()).unwrap();
            let old = SetLayers::from([("old".to_owned(), Layer::default())]);
            store.save_policies((&old, &Ledger::new()), None, &History::default()).unwrap();
            store.save_policies((&layers, &Ledger::new()), Some((&down, &Ledger::new())), &history).unwrap();
            // Without those of the download they stay.
            store.save_policies((&layers, &Ledger::new()), None, &history).unwrap();
            store.save_minors(&minors).unwrap();
            store.save_created(&created).unwrap();
            store.save_engine(Some("edt")).unwrap();
            (store.cookie().unwrap(), store.tunnel_key().unwrap())
        };
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.policies().unwrap(), layers);
        assert_eq!(store.down_policies().unwrap(), down);
        assert_eq!(store.history().unwrap(), history);
        assert_eq!(store.minors().unwrap(), minors);
        assert_eq!(store.created().unwrap(), created);
        assert_eq!((store.cookie().unwrap(), store.tunnel_key().unwrap()), cookie);
        assert_eq!(store.engine().unwrap().as_deref(), Some("edt"));
        store.save_engine(None).unwrap();
        assert_eq!(store.engine().unwrap(), None);
        assert_ne!(cookie.0, 0);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(Store::open(other.path()).unwrap().tunnel_key().unwrap(), cookie.1);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = Store::open(&dir.path().join("file/state")).err().unwrap().to_string();
        assert!(error.contains("file/state/weir.redb"), "{error}");
    }
}
