//! The follower where most of the traffic, or all of it, is datagrams that nothing acknowledges.

use std::time::Duration;

use weir_autorate::{Follower, Settings, Signals, State};
use weir_linksim::{Link, Outcome, Scene, Scheme, Trace, constant};
use weir_units::{BitRate, Bytes, Instant};

const DELAY: Duration = Duration::from_millis(30);

fn settings(min: u64, max: u64) -> Settings {
    Settings::new(BitRate::mbit(min), BitRate::mbit(max), DELAY).unwrap()
}

/// A link that carries 50, then 10, then 50 Mbit/s, 20 s each.
fn falls_and_rises() -> Trace {
    let mut trace = constant(50.0, 60);
    trace.rate[20_000..40_000].fill(10.0);
    trace
}

/// The longest wait in the modem between two times, in milliseconds.
fn longest_wait(outcome: &Outcome, from_ms: u64, to_ms: u64) -> u32 {
    let within = outcome.moments.iter().filter(|moment| (from_ms..to_ms).contains(&moment.ms));
    within.map(|moment| moment.wait_ms).max().unwrap()
}

/// The acknowledgements of one TCP flow among 10, 20 or 50 are too few to tell the rate.
#[test]
fn mostly_datagrams_follow_by_the_round_trips_of_one_tcp_flow() {
    let trace = falls_and_rises();
    for datagram_flows in [9, 19, 49] {
        let scene = Scene { flows: 1, datagram_flows, datagrams_mbit: 70.0, ..Scene::of(&trace) };
        let outcome = Scheme::Weir.run(&scene, settings(2, 60));
        println!("{datagram_flows} flows of datagrams: {}", outcome.row());
        assert!(outcome.used >= 0.98, "{}", outcome.row());
        assert!(outcome.wait(0.95) <= 30, "{}", outcome.row());
        let [fallen, risen] = [(22_000, 40_000), (42_000, 60_000)].map(|(f, t)| longest_wait(&outcome, f, t));
        assert!(fallen <= 60 && risen <= 60, "{fallen} and {risen} ms");
        assert!(outcome.was(State::Track, 22_000, 40_000) && !outcome.was(State::Blind, 0, 60_000));
    }
}

/// The senders want 30 Mbit/s: less than 50, and more than 10.
#[test]
fn queue_of_datagrams_below_the_capacity_lowers_it() {
    let trace = falls_and_rises();
    for flows in [1, 4] {
        let scene = Scene { flows, datagram_flows: 9, datagrams_mbit: 30.0, ..Scene::of(&trace) };
        let outcome = Scheme::Weir.run(&scene, settings(2, 60));
        println!("{flows} flows of TCP: {}", outcome.row());
        let waits = longest_wait(&outcome, 22_000, 40_000);
        assert!(waits <= 60, "{waits} ms");
        assert!(outcome.used >= 0.85, "{}", outcome.row());
    }
}

/// The capacity begins far above the link, and the packets of TCP wait long in the modem or are lost there.
#[test]
fn begin_in_a_flood_of_datagrams_ends_in_a_short_queue() {
    for (flows, datagram_flows) in [(1, 1), (1, 9), (4, 9)] {
        let trace = Link::Dsl.trace(1);
        let scene = Scene { flows, datagram_flows, datagrams_mbit: 60.0, ..Scene::of(&trace) };
        let outcome = Scheme::Weir.run(&scene, settings(2, 60));
        println!("{flows} flows of TCP, {datagram_flows} of datagrams: {}", outcome.row());
        let waits = longest_wait(&outcome, 5_000, 30_000);
        assert!(waits <= 80, "{waits} ms");
        assert!(outcome.used >= 0.97, "{}", outcome.row());
    }
}

/// Two of three answers are 40 ms late, as a receiver with nothing to say sends them.
#[test]
fn late_answers_beside_datagrams_cost_little() {
    let trace = constant(40.0, 60);
    let foreign = |ms| if (ms / 37) % 3 == 0 { 0 } else { 40 };
    for datagram_flows in [9, 49] {
        let scene = Scene { flows: 1, datagram_flows, datagrams_mbit: 60.0, foreign, ..Scene::of(&trace) };
        let outcome = Scheme::Weir.run(&scene, settings(2, 60));
        println!("{datagram_flows} flows of datagrams: {}", outcome.row());
        assert!(outcome.used >= 0.95, "{}", outcome.row());
        assert!(outcome.wait(0.95) <= 60, "{}", outcome.row());
    }
}

#[test]
fn links_that_change_are_used_by_mostly_datagrams() {
    let bounds = [(Link::Dsl, 0.97, 60), (Link::Starlink, 0.85, 120), (Link::Lte, 0.85, 1_000)];
    for (link, least_used, most_ms) in bounds {
        for seed in 0..10 {
            let trace = link.trace(seed);
            let scene = Scene { flows: 1, datagram_flows: 9, datagrams_mbit: 60.0, ..Scene::of(&trace) };
            let outcome = Scheme::Weir.run(&scene, settings(1, 40));
            println!("{} {seed}: {}", trace.name, outcome.row());
            assert!(outcome.used >= least_used, "{} {seed}: {}", trace.name, outcome.row());
            assert!(outcome.wait(0.95) <= most_ms, "{} {seed}: {}", trace.name, outcome.row());
        }
    }
}

/// A follower that is told the same signals for some seconds at a time.
struct Told {
    follower: Follower,
    now: Instant,
}

impl Told {
    fn new() -> Told {
        Told { follower: Follower::new(settings(2, 40), Instant::default()), now: Instant::default() }
    }

