//! A policy that is changed under load is in force within a second, and many at once.

use std::{
    thread,
    time::{Duration, Instant},
};

use weir_api::{PolicyChange, SetPolicies};
use weir_netlab::{
    stats,
    topology::{Family, Mode, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, Need, Node, Rate, Share, Stream, TOLERANCE, can_run, compare, containers,
    measure_once, party,
};
use weir_share::Weight;
use weir_units::BitRate;

/// Between two looks at what has arrived.
const SAMPLE: Duration = Duration::from_millis(100);
/// How near to its new share a class must come ...
const NEAR: f64 = 0.10;
/// ... within this time.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(1);

/// The arrivals of each stream at each look after a moment.
struct Watch {
    samples: Vec<(Duration, Vec<f64>)>,
}

impl Watch {
    /// Looks at the streams for `time`, beginning with `start`.
    fn of(streams: &[Stream], start: Instant, time: Duration) -> Watch {
        let look = || (Instant::now(), streams.iter().map(Stream::received).collect::<Vec<u64>>());
        let mut samples = Vec::new();
        let mut before = look();
        while start.elapsed() < time {
            thread::sleep(SAMPLE);
            let now = look();
            let seconds = (now.0 - before.0).as_secs_f64();
            let rates = now.1.iter().zip(&before.1).map(|(b, a)| (b - a) as f64 * 8e-6 / seconds).collect();
            samples.push((now.0 - start, rates));
            before = now;
        }
        Watch { samples }
    }

    /// When this stream first was within [`NEAR`] of `goodput` over a look and stayed there
    /// on average over this and the next two: what a single look says is not yet a rate.
    fn reached(&self, stream: usize, goodput: f64) -> Option<Duration> {
        let near = |rate: f64| (rate / goodput - 1.0).abs() <= NEAR;
        self.samples.windows(3).find_map(|three| {
            let mean = three.iter().map(|s| s.1[stream]).sum::<f64>() / 3.0;
            (near(three[0].1[stream]) && near(mean)).then_some(three[0].0)
        })
    }
}

/// The largest of the times in which each of `expected` is reached; prints them.
fn reached(what: &str, watch: &Watch, expected: &[Share]) -> Duration {
    let mut last = Duration::ZERO;
    for (i, share) in expected.iter().enumerate() {
        let time = watch.reached(i, share.goodput);
        let shown = time.map_or("never".to_owned(), |t| format!("after {:4} ms", t.as_millis()));
        println!("{what:<30} {:<5} near {:6.2} Mbit/s {shown}", share.label, share.goodput);
        if time.is_none() {
            println!("    {:?}", watch.samples.iter().map(|s| s.1[i].round()).collect::<Vec<_>>());
        }
        last = last.max(time.unwrap_or(Duration::MAX));
    }
    last
}

const FLOOD: Load = Load::Udp(BitRate::mbit(1000));

fn start(node: &Node, labels: &[&str]) -> Vec<Stream> {
    let server = node.topology.server_address(Family::V4);
    let stream = |label: &&str| Stream::udp(node.netns(label), node.topology.srv(), server, Rate::Unlimited);
    labels.iter().map(stream).collect()
}

fn build(n: usize) -> Node {
    let spec = Spec { containers: containers(n), mode: Mode::Routed, ..Spec::default() };
    let mut node = Node::build(&spec);
    let config = node.config();
    node.start(&config);
    node
}

#[test]
fn a_policy_changed_under_load_is_in_force_within_a_second() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = build(3);
    let streams = start(&node, &["C1", "C2", "C3"]);
    thread::sleep(Duration::from_millis(1500));
    let c = |label| party(label).sends(FLOOD);
    let steps = [
        ("weight 4", Division::of([c("C1").weight(4), c("C2"), c("C3")])),
        ("and a minimum", Division::of([c("C1").weight(4), c("C2").min(40), c("C3")])),
        ("and a maximum", Division::of([c("C1").weight(4).max(10), c("C2").min(40), c("C3")])),
    ];
    let unset = Division::of([c("C1"), c("C2"), c("C3")]);
    let expect = |division: &Division| division.expected(CAPACITY, Family::V4);
    let slowest = measure_once(
        || {
            let mut slowest = Duration::ZERO;
            for (what, division) in &steps {
                let changed = Instant::now();
                node.client().set(&division.to_changes(&node)).expect("it fits");
                let watch = Watch::of(&streams, changed, Duration::from_millis(1500));
                slowest = slowest.max(reached(what, &watch, &expect(division)));
            }
            let changed = Instant::now();
            for label in ["C1", "C2", "C3"] {
                node.client().unset(&node.name(label)).expect("it was set");
            }
            let watch = Watch::of(&streams, changed, Duration::from_millis(1500));
            slowest.max(reached("all of it unset", &watch, &expect(&unset)))
        },
        |slowest| *slowest <= CHANGE_TIMEOUT,
    );
    assert!(slowest <= CHANGE_TIMEOUT, "a class needs {slowest:?} to come near its new share");
}

