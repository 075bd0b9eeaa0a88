//! Answers of this node about a container's processes.

use std::path::{Path, PathBuf};

use crate::{Location, NetnsRef, NsId, Warning, cgroup};

/// The node's answers to what runtimes do not say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    /// The namespace behind a file.
    pub(crate) netns: fn(&Path) -> Result<NetnsRef, String>,
    /// The v2 cgroup of a process.
    pub(crate) cgroup: fn(u32) -> Result<PathBuf, String>,
    /// The agent's namespace.
    pub(crate) own: Option<NsId>,
}

impl Node {
    /// This one.
    pub(crate) fn here() -> Node {
        Node {
            netns: |path| NetnsRef::at(path).map_err(|why| explain(&why)),
            cgroup: |pid| cgroup::of_process(pid).map_err(|why| explain(&why)),
            own: NsId::own().ok(),
        }
    }
}

/// An error and its causes in one line.
fn explain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

/// The network namespace of a process.
pub(crate) fn process_netns(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/net"))
}

/// Whether a namespace is the agent's.
pub(crate) fn is_own(netns: &Path, node: &Node) -> bool {
    (node.netns)(netns).is_ok_and(|netns| Some(netns.id) == node.own)
}

/// The place of a container on the host's network: the cgroup of its first process.
pub(crate) fn on_host(name: &str, id: &str, pid: u32, node: &Node) -> Result<Location, Warning> {
    let warning = |why| Warning::NoCgroup { container: name.to_owned(), why };
    let cgroup = (node.cgroup)(pid).map_err(warning)?;
    if !names(&cgroup, id) {
        let why =
            format!("its first process, {pid}, is in cgroup {}, which is not its own", cgroup.display());
        return Err(warning(why));
    }
    Ok(Location::HostNetwork { cgroup, pid })
}

/// Whether process `pid` is in a cgroup that is named after the container.
pub(crate) fn is_process_of(id: &str, pid: u32, node: &Node) -> bool {
    (node.cgroup)(pid).is_ok_and(|cgroup| names(&cgroup, id))
}

/// Container runtimes call a container's cgroup by its id, with or without a word around it.
pub(crate) fn names(cgroup: &Path, id: &str) -> bool {
    !id.is_empty() && cgroup.to_string_lossy().contains(id)
}
