//! The bytes that a packet takes on the line of a modem.

use std::{fmt, str::FromStr};

use crate::{BitRate, Bytes};

/// The header that tc counts of each packet of a device, and that [`Framing`] does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkHeader {
    /// Ethernet's.
    #[default]
    Ethernet,
    /// None: the device's packets are IP packets (tun, ppp, WireGuard, raw IP).
    None,
}

impl LinkHeader {
    /// Its length.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            LinkHeader::Ethernet => 14,
            LinkHeader::None => 0,
        }
    }
}

/// The cells of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cells {
    /// Packets of any length.
    #[default]
    None,
    /// ATM: 48 bytes of a packet in each cell of 53, and the last cell is filled up.
    Atm,
    /// PTM of VDSL2: one byte more for each 64, also for a part of them.
    Ptm,
}

/// The framing of a line, with the meaning of tc-cake(8): bytes are counted over the IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Framing {
    /// Bytes around each IP packet. A negative number takes from it.
    pub overhead: i32,
    /// The least bytes of a packet with its overhead.
    pub mpu: u32,
    /// The cells that carry it.
    pub cells: Cells,
    /// The header that tc counts of the link's packets.
    pub header: LinkHeader,
}

/// The presets of tc-cake(8): name, overhead, least bytes, cells.
const PRESETS: [(&str, i32, u32, Cells); 13] = [
    ("ethernet", 38, 84, Cells::None),
    ("docsis", 18, 64, Cells::None),
    ("pppoe-ptm", 30, 0, Cells::Ptm),
    ("bridged-ptm", 22, 0, Cells::Ptm),
    ("pppoe-llcsnap", 40, 0, Cells::Atm),
    ("pppoe-vcmux", 32, 0, Cells::Atm),
    ("bridged-llcsnap", 32, 0, Cells::Atm),
    ("bridged-vcmux", 24, 0, Cells::Atm),
    ("pppoa-llc", 14, 0, Cells::Atm),
    ("pppoa-vcmux", 10, 0, Cells::Atm),
    ("ipoa-llcsnap", 16, 0, Cells::Atm),
    ("ipoa-vcmux", 8, 0, Cells::Atm),
    ("conservative", 48, 0, Cells::Atm),
];

impl Framing {
    /// The least overhead that tc-cake takes too.
    pub const MIN_OVERHEAD: i32 = -64;
    /// The highest overhead and the highest least packet that tc-cake takes too.
    pub const MAX_BYTES: u32 = 256;

    /// The bytes on the line of a packet of which tc counts `len` bytes on the link.
    ///
    /// This is `cake_calc_overhead` of net/sched/sch_cake.c.
    #[must_use]
    pub fn line_bytes(self, len: u64) -> u64 {
        let framed = len.saturating_sub(self.header.bytes()).saturating_add_signed(i64::from(self.overhead));
        let framed = framed.max(u64::from(self.mpu));
        match self.cells {
            Cells::None => framed,
            Cells::Atm => framed.div_ceil(48) * 53,
            Cells::Ptm => framed + framed.div_ceil(64),
        }
    }

    /// The bytes on the line of several packets of which tc counts `bytes` together. Without `mpu` and cells
    /// the answer is exact; else it takes all packets for equally long.
    #[must_use]
    pub fn line_bytes_of(self, bytes: Bytes, packets: u64) -> Bytes {
        if packets == 0 {
            return bytes;
        }
        let (short, long) = (bytes.0 / packets, bytes.0 % packets);
        Bytes(self.line_bytes(short) * (packets - long) + self.line_bytes(short + 1) * long)
    }

    /// The form in which HTB charges a packet.
    ///
    /// HTB adds no negative bytes and knows no PTM. A packet is charged its bytes on the line or a little more.
    /// A negative overhead beside the link's header counts as 0. PTM is a rate of 64 parts of 65 and one byte.
    #[must_use]
    pub fn of_rate(self) -> RateFraming {
        let is_ptm = self.cells == Cells::Ptm;
        let header = i32::try_from(self.header.bytes()).unwrap_or(i32::MAX);
        let overhead = self.overhead - header + i32::from(is_ptm);
        RateFraming {
            overhead: u16::try_from(overhead.max(0)).unwrap_or(u16::MAX),
            mpu: u16::try_from(if is_ptm { self.mpu + 1 } else { self.mpu }).unwrap_or(u16::MAX),
            is_atm: self.cells == Cells::Atm,
        }
    }

