//! The special parts of the bpf engine: its state is memory that can be damaged, counters go on
//! under the next agent, and it is meant for a thousand classes. (That it divides a link as any
//! engine must is the conformance suite's.)

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    slice::SliceIndex,
    thread::sleep,
    time::{Duration, Instant},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, query::MapInfoIter};
use weir_bpf::fair::{Fair, Mode};
use weir_datapath::engine::{
    BpfQdisc, Engine as _, FIRST, Plan, Uplink,
    plan::{Member, Shape},
};
use weir_netlab::{
    topology::{Family, Netns, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, EngineBounds, EngineKind, FLOOD, Node, Rate, Stream, compare, containers, kernel,
    measure_once, party,
};
use weir_share::{Policy, Weight};
use weir_units::{BitRate, Bytes};

/// Traffic flows again, and shares are right, this soon after any damage.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(1);
/// How far a share may be off then.
const TOLERANCE: f64 = 0.1;

/// Two floods with weights 1 and 3.
struct Busy {
    node: Node,
    division: Division,
    streams: Vec<Stream>,
}

impl Busy {
    fn start() -> Busy {
        let mut node = Node::build(&Spec { containers: containers(2), tso: false, ..Spec::default() });
        let division = Division::of([party("C1").sends(FLOOD), party("C2").weight(3).sends(FLOOD)]);
        let config = node.config().link(&EngineKind::Bpf.to_toml()).division(&node, &division);
        node.start(&config);
        let server = node.topology.server_address(Family::V4);
        let stream = |label| Stream::udp(node.netns(label), node.topology.srv(), server, Rate::Unlimited);
        let streams = ["C1", "C2"].map(stream).into();
        sleep(Duration::from_millis(700));
        Busy { node, division, streams }
    }

    fn fair(&self) -> Fair {
        let (netns, index) = place(self.node.topology.node());
        Fair::find(netns, index, Mode::Fair).expect("it can be looked for").expect("it is there")
    }

    #[track_caller]
    fn assert_shares(&self, what: &str) {
        let expected = self.division.expected(CAPACITY, Family::V4);
        let worst = measure_once(
            || {
                let streams: Vec<&Stream> = self.streams.iter().collect();
                let rates = Stream::goodputs(&streams, Duration::from_millis(700));
                let labels = expected.iter().map(|share| share.label.clone());
                compare(what, &labels.zip(rates).collect::<Vec<_>>(), &expected)
            },
            |worst| *worst <= TOLERANCE,
        );
        assert!(worst <= TOLERANCE, "{what}: a share is {:.1} % off", worst * 100.0);
    }
}

/// The key of a qdisc: the inode of its namespace, the index of its device.
fn place(netns: &Netns) -> (u64, u32) {
    let inode = std::fs::metadata(netns.path()).expect("it is a file").ino();
    (inode, kernel::index_of(netns, kernel::SCHEDULER).expect("the device is there"))
}

/// The qdisc's maps: what it shares with user space, and its own state, which was made with it.
fn maps() -> [MapHandle; 2] {
    let all: Vec<_> = MapInfoIter::default().map(|info| (info.id, info.name, info.value_size)).collect();
    let named = |name: &str| all.iter().filter(|m| m.1.to_string_lossy().ends_with(name)).max_by_key(|m| m.0);
    let shared = named(".bss.weir_fair").expect("it is there").0;
    let state = all.iter().filter(|m| m.1.to_string_lossy().ends_with(".bss") && m.2 > 4 << 20);
    let state = state.min_by_key(|m| m.0.abs_diff(shared)).expect("it is there").0;
    [shared, state].map(|id| MapHandle::from_map_id(id).expect("root can open it"))
}

/// Overwrites a part of a map's value with what `change` makes of each byte.
fn damage(map: &MapHandle, part: impl SliceIndex<[u8], Output = [u8]>, mut change: impl FnMut(u8) -> u8) {
    let key = 0u32.to_ne_bytes();
    let mut value = map.lookup(&key, MapFlags::ANY).expect("it can be read").expect("there is a value");
    value[part].iter_mut().for_each(|byte| *byte = change(*byte));
    map.update(&key, &value, MapFlags::ANY).expect("it can be written");
}

/// Numbers that are the same each time (xorshift).
fn noise(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

#[test]
fn altered_maps_are_right_again_within_a_second() {
    if !EngineKind::Bpf.is_here() {
        return;
    }
    let busy = Busy::start();
    busy.assert_shares("at first");
    let [shared, state] = maps();
    let mut random = noise(7);
    // The first page is the link's; then come everybody's parameters.
    damage(&shared, 4096..4096 + 64 * usize::from(Fair::ENTITIES), |_| 0xa5);
    sleep(REPAIR_TIMEOUT);
    busy.assert_shares("parameters overwritten");
    assert!(busy.node.client().status().expect("it answers").repairs > 0, "and weir says so");
    for (what, rarely) in
        [("all of its state", 1), ("a hundredth", 100), ("another", 100), ("a thousandth", 1000)]
    {
        damage(&state, .., |byte| if random().is_multiple_of(rarely) { random() as u8 } else { byte });
        sleep(REPAIR_TIMEOUT);
        busy.assert_shares(&format!("{what} overwritten with noise"));
    }
    damage(&state, .., |_| 0);
    sleep(REPAIR_TIMEOUT);
    busy.assert_shares("its state overwritten with zeros");
    println!("{:?}", busy.fair().faults());
    assert!(busy.fair().faults().flushes > 0);
}

#[test]
fn a_class_owes_nothing_of_what_it_sent_at_a_weight_that_it_no_longer_has() {
    if !EngineKind::Bpf.is_here() {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), tso: true, ..Spec::default() });
    let weights = |first| {
        Division::of([party("C1").weight(first).sends(Load::Tcp), party("C2").weight(1000).sends(Load::Tcp)])
    };
    let config = node.config().link(&EngineKind::Bpf.to_toml()).division(&node, &weights(1));
    node.start(&config);
    let server = node.topology.server_address(Family::V4);
    let streams = ["C1", "C2"].map(|label| Stream::tcp(node.netns(label), node.topology.srv(), server));
    // Beside a thousand times its weight a first window is 1.2 s of C1's share.
    sleep(Duration::from_millis(1500));
    let even = weights(1000);
    node.client().set(&even.to_changes(&node)).expect("it is a policy");
    // TCP opens its window.
    sleep(Duration::from_millis(300));
    let rates = Stream::goodputs(&streams.each_ref(), Duration::from_millis(700));
    let measured: Vec<_> = ["C1", "C2"].map(str::to_owned).into_iter().zip(rates).collect();
    let worst = compare("both of the same weight now", &measured, &even.expected(CAPACITY, Family::V4));
    assert!(worst <= TOLERANCE, "a share is {:.1} % off", worst * 100.0);
}

