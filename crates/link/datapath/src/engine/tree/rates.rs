//! The rates of classes and groups.

use std::time::Duration;

use weir_share::Policy;
use weir_units::{BitRate, Bytes};

use super::{LONG_PACKET_ROUND, MIN_OWN_RATE, Packets, SLACK_PER_MILLE, part};
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

fn weight(policy: &Policy) -> u64 {
    u64::from(policy.weight().get())
}

/// The part of a floor that turns give to a class or group with super-packets.
fn lent_floor(packet: u64, floor: u64) -> u64 {
    if packet > 0 { floor / LENT_FLOOR } else { 0 }
}

/// The basis of the terms of all classes and groups.
struct Claims<'a> {
    plan: &'a Plan<'a>,
    packets: &'a Packets,
    is_steady: bool,
    /// Half of what the floors leave is what those that are not backlogged may keep, by weight;
    /// more than saves them from debts they need not. Bit/s.
    spare: u64,
    /// The rate that sends a packet in [`DEBT`], bit/s.
    ready: u64,
    /// The weights of groups, and of members without one.
    top_weights: u64,
}

impl<'a> Claims<'a> {
    /// `room`: what rates may have in all, bit/s.
    fn new(plan: &'a Plan<'a>, packets: &'a Packets, room: u64) -> Claims<'a> {
        let Plan { shape, groups, members } = *plan;
        let alone = || members.iter().filter(|m| m.group.is_none());
        let top_weights = groups.iter().map(|g| weight(&g.policy)).sum::<u64>()
            + alone().map(|m| weight(&m.policy)).sum::<u64>();
        let ready = BitRate::of(Bytes(shape.unit()), DEBT).0;
        let is_steady = are_steady(members);
        let mut claims = Claims { plan, packets, is_steady, spare: 0, ready, top_weights };
        let group_floor = |g: usize| claims.floors_inside(g).max(claims.floor(&groups[g].policy));
        let floors: u64 = (0..groups.len()).map(group_floor).sum::<u64>()
            + alone().map(|m| claims.floor(&m.policy)).sum::<u64>();
        claims.spare = room.saturating_sub(floors) / 2;
        claims
    }

    fn floor(&self, policy: &Policy) -> u64 {
        policy.floor().min(self.plan.shape.capacity).max(MIN_OWN_RATE).0
    }

    fn inside(&self, g: usize) -> impl Iterator<Item = &'a Member> + use<'a> {
        self.plan.members.iter().filter(move |m| m.group == Some(g))
    }

    fn floors_inside(&self, g: usize) -> u64 {
        self.inside(g).map(|m| self.floor(&m.policy)).sum()
    }

    /// The terms of a member, beside others of `weights` in all that divide `spare`.
    fn of_member(&self, member: &Member, spare: u64, weights: u64) -> Terms {
        let Member { policy, allocation, share, target, backlogged, .. } = member;
        let (capacity, is_steady) = (self.plan.shape.capacity, self.is_steady);
        let ceiling = policy.ceiling().min(capacity).max(MIN_OWN_RATE).0;
        let kept =
            if *backlogged { 0 } else { part(spare, weight(policy), weights).min(self.ready).min(ceiling) };
        let is_near_ceiling = ceiling < capacity.0 && share.0 >= ceiling / 4 * 3;
        let packet = if is_steady && member.takes_all {
            self.packets.turn_of(member.minor, self.plan.shape.unit())
        } else {
            0
        };
        let least = self.floor(policy).max(kept);
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
    }

    /// The terms of a group's members, inside the group.
    fn of_members_inside(&self, g: usize) -> Vec<Terms> {
        let policy = &self.plan.groups[g].policy;
        // Sleepers of a group keep no more than its ceiling leaves.
        let spare = part(self.spare, weight(policy), self.top_weights)
            .min(policy.ceiling().0.saturating_sub(self.floors_inside(g)));
        let weights = self.inside(g).map(|m| weight(&m.policy)).sum();
        self.inside(g).map(|m| self.of_member(m, spare, weights)).collect()
    }

    /// The terms of a group, by those of its members.
    fn of_group(&self, group: &Group, inside: &[Terms]) -> Terms {
        let Group { policy, share, .. } = group;
        let (sum, floor) =
            (|part: fn(&Terms) -> u64| inside.iter().map(part).sum::<u64>(), self.floor(policy));
        let packet = sum(|t| t.packet);
        Terms {
            weight: weight(policy),
            packet,
            least: sum(|t| t.least).max(floor),
            lowest: sum(|t| t.lowest).max(floor - lent_floor(packet, floor)),
            wants: sum(|t| t.least.max(t.wants)).min(policy.ceiling().0),
            is_bounded: share.0 >= policy.ceiling().0 || inside.iter().all(|t| t.is_bounded),
        }
    }
}

/// The rates of members, bit/s: the `r_i` of [`tree`](super).
pub(super) fn of_members(plan: &Plan<'_>, packets: &Packets) -> Vec<u64> {
    let Plan { shape, groups, members } = *plan;
    let room = shape.capacity.0 - shape.capacity.0 * SLACK_PER_MILLE / 1000;
    let claims = Claims::new(plan, packets, room);
    let group_terms: Vec<Vec<Terms>> = (0..groups.len()).map(|g| claims.of_members_inside(g)).collect();
    let of_groups = groups.iter().zip(&group_terms).map(|(group, inside)| claims.of_group(group, inside));
    let alone = members.iter().filter(|m| m.group.is_none());
    let of_alone = alone.map(|m| claims.of_member(m, claims.spare, claims.top_weights));
    let top: Vec<Terms> = of_groups.chain(of_alone).collect();
    let top_rates = hand_out(room, &top);

    let indices = |group: Option<usize>| (0..members.len()).filter(move |&i| members[i].group == group);
    let mut rates = vec![0; members.len()];
    for (i, rate) in indices(None).zip(&top_rates[groups.len()..]) {
        rates[i] = *rate;
    }
    for (g, terms) in group_terms.iter().enumerate() {
        for (i, rate) in indices(Some(g)).zip(hand_out(top_rates[g], terms)) {
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
