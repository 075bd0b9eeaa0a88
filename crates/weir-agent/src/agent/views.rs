//! The agent's answers: status, classes, explanations, its own health.

use weir_api::{
    Check, Class, ClassKind, Error, ErrorCode, Explanation, OnLink, Origin, Sharer, Status, Verdict,
};
use weir_share::{Bound, Policy};
use weir_units::{BitRate, Bytes, TcHandle};

use super::class_key::{ClassKey, ClassSource};
use super::{
    Agent,
    allocate::Followed,
    autorate,
    class_table::{ClassEntry, ClassTable},
    figures::Figures,
    other_link::OtherLink,
    runtimes::State,
    uplink::Uplink,
    work::Work,
};

/// A policy in the syntax of `weir set`.
pub(super) fn policy_text(policy: &Policy) -> String {
    let rate = |rate: Option<BitRate>| rate.map_or("none".to_owned(), |r| r.to_string());
    format!("weight={} min={} max={}", policy.weight(), rate(policy.min()), rate(policy.max()))
}

/// The error if a name disappeared between question and answer.
pub(super) fn gone(name: &str) -> Error {
    let message = format!("no class or group is called {name} any more");
    Error::new(ErrorCode::UnknownName, message)
}

/// The origin of the value `key` of a class.
fn origin_text(origin: Origin, key: &str, entry: &ClassEntry) -> String {
    let (name, agreement) = (&entry.class.name, entry.agreement.as_ref());
    match origin {
        Origin::Default if entry.class.kind == ClassKind::Control && !key.ends_with("weight") => {
            "built in, a part of the link's capacity".to_owned()
        }
        Origin::Default => "built in".to_owned(),
        Origin::Defaults => "[defaults] of the configuration".to_owned(),
        Origin::Label => entry.class.asked_by.get(key).map_or("label of the container", |by| by).to_owned(),
        Origin::Config => "configuration".to_owned(),
        Origin::Set => format!("set by hand (`weir unset {name}` takes it away)"),
        Origin::Agreement => match agreement {
            Some(id) => format!("agreement {id} (`weir agree show {id}`)"),
            None => "agreements are in force: what has none is held to this".to_owned(),
        },
    }
}

/// The values of a class's policy with their origins. `direction` stands before the keys of what arrives.
fn origins(entry: &ClassEntry, direction: &str) -> [String; 3] {
    let [w, m, x] = entry.effective.origins;
    let policy = entry.effective.policy;
    let rate = |rate: Option<BitRate>| rate.map_or("none".to_owned(), |r| r.to_string());
    let min = match &entry.unpromised {
        Some(unpromised) => format!("{}, of which {} are promised", unpromised.min, rate(policy.min())),
        None => rate(policy.min()),
    };
    let line = |key: &str, value: String, origin: Origin| {
        let key = format!("{direction}{key}");
        format!("{key} {value}: {}", origin_text(origin, &key, entry))
    };
    [line("weight", policy.weight().to_string(), w), line("min", min, m), line("max", rate(policy.max()), x)]
}

/// A class's part of a link beside the main one, in words.
fn explain_on(part: &OnLink) -> String {
    let OnLink { link, rate, allocation, policy, .. } = part;
    let what = match part.activity {
        weir_api::Activity::Active => format!("sends {rate} there now and may send {allocation}"),
        _ => "sends nothing there now".to_owned(),
    };
    let rate = |rate: Option<BitRate>| rate.map_or("none".to_owned(), |rate| rate.to_string());
    let (min, max) = (rate(policy.min), rate(policy.max));
    let why =
        part.not_enforced_because.as_ref().map_or(String::new(), |why| format!("; not enforced: {why}"));
    format!("link {link}: {what} (weight {}, min {min}, max {max}){why}", policy.weight)
}

