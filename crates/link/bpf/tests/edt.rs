//! The program of departure times, packet by packet and in real time, without a device: the
//! kernel runs it on packets that are made up (`BPF_PROG_TEST_RUN`), and its clocks tell what
//! would have left. Without `CAP_BPF` these tests say so and pass.

use std::{
    cell::Cell,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use weir_bpf::{Edt, EdtClass, EdtLink, EdtRule, FramingWord, Tried, attach};
use weir_testkit::{Realtime, measure_once};

const SHOT: i32 = 2;
const NEXT: i32 = -1;
/// Offsets in `struct __sk_buff`; of `cb` its third word (`datagram.h`).
const PRIORITY: usize = 32;
const DATAGRAM: usize = 56;
const TSTAMP: usize = 152;
const WIRE_LEN: usize = 160;
const CONTEXT: usize = 192;

const PACKET: u32 = 1514;
const IPV6: [u8; 2] = [0x86, 0xdd];
const MS: u64 = 1_000_000;
/// 8 Mbit/s: slow enough for packets that are made up one by one on a busy machine.
const CAPACITY: u64 = 1_000_000;
/// The rest of the senders between two looks: a tenth of a packet's time.
const PAUSE: Duration = Duration::from_micros(150);
const A: u16 = 16;
const B: u16 = 17;

static ALONE: Mutex<()> = Mutex::new(());

struct Link {
    edt: Edt,
    last: u32,
    groups: u32,
    knows_ecn: Cell<bool>,
    is_tcp: Cell<bool>,
    /// One at a time: senders must be able to keep up.
    _alone: MutexGuard<'static, ()>,
}

/// The behaviour of a sender.
#[derive(Debug, Clone, Copy)]
enum Sender {
    /// Keeps this many bytes waiting.
    Greedy(u64),
    /// Sends this number of bytes per second, without regard for losses.
    Steady(u64),
}

fn policy(weight: u32, min: u64, max: u64) -> EdtRule {
    EdtRule { min, max, queue_bytes: 200_000, weight, group: 0 }
}

impl Link {
    /// Nothing if this process may not load programs.
    fn new(rules: &[(u16, EdtRule)], groups: &[EdtRule]) -> Option<Link> {
        let edt = match Edt::load(None) {
            Ok(edt) => edt,
            Err(e) if e.source.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
                println!("SKIPPED: loading BPF programs needs root");
                return None;
            }
            Err(e) => panic!("{e:?}"),
        };
        let last = rules.iter().map(|(minor, _)| u32::from(*minor)).max().unwrap_or(0);
        for (number, group) in (1..).zip(groups) {
            edt.set_group(number, group).unwrap();
        }
        for (minor, rule) in rules {
            edt.set_class(*minor, rule).unwrap();
        }
        let groups = groups.len() as u32;
        let (knows_ecn, is_tcp) = (Cell::new(false), Cell::new(false));
        let link = Link {
            edt,
            last,
            groups,
            knows_ecn,
            is_tcp,
            _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
        };
        link.set_capacity(CAPACITY);
        Some(link)
    }

    fn set_capacity(&self, capacity: u64) {
        let (last_minor, groups) = (self.last, self.groups);
        let link = EdtLink {
            capacity,
            last_minor,
            groups,
            packet_bytes: PACKET,
            horizon_ns: 50 * MS,
            queues: 1,
            framing: FramingWord::default(),
        };
        self.edt.set_link(&link).unwrap();
    }

    fn send(&self, handle: u32, wire_len: u32) -> (Tried, [u8; CONTEXT]) {
        self.send_frame(handle, wire_len, [0x08, 0x00])
    }

    fn send_frame(&self, handle: u32, wire_len: u32, ethertype: [u8; 2]) -> (Tried, [u8; CONTEXT]) {
        self.send_part(handle, wire_len, ethertype, 0)
    }

    /// A fragment of this datagram, if it is not 0.
    fn send_part(
        &self,
        handle: u32,
        wire_len: u32,
        ethertype: [u8; 2],
        datagram: u32,
    ) -> (Tried, [u8; CONTEXT]) {
        let mut context = [0; CONTEXT];
        context[DATAGRAM..DATAGRAM + 4].copy_from_slice(&datagram.to_ne_bytes());
        context[PRIORITY..PRIORITY + 4].copy_from_slice(&handle.to_ne_bytes());
        context[WIRE_LEN..WIRE_LEN + 4].copy_from_slice(&wire_len.to_ne_bytes());
        let mut frame = [0x55; 60];
        frame[12..14].copy_from_slice(&ethertype);
        // IPv4, and in its second byte who knows ECN: ECT(0) if the packet says so.
        frame[14..16].copy_from_slice(&[0x45, if self.knows_ecn.get() { 2 } else { 0 }]);
        if self.is_tcp.get() {
            frame[if ethertype == IPV6 { 20 } else { 23 }] = 6;
        }
        let tried = self.edt.try_on(&frame, &mut context, 1).unwrap();
        (tried, context)
    }

    fn class(&self, minor: u16) -> EdtClass {
        let mut classes = Vec::new();
        self.edt.classes(self.last, &mut classes).unwrap();
        classes[usize::from(minor)]
    }

    /// Lets them send for `time`; returns what left of each in that time, bytes per second. Tests of other crates run
    /// beside these and do not delay the senders.
    fn run(&self, senders: &[(u16, Sender)], time: Duration) -> Vec<f64> {
        let _realtime = Realtime::begin();
        let mut classes = Vec::new();
        let gone = |c: &EdtClass| c.bytes as f64 - waiting(c);
        self.edt.classes(self.last, &mut classes).unwrap();
        let before: Vec<f64> = senders.iter().map(|(m, _)| gone(&classes[usize::from(*m)])).collect();
        let began = Instant::now();
        let mut sent = vec![0u64; senders.len()];
        while began.elapsed() < time {
            self.edt.classes(self.last, &mut classes).unwrap();
            for ((minor, sender), sent) in senders.iter().zip(&mut sent) {
                let due = match sender {
                    Sender::Greedy(queue) => {
                        queue.saturating_sub(waiting(&classes[usize::from(*minor)]) as u64)
                    }
                    Sender::Steady(rate) => {
                        let whole = began.elapsed().as_nanos() * u128::from(*rate) / 1_000_000_000;
                        (whole as u64).saturating_sub(*sent)
                    }
                };
                for _ in 0..due / u64::from(PACKET) {
                    self.send(1 << 16 | u32::from(*minor), PACKET);
                    *sent += u64::from(PACKET);
                }
            }
            thread::sleep(PAUSE);
        }
        let seconds = began.elapsed().as_secs_f64();
        self.edt.classes(self.last, &mut classes).unwrap();
        senders
            .iter()
            .zip(before)
            .map(|((m, _), before)| (gone(&classes[usize::from(*m)]) - before) / seconds)
            .collect()
    }
}

