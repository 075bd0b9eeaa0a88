//! The programs on made-up frames, in the kernel (`BPF_PROG_TEST_RUN`). Without root the tests say so and
//! pass.

use libbpf_rs::{ErrorKind, ProgramInput};
use nix::time::{ClockId, clock_gettime};

use super::*;
use crate::{Classifier, LocalPrefix, Locality};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn programs() -> Option<LinkSignals> {
    match LinkSignals::load(0, None) {
        Ok(signals) => Some(signals),
        Err(e) if e.source.kind() == ErrorKind::PermissionDenied => {
            println!("SKIPPED: loading BPF programs needs root");
            None
        }
        Err(e) => panic!("{e:?}"),
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    u64::try_from(time.tv_sec()).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap()
}

#[derive(Clone, Copy)]
struct Tcp {
    is_v6: bool,
    seq: u32,
    ack: u32,
    flags: u8,
    /// TSval and TSecr.
    stamps: Option<(u32, u32)>,
    /// Begins and ends of what has arrived behind a gap (RFC 2018).
    blocks: &'static [(u32, u32)],
    payload: usize,
}

const DATA: Tcp =
    Tcp { is_v6: false, seq: 1_000, ack: 1, flags: ACK, stamps: Some((7, 3)), blocks: &[], payload: 1_000 };
const ANSWER: Tcp = Tcp { seq: 1, ack: 2_000, stamps: Some((4, 7)), payload: 0, ..DATA };

impl Tcp {
    /// The frame of a packet that leaves from port 4000 to port 80, or of one that comes back.
    fn frame(&self, leaves: bool) -> Vec<u8> {
        let mut options = match self.stamps {
            Some((value, echo)) => [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat(),
            None => Vec::new(),
        };
        if !self.blocks.is_empty() {
            options.extend([1, 1, 5, 2 + 8 * u8::try_from(self.blocks.len()).unwrap()]);
            options.extend(
                self.blocks.iter().flat_map(|(begin, end)| [begin, end]).flat_map(|n| n.to_be_bytes()),
            );
        }
        let header = 20 + options.len();
        let length = header + self.payload;
        let mut frame = vec![2; 12];
        let (near, far) = (4_000u16.to_be_bytes(), 80u16.to_be_bytes());
        if self.is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(u16::try_from(length).unwrap().to_be_bytes());
            frame.extend([6, 64]);
            for last in if leaves { [1, 2] } else { [2, 1] } {
                frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
            }
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend(u16::try_from(20 + length).unwrap().to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
            for last in if leaves { [1, 2] } else { [2, 1] } {
                frame.extend([10, 0, 0, last]);
            }
        }
        frame.extend(if leaves { [near, far].concat() } else { [far, near].concat() });
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        frame.extend([u8::try_from(header / 4).unwrap() << 4, self.flags, 0, 0, 0, 0, 0, 0]);
        frame.extend(options);
        frame.resize(frame.len() + self.payload, 0);
        frame.resize(frame.len().max(60), 0);
        frame
    }
}

impl LinkSignals {
    fn run(&self, name: &str, frame: &[u8]) {
        let program = self.object.progs_mut().find(|program| program.name() == name).unwrap();
        // Without a context a packet has no length on the wire.
        let mut context = [0; 192];
        let input =
            ProgramInput { context_in: Some(&mut context), data_in: Some(frame), ..Default::default() };
        assert_eq!(program.test_run(input).unwrap().return_value, 0, "packets go on");
    }

    fn leaves(&self, segment: Tcp) {
        self.run(LinkSignals::EGRESS_PROGRAM, &segment.frame(true));
    }

    fn comes(&self, segment: Tcp) {
        self.run(LinkSignals::INGRESS_PROGRAM, &segment.frame(false));
    }

    fn counts(&self) -> SignalCounts {
        self.read(now()).unwrap()
    }
}

#[test]
fn answer_gives_a_round_trip_and_what_it_acknowledges() {
    for is_v6 in [false, true] {
        let Some(signals) = programs() else { return };
        let (data, answer) = (Tcp { is_v6, ..DATA }, Tcp { is_v6, ..ANSWER });
        signals.leaves(data);
        let counts = signals.counts();
        assert_eq!((counts.sent_payload, counts.on_the_way, counts.samples), (1_000, 1_000, 0));
        assert!(counts.waits_since.is_some() && counts.sent >= 1_000);
        signals.comes(answer);
        let counts = signals.counts();
        assert_eq!((counts.acked_payload, counts.on_the_way, counts.samples), (1_000, 0, 1));
        assert_eq!((counts.waits_since, counts.least_queue), (None, Some(0)), "the first one is the base");
    }
}

#[test]
fn longer_round_trip_is_a_queue_until_bases_are_forgotten() {
    let Some(mut signals) = programs() else { return };
    let later = |stamp: u32| Tcp { seq: 1_000 * stamp, stamps: Some((stamp, 3)), ..DATA };
    let answer = |stamp: u32| Tcp { ack: 1_000 * stamp + 1_000, stamps: Some((4, stamp)), ..ANSWER };
    signals.leaves(later(1));
    signals.comes(answer(1));
    // The queue is the least one of 60 ms.
    std::thread::sleep(std::time::Duration::from_millis(80));
    signals.leaves(later(2));
    std::thread::sleep(std::time::Duration::from_millis(30));
    signals.comes(answer(2));
    let queue = signals.counts().least_queue.unwrap();
    assert!((25_000_000..2_000_000_000).contains(&queue), "{queue}");
    signals.forget_bases().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(80));
    signals.leaves(later(3));
    std::thread::sleep(std::time::Duration::from_millis(30));
    signals.comes(answer(3));
    assert_eq!(signals.counts().least_queue, Some(0));
}

#[test]
fn echo_of_a_later_stamp_is_no_round_trip_of_an_earlier_one() {
    let Some(signals) = programs() else { return };
    signals.leaves(DATA);
    signals.leaves(Tcp { seq: 2_000, stamps: Some((9, 3)), ..DATA });
    signals.comes(Tcp { ack: 2_000, stamps: Some((4, 6)), ..ANSWER });
    assert_eq!(signals.counts().samples, 0, "an earlier echo answers neither");
    signals.comes(Tcp { ack: 3_000, stamps: Some((4, 9)), ..ANSWER });
    assert_eq!(signals.counts().samples, 1);
    signals.comes(Tcp { ack: 3_000, stamps: Some((4, 7)), ..ANSWER });
    assert_eq!(signals.counts().samples, 1, "the first one was given up");
}

#[test]
fn bare_acknowledgements_of_a_download_tell_nothing() {
    let Some(signals) = programs() else { return };
    signals.leaves(Tcp { payload: 0, ..DATA });
    signals.comes(Tcp { payload: 1_000, ..ANSWER });
    let counts = signals.counts();
    assert_eq!((counts.samples, counts.sent_payload, counts.acked_payload, counts.on_the_way), (0, 0, 0, 0));
    assert!(counts.sent > 0 && counts.waits_since.is_none());
}

#[test]
fn duplicates_count_what_arrived_behind_a_gap_once() {
    let Some(signals) = programs() else { return };
    for at in 0..5 {
        signals.leaves(Tcp { seq: 1_000 + 1_000 * at, ..DATA });
    }
    // The first segment is lost: four duplicates tell of the others.
    for _ in 0..10 {
        signals.comes(Tcp { ack: 1_000, ..ANSWER });
    }
    let counts = signals.counts();
    assert_eq!((counts.acked_payload, counts.on_the_way), (4_000, 1_000));
    signals.comes(Tcp { ack: 6_000, ..ANSWER });
    let counts = signals.counts();
    assert_eq!((counts.acked_payload, counts.on_the_way), (5_000, 0));
    // The answer to a FIN is above all payload.
    signals.comes(Tcp { ack: 6_001, flags: ACK | FIN, ..ANSWER });
    assert_eq!(signals.counts().acked_payload, 5_000);
}

#[test]
fn gap_before_a_block_is_not_on_the_way() {
    for stamps in [DATA.stamps, None] {
        let Some(signals) = programs() else { return };
        let of = |counts: SignalCounts| (counts.acked_payload, counts.on_the_way);
        for at in 0..8 {
            signals.leaves(Tcp { seq: 1_000 + 1_000 * at, stamps, ..DATA });
        }
        // Segments 0 to 2 are lost. One answer tells of several that arrived behind them.
        let answer = Tcp { ack: 1_000, stamps, ..ANSWER };
        signals.comes(Tcp { blocks: &[(4_000, 6_000)], ..answer });
        assert_eq!(of(signals.counts()), (5_000, 3_000));
        signals.comes(Tcp { blocks: &[(7_000, 8_000), (4_000, 6_000)], ..answer });
        assert_eq!(of(signals.counts()), (7_000, 1_000));
        // Blocks tell of nothing new: below the acknowledgement (RFC 2883), again, and above all that left.
        signals.comes(Tcp { blocks: &[(500, 900), (4_000, 8_000), (9_000, 20_000)], ..answer });
        assert_eq!(of(signals.counts()), (7_000, 1_000));
        signals.comes(Tcp { ack: 6_000, blocks: &[(7_000, 8_000)], ..answer });
        assert_eq!(of(signals.counts()), (7_000, 1_000));
        signals.comes(Tcp { ack: 9_000, ..answer });
        assert_eq!(of(signals.counts()), (8_000, 0), "each byte counts once");
    }
}

#[test]
fn reset_and_silent_flows_have_nothing_on_the_way() {
    let Some(signals) = programs() else { return };
    signals.leaves(DATA);
    assert_eq!(signals.read(now() + 900_000_000).unwrap().on_the_way, 1_000);
    assert_eq!(signals.read(now() + 1_100_000_000).unwrap().on_the_way, 0);
    signals.comes(Tcp { flags: RST, ..ANSWER });
    assert_eq!(signals.counts().on_the_way, 0);
}

#[test]
fn reset_of_either_end_leaves_no_answer_due() {
    let Some(signals) = programs() else { return };
    signals.leaves(DATA);
    assert!(signals.counts().waits_since.is_some());
    signals.comes(Tcp { flags: RST, ..ANSWER });
    let counts = signals.counts();
    assert_eq!((counts.waits_since, counts.acked_payload, counts.samples), (None, 0, 0));

    signals.leaves(DATA);
    signals.leaves(Tcp { seq: 2_000, flags: RST, payload: 0, ..DATA });
    let counts = signals.counts();
    assert_eq!((counts.waits_since, counts.on_the_way), (None, 0), "no answer comes to it");
}

/// An answered connection, or one that is not known, says nothing about the packets of others.
#[test]
fn reset_of_a_connection_without_unanswered_packets_ends_no_wait() {
    let Some(signals) = programs() else { return };
    signals.leaves(DATA);
    signals.comes(ANSWER);
    signals.leaves(Tcp { is_v6: true, ..DATA });
    let waits = signals.counts().waits_since;
    assert!(waits.is_some());
    signals.leaves(Tcp { seq: 2_000, flags: RST, payload: 0, ..DATA });
    assert_eq!(signals.counts().waits_since, waits);
    signals.comes(Tcp { flags: RST, ..ANSWER });
    assert_eq!(signals.counts().waits_since, waits, "the connection has gone already");
    signals.comes(Tcp { is_v6: true, ..ANSWER });
    assert_eq!(signals.counts().waits_since, None);
}

#[test]
fn frames_of_any_length_and_content_pass() {
    let Some(signals) = programs() else { return };
    let mut seed = 7u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 8
    };
    for round in 0..4_000 {
        let mut frame = if round % 2 == 0 { DATA.frame(true) } else { ANSWER.frame(true) };
        for _ in 0..random() % 6 {
            let at = random() as usize % 66;
            if let Some(byte) = frame.get_mut(at) {
                *byte = random() as u8;
            }
        }
        frame.truncate(60 + random() as usize % 1_100);
        signals.leaves_raw(&frame);
    }
    assert!(signals.counts().on_the_way < 1 << 32);
}

