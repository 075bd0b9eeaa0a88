//! The fair queueing qdisc (`fair.bpf.c`): loaded, found again, told and read.
//!
//! Its state and its parameters are one map, which lives as long as the qdisc does, with or without
//! a process of weir's. A qdisc's kind is a name of the whole machine: [`Fair::kind`] makes one for
//! each network namespace and device.

use std::{
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
};

use libbpf_rs::{Link, MapCore, MapHandle, MapType, Object, ObjectBuilder, query::MapInfoIter};
use nix::errno::Errno;

use crate::{
    Error,
    common::{framing::FramingWord, mapped::Mapped},
};

/// The compiled programs.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fair.bpf.o"));
/// The same with [`Mode::Paper`].
const PAPER_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/paper.bpf.o"));
/// Where the kernel says which kinds of struct_ops it has.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
/// A type that it has from 6.16 on with `CONFIG_NET_SCH_BPF`.
const NEEDED_TYPE: &[u8] = b"\0bpf_struct_ops_Qdisc_ops\0";

const SHARED: &str = ".bss.weir_fair";
const MAGIC: u32 = 0x7269_6577;
/// `FAIR_LAYOUT`: another one is another program's, and is not taken over.
const LAYOUT: u32 = 3;
/// The mark of a qdisc whose programs are those of [`PAPER_OBJECT`].
const PAPER_LAYOUT: u32 = 0x1_0000 | LAYOUT;
const RATE_SHIFT: u32 = 20;
/// `struct fair_shared`, in words: the configuration's page, parameters, counters.
const PARAMS: usize = 4096 / 8;
const STATS: usize = PARAMS + Fair::ENTITIES as usize * Params::WORDS;
const WORDS: usize = STATS + Fair::ENTITIES as usize * 8;

/// `struct fair_config` after what [`LinkParams`] says: flush, live, flushes, pool_full,
/// unclassified, changed.
const FLUSH: usize = 9;
const CHANGED: usize = FLUSH + 5;

/// How classes take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Start-time fair queueing.
    #[default]
    Fair,
    /// qCon, repaired: round robin, gated by credit that is handed out every 30 ms or earlier.
    Credit,
    /// qCon as the paper has it: a timer hands out credit by Algorithm 1 every 30 ms. For comparison.
    Paper,
}

impl Mode {
    /// The programs that have the mode, and the layout's number in their map.
    fn object(self) -> (&'static [u8], u32) {
        match self {
            Mode::Fair | Mode::Credit => (OBJECT, LAYOUT),
            Mode::Paper => (PAPER_OBJECT, PAPER_LAYOUT),
        }
    }
}

/// The link, `struct fair_config` of fair.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkParams {
    /// How classes take turns.
    pub mode: Mode,
    /// The rate of the link, bytes/s; 0: no limit.
    pub bytes_per_sec: u64,
    /// So late may the link be served without loss of rate, ns.
    pub burst_ns: u64,
    /// So far ahead of the link's clock small packets of new flows may go, ns.
    pub sparse_ns: u64,
    /// The largest packet that may, bytes.
    pub small_bytes: u32,
    /// CoDel's target, us.
    pub codel_target_us: u32,
    /// CoDel's interval, us.
    pub codel_interval_us: u32,
    /// The framing of the line. Bytes and rates are the line's with it.
    pub framing: FramingWord,
}

/// qCon's period, which credits are for (Sensors 2018, 18, 3444; section 4).
const PERIOD_MS: u64 = 30;

impl LinkParams {
    /// The words of `struct fair_config` that user space may change, from `ifindex` on.
    fn words(&self, ifindex: u32) -> [u64; 7] {
        let mode = match self.mode {
            Mode::Fair => 0,
            Mode::Credit => 1,
            Mode::Paper => 2,
        };
        [
            pair(ifindex, mode),
            cost(self.bytes_per_sec),
            self.burst_ns,
            self.sparse_ns,
            per_period(self.bytes_per_sec),
            pair(self.small_bytes, self.codel_target_us),
            pair(self.codel_interval_us, self.framing.0),
        ]
    }
}

/// A class or group, `struct fair_params` of fair.h. The default is one that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Params {
    /// Its share: 1 to 1,000,000.
    pub weight: u32,
    /// At least this, bytes/s; 0: no floor.
    pub floor_bytes_per_sec: u64,
    /// At most this, bytes/s; 0: no ceiling.
    pub ceil_bytes_per_sec: u64,
    /// Minor of its group, 0 if it has none.
    pub group: u16,
    /// The most that waits, bytes.
    pub limit_bytes: u32,
    /// It has members, and no packets of its own.
    pub is_group: bool,
    /// Its floor goes before all others'.
    pub is_urgent: bool,
    /// Packets may be sent to it.
    pub is_present: bool,
}

