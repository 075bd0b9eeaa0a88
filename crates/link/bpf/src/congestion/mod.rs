use std::{
    cell::RefCell,
    mem::MaybeUninit,
    net::{IpAddr, Ipv6Addr},
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
};

use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, OpenObject, RingBuffer, RingBufferBuilder,
    skel::{OpenSkel, SkelBuilder},
};

use self::skeleton::{CongestionSkel, CongestionSkelBuilder};
use crate::{
    Error, LocalPrefix,
    classify::set,
    common::{attach, map_named},
};

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/congestion.skel.rs"));
}

/// The objects that an earlier agent left at a cgroup: its program and its records of sockets.
pub struct EarlierCongestion {
    /// Its program for socket events.
    pub program: u32,
    /// And the one for what applications say of their sockets, if that is there.
    pub hints: Option<u32>,
    /// The inode of the network namespace whose link that agent shared.
    pub owner: u64,
    /// When it was last heard of, ns of the monotonic clock.
    pub alive_ns: u64,
    maps: Vec<u32>,
}

impl EarlierCongestion {
    /// All of them, whosever they were.
    #[must_use]
    pub fn all(cgroup: BorrowedFd<'_>) -> Vec<EarlierCongestion> {
        let ids = attach::sock_ops(cgroup).unwrap_or_default();
        // Of a name the kernel keeps 15 characters.
        let ours = |id: &u32| attach::program_name(*id).is_ok_and(|name| name == Congestion::PROGRAM);
        let hints: Vec<u32> = attach::socket_options(cgroup).unwrap_or_default();
        ids.into_iter().filter(ours).filter_map(|id| EarlierCongestion::read(id, &hints)).collect()
    }

    /// `options`: all programs at the cgroup for what is set of sockets.
    fn read(program: u32, options: &[u32]) -> Option<EarlierCongestion> {
        let maps = attach::program_maps(program).ok()?;
        let value = map_named(&maps, "weir_cc_config")?.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        let word = |i: usize| value.get(i * 8..i * 8 + 8)?.try_into().ok().map(u64::from_ne_bytes);
        // The two are of one object: they count in one map.
        let is_its = |id: &u32| {
            attach::program_name(*id).is_ok_and(|name| name == Congestion::HINTS)
                && attach::program_maps(*id).is_ok_and(|of| of.iter().any(|map| maps.contains(map)))
        };
        let hints = options.iter().copied().find(is_its);
        Some(EarlierCongestion { program, hints, alive_ns: word(0)?, owner: word(1)?, maps })
    }

    /// Its records of sockets; none if they have another layout.
    fn flows(&self) -> Option<MapHandle> {
        map_named(&self.maps, "weir_cc_flows").filter(|map| map.value_size() as usize == FLOW)
    }
}

/// `struct weir_cc_config` of congestion.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CongestionConfig {
    /// When the agent was last heard of, ns of the monotonic clock.
    pub alive_ns: u64,
    /// Inode of the network namespace whose link is shared.
    pub owner: u64,
    /// And its cookie: there classes are told apart by cgroup too.
    pub host_cookie: u64,
    /// Bit n: there are rules of kind n.
    pub kinds: u32,
    /// Bit n: classes exist at depth n of the cgroup tree (1 to 8).
    pub cgroup_levels: u32,
    /// 1 or 2: the set of rules in force; 0: none.
    pub set: u32,
    /// Grows with each change of the rules.
    pub generation: u32,
    /// The action of a visit: [`MOVE`](CongestionConfig::MOVE) or
    /// [`LEAVE`](CongestionConfig::LEAVE).
    pub visit: u32,
    /// Networks in which some flows try another algorithm.
    pub trials: u32,
}

impl CongestionConfig {
    /// Connections follow the rules from now on.
    pub const MOVE: u32 = 1;
    /// Connections get back what they had before weir.
    pub const LEAVE: u32 = 2;

    fn bytes(&self) -> [u8; 48] {
        let mut bytes = [0; 48];
        let long = [self.alive_ns, self.owner, self.host_cookie].map(u64::to_ne_bytes);
        let short = [self.kinds, self.cgroup_levels, self.set, self.generation, self.visit, self.trials]
            .map(u32::to_ne_bytes);
        for (to, from) in bytes.iter_mut().zip(long.iter().flatten().chain(short.iter().flatten())) {
            *to = *from;
        }
        bytes
    }
}

