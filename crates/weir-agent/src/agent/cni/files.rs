//! One small file an attachment, which outlives the agent but not the node's boot.
//!
//! The network namespaces of containers end with the boot, so no file is synced to the disk.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use weir_api::CniKey;

use super::Record;

/// The longest file that is read, bytes.
const MAX_FILE: u64 = 256 << 10;

/// The files of attachments.
pub(super) struct Files(PathBuf);

impl Files {
    /// Files in a directory, which need not exist yet.
    pub(super) fn at(directory: PathBuf) -> Files {
        Files(directory)
    }

    /// A container's id has no `@`, and neither part has a slash.
    fn file(&self, key: &CniKey) -> PathBuf {
        self.0.join(format!("{}@{}", key.container, key.interface))
    }

    /// Writes a record in place of the former one.
    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        // No container's id begins with a dot.
        let new = self.0.join(".new");
        fs::write(&new, serde_json::to_vec(record)?)?;
        fs::rename(&new, self.file(&record.attachment.key))
    }

    /// Removes the record of an attachment.
    pub(super) fn remove(&self, key: &CniKey) -> io::Result<()> {
        match fs::remove_file(self.file(key)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// The records of this boot. Other files are removed.
    pub(super) fn read(&self, boot_id: &str) -> Vec<Record> {
        let paths = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        let keep = |path: PathBuf| match read(&path) {
            Ok(record) if record.boot_id == boot_id && self.file(&record.attachment.key) == path => {
                Some(record)
            }
            read => {
                if let Err(why) = read {
                    tracing::warn!("removing {}, which is no attachment: {why}", path.display());
                }
                if let Err(why) = fs::remove_file(&path) {
                    tracing::warn!("cannot remove {}: {why}", path.display());
                }
                None
            }
        };
        paths.filter_map(keep).collect()
    }
}

fn read(path: &Path) -> io::Result<Record> {
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_file() || meta.len() > MAX_FILE {
        return Err(io::Error::other(format!("not a file of at most {MAX_FILE} bytes")));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}
