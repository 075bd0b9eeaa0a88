//! Repairs programs that another process took away, and maps that it wrote into. Both give packets
//! to no class or to the wrong one while the scheduler is intact.

use std::collections::BTreeMap;

use nix::errno::Errno;
use weir_bpf::Wanted;

use super::{
    Ahead, Attach, Attachments, EngineError, Foreign, Hook, MAX_LINKS, PREF,
    ahead::{at_port, before_filters, before_ours},
    is_ours,
};

/// The parts that were damaged and are repaired.
#[derive(Debug, Default)]
pub struct Repairs {
    /// Interfaces that had lost the program that catches their packets.
    pub devices: Vec<String>,
    /// Maps of the programs, and how many of their entries had been altered, removed, or put there.
    pub entries: Vec<(&'static str, usize)>,
    /// Programs and filters of others that see packets before weir's. They are in force.
    pub ahead: Vec<Ahead>,
    /// The first thing that could not be looked at or mended; everything else was.
    pub failure: Option<EngineError>,
}

impl Repairs {
    pub(super) fn fail(&mut self, error: EngineError) {
        self.failure.get_or_insert(error);
    }

    /// Notes what runs before weir's at a hook.
    pub(super) fn note_ahead(&mut self, device: &str, hook: Hook, found: Vec<Foreign>) {
        self.ahead.extend(found.into_iter().map(|what| Ahead { device: device.to_owned(), hook, what }));
    }
}

impl Attachments {
    /// Looks whether the programs' maps hold what they should and every attachment is still there, and
    /// puts back what does not and is not.
    pub fn repair(&mut self) -> Repairs {
        let mut repairs = Repairs::default();
        self.repair_maps(&mut repairs);
        self.repair_ports(&mut repairs);
        for link in 0..MAX_LINKS {
            self.repair_uplink(link, &mut repairs);
        }
        self.repair_tunnels(&mut repairs);
        repairs
    }

    fn repair_maps(&self, repairs: &mut Repairs) {
        let ports: BTreeMap<u32, u32> =
            self.ports.iter().map(|(index, port)| (*index, self.port_value(*index, port.handle))).collect();
        let restored = self.classifier.restore(&Wanted {
            configs: &self.configs(),
            links: &self.leading,
            tunnels: &self.tunnels(),
            ways: &self.ways,
            ports: &ports,
            cgroups: &self.cgroups,
            local: &self.local,
            rules: &self.rules,
        });
        repairs.entries = restored.maps;
        repairs.failure = restored.failure.map(EngineError::from);
    }

    fn repair_ports(&mut self, repairs: &mut Repairs) {
        let ports: Vec<(u32, String)> = self.ports.iter().map(|(i, p)| (*i, p.device.clone())).collect();
        for (index, device) in ports {
            let there = match self.how_at(index) {
                Attach::Tcx => at_port(index),
                Attach::Clsact => match self.netlink.filters(index, Hook::Ingress) {
                    Ok(filters) => {
                        let mut before = before_filters(index, Hook::Ingress);
                        before.extend(before_ours(&filters));
                        Ok((filters.iter().any(|f| is_ours(f.bpf_name.as_deref())), before))
                    }
                    Err(e) => Err(e.errno().unwrap_or(Errno::EIO)),
                },
            };
            let there = there.map(|(is_there, before)| {
                repairs.note_ahead(&device, Hook::Ingress, before);
                is_there
            });
            match there {
                Ok(true) => {}
                // The interface went away with its container; the next look at the links tells.
                Err(Errno::ENODEV) => {}
                // It is not known whether the program is there, for example without a free descriptor.
                Err(errno) => repairs.fail(EngineError::Look { device, errno }),
                Ok(false) => match self.catch(index, &device) {
                    Ok(()) => repairs.devices.push(device),
                    Err(e) if e.is_gone() => {}
                    Err(e) => repairs.fail(e),
                },
            }
        }
    }

    fn repair_uplink(&mut self, link: u32, repairs: &mut Repairs) {
        let Some((index, device)) = self.uplink_of(link) else { return };
        let filters = match self.netlink.filters(index, Hook::Egress) {
            Ok(filters) => filters,
            Err(e) => return repairs.fail(e.into()),
        };
        repairs.note_ahead(&device, Hook::Egress, before_filters(index, Hook::Egress));
        repairs.note_ahead(&device, Hook::Egress, before_ours(&filters));
        if filters.iter().any(|f| f.pref == PREF && is_ours(f.bpf_name.as_deref())) {
            return self.repair_beside(link, index, &device, repairs);
        }
        let back =
            self.clsact(index, &device, Hook::Egress).and_then(|()| self.filter_uplink(link, index, &device));
        match back {
            Ok(()) => {
                self.repair_beside(link, index, &device, repairs);
                repairs.devices.push(device);
            }
            // The next discovery catches it, or says for as long as it cannot why the host is not shared.
            Err(e) => {
                self.lose_uplink(link);
                if !e.is_gone() {
                    repairs.fail(e);
                }
            }
        }
    }
}
