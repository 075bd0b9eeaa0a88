//! The file of the configuration.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The file, and when it was last read.
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    /// The time of its last change, as it was read.
    modified: Option<SystemTime>,
    /// The reason if its present content is refused.
    pub(super) error: Option<String>,
    /// When the configuration in force was taken, milliseconds since the epoch.
    pub(super) taken_ms: u64,
}

impl ConfigFile {
    /// A file that was read just now.
    pub(super) fn new(path: &Path) -> ConfigFile {
        ConfigFile { path: path.to_owned(), modified: modified(path), error: None, taken_ms: now_ms() }
    }

    pub(super) fn has_changed(&self) -> bool {
        modified(&self.path) != self.modified
    }

    /// Notes that the file is in force now.
    pub(super) fn taken(&mut self) {
        self.error = None;
        self.taken_ms = now_ms();
    }

    /// Begins another reading. Later changes ask for a further one.
    pub(super) fn read_again(&mut self) -> PathBuf {
        self.modified = modified(&self.path);
        self.path.clone()
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok()
}
