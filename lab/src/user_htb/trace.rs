//! Traces: frames as they arrive, made up from a seed or read from a capture, and whose they are.

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

use anyhow::{Context, Result, bail};
use pcap_file::{
    PcapError,
    pcap::PcapReader,
    pcapng::{Block, PcapNgReader},
};
use weir_htb::ClassId;

use super::scenario::Scenario;

/// As many frames as the paper's longest trace has, and some: captures may be endless.
const MAX_FRAMES: usize = 10_000_000;
/// This many more blocks than packets of a pcapng file may be of another kind: such blocks may be
/// endless too.
const MAX_OTHER_BLOCKS: u64 = 100_000;
/// Ethernet's header, and where its payload's type is.
const ETHERNET: usize = 14;
const TYPE: usize = 12;
const TOTAL_LENGTH: usize = ETHERNET + 2;
const DESTINATION: usize = ETHERNET + 16;

/// The beginning of a frame: a line of the cache, which is read to classify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Frame([u8; 64]);

/// Frames in their order, and who their users are.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    /// As they arrive.
    pub(crate) frames: Vec<Frame>,
    /// The class of each address.
    pub(crate) users: Users,
    /// The remarks about a capture; empty without any.
    pub(crate) notes: Vec<String>,
}

/// Numbers from a seed (SplitMix64), the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `below` - 1.
    fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(below)) >> 64) as u64
    }

    /// A packet's length.
    fn len(&mut self, scenario: &Scenario) -> u32 {
        let Scenario { min_len, max_len, .. } = scenario;
        min_len + self.below(u64::from(max_len - min_len) + 1) as u32
    }
}

impl Frame {
    fn new(user: u32, len: u32) -> Frame {
        let mut bytes = [0; 64];
        bytes[TYPE..TYPE + 2].copy_from_slice(&[8, 0]);
        bytes[ETHERNET] = 0x45;
        bytes[TOTAL_LENGTH..TOTAL_LENGTH + 2]
            .copy_from_slice(&((len as u16) - ETHERNET as u16).to_be_bytes());
        bytes[DESTINATION..DESTINATION + 4].copy_from_slice(&address(user).to_be_bytes());
        Frame(bytes)
    }

    /// Of what was captured, `wire` bytes long; none if it is not IPv4.
    fn captured(data: &[u8], wire: u32) -> Option<Frame> {
        let mut bytes = [0; 64];
        let kept = data.len().min(64);
        bytes[..kept].copy_from_slice(&data[..kept]);
        if kept < DESTINATION + 4 || bytes[TYPE..TYPE + 2] != [8, 0] || bytes[ETHERNET] >> 4 != 4 {
            return None;
        }
        let total = wire.saturating_sub(ETHERNET as u32).clamp(20, 65_535) as u16;
        bytes[TOTAL_LENGTH..TOTAL_LENGTH + 2].copy_from_slice(&total.to_be_bytes());
        Some(Frame(bytes))
    }

    #[inline]
    fn destination(&self) -> u32 {
        let b = &self.0;
        u32::from_be_bytes([b[DESTINATION], b[DESTINATION + 1], b[DESTINATION + 2], b[DESTINATION + 3]])
    }

    /// Bytes on the wire, without the frame check sequence.
    #[inline]
    #[must_use]
    pub(crate) fn on_wire(&self) -> u32 {
        u32::from(u16::from_be_bytes([self.0[TOTAL_LENGTH], self.0[TOTAL_LENGTH + 1]])) + ETHERNET as u32
    }
}

/// A made-up user's address.
fn address(user: u32) -> u32 {
    0x0a00_0001 + user
}

/// From IPv4 addresses to classes: an exact match in a table of open addressing.
#[derive(Debug, Clone)]
pub(crate) struct Users {
    /// Address and class; address 0 belongs to no user.
    slots: Box<[(u32, u32)]>,
    count: u32,
}

impl Users {
    fn new(users: u32) -> Users {
        Users { slots: vec![(0, 0); (users as usize * 4).next_power_of_two()].into(), count: 0 }
    }

    /// With their made-up addresses.
    fn made_up(count: u32) -> Users {
        let mut users = Users::new(count);
        (0..count).for_each(|user| users.insert(address(user)));
        users
    }

    #[inline]
    fn slot(&self, address: u32) -> usize {
        let mask = self.slots.len() - 1;
        let hash = u64::from(address).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut i = hash as usize & mask;
        while self.slots[i].0 != address && self.slots[i].0 != 0 {
            i = (i + 1) & mask;
        }
        i
    }

