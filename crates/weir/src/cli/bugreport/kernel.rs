//! The kernel's links, queues and programs, read by weir itself.

use std::fmt::Write as _;

use weir_bpf::attach;
use weir_netlink::{Link, Netlink, NetlinkError, tc::Hook};
use weir_units::{TcHandle, chain};

/// Each link with its qdiscs, the HTB classes of weir's own device, and the default routes.
pub(super) fn links_and_queues() -> Result<String, String> {
    let read = || -> Result<String, NetlinkError> {
        let mut netlink = Netlink::open()?;
        let mut text = String::new();
        for route in netlink.default_routes()? {
            let _ = writeln!(text, "default route: interface {}, metric {}", route.index, route.metric);
        }
        for link in netlink.links()? {
            let Link { index, name, kind, mtu, up, queues, .. } = &link;
            let kind = kind.as_deref().unwrap_or("device");
            let state = if *up { "up" } else { "down" };
            let _ = writeln!(text, "\n{index} {name}: {kind}, {state}, mtu {mtu}, queues {queues}");
            for qdisc in netlink.qdiscs(*index)? {
                let (kind, handle, parent) = (&qdisc.kind, qdisc.handle, qdisc.parent);
                let _ = writeln!(text, "  qdisc {kind} {handle} at {parent}: {:?}", qdisc.counters);
            }
            for (hook, word) in [(Hook::Ingress, "ingress"), (Hook::Egress, "egress")] {
                for filter in netlink.filters(*index, hook)? {
                    let name = filter.bpf_name.as_deref().unwrap_or("-");
                    let _ = writeln!(text, "  {word} filter {} {}: program {name}", filter.pref, filter.kind);
                }
            }
            if weir_agent::is_scheduler(name) {
                let mut classes = Vec::new();
                netlink.htb_classes(*index, TcHandle::new(1, 0), &mut classes)?;
                for found in classes {
                    let (class, counters) = (found.class, found.counters);
                    let _ = writeln!(
                        text,
                        "  class {} of {}: rate {}, ceil {}, quantum {}: {counters:?}",
                        class.handle, class.parent, class.rate, class.ceil, class.quantum
                    );
                }
            }
        }
        Ok(text)
    };
    read().map_err(|e| chain(&e))
}

/// The programs at the TCX hooks of each link.
pub(super) fn programs() -> Result<String, String> {
    let links = Netlink::open().and_then(|mut netlink| netlink.links()).map_err(|e| chain(&e))?;
    let mut text = String::new();
    for link in links {
        let hooks =
            [("ingress", attach::tcx_ingress(link.index)), ("egress", attach::tcx_egress(link.index))];
        for (hook, ids) in hooks {
            match ids {
                Ok(ids) => {
                    for id in ids {
                        let name = attach::program_name(id).unwrap_or_else(|e| format!("({e})"));
                        let _ = writeln!(text, "{} {hook}: program {id} {name}", link.name);
                    }
                }
                Err(errno) => {
                    let _ = writeln!(text, "{} {hook}: cannot ask for TCX programs: {errno}", link.name);
                }
            }
        }
    }
    if text.is_empty() {
        text.push_str("no link has a TCX program\n");
    }
    Ok(text)
}
