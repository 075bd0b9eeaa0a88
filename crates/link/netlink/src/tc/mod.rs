//! Traffic control over rtnetlink: HTB, TBF, bfifo, clsact, cls_bpf with mirred.
//!
//! Layouts: linux/pkt_sched.h, linux/pkt_cls.h, linux/tc_act/tc_mirred.h. Rates become
//! bytes per second and bursts scheduler ticks here and nowhere else: what is asked for and what both ways mean in
//! this file, what is there in `read`.

use std::{os::fd::RawFd, time::Duration};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use weir_units::{BitRate, Bytes, RateFraming, TcHandle};

use super::{
    Attrs, Request,
    attrs::{attributes, u32_of, u64_of},
};

mod read;

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_NEWTCLASS: u16 = 40;
const RTM_DELTCLASS: u16 = 41;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;

/// The kernel counts bursts in ticks of 64 ns (`PSCHED_SHIFT`, include/net/pkt_sched.h).
const TICK: Duration = Duration::from_nanos(64);

/// A queueing discipline as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// Its own handle, `major:`; zero for the kernel's defaults.
    pub handle: TcHandle,
    /// Where it hangs.
    pub parent: TcHandle,
    /// `htb`, `tbf`, `clsact`, ...
    pub kind: String,
    /// Its options as the kernel tells them.
    pub options: Vec<u8>,
    /// Its counters.
    pub counters: Counters,
}

/// Parameters of an HTB class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HtbClass {
    /// `major:minor`.
    pub handle: TcHandle,
    /// The class or qdisc above.
    pub parent: TcHandle,
    /// Its rate before any class borrows.
    pub rate: BitRate,
    /// Its ceiling.
    pub ceil: BitRate,
    /// Bucket of `rate`.
    pub burst: Bytes,
    /// Bucket of `ceil`.
    pub cburst: Bytes,
    /// Served at a time when borrowing.
    pub quantum: Bytes,
    /// Served first if smaller.
    pub prio: u32,
    /// The bytes charged for a packet, of both rates.
    pub framing: RateFraming,
}

/// The counters of a class or a qdisc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Sent, layer 2.
    pub bytes: u64,
    /// Sent; a super-packet counts its segments.
    pub packets: u64,
    /// Dropped because the queue was full.
    pub drops: u64,
    /// Bytes waiting.
    pub backlog: u64,
    /// Packets waiting.
    pub queued: u64,
    /// Times the class had to wait for tokens.
    pub overlimits: u64,
}

/// An HTB class as found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundClass {
    /// Parameters; bursts are exact to a tick.
    pub class: HtbClass,
    /// Major of the leaf qdisc, zero if none or unnamed.
    pub leaf: TcHandle,
    /// Its counters.
    pub counters: Counters,
    /// Packets that a leaf has served; a super-packet counts once. It wraps (`struct tc_htb_xstats`).
    pub served: u32,
}

/// A filter as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// `bpf`, `u32`, ...
    pub kind: String,
    /// Priority.
    pub pref: u16,
    /// Handle.
    pub handle: u32,
    /// Name of the BPF program, if it is one.
    pub bpf_name: Option<String>,
    /// Id of the BPF program, if it is one.
    pub bpf_id: Option<u32>,
}

/// Where a filter hangs on a clsact qdisc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Packets that arrive.
    Ingress,
    /// Packets that leave.
    Egress,
}

impl Hook {
    fn parent(self) -> TcHandle {
        match self {
            Hook::Ingress => TcHandle(0xffff_fff2),
            Hook::Egress => TcHandle(0xffff_fff3),
        }
    }
}

/// A leaf queue bounded in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// `bfifo`.
    Fifo {
        /// Most bytes that wait.
        limit: Bytes,
    },
    /// `tbf` at a rate that never holds back: it is there because it is the one qdisc of
    /// every kernel that splits super-packets (net/sched/sch_tbf.c: `tbf_segment`).
    Split {
        /// Most bytes that wait.
        limit: Bytes,
        /// Packets above this size are split; at least one full packet.
        largest: Bytes,
    },
}

fn tcmsg(index: u32, handle: TcHandle, parent: TcHandle, info: u32) -> Attrs {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.0.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.0.to_ne_bytes());
    header[16..20].copy_from_slice(&info.to_ne_bytes());
    Attrs::after(&header)
}