fn now() -> u64 {
    let now = nix::time::ClockId::CLOCK_MONOTONIC.now().unwrap();
    Duration::from(now).as_nanos() as u64
}

fn waiting(class: &EdtClass) -> f64 {
    class.clock.saturating_sub(now()) as f64 * class.rate as f64 / 1e9
}

impl Link {
    /// Each gets its part of the capacity within 2 %.
    #[track_caller]
    fn assert_parts(&self, senders: &[(u16, Sender)], parts: &[f64]) {
        // Each class has the whole link until the first division. The link takes back what was
        // stamped above the capacity: of 100 KB a class, 11 to 23 % of a second, in up to 5 s.
        let whole = 0.99 * parts.iter().sum::<f64>() * CAPACITY as f64;
        let paid = |rates: Vec<f64>| rates.iter().sum::<f64>() >= whole;
        self.run(senders, SETTLED);
        let paid_back = (0..24).any(|_| paid(self.run(senders, MEASURED / 4)));
        assert!(paid_back, "the link is not full again 6 s after it was oversold");
        let good = |rates: &[f64]| {
            let parts = rates.iter().map(|r| r / CAPACITY as f64).zip(parts);
            parts.into_iter().all(|(got, part)| (got - part).abs() <= part * 0.02 + 0.002)
        };
        let rates = measure_once(|| self.run(senders, MEASURED), |rates| good(rates));
        assert!(good(&rates), "{rates:?} instead of {parts:?} of {CAPACITY}");
    }
}

