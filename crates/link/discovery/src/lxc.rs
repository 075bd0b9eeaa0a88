//! Containers of LXC, LXD and Incus, by the processes that watch them.
//!
//! liblxc starts each container NAME from a monitor of its own on the node, a process that calls itself
//! `[lxc monitor] PATH NAME`. The monitor is in the v2 cgroup `/lxc.monitor.NAME`, and the container's processes are in
//! `/lxc.payload.NAME` (`src/lxc/cgroups/cgfsng.c`, liblxc 4 and later). A number follows where an earlier container
//! has left such a cgroup behind. LXD and Incus put the name of the project in front, but for the default one. The
//! monitor's child that is the first process of another process namespace is the container's init. The path of the
//! containers tells those of LXC, LXD and Incus apart, where two have one name.
//!
//! The cgroup of the payload is the container's to divide, so that nothing in it is believed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Found, Location, Source, Warning,
    cgroup::Cgroup2,
    node::{Node, is_own, process_netns},
    with_labels,
};

const MONITOR: &str = "lxc.monitor.";
const PAYLOAD: &str = "lxc.payload.";
/// The title of a monitor, before the path of the containers and the name.
const TITLE: &str = "[lxc monitor] ";
/// The most processes of one monitor that are looked at.
const LOOKS: usize = 64;

/// The containers that run, by name, and those that have no class. The containers `told` at a
/// [`Location::Monitor`] have the labels.
#[must_use]
pub fn scan(cgroups: &Cgroup2, told: &[Found]) -> (Vec<Found>, Vec<Warning>) {
    containers(cgroups.mount(), told, &Node::here(), Path::new("/proc"))
}

fn containers(mount: &Path, told: &[Found], node: &Node, proc: &Path) -> (Vec<Found>, Vec<Warning>) {
    let (mut found, mut warnings) = (Vec::new(), Vec::new());
    for (id, dir) in monitors(mount) {
        let started = |pid: u32| Some((title(proc, pid), init_of(proc, pid)?));
        let Some((title, init)) = processes_of(&dir).into_iter().find_map(started) else {
            // It starts or ends.
            continue;
        };
        let is_titled = |told: &&Found| {
            title.as_ref().is_some_and(|(path, name)| {
                told.name == *name && told.location == Location::Monitor(path.clone())
            })
        };
        let labelled = told.iter().find(is_titled);
        let name = title.as_ref().map_or(&id, |(_, name)| name).clone();
        match locate(init, node) {
            Ok(location) => {
                let container = Found::new(id, name, Source::Lxc, location);
                found.push(match labelled {
                    Some(labelled) => with_labels(container, labelled),
                    None => container,
                });
            }
            Err(why) => warnings.push(Warning::NoNetns { container: name, why }),
        }
    }
    (found, warnings)
}

/// The cgroups of monitors, by what follows their common name, in order.
fn monitors(mount: &Path) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(mount).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?.strip_prefix(MONITOR)?.to_owned();
        (!name.is_empty()).then(|| (name, entry.path()))
    });
    named.collect()
}

fn processes_of(cgroup: &Path) -> Vec<u32> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().take(LOOKS).filter_map(|line| line.parse().ok()).collect()
}

/// The child of process `monitor` that is the first process of a process namespace below this one's.
fn init_of(proc: &Path, monitor: u32) -> Option<u32> {
    let tasks = fs::read_dir(proc.join(format!("{monitor}/task"))).ok()?.flatten().take(LOOKS);
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|pid| pid.parse().ok())
        .take(LOOKS)
        .collect();
    pids.into_iter().find(|pid| is_first(proc, *pid))
}

/// Whether a process is the first one of a namespace right below this one's: `NSpid: 4711 1`, proc(5).
fn is_first(proc: &Path, pid: u32) -> bool {
    let status = fs::read_to_string(proc.join(format!("{pid}/status"))).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let numbers: Vec<&str> = numbers.split_whitespace().collect();
    matches!(numbers[..], [_, "1"])
}

/// The path of the containers and the name of this one by the title of its monitor.
fn title(proc: &Path, monitor: u32) -> Option<(PathBuf, String)> {
    let line = fs::read_to_string(proc.join(format!("{monitor}/cmdline"))).ok()?;
    let (path, name) = line.trim_end_matches('\0').strip_prefix(TITLE)?.rsplit_once(' ')?;
    (!name.is_empty()).then(|| (path.into(), name.to_owned()))
}