/// An entry of the table of rules: `struct weir_cc_key` and `struct weir_cc_rule`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CongestionRule {
    /// Of a class; 0 for all.
    pub handle: u32,
    /// The service's; 0 for all.
    pub port: u16,
    /// 1: the connection was opened here, 2: it was accepted; 0: either.
    pub direction: u8,
    /// The far end's network.
    pub to: LocalPrefix,
    /// Of several that match the greatest counts.
    pub rank: u32,
    /// Of the rule, from 1.
    pub number: u32,
    /// Acknowledged bytes after which `then` follows; 0: never.
    pub after_bytes: u64,
    /// That may be on the way before the change; 0: any number.
    pub window_segments: u32,
    /// The kernel's name, zeros to its end.
    pub start: [u8; 16],
    /// Likewise.
    pub then: [u8; 16],
}

const KEY: usize = 28;
/// Bits before the address.
const FIXED: u32 = 64;

impl CongestionRule {
    /// The kind of the rule: the bits of its conditions.
    #[must_use]
    pub fn kind(&self) -> u32 {
        u32::from(self.handle != 0) << 2 | u32::from(self.port != 0) << 1 | u32::from(self.direction != 0)
    }

    fn key(&self, set: u32) -> [u8; KEY] {
        let mut key = [0; KEY];
        let (version, address) = wide(self.to.network);
        key[..4].copy_from_slice(&(FIXED + u32::from(self.to.len)).to_ne_bytes());
        key[4..8].copy_from_slice(&self.handle.to_ne_bytes());
        key[8..10].copy_from_slice(&self.port.to_ne_bytes());
        key[10] = self.direction;
        key[11] = u8::try_from(set << 4).unwrap_or(0) | version;
        key[12..].copy_from_slice(&address);
        key
    }

    fn value(&self) -> [u8; 56] {
        let mut value = [0; 56];
        value[..8].copy_from_slice(&self.after_bytes.to_ne_bytes());
        value[8..12].copy_from_slice(&self.rank.to_ne_bytes());
        value[12..16].copy_from_slice(&self.number.to_ne_bytes());
        value[16..32].copy_from_slice(&self.start);
        value[32..48].copy_from_slice(&self.then);
        value[48..52].copy_from_slice(&self.window_segments.to_ne_bytes());
        value
    }
}

/// The IP version, and the address in the form of a key.
fn wide(address: IpAddr) -> (u8, [u8; 16]) {
    match address {
        IpAddr::V4(address) => {
            let mut wide = [0; 16];
            wide[..4].copy_from_slice(&address.octets());
            (4, wide)
        }
        IpAddr::V6(address) => (6, address.octets()),
    }
}

/// A turn of a trial in a network: `struct weir_cc_trial` and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CongestionTrial {
    /// The far end's network.
    pub to: LocalPrefix,
    /// The generation that records carry; never 0.
    pub turn: u32,
    /// The part of the connections that is drawn, of 2^32.
    pub share: u32,
    /// Whether those try it. Otherwise they follow the rules, and are only counted.
    pub tries: bool,
    /// Of its counter and its limit: below [`SLOTS`](CongestionTrial::SLOTS).
    pub slot: u32,
    /// Connections whose rule has a greater rank have no part in it.
    pub rank: u32,
    /// As in a rule.
    pub after_bytes: u64,
    /// As in a rule.
    pub window_segments: u32,
    /// The kernel's name, zeros to its end.
    pub start: [u8; 16],
    /// Likewise.
    pub then: [u8; 16],
}

impl CongestionTrial {
    /// `WEIR_CC_SLOTS`.
    pub const SLOTS: usize = 64;

    fn key(&self) -> [u8; 24] {
        let mut key = [0; 24];
        let (version, address) = wide(self.to.network);
        key[..4].copy_from_slice(&(32 + u32::from(self.to.len)).to_ne_bytes());
        key[4] = version;
        key[8..].copy_from_slice(&address);
        key
    }

