//! The agent finds the classes of the link, divides the link, and has the kernel enforce the division.
//!
//! The agent is one thread with one loop. Each tick reads what each class sent and queued. The agent
//! divides the link again only if a demand changed, and writes only the differences. Any other change
//! (containers, policies, the configuration, foreign changes to the kernel) sets a mark. The next turn
//! of the loop checks the marked part.

mod advice;
pub(crate) mod agree;
mod allocate;
mod answer;
mod api;
pub(crate) mod audit;
mod autorate;
mod by_hand;
mod capacity;
mod changes;
mod charge;
mod check;
mod class_key;
mod class_table;
mod clock;
mod cluster;
pub(crate) mod cni;
mod config_file;
pub(crate) mod congestion;
mod datapath;
mod demand;
mod discover;
mod download;
mod download_answers;
mod download_views;
mod effects;
mod enforced;
mod events;
mod export;
mod figures;
mod follow;
mod free;
mod history;
#[cfg(test)]
mod htb_shares;
mod link_state;
mod links;
mod listening;
mod local;
mod lock;
pub(crate) mod maker;
mod opening;
mod other_link;
mod pace;
mod plan;
mod pods;
mod port_owners;
mod processes;
mod promises;
pub(crate) mod queue_time;
mod reconcile;
mod reload;
mod restart;
pub(crate) mod restore;
mod runtimes;
mod scheduler;
mod selector_rules;
mod set_rules;
mod sources;
pub(crate) mod store;
mod threads;
mod unclaimed;
mod uplink;
mod views;
mod work;

use std::{collections::BTreeMap, path::Path, time::Duration};

use tokio::{
    io::unix::AsyncFd,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval},
};
use weir_api::EventKind;
use weir_datapath::engine;
use weir_netlink::{Events, Netlink};
use weir_share::Demand;
use weir_units::{Instant, chain};

use self::{
    agree::Agreements,
    api::Api,
    audit::Audit,
    capacity::Capacities,
    class_table::{Change, ClassTable},
    clock::Clock,
    config_file::ConfigFile,
    congestion::CongestionControl,
    datapath::Datapath,
    discover::Discovery,
    effects::Effects,
    events::EventLog,
    history::History,
    listening::Listening,
    other_link::OtherLink,
    promises::Promises,
    sources::{Discovered, Sources},
    store::Store,
    threads::Threads,
    uplink::Uplink,
    work::Work,
};
pub use self::{
    check::check,
    free::{FreeLink, free_link},
};
use crate::{
    config::{self, AtEnd, Config},
    control::Request,
    images::Images,
    server::{self, Access, Socket},
};

/// The interval between two reads of the queues. It is short enough that a class that wakes gets its
/// share before a person notices, and long enough that a hundred classes cost little.
const TICK: Duration = Duration::from_millis(100);
/// The interval while no class sends.
const IDLE_TICK: Duration = Duration::from_millis(500);
/// The parts of the agent. A part changes only its own state, and returns what follows as [`Effects`].
struct Agent {
    config_file: ConfigFile,
    store: Store,
    clock: Clock,
    /// `None` if the configuration allows no agreements.
    agreements: Option<Agreements>,
    capacities: Capacities,
    /// Names, policies and promises of the classes.
    classes: ClassTable,
    /// The stored promises to classes.
    promises: Promises,
    /// The last changes of policy by hand.
    history: History,
    audit: Audit,
    /// The programs that give packets to classes.
    datapath: Datapath,
    /// The main link: its schedulers, and the division that they enforce.
    link: Uplink,
    /// The other links that are shared.
    others: Vec<OtherLink>,
    /// The devices of links that cannot be shared, with reasons.
    unshared: BTreeMap<String, String>,
    /// The work of links that are shared no longer.
    ended: Work,
    congestion: CongestionControl,
    sources: Sources,
    events: EventLog,
    images: Images,
    api: Api,
    threads: Threads,
    started: std::time::Instant,
    /// The longest delay of a tick since the start.
    max_tick_delay: Duration,
}

/// Runs the agent until it is told to stop.
///
/// # Errors
/// It cannot begin, or cannot put everything back.
pub fn run(path: &Path) -> anyhow::Result<()> {
    let mut netlink = Netlink::open()?;
    let (file, config) = ConfigFile::read(path, config::load);
    let config = links::of_route(config?, &mut netlink);
    check::fits_node(path, &config, &mut netlink)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(file, config))
}

