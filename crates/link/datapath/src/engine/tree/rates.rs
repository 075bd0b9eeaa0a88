//! The rates of classes and groups.

use std::time::Duration;

use weir_share::Policy;
use weir_units::{BitRate, Bytes};

use super::{LONG_PACKET_ROUND, MIN_OWN_RATE, Packets, SLACK_PER_MILLE};
use crate::engine::plan::{Group, Member, Plan};

/// A packet that a class sends while it is not backlogged costs it no more than this.
pub(super) const DEBT: Duration = Duration::from_millis(20);

/// A class that takes the same for a time has a rate above that by one part in this number.
const STEADY: u64 = 4;

/// A class that has a packet a turn lacks at most this number of times its part of what all lack, if that is enough.
const MOST_LACK: u64 = 2;

/// A class that has a packet a turn lacks at most one part in this number of its floor.
const LENT_FLOOR: u64 = 32;

/// A group's rate has at least this part of the rates of members that are not backlogged.
const ASLEEP: u64 = 8;

/// The claim of a class or group on the rates.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// Those that may lack something lack it in proportion to this.
    weight: u64,
    /// The bytes that a turn has to hold for its super-packets.
    packet: u64,
    /// It has this in any case.
    least: u64,
    /// It has this in any case where its turns hold super-packets.
    lowest: u64,
    /// As much of this as fits.
    wants: u64,
    /// It takes no more than that: it is at its ceiling, or not backlogged.
    is_bounded: bool,
}

/// Splits `room` over terms. Each has its least. Those that take no more than they want come next:
/// HTB is bad at lending to a class at its ceiling. Such a class becomes able to send by itself while it
/// waits for its turn, and loses the turn. The others lack the same for each unit of weight. Bandwidth that is left
/// is lent by what they lack, so that all of it goes by weight.
fn hand_out(room: u64, terms: &[Terms]) -> Vec<u64> {
    let terms = holding_packets(room, terms);
    let mut rates: Vec<u64> = terms.iter().map(|t| t.least).collect();
    let left = |rates: &[u64]| u128::from(room).saturating_sub(rates.iter().map(|r| u128::from(*r)).sum());
    let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    let bounded = || terms.iter().enumerate().filter(|(_, t)| t.is_bounded);
    let lacking: u128 = bounded().map(|(_, t)| u128::from(t.wants.saturating_sub(t.least))).sum();
    let given = left(&rates).min(lacking);
    for (i, t) in bounded() {
        let lack = u128::from(t.wants.saturating_sub(t.least));
        rates[i] += narrow((lack * given).checked_div(lacking).unwrap_or(0));
    }
    let mut takers: Vec<usize> =
        (0..terms.len()).filter(|&i| !terms[i].is_bounded && terms[i].wants > terms[i].least).collect();
    loop {
        let sum = |part: fn(&Terms) -> u64| takers.iter().map(|&i| u128::from(part(&terms[i]))).sum::<u128>();
        let room = left(&rates) + sum(|t| t.least);
        let (short, weights) = (sum(|t| t.wants).saturating_sub(room), sum(|t| t.weight).max(1));
        let rate = |i: usize| {
            let lack = narrow((short * u128::from(terms[i].weight)).div_ceil(weights));
            terms[i].wants.saturating_sub(lack)
        };
        let before = takers.len();
        let keeps: Vec<usize> = takers.iter().copied().filter(|&i| rate(i) > terms[i].least).collect();
        if keeps.len() == before {
            let found: Vec<u64> = takers.iter().map(|&i| rate(i)).collect();
            takers.iter().zip(found).for_each(|(&i, rate)| rates[i] = rate);
            return rates;
        }
        takers = keeps;
    }
}

