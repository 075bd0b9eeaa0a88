//! The egress of tunnels that lead over a link. A program there writes a packet's class into its hash, which
//! the tunnel keeps.

use std::{collections::BTreeMap, os::fd::AsRawFd};

use nix::errno::Errno;
use weir_bpf::{Classifier, ClassifierConfig, Tunnel, attach};
use weir_netlink::tc::{self, Hook, Verdict};

use super::{Attach, Attachments, EngineError, PREF, repair::Repairs};

/// A tunnel whose egress is caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caught {
    device: String,
    tunnel: Tunnel,
}

/// A device of a tunnel that leads over a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelDevice {
    /// The device's name.
    pub device: String,
    /// Its MTU, bytes.
    pub mtu: u32,
}

impl Attachments {
    /// Makes the tunnels the given ones, by the indices of their devices. The outer packets of other tunnels are
    /// charged beside the inner ones. Failures come back by device.
    pub fn set_tunnels(&mut self, wanted: &BTreeMap<u32, TunnelDevice>) -> Vec<(String, EngineError)> {
        let mut failures = Vec::new();
        let gone: Vec<u32> = self.tunnels.keys().copied().filter(|i| !wanted.contains_key(i)).collect();
        for index in gone {
            if let Some(caught) = self.tunnels.remove(&index) {
                failures.extend(self.release_tunnel(index, &caught.device).err().map(|e| (caught.device, e)));
            }
        }
        let mut new = Vec::new();
        for (&index, TunnelDevice { device, mtu }) in wanted {
            let known = self.tunnels.get(&index).map(|caught| caught.tunnel.number);
            let Some(number) = known.or_else(|| self.free_number()) else {
                failures.push((
                    device.clone(),
                    EngineError::TooManyTunnels { device: device.clone(), most: Tunnel::MOST },
                ));
                continue;
            };
            let caught = Caught { device: device.clone(), tunnel: Tunnel { number, mtu: *mtu } };
            if self.tunnels.insert(index, caught).is_none() {
                new.push((index, device));
            }
        }
        // The programs know a tunnel before its first packet.
        if let Err(e) = self.write_tunnels() {
            self.tunnels.clear();
            failures.push((names(wanted), e));
            return failures;
        }
        for (index, device) in new {
            if let Err(e) = self.catch_tunnel(index, device) {
                self.tunnels.remove(&index);
                failures.push((device.clone(), e));
            }
        }
        // Packets into a tunnel without the program do not lack its headers: their outer packets are charged.
        failures.extend(self.write_tunnels().err().map(|e| (names(wanted), e)));
        failures
    }

    /// The devices of the tunnels whose packets are charged once.
    #[must_use]
    pub fn tunnel_devices(&self) -> Vec<&str> {
        self.tunnels.values().map(|caught| caught.device.as_str()).collect()
    }

    /// Tells the programs which tunnels there are.
    fn write_tunnels(&mut self) -> Result<(), EngineError> {
        let tunnels = self.tunnels();
        if tunnels != self.told_tunnels {
            self.classifier.set_tunnels(&tunnels)?;
            let flag = if tunnels.is_empty() { 0 } else { ClassifierConfig::TUNNELS };
            self.configure(|c| c.flags = c.flags & !ClassifierConfig::TUNNELS | flag)?;
            self.told_tunnels = tunnels;
        }
        Ok(())
    }

    /// The tunnels as the programs know them.
    pub(super) fn tunnels(&self) -> BTreeMap<u32, Tunnel> {
        self.tunnels.iter().map(|(index, caught)| (*index, caught.tunnel)).collect()
    }

    fn free_number(&self) -> Option<u32> {
        (0..Tunnel::MOST).find(|number| self.tunnels.values().all(|caught| caught.tunnel.number != *number))
    }

    fn catch_tunnel(&mut self, index: u32, device: &str) -> Result<(), EngineError> {
        match self.how {
            Attach::Tcx => {
                let error =
                    |errno| EngineError::Attach { device: device.to_owned(), how: "tcx", errno, hint: "" };
                let old = tunnel_programs_at(index).map_err(error)?;
                attach::attach_tcx_egress(&self.classifier.tunnel_program(), index, old.first().copied())
                    .map_err(error)?;
                // An earlier agent may have attached the other way.
                self.unfilter(index, device, Hook::Egress)
            }
            Attach::Clsact => {
                self.clsact(index, device, Hook::Egress)?;
                let program = (self.classifier.tunnel_program().as_raw_fd(), Classifier::TUNNEL_PROGRAM);
                let filter = tc::set_bpf_filter(index, device, Hook::Egress, PREF, program, Verdict::Program);
                self.netlink.call(filter)?;
                uncatch_tunnel(index, device)
            }
        }
    }

    fn release_tunnel(&mut self, index: u32, device: &str) -> Result<(), EngineError> {
        let removed = uncatch_tunnel(index, device);
        match self.unfilter(index, device, Hook::Egress) {
            Err(e) if !e.is_gone() => Err(e),
            _ => removed,
        }
    }

    /// Catches tunnels again whose program another process took away.
    pub(super) fn repair_tunnels(&mut self, repairs: &mut Repairs) {
        let tunnels: Vec<(u32, String)> = self.tunnels.iter().map(|(i, c)| (*i, c.device.clone())).collect();
        for (index, device) in tunnels {
            let there = match self.how {
                Attach::Tcx => tunnel_programs_at(index).map(|ids| !ids.is_empty()),
                Attach::Clsact => match self.netlink.filters(index, Hook::Egress) {
                    Ok(filters) => {
                        Ok(filters.iter().any(|f| f.bpf_name.as_deref() == Some(Classifier::TUNNEL_PROGRAM)))
                    }
                    Err(e) => Err(e.errno().unwrap_or(Errno::EIO)),
                },
            };
            match there {
                // A device that went away is no tunnel at the next look.
                Ok(true) | Err(Errno::ENODEV) => {}
                Err(errno) => repairs.fail(EngineError::Look { device, errno }),
                Ok(false) => match self.catch_tunnel(index, &device) {
                    Ok(()) => repairs.devices.push(device),
                    Err(e) if e.is_gone() => {}
                    Err(e) => repairs.fail(e),
                },
            }
        }
    }
}

fn names(tunnels: &BTreeMap<u32, TunnelDevice>) -> String {
    let names: Vec<&str> = tunnels.values().map(|tunnel| tunnel.device.as_str()).collect();
    names.join(", ")
}

/// Ids of weir's programs at an interface's TCX egress.
fn tunnel_programs_at(index: u32) -> Result<Vec<u32>, Errno> {
    attach::named(attach::tcx_egress(index)?, &[Classifier::TUNNEL_PROGRAM])
}

/// Takes weir's program away from an interface's TCX egress, as `uncatch_tcx` does at ingress.
pub(super) fn uncatch_tunnel(index: u32, device: &str) -> Result<(), EngineError> {
    let detach = |ids: Vec<u32>| ids.into_iter().try_for_each(|id| attach::detach_tcx_egress(id, index));
    match tunnel_programs_at(index).and_then(detach) {
        Err(errno @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EPERM)) => {
            Err(EngineError::Look { device: device.to_owned(), errno })
        }
        _ => Ok(()),
    }
}
