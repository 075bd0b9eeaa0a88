//! The scheduler of what leaves by a link, and its state at the last look.

use weir_api::EventKind;
use weir_datapath::engine::{
    Attachments, Engine, EngineError, EngineKind, Home, Lateness, Measured, Plan, Uplink, plan,
};
use weir_netlink::{Link, Netlink};
use weir_units::{Instant, chain};

use super::{
    datapath,
    effects::{Effects, not_enforced},
    link_state::LinkState,
    reconcile::ACQUAINTED,
    work::Work,
};
use crate::config::Config;

/// The scheduler of one link.
pub(super) struct Scheduler {
    /// The link's number, which belongs to its device.
    pub(super) number: u32,
    pub(super) engine: Box<dyn Engine>,
    /// The engine was set up for packets without an Ethernet header.
    pub(super) is_bare: bool,
    /// The name of the device through which packets go: the scheduler's, or the link's own.
    pub(super) device: String,
    /// How late a scheduler in user space was at the last look.
    pub(super) lateness: Option<Lateness>,
    pub(super) shape: plan::Shape,
    /// The reason if the uplink's own traffic is not shared.
    pub(super) uplink_failure: Option<String>,
    /// The counters of the classes at the last look.
    pub(super) measured: Vec<Measured>,
    /// The link at the last discovery; none before the first one.
    link: Option<LinkState>,
    /// The fault at the last attempt.
    pub(super) error: Option<String>,
    /// Foreign changes undone since the start.
    pub(super) repairs: u64,
    /// Writes of engines that were replaced.
    replaced_writes: u64,
    /// The agent has not watched for long enough to know which classes send.
    is_new_here: bool,
    /// The start of the watch.
    watches_since: Option<Instant>,
}

/// Sets up the engine for the link of a configuration. Also returns whether its packets have no Ethernet header.
fn engine(
    config: &Config,
    number: u32,
    kind: EngineKind,
    attachments: &mut Attachments,
) -> Result<(Box<dyn Engine>, bool), EngineError> {
    let link = &config.link;
    let found = Netlink::open()?.link(&link.device);
    let uplink = Uplink { number, device: &link.device };
    let mut engine = kind.open(uplink, link.queues, attachments, Home::Process)?;
    if let Some(process) = engine.process() {
        process.set_realtime(link.priority);
    }
    Ok((engine, found.is_ok_and(|found| !found.has_ethernet())))
}

impl Scheduler {
    /// Whether nothing but paced sockets and credit holds classes to their shares.
    pub(super) fn only_paces(&self) -> bool {
        self.engine.kind() == EngineKind::Pacing
    }

    /// Sets up the scheduler of the link of a configuration, or takes over that of an earlier agent.
    pub(super) fn open(
        config: &Config,
        number: u32,
        kind: EngineKind,
        attachments: &mut Attachments,
    ) -> Result<Scheduler, EngineError> {
        let link = &config.link;
        let (mut engine, is_bare) = engine(config, number, kind, attachments)?;
        let device = engine.device().map_or(link.device.clone(), |device| device.name().to_owned());
        Ok(Scheduler {
            number,
            engine,
            is_bare,
            device,
            lateness: None,
            shape: datapath::shape(config, 1500, false),
            uplink_failure: None,
            measured: Vec::new(),
            link: None,
            error: None,
            repairs: 0,
            replaced_writes: 0,
            is_new_here: true,
            watches_since: None,
        })
    }

    /// Replaces the engine, for a link whose packets have another header.
    pub(super) fn reopen(
        &mut self,
        config: &Config,
        attachments: &mut Attachments,
    ) -> Result<(), EngineError> {
        attachments.set_scheduler(self.number, 0)?;
        self.engine.remove()?;
        let (engine, is_bare) = engine(config, self.number, self.engine.kind(), attachments)?;
        self.is_bare = is_bare;
        self.replaced_writes += std::mem::replace(&mut self.engine, engine).writes();
        Ok(())
    }

    /// The work of the scheduler since the start.
    pub(super) fn work(&self) -> Work {
        Work { writes: self.replaced_writes + self.engine.writes(), repairs: self.repairs }
    }