    fn insert(&mut self, address: u32) {
        let i = self.slot(address);
        if address != 0 && self.slots[i].0 == 0 {
            self.slots[i] = (address, self.count);
            self.count += 1;
        }
    }

    /// The class and length of a frame; none if its destination is no user.
    #[inline]
    #[must_use]
    pub(crate) fn classify(&self, frame: &Frame) -> Option<(ClassId, u32)> {
        let address = frame.destination();
        let (known, class) = self.slots[self.slot(address)];
        (known == address && address != 0).then(|| (ClassId(class), frame.on_wire()))
    }
}

impl Trace {
    /// The scenario's: its capture, or made up from `seed`, at most `most` frames.
    ///
    /// # Errors
    /// The file cannot be read, is no capture, or has no IPv4 packet.
    pub(crate) fn of(scenario: &Scenario, most: u64, seed: u64) -> Result<Trace> {
        match &scenario.pcap {
            Some(path) => {
                let file = File::open(path)
                    .with_context(|| format!("cannot open the capture {}", path.display()))?;
                Trace::captured(file, scenario.users, most).with_context(|| said(path))
            }
            None => Ok(Trace::made_up(scenario, most, seed)),
        }
    }

    /// Users in proportion to what they are assured of, lengths uniform between the least and the most:
    /// as the paper's mean of 782 between 64 and 1500.
    fn made_up(scenario: &Scenario, most: u64, seed: u64) -> Trace {
        let mut random = Random(seed);
        let (common, special) = (scenario.active.div_ceil(2), scenario.active / 2);
        let assured = |user| super::scenario::paper_rates(user).0.bits_per_sec();
        let (one, other) = (assured(0) * u64::from(common), assured(1) * u64::from(special));
        let frame = |_| {
            let user = if random.below(one + other) < one {
                2 * random.below(common.into()) as u32
            } else {
                2 * random.below(special.into()) as u32 + 1
            };
            Frame::new(user, random.len(scenario))
        };
        let frames = (0..most.min(MAX_FRAMES as u64)).map(frame).collect();
        Trace { frames, users: Users::made_up(scenario.users), notes: Vec::new() }
    }

    /// The backlog of each of the first `active` users, of such lengths.
    pub(super) fn waiting(scenario: &Scenario, active: u32, seed: u64) -> Trace {
        let mut random = Random(seed);
        let frame = |i| Frame::new(i % active, random.len(scenario));
        let frames = (0..active * scenario.waiting).map(frame).collect();
        Trace { frames, users: Users::made_up(scenario.users), notes: Vec::new() }
    }

    /// Of a pcap or pcapng file. The first destinations are the users.
    fn captured(mut file: impl Read, most_users: u32, most: u64) -> Result<Trace> {
        let most = usize::try_from(most).unwrap_or(MAX_FRAMES).min(MAX_FRAMES);
        let mut magic = [0; 4];
        file.read_exact(&mut magic).context("it is shorter than a capture's first word")?;
        let next = magic == [0x0a, 0x0d, 0x0d, 0x0a];
        let file = (&magic[..]).chain(file);
        let (mut frames, mut others, mut notes) = (Vec::new(), 0u64, Vec::new());
        let mut take = |data: &[u8], wire: u32| match Frame::captured(data, wire) {
            Some(frame) => frames.push(frame),
            None => others += 1,
        };
        let not_whole = |notes: &mut Vec<String>, error: PcapError, packets: u64| {
            notes.push(format!("the capture ends within or after packet {packets}: {error}"));
        };
        let (mut packets, mut blocks, mut passed_over) = (0u64, 0u64, BTreeMap::new());
        if next {
            let mut reader = PcapNgReader::new(file).context("it is neither pcap nor pcapng")?;
            while packets < most as u64 {
                if blocks > 2 * packets + MAX_OTHER_BLOCKS {
                    notes.push(format!(
                        "the capture was read no further than {blocks} blocks, of which {packets} are packets"
                    ));
                    break;
                }
                blocks += 1;
                let (data, wire) = match reader.next_block() {
                    None => break,
                    Some(Err(error)) => {
                        not_whole(&mut notes, error, packets);
                        break;
                    }
                    Some(Ok(Block::EnhancedPacket(packet))) => (packet.data, packet.original_len),
                    Some(Ok(Block::Packet(packet))) => (packet.data, packet.original_len),
                    Some(Ok(Block::SimplePacket(packet))) => (packet.data, packet.original_len),
                    Some(Ok(Block::SectionHeader(_) | Block::InterfaceDescription(_))) => continue,
                    Some(Ok(block)) => {
                        *passed_over.entry(kind(&block)).or_insert(0u64) += 1;
                        continue;
                    }
                };
                packets += 1;
                // The padding of a simple packet is not part of it.
                take(&data[..data.len().min(wire as usize)], wire);
            }
        } else {
            let mut reader = PcapReader::new(file).context("it is neither pcap nor pcapng")?;
            while packets < most as u64 {
                match reader.next_packet() {
                    None => break,
                    Some(Err(error)) => {
                        not_whole(&mut notes, error, packets);
                        break;
                    }
                    Some(Ok(packet)) => {
                        packets += 1;
                        take(&packet.data, packet.orig_len);
                    }
                }
            }
        }
        notes.extend(passed_over.iter().map(|(kind, blocks)| format!("{blocks} {kind} were passed over")));
        if frames.is_empty() {
            bail!("it has no IPv4 packet over Ethernet among {packets} ({})", notes.join("; "));
        }
        if packets == most as u64 {
            notes.push(format!("of the capture the first {packets} packets were read"));
        }
        if others > 0 {
            notes.push(format!("{others} packets that are not IPv4 were left out"));
        }
        let mut users = Users::new(most_users);
        for frame in &frames {
            if users.count < most_users {
                users.insert(frame.destination());
            }
        }
        let strangers = frames.iter().filter(|frame| users.classify(frame).is_none()).count();
        if strangers > 0 {
            notes.push(format!("{strangers} packets are to more than {most_users} users and are dropped"));
        }
        Ok(Trace { frames, users, notes })
    }

