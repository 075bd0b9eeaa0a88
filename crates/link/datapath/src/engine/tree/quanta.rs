//! The quanta by which HTB lends.

use weir_units::BitRate;

use super::{
    Packets, ROUND_OF_LENT, ROUND_OF_LINK, SLACK_PER_MILLE, part,
    rates::{are_steady, is_at_ceiling},
};
use crate::engine::plan::{Member, Plan, potential};

/// Turns of a packet may move one part in this number of a class's target.
const GAIN: u64 = 100;

/// A class that takes all it is given, and may borrow.
struct Borrower {
    /// Its due of what is lent, bit/s.
    part: u64,
    target: u64,
    /// Its packets, bytes.
    packet: u64,
}

/// The shortest round in bytes, of at least `least` and at most `most`, that classes bear. A class has a packet a turn at
/// least. One that lacks less takes the rest from those that lack more.
fn bearable_round(borrowers: &[Borrower], lent: u64, least: u64, most: u64) -> u64 {
    let lacking: u128 = borrowers.iter().map(|b| u128::from(b.part)).sum();
    // The most that all together may take, bit/s. It is lost in proportion to the parts.
    let all = borrowers
        .iter()
        .filter(|b| b.part > 0)
        .map(|b| u128::from(b.target / GAIN) * lacking / u128::from(b.part))
        .min()
        .unwrap_or(u128::MAX);
    let bears = |round: u64| {
        let excess = |b: &Borrower| {
            let turn = u128::from(b.packet) * u128::from(lent) / u128::from(round.max(1));
            turn.saturating_sub(u128::from(b.part))
        };
        borrowers.iter().all(|b| excess(b) <= u128::from(b.target / GAIN))
            && borrowers.iter().map(excess).sum::<u128>() <= all
    };
    let (mut short, mut long) = (least.min(most), most);
    while short < long {
        let middle = short + (long - short) / 2;
        if bears(middle) { long = middle } else { short = middle + 1 }
    }
    long
}

/// The round in bytes whose turns hold a packet of each class without being made longer for it. A class does not count if
/// that takes a round of more than `most`.
fn whole_round(borrowers: &[Borrower], lent: u64, most: u64) -> u64 {
    let holding = |b: &Borrower| {
        let round = (u128::from(b.packet) * u128::from(lent)).checked_div(u128::from(b.part))?;
        u64::try_from(round).ok().filter(|round| *round <= most)
    };
    borrowers.iter().filter_map(holding).max().unwrap_or(0)
}

/// The part that each class has of what is lent.
struct Lending<'a> {
    plan: &'a Plan<'a>,
    rates: &'a [u64],
    /// The rate that each group's target lacks, and the sum that its members that take all lack, bit/s.
    of_group: Vec<(u64, u64)>,
    /// The rate that is lent in all, bit/s.
    lent: u64,
    /// The targets of members that take all, bit/s, and their weights.
    taken: (u64, u64),
    /// The weights of all members.
    weights: u64,
}