    /// Makes the engine enforce these allocations. After a failure they must be enforced again. A new agent
    /// leaves the classes of an earlier one unchanged.
    pub(super) fn enforce(&mut self, groups: &[plan::Group], members: &[plan::Member]) -> Effects {
        let plan = Plan { shape: &self.shape, groups, members };
        match self.engine.apply(&plan, self.is_new_here) {
            Ok(_) => {
                self.error = None;
                Effects::default()
            }
            Err(e) => Effects::reallocate(true).and(self.fault(chain(&e))),
        }
    }

    /// Reads the counters of the classes.
    pub(super) fn poll_counters(&mut self, now: Instant, attachments: &mut Attachments) -> Effects {
        let mut measured = std::mem::take(&mut self.measured);
        let read = self.measure(&mut measured, attachments);
        self.measured = measured;
        let mut effects = match read {
            Ok(0) => Effects::default(),
            Ok(drift) => {
                let text = format!("{drift} objects of the scheduler had been altered or removed");
                self.repaired(text).and(Effects::reallocate(true))
            }
            // A write that failed is tried again.
            Err(e) => Effects::reallocate(true).and(self.fault(chain(&e))),
        };
        let since = *self.watches_since.get_or_insert(now);
        if self.is_new_here && now.since(since) >= ACQUAINTED {
            self.is_new_here = false;
            effects.reallocate = true;
        }
        effects
    }

    /// The same into `out`. Returns the number of objects that another program had changed.
    fn measure(
        &mut self,
        out: &mut Vec<Measured>,
        attachments: &mut Attachments,
    ) -> Result<usize, EngineError> {
        let drift = self.engine.measure(out);
        self.lateness = self.engine.process().map(|process| process.lateness());
        let drift = match drift {
            Ok(drift) if out.is_empty() => drift.max(1),
            Ok(drift) => return Ok(drift),
            Err(EngineError::Netlink(e)) if e.is_gone() => 1,
            Err(e) => return Err(e),
        };
        // The device or the root qdisc is gone.
        if let Some(device) = self.engine.device()
            && device.rebuild()?
        {
            attachments.set_scheduler(self.number, device.index())?;
        }
        Ok(drift)
    }

    /// Remembers why the scheduler is at fault, and reports a new reason.
    pub(super) fn fault(&mut self, why: String) -> Effects {
        let is_new = self.error.as_ref() != Some(&why);
        let effects = if is_new { not_enforced(why.clone()) } else { Effects::default() };
        self.error = Some(why);
        effects
    }

    /// Counts a repair and reports it.
    fn repaired(&mut self, detail: String) -> Effects {
        self.repairs += 1;
        Effects::event(EventKind::Repaired, detail)
    }

    /// Whether the node's classes were discovered since the agent started.
    pub(super) fn has_seen_link(&self) -> bool {
        self.link.is_some()
    }

    /// Whether the link's device was there at the last discovery.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.link, Some(LinkState::Present { .. }))
    }

    pub(super) fn is_link_up(&self) -> bool {
        matches!(self.link, Some(LinkState::Present { is_up: true, .. }))
    }

    /// Takes the link's present state, and reports what happened to it. `device` is its configured name.
    pub(super) fn follow_link(&mut self, device: &str, found: Option<&Link>) -> Effects {
        let now = LinkState::of(found);
        let before = self.link.replace(now.clone());
        let change = before.and_then(|before| now.change_since(&before, device));
        change.map_or(Effects::default(), |what| Effects::event(EventKind::Link, what))
    }

    /// Catches what leaves by the link's device and no port has seen. `device` is its configured name.
    pub(super) fn catch(&mut self, device: &str, found: Option<&Link>, attachments: &mut Attachments) {
        self.uplink_failure = match found {
            Some(link) => {
                attachments.set_uplink(self.number, link.index, &link.name).err().map(|e| chain(&e))
            }
            None => Some(format!("there is no interface {device} now")),
        };
    }

    /// Sets the scheduler's device up if another program set it down.
    pub(super) fn wake(&mut self) -> Effects {
        let Some(device) = self.engine.device() else { return Effects::default() };
        match device.wake() {
            Ok(false) => Effects::default(),
            Ok(true) => {
                let text = format!("{} had been set down", self.device);
                self.repaired(text)
            }
            Err(e) => self.fault(chain(&e)),
        }
    }
}
