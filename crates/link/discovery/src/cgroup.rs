//! Processes known by their cgroup: the v2 hierarchy, also where it stands beside v1.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Component, Path, PathBuf},
};

/// A cgroup cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The kernel mounts no v2 hierarchy here.
    #[error("no cgroup v2 file system is mounted: `mount -t cgroup2 none /sys/fs/cgroup/unified`")]
    NotMounted,
    /// No cgroup has this name.
    #[error("there is no cgroup {path} below {mount}", path = path.display(), mount = mount.display())]
    NoSuchCgroup {
        /// The path in the hierarchy that was asked for.
        path: PathBuf,
        /// Where the hierarchy is mounted.
        mount: PathBuf,
    },
    /// The mount shows a part of the hierarchy beside the agent's cgroup namespace. The depth of its cgroups is unknown.
    #[error(
        "the cgroup v2 file system at {mount} begins at {root}, outside of the agent's cgroup namespace: the agent needs \
         the host's (`--cgroupns host`)", root = root.display(), mount = mount.display()
    )]
    Beside {
        /// Where it is mounted.
        mount: PathBuf,
        /// The mounted part, as seen from the agent's namespace.
        root: PathBuf,
    },
    /// A path that leaves the hierarchy.
    #[error("cgroup {} is not a path below the root without `..`", .0.display())]
    NotInside(PathBuf),
    /// The process has ended, or is in another process namespace.
    #[error("cannot read the cgroup of process {pid}")]
    NoProcess {
        /// Its id.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// The process is in no v2 cgroup.
    #[error("process {pid} is in no cgroup v2")]
    NotInV2 {
        /// Its id.
        pid: u32,
    },
    /// The mount table cannot be read.
    #[error("cannot read the mounts")]
    Mounts(#[source] io::Error),
}

/// Where the v2 hierarchy is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup2 {
    mount: PathBuf,
    /// The part of the hierarchy that is mounted; `/` outside of containers.
    root: PathBuf,
    /// Whether the agent is in the kernel's first cgroup namespace. In another one the root of its paths may be any cgroup.
    is_first_namespace: bool,
}

/// The inode of the first cgroup namespace, `CGROUP_NS_INIT_INO` of linux/nsfs.h.
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFB;

/// A cgroup, as BPF programs and sockets know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    /// Its directory.
    pub dir: PathBuf,
    /// The kernel's id of it: the directory's inode number.
    pub id: u64,
    /// Its depth: 0 for the root, 1 for `/docker`; what `bpf_skb_ancestor_cgroup_id` takes. `None` outside of the kernel's
    /// first cgroup namespace.
    pub level: Option<u32>,
}

impl Cgroup2 {
    /// Finds the mount; of several, the one that shows most of the hierarchy.
    ///
    /// # Errors
    /// [`CgroupError::NotMounted`].
    pub fn find() -> Result<Cgroup2, CgroupError> {
        // A kernel without cgroup namespaces has the first one alone.
        let is_first = fs::metadata("/proc/self/ns/cgroup").map_or(true, |ns| ns.ino() == FIRST_NAMESPACE);
        Cgroup2::parse(&fs::read("/proc/self/mountinfo").map_err(CgroupError::Mounts)?, is_first)
    }

    /// Reads `/proc/PID/mountinfo`: `id parent dev root mount options ... - type ...`, proc(5).
    fn parse(table: &[u8], is_first_namespace: bool) -> Result<Cgroup2, CgroupError> {
        let mut mounts: Vec<Cgroup2> = Vec::new();
        for line in table.split(|byte| *byte == b'\n') {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let Some(dash) = fields.iter().position(|field| *field == b"-") else { continue };
            let [_, _, _, root, mount, ..] = fields[..dash] else { continue };
            let mount = unescape(mount);
            // A later mount at a place hides the earlier one.
            mounts.retain(|earlier| earlier.mount != mount);
            if fields.get(dash + 1).is_some_and(|kind| *kind == b"cgroup2") {
                mounts.push(Cgroup2 { mount, root: unescape(root), is_first_namespace });
            }
        }
        // A root of `..` alone is the host's in nearly all cases.
        let is_beside = |found: &Cgroup2| found.root.starts_with("/..") && depth(&found.root) > 0;
        let found = mounts.into_iter().min_by_key(|found| (is_beside(found), depth(&found.root)));
        match found.ok_or(CgroupError::NotMounted)? {
            found if is_beside(&found) => Err(CgroupError::Beside { mount: found.mount, root: found.root }),
            found => Ok(found),
        }
    }