async fn serve(file: ConfigFile, config: Config) -> anyhow::Result<()> {
    let _lock = lock::take()?;
    let rights = config.access.rights().map_err(|why| check::unusable(&file.path, why))?;
    let socket = Socket::bind(&config.agent.socket, &rights)?;
    let access = Access::new(rights);
    let listener = socket.listener()?;
    // SAFETY: `Events` owns its socket and always answers with the same descriptor. It is not taken
    // out of the `AsyncFd`.
    let links = unsafe { AsyncFd::register(Events::of_links()?) }?;
    // SAFETY: as above.
    let routes = unsafe { AsyncFd::register(Events::of_default_routes()?) }?;
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hup = signal(SignalKind::hangup())?;
    let mut hand_over = signal(SignalKind::user_defined2())?;
    // All else that may fail comes before. `Agent::open` undoes what it made, and the rest of the start cannot fail.
    let mut agent = Agent::open(file, config, access.clone())?;
    let (control, mut requests) = mpsc::channel(64);
    let images = agent.images.clone();
    let mut events = images.events();
    let stream = server::Stream::new(control.clone());
    let port = agent.api.port.clone().serve(control.clone(), images.clone(), stream.clone());
    let port = tokio::spawn(port);
    let mut listening = {
        let (images, access) = (images.clone(), access.clone());
        Listening::begin(socket, listener, move |listener| {
            let (control, images, stream) = (control.clone(), images.clone(), stream.clone());
            tokio::spawn(server::serve(listener, control, images, stream, access.clone()))
        })
    };

    agent.event(EventKind::Started, None, agent.classes.config().link.in_words());
    agent.sources.first_list().await;
    agent.turn();
    agent.sweep();
    tracing::info!("{}", agent.classes.config().link.in_words());
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);

    let mut clock = clock_of(TICK);
    let mut idle = false;
    let mut rate_clock = clock_of(autorate::TICK);
    let at_end = loop {
        let until_change = agent.until_change().min(agent.sources.cni.until_look());
        tokio::select! {
            // A due tick comes before all waiting requests and changes.
            biased;
            _ = term.recv() => break agent.classes.config().agent.at_end,
            _ = int.recv() => break agent.classes.config().agent.at_end,
            _ = hand_over.recv() => break AtEnd::Keep,
            due = clock.tick() => {
                // Requests come before changes of links; this tick sees both.
                agent.tick(due.elapsed(), links.get_ref().drain(), routes.get_ref().drain());
                let put_back = listening.watch(&access.rights());
                agent.follow_up(put_back);
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
                let quiet = agent.is_idle();
                if quiet != idle {
                    idle = quiet;
                    clock = clock_of(if idle { IDLE_TICK } else { TICK });
                    clock.reset();
                }
            }
            _ = rate_clock.tick(), if agent.follows_any() => agent.follow_link(),
            _ = hup.recv() => agent.reload(),
            () = tokio::time::sleep(until_change) => agent.turn(),
            Some(request) = requests.recv() => {
                agent.answer_waiting(request, &mut requests);
                // The runtime checks its timers only when this task yields.
                tokio::task::yield_now().await;
            }
            ready = links.readable() => {
                let mut ready = ready?;
                let changed = links.get_ref().drain();
                ready.clear_ready();
                if !changed {
                    continue;
                }
                agent.sources.mark();
                // Events come in bursts. The agent handles a burst once.
                tokio::time::sleep(Duration::from_millis(5)).await;
                links.get_ref().drain();
                agent.turn();
            }
            ready = routes.readable() => {
                let mut ready = ready?;
                let changed = routes.get_ref().drain();
                ready.clear_ready();
                if changed && agent.classes.config().link.is_one_of_several() {
                    agent.sources.mark();
                    agent.turn();
                }
            }
            () = agent.sources.changed() => agent.turn(),
            Ok((kind, what)) = events.recv() => agent.event(kind, None, what),
        }
    };
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let what = match at_end {
        AtEnd::Restore => "putting everything back",
        AtEnd::Keep => "the division stays in force for the next agent",
    };
    agent.event(EventKind::Stopping, None, what.to_owned());
    listening.end();
    port.abort();
    images.stop();
    agent.save();
    match at_end {
        AtEnd::Restore => agent.close().await,
        AtEnd::Keep => Ok(()),
    }
}

