//! Checks the abilities of this kernel, in a network namespace that ends with its thread.

use nix::sched::{CloneFlags, unshare};
use weir_api::{Check, Verdict};
use weir_bpf::{Classifier, Pacer, attach};
use weir_datapath::engine::{
    EngineKind, SCHEDULER_MAC,
    selftest::{self, Shares},
};
use weir_discovery::cgroup::{Cgroup2, CgroupError};
use weir_netlink::{
    Link, Netlink,
    tc::{self, Hook, HtbClass, Leaf},
};
use weir_units::chain;
use weir_units::{BitRate, Bytes, TcHandle};

fn ok(name: &str, found: impl Into<String>) -> Check {
    Check::ok(name, found)
}

fn bad(name: &str, verdict: Verdict, found: impl Into<String>, advice: &str) -> Check {
    Check::bad(name, verdict, found, Some(advice))
}

/// Tries all kernel features that the engines need. Nothing remains on the host.
#[must_use]
pub fn kernel() -> Vec<Check> {
    let mut checks = vec![release()];
    let tried = std::thread::spawn(|| match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => try_out(),
        Err(errno) => vec![bad(
            "rights",
            Verdict::Fail,
            format!("cannot make a network namespace to try things in: {errno}"),
            "run as root, or with CAP_NET_ADMIN and CAP_SYS_ADMIN",
        )],
    });
    checks.extend(tried.join().unwrap_or_default());
    checks.push(match Cgroup2::find() {
        Ok(found) => ok("cgroup v2", format!("mounted at {}", found.mount().display())),
        Err(e) => bad(
            "cgroup v2",
            Verdict::Warn,
            chain(&e),
            match e {
                CgroupError::NotMounted => {
                    "host-network containers count as the host until it is mounted (`mount -t cgroup2 none \
                     /sys/fs/cgroup/unified`)"
                }
                _ => "host-network containers count as the host until then",
            },
        ),
    });
    checks
}