    /// The form in which a TBF above another scheduler charges a packet: its bytes on the line or less, so that
    /// it holds nothing back that the other lets go. PTM is left out.
    ///
    /// A negative overhead beside the link's header has no such form. All of it is left out then.
    #[must_use]
    pub fn at_most(self) -> RateFraming {
        let around = i64::from(self.overhead) - self.header.bytes().cast_signed();
        let Ok(overhead) = u16::try_from(around) else { return RateFraming::default() };
        let mpu = u16::try_from(self.mpu).unwrap_or(u16::MAX);
        RateFraming { overhead, mpu, is_atm: self.cells == Cells::Atm }
    }

    /// A rate of the line as HTB's rate.
    #[must_use]
    pub fn scale(self, rate: BitRate) -> BitRate {
        if self.cells == Cells::Ptm { rate.scale(64, 65) } else { rate }
    }
}

/// The framing of a rate of `tc`: `overhead`, `mpu` and `linklayer` of tc-htb(8). Bytes are counted over the
/// packet as tc counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateFraming {
    /// Bytes around each packet.
    pub overhead: u16,
    /// The least bytes of a packet with its overhead.
    pub mpu: u16,
    /// 48 bytes in each cell of 53.
    pub is_atm: bool,
}

impl RateFraming {
    /// The bytes that the kernel charges of a packet (`psched_l2t_ns` of net/sched/sch_generic.h).
    #[must_use]
    pub fn charged(self, len: Bytes) -> Bytes {
        let framed = (len.0 + u64::from(self.overhead)).max(self.mpu.into());
        Bytes(if self.is_atm { framed.div_ceil(48) * 53 } else { framed })
    }
}

/// The error of a name that tc-cake does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no framing `{0}`: write one of {names}, or overhead, mpu and atm", names = preset_names())]
pub struct ParseFramingError(String);

fn preset_names() -> String {
    PRESETS.map(|(name, ..)| name).join(", ")
}

impl FromStr for Framing {
    type Err = ParseFramingError;

    fn from_str(text: &str) -> Result<Framing, ParseFramingError> {
        let preset = PRESETS.iter().find(|(name, ..)| *name == text);
        let (_, overhead, mpu, cells) = *preset.ok_or_else(|| ParseFramingError(text.to_owned()))?;
        Ok(Framing { overhead, mpu, cells, header: LinkHeader::Ethernet })
    }
}