/// A clock that ticks now, and then at least `period` after each tick.
fn clock_of(period: Duration) -> Interval {
    let mut clock = interval(period);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    clock
}

impl Agent {
    /// A turn that the clock asked for `late` ago.
    fn tick(&mut self, late: Duration, has_other_links: bool, has_other_routes: bool) {
        self.max_tick_delay = self.max_tick_delay.max(late);
        let has_moved = has_other_routes && self.classes.config().link.is_one_of_several();
        self.follow_up(Effects::rediscover(has_other_links || has_moved));
        self.turn();
    }

    /// Answers a request, and those that wait behind one of CNI: one discovery serves all.
    fn answer_waiting(&mut self, request: Request, requests: &mut mpsc::Receiver<Request>) {
        self.answer(request);
        if self.sources.cni.is_awaited() {
            while let Ok(request) = requests.try_recv() {
                self.answer(request);
            }
            self.turn();
        }
    }

    /// Removes what earlier agents left attached and no one wants. A failure is a warning, and is tried again.
    fn sweep(&mut self) {
        let devices = self.all_links().flat_map(Uplink::devices).collect();
        let failures = self.datapath.attachments.sweep();
        // A filter that stays sends packets to its device.
        let swept = match failures.first() {
            Some(first) => Err(chain(first)),
            None => engine::retire_devices(&devices).map_err(|e| chain(&e)),
        };
        let unswept = swept.err().map(|why| format!("cannot remove what an earlier agent left: {why}"));
        if let Some(why) = unswept.as_ref().filter(|why| self.datapath.unswept.as_ref() != Some(why)) {
            tracing::warn!("{why}");
        }
        self.datapath.unswept = unswept;
        self.save_created();
    }

    fn now(&self) -> Instant {
        Instant(self.started.elapsed())
    }

    /// One turn of the loop: look, divide, write.
    fn turn(&mut self) {
        if self.config_file.has_changed() {
            self.reload();
        }
        self.watch_clock();
        // Agreements come first, because a promise begins and ends at its instant.
        self.keep_agreements();
        for text in self.store.said() {
            self.event(EventKind::StateDamaged, None, text);
        }
        if self.sources.is_due(self.now()) {
            self.discover();
        }
        self.poll_counters();
        self.count_delivered();
        self.count_flows();
        self.advise();
        if self.datapath.reconciled_at.elapsed() >= reconcile::RECONCILE_EVERY {
            self.reconcile();
        }
        if self.link.allocations.is_due() {
            self.allocate();
        }
        if let Some(download) = &mut self.link.download {
            let divided = download.divide_if_due();
            self.follow_up(divided);
        }
        self.divide_others();
        self.pace();
        self.audit_seen();
        self.answer_cni();
        self.report_to_cluster();
    }

    /// Whether no class sends, and nothing arrives.
    fn is_idle(&self) -> bool {
        self.all_links().all(Uplink::is_idle)
    }

