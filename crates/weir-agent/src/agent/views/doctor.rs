//! The agent's own checks: whether the kernel holds the configured state.

use weir_api::{Check, Status, Verdict};
use weir_datapath::engine::describe_ahead;
use weir_units::BitRate;

use crate::agent::{
    Agent,
    class_key::{ClassKey, ClassSource},
    class_table::ClassEntry,
    runtimes::State,
};

impl Agent {
    /// The agent's own checks: whether the kernel holds the configured state.
    pub(in crate::agent) fn doctor(&self) -> Vec<Check> {
        let status = self.status();
        let mut checks = vec![
            Check::ok("agent", format!("runs since {} s, pid {}", status.uptime_s, status.pid)),
            self.check_configuration(&status),
            self.check_scheduler(&status),
            self.check_host_traffic(&status),
        ];
        checks.extend(self.check_programs_of_others());
        checks.extend(self.check_other_links());
        checks.extend(self.check_runtimes());
        checks.extend(self.check_machines());
        checks.extend(self.check_tunnels());
        checks.extend(self.check_cluster());
        checks.extend(self.check_download(&status));
        checks.extend(self.check_pacing());
        checks.extend(self.check_congestion());
        checks.extend(self.check_images());
        checks.push(self.check_classes(&status));
        checks.push(self.check_maxima());
        checks.extend(self.notes());
        checks
    }

    fn check_configuration(&self, status: &Status) -> Check {
        let advice = "correct the file: it is read again at once; until then the old one holds";
        match &self.config_file.error {
            Some(error) => Check::bad("configuration", Verdict::Fail, error, Some(advice)),
            None => Check::ok("configuration", format!("{} is in force", status.config)),
        }
    }

    fn check_scheduler(&self, status: &Status) -> Check {
        if let Some(fault) = self.scheduler_fault() {
            return Check::bad("scheduler", Verdict::Fail, fault, None);
        }
        let (engine, device) = (&status.engine, &self.link.scheduler.device);
        match &status.framing {
            Some(framing) => {
                let found = format!("{engine} on {device}, packets are charged with {framing}");
                Check::ok("scheduler", found)
            }
            None => Check::ok("scheduler", format!("{engine} on {device}")),
        }
    }

    fn check_host_traffic(&self, status: &Status) -> Check {
        match &self.link.scheduler.uplink_failure {
            Some(failure) => Check::bad("host traffic", Verdict::Warn, failure, None),
            None => Check::ok("host traffic", format!("shared at {}'s egress", status.link)),
        }
    }

    /// Programs and filters of others that may keep packets from weir.
    fn check_programs_of_others(&self) -> impl Iterator<Item = Check> {
        let advice = "harmless if it lets weir's program run for each packet (TCX_NEXT, an action that continues); else attach it behind weir's, or where weir has none";
        let check = move |why| Check::bad("other programs", Verdict::Warn, why, Some(advice));
        describe_ahead(&self.datapath.ahead).into_values().map(check)
    }

    fn check_other_links(&self) -> impl Iterator<Item = Check> {
        self.others.iter().map(|other| {
            let name = format!("link {}", other.device());
            let scheduler = &other.link.scheduler;
            match other.fault() {
                Some(fault) => Check::bad(name, Verdict::Fail, fault, None),
                None if scheduler.is_here() => {
                    Check::ok(name, format!("{} on {}", scheduler.engine.kind(), scheduler.device))
                }
                None => Check::ok(name, "its device is not here now"),
            }
        })
    }

    fn check_runtimes(&self) -> impl Iterator<Item = Check> {
        let advice = "the containers that were known stay; [discover] names the runtimes";
        self.sources.runtimes.states().into_iter().map(move |State { name, told }| match told {
            Err(why) => Check::bad(name, Verdict::Warn, why, Some(advice)),
            Ok(followed) => Check::ok(name, followed),
        })
    }

    /// The sources of classes that no runtime answers for.
    fn check_machines(&self) -> impl Iterator<Item = Check> {
        let sources = [
            (ClassSource::Libvirt, "virtual machine is", "virtual machines are"),
            (ClassSource::Lxc, "container is", "containers are"),
        ];
        sources.into_iter().filter_map(|(source, one, many)| {
            let count = self.classes.entries().values().filter(|e| e.class.source == source).count();
            let are = if count == 1 { one } else { many };
            (count > 0).then(|| Check::ok(source.as_str(), format!("{count} {are} followed")))
        })
    }

    fn check_tunnels(&self) -> Option<Check> {
        let tunnels = self.datapath.attachments.tunnel_devices().join(", ");
        let failed = self.datapath.tunnel_failures.iter().map(|(device, e)| format!("{device}: {e}"));
        let failed: Vec<String> = failed.collect();
        if !failed.is_empty() {
            let advice = "outer packets of such a tunnel are charged to host, beside the inner ones";
            return Some(Check::bad("tunnels", Verdict::Warn, failed.join("; "), Some(advice)));
        }
        let found = format!("packets in {tunnels} are charged once, to their sender's class");
        (!tunnels.is_empty()).then(|| Check::ok("tunnels", found))
    }

