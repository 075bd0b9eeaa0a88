//! A link that is shared: the division of what leaves by it, and of what arrives.

use std::collections::BTreeSet;

use ipnet::IpNet;
use weir_api::EventKind;
use weir_datapath::engine::{self, Attachments, EngineError, plan};
use weir_netlink::Link;
use weir_units::{BitRate, Instant, chain};

use super::{
    allocate::Allocations,
    autorate::{Autorate, Programs, Way},
    datapath,
    download::{Download, told},
    effects::Effects,
    scheduler::Scheduler,
    work::Work,
};
use crate::config::{Config, Follows};

/// The outcome of a look at links whose rate changes.
pub(super) struct Followed {
    /// The scheduler of the upload needs another capacity.
    pub(super) applies: bool,
    /// The events to publish.
    pub(super) news: Vec<String>,
    /// The effects of another division of the download.
    pub(super) down: Effects,
}

/// The parts that belong to one link.
pub(super) struct Uplink {
    pub(super) scheduler: Scheduler,
    /// Demands of the classes, and the division of what leaves.
    pub(super) allocations: Allocations,
    /// The programs that tell the link's rate, if it is followed in a direction.
    pub(super) programs: Option<Programs>,
    /// The follower of the upload's rate, if the capacity is a range.
    pub(super) autorate: Option<Autorate>,
    /// The download, if the configuration shares it.
    pub(super) download: Option<Download>,
    /// Networks beside the device, whose packets pass unscheduled.
    pub(super) exempt: BTreeSet<IpNet>,
    /// The work of downloads that are shared no longer.
    pub(super) ended: Work,
}

impl Uplink {
    /// The capacity that the scheduler divides, where `configured` is that of the configuration.
    pub(super) fn in_force(&self, configured: BitRate) -> BitRate {
        self.autorate.as_ref().and_then(Autorate::in_force).unwrap_or(configured)
    }

    /// Reads what each class sent and queued in both directions.
    pub(super) fn poll_counters(&mut self, now: Instant, attachments: &mut Attachments) -> Effects {
        let polled = self.scheduler.poll_counters(now, attachments);
        self.allocations.observe(&self.scheduler.measured, now);
        match &mut self.download {
            Some(download) => polled.and(download.poll_counters(now, attachments)),
            None => polled,
        }
    }

    /// Reads the drops of the queues.
    pub(super) fn count_drops(&mut self) {
        match self.scheduler.engine.drops() {
            Ok(drops) => self.allocations.set_drops(&drops),
            // The next look at the classes reports the fault.
            Err(e) => tracing::debug!("cannot read the queues: {}", chain(&e)),
        }
        if let Some(download) = &mut self.download {
            download.count_drops();
        }
    }

    /// The shape of the tree for a configuration of the link and the largest MTU of its packets.
    pub(super) fn shape(&self, config: &Config, mtu: u32, has_tunnels: bool) -> plan::Shape {
        let shape = datapath::shape(config, mtu, has_tunnels);
        plan::Shape { capacity: self.in_force(config.link.capacity), ..shape }
    }

    /// Replaces the schedulers if the packets of the device that was found have another header than those of
    /// the device that they were made for. Their queues are lost.
    pub(super) fn fit(
        &mut self,
        config: &Config,
        found: Option<&Link>,
        attachments: &mut Attachments,
    ) -> Effects {
        let is_other = |found: &&Link| found.has_ethernet() == self.scheduler.is_bare;
        let is_queue = matches!(self.scheduler.engine.place(), engine::Place::Queue(_));
        let Some(found) = found.filter(is_other).filter(|_| is_queue) else {
            return Effects::default();
        };
        self.allocations.mark();
        let reopened = self.scheduler.reopen(config, attachments).and_then(|()| match &mut self.download {
            Some(download) => {
                let uplink = engine::Uplink { number: self.scheduler.number, device: &config.link.device };
                download.reopen(uplink, attachments)
            }
            None => Ok(()),
        });
        match reopened {
            Ok(()) => {
                let header = if found.has_ethernet() { "an Ethernet header" } else { "no Ethernet header" };
                let text = format!("packets of {} have {header} now", found.name);
                Effects::event(EventKind::Link, text)
            }
            Err(e) => self.scheduler.fault(chain(&e)).and(Effects::rediscover(true)),
        }
    }

    /// Has packets pass unscheduled, and removes the schedulers.
    pub(super) fn end(&mut self, attachments: &mut Attachments) -> Result<(), EngineError> {
        self.autorate = None;
        if let Some(programs) = self.programs.take() {
            programs.close(attachments);
        }
        let ended = self.end_download(attachments);
        attachments.set_scheduler(self.scheduler.number, 0)?;
        self.scheduler.engine.remove()?;
        ended
    }

    /// Has what arrives pass unscheduled, and removes its scheduler. After a failure it goes on as before.
    pub(super) fn end_download(&mut self, attachments: &mut Attachments) -> Result<(), EngineError> {
        let Some(download) = &mut self.download else { return Ok(()) };
        download.end(attachments)?;
        self.ended += download.work();
        self.download = None;
        Ok(())
    }