/// `linklayer` of `struct tc_ratespec`.
const TC_LINKLAYER_ATM: u8 = 2;

/// `struct tc_ratespec`; rates above 32 bits of bytes per second go into a 64-bit attribute
/// beside it. The link layer is stated, so that no rate table is needed.
fn ratespec(rate: BitRate, framing: RateFraming) -> [u8; 12] {
    const TC_LINKLAYER_ETHERNET: u8 = 1;
    let mut spec = [0; 12];
    spec[1] = if framing.is_atm { TC_LINKLAYER_ATM } else { TC_LINKLAYER_ETHERNET };
    spec[2..4].copy_from_slice(&framing.overhead.to_ne_bytes());
    spec[6..8].copy_from_slice(&framing.mpu.to_ne_bytes());
    let rate = u32::try_from(rate.bytes_per_sec()).unwrap_or(u32::MAX);
    spec[8..12].copy_from_slice(&rate.to_ne_bytes());
    spec
}

fn ticks(len: Bytes, rate: BitRate) -> u32 {
    // The kernel's rate is whole bytes: use the same one, so that the burst reads back.
    let nanos = BitRate(rate.bytes_per_sec().max(1) * 8).time_to_send(len).as_nanos();
    u32::try_from(nanos.div_ceil(TICK.as_nanos())).unwrap_or(u32::MAX)
}

fn bytes_of_ticks(ticks: u32, rate: BitRate) -> Bytes {
    rate.bytes_in(TICK * ticks)
}

/// Adds a qdisc that takes no options at the root, replacing whatever default is there.
#[must_use]
pub fn add_root(index: u32, device: &str, handle: TcHandle, kind: &str) -> Request {
    let mut body = tcmsg(index, handle, TcHandle::ROOT, 0);
    body.put_str(TCA_KIND, kind);
    Request {
        kind: RTM_NEWQDISC,
        flags: NLM_F_CREATE | NLM_F_REPLACE,
        body: body.into_bytes(),
        what: format!("add qdisc {kind} {handle} to {device}"),
    }
}

/// Adds an HTB qdisc below `parent`, replacing whatever default is there. A packet whose priority is `handle` waits
/// in its direct queue, which goes before all classes.
#[must_use]
pub fn add_htb(index: u32, device: &str, handle: TcHandle, parent: TcHandle, default_minor: u16) -> Request {
    const TCA_HTB_INIT: u16 = 2;
    const TCA_HTB_DIRECT_QLEN: u16 = 5;
    /// The kernel's default is the device's, which is 32 packets of an ifb.
    const DIRECT_PACKETS: u32 = 1000;
    let mut body = tcmsg(index, handle, parent, 0);
    let mut init = Vec::new();
    // struct tc_htb_glob: version 3.17 needs "3"; rate2quantum only matters without quanta.
    for word in [3u32, 10, u32::from(default_minor), 0, 0] {
        init.extend_from_slice(&word.to_ne_bytes());
    }
    body.put_str(TCA_KIND, "htb").nest(TCA_OPTIONS, |o| {
        o.put(TCA_HTB_INIT, &init).put_u32(TCA_HTB_DIRECT_QLEN, DIRECT_PACKETS);
    });
    Request {
        kind: RTM_NEWQDISC,
        flags: NLM_F_CREATE | NLM_F_REPLACE,
        body: body.into_bytes(),
        what: format!("add htb {handle} to {device} (needs CONFIG_NET_SCH_HTB)"),
    }
}

/// Adds an fq qdisc below `parent` that does nothing but hold packets until their time, or makes
/// the one of this handle such: as many packets as come, each as long as anyone says.
#[must_use]
pub fn set_fq(index: u32, device: &str, handle: TcHandle, parent: TcHandle) -> Request {
    let mut body = tcmsg(index, handle, parent, 0);
    body.put_str(TCA_KIND, "fq").nest(TCA_OPTIONS, |o| {
        for (option, value) in fq_options() {
            o.put_u32(option, value);
        }
    });
    Request {
        kind: RTM_NEWQDISC,
        flags: NLM_F_CREATE | NLM_F_REPLACE,
        body: body.into_bytes(),
        what: format!("add fq {handle} to {device} (needs CONFIG_NET_SCH_FQ, `modprobe sch_fq`)"),
    }
}

