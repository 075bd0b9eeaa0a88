//! Parties with policies and traffic, and the share that each must get: section 3's allocation, by
//! the oracle, as payload.

use std::fmt::Write as _;

use weir_api::{PolicyChange, SetPolicies};
use weir_netlab::{
    topology::{Family, Mode, Uplink},
    traffic::{self, Flow, Load, Outcome, Timing},
};
use weir_share::{Allocator, Demand, Policy, Sharer, Weight};
use weir_units::BitRate;

use crate::{Node, measure_once, node::CAPACITY};

/// How far a share may be from section 3's allocation.
pub const TOLERANCE: f64 = 0.03;

/// One who shares the link: a container by its label, or `host`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    label: String,
    weight: u32,
    min: Option<BitRate>,
    max: Option<BitRate>,
    group: Option<String>,
    load: Load,
}

/// Weight 1, no minimum, no maximum, sends nothing.
#[must_use]
pub fn party(label: &str) -> Party {
    Party { label: label.to_owned(), weight: 1, min: None, max: None, group: None, load: Load::Nothing }
}

impl Party {
    /// Its weight.
    #[must_use]
    pub fn weight(self, weight: u32) -> Party {
        Party { weight, ..self }
    }

    /// Its minimum, Mbit/s.
    #[must_use]
    pub fn min(self, mbit: u64) -> Party {
        Party { min: Some(BitRate::mbit(mbit)), ..self }
    }

    /// Its maximum, Mbit/s.
    #[must_use]
    pub fn max(self, mbit: u64) -> Party {
        Party { max: Some(BitRate::mbit(mbit)), ..self }
    }

    /// Its group.
    #[must_use]
    pub fn group(self, name: &str) -> Party {
        Party { group: Some(name.to_owned()), ..self }
    }

    /// Its traffic.
    #[must_use]
    pub fn sends(self, load: Load) -> Party {
        Party { load, ..self }
    }

    /// Its minimum and its maximum as rates.
    #[must_use]
    pub fn between(self, min: Option<BitRate>, max: Option<BitRate>) -> Party {
        Party { min, max, ..self }
    }

    /// Its traffic.
    #[must_use]
    pub fn load(&self) -> Load {
        self.load
    }

    /// Its minimum, zero if it has none.
    #[must_use]
    pub fn floor(&self) -> BitRate {
        self.min.unwrap_or_default()
    }

    /// Its label.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    fn policy(&self) -> Policy {
        policy(self.weight, self.min, self.max)
    }

    fn demand(&self, family: Family) -> Demand {
        self.load.demand(family).map_or(Demand::UNLIMITED, Demand::rate)
    }

    fn values(&self) -> String {
        values(self.weight, self.min, self.max)
    }
}

fn policy(weight: u32, min: Option<BitRate>, max: Option<BitRate>) -> Policy {
    Policy::new(Weight::new(weight).expect("a weight"), min, max).expect("a policy")
}

fn values(weight: u32, min: Option<BitRate>, max: Option<BitRate>) -> String {
    let mut text = format!("weight = {weight}\n");
    for (key, rate) in [("min", min), ("max", max)] {
        if let Some(rate) = rate {
            let _ = writeln!(text, "{key} = \"{rate}\"");
        }
    }
    text
}

/// The share of one party.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Who.
    pub label: String,
    /// Its rate, at layer 2 as tc counts.
    pub allocation: BitRate,
    /// The payload in it, Mbit/s.
    pub goodput: f64,
}

/// All who share the link, and their groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Division {
    parties: Vec<Party>,
    /// Name, weight, minimum, maximum.
    groups: Vec<(String, u32, Option<BitRate>, Option<BitRate>)>,
}

impl Division {
    /// These, without groups.
    #[must_use]
    pub fn of(parties: impl IntoIterator<Item = Party>) -> Division {
        Division { parties: parties.into_iter().collect(), groups: Vec::new() }
    }

