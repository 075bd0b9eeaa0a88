//! The setup of the CNI bandwidth plugin (containernetworking-plugins, `bandwidth`) for a container with
//! `ingressRate` and `egressRate`.
//!
//! A token bucket on the host's end of the veth shapes the packets that the container receives. An ingress
//! qdisc there redirects the container's own packets to an ifb with another token bucket. Both buckets have
//! the plugin's latency of 25 ms. The plugin knows ceilings only: no weights, no floors, no lending.

use std::fmt::Write as _;

use anyhow::Result;
use weir_netlab::topology::Topology;
use weir_units::BitRate;

use super::interface::Control;

use crate::scenario::{Case, HOST};

/// The plugin's `latencyInMillis`.
const LATENCY_MS: u32 = 25;
/// The user chooses `burst`, which has no default; 64 KiB hold a super-packet.
const BURST: u32 = 64 << 10;

/// The lines for `tc -batch` and the ifb's name, for a container's host interface.
pub(crate) fn script(interface: &str, rate: BitRate) -> (String, String) {
    let ifb = format!("bw{interface}");
    let bucket =
        format!("root tbf rate {}bit burst {BURST} latency {LATENCY_MS}ms", rate.bits_per_sec().max(8_000));
    let mut text = String::new();
    let _ = writeln!(text, "qdisc add dev {interface} {bucket}");
    let _ = writeln!(text, "qdisc add dev {interface} ingress");
    let _ = writeln!(
        text,
        "filter add dev {interface} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev {ifb}"
    );
    let _ = writeln!(text, "qdisc add dev {ifb} {bucket}");
    (text, ifb)
}

/// Sets a container's pair of buckets.
///
/// # Errors
/// If the kernel lacks ifb, TBF, u32 or mirred.
pub(crate) fn limit(topology: &Topology, container: &str, rate: BitRate) -> Result<String> {
    let interface = topology.container(container)?.host_interface();
    let (text, ifb) = script(&interface, rate);
    topology.node().ip(&format!("link add {ifb} type ifb\nlink set dev {ifb} up\n"))?;
    topology.node().tc(&text)?;
    Ok(text)
}

/// Removes a container's pair of buckets.
///
/// # Errors
/// If the pair is not there.
pub(crate) fn unlimit(topology: &Topology, container: &str) -> Result<()> {
    let interface = topology.container(container)?.host_interface();
    topology.node().tc(&format!("qdisc del dev {interface} ingress\nqdisc del dev {interface} root\n"))?;
    topology.node().ip(&format!("link del bw{interface}\n"))
}

/// The plugin at work: each container's ceiling, if it has one.
pub(super) struct Plugin<'t> {
    topology: &'t Topology,
    limited: Vec<String>,
    record: String,
}

impl<'t> Plugin<'t> {
    pub(super) fn new(topology: &'t Topology) -> Plugin<'t> {
        Plugin { topology, limited: Vec::new(), record: String::new() }
    }
}

impl Control for Plugin<'_> {
    fn apply(&mut self, case: &Case) -> Result<()> {
        for container in self.limited.drain(..) {
            unlimit(self.topology, &container)?;
        }
        let _ = writeln!(self.record, "# {}", case.name);
        for (label, setting) in case.settings().filter(|(label, _)| *label != HOST) {
            if let Some(max) = setting.max {
                self.record += &limit(self.topology, label, max)?;
                self.limited.push(label.to_owned());
            }
        }
        Ok(())
    }

    fn record(&self) -> Option<String> {
        Some(self.record.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_gets_a_bucket_in_each_direction() {
        let (text, ifb) = script("v3", BitRate::mbit(20));
        assert_eq!(ifb, "bwv3");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "qdisc add dev v3 root tbf rate 20000000bit burst 65536 latency 25ms");
        assert!(lines[2].ends_with("redirect dev bwv3"), "{text}");
        assert_eq!(lines[3], "qdisc add dev bwv3 root tbf rate 20000000bit burst 65536 latency 25ms");
    }
}