impl Agent {
    pub(super) fn status(&self) -> Status {
        let link = &self.classes.config().link;
        let work: Work = self.all_links().map(Uplink::work).chain([self.ended]).sum();
        let reservation = self.classes.reservation();
        let present = || {
            self.classes.entries().values().filter(|e| e.minor.is_some() && e.class.kind != ClassKind::Group)
        };
        let is_active = |f: &&Followed| f.estimator.demand().is_active();
        let mut warnings = self.sources.warnings().to_vec();
        warnings.extend(self.datapath.unswept.clone());
        warnings.extend(self.scheduler_fault().iter().map(|e| format!("the scheduler: {e}")));
        warnings.extend(
            self.link
                .scheduler
                .uplink_failure
                .iter()
                .map(|e| format!("the host's own traffic is not shared: {e}")),
        );
        if self.link.scheduler.engine.kind() == weir_datapath::engine::EngineKind::CreditExperiment {
            warnings.push(
                "engine credit-experiment drops instead of queueing: TCP loses a third of a LAN's link and \
                 more; it is there to be measured"
                    .to_owned(),
            );
        }
        if self.link.scheduler.engine.kind() == weir_datapath::engine::EngineKind::PaperCredit {
            warnings.push(
                "form = \"paper\" loses the credit that the last classes leave; it is there to be measured"
                    .to_owned(),
            );
        }
        warnings.extend(self.datapath.pacing_failure.iter().map(|e| format!("sockets are not paced: {e}")));
        warnings.extend(self.datapath.super_packets_failure.clone());
        warnings.extend(self.datapath.rules_failure.iter().map(|e| format!("selectors select nothing: {e}")));
        let twice = |(device, e): (&String, &String)| {
            format!("outer packets of tunnel {device} are charged to host, beside the inner ones: {e}")
        };
        warnings.extend(self.datapath.tunnel_failures.iter().map(twice));
        warnings.extend(self.congestion.failure().map(str::to_owned));
        warnings.extend(self.datapath.failures.values().cloned());
        warnings.extend(self.promises.error().cloned());
        warnings.extend(self.sources.cni.failure().cloned());
        warnings.extend(self.sources.cluster.faults());
        warnings.extend(self.unpromised());
        warnings.extend(self.download_warnings());
        warnings.extend(self.clock.doubt());
        warnings.extend(self.store.failure());
        warnings.extend(self.audit.warning());
        warnings.extend(self.images.failure());
        warnings.extend(self.images.runtime().warning());
        warnings.extend(self.api.port.failure());
        warnings.extend(self.excess());
        warnings.extend(self.others.iter().flat_map(OtherLink::warnings));
        warnings.extend(self.unshared.values().cloned());
        warnings.extend(self.link.unfollowed());
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            link: link.device.clone(),
            other_links: self.other_links(),
            capacity: self.in_force(),
            configured_capacity: self.capacities.replaced(&link.device).0,
            follows: self.follows(),
            rate: BitRate(self.link.allocations.all().map(|f| f.estimator.rate().0).sum()),
            framing: link.line().map(|line| line.to_string()),
            exempt: self.link.exempt(),
            download: self.download_status(),
            reserved: reservation.reserved,
            reservable: reservation.reservable,
            engine: self.link.scheduler.engine.kind().name().to_owned(),
            allocator: self.classes.config().allocator().to_string(),
            attach: self.datapath.attachments.how().name().to_owned(),
            pacing: self.datapath.pacing.is_some(),
            classes: present().count(),
            active: self.link.allocations.all().filter(is_active).count(),
            class_changes: work.writes,
            repairs: self.datapath.repairs + self.congestion.repairs() + work.repairs,
            max_tick_delay_us: u64::try_from(self.max_tick_delay.as_micros()).unwrap_or(u64::MAX),
            late: self.link.scheduler.lateness.map(|late| late.times),
            late_us: self
                .link
                .scheduler
                .lateness
                .map(|late| u64::try_from(late.lost.as_micros()).unwrap_or(u64::MAX)),
            config: self.config_file.path.display().to_string(),
            config_error: self.config_file.error.clone(),
            config_taken_ms: self.config_file.taken_ms,
            not_ready: self.not_ready(),
            warnings,
            notices: self.store.notices(),
            failed_authentications: self.api.port.failed_authentications(),
        }
    }

    pub(super) fn classes(&self) -> Vec<Class> {
        self.classes.entries().keys().map(|key| self.class(key)).collect()
    }

    pub(super) fn class(&self, key: &ClassKey) -> Class {
        let entry = &self.classes.entries()[key];
        let figures = Figures::of(&self.classes, &self.link.allocations, entry);
        let local = match entry.minor {
            // A class without ports has none but what goes to exempt networks.
            Some(minor) if !entry.class.ports.is_empty() || self.has_exempt() => {
                self.datapath.attachments.local_bytes(super::datapath::handle(minor)).unwrap_or(0)
            }
            _ => 0,
        };
        let moved = match entry.minor {
            Some(minor) if !self.others.is_empty() => {
                self.datapath.attachments.moved_packets(super::datapath::handle(minor)).unwrap_or(0)
            }
            _ => 0,
        };
        let (not_enforced, problem) = self.not_enforced(entry).unzip();
        Class {
            name: entry.class.name.clone(),
            source: entry.class.source.to_string(),
            kind: entry.class.kind,
            group: entry.class.group.clone(),
            handle: entry.minor.map(|minor| TcHandle::new(weir_datapath::engine::MAJOR, minor).to_string()),
            interfaces: entry.class.ports.iter().map(|p| p.1.clone()).collect(),
            selects: entry.class.selectors.iter().map(ToString::to_string).collect(),
            activity: figures.activity,
            policy: figures.policy,
            allocation: figures.allocation,
            rate: figures.rate,
            demand: figures.demand,
            bytes: figures.bytes,
            packets: figures.packets,
            drops: figures.drops,
            backlog: figures.backlog,
            backlog_packets: figures.backlog_packets,
            backpressured_ms: figures.backpressured_ms,
            local_bytes: Bytes(local),
            enforced: problem.is_none(),
            not_enforced,
            not_enforced_because: problem,
            unpromised: figures.unpromised,
            agreement: entry.agreement.as_ref().map(ToString::to_string),
            down: self.down(key),
            on_links: self.on_links(key),
            moved_packets: moved,
        }
    }

    pub(super) fn explain(&self, key: &ClassKey) -> Explanation {
        let entry = &self.classes.entries()[key];
        let class = self.class(key);
        let capacity = self.in_force();
        let name = &entry.class.name;
        let mut reasons = Vec::new();
        if let Some(why) = &class.not_enforced_because {
            reasons.push(format!("not enforced: {why}"));
        }
        if entry.minor.is_none() {
            let kept = entry.effective.policy.min().map_or("", |_| ", and its minimum is kept free");
            reasons.push(format!("{name} is not here now; its policy waits for it{kept}"));
        }
        reasons.extend(self.follows().map(|follows| {
            format!(
                "the link's capacity follows its rate between {} and {}: {}",
                follows.min,
                follows.max,
                autorate::in_words(&follows)
            )
        }));
        if let Some(configured) = self.capacities.replaced(&self.classes.config().link.device).0 {
            reasons.push(format!(
                "the link's {capacity} are set by hand; {configured} are configured (`weir link reset`)"
            ));
        }
        reasons.extend(
            self.classes
                .config()
                .link
                .line()
                .map(|line| format!("rates count what the line carries: each packet is charged with {line}")),
        );
        reasons.extend(entry.class.cut.iter().cloned());
        if !class.selects.is_empty() {
            reasons.push(format!(
                "its packets are those that match {}, from any sender: they do not count as the sender's own",
                class.selects.join(", or ")
            ));
        }
        let siblings: Vec<(&ClassKey, &ClassEntry)> = self
            .classes
            .entries()
            .iter()
            .filter(|(_, e)| e.minor.is_some() && e.class.group == entry.class.group)
            .collect();
        let active = |key: &ClassKey| self.class(key).activity == weir_api::Activity::Active;
        let (whole, of) = match &entry.class.group {
            Some(group) => {
                let whole = self
                    .link
                    .allocations
                    .get(&ClassKey::group(group))
                    .map_or(BitRate::ZERO, |f| f.allocation);
                (whole, format!("group {group}'s {whole}"))
            }
            None => (capacity, format!("the link's {capacity}")),
        };
        if let (Some(followed), true) = (self.link.allocations.get(key), entry.minor.is_some()) {
            let weights: u64 = siblings
                .iter()
                .filter(|(k, _)| active(k) || *k == key)
                .map(|(_, e)| u64::from(e.effective.policy.weight().get()))
                .sum();
            let weight = u64::from(entry.effective.policy.weight().get());
            let fair = whole.scale(weight, weights.max(1));
            let others = siblings.iter().filter(|(k, _)| active(k) && *k != key).count();
            let with = if others == 1 {
                "1 other active class".to_owned()
            } else {
                format!("{others} other active classes")
            };
            reasons.push(format!(
                "shares {of} with {with}; by weight alone, {weight} of {weights}, that is {fair}"
            ));
            reasons.push(match followed.bound {
                Bound::Idle => "sends nothing now, so it gets nothing; with traffic it has its minimum at \
                    once and its share within half a second"
                    .to_owned(),
                Bound::Demand => format!(
                    "gets all it asks for, {}; what it leaves goes to the others by weight",
                    followed.allocation
                ),
                Bound::Floor => format!(
                    "its minimum lifts it to {}; the difference comes from the others by weight",
                    followed.allocation
                ),
                Bound::Ceiling => format!(
                    "its maximum holds it at {}; the surplus goes to the others by weight",
                    followed.allocation
                ),
                Bound::Weight => format!(
                    "gets {} by weight, after minima, maxima and what others leave",
                    followed.allocation
                ),
            });
            let policy = entry.effective.policy;
            if let Some(min) = policy.min() {
                reasons.push(format!("its minimum of {min} is promised and kept even if the agent dies"));
            }
            reasons.push(format!(
                "sends {} now, {} wait; held back for {:.1} s so far",
                class.rate,
                class.backlog,
                class.backpressured_ms as f64 / 1000.0
            ));
            if class.drops > 0 {
                let why =
                    if self.link.scheduler.only_paces() { "it had no credit" } else { "its queue was full" };
                reasons.push(format!("{} packets were dropped because {why}", class.drops));
            }
        }
        reasons.extend(self.explain_download(key));
        reasons.extend(class.on_links.iter().map(explain_on));
        if class.moved_packets > 0 {
            reasons.push(format!(
                "{} packets left by another link than their route said, and were charged to both",
                class.moved_packets
            ));
        }
        let sharers = siblings
            .iter()
            .filter(|(k, _)| active(k))
            .filter_map(|(k, e)| {
                self.link.allocations.get(k).map(|f| Sharer {
                    name: e.class.name.clone(),
                    weight: e.effective.policy.weight(),
                    allocation: f.allocation,
                    bound: f.bound.to_string(),
                })
            })
            .collect();
        let down = self.link.download.as_ref().and_then(|download| download.classes.entries().get(key));
        let down = down.into_iter().flat_map(|entry| origins(entry, "down."));
        let origins = origins(entry, "").into_iter().chain(down).collect();
        Explanation { class, reasons, sharers, origins }
    }

    /// The agent's own checks: whether the kernel holds the configured state.
    pub(super) fn doctor(&self) -> Vec<Check> {
        let status = self.status();
        let check = |name: &str, bad: Option<String>, good: String, verdict, advice: Option<&str>| Check {
            name: name.to_owned(),
            verdict: if bad.is_some() { verdict } else { Verdict::Ok },
            advice: bad.as_ref().and(advice.map(str::to_owned)),
            found: bad.unwrap_or(good),
        };
        let mut checks = vec![check(
            "agent",
            None,
            format!("runs since {} s, pid {}", status.uptime_s, status.pid),
            Verdict::Ok,
            None,
        )];
        checks.push(check(
            "configuration",
            self.config_file.error.clone(),
            format!("{} is in force", status.config),
            Verdict::Fail,
            Some("correct the file: it is read again at once; until then the old one holds"),
        ));
        checks.push(check(
            "scheduler",
            self.scheduler_fault().cloned(),
            match &status.framing {
                Some(framing) => {
                    let device = &self.link.scheduler.device;
                    format!("{} on {device}, packets are charged with {framing}", status.engine)
                }
                None => format!("{} on {}", status.engine, self.link.scheduler.device),
            },
            Verdict::Fail,
            None,
        ));
        checks.push(check(
            "host traffic",
            self.link.scheduler.uplink_failure.clone(),
            format!("shared at {}'s egress", status.link),
            Verdict::Warn,
            None,
        ));
        for other in &self.others {
            let scheduler = &other.link.scheduler;
            let good = match scheduler.is_here() {
                true => format!("{} on {}", scheduler.engine.kind(), scheduler.device),
                false => "its device is not here now".to_owned(),
            };
            let name = format!("link {}", other.device());
            checks.push(check(&name, other.fault(), good, Verdict::Fail, None));
        }
        let runtimes = self.sources.runtimes.states();
        for State { name, containers, error } in &runtimes {
            checks.push(check(
                name,
                error.clone(),
                format!(
                    "{containers} {} followed",
                    if *containers == 1 { "container is" } else { "containers are" }
                ),
                Verdict::Warn,
                Some("the containers that were known stay; [discover] names the runtimes"),
            ));
        }
        let count = |source| self.classes.entries().values().filter(|e| e.class.source == source).count();
        for (source, one, many) in [
            (ClassSource::Libvirt, "virtual machine is", "virtual machines are"),
            (ClassSource::Lxc, "container is", "containers are"),
        ] {
            let count = count(source);
            if count > 0 {
                let followed = format!("{count} {} followed", if count == 1 { one } else { many });
                checks.push(check(source.as_str(), None, followed, Verdict::Warn, None));
            }
        }
        let tunnels = self.datapath.attachments.tunnel_devices().join(", ");
        if !tunnels.is_empty() || !self.datapath.tunnel_failures.is_empty() {
            let failed = self.datapath.tunnel_failures.iter().map(|(device, e)| format!("{device}: {e}"));
            let failed: Vec<String> = failed.collect();
            checks.push(check(
                "tunnels",
                (!failed.is_empty()).then(|| failed.join("; ")),
                format!("packets in {tunnels} are charged once, to their sender's class"),
                Verdict::Warn,
                Some("outer packets of such a tunnel are charged to host, beside the inner ones"),
            ));
        }
        if let Some((name, followed)) = self.sources.cluster.state() {
            let faults = self.sources.cluster.faults().join("; ");
            checks.push(check(
                &name,
                (!faults.is_empty()).then_some(faults),
                followed,
                Verdict::Warn,
                Some("the last known annotations count; the guide of Kubernetes names the rights of the service account"),
            ));
        }
        if let Some(download) = &status.download {
            checks.push(check(
                "download",
                self.download_fault(),
                format!("{} by {} on {}", download.capacity, download.engine, download.device),
                Verdict::Fail,
                None,
            ));
            let unknown =
                "programs cannot ask conntrack (kernel 5.18, nf_conntrack loaded at the agent's start)";
            checks.push(check(
                "download behind NAT",
                (!download.conntrack).then(|| unknown.to_owned()),
                "conntrack tells whose a flow is".to_owned(),
                Verdict::Warn,
                Some("flows are known by what leaves; datagrams to a published port without an answer count as the host's"),
            ));
        }
        if self.datapath.pacing.is_some() || self.datapath.pacing_failure.is_some() {
            checks.push(check(
                "pacing",
                self.datapath.pacing_failure.clone(),
                "TCP sockets are paced to their class's share".to_owned(),
                Verdict::Warn,
                Some("the scheduler alone holds shares; queues are longer without pacing"),
            ));
        }
        if self.congestion.is_needed() {
            checks.push(check(
                "congestion control",
                self.congestion.failure().map(str::to_owned),
                "connections use what their rules say".to_owned(),
                Verdict::Warn,
                Some("connections keep the system's algorithm until then; shares hold all the same"),
            ));
        }
        if let Some(images) = self.images.runtime().state() {
            let removes = if images.dry_run { "nothing is removed (dry_run)" } else { "the rest is removed" };
            checks.push(check(
                "docker's images",
                self.images.runtime().warning(),
                format!("{} of {}, {removes}", images.bytes, images.budget),
                Verdict::Warn,
                Some("`weir image runtime` lists them with the reasons why they stay"),
            ));
        }
        let lost: Vec<String> = self
            .classes()
            .into_iter()
            .filter_map(|c| c.not_enforced_because.map(|why| format!("{}: {why}", c.name)))
            .collect();
        let lost = (!lost.is_empty()).then(|| lost.join("; "));
        checks.push(check(
            "classes",
            lost,
            format!("all {} are enforced", status.classes),
            Verdict::Fail,
            None,
        ));
        let over: Vec<String> = self.exceeding();
        let over = (!over.is_empty()).then(|| over.join("; "));
        checks.push(check(
            "maxima",
            over,
            "no class sends above its maximum".to_owned(),
            Verdict::Fail,
            Some("packets reach the link without passing weir: look for other tc programs on the interfaces (`tc filter show dev X ingress`)"),
        ));
        // A check above has the loss of a runtime.
        let lost = self.sources.runtimes.lost();
        for warning in self.sources.warnings().iter().filter(|warning| !lost.contains(*warning)) {
            checks.push(Check {
                name: "note".to_owned(),
                verdict: Verdict::Warn,
                found: warning.clone(),
                advice: None,
            });
        }
        checks
    }

    /// The classes whose minimum is not promised; the first are named.
    fn unpromised(&self) -> Vec<String> {
        unpromised(&self.classes)
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

/// The classes of a table whose minimum is not promised; the first are named.
pub(super) fn unpromised(table: &ClassTable) -> Vec<String> {
    const SHOWN: usize = 8;
    let all = table.unpromised_minima();
    let more = all.len().saturating_sub(SHOWN);
    let rest = (more > 0).then(|| format!("{more} more minima are not promised (`weir ps` lists all)"));
    all.into_iter().take(SHOWN).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn origin_of_the_control_class_is_the_capacity_and_no_section() {
        let text = "[link]\ndevice = \"eth0\"\ncapacity = \"50mbit\"\n";
        let config = crate::config::parse(text, Path::new("test.toml")).unwrap();
        let (set, minors, ledger) = Default::default();
        let table = ClassTable::new(config, set, minors, ledger, BitRate::ZERO);
        let told = |name: &str, key, value: usize| {
            let entry = &table.entries()[name];
            origin_text(entry.effective.origins[value], key, entry)
        };
        assert_eq!(told("weir:control", "weight", 0), "built in");
        assert_eq!(told("weir:control", "min", 1), "built in, a part of the link's capacity");
        assert_eq!(told("weir:control", "max", 2), "built in, a part of the link's capacity");
        assert_eq!(told("weir:host", "max", 2), "built in");
    }
}