#[test]
fn a_class_that_wakes_has_its_share_within_a_second_and_keeps_it() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = build(3);
    let division = Division::of([
        party("C1").min(20).sends(FLOOD),
        party("C2").sends(FLOOD),
        party("C3").weight(2).max(30).sends(FLOOD),
    ]);
    node.client().set(&division.to_changes(&node)).expect("it fits");
    let expected = division.expected(CAPACITY, Family::V4);
    let (soon, worst) = measure_once(
        || {
            // The first class has the whole link; then the others come.
            let mut streams = start(&node, &["C2"]);
            thread::sleep(Duration::from_millis(2500));
            let woken = Instant::now();
            let others = start(&node, &["C1", "C3"]);
            streams.splice(0..0, others);
            streams.swap(1, 2); // C1, C2, C3
            let watch = Watch::of(&streams, woken, Duration::from_millis(1500));
            let soon = reached("two classes wake", &watch, &expected);
            let all: Vec<&Stream> = streams.iter().collect();
            let rates = Stream::goodputs(&all, Duration::from_secs(2));
            let labels = expected.iter().map(|share| share.label.clone());
            let worst = compare("two classes have woken", &labels.zip(rates).collect::<Vec<_>>(), &expected);
            drop(streams);
            // Until they count as asleep again.
            thread::sleep(Duration::from_millis(2500));
            (soon, worst)
        },
        |(soon, worst)| *soon <= CHANGE_TIMEOUT && *worst <= TOLERANCE,
    );
    assert!(soon <= CHANGE_TIMEOUT, "a class needs {soon:?} after it wakes to come near its share");
    assert!(worst <= TOLERANCE, "a class that has woken is {:.2} % off", worst * 100.0);
}

#[test]
fn a_hundred_classes_are_changed_in_one_call_in_under_50_ms() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = build(100);
    let labels = containers(100);
    // Some of them send: their classes are in use when they are changed.
    let _streams = start(&node, &["C1", "C2", "C50", "C99"]);
    thread::sleep(Duration::from_millis(1000));
    let took = measure_once(
        || {
            let mut times = Vec::new();
            for round in 0..7u32 {
                let change = |(i, label): (u32, &String)| PolicyChange {
                    name: node.name(label),
                    weight: Some(Some(Weight::new(1 + (i * 7 + round * 13) % 50).expect("a weight"))),
                    min: Some((i % 2 == round % 2).then_some(BitRate::kbit(300))),
                    max: Some(Some(BitRate::mbit(u64::from(20 + round)))),
                    ..PolicyChange::default()
                };
                let changes = (0..).zip(&labels).map(change).collect();
                let begin = Instant::now();
                let changed =
                    node.client().set(&SetPolicies { changes, allow_absent: false }).expect("it fits");
                times.push(begin.elapsed().as_secs_f64() * 1e3);
                assert_eq!(changed.len(), 100);
                // In force when the answer comes: the kernel has every ceiling.
                let kernel = node.sh(&["tc", "class", "show", "dev", "weir0"]);
                let ceilings = kernel.matches(&format!("ceil {}Mbit", 20 + round)).count();
                assert_eq!(ceilings, 100, "{kernel}");
                thread::sleep(Duration::from_millis(300));
            }
            // On a machine that is busy with something else many rounds wait for a processor.
            let time = stats::percentile(&times, 25.0).expect("seven rounds");
            println!(
                "100 classes changed in one call: {time:.1} ms, median {:.1}, each {:?}",
                stats::median(&times).expect("seven rounds"),
                times.iter().map(|t| (t * 10.0).round() / 10.0).collect::<Vec<_>>()
            );
            time
        },
        |time| *time < 50.0,
    );
    assert!(took < 50.0, "{took:.1} ms");
}