    fn value(&self) -> [u8; 64] {
        let mut value = [0; 64];
        value[..8].copy_from_slice(&self.after_bytes.to_ne_bytes());
        value[8..12].copy_from_slice(&self.turn.to_ne_bytes());
        value[12..16].copy_from_slice(&self.share.to_ne_bytes());
        value[16..20].copy_from_slice(&self.rank.to_ne_bytes());
        value[20..24].copy_from_slice(&self.window_segments.to_ne_bytes());
        value[24..40].copy_from_slice(&self.start);
        value[40..56].copy_from_slice(&self.then);
        value[56..60].copy_from_slice(&self.slot.to_ne_bytes());
        value[60..].copy_from_slice(&u32::from(self.tries).to_ne_bytes());
        value
    }
}

/// `struct weir_cc_record`: a connection that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CongestionRecord {
    /// Since the first SYN, or since it was accepted.
    pub took_ns: u64,
    /// Payload sent and acknowledged.
    pub sent_bytes: u64,
    /// Payload received.
    pub received_bytes: u64,
    /// Acknowledged when the algorithm was changed; 0: it was not.
    pub switched_bytes: u64,
    /// Bytes per second.
    pub delivery_rate: u64,
    /// Of its class.
    pub handle: u32,
    /// Of its rule, from 1; 0: none.
    pub number: u32,
    /// Of the rules, when it began.
    pub generation: u32,
    /// Microseconds; all ones without a sample.
    pub least_rtt_us: u32,
    /// At the end, microseconds.
    pub smoothed_rtt_us: u32,
    /// The greatest smoothed one, microseconds.
    pub most_rtt_us: u32,
    /// Segments.
    pub retransmits: u32,
    /// Its own port.
    pub local_port: u16,
    /// The far end's.
    pub remote_port: u16,
    /// 1: it was opened here, 2: accepted; 0: older than the agent.
    pub direction: u8,
    /// The turn of a trial that it began in; 0: none.
    pub turn: u32,
    /// It used what the turn tries.
    pub tried: bool,
    /// It was drawn, to try something or only to be counted.
    pub drawn: bool,
    /// The far end.
    pub to: IpAddr,
    /// The algorithm of its first packet, with zeros to its end.
    pub first: [u8; 16],
    /// The one at its end.
    pub last: [u8; 16],
}

const RECORD: usize = 128;
/// `WEIR_CC_TRIED`.
const TRIED: u8 = 1;
/// The record of a socket: `WEIR_CC_FLOW_SIZE`.
const FLOW: usize = 128;

impl CongestionRecord {
    /// Whether the far end answered. The handshake of one that did is a sample of the round trip, unless its SYN was
    /// sent again.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.sent_bytes > 0 || self.received_bytes > 0 || self.smoothed_rtt_us > 0
    }

    fn read(bytes: &[u8]) -> Option<CongestionRecord> {
        let bytes: &[u8; RECORD] = bytes.get(..RECORD)?.try_into().ok()?;
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"));
        let half = |at: usize| u16::from_ne_bytes(bytes[at..at + 2].try_into().expect("two"));
        let name = |at: usize| -> [u8; 16] { bytes[at..at + 16].try_into().expect("sixteen") };
        let address = name(80);
        let to = match bytes[73] {
            4 => IpAddr::from([address[0], address[1], address[2], address[3]]),
            6 => IpAddr::from(Ipv6Addr::from(address)),
            _ => return None,
        };
        Some(CongestionRecord {
            took_ns: long(0),
            sent_bytes: long(8),
            received_bytes: long(16),
            switched_bytes: long(24),
            delivery_rate: long(32),
            handle: word(40),
            number: word(44),
            generation: word(48),
            least_rtt_us: word(52),
            smoothed_rtt_us: word(56),
            most_rtt_us: word(60),
            retransmits: word(64),
            local_port: half(68),
            remote_port: half(70),
            direction: bytes[72],
            turn: word(76),
            tried: bytes[74] == TRIED,
            drawn: bytes[74] != 0,
            to,
            first: name(96),
            last: name(112),
        })
    }
}

