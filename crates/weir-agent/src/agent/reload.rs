//! Applies a changed configuration without a restart.

use std::path::Path;

use weir_api::EventKind;
use weir_cc::Rules;
use weir_datapath::engine;
use weir_share::Allocator;
use weir_units::chain;

use super::{
    Agent, advice, check, cluster, cluster::Cluster, congestion, download::Download, effects::Effects,
    restart, runtimes::images_wanted, selector_rules,
};
use crate::{
    config::{self, Config, Rights},
    server,
};

/// The parts of an accepted configuration in the form that a reload needs.
pub(super) struct Accepted {
    rights: Rights,
    congestion: Rules,
}

/// An accepted configuration, and the parts that are made from it.
struct Prepared {
    /// The configuration without capacities that are set by hand.
    file: Config,
    config: Config,
    accepted: Accepted,
    /// `None` if the cluster stays.
    cluster: Option<Cluster>,
}

impl Agent {
    /// Whether a running agent can follow a configuration. Nothing is changed.
    ///
    /// # Errors
    /// The change needs a restart, or this node cannot use a part of it.
    pub(super) fn accept(&self, path: &Path, config: &Config) -> Result<Accepted, String> {
        let (old, new) = (&self.classes.config().link, &config.link);
        let images = config.images.clone().filter(weir_image::Settings::is_agents);
        if let Some(why) = restart::reason(self.classes.config(), config, self.images.can_be(images.as_ref()))
        {
            return Err(why);
        }
        if new.is_one_of_several() != old.is_one_of_several() && self.capacities.are_by_hand() {
            return Err(
                "capacities are set by hand, and the file changes between a single [link] and several (`weir link reset` takes them back)"
                    .to_owned(),
            );
        }
        if config.link.download.is_some() {
            engine::Download::goes_with(self.link.scheduler.engine.kind())
                .map_err(|e| format!("cannot share [link] download: {}", chain(&e)))?;
        }
        let kind = self.link.scheduler.engine.kind();
        if config.link.is_one_of_several() {
            kind.shares_several().map_err(|e| format!("cannot share several links: {}", chain(&e)))?;
        }
        for link in config.link.all() {
            if link.follows.is_some() {
                engine::LinkSignals::goes_with(kind)
                    .map_err(|e| format!("cannot follow the rate of [link]: {}", chain(&e)))?;
            }
            if link.line().is_some() {
                let refused =
                    |e: engine::EngineError| format!("cannot charge the framing of [link]: {}", chain(&e));
                kind.frames().map_err(refused)?;
                let found = weir_netlink::Netlink::open().and_then(|mut netlink| netlink.link(&link.device));
                // A device that is gone may come back.
                found.ok().map_or(Ok(()), |found| kind.frames_on(&found)).map_err(refused)?;
            }
        }
        let unusable = |why| chain(&check::unusable(path, why));
        congestion::checked(&config.congestion).map_err(unusable)?;
        advice::checked(config).map_err(unusable)?;
        selector_rules::fit(config).map_err(unusable)?;
        let rights = config.access.rights().map_err(unusable)?;
        let congestion = congestion::together(&config.congestion, self.congestion.set.in_force())
            .map_err(|why| format!("with the rules that were set at run time (`weir cc unset`): {why}"))?;
        cluster::endpoint(config).map_err(unusable)?;
        Ok(Accepted { rights, congestion })
    }

    /// Applies the new configuration to the download, or ends it.
    fn reload_download(&mut self) {
        let effects = match (self.classes.config().download(), &mut self.link.download) {
            (Some(config), Some(download)) => {
                download.reconfigure(config);
                Effects::default()
            }
            (None, Some(_)) => {
                match self.link.end_download(&mut self.datapath.attachments) {
                    Ok(()) => Effects::default(),
                    // It goes on as before, and a later reload or the agent's end removes it.
                    Err(e) => self
                        .link
                        .scheduler
                        .fault(format!("cannot end the sharing of the download: {}", chain(&e))),
                }
            }
            _ => Effects::default(),
        };
        self.follow_up(effects);
        self.keep_download_promises();
    }

    /// Reads the configuration again. A fault is reported, and the old configuration stays.
    pub(super) fn reload(&mut self) {
        let path = self.config_file.read_again();
        let file = config::load_again(&path).map_err(|e| chain(&e));
        let prepared = file.and_then(|file| self.prepare(&path, file));
        match prepared.and_then(|prepared| self.begin(prepared)) {
            Ok(prepared) => {
                let has_other_runtimes = self.commit(prepared);
                self.follow_reload(&path, has_other_runtimes);
            }
            Err(why) => self.refuse(&path, why),
        }
    }

