//! The length of TCP's super-packets.
//!
//! TCP makes a super-packet as long as its rate needs. It makes it longer the shorter the flow's least round trip is:
//! up to 64 KB below 0.5 ms (`tcp_tso_autosize` in net/ipv4/tcp_output.c, since Linux 5.18). The kernel remembers that
//! round trip for minutes. So a flow to a near server has two or three such packets in its class's queue, at any rate.
//! Flows that have short ones wait behind them, and a queue that splits them pays for it.
//!
//! `net.ipv4.tcp_tso_rtt_log` of a network namespace says below which round trip that is. The kernel's own value is 9,
//! for 512 us. Here it is 1, for 2 us, so that the rate alone decides. Another value is someone's choice, and
//! stays. So nothing has to be remembered to undo it, by this agent or a later one.

use std::{collections::BTreeMap, io::ErrorKind, path::Path};

use weir_discovery::{NetnsRef, NsId};

use crate::pacing::in_each;

/// The tunable, of the namespace of the thread that opens it.
const FILE: &str = "/proc/sys/net/ipv4/tcp_tso_rtt_log";
/// The same where the agent runs in a container, whose own /proc/sys cannot be written
/// (packaging/kubernetes/weir.yaml).
const NODES_FILE: &str = "/host/proc/sys/net/ipv4/tcp_tso_rtt_log";
/// The value of a new namespace.
const KERNELS: &str = "9";
/// A value that no one else has a reason to write: 0 is the usual way to say the same.
const OURS: &str = "1";

/// The namespaces in which TCP's rate alone decides how long a super-packet is.
#[derive(Debug)]
pub struct SuperPackets {
    own: NetnsRef,
    file: &'static Path,
    visited: BTreeMap<NsId, NetnsRef>,
}

impl SuperPackets {
    /// None yet. `owner` is the agent's own network namespace, which has the node's own sockets.
    #[must_use]
    pub fn new(owner: NsId) -> SuperPackets {
        let own = NetnsRef { path: "/proc/self/ns/net".into(), id: owner };
        let file = [NODES_FILE, FILE].map(Path::new).into_iter().find(|file| file.exists());
        SuperPackets { own, file: file.unwrap_or(Path::new(FILE)), visited: BTreeMap::new() }
    }

    /// Has it so in these namespaces and the agent's own, and in no other any more. Those that were visited
    /// before are passed over. Failures come back, and are tried again.
    pub fn follow(&mut self, namespaces: &[NetnsRef]) -> Vec<String> {
        let own = self.own.clone();
        let wanted: BTreeMap<NsId, &NetnsRef> =
            namespaces.iter().chain([&own]).map(|netns| (netns.id, netns)).collect();
        let left: Vec<&NetnsRef> =
            self.visited.iter().filter(|(id, _)| !wanted.contains_key(id)).map(|(_, netns)| netns).collect();
        // Most of them are gone.
        in_each(&left, || exchange(self.file, OURS, KERNELS));
        self.visited.retain(|id, _| wanted.contains_key(id));
        let new: Vec<&NetnsRef> =
            wanted.values().copied().filter(|netns| !self.visited.contains_key(&netns.id)).collect();
        let results = in_each(&new, || exchange(self.file, KERNELS, OURS));
        let mut failures = Vec::new();
        for (netns, result) in new.into_iter().zip(results) {
            match result {
                Ok(()) => {
                    self.visited.insert(netns.id, netns.clone());
                }
                Err(_) if netns.open().is_err() => {} // It is gone.
                Err(why) => failures.push(format!(
                    "TCP in {} may queue super-packets of 64 KB in a slow class: {why}",
                    netns.path.display()
                )),
            }
        }
        failures
    }

    /// Gives these namespaces and the agent's own the kernel's value again, where an earlier agent changed it.
    ///
    /// # Errors
    /// As [`remove`](SuperPackets::remove).
    pub(crate) fn remove_left(mut self, namespaces: &[NetnsRef]) -> Result<(), String> {
        let all = namespaces.iter().chain([&self.own]);
        self.visited = all.map(|netns| (netns.id, netns.clone())).collect();
        self.remove()
    }

    /// Gives all namespaces the kernel's value again.
    ///
    /// # Errors
    /// What could not be done. A namespace that is gone needs nothing.
    pub fn remove(&mut self) -> Result<(), String> {
        let all: Vec<NetnsRef> = std::mem::take(&mut self.visited).into_values().collect();
        let there: Vec<&NetnsRef> = all.iter().filter(|netns| netns.open().is_ok()).collect();
        in_each(&there, || exchange(self.file, OURS, KERNELS)).into_iter().collect()
    }
}

/// Writes a tunable if it has this value. A kernel that lacks it needs nothing.
fn exchange(file: &Path, from: &str, to: &str) -> Result<(), String> {
    let error = |what: &str, e: std::io::Error| format!("cannot {what} {}: {e}", file.display());
    match std::fs::read_to_string(file) {
        Ok(value) if value.trim() == from => std::fs::write(file, to).map_err(|e| error("write", e)),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(error("read", e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_own_value_is_exchanged() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tcp_tso_rtt_log");
        exchange(&file, KERNELS, OURS).unwrap();
        assert!(!file.exists(), "an older kernel lacks it");
        for (before, after) in [("9\n", "1"), ("0\n", "0\n"), ("12\n", "12\n"), ("1", "1")] {
            std::fs::write(&file, before).unwrap();
            exchange(&file, KERNELS, OURS).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), after);
        }
        let failure = exchange(dir.path(), KERNELS, OURS).unwrap_err();
        assert!(failure.starts_with("cannot read "), "{failure}");
    }
}
