//! The findings on this node.

use std::{fs, path::Path};

use anyhow::Context;
use weir_netlink::Netlink;
use weir_units::BitRate;

/// A device with a default route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uplink {
    pub(super) name: String,
    pub(super) metric: u32,
}

/// The findings that a configuration is made of.
#[derive(Debug, Clone, Default)]
pub(super) struct Survey {
    /// All interfaces but the loopback and weir's own.
    pub(super) devices: Vec<String>,
    /// Devices with a default route, the one with the lowest metric first.
    pub(super) uplinks: Vec<Uplink>,
    /// The speeds of the ports that tell one.
    pub(super) speeds: Vec<(String, BitRate)>,
    /// Whether Docker is installed.
    pub(super) has_docker: bool,
    /// Other runtimes that are here.
    pub(super) others: Vec<Runtime>,
    /// The number of named network namespaces.
    pub(super) namespaces: usize,
    /// Whether systemd has weir's unit.
    pub(super) has_unit: bool,
}

/// A runtime other than Docker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Runtime {
    name: &'static str,
    socket: &'static str,
    /// Its key of `[discover]`, and the value for this socket. `None` if weir does not follow this runtime.
    pub(super) discover: Option<(&'static str, &'static str)>,
}

/// The runtimes other than Docker. The first socket of a key is the one that is followed.
const OTHERS: [Runtime; 7] = [
    Runtime {
        name: "containerd",
        socket: "/run/containerd/containerd.sock",
        discover: Some(("containerd", "true")),
    },
    Runtime {
        name: "k3s",
        socket: "/run/k3s/containerd/containerd.sock",
        discover: Some(("containerd", "\"/run/k3s/containerd/containerd.sock\"")),
    },
    Runtime { name: "Podman", socket: "/run/podman/podman.sock", discover: Some(("podman", "true")) },
    Runtime { name: "Incus", socket: weir_discovery::incus::SOCKET, discover: Some(("incus", "true")) },
    Runtime {
        name: "LXD",
        socket: "/var/snap/lxd/common/lxd/unix.socket",
        discover: Some(("incus", "\"/var/snap/lxd/common/lxd/unix.socket\"")),
    },
    Runtime {
        name: "LXD",
        socket: "/var/lib/lxd/unix.socket",
        discover: Some(("incus", "\"/var/lib/lxd/unix.socket\"")),
    },
    Runtime { name: "CRI-O", socket: "/run/crio/crio.sock", discover: None },
];

/// The runtimes of these whose sockets are here. A second one of the same key is not followed.
pub(super) fn others(has_docker: bool, exists: impl Fn(&str) -> bool) -> Vec<Runtime> {
    let mut here: Vec<Runtime> = Vec::new();
    // Docker's own containerd is no other runtime.
    let all = OTHERS.iter().filter(|one| exists(one.socket) && !(has_docker && one.name == "containerd"));
    for one in all {
        let key = |runtime: &Runtime| runtime.discover.map(|(key, _)| key);
        let is_first = !here.iter().any(|other| key(other) == key(one));
        if key(one) == Some("incus") && !is_first {
            // Its containers are classes too, without their keys.
            continue;
        }
        here.push(Runtime { discover: one.discover.filter(|_| is_first), ..*one });
    }
    here
}

const UNITS: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

impl Survey {
    /// Looks at this node, and changes nothing.
    pub(super) fn of_this_node() -> anyhow::Result<Survey> {
        let look = || -> Result<_, weir_netlink::NetlinkError> {
            let mut netlink = Netlink::open()?;
            Ok((netlink.links()?, netlink.default_routes()?))
        };
        let (links, routes) = look().context("cannot look for the uplink (`--device` names it)")?;
        let name = |index: u32| links.iter().find(|link| link.index == index).map(|link| link.name.clone());
        let uplinks = routes
            .iter()
            .filter_map(|route| Some(Uplink { name: name(route.index)?, metric: route.metric }))
            .collect();
        let is_own = |link: &weir_netlink::Link| link.name == "lo" || weir_agent::is_scheduler(&link.name);
        let devices: Vec<String> =
            links.iter().filter(|link| !is_own(link)).map(|link| link.name.clone()).collect();
        let speeds = devices.iter().filter_map(|device| Some((device.clone(), speed(device)?))).collect();
        let exists = |path: &str| Path::new(path).exists();
        let on_path = |program: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|dir| dir.join(program).exists())
        };
        let has_docker = exists("/run/docker.sock") || on_path("dockerd");
        Ok(Survey {
            devices,
            uplinks,
            speeds,
            has_docker,
            others: others(has_docker, exists),
            namespaces: fs::read_dir("/run/netns").map_or(0, |entries| entries.flatten().count()),
            has_unit: UNITS.iter().any(|directory| Path::new(directory).join("weir.service").exists()),
        })
    }

    /// The speed of a device's port, if it tells one.
    pub(super) fn speed(&self, device: &str) -> Option<BitRate> {
        self.speeds.iter().find(|(name, _)| name == device).map(|(_, speed)| *speed)
    }

    /// The findings, one sentence each.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = self
            .uplinks
            .iter()
            .map(|uplink| format!("{} has a default route, metric {}", uplink.name, uplink.metric))
            .collect();
        words.push(if self.has_docker {
            "Docker is here: each container becomes a class".to_owned()
        } else {
            "Docker is not here".to_owned()
        });
        if self.namespaces > 0 {
            words
                .push(format!("{} named network namespaces are here: each becomes a class", self.namespaces));
        }
        for Runtime { name, discover, .. } in &self.others {
            words.push(if discover.is_some() {
                format!("{name} is here: each container becomes a class")
            } else {
                format!("{name} is here: its containers share class default, unless a [[class]] names their interface")
            });
        }
        words
    }
}

/// The speed that the driver reports, in Mbit/s; -1 or an error if it knows none.
fn speed(device: &str) -> Option<BitRate> {
    let text = fs::read_to_string(format!("/sys/class/net/{device}/speed")).ok()?;
    let mbit: u64 = text.trim().parse().ok()?;
    (mbit > 0 && mbit < u64::from(u32::MAX)).then(|| BitRate::mbit(mbit))
}
