//! The links: where the scheduler of each is, and the filter at its uplink.

use std::collections::BTreeMap;

use weir_bpf::{Classifier, ClassifierConfig, Way};
use weir_netlink::tc::{self, Hook, Verdict};

use super::{Attach, Attachments, EngineError, MAX_LINKS, OfLink, PREF};

impl Attachments {
    /// The programs' values of each link, by its number.
    pub(super) fn configs(&self) -> Vec<ClassifierConfig> {
        let is_named = self.of_link.iter().any(|link| link.download.is_some());
        let is_several = self.config.flags & ClassifierConfig::SEVERAL != 0;
        let named = if is_named || is_several { ClassifierConfig::NAMED } else { 0 };
        let config = |(number, link): (u32, &OfLink)| ClassifierConfig {
            ifb_index: link.scheduler,
            cookie: self.cookie(number),
            flags: self.config.flags | link.bare | named,
            ..self.config
        };
        let mut configs: Vec<ClassifierConfig> = (0..MAX_LINKS).zip(&self.of_link).map(config).collect();
        if !is_several {
            // The programs look at the first alone.
            configs[0] = configs[self.config.main_link as usize];
        }
        configs
    }

    pub(super) fn write_configs(&self) -> Result<(), EngineError> {
        for (number, config) in (0..).zip(self.configs()) {
            self.classifier.configure(number, &config)?;
        }
        Ok(())
    }

    /// Changes the values of all links.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn configure(&mut self, change: impl FnOnce(&mut ClassifierConfig)) -> Result<(), EngineError> {
        let mut config = self.config;
        change(&mut config);
        if config != self.config {
            self.config = config;
            self.write_configs()?;
        }
        Ok(())
    }

    /// Shares these links by the routes that packets take, or one alone. `main` is the number of the link of
    /// packets that no route sends by another one.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn set_links(&mut self, main: u32, is_several: bool) -> Result<(), EngineError> {
        let several = if is_several { ClassifierConfig::SEVERAL } else { 0 };
        let was = self.config.main_link;
        self.configure(|c| {
            c.main_link = main;
            c.flags = c.flags & !ClassifierConfig::SEVERAL | several;
        })?;
        if was == main { Ok(()) } else { self.retarget_ports() }
    }

    /// Tells the programs how packets go on that enter at each port, and which devices lead out by which link.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn set_ways(
        &mut self,
        leading: BTreeMap<u32, u32>,
        ways: &BTreeMap<u32, Way>,
    ) -> Result<(), EngineError> {
        if self.leading != leading {
            self.classifier.set_links(&leading)?;
            self.leading = leading;
        }
        let gone: Vec<u32> = self.ways.keys().copied().filter(|port| !ways.contains_key(port)).collect();
        for port in gone {
            self.classifier.set_way(port, None)?;
            self.ways.remove(&port);
        }
        for (port, way) in ways {
            if self.ways.get(port) != Some(way) {
                self.classifier.set_way(*port, Some(*way))?;
                self.ways.insert(*port, *way);
            }
        }
        Ok(())
    }

    fn of(&mut self, link: u32) -> &mut OfLink {
        &mut self.of_link[link as usize]
    }

    /// Index of the device of this link whose egress is caught.
    #[must_use]
    pub fn uplink(&self, link: u32) -> Option<u32> {
        self.of_link[link as usize].uplink.as_ref().map(|(index, _)| *index)
    }

    /// The same with the device's name.
    pub(super) fn uplink_of(&self, link: u32) -> Option<(u32, String)> {
        self.of_link[link as usize].uplink.clone()
    }

    /// Catches, at this device's egress, what no port has seen of a link; no longer at another device's.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn set_uplink(&mut self, link: u32, index: u32, device: &str) -> Result<(), EngineError> {
        if self.uplink(link) == Some(index) {
            return Ok(());
        }
        // It may be gone, and what was added to it with it.
        let _ = self.release_uplink(link);
        self.of(link).bare = if self.look_for_ethernet(device)? { 0 } else { ClassifierConfig::BARE };
        self.write_configs()?;
        self.clsact(index, device, Hook::Egress)?;
        self.of(link).uplink = Some((index, device.to_owned()));
        let caught =
            self.filter_uplink(link, index, device).and_then(|()| self.filter_beside(link, index, device));
        if caught.is_err() {
            // Half of the filters may be there.
            let _ = self.release_uplink(link);
        }
        caught
    }

    /// Catches nothing at a link's egress any more.
    pub(super) fn release_uplink(&mut self, link: u32) -> Result<(), EngineError> {
        let Some((index, device)) = self.of(link).uplink.take() else { return Ok(()) };
        let beside = self.unfilter_beside(index, &device, &super::beside::all());
        let caught = self.unfilter(index, &device, Hook::Egress);
        if caught.as_ref().is_err_and(EngineError::is_gone) {
            self.created.retain(|(i, _)| *i != index);
        }
        beside.and(caught)
    }

    /// Forgets that a link's egress is caught, because its filter cannot be put back.
    pub(super) fn lose_uplink(&mut self, link: u32) {
        self.of(link).uplink = None;
    }

    pub(super) fn filter_uplink(&mut self, link: u32, index: u32, device: &str) -> Result<(), EngineError> {
        let program = (self.classifier.uplink_program(), Classifier::UPLINK_PROGRAM);
        let verdict = self.verdict(link);
        Ok(self.netlink.call(tc::set_bpf_filter(index, device, Hook::Egress, PREF, program, verdict))?)
    }

    /// The verdict of filters of a link: where no qdisc schedules packets the programs decide.
    pub(super) fn verdict(&self, link: u32) -> Verdict {
        if self.config.flags & (ClassifierConfig::IN_PLACE | ClassifierConfig::USER) == 0 {
            Verdict::Redirect { to: self.of_link[link as usize].scheduler }
        } else {
            Verdict::Program
        }
    }

    /// Points everything of a link at its scheduler's device, or at none (0): the link is not shared then.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn set_scheduler(&mut self, link: u32, index: u32) -> Result<(), EngineError> {
        self.of(link).scheduler = index;
        self.write_configs()?;
        if index == 0 {
            return self.release_uplink(link);
        }
        if let Some((index, device)) = self.uplink_of(link) {
            self.filter_uplink(link, index, &device)?;
        }
        if link == self.config.main_link { self.retarget_ports() } else { Ok(()) }
    }

    /// Points the ports' filters at the scheduler of the main link.
    fn retarget_ports(&mut self) -> Result<(), EngineError> {
        for (&index, port) in &self.ports {
            if self.how_at(index) == Attach::Clsact {
                match self.netlink.call(self.port_filter(index, &port.device)) {
                    Err(e) if !e.is_gone() => return Err(e.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