/// The same terms, with weights by which each turn holds the class's super-packets. A round takes
/// [`LONG_PACKET_ROUND`] at the rate that all lack. A class whose part of it is shorter than its packet lacks more, so
/// that the round need not be longer. One at its minimum lacks a small part of it, as it has a packet a turn all the same.
fn holding_packets(room: u64, terms: &[Terms]) -> Vec<Terms> {
    let takers = || terms.iter().filter(|t| !t.is_bounded);
    if takers().all(|t| t.packet == 0) {
        return terms.to_vec();
    }
    let short = terms.iter().map(|t| t.wants.max(t.least)).sum::<u64>().saturating_sub(room);
    let part = |of: u64, n: u64, all: u64| {
        u64::try_from(u128::from(of) * u128::from(n) / u128::from(all.max(1))).unwrap_or(u64::MAX)
    };
    let (weights, wanted) = (takers().map(|t| t.weight).sum(), takers().map(|t| t.wants).sum());
    let round = BitRate(short).bytes_in(LONG_PACKET_ROUND).0;
    let keeps = |t: &Terms| t.lowest.max(t.wants.saturating_sub(MOST_LACK * part(short, t.wants, wanted)));
    let kept = |t: &Terms| if t.is_bounded { t.wants.max(t.least) } else { keeps(t) };
    // Beside classes that keep nearly all they want, as at their minima, the others lack more.
    let fits = terms.iter().map(kept).sum::<u64>() <= room;
    let held = |t: &Terms| Terms {
        weight: part(round, t.weight, weights).max(t.packet),
        least: if fits { keeps(t) } else { t.lowest },
        ..*t
    };
    terms.iter().map(|t| if t.is_bounded { *t } else { held(t) }).collect()
}

/// The rates of members, bit/s: see the module's text.
pub(super) fn of_members(plan: &Plan<'_>, packets: &Packets) -> Vec<u64> {
    let Plan { shape, groups, members } = *plan;
    let capacity = shape.capacity;
    let floor = |policy: &Policy| policy.floor().min(capacity).max(MIN_OWN_RATE).0;
    let weight = |policy: &Policy| u64::from(policy.weight().get());
    let alone = || (0..members.len()).filter(|&i| members[i].group.is_none());
    let inside = |g: usize| (0..members.len()).filter(move |&i| members[i].group == Some(g));

    let room = capacity.0 - capacity.0 * SLACK_PER_MILLE / 1000;
    let group_floor =
        |g: usize| inside(g).map(|i| floor(&members[i].policy)).sum::<u64>().max(floor(&groups[g].policy));
    let floors: u64 = (0..groups.len()).map(group_floor).sum::<u64>()
        + alone().map(|i| floor(&members[i].policy)).sum::<u64>();
    // Half of what the floors leave is what those that are not backlogged may keep, by weight;
    // more than saves them from debts they need not.
    let spare = room.saturating_sub(floors) / 2;
    let ready = BitRate::of(Bytes(shape.unit()), DEBT).0;
    let top_weights = groups.iter().map(|g| weight(&g.policy)).sum::<u64>()
        + alone().map(|i| weight(&members[i].policy)).sum::<u64>();
    let part = |of: u64, weight: u64, weights: u64| {
        u64::try_from(u128::from(of) * u128::from(weight) / u128::from(weights.max(1))).unwrap_or(u64::MAX)
    };
    let is_steady = are_steady(members);
    let packet =
        |m: &Member| if is_steady && m.takes_all { packets.turn_of(m.minor, shape.unit()) } else { 0 };
    let lent_floor = |packet: u64, floor: u64| if packet > 0 { floor / LENT_FLOOR } else { 0 };
    let terms = |i: usize, spare: u64, weights: u64| {
        let Member { policy, allocation, share, target, backlogged, .. } = &members[i];
        let ceiling = policy.ceiling().min(capacity).max(MIN_OWN_RATE).0;
        let kept = if *backlogged { 0 } else { part(spare, weight(policy), weights).min(ready).min(ceiling) };
        let is_near_ceiling = ceiling < capacity.0 && share.0 >= ceiling / 4 * 3;
        let (packet, least) = (packet(&members[i]), floor(policy).max(kept));
        Terms {
            weight: weight(policy),
            packet,
            least,
            lowest: (least - lent_floor(packet, least)).max(MIN_OWN_RATE.0),
            wants: match (*backlogged, is_steady) {
                (true, _) => share.0,
                (false, true) => allocation.0.min(target.0 + target.0 / STEADY),
                (false, false) => allocation.0,
            },
            is_bounded: !*backlogged || is_near_ceiling,
        }
    };
    let group_terms: Vec<Vec<Terms>> = (0..groups.len())
        .map(|g| {
            // Sleepers of a group keep no more than its ceiling leaves.
            let floors: u64 = inside(g).map(|i| floor(&members[i].policy)).sum();
            let spare = part(spare, weight(&groups[g].policy), top_weights)
                .min(groups[g].policy.ceiling().0.saturating_sub(floors));
            let weights = inside(g).map(|i| weight(&members[i].policy)).sum();
            inside(g).map(|i| terms(i, spare, weights)).collect()
        })
        .collect();
    let of_group = |g: usize| {
        let Group { policy, share, .. } = &groups[g];
        let packet = group_terms[g].iter().map(|t| t.packet).sum();
        let (sum, floor) =
            (|part: fn(&Terms) -> u64| group_terms[g].iter().map(part).sum::<u64>(), floor(policy));
        Terms {
            weight: weight(policy),
            packet,
            least: sum(|t| t.least).max(floor),
            lowest: sum(|t| t.lowest).max(floor - lent_floor(packet, floor)),
            wants: group_terms[g].iter().map(|t| t.least.max(t.wants)).sum::<u64>().min(policy.ceiling().0),
            is_bounded: share.0 >= policy.ceiling().0 || group_terms[g].iter().all(|t| t.is_bounded),
        }
    };
    let top: Vec<Terms> =
        (0..groups.len()).map(of_group).chain(alone().map(|i| terms(i, spare, top_weights))).collect();
    let top_rates = hand_out(room, &top);

    let mut rates = vec![0; members.len()];
    for (i, rate) in alone().zip(&top_rates[groups.len()..]) {
        rates[i] = *rate;
    }
    for (g, terms) in group_terms.iter().enumerate() {
        for (i, rate) in inside(g).zip(hand_out(top_rates[g], terms)) {
            rates[i] = rate;
        }
    }
    rates
}