/// The options of [`set_fq`]. The program that stamps departure times bounds queues by class, in bytes. The
/// defaults, 10,000 packets and 100 of a flow, would drop behind its back.
fn fq_options() -> [(u16, u32); 4] {
    const TCA_FQ_PLIMIT: u16 = 1;
    const TCA_FQ_FLOW_PLIMIT: u16 = 2;
    const TCA_FQ_FLOW_MAX_RATE: u16 = 7;
    const TCA_FQ_HORIZON: u16 = 14;
    const PACKETS: u32 = 1 << 20;
    const HORIZON: Duration = Duration::from_secs(900);
    let horizon = u32::try_from(HORIZON.as_micros()).unwrap_or(u32::MAX);
    [
        (TCA_FQ_PLIMIT, PACKETS),
        (TCA_FQ_FLOW_PLIMIT, PACKETS),
        (TCA_FQ_FLOW_MAX_RATE, u32::MAX),
        (TCA_FQ_HORIZON, horizon),
    ]
}

impl Qdisc {
    /// Whether it is an fq with the options of [`set_fq`].
    #[must_use]
    pub fn is_fq(&self) -> bool {
        let has = |option: &(u16, u32)| {
            attributes(&self.options).any(|(kind, value)| kind == option.0 && value == option.1.to_ne_bytes())
        };
        self.kind == "fq" && fq_options().iter().all(has)
    }

    /// Whether it is a TBF with the options of [`set_tbf`]. The kernel rounds the burst to its ticks.
    #[must_use]
    pub fn is_tbf(&self, rate: BitRate, framing: RateFraming, burst: Bytes) -> bool {
        let mut parms =
            attributes(&self.options).filter(|(kind, value)| *kind == TCA_TBF_PARMS && value.len() >= 36);
        let rate64 =
            attributes(&self.options).find(|(kind, value)| *kind == TCA_TBF_RATE64 && value.len() >= 8);
        self.kind == "tbf"
            && parms.any(|(_, parms)| {
                let found = rate64.map_or_else(|| u64::from(u32_of(&parms[8..])), |(_, value)| u64_of(value));
                let found_burst = bytes_of_ticks(u32_of(&parms[28..]), BitRate(found * 8));
                let is_atm = parms[1] & read::LINKLAYER_MASK == TC_LINKLAYER_ATM;
                // The kernel keeps the burst's time, and charges it as one packet.
                let burst = framing.charged(burst);
                found == rate.bytes_per_sec()
                    && (is_atm, u16::from_ne_bytes([parms[2], parms[3]]))
                        == (framing.is_atm, framing.overhead)
                    && found_burst.0.abs_diff(burst.0) <= 1 + burst.0 / 100
            })
    }
}

/// Adds an HTB class, or changes it in place: packets in its queue stay.
#[must_use]
pub fn set_class(index: u32, device: &str, class: &HtbClass) -> Request {
    const TCA_HTB_PARMS: u16 = 1;
    const TCA_HTB_RATE64: u16 = 6;
    const TCA_HTB_CEIL64: u16 = 7;
    let mut parms = Vec::with_capacity(44);
    parms.extend_from_slice(&ratespec(class.rate, class.framing));
    parms.extend_from_slice(&ratespec(class.ceil, class.framing));
    let quantum = u32::try_from(class.quantum.0).unwrap_or(u32::MAX);
    for word in [ticks(class.burst, class.rate), ticks(class.cburst, class.ceil), quantum, 0, class.prio] {
        parms.extend_from_slice(&word.to_ne_bytes());
    }
    let mut body = tcmsg(index, class.handle, class.parent, 0);
    body.put_str(TCA_KIND, "htb").nest(TCA_OPTIONS, |o| {
        for (attribute, rate) in [(TCA_HTB_RATE64, class.rate), (TCA_HTB_CEIL64, class.ceil)] {
            if rate.bytes_per_sec() > u64::from(u32::MAX) {
                o.put_u64(attribute, rate.bytes_per_sec());
            }
        }
        o.put(TCA_HTB_PARMS, &parms);
    });
    Request {
        kind: RTM_NEWTCLASS,
        flags: NLM_F_CREATE,
        body: body.into_bytes(),
        what: format!("set class {} of {device} to rate {} ceil {}", class.handle, class.rate, class.ceil),
    }
}

