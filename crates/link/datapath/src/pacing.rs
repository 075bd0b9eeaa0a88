//! TCP sockets of weir's classes are paced to their class's share: what they may not send yet
//! waits in the sender, not in the scheduler.
//!
//! One program, at the root of the cgroup v2 hierarchy, serves all sockets, wherever they are:
//! the classifier notes in a socket's own storage which class its packets belong to. So no
//! container's cgroup or namespace has to be known for it. Only connections that are older than
//! the agent need a visit, by an iterator that sees the sockets of one network namespace: the
//! one in which it is opened, and there is no other way to name one. For that, and nothing
//! else, a thread that ends right after joins the namespace; in the container nothing is run or
//! changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
};

use nix::{
    sched::{CloneFlags, setns},
    time::{ClockId, clock_gettime},
};
use weir_bpf::{EarlierPacing, Pacer, attach};
use weir_discovery::{
    NetnsRef, NsId,
    cgroup::{Cgroup2, CgroupError},
    netns::DIRS,
};

use crate::engine::Attachments;

/// So long after its agent was last heard of, a program at the root of the hierarchy is taken
/// away: sockets that sent anything since have been told that they are free.
const FORGOTTEN_NS: u64 = 600 * 1_000_000_000;
/// So long after, if its network namespace is gone too, and the link with it.
pub(crate) const DEAD_NS: u64 = 10 * 1_000_000_000;

