//! Named network namespaces: what `ip netns` and container runtimes put into /run/netns.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use glob::Pattern;
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use super::{Found, Location, Source, Warning};

/// Where named namespaces are; the second is mostly a link to the first.
pub const DIRS: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// Tells one living namespace from another: device and inode of its file. The kernel may give them
/// to a new namespace once this one is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NsId {
    /// Device of the namespace file system.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
}

/// A network namespace: a file to open, and which namespace was there when it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetnsRef {
    /// The file.
    pub path: PathBuf,
    /// The namespace.
    pub id: NsId,
}

/// A namespace file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// It cannot be opened.
    #[error("cannot open the network namespace {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no network namespace (any more).
    #[error("{} is not a network namespace", path.display())]
    NotNetns {
        /// The file.
        path: PathBuf,
    },
    /// Another namespace has come under this name.
    #[error("{} is another network namespace than before: inode {now}, was {was}", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
        /// Inode of the one that was found.
        was: u64,
        /// Inode of the one that is there.
        now: u64,
    },
}

impl NetnsError {
    /// Whether the namespace that was found exists no longer under its path.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            NetnsError::Open { source, .. } => source.kind() == io::ErrorKind::NotFound,
            NetnsError::NotNetns { .. } | NetnsError::Replaced { .. } => true,
        }
    }
}

impl NsId {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// Without /proc.
    pub fn own() -> io::Result<NsId> {
        fs::metadata("/proc/thread-self/ns/net").map(|meta| NsId { dev: meta.dev(), ino: meta.ino() })
    }
}

impl NetnsRef {
    /// The namespace whose file this is.
    ///
    /// # Errors
    /// [`NetnsError`] if the file is no namespace.
    pub fn at(path: &Path) -> Result<NetnsRef, NetnsError> {
        open(path).map(|(_, id)| NetnsRef { path: path.to_owned(), id })
    }

    /// Opens the namespace, if it is still the one that was found.
    ///
    /// # Errors
    /// [`NetnsError`] if it is gone or replaced.
    pub fn open(&self) -> Result<File, NetnsError> {
        let (file, now) = open(&self.path)?;
        if now != self.id {
            return Err(NetnsError::Replaced { path: self.path.clone(), was: self.id.ino, now: now.ino });
        }
        Ok(file)
    }
}

fn open(path: &Path) -> Result<(File, NsId), NetnsError> {
    let error = |source| NetnsError::Open { path: path.to_owned(), source };
    // A caller may name any file. Opening a device can change it, so the file is looked at first.
    let seen = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path).map_err(error)?;
    let system = fstatfs(&seen).map_err(|e| error(e.into()))?;
    if system.filesystem_type() != NSFS_MAGIC {
        return Err(NetnsError::NotNetns { path: path.to_owned() });
    }
    let file = File::open(format!("/proc/self/fd/{}", seen.as_raw_fd())).map_err(error)?;
    // SAFETY: the descriptor is open, and this request takes no argument, ioctl_nsfs(2).
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), libc::NS_GET_NSTYPE) };
    if kind != libc::CLONE_NEWNET {
        return Err(NetnsError::NotNetns { path: path.to_owned() });
    }
    let meta = file.metadata().map_err(error)?;
    Ok((file, NsId { dev: meta.dev(), ino: meta.ino() }))
}

/// The named namespaces that share the link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Filter {
    /// None.
    None,
    /// All but the agent's own.
    #[default]
    All,
    /// Those whose name matches one of the patterns.
    Names(Vec<Pattern>),
}

/// The text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{pattern}` as a pattern of names: {why} at character {at}")]
pub struct BadPattern {
    /// The text.
    pub pattern: String,
    /// The fault.
    pub why: &'static str,
    /// Where, counted from 0.
    pub at: usize,
}

impl Filter {
    /// Those whose name is one of `patterns`, in which `*`, `?` and `[a-z]` stand for any text,
    /// any character, and any of these characters.
    ///
    /// # Errors
    /// [`BadPattern`] names the first wrong pattern.
    pub fn names<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Filter, BadPattern> {
        let parse = |text: &str| {
            let bad =
                |why: glob::PatternError| BadPattern { pattern: text.to_owned(), why: why.msg, at: why.pos };
            Pattern::new(text).map_err(bad)
        };
        patterns.into_iter().map(parse).collect::<Result<_, _>>().map(Filter::Names)
    }

    /// Whether a namespace of this name is one of them.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Filter::None => false,
            Filter::All => true,
            Filter::Names(patterns) => patterns.iter().any(|pattern| pattern.matches(name)),
        }
    }
}

/// The named namespaces in `dirs` (mostly [`DIRS`]) that `filter` lets through, by name,
/// without the agent's `own`, and those whose two names mean one namespace.
///
/// Files that are no namespaces are passed over: `ip netns add` makes the file before the
/// namespace, and leaves it behind if it is killed. So is Docker's directory of sandboxes, which
/// people link to /run/netns: Docker tells of those.
#[must_use]
pub fn scan(dirs: &[impl AsRef<Path>], filter: &Filter, own: NsId) -> (Vec<Found>, Vec<Warning>) {
    let mut found = BTreeMap::new();
    if *filter != Filter::None {
        for dir in dirs.iter().filter_map(|dir| fs::canonicalize(dir).ok()) {
            if !dir.ends_with("docker/netns") {
                found.extend(namespaces_in(&dir).filter(|(name, _)| filter.matches(name)));
            }
        }
    }
    let mut names: BTreeMap<NsId, String> = BTreeMap::new();
    let mut kept = Vec::new();
    let mut warnings = Vec::new();
    for (name, netns) in found.into_iter().filter(|(_, netns)| netns.id != own) {
        if let Some(first) = names.get(&netns.id) {
            warnings.push(Warning::SameNetns { name, first: first.clone() });
        } else {
            names.insert(netns.id, name.clone());
            kept.push(sharer(name, netns));
        }
    }
    (kept, warnings)
}

