//! Tells when cgroups, and files of virtual machines, appear and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use crate::units;

/// Entries that are made or removed in some directories, by inotify.
#[derive(Debug)]
pub struct DirEvents {
    inotify: OwnedFd,
    /// The watched directories, and the kernel's numbers of the watches.
    watched: BTreeMap<PathBuf, i32>,
    /// The names that matter, beside those of slices.
    names: BTreeSet<OsString>,
    /// The directories in which each name matters.
    whole: BTreeSet<PathBuf>,
}

impl DirEvents {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// The kernel's, as where a user has no inotify instance left.
    pub fn open() -> io::Result<DirEvents> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(DirEvents { inotify, watched: BTreeMap::new(), names: BTreeSet::new(), whole: BTreeSet::new() })
    }

    /// Watches these directories alone: the first for slices and for cgroups of these names, those of `whole` for all
    /// entries. The answer is whether one of the directories is new: what appeared in it before is not told.
    ///
    /// # Errors
    /// The kernel's, as where a user has no inotify watch left. A directory that is gone is no error.
    pub fn watch(
        &mut self,
        mut directories: BTreeSet<PathBuf>,
        names: BTreeSet<OsString>,
        whole: BTreeSet<PathBuf>,
    ) -> io::Result<bool> {
        self.names = names;
        directories.extend(whole.iter().cloned());
        self.whole = whole;
        let old = std::mem::take(&mut self.watched);
        for (directory, watch) in old {
            if directories.contains(&directory) {
                self.watched.insert(directory, watch);
            } else {
                // The kernel has removed it where the directory is gone.
                let _ = inotify::remove_watch(&self.inotify, watch);
            }
        }
        let mut is_new = false;
        for directory in directories {
            if self.watched.contains_key(&directory) {
                continue;
            }
            let flags = WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::ONLYDIR;
            match inotify::add_watch(&self.inotify, &directory, flags) {
                Ok(watch) => {
                    self.watched.insert(directory, watch);
                    is_new = true;
                }
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(is_new)
    }

    /// Reads all that happened since the last call. The answer is whether something matters.
    pub fn drain(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut matters = false;
        while let Ok(event) = reader.next() {
            let flags = event.events();
            if flags.contains(ReadFlags::IGNORED) {
                // The directory is gone. A new directory in its place gets a new watch.
                let known = self.watched.len();
                self.watched.retain(|_, watch| *watch != event.wd());
                matters |= self.watched.len() < known;
            }
            matters |= flags.contains(ReadFlags::QUEUE_OVERFLOW);
            let of = |dir: &PathBuf| self.watched.get(dir) == Some(&event.wd());
            matters |= event.file_name().is_some_and(|name| {
                let name = OsStr::from_bytes(name.to_bytes());
                units::is_slice(name) || self.names.contains(name) || self.whole.iter().any(of)
            });
        }
        matters
    }
}

impl AsRawFd for DirEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.inotify.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_slices_and_wanted_names_are_told_also_of_a_new_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let slice = dir.path().join("a.slice");
        let places = || BTreeSet::from([dir.path().to_owned(), slice.clone()]);
        let names = || BTreeSet::from([OsString::from("backup.service")]);
        let mut events = DirEvents::open().expect("inotify");
        assert!(
            events.watch(places(), names(), BTreeSet::new()).expect("it watches"),
            "the first directory is new"
        );
        assert!(!events.drain());
        fs::create_dir(dir.path().join("other.service")).expect("a directory");
        assert!(!events.drain(), "no one asks for this one");
        fs::create_dir(&slice).expect("a directory");
        assert!(events.drain());
        for _ in 0..2 {
            assert!(
                events.watch(places(), names(), BTreeSet::new()).expect("it watches"),
                "a directory is new"
            );
            fs::create_dir(slice.join("backup.service")).expect("a directory");
            assert!(events.drain());
            assert!(!events.drain(), "each change is told once");
            assert!(!events.watch(places(), names(), BTreeSet::new()).expect("it watches"));
            fs::remove_dir_all(&slice).expect("it can go");
            fs::create_dir(&slice).expect("a directory");
            assert!(events.drain());
        }
        assert!(events.watch(BTreeSet::new(), names(), BTreeSet::new()).is_ok());
        fs::remove_dir_all(&slice).expect("it can go");
        assert!(!events.drain(), "nothing is watched now");
    }

    #[test]
    fn all_entries_of_a_whole_directory_are_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let whole = dir.path().join("qemu");
        let mut events = DirEvents::open().expect("inotify");
        let watch = |events: &mut DirEvents| {
            events
                .watch([dir.path().to_owned()].into(), BTreeSet::new(), [whole.clone()].into())
                .expect("it watches")
        };
        assert!(watch(&mut events), "the first directory is new");
        fs::create_dir(&whole).expect("a directory");
        assert!(!events.drain(), "its name does not matter in the other one");
        assert!(watch(&mut events), "it is there now");
        fs::write(whole.join("web.xml.new"), "a").expect("a file");
        assert!(events.drain());
        fs::rename(whole.join("web.xml.new"), whole.join("web.xml")).expect("a name");
        assert!(events.drain());
        fs::write(dir.path().join("web.xml"), "a").expect("a file");
        assert!(!events.drain(), "it is in the other directory");
    }
}