impl fmt::Display for Framing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Framing { overhead, mpu, cells, header: _ } = *self;
        write!(f, "{overhead:+} bytes over the IP packet")?;
        if mpu > 0 {
            write!(f, ", at least {mpu}")?;
        }
        f.write_str(match cells {
            Cells::None => "",
            Cells::Atm => ", in ATM cells",
            Cells::Ptm => ", in PTM",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn all() -> impl Iterator<Item = Framing> {
        let own = [-64, -20, 0, 44].map(|overhead| Framing {
            overhead,
            mpu: 64,
            cells: Cells::Atm,
            ..Framing::default()
        });
        PRESETS.into_iter().map(|(name, ..)| name.parse().unwrap()).chain(own)
    }

    fn htb_time(framing: Framing, rate: BitRate, len: u64) -> Duration {
        framing.scale(rate).time_to_send(framing.of_rate().charged(Bytes(len)))
    }

    /// The figures are those of `tc -s qdisc` for cake, by hand.
    #[test]
    fn framing_of_presets_is_that_of_cake() {
        let line = |name: &str, ip: u64| name.parse::<Framing>().unwrap().line_bytes(ip + 14);
        for (name, ip, bytes) in [
            ("ethernet", 1500, 1538),
            ("ethernet", 28, 84),
            ("docsis", 46, 64),
            ("pppoe-ptm", 1492, 1522 + 24),
            ("pppoe-vcmux", 28, 2 * 53),
            ("pppoe-llcsnap", 1492, 32 * 53),
            ("pppoa-vcmux", 1478, 31 * 53),
            ("ipoa-vcmux", 40, 53),
            ("conservative", 1500, 33 * 53),
        ] {
            assert_eq!(line(name, ip), bytes, "{name} of {ip}");
        }
        let error = "pppoe".parse::<Framing>().unwrap_err().to_string();
        assert!(error.contains("`pppoe`") && error.contains("pppoe-ptm, bridged-ptm"), "{error}");
        assert_eq!(Framing { overhead: -40, ..Framing::default() }.line_bytes(20), 0);
    }

    /// A line gets no queue if HTB takes at least the line's time for each packet. It wastes little if HTB takes
    /// little more.
    #[test]
    fn htb_takes_the_lines_time_for_each_packet_or_a_little_more() {
        let rate = BitRate::mbit(10);
        for framing in all() {
            for ip in 20..=1500 {
                let len = ip + 14;
                let line = rate.time_to_send(Bytes(framing.line_bytes(len)));
                let htb = htb_time(framing, rate, len);
                let most = match framing.cells {
                    Cells::Ptm => line.mul_f64(1.03) + Duration::from_nanos(50),
                    _ if framing.overhead < 14 => line + rate.time_to_send(Bytes(2 * 53)),
                    _ => line + Duration::from_nanos(1),
                };
                assert!(line <= htb && htb <= most, "{framing} of {ip}: {line:?} {htb:?}");
            }
        }
    }

    /// Packets of 64 bytes leave HTB at 99 % of the line's rate. Without framing they would want far more time
    /// than the line has.
    #[test]
    fn small_packets_at_99_percent_of_the_line_make_no_queue() {
        let line = BitRate::mbit(8);
        for framing in all().filter(|f| f.overhead > 14) {
            let queue_after = |charged: Duration| {
                let (mut arrives, mut free, mut queue) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
                for _ in 0..10_000 {
                    arrives += charged;
                    free = free.max(arrives) + line.time_to_send(Bytes(framing.line_bytes(64)));
                    queue = queue.max(free - arrives);
                }
                queue
            };
            let one = line.time_to_send(Bytes(framing.line_bytes(64)));
            let rate = BitRate(line.0 / 100 * 99);
            assert!(queue_after(htb_time(framing, rate, 64)) <= one, "{framing}");
            let unframed = queue_after(rate.time_to_send(Bytes(64)));
            assert!(unframed > Duration::from_millis(30), "{framing}: {unframed:?}");
        }
    }

    #[test]
    fn tbf_above_a_scheduler_charges_at_most_the_lines_bytes() {
        for framing in all().filter(|f| f.overhead >= 14) {
            for len in 34..=1514 {
                let (tbf, line) = (framing.at_most().charged(Bytes(len)).0, framing.line_bytes(len));
                assert!(tbf <= line && line <= tbf + tbf.div_ceil(64), "{framing} of {len}: {tbf} {line}");
            }
        }
        let negative = Framing { overhead: 8, cells: Cells::Atm, ..Framing::default() };
        assert_eq!(negative.at_most(), RateFraming::default());
        let bare = Framing { header: LinkHeader::None, ..negative };
        assert_eq!(bare.at_most(), RateFraming { overhead: 8, mpu: 0, is_atm: true });
        assert_eq!((bare.line_bytes(40), bare.line_bytes(41)), (53, 2 * 53), "tc counts the IP packet there");
    }

    #[test]
    fn bytes_of_many_packets_are_those_of_each() {
        for framing in all() {
            for len in [64, 142, 1514] {
                let one = framing.line_bytes(len);
                assert_eq!(framing.line_bytes_of(Bytes(len * 7), 7), Bytes(one * 7), "{framing} of {len}");
            }
        }
        let plain = Framing { overhead: 30, ..Framing::default() };
        assert_eq!(plain.line_bytes_of(Bytes(64 + 1514), 2).0, plain.line_bytes(64) + plain.line_bytes(1514));
        assert_eq!(plain.line_bytes_of(Bytes(9), 0), Bytes(9));
    }
}
