//! The follower of what arrives, on made links.

use std::time::Duration;

use weir_autorate::{Follower, Settings, Signals, State};
use weir_linksim::{Arrivals, Link, Outcome, Scheme, constant};
use weir_units::{BitRate, Bytes, Instant};

/// All flows begin at once, on a link whose rate no one knows, and fill the provider's queue. CUBIC in the simulation
/// leaves its slow start by losses alone.
const START_MS: u64 = 12_000;

/// The follower between 1 and 60 Mbit/s.
fn follow(scene: &Arrivals<'_>) -> Outcome {
    Scheme::Weir.arrive(scene, settings(60))
}

fn settings(max: u64) -> Settings {
    Settings::new(BitRate::mbit(1), BitRate::mbit(max), Duration::from_millis(30)).unwrap()
}

/// Runs seeds of a link with twice its rates: a download is faster than an upload. Each is held to a least use and a
/// longest wait of 95 of 100 packets.
fn assert_links(link: Link, flows: usize, least_used: f64, most_ms: u32) {
    for seed in 0..4 {
        let trace = link.trace(seed).times(2.0);
        let outcome = follow(&Arrivals { flows, judged_from_ms: START_MS, ..Arrivals::of(&trace) });
        println!("{} {seed}, {flows} flows: {}", trace.name, outcome.row());
        let (used, wait) = (outcome.used, outcome.wait(0.95));
        assert!(used >= least_used, "{} {seed}: {:.1} % used", trace.name, used * 100.0);
        assert!(wait <= most_ms, "{} {seed}: {wait} ms", trace.name);
    }
}

#[test]
fn dsl_lines_are_used_and_their_queues_stay_short() {
    assert_links(Link::Dsl, 2, 0.98, 30);
    assert_links(Link::Dsl, 8, 0.97, 30);
}

#[test]
fn starlink_like_links_are_used_and_their_queues_stay_short() {
    assert_links(Link::Starlink, 8, 0.93, 40);
}

/// The rate halves within less than a round trip there.
#[test]
fn lte_like_links_are_used_with_queues_below_a_third_of_a_second() {
    assert_links(Link::Lte, 8, 0.87, 300);
}

#[test]
fn constant_link_below_the_maximum_is_used_without_a_long_queue() {
    let trace = constant(40.0, 60);
    for flows in [1, 2, 16] {
        let outcome = follow(&Arrivals { flows, judged_from_ms: START_MS, ..Arrivals::of(&trace) });
        println!("constant, {flows} flows: {}", outcome.row());
        assert!(outcome.used >= 0.96, "{flows} flows: {}", outcome.row());
        // The first half second fills the queue: no one knows the link's rate.
        assert!(outcome.wait(0.90) <= 60, "{flows} flows: {}", outcome.row());
    }
}

#[test]
fn capacity_follows_a_fall_and_a_rise() {
    let mut trace = constant(40.0, 20);
    trace.rate[5_000..12_000].fill(5.0);
    let outcome = follow(&Arrivals::of(&trace));
    let (_, high) = outcome.capacity_between(5_500, 12_000);
    assert!(high <= 8.0, "{high} of 5 Mbit/s");
    // The queue of the fall has drained 3 s later.
    let late = outcome.moments.iter().filter(|moment| (9_000..12_000).contains(&moment.ms));
    let longest = late.map(|moment| moment.wait_ms).max().unwrap();
    assert!(longest <= 150, "{longest} ms");
    let after = outcome.moments.iter().filter(|moment| moment.ms >= 16_500);
    let carried: Vec<f64> = after.map(|moment| moment.carried).collect();
    let mean = carried.iter().sum::<f64>() / carried.len() as f64;
    assert!(mean >= 32.0, "{mean} of 40 Mbit/s");
}

#[test]
fn path_that_becomes_longer_costs_the_link_for_some_seconds_alone() {
    let mut trace = constant(40.0, 40);
    trace.base[20_000..].fill(80);
    let outcome = follow(&Arrivals::of(&trace));
    assert!(outcome.used >= 0.93, "{}", outcome.row());
    let (low, _) = outcome.capacity_between(32_000, 40_000);
    assert!(low >= 15.0, "{low}");
}

