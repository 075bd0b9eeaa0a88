//! systemd's units and slices, found by their cgroups.
//!
//! systemd gives each unit a cgroup of its name, below the cgroups of its slices. So the tree of cgroups tells where
//! a unit runs, and no question to systemd is needed.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fmt, fs,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::cgroup::Cgroup2;

/// The longest name of a unit, bytes (`UNIT_NAME_MAX` of systemd).
const MAX_NAME: usize = 255;
/// The ends of the names of units that have processes, but for slices.
const KINDS: [&str; 5] = [".service", ".scope", ".socket", ".mount", ".swap"];
/// The deepest slice that is searched. The classifier knows cgroups down to depth 8.
const MAX_DEPTH: usize = 7;
/// The most slices that are searched.
const MAX_SLICES: usize = 4096;

/// The name of a unit that has processes of its own, such as `backup.service`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitName(String);

/// The name of a slice, such as `tenant-a.slice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceName(String);

/// A text that is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is not the name of a unit with processes.
    #[error(
        "`{0}` is not the name of a unit with processes: write it with its end, as in \"backup.service\" (also {ends}; \
         `slice` names a slice)", ends = KINDS[1..].join(", ")
    )]
    NotUnit(String),
    /// It is not the name of a slice.
    #[error("`{0}` is not the name of a slice: write it with its end, as in \"tenant-a.slice\"")]
    NotSlice(String),
}

/// Whether systemd allows this name before its end.
fn is_stem(stem: &str) -> bool {
    let ok = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    !stem.is_empty() && stem.len() <= MAX_NAME && stem.chars().all(ok)
}

impl FromStr for UnitName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<UnitName, NameError> {
        let stem = KINDS.iter().find_map(|end| text.strip_suffix(end));
        // A template without an instance never runs.
        let is_unit =
            stem.is_some_and(|stem| is_stem(stem) && !stem.starts_with('@') && !stem.ends_with('@'));
        if is_unit && text.len() <= MAX_NAME {
            Ok(UnitName(text.to_owned()))
        } else {
            Err(NameError::NotUnit(crate::labels::brief(text)))
        }
    }
}

impl FromStr for SliceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<SliceName, NameError> {
        let is_slice = text.strip_suffix(".slice").is_some_and(|stem| {
            // Each part between dashes is a slice of its own.
            is_stem(stem) && !stem.contains('@') && stem.split('-').all(|part| !part.is_empty())
        });
        if is_slice && text.len() <= MAX_NAME {
            Ok(SliceName(text.to_owned()))
        } else {
            Err(NameError::NotSlice(crate::labels::brief(text)))
        }
    }
}

impl<'de> Deserialize<'de> for UnitName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UnitName, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for SliceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SliceName, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for SliceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SliceName {
    /// Its path in the hierarchy. `tenant-a.slice` is inside `tenant.slice`.
    #[must_use]
    pub fn cgroup(&self) -> PathBuf {
        let stem = self.0.strip_suffix(".slice").unwrap_or(&self.0);
        let ends = stem.match_indices('-').map(|(at, _)| at).chain([stem.len()]);
        let parts = ends.map(|end| escape(&format!("{}.slice", &stem[..end])));
        parts.fold(PathBuf::from("/"), |path, part| path.join(part))
    }
}

impl UnitName {
    /// The name of its cgroup.
    #[must_use]
    pub fn cgroup_name(&self) -> String {
        escape(&self.0)
    }

    /// Whether a path is its cgroup, if it has one there: in slices alone. The system's manager has each unit once.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        let parents = path.parent().into_iter().flat_map(Path::components);
        let names = parents.filter(|part| matches!(part, Component::Normal(_)));
        path.file_name().is_some_and(|name| *name == *self.cgroup_name())
            && names.map(|part| part.as_os_str()).all(is_slice)
    }
}

/// The result of a search for a unit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Search {
    /// Its path in the hierarchy. `None` if the unit has no processes now.
    pub cgroup: Option<PathBuf>,
    /// The name of its cgroup.
    pub name: OsString,
    /// The directories in which it may appear.
    pub places: BTreeSet<PathBuf>,
}

