//! The remains of a daemon that was killed, and their removal.
//!
//! dockerd's own shutdown takes seconds (it waits for containers that ignore TERM) and does
//! nothing if it hangs or has been killed, so clean-up never relies on it. Two names tell what
//! is ours: the directory, which is in every daemon's and shim's command line, and the cgroup,
//! which all containers are in.

use std::{
    env, fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::netns;

/// How the directories begin; the process id of their maker follows.
const PREFIX: &str = "weir-dockerd-";
/// How long killed processes may take to vanish.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A new directory for a daemon of this process.
pub(crate) fn new_dir() -> io::Result<PathBuf> {
    let prefix = format!("{PREFIX}{}-", std::process::id());
    Ok(tempfile::Builder::new().prefix(&prefix).tempdir()?.keep())
}

/// The name of the cgroup of the containers of the daemon in `dir`.
pub(crate) fn cgroup_of(dir: &Path) -> String {
    dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Undoes what tests that have died left behind, daemons and namespaces: call it where a run may
/// have been killed. The directories of living processes stay.
///
/// # Errors
/// The parts that could not be undone, one line each.
pub fn sweep() -> Result<(), Vec<String>> {
    let mut left = Vec::new();
    for dir in entries(&env::temp_dir()).iter().filter(|dir| is_orphan(dir, PREFIX)) {
        left.extend(clear(dir).err().unwrap_or_default());
    }
    for name in entries(Path::new(netns::DIR)).iter().filter(|name| is_orphan(name, netns::PREFIX)) {
        let deleted = umount2(name.as_path(), MntFlags::MNT_DETACH).map_err(io::Error::from);
        let deleted = deleted.and_then(|()| fs::remove_file(name));
        left.extend(deleted.err().map(|why| format!("cannot delete {}: {why}", name.display())));
    }
    if left.is_empty() { Ok(()) } else { Err(left) }
}

/// Whether the file name is `prefix`, the id of a process that is no more, `-` and something.
fn is_orphan(path: &Path, prefix: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let maker = name.strip_prefix(prefix).and_then(|rest| rest.split_once('-'));
    maker.is_some_and(|(pid, _)| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
}

/// Ends the processes, unmounts, and removes cgroups and files of the daemon in `dir`.
/// Errors are one line each; nothing is left out because of an earlier one.
pub(crate) fn clear(dir: &Path) -> Result<(), Vec<String>> {
    let mut left = Vec::new();
    let cgroups: Vec<PathBuf> = mounts(|fs| fs == "cgroup" || fs == "cgroup2")
        .into_iter()
        .map(|mount| mount.join(cgroup_of(dir)))
        .filter(|cgroup| cgroup.is_dir())
        .collect();

    let started = Instant::now();
    loop {
        let alive: Vec<u32> = pids_naming(dir).into_iter().chain(pids_in(&cgroups)).collect();
        if alive.is_empty() {
            break;
        }
        if started.elapsed() > EXIT_TIMEOUT {
            left.push(format!("processes {alive:?} of {} do not die", dir.display()));
            break;
        }
        for pid in alive {
            // One that has ended meanwhile is as good.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(5));
    }
    for socket in shim_sockets(dir) {
        let _ = fs::remove_file(socket);
    }
    // The latest mounts first: they may lie inside earlier ones.
    for mount in mounts(|_| true).iter().rev().filter(|mount| mount.starts_with(dir)) {
        if let Err(why) = umount2(mount.as_path(), MntFlags::MNT_DETACH) {
            left.push(format!("cannot unmount {}: {why}", mount.display()));
        }
    }
    for cgroup in &cgroups {
        let removed = retry(started, || remove_cgroup(cgroup));
        left.extend(removed.err().map(|why| format!("cannot remove {}: {why}", cgroup.display())));
    }
    match fs::remove_dir_all(dir) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => {
            left.push(format!("cannot remove {}: {why}", dir.display()));
        }
        _ => {}
    }
    if left.is_empty() { Ok(()) } else { Err(left) }
}

/// Tries until it succeeds or the time limit ends: a cgroup is busy until its last process is reaped.
fn retry<T>(started: Instant, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match work() {
            Err(_) if started.elapsed() < EXIT_TIMEOUT => thread::sleep(Duration::from_millis(5)),
            done => return done,
        }
    }
}

/// Docker's processes, zombies left out, whose command line names something in `dir`.
fn pids_naming(dir: &Path) -> Vec<u32> {
    let own = std::process::id();
    let needle = [dir.as_os_str().as_bytes(), b"/"].concat();
    entries(Path::new("/proc"))
        .into_iter()
        .filter(|process| {
            // A zombie has an empty command line.
            fs::read(process.join("cmdline"))
                .is_ok_and(|line| line.windows(needle.len()).any(|part| part == needle))
        })
        .filter(|process| {
            // Not a person's pager on one of the logs.
            let program = fs::read_to_string(process.join("comm")).unwrap_or_default();
            ["docker", "containerd", "runc"].iter().any(|ours| program.starts_with(ours))
        })
        .filter_map(|process| process.file_name()?.to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .collect()
}

/// Processes in these cgroups and those below.
fn pids_in(cgroups: &[PathBuf]) -> Vec<u32> {
    let mut pids = Vec::new();
    for cgroup in cgroups {
        let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| !is_zombie(*pid)));
        let below: Vec<PathBuf> = entries(cgroup).into_iter().filter(|entry| entry.is_dir()).collect();
        pids.extend(pids_in(&below));
    }
    pids
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// Removes a cgroup and those below it.
fn remove_cgroup(cgroup: &Path) -> io::Result<()> {
    for below in entries(cgroup).into_iter().filter(|entry| entry.is_dir()) {
        remove_cgroup(&below)?;
    }
    fs::remove_dir(cgroup)
}

/// The sockets of containerd's shims, which lie outside of its directories.
fn shim_sockets(dir: &Path) -> Vec<PathBuf> {
    let tasks = dir.join("containerd-state/io.containerd.runtime.v2.task");
    let addresses = entries(&tasks).into_iter().flat_map(|namespace| entries(&namespace));
    addresses
        .filter_map(|task| fs::read_to_string(task.join("address")).ok())
        .filter_map(|address| Some(PathBuf::from(address.trim().strip_prefix("unix://")?)))
        .collect()
}

/// Mount points, in the order they were made, of the file systems asked for.
fn mounts(wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table
        .lines()
        .filter(|line| {
            let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
            kind.is_some_and(&wanted)
        })
        .filter_map(|line| line.split(' ').nth(4).map(unescape))
        .collect()
}

/// A path of mountinfo, where blanks are written as `\040`.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The paths in a directory; none if it cannot be read.
fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_mount_points_are_read_back() {
        assert_eq!(unescape(r"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(unescape("/plain"), Path::new("/plain"));
        assert_eq!(unescape(r"/ends\04"), Path::new(r"/ends\04"));
    }

    #[test]
    fn sweep_takes_directories_of_the_dead_and_leaves_the_living() {
        let mut dead = std::process::Command::new("true").spawn().expect("can start a process");
        dead.wait().expect("it ends");
        let of = |pid: u32| env::temp_dir().join(format!("{PREFIX}{pid}-sweep"));
        let (gone, kept) = (of(dead.id()), of(std::process::id()));
        for dir in [&gone, &kept] {
            fs::create_dir_all(dir.join("data")).expect("can make a directory");
        }
        let swept = sweep();
        assert!(!gone.exists(), "{swept:?}");
        assert!(kept.exists());
        fs::remove_dir_all(kept).expect("can remove it");
    }
}
