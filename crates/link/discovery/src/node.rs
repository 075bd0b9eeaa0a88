//! Answers of this node about a container's processes.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

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

    /// The v2 cgroup of the first process of a container, whose path is below the agent's root. `it` names the process.
    pub(crate) fn cgroup_below(&self, it: &str, pid: u32) -> Result<PathBuf, String> {
        let cgroup = (self.cgroup)(pid)?;
        if cgroup.starts_with("/..") {
            return Err(format!(
                "{it}, {pid}, is in cgroup {}, outside of the agent's cgroup namespace: the agent needs the host's \
                 (`--cgroupns host`)",
                cgroup.display()
            ));
        }
        Ok(cgroup)
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

/// The place of a container on the host's network: its own cgroup, also if its first process is in one below.
pub(crate) fn on_host(name: &str, id: &str, pid: u32, node: &Node) -> Result<Location, Warning> {
    let warning = |why| Warning::NoCgroup { container: name.to_owned(), why };
    let cgroup = node.cgroup_below("its first process", pid).map_err(warning)?;
    let Some(cgroup) = own_part(&cgroup, id) else {
        let why =
            format!("its first process, {pid}, is in cgroup {}, which is not its own", cgroup.display());
        return Err(warning(why));
    };
    Ok(Location::HostNetwork { cgroup, pid })
}

/// Whether process `pid` is in a cgroup that is named after the container.
pub(crate) fn is_process_of(id: &str, pid: u32, node: &Node) -> bool {
    (node.cgroup)(pid).is_ok_and(|cgroup| own_part(&cgroup, id).is_some())
}

/// A container's cgroup, from the path of one of its processes. The cgroups below are the container's to divide: systemd
/// as a first process moves itself to `init.scope`.
///
/// Container runtimes call a container's cgroup by its id, mostly as `ID`, `docker-ID.scope` or `libpod-ID`. A user may
/// choose the id with containerd, so that another name above may have it in it.
fn own_part(cgroup: &Path, id: &str) -> Option<PathBuf> {
    if id.is_empty() || id.contains('/') {
        return None;
    }
    let parts: Vec<Cow<'_, str>> = cgroup.iter().map(|part| part.to_string_lossy()).collect();
    let is_whole = |part: &Cow<'_, str>| {
        let name = part.strip_suffix(".scope").unwrap_or(part);
        let has_prefix = part.len() > name.len() || part.starts_with("libpod-") || part.starts_with("crio-");
        name.strip_suffix(id).is_some_and(|before| before.is_empty() || has_prefix && before.ends_with('-'))
    };
    let first =
        parts.iter().position(is_whole).or_else(|| parts.iter().position(|part| part.contains(id)))?;
    // containerd's `/NAMESPACE/ID`, where both have one name. The root is part 0.
    let is_namespace = first == 1 && parts[1] == id && parts.get(2).is_some_and(|part| part == id);
    let last = if is_namespace { 2 } else { first };
    Some(cgroup.iter().take(last + 1).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_of_a_container_ends_at_the_name_of_the_container() {
        for (cgroup, id, own) in [
            ("/docker/c1", "c1", Some("/docker/c1")),
            ("/docker/c1/init.scope", "c1", Some("/docker/c1")),
            ("/system.slice/docker-c1.scope/a/c1", "c1", Some("/system.slice/docker-c1.scope")),
            ("/machine.slice/libpod-c1.scope/container", "c1", Some("/machine.slice/libpod-c1.scope")),
            ("/x/odd_c1_name/init.scope", "c1", Some("/x/odd_c1_name")),
            ("/default/def/init.scope", "def", Some("/default/def")),
            ("/web/web/init.scope", "web", Some("/web/web")),
            ("/shop-web/web/init.scope", "web", Some("/shop-web/web")),
            ("/libpod_parent/libpod-c1/c1", "c1", Some("/libpod_parent/libpod-c1")),
            ("/docker/c2", "c1", None),
            ("/docker/c2", "", None),
            ("/docker/c2", "/", None),
            ("/", "c1", None),
        ] {
            assert_eq!(own_part(Path::new(cgroup), id), own.map(PathBuf::from), "{cgroup} {id}");
        }
    }
}