    /// Makes the parts of a new configuration. A refused file gives no one a right and changes no class.
    fn prepare(&self, path: &Path, file: Config) -> Result<Prepared, String> {
        // The shared link stays until the discovery after the reload.
        let file = file.sharing(&self.classes.config().link.device).unwrap_or(file);
        let accepted = self.accept(path, &file)?;
        let config = self.capacities.in_force(file.clone());
        let has_other_cluster = self.classes.config().kubernetes != config.kubernetes;
        let cluster = has_other_cluster.then(|| Cluster::open(&config)).transpose()?;
        Ok(Prepared { file, config, accepted, cluster })
    }

    /// Changes what may fail: the download's scheduler, the rights of the socket, and the images. After an error
    /// [`refuse`](Agent::refuse) ends a download that has begun.
    fn begin(&mut self, prepared: Prepared) -> Result<Prepared, String> {
        let config = &prepared.config;
        if let (Some(_), None) = (config.download(), &self.link.download) {
            // It begins empty, and the discovery after the reload fills it.
            let scheduler = &self.link.scheduler;
            let of = (scheduler.number, scheduler.engine.kind());
            let attachments = &self.datapath.attachments;
            let promised = self.promised_of_download();
            self.link.download = Download::open(config, of, &self.store, promised, attachments)
                .map_err(|e| format!("cannot share [link] download: {}", chain(&e)))?;
        }
        server::admit(&config.agent.socket, &prepared.accepted.rights).map_err(|e| {
            let socket = config.agent.socket.display();
            format!("cannot let the users of [access] reach the socket {socket}: {e}")
        })?;
        if let Err(e) = self.images.hold_runtime(images_wanted(config)) {
            // The rights in force stay, and so does the mode of the socket.
            if let Ok(before) = self.classes.config().access.rights() {
                let _ = server::admit(&config.agent.socket, &before);
            }
            return Err(format!("{e:#}"));
        }
        if let Some(images) = config.images.clone().filter(weir_image::Settings::is_agents) {
            // `accept` has asked whether they can be in force.
            self.images.reconfigure(images)?;
        }
        Ok(prepared)
    }

    /// Puts the configuration in force. Returns whether it names other runtimes.
    fn commit(&mut self, prepared: Prepared) -> bool {
        let Prepared { file, config, accepted: Accepted { rights, congestion }, cluster } = prepared;
        let advice = config.advice.clone();
        self.api.reconfigure(&config, rights);
        self.capacities.reconfigure(&file);
        let has_other_runtimes = !self.classes.config().discover.has_runtimes_of(&config.discover);
        if let Some(cluster) = cluster {
            self.sources.cluster = cluster;
        }
        let rules = config.agreements.clone();
        self.classes.reconfigure(config);
        if let (Some(agreements), Some(rules)) = (&mut self.agreements, rules) {
            agreements.reconfigure(rules, &self.classes.config().link);
        }
        self.congestion.set_rules(congestion);
        self.congestion.advisor.set(advice);
        has_other_runtimes
    }

    /// Has the schedulers and the sources follow the configuration that is now in force.
    fn follow_reload(&mut self, path: &Path, has_other_runtimes: bool) {
        self.reload_download();
        self.follow_rates();
        if let Err(why) = self.share_others(self.link.scheduler.engine.kind(), &self.numbers()) {
            let effects = self.link.scheduler.fault(why);
            self.follow_up(effects);
        }
        if has_other_runtimes {
            self.sources.runtimes.reopen(&self.classes.config().discover);
        }
        let link = self.classes.config().link.clone();
        if let Some(process) = self.link.scheduler.engine.process() {
            process.set_realtime(link.priority);
        }
        self.link.allocations.set_allocator(Allocator::new(self.classes.config().allocator()));
        if let Err(e) = self.datapath.attachments.configure(|c| c.charge_local = u32::from(link.charge_local))
        {
            let effects = self.link.scheduler.fault(chain(&e));
            self.follow_up(effects);
        }
        self.config_file.taken();
        self.audit.mark_reload();
        let by_hand = if self.capacities.are_by_hand() {
            "; capacities set by hand stay (`weir link reset`)"
        } else {
            ""
        };
        self.event(EventKind::Reloaded, None, format!("{} is in force{by_hand}", path.display()));
        self.keep_promises();
        self.follow_up(Effects::reallocate(true).and(Effects::rediscover(true)));
    }

    fn refuse(&mut self, path: &Path, why: String) {
        tracing::warn!("{} is refused, the old one stays in force: {why}", path.display());
        // An event is one line, and the parser's message has several.
        let line = why.split_whitespace().collect::<Vec<_>>().join(" ");
        self.event(EventKind::ConfigRefused, None, line);
        self.config_file.error = Some(why);
        // The old configuration may share no download.
        self.reload_download();
    }
}