impl Params {
    const WORDS: usize = 8;
    /// The word that marks the map as complete: written last.
    const FLAGS: usize = 4;

    fn words(&self) -> [u64; Params::WORDS] {
        let flags =
            u32::from(self.is_present) | u32::from(self.is_group) << 1 | u32::from(self.is_urgent) << 2;
        [
            (1 << 32) / u64::from(self.weight.max(1)),
            cost(self.floor_bytes_per_sec),
            cost(self.ceil_bytes_per_sec),
            pair(self.group.into(), self.limit_bytes),
            pair(flags, self.weight),
            per_period(self.floor_bytes_per_sec),
            per_period(self.ceil_bytes_per_sec),
            0,
        ]
    }
}

/// Time for a byte in units of 2^-20 ns; rounded up, so that no rate is exceeded.
fn cost(bytes_per_sec: u64) -> u64 {
    (1_000_000_000u64 << RATE_SHIFT).div_ceil(bytes_per_sec.max(1)) * u64::from(bytes_per_sec != 0)
}

fn per_period(bytes_per_sec: u64) -> u64 {
    u64::try_from(u128::from(bytes_per_sec) * u128::from(PERIOD_MS) / 1000).unwrap_or(u64::MAX)
}

/// Two neighbours of 32 bits as one word.
fn pair(first: u32, second: u32) -> u64 {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn unpair(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

/// The counters of a class since the qdisc was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Sent, layer 2; with a framing the line's bytes.
    pub bytes: u64,
    /// Sent; a super-packet counts its segments.
    pub packets: u64,
    /// Dropped.
    pub drops: u64,
    /// Marked with congestion experienced instead.
    pub marks: u64,
    /// Bytes waiting.
    pub backlog_bytes: u32,
    /// Packets waiting.
    pub backlog_packets: u32,
    /// Times it had to wait for its ceiling.
    pub overlimits: u64,
}

/// Faults in the kernel, `struct fair_config` of fair.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Times that state did not fit together, and all packets were dropped to begin again.
    pub flushes: u64,
    /// Packets dropped because 65,535 were waiting.
    pub pool_full: u64,
    /// Packets that named no class, and went to the default one.
    pub unclassified: u64,
}

/// The qdisc of one device: programs, and the map that is shared with them.
///
/// Dropping it leaves an attached qdisc as it is; only no new one of its kind can be made.
pub struct Fair {
    kind: String,
    shared: Mapped,
    ifindex: u32,
    /// None if the qdisc was taken over.
    loaded: Option<(Object, Link)>,
}

impl Fair {
    /// Minors that a class or group can have are below this.
    pub const ENTITIES: u16 = 4096;
    /// The name under which the kernel knows the program that marks packets.
    pub const MARK_PROGRAM: &'static str = "weir_fair_mark";

    /// The features that this kernel lacks for such a qdisc; `None` if it has all.
    #[must_use]
    pub fn lacking() -> Option<String> {
        let needs = "BPF qdiscs need kernel >= 6.16 with CONFIG_NET_SCH_BPF";
        match std::fs::read(KERNEL_TYPES) {
            Err(error) => {
                Some(format!("{needs} and CONFIG_DEBUG_INFO_BTF: cannot read {KERNEL_TYPES}: {error}"))
            }
            Ok(types) if types.windows(NEEDED_TYPE.len()).any(|w| w == NEEDED_TYPE) => None,
            Ok(_) => Some(format!("{needs}: {KERNEL_TYPES} has no bpf_struct_ops_Qdisc_ops")),
        }
    }

    /// The kind of the qdisc of this device in the network namespace with this inode. It is the
    /// same for every agent, and no other has it (but for one chance in 2^32).
    #[must_use]
    pub fn kind_of(netns: u64, ifindex: u32) -> String {
        // FNV-1a, 32 bits.
        let bytes = netns.to_ne_bytes().into_iter().chain(ifindex.to_ne_bytes());
        let hash = bytes.fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        format!("weir{hash:08x}")
    }

