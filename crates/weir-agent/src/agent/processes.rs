//! Classes of processes: their cgroups, and the events that tell when those appear and go.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    path::{Component, Path, PathBuf},
};

use tokio::io::unix::AsyncFd;
use weir_discovery::{
    cgroup::{Cgroup2, CgroupError},
    dir_events::DirEvents,
    units,
};

use super::class_table::discovered::DiscoveredClass;
use crate::config::ClassConfig;

/// The deepest cgroup that the classifier knows.
const MAX_LEVEL: u32 = 8;

/// Where cgroups appear that classes wait for, and files of virtual machines.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    /// The directories of the cgroups.
    directories: BTreeSet<PathBuf>,
    /// The names of the cgroups.
    names: BTreeSet<OsString>,
    /// The directories of the files.
    whole: BTreeSet<PathBuf>,
}

impl Awaited {
    /// A directory in which each entry matters.
    pub(super) fn directory(&mut self, path: &Path) {
        self.whole.insert(path.to_owned());
    }

    /// A cgroup at this path, and those above it.
    fn path(&mut self, mount: &Cgroup2, path: &Path) {
        self.directories.extend(mount.parents(path));
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            _ => None,
        });
        self.names.extend(names);
    }
}

/// Finds the cgroup of a class with `cgroup`, `unit` or `slice`.
pub(super) fn place(
    claim: &mut DiscoveredClass,
    class: &ClassConfig,
    mount: Result<&Cgroup2, &CgroupError>,
    awaited: &mut Awaited,
) {
    let found = match mount {
        Ok(found) => found,
        Err(e) => {
            claim.problem = Some(e.to_string());
            return;
        }
    };
    if let Some(path) = &class.cgroup {
        awaited.path(found, path);
        resolve(claim, mount, path);
    }
    if let Some(slice) = &class.slice {
        let path = slice.cgroup();
        awaited.path(found, &path);
        resolve(claim, mount, &path);
        if claim.cgroups.is_empty() && found.resolve(&path).is_err() {
            claim.problem = Some(format!(
                "slice {slice} has no cgroup {} (its processes are caught as soon as it has one)",
                path.display()
            ));
        }
    }
    if let Some(unit) = &class.unit {
        let search = units::search(found, unit);
        awaited.directories.extend(search.places);
        awaited.names.insert(search.name);
        match search.cgroup {
            Some(path) => resolve(claim, mount, &path),
            None => {
                claim.problem =
                    Some(format!("unit {unit} does not run (its processes are caught as soon as it starts)"));
            }
        }
    }
}

/// The depths at which packets are asked for a cgroup, as bits: its own, or each if that is unknown. An error has a depth
/// at which none is asked.
fn levels(level: Option<u32>) -> Result<u32, u32> {
    let bit = |level: u32| 1 << level;
    match level {
        Some(level) if (1..=MAX_LEVEL).contains(&level) => Ok(bit(level)),
        Some(level) => Err(level),
        None => Ok((1..=MAX_LEVEL).map(bit).sum()),
    }
}

/// Takes a cgroup for a class.
pub(super) fn resolve(claim: &mut DiscoveredClass, mount: Result<&Cgroup2, &CgroupError>, path: &Path) {
    match mount.map(|m| m.resolve(path)) {
        Ok(Ok(cgroup)) => match levels(cgroup.level) {
            Ok(levels) => claim.cgroups.push((cgroup.id, levels)),
            Err(level) => {
                let path = path.display();
                claim.problem =
                    Some(format!("cgroup {path} is at depth {level}, weir sees 1 to {MAX_LEVEL}"));
            }
        },
        Ok(Err(e)) => claim.problem = Some(e.to_string()),
        Err(e) => claim.problem = Some(e.to_string()),
    }
}

/// Watches the cgroups that classes wait for, and the files of virtual machines. Without it the agent looks at
/// them in each reconciliation.
#[derive(Default)]
pub(super) struct Watch {
    /// `None` until something is awaited.
    events: Option<AsyncFd<DirEvents>>,
    /// The reason why nothing is watched.
    failure: Option<String>,
}

impl Watch {
    /// Follows what a discovery awaits. The answer is whether another discovery is due: something may have
    /// appeared before the watch began.
    pub(super) fn follow(&mut self, awaited: Awaited) -> bool {
        if self.events.is_none() && awaited.directories.is_empty() && awaited.whole.is_empty() {
            return false;
        }
        let failure = match self.watch(awaited) {
            Ok(is_due) => return is_due,
            Err(e) => format!(
                "cannot watch cgroups and virtual machines: {e} (their changes count within a second)"
            ),
        };
        if self.failure.as_ref() != Some(&failure) {
            tracing::warn!("{failure}");
        }
        self.failure = Some(failure);
        false
    }

    fn watch(&mut self, awaited: Awaited) -> io::Result<bool> {
        if self.events.is_none() {
            // SAFETY: `DirEvents` owns its descriptor and always answers with the same one. It is not taken
            // out of the `AsyncFd`.
            self.events = Some(unsafe { AsyncFd::register(DirEvents::open()?) }?);
        }
        let is_due = match &mut self.events {
            Some(events) => events.get_mut().watch(awaited.directories, awaited.names, awaited.whole)?,
            None => false,
        };
        self.failure = None;
        Ok(is_due)
    }

    /// Waits for a change that matters, or without end if nothing is watched.
    pub(super) async fn changed(&mut self) {
        let Some(events) = &mut self.events else { return std::future::pending().await };
        while let Ok(mut ready) = events.readable_mut().await {
            let matters = ready.get_inner_mut().drain();
            ready.clear_ready();
            if matters {
                return;
            }
        }
        std::future::pending().await
    }

    /// The reason why nothing is watched.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_of_unknown_depth_is_asked_for_at_each() {
        assert_eq!(levels(Some(3)), Ok(0b1000));
        assert_eq!(levels(None), Ok(0b1_1111_1110));
        assert_eq!((levels(Some(0)), levels(Some(9))), (Err(0), Err(9)));
    }
}
