//! The place of a pod that no CNI call reported: the cgroup that the kubelet made for it, and the network
//! namespace of a process in there.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
};

use weir_discovery::{
    Location, NetnsRef, NsId,
    cgroup::{Cgroup2, CgroupError},
};

use super::Pod;

/// The most cgroups of a pod that are looked at, those of its containers first.
const MAX_CGROUPS: usize = 64;
/// The most processes of a cgroup that are looked at. A container cannot hide those of others behind its own.
const MAX_OF_CGROUP: usize = 16;

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

/// The processes by which pods were placed. A pod's oldest process tells its place, and no later process is older.
#[derive(Default)]
pub(crate) struct Places {
    /// By the pods' uids.
    known: BTreeMap<String, Place>,
}

/// A process in a pod's network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    pid: u32,
    /// Its start, which tells it from a later process with its number.
    started: u64,
    netns: NetnsRef,
}

impl Places {
    /// Finds where the packets of a pod can be caught.
    pub(crate) fn find(
        &mut self,
        mount: Result<&Cgroup2, &CgroupError>,
        own: NsId,
        pod: &Pod,
    ) -> Result<Location, String> {
        let mount = mount.map_err(ToString::to_string)?;
        let cgroup = paths(&pod.uid).into_iter().find(|path| mount.directory(path).is_dir());
        let Some(cgroup) = cgroup else {
            return Err(format!(
                "`weir cni` did not report it, and no cgroup of it is below {}",
                mount.mount().display()
            ));
        };
        if pod.host_network {
            return Ok(Location::HostNetwork { cgroup, pid: 0 });
        }
        let netns = |pid: u32| NetnsRef::at(Path::new(&format!("/proc/{pid}/ns/net"))).ok();
        let pids = || processes(&mount.directory(&cgroup));
        self.namespace_of(&pod.uid, pids, own, started, netns).map(Location::Netns)
    }

    /// The network namespace of a pod. Its processes are looked at only if the known one has ended or has left the
    /// namespace.
    fn namespace_of(
        &mut self,
        uid: &str,
        pids: impl Fn() -> Vec<u32>,
        own: NsId,
        started: impl Fn(u32) -> Option<u64>,
        netns: impl Fn(u32) -> Option<NetnsRef>,
    ) -> Result<NetnsRef, String> {
        let is_there = |place: &&Place| {
            started(place.pid) == Some(place.started) && netns(place.pid).as_ref() == Some(&place.netns)
        };
        if let Some(place) = self.known.get(uid).filter(is_there) {
            return Ok(place.netns.clone());
        }
        self.known.remove(uid);
        let place = oldest(&pids(), own, started, netns)?;
        Ok(self.known.entry(uid.to_owned()).or_insert(place).netns.clone())
    }

    /// Forgets the pods for which `is_known` returns false.
    pub(crate) fn retain(&mut self, is_known: impl Fn(&str) -> bool) {
        self.known.retain(|uid, _| is_known(uid));
    }
}

/// A pod's oldest process that is not in the node's own. A runtime's monitor (conmon) is in
/// the node's, and a container can begin a process in a namespace that it made. The pod's own namespace is older.
fn oldest(
    pids: &[u32],
    own: NsId,
    started: impl Fn(u32) -> Option<u64>,
    netns: impl Fn(u32) -> Option<NetnsRef>,
) -> Result<Place, String> {
    let mut by_age: Vec<(u64, u32)> = pids.iter().filter_map(|pid| Some((started(*pid)?, *pid))).collect();
    by_age.sort_unstable();
    let mut is_any_own = false;
    for (started, pid) in by_age {
        let Some(netns) = netns(pid) else { continue };
        if netns.id != own {
            return Ok(Place { pid, started, netns });
        }
        is_any_own = true;
    }
    Err(if is_any_own {
        "its processes are in the node's own network, and its specification says otherwise"
    } else {
        "`weir cni` did not report it, and none of its processes can be looked at"
    }
    .to_owned())
}

