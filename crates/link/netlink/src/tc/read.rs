//! Reads qdiscs, classes and filters from the kernel.

use weir_units::{BitRate, Bytes, RateFraming, TcHandle};

use super::{
    super::{
        Netlink, NetlinkError, Request,
        attrs::{attributes, str_of, u32_of, u64_of},
    },
    Counters, Filter, FoundClass, Hook, HtbClass, Qdisc, RTM_NEWQDISC, RTM_NEWTCLASS, RTM_NEWTFILTER,
    TC_LINKLAYER_ATM, TCA_BPF_NAME, TCA_KIND, TCA_OPTIONS, bytes_of_ticks, tcmsg,
};

/// `TC_LINKLAYER_MASK` of linux/pkt_sched.h.
pub(super) const LINKLAYER_MASK: u8 = 0x0f;

const RTM_GETQDISC: u16 = 38;
const RTM_GETTCLASS: u16 = 42;
const RTM_GETTFILTER: u16 = 46;

const TCA_XSTATS: u16 = 4;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_PKT64: u16 = 8;

impl Netlink {
    /// The qdiscs of a device.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn qdiscs(&mut self, index: u32) -> Result<Vec<Qdisc>, NetlinkError> {
        let mut qdiscs = Vec::new();
        let body = tcmsg(index, TcHandle(0), TcHandle(0), 0).into_bytes();
        let request = Request { kind: RTM_GETQDISC, flags: 0, body, what: "list qdiscs".into() };
        self.dump(request, |kind, body| {
            // The kernel dumps all devices' qdiscs, whatever index was asked for.
            if kind != RTM_NEWQDISC || body.len() < 20 || u32_of(&body[4..]) != index {
                return;
            }
            let mut qdisc = Qdisc {
                handle: TcHandle(u32_of(&body[8..])),
                parent: TcHandle(u32_of(&body[12..])),
                kind: String::new(),
                options: Vec::new(),
                counters: Counters::default(),
            };
            for (attribute, value) in attributes(&body[20..]) {
                match attribute {
                    TCA_KIND => qdisc.kind = str_of(value),
                    TCA_OPTIONS => qdisc.options = value.to_vec(),
                    TCA_STATS2 => read_stats(value, &mut qdisc.counters),
                    _ => {}
                }
            }
            qdiscs.push(qdisc);
        })?;
        Ok(qdiscs)
    }

    /// The classes of an HTB qdisc with their counters, into `classes`.
    ///
    /// # Errors
    /// [`NetlinkError`], `ENODEV` if the device is gone.
    pub fn htb_classes(
        &mut self,
        index: u32,
        qdisc: TcHandle,
        classes: &mut Vec<FoundClass>,
    ) -> Result<(), NetlinkError> {
        classes.clear();
        let body = tcmsg(index, TcHandle(0), qdisc, 0).into_bytes();
        let request = Request { kind: RTM_GETTCLASS, flags: 0, body, what: "list classes".into() };
        self.dump(request, |kind, body| {
            if kind == RTM_NEWTCLASS
                && let Some(class) = parse_class(body)
            {
                classes.push(class);
            }
        })
    }

    /// The filters at a hook of a device; none if it has no clsact qdisc.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn filters(&mut self, index: u32, hook: Hook) -> Result<Vec<Filter>, NetlinkError> {
        self.filters_of(index, hook.parent())
    }

    /// The filters of a qdisc; none if it is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn filters_of(&mut self, index: u32, qdisc: TcHandle) -> Result<Vec<Filter>, NetlinkError> {
        const TCA_BPF_ID: u16 = 11;
        let mut filters = Vec::new();
        let body = tcmsg(index, TcHandle(0), qdisc, 0).into_bytes();
        let request = Request { kind: RTM_GETTFILTER, flags: 0, body, what: "list filters".into() };
        let result = self.dump(request, |kind, body| {
            if kind != RTM_NEWTFILTER || body.len() < 20 {
                return;
            }
            let mut filter = Filter {
                kind: String::new(),
                pref: (u32_of(&body[16..]) >> 16) as u16,
                handle: u32_of(&body[8..]),
                bpf_name: None,
                bpf_id: None,
            };
            for (attribute, value) in attributes(&body[20..]) {
                match attribute {
                    TCA_KIND => filter.kind = str_of(value),
                    TCA_OPTIONS => {
                        for (option, value) in attributes(value) {
                            match option {
                                TCA_BPF_NAME => filter.bpf_name = Some(str_of(value)),
                                TCA_BPF_ID => filter.bpf_id = Some(u32_of(value)),
                                _ => {}
                            }
                        }
                    }
                    _ => {}
                }
            }
            filters.push(filter);
        });
        match result {
            Err(e) if e.is_gone() => Ok(Vec::new()),
            Err(e) => Err(e),
            Ok(()) => Ok(filters),
        }
    }
}