const MEASURED: Duration = Duration::from_millis(1_000);
/// Until what all sent at first, before anyone knew of the others, is paid back.
const SETTLED: Duration = Duration::from_millis(800);

#[test]
fn backlogged_classes_share_the_link_by_weight() {
    let Some(link) = Link::new(&[(A, policy(1, 0, CAPACITY)), (B, policy(3, 0, CAPACITY))], &[]) else {
        return;
    };
    let senders = [(A, Sender::Greedy(100_000)), (B, Sender::Greedy(100_000))];
    link.assert_parts(&senders, &[0.25, 0.75]);
}

#[test]
fn what_a_modest_class_leaves_the_other_gets() {
    let Some(link) = Link::new(&[(A, policy(1, 0, CAPACITY)), (B, policy(1, 0, CAPACITY))], &[]) else {
        return;
    };
    let senders = [(A, Sender::Steady(CAPACITY / 5)), (B, Sender::Greedy(100_000))];
    link.assert_parts(&senders, &[0.2, 0.8]);
    let backlogged = || {
        link.run(&senders, MEASURED / 4);
        [A, B].map(|minor| link.class(minor).backlogged)
    };
    assert_eq!(measure_once(backlogged, |seen| *seen == [false, true]), [false, true]);
}

#[test]
fn floors_ceilings_and_groups_hold() {
    let tenth = CAPACITY / 10;
    let member = |weight, max| EdtRule { group: 1, ..policy(weight, 0, max) };
    let rules = [
        (A, policy(1, 3 * tenth, CAPACITY)),
        (B, member(1, tenth)),
        (18, member(2, CAPACITY)),
        (19, policy(3, 0, CAPACITY)),
    ];
    let group = EdtRule { group: 15, ..policy(3, 0, CAPACITY) };
    let Some(link) = Link::new(&rules, &[group]) else { return };
    let senders = [A, B, 18, 19].map(|m| (m, Sender::Greedy(100_000)));
    // A has its floor; the group and the last share 0.7; in the group one is at its ceiling.
    link.assert_parts(&senders, &[0.3, 0.1, 0.25, 0.35]);
}

#[test]
fn class_has_its_share_two_ticks_after_it_wakes() {
    let Some(link) = Link::new(&[(A, policy(1, 0, CAPACITY)), (B, policy(1, 0, CAPACITY))], &[]) else {
        return;
    };
    let (alone, woken) = ([(A, Sender::Greedy(30_000))], (B, Sender::Greedy(30_000)));
    let share = |minor| link.class(minor).rate as f64 / CAPACITY as f64;
    let wake = || {
        let _realtime = Realtime::begin();
        link.run(&alone, SETTLED);
        link.run(&[alone[0], woken], Duration::from_millis(25));
        let both = (share(A), share(B));
        link.run(&alone, Duration::from_millis(180));
        (both, share(A))
    };
    // The link pays back what was sent meanwhile. Its capacity is less for that time.
    let good = |(both, back): &((f64, f64), f64)| {
        (both.0 - both.1).abs() < 0.01 && (0.42..=0.51).contains(&both.0) && *back > 0.9
    };
    let seen = measure_once(wake, good);
    assert!(good(&seen), "{seen:?}");
}

