//! Random policies and random demands that change, each share against the oracle.
//!
//! `WEIR_POLICIES` policies for each engine (6 without it; half of them with super-packets),
//! drawn from `WEIR_SEED` (1 without it); one seed is two series of policies, one for each of the
//! tests, however many of them are tested. `WEIR_FROM` leaves out those before it, from 0 on, all
//! of which are drawn: what went wrong is repeated alone, or behind what came before it.
//!
//! The least turn of `htb` is a packet, so that beside a class of 800 times its weight one that is due
//! 0.1 Mbit/s gets 0.3. Its bounds are those of `conformance` (2 %) and `active` (1.5 s). 5 of 208 steps were outside
//! of them (docs/measurements.md), none of those of seed 1.

use std::{thread::sleep, time::Duration};

use weir_netlab::{
    stats::SplitMix,
    topology::{Family, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, EngineBounds, EngineKind, FLOOD, Judged, Node, Party, Senders, Slack, containers,
    for_each_engine, judge, measure_once, party,
};
use weir_units::BitRate;

for_each_engine!(
    random_policies_of_single_segments_give_the_oracles_shares,
    random_policies_of_super_packets_give_the_oracles_shares
);

/// Containers on the node.
const MANY: usize = 7;
/// Policies between two draws of the groups' members, which take another agent.
const A_MEMBERSHIP: usize = 5;
/// Below it TCP's own losses and timeouts decide what it gets, not the scheduler: a window of
/// two segments fills a queue of 50 ms at 0.5 Mbit/s.
const LEAST_FOR_TCP: f64 = 2.0;
/// Of all minima together.
const PROMISED: u64 = 60_000;
/// How long what silenced senders have queued may take beside the others.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(300);
/// ... and alone: at a maximum of 1 Mbit/s, and a connection whose class had next to nothing meanwhile
/// begins again only after a timeout of its own, which has doubled some times.
const DRAINED: Duration = Duration::from_secs(20);
/// A class that sent a super-packet ahead of its share is waited for no longer: at 0.1 Mbit/s.
const AHEAD: Duration = Duration::from_secs(5);
/// Packets stamped before a change leave in this time, or the change is measured with them.
const RENEWED: Duration = Duration::from_secs(8);
const GROUPS: [&str; 2] = ["g1", "g2"];

/// A number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a whole number"))
    })
}

/// Draws.
struct Dice(SplitMix);

impl Dice {
    fn chance(&mut self, percent: usize) -> bool {
        self.0.below(100) < percent
    }

    /// Whole numbers whose logarithms are spread evenly: as many below 30 as above, of 1 to 1000.
    fn magnitude(&mut self, least: u64, most: u64) -> u64 {
        let part = self.0.below(1 << 20) as f64 / f64::from(1 << 20);
        let (low, high) = ((least as f64).ln(), (most as f64 + 1.0).ln());
        ((low + (high - low) * part).exp() as u64).clamp(least, most)
    }
}

/// Weight, minimum and maximum; `promised`: what may still be promised, kbit/s; `least`: minima
/// that the maximum must hold.
fn values(dice: &mut Dice, promised: &mut u64, least: u64) -> (u32, Option<BitRate>, Option<BitRate>) {
    let weight = u32::try_from(dice.magnitude(1, 1000)).expect("a thousand at the most");
    let min = (dice.chance(30) && *promised >= 500).then(|| dice.magnitude(500, (*promised).min(30_000)));
    *promised -= min.unwrap_or(0);
    let least = min.unwrap_or(0).max(least).max(1000);
    let max = dice.chance(30).then(|| dice.magnitude(least, 90_000));
    (weight, min.map(BitRate::kbit), max.map(BitRate::kbit))
}

/// Greedy TCP or UDP, UDP that wants a certain rate, or silence.
fn demand(dice: &mut Dice) -> Load {
    match dice.0.below(100) {
        0..35 => FLOOD,
        35..60 => Load::Tcp,
        60..85 => Load::Udp(BitRate::kbit(dice.magnitude(300, 50_000))),
        _ => Load::Nothing,
    }
}

/// The members of each group.
fn membership(dice: &mut Dice) -> Vec<Option<&'static str>> {
    (0..MANY).map(|_| dice.chance(50).then(|| GROUPS[dice.0.below(2)])).collect()
}

