//! Water-filling with floors and ceilings, exact to a bit.
//!
//! For capacity C and claims with weight w_i, floor m_i, ceiling M_i and demand d_i:
//!
//! ```text
//! a_i = min(d_i, clamp(lambda w_i, m_i, M_i)),  lambda the largest with  sum a_i <= C
//! ```
//!
//! With h_i = min(d_i, M_i) and l_i = min(m_i, h_i) this is a_i = clamp(lambda w_i, l_i, h_i),
//! and the sum grows with lambda along straight pieces: claim i begins to grow at
//! lambda = l_i / w_i and stops at h_i / w_i. The sorted beginnings and stops lead to the
//! piece that reaches C in O(n log n). On it lambda = P / Q in whole numbers, with P the
//! capacity that the bound claims leave and Q the weight of the free ones, so nothing is
//! rounded on the way.
//!
//! *Whole bits.* The shares w_i P / Q of the free claims are rounded down, and the bits that
//! are left go one each to the largest remainders. Equal remainders: larger weight, floor,
//! ceiling, demand first, then the earlier position. So position only decides between claims
//! that are equal in every way, and these differ by one bit at most.
//!
//! *Too much promised.* Where the capacity is below sum l_i (it was lowered after admission),
//! every floor is cut by the same factor k, and who asks for less than that still gets it:
//!
//! ```text
//! a_i = min(l_i, k m_i),  k the largest with  sum a_i <= C
//! ```
//!
//! This is the same division with floors for weights. A class without a floor gets nothing, as it
//! did when the capacity came down to sum l_i: the allocation does not jump there.

use std::cmp::Ordering;

use crate::{
    Bound,
    sharer::{Demander, Rule, make_room},
};

/// The rule, with memory that it keeps from call to call.
#[derive(Debug, Default)]
pub(crate) struct WaterFilling {
    floors: Vec<Demander>,
    edges: Vec<Edge>,
    remainders: Vec<Remainder>,
}

/// The lambda at which a claim begins or stops to grow, as `rate / weight`.
#[derive(Debug, Clone, Copy)]
struct Edge {
    rate: u64,
    weight: u64,
    begins: bool,
}

impl Edge {
    fn by_lambda(&self, other: &Edge) -> Ordering {
        let lambda = |this: &Edge, other: &Edge| u128::from(this.rate) * u128::from(other.weight);
        // A claim whose floor is its ceiling begins before it stops.
        lambda(self, other).cmp(&lambda(other, self)).then(other.begins.cmp(&self.begins))
    }
}

/// Lambda as a fraction: what the free claims share, over their weight.
#[derive(Debug, Clone, Copy)]
struct Level {
    spare: u64,
    weight: u64,
}

impl Level {
    const ZERO: Level = Level { spare: 0, weight: 1 };
    const INFINITE: Level = Level { spare: 1, weight: 0 };

    /// Whether the claim's floor is above what its weight gives.
    fn lifts(self, claim: &Demander) -> bool {
        self.compare(claim.low(), claim.weight) == Ordering::Greater
    }

    /// How `rate` compares to `lambda * weight`.
    fn compare(self, rate: u64, weight: u64) -> Ordering {
        (u128::from(rate) * u128::from(self.weight)).cmp(&(u128::from(weight) * u128::from(self.spare)))
    }
}

/// The part of a claim that rounding down took, over a common denominator.
#[derive(Debug, Clone, Copy)]
struct Remainder {
    part: u128,
    claim: Demander,
    index: usize,
}

impl Remainder {
    fn largest_first(&self, other: &Remainder) -> Ordering {
        (other.part, other.claim).cmp(&(self.part, self.claim)).then(self.index.cmp(&other.index))
    }
}

impl Rule for WaterFilling {
    fn reserve(&mut self, claims: usize) {
        make_room(&mut self.floors, claims);
        make_room(&mut self.edges, 2 * claims);
        make_room(&mut self.remainders, claims);
    }

