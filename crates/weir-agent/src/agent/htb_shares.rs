//! Shares of engine `htb` in a model: the agent's demands, division and tree, with `weir-htb` as the kernel's HTB.
//! Senders are queues and arrival times, without TCP's own dynamics.
//!
//! `WEIR_POLICIES` policies (20 without it) are drawn from `WEIR_SEED` (1 without it).

mod contract;

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use weir_api::{ClassKind, PolicyChange, SetPolicies};
use weir_datapath::engine::{Measured, plan, tree};
use weir_htb::{ClassId, Htb, Limits, Next, Packet, Params};
use weir_netlink::tc::{Counters, HtbClass};
use weir_share::{Allocator, Demand, Policy, Sharer};
use weir_units::{BitRate, Bytes, Instant};

use contract::Contract;

use super::{
    allocate::Allocations,
    by_hand::SetLayers,
    class_key::ClassSource,
    class_table::{ClassTable, DiscoveredClass},
    store::{Ledger, Minors},
};

const CAPACITY: BitRate = BitRate::mbit(95);
const TICK: Duration = Duration::from_millis(100);
const FRAME: u32 = 1514;
/// Packets in the queue of a sender that never has enough.
const QUEUE: u32 = 60;
/// The most of any sender: the bytes of the default queue.
const LIMIT: u32 = 184;
/// Classes on the node.
const MANY: usize = 7;
/// The shares that are judged: a packet more or less is too much of a smaller one.
const LEAST: BitRate = BitRate::mbit(1);

/// The traffic of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Load {
    /// It always has a queue.
    Flood,
    /// Frames of 1514 bytes at this rate.
    Steady(BitRate),
    /// A flood for the first time, silence for the second, again and again.
    OnOff(Duration, Duration),
    /// A number of frames at once, again after this time.
    Bursts(u32, Duration),
    Nothing,
}

impl Load {
    fn draw(rng: &mut Rng, varies: bool) -> Load {
        let millis =
            |rng: &mut Rng, from: f64, to: f64| Duration::from_secs_f64(log_uniform(rng, from, to) / 1000.0);
        match rng.u32(0..100) {
            0..45 => Load::Flood,
            45..70 => Load::Steady(BitRate::kbit(log_uniform(rng, 300.0, 50_000.0) as u64)),
            70..80 if varies => Load::OnOff(millis(rng, 50.0, 2_000.0), millis(rng, 50.0, 2_000.0)),
            80..88 if varies => Load::Bursts(rng.u32(2..60), millis(rng, 10.0, 300.0)),
            _ => Load::Nothing,
        }
    }
}

fn log_uniform(rng: &mut Rng, from: f64, to: f64) -> f64 {
    (from.ln() + (to.ln() - from.ln()) * rng.f64()).exp()
}

/// A class of the model.
#[derive(Debug, Clone)]
struct Sender {
    weight: u32,
    min: Option<BitRate>,
    max: Option<BitRate>,
    group: Option<usize>,
    load: Load,
}

/// A draw of policies and traffic.
#[derive(Debug, Clone)]
struct Case {
    groups: Vec<(u32, Option<BitRate>)>,
    senders: Vec<Sender>,
}

impl Case {
    fn draw(rng: &mut Rng, with_groups: bool, varies: bool) -> Case {
        let mut promised: f64 = 60_000.0;
        let mut senders: Vec<Sender> = Vec::new();
        for _ in 0..MANY {
            let min = (rng.u32(0..100) < 30 && promised > 500.0)
                .then(|| log_uniform(rng, 300.0, promised.min(40_000.0)));
            promised -= min.unwrap_or(0.0);
            let least = min.unwrap_or(1_000.0).max(1_000.0);
            let max = (rng.u32(0..100) < 30).then(|| log_uniform(rng, least, 90_000.0));
            senders.push(Sender {
                weight: log_uniform(rng, 1.0, 100.0) as u32,
                min: min.map(|kbit| BitRate::kbit(kbit as u64)),
                max: max.map(|kbit| BitRate::kbit(kbit as u64 + 1)),
                group: (with_groups && rng.bool()).then(|| rng.usize(0..2)),
                load: Load::draw(rng, varies),
            });
        }
        let floor =
            |g| senders.iter().filter(|s| s.group == Some(g)).map(|s| s.min.unwrap_or_default().0).sum();
        let groups = (0..2)
            .map(|g| {
                let floor: u64 = floor(g);
                let max = (rng.u32(0..100) < 30).then(|| BitRate(floor + 1_000_000 + rng.u64(0..80_000_000)));
                (log_uniform(rng, 1.0, 100.0) as u32, max)
            })
            .collect();
        Case { groups, senders }
    }

