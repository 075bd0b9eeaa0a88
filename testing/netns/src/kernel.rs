//! The kernel's state of a node, without the agent: its classes, the programs at its interfaces,
//! and everything that weir could have altered.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    os::fd::{FromRawFd as _, OwnedFd},
    path::Path,
};

use libbpf_rs::libbpf_sys;
use weir_bpf::attach;
use weir_netlab::topology::Netns;
use weir_netlink::{Netlink, tc::FoundClass};
use weir_units::TcHandle;

use crate::Need;

/// The scheduler's device.
pub const SCHEDULER: &str = "weir0";

/// The device through which engine `user` takes packets to its forwarder.
pub const TAP: &str = "weir0u";

/// Index of an interface; none if there is no such one.
///
/// # Panics
/// If the namespace cannot be entered.
#[must_use]
#[track_caller]
pub fn index_of(netns: &Netns, device: &str) -> Option<u32> {
    let link = netns.within(|| Netlink::open().and_then(|mut netlink| netlink.link(device)));
    link.expect("the namespace can be entered").ok().map(|link| link.index)
}

/// The scheduler's classes by handle (`1:10`); none if there is no scheduler. Drops are those
/// of the class or, if they are more, of its queue: HTB's own count lacks what a queue drops
/// when it splits a packet.
///
/// # Panics
/// If the namespace cannot be entered.
#[must_use]
#[track_caller]
pub fn classes(netns: &Netns) -> BTreeMap<String, FoundClass> {
    let Some(index) = index_of(netns, SCHEDULER) else { return BTreeMap::new() };
    let mut found = Vec::new();
    let read = netns.within(|| {
        let mut netlink = Netlink::open()?;
        netlink.htb_classes(index, TcHandle::new(1, 0), &mut found)?;
        netlink.qdiscs(index)
    });
    let queues = read.expect("the namespace can be entered").expect("classes and queues can be listed");
    for f in &mut found {
        let queue = queues.iter().find(|queue| queue.parent == f.class.handle);
        f.counters.drops = f.counters.drops.max(queue.map_or(0, |queue| queue.counters.drops));
    }
    found.into_iter().map(|f| (f.class.handle.to_string(), f)).collect()
}

/// Ids and names of the programs at an interface's TCX ingress; none before kernel 6.6.
///
/// # Panics
/// If the namespace cannot be entered.
#[must_use]
#[track_caller]
pub fn tcx_programs(netns: &Netns, device: &str) -> Vec<(u32, String)> {
    let Some(index) = index_of(netns, device) else { return Vec::new() };
    let ids = netns.within(|| attach::tcx_ingress(index)).expect("the namespace can be entered");
    ids.unwrap_or_default().into_iter().map(named).collect()
}

/// The same at its TCX egress.
///
/// # Panics
/// If the namespace cannot be entered.
#[must_use]
#[track_caller]
pub fn tcx_programs_at_egress(netns: &Netns, device: &str) -> Vec<(u32, String)> {
    let Some(index) = index_of(netns, device) else { return Vec::new() };
    let ids = netns.within(|| attach::tcx_egress(index)).expect("the namespace can be entered");
    ids.unwrap_or_default().into_iter().map(named).collect()
}

fn named(id: u32) -> (u32, String) {
    (id, attach::program_name(id).unwrap_or_default())
}

/// Takes a program away from an interface's TCX ingress, as an operator could.
///
/// # Panics
/// If it is not there.
#[track_caller]
pub fn detach_tcx(netns: &Netns, device: &str, program: u32) {
    let index = index_of(netns, device).expect("the interface is there");
    let detached = netns.within(|| attach::detach_tcx_ingress(program, index));
    detached.expect("the namespace can be entered").expect("the program is there");
}

/// A program of this kind (`BPF_PROG_TYPE_...`) that is not weir's, of instructions as the kernel has them.
///
/// # Panics
/// If the kernel refuses.
#[must_use]
#[track_caller]
pub fn load_program(kind: libbpf_sys::bpf_prog_type, name: &str, instructions: &[u64]) -> OwnedFd {
    let (name, license) = (CString::new(name).expect("no zero"), c"GPL");
    // SAFETY: names and instructions live through the call, and there are as many as it is told.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            license.as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as _,
            std::ptr::null_mut(),
        )
    };
    assert!(fd >= 0, "a program loads: {fd}");
    // SAFETY: a fresh descriptor without another owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The same for packets at tc or TCX.
///
/// # Panics
/// If the kernel refuses.
#[must_use]
#[track_caller]
pub fn load_classifier(name: &str, instructions: &[u64]) -> OwnedFd {
    load_program(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, name, instructions)
}

/// All that weir could leave behind on a node, by what it is: links, qdiscs, classes, filters,
/// programs, every sysctl of the namespace.
///
/// # Panics
/// If a program that lists them fails.
#[must_use]
#[track_caller]
pub fn traces(netns: &Netns) -> BTreeMap<String, String> {
    let say = |argv: &[&str]| netns.exec(argv).unwrap_or_else(|e| panic!("{e:#}")).stdout;
    let mut traces = BTreeMap::new();
    let links = say(&["ip", "-d", "link"]);
    traces.insert("ip -d link".to_owned(), links.lines().map(without_clocks).collect::<Vec<_>>().join("\n"));
    let qdiscs = say(&["tc", "-d", "qdisc", "show"]);
    traces.insert(
        "tc -d qdisc".to_owned(),
        qdiscs.lines().map(without_counters).collect::<Vec<_>>().join("\n"),
    );
    for link in say(&["ip", "-o", "link"]).lines() {
        let name = link.split([':', '@']).nth(1).unwrap_or_default().trim();
        for what in [
            &["class", "show", "dev", name][..],
            &["filter", "show", "dev", name],
            &["filter", "show", "dev", name, "ingress"],
            &["filter", "show", "dev", name, "egress"],
        ] {
            traces.insert(format!("tc {}", what.join(" ")), say(&[&["tc"], what].concat()));
        }
        traces.insert(format!("tcx {name}"), format!("{:?}", tcx_programs(netns, name)));
        traces.insert(format!("tcx {name} egress"), format!("{:?}", tcx_programs_at_egress(netns, name)));
    }
    if Need::Program("bpftool").is_met() {
        traces.insert("bpftool net".to_owned(), say(&["bpftool", "net", "show"]));
    }
    let sysctls = netns.within(|| {
        let mut found = BTreeMap::new();
        read_all(Path::new("/proc/sys/net"), &mut found);
        found
    });
    traces.extend(sysctls.expect("the namespace can be entered"));
    traces
}

/// A line about a bridge without what its timers still have to run.
fn without_clocks(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let still = |i: usize| if i > 0 && words[i - 1].ends_with("_timer") { "-" } else { words[i] };
    (0..words.len()).map(still).collect::<Vec<_>>().join(" ")
}

/// A line about a qdisc without the packets that it has counted.
fn without_counters(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let still = |i: usize| if i > 0 && words[i - 1] == "direct_packets_stat" { "-" } else { words[i] };
    (0..words.len()).map(still).collect::<Vec<_>>().join(" ")
}

/// Every sysctl below a directory, without those that count by themselves and those that cannot be
/// read.
fn read_all(dir: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_all(&path, found);
        } else if !path.ends_with("nf_conntrack_count")
            && let Ok(value) = fs::read_to_string(&path)
        {
            found.insert(path.display().to_string(), value);
        }
    }
}
