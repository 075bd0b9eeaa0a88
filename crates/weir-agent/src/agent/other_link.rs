//! A link beside the main one. It has the same classes, and divides its own capacities between them.

use weir_api::EventKind;
use weir_datapath::engine::{Attachments, EngineError, EngineKind};
use weir_share::Allocator;
use weir_units::{BitRate, Instant};

use super::{
    allocate::Allocations,
    class_table::{Agreed, Change, ClassTable},
    discover::Discovery,
    download::{Download, OpenError, told},
    effects::Effects,
    promises::Promises,
    scheduler::Scheduler,
    store::Store,
    uplink::{Followed, Uplink},
    work::Work,
};
use crate::config::Config;

/// A link that the default route does not take.
pub(super) struct OtherLink {
    /// The classes with the promises of this link. Agreements promise nothing here.
    pub(super) classes: ClassTable,
    pub(super) link: Uplink,
}

/// The configuration without agreements. They are about the main link.
fn without_agreements(config: Config) -> Config {
    Config { agreements: None, ..config }
}

/// An agreement as another link sees it: its class, with its maximum and without a promise.
fn unpromised(agreed: &Agreed) -> Agreed {
    Agreed { min: BitRate::ZERO, suspended: None, ..agreed.clone() }
}

impl OtherLink {
    /// Sets up the schedulers of the link of a configuration, or takes over those of an earlier agent. No packet
    /// is sent to them yet. `main` has the classes.
    pub(super) fn open(
        config: Config,
        (number, kind): (u32, EngineKind),
        main: &ClassTable,
        store: &Store,
        attachments: &mut Attachments,
    ) -> Result<OtherLink, OpenError> {
        let config = without_agreements(config);
        let mut scheduler = Scheduler::open(&config, number, kind, attachments)?;
        let download = Download::open(&config, (number, kind), store, BitRate::ZERO, attachments);
        let mut download = match download {
            Ok(download) => download,
            Err(e) => {
                attachments.set_scheduler(number, 0)?;
                scheduler.engine.remove()?;
                return Err(e);
            }
        };
        if let Some(download) = &mut download {
            // The stored promises are those of the main link.
            download.promises = Promises::unstored();
        }
        let allocations = Allocations::new(Allocator::new(config.allocator()));
        // Earlier promises of the main link come first here too.
        let (set, ledger) = (main.set_layers().clone(), main.ledger().clone());
        let classes = ClassTable::new(config, set, main.minors().clone(), ledger, BitRate::ZERO);
        let link = Uplink {
            scheduler,
            allocations,
            programs: None,
            autorate: None,
            download,
            exempt: Default::default(),
            ended: Work::default(),
        };
        Ok(OtherLink { classes, link })
    }

    /// Shares what arrives by the link if the configuration does, or no longer.
    pub(super) fn share_download(
        &mut self,
        config: &Config,
        of: (u32, EngineKind),
        store: &Store,
        attachments: &mut Attachments,
    ) -> Result<(), OpenError> {
        match (&mut self.link.download, config.link.download) {
            (None, Some(_)) => {
                self.link.download = Download::open(config, of, store, BitRate::ZERO, attachments)?;
                if let Some(download) = &mut self.link.download {
                    download.promises = Promises::unstored();
                }
            }
            (Some(_), None) => self.link.end_download(attachments)?,
            _ => {}
        }
        Ok(())
    }

    /// The link's configured device.
    pub(super) fn device(&self) -> &str {
        &self.classes.config().link.device
    }

    /// Follows the link's rate as the configuration says.
    pub(super) fn follow_rate(&mut self, attachments: &mut Attachments, now: Instant) {
        let link = &self.classes.config().link;
        self.link.follow_rates(link.follows, link.capacity, attachments, now);
    }

