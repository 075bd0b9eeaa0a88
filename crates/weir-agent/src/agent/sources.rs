//! The sources of classes: who tells of containers, when the node's classes must be discovered again, and the
//! warnings of the last discovery.

use std::collections::{BTreeMap, BTreeSet};

use weir_netlink::Netlink;
use weir_units::Instant;

use super::{
    cluster::Cluster,
    cni::CniContainers,
    discover::{self, DiscoverError, Discovery, Reports},
    port_owners::PortOwners,
    processes::Watch,
    runtimes::Runtimes,
    unclaimed::Unclaimed,
};
use crate::config::Config;

/// All sources.
pub(super) struct Sources {
    pub(super) runtimes: Runtimes,
    /// The containers that the CNI plugin reported.
    pub(super) cni: CniContainers,
    /// The cluster of the node, if the configuration has it followed.
    pub(super) cluster: Cluster,
    /// The cgroups of classes, and the files of virtual machines.
    watch: Watch,
    unclaimed: Unclaimed,
    port_owners: PortOwners,
    /// The interfaces that no source knew at the last discovery, by index.
    strangers: BTreeSet<u32>,
    /// The node's classes must be discovered again.
    is_due: bool,
    discovered_at: Instant,
    /// Warnings of the last discovery.
    warnings: Vec<String>,
}

/// A discovery, and whether each source has answered.
pub(super) struct Discovered {
    pub(super) discovery: Discovery,
    pub(super) is_complete: bool,
}

impl Sources {
    /// The sources before the first discovery, which is due.
    pub(super) fn new(runtimes: Runtimes, cni: CniContainers, cluster: Cluster) -> Sources {
        Sources {
            runtimes,
            cni,
            cluster,
            watch: Watch::default(),
            unclaimed: Unclaimed::default(),
            port_owners: PortOwners::default(),
            strangers: BTreeSet::new(),
            is_due: true,
            discovered_at: Instant::default(),
            warnings: Vec::new(),
        }
    }

    /// Waits for the first lists of the runtimes and of the cluster.
    pub(super) async fn first_list(&mut self) {
        tokio::join!(self.runtimes.first_list(), self.cluster.first_list());
    }

    /// Waits for a source to report a change.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = self.runtimes.changed() => {}
            () = self.cluster.changed() => {}
            () = self.watch.changed() => {}
        }
        self.is_due = true;
    }

    /// Marks that the node's classes must be discovered again.
    pub(super) fn mark(&mut self) {
        self.is_due = true;
    }

    /// Whether a discovery is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_due || self.unclaimed.is_due(self.discovered_at, now) || self.port_owners.is_due(now)
    }

    /// Surveys the node. After a failure the next turn does it again. `uplinks` has the links' last known indices.
    ///
    /// # Errors
    /// [`DiscoverError`].
    pub(super) fn discover(
        &mut self,
        netlink: &mut Netlink,
        config: &Config,
        uplinks: &BTreeMap<String, u32>,
        now: Instant,
    ) -> Result<Discovered, DiscoverError> {
        self.is_due = true;
        self.cluster.take_note();
        self.runtimes.take_note();
        let mut unclaimed = std::mem::take(&mut self.unclaimed);
        let mut port_owners = std::mem::take(&mut self.port_owners);
        let found = self.survey(netlink, config, uplinks, (&mut unclaimed, &mut port_owners), now);
        (self.unclaimed, self.port_owners) = (unclaimed, port_owners);
        let mut found = found?;
        self.discovered_at = now;
        let strangers: BTreeSet<u32> = found.discovery.strangers.iter().map(|port| port.0).collect();
        if !strangers.is_subset(&self.strangers) {
            self.runtimes.look();
        }
        self.strangers = strangers;
        self.is_due = self.cni.follow(&found.discovery.fates);
        self.is_due |= self.watch.follow(std::mem::take(&mut found.discovery.awaited));
        Ok(found)
    }

    /// A discovery under another configuration, which changes nothing.
    ///
    /// # Errors
    /// As of [`Sources::discover`].
    pub(super) fn plan(
        &mut self,
        netlink: &mut Netlink,
        config: &Config,
        uplinks: &BTreeMap<String, u32>,
        now: Instant,
    ) -> Result<Discovered, DiscoverError> {
        // The namespaces that wait for an owner go on waiting.
        let (mut unclaimed, mut port_owners) = (self.unclaimed.clone(), self.port_owners.clone());
        self.survey(netlink, config, uplinks, (&mut unclaimed, &mut port_owners), now)
    }

    fn survey(
        &mut self,
        netlink: &mut Netlink,
        config: &Config,
        uplinks: &BTreeMap<String, u32>,
        (unclaimed, port_owners): (&mut Unclaimed, &mut PortOwners),
        now: Instant,
    ) -> Result<Discovered, DiscoverError> {
        let told = self.runtimes.told(&config.discover);
        let is_complete = told.is_complete && self.cluster.is_complete();
        let attached = self.cluster.attached(&self.cni, config);
        let reports = Reports { attached: &attached, told: &told, unclaimed, port_owners, now };
        let discovery = discover::discover(netlink, config, reports, uplinks)?;
        Ok(Discovered { discovery, is_complete })
    }

    /// The warnings of the last discovery.
    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Keeps the failure of a discovery until one succeeds.
    pub(super) fn warn(&mut self, failure: String) {
        if !self.warnings.contains(&failure) {
            self.warnings.push(failure);
        }
    }

    /// Keeps the warnings of a discovery.
    pub(super) fn set_warnings(&mut self, warnings: Vec<String>) {
        self.warnings = warnings;
        self.warnings.extend(self.watch.failure().map(str::to_owned));
    }
}
