//! The socket: its path, its users, and the exclusion of a second agent.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt, chown},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
    unistd::Group,
};

use crate::config::{GROUP, Rights};

/// The reason why the agent cannot listen on the socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another agent answers there.
    #[error(
        "cannot listen on {}: another agent answers there; stop it first, \
         or give this one a socket of its own (`socket` in `[agent]`)",
        .0.display()
    )]
    InUse(PathBuf),
    /// A file or directory has the socket's name.
    #[error("cannot listen on {}: what is there is not a socket; remove it, or name another path", .0.display())]
    NotASocket(PathBuf),
    /// The system refuses.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The attempt.
        what: &'static str,
        /// The path concerned.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

/// The socket an agent listens on.
///
/// Invariant: at any time at most one `Socket` of a path exists, in all processes together. A lock file
/// beside the socket ensures this, even if two agents find the same dead socket.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Distinguishes this socket from a later one with the same name.
    inode: u64,
    lock: Flock<File>,
}

impl Socket {
    /// Listens on `path`. Creates its directory and replaces a socket without a listener. Admits root,
    /// the group `weir` and users with a right.
    ///
    /// # Errors
    /// Another agent has the socket, or it cannot be made. The socket of a live agent is never replaced.
    pub fn bind(path: &Path, rights: &Rights) -> Result<Socket, BindError> {
        make_directory_of(path)?;
        let lock = lock(path)?;
        let (listener, inode) = listen(path, rights)?;
        Ok(Socket { listener, path: path.to_owned(), inode, lock })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the socket is still at its path.
    pub(crate) fn is_in_place(&self) -> bool {
        // The listener holds the inode, so no other file has its number.
        fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode)
    }

    /// Listens at the path again if another program removed the socket. After an error the old listener stays.
    ///
    /// # Errors
    /// As [`bind`](Socket::bind).
    pub(crate) fn rebind(&mut self, rights: &Rights) -> Result<tokio::net::UnixListener, BindError> {
        make_directory_of(&self.path)?;
        if !self.holds_lock() {
            self.lock = lock(&self.path)?;
        }
        let (listener, inode) = listen(&self.path, rights)?;
        let answering = listener.try_clone().and_then(tokio::net::UnixListener::from_std);
        let answering = answering.map_err(|e| {
            // The next look tries again.
            let _ = fs::remove_file(&self.path);
            io_error("listen on", &self.path)(e)
        })?;
        (self.listener, self.inode) = (listener, inode);
        Ok(answering)
    }

    /// Whether the locked file is still the one beside the socket.
    fn holds_lock(&self) -> bool {
        let there = fs::symlink_metadata(lock_path(&self.path));
        there.is_ok_and(|there| self.lock.metadata().is_ok_and(|held| held.ino() == there.ino()))
    }

    /// The listener, registered with the current runtime.
    ///
    /// # Errors
    /// No file descriptors are left.
    pub fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BindError + use<> {
    let path = path.to_owned();
    move |source| BindError::Io { what, path, source }
}

fn make_directory_of(path: &Path) -> Result<(), BindError> {
    match path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => fs::create_dir_all(dir).map_err(io_error("make the directory", dir)),
        None => Ok(()),
    }
}

/// Listens on a path, whose lock is held. Also returns the inode of the socket.
fn listen(path: &Path, rights: &Rights) -> Result<(UnixListener, u64), BindError> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io_error("look at", path)(e)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket(path.to_owned()));
        }
        Ok(_) if is_listened(path) => return Err(BindError::InUse(path.to_owned())),
        Ok(_) => fs::remove_file(path).map_err(io_error("remove the dead socket", path))?,
    }
    let listener = UnixListener::bind(path).map_err(io_error("listen on", path))?;
    listener.set_nonblocking(true).map_err(io_error("listen on", path))?;
    match Group::from_name(GROUP) {
        Ok(Some(group)) => {
            if let Err(e) = chown(path, None, Some(group.gid.as_raw())) {
                tracing::warn!("cannot give {} to the group {GROUP}: {e}", path.display());
            }
        }
        _ => tracing::warn!(
            "only root may use {}: there is no group {GROUP} (`groupadd --system {GROUP}` makes one)",
            path.display()
        ),
    }
    admit(path, rights).map_err(io_error("set the mode of", path))?;
    let inode = fs::symlink_metadata(path).map_err(io_error("look at", path))?.ino();
    Ok((listener, inode))
}

impl Drop for Socket {
    /// Removes the socket, unless another one has its name now.
    fn drop(&mut self) {
        if self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket on which no process listens.
pub(crate) fn remove_dead(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) && !is_listened(path) {
        let _ = fs::remove_file(path);
    }
}

/// Whether a process listens on the socket at a path. A process that takes no connections does not hold up the caller.
pub(crate) fn is_listened(path: &Path) -> bool {
    let Ok(address) = UnixAddr::new(path) else { return false };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let Ok(socket) = socket(AddressFamily::Unix, SockType::Stream, flags, None) else {
        // A socket that may be in use is not replaced.
        return true;
    };
    !matches!(
        connect(socket.as_raw_fd(), &address),
        Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::ENOTSOCK)
    )
}

/// Sets the socket's mode. All users may connect if a user outside the group `weir` has a right. Each
/// request is checked later. A path without a socket is left alone: the socket gets its mode when it is put back.
pub(crate) fn admit(path: &Path, rights: &Rights) -> io::Result<()> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        return Ok(());
    }
    let mode = if rights.is_for_others() { 0o666 } else { 0o660 };
    fs::set_permissions(path, PermissionsExt::from_mode(mode))
}

/// Locks `path.lock`. The file is never removed, because two agents could then lock two files of that
/// name.
fn lock(path: &Path) -> Result<Flock<File>, BindError> {
    let name = lock_path(path);
    let io = |source| BindError::Io { what: "lock", path: name.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&name).map_err(io)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => BindError::InUse(path.to_owned()),
        errno => io(errno.into()),
    })
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}
