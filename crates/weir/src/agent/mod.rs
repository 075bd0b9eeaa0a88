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
mod check;
mod class_key;
mod class_table;
mod clock;
pub(crate) mod congestion;
mod datapath;
mod demand;
mod discover;
mod events;
mod export;
mod lock;
mod pace;
mod promises;
mod reconcile;
mod reload;
pub(crate) mod store;
mod views;

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use tokio::{
    io::unix::AsyncFd,
    signal::unix::{SignalKind, signal},
    sync::{broadcast, mpsc, watch},
    time::{MissedTickBehavior, interval},
};
use weir_api::{Event, EventKind};
use weir_datapath::engine::{self, Measured};
use weir_discovery::docker;
use weir_netlink::{LinkEvents, Netlink};
use weir_share::{Allocator, Demand};
use weir_units::chain;
use weir_units::{BitRate, Instant};

pub(crate) use self::check::check;
use self::{
    agree::{Agreements, Counted, LinkSeen},
    allocate::Followed,
    class_key::ClassKey,
    class_table::ClassTable,
    clock::Clock,
    congestion::CongestionControl,
    datapath::Datapath,
    store::Store,
};
use crate::{
    config::{self, Config},
    images::{Images, OnFault},
    server::{self, Access, Socket},
};

/// The interval between two reads of the queues. It is short enough that a class that wakes gets its
/// share before a person notices, and long enough that a hundred classes cost little.
const TICK: Duration = Duration::from_millis(100);
/// The interval while no class sends.
const IDLE_TICK: Duration = Duration::from_millis(500);
/// How long the agent waits for Docker's first list of containers before it starts without one. Until
/// then the kernel keeps the state of an earlier agent.
const FIRST_WORD: Duration = Duration::from_secs(3);
/// After this time, an agent that has taken over knows which classes send.
const ACQUAINTED: Duration = Duration::from_millis(250);
/// The number of past events kept for `weir events`.
const KEPT: usize = 512;

struct Agent {
    path: PathBuf,
    modified: Option<SystemTime>,
    config_error: Option<String>,
    store: Store,
    clock: Clock,
    /// When the time was last stored, as time since boot.
    clock_stored: Option<Duration>,
    /// `None` if the configuration allows no agreements.
    agreements: Option<Agreements>,
    /// Bytes counted under agreements, by agreement and class.
    counted: BTreeMap<(weir_agree::Name, ClassKey), Counted>,
    /// The link's state when the agent last watched agreements.
    link_seen: Option<LinkSeen>,
    classes: ClassTable,
    /// The stored promises to classes.
    promises: store::Ledger,
    /// The reason if the stored promises differ from those made.
    promises_error: Option<String>,
    datapath: Datapath,
    congestion: CongestionControl,
    allocator: Allocator,
    followed: BTreeMap<ClassKey, Followed>,
    measured: Vec<Measured>,
    /// The link at the last look: index, name, up. The inner `None` means that it was gone.
    link: Option<Option<(u32, String, bool)>>,
    warnings: Vec<String>,
    engine_error: Option<String>,
    /// The damage to programs and maps that the last check found and could not repair. A new division
    /// of the link does not repair it either.
    unrepaired: Option<String>,
    docker: Option<docker::Watcher>,
    snapshots: Option<watch::Receiver<docker::Snapshot>>,
    events: VecDeque<Event>,
    sequence: u64,
    listeners: broadcast::Sender<Event>,
    images: Images,
    access: Access,
    started: std::time::Instant,
    repairs: u64,
    /// The longest delay of a tick since the start.
    max_tick_delay: Duration,
    reconciled_at: std::time::Instant,
    /// The agent has not watched for long enough to know which classes send.
    is_new_here: bool,
    /// The start of the watch.
    watches_since: Option<Instant>,
    /// A policy or a demand changed since the link was last divided.
    dirty: bool,
    /// Containers, links or the configuration changed since the last discovery.
    stale: bool,
}