#[test]
fn counters_and_queues_go_on_under_the_next_agent() {
    if !EngineKind::Bpf.is_here() {
        return;
    }
    let mut busy = Busy::start();
    let qdisc = |busy: &Busy| busy.node.sh(&["tc", "qdisc", "show", "dev", kernel::SCHEDULER]);
    let (before, kind) = (busy.fair().stats(FIRST), qdisc(&busy));
    busy.node.agent().kill();
    sleep(Duration::from_millis(300));
    busy.node.restart();
    let after = busy.fair().stats(FIRST);
    assert!(after.bytes > before.bytes, "{before:?}, then {after:?}");
    assert_eq!(after.drops, before.drops);
    assert_eq!((busy.fair().faults().flushes, qdisc(&busy)), (0, kind));
    busy.assert_shares("under the next agent");
    for stream in busy.streams.drain(..) {
        let (sent, arrived) = stream.finish();
        assert_eq!(arrived, sent, "payload was lost");
    }
}

#[test]
fn a_thousand_classes_come_and_go_under_load() {
    if !EngineKind::Bpf.is_here() {
        return;
    }
    let mut busy = Busy::start();
    // No agent, which would take away what it does not know.
    let minors: BTreeMap<u16, u32> = [(FIRST, 1), (FIRST + 1, 3)].into();
    busy.node.agent().kill();
    let shape = Shape {
        capacity: CAPACITY,
        split: true,
        mtu: 1500,
        delay_ms: 50,
        least_queue: Bytes(212_992),
        framing: None,
        has_tunnels: false,
    };
    let member = |minor: u16, weight: u32| Member {
        minor,
        group: None,
        policy: Policy::new(Weight::new(weight).unwrap(), None, None).unwrap(),
        allocation: BitRate::ZERO,
        share: BitRate::ZERO,
        target: BitRate::ZERO,
        backlogged: false,
        takes_all: false,
        is_steady: false,
        prio: 1,
    };
    let own: Vec<Member> = minors.iter().map(|(minor, weight)| member(*minor, *weight)).collect();
    let many: Vec<Member> =
        own.iter().copied().chain((0..1000).map(|i| member(0x100 + i, 1 + u32::from(i) % 7))).collect();
    let taken = busy.node.topology.node().within(|| -> Vec<Duration> {
        let mut engine = BpfQdisc::open(Uplink { number: 0, device: "up0" }, weir_bpf::fair::Mode::Fair)
            .expect("it is taken over");
        let mut apply = |members: &[Member]| {
            let begin = Instant::now();
            let plan = Plan { shape: &shape, groups: &[], members };
            engine.apply(&plan, false).expect("there is room");
            let mut measured = Vec::new();
            engine.measure(&mut measured).expect("it can be read");
            assert_eq!(measured.len(), members.len() + 1);
            sleep(Duration::from_millis(20));
            begin.elapsed() - Duration::from_millis(20)
        };
        (0..20).map(|i| apply(if i % 2 == 0 { &many } else { &own })).collect()
    });
    let slowest = taken.expect("the namespace can be entered").into_iter().max().expect("twenty");
    println!("1000 classes added or removed, and all read: {slowest:?} at the most");
    assert!(slowest < Duration::from_millis(100), "{slowest:?}");
    busy.assert_shares("a thousand classes have come and gone");
    assert_eq!(busy.fair().faults().flushes, 0);
}