    /// Decides about the capacity of a link whose rate changes, and has the scheduler follow.
    pub(super) fn follow_link(&mut self, now: Instant) -> Effects {
        let Followed { applies, news, down } =
            self.link.follow_link(self.classes.config().link.capacity, now);
        let divided = if applies { self.divide() } else { Effects::default() };
        let told = |news: String| Effects::event(EventKind::CapacityChanged, self.words(&news));
        news.into_iter().map(told).fold(divided.and(down), Effects::and)
    }

    /// The class tables of both directions under another configuration. `None` if it does not share this link.
    pub(super) fn planned(&self, config: &Config) -> Option<(ClassTable, Option<ClassTable>)> {
        let config = without_agreements(config.sharing(self.device())?);
        let down = self.link.download.as_ref().zip(config.download());
        let down = down.map(|(download, config)| download.classes.under(config));
        Some((self.classes.under(config), down))
    }

    /// Applies a new configuration.
    pub(super) fn reconfigure(&mut self, config: Config) {
        let config = without_agreements(config);
        self.link.allocations.set_allocator(Allocator::new(config.allocator()));
        if let (Some(download), Some(config)) = (&mut self.link.download, config.download()) {
            download.reconfigure(config);
        }
        self.classes.reconfigure(config);
        self.link.scheduler.shape = {
            let before = &self.link.scheduler.shape;
            self.link.shape(self.classes.config(), before.mtu, before.has_tunnels)
        };
        self.link.allocations.mark();
    }

    /// Follows the classes of a discovery, which the main link knows already.
    pub(super) fn follow(
        &mut self,
        main: &ClassTable,
        discovery: &Discovery,
        is_complete: bool,
        store: &Store,
        attachments: &mut Attachments,
    ) -> Effects {
        let device = self.device().to_owned();
        let found = discovery.uplinks.get(&device);
        let seen = self.link.scheduler.follow_link(&device, found);
        let fitted = self.link.fit(self.classes.config(), found, attachments);
        let woken = self.link.scheduler.wake();
        self.classes.number_as(main);
        self.classes.set_group_wishes(main.group_wishes().clone());
        let changes = self.classes.update(discovery.classes.clone(), is_complete);
        let promises = self.told(changes);
        self.keep(main, None);
        self.link.scheduler.shape =
            self.link.shape(self.classes.config(), discovery.mtu, !discovery.tunnels.is_empty());
        let divided = self.divide();
        seen.and(fitted).and(woken).and(promises).and(divided).and(match &mut self.link.download {
            Some(download) => {
                let (changes, effects) = download.follow(main, discovery, is_complete, store, attachments);
                effects.and(self.told(changes))
            }
            None => Effects::default(),
        })
    }

    /// Takes the policies by hand and the agreements in force of the main link. `down` has those of what arrives.
    pub(super) fn keep(&mut self, main: &ClassTable, down: Option<&ClassTable>) {
        self.classes.number_as(main);
        let agreed: Vec<Agreed> = main.agreements().iter().map(unpromised).collect();
        self.classes.agree(agreed, BitRate::ZERO);
        self.classes.commit(main.set_layers().clone());
        self.link.allocations.follow(&self.classes);
        self.link.allocations.mark();
        if let (Some(download), Some(down)) = (&mut self.link.download, down) {
            download.keep(down.set_layers().clone(), down.agreements().iter().map(unpromised).collect());
        }
    }

    /// An event's words, which say that they are about this link.
    fn words(&self, what: &str) -> String {
        format!("link {}: {what}", self.device())
    }

    /// The events for promises that changed.
    fn told(&self, changes: Vec<Change>) -> Effects {
        let told = |change: Change| match change {
            // The main link tells of classes that come and go.
            Change::Added(_) | Change::Removed(_) | Change::AskedAnew(_) => None,
            Change::Unpromised { key, why } => {
                Some(Effects::class_event(EventKind::NotEnforced, key, self.words(&why)))
            }
            Change::Promised { key, min } => {
                let text = format!("its minimum of {min} is promised now");
                Some(Effects::class_event(EventKind::Promised, key, self.words(&text)))
            }
        };
        changes.into_iter().filter_map(told).fold(Effects::default(), Effects::and)
    }