fn parse_class(body: &[u8]) -> Option<FoundClass> {
    const TCA_HTB_PARMS: u16 = 1;
    const TCA_HTB_RATE64: u16 = 6;
    const TCA_HTB_CEIL64: u16 = 7;
    let header = body.get(..20)?;
    let mut kind_is_htb = false;
    let mut class = HtbClass {
        handle: TcHandle(u32_of(&header[8..])),
        parent: TcHandle(u32_of(&header[12..])),
        rate: BitRate::ZERO,
        ceil: BitRate::ZERO,
        burst: Bytes(0),
        cburst: Bytes(0),
        quantum: Bytes(0),
        prio: 0,
        framing: RateFraming::default(),
    };
    let (mut rate64, mut ceil64) = (None, None);
    let (mut buffer, mut cbuffer) = (0, 0);
    let mut counters = Counters::default();
    let mut served = 0;
    for (attribute, value) in attributes(&body[20..]) {
        match attribute {
            TCA_KIND => kind_is_htb = str_of(value) == "htb",
            TCA_OPTIONS => {
                for (option, value) in attributes(value) {
                    match option {
                        TCA_HTB_PARMS if value.len() >= 44 => {
                            class.rate = BitRate(u64::from(u32_of(&value[8..])) * 8);
                            class.ceil = BitRate(u64::from(u32_of(&value[20..])) * 8);
                            buffer = u32_of(&value[24..]);
                            cbuffer = u32_of(&value[28..]);
                            class.quantum = Bytes(u64::from(u32_of(&value[32..])));
                            class.prio = u32_of(&value[40..]);
                            let short = |at: usize| u16::from_ne_bytes([value[at], value[at + 1]]);
                            class.framing = RateFraming {
                                overhead: short(2),
                                mpu: short(6),
                                is_atm: value[1] & LINKLAYER_MASK == TC_LINKLAYER_ATM,
                            };
                        }
                        TCA_HTB_RATE64 => rate64 = Some(BitRate(u64_of(value) * 8)),
                        TCA_HTB_CEIL64 => ceil64 = Some(BitRate(u64_of(value) * 8)),
                        _ => {}
                    }
                }
            }
            TCA_STATS2 => read_stats(value, &mut counters),
            // A leaf's packet counts as lent or borrowed (`htb_charge_class` in net/sched/sch_htb.c).
            TCA_XSTATS if value.len() >= 8 => served = u32_of(value).wrapping_add(u32_of(&value[4..])),
            _ => {}
        }
    }
    if class.parent == TcHandle::ROOT {
        // So it is told of a class right below the qdisc.
        class.parent = TcHandle::new(class.handle.major(), 0);
    }
    class.rate = rate64.unwrap_or(class.rate);
    class.ceil = ceil64.unwrap_or(class.ceil);
    class.burst = bytes_of_ticks(buffer, class.rate);
    class.cburst = bytes_of_ticks(cbuffer, class.ceil);
    kind_is_htb.then_some(FoundClass { class, leaf: TcHandle(u32_of(&header[16..])), counters, served })
}

/// `TCA_STATS2` (linux/gen_stats.h).
fn read_stats(value: &[u8], counters: &mut Counters) {
    for (stat, value) in attributes(value) {
        match stat {
            TCA_STATS_BASIC if value.len() >= 12 => {
                counters.bytes = u64_of(value);
                if counters.packets == 0 {
                    counters.packets = u64::from(u32_of(&value[8..]));
                }
            }
            TCA_STATS_PKT64 => counters.packets = u64_of(value),
            // struct gnet_stats_queue: qlen, backlog, drops, requeues, overlimits.
            TCA_STATS_QUEUE if value.len() >= 20 => {
                counters.queued = u64::from(u32_of(value));
                counters.backlog = u64::from(u32_of(&value[4..]));
                counters.drops = u64::from(u32_of(&value[8..]));
                counters.overlimits = u64::from(u32_of(&value[16..]));
            }
            _ => {}
        }
    }
}