/// Tries all engines at once on a small link. This takes one or two seconds. `link`: the device that an
/// agent shares, if one does.
#[must_use]
pub fn engines(link: Option<&Link>) -> Vec<Check> {
    let check = |kind: EngineKind| -> Check {
        let name = format!("engine {kind}");
        if let Some(Err(why)) = link.map(|link| kind.takes(link)) {
            return bad(&name, Verdict::Warn, chain(&why), "needed only if the configuration asks for it");
        }
        match selftest::run(kind) {
            Ok(Shares { measured: [a, b], .. }) => {
                ok(&name, format!("passes its self-test: {a:.1} and {b:.1} Mbit/s for weights 1 and 3"))
            }
            Err(e) => bad(
                &name,
                Verdict::Warn,
                chain(&e),
                "`engine = \"auto\"` takes another; needed only if the configuration asks for it",
            ),
        }
    };
    std::thread::scope(|scope| {
        let kinds = EngineKind::ALL.into_iter().chain(EngineKind::EXPERIMENTAL);
        let running: Vec<_> = kinds.map(|kind| scope.spawn(move || check(kind))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

fn release() -> Check {
    match nix::sys::utsname::uname() {
        Ok(name) => ok("kernel", name.release().to_string_lossy()),
        Err(errno) => bad("kernel", Verdict::Warn, errno.to_string(), "uname failed"),
    }
}

/// Runs the attempts in their own namespace.
fn try_out() -> Vec<Check> {
    let mut checks = Vec::new();
    let mut netlink = match Netlink::open() {
        Ok(netlink) => netlink,
        Err(e) => return vec![bad("netlink", Verdict::Fail, chain(&e), "the kernel needs CONFIG_NETLINK")],
    };
    let ifb = match netlink.add_ifb("weirtry", "weir doctor", SCHEDULER_MAC, 1) {
        Ok(index) => index,
        Err(e) => {
            checks.push(bad(
                "ifb",
                Verdict::Fail,
                chain(&e),
                "`modprobe ifb`, or a kernel with CONFIG_IFB; without it weir cannot run",
            ));
            return checks;
        }
    };
    checks.push(ok("ifb", "can be made"));
    checks.push(htb(&mut netlink, ifb));
    let classifier = match Classifier::load() {
        Ok(classifier) => classifier,
        Err(e) => {
            checks.push(bad("bpf", Verdict::Fail, chain(&e), "the agent needs root or CAP_SYS_ADMIN, and a kernel >= 5.10 with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF"));
            return checks;
        }
    };
    checks.push(ok("bpf", "the classifier loads"));
    checks.push(match Pacer::load(&classifier) {
        Ok(_) => ok("pacing", "TCP senders can be held to their share in their own sockets"),
        Err(e) => bad(
            "pacing",
            Verdict::Warn,
            chain(&e),
            "`[link] pacing` and `engine = \"pacing\"` need CONFIG_CGROUP_BPF and CONFIG_DEBUG_INFO_BTF",
        ),
    });
    checks.push(match attach::attach_tcx_ingress(&classifier.port_program(), ifb, None) {
        Ok(()) => ok("tcx", "programs attach in an order (kernel >= 6.6)"),
        Err(errno) => bad(
            "tcx",
            Verdict::Warn,
            errno.to_string(),
            "weir uses clsact instead; other tc programs on a container's port may conflict",
        ),
    });
    let filter = tc::set_bpf_filter(
        ifb,
        "weirtry",
        Hook::Egress,
        1,
        (classifier.uplink_program(), Classifier::UPLINK_PROGRAM),
        tc::Verdict::Redirect { to: ifb },
    );
    let attached = netlink.call(tc::add_clsact(ifb, "weirtry")).and_then(|()| netlink.call(filter));
    checks.push(match attached {
        Ok(()) => ok("clsact, mirred", "the host's own traffic can be caught"),
        Err(e) => bad(
            "clsact, mirred",
            Verdict::Warn,
            chain(&e),
            "the host's own traffic is not shared without CONFIG_NET_SCH_INGRESS and CONFIG_NET_ACT_MIRRED",
        ),
    });
    checks
}

/// Tries a class with each kind of queue.
fn htb(netlink: &mut Netlink, ifb: u32) -> Check {
    let handle = TcHandle::new(1, 2);
    let class = HtbClass {
        handle,
        parent: TcHandle::new(1, 0),
        rate: BitRate::mbit(1),
        ceil: BitRate::gbit(100),
        burst: Bytes(65_536),
        cburst: Bytes(65_536),
        quantum: Bytes(1_514),
        prio: 1,
        framing: weir_units::RateFraming::default(),
    };
    let leaf = |kind| tc::set_leaf(ifb, "weirtry", handle, TcHandle::new(2, 0), kind);
    let split = Leaf::Split { limit: Bytes(300_000), largest: Bytes(9_216) };
    let steps = [
        tc::add_htb(ifb, "weirtry", TcHandle::new(1, 0), TcHandle::ROOT, 2),
        tc::set_class(ifb, "weirtry", &class),
        leaf(Leaf::Fifo { limit: Bytes(300_000) }),
        tc::delete_qdisc(ifb, "weirtry", TcHandle::new(2, 0), handle),
        leaf(split),
    ];
    for step in steps {
        if let Err(e) = netlink.call(step) {
            return bad(
                "htb, tbf, bfifo",
                Verdict::Fail,
                chain(&e),
                "weir needs CONFIG_NET_SCH_HTB, CONFIG_NET_SCH_TBF and CONFIG_NET_SCH_FIFO (`modprobe sch_htb sch_tbf`)",
            );
        }
    }
    ok("htb, tbf, bfifo", "classes and both kinds of queue can be made")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_user_is_not_for_a_link_without_ethernet() {
        let link = Link { name: "ppp0".to_owned(), ..Link::default() };
        let checks = engines(Some(&link));
        let user = checks.iter().find(|check| check.name == "engine user").unwrap();
        assert_eq!(user.verdict, Verdict::Warn);
        assert!(user.found.contains("packets of ppp0 have no Ethernet header"), "{user:?}");
    }

    #[test]
    fn every_check_says_what_was_found_and_bad_ones_the_way_out() {
        let mut checks = kernel();
        checks.extend(engines(None));
        assert!(checks.len() >= 3, "{checks:?}");
        for check in &checks {
            assert!(!check.found.is_empty(), "{check:?}");
            assert_eq!(check.verdict == Verdict::Ok, check.advice.is_none(), "{check:?}");
        }
    }
}
