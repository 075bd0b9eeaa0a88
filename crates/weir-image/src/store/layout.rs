//! The directory: what is where, whose it is, and how a file becomes another's.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};

use crate::{Digest, digest::Algorithm};

/// The layout this version reads and writes.
const VERSION: &str = "weir image store 1\n";

/// Why a directory cannot be the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It was made by another version.
    #[error(
        "cannot use {} as the image store: its layout is `{found}`, this weir knows `{}`; \
         give it another `directory`, or remove this one",
        path.display(), VERSION.trim_end()
    )]
    Version {
        /// The directory.
        path: PathBuf,
        /// What its file `version` says.
        found: String,
    },
    /// It has files, and none that says it is a store.
    #[error("cannot use {} as the image store: it is not empty and not a store; name an empty directory", .0.display())]
    NotAStore(PathBuf),
    /// It belongs to another user, or others may write to it.
    #[error(
        "cannot use {} as the image store: it belongs to user {owner} with mode {mode:o}, this is user {user}; \
         `chown` it and take others' write permission away",
        path.display()
    )]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Its permissions.
        mode: u32,
        /// Who runs this.
        user: u32,
    },
    /// Another process has it.
    #[error("cannot use {} as the image store: another weir uses it; stop that one, or give this one another `directory`", .0.display())]
    InUse(PathBuf),
    /// There is no room, and nothing that may go.
    #[error(
        "no room for {need} bytes: {used} of {budget} are used, {free} are free on the file system, and the rest is in use or pinned"
    )]
    NoRoom {
        /// What was asked for.
        need: u64,
        /// Bytes of blobs, downloads and reservations.
        used: u64,
        /// The bound.
        budget: u64,
        /// What the file system has left.
        free: u64,
    },
    /// More than half of the budget.
    #[error("{size} bytes are more than half of the store's {budget}: not kept")]
    TooBig {
        /// The blob.
        size: u64,
        /// The bound.
        budget: u64,
    },
    /// What arrived is not what its name says.
    #[error("{expected} arrived as {found} ({size} bytes)")]
    Mismatch {
        /// What it was called.
        expected: Digest,
        /// What it is.
        found: Digest,
        /// How long it is.
        size: u64,
    },
    /// Longer or shorter than its manifest or the registry said.
    #[error("{digest} has {got} bytes where {want} were announced")]
    Length {
        /// The blob.
        digest: Digest,
        /// Bytes that came.
        got: u64,
        /// Bytes that should have.
        want: u64,
    },
    /// The file system refuses.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// `map_err(io_error("read", path))`
pub(super) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |source| StoreError::Io { what, path, source }
}

/// The directory of a store.
///
/// ```text
/// version                         what the layout is
/// lock                            held by the process that uses it
/// pins.json                       patterns of images that stay
/// blobs/sha256/ab/abcd...         complete, verified; manifests too
/// part/abcd.../17                 being downloaded, under fence 17
/// refs/ghcr.io/acme/app/_tags/1   what a tag was; _manifests/sha256-...: a manifest's type; _public
/// trash/                          renamed away, about to be unlinked
/// ```
#[derive(Debug)]
pub(super) struct Layout {
    root: PathBuf,
    _lock: Flock<File>,
}

