//! The quanta by which HTB lends.

use weir_units::BitRate;

use super::{
    Packets, ROUND, SHORT_ROUND, SLACK_PER_MILLE,
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

/// How much each member is served at a time when it borrows, bytes. Of what is lent, a class that takes all
/// it is given has the part that its target lacks. Members of a group divide what the group's target lacks.
///
/// A class that takes less may begin to take all before the next look. It then has the rest of its
/// potential rate `k` of what is lent, `l`, if its turn beside those of the others, `l`, is `k l / (l - k)`.
pub(super) fn of_members(plan: &Plan<'_>, packets: &Packets, group_rates: &[u64], rates: &[u64]) -> Vec<u64> {
    let Plan { shape, groups, members } = *plan;
    let weight = |m: &Member| u64::from(m.policy.weight().get());
    let lacks = |m: &Member, rate: u64| m.target.0.saturating_sub(rate);
    let takers = || members.iter().zip(rates).filter(|(m, _)| m.takes_all);
    let of_group: Vec<(u64, u64)> = groups
        .iter()
        .zip(group_rates)
        .enumerate()
        .map(|(g, (group, rate))| {
            let inside = takers().filter(|(m, _)| m.group == Some(g));
            (group.target.0.saturating_sub(*rate), inside.map(|(m, rate)| lacks(m, *rate)).sum())
        })
        .collect();
    let part = |m: &Member, rate: u64| {
        let Some(g) = m.group else { return lacks(m, rate) };
        let (group, inside) = of_group[g];
        // The rate of a group at its ceiling is lent inside it. The turn at the link still has to hold that rate.
        if group == 0
            && is_at_ceiling(&groups[g])
            && takers().filter(|(m, _)| m.group == Some(g)).count() == 1
        {
            return lacks(m, rate);
        }
        let part = u128::from(lacks(m, rate)) * u128::from(group) / u128::from(inside.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let lent =
        takers().map(|(m, rate)| part(m, *rate)).sum::<u64>().max(shape.capacity.0 * SLACK_PER_MILLE / 1000);
    let taken = takers().map(|(m, _)| m.target.0).sum::<u64>();
    let weights = takers().map(|(m, _)| weight(m)).sum::<u64>();
    let all: u64 = members.iter().map(weight).sum::<u64>().max(1);
    let returns = |m: &Member, rate: u64| {
        // A connection that loses packets has no queue at times, and makes up for it here.
        if !m.backlogged {
            return shape.capacity.scale(weight(m), all).0.saturating_sub(rate);
        }
        let wanted = potential(&m.policy, m.target, (taken, weights), 0).max(m.share);
        let rest = wanted.0.saturating_sub(rate).min(lent - lent / 20);
        u64::try_from(u128::from(rest) * u128::from(lent) / u128::from(lent - rest)).unwrap_or(u64::MAX)
    };
    let unit = shape.unit();
    let packet = |m: &Member| packets.of(m.minor).unwrap_or(u64::MAX).min(shape.largest());
    // HTB serves a packet that is longer than the turn all the same. The class would be in debt, and pay for seconds
    // when its packets are short again.
    let held = |m: &Member| packets.turn_of(m.minor, unit).max(unit);
    let borrowers: Vec<Borrower> = takers()
        .filter(|(m, rate)| m.policy.ceiling().0 > **rate)
        .map(|(m, rate)| Borrower {
            part: part(m, *rate),
            target: m.target.0,
            packet: packet(m).max(held(m)),
        })
        .collect();
    // One that lacks nothing takes no turn.
    let lacking = borrowers.iter().filter(|b| b.part > 0).count() as u64;
    let (short, long) = (BitRate(lent).bytes_in(SHORT_ROUND).0, shape.capacity.bytes_in(ROUND).0);
    let round = bearable_round(&borrowers, lent, short, long).max(4 * unit * lacking.max(1));
    // Where a class pauses, turns divide what it leaves. Turns that are made longer for a packet would divide it equally.
    let round = if are_steady(members) { round } else { round.max(whole_round(&borrowers, lent, long)) };
    // A class below its ceiling that would send above it for all of its turn loses the rest of the turn.
    let turns_end = |(m, rate): (&Member, &u64)| {
        let ceil = m.policy.ceiling().min(shape.capacity);
        let burst = shape.burst(ceil, 10).0.saturating_sub(unit);
        let is_at_risk = ceil < shape.capacity && *rate + lent > ceil.0 && m.target < ceil;
        is_at_risk.then(|| u128::from(burst) * u128::from(lent) / u128::from(part(m, *rate).max(1)))
    };
    let shortest =
        takers().filter_map(turns_end).min().map_or(round, |bytes| u64::try_from(bytes).unwrap_or(round));
    let round = shortest.clamp(round / 2, round);
    let quantum = |(m, rate): (&Member, &u64)| {
        let turn = if m.takes_all { part(m, *rate) } else { returns(m, *rate) };
        let bytes = u128::from(round) * u128::from(turn) / u128::from(lent);
        u64::try_from(bytes).unwrap_or(u64::MAX).clamp(held(m).min(round), round)
    };
    members.iter().zip(rates).map(quantum).collect()
}