    /// One more group.
    #[must_use]
    pub fn group(mut self, name: &str, weight: u32, min: Option<BitRate>, max: Option<BitRate>) -> Division {
        self.groups.push((name.to_owned(), weight, min, max));
        self
    }

    /// The same with each party altered.
    #[must_use]
    pub fn map(self, alter: impl FnMut(Party) -> Party) -> Division {
        Division { parties: self.parties.into_iter().map(alter).collect(), ..self }
    }

    /// The members of each group, and nothing else.
    #[must_use]
    pub fn without_policies(&self) -> Division {
        let plain = |p: Party| Party { weight: 1, min: None, max: None, ..p };
        let groups = self.groups.iter().map(|(name, ..)| (name.clone(), 1, None, None)).collect();
        Division { groups, ..self.clone().map(plain) }
    }

    /// Who shares.
    #[must_use]
    pub fn parties(&self) -> &[Party] {
        &self.parties
    }

    /// The configuration's sections for it.
    #[must_use]
    pub fn to_toml(&self, node: &Node) -> String {
        let mut text = String::new();
        for (name, weight, min, max) in &self.groups {
            let _ = writeln!(text, "[[group]]\nname = \"{name}\"\n{}", values(*weight, *min, *max));
        }
        for party in &self.parties {
            if party.label == "host" {
                let _ = writeln!(text, "[host]\n{}", party.values());
                continue;
            }
            let name = node.name(&party.label);
            let _ = writeln!(text, "[[class]]\nname = \"{name}\"\n{}", party.values());
            if let Some(group) = &party.group {
                let _ = writeln!(text, "group = \"{group}\"");
            }
        }
        text
    }

    /// The change that puts its policies in force over the API, the groups' too (who is in
    /// which group is the configuration's).
    #[must_use]
    pub fn to_changes(&self, node: &Node) -> SetPolicies {
        let change = |name: String, policy: Policy| PolicyChange {
            name,
            weight: Some(Some(policy.weight())),
            min: Some(policy.min()),
            max: Some(policy.max()),
            ..PolicyChange::default()
        };
        let groups =
            self.groups.iter().map(|(name, w, min, max)| change(name.clone(), policy(*w, *min, *max)));
        let parties = self.parties.iter().map(|party| change(node.name(&party.label), party.policy()));
        SetPolicies { changes: groups.chain(parties).collect(), allow_absent: false }
    }

    /// The shares of a link of this capacity, exact, in the order of the parties.
    ///
    /// # Panics
    /// If a party names a group that is not there.
    #[must_use]
    pub fn expected(&self, capacity: BitRate, family: Family) -> Vec<Share> {
        self.expected_on(Uplink::Ethernet, capacity, family)
    }

    /// The same on an uplink of this kind.
    ///
    /// # Panics
    /// As [`expected`](Division::expected).
    #[must_use]
    pub fn expected_on(&self, uplink: Uplink, capacity: BitRate, family: Family) -> Vec<Share> {
        let groups: Vec<Policy> = self.groups.iter().map(|(_, w, min, max)| policy(*w, *min, *max)).collect();
        let sharers: Vec<Sharer> = self
            .parties
            .iter()
            .map(|party| {
                let sharer = Sharer::new(party.policy(), party.demand(family));
                let Some(group) = &party.group else { return sharer };
                let index = self.groups.iter().position(|g| g.0 == *group).expect("its group is there");
                sharer.in_group(u32::try_from(index).expect("few"))
            })
            .collect();
        let mut allocator = Allocator::water_filling();
        let allocations = allocator.allocate(capacity, &groups, &sharers);
        let share = |(party, &allocation): (&Party, &BitRate)| Share {
            label: party.label.clone(),
            allocation,
            goodput: allocation.as_mbit() * party.load.payload_share_on(uplink, family),
        };
        self.parties.iter().zip(allocations).map(share).collect()
    }

