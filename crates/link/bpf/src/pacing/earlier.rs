use std::os::fd::BorrowedFd;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::common::{attach, map_named};

/// The name under which the kernel knows the program for socket events.
pub(super) const PROGRAM: &str = "weir_pacer";

/// The objects that an earlier agent of the same network namespace left at a cgroup.
pub struct EarlierPacing {
    /// Its program.
    pub program: u32,
    /// Its records of sockets.
    pub(crate) flows: MapHandle,
}

/// A [`Pacer`](super::Pacer) of some agent, at a cgroup.
struct Left {
    program: u32,
    /// `struct weir_pacing` of intf.h.
    alive_ns: u64,
    owner: u64,
    maps: Vec<u32>,
}

impl Left {
    fn all(cgroup: BorrowedFd<'_>) -> Vec<Left> {
        let ids = attach::sock_ops(cgroup).unwrap_or_default();
        let ours = |id: &u32| attach::program_name(*id).is_ok_and(|name| name == PROGRAM);
        ids.into_iter().filter(ours).filter_map(Left::read).collect()
    }

    fn read(program: u32) -> Option<Left> {
        let maps = attach::program_maps(program).ok()?;
        let value = map_named(&maps, "weir_pacing")?.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        let word = |i: usize| value.get(i * 8..i * 8 + 8)?.try_into().ok().map(u64::from_ne_bytes);
        Some(Left { program, alive_ns: word(0)?, owner: word(1)?, maps })
    }
}

impl EarlierPacing {
    /// The objects that an earlier agent left at a cgroup, if it shared the link of the network
    /// namespace `owner` (its inode).
    #[must_use]
    pub fn find(cgroup: BorrowedFd<'_>, owner: u64) -> Option<EarlierPacing> {
        let left = Left::all(cgroup).into_iter().find(|left| left.owner == owner)?;
        Some(EarlierPacing { program: left.program, flows: map_named(&left.maps, "weir_flows")? })
    }

    /// Removes the objects of all agents at a cgroup for which `is_over` returns true. It gets the inode
    /// of an agent's network namespace and the time of its last heartbeat, ns of the monotonic clock.
    pub fn sweep(cgroup: BorrowedFd<'_>, is_over: impl Fn(u64, u64) -> bool) {
        for left in Left::all(cgroup) {
            if is_over(left.owner, left.alive_ns) {
                // Another agent may have been quicker.
                let _ = attach::detach_sock_ops(left.program, cgroup);
            }
        }
    }
}