#[test]
fn an_idle_class_s_first_packet_leaves_at_once_and_control_always() {
    let rules = [(A, policy(1, 0, CAPACITY)), (B, policy(1, 0, CAPACITY)), (3, policy(1, 0, CAPACITY))];
    let Some(link) = Link::new(&rules, &[]) else { return };
    link.run(&[(A, Sender::Greedy(100_000))], SETTLED);
    let stamp = |context: [u8; CONTEXT]| u64::from_ne_bytes(context[TSTAMP..TSTAMP + 8].try_into().unwrap());
    let priority = |c: [u8; CONTEXT]| u32::from_ne_bytes(c[PRIORITY..PRIORITY + 4].try_into().unwrap());
    let (tried, context) = link.send(0x1_0011, PACKET);
    assert_eq!((tried.verdict, stamp(context), priority(context)), (NEXT, 0, 0));
    // A new flow's next ones pass what waits of their class; one of many waits for the others.
    let others: Vec<u64> = (0..10).map(|_| stamp(link.send(0x1_0011, PACKET).1)).collect();
    assert_eq!(others[0], 0);
    let second = others[9];
    assert!(second > others[8] && others[8] > 0, "{others:?}");
    // So do those that are not IP, which the kernel's own function does not stamp.
    let others = (0..10).map(|_| stamp(link.send_frame(0x1_0011, PACKET, [0x88, 0x47]).1));
    assert!(others.last() > Some(second));
    for _ in 0..100 {
        let (tried, context) = link.send(0x1_0003, PACKET);
        assert_eq!((tried.verdict, stamp(context), priority(context)), (NEXT, 0, 7));
    }
    assert_eq!(link.class(3).packets, 100);
}

#[test]
fn who_has_no_class_is_of_the_default_class() {
    let Some(link) = Link::new(&[(A, policy(1, 0, CAPACITY)), (2, policy(1, 0, CAPACITY))], &[]) else {
        return;
    };
    for stranger in [0, 0x1_0063, 0x7_0010, 0x1_ffff] {
        link.send(stranger, PACKET);
    }
    assert_eq!((link.class(2).packets, link.class(A).packets), (4, 0));
}

#[test]
fn packets_beyond_the_horizon_drop_after_a_sockets_worth_waits() {
    // 50 ms are 50 kB.
    for (queue_bytes, most) in [(200_000, 200_000), (10_000, 50_000)] {
        let rule = EdtRule { queue_bytes, ..policy(1, 0, CAPACITY) };
        let Some(link) = Link::new(&[(A, rule)], &[]) else { return };
        let began = Instant::now();
        let mut taken = 0;
        while link.send(0x1_0010, PACKET).0.verdict != SHOT {
            taken += u64::from(PACKET);
            assert!(taken < 2_000_000, "nothing is dropped");
        }
        let left = (began.elapsed().as_secs_f64() * CAPACITY as f64) as u64;
        let class = link.class(A);
        assert_eq!((class.bytes, class.drops), (taken, 1));
        // Unused time of the link is given on top: an eighth.
        let most_now = most + most / 8 + left + 2 * u64::from(PACKET);
        assert!((most..=most_now).contains(&taken), "{taken} bytes, {left} left");
    }
}

#[test]
fn tcp_waits_for_a_second_at_the_most_and_others_for_a_socket_s_worth() {
    // 0.3 s a packet.
    let rule = policy(1, 0, 5_000);
    let Some(link) = Link::new(&[(A, rule), (B, rule), (18, rule)], &[]) else { return };
    for (minor, is_tcp, ethertype) in [(A, true, [0x08, 0x00]), (B, true, IPV6), (18, false, [0x08, 0x00])] {
        link.is_tcp.set(is_tcp);
        let send = || link.send_frame(1 << 16 | u32::from(minor), PACKET, ethertype).0.verdict;
        let taken = (0..20).filter(|_| send() == NEXT).count();
        let ahead = link.class(minor).clock.saturating_sub(now()) / MS;
        if is_tcp {
            assert!((3..=5).contains(&taken) && ahead < 1_400, "{taken} packets, {ahead} ms ahead");
        } else {
            assert!(taken == 20 && ahead > 5_000, "{taken} packets, {ahead} ms ahead");
        }
    }
}

