//! Threads that act as another user.

use std::{io, thread};

/// Runs `act` in a thread that is this user, in these groups only, without capabilities.
///
/// The kernel keeps credentials by thread. The C library's functions change those of all threads, so
/// this one makes the system calls itself.
///
/// # Panics
/// If the caller may not become that user, or if `act` panics.
pub fn as_user<T: Send>(uid: u32, groups: &[u32], act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            become_user(uid, groups).unwrap_or_else(|e| panic!("cannot become user {uid}: {e}"));
            act()
        });
        worker.join().expect("no thread panics")
    })
}

fn become_user(uid: u32, groups: &[u32]) -> io::Result<()> {
    let gid = groups.first().copied().unwrap_or(uid);
    let done = |result: libc::c_long| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the kernel reads `groups.len()` numbers from a slice that lives as long as the call.
    done(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: the call takes numbers only, and changes this thread only.
    done(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: as above.
    done(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

#[cfg(test)]
mod tests {
    use nix::unistd::{geteuid, getgid, getgroups, getuid};

    use super::as_user;

    #[test]
    fn thread_is_another_user_and_the_process_stays_what_it_was() {
        let before = (getuid(), geteuid(), getgid(), getgroups().expect("they can be read"));
        if !before.0.is_root() {
            return println!("SKIPPED: CAP_SETUID is missing here");
        }
        let (uid, gid, groups) =
            as_user(4001, &[4002, 4003], || (geteuid(), getgid(), getgroups().expect("they can be read")));
        assert_eq!((uid.as_raw(), gid.as_raw()), (4001, 4002));
        assert_eq!(groups.iter().map(|g| g.as_raw()).collect::<Vec<_>>(), [4002, 4003]);
        assert_eq!((getuid(), geteuid(), getgid(), getgroups().expect("they can be read")), before);
    }
}