/// The rate of a group. It is what its members send at their own rates. The rest of the rate of a member that
/// is not backlogged is lent to all classes, not to its group first. HTB charges a group for what its members send at
/// their own rates, and remembers debts for a minute. A part of the rates of members that are not backlogged
/// keeps debts short.
///
/// A group of which no member takes all has the rates of all members. It owes nothing when they wake.
///
/// A group at its ceiling would lose turns if it borrowed. If one member takes all it is given, that member is due
/// what the others leave, and the group has it as rate.
pub(super) fn of_group<'a>(group: &Group, inside: impl Iterator<Item = (&'a Member, &'a u64)>) -> u64 {
    let sent = |(m, rate): (&Member, &u64)| {
        if m.backlogged { *rate } else { m.target.0.min(*rate).max(*rate / ASLEEP) }
    };
    let (mut all, mut own, mut takers) = (0, 0, 0);
    for (member, rate) in inside {
        all += sent((member, rate));
        own += *rate;
        takers += usize::from(member.takes_all);
    }
    match takers {
        0 => all = own,
        1 if is_at_ceiling(group) => all = all.max(group.target.0.min(own)),
        _ => {}
    }
    all.max(group.policy.floor().0).max(MIN_OWN_RATE.0)
}

/// Whether all classes have taken about the same for a time.
pub(super) fn are_steady(members: &[Member]) -> bool {
    members.iter().all(|member| member.is_steady)
}

/// Whether a group is due its whole maximum at present.
pub(super) fn is_at_ceiling(group: &Group) -> bool {
    group.target >= group.policy.ceiling()
}