#[test]
fn share_of_a_class_behind_slow_stamps_is_the_others_meanwhile() {
    let Some(link) = Link::new(&[(A, policy(9, 0, 5_000)), (B, policy(1, 0, CAPACITY))], &[]) else {
        return;
    };
    // 0.3 s each, and a policy that gives it nine tenths behind them.
    assert!((0..20).all(|_| link.send(0x1_0010, PACKET).0.verdict == NEXT));
    link.edt.set_class(A, &policy(9, 0, CAPACITY)).unwrap();
    link.edt.divide_anew();
    link.assert_parts(&[(B, Sender::Greedy(30_000))], &[1.0]);
    let held = link.class(A).clock.saturating_sub(now());
    assert!(held > 100 * MS, "all that A had stamped has left: this machine is too busy to tell");
}

#[test]
fn program_of_the_next_agent_goes_on_where_the_last_one_stopped() {
    let Some(mut link) = Link::new(&[(A, policy(1, 0, CAPACITY)), (B, policy(1, 0, CAPACITY))], &[]) else {
        return;
    };
    let senders = [(A, Sender::Steady(CAPACITY / 5)), (B, Sender::Greedy(50_000))];
    // It is ready before the other one stops, as at a device.
    let next = Edt::load(attach::program_id(&link.edt.program()).ok()).unwrap();
    link.run(&senders, Duration::from_millis(400));
    // No division is due for a while. A program that does not know this divides at its first packet.
    link.edt.divide_at(now() + 900 * MS);
    let before = link.class(B);
    link.edt = next;
    assert_eq!(link.class(B).bytes, before.bytes);
    let sent = (0..4).filter(|_| link.send(0x1_0010 + u32::from(B - A), PACKET).0.verdict == NEXT).count();
    let after = link.class(B);
    assert_eq!(after.bytes - before.bytes, sent as u64 * u64::from(PACKET));
    assert_eq!(after.rate, before.rate, "bytes per second");
    // The next agent writes to its program.
    link.edt.set_class(B, &policy(1, 0, CAPACITY / 5)).unwrap();
    link.edt.divide_anew();
    link.send(0x1_0010 + u32::from(B - A), PACKET);
    let limited = link.class(B).rate;
    assert!(limited <= CAPACITY / 5, "{limited} bytes per second");
}

#[test]
fn who_had_to_wait_for_a_moment_is_kept_no_more_than_it_then_sends() {
    let Some(link) = Link::new(&[(A, policy(9, 0, CAPACITY)), (B, policy(1, 0, CAPACITY))], &[]) else {
        return;
    };
    let other = [(B, Sender::Greedy(30_000))];
    let given_after = || {
        let _realtime = Realtime::begin();
        // A sleeps, wakes at a rate at which four packets are stamped for a second, and is due the most.
        link.run(&other, Duration::from_millis(500));
        link.edt.set_class(A, &policy(9, 0, 5_000)).unwrap();
        link.edt.divide_anew();
        (0..4).for_each(|_| assert_eq!(link.send(0x1_0010, PACKET).0.verdict, NEXT));
        link.edt.set_class(A, &policy(9, 0, CAPACITY)).unwrap();
        link.edt.divide_anew();
        link.run(&other, Duration::from_millis(20));
        assert!(link.class(A).backlogged);
        while link.class(A).backlogged {
            link.run(&other, Duration::from_millis(1));
        }
        let began = Instant::now();
        while (link.class(B).rate as f64) < 0.6 * CAPACITY as f64 {
            link.run(&other, Duration::from_millis(1));
        }
        began.elapsed()
    };
    let good = |after: &Duration| *after < Duration::from_millis(25);
    let after = measure_once(given_after, good);
    assert!(good(&after), "{after:?} until what A does not send was given to B");
}