/// `struct weir_cc_counts`: since the programs were loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CongestionCounts {
    /// Connections that were given the algorithm of a rule.
    pub set: u64,
    /// Changes in the flow.
    pub switched: u64,
    /// Connections that followed the rules when asked to.
    pub moved: u64,
    /// Algorithms that the kernel refused.
    pub failed: u64,
    /// Records for which there was no room.
    pub lost: u64,
    /// Times that applications said how much they will send.
    pub hinted: u64,
}

/// The programs that choose connections' congestion control, and their maps. See
/// `congestion.bpf.c`.
pub struct Congestion {
    skeleton: CongestionSkel<'static>,
    /// The link of the iterator over sockets, or the reason for its absence.
    visitor: Result<Link, String>,
    ring: RingBuffer<'static>,
    records: Rc<RefCell<Vec<CongestionRecord>>>,
}

impl Congestion {
    /// The name under which the kernel knows the program for socket events.
    pub const PROGRAM: &'static str = "weir_congestion";

    /// That of the one for what applications say of their sockets.
    pub const HINTS: &'static str = "weir_cc_hint";

    /// Loads the programs, with what an earlier agent's knew of sockets; nothing is attached yet.
    ///
    /// # Errors
    /// [`Error`] with libbpf's reason: no `CONFIG_CGROUP_BPF`, no BTF, the verifier.
    pub fn load(earlier: Option<&EarlierCongestion>) -> Result<Congestion, Error> {
        let error = |source| Error { what: "load the programs that choose congestion control", source };
        libbpf_rs::set_print(None);
        // A kernel without CONFIG_BPF_EVENTS has no iterators. libbpf's probe is wrong on some
        // kernels that have them, so that both are tried.
        let (skeleton, visitor) = match Congestion::open(earlier, true) {
            Ok(skeleton) => {
                let visitor = skeleton.progs.weir_cc_visit.attach().map_err(error)?;
                (skeleton, Ok(visitor))
            }
            Err(with) => match Congestion::open(earlier, false) {
                Ok(skeleton) => (skeleton, Err(with.to_string())),
                Err(_) => return Err(error(with)),
            },
        };
        let records = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&records);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&skeleton.maps.weir_cc_records, move |bytes| {
                into.borrow_mut().extend(CongestionRecord::read(bytes));
                0
            })
            .map_err(error)?;
        let ring = builder.build().map_err(error)?;
        Ok(Congestion { skeleton, visitor, ring, records })
    }

    /// Loads them, with the iterator over sockets or without.
    fn open(earlier: Option<&EarlierCongestion>, visits: bool) -> libbpf_rs::Result<CongestionSkel<'static>> {
        // One object each time rules come and go: leaked, so that the skeleton needs no self-reference.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = CongestionSkelBuilder::default().open(storage)?;
        if let Some(flows) = earlier.and_then(EarlierCongestion::flows) {
            open.maps.weir_cc_flows.reuse_fd(flows.as_fd())?;
        }
        open.progs.weir_cc_visit.set_autoload(visits);
        open.load()
    }

    /// The program for socket events.
    #[must_use]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.skeleton.progs.weir_congestion.as_fd()
    }

    /// The program for what applications say of their sockets.
    #[must_use]
    pub fn hints(&self) -> BorrowedFd<'_> {
        self.skeleton.progs.weir_cc_hint.as_fd()
    }

    /// The iterator over sockets, for [`attach::visit`].
    ///
    /// # Errors
    /// Why the kernel has none, in words.
    pub fn visitor(&self) -> Result<BorrowedFd<'_>, &str> {
        self.visitor.as_ref().map(AsFd::as_fd).map_err(String::as_str)
    }

    /// Tells the programs which rules are in force, and that the agent lives.
    ///
    /// # Errors
    /// [`Error`].
    pub fn configure(&self, config: &CongestionConfig) -> Result<(), Error> {
        let map = &self.skeleton.maps.weir_cc_config;
        map.update(&0u32.to_ne_bytes(), &config.bytes(), MapFlags::ANY)
            .map_err(|source| Error { what: "configure the programs that choose congestion control", source })
    }

    /// Gives the sockets of a network namespace, by its cookie, to a class, or to none.
    ///
    /// # Errors
    /// [`Error`]: the map holds 65,536 namespaces.
    pub fn set_home(&self, cookie: u64, handle: Option<u32>) -> Result<(), Error> {
        let map = &self.skeleton.maps.weir_cc_homes;
        set(map, &cookie.to_ne_bytes(), handle, "map a network namespace to its class")
    }

    /// Gives the sockets of a cgroup (v2, by its id) to a class, or to none.
    ///
    /// # Errors
    /// [`Error`]: the map holds 65,536 cgroups.
    pub fn set_cgroup(&self, id: u64, handle: Option<u32>) -> Result<(), Error> {
        let map = &self.skeleton.maps.weir_cc_groups;
        set(map, &id.to_ne_bytes(), handle, "map a cgroup to the class of its sockets")
    }

    /// Fills a set of rules, 1 or 2, that is not in force: what was in it is forgotten.
    ///
    /// # Errors
    /// [`Error`]: the map holds 131,072 entries of both sets.
    pub fn load_rules(&self, set: u32, rules: &[CongestionRule]) -> Result<(), Error> {
        let error = |source| Error { what: "write the rules of congestion control", source };
        let map = &self.skeleton.maps.weir_cc_rules;
        let old: Vec<Vec<u8>> =
            map.keys().filter(|key| key.get(11).is_some_and(|table| u32::from(table >> 4) == set)).collect();
        for key in old {
            map.delete(&key).map_err(error)?;
        }
        for rule in rules {
            map.update(&rule.key(set), &rule.value(), MapFlags::ANY).map_err(error)?;
        }
        Ok(())
    }

    /// Has these trials, and no others, be in force: at most 64.
    ///
    /// # Errors
    /// [`Error`].
    pub fn load_trials(&self, trials: &[CongestionTrial]) -> Result<(), Error> {
        let error = |source| Error { what: "write the trials of congestion control", source };
        let map = &self.skeleton.maps.weir_cc_trials;
        let wanted: Vec<[u8; 24]> = trials.iter().map(CongestionTrial::key).collect();
        let old: Vec<Vec<u8>> =
            map.keys().filter(|key| !wanted.iter().any(|wanted| wanted[..] == key[..])).collect();
        for key in old {
            map.delete(&key).map_err(error)?;
        }
        for trial in trials {
            map.update(&trial.key(), &trial.value(), MapFlags::ANY).map_err(error)?;
        }
        Ok(())
    }

    /// How many connections were drawn in trials of a slot, since the programs were loaded.
    ///
    /// # Errors
    /// [`Error`].
    pub fn drawn(&self, slot: u32) -> Result<u64, Error> {
        let map = &self.skeleton.maps.weir_cc_draws;
        let value = map
            .lookup(&slot.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error { what: "read how many connections were drawn", source })?;
        let count = value.as_deref().and_then(|value| value.get(8..16)?.try_into().ok());
        Ok(count.map_or(0, u64::from_ne_bytes))
    }

    /// Has the programs draw no connection of a slot beyond this number, since they were loaded.
    ///
    /// # Errors
    /// [`Error`].
    pub fn limit_drawn(&self, slot: u32, most: u64) -> Result<(), Error> {
        let map = &self.skeleton.maps.weir_cc_limits;
        map.update(&slot.to_ne_bytes(), &most.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error { what: "limit how many connections are drawn", source })
    }

    /// The connections that have ended since the last call.
    ///
    /// # Errors
    /// [`Error`].
    pub fn records(&self) -> Result<Vec<CongestionRecord>, Error> {
        self.ring.consume().map_err(|source| Error { what: "read records of connections", source })?;
        Ok(std::mem::take(&mut *self.records.borrow_mut()))
    }

    /// The counters of the programs.
    ///
    /// # Errors
    /// [`Error`].
    pub fn counts(&self) -> Result<CongestionCounts, Error> {
        let value = self
            .skeleton
            .maps
            .weir_cc_counts
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error { what: "read the counts of congestion control", source })?
            .unwrap_or_default();
        let word = |i: usize| {
            value.get(i * 8..i * 8 + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
        };
        Ok(CongestionCounts {
            set: word(0),
            switched: word(1),
            moved: word(2),
            failed: word(3),
            lost: word(4),
            hinted: word(5),
        })
    }
}
