//! Brings packets that arrive at the uplink to the scheduler of the download, and has those that leave
//! teach it whose flows they are.

use std::os::fd::RawFd;

use weir_bpf::{ClassifierConfig, EarlierDownload};
use weir_netlink::{Netlink, tc::Hook};

use super::{
    Attachments, EngineError,
    beside::{DOWN, LEARN},
};

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
            self.unfilter_beside(*index, device, &[DOWN, LEARN])?;
        }
        self.configure(|c| c.pacing = c.pacing & !ClassifierConfig::NAMED | named)?;
        match (uplink, hooks) {
            (Some((index, device)), Some(_)) => self.filter_beside(index, &device),
            _ => Ok(()),
        }
    }
}

/// The flows that an earlier agent's programs know, if they are attached to the link.
pub(crate) fn earlier(netlink: &mut Netlink, link: &str) -> Option<EarlierDownload> {
    let index = netlink.link(link).ok()?.index;
    let filters = netlink.filters(index, Hook::Ingress).ok()?;
    let ours = filters.iter().find(|f| DOWN.holds(f))?;
    EarlierDownload::of_program(ours.bpf_id?)
}