/// Datagrams do not give way. Nothing drains the queue, so that the capacity must not stay low.
#[test]
fn flood_leaves_the_others_a_part_of_the_link() {
    let trace = constant(40.0, 40);
    let outcome = follow(&Arrivals { flood_mbit: 20.0, ..Arrivals::of(&trace) });
    println!("flood: {}", outcome.row());
    let (low, high) = outcome.capacity_between(10_000, 40_000);
    assert!(low >= 10.0 && high >= 20.0, "{low} to {high}");
    assert!(outcome.was(State::Foreign, 0, 40_000));
}

#[test]
fn pauses_of_the_traffic_leave_the_rate_known() {
    let trace = constant(20.0, 40);
    let outcome = follow(&Arrivals {
        sends: |ms| ms % 5_000 < 2_500,
        judged_from_ms: START_MS,
        ..Arrivals::of(&trace)
    });
    println!("pauses: {}", outcome.row());
    assert!(outcome.used >= 0.4, "{}", outcome.row());
    let (_, high) = outcome.capacity_between(10_000, 40_000);
    assert!(high <= 40.0, "{high} of 20 Mbit/s");
}

/// A flow that begins in a queue must not hide it, and the old bases end after some seconds.
#[test]
fn flows_that_come_and_go_leave_no_queue_behind() {
    let trace = constant(40.0, 60);
    for lasts in [1_500, 4_000, 20_000] {
        let outcome =
            follow(&Arrivals { lasts_ms: Some(lasts), judged_from_ms: START_MS, ..Arrivals::of(&trace) });
        println!("constant, flows of {lasts} ms: {}", outcome.row());
        assert!(outcome.used >= 0.9, "{lasts} ms: {}", outcome.row());
        assert!(outcome.wait(0.95) <= 150, "{lasts} ms: {}", outcome.row());
    }
}

/// New flows hand a wrong base on, and on these links it ends up with all of them.
#[test]
fn flows_that_come_and_go_use_starlink_like_links() {
    for seed in 1..5 {
        let trace = Link::Starlink.trace(seed).times(2.0);
        let scene = Arrivals { lasts_ms: Some(4_000), judged_from_ms: START_MS, ..Arrivals::of(&trace) };
        let outcome = Scheme::Weir.arrive(&scene, settings(80));
        println!("Starlink-like {seed}, flows of 4 s: {}", outcome.row());
        assert!(outcome.used >= 0.93, "{seed}: {}", outcome.row());
        assert!(outcome.wait(0.95) <= 40, "{seed}: {}", outcome.row());
    }
}

/// A wrong base tells a queue that no cut makes shorter.
#[test]
fn queue_that_stays_while_senders_give_way_is_forgotten() {
    let forgets = |gives_way: bool, queue_ms: fn(u64) -> u64| {
        let mut follower = Follower::of_arrivals(settings(80), Instant::default());
        let mut arrives = BitRate::mbit(20);
        (1..=100).any(|tick| {
            let bytes = Bytes(arrives.0 / 8 / 20);
            let signals = Signals {
                queue: Some(Duration::from_millis(queue_ms(tick))),
                base: Duration::from_millis(100),
                samples: 50,
                acked: Some(bytes),
                sent: bytes,
                is_busy: true,
                ..Signals::default()
            };
            let decision = follower.tick(Instant(Duration::from_millis(50 * tick)), Some(&signals));
            arrives = if gives_way { decision.capacity.min(BitRate::mbit(20)) } else { arrives };
            decision.forgets_bases
        })
    };
    assert!(forgets(true, |_| 5), "it stays");
    assert!(!forgets(false, |_| 5), "it may stay");
    assert!(!forgets(true, |tick| if tick % 40 == 0 { 1 } else { 5 }), "it was gone, so that no one looks");
    assert!(!forgets(true, |tick| if tick > 81 { 3 } else { 5 }), "the look makes it shorter");
}