/// When a process started, in ticks since the boot.
fn started(pid: u32) -> Option<u64> {
    started_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The start in the text of `/proc/PID/stat`: field 22. Field 2 is a name in brackets, which can hold any character.
fn started_of(stat: &str) -> Option<u64> {
    let (_, from_third) = stat.rsplit_once(')')?;
    from_third.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// Processes in a cgroup and in all below it. CRI-O has crun put them into a cgroup below that of the container.
fn processes(directory: &Path) -> Vec<u32> {
    let mut pids = Vec::new();
    let mut waiting = VecDeque::from([directory.to_owned()]);
    for _ in 0..MAX_CGROUPS {
        let Some(cgroup) = waiting.pop_front() else { break };
        let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        // A process of another process namespace is 0.
        let here = text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid != 0);
        pids.extend(here.take(MAX_OF_CGROUP));
        let below = fs::read_dir(&cgroup).into_iter().flatten().flatten();
        let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let below = below.filter(is_directory).map(|entry| entry.path());
        waiting.extend(below.take(MAX_CGROUPS.saturating_sub(waiting.len())));
    }
    pids
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

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
        assert_eq!(processes(dir.path()), [7, 41, 42]);
        assert_eq!(processes(&dir.path().join("gone")), Vec::<u32>::new());
    }

    /// CRI-O with crun.
    #[test]
    fn processes_in_a_cgroup_below_a_containers_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("crio-1.scope/container");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("cgroup.procs"), "51\n").unwrap();
        assert_eq!(processes(dir.path()), [51]);
    }

    #[test]
    fn a_container_with_many_processes_and_cgroups_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let many: String = (100..1_000).map(|pid| format!("{pid}\n")).collect();
        for n in 0..200 {
            let nested = dir.path().join(format!("a.scope/{n}"));
            fs::create_dir_all(&nested).unwrap();
            fs::write(nested.join("cgroup.procs"), &many).unwrap();
        }
        fs::write(dir.path().join("a.scope/cgroup.procs"), &many).unwrap();
        let pause = dir.path().join("b.scope");
        fs::create_dir(&pause).unwrap();
        fs::write(pause.join("cgroup.procs"), "5\n").unwrap();
        fs::write(dir.path().join("cgroup.procs"), "6\n").unwrap();
        let found = processes(dir.path());
        assert!(found.contains(&5) && found.contains(&6), "{found:?}");
        assert!(found.len() <= MAX_CGROUPS * MAX_OF_CGROUP, "{}", found.len());
    }

    fn netns(ino: u64) -> NetnsRef {
        NetnsRef { path: format!("/proc/{ino}/ns/net").into(), id: NsId { dev: 4, ino } }
    }

    const OWN: NsId = NsId { dev: 4, ino: 1 };

    /// Processes as (pid, start, namespace). The node's own namespace is 1, and that of 0 cannot be opened.
    fn namespace_among(processes: &[(u32, u64, u64)]) -> Result<u64, String> {
        let find = |pid: u32| *processes.iter().find(|process| process.0 == pid).unwrap();
        let pids: Vec<u32> = processes.iter().map(|process| process.0).collect();
        let open = |pid| Some(find(pid).2).filter(|ino| *ino != 0).map(netns);
        oldest(&pids, OWN, |pid| Some(find(pid).1), open).map(|found| found.netns.id.ino)
    }

    #[test]
    fn pod_is_searched_again_only_after_its_process_ended_or_moved() {
        // Processes as (pid, start, namespace).
        let processes = RefCell::new(vec![(40, 100, 7), (41, 200, 7), (42, 300, 7)]);
        let (searches, looks) = (Cell::new(0), Cell::new(0));
        let mut places = Places::default();
        let mut find = || {
            searches.set(0);
            looks.set(0);
            let pids = || {
                searches.set(searches.get() + 1);
                processes.borrow().iter().map(|process| process.0).collect()
            };
            let of = |pid| processes.borrow().iter().find(|process| process.0 == pid).copied();
            let started = |pid| {
                looks.set(looks.get() + 1);
                Some(of(pid)?.1)
            };
            let found = places.namespace_of("u-1", pids, OWN, started, |pid| Some(netns(of(pid)?.2)));
            (found.map(|netns| netns.id.ino).ok(), searches.get(), looks.get())
        };
        assert_eq!(find(), (Some(7), 1, 3));
        assert_eq!(find(), (Some(7), 0, 1));
        // Another process has its number.
        processes.borrow_mut()[0] = (40, 900, 8);
        assert_eq!(find(), (Some(7), 1, 4));
        assert_eq!(find(), (Some(7), 0, 1));
        // The pod has another sandbox.
        *processes.borrow_mut() = vec![(50, 1_000, 9)];
        assert_eq!(find().0, Some(9));
        processes.borrow_mut()[0].2 = 10;
        assert_eq!(find(), (Some(10), 1, 2));
        processes.borrow_mut().clear();
        assert_eq!(find().0, None);
    }

    #[test]
    fn a_newer_process_in_a_namespace_of_its_own_does_not_place_its_pod() {
        assert_eq!(namespace_among(&[(70, 900, 8), (40, 100, 7), (41, 200, 7)]), Ok(7));
    }

    #[test]
    fn a_process_in_the_nodes_network_is_passed_over() {
        assert_eq!(namespace_among(&[(39, 90, 1), (38, 80, 0), (40, 100, 7)]), Ok(7));
        assert!(namespace_among(&[(39, 90, 1)]).unwrap_err().contains("the node's own network"));
        assert!(namespace_among(&[(39, 90, 0)]).unwrap_err().contains("none of its processes"));
    }

    #[test]
    fn the_start_of_a_process_is_read_behind_any_name() {
        let fields = (4..22).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(started_of(&format!("7 (a) b) S) S {fields} 4711 23 24\n")), Some(4711));
        assert_eq!(started_of("7 (sh) S 1"), None);
        assert!(started(std::process::id()).is_some_and(|ticks| ticks > 0));
    }
}