    /// Where it is mounted, such as `/sys/fs/cgroup`.
    #[must_use]
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// The whole hierarchy at a directory, for tests.
    #[cfg(test)]
    pub(crate) fn at(mount: &Path) -> Cgroup2 {
        Cgroup2 { mount: mount.to_owned(), root: "/".into(), is_first_namespace: true }
    }

    /// The directory of a path in the hierarchy.
    #[must_use]
    pub fn directory(&self, path: &Path) -> PathBuf {
        self.mount.join(self.inside(path))
    }

    /// The directories between the mount and a cgroup, without the cgroup's own. The cgroup appears in them.
    #[must_use]
    pub fn parents(&self, path: &Path) -> Vec<PathBuf> {
        let dir = self.directory(path);
        let above = dir.ancestors().skip(1);
        above.take_while(|dir| dir.starts_with(&self.mount)).map(Path::to_owned).collect()
    }

    /// A path in the hierarchy as one below the mount.
    fn inside<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).or_else(|_| path.strip_prefix("/")).unwrap_or(path)
    }

    /// The cgroup at a path in the hierarchy, such as `/system.slice/backup.service`.
    ///
    /// # Errors
    /// [`CgroupError`] without such a cgroup.
    pub fn resolve(&self, path: &Path) -> Result<Cgroup, CgroupError> {
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(CgroupError::NotInside(path.to_owned()));
        }
        let inside = self.inside(path);
        let dir = self.mount.join(inside);
        let found = fs::metadata(&dir).ok().filter(fs::Metadata::is_dir);
        let meta = found
            .ok_or_else(|| CgroupError::NoSuchCgroup { path: path.to_owned(), mount: self.mount.clone() })?;
        // A mount with the root `..` shows what is above the agent's namespace. That may be a container's root again.
        let level = self.is_first_namespace.then(|| depth(&self.root) + depth(inside));
        Ok(Cgroup { dir, id: meta.ino(), level })
    }
}

/// The path in the v2 hierarchy of the cgroup that process `pid` is in.
///
/// # Errors
/// [`CgroupError`] if it has none, or there is no such process.
pub fn of_process(pid: u32) -> Result<PathBuf, CgroupError> {
    let text =
        fs::read(format!("/proc/{pid}/cgroup")).map_err(|source| CgroupError::NoProcess { pid, source })?;
    // The v2 hierarchy is the one whose number is 0 and which has no controllers, cgroups(7).
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::"));
    line.map(|path| PathBuf::from(OsString::from_vec(path.to_vec()))).ok_or(CgroupError::NotInV2 { pid })
}

/// How many directories a path names.
fn depth(path: &Path) -> u32 {
    let names = path.components().filter(|part| matches!(part, Component::Normal(_))).count();
    u32::try_from(names).unwrap_or(u32::MAX)
}

