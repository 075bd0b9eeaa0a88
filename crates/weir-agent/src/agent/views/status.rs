//! The state of the agent and its links in all.

use weir_api::{ClassKind, Status};
use weir_datapath::engine::describe_ahead;
use weir_units::BitRate;

use super::unpromised;
use crate::agent::{Agent, allocate::Followed, other_link::OtherLink, uplink::Uplink, work::Work};

impl Agent {
    pub(in crate::agent) fn status(&self) -> Status {
        let link = &self.classes.config().link;
        let work: Work = self.all_links().map(Uplink::work).chain([self.ended]).sum();
        let reservation = self.classes.reservation();
        let present = || {
            self.classes.entries().values().filter(|e| e.minor.is_some() && e.class.kind != ClassKind::Group)
        };
        let is_active = |f: &&Followed| f.estimator.demand().is_active();
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
            warnings: self.warnings(),
            notices: self.store.notices(),
            failed_authentications: self.api.port.failed_authentications(),
        }
    }

    /// The faults that limit what is configured, in sentences.
    fn warnings(&self) -> Vec<String> {
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
        warnings.extend(describe_ahead(&self.datapath.ahead).into_values());
        warnings.extend(self.link.scheduler.engine.kind().warning().map(str::to_owned));
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
        warnings.extend(unpromised(&self.classes));
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
        warnings
    }
}