impl LinkSignals {
    fn leaves_raw(&self, frame: &[u8]) {
        self.run(LinkSignals::EGRESS_PROGRAM, frame);
        self.run(LinkSignals::INGRESS_PROGRAM, frame);
    }
}

const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// Stamps of a far end whose clock ticks at `hz`, as packets that come at each call.
struct FarClock {
    begin: std::time::Instant,
    hz: u32,
    is_v6: bool,
}

impl FarClock {
    /// The clock of a flow of which a packet has left.
    fn new(signals: &LinkSignals, hz: u32, is_v6: bool) -> FarClock {
        signals.leaves(Tcp { is_v6, payload: 0, ..DATA });
        FarClock { begin: std::time::Instant::now(), hz, is_v6 }
    }

    /// A packet that was sent at this time before now.
    fn packet(&self, ago_ms: u32) -> Tcp {
        let ms = u32::try_from(self.begin.elapsed().as_millis()).unwrap() + 1_000 - ago_ms;
        // The numbers begin again on the way.
        let stamp = (u32::MAX - 500).wrapping_add(ms * self.hz / 1_000);
        Tcp { is_v6: self.is_v6, stamps: Some((stamp, 3)), ..ANSWER }
    }

    /// Begins a connection. A first packet that this machine holds up makes the clock look fast: another one follows then.
    fn begins(&self, signals: &LinkSignals) {
        loop {
            let begun = std::time::Instant::now();
            signals.comes(Tcp { flags: SYN, ..self.packet(0) });
            if begun.elapsed().as_millis() < 20 {
                return;
            }
        }
    }

