//! One agent for each network namespace: a lock that only root can take.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag},
    unistd::geteuid,
};

/// The directory of the locks.
const DIRECTORY: &str = "/run/weir";
/// The network namespace of this process.
const NAMESPACE: &str = "/proc/self/ns/net";

/// Held while the agent runs. The kernel frees the lock when the process ends in any way.
#[derive(Debug)]
pub(super) struct Lock {
    _file: Flock<File>,
    path: PathBuf,
}

impl Drop for Lock {
    /// Removes the file while the lock is held, so that no other agent holds a lock on it.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Takes the lock of this network namespace.
///
/// # Errors
/// Another agent has it, or the directory belongs to a user who is not root.
pub(super) fn take() -> anyhow::Result<Lock> {
    let inode = fs::metadata(NAMESPACE).with_context(|| format!("cannot look at {NAMESPACE}"))?.ino();
    take_in(Path::new(DIRECTORY), inode)
}

fn take_in(directory: &Path, namespace: u64) -> anyhow::Result<Lock> {
    let shown = directory.display();
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(denied(e, format!("cannot make the directory {shown} for the agent's lock")));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(directory).with_context(|| format!("cannot look at {shown}"))?;
    let is_ours = found.is_dir() && (found.uid() == 0 || found.uid() == geteuid().as_raw());
    if !is_ours || found.mode() & 0o022 != 0 {
        anyhow::bail!(
            "cannot use {shown} for the agent's lock: another user could change it (owner {}, mode {:o}); remove \
             it, or give it to root with mode 755",
            found.uid(),
            found.mode() & 0o7777
        );
    }
    let path = directory.join(format!("agent-{namespace}.lock"));
    loop {
        if let Some(lock) = lock(&path)? {
            return Ok(lock);
        }
    }
}

/// Adds the remedy to an error if rights are missing.
fn denied(error: io::Error, what: String) -> anyhow::Error {
    let needs = "the agent needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN, and a directory /run/weir of its own; `weir doctor` \
         tells what is missing";
    let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
    anyhow::Error::new(error).context(if is_denied { format!("{what} ({needs})") } else { what })
}

/// Locks the file. `None` if an agent that just ended has removed it.
fn lock(path: &Path) -> anyhow::Result<Option<Lock>> {
    let cannot = || format!("cannot lock {}", path.display());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)
        .map_err(|e| denied(e, cannot()))?;
    let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(file) => file,
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder =
                holder.trim().parse::<u32>().map_or(String::new(), |pid| format!(", process {pid},"));
            anyhow::bail!(
                "cannot start: another weir agent{holder} shares the link of this network namespace (`weir status` \
                 asks it, `systemctl stop weir` ends it)"
            );
        }
        Err((_, errno)) => return Err(errno).with_context(cannot),
    };
    let locked = file.metadata().with_context(cannot)?.ino();
    if !fs::symlink_metadata(path).is_ok_and(|there| there.ino() == locked) {
        return Ok(None);
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).with_context(cannot)?;
    Ok(Some(Lock { _file: file, path: path.to_owned() }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn one_lock_for_each_namespace_and_the_holder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("weir");
        let held = take_in(&dir, 7).unwrap();
        let other = take_in(&dir, 8).unwrap();
        let refused = take_in(&dir, 7).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {},", std::process::id())), "{refused}");
        drop((held, other));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        drop(take_in(&dir, 7).unwrap());
    }

    #[test]
    fn directory_that_others_may_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [open, link] = ["open", "link"].map(|name| dir.path().join(name));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        symlink(dir.path(), &link).unwrap();
        for bad in [&open, &link] {
            let refused = take_in(bad, 7).unwrap_err().to_string();
            assert!(refused.contains("another user could change it"), "{refused}");
        }
        // A symbolic link in the place of the lock is not followed.
        let good = dir.path().join("good");
        fs::create_dir(&good).unwrap();
        let target = dir.path().join("target");
        fs::write(&target, "precious").unwrap();
        symlink(&target, good.join("agent-7.lock")).unwrap();
        assert!(take_in(&good, 7).is_err());
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    }
}