    fn policy(weight: u32, min: Option<BitRate>, max: Option<BitRate>) -> Policy {
        Policy::new(weight.to_string().parse().unwrap(), min, max).unwrap()
    }

    /// The allocation that is due to each class at these demands.
    fn due(&self, demands: &[Demand], allocator: &mut Allocator) -> Vec<BitRate> {
        let groups: Vec<Policy> =
            self.groups.iter().map(|(weight, max)| Case::policy(*weight, None, *max)).collect();
        let sharers: Vec<Sharer> = self
            .senders
            .iter()
            .zip(demands)
            .map(|(s, demand)| {
                let sharer = Sharer::new(Case::policy(s.weight, s.min, s.max), *demand);
                s.group.map_or(sharer, |g| sharer.in_group(u32::try_from(g).unwrap()))
            })
            .collect();
        allocator.allocate(CAPACITY, &groups, &sharers).to_vec()
    }

    fn table(&self) -> ClassTable {
        let mut text = format!("[link]\ndevice = \"eth0\"\ncapacity = \"{CAPACITY}\"\nreservable = 0.99\n");
        for (g, (weight, max)) in self.groups.iter().enumerate() {
            text += &format!("[[group]]\nname = \"g{g}\"\nweight = {weight}\n");
            text += &max.map_or(String::new(), |max| format!("max = \"{}bit\"\n", max.0));
        }
        let config = crate::config::parse(&text, std::path::Path::new("model.toml")).unwrap();
        let mut table =
            ClassTable::new(config, SetLayers::new(), Minors::new(), Ledger::new(), BitRate::ZERO);
        let name = |i: usize| format!("c{i}");
        let found = self.senders.iter().enumerate().map(|(i, sender)| DiscoveredClass {
            source: ClassSource::Docker,
            name: name(i),
            kind: ClassKind::Container,
            group: sender.group.map(|g| format!("g{g}")),
            label: Default::default(),
            down_label: Default::default(),
            cut: Vec::new(),
            ports: vec![(7, format!("veth{i}"))],
            cgroups: Vec::new(),
            selectors: Vec::new(),
            problem: None,
            asked_by: Default::default(),
            unmet: None,
        });
        table.update(found.collect(), true);
        let changes = self.senders.iter().enumerate().map(|(i, sender)| PolicyChange {
            name: name(i),
            weight: Some(Some(sender.weight.to_string().parse().unwrap())),
            min: Some(sender.min),
            max: Some(sender.max),
            ..PolicyChange::default()
        });
        let planned = table.plan(&SetPolicies { changes: changes.collect(), allow_absent: false }).unwrap();
        table.commit(planned);
        table
    }
}

/// The kernel's part: a tree, its counters, and what arrives when.
struct Link {
    htb: Htb,
    ids: BTreeMap<u16, ClassId>,
    classes: BTreeMap<u16, HtbClass>,
    counters: BTreeMap<u16, Counters>,
}

impl Link {
    fn new() -> Link {
        Link {
            htb: Htb::new(Limits::default(), Instant::default()),
            ids: BTreeMap::new(),
            classes: BTreeMap::new(),
            counters: BTreeMap::new(),
        }
    }

    /// Writes what differs, as the engine does.
    fn apply(&mut self, nodes: &[tree::Node]) -> usize {
        let mut writes = 0;
        for node in nodes {
            let (class, minor) = (node.class, node.class.handle.minor());
            if self.classes.get(&minor).is_some_and(|old| !tree::differs(old, &class)) {
                continue;
            }
            writes += 1;
            let params = Params::new(class.rate)
                .ceil(class.ceil)
                .burst(class.burst)
                .cburst(class.cburst)
                .quantum(u32::try_from(class.quantum.0).unwrap())
                .prio(u8::try_from(class.prio).unwrap())
                .limit(LIMIT);
            if let Some(id) = self.ids.get(&minor) {
                self.htb.change(*id, params).unwrap();
            } else {
                let id = ClassId(u32::from(minor));
                let parent = self.ids.get(&class.parent.minor()).copied();
                self.htb.add(id, parent, params).unwrap();
                self.ids.insert(minor, id);
            }
            self.classes.insert(minor, class);
        }
        writes
    }

    fn enqueue(&mut self, minor: u16) {
        if self.htb.enqueue(self.ids[&minor], Packet { handle: u32::from(minor), len: FRAME }).is_ok() {
            self.counters.entry(minor).or_default().backlog += u64::from(FRAME);
        }
    }

    fn queued(&self, minor: u16) -> u64 {
        self.counters.get(&minor).map_or(0, |c| c.backlog)
    }