    /// Packets that have waited, for this time.
    fn comes(&self, signals: &LinkSignals, ago_ms: u32, for_ms: u64) {
        let until = std::time::Instant::now() + std::time::Duration::from_millis(for_ms);
        while std::time::Instant::now() < until {
            signals.comes(self.packet(ago_ms));
            std::thread::sleep(PAUSE);
        }
    }

    /// The queue that packets which have waited tell, once those before them do not count any more.
    fn tells(&self, signals: &LinkSignals, ago_ms: u32) -> u64 {
        self.comes(signals, ago_ms, 150);
        // A thread that was held up has no packet in the last 60 ms.
        let begin = std::time::Instant::now();
        loop {
            if let Some(queue) = signals.counts().least_delay {
                return queue;
            }
            assert!(begin.elapsed().as_secs() < 5, "no packet tells a queue");
            signals.comes(self.packet(ago_ms));
        }
    }
}

#[test]
fn packets_that_come_late_by_their_senders_clock_tell_a_queue() {
    for hz in [1_000, 250, 100] {
        let Some(mut signals) = programs() else { return };
        let clock = FarClock::new(&signals, hz, false);
        clock.comes(&signals, 0, 300);
        assert_eq!(signals.counts().delays, 0, "{hz} Hz: its unit is not known yet");
        clock.comes(&signals, 0, 600);
        let counts = signals.counts();
        assert!(counts.delays > 0 && counts.arrived > 0, "{hz} Hz: {counts:?}");
        // A packet comes up to a tick after its stamp began.
        let tick = 1_000_000_000 / u64::from(hz) + 4_000_000;
        let none = clock.tells(&signals, 0);
        assert!(none < tick, "{hz} Hz: {none} ns");
        let queue = clock.tells(&signals, 80);
        assert!((70_000_000..2_000_000_000).contains(&queue), "{hz} Hz: {queue} ns");
        signals.forget_arrival_bases().unwrap();
        let queue = clock.tells(&signals, 80);
        assert!(queue < tick, "{hz} Hz: {queue} ns above a base that was forgotten");
    }
}