    /// Bytes of all frames.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.frames.iter().map(|frame| u64::from(frame.on_wire())).sum()
    }
}

/// Blocks of a pcapng file that hold no packet, nor what is needed to read one.
fn kind(block: &Block) -> &'static str {
    match block {
        Block::NameResolution(_) => "blocks of names",
        Block::InterfaceStatistics(_) => "blocks of statistics",
        Block::SystemdJournalExport(_) => "blocks of a journal",
        _ => "blocks of an unknown kind",
    }
}

fn said(path: &Path) -> String {
    format!("cannot use the capture {}", path.display())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::scenario::tests::scenario;
    use super::*;

    /// A capture of `frames`, as tcpdump writes it.
    fn pcap(frames: &[&[u8]]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 65_535, 1] {
            file.extend(word.to_ne_bytes());
        }
        for frame in frames {
            for word in [1, 0, frame.len() as u32, 1_000] {
                file.extend(word.to_ne_bytes());
            }
            file.extend(*frame);
        }
        file
    }

    /// A block of a pcapng file.
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let padding = body.len().next_multiple_of(4) - body.len();
        let len = (12 + body.len() + padding) as u32;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &[0; 3][..padding], &len.to_le_bytes()].concat()
    }

    /// The section's header and an Ethernet interface, as pcapng files begin.
    fn pcapng() -> Vec<u8> {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let header = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
        [header, block(1, &words(&[1, 65_535]))].concat()
    }

    /// The same bytes again and again.
    struct Endless(Vec<u8>);

    impl Read for Endless {
        fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
            let read = self.0.as_slice().read(room)?;
            self.0.rotate_left(read);
            Ok(read)
        }
    }

    #[test]
    fn packets_of_all_kinds_of_blocks_are_taken_and_other_blocks_are_told() {
        let frame = Frame::new(5, 64).0;
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let enhanced = block(6, &[&words(&[0, 0, 0, 63, 1_000])[..], &frame[..63]].concat());
        let simple = block(3, &[&words(&[63])[..], &frame[..63]].concat());
        let statistics = block(5, &words(&[0, 0, 0]));
        let file = [pcapng(), simple, statistics.clone(), enhanced, statistics, block(77, b"who")].concat();
        let trace = Trace::captured(&*file, 2, u64::MAX).unwrap();
        assert_eq!(trace.frames.iter().map(Frame::on_wire).collect::<Vec<_>>(), [63, 1_000]);
        assert!(trace.frames.iter().all(|frame| trace.users.classify(frame).is_some()));
        let told =
            ["1 blocks of an unknown kind were passed over", "2 blocks of statistics were passed over"];
        assert_eq!(trace.notes, told);
    }

    #[test]
    fn endless_blocks_without_packets_end() {
        let endless = || Endless(block(5, &[0; 12]));
        let error = Trace::captured(pcapng().as_slice().chain(endless()), 2, 10).unwrap_err().to_string();
        assert!(error.contains("no further than 100001 blocks, of which 0 are packets"), "{error}");
        let simple = block(3, &[&64u32.to_le_bytes()[..], &Frame::new(5, 64).0].concat());
        let trace = Trace::captured([pcapng(), simple].concat().as_slice().chain(endless()), 2, 10).unwrap();
        assert_eq!(trace.frames.len(), 1);
        assert!(trace.notes[0].contains("of which 1 are packets"), "{:?}", trace.notes);
        // Sections and interfaces are blocks as well.
        assert!(Trace::captured(Endless(pcapng()), 2, 10).is_err());
    }

    #[test]
    fn the_papers_traces_are_made_up_again_from_a_seed() {
        let file1 = scenario("phtb-1");
        let trace = Trace::of(&file1, 100_000, 7).unwrap();
        let lens = trace.frames.iter().map(Frame::on_wire).collect::<Vec<_>>();
        assert_eq!((lens.iter().min(), lens.iter().max()), (Some(&64), Some(&1_500)));
        let mean = trace.bytes() as f64 / lens.len() as f64;
        assert!((mean - 782.0).abs() < 5.0, "{mean}");
        assert_eq!(trace.frames, Trace::of(&file1, 100_000, 7).unwrap().frames);
        assert_ne!(trace.frames, Trace::of(&file1, 100_000, 8).unwrap().frames);
        // Each user has about what it is assured of: the special ones four times that of the others.
        let mut packets = vec![0u64; 800];
        for frame in &trace.frames {
            packets[trace.users.classify(frame).unwrap().0.0 as usize] += 1;
        }
        let common = packets.iter().step_by(2).sum::<u64>();
        assert!((common as f64 / 20_000.0 - 1.0).abs() < 0.05, "{common}");
        assert!(packets.iter().all(|packets| *packets > 20));
    }

    #[test]
    fn two_of_three_users_send_in_the_papers_second_trace() {
        let trace = Trace::of(&scenario("phtb-2"), 50_000, 1).unwrap();
        let highest = trace.frames.iter().map(|frame| trace.users.classify(frame).unwrap().0.0).max();
        assert_eq!(highest, Some(532));
    }

    #[test]
    fn a_capture_is_read_and_what_it_lacks_is_said() {
        let (a, b, c) = (Frame::new(5, 64).0, Frame::new(6, 64).0, Frame::new(7, 64).0);
        let mut arp = a;
        arp[TYPE + 1] = 6;
        let file = pcap(&[&a, &arp, &b, &a, &c]);
        let trace = Trace::captured(&*file, 2, u64::MAX).unwrap();
        let classes = trace.frames.iter().map(|frame| trace.users.classify(frame));
        let class = |n| Some((ClassId(n), 1_000));
        assert_eq!(classes.collect::<Vec<_>>(), [class(0), class(1), class(0), None]);
        assert!(trace.notes[0].contains("1 packets that are not IPv4"), "{:?}", trace.notes);
        assert!(trace.notes[1].contains("to more than 2 users"), "{:?}", trace.notes);

        let cut = Trace::captured(&file[..file.len() - 10], 2, u64::MAX).unwrap();
        assert_eq!(cut.frames.len(), 3);
        assert!(cut.notes[0].contains("ends within or after packet 4"), "{:?}", cut.notes);
        let some = Trace::captured(&*file, 2, 2).unwrap();
        assert!(some.notes[0].contains("the first 2 packets"), "{:?}", some.notes);
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        for (bytes, why) in [
            (&b""[..], "shorter than"),
            (&[0; 200][..], "neither pcap nor pcapng"),
            (&[0x0a, 0x0d, 0x0d, 0x0a, 1, 2, 3][..], "neither pcap nor pcapng"),
            (&pcap(&[])[..], "no IPv4 packet"),
        ] {
            let error = format!("{:#}", Trace::captured(bytes, 2, 10).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
        // Endless, and nothing in it.
        let endless = pcap(&[]).into_iter().chain(std::iter::repeat_n(0, 1 << 20)).collect::<Vec<_>>();
        assert!(Trace::captured(&*endless, 2, 1_000).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            kind in 0..3u8,
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            if kind > 0 {
                let frame = Frame::new(1, 64).0;
                let whole = if kind == 1 { pcap(&[&frame, &bytes, &frame]) } else {
                    [&[0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0][..],
                     &[255; 8], &[28, 0, 0, 0], &bytes].concat()
                };
                bytes = whole;
                for (at, with) in flips {
                    let at = at.index(bytes.len());
                    bytes[at] = with;
                }
            }
            if let Ok(trace) = Trace::captured(&*bytes, 3, 100) {
                prop_assert!(!trace.frames.is_empty());
                trace.frames.iter().for_each(|frame| { let _ = trace.users.classify(frame); });
            }
        }
    }
}
