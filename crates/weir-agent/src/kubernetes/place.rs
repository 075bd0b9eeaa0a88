//! The place of a pod that no CNI call reported: the cgroup that the kubelet made for it, and the network
//! namespace of a process in there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use weir_discovery::{
    Location, NetnsRef, NsId,
    cgroup::{Cgroup2, CgroupError},
};

use super::Pod;

/// The most processes that are looked at, the most cgroups below a pod's.
const MAX_LOOKED_AT: usize = 64;

/// The paths that a pod's cgroup may have, by the kubelet's two drivers (cgroupfs, systemd) and the classes of
/// service. A static pod has another uid there.
pub(crate) fn paths(uid: &str) -> Vec<PathBuf> {
    let systemd = uid.replace('-', "_");
    let mut paths = Vec::new();
    for class in ["", "burstable", "besteffort"] {
        let (directory, dash) = if class.is_empty() { ("", "") } else { ("/", "-") };
        paths.push(format!("/kubepods{directory}{class}/pod{uid}"));
        let slice = if class.is_empty() { String::new() } else { format!("/kubepods-{class}.slice") };
        paths.push(format!("/kubepods.slice{slice}/kubepods{dash}{class}-pod{systemd}.slice"));
    }
    paths.into_iter().map(PathBuf::from).collect()
}

/// Finds where the packets of a pod can be caught.
pub(crate) fn find(mount: Result<&Cgroup2, &CgroupError>, own: NsId, pod: &Pod) -> Result<Location, String> {
    let mount = mount.map_err(ToString::to_string)?;
    let cgroup = paths(&pod.uid).into_iter().find(|path| mount.directory(path).is_dir());
    let Some(cgroup) = cgroup else {
        return Err(format!(
            "`weir cni` did not report it, and no cgroup of it is below {}",
            mount.mount().display()
        ));
    };
    let directory = mount.directory(&cgroup);
    if pod.host_network {
        return Ok(Location::HostNetwork { cgroup, pid: 0 });
    }
    let netns = processes(&directory)
        .into_iter()
        .find_map(|pid| NetnsRef::at(Path::new(&format!("/proc/{pid}/ns/net"))).ok());
    match netns {
        None => Err("`weir cni` did not report it, and none of its processes can be looked at".to_owned()),
        Some(netns) if netns.id == own => {
            Err("its processes are in the node's own network, and its specification says otherwise"
                .to_owned())
        }
        Some(netns) => Ok(Location::Netns(netns)),
    }
}

/// Processes in a cgroup and those below it.
fn processes(directory: &Path) -> Vec<u32> {
    let below = fs::read_dir(directory).into_iter().flatten().flatten();
    let below = below.map(|entry| entry.path()).filter(|path| path.is_dir()).take(MAX_LOOKED_AT);
    let read = |cgroup: PathBuf| fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let texts: Vec<String> = below.chain([directory.to_owned()]).map(read).collect();
    // A process of another process namespace is 0.
    let pids = texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.parse().ok());
    pids.filter(|pid| *pid != 0).take(MAX_LOOKED_AT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_cgroup_is_known_by_both_drivers_and_all_classes_of_service() {
        let text: Vec<String> = paths("0b9c-1f").iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            text,
            [
                "/kubepods/pod0b9c-1f",
                "/kubepods.slice/kubepods-pod0b9c_1f.slice",
                "/kubepods/burstable/pod0b9c-1f",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b9c_1f.slice",
                "/kubepods/besteffort/pod0b9c-1f",
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0b9c_1f.slice",
            ]
        );
    }

    #[test]
    fn processes_of_a_pods_containers_are_found_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let container = dir.path().join("cri-containerd-1.scope");
        fs::create_dir(&container).unwrap();
        fs::write(dir.path().join("cgroup.procs"), "7\n").unwrap();
        fs::write(container.join("cgroup.procs"), "0\n41\n42\n").unwrap();
        assert_eq!(processes(dir.path()), [41, 42, 7]);
        assert_eq!(processes(&dir.path().join("gone")), Vec::<u32>::new());
    }
}