    fn check_cluster(&self) -> Option<Check> {
        let (name, followed) = self.sources.cluster.state()?;
        let faults = self.sources.cluster.faults().join("; ");
        if faults.is_empty() {
            return Some(Check::ok(name, followed));
        }
        let advice = "the last known annotations count; the guide of Kubernetes names the rights of the service account";
        Some(Check::bad(name, Verdict::Warn, faults, Some(advice)))
    }

    fn check_download(&self, status: &Status) -> Vec<Check> {
        let Some(download) = &status.download else { return Vec::new() };
        let scheduler = match self.download_fault() {
            Some(fault) => Check::bad("download", Verdict::Fail, fault, None),
            None => Check::ok(
                "download",
                format!("{} by {} on {}", download.capacity, download.engine, download.device),
            ),
        };
        let nat = if download.conntrack {
            Check::ok("download behind NAT", "conntrack tells whose a flow is")
        } else {
            Check::bad(
                "download behind NAT",
                Verdict::Warn,
                "programs cannot ask conntrack (kernel 5.18, nf_conntrack loaded at the agent's start)",
                Some(
                    "flows are known by what leaves; datagrams to a published port without an answer count as the host's",
                ),
            )
        };
        vec![scheduler, nat]
    }

    fn check_pacing(&self) -> Option<Check> {
        let advice = "the scheduler alone holds shares; queues are longer without pacing";
        match &self.datapath.pacing_failure {
            Some(failure) => Some(Check::bad("pacing", Verdict::Warn, failure, Some(advice))),
            None => self
                .datapath
                .pacing
                .is_some()
                .then(|| Check::ok("pacing", "TCP sockets are paced to their class's share")),
        }
    }

    fn check_congestion(&self) -> Option<Check> {
        const NAME: &str = "congestion control";
        let advice = "connections keep the system's algorithm until then; shares hold all the same";
        self.congestion.is_needed().then(|| match self.congestion.failure() {
            Some(failure) => Check::bad(NAME, Verdict::Warn, failure, Some(advice)),
            None => Check::ok(NAME, "connections use what their rules say"),
        })
    }

    fn check_images(&self) -> Option<Check> {
        const NAME: &str = "docker's images";
        let images = self.images.runtime().state()?;
        if let Some(warning) = self.images.runtime().warning() {
            let advice = "`weir image runtime` lists them with the reasons why they stay";
            return Some(Check::bad(NAME, Verdict::Warn, warning, Some(advice)));
        }
        let removes = if images.dry_run { "nothing is removed (dry_run)" } else { "the rest is removed" };
        Some(Check::ok(NAME, format!("{} of {}, {removes}", images.bytes, images.budget)))
    }

    fn check_classes(&self, status: &Status) -> Check {
        let not_enforced = |entry: &ClassEntry| {
            self.not_enforced(entry).map(|(_, why)| format!("{}: {why}", entry.class.name))
        };
        let lost: Vec<String> = self.classes.entries().values().filter_map(not_enforced).collect();
        if lost.is_empty() {
            return Check::ok("classes", format!("all {} are enforced{}", status.classes, self.as_far_as()));
        }
        Check::bad("classes", Verdict::Fail, lost.join("; "), None)
    }

    fn check_maxima(&self) -> Check {
        let over = self.exceeding();
        if over.is_empty() {
            return Check::ok("maxima", format!("no class sends above its maximum{}", self.as_far_as()));
        }
        let advice = "packets reach the link without passing weir: look for other tc programs on the interfaces (`tc filter show dev X ingress`)";
        Check::bad("maxima", Verdict::Fail, over.join("; "), Some(advice))
    }

    /// The bound of what the checks of classes can tell.
    fn as_far_as(&self) -> &'static str {
        if self.datapath.ahead.is_empty() { "" } else { ", of the packets that reach weir's programs" }
    }

    /// The warnings of sources, but for the loss of a runtime, which a check has.
    fn notes(&self) -> impl Iterator<Item = Check> {
        let lost = self.sources.runtimes.lost();
        let all = self.sources.warnings().iter().filter(move |warning| !lost.contains(*warning));
        all.map(|warning| Check::bad("note", Verdict::Warn, warning, None))
    }

    /// The classes measured above their maximum by more than a burst can explain.
    fn exceeding(&self) -> Vec<String> {
        let over = |key: &ClassKey, entry: &ClassEntry| {
            let max = entry.effective.policy.max()?;
            let rate = self.link.allocations.get(key)?.estimator.rate();
            (rate.0 > max.scale(115, 100).0 + BitRate::kbit(500).0)
                .then(|| format!("{} sends {rate}, its maximum is {max}", entry.class.name))
        };
        self.classes.entries().iter().filter_map(|(k, e)| over(k, e)).collect()
    }
}