impl<'a> Lending<'a> {
    fn of(plan: &'a Plan<'a>, group_rates: &[u64], rates: &'a [u64]) -> Lending<'a> {
        let weight = |m: &Member| u64::from(m.policy.weight().get());
        let weights = plan.members.iter().map(weight).sum::<u64>().max(1);
        let mut lending = Lending { plan, rates, of_group: Vec::new(), lent: 0, taken: (0, 0), weights };
        lending.of_group = (0..plan.groups.len())
            .map(|g| {
                let inside = lending.takers().filter(|(m, _)| m.group == Some(g));
                let lacking = plan.groups[g].target.0.saturating_sub(group_rates[g]);
                (lacking, inside.map(|(m, rate)| lacks(m, rate)).sum())
            })
            .collect();
        let parts = lending.takers().map(|(m, rate)| lending.part(m, rate)).sum::<u64>();
        lending.lent = parts.max(plan.shape.capacity.0 * SLACK_PER_MILLE / 1000);
        let targets = lending.takers().map(|(m, _)| m.target.0).sum::<u64>();
        lending.taken = (targets, lending.takers().map(|(m, _)| weight(m)).sum::<u64>());
        lending
    }

    /// The members that take all they are given, with their rates.
    fn takers(&self) -> impl Iterator<Item = (&'a Member, u64)> + use<'a> {
        self.plan.members.iter().zip(self.rates).filter(|(m, _)| m.takes_all).map(|(m, rate)| (m, *rate))
    }

    /// The due of a class that takes all it is given.
    fn part(&self, m: &Member, rate: u64) -> u64 {
        let Some(g) = m.group else { return lacks(m, rate) };
        let (group, inside) = self.of_group[g];
        // The rate of a group at its ceiling is lent inside it. The turn at the link still has to hold that rate.
        if group == 0
            && is_at_ceiling(&self.plan.groups[g])
            && self.takers().filter(|(m, _)| m.group == Some(g)).count() == 1
        {
            return lacks(m, rate);
        }
        part(lacks(m, rate), group, inside)
    }

    /// The turn of a class that takes less, and may begin to take all.
    fn returns(&self, m: &Member, rate: u64) -> u64 {
        // A connection that loses packets has no queue at times, and makes up for it here.
        if !m.backlogged {
            let weight = u64::from(m.policy.weight().get());
            return self.plan.shape.capacity.scale(weight, self.weights).0.saturating_sub(rate);
        }
        let wanted = potential(&m.policy, m.target, self.taken, 0).max(m.share);
        let rest = wanted.0.saturating_sub(rate).min(self.lent - self.lent / 20);
        part(rest, self.lent, self.lent - rest)
    }

    /// The round in bytes at which a class's turn would end early. A class below its ceiling that would send above it
    /// for all of its turn loses the rest of the turn.
    fn turns_end(&self, m: &Member, rate: u64) -> Option<u128> {
        let shape = self.plan.shape;
        let ceil = m.policy.ceiling().min(shape.capacity);
        let burst = shape.burst(ceil, 10).0.saturating_sub(shape.unit());
        let is_at_risk = ceil < shape.capacity && rate + self.lent > ceil.0 && m.target < ceil;
        is_at_risk.then(|| u128::from(burst) * u128::from(self.lent) / u128::from(self.part(m, rate).max(1)))
    }
}

/// The rate that a class's target lacks.
fn lacks(m: &Member, rate: u64) -> u64 {
    m.target.0.saturating_sub(rate)
}

/// How much each member is served at a time when it borrows, bytes. Of what is lent, a class that takes all
/// it is given has the part that its target lacks. Members of a group divide what the group's target lacks.
///
/// A class that takes less may begin to take all before the next look. It then has the rest of its
/// potential rate `k` of what is lent, `l`, if its turn beside those of the others, `l`, is `k l / (l - k)`.
pub(super) fn of_members(plan: &Plan<'_>, packets: &Packets, group_rates: &[u64], rates: &[u64]) -> Vec<u64> {
    let lending = Lending::of(plan, group_rates, rates);
    let unit = plan.shape.unit();
    // HTB serves a packet that is longer than the turn all the same. The class would be in debt, and pay for seconds
    // when its packets are short again.
    let held = |m: &Member| packets.turn_of(m.minor, unit).max(unit);
    let round = round(&lending, packets, held);
    let quantum = |(m, rate): (&Member, &u64)| {
        let turn = if m.takes_all { lending.part(m, *rate) } else { lending.returns(m, *rate) };
        part(round, turn, lending.lent).clamp(held(m).min(round), round)
    };
    plan.members.iter().zip(rates).map(quantum).collect()
}

/// The length of a round, bytes. `held`: what a turn of a member has to hold.
fn round(lending: &Lending<'_>, packets: &Packets, held: impl Fn(&Member) -> u64) -> u64 {
    let Plan { shape, members, .. } = *lending.plan;
    let packet = |m: &Member| packets.of(m.minor).unwrap_or(u64::MAX).min(shape.largest());
    let borrowers: Vec<Borrower> = lending
        .takers()
        .filter(|(m, rate)| m.policy.ceiling().0 > *rate)
        .map(|(m, rate)| Borrower {
            part: lending.part(m, rate),
            target: m.target.0,
            packet: packet(m).max(held(m)),
        })
        .collect();
    // One that lacks nothing takes no turn.
    let lacking = borrowers.iter().filter(|b| b.part > 0).count() as u64;
    let lent = lending.lent;
    let short = BitRate(lent).bytes_in(ROUND_OF_LENT).0;
    let long = shape.capacity.bytes_in(ROUND_OF_LINK).0;
    let round = bearable_round(&borrowers, lent, short, long).max(4 * shape.unit() * lacking.max(1));
    // Where a class pauses, turns divide what it leaves. Turns that are made longer for a packet would divide it equally.
    let round = if are_steady(members) { round } else { round.max(whole_round(&borrowers, lent, long)) };
    let ends = lending.takers().filter_map(|(m, rate)| lending.turns_end(m, rate));
    let shortest = ends.min().map_or(round, |bytes| u64::try_from(bytes).unwrap_or(round));
    shortest.clamp(round / 2, round)
}