    /// Loads the programs of a mode and makes their kind known to the kernel; no qdisc uses it yet.
    ///
    /// # Errors
    /// [`Error`] with libbpf's reason: see [`Fair::lacking`], no `CAP_BPF`, the verifier.
    pub fn load(netns: u64, ifindex: u32, mode: Mode) -> Result<Fair, Error> {
        let (object, layout) = mode.object();
        let error = |source| Error { what: "load the fair queueing qdisc", source };
        libbpf_rs::set_print(None);
        let kind = Fair::kind_of(netns, ifindex);
        let mut open =
            ObjectBuilder::default().name("weir_fair").map_err(error)?.open_memory(object).map_err(error)?;
        for mut map in open.maps_mut() {
            // `id` is the first member of the program's struct Qdisc_ops.
            if map.name() == OsStr::new("weir_fair")
                && let Some(id) = map.initial_value_mut().and_then(|value| value.get_mut(..16))
            {
                id.fill(0);
                id[..kind.len()].copy_from_slice(kind.as_bytes());
            }
        }
        let mut object = open.load().map_err(error)?;
        let shared = object.maps().find(|m| m.name() == OsStr::new(SHARED)).ok_or_else(|| missing(SHARED))?;
        let shared = map_shared(&shared)?;
        shared.write(0, pair(MAGIC, layout));
        shared.write(1, netns);
        shared.write(2, pair(ifindex, 0));
        let link = object
            .maps_mut()
            .find(|m| m.name() == OsStr::new("weir_fair"))
            .ok_or_else(|| missing("weir_fair"))?
            .attach_struct_ops()
            .map_err(|source| Error { what: "make the fair queueing qdisc known to the kernel", source })?;
        Ok(Fair { kind, shared, ifindex, loaded: Some((object, link)) })
    }

    /// The qdisc that an earlier process left at work on this device; `None` without one, with one of
    /// another layout, or with programs that lack the mode.
    ///
    /// # Errors
    /// [`Error`] if its map is there and cannot be read.
    pub fn find(netns: u64, ifindex: u32, mode: Mode) -> Result<Option<Fair>, Error> {
        let (_, layout) = mode.object();
        let ours =
            |info: &libbpf_rs::query::MapInfo| info.ty == MapType::Array && info.name == OsStr::new(SHARED);
        for info in MapInfoIter::default().filter(ours) {
            let Ok(map) = MapHandle::from_map_id(info.id) else { continue }; // gone since
            if map.value_size() as usize != WORDS * 8 {
                continue;
            }
            let shared = map_shared(&map)?;
            let fair = Fair { kind: Fair::kind_of(netns, ifindex), shared, ifindex, loaded: None };
            let is_ours = fair.shared.read(0) == pair(MAGIC, layout)
                && fair.shared.read(1) == netns
                && unpair(fair.shared.read(2)).0 == ifindex;
            if is_ours && fair.is_live() {
                return Ok(Some(fair));
            }
        }
        Ok(None)
    }

    /// The qdisc's kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// A qdisc uses this object.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.shared.read(FLUSH + 1) != 0
    }

    /// The program for the egress of the qdisc's device that sets the marks CoDel asks for;
    /// `None` for a qdisc that was taken over, which has it already.
    #[must_use]
    pub fn mark_program(&self) -> Option<OwnedFd> {
        let (object, _) = self.loaded.as_ref()?;
        let program = object.progs().find(|p| p.name() == OsStr::new(Fair::MARK_PROGRAM))?;
        program.as_fd().try_clone_to_owned().ok()
    }

    /// Tells what the link is. True if anything was different.
    pub fn set_link(&self, link: &LinkParams) -> bool {
        let words = link.words(self.ifindex);
        let mut differs = false;
        for (i, word) in words.into_iter().enumerate() {
            if self.shared.read(2 + i) != word {
                self.shared.write(2 + i, word);
                differs = true;
            }
        }
        differs
    }

    /// Whether the link is what was told.
    #[must_use]
    pub fn link_is(&self, link: &LinkParams) -> bool {
        link.words(self.ifindex).into_iter().enumerate().all(|(i, word)| self.shared.read(2 + i) == word)
    }

    /// Tells what a class or group is. One that goes keeps its other parameters until its queue
    /// is empty.
    ///
    /// # Panics
    /// If the minor is not below [`Fair::ENTITIES`].
    pub fn set(&self, minor: u16, params: &Params) {
        let at = place(minor, PARAMS);
        let words = params.words();
        // Of one that is or was there, as its packets may still be: another weight, floor or group.
        let is_other = |i: usize, mask: u64| (self.shared.read(at + i) ^ words[i]) & mask != 0;
        let changes = params.is_present
            && self.shared.read(at) != 0
            && (is_other(0, u64::MAX) || is_other(1, u64::MAX) || is_other(3, u32::MAX.into()));
        if params.is_present {
            for (i, word) in words.into_iter().enumerate().filter(|(i, _)| *i != Params::FLAGS) {
                self.shared.write(at + i, word);
            }
        }
        self.shared.write(at + Params::FLAGS, words[Params::FLAGS]);
        if changes {
            self.shared.write(CHANGED, 1);
        }
    }

    /// Whether the class or group is what was told; of one that is not there, only that.
    ///
    /// # Panics
    /// As [`Fair::set`].
    #[must_use]
    pub fn is(&self, minor: u16, params: &Params) -> bool {
        let at = place(minor, PARAMS);
        let words = params.words();
        if !params.is_present {
            return !self.is_present(minor);
        }
        words.into_iter().enumerate().all(|(i, word)| self.shared.read(at + i) == word)
    }

    /// Whether a class or group of this minor is there.
    ///
    /// # Panics
    /// As [`Fair::set`].
    #[must_use]
    pub fn is_present(&self, minor: u16) -> bool {
        unpair(self.shared.read(place(minor, PARAMS) + Params::FLAGS)).0 & 1 != 0
    }

    /// The counters of a class.
    ///
    /// # Panics
    /// As [`Fair::set`].
    #[must_use]
    pub fn stats(&self, minor: u16) -> Stats {
        let at = place(minor, STATS);
        let word = |i| self.shared.read(at + i);
        let (backlog_bytes, backlog_packets) = unpair(word(4));
        Stats {
            bytes: word(0),
            packets: word(1),
            drops: word(2),
            marks: word(3),
            backlog_bytes,
            backlog_packets,
            overlimits: word(5),
        }
    }

    /// Lets the qdisc drop its backlog and begin again, because its state is damaged in a way that
    /// it cannot see itself.
    pub fn flush(&self) {
        self.shared.write(FLUSH, 1);
    }

    /// The faults.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults {
            flushes: self.shared.read(FLUSH + 2),
            pool_full: self.shared.read(FLUSH + 3),
            unclassified: self.shared.read(FLUSH + 4),
        }
    }
}

