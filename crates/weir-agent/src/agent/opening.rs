//! The start of the agent. A start that fails leaves the kernel as it was found, unless an earlier agent's division is in
//! force, which the next start takes over.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::Context as _;
use weir_agree::Direction;
use weir_api::EventKind;
use weir_datapath::{
    engine::{self, Standing},
    left,
};
use weir_netlink::Netlink;
use weir_share::Allocator;
use weir_units::{BitRate, Instant, chain};

use super::{
    Agent, advice,
    agree::Agreements,
    allocate::Allocations,
    api::Api,
    audit::Audit,
    capacity::Capacities,
    check,
    class_table::ClassTable,
    clock::{self, Clock},
    cluster::Cluster,
    cni::CniContainers,
    config_file::ConfigFile,
    datapath::{self, Datapath},
    download::Download,
    events::EventLog,
    links,
    promises::Promises,
    restore,
    runtimes::{self, Runtimes},
    scheduler::Scheduler,
    sources::Sources,
    store::{Store, StoreError, room},
    threads::Threads,
    uplink::Uplink,
    work::Work,
};
use crate::{
    config::Config,
    images::{Images, OnFault},
    server::Access,
};

/// The advice for an agent that may not set up a scheduler.
const RIGHTS: &str =
    "the agent needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN; `weir doctor` tells what is missing";

/// The schedulers of the main link, the numbers of the links whose devices an earlier agent left, and the main link's.
struct Main {
    scheduler: Scheduler,
    download: Option<Download>,
    numbers: BTreeMap<String, u32>,
}

impl Agent {
    /// Builds the agent, which `serve` then runs. After an error the division of an earlier agent is in force, or
    /// the link is not shared.
    pub(super) fn open(config_file: ConfigFile, config: Config, access: Access) -> anyhow::Result<Agent> {
        let standing = Standing::look(&mut Netlink::open()?)?;
        let state = config.agent.state.clone();
        let opened = Agent::open_beside(&standing, config_file, config, access);
        opened.map_err(|error| {
            let error = with_way_out(error, &state);
            if standing.is_empty() { error } else { after(error, &standing, &state) }
        })
    }

    fn open_beside(
        standing: &Standing,
        config_file: ConfigFile,
        config: Config,
        access: Access,
    ) -> anyhow::Result<Agent> {
        let path = &config_file.path;
        let mut netlink = Netlink::open()?;
        let store = Store::open(&config.agent.state)?;
        let capacities = Capacities::new(&config, store.capacity()?);
        let config = capacities.in_force(config);
        let (set, minors) = (store.policies()?, store.minors()?);
        let clock = Clock::start(clock::read(), &clock::boot_id(), store.clock()?.as_ref());
        let utc = clock.now(clock::since_boot());
        let agreements = Agreements::open(&config, &store, utc)?;
        let promised = agreements.as_ref().map_or(BitRate::ZERO, |a| a.promised(Direction::Upload, utc));
        let (promises, history) = (store.promises()?, store.history()?);
        let classes = ClassTable::new(config.clone(), set, minors, promises.clone(), promised);
        let (control, left_out) = advice::open(&config, &store)
            .map_err(|why| anyhow::anyhow!("cannot use configuration {}: {why}", path.display()))?;
        // The state may be lost, and the division in force all the same.
        let is_left = !standing.is_empty();
        let left = store.engine()?.filter(|_| is_left);
        let framed = config.link.all().filter(|link| link.line().is_some());
        let framed: Vec<_> = framed.filter_map(|link| netlink.link(&link.device).ok()).collect();
        let frames = |kind: engine::EngineKind| framed.iter().all(|link| kind.frames_on(link).is_ok());
        let fits = |kind| config.link.fits(kind) && frames(kind);
        let (kind, refused) = config
            .link
            .engine
            .choose(left.as_deref(), fits)
            .with_context(|| format!("cannot set up a scheduler ({RIGHTS})"))?;
        if is_left && left.as_deref() != Some(kind.name()) {
            // It takes the place of the one that is in force. An automatic choice was tested.
            check::can_open(path, config.link.engine)?;
        }
        let marks = datapath::Marks { cookie: store.cookie()?, tunnel_key: store.tunnel_key()? };
        // All that may fail without the kernel comes before its programs and devices.
        let runtimes = Runtimes::open(&classes.config().discover);
        let cni = CniContainers::open(&config.agent.state, clock::boot_id());
        let audit = Audit::open(&config.agent.state, config.agent.audit(), Instant::default());
        let api = Api::new(&config, access, store.tokens()?);
        let cluster = Cluster::open(&config).map_err(|why| check::unusable(path, why))?;
        let images = images(&config)?;
        let refused_by_kernel = |error: engine::EngineError| match check::can_run(path, config.link.engine) {
            Ok(()) => {
                let what = format!("cannot set up the scheduler with engine {kind} ({RIGHTS})");
                anyhow::Error::from(error).context(what)
            }
            Err(why) => why,
        };
        let promised = agreements.as_ref().map_or(BitRate::ZERO, |a| a.promised(Direction::Download, utc));
        let mut datapath =
            Datapath::open(&config, kind, &marks, store.created()?).map_err(refused_by_kernel)?;
        let main = Main::open(&config, kind, is_left, &store, promised, &mut datapath);
        let Main { scheduler, download, numbers } = match main {
            Ok(main) => main,
            Err(error) => {
                datapath.undo_pacing();
                return Err(match error {
                    Unopened::Scheduler(error) => refused_by_kernel(error),
                    Unopened::Other(error) => error,
                });
            }
        };
        let mut agent = Agent {
            config_file,
            store,
            clock,
            agreements,
            capacities,
            classes,
            promises: Promises::new(promises, Store::save_promises),
            history,
            audit,
            datapath,
            link: Uplink {
                scheduler,
                allocations: Allocations::new(Allocator::new(config.allocator())),
                programs: None,
                autorate: None,
                download,
                exempt: Default::default(),
                ended: Work::default(),
            },
            others: Vec::new(),
            unshared: BTreeMap::new(),
            ended: Work::default(),
            congestion: control,
            sources: Sources::new(runtimes, cni, cluster),
            events: EventLog::new(),
            images,
            api,
            threads: Threads::new(),
            started: std::time::Instant::now(),
            max_tick_delay: Duration::ZERO,
        };
        if let Err(why) = agent.share_others(kind, &numbers) {
            agent.undo_start(is_left);
            anyhow::bail!(why);
        }
        agent.follow_rates();
        for (better, why) in refused {
            agent.event(EventKind::Engine, None, format!("{better} was not taken: {why}"));
        }
        if agent.capacities.are_left_out() {
            let text =
                "capacities that were set by hand are not in force, as the configuration has several links";
            agent.event(EventKind::CapacityChanged, None, text.to_owned());
        }
        for why in left_out {
            agent.event(EventKind::NotEnforced, None, why);
        }
        Ok(agent)
    }