impl Layout {
    /// Takes the directory: makes it, or checks that it is a store of this version and this user's.
    pub(super) fn open(root: &Path) -> Result<Layout, StoreError> {
        fs::create_dir_all(root).map_err(io_error("make the directory", root))?;
        let meta = fs::metadata(root).map_err(io_error("look at", root))?;
        let (owner, mode, user) = (meta.uid(), meta.mode() & 0o7777, nix::unistd::geteuid().as_raw());
        if owner != user || mode & 0o022 != 0 {
            return Err(StoreError::Owner { path: root.to_owned(), owner, mode, user });
        }
        let version = root.join("version");
        match fs::read_to_string(&version) {
            Ok(found) if found == VERSION => {}
            Ok(found) => {
                let found: String = found.trim_end().chars().take(80).collect();
                return Err(StoreError::Version { path: root.to_owned(), found });
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let mut entries = fs::read_dir(root).map_err(io_error("list", root))?;
                if entries.any(|e| e.is_ok_and(|e| e.file_name() != "lock" && e.file_name() != "lost+found"))
                {
                    return Err(StoreError::NotAStore(root.to_owned()));
                }
            }
            Err(e) => return Err(io_error("read", &version)(e)),
        }
        let lock = root.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock)
            .map_err(io_error("open", &lock))?;
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            nix::errno::Errno::EWOULDBLOCK => StoreError::InUse(root.to_owned()),
            errno => io_error("lock", &lock)(errno.into()),
        })?;
        let layout = Layout { root: root.to_owned(), _lock: held };
        for dir in ["blobs/sha256", "blobs/sha512", "part", "refs", "trash"] {
            layout.make_dir(&root.join(dir))?;
        }
        fs::set_permissions(root, fs::Permissions::from_mode(0o700))
            .map_err(io_error("set the mode of", root))?;
        // Last: a directory that has it is whole.
        layout.write_whole(&version, VERSION.as_bytes())?;
        Ok(layout)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(super) fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(digest.algorithm().name()).join(&digest.hex()[..2]).join(digest.hex())
    }

    pub(super) fn part(&self, digest: &Digest, fence: u64) -> PathBuf {
        self.root.join("part").join(digest.hex()).join(fence.to_string())
    }

    pub(super) fn make_dir(&self, path: &Path) -> Result<(), StoreError> {
        fs::create_dir_all(path).map_err(io_error("make the directory", path))
    }

    /// A small file, whole or not at all, also after a crash.
    pub(super) fn write_whole(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let dir = path.parent().unwrap_or(&self.root);
        self.make_dir(dir)?;
        let new = dir.join(format!(".new-{}", std::process::id()));
        let mut file = File::create(&new).map_err(io_error("make", &new))?;
        file.write_all(bytes).map_err(io_error("write", &new))?;
        file.sync_all().map_err(io_error("write", &new))?;
        self.publish(&new, path)
    }

    /// Gives a file that is on the disk its name, and waits until the name is there too.
    pub(super) fn publish(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let dir = to.parent().unwrap_or(&self.root);
        self.make_dir(dir)?;
        fs::rename(from, to).map_err(io_error("publish", to))?;
        File::open(dir).and_then(|d| d.sync_all()).map_err(io_error("write", dir))
    }

    /// Takes a file's name away, then the file: who reads it reads on.
    pub(super) fn discard(&self, path: &Path) -> Result<(), StoreError> {
        let name = path.file_name().unwrap_or_default();
        let trash = self.root.join("trash").join(name);
        match fs::rename(path, &trash) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(io_error("remove", path))?,
        }
        fs::remove_file(&trash).map_err(io_error("remove", &trash))
    }

    /// What the file system has left for this user, bytes.
    pub(super) fn free(&self) -> Result<u64, StoreError> {
        let stat = nix::sys::statvfs::statvfs(&self.root)
            .map_err(|errno| io_error("look at", &self.root)(errno.into()))?;
        Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
    }

    /// All complete blobs, as (digest, path); what has another name than a digest's is left alone.
    pub(super) fn blobs(&self) -> Result<Vec<(Digest, PathBuf)>, StoreError> {
        let mut found = Vec::new();
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            for shard in list(&self.root.join("blobs").join(algorithm.name()))? {
                for path in list(&shard)? {
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    if let Ok(digest) = format!("{}:{name}", algorithm.name()).parse() {
                        found.push((digest, path));
                    }
                }
            }
        }
        Ok(found)
    }
}

/// The entries of a directory; none if it is not there.
pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(dir) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        other => other.map_err(io_error("list", dir))?,
    };
    entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>().map_err(io_error("list", dir))
}