/// A policy for everyone, and demands.
fn draw(dice: &mut Dice, membership: &[Option<&'static str>]) -> Division {
    let mut promised = PROMISED;
    let parties: Vec<Party> = containers(MANY)
        .iter()
        .zip(membership)
        .map(|(label, group)| {
            let (weight, min, max) = values(dice, &mut promised, 0);
            let one = party(label).weight(weight).between(min, max).sends(demand(dice));
            group.map_or(one.clone(), |group| one.group(group))
        })
        .collect();
    // A group's own minimum holds its members'; here it promises none of its own.
    let in_group = |name: &str| -> u64 {
        let members = parties.iter().zip(membership).filter(|(_, group)| **group == Some(name));
        members.map(|(party, _)| party.floor().bits_per_sec() / 1000).sum()
    };
    let mut division = Division::of(parties.clone());
    for name in GROUPS {
        if membership.contains(&Some(name)) {
            let (weight, _, max) = values(dice, &mut 0, in_group(name));
            division = division.group(name, weight, None, max);
        }
    }
    settled(division)
}

/// The same with UDP in place of TCP where TCP would get too little to work.
fn settled(division: Division) -> Division {
    let expected = division.expected(CAPACITY, Family::V4);
    let poor: Vec<bool> = expected.iter().map(|share| share.goodput < LEAST_FOR_TCP).collect();
    let mut poor = poor.into_iter();
    division.map(|party| {
        let poor = poor.next().expect("one for each");
        if poor && party.load() == Load::Tcp { party.sends(FLOOD) } else { party }
    })
}

/// New demands for about half of them.
fn change(dice: &mut Dice, division: Division) -> Division {
    settled(division.map(|party| {
        let load = demand(dice);
        if dice.chance(50) { party.sends(load) } else { party }
    }))
}

fn random_policies_of_single_segments_give_the_oracles_shares(engine: EngineKind) {
    random_policies(engine, false);
}

fn random_policies_of_super_packets_give_the_oracles_shares(engine: EngineKind) {
    random_policies(engine, true);
}

fn random_policies(engine: EngineKind, tso: bool) {
    let (count, seed) = (number("WEIR_POLICIES", 6), number("WEIR_SEED", 1));
    let from = usize::try_from(number("WEIR_FROM", 0)).expect("few");
    let count = if tso { count / 2 } else { count - count / 2 };
    println!("{engine}, tso {tso}: {count} random policies, repeat them with WEIR_SEED={seed}");
    let (mut worst, mut failed) = (Judged { total: 1.0, ..Judged::default() }, Vec::new());
    let mut dice = Dice(SplitMix::new(seed.wrapping_mul(2) + u64::from(tso)));
    let mut node = Node::build(&Spec { containers: containers(MANY), tso, ..Spec::default() });
    let senders = Senders::of(&node, engine);
    let mut members = Vec::new();
    for i in 0..usize::try_from(count).expect("few") {
        if i % A_MEMBERSHIP == 0 {
            members = membership(&mut dice);
        }
        let first = draw(&mut dice, &members);
        let changed = change(&mut dice, first.clone());
        if i < from {
            continue;
        }
        if i % A_MEMBERSHIP == 0 || i == from {
            // Membership only: what a later policy leaves out would be the file's.
            let config = node.config().engine(engine).division(&node, &first.without_policies());
            node.start(&config);
            // Links that just came up talk, and TCP has just connected.
            sleep(Duration::from_millis(1500));
        }
        node.client().set(&first.to_changes(&node)).unwrap_or_else(|e| panic!("{e}: {first:#?}"));
        for (step, division) in [("", first), (" changed", changed)] {
            let what = format!("{engine} tso {tso} {i}{step}");
            let judged = measure(&what, engine, tso, &division, &senders);
            worst.strain = worst.strain.max(judged.strain);
            worst.worst = worst.worst.max(judged.worst);
            worst.total = worst.total.min(judged.total);
            if !judged.holds(engine) {
                failed.push((what, judged, division));
            }
        }
    }
    println!("{engine}, tso {tso}: of all of them {worst:?}");
    assert!(failed.is_empty(), "{} of them fail with WEIR_SEED={seed}: {failed:#?}", failed.len());
}

fn measure(what: &str, engine: EngineKind, tso: bool, division: &Division, senders: &Senders) -> Judged {
    let expected = division.expected(CAPACITY, Family::V4);
    let settle = engine.settles() + Duration::from_millis(500);
    let ahead = senders.ahead(division, &expected, tso).min(AHEAD);
    let follow = || {
        if engine.stamps() {
            senders.begin(division);
            sleep(settle);
            senders.make_room(division, &expected);
        } else {
            senders.follow(division, &expected);
        }
        sleep(settle);
    };
    follow();
    // The queues of those who are silent now go first: super-packets of a connection, at a share
    // that is small now, would take seconds of all that follow. Then all make room for it.
    if !senders.drained(DRAIN_TIMEOUT) {
        senders.pause();
        assert!(senders.drained(DRAINED), "{what}: what was sent before is still queued after {DRAINED:?}");
        follow();
    }
    sleep(ahead.saturating_sub(settle));
    if engine.stamps() {
        if let Err(late) = senders.renewed(RENEWED) {
            println!("{what}: what was stamped before has not left in {RENEWED:?}: {late}");
        }
        // Until then others had what a class could not send for its old stamps. That it now can is a
        // change of demands as any, which the engine may take its time for.
        sleep(engine.settles());
    }
    let judged = || shares(what, engine, tso, division, senders);
    measure_once(judged, |judged| judged.holds(engine))
}

/// What arrives. With super-packets longer than at first, if that does not tell: one of a
/// neighbour's in a slow group is a part of everybody's share there, whatever they send.
fn shares(what: &str, engine: EngineKind, tso: bool, division: &Division, senders: &Senders) -> Judged {
    let expected = division.expected(CAPACITY, Family::V4);
    let (window, most) = if tso { (Duration::from_secs(2), 4) } else { (Duration::from_millis(1200), 1) };
    let mut mean: Vec<(String, f64)> = Vec::new();
    let mut windows = 0u32;
    loop {
        let measured = senders.goodputs(window);
        let so_far = f64::from(windows);
        windows += 1;
        mean = measured
            .into_iter()
            .enumerate()
            .map(|(i, (label, now))| {
                (label, (mean.get(i).map_or(0.0, |m| m.1) * so_far + now) / (so_far + 1.0))
            })
            .collect();
        let slack = Slack::Packets { tso, grain: engine.grain() };
        let judged =
            judge(what, division, &mean, &expected, (window * windows, engine.tolerance(tso), slack));
        if judged.holds(engine) || windows == most {
            return judged;
        }
    }
}