    /// Lets everyone send at once and measures; pings from the namespaces of these labels.
    ///
    /// # Panics
    /// If a program fails.
    #[must_use]
    #[track_caller]
    pub fn run(&self, node: &Node, pings: &[&str], family: Family, seconds: u64) -> Outcome {
        let flows: Vec<Flow<'_>> = self
            .parties
            .iter()
            .map(|party| Flow { label: &party.label, from: node.netns(&party.label), load: party.load })
            .collect();
        let pings: Vec<_> = pings.iter().map(|label| node.netns(label)).collect();
        let timing = Timing::seconds(seconds).expect("long enough");
        traffic::run(&node.topology, &flows, &pings, family, timing).unwrap_or_else(|e| panic!("{e:#}"))
    }
}

/// Compares goodputs (label, Mbit/s) with expectations, prints a line each, and returns the
/// largest error.
pub fn compare(what: &str, measured: &[(String, f64)], expected: &[Share]) -> f64 {
    let mut worst: f64 = 0.0;
    for share in expected.iter().filter(|share| share.allocation > BitRate::ZERO) {
        let got = measured.iter().find(|(label, _)| *label == share.label).map_or(0.0, |(_, got)| *got);
        let error = got / share.goodput - 1.0;
        worst = worst.max(error.abs());
        println!(
            "{what:<44} {:<5} measured {got:7.2} Mbit/s  expected {:7.2}  error {:+6.2} %{}",
            share.label,
            share.goodput,
            error * 100.0,
            if error.abs() > TOLERANCE { "  <-- OFF" } else { "" }
        );
    }
    worst
}

/// Asserts that each measured goodput (label, Mbit/s) is within `tolerance` of what is
/// expected; prints all of them.
///
/// # Panics
/// If one is not.
#[track_caller]
pub fn assert_shares(what: &str, measured: &[(String, f64)], expected: &[Share], tolerance: f64) {
    let worst = compare(what, measured, expected);
    assert!(
        worst <= tolerance,
        "{what}: a share is {:.2} % off, {:.0} % are allowed",
        worst * 100.0,
        tolerance * 100.0
    );
}

/// Lets everyone send for `seconds`, the first 2 left out, and asserts that each gets its
/// share of [`CAPACITY`] within [`TOLERANCE`] and, if all send TCP without ceilings, that at
/// least 0.93 of the capacity arrive as payload. Prints every figure.
///
/// # Panics
/// If a share is off.
#[track_caller]
pub fn check(node: &Node, what: &str, division: &Division, family: Family, seconds: u64) -> Outcome {
    let expected = division.expected(CAPACITY, family);
    let (outcome, worst) = measure_once(
        || {
            let outcome = division.run(node, &[], family, seconds);
            let measured: Vec<(String, f64)> =
                outcome.flows.iter().map(|flow| (flow.label.clone(), flow.goodput)).collect();
            let worst = compare(what, &measured, &expected);
            (outcome, worst)
        },
        |(_, worst)| *worst <= TOLERANCE,
    );
    let used = outcome.flows.iter().map(|flow| flow.goodput).sum::<f64>() / CAPACITY.as_mbit();
    println!("{what:<44} link use {used:.3} of {CAPACITY}");
    assert!(worst <= TOLERANCE, "{what}: a share is {:.2} % off", worst * 100.0);
    let is_tcp = |party: &Party| matches!(party.load, Load::Tcp | Load::TcpMany(_) | Load::Nothing);
    let wanted: u64 = expected.iter().map(|share| share.allocation.0).sum();
    if division.parties.iter().all(is_tcp) && wanted >= CAPACITY.0 {
        assert!(used >= 0.93, "{what}: {used:.3} of the link arrive as payload, at least 0.93 should");
    }
    outcome
}

/// How a case is called in the output.
#[must_use]
pub fn title(mode: Mode, load: &str, tso: bool, more: &str) -> String {
    format!("{mode} {load} tso={} {more}", if tso { "on" } else { "off" })
}
