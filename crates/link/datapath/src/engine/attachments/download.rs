//! Brings packets that arrive at the uplink to the scheduler of the download, and has those that leave
//! teach it whose flows they are.

use std::os::fd::RawFd;

use weir_bpf::{ClassifierConfig, Download, EarlierDownload};
use weir_netlink::{
    Netlink,
    tc::{self, Filter, Hook, Verdict},
};

use super::{Attachments, EngineError, PREF, repair::Repairs};

/// Priority of the filter that learns: behind the one that marks packets with their class.
const LEARN_PREF: u16 = PREF + 1;

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

/// The hook, the priority and the program of each filter.
const FILTERS: [(Hook, u16, &str); 2] =
    [(Hook::Egress, LEARN_PREF, Download::EGRESS_PROGRAM), (Hook::Ingress, PREF, Download::INGRESS_PROGRAM)];

fn is_it(filter: &Filter, pref: u16, name: &str) -> bool {
    filter.pref == pref && filter.bpf_name.as_deref() == Some(name)
}

impl Attachments {
    /// Has the uplink's arrivals pass unscheduled from here on.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn end_download(&mut self) -> Result<(), EngineError> {
        self.set_download(None)
    }

    /// Has the uplink's arrivals scheduled through these hooks, or no longer through any.
    ///
    /// # Errors
    /// [`EngineError`].
    pub(crate) fn set_download(&mut self, hooks: Option<DownloadHooks>) -> Result<(), EngineError> {
        if self.download == hooks {
            return Ok(());
        }
        self.download = hooks;
        let named = if hooks.is_some() { ClassifierConfig::NAMED } else { 0 };
        let uplink = self.uplink.clone();
        if let (Some((index, device)), None) = (&uplink, hooks) {
            self.unfilter_download(*index, device)?;
        }
        self.configure(|c| c.pacing = c.pacing & !ClassifierConfig::NAMED | named)?;
        match (uplink, hooks) {
            (Some((index, device)), Some(_)) => self.filter_download(index, &device),
            _ => Ok(()),
        }
    }

    /// Attaches the download's filters to an uplink. It has a clsact qdisc.
    pub(super) fn filter_download(&mut self, index: u32, device: &str) -> Result<(), EngineError> {
        let Some(hooks) = self.download else { return Ok(()) };
        for (hook, pref, name) in FILTERS {
            let (program, verdict) = match hook {
                Hook::Ingress => (hooks.ingress, Verdict::Redirect { to: hooks.device }),
                // It only looks, and its action is never taken.
                Hook::Egress => (hooks.egress, Verdict::None),
            };
            self.netlink.call(tc::set_bpf_filter(index, device, hook, pref, (program, name), verdict))?;
        }
        Ok(())
    }

    /// Takes the download's filters away from a device.
    pub(super) fn unfilter_download(&mut self, index: u32, device: &str) -> Result<(), EngineError> {
        // Packets pass unscheduled before the flows are no longer learned.
        for (hook, pref, name) in FILTERS.into_iter().rev() {
            if self.netlink.filters(index, hook)?.iter().any(|f| is_it(f, pref, name)) {
                self.netlink.call(tc::delete_filter(index, device, hook, pref))?;
            }
        }
        Ok(())
    }

    /// Puts the download's filters back if another program took them away.
    pub(super) fn repair_download(&mut self, index: u32, device: &str, repairs: &mut Repairs) {
        if self.download.is_none() {
            return;
        }
        for (hook, pref, name) in FILTERS {
            match self.netlink.filters(index, hook) {
                Ok(filters) if filters.iter().any(|f| is_it(f, pref, name)) => {}
                Ok(_) => {
                    let back =
                        self.clsact(index, device, hook).and_then(|()| self.filter_download(index, device));
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

/// The flows that an earlier agent's programs know, if they are attached to the link.
pub(crate) fn earlier(netlink: &mut Netlink, link: &str) -> Option<EarlierDownload> {
    let index = netlink.link(link).ok()?.index;
    let filters = netlink.filters(index, Hook::Ingress).ok()?;
    let ours = filters.iter().find(|f| is_it(f, PREF, Download::INGRESS_PROGRAM))?;
    EarlierDownload::of_program(ours.bpf_id?)
}
