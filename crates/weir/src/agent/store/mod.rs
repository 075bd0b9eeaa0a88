//! What must outlive the agent: policies set by hand, agreements, which class has which minor,
//! what was added to the host. One embedded database, every change on disk before it is answered.

mod agreements;
mod congestion;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use weir_host::engine::Created;

use crate::config::Layer;

const POLICIES: TableDefinition<'_, &str, &str> = TableDefinition::new("policies");
const MINORS: TableDefinition<'_, &str, u16> = TableDefinition::new("minors");
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");

/// The database could not be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the state in {path}: {detail}")]
pub(crate) struct StoreError {
    what: &'static str,
    path: PathBuf,
    detail: String,
}

/// Opens the database's file.
pub(super) type Opener = Box<dyn Fn() -> Result<Database, redb::Error>>;

/// The database.
///
/// A write that fails leaves the database closed, as nobody can say how much of it is on disk;
/// the next access opens it again, and what is then found in it is what counts.
pub(crate) struct Store {
    database: RefCell<Option<Database>>,
    opener: Opener,
    openings: Cell<u64>,
    path: PathBuf,
}

/// Policies set by hand, by class name.
pub(crate) type SetLayers = BTreeMap<String, Layer>;
/// The scheduler's classes, by `source:name`.
pub(crate) type Minors = BTreeMap<String, u16>;

impl Store {
    /// Opens, or creates, `weir.redb` in this directory.
    pub(crate) fn open(dir: &Path) -> Result<Store, StoreError> {
        let path = dir.join("weir.redb");
        let error = |what, detail: String| StoreError { what, path: path.clone(), detail };
        std::fs::create_dir_all(dir).map_err(|e| error("create", e.to_string()))?;
        let file = path.clone();
        let opener = move || Ok(Database::builder().set_cache_size(256 * 1024).create(&file)?);
        Store::opened_by(Box::new(opener), path)
    }

    pub(super) fn opened_by(opener: Opener, path: PathBuf) -> Result<Store, StoreError> {
        let store = Store { database: RefCell::new(None), opener, openings: Cell::new(0), path };
        store.with("open", |_| Ok(()))?;
        Ok(store)
    }

    /// How often the database was opened, it being open now: more than before says that what it
    /// holds may differ from what was written.
    pub(crate) fn openings(&self) -> Result<u64, StoreError> {
        self.with("open", |_| Ok(()))?;
        Ok(self.openings.get())
    }

    fn with<T>(
        &self,
        what: &'static str,
        act: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let mut slot = self.database.borrow_mut();
        let run = || -> Result<T, redb::Error> {
            let database = match &mut *slot {
                Some(database) => database,
                none => {
                    let database = (self.opener)()?;
                    // Whatever is found is on disk from here on.
                    commit(&database, |tx| {
                        tx.open_table(POLICIES)?;
                        tx.open_table(MINORS)?;
                        agreements::prepare(tx)?;
                        congestion::prepare(tx)?;
                        tx.open_table(META)?.insert("openings", "")?;
                        Ok(())
                    })?;
                    self.openings.set(self.openings.get() + 1);
                    none.insert(database)
                }
            };
            act(database)
        };
        let result = run();
        if result.is_err() {
            *slot = None;
        }
        result.map_err(|e| StoreError { what, path: self.path.clone(), detail: e.to_string() })
    }

    fn write(
        &self,
        what: &'static str,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        self.with(what, |database| commit(database, change))
    }

