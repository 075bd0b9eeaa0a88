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
    /// Reads the file. The time of its last change is read first, so a later change is noticed however long the start
    /// takes.
    pub(super) fn read<T>(path: &Path, load: impl FnOnce(&Path) -> T) -> (ConfigFile, T) {
        let modified = modified(path);
        let content = load(path);
        (ConfigFile { path: path.to_owned(), modified, error: None, taken_ms: now_ms() }, content)
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

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    #[test]
    fn a_change_of_the_file_after_it_was_read_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weir.toml");
        fs::write(&path, "first").unwrap();
        let (file, content) = ConfigFile::read(&path, |path| {
            let content = fs::read_to_string(path).unwrap();
            let open = fs::File::options().write(true).open(path).unwrap();
            open.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
            content
        });
        assert_eq!((content.as_str(), file.has_changed()), ("first", true));
        let (file, _) = ConfigFile::read(&path, |_| ());
        assert!(!file.has_changed());
    }
}
