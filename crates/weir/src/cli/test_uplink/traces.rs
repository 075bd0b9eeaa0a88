//! The devices, qdiscs, filters and programs of a node, before and after the test.

use std::collections::BTreeMap;

use anyhow::Context;
use weir_bpf::attach;
use weir_netlink::{Link, Netlink, NetlinkError, tc::Hook};

/// The state, qdiscs, filters and programs of each device, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Traces(BTreeMap<String, Vec<String>>);

impl Traces {
    /// Looks at all devices.
    ///
    /// # Errors
    /// The kernel does not list them.
    pub(super) fn look() -> anyhow::Result<Traces> {
        let look = || -> Result<Traces, NetlinkError> {
            let mut netlink = Netlink::open()?;
            let links = netlink.links()?;
            let of = |link: Link| Ok((link.name.clone(), at(&mut netlink, &link)?));
            Ok(Traces(links.into_iter().map(of).collect::<Result<_, NetlinkError>>()?))
        };
        look().context("cannot list the devices of this node with their qdiscs and filters")
    }

    /// The differences that the test could have made. Devices that came or went meanwhile belong to others.
    pub(super) fn differences(&self, after: &Traces) -> Vec<String> {
        let own = after.0.keys().filter(|name| weir_agent::is_scheduler(name) && !self.0.contains_key(*name));
        let mut faults: Vec<String> = own.map(|name| format!("the device {name} is left")).collect();
        for (name, before) in &self.0 {
            let Some(now) = after.0.get(name) else { continue };
            let missing = before.iter().filter(|trace| !now.contains(trace));
            faults.extend(missing.map(|trace| format!("{name} had {trace}, and lacks it now")));
            let added = now.iter().filter(|trace| !before.contains(trace));
            faults.extend(added.map(|trace| format!("{name} has {trace}, and had it not before")));
        }
        faults
    }
}

/// The state, qdiscs, filters and programs of a device.
fn at(netlink: &mut Netlink, link: &Link) -> Result<Vec<String>, NetlinkError> {
    let state = if link.up { "up" } else { "down" };
    let mut traces = vec![format!("state {state}, mtu {}, {} transmit queues", link.mtu, link.queues)];
    for qdisc in netlink.qdiscs(link.index)? {
        traces.push(format!("qdisc {} {} at {}", qdisc.kind, qdisc.handle, qdisc.parent));
    }
    for hook in [Hook::Ingress, Hook::Egress] {
        for filter in netlink.filters(link.index, hook)? {
            traces.push(format!("filter {} of pref {} at {hook:?}", filter.kind, filter.pref));
        }
    }
    // Kernels before 6.6 have no such hook.
    for (what, programs) in
        [("ingress", attach::tcx_ingress(link.index)), ("egress", attach::tcx_egress(link.index))]
    {
        traces.extend(programs.unwrap_or_default().iter().map(|id| format!("program {id} at {what}")));
    }
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(devices: &[(&str, &[&str])]) -> Traces {
        let at = |traces: &[&str]| traces.iter().map(|trace| (*trace).to_owned()).collect();
        Traces(devices.iter().map(|(name, all)| ((*name).to_owned(), at(all))).collect())
    }

    #[test]
    fn each_difference_that_the_test_could_have_made_is_told() {
        let before = traces(&[("eth0", &["qdisc mq", "program 7 at egress"]), ("veth1", &[])]);
        assert_eq!(before.differences(&before), Vec::<String>::new());
        let after = traces(&[("eth0", &["qdisc mq", "qdisc clsact"]), ("veth1", &[]), ("weir0", &[])]);
        assert_eq!(
            before.differences(&after),
            [
                "the device weir0 is left",
                "eth0 had program 7 at egress, and lacks it now",
                "eth0 has qdisc clsact, and had it not before",
            ]
        );
    }

    #[test]
    fn devices_of_others_that_come_and_go_are_no_differences() {
        let before = traces(&[("eth0", &[]), ("veth1", &["qdisc noqueue"])]);
        let after = traces(&[("eth0", &[]), ("veth2", &["qdisc noqueue"])]);
        assert_eq!(before.differences(&after), Vec::<String>::new());
    }
}
