//! The start of the agent.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use weir_agree::Direction;
use weir_api::EventKind;
use weir_datapath::engine;
use weir_netlink::Netlink;
use weir_share::Allocator;
use weir_units::{BitRate, Instant};

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
    runtimes::Runtimes,
    scheduler::Scheduler,
    sources::Sources,
    store::Store,
    threads::Threads,
    uplink::Uplink,
    work::Work,
};
use crate::{config::Config, images::Images, server::Access};

impl Agent {
    pub(super) fn open(config_file: ConfigFile, config: Config, access: Access) -> anyhow::Result<Agent> {
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
        let left = left(&mut netlink, &store)?;
        let is_left = left.is_some();
        let framed = config.link.all().filter(|link| link.line().is_some());
        let framed: Vec<_> = framed.filter_map(|link| netlink.link(&link.device).ok()).collect();
        let frames = |kind: engine::EngineKind| framed.iter().all(|link| kind.frames_on(link).is_ok());
        let fits = |kind| config.link.fits(kind) && frames(kind);
        let (kind, refused) = config.link.engine.choose(left.as_deref(), fits).context(
            "cannot set up a scheduler (the agent needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN; `weir doctor` tells what is missing)",
        )?;
        let marks = datapath::Marks { cookie: store.cookie()?, tunnel_key: store.tunnel_key()? };
        let opened = Datapath::open(&config, kind, &marks, store.created()?).and_then(|mut datapath| {
            let left = engine::numbers_left(&mut datapath.netlink)?;
            let devices = config.link.all().map(|link| link.device.as_str());
            let taken = engine::numbers_taken(&mut datapath.netlink)?;
            let number = links::numbers(devices, &left, &taken)[&config.link.device];
            let scheduler = Scheduler::open(&config, number, kind, &mut datapath.attachments)?;
            Ok((datapath, scheduler, left))
        });
        let (datapath, mut scheduler, left_numbers) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                check::can_run(path, config.link.engine)?;
                let what = format!(
                    "cannot set up the scheduler with engine {kind} (the agent needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN; `weir doctor` tells what is missing)"
                );
                return Err(anyhow::Error::from(error).context(what));
            }
        };
        let promised = agreements.as_ref().map_or(BitRate::ZERO, |a| a.promised(Direction::Download, utc));
        let download =
            Download::open(&config, (scheduler.number, kind), &store, promised, &datapath.attachments);
        let download = match download {
            Ok(download) => download,
            Err(error) => {
                // An earlier agent's scheduler stays as it was found.
                if !is_left {
                    scheduler.engine.remove()?;
                }
                let what = "cannot set up the scheduler of [link] download";
                return Err(anyhow::Error::from(error).context(what));
            }
        };
        store.save_engine(Some(kind.name()))?;
        let runtimes = Runtimes::open(&classes.config().discover);
        let cni = CniContainers::open(&config.agent.state, clock::boot_id());
        let audit = Audit::open(&config.agent.state, config.agent.audit(), Instant::default());
        let api = Api::new(&config, access, store.tokens()?);
        let cluster = Cluster::open(&config).map_err(|why| check::unusable(path, why))?;
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
                autorate: None,
                download,
                ended: Work::default(),
            },
            others: Vec::new(),
            unshared: BTreeMap::new(),
            ended: Work::default(),
            congestion: control,
            sources: Sources::new(runtimes, cni, cluster),
            events: EventLog::new(),
            images: Images::off(),
            api,
            threads: Threads::new(),
            started: std::time::Instant::now(),
            max_tick_delay: Duration::ZERO,
        };
        if let Err(why) = agent.share_others(kind, &left_numbers) {
            // An earlier agent's schedulers stay as they were found.
            if !is_left {
                agent.remove_schedulers()?;
            }
            anyhow::bail!(why);
        }
        agent.follow_by(agent.classes.config().link.follows);
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
}

/// The engine of the schedulers that an earlier agent left in place, if any.
fn left(netlink: &mut Netlink, store: &Store) -> anyhow::Result<Option<String>> {
    let there = !engine::numbers_left(netlink)?.is_empty();
    Ok(store.engine()?.filter(|_| there))
}
