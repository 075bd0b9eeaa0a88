//! Needs of a test on this machine.

use std::{fmt, path::Path, process::Command};

use weir_netlab::topology::{self, Netns, Uplink};
use weir_testkit::set_realtime;

/// A right, a program or a feature of the kernel without which a test means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// `CAP_NET_ADMIN` and `CAP_SYS_ADMIN`: namespaces, the scheduler, programs.
    Rights,
    /// A command, by name.
    Program(&'static str),
    /// A file, by its path.
    File(&'static str),
    /// The scheduler's device, `ifb`.
    Ifb,
    /// A queueing discipline, by tc's name.
    Qdisc(&'static str),
    /// Bridged packets through iptables.
    BrNetfilter,
    /// A cgroup v2 hierarchy where processes can be put.
    Cgroup2,
    /// `CAP_SYS_NICE`, and real-time time for this cgroup.
    Priority,
}

impl Need {
    /// The needs of every test with traffic.
    pub const TRAFFIC: [Need; 7] = [
        Need::Rights,
        Need::Program("iperf3"),
        Need::Program("ethtool"),
        Need::Program("ping"),
        Need::Ifb,
        Need::Qdisc("htb"),
        Need::Qdisc("tbf"),
    ];

    /// Whether it is here.
    #[must_use]
    pub fn is_met(self) -> bool {
        match self {
            Need::Rights => topology::check_rights().is_ok(),
            Need::Program(name) => on_path(name),
            Need::File(path) => Path::new(path).exists(),
            Need::Ifb => in_a_namespace(|n| n.ip("link add t0 type ifb\n").is_ok()),
            Need::Qdisc(kind) => in_a_namespace(|n| {
                let parameters = if kind == "tbf" { "rate 1mbit burst 2k limit 10k" } else { "" };
                n.tc(&format!("qdisc add dev lo root {kind} {parameters}\n")).is_ok()
            }),
            Need::BrNetfilter => {
                let there = || Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists();
                there() || (Command::new("modprobe").arg("br_netfilter").output().is_ok() && there())
            }
            Need::Cgroup2 => ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
                .iter()
                .any(|mount| Path::new(mount).join("cgroup.procs").exists()),
            Need::Priority => std::thread::spawn(set_realtime).join().is_ok_and(|may| may),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Rights => f.write_str("the rights CAP_NET_ADMIN and CAP_SYS_ADMIN (run as root)"),
            Need::Program(name) => write!(f, "the program {name}"),
            Need::File(path) => write!(f, "the file {path}"),
            Need::Ifb => f.write_str("the kernel's ifb device (CONFIG_IFB)"),
            Need::Qdisc(kind) => write!(f, "the kernel's {kind} qdisc (CONFIG_NET_SCH_*)"),
            Need::BrNetfilter => f.write_str("the kernel's br_netfilter (CONFIG_BRIDGE_NETFILTER)"),
            Need::Cgroup2 => f.write_str("a mounted cgroup v2 hierarchy"),
            Need::Priority => f.write_str("real-time priority (CAP_SYS_NICE)"),
        }
    }
}

/// Names of the engines that a run is about, with commas between. Without it, a run is about all
/// engines that this machine has.
pub(crate) const WANTED: &str = "WEIR_ENGINES";

/// True if all of them are here. Otherwise the test is to return, and [`skip`] names the first
/// that is missing.
///
/// # Panics
/// As [`skip`].
#[must_use]
#[track_caller]
pub fn can_run(needs: &[Need]) -> bool {
    let missing = needs.iter().find(|need| !need.is_met());
    if let Some(missing) = missing {
        skip(format_args!("{missing} is missing here"));
    }
    missing.is_none()
}

/// True if this kernel can make an uplink of this kind. Otherwise the test is to return, and its output
/// names the missing part. This is no failure where engines are named: the kernel lacks the link.
#[must_use]
pub fn can_have(uplink: Uplink) -> bool {
    let lacks = uplink.lacks();
    if let Some(missing) = lacks {
        println!("SKIPPED: an uplink of {uplink} needs {missing}, which is missing here");
    }
    lacks.is_none()
}

/// Says that a test cannot run here, and why. The test is to return.
///
/// # Panics
/// If the run names its engines: a test of an engine that was asked for must run.
#[track_caller]
pub fn skip(why: impl fmt::Display) {
    if let Ok(named) = std::env::var(WANTED) {
        panic!("{WANTED}={named} asks for this test, which cannot run: {why}");
    }
    println!("SKIPPED: {why}");
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|d| d.join(name).exists())
}

fn in_a_namespace(works: impl FnOnce(&Netns) -> bool) -> bool {
    let name = format!("weirlab-{}-probe", std::process::id());
    Netns::create(&name).is_ok_and(|netns| works(&netns))
}