/// Runs the agent until it is told to stop.
pub(crate) fn run(path: &Path) -> anyhow::Result<()> {
    let config = config::load(path)?;
    check::fits_node(path, &config, &mut Netlink::open()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(path, config))
}

async fn serve(path: &Path, config: Config) -> anyhow::Result<()> {
    let _lock = lock::take()?;
    let rights = config.access.rights().map_err(|why| check::unusable(path, why))?;
    let socket = Socket::bind(&config.agent.socket, &rights)?;
    let access = Access::new(rights);
    let mut agent = Agent::open(path, config)?;
    let (control, mut requests) = mpsc::channel(64);
    let images = match agent.classes.config().images.clone() {
        Some(settings) if settings.is_agents() => {
            let docker = agent.classes.config().discover.docker.clone();
            Images::start(settings, docker, OnFault::TryAgain)?
        }
        _ => Images::off(),
    };
    let mut said = images.said();
    agent.images = images.clone();
    agent.access = access.clone();
    let api = tokio::spawn(server::serve(socket.listener()?, control, images.clone(), access));

    // SAFETY: `LinkEvents` owns its socket and always answers with the same descriptor. It is not taken
    // out of the `AsyncFd`.
    let links = unsafe { AsyncFd::register(LinkEvents::open()?) }?;
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hup = signal(SignalKind::hangup())?;
    agent.event(
        EventKind::Started,
        None,
        format!("sharing {} on {}", agent.classes.config().link.capacity, agent.classes.config().link.device),
    );
    agent.await_docker().await;
    agent.turn();
    agent.settle();
    tracing::info!(
        "sharing {} of {}",
        agent.classes.config().link.device,
        agent.classes.config().link.capacity
    );
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);

    let mut clock = interval(TICK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut idle = false;
    loop {
        let until_change = agent.until_change();
        tokio::select! {
            // A due tick comes before all waiting requests and changes.
            biased;
            _ = term.recv() => break,
            _ = int.recv() => break,
            due = clock.tick() => {
                agent.max_tick_delay = agent.max_tick_delay.max(due.elapsed());
                // Requests come before changes of links; this tick sees both.
                agent.stale |= links.get_ref().drain();
                agent.turn();
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
                let quiet = agent.followed.values().all(|f| !f.estimator.demand().is_active());
                if quiet != idle {
                    idle = quiet;
                    clock = interval(if idle { IDLE_TICK } else { TICK });
                    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
                    clock.reset();
                }
            }
            _ = hup.recv() => agent.reload(),
            () = tokio::time::sleep(until_change) => agent.turn(),
            Some(request) = requests.recv() => {
                agent.answer(request);
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
                agent.stale = true;
                // Events come in bursts. The agent handles a burst once.
                tokio::time::sleep(Duration::from_millis(5)).await;
                links.get_ref().drain();
                agent.turn();
            }
            () = changed(&mut agent.snapshots) => {
                agent.stale = true;
                agent.turn();
            }
            Ok((kind, what)) = said.recv() => agent.event(kind, None, what),
        }
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    agent.event(EventKind::Stopping, None, "putting everything back".to_owned());
    api.abort();
    images.stop();
    agent.close().await
}

/// Waits for Docker to report a change, or without end if Docker is not watched.
async fn changed(snapshots: &mut Option<watch::Receiver<docker::Snapshot>>) {
    if let Some(receiver) = snapshots
        && receiver.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

impl Agent {
    fn open(path: &Path, config: Config) -> anyhow::Result<Agent> {
        let mut netlink = Netlink::open()?;
        let store = Store::open(&config.agent.state)?;
        let (set, minors) = (store.policies()?, store.minors()?);
        let clock = Clock::start(clock::read(), &clock::boot_id(), store.clock()?.as_ref());
        let utc = clock.now(clock::since_boot());
        let agreements = Agreements::open(&config, &store, utc)?;
        let promised = agreements.as_ref().map_or(BitRate::ZERO, |a| a.promised(utc));
        let promises = store.promises()?;
        let classes = ClassTable::new(config.clone(), set, minors, promises.clone(), promised);
        let (control, left_out) = advice::open(&config, &store)
            .map_err(|why| anyhow::anyhow!("cannot use configuration {}: {why}", path.display()))?;
        let (kind, refused) = config.link.engine.choose(left(&mut netlink, &store)?.as_deref()).context(
            "cannot set up a scheduler (the agent needs root, or CAP_NET_ADMIN and CAP_BPF; `weir doctor` tells what is missing)",
        )?;
        let datapath = match Datapath::open(&config, kind, store.cookie()?, store.created()?) {
            Ok(datapath) => datapath,
            Err(error) => {
                check::can_run(path, config.link.engine)?;
                let what = format!(
                    "cannot set up the scheduler with engine {kind} (the agent needs root, or CAP_NET_ADMIN and CAP_BPF; `weir doctor` tells what is missing)"
                );
                return Err(anyhow::Error::from(error).context(what));
            }
        };
        store.save_engine(Some(kind.name()))?;
        let mut agent = Agent {
            modified: modified(path),
            path: path.to_owned(),
            config_error: None,
            store,
            clock,
            clock_stored: None,
            agreements,
            counted: BTreeMap::new(),
            link_seen: None,
            classes,
            promises,
            promises_error: None,
            datapath,
            congestion: control,
            allocator: Allocator::new(config.allocator()),
            followed: BTreeMap::new(),
            measured: Vec::new(),
            link: None,
            warnings: Vec::new(),
            engine_error: None,
            unrepaired: None,
            docker: None,
            snapshots: None,
            events: VecDeque::new(),
            sequence: 0,
            listeners: broadcast::Sender::new(KEPT),
            images: Images::off(),
            access: Access::default(),
            started: std::time::Instant::now(),
            repairs: 0,
            max_tick_delay: Duration::ZERO,
            reconciled_at: std::time::Instant::now(),
            is_new_here: true,
            watches_since: None,
            dirty: true,
            stale: true,
        };
        for (better, why) in refused {
            agent.event(EventKind::Engine, None, format!("{better} was not taken: {why}"));
        }
        for why in left_out {
            agent.event(EventKind::NotEnforced, None, why);
        }
        agent.watch_docker();
        Ok(agent)
    }

    /// Removes attachments of an earlier agent that are no longer needed.
    fn settle(&mut self) {
        if let Err(e) = self.datapath.attachments.sweep() {
            tracing::warn!("cannot clean up after an earlier agent: {}", chain(&e));
        }
        self.save_created();
    }

    fn watch_docker(&mut self) {
        self.docker =
            self.classes.config().discover.docker.as_ref().map(|s| docker::watch(docker::Options::at(s)));
        self.snapshots = self.docker.as_ref().map(docker::Watcher::snapshots);
    }

    /// Waits for Docker's first answer. Without it the agent would take the classes of Docker's
    /// containers for leftovers, and would remove them with their queued packets.
    async fn await_docker(&mut self) {
        let Some(snapshots) = &mut self.snapshots else { return };
        let answered = snapshots.wait_for(|s| !matches!(s.error, Some(docker::Unavailable::NotYet)));
        if tokio::time::timeout(FIRST_WORD, answered).await.is_err() {
            tracing::warn!(
                "docker has not answered within {FIRST_WORD:?}: its containers follow when it does"
            );
        }
    }

    fn now(&self) -> Instant {
        Instant(self.started.elapsed())
    }

    /// One turn of the loop: look, divide, write.
    fn turn(&mut self) {
        if modified(&self.path) != self.modified {
            self.reload();
        }
        self.watch_clock();
        // Agreements come first, because a promise begins and ends at its instant.
        self.keep_agreements();
        for text in self.store.said() {
            self.event(EventKind::StateDamaged, None, text);
        }
        if self.stale {
            self.discover();
        }
        self.poll_counters();
        self.count_delivered();
        self.count_flows();
        self.advise();
        if self.reconciled_at.elapsed() >= reconcile::RECONCILE_EVERY {
            self.reconcile();
        }
        if self.dirty {
            self.allocate();
        }
        self.pace();
    }

    /// Finds the current classes and attaches the classifier to their interfaces.
    fn discover(&mut self) {
        self.stale = false;
        let snapshot = self.snapshots.as_mut().map(|s| s.borrow_and_update().clone());
        let docker_told =
            snapshot.as_ref().is_none_or(|s| !matches!(s.error, Some(docker::Unavailable::NotYet)));
        let (config, uplink) = (self.classes.config(), self.datapath.attachments.uplink());
        let discovery =
            match discover::discover(&mut self.datapath.netlink, config, snapshot.as_ref(), uplink) {
                Ok(discovery) => discovery,
                Err(e) => {
                    tracing::warn!("cannot look at this node: {}", chain(&e));
                    self.stale = true;
                    return;
                }
            };
        self.follow_link(discovery.uplink.as_ref());
        self.wake();
        let before = self.classes.minors().clone();
        let changes = self.classes.update(discovery.classes.clone(), docker_told);
        self.save_promises();
        let shape = datapath::shape(self.classes.config(), discovery.mtu);
        if self.classes.minors() != &before || shape != self.datapath.shape {
            self.datapath.shape = shape;
            if let Err(e) = self.store.save_minors(self.classes.minors()) {
                tracing::warn!("{}", chain(&e));
            }
            self.dirty = true;
        }
        self.follow();
        // A class must exist before packets are sent to it.
        if self.dirty {
            self.allocate();
        }
        if let Err(e) = self.datapath.catch(&self.classes, &discovery) {
            self.fault(chain(&e));
            self.stale = true;
        }
        // The state of the kernel is known only now.
        self.tell(changes);
        self.apply_congestion_rules(&discovery);
        for claim in &discovery.classes {
            let is_new = |cut: &&String| !self.warnings.contains(&discover::cut_text(&claim.name, cut));
            let fresh: Vec<String> = claim.cut.iter().filter(is_new).cloned().collect();
            for cut in fresh {
                self.event(EventKind::LabelCut, Some(&claim.key()), cut);
            }
        }
        self.warnings = discovery.warnings;
        self.save_created();
    }

    fn save_created(&mut self) {
        if let Err(e) = self.store.save_created(self.datapath.attachments.created()) {
            tracing::warn!("{}", chain(&e));
        }
    }

    /// Restores the host as the agent found it. Traffic then flows unshaped.
    async fn close(mut self) -> anyhow::Result<()> {
        if let Some(agreements) = &mut self.agreements {
            agreements.save_counted(&self.store);
            agreements.save_months(&self.store);
            self.store_clock();
        }
        if self.congestion.advisor.is_active() {
            self.count_flows();
            self.save_trials();
        }
        let unpaced = self.datapath.pacing.as_mut().map_or(Ok(()), |p| p.remove());
        let unsteered = self.congestion.remove();
        let failures = self.datapath.attachments.remove();
        // The queues are removed after their packets have left.
        for _ in 0..50 {
            if self.datapath.engine.backlog().unwrap_or(0) == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.datapath.engine.remove()?;
        self.store.save_minors(&store::Minors::new())?;
        self.store.save_engine(None)?;
        self.save_created();
        unpaced?;
        unsteered.map_err(|why| anyhow::anyhow!("cannot put everything back: {why}"))?;
        match failures.first() {
            Some(first) => {
                anyhow::bail!("cannot put everything back: {} ({} failures)", chain(first), failures.len())
            }
            None => Ok(()),
        }
    }
}

/// The engine of the scheduler that an earlier agent left in place, if any.
fn left(netlink: &mut Netlink, store: &Store) -> anyhow::Result<Option<String>> {
    let there = netlink.link(engine::DEVICE).is_ok();
    Ok(store.engine()?.filter(|_| there))
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok()
}

/// A class's activity, for views.
fn activity(minor: Option<u16>, demand: Demand) -> weir_api::Activity {
    match (minor, demand.is_active()) {
        (None, _) => weir_api::Activity::Absent,
        (_, true) => weir_api::Activity::Active,
        _ => weir_api::Activity::Idle,
    }
}