    /// Removes the schedulers. Nothing is sent to them any more.
    pub(super) fn remove(&mut self) -> Result<(), EngineError> {
        let removed = self.download.as_mut().map_or(Ok(()), Download::remove);
        self.scheduler.engine.remove()?;
        removed
    }

    /// The work of the schedulers since the start.
    pub(super) fn work(&self) -> Work {
        let download = self.download.as_ref().map(Download::work);
        [self.scheduler.work(), self.ended].into_iter().chain(download).sum()
    }

    /// Whether no class sends, and nothing arrives.
    pub(super) fn is_idle(&self) -> bool {
        self.allocations.is_idle() && self.download.as_ref().is_none_or(|d| d.allocations.is_idle())
    }

    /// The names of the devices that hold the schedulers. A scheduler in user space holds the one that its
    /// tap stands on.
    pub(super) fn devices(&self) -> BTreeSet<String> {
        let uplink = engine::Uplink { number: self.scheduler.number, device: "" };
        let holds = self.scheduler.engine.place() != engine::Place::InPlace;
        let upload = holds.then(|| uplink.upload_device());
        let download = self.download.as_ref().map(|_| uplink.download_device());
        upload.into_iter().chain(download).collect()
    }

    /// Bytes that wait in all queues.
    pub(super) fn backlog(&mut self) -> u64 {
        let leaving = self.scheduler.engine.device().map_or(Ok(0), |device| device.backlog());
        leaving.unwrap_or(0) + self.download.as_mut().map_or(0, Download::backlog)
    }

    /// Whether the rate of a direction is followed.
    pub(super) fn is_followed(&self) -> bool {
        self.programs.is_some()
    }

    /// The networks beside the device, for views.
    pub(super) fn exempt(&self) -> Vec<String> {
        self.exempt.iter().map(IpNet::to_string).collect()
    }

    /// The follower of the upload's rate, for views.
    pub(super) fn follows(&self) -> Option<weir_api::Follows> {
        Some(self.autorate.as_ref()?.view(self.programs.as_ref()))
    }

    /// The errors of directions that cannot be followed.
    pub(super) fn unfollowed(&self) -> Vec<String> {
        let download = self.download.as_ref().and_then(|download| download.follower.as_ref());
        let of = |follower: &Autorate| follower.failure(self.programs.as_ref());
        let down = download.and_then(of).map(|why| told(&why));
        self.autorate.as_ref().and_then(of).into_iter().chain(down).collect()
    }

    /// Follows the upload between other bounds, and the download between those of its configuration, or no
    /// longer. `configured` is the capacity of the configuration.
    pub(super) fn follow_rates(
        &mut self,
        follows: Option<Follows>,
        configured: BitRate,
        attachments: &mut Attachments,
        now: Instant,
    ) {
        let down = self.download.as_ref().and_then(|download| download.classes.config().link.follows);
        let (number, kind) = (self.scheduler.number, self.scheduler.engine.kind());
        let is_wanted = follows.is_some() || down.is_some();
        if let Some(programs) = self.programs.take_if(|_| !is_wanted) {
            programs.close(attachments);
        }
        let is_open = self.programs.as_ref().is_some_and(|programs| programs.unopened().is_none());
        if is_wanted && !is_open {
            self.programs = Some(Programs::open(number, attachments));
            // Followers of programs that could not be opened end with these.
            self.autorate = None;
            if let Some(download) = &mut self.download {
                download.follower = None;
            }
        }
        let programs = self.programs.as_ref();
        if self.autorate.as_ref().map(Autorate::follows) != follows {
            let new = |(follows, programs)| Autorate::of_engine(follows, kind, programs, now);
            self.autorate = follows.zip(programs).map(new);
            self.scheduler.shape.capacity = self.in_force(configured);
            self.allocations.mark();
        }
        if let Some(download) = &mut self.download
            && download.follower.as_ref().map(Autorate::follows) != down
        {
            let new = |(follows, programs)| Autorate::new(follows, Way::Down, programs, now);
            download.follower = down.zip(programs).map(new);
            download.allocations.mark();
        }
    }

    /// Decides about the capacities of a link whose rate changes. The download is divided again if it needs to.
    pub(super) fn follow_link(&mut self, configured: BitRate, now: Instant) -> Followed {
        let mut followed = Followed { applies: false, news: Vec::new(), down: Effects::default() };
        let Some(programs) = &mut self.programs else { return followed };
        let read = programs.read();
        if let Some(autorate) = &mut self.autorate {
            let has_backlog = self.allocations.all().any(|class| class.counters.backlog > 0);
            followed.news.extend(autorate.tick(now, read.as_ref(), has_backlog));
            if autorate.forgets_bases() {
                programs.forget_bases(Way::Up);
            }
            followed.applies = autorate.applies();
        }
        if let Some(download) = &mut self.download
            && let Some(follower) = &mut download.follower
        {
            let has_backlog = download.allocations.all().any(|class| class.counters.backlog > 0);
            followed.news.extend(follower.tick(now, read.as_ref(), has_backlog).map(|news| told(&news)));
            if follower.forgets_bases() {
                programs.forget_bases(Way::Down);
            }
            if follower.applies() {
                followed.down = download.divide_only();
            }
        }
        if followed.applies {
            self.scheduler.shape.capacity = self.in_force(configured);
        }
        followed
    }
}