    /// Divides the link, and has the scheduler enforce the division.
    pub(super) fn divide(&mut self) -> Effects {
        let capacity = self.link.in_force(self.classes.config().link.capacity);
        let (groups, members) = self.link.allocations.divide(&self.classes, capacity);
        let enforced = self.link.scheduler.enforce(&groups, &members);
        if enforced.reallocate {
            self.link.allocations.mark();
        }
        // A mark of the main link's division is not meant.
        Effects { reallocate: false, ..enforced }
    }

    /// Divides both directions if a demand, a policy or a class changed.
    pub(super) fn divide_if_due(&mut self) -> Effects {
        if !self.link.scheduler.has_seen_link() {
            return Effects::default();
        }
        let up = if self.link.allocations.is_due() { self.divide() } else { Effects::default() };
        match &mut self.link.download {
            Some(download) => up.and(download.divide_if_due()),
            None => up,
        }
    }

    /// Reads what each class sent and queued.
    pub(super) fn poll_counters(&mut self, now: Instant, attachments: &mut Attachments) -> Effects {
        let polled = self.link.poll_counters(now, attachments);
        if polled.reallocate {
            self.link.allocations.mark();
        }
        Effects { reallocate: false, ..polled }
    }

    /// Checks what only looks can find.
    pub(super) fn reconcile(&mut self, now: Instant) -> Effects {
        if self.link.scheduler.error.is_some() {
            self.link.allocations.mark();
        }
        let is_incomplete = self.link.scheduler.uplink_failure.is_some();
        let effects = Effects::rediscover(is_incomplete);
        match &mut self.link.download {
            Some(download) => effects.and(download.reconcile(now)),
            None => effects,
        }
    }

    /// Has packets pass unscheduled, and removes the schedulers.
    pub(super) fn end(&mut self, attachments: &mut Attachments) -> Result<(), EngineError> {
        self.link.end(attachments)
    }

    /// The reason if the link is here and not divided as configured.
    pub(super) fn fault(&self) -> Option<String> {
        let Scheduler { error, uplink_failure, .. } = &self.link.scheduler;
        let fault = error.as_ref().map(|error| format!("the scheduler has a fault: {error}"));
        let uplink =
            uplink_failure.as_ref().map(|why| format!("the host's own traffic is not shared: {why}"));
        let download = self.link.download.as_ref().and_then(Download::fault).map(|why| told(why));
        fault.or(uplink.filter(|_| self.link.scheduler.is_here())).or(download)
    }

    /// Reasons why the link is not divided as configured, for `weir status`.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.fault().into_iter().chain(self.link.unfollowed()).map(|why| self.words(&why)).collect()
    }

    /// The link, for views. `configured` are the capacities that others by hand replace.
    pub(super) fn view(&self, configured: (Option<BitRate>, Option<BitRate>)) -> weir_api::OtherLink {
        let link = &self.classes.config().link;
        let rate = |allocations: &Allocations| BitRate(allocations.all().map(|f| f.estimator.rate().0).sum());
        let download = self.link.download.as_ref();
        let down = download.map_or(Vec::new(), |download| download.classes.unpromised_minima());
        weir_api::OtherLink {
            device: link.device.clone(),
            capacity: self.link.in_force(link.capacity),
            configured_capacity: configured.0,
            rate: rate(&self.link.allocations),
            follows: self.link.follows(),
            reserved: self.classes.reservation().reserved,
            reservable: self.classes.reservation().reservable,
            active: self.link.allocations.all().filter(|f| f.estimator.demand().is_active()).count(),
            download: self.link.download_status(configured.1),
            is_here: self.link.scheduler.is_here(),
            not_enforced_because: self.fault(),
            exempt: self.link.exempt(),
            unpromised: self
                .classes
                .unpromised_minima()
                .into_iter()
                .chain(down.iter().map(|why| told(why)))
                .collect(),
        }
    }
}