/// Sockets cannot be paced.
#[derive(Debug, thiserror::Error)]
pub enum PacingError {
    /// There is no hierarchy to attach to.
    #[error("cannot pace sockets without cgroup v2")]
    Cgroup(#[source] CgroupError),
    /// Its root cannot be opened.
    #[error("cannot pace sockets: cannot open the root of cgroup v2, {path}")]
    Root {
        /// Its directory.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A BPF program or map.
    #[error(transparent)]
    Bpf(#[from] weir_bpf::Error),
    /// The program could not be attached.
    #[error("cannot attach weir's program for socket events at the root of cgroup v2: {errno}")]
    Attach {
        /// The kernel's reason.
        errno: nix::errno::Errno,
    },
}

/// The root of the cgroup v2 hierarchy, where socket events are caught.
pub struct Root {
    pub(crate) dir: File,
    /// The network namespace whose link is shared.
    pub(crate) owner: NsId,
}

impl Root {
    /// Finds it; `owner` is the agent's own network namespace.
    ///
    /// # Errors
    /// [`PacingError`]: no cgroup v2 mounted.
    pub fn find(owner: NsId) -> Result<Root, PacingError> {
        let mount = Cgroup2::find().map_err(PacingError::Cgroup)?;
        let path = mount.mount();
        let dir = File::open(path).map_err(|source| PacingError::Root { path: path.to_owned(), source })?;
        Ok(Root { dir, owner })
    }

    /// The programs that an earlier agent of this network namespace left.
    #[must_use]
    pub fn earlier(&self) -> Option<EarlierPacing> {
        EarlierPacing::find(self.dir.as_fd(), self.owner.ino)
    }
}

/// The programs, attached.
pub struct Pacing {
    pacer: Pacer,
    root: Root,
    program: u32,
    /// The last written rates: handle and bytes per second.
    shares: BTreeMap<u32, u64>,
    /// Namespaces whose older sockets have been visited.
    visited: BTreeMap<NsId, NetnsRef>,
}

impl Pacing {
    /// Loads and attaches the programs, in the place of an earlier agent's if there is one.
    ///
    /// # Errors
    /// [`PacingError`].
    pub fn open(
        root: Root,
        attachments: &Attachments,
        earlier: Option<&EarlierPacing>,
    ) -> Result<Pacing, PacingError> {
        let pacer = Pacer::load(attachments.classifier())?;
        pacer.beat(root.owner.ino, now_ns(), false)?;
        let error = |errno| PacingError::Attach { errno };
        attach::attach_sock_ops(&pacer.program(), root.dir.as_fd(), earlier.map(|e| e.program))
            .map_err(error)?;
        let program = attach::program_id(&pacer.program()).map_err(error)?;
        let living = namespaces();
        EarlierPacing::sweep(root.dir.as_fd(), |owner, alive_ns| {
            let silent = now_ns().saturating_sub(alive_ns);
            silent > FORGOTTEN_NS || (silent > DEAD_NS && !living.contains(&owner))
        });
        let (shares, visited) = Default::default();
        Ok(Pacing { pacer, root, program, shares, visited })
    }

    /// Says that the agent lives; sockets are free when it has not for 3 s.
    ///
    /// # Errors
    /// [`PacingError`].
    pub fn beat(&self) -> Result<(), PacingError> {
        Ok(self.pacer.beat(self.root.owner.ino, now_ns(), false)?)
    }

    /// Paces the sockets of these classes (by handle) to these rates in all, bytes per second
    /// at layer 2, and no others.
    ///
    /// # Errors
    /// [`PacingError`].
    pub fn set_shares(&mut self, wanted: &BTreeMap<u32, u64>) -> Result<(), PacingError> {
        for handle in self.shares.keys().filter(|handle| !wanted.contains_key(handle)) {
            self.pacer.set_share(*handle, None)?;
        }
        for (handle, rate) in wanted {
            if self.shares.get(handle) != Some(rate) {
                self.pacer.set_share(*handle, Some(*rate))?;
            }
        }
        self.shares.clone_from(wanted);
        Ok(())
    }

    /// Has the older connections in these namespaces, and in the agent's own, paced too; those
    /// that were visited before are passed over. Failures come back, and are tried again.
    pub fn visit(&mut self, namespaces: &[NetnsRef]) -> Vec<String> {
        let known: BTreeSet<NsId> = namespaces.iter().map(|n| n.id).chain([self.root.owner]).collect();
        self.visited.retain(|id, _| known.contains(id));
        let own = NetnsRef { path: "/proc/self/ns/net".into(), id: self.root.owner };
        let new: Vec<&NetnsRef> =
            namespaces.iter().chain([&own]).filter(|n| !self.visited.contains_key(&n.id)).collect();
        let mut failures = Vec::new();
        for (netns, result) in new.iter().zip(visit(self.pacer.visitor(), &new)) {
            match result {
                Ok(()) => {
                    self.visited.insert(netns.id, (*netns).clone());
                }
                Err(why) => failures.push(format!(
                    "connections in {} that are older than the agent are not paced: {why}",
                    netns.path.display()
                )),
            }
        }
        failures
    }

    /// Puts the program back if someone took it away: true if so.
    ///
    /// # Errors
    /// [`PacingError`].
    pub fn repair(&mut self) -> Result<bool, PacingError> {
        let error = |errno| PacingError::Attach { errno };
        let root = self.root.dir.as_fd();
        if attach::sock_ops(root).map_err(error)?.contains(&self.program) {
            return Ok(false);
        }
        attach::attach_sock_ops(&self.pacer.program(), root, None).map_err(error)?;
        // Connections made meanwhile do not call yet.
        self.visited.clear();
        Ok(true)
    }

    /// Sets the classes' rates right if someone else altered, removed or added some; how many.
    ///
    /// # Errors
    /// [`PacingError`].
    pub fn repair_shares(&self) -> Result<usize, PacingError> {
        Ok(self.pacer.restore_shares(&self.shares)?)
    }

    /// The same as [`remove`](Pacing::remove), also for sockets in these namespaces.
    ///
    /// # Errors
    /// As [`remove`](Pacing::remove).
    pub(crate) fn remove_also_in(&mut self, namespaces: &[NetnsRef]) -> Result<(), PacingError> {
        self.visited = namespaces.iter().map(|netns| (netns.id, netns.clone())).collect();
        self.remove()
    }

    /// Takes all rates back, then the program away.
    ///
    /// # Errors
    /// [`PacingError`]; what could be done is.
    pub fn remove(&mut self) -> Result<(), PacingError> {
        let told = self.pacer.beat(self.root.owner.ino, 0, true);
        let own = NetnsRef { path: "/proc/self/ns/net".into(), id: self.root.owner };
        let all: Vec<&NetnsRef> = [&own].into_iter().chain(self.visited.values()).collect();
        // A socket in none of these namespaces takes its rate back itself if it sends: it is given
        // a moment.
        visit(self.pacer.visitor(), &all);
        std::thread::sleep(std::time::Duration::from_millis(50));
        attach::detach_sock_ops(self.program, self.root.dir.as_fd())
            .map_err(|errno| PacingError::Attach { errno })?;
        Ok(told?)
    }
}

/// Runs an iterator over sockets in each of these namespaces.
pub(crate) fn visit(visitor: BorrowedFd<'_>, namespaces: &[&NetnsRef]) -> Vec<Result<(), String>> {
    in_each(namespaces, || attach::visit(visitor).map_err(|e| e.to_string()))
}

/// Does something on a thread of its own that joins each of these namespaces.
pub(crate) fn in_each<T: Send>(
    namespaces: &[&NetnsRef],
    work: impl Fn() -> Result<T, String> + Send,
) -> Vec<Result<T, String>> {
    if namespaces.is_empty() {
        return Vec::new();
    }
    let walk = move || {
        let one = |netns: &&NetnsRef| {
            let file = netns.open().map_err(|e| weir_units::chain(&e))?;
            setns(&file, CloneFlags::CLONE_NEWNET).map_err(|errno| errno.to_string())?;
            work()
        };
        namespaces.iter().map(one).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, walk) {
        Ok(thread) => thread.join().unwrap_or_default(),
        Err(e) => namespaces.iter().map(|_| Err(format!("cannot start a thread: {e}"))).collect(),
    })
}

/// Inodes of the network namespaces that have a process or a name.
pub(crate) fn namespaces() -> BTreeSet<u64> {
    let entries = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let processes = entries("/proc").map(|entry| entry.path().join("ns/net"));
    let named = DIRS.iter().flat_map(|dir| entries(dir)).map(|entry| entry.path());
    processes.chain(named).filter_map(|path| std::fs::metadata(path).ok()).map(|meta| meta.ino()).collect()
}

/// The clock that BPF programs read.
pub(crate) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        u64::try_from(t.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec()).unwrap_or(0)
    })
}
