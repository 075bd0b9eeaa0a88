//! Filters at the uplink beside the one that catches packets: those of the download, and those that watch
//! the link's signals.

use std::os::fd::RawFd;

use weir_bpf::{Download, EarlierDownload, LinkSignals};
use weir_netlink::{
    Netlink,
    tc::{self, Filter, Hook, Verdict},
};

use super::{
    Attachments, EngineError, PREF,
    ahead::{before_filters, before_ours},
    repair::Repairs,
};

/// A filter's place and its program's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) hook: Hook,
    pub(super) pref: u16,
    pub(super) name: &'static str,
}

/// It sends what arrives through a scheduler.
pub(super) const DOWN: Spot = Spot { hook: Hook::Ingress, pref: PREF, name: Download::INGRESS_PROGRAM };
/// It learns, behind the filter that marks packets with their class.
pub(super) const LEARN: Spot = Spot { hook: Hook::Egress, pref: PREF + 1, name: Download::EGRESS_PROGRAM };
/// It sees what leaves the scheduler.
pub(super) const SENT: Spot = Spot { hook: Hook::Egress, pref: PREF + 2, name: LinkSignals::EGRESS_PROGRAM };
/// It sees what arrives, before the download's scheduler.
pub(super) const ANSWERED: Spot =
    Spot { hook: Hook::Ingress, pref: PREF - 1, name: LinkSignals::INGRESS_PROGRAM };

/// All spots. Packets pass unscheduled before the flows are no longer learned.
pub(super) fn all() -> Vec<Spot> {
    vec![DOWN, LEARN, ANSWERED, SENT]
}

impl Spot {
    pub(super) fn holds(&self, filter: &Filter) -> bool {
        filter.pref == self.pref && filter.bpf_name.as_deref() == Some(self.name)
    }
}

/// A filter that is wanted at a spot.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    spot: Spot,
    program: RawFd,
    verdict: Verdict,
}

/// The programs of the download, and the device of its scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DownloadHooks {
    /// For the uplink's ingress.
    pub(crate) ingress: RawFd,
    /// For its egress.
    pub(crate) egress: RawFd,
    /// The index of the scheduler's device.
    pub(crate) device: u32,
}

/// The flows that an earlier agent's programs know, if they are attached to the link.
pub(crate) fn earlier_download(netlink: &mut Netlink, link: &str) -> Option<EarlierDownload> {
    let index = netlink.link(link).ok()?.index;
    let filters = netlink.filters(index, Hook::Ingress).ok()?;
    let ours = filters.iter().find(|f| DOWN.holds(f))?;
    EarlierDownload::of_program(ours.bpf_id?)
}

/// The programs that watch the link's signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignalHooks {
    /// For the uplink's ingress.
    pub(crate) ingress: RawFd,
    /// For its egress.
    pub(crate) egress: RawFd,
}

impl Attachments {
    /// The filters that are wanted at a link beside the one that catches packets.
    fn wanted_beside(&self, link: u32) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        let link = &self.of_link[link as usize];
        if let Some(hooks) = link.download {
            let verdict = Verdict::Redirect { to: hooks.device };
            // LEARN only looks, and its action is never taken.
            wanted.push(Wanted { spot: LEARN, program: hooks.egress, verdict: Verdict::None });
            wanted.push(Wanted { spot: DOWN, program: hooks.ingress, verdict });
        }
        if let Some(hooks) = link.signals {
            wanted.push(Wanted { spot: SENT, program: hooks.egress, verdict: Verdict::None });
            wanted.push(Wanted { spot: ANSWERED, program: hooks.ingress, verdict: Verdict::None });
        }
        wanted
    }

    /// Has the arrivals at a link's uplink scheduled through these hooks, or no longer through any.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(crate) fn set_download(
        &mut self,
        link: u32,
        hooks: Option<DownloadHooks>,
    ) -> Result<(), EngineError> {
        if self.of_link[link as usize].download == hooks {
            return Ok(());
        }
        let uplink = self.uplink_of(link);
        if let (Some((index, device)), None) = (&uplink, hooks) {
            // Until it succeeds the filter sends packets to the scheduler, and the next call tries again.
            self.unfilter_beside(*index, device, &[DOWN, LEARN])?;
        }
        self.of_link[link as usize].download = hooks;
        // Marks name classes where a download is shared.
        self.write_configs()?;
        match (uplink, hooks) {
            (Some((index, device)), Some(_)) => self.filter_beside(link, index, &device),
            _ => Ok(()),
        }
    }

    /// Has programs watch a link's signals, or none. After an error none are wanted: their descriptors close.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(crate) fn set_signals(&mut self, link: u32, hooks: Option<SignalHooks>) -> Result<(), EngineError> {
        if self.of_link[link as usize].signals == hooks {
            return Ok(());
        }
        self.of_link[link as usize].signals = hooks;
        let changed = match (self.uplink_of(link), hooks) {
            (Some((index, device)), Some(_)) => self.filter_beside(link, index, &device),
            (Some((index, device)), None) => self.unfilter_beside(index, &device, &[SENT, ANSWERED]),
            (None, _) => Ok(()),
        };
        if changed.is_err() {
            self.of_link[link as usize].signals = None;
        }
        changed
    }

    /// Attaches the wanted filters to a link's uplink. It has a clsact qdisc.
    pub(super) fn filter_beside(&mut self, link: u32, index: u32, device: &str) -> Result<(), EngineError> {
        for Wanted { spot, program, verdict } in self.wanted_beside(link) {
            let program = (program, spot.name);
            self.netlink.call(tc::set_bpf_filter(index, device, spot.hook, spot.pref, program, verdict))?;
        }
        Ok(())
    }

    /// Takes filters away from a device. One that has gone has none.
    pub(super) fn unfilter_beside(
        &mut self,
        index: u32,
        device: &str,
        spots: &[Spot],
    ) -> Result<(), EngineError> {
        for spot in spots {
            let mut take_away = || -> Result<(), EngineError> {
                if self.netlink.filters(index, spot.hook)?.iter().any(|f| spot.holds(f)) {
                    self.netlink.call(tc::delete_filter(index, device, spot.hook, spot.pref))?;
                }
                Ok(())
            };
            take_away().or_else(|e| if e.is_gone() { Ok(()) } else { Err(e) })?;
        }
        Ok(())
    }

    /// The filters that are not wanted at a link.
    pub(super) fn unwanted_beside(&self, link: u32) -> Vec<Spot> {
        let wanted = self.wanted_beside(link);
        all().into_iter().filter(|spot| !wanted.iter().any(|w| w.spot == *spot)).collect()
    }

    /// Puts the wanted filters back if another program took them away.
    pub(super) fn repair_beside(&mut self, link: u32, index: u32, device: &str, repairs: &mut Repairs) {
        for Wanted { spot, .. } in self.wanted_beside(link) {
            match self.netlink.filters(index, spot.hook) {
                Ok(filters) if filters.iter().any(|f| spot.holds(f)) => {
                    if spot == DOWN {
                        repairs.note_ahead(device, spot.hook, before_filters(index, spot.hook));
                        repairs.note_ahead(device, spot.hook, before_ours(&filters));
                    }
                }
                Ok(_) => {
                    let back = self
                        .clsact(index, device, spot.hook)
                        .and_then(|()| self.filter_beside(link, index, device));
                    match back {
                        Ok(()) => repairs.devices.push(device.to_owned()),
                        Err(e) if e.is_gone() => {}
                        Err(e) => repairs.fail(e),
                    }
                    return;
                }
                Err(e) if e.is_gone() => {}
                Err(e) => repairs.fail(e.into()),
            }
        }
    }
}