#[test]
fn demand_in_super_packets_is_kept_between_divisions() {
    let Some(link) = Link::new(&[(A, policy(9, 0, CAPACITY)), (B, policy(1, 0, CAPACITY))], &[]) else {
        return;
    };
    const PIECE: u32 = 3_000;
    const EACH: Duration = Duration::from_micros(7_500); // 0.4 of the capacity
    let given = || {
        let _realtime = Realtime::begin();
        let (began, mut pieces, mut most) = (Instant::now(), 0, 0);
        while began.elapsed() < SETTLED {
            if began.elapsed() >= EACH * pieces {
                link.send(0x1_0010, PIECE);
                pieces += 1;
            }
            link.run(&[(B, Sender::Greedy(30_000))], Duration::from_micros(1_200));
            link.edt.divide_anew();
            if began.elapsed() > SETTLED / 2 {
                most = most.max(link.class(B).rate);
            }
        }
        most as f64 / CAPACITY as f64
    };
    let good = |given: &f64| *given < 0.75;
    let given = measure_once(given, good);
    assert!(good(&given), "B was given up to {given:.2} of the link, of which A sends 0.4");
}

#[test]
fn what_comes_right_after_a_policy_was_changed_leaves_at_its_rate() {
    let Some(link) = Link::new(&[(A, policy(1, 0, 5_000))], &[]) else { return };
    let ahead = |link: &Link| link.class(A).clock.saturating_sub(now()) / MS;
    let send = |link: &Link, packets: u32| {
        assert!((0..packets).all(|_| link.send(0x1_0010, PACKET).0.verdict == NEXT));
    };
    send(&link, 3);
    let before = ahead(&link);
    link.edt.set_class(A, &policy(1, 0, CAPACITY)).unwrap();
    link.edt.divide_anew();
    send(&link, 30);
    let after = ahead(&link);
    // 1.5 ms each, not 0.3 s.
    assert!(after < before + 100, "{before} ms ahead before, {after} after");
}

#[test]
fn the_link_is_divided_however_far_off_somebody_says_that_its_time_is() {
    let Some(link) = Link::new(&[(A, policy(1, 0, CAPACITY)), (B, policy(3, 0, CAPACITY))], &[]) else {
        return;
    };
    let both = [(A, Sender::Greedy(30_000)), (B, Sender::Greedy(30_000))];
    let share = |link: &Link| link.class(B).rate as f64 / CAPACITY as f64;
    for ahead in [1_400 * MS, 3_600_000 * MS, u64::MAX / 2, u64::MAX] {
        let shares = || {
            link.run(&both, SETTLED / 2);
            let beside = share(&link);
            link.edt.divide_at(now().saturating_add(ahead));
            link.run(&both[1..], Duration::from_millis(200));
            (beside, share(&link))
        };
        let good = |(beside, alone): &(f64, f64)| *beside < 0.85 && *alone > 0.9;
        let seen = measure_once(shares, good);
        assert!(good(&seen), "{ahead} ns ahead: {seen:.2?} of the link, beside A and then alone");
    }
    // Soon is soon enough: nothing is divided before.
    link.edt.divide_at(now() + 900 * MS);
    let before = link.class(A).rate;
    link.edt.set_class(A, &policy(1, 0, CAPACITY / 100)).unwrap();
    (0..5).for_each(|_| assert_eq!(link.send(0x1_0010, PACKET).0.verdict, NEXT));
    assert_eq!(link.class(A).rate, before);
}

#[test]
fn of_datagrams_that_are_too_many_for_a_class_those_that_leave_are_whole() {
    const PARTS: u32 = 9;
    let Some(link) = Link::new(&[(A, policy(1, 0, CAPACITY))], &[]) else { return };
    let (began, mut whole, mut broken, mut number) = (Instant::now(), 0, 0, 0u32);
    // As many as there is time for: far more than the link carries.
    while began.elapsed() < Duration::from_millis(1500) {
        number += 1;
        let key = (number.wrapping_mul(0x9e37_79b1) & !1) | 2;
        let part = |i| link.send_part(0x1_0010, PACKET, [0x08, 0x00], key | u32::from(i == 0)).0.verdict;
        match (0..PARTS).filter(|&i| part(i) == NEXT).count() as u32 {
            PARTS => whole += 1,
            0 => {}
            _ => broken += 1,
        }
    }
    println!("of {number} datagrams {whole} are let through whole, {broken} in part");
    let most = CAPACITY * 3 / 2 / u64::from(PARTS * PACKET);
    assert!(whole >= most * 3 / 4, "{whole} datagrams of {most} that the link carries");
    assert!(u64::from(number) > 3 * whole, "only {number} were sent: this machine is too busy to tell");
    assert_eq!(broken, 0, "datagrams are let through in part, {whole} whole");
}