#[test]
fn flow_that_begins_in_a_queue_tells_that_queue() {
    let Some(signals) = programs() else { return };
    let first = FarClock::new(&signals, 1_000, false);
    first.comes(&signals, 0, 700);
    first.comes(&signals, 80, 200);
    let late = FarClock::new(&signals, 1_000, true);
    let until = std::time::Instant::now() + std::time::Duration::from_millis(800);
    while std::time::Instant::now() < until {
        signals.comes(first.packet(80));
        signals.comes(late.packet(80));
        std::thread::sleep(PAUSE);
    }
    let queue = late.tells(&signals, 80);
    assert!((60_000_000..2_000_000_000).contains(&queue), "{queue} ns");
}

#[test]
fn clock_of_an_unknown_unit_tells_no_queue() {
    for hz in [500, 300, 128] {
        let Some(signals) = programs() else { return };
        FarClock::new(&signals, hz, false).comes(&signals, 0, 1_200);
        let counts = signals.counts();
        assert_eq!((counts.delays, counts.least_delay), (0, None), "{hz} Hz");
    }
}

#[test]
fn clock_that_jumps_is_learnt_again() {
    let Some(signals) = programs() else { return };
    let clock = FarClock::new(&signals, 1_000, false);
    clock.begins(&signals);
    clock.comes(&signals, 0, 700);
    let known = signals.counts().delays;
    assert!(known > 0);
    // A clock that is ahead by 0.3 s looks like a path that has become shorter.
    let jumped = FarClock { begin: clock.begin - std::time::Duration::from_millis(300), ..clock };
    jumped.comes(&signals, 0, 300);
    assert_eq!(signals.counts().delays, known, "the unit is not known again yet");
    jumped.comes(&signals, 0, 500);
    let again = signals.counts().delays;
    assert!(again > known);
    // One stamp from the future must not silence the flow.
    let future = Tcp { stamps: Some((1 << 30, 3)), ..jumped.packet(0) };
    signals.comes(future);
    jumped.comes(&signals, 0, 900);
    assert!(signals.counts().delays > again + 20, "{:?}", signals.counts());
}