/// A path of mountinfo, where a blank is written `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
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
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 25 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
40 30 0:36 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
41 30 0:36 /docker /mnt/a\\040b rw,relatime - cgroup2 cgroup2 rw
";

    fn of(mount: impl Into<PathBuf>, root: &str) -> Cgroup2 {
        Cgroup2 { mount: mount.into(), root: root.into(), is_first_namespace: true }
    }

    #[test]
    fn the_v2_hierarchy_is_found_beside_v1_and_inside_a_container() {
        let found = Cgroup2::parse(HYBRID.as_bytes(), true).expect("is mounted");
        assert_eq!(found, of("/sys/fs/cgroup/unified", "/"));
        let inner: String =
            HYBRID.lines().filter(|line| !line.contains("unified")).collect::<Vec<_>>().join("\n");
        let found = Cgroup2::parse(inner.as_bytes(), true).expect("is mounted");
        assert_eq!(found, of("/mnt/a b", "/docker"));
        let beside = inner.replace("/docker", "/../../lxc.payload.web");
        let why = Cgroup2::parse(beside.as_bytes(), true).expect_err("its depth is unknown").to_string();
        assert!(
            why.starts_with("the cgroup v2 file system at /mnt/a b begins at /../../lxc.payload.web"),
            "{why}"
        );
        assert_eq!(
            Cgroup2::parse(format!("{inner}\n{}", beside.replace("/mnt", "/x")).as_bytes(), true)
                .expect("is mounted"),
            found
        );
        let hidden = format!("{HYBRID}50 30 0:36 /.. /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        let found = Cgroup2::parse(hidden.as_bytes(), true).expect("is mounted");
        assert_eq!(found, of("/sys/fs/cgroup/unified", "/.."), "the later mount is the one that is seen");
        let none: String = HYBRID.lines().take(3).collect::<Vec<_>>().join("\n");
        assert!(matches!(Cgroup2::parse(none.as_bytes(), true), Err(CgroupError::NotMounted)));
        assert!(matches!(Cgroup2::parse(b"\xff - cgroup2\n - \n-", true), Err(CgroupError::NotMounted)));
    }

    #[test]
    fn a_cgroup_is_known_by_inode_and_depth_from_the_real_root() {
        let dir = tempfile::tempdir().expect("can make a directory");
        let leaf = dir.path().join("a/b");
        fs::create_dir_all(&leaf).expect("can make directories");
        let ino = fs::metadata(&leaf).expect("is there").ino();
        let whole = of(dir.path(), "/");
        assert_eq!(
            whole.resolve(Path::new("/a/b")).expect("is there"),
            Cgroup { dir: leaf.clone(), id: ino, level: Some(2) }
        );
        assert_eq!(whole.resolve(Path::new("/")).expect("is there").level, Some(0));
        let part = of(dir.path(), "/docker");
        assert_eq!(
            part.resolve(Path::new("/docker/a/b")).expect("is there"),
            Cgroup { dir: leaf, id: ino, level: Some(3) }
        );
    }

    /// A node in a container (kind, LXC) has a root of its own, below the kernel's.
    #[test]
    fn the_depth_is_unknown_in_a_cgroup_namespace_of_the_agents_own() {
        let dir = tempfile::tempdir().expect("can make a directory");
        fs::create_dir(dir.path().join("a")).expect("can make a directory");
        let level = |root: &str| {
            let found = Cgroup2 { is_first_namespace: false, ..of(dir.path(), root) };
            found.resolve(Path::new("/a")).expect("is there").level
        };
        assert_eq!(level("/"), None);
        assert_eq!(level("/.."), None, "the mount of a node that may be a container");
    }

    #[test]
    fn a_cgroup_that_is_not_there_or_outside_is_refused() {
        let dir = tempfile::tempdir().expect("can make a directory");
        let whole = of(dir.path(), "/");
        let no = whole.resolve(Path::new("/no/such"));
        assert!(matches!(no, Err(CgroupError::NoSuchCgroup { path, .. }) if path == Path::new("/no/such")));
        let out = whole.resolve(Path::new("/a/../../etc"));
        assert!(matches!(out, Err(CgroupError::NotInside(_))));
    }

    #[test]
    fn a_process_that_is_not_there_has_no_cgroup() {
        // Above the kernel's largest process id (PID_MAX_LIMIT).
        assert!(matches!(of_process(5_000_000), Err(CgroupError::NoProcess { pid: 5_000_000, .. })));
    }
}