/// Whether a container runtime made the namespace of this name: `cni-UUID` or `netns-UUID` of containerd and
/// Podman, `UUID` of CRI-O. A source that knows the container may report it soon.
#[must_use]
pub fn is_runtimes(name: &str) -> bool {
    let uuid = name.strip_prefix("cni-").or_else(|| name.strip_prefix("netns-")).unwrap_or(name);
    let groups: Vec<&str> = uuid.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn namespaces_in(dir: &Path) -> impl Iterator<Item = (String, NetnsRef)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let netns = NetnsRef::at(&entry.path())
            .inspect_err(|why| tracing::debug!("passing over a file among namespaces: {why}"))
            .ok()?;
        Some((entry.file_name().into_string().ok()?, netns))
    })
}

fn sharer(name: String, netns: NetnsRef) -> Found {
    Found::new(name.clone(), name, Source::Netns, Location::Netns(netns))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Stands for "some namespace that is not ours".
    const OTHER: NsId = NsId { dev: 0, ino: 0 };

    fn names(found: &[Found]) -> Vec<&str> {
        found.iter().map(|found| found.name.as_str()).collect()
    }

    #[test]
    fn patterns_choose_by_name() {
        let filter = Filter::names(["blue", "cni-*", "n[1-3]"]).expect("are patterns");
        for (name, want) in
            [("blue", true), ("blues", false), ("cni-1f", true), ("n2", true), ("n4", false), ("", false)]
        {
            assert_eq!(filter.matches(name), want, "{name}");
            assert!(Filter::All.matches(name) && !Filter::None.matches(name));
        }
        let bad = Filter::names(["ok", "a[b"]);
        assert!(matches!(&bad, Err(BadPattern { pattern, at: 1, .. }) if pattern == "a[b"), "{bad:?}");
    }

    #[test]
    fn runtimes_namespaces_are_known_by_their_names() {
        let uuid = "0b9cbd8e-6a1f-52cb-9d0e-f2d1a3b4c5d6";
        for prefix in ["cni-", "netns-", ""] {
            assert!(is_runtimes(&format!("{prefix}{uuid}")));
        }
        for other in ["cni-1f", "cni-", "blue", "", "cni-0b9cbd8e-6a1f-52cb-9d0e-f2d1a3b4c5dg"] {
            assert!(!is_runtimes(other), "{other}");
        }
    }

    #[test]
    fn files_that_are_no_namespaces_and_dockers_sandboxes_are_passed_over() {
        let dir = tempfile::tempdir().expect("can make a directory");
        let sandboxes = dir.path().join("docker/netns");
        fs::create_dir_all(&sandboxes).expect("can make directories");
        let own = "/proc/thread-self/ns/net";
        for at in [dir.path(), &sandboxes] {
            symlink(own, at.join("real")).expect("can link");
            symlink("/proc/thread-self/ns/uts", at.join("other-kind")).expect("can link");
            symlink("/nowhere", at.join("dangling")).expect("can link");
            fs::write(at.join("plain"), "").expect("can write");
        }
        let pipe = nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU);
        pipe.expect("can make a pipe");
        let scanned = |dir: &Path| scan(&[dir], &Filter::All, OTHER);
        assert_eq!(names(&scanned(dir.path()).0), ["real"]);
        assert_eq!(scanned(&sandboxes), (vec![], vec![]));
        assert_eq!(scanned(Path::new("/nowhere")), (vec![], vec![]));
        assert_eq!(scan(&[dir.path()], &Filter::None, OTHER), (vec![], vec![]));
    }

    /// A socket cannot be opened, so its error tells that weir tried.
    #[test]
    fn a_file_that_is_no_namespace_is_not_opened() {
        let dir = tempfile::tempdir().expect("can make a directory");
        let path = dir.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).expect("can make a socket");
        let refused = NetnsRef::at(&path);
        assert!(matches!(refused, Err(NetnsError::NotNetns { .. })), "{refused:?}");
    }

    #[test]
    fn the_agents_own_namespace_is_not_a_sharer() {
        let dir = tempfile::tempdir().expect("can make a directory");
        symlink("/proc/thread-self/ns/net", dir.path().join("mine")).expect("can link");
        let own = NsId::own().expect("there is /proc");
        assert_eq!(scan(&[dir.path()], &Filter::All, own), (vec![], vec![]));
    }

    #[test]
    fn a_namespace_with_two_names_is_one_class_under_the_first() {
        let dir = tempfile::tempdir().expect("can make a directory");
        for name in ["b", "a"] {
            symlink("/proc/thread-self/ns/net", dir.path().join(name)).expect("can link");
        }
        let again = dir.path().join("again");
        symlink(dir.path(), &again).expect("can link");
        let (found, warnings) = scan(&[dir.path(), &again], &Filter::All, OTHER);
        assert_eq!(names(&found), ["a"]);
        assert_eq!(warnings, [Warning::SameNetns { name: "b".into(), first: "a".into() }]);
    }

    #[test]
    fn a_name_that_means_another_namespace_now_is_not_opened() {
        let path = PathBuf::from("/proc/thread-self/ns/net");
        let right = NetnsRef::at(&path).expect("is one");
        right.open().expect("is still there");
        let wrong = NetnsRef { path, id: NsId { ino: right.id.ino + 1, ..right.id } };
        assert!(matches!(wrong.open(), Err(NetnsError::Replaced { was, now, .. }) if was == now + 1));
    }
}
