//! The directory: what is where, whose it is, and how a file becomes another's.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

use super::part_name::PartName;
use crate::{Digest, Utc, digest::Algorithm};

/// The most pins, each of which is matched with the name of each tag,
pub(super) const MAX_PINS: usize = 256;
/// and the longest, bytes.
pub(crate) const MAX_PIN: usize = 512;

/// A layout: of one process, and of several nodes.
struct Version {
    alone: &'static str,
    shared: &'static str,
}

/// The layout this version reads and writes.
const VERSION: Version = Version { alone: "weir image store 2\n", shared: "weir image store 2, shared\n" };
/// The layout before it, which has no `sources`. This version reads it, and writes its own in its place.
const BEFORE: Version = Version { alone: "weir image store 1\n", shared: "weir image store 1, shared\n" };

impl Version {
    fn of(&self, is_shared: bool) -> &'static str {
        if is_shared { self.shared } else { self.alone }
    }
}

/// The names that a directory may hold that is made a store.
const NAMES: [&str; 13] = [
    "blobs",
    "part",
    "refs",
    "trash",
    "checked",
    "claims",
    "seals",
    "order",
    "sources",
    "lock",
    "version",
    "lost+found",
    "pins.json",
];

/// Why a directory cannot be the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It was made by another version.
    #[error(
        "cannot use {} as the image store: its layout is `{found}`, this weir wants `{wanted}`; \
         give it another `directory`, or remove this one",
        path.display()
    )]
    Version {
        /// The directory.
        path: PathBuf,
        /// The text of its file `version`.
        found: String,
        /// The text that it should have.
        wanted: String,
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
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
        /// The user of this process.
        user: u32,
    },
    /// Another process has it.
    #[error("cannot use {} as the image store: another weir uses it; stop that one, or give this one another `directory`", .0.display())]
    InUse(PathBuf),
    /// A node of this name has it. Two would take each other's room for their own.
    #[error(
        "cannot use {} as the image store of node {node}: another weir of that name uses it; give each node of the site \
         its own `node` in [images.pop]",
        path.display()
    )]
    NodeInUse {
        /// The directory.
        path: PathBuf,
        /// The name.
        node: String,
    },
    /// Another program has removed the directory, or put another in its place.
    #[error(
        "cannot use {} as the image store any more: its `{}` was removed or replaced, so another weir may have it; \
         restart this weir",
        path.display(), lock.display()
    )]
    Replaced {
        /// The directory.
        path: PathBuf,
        /// The file that tells.
        lock: PathBuf,
    },
    /// There is no room, and nothing that may go.
    #[error(
        "no room for {need} bytes: {used} of {budget} are used, {free} are free on the file system, and the rest is in use or pinned"
    )]
    NoRoom {
        /// The size that was asked for.
        need: u64,
        /// Bytes of blobs, downloads and reservations.
        used: u64,
        /// The bound.
        budget: u64,
        /// The free space of the file system.
        free: u64,
    },
    /// A pin names it.
    #[error(
        "cannot remove {0}: it is pinned; nothing was removed (`--force` removes it, `weir image pin` shows the pins)"
    )]
    Pinned(String),
    /// Too many pins, or too long a one.
    #[error(
        "cannot pin this: {pins} patterns are pinned, this one has {length} bytes; at most {max_pins} may be, of {max_pin} \
         bytes each (`weir image pin --remove` takes one away)",
        max_pins = MAX_PINS, max_pin = MAX_PIN
    )]
    Pins {
        /// The number of pins that are there already.
        pins: usize,
        /// Of the new one, bytes.
        length: usize,
    },
    /// More than half of the budget.
    #[error("{size} bytes are more than half of the store's {budget}: not kept")]
    TooBig {
        /// The blob.
        size: u64,
        /// The bound.
        budget: u64,
    },
    /// The content is not that of the name.
    #[error("{expected} arrived as {found} ({size} bytes)")]
    Mismatch {
        /// The name.
        expected: Digest,
        /// The digest of the content.
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
    /// Its lease was lost, and the new holder goes on with the bytes that were there.
    #[error("{0} is brought by another now")]
    TakenOver(Digest),
    /// This node keeps a download of it from a source that does not share its bytes.
    #[error("{0} comes from another source at the same time")]
    Elsewhere(Digest),
    /// The file system refuses.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The attempt.
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
/// lock                            held by the process that uses it, if it is one's only
/// pins.json                       patterns of images that stay
/// blobs/sha256/ab/abcd...         complete, verified; manifests too
/// part/abcd.../17-9000-01ab...-node   being downloaded, under fence 17, to 9000 bytes, in a scope, by a node
/// refs/ghcr.io/acme/app/_tags/1   what a tag was; _manifests/sha256-...: a manifest's type; _public
/// trash/1700-sha256-abcd...       renamed away at a time, to be unlinked
/// order/node                      how often blobs were used there, for who leaves first
/// checked/node                    when this node hashed what
/// sources/sha256-abcd...          who has delivered a blob, and so under which names it is served
/// claims/node                     shared: what a node has set aside
/// claims/.lock-node               shared: held by the process that is this node
/// seals/sha256-abcd...            shared: what the file was when it was verified
/// ```
#[derive(Debug)]
pub(super) struct Layout {
    root: PathBuf,
    /// The files of each node.
    node: String,
    is_shared: bool,
    /// Of the process that uses it, or that is this node.
    lock: Lock,
}

impl Layout {
    /// Takes the directory: makes it, or checks that it is a store of this version and this user's.
    ///
    /// * `node`: this one's name among those that share it; none if it is one's only.
    pub(super) fn open(root: &Path, node: Option<&str>) -> Result<Layout, StoreError> {
        fs::create_dir_all(root).map_err(io_error("make the directory", root))?;
        let meta = fs::metadata(root).map_err(io_error("look at", root))?;
        let (owner, mode, user) = (meta.uid(), meta.mode() & 0o7777, nix::unistd::geteuid().as_raw());
        if owner != user || mode & 0o022 != 0 {
            return Err(StoreError::Owner { path: root.to_owned(), owner, mode, user });
        }
        let version = root.join("version");
        let (wanted, before) = (VERSION.of(node.is_some()), BEFORE.of(node.is_some()));
        match fs::read_to_string(&version) {
            Ok(found) if found == wanted || found == before => {}
            Ok(found) => {
                let found: String = found.trim_end().chars().take(80).collect();
                let wanted = wanted.trim_end().to_owned();
                return Err(StoreError::Version { path: root.to_owned(), found, wanted });
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Another node may be making it.
                let is_ours = |name: &str| NAMES.contains(&name) || name.starts_with(".new-");
                let mut entries = fs::read_dir(root).map_err(io_error("list", root))?;
                if entries.any(|e| e.is_ok_and(|e| !e.file_name().to_str().is_some_and(is_ours))) {
                    return Err(StoreError::NotAStore(root.to_owned()));
                }
            }
            Err(e) => return Err(io_error("read", &version)(e)),
        }
        let (name, is_shared) = (node.unwrap_or("only").to_owned(), node.is_some());
        let lock = match node {
            None => hold(root)?,
            Some(node) => hold_node(root, node)?,
        };
        let layout = Layout { root: root.to_owned(), node: name, is_shared, lock };
        for dir in ["blobs/sha256", "blobs/sha512", "part", "refs", "trash", "order", "checked", "sources"] {
            layout.make_dir(&root.join(dir))?;
        }
        if layout.is_shared() {
            layout.make_dir(&root.join("seals"))?;
        }
        fs::set_permissions(root, fs::Permissions::from_mode(0o700))
            .map_err(io_error("set the mode of", root))?;
        // Last: a directory that has it is whole.
        layout.write_whole(&version, wanted.as_bytes())?;
        Ok(layout)
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// This node's name among those that share the directory.
    pub(super) fn node(&self) -> &str {
        &self.node
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

    /// Where all that is brought of a blob is.
    pub(super) fn parts(&self, digest: &Digest) -> PathBuf {
        self.root.join("part").join(digest.hex())
    }

    pub(super) fn part(&self, name: &PartName) -> PathBuf {
        self.parts(&name.digest).join(name.to_string())
    }

    /// Makes a directory of the store, and those above it, but not the store itself.
    pub(super) fn make_dir(&self, path: &Path) -> Result<(), StoreError> {
        self.check_lock()?;
        self.make_below(path).map_err(io_error("make the directory", path))
    }

    fn make_below(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().filter(|_| path != self.root);
        let made = match (fs::create_dir(path), parent) {
            (Err(e), Some(parent)) if e.kind() == io::ErrorKind::NotFound && parent != self.root => {
                self.make_below(parent)?;
                fs::create_dir(path)
            }
            (made, _) => made,
        };
        match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Whether the directory is still the one that this process has. Of a shared one file numbers may change.
    ///
    /// # Errors
    /// [`StoreError::Replaced`], [`StoreError::Io`].
    pub(super) fn check_lock(&self) -> Result<(), StoreError> {
        let Lock { path, number, .. } = &self.lock;
        let is_there = match fs::metadata(path) {
            Ok(meta) => self.is_shared || (meta.dev(), meta.ino()) == *number,
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(io_error("look at", path)(e)),
        };
        match is_there {
            true => Ok(()),
            false => Err(StoreError::Replaced { path: self.root.clone(), lock: path.clone() }),
        }
    }

    /// A small file, whole or not at all, also after a crash.
    pub(super) fn write_whole(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let dir = path.parent().unwrap_or(&self.root);
        self.make_dir(dir)?;
        let new = self.new_in(dir);
        let mut file = File::create(&new).map_err(io_error("make", &new))?;
        file.write_all(bytes).map_err(io_error("write", &new))?;
        file.sync_all().map_err(io_error("write", &new))?;
        self.publish(&new, path)?;
        File::open(dir).and_then(|d| d.sync_all()).map_err(io_error("write", dir))
    }

    /// Writes a small file in an existing directory. Each reader sees it whole; after a crash it
    /// may be the former one.
    pub(super) fn write_soon(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let new = self.new_in(path.parent().unwrap_or(&self.root));
        fs::write(&new, bytes).map_err(io_error("write", &new))?;
        fs::rename(&new, path).map_err(io_error("write", path))
    }

    /// This node's name for a file that has none yet.
    pub(super) fn new_in(&self, dir: &Path) -> PathBuf {
        dir.join(format!(".new-{}", self.node))
    }

    /// Gives a file that is on the disk its name. A power failure in the next seconds may take the name away;
    /// the blob is fetched again then. A wait for the name would double the time that a small blob waits for the disk.
    pub(super) fn publish(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.make_dir(to.parent().unwrap_or(&self.root))?;
        fs::rename(from, to).map_err(io_error("publish", to))
    }

    /// Removes a file that may be gone already.
    pub(super) fn discard(&self, path: &Path) -> Result<(), StoreError> {
        match fs::remove_file(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(io_error("remove", path)),
        }
    }

    /// Removes a blob's name, and the file unless another node may be reading it. A reader on this
    /// node reads on. Answers whether it is still in `trash`.
    pub(super) fn move_to_trash(&self, digest: &Digest, now: Utc) -> Result<bool, StoreError> {
        let name = format!("{}-{}-{}", now.unix_millis(), digest.algorithm().name(), digest.hex());
        self.throw_as(&name, digest)
    }

    /// As [`Layout::move_to_trash`], of a blob that is not what it is called: it does not come back.
    pub(super) fn condemn(&self, digest: &Digest, now: Utc) -> Result<(), StoreError> {
        self.throw_as(&format!("{}-corrupt-{}", now.unix_millis(), digest.hex()), digest).map(drop)
    }

    fn throw_as(&self, name: &str, digest: &Digest) -> Result<bool, StoreError> {
        let (path, trash) = (self.blob(digest), self.root.join("trash").join(name));
        match fs::rename(&path, &trash) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(io_error("remove", &path))?,
        }
        if self.is_shared() {
            return Ok(true);
        }
        self.discard(&trash)?;
        Ok(false)
    }

    /// The free space of the file system for this user, bytes.
    pub(super) fn free(&self) -> Result<u64, StoreError> {
        let stat =
            rustix::fs::statvfs(&self.root).map_err(|errno| io_error("look at", &self.root)(errno.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
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

/// The file that the process has locked to which a store belongs.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    /// Its device and inode.
    number: (u64, u64),
    /// None if its file system has no locks.
    _held: Option<Flock<File>>,
}

/// Keeps other processes of this machine away.
fn hold(root: &Path) -> Result<Lock, StoreError> {
    let path = root.join("lock");
    let (number, held) = take(&path)?;
    match held {
        Ok(held) => Ok(Lock { path, number, _held: Some(held) }),
        Err(Errno::EWOULDBLOCK) => Err(StoreError::InUse(root.to_owned())),
        Err(errno) => Err(io_error("lock", &path)(errno.into())),
    }
}

/// Keeps other processes away that call themselves this node, on other machines too. The kernel gives the lock back
/// when its process ends in any way.
fn hold_node(root: &Path, node: &str) -> Result<Lock, StoreError> {
    let claims = root.join("claims");
    fs::create_dir_all(&claims).map_err(io_error("make the directory", &claims))?;
    let path = claims.join(format!(".lock-{node}"));
    let (number, held) = take(&path)?;
    match held {
        Ok(held) => Ok(Lock { path, number, _held: Some(held) }),
        Err(Errno::EWOULDBLOCK) => {
            Err(StoreError::NodeInUse { path: root.to_owned(), node: node.to_owned() })
        }
        Err(errno @ (Errno::ENOLCK | Errno::ENOSYS | Errno::EOPNOTSUPP)) => {
            tracing::warn!("cannot lock {}: {errno}; a second node {node} is not noticed", path.display());
            Ok(Lock { path, number, _held: None })
        }
        Err(errno) => Err(io_error("lock", &path)(errno.into())),
    }
}

type Taken = Result<Flock<File>, Errno>;

/// Tries to lock a file. Answers which it is, and why the system refuses.
fn take(path: &Path) -> Result<((u64, u64), Taken), StoreError> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(io_error("open", path))?;
    let meta = file.metadata().map_err(io_error("look at", path))?;
    let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno);
    Ok(((meta.dev(), meta.ino()), held))
}

/// Opens a blob to read it. Anything but a file counts as missing, because a pipe would wait for a writer.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::NotFound.into()),
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
