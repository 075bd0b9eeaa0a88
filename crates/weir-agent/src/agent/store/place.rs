//! The place of the state: two files in a directory.

use std::{
    cell::RefCell,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Read as _, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use redb::Database;
use weir_agree::Utc;

/// The number of damaged files kept. The oldest is removed.
const MAX_DAMAGED_FILES: usize = 8;

/// One of the two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copy {
    /// The database.
    First,
    /// The text file beside it.
    Second,
}

/// A copy as found, before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Nothing,
    /// A file with content.
    File,
    /// Something that cannot be a database, with the reason.
    Unusable(String),
}

/// Holds the two copies: a directory, or a simulated disk.
pub(crate) trait Place {
    /// Opens the database, and creates a missing one.
    fn open(&self) -> Result<Database, redb::Error>;
    /// Examines a copy without opening it.
    fn look(&self, copy: Copy) -> Seen;
    /// Reads a copy as a whole.
    fn is_readable(&self, copy: Copy) -> io::Result<()>;
    /// Records the start of a read of the database. Returns how many reads have started and not ended.
    fn begin_reading(&self) -> u64;
    /// Records the end of that read.
    fn end_reading(&self);
    /// Renames a copy and returns the new name.
    fn set_aside(&self, copy: Copy) -> io::Result<String>;
    /// Opens the second copy.
    fn second(&self) -> io::Result<Box<dyn BufRead + '_>>;
    /// The length of the second copy in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Appends to the second copy. The line is on disk when this returns.
    fn append(&self, line: &[u8]) -> io::Result<()>;
    /// Cuts the second copy to this length. It has that length on disk when this returns.
    fn cut(&self, length: u64) -> io::Result<()>;
    /// Replaces the second copy as a whole, or leaves it unchanged.
    fn replace(&self, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()>;
    /// The name of a copy.
    fn name(&self, copy: Copy) -> String;
}

/// `weir.redb` and `weir.promises` in a directory.
pub(crate) struct Directory {
    path: PathBuf,
    /// The second copy, open for appends.
    added_to: RefCell<Option<File>>,
}

impl Directory {
    pub(crate) fn new(path: &Path) -> Directory {
        Directory { path: path.to_owned(), added_to: RefCell::new(None) }
    }

    pub(crate) fn file(&self, copy: Copy) -> PathBuf {
        self.path.join(match copy {
            Copy::First => "weir.redb",
            Copy::Second => "weir.promises",
        })
    }

    /// A file with one byte per unfinished read of the database.
    fn begun(&self) -> PathBuf {
        self.path.join("weir.redb.reading")
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Removes the oldest damaged files if there are too many.
    fn forget_old(&self, prefix: &str) -> io::Result<()> {
        let names = fs::read_dir(&self.path)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
        // The names contain the date.
        names.sort_unstable_by(|a, b| b.cmp(a));
        for name in names.iter().skip(MAX_DAMAGED_FILES) {
            let path = self.path.join(name);
            let _ = if path.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) };
        }
        Ok(())
    }
}

impl Place for Directory {
    fn open(&self) -> Result<Database, redb::Error> {
        let path = self.file(Copy::First);
        // Only root may read the promises. A database of an older version is readable by all, so its
        // mode is set too.
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        drop(file);
        Ok(Database::builder().set_cache_size(256 * 1024).create(path)?)
    }

    fn look(&self, copy: Copy) -> Seen {
        match fs::metadata(self.file(copy)) {
            Ok(found) if found.is_dir() => Seen::Unusable("it is a directory".to_owned()),
            Ok(found) if !found.is_file() => Seen::Unusable("it is not a regular file".to_owned()),
            Ok(found) if found.len() == 0 => Seen::Unusable("it has no content".to_owned()),
            Ok(_) => Seen::File,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Seen::Nothing,
            Err(e) => Seen::Unusable(e.to_string()),
        }
    }

    fn is_readable(&self, copy: Copy) -> io::Result<()> {
        let (mut file, mut buffer) = (File::open(self.file(copy))?, [0; 16 * 1024]);
        while file.read(&mut buffer)? > 0 {}
        Ok(())
    }

    fn begin_reading(&self) -> u64 {
        let file = OpenOptions::new().create(true).append(true).open(self.begun());
        let mut begun = 0;
        // A failure is ignored. Damage that ends the process then goes unnoticed.
        let _ = file.and_then(|mut file| {
            begun = file.metadata()?.len();
            file.write_all(b"+")
        });
        begun
    }

    fn end_reading(&self) {
        let _ = fs::remove_file(self.begun());
    }

    fn set_aside(&self, copy: Copy) -> io::Result<String> {
        if copy == Copy::Second {
            self.added_to.take();
        }
        let now = Utc::from(std::time::SystemTime::now()).second().to_string();
        let prefix = format!("{}.damaged-", self.name(copy));
        let name = format!("{prefix}{}", now.replace(':', "-"));
        let free = (0..).map(|n| if n == 0 { name.clone() } else { format!("{name}.{n}") });
        let name = free.into_iter().find(|name| fs::symlink_metadata(self.path.join(name)).is_err());
        let name = name.ok_or(io::ErrorKind::AlreadyExists)?;
        fs::rename(self.file(copy), self.path.join(&name))?;
        self.sync()?;
        self.forget_old(&prefix)?;
        Ok(name)
    }

    fn second(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(BufReader::new(File::open(self.file(Copy::Second))?)))
    }

    fn length(&self) -> io::Result<u64> {
        Ok(fs::metadata(self.file(Copy::Second))?.len())
    }

    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut slot = self.added_to.borrow_mut();
        let mut file = match slot.take() {
            Some(file) => file,
            None => OpenOptions::new().append(true).open(self.file(Copy::Second))?,
        };
        file.write_all(line)?;
        file.sync_data()?;
        *slot = Some(file);
        Ok(())
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.added_to.take();
        let file = OpenOptions::new().write(true).open(self.file(Copy::Second))?;
        file.set_len(length)?;
        file.sync_data()
    }

    fn replace(&self, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        self.added_to.take();
        let new = self.path.join(format!("{}.new", self.name(Copy::Second)));
        let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.into_inner().map_err(|e| e.into_error())?.sync_all()?;
        fs::rename(&new, self.file(Copy::Second))?;
        self.sync()
    }

    fn name(&self, copy: Copy) -> String {
        let file = self.file(copy);
        file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}