/// Waits for a time in which no period of the bases ends for a second (BASE_PERIOD_NS of signals.bpf.c).
fn wait_for_a_second_of_one_period() {
    const PERIOD: u64 = 4_000_000_000;
    let left = PERIOD - now() % PERIOD;
    if left < 1_500_000_000 {
        std::thread::sleep(std::time::Duration::from_nanos(left));
    }
}

#[test]
fn clock_that_runs_ahead_again_tells_nothing() {
    let Some(signals) = programs() else { return };
    // A base of the period before would count the first steps as a shorter path, and have the unit learnt again.
    wait_for_a_second_of_one_period();
    let mut clock = FarClock::new(&signals, 1_000, false);
    clock.begins(&signals);
    for is_known_after in [true, false] {
        clock.comes(&signals, 0, 900);
        assert!(signals.counts().delays > 0);
        // 51 times 40 ms are above 2 s.
        for _ in 0..51 {
            clock.begin -= std::time::Duration::from_millis(40);
            signals.comes(clock.packet(0));
        }
        let before = signals.counts().delays;
        clock.comes(&signals, 0, 800);
        assert_eq!(signals.counts().delays > before, is_known_after);
    }
}

#[test]
fn packets_that_no_one_asked_for_tell_nothing() {
    let Some(signals) = programs() else { return };
    let clock = FarClock { begin: std::time::Instant::now(), hz: 1_000, is_v6: false };
    clock.comes(&signals, 0, 800);
    assert_eq!(signals.counts().delays, 0);
}

#[test]
fn packets_to_and_from_networks_beside_the_device_tell_nothing() {
    let Some(_) = programs() else { return };
    let classifier = Classifier::load().unwrap();
    let networks = classifier.local_maps().unwrap();
    // The far end is beside the device of link 1.
    let network = |address: &str| LocalPrefix { network: address.parse().unwrap(), len: 120 };
    let far = [LocalPrefix { network: "10.0.0.2".parse().unwrap(), len: 32 }, network("fd00::2")];
    classifier.set_local(&far.map(|network| (network, Locality::exempt(1))).into()).unwrap();
    for (link, is_v6) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut signals = LinkSignals::load(link, Some(&networks)).unwrap();
        // Another epoch keeps the link's number.
        signals.forget_bases().unwrap();
        signals.leaves(Tcp { is_v6, ..DATA });
        signals.comes(Tcp { is_v6, ..ANSWER });
        let counts = signals.counts();
        let told =
            (counts.sent > 0, counts.sent_payload, counts.acked_payload, counts.samples, counts.arrived > 0);
        let expected = if link == 0 { (true, 1_000, 1_000, 1, true) } else { (false, 0, 0, 0, false) };
        assert_eq!(told, expected, "link {link}, IPv6 {is_v6}");
    }
}