    /// Removes what a start has made. If an earlier agent's schedulers are left, all stay for the next start.
    fn undo_start(&mut self, is_left: bool) {
        if !is_left {
            let failures = self.datapath.attachments.remove();
            if let Some(first) = failures.first() {
                tracing::warn!("cannot detach what an earlier agent attached: {}", chain(first));
            }
            if let Err(e) = self.remove_schedulers() {
                tracing::warn!("cannot remove what this start made: {}", chain(&e));
            }
        }
        self.datapath.undo_pacing();
    }
}

/// Completes an error about the state with what to do about a disk that is full or read-only.
fn with_way_out(error: anyhow::Error, state: &Path) -> anyhow::Error {
    match room::way_out(state) {
        Some(way_out) if error.chain().any(|cause| cause.is::<StoreError>()) => {
            anyhow::anyhow!("{error:#} ({way_out})")
        }
        _ => error,
    }
}

/// Completes the error of a start beside an earlier agent's division. If the start has replaced a part of it, all of
/// it is removed: packets would still be sent to schedulers without classes.
fn after(error: anyhow::Error, standing: &Standing, state: &Path) -> anyhow::Error {
    let stands = Netlink::open().map_err(Into::into).and_then(|mut netlink| standing.stands(&mut netlink));
    if matches!(stands, Ok(true)) {
        tracing::warn!("the division of an earlier agent stays in force (`weir agent --restore` removes it)");
        return error;
    }
    let store = Store::open(state).inspect_err(|e| tracing::warn!("{}", chain(e))).ok();
    let created = store.as_ref().and_then(|store| store.created().ok()).unwrap_or_default();
    let removed = left::remove(created);
    if let Some(Err(e)) = store.map(|store| restore::forget(&store, &removed)) {
        tracing::warn!("{}", chain(&e));
    }
    let fault = removed.faults.first();
    error.context(match fault {
        None => "the link is not shared now: the start had replaced the division of an earlier agent, which is removed".to_owned(),
        Some(why) => format!(
            "the start had replaced the division of an earlier agent, and a part of it could not be removed: {why} \
             (`weir agent --restore` tries again)"
        ),
    })
}

/// The reason why the main link has no schedulers.
enum Unopened {
    Scheduler(engine::EngineError),
    Other(anyhow::Error),
}

impl Main {
    /// Sets up the schedulers of the main link, or takes over those of an earlier agent. After a failure those that
    /// were set up are gone, unless an earlier agent's are left (`is_left`).
    fn open(
        config: &Config,
        kind: engine::EngineKind,
        is_left: bool,
        store: &Store,
        promised: BitRate,
        datapath: &mut Datapath,
    ) -> Result<Main, Unopened> {
        let mut numbers = engine::numbers_left(&mut datapath.netlink).map_err(Unopened::Scheduler)?;
        let taken = engine::numbers_taken(&mut datapath.netlink).map_err(Unopened::Scheduler)?;
        let devices = config.link.all().map(|link| link.device.as_str());
        let number = links::numbers(devices, &numbers, &taken)[&config.link.device];
        // The other links take theirs beside it.
        numbers.insert(config.link.device.clone(), number);
        let attachments = &mut datapath.attachments;
        let scheduler = Scheduler::open(config, number, kind, attachments).map_err(Unopened::Scheduler)?;
        let undone = |error: anyhow::Error, mut scheduler: Scheduler, download: Option<Download>| {
            if !is_left {
                let removed = download.map_or(Ok(()), |mut download| download.remove());
                if let Err(e) = scheduler.engine.remove().and(removed) {
                    tracing::warn!("cannot remove what this start made: {}", chain(&e));
                }
            }
            Unopened::Other(error)
        };
        let download = match Download::open(config, (number, kind), store, promised, attachments) {
            Ok(download) => download,
            Err(error) => {
                let error =
                    anyhow::Error::from(error).context("cannot set up the scheduler of [link] download");
                return Err(undone(error, scheduler, None));
            }
        };
        match store.save_engine(Some(kind.name())) {
            Ok(()) => Ok(Main { scheduler, download, numbers }),
            Err(error) => Err(undone(error.into(), scheduler, download)),
        }
    }
}

/// Starts the image cache of a configuration.
fn images(config: &Config) -> anyhow::Result<Images> {
    let images = match config.images.clone() {
        Some(settings) if settings.is_agents() => {
            Images::start(settings, config.discover.docker.clone(), OnFault::TryAgain)?
        }
        _ => Images::off(),
    };
    images.hold_runtime(runtimes::images_wanted(config))?;
    Ok(images)
}