fn locate(init: u32, node: &Node) -> Result<Location, String> {
    let path = process_netns(init);
    if !is_own(&path, node) {
        return (node.netns)(&path).map(Location::Netns);
    }
    let cgroup = node.cgroup_below("it uses the host's network, and its init", init)?;
    let payload =
        cgroup.components().nth(1).filter(|part| part.as_os_str().to_string_lossy().starts_with(PAYLOAD));
    let payload = payload.ok_or_else(|| {
        format!(
            "it uses the host's network, and its init, {init}, is in cgroup {}, which is not its own",
            cgroup.display()
        )
    })?;
    Ok(Location::HostNetwork { cgroup: Path::new("/").join(payload), pid: init })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NetnsRef, NsId};

    const OWN: NsId = NsId { dev: 4, ino: 1 };

    fn netns(path: &Path) -> Result<NetnsRef, String> {
        let pid = path.components().nth(2).and_then(|part| part.as_os_str().to_str()).unwrap_or_default();
        let ino = match pid {
            "21" | "61" | "71" => OWN.ino,
            "31" => return Err("it is gone".to_owned()),
            _ => 7,
        };
        Ok(NetnsRef { path: path.to_owned(), id: NsId { ino, ..OWN } })
    }

    /// A monitor with a title and a child, whose process numbers by namespace are these.
    fn run(root: &Path, id: &str, (monitor, title): (u32, &str), (child, numbers): (u32, &str)) {
        let cgroup = root.join("cgroup").join(format!("{MONITOR}{id}"));
        fs::create_dir_all(&cgroup).unwrap();
        fs::write(cgroup.join("cgroup.procs"), format!("{monitor}\n")).unwrap();
        let task = root.join(format!("proc/{monitor}/task/{monitor}"));
        fs::create_dir_all(&task).unwrap();
        fs::write(task.join("children"), format!("{child} ")).unwrap();
        fs::write(root.join(format!("proc/{monitor}/cmdline")), format!("{title}\0\0")).unwrap();
        let child = root.join(format!("proc/{child}"));
        fs::create_dir_all(&child).unwrap();
        fs::write(child.join("status"), format!("Name:\tinit\nNSpid:\t{numbers}\n")).unwrap();
    }

    fn cgroup(pid: u32) -> Result<PathBuf, String> {
        let path = match pid {
            21 => "/lxc.payload.hosted-2/init.scope",
            71 => "/../lxc.payload.beside",
            _ => "/user.slice",
        };
        Ok(path.into())
    }

    #[test]
    fn containers_are_found_by_the_inits_of_their_monitors() {
        let dir = tempfile::tempdir().expect("a directory");
        run(dir.path(), "web-1", (10, "[lxc monitor] /var/lib/lxc web"), (11, "11\t1"));
        run(dir.path(), "hosted", (20, "lxc-start"), (21, "21\t1"));
        run(dir.path(), "gone", (30, "[lxc monitor] /var/lib/lxc gone"), (31, "31\t1"));
        // No init: the child is the first of no namespace, or of a namespace inside another one.
        run(dir.path(), "starting", (40, ""), (41, "41"));
        run(dir.path(), "nested", (50, ""), (51, "51\t9\t1"));
        // In the host's network, but not in a cgroup of its own.
        run(dir.path(), "strange", (60, ""), (61, "61\t1"));
        // The agent is in a cgroup namespace of its own, beside the container's cgroup.
        run(dir.path(), "unseen", (70, ""), (71, "71\t1"));
        // A container can name the cgroups below its own as it likes.
        fs::create_dir_all(dir.path().join("cgroup/lxc.payload.web/lxc.monitor.other")).unwrap();
        fs::create_dir_all(dir.path().join("cgroup/lxc.monitor.")).unwrap();
        let node = Node { netns, cgroup, own: Some(OWN) };
        let (found, warnings) = containers(&dir.path().join("cgroup"), &[], &node, &dir.path().join("proc"));
        let names: Vec<(&str, &str)> =
            found.iter().map(|found| (found.id.as_str(), found.name.as_str())).collect();
        assert_eq!(names, [("hosted", "hosted"), ("web-1", "web")]);
        let hosted = Location::HostNetwork { cgroup: "/lxc.payload.hosted-2".into(), pid: 21 };
        assert_eq!(found[0].location, hosted);
        assert!(
            matches!(&found[1].location, Location::Netns(netns) if netns.path == Path::new("/proc/11/ns/net"))
        );
        let said: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(said[0], "container gone has no class: it is gone");
        assert!(said[1].contains("61, is in cgroup /user.slice, which is not its own"), "{said:?}");
        let outside = "71, is in cgroup /../lxc.payload.beside, outside of the agent's cgroup namespace";
        assert!(said[2].contains(outside) && said[2].contains("--cgroupns host"), "{said:?}");
    }

    #[test]
    fn labels_are_those_of_the_daemon_whose_directory_the_monitor_names() {
        let dir = tempfile::tempdir().expect("a directory");
        run(dir.path(), "web", (10, "[lxc monitor] /var/lib/lxc web"), (11, "11\t1"));
        run(dir.path(), "web-1", (20, "[lxc monitor] /var/lib/incus/containers web"), (12, "12\t1"));
        run(dir.path(), "shop_db", (30, "[lxc monitor] /srv/l x d/containers shop_db"), (13, "13\t1"));
        run(dir.path(), "untitled", (40, "lxc-start"), (14, "14\t1"));
        let told = |name: &str, home: &str, mbit: u64| {
            let location = Location::Monitor(home.into());
            let mut found = Found::new(name.to_owned(), name.to_owned(), Source::Incus, location);
            found.policy.max = Some(weir_units::BitRate::mbit(mbit));
            found
        };
        let told = [
            told("web", "/var/lib/incus/containers", 2),
            told("shop_db", "/srv/l x d/containers", 3),
            told("untitled", "/var/lib/incus/containers", 4),
            told("stopped", "/var/lib/incus/containers", 5),
        ];
        let node = Node { netns, cgroup, own: None };
        let (found, _) = containers(&dir.path().join("cgroup"), &told, &node, &dir.path().join("proc"));
        let maxima: Vec<(&str, &str, Option<u64>)> = found
            .iter()
            .map(|found| {
                let max = found.policy.max.map(|max| max.bits_per_sec() / 1_000_000);
                (found.id.as_str(), found.name.as_str(), max)
            })
            .collect();
        let db = ("shop_db", "shop_db", Some(3));
        let untitled = ("untitled", "untitled", None);
        assert_eq!(maxima, [db, untitled, ("web", "web", None), ("web-1", "web", Some(2))]);
        assert!(found.iter().all(|found| found.source == Source::Lxc));
    }
}