    fn share(&mut self, capacity: u64, claims: &[Demander], shares: &mut [u64], bounds: &mut [Bound]) {
        let sum = |part: fn(&Demander) -> u64| claims.iter().map(|c| u128::from(part(c))).sum::<u128>();
        let low = sum(Demander::low);
        let level = if sum(Demander::high) <= u128::from(capacity) {
            for (share, claim) in shares.iter_mut().zip(claims) {
                *share = claim.high();
            }
            Level::INFINITE
        } else if low > u128::from(capacity) {
            self.cut_floors(capacity, claims, Demander::low, shares);
            Level::ZERO
        } else {
            let level = self.level(capacity, low, claims);
            self.rise_to(level, capacity, claims, claims, shares);
            level
        };
        for ((bound, claim), &share) in bounds.iter_mut().zip(claims).zip(&*shares) {
            *bound = claim.bound(share, level.lifts(claim));
        }
    }
}

impl WaterFilling {
    /// Divides a capacity that does not carry all floors; `low` says what each would take.
    pub(crate) fn cut_floors(
        &mut self,
        capacity: u64,
        claims: &[Demander],
        low: fn(&Demander) -> u64,
        shares: &mut [u64],
    ) {
        let mut floors = std::mem::take(&mut self.floors);
        floors.clear();
        floors.extend(claims.iter().map(|claim| {
            let low = low(claim);
            Demander { weight: claim.min, min: 0, max: low, demand: low }
        }));
        let level = self.level(capacity, 0, &floors);
        self.rise_to(level, capacity, &floors, claims, shares);
        self.floors = floors;
    }

    /// Finds lambda; `low` is the sum of the floors, at most the capacity.
    fn level(&mut self, capacity: u64, low: u128, claims: &[Demander]) -> Level {
        let mut bound = low; // what the claims that do not grow take
        let mut weight = 0u64; // of those that grow
        self.edges.clear();
        for claim in claims {
            let (low, high) = (claim.low(), claim.high());
            if low == high {
                continue; // never grows
            }
            if low == 0 {
                weight += claim.weight;
            } else {
                self.edges.push(Edge { rate: low, weight: claim.weight, begins: true });
            }
            if high < capacity {
                self.edges.push(Edge { rate: high, weight: claim.weight, begins: false });
            }
        }
        self.edges.sort_unstable_by(Edge::by_lambda);
        let capacity = u128::from(capacity);
        for edge in &self.edges {
            let (edge_rate, edge_weight) = (u128::from(edge.rate), u128::from(edge.weight));
            // bound + lambda * weight >= capacity, at the edge's lambda
            if bound * edge_weight + edge_rate * u128::from(weight) >= capacity * edge_weight {
                break;
            }
            if edge.begins {
                bound -= edge_rate;
                weight += edge.weight;
            } else {
                bound += edge_rate;
                weight -= edge.weight;
            }
        }
        match weight {
            0 => Level::ZERO, // the floors take it all
            weight => Level { spare: (capacity - bound) as u64, weight },
        }
    }

    /// Every claim gets `clamp(lambda w, l, h)`, in whole bits; `ranks` are the claims by which
    /// equal remainders are told apart.
    fn rise_to(
        &mut self,
        level: Level,
        capacity: u64,
        claims: &[Demander],
        ranks: &[Demander],
        shares: &mut [u64],
    ) {
        self.remainders.clear();
        let mut left = capacity;
        for (index, claim) in claims.iter().enumerate() {
            let (low, high) = (claim.low(), claim.high());
            shares[index] = if low == high || level.lifts(claim) {
                low
            } else if level.compare(high, claim.weight) != Ordering::Greater {
                high
            } else {
                let product = u128::from(claim.weight) * u128::from(level.spare);
                let weight = u128::from(level.weight);
                self.remainders.push(Remainder { part: product % weight, claim: ranks[index], index });
                (product / weight) as u64 // below `high`
            };
            left -= shares[index];
        }
        self.hand_out(left, shares);
    }

    /// Gives `bits`, fewer than there are remainders above zero, one each to the largest.
    fn hand_out(&mut self, bits: u64, shares: &mut [u64]) {
        let bits = bits as usize;
        if bits == 0 {
            return;
        }
        self.remainders.select_nth_unstable_by(bits - 1, Remainder::largest_first);
        for remainder in &self.remainders[..bits] {
            shares[remainder.index] += 1;
        }
    }
}