    /// Lets leave what may leave now. Returns when to ask again.
    fn dequeue(&mut self, now: Instant, mut left: impl FnMut(u16, &mut Htb)) -> Option<Instant> {
        loop {
            match self.htb.dequeue(now) {
                Next::Packet(departure) => {
                    let minor = u16::try_from(departure.packet.handle).unwrap();
                    let counters = self.counters.get_mut(&minor).unwrap();
                    counters.backlog -= u64::from(FRAME);
                    counters.bytes += u64::from(FRAME);
                    counters.packets += 1;
                    left(minor, &mut self.htb);
                }
                Next::At(then) => return Some(then),
                Next::Empty => return None,
            }
        }
    }

    /// Whether a class sends packets of another length.
    fn look_at_packets(&self, packets: &mut tree::Packets, now: Instant) -> bool {
        let look = |(minor, counters): (&u16, &Counters)| {
            packets.look(*minor, counters.bytes, u32::try_from(counters.packets).unwrap(), now)
        };
        self.counters.iter().map(look).fold(false, |is_other, more| is_other | more)
    }

    fn measured(&self) -> Vec<Measured> {
        self.ids
            .keys()
            .map(|&minor| Measured {
                minor,
                counters: self.counters.get(&minor).copied().unwrap_or_default(),
            })
            .collect()
    }
}

/// Bits of each class: what it sent and what it was due.
struct Outcome {
    sent: Vec<u64>,
    due: Vec<f64>,
    writes: usize,
}

/// Runs a case for `length` and counts from `from` on.
fn run(case: &Case, from: Duration, length: Duration) -> Outcome {
    let table = case.table();
    let minors: Vec<u16> = (0..case.senders.len())
        .map(|i| {
            let (_, entry) = table.entries().iter().find(|(_, e)| e.class.name == format!("c{i}")).unwrap();
            entry.minor.unwrap()
        })
        .collect();
    let mut allocations = Allocations::new(Allocator::water_filling());
    allocations.follow(&table);
    let shape = plan::Shape {
        capacity: CAPACITY,
        split: true,
        mtu: 1500,
        delay_ms: 50,
        least_queue: Bytes(278_528),
        framing: None,
        has_tunnels: false,
    };
    let mut link = Link::new();
    let mut nodes = Vec::new();
    let mut corrections = tree::Corrections::default();
    let mut packets = tree::Packets::default();
    let mut division = (Vec::new(), Vec::new());
    let corrected = |corrections: &tree::Corrections, nodes: &[tree::Node]| {
        let mut nodes = nodes.to_vec();
        corrections.correct(&mut nodes);
        nodes
    };
    let mut outcome = Outcome { sent: vec![0; minors.len()], due: Vec::new(), writes: 0 };
    let (mut now, mut tick) = (Instant::default(), Instant::default());
    // The next arrival of each class: a frame, a burst, or a look at whether it is on.
    let mut arrivals: Vec<Instant> = vec![Instant::default(); minors.len()];
    let is_on = |load: Load, now: Instant| match load {
        Load::OnOff(on, off) => now.0.as_nanos() % (on + off).as_nanos() < on.as_nanos(),
        Load::Flood => true,
        _ => false,
    };
    let mut counting_from: Option<Vec<u64>> = None;
    let mut contract = Contract::new(minors.len());
    while now.0 < length {
        if now >= tick {
            tick = tick + TICK;
            allocations.observe(&link.measured(), now);
            let is_corrected = corrections.look(&link.measured(), now);
            let is_divided = allocations.is_due();
            if is_divided {
                division = allocations.divide(&table, table.config().link.capacity);
            }
            let is_rebuilt = is_divided | link.look_at_packets(&mut packets, now);
            if is_rebuilt {
                let plan = plan::Plan { shape: &shape, groups: &division.0, members: &division.1 };
                tree::build(&plan, &packets, &mut nodes);
                corrections.follow(&plan, &nodes, false);
            }
            if is_rebuilt || is_corrected {
                outcome.writes += link.apply(&corrected(&corrections, &nodes));
            }
            if now.0 >= from && counting_from.is_none() {
                // Queues of the first seconds are due in both.
                contract.queues = minors.iter().map(|m| link.queued(*m) as f64).collect();
                counting_from =
                    Some(minors.iter().map(|m| link.counters.get(m).map_or(0, |c| c.bytes)).collect());
            }
        }
        for (i, sender) in case.senders.iter().enumerate() {
            let minor = minors[i];
            if arrivals[i] > now {
                continue;
            }
            arrivals[i] = match sender.load {
                Load::Flood | Load::OnOff(..) => {
                    while is_on(sender.load, now) && link.queued(minor) < u64::from(QUEUE * FRAME) {
                        link.enqueue(minor);
                    }
                    now + Duration::from_millis(1)
                }
                Load::Steady(rate) => {
                    link.enqueue(minor);
                    arrivals[i] + rate.time_to_send(Bytes(FRAME.into()))
                }
                Load::Bursts(frames, every) => {
                    (0..frames).for_each(|_| link.enqueue(minor));
                    arrivals[i] + every
                }
                Load::Nothing => Instant(length),
            };
        }
        let next = link.dequeue(now, |_, _| ());
        let mut then = arrivals.iter().copied().min().unwrap().min(tick);
        if let Some(next) = next {
            then = then.min(next);
        }
        if then.since(contract.seen) >= contract::STEP {
            let is_on: Vec<bool> = case.senders.iter().map(|s| is_on(s.load, now)).collect();
            contract.serve(case, &is_on, then, counting_from.is_some());
        }
        now = then;
    }
    let before = counting_from.unwrap();
    for (i, minor) in minors.iter().enumerate() {
        outcome.sent[i] = (link.counters.get(minor).map_or(0, |c| c.bytes) - before[i]) * 8;
    }
    outcome.due = contract.sent;
    outcome
}