    /// Finds the current classes and attaches the classifier to their interfaces.
    fn discover(&mut self) {
        self.audit.mark();
        self.follow_route();
        let (uplinks, now) = (self.uplinks(), self.now());
        let found = self.sources.discover(&mut self.datapath.netlink, self.classes.config(), &uplinks, now);
        let Discovered { discovery, is_complete } = match found {
            Ok(found) => found,
            Err(e) => {
                let why =
                    format!("cannot look at this node, so its classes stay as they were: {}", chain(&e));
                tracing::warn!("{why}");
                self.sources.warn(why);
                return;
            }
        };
        let config = self.classes.config();
        let found = discovery.uplinks.get(&config.link.device);
        let link = self.link.scheduler.follow_link(&config.link.device, found);
        let fitted = self.link.fit(config, found, &mut self.datapath.attachments);
        let woken = self.link.scheduler.wake();
        self.follow_up(link.and(fitted).and(woken));
        let before = self.classes.minors().clone();
        let groups = self.sources.cluster.group_wishes(self.classes.config());
        let is_regrouped = self.classes.set_group_wishes(groups);
        let changes = self.classes.update(discovery.classes.clone(), is_complete);
        // Labels never change, but CNI may report a pod again.
        let is_asked_anew = changes.iter().any(|change| matches!(change, Change::AskedAnew(_)));
        self.follow_up(Effects::reallocate(is_regrouped || is_asked_anew));
        self.promises.save(&self.store, self.classes.ledger());
        let mut shape = datapath::shape(self.classes.config(), discovery.mtu, !discovery.tunnels.is_empty());
        shape.capacity = self.in_force();
        if self.classes.minors() != &before || shape != self.link.scheduler.shape {
            self.link.scheduler.shape = shape;
            if let Err(e) = self.store.save_minors(self.classes.minors()) {
                tracing::warn!("{}", chain(&e));
            }
            self.link.allocations.mark();
        }
        self.link.allocations.follow(&self.classes);
        // A class must exist before packets are sent to it.
        if self.link.allocations.is_due() {
            self.allocate();
        }
        self.follow_others(&discovery, is_complete);
        let numbers = self.numbers();
        let attached = self.datapath.attach(&self.classes, &discovery, &numbers);
        let attached = self.datapath.keep(attached.map_err(|e| chain(&e)));
        self.follow_up(attached);
        self.catch_uplinks(&discovery);
        self.follow_download(&discovery, is_complete);
        // The state of the kernel is known only now.
        self.publish_changes(changes);
        self.apply_congestion_rules(&discovery);
        self.publish_remarks(&discovery.classes);
        self.sources.set_warnings(discovery.warnings);
        self.save_created();
    }

    /// Has the download follow a discovery.
    fn follow_download(&mut self, discovery: &Discovery, is_complete: bool) {
        let Some(download) = &mut self.link.download else { return };
        let attachments = &mut self.datapath.attachments;
        let (changes, effects) =
            download.follow(&self.classes, discovery, is_complete, &self.store, attachments);
        self.follow_up(effects);
        self.publish_download_changes(changes);
    }

    fn save_created(&mut self) {
        if let Err(e) = self.store.save_created(self.datapath.attachments.created()) {
            tracing::warn!("{}", chain(&e));
        }
    }

    /// Stores what the next agent goes on with.
    fn save(&mut self) {
        if let Some(agreements) = &mut self.agreements {
            agreements.save_counted(&self.store, true);
            agreements.save_months(&self.store);
            self.store_clock();
        }
        if self.congestion.advisor.is_active() {
            self.count_flows();
            self.save_trials();
        }
        self.save_created();
    }

    /// Restores the host as the agent found it. Traffic then flows unshaped.
    async fn close(mut self) -> anyhow::Result<()> {
        let unpaced = self.datapath.pacing.as_mut().map_or(Ok(()), |p| p.remove());
        let unsteered = self.congestion.remove();
        let restored = self.datapath.super_packets.as_mut().map_or(Ok(()), |s| s.remove());
        let failures = self.datapath.attachments.remove();
        // The queues are removed after their packets have left.
        for _ in 0..50 {
            let others = self.others.iter_mut().map(|other| other.link.backlog()).sum::<u64>();
            if self.link.backlog() + others == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // A program that stays sends packets to the schedulers. They are lost where no device is.
        if failures.iter().all(engine::EngineError::is_gone) {
            self.remove_schedulers()?;
            engine::retire_devices(&std::collections::BTreeSet::new())?;
            self.store.save_minors(&store::Minors::new())?;
            self.store.save_engine(None)?;
        }
        self.save_created();
        unpaced?;
        unsteered.and(restored).map_err(|why| anyhow::anyhow!("cannot put everything back: {why}"))?;
        match failures.first() {
            Some(first) => {
                anyhow::bail!("cannot put everything back: {} ({} failures)", chain(first), failures.len())
            }
            None => Ok(()),
        }
    }
}

/// A class's activity, for views.
fn activity(minor: Option<u16>, demand: Demand) -> weir_api::Activity {
    match (minor, demand.is_active()) {
        (None, _) => weir_api::Activity::Absent,
        (_, true) => weir_api::Activity::Active,
        _ => weir_api::Activity::Idle,
    }
}
