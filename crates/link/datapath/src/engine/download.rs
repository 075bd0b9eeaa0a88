//! The scheduler of what arrives by the link: HTB on an ifb of its own, for any engine of the upload.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use weir_bpf::{DownloadConfig, DownloadMaps};
use weir_netlink::Netlink;
use weir_units::TcHandle;

use super::{
    Attachments, CONTROL, DEFAULT, Device as _, Engine, EngineError, EngineKind, HOST, Htb, MAJOR, Measured,
    Uplink,
    attachments::{DownloadHooks, earlier_download},
    plan::Plan,
};

fn handle(minor: u16) -> u32 {
    TcHandle::new(MAJOR, minor).0
}

/// The addresses of classes, which are named by their minors.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// Those that runtimes gave containers, and those of the node.
    pub told: BTreeMap<IpAddr, u16>,
    /// Those that containers' interfaces show alone.
    pub shown: BTreeMap<IpAddr, u16>,
    /// The classes whose interfaces show their addresses.
    pub showing: BTreeSet<u16>,
}

/// The scheduler and the programs of the download.
pub struct Download {
    /// The link's number.
    number: u32,
    tree: Htb,
    programs: weir_bpf::Download,
    maps: DownloadMaps,
}

impl Download {
    /// The engines of the upload beside which the download is scheduled. Engine `user` puts packets back
    /// with a mark that names no class.
    ///
    /// # Errors
    /// [`EngineError::Lacking`].
    pub fn goes_with(engine: EngineKind) -> Result<(), EngineError> {
        if engine != EngineKind::User {
            return Ok(());
        }
        let why = "it cannot share the download (use another engine, or leave `download` out)".to_owned();
        Err(EngineError::Lacking { engine, why })
    }

    /// Creates the scheduler of a link's download, or adopts the one that an earlier agent left. Nothing
    /// is sent to it yet.
    ///
    /// # Errors
    /// [`EngineError`]: no ifb or HTB in this kernel, missing rights, the name taken.
    pub fn open(uplink: Uplink<'_>, attachments: &Attachments) -> Result<Download, EngineError> {
        let earlier = earlier_download(&mut Netlink::open()?, uplink.device);
        let networks = attachments.local_maps()?;
        let programs = weir_bpf::Download::load(earlier.as_ref(), Some(&networks))?;
        let config = DownloadConfig {
            control_handle: handle(CONTROL),
            host_handle: handle(HOST),
            default_handle: handle(DEFAULT),
            cookie: attachments.cookie(uplink.number),
            link: uplink.number,
        };
        let tree = Htb::open_download(uplink, programs.sparse_flows()?)?;
        Ok(Download {
            number: uplink.number,
            tree,
            programs,
            maps: DownloadMaps { config, ..DownloadMaps::default() },
        })
    }

    /// The engine's name.
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        self.tree.kind()
    }

    /// The device through which packets go.
    #[must_use]
    pub fn device(&self) -> &str {
        self.tree.name()
    }

    /// Whether flows behind NAT are known by conntrack, and not only by what has left.
    #[must_use]
    pub fn asks_conntrack(&self) -> bool {
        self.programs.asks_conntrack()
    }

    /// Writes to the kernel's scheduler so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.tree.writes()
    }

    /// Makes the scheduler's classes those of the plan. `hold` as in [`Engine::apply`].
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn apply(&mut self, plan: &Plan<'_>, hold: bool) -> Result<(), EngineError> {
        self.tree.apply(plan, hold)?;
        self.maps.classes = plan.members.iter().map(|member| handle(member.minor)).collect();
        Ok(())
    }

    /// Makes the addresses and the classes of packets to them the given ones. They are written by
    /// [`restore`](Download::restore).
    pub fn set_addresses(&mut self, addresses: Addresses) {
        let handles = |of: BTreeMap<IpAddr, u16>| of.into_iter().map(|(to, minor)| (to, handle(minor)));
        self.maps.owners = handles(addresses.told).collect();
        self.maps.shown = handles(addresses.shown).collect();
        self.maps.showing = addresses.showing.into_iter().map(handle).collect();
    }

    /// The addresses by which the programs know a packet's class, with the handles of the classes.
    #[must_use]
    pub fn owners(&self) -> BTreeMap<IpAddr, u32> {
        // An address that was told is another's nowhere.
        let all = self.maps.shown.iter().chain(&self.maps.owners);
        all.map(|(address, handle)| (*address, *handle)).collect()
    }

    /// Writes the entries of the programs' maps that differ from the wanted ones: their number by map,
    /// and the first failure.
    pub fn restore(&mut self) -> (Vec<(&'static str, usize)>, Option<EngineError>) {
        let restored = self.programs.restore(&self.maps);
        (restored.maps, restored.failure.map(EngineError::from))
    }

    /// Has the uplink's arrivals come here.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn attach(&self, attachments: &mut Attachments) -> Result<(), EngineError> {
        let hooks = DownloadHooks {
            ingress: self.programs.ingress_program(),
            egress: self.programs.egress_program(),
            device: self.tree.index(),
        };
        attachments.set_download(self.number, Some(hooks))
    }

    /// Reads all classes' counters, as [`Engine::measure`] does. A device that is gone is made again, and
    /// counts as an alteration.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn measure(
        &mut self,
        out: &mut Vec<Measured>,
        attachments: &mut Attachments,
    ) -> Result<usize, EngineError> {
        let drift = match self.tree.measure(out) {
            Ok(drift) if out.is_empty() => drift.max(1),
            Ok(drift) => return Ok(drift),
            Err(e) if e.is_gone() => 1,
            Err(e) => return Err(e),
        };
        if self.tree.rebuild()? {
            self.attach(attachments)?;
        }
        Ok(drift)
    }

    /// Packets that each class has lost, by minor.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn drops(&mut self) -> Result<BTreeMap<u16, u64>, EngineError> {
        self.tree.drops()
    }

    /// Sets the device up if another program set it down. True if so.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn wake(&mut self) -> Result<bool, EngineError> {
        self.tree.wake()
    }

    /// Bytes that wait in all queues.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn backlog(&mut self) -> Result<u64, EngineError> {
        self.tree.backlog()
    }

    /// Has the uplink's arrivals pass unscheduled from here on.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn detach(&self, attachments: &mut Attachments) -> Result<(), EngineError> {
        attachments.set_download(self.number, None)
    }

    /// Removes the device. Nothing is sent to it any more.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn remove(&mut self) -> Result<(), EngineError> {
        self.tree.remove()
    }
}
