//! The follower on made links.
//!
//! `weir lab run variable-lte` compares other schemes on the same links.

use std::time::Duration;

use proptest::prelude::*;
use weir_autorate::{Follower, Settings, Signals, State};
use weir_linksim::{Link, Outcome, Scene, Scheme, constant};
use weir_units::{BitRate, Bytes, Instant};

const DELAY: Duration = Duration::from_millis(30);

fn settings(min: u64, max: u64) -> Settings {
    Settings::new(BitRate::mbit(min), BitRate::mbit(max), DELAY).unwrap()
}

/// The follower between 1 and 40 Mbit/s.
fn follow(scene: &Scene<'_>) -> Outcome {
    Scheme::Weir.run(scene, settings(1, 40))
}

/// Runs seeds of a link, and holds each to a least use and a longest wait of 95 of 100 packets.
fn assert_links(link: Link, least_used: f64, most_ms: u32) {
    for seed in 0..10 {
        let trace = link.trace(seed);
        let outcome = follow(&Scene::of(&trace));
        println!("{} {seed}: {}", trace.name, outcome.row());
        let (used, wait) = (outcome.used, outcome.wait(0.95));
        assert!(used >= least_used, "{} {seed}: {:.1} % used", trace.name, used * 100.0);
        assert!(wait <= most_ms, "{} {seed}: {wait} ms", trace.name);
    }
}

#[test]
fn dsl_lines_are_used_and_their_queues_stay_short() {
    assert_links(Link::Dsl, 0.98, 20);
}

#[test]
fn starlink_like_links_are_used_and_their_queues_stay_short() {
    assert_links(Link::Starlink, 0.88, 30);
}

/// Nothing that reacts within a round trip keeps 30 ms there.
#[test]
fn lte_like_links_are_used_with_queues_below_a_tenth_of_a_second() {
    assert_links(Link::Lte, 0.80, 110);
}

#[test]
fn constant_link_of_the_maximum_keeps_it() {
    let trace = constant(40.0, 60);
    let outcome = follow(&Scene::of(&trace));
    let (low, high) = outcome.capacity_between(2_000, 60_000);
    println!("constant: {}, capacity {low:.1} to {high:.1}", outcome.row());
    assert!(low >= 40.0 * 0.97, "{low}");
}

#[test]
fn one_step_follows_a_fall_of_any_depth() {
    for after in [10.0, 4.0, 2.0] {
        let mut trace = constant(40.0, 10);
        trace.rate.extend(vec![after; 10_000]);
        trace.base.extend(vec![20; 10_000]);
        let outcome = follow(&Scene::of(&trace));
        let (_, high) = outcome.capacity_between(10_400, 20_000);
        assert!(high <= after * 1.7, "{high} of {after}");
        let (low, _) = outcome.capacity_between(14_000, 20_000);
        assert!(low >= after * 0.55, "{low} of {after}");
    }
}

#[test]
fn foreign_queue_costs_the_link_for_a_moment_alone() {
    let trace = constant(20.0, 40);
    let foreign = |ms| if (15_000..30_000).contains(&ms) { 60 } else { 0 };
    let outcome = follow(&Scene { foreign, ..Scene::of(&trace) });
    assert!(outcome.was(State::Foreign, 15_000, 19_000), "it is recognised");
    assert!(outcome.used >= 0.90, "{}", outcome.row());
    let (low, _) = outcome.capacity_between(20_000, 30_000);
    assert!(low >= 10.0, "{low}");
}

#[test]
fn silence_lowers_nothing_and_the_link_is_used_after_it() {
    let mut trace = constant(20.0, 20);
    trace.rate[10_000..12_000].fill(0.0);
    let outcome = follow(&Scene::of(&trace));
    assert!(outcome.was(State::Silent, 10_000, 12_000));
    let (low, _) = outcome.capacity_between(10_500, 12_000);
    assert!(low >= 2.0, "{low}");
    // Packets wait in the modem when the silence ends: they were sent before it.
    let (low, _) = outcome.capacity_between(13_500, 20_000);
    assert!(low >= 13.0, "{low}");
}

#[test]
fn idle_link_returns_to_what_was_usual() {
    let mut trace = constant(10.0, 30);
    trace.rate.extend(vec![40.0; 60_000]);
    trace.base.extend(vec![20; 60_000]);
    let outcome = follow(&Scene { sends: |ms| ms < 32_000, ..Scene::of(&trace) });
    assert!(outcome.was(State::Idle, 60_000, 90_000));
    let (_, high) = outcome.capacity_between(32_000, 34_000);
    assert!(high >= 25.0, "the last rates were high: {high}");
    let (low, high) = outcome.capacity_between(80_000, 90_000);
    assert!(low >= 8.0 && high <= 14.0, "{low} to {high}");
}

#[test]
fn lost_signals_end_at_the_lowest_rate_and_come_back() {
    let trace = constant(20.0, 30);
    let outcome = follow(&Scene { tells: |ms| !(10_000..20_000).contains(&ms), ..Scene::of(&trace) });
    assert!(outcome.was(State::Lost, 13_000, 20_000) && !outcome.was(State::Lost, 0, 12_900));
    assert_eq!(outcome.capacity_between(13_100, 20_000), (1.0, 1.0));
    let (low, _) = outcome.capacity_between(24_000, 30_000);
    assert!(low >= 11.0, "{low}");
}

#[test]
fn packets_without_answers_are_sent_at_what_was_usual() {
    let mut follower = Follower::new(settings(2, 40), Instant::default());
    let signals = Signals { is_busy: true, sent: Bytes(100_000), ..Signals::default() };
    let mut at = |ms| follower.tick(Instant(Duration::from_millis(ms)), Some(&signals));
    let first = at(50);
    assert_eq!((first.state, first.capacity), (State::Blind, BitRate::mbit(2)), "nothing is known");
    let later = (2..=200).map(|tick| at(50 * tick)).last().unwrap();
    let grown = later.capacity.as_mbit();
    assert!((2.15..2.25).contains(&grown), "1 % a second: {grown}");
}

fn some_signals() -> impl Strategy<Value = Option<Signals>> {
    let part = |most: u64| proptest::option::of(0..most);
    let signals = (
        part(2_000),
        0..500u64,
        0..100u64,
        part(1 << 40),
        0..1u64 << 40,
        part(1 << 40),
        any::<bool>(),
        part(90_000),
    );
    proptest::option::of(signals.prop_map(|(queue, base, samples, acked, sent, way, is_busy, unanswered)| {
        Signals {
            queue: queue.map(Duration::from_millis),
            base: Duration::from_millis(base),
            samples,
            acked: acked.map(Bytes),
            sent: Bytes(sent),
            on_the_way: way.map(Bytes),
            is_busy,
            unanswered: unanswered.map(Duration::from_millis),
        }
    }))
}

proptest! {
    /// The capacity stays within its bounds, for any signals at any time.
    #[test]
    fn capacity_stays_within_its_bounds(ticks in proptest::collection::vec((0..3_000u64, some_signals()), 1..200)) {
        let mut follower = Follower::new(settings(1, 40), Instant::default());
        let mut now = Instant::default();
        for (after, signals) in ticks {
            now = now + Duration::from_millis(after);
            let decision = follower.tick(now, signals.as_ref());
            prop_assert!((BitRate::mbit(1)..=BitRate::mbit(40)).contains(&decision.capacity));
        }
    }
}