    fn read<T>(
        &self,
        what: &'static str,
        look: impl FnOnce(&redb::ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        self.with(what, |database| look(&database.begin_read()?))
    }

    /// Policies set by hand. One that can no longer be read is left out, and logged.
    pub(crate) fn policies(&self) -> Result<SetLayers, StoreError> {
        self.read("read the policies of", |tx| {
            let mut layers = SetLayers::new();
            for row in tx.open_table(POLICIES)?.iter()? {
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

    /// Replaces all policies set by hand.
    pub(crate) fn save_policies(&self, layers: &SetLayers) -> Result<(), StoreError> {
        self.write("write the policies of", |tx| {
            let mut table = tx.open_table(POLICIES)?;
            table.retain(|name, _| layers.contains_key(name))?;
            for (name, layer) in layers {
                let text = toml::to_string(layer).unwrap_or_default();
                if table.get(name.as_str())?.is_none_or(|old| old.value() != text) {
                    table.insert(name.as_str(), text.as_str())?;
                }
            }
            Ok(())
        })
    }

    /// Which class has which minor.
    pub(crate) fn minors(&self) -> Result<Minors, StoreError> {
        self.read("read the classes of", |tx| {
            let table = tx.open_table(MINORS)?;
            let rows =
                table.iter()?.map(|row| row.map(|(key, minor)| (key.value().to_owned(), minor.value())));
            Ok(rows.collect::<Result<Minors, _>>()?)
        })
    }

    /// Records which class has which minor.
    pub(crate) fn save_minors(&self, minors: &Minors) -> Result<(), StoreError> {
        self.write("write the classes of", |tx| {
            let mut table = tx.open_table(MINORS)?;
            table.retain(|key, _| minors.contains_key(key))?;
            for (key, minor) in minors {
                if table.get(key.as_str())?.is_none_or(|old| old.value() != *minor) {
                    table.insert(key.as_str(), minor)?;
                }
            }
            Ok(())
        })
    }

    /// What was added to the host's interfaces.
    pub(crate) fn created(&self) -> Result<Created, StoreError> {
        self.read("read what was added, from", |tx| {
            let table = tx.open_table(META)?;
            let text = table.get("created")?.map(|v| v.value().to_owned()).unwrap_or_default();
            Ok(serde_json::from_str(&text).unwrap_or_default())
        })
    }

    /// Records what was added to the host's interfaces; touches the disk only for news.
    pub(crate) fn save_created(&self, created: &Created) -> Result<(), StoreError> {
        if self.created()? == *created {
            return Ok(());
        }
        self.write("write what was added, to", |tx| {
            let text = serde_json::to_string(created).unwrap_or_default();
            tx.open_table(META)?.insert("created", text.as_str())?;
            Ok(())
        })
    }

    /// The engine that holds the link's division: the last one used, unless it was put away.
    pub(crate) fn engine(&self) -> Result<Option<String>, StoreError> {
        self.read("read the engine of", |tx| {
            let table = tx.open_table(META)?;
            Ok(table.get("engine")?.map(|v| v.value().to_owned()).filter(|name| !name.is_empty()))
        })
    }

    /// Records the engine in use; none if it was put away.
    pub(crate) fn save_engine(&self, name: Option<&str>) -> Result<(), StoreError> {
        self.write("write the engine of", |tx| {
            tx.open_table(META)?.insert("engine", name.unwrap_or_default())?;
            Ok(())
        })
    }

    /// A number that stays the same on this node: marks packets that passed the scheduler.
    pub(crate) fn cookie(&self) -> Result<u16, StoreError> {
        let found = self.read("read", |tx| {
            Ok(tx.open_table(META)?.get("cookie")?.and_then(|v| v.value().parse().ok()))
        })?;
        if let Some(cookie) = found {
            return Ok(cookie);
        }
        // Not a secret: it only has to differ from what other software writes there.
        let seed = std::process::id() ^ std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.subsec_nanos());
        let cookie = (seed ^ seed >> 16) as u16 | 0x4001;
        self.write("write", |tx| {
            tx.open_table(META)?.insert("cookie", cookie.to_string().as_str())?;
            Ok(())
        })?;
        Ok(cookie)
    }
}

/// One transaction, on disk when this returns.
fn commit(
    database: &Database,
    change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let tx = database.begin_write()?;
    change(&tx)?;
    Ok(tx.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let minors = Minors::from([("docker:web".to_owned(), 16)]);
        let created = Created::from([(3, "eth0".to_owned())]);
        let cookie = {
            let store = Store::open(dir.path()).unwrap();
            store.save_policies(&SetLayers::from([("old".to_owned(), Layer::default())])).unwrap();
            store.save_policies(&layers).unwrap();
            store.save_minors(&minors).unwrap();
            store.save_created(&created).unwrap();
            store.save_engine(Some("edt")).unwrap();
            store.cookie().unwrap()
        };
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.policies().unwrap(), layers);
        assert_eq!(store.minors().unwrap(), minors);
        assert_eq!(store.created().unwrap(), created);
        assert_eq!(store.cookie().unwrap(), cookie);
        assert_eq!(store.engine().unwrap().as_deref(), Some("edt"));
        store.save_engine(None).unwrap();
        assert_eq!(store.engine().unwrap(), None);
        assert_ne!(cookie, 0);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = Store::open(&dir.path().join("file/state")).err().unwrap().to_string();
        assert!(error.contains("file/state/weir.redb"), "{error}");
    }
}