    /// The capacity in Mbit/s and the state after this time.
    fn told(&mut self, seconds: u64, signals: Signals) -> (f64, State) {
        let mut last = None;
        for _ in 0..seconds * 20 {
            self.now = self.now + Duration::from_millis(50);
            last = Some(self.follower.tick(self.now, Some(&signals)));
        }
        last.map(|decision| (decision.capacity.as_mbit(), decision.state)).unwrap()
    }
}

/// 16 Mbit/s leave.
const UNANSWERED: Signals = Signals { is_busy: true, sent: Bytes(100_000), ..NOTHING };
const NOTHING: Signals = Signals {
    queue: None,
    base: Duration::from_millis(20),
    samples: 0,
    acked: None,
    sent: Bytes(0),
    on_the_way: None,
    is_busy: false,
    unanswered: None,
};

/// The link's queue is as long as it should be at this rate.
fn acknowledged(kbit: u64) -> Signals {
    let acked = BitRate::kbit(kbit).bytes_in(Duration::from_millis(50));
    let queue = Some(DELAY * 4 / 15 + BitRate::kbit(kbit).time_to_send(Bytes(1_514)));
    Signals { queue, samples: 20, acked: Some(acked), sent: acked, is_busy: true, ..NOTHING }
}

/// A TCP connection to a peer that has gone never gets an answer. The link carries the datagrams all the same.
#[test]
fn peer_that_has_gone_beside_datagrams_is_no_silence_for_long() {
    let mut link = Told::new();
    link.told(10, acknowledged(5_000));
    let mut after = |ms: u64| {
        let unanswered = Some(Duration::from_millis(ms));
        let signals = Signals { unanswered, ..UNANSWERED };
        link.now = link.now + Duration::from_millis(50);
        link.follower.tick(link.now, Some(&signals))
    };
    let states: Vec<State> = (1..=200).map(|tick| after(50 * tick).state).collect();
    assert!(states[5..60].iter().all(|state| *state == State::Silent), "{states:?}");
    assert!(states[80..].iter().all(|state| *state == State::Blind), "{states:?}");
    let capacity = after(10_050).capacity.as_mbit();
    assert!((4.5..5.5).contains(&capacity), "{capacity}");
}

#[test]
fn growth_of_a_blind_link_goes_on_after_pauses() {
    let mut link = Told::new();
    for pause in 0..12 {
        let (capacity, state) = link.told(10, UNANSWERED);
        let grown = 2.0 * 1.01_f64.powi(10 * (pause + 1));
        assert_eq!(state, State::Blind);
        assert!((capacity / grown - 1.0).abs() < 0.02, "{capacity} after {pause} pauses, not {grown}");
        assert_eq!(link.told(if pause % 2 == 0 { 1 } else { 30 }, NOTHING).1, State::Idle);
    }
}

#[test]
fn known_rates_end_the_growth_of_a_blind_link() {
    let mut link = Told::new();
    let (grown, _) = link.told(100, UNANSWERED);
    // One second is too short to tell what is usual.
    link.told(1, acknowledged(8_000));
    let (capacity, state) = link.told(1, UNANSWERED);
    assert!(state == State::Blind && (capacity / grown - 1.0).abs() < 0.02, "{capacity} of {grown}");
    let (capacity, state) = link.told(10, acknowledged(2_500));
    assert!(state == State::Track && (2.2..2.8).contains(&capacity), "{capacity}, {state:?}");
    let (capacity, _) = link.told(2, acknowledged(8_000));
    assert!(capacity > 7.0, "{capacity}");
    link.told(1, NOTHING);
    let (capacity, state) = link.told(3, UNANSWERED);
    assert!(state == State::Blind && capacity < 3.0, "{capacity}, {state:?}");
    // It grows above what was usual, and stays there over a pause.
    let (grown, _) = link.told(60, UNANSWERED);
    assert!(grown > 4.0, "{grown}");
    let (capacity, _) = link.told(60, NOTHING);
    assert!((capacity / grown - 1.0).abs() < 0.02, "{capacity} of {grown}");
}

/// A tick tells the base of the flows that it answered alone. Two flows of other paths answer in turn.
#[test]
fn paths_of_other_lengths_that_answer_in_turn_are_no_change_of_the_link() {
    let mut link = Told::new();
    // 20 Mbit/s leave and pass, and their queue is as long as it should be.
    let queue = Some(DELAY * 4 / 15 + BitRate::mbit(20).time_to_send(Bytes(1_514)));
    let both = Signals { queue, samples: 2, sent: Bytes(125_000), is_busy: true, ..NOTHING };
    link.told(10, both);
    let mut seen = Vec::new();
    for tick in 0..400 {
        let base = Duration::from_millis(if tick % 7 < 3 { 10 } else { 200 });
        link.now = link.now + Duration::from_millis(50);
        let decision = link.follower.tick(link.now, Some(&Signals { base, ..both }));
        // The link is drained at times.
        if decision.state != State::Look {
            seen.push(decision.capacity.as_mbit());
        }
    }
    let (least, most) =
        (seen.iter().copied().fold(f64::MAX, f64::min), seen.iter().copied().fold(0.0, f64::max));
    assert!(seen.len() > 300 && least > 18.0 && most < 22.0, "{least} to {most} Mbit/s");
}

/// A short request is acknowledged at times, beside much that is not.
#[test]
fn single_known_rates_do_not_end_the_growth_of_a_blind_link() {
    let mut link = Told::new();
    link.told(10, acknowledged(2_500));
    let (before, _) = link.told(100, UNANSWERED);
    for _ in 0..10 {
        link.now = link.now + Duration::from_millis(50);
        link.follower.tick(link.now, Some(&acknowledged(2_500)));
        link.told(10, UNANSWERED);
    }
    let (after, state) = link.told(1, UNANSWERED);
    assert!(state == State::Blind && after > before * 2.0, "{after} after {before}, {state:?}");
}