fn place(minor: u16, from: usize) -> usize {
    assert!(minor < Fair::ENTITIES, "minor {minor:x} of {:x}", Fair::ENTITIES);
    from + usize::from(minor) * 8
}

fn map_shared(map: &impl MapCore) -> Result<Mapped, Error> {
    Mapped::of(map, WORDS * 8).map_err(|errno: Errno| Error {
        what: "map the fair queueing qdisc's memory",
        source: std::io::Error::from(errno).into(),
    })
}

fn missing(what: &'static str) -> Error {
    let source = std::io::Error::new(std::io::ErrorKind::NotFound, what);
    Error { what: "find a map of the fair queueing qdisc", source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_become_costs_that_never_exceed_them() {
        assert_eq!(cost(0), 0, "no limit");
        assert_eq!(cost(1_000_000_000), 1 << RATE_SHIFT, "a nanosecond a byte");
        for rate in [1_000, 7_777_777, 11_875_000, 12_500_000_000] {
            let sent = (1_000_000_000f64 * f64::from(1 << RATE_SHIFT)) / cost(rate) as f64;
            assert!(sent <= rate as f64 && sent > rate as f64 * 0.9999, "{sent} of {rate}");
        }
        // The slowest rate and the largest packet stay within 64 bits.
        assert!(cost(1_000).checked_mul(1 << 19).is_some());
    }

    #[test]
    fn parameters_are_laid_out_as_the_header_says() {
        let params = Params {
            weight: 1 << 10,
            floor_bytes_per_sec: 1_000_000,
            ceil_bytes_per_sec: 2_000_000,
            group: 0x10,
            limit_bytes: 65_536,
            is_group: false,
            is_urgent: true,
            is_present: true,
        };
        let bytes: Vec<u8> = params.words().iter().flat_map(|w| w.to_ne_bytes()).collect();
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(u64_at(0), 1 << 22, "weight_cost");
        assert_eq!(u64_at(8), 1000 << RATE_SHIFT, "floor_cost");
        assert_eq!(u64_at(16), 500 << RATE_SHIFT, "ceil_cost");
        assert_eq!((u32_at(24), u32_at(28)), (0x10, 65_536), "group, limit_bytes");
        assert_eq!((u32_at(32), u32_at(36)), (1 | 4, 1 << 10), "flags, weight");
        assert_eq!((u64_at(40), u64_at(48)), (30_000, 60_000), "floor_credit, ceil_credit");
        assert_eq!(WORDS * 8, 4096 + 128 * 4096, "struct fair_shared");
    }

    #[test]
    fn a_kind_fits_the_kernel_and_differs_by_namespace_and_device() {
        let kinds = [Fair::kind_of(1, 1), Fair::kind_of(1, 2), Fair::kind_of(2, 1)];
        assert!(kinds.iter().all(|k| k.len() == 12 && k.starts_with("weir")), "{kinds:?}");
        assert!(kinds[0] != kinds[1] && kinds[0] != kinds[2] && kinds[1] != kinds[2], "{kinds:?}");
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod division;