/// Deletes a class; its leaf qdisc goes with it.
#[must_use]
pub fn delete_class(index: u32, device: &str, handle: TcHandle) -> Request {
    Request {
        kind: RTM_DELTCLASS,
        flags: 0,
        body: tcmsg(index, handle, TcHandle(0), 0).into_bytes(),
        what: format!("delete class {handle} of {device}"),
    }
}

/// Puts a leaf qdisc below a class, or changes its limit in place if the kind is the same.
#[must_use]
pub fn set_leaf(index: u32, device: &str, parent: TcHandle, handle: TcHandle, leaf: Leaf) -> Request {
    // Fast enough never to hold back: a full packet takes 12 ns.
    const NEVER_BINDS: BitRate = BitRate::gbit(1000);
    let mut body = tcmsg(index, handle, parent, 0);
    match leaf {
        Leaf::Fifo { limit } => {
            body.put_str(TCA_KIND, "bfifo").put_u32(TCA_OPTIONS, word(limit));
        }
        Leaf::Split { limit, largest } => {
            put_tbf(&mut body, NEVER_BINDS, RateFraming::default(), largest, limit)
        }
    }
    Request {
        kind: RTM_NEWQDISC,
        flags: NLM_F_CREATE | NLM_F_REPLACE,
        body: body.into_bytes(),
        what: format!("set the queue of class {parent} of {device}"),
    }
}

/// Adds a TBF at the root, or gives the one of this handle another rate. Its queue stays: another
/// program sets the qdisc below class 1. Packets above `burst` are split.
#[must_use]
pub fn set_tbf(
    index: u32,
    device: &str,
    handle: TcHandle,
    (rate, framing): (BitRate, RateFraming),
    burst: Bytes,
) -> Request {
    let mut body = tcmsg(index, handle, TcHandle::ROOT, 0);
    put_tbf(&mut body, rate, framing, burst, burst);
    Request {
        kind: RTM_NEWQDISC,
        flags: NLM_F_CREATE | NLM_F_REPLACE,
        body: body.into_bytes(),
        what: format!("add tbf {handle} to {device} (needs CONFIG_NET_SCH_TBF, `modprobe sch_tbf`)"),
    }
}

/// Kind and options of a TBF without a peak rate; `limit` is its own queue's, if it has one.
fn put_tbf(body: &mut Attrs, rate: BitRate, framing: RateFraming, burst: Bytes, limit: Bytes) {
    const TCA_TBF_BURST: u16 = 6;
    let mut parms = Vec::with_capacity(36);
    parms.extend_from_slice(&ratespec(rate, framing));
    parms.extend_from_slice(&[0; 12]);
    for word in [word(limit), ticks(burst, rate), 0] {
        parms.extend_from_slice(&word.to_ne_bytes());
    }
    body.put_str(TCA_KIND, "tbf").nest(TCA_OPTIONS, |o| {
        o.put(TCA_TBF_PARMS, &parms)
            .put_u64(TCA_TBF_RATE64, rate.bytes_per_sec())
            .put_u32(TCA_TBF_BURST, word(burst));
    });
}

fn word(bytes: Bytes) -> u32 {
    u32::try_from(bytes.0).unwrap_or(u32::MAX)
}

/// Adds a clsact qdisc, which only gives filters a place.
#[must_use]
pub fn add_clsact(index: u32, device: &str) -> Request {
    let mut body = tcmsg(index, TcHandle(0xffff_0000), TcHandle::CLSACT, 0);
    body.put_str(TCA_KIND, "clsact");
    Request {
        kind: RTM_NEWQDISC,
        flags: NLM_F_CREATE | NLM_F_EXCL,
        body: body.into_bytes(),
        what: format!("add clsact to {device}"),
    }
}

