//! The link's queue and rate, as TCP timestamps and acknowledgements at the uplink tell them.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use libbpf_rs::{Map, MapCore, MapFlags, Object, ObjectBuilder};
use nix::errno::Errno;

use crate::{
    Error, LocalMaps,
    common::entries::{entries, u32_at, u64_at},
};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/signals.bpf.o"));
/// The sizes of `struct weir_down_flow` and `struct weir_sent_flow`.
const FLOW_KEY: usize = 40;
const FLOW: usize = 96;
/// `WEIR_CELLS` and `WEIR_CELL_NS` of signals.h.
const CELLS: u64 = 16;
const CELL_NS: u64 = 10_000_000;
/// The first word of what arrived.
const ARRIVED: usize = 6 + 2 * CELLS as usize;
/// The least queue is that of this many cells.
const RECENT_CELLS: u64 = 6;
/// A flow that has had no answer for this time counts as dead.
const DEAD_NS: u64 = 1_000_000_000;

/// The counts since the load of the programs. Times are nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalCounts {
    /// Bytes of all packets that left, as the scheduler counts them.
    pub sent: u64,
    /// TCP payload among them.
    pub sent_payload: u64,
    /// TCP payload that was answered.
    pub acked_payload: u64,
    /// The sum of answered payload times its flow's base, in microseconds.
    pub acked_base_us: u64,
    /// Round trips.
    pub samples: u64,
    /// The moment of the first payload that left since the last answer.
    pub waits_since: Option<u64>,
    /// The least round trip above its flow's base in the last 60 ms.
    pub least_queue: Option<u64>,
    /// TCP payload that has left and was not answered yet.
    pub on_the_way: u64,
    /// Bytes of all packets that came.
    pub arrived: u64,
    /// Delays of packets that came, by the clocks of their senders.
    pub delays: u64,
    /// The least delay above its flow's base in the last 60 ms.
    pub least_delay: Option<u64>,
}

/// The loaded programs and their maps.
///
/// Dropping it leaves attached programs, and the maps they use, in the kernel.
pub struct LinkSignals {
    object: Object,
    /// Of round trips, and of arrivals.
    epochs: [u32; 2],
    /// The link's number.
    link: u32,
}

impl LinkSignals {
    /// The name of the program at the uplink's egress.
    pub const EGRESS_PROGRAM: &'static str = "weir_sent";
    /// The name of the program at the uplink's ingress.
    pub const INGRESS_PROGRAM: &'static str = "weir_answered";

    /// Loads the programs for the link of this number, with the networks that the classifier knows. Nothing is
    /// attached yet.
    ///
    /// # Errors
    /// [`Error`] with libbpf's reason: no `CONFIG_BPF_SYSCALL`, no `CAP_BPF`, the verifier.
    pub fn load(link: u32, networks: Option<&LocalMaps>) -> Result<LinkSignals, Error> {
        libbpf_rs::set_print(None);
        let object = LinkSignals::open(networks)
            .map_err(|source| Error { what: "load the programs of the link's signals", source })?;
        let signals = LinkSignals { object, epochs: [0; 2], link };
        signals.configure()?;
        Ok(signals)
    }

    fn open(networks: Option<&LocalMaps>) -> Result<Object, libbpf_rs::Error> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        if let Some(networks) = networks {
            networks.share(&mut open)?;
        }
        open.load()
    }

    /// The program for the uplink's ingress, as a number for netlink.
    #[must_use]
    pub fn ingress_program(&self) -> RawFd {
        self.program(LinkSignals::INGRESS_PROGRAM)
    }

    /// The program for the uplink's egress, as a number for netlink.
    #[must_use]
    pub fn egress_program(&self) -> RawFd {
        self.program(LinkSignals::EGRESS_PROGRAM)
    }

    fn program(&self, name: &str) -> RawFd {
        let found = self.object.progs().find(|program| program.name() == name);
        found.expect("the object has this program").as_fd().as_raw_fd()
    }

    fn map(&self, name: &str) -> Map<'_> {
        self.object.maps().find(|map| map.name() == name).expect("the object has this map")
    }

    /// Reads the counts. `now` is the time of the monotonic clock in nanoseconds.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn read(&self, now: u64) -> Result<SignalCounts, Errno> {
        let sums = self.map("weir_link_signals").lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let sums = sums.map_err(|_| Errno::EIO)?.ok_or(Errno::ENOENT)?;
        let word = |index: usize| u64_at(&sums, 8 * index);
        let oldest = (now / CELL_NS).saturating_sub(RECENT_CELLS);
        let least = |from: usize| {
            let cells = (0..CELLS as usize).map(|cell| (word(from + 2 * cell), word(from + 1 + 2 * cell)));
            cells.filter(|(cell, _)| *cell > oldest).map(|(_, ns)| ns).min()
        };
        let flows = entries::<FLOW_KEY, FLOW>(&self.map("weir_sent_flows"), 256)?;
        Ok(SignalCounts {
            sent: word(0),
            sent_payload: word(1),
            acked_payload: word(2),
            acked_base_us: word(3),
            samples: word(4),
            waits_since: Some(word(5)).filter(|at| *at != 0),
            least_queue: least(6),
            on_the_way: flows.values().map(|flow| on_the_way(flow, now)).sum(),
            arrived: word(ARRIVED),
            delays: word(ARRIVED + 1),
            least_delay: least(ARRIVED + 2),
        })
    }

    /// Has all flows measure the bases of their round trips again.
    ///
    /// # Errors
    /// [`Error`].
    pub fn forget_bases(&mut self) -> Result<(), Error> {
        self.begin_epoch(0)
    }

    /// Has all flows measure the bases of what arrives again.
    ///
    /// # Errors
    /// [`Error`].
    pub fn forget_arrival_bases(&mut self) -> Result<(), Error> {
        self.begin_epoch(1)
    }

    fn begin_epoch(&mut self, of: usize) -> Result<(), Error> {
        self.epochs[of] = self.epochs[of].wrapping_add(1);
        self.configure()
    }

    /// Writes `struct weir_signals_config`.
    fn configure(&self) -> Result<(), Error> {
        let config = [self.epochs[0], self.epochs[1], self.link].map(u32::to_ne_bytes).concat();
        self.map("weir_signals_config")
            .update(&0u32.to_ne_bytes(), &config, MapFlags::ANY)
            .map_err(|source| Error { what: "configure the programs of the link's signals", source })
    }
}

/// The payload of a flow (`struct weir_sent_flow`) that has no answer yet.
fn on_the_way(flow: &[u8; FLOW], now: u64) -> u64 {
    let (answered, high, una, sacked) =
        (u64_at(flow, 0), u32_at(flow, 8), u32_at(flow, 12), u32_at(flow, 16));
    let way = high.wrapping_sub(una);
    // A number behind the acknowledgement belongs to another connection with the same ports.
    if now.saturating_sub(answered) > DEAD_NS || way > i32::MAX as u32 {
        return 0;
    }
    u64::from(way.saturating_sub(sacked))
}

#[cfg(test)]
mod tests;
