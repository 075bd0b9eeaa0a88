//! The files of the audit: `audit.N.jsonl` in a directory, where N is the number of the first record.
//!
//! A file only grows. A full one is followed by another, which begins with all values. The oldest is removed then, so
//! the files that are left still lead to the present values.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{FallocateFlags, fallocate},
    libc::off_t,
};
use weir_api::HistoryRecord;

use super::line::{self, MAX_LINE};

/// The disk space that is taken before a change is made, so that its record fits.
const RESERVED: u64 = 256 << 10;
/// The most bytes that one file holds by itself, if all values take more than its size.
const WHOLES: u64 = 4;

/// The name of a file whose first records are being written.
const NEW: &str = "audit.new";

/// The bounds of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The size from which on another file is begun, in bytes.
    pub(crate) size: u64,
    /// The number of files.
    pub(crate) files: usize,
}

/// The files, and the one that grows.
pub(super) struct Files {
    directory: PathBuf,
    bounds: Bounds,
    growing: Option<(File, u64)>,
    /// The bytes that the simulated disk has left.
    #[cfg(test)]
    pub(super) room: Option<u64>,
}

/// The files in this directory with their first numbers, oldest first.
pub(super) fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("audit.")?.strip_suffix(".jsonl"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.push((number, directory.join(&name)));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Hands over the records of a file in their order, until `take` returns false. Returns the number of its unreadable
/// lines. The last line counts only with its end.
pub(super) fn read(path: &Path, mut take: impl FnMut(HistoryRecord) -> bool) -> io::Result<u64> {
    let (mut from, mut line, mut unreadable) = (BufReader::new(File::open(path)?), Vec::new(), 0);
    loop {
        line.clear();
        // A longer line is damaged. Its rest counts as further unreadable lines.
        if from.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line)? == 0 {
            return Ok(unreadable);
        }
        match line.strip_suffix(b"\n").and_then(line::read) {
            Some(record) => {
                let goes_on = take(record);
                if !goes_on {
                    return Ok(unreadable);
                }
            }
            None if line.ends_with(b"\n") || line.len() == MAX_LINE => unreadable += 1,
            // A record is being written now.
            None => {}
        }
    }
}

impl Files {
    pub(super) fn new(directory: &Path, bounds: Bounds) -> Files {
        Files {
            directory: directory.to_owned(),
            bounds,
            growing: None,
            #[cfg(test)]
            room: None,
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Opens the newest file, if it has a readable record. A torn line at its end is ended, so that it stays alone.
    pub(super) fn open(&mut self) -> io::Result<()> {
        let Some((_, path)) = list(&self.directory)?.pop() else { return Ok(()) };
        let mut file = OpenOptions::new().read(true).append(true).open(&path)?;
        let length = file.metadata()?.len();
        let mut last = [b'\n'];
        if length > 0 {
            file.seek(SeekFrom::Start(length - 1))?;
            file.read_exact(&mut last)?;
        }
        self.growing = Some((file, length));
        if last != *b"\n" {
            self.append(b"\n")?;
        }
        let mut has_any = false;
        read(&path, |_| {
            has_any = true;
            false
        })?;
        if !has_any {
            self.growing = None;
        }
        Ok(())
    }

    /// Forgets the open file. Its content counts when it is opened again.
    pub(super) fn close(&mut self) {
        self.growing = None;
    }

    /// Whether the next record belongs into another file, if all values take `whole` bytes.
    pub(super) fn is_full(&self, whole: u64) -> bool {
        let most = self.bounds.size.max(whole * WHOLES);
        self.growing.as_ref().is_none_or(|(_, length)| *length >= most)
    }

    /// Begins another file with the records of all values, and removes the oldest. `first` is the number of the first
    /// record. The file has its name only with all of them.
    pub(super) fn begin(&mut self, first: u64, whole: &[u8]) -> io::Result<()> {
        let path = self.directory.join(format!("audit.{first}.jsonl"));
        let new = self.directory.join(NEW);
        let open = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new);
        self.growing = Some((open?, 0));
        let written = self.append(whole).and_then(|()| fs::rename(&new, &path));
        if let Err(e) = written.and_then(|()| File::open(&self.directory)?.sync_all()) {
            let _ = fs::remove_file(&new);
            let _ = fs::remove_file(&path);
            return Err(e);
        }
        let all = list(&self.directory)?;
        for (_, old) in &all[..all.len().saturating_sub(self.bounds.files)] {
            fs::remove_file(old)?;
        }
        Ok(())
    }

    /// Takes disk space for the next records.
    pub(super) fn reserve(&self) -> io::Result<()> {
        let Some((file, length)) = &self.growing else { return Ok(()) };
        #[cfg(test)]
        if self.room.is_some_and(|room| room < RESERVED) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        // It has 32 bits where pointers do.
        let offset = |bytes| off_t::try_from(bytes).unwrap_or(off_t::MAX);
        let (from, count) = (offset(*length), offset(RESERVED));
        match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, from, count) {
            // Not every file system can. The write says then whether there is room.
            Err(nix::Error::EOPNOTSUPP) | Ok(()) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Adds lines. They are on disk when this returns.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let Some((file, length)) = &mut self.growing else { return Err(io::ErrorKind::NotFound.into()) };
        #[cfg(test)]
        if let Some(room) = &mut self.room {
            let fits = usize::try_from(*room).unwrap_or(usize::MAX).min(lines.len());
            file.write_all(&lines[..fits])?;
            *room -= fits as u64;
            if fits < lines.len() {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            *length += lines.len() as u64;
            return Ok(());
        }
        file.write_all(lines)?;
        file.sync_data()?;
        *length += lines.len() as u64;
        Ok(())
    }
}