/// Deletes a qdisc.
#[must_use]
pub fn delete_qdisc(index: u32, device: &str, handle: TcHandle, parent: TcHandle) -> Request {
    Request {
        kind: RTM_DELQDISC,
        flags: 0,
        body: tcmsg(index, handle, parent, 0).into_bytes(),
        what: format!("delete qdisc {handle} of {device}"),
    }
}

/// The verdict of a BPF filter about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The program decides (direct action).
    Program,
    /// The program only looks: it matches no packet.
    None,
    /// Matching packets go to another device's egress (`act_mirred`).
    Redirect {
        /// That device.
        to: u32,
    },
}

/// Adds a BPF filter at a qdisc with classes; one of the same `pref` and handle is replaced without a gap. The program
/// returns the class of a packet, or 0 if it does not know it.
#[must_use]
pub fn set_class_filter(
    index: u32,
    device: &str,
    qdisc: TcHandle,
    pref: u16,
    (program, name): (RawFd, &str),
) -> Request {
    let mut body = tcmsg(index, TcHandle(1), qdisc, filter_info(pref));
    body.put_str(TCA_KIND, "bpf").nest(TCA_OPTIONS, |o| {
        o.put(TCA_BPF_FD, &program.to_ne_bytes()).put_str(TCA_BPF_NAME, name);
    });
    Request {
        kind: RTM_NEWTFILTER,
        flags: NLM_F_CREATE,
        body: body.into_bytes(),
        what: format!("attach program {name} to qdisc {qdisc} of {device} (needs CONFIG_NET_CLS_BPF)"),
    }
}

/// Adds a BPF filter at a clsact hook; one of the same `pref` and handle is replaced
/// without a gap.
#[must_use]
pub fn set_bpf_filter(
    index: u32,
    device: &str,
    hook: Hook,
    pref: u16,
    (program, name): (RawFd, &str),
    verdict: Verdict,
) -> Request {
    const TCA_BPF_ACT: u16 = 1;
    const TCA_BPF_FLAGS: u16 = 8;
    const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
    const TCA_ACT_KIND: u16 = 1;
    const TCA_ACT_OPTIONS: u16 = 2;
    const TCA_MIRRED_PARMS: u16 = 2;
    const TC_ACT_STOLEN: u32 = 4;
    const TCA_EGRESS_REDIR: u32 = 1;
    let mut body = tcmsg(index, TcHandle(1), hook.parent(), filter_info(pref));
    body.put_str(TCA_KIND, "bpf").nest(TCA_OPTIONS, |o| {
        if let Verdict::Redirect { to } = verdict {
            // struct tc_mirred: tc_gen{index, capab, action, refcnt, bindcnt}, eaction, ifindex.
            let mut parms = Vec::with_capacity(28);
            for word in [0u32, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, to] {
                parms.extend_from_slice(&word.to_ne_bytes());
            }
            o.nest(TCA_BPF_ACT, |actions| {
                actions.nest(1, |action| {
                    action.put_str(TCA_ACT_KIND, "mirred").nest(TCA_ACT_OPTIONS, |options| {
                        options.put(TCA_MIRRED_PARMS, &parms);
                    });
                });
            });
        }
        o.put(TCA_BPF_FD, &program.to_ne_bytes()).put_str(TCA_BPF_NAME, name);
        if verdict == Verdict::Program {
            o.put_u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
        }
    });
    Request {
        kind: RTM_NEWTFILTER,
        flags: NLM_F_CREATE,
        body: body.into_bytes(),
        what: format!(
            "attach program {name} to {device} (needs CONFIG_NET_CLS_BPF and CONFIG_NET_ACT_MIRRED)"
        ),
    }
}

/// Removes the filter that [`set_bpf_filter`] added.
#[must_use]
pub fn delete_filter(index: u32, device: &str, hook: Hook, pref: u16) -> Request {
    let mut body = tcmsg(index, TcHandle(1), hook.parent(), filter_info(pref));
    body.put_str(TCA_KIND, "bpf");
    Request { kind: RTM_DELTFILTER, flags: 0, body: body.into_bytes(), what: format!("detach from {device}") }
}

/// `tcm_info` of a filter: priority and, in network order, "all protocols".
fn filter_info(pref: u16) -> u32 {
    const ETH_P_ALL: u16 = 3;
    u32::from(pref) << 16 | u32::from(ETH_P_ALL.to_be())
}
