//! Random frames: near to what a classifier looks for, and broken in some way.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{Addresses, BROADCAST, ICMP6, Mac, UDP, arp, crafted, ip4, ip6, udp};

/// Random numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers that follow from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as usize % bound
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Whether something happens that happens once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Random frames of 14 to 1514 bytes, without end. Of four frames one is a crafted one. Some are cut, and
/// some have other bytes.
#[derive(Debug, Clone)]
pub struct RandomFrames {
    addresses: Addresses,
    crafted: Vec<Vec<u8>>,
    random: Random,
}

impl RandomFrames {
    /// The frames that follow from a seed.
    #[must_use]
    pub fn new(addresses: &Addresses, seed: u64) -> RandomFrames {
        let crafted = crafted(addresses).into_iter().map(|(_, frame)| frame).collect();
        RandomFrames { addresses: addresses.clone(), crafted, random: Random::new(seed) }
    }
}

impl Iterator for RandomFrames {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let r = &mut self.random;
        let mut frame = if r.once_in(4) {
            self.crafted[r.below(self.crafted.len())].clone()
        } else {
            built(&self.addresses, r)
        };
        if r.once_in(4) {
            for _ in 0..=r.below(4) {
                let at = 12 + r.below(frame.len().min(80) - 12);
                frame[at] = r.below(256) as u8;
            }
        }
        let len = frame.len();
        match r.below(6) {
            0 => frame.truncate(14 + r.below(len.min(100) - 13)),
            1 => frame.truncate(14 + r.below(len - 13)),
            _ => {}
        }
        frame.truncate(1514);
        Some(frame)
    }
}

fn built(a: &Addresses, r: &mut Random) -> Vec<u8> {
    let others: [Mac; 4] = [BROADCAST, a.other, [0x33, 0x33, 0, 0, 0, 1], [2, 8, 8, 8, 8, 8]];
    let to = if r.once_in(3) { r.of(&others) } else { a.far };
    let mut frame = [to, if r.once_in(8) { a.other } else { a.own }].concat();
    if r.once_in(4) {
        for _ in 0..=r.below(3) {
            let kind = r.of(&[0x8100_u16, 0x88a8]);
            frame.extend(kind.to_be_bytes().iter().chain(&[0, r.below(8) as u8]));
        }
    }
    let (kind, payload) = match r.below(10) {
        0..4 => (0x0800, v4(a, r)),
        4..8 => (0x86dd, v6(a, r)),
        8 => {
            // On both sides of the largest control frame.
            let len = r.of(&[28, 46, 81, 82, 85, 86, 87, 400]);
            (0x0806, arp(a, len))
        }
        _ => (r.of(&[0x888e, 0x8847, 0x88b5, 0x05dc, 0x0806, 0x0800, 0x86dd]), bytes(r, 120)),
    };
    frame.extend(u16::to_be_bytes(kind));
    frame.extend(payload);
    frame
}

fn bytes(r: &mut Random, most: usize) -> Vec<u8> {
    (0..r.below(most + 1)).map(|_| r.below(256) as u8).collect()
}

/// A protocol above IP with its header and payload.
fn transport(r: &mut Random, is_v6: bool) -> (u8, Vec<u8>) {
    let ports = [0, 1, 67, 68, 546, 547, 4000, 5000];
    let len = r.of(&[0, 2, 40, 230, 232, 300, 1200, 1400]);
    let pairs = [[68, 67], [67, 68], [546, 547], [547, 546]];
    match r.below(8) {
        0..3 => {
            let pair = if r.once_in(2) { r.of(&pairs) } else { [r.of(&ports), r.of(&ports)] };
            (UDP, udp(pair, len))
        }
        3 => {
            let mut tcp = [r.of(&ports).to_be_bytes(), r.of(&ports).to_be_bytes()].concat();
            tcp.resize(20 + len, 0x50);
            (r.of(&[6, 132]), tcp)
        }
        4..6 => {
            let mut body = vec![0; 4 + len];
            body[0] = r.of(&[128, 132, 133, 134, 135, 136, 137, 138]);
            (if is_v6 { ICMP6 } else { 1 }, body)
        }
        _ => (r.below(256) as u8, bytes(r, 60)),
    }
}

fn v4(a: &Addresses, r: &mut Random) -> Vec<u8> {
    let (protocol, payload) = transport(r, false);
    let everyone = [a.source, a.other_ip, a.host, Ipv4Addr::LOCALHOST, [239, 1, 2, 3].into()];
    let to = if r.once_in(2) { a.server } else { r.of(&everyone) };
    let fragment = if r.once_in(2) { 0 } else { r.of(&[0x2000, 0x4000, 0x8000, 0x2001, 1, 100, 0x1fff]) };
    let options = vec![1; r.of(&[0, 0, 0, 4, 8, 40])];
    let source = r.of(&[a.source, a.source, a.other_ip, a.host]);
    let mut ip = ip4(source, to, r.of(&[0, 46 << 2, 3, 40]), fragment, &options, &payload);
    ip[5] = r.below(4) as u8;
    ip[9] = protocol;
    if r.once_in(8) {
        // Another version or length of the header.
        ip[0] = r.of(&[0x40, 0x44, 0x45, 0x46, 0x4f, 0x65]);
    }
    if r.once_in(8) {
        let len = (r.below(0x10000) as u16).to_be_bytes();
        ip[2..4].copy_from_slice(&len);
    }
    ip
}

fn v6(a: &Addresses, r: &mut Random) -> Vec<u8> {
    const EXTENSIONS: [u8; 7] = [0, 43, 44, 44, 51, 60, 135];
    let (mut next, mut payload) = transport(r, true);
    let chain = if r.once_in(2) { 0 } else { 1 + r.below(8) };
    for _ in 0..chain {
        let kind = r.of(&EXTENSIONS);
        let units = if kind == 44 { 0 } else { r.of(&[0, 0, 1, 4]) };
        let mut header = vec![next, units];
        if kind == 44 {
            header.extend([r.of(&[0, 0, 5]), r.of(&[0, 1, 1, 9, 8, 6]), 0, 0, 0, r.below(4) as u8]);
        } else {
            let len = if kind == 51 { (usize::from(units) + 2) * 4 } else { (usize::from(units) + 1) * 8 };
            header.resize(len, 0);
        }
        header.extend(payload);
        (next, payload) = (kind, header);
    }
    let everyone = [a.host6, Ipv6Addr::LOCALHOST, Addresses::SOURCE6, "ff02::1".parse().expect("an address")];
    let to = if r.once_in(2) { a.server6 } else { r.of(&everyone) };
    let source = r.of(&[Addresses::SOURCE6, Addresses::SOURCE6, a.host6, a.server6]);
    let mut ip = ip6(source, to, next, r.of(&[255, 255, 254, 64]), &payload);
    if r.once_in(4) {
        // The class of traffic.
        (ip[0], ip[1]) = (0x60 | r.below(16) as u8, r.below(256) as u8);
    }
    ip
}