#[test]
fn who_knows_ecn_is_told_when_packets_wait_for_more_than_ten_milliseconds() {
    let Some(link) = Link::new(&[(A, policy(1, 0, CAPACITY))], &[]) else { return };
    // 1.5 ms each: those from the eighth on wait for longer.
    for (knows, marks) in [(false, 0), (true, 12)] {
        link.knows_ecn.set(knows);
        let marked = || {
            let before = link.class(A).marks;
            // A sender that is interrupted lets packets leave meanwhile.
            let realtime = Realtime::begin();
            for _ in 0..20 {
                assert_eq!(link.send(0x1_0010, PACKET).0.verdict, NEXT);
            }
            drop(realtime);
            let class = link.class(A);
            assert_eq!(class.drops, 0);
            // All of them leave.
            thread::sleep(Duration::from_millis(100));
            class.marks - before
        };
        let good = |seen: &u64| (marks..=2 * marks).contains(seen);
        let seen = measure_once(marked, good);
        assert!(good(&seen), "{knows}: {seen} marks");
    }
}

#[test]
fn class_with_a_super_packet_under_way_gets_its_time_back() {
    let fast = 12_500_000;
    let Some(link) = Link::new(&[(A, policy(1, 0, fast))], &[]) else { return };
    link.set_capacity(fast);
    // 60 kB take 4.8 ms: with the clock at the first one's end the second one leaves in the past, too.
    let second_after = |pause: u64| {
        link.send(0x1_0010, 60_000);
        thread::sleep(Duration::from_millis(pause));
        let before = now();
        link.send(0x1_0010, 60_000);
        link.class(A).clock.cast_signed() - before.cast_signed()
    };
    let both = || {
        thread::sleep(Duration::from_millis(200));
        let soon = second_after(12);
        thread::sleep(Duration::from_millis(200));
        (soon, second_after(100))
    };
    // An eighth on top is what the link was not used for.
    let good = |(soon, late): &(i64, i64)| *soon < 0 && *late > 4_000_000;
    let seen = measure_once(both, good);
    assert!(good(&seen), "{seen:?} ns from the second packet to the end of its time");
}

#[test]
fn a_tick_over_many_classes_is_cheap() {
    for classes in [10u16, 100, 1_000] {
        let rules: Vec<(u16, EdtRule)> =
            (0..classes).map(|i| (A + i, policy(1 + u32::from(i) % 10, 1_000, 125_000_000))).collect();
        let Some(link) = Link::new(&rules, &[]) else { return };
        link.set_capacity(125_000_000);
        let fill = || {
            (0..classes).for_each(|i| {
                link.send(1 << 16 | u32::from(A + i), PACKET);
            })
        };
        let tick = || {
            thread::sleep(Duration::from_millis(11));
            link.send(1 << 16 | u32::from(A), PACKET).0.duration
        };
        let mut best = Duration::MAX;
        for _ in 0..20 {
            for _ in 0..20 {
                fill();
            }
            best = best.min(tick());
        }
        let plain = (0..100).map(|_| link.send(1 << 16 | u32::from(A), 60).0.duration).min().unwrap();
        // All idle but one, after all that waits has left.
        thread::sleep(Duration::from_millis(u64::from(classes) * 2));
        let idle = (0..80).map(|_| tick()).min().unwrap();
        println!("{classes} classes: {best:?} a tick, {idle:?} if they sleep; a packet {plain:?}");
        assert!(best < Duration::from_millis(2), "{best:?}");
    }
}