/// The errors of the shares that are large enough to be judged.
fn errors(case: &Case, from: Duration, length: Duration) -> Vec<(f64, String)> {
    let outcome = run(case, from, length);
    let seconds = (length - from).as_secs_f64();
    let mut errors = Vec::new();
    for (i, sender) in case.senders.iter().enumerate() {
        let (sent, due) = (outcome.sent[i] as f64 / seconds, outcome.due[i] / seconds);
        if due >= LEAST.0 as f64 {
            let text = format!("c{i} sent {:.2} of {:.2} Mbit/s: {sender:?}", sent / 1e6, due / 1e6);
            errors.push((sent / due - 1.0, text));
        }
    }
    errors
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a whole number"))
}

#[test]
fn random_policies_below_full_demand_have_the_contracts_shares() {
    random(false, (0.6, 3.0));
}

#[test]
fn random_policies_of_changing_demand_are_near_the_contracts_shares() {
    random(true, (6.2, 15.0));
}

/// Bounds of the 95th percentile and of the largest error, %.
fn random(varies: bool, bounds: (f64, f64)) {
    let (count, seed) = (number("WEIR_POLICIES", 20), number("WEIR_SEED", 1));
    let mut rng = Rng::with_seed(seed);
    let mut all: Vec<f64> = Vec::new();
    for i in 0..count {
        let case = Case::draw(&mut rng, i % 2 == 1, varies);
        if number("WEIR_ONLY", i) != i {
            continue;
        }
        let errors = errors(&case, Duration::from_secs(3), Duration::from_secs(9));
        for (error, text) in &errors {
            if error.abs() > 0.03 {
                println!("policy {i}: {:+.1} % {text}", error * 100.0);
            }
        }
        if errors.iter().any(|(e, _)| e.abs() > 0.03) {
            println!(
                "policy {i}: groups {:?}; {:#?}",
                case.groups,
                case.senders.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>()
            );
        }
        all.extend(errors.iter().map(|(e, _)| e.abs()));
    }
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all[((all.len() - 1) as f64 * part) as usize] * 100.0;
    println!("{} shares: p50 {:.2} %, p95 {:.2} %, worst {:.2} %", all.len(), at(0.5), at(0.95), at(1.0));
    assert!(at(0.95) <= bounds.0 && at(1.0) <= bounds.1);
}

#[test]
fn classes_below_their_shares_lend_the_rest_by_weight() {
    let sender = |weight, min: Option<u64>, max: Option<u64>, load| Sender {
        weight,
        min: min.map(BitRate::kbit),
        max: max.map(BitRate::kbit),
        group: None,
        load,
    };
    let case = Case {
        groups: Vec::new(),
        senders: vec![
            sender(11, None, Some(29_453), Load::Steady(BitRate::kbit(7_980))),
            sender(9, None, None, Load::Flood),
            sender(17, Some(38_299), None, Load::Flood),
            sender(7, Some(10_361), None, Load::Steady(BitRate::kbit(6_170))),
            sender(6, None, Some(27_316), Load::Flood),
        ],
    };
    for (error, text) in errors(&case, Duration::from_secs(3), Duration::from_secs(9)) {
        println!("{:+.2} % {text}", error * 100.0);
        assert!(error.abs() <= 0.01, "{:+.2} %: {text}", error * 100.0);
    }
}
