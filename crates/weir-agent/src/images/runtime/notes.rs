//! The file of what outlives the agent: when images were pulled and used, and how often.

use std::{fs, io::Write, path::Path, time::Duration};

use weir_cache::runtime::Notes;

/// The interval between two writings, if something changed, and if nothing did. A removal is noted at once.
pub(super) const AFTER_CHANGE: Duration = Duration::from_secs(60);
pub(super) const INTERVAL: Duration = Duration::from_secs(300);
/// The longest file that is read, bytes: some ten thousand images.
const LONGEST: u64 = 8 << 20;

/// The notes of an earlier agent; empty without any. Without notes images count as new when they are first
/// seen.
pub(super) fn read(file: &Path) -> Notes {
    let read = || {
        let length = fs::metadata(file).ok()?.len();
        let text = if length <= LONGEST { fs::read(file).ok()? } else { return None };
        serde_json::from_slice(&text).ok()
    };
    read().unwrap_or_default()
}

/// Writes the notes to a new file that takes the old one's place.
pub(super) fn write(file: &Path, notes: &Notes) {
    let new = file.with_extension("new");
    let written = serde_json::to_vec(notes).map_err(std::io::Error::other).and_then(|text| {
        let mut out = fs::File::create(&new)?;
        out.write_all(&text)?;
        out.sync_all()?;
        fs::rename(&new, file)
    });
    if let Err(e) = written {
        tracing::warn!(
            "cannot write {}: {e}; after a restart of the agent images count as new",
            file.display()
        );
    }
}