/// Searches a unit of the system's manager. Users' managers are services themselves, so their units, which may have
/// the same names, are not found.
#[must_use]
pub fn search(mount: &Cgroup2, unit: &UnitName) -> Search {
    let wanted = unit.cgroup_name();
    let mut search = Search { name: wanted.clone().into(), ..Search::default() };
    let mut waiting = vec![(PathBuf::from("/"), 0)];
    while let Some((slice, depth)) = waiting.pop() {
        if search.places.len() >= MAX_SLICES {
            break;
        }
        let dir = mount.directory(&slice);
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        search.places.insert(dir);
        let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut slices = BTreeSet::new();
        for entry in directories {
            let name = entry.file_name();
            if name == *wanted {
                search.cgroup.get_or_insert(slice.join(&name));
            } else if is_slice(&name) && depth < MAX_DEPTH {
                slices.insert(slice.join(&name));
            }
        }
        waiting.extend(slices.into_iter().rev().map(|slice| (slice, depth + 1)));
    }
    search
}

/// Whether a cgroup of this name is a slice.
#[must_use]
pub fn is_slice(name: &OsStr) -> bool {
    Path::new(name).extension().is_some_and(|end| end == "slice")
}

/// The name of a unit's cgroup. systemd puts `_` before names that the kernel's own files could have.
fn escape(name: &str) -> String {
    /// Controllers of both versions, whose files begin with their names.
    const CONTROLLERS: [&str; 18] = [
        "cgroup",
        "cpu",
        "cpuacct",
        "cpuset",
        "io",
        "blkio",
        "memory",
        "devices",
        "pids",
        "rdma",
        "misc",
        "dmem",
        "freezer",
        "hugetlb",
        "net_cls",
        "net_prio",
        "perf_event",
        "debug",
    ];
    let is_kernels = name.split_once('.').is_some_and(|(first, _)| CONTROLLERS.contains(&first));
    if name.starts_with(['_', '.']) || is_kernels { format!("_{name}") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(text: &str) -> UnitName {
        text.parse().expect("it is a name")
    }

    #[test]
    fn names_that_systemd_would_refuse_are_refused() {
        for good in ["backup.service", "a@b.service", "dev-sda\\x2d1.swap", "session-4.scope", "a:b.socket"] {
            assert_eq!(unit(good).to_string(), good);
        }
        let long = format!("{}.service", "a".repeat(300));
        let bad = [
            "backup",
            "",
            ".service",
            "a/b.service",
            "../a.service",
            "a b.service",
            "a@.service",
            "a.slice",
            &long,
        ];
        for bad in bad {
            let refused = bad.parse::<UnitName>().expect_err(bad);
            assert!(refused.to_string().contains("backup.service"), "{refused}");
        }
        for bad in ["a", "-.slice", "-a.slice", "a--b.slice", "a@b.slice", "a.service", "a/b.slice", ".slice"]
        {
            assert!(matches!(bad.parse::<SliceName>(), Err(NameError::NotSlice(_))), "{bad}");
        }
    }

    #[test]
    fn a_slice_is_inside_the_slices_of_its_name() {
        let cgroup = |name: &str| name.parse::<SliceName>().expect("a slice").cgroup();
        assert_eq!(cgroup("tenant.slice"), Path::new("/tenant.slice"));
        assert_eq!(cgroup("tenant-a-b.slice"), Path::new("/tenant.slice/tenant-a.slice/tenant-a-b.slice"));
        assert_eq!(cgroup("memory-a.slice"), Path::new("/_memory.slice/memory-a.slice"));
    }

    #[test]
    fn a_unit_is_found_in_any_slice_but_not_below_a_users_manager() {
        let dir = tempfile::tempdir().expect("a directory");
        let make = |path: &str| fs::create_dir_all(dir.path().join(path)).expect("a directory");
        let mount = Cgroup2::at(dir.path());
        make("user.slice/user-7.slice/user@7.service/app.slice/backup.service");
        make("system.slice/docker.service/backup.service");
        make("tenant.slice/tenant-a.slice");
        fs::write(dir.path().join("backup.service"), "").expect("a file");
        let none = search(&mount, &unit("backup.service"));
        assert_eq!(none.cgroup, None);
        let places = [
            "",
            "system.slice",
            "tenant.slice",
            "tenant.slice/tenant-a.slice",
            "user.slice",
            "user.slice/user-7.slice",
        ];
        assert_eq!(none.places, places.map(|place| dir.path().join(place)).into());
        make("tenant.slice/tenant-a.slice/backup.service");
        let here = search(&mount, &unit("backup.service")).cgroup;
        assert_eq!(here.as_deref(), Some(Path::new("/tenant.slice/tenant-a.slice/backup.service")));
        make("system.slice/_memory.service");
        let escaped = search(&mount, &unit("memory.service")).cgroup;
        assert_eq!(escaped.as_deref(), Some(Path::new("/system.slice/_memory.service")));
    }
}
