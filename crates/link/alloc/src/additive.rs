//! The additive form: a floor and an equal part of the spare.
//!
//! Anastasi et al., "QoS Guarantees for Network Bandwidth in Private Clouds", Eq. 1, times
//! the link's rate, with R the capacity that may be reserved and n customers:
//!
//! ```text
//! a_c = min(m_c + (R - sum m_i) / n, M_c)
//! ```
//!
//! [`Spare::Once`] is that equation to the letter: weights and demands play no part, idle
//! customers count, and what a ceiling cuts off stays unused. [`Spare::Redivided`], the
//! default, divides what ceilings and small demands leave again, in equal parts:
//!
//! ```text
//! a_c = min(d_c, M_c, m_c + s),  s the largest with  sum a_c <= R
//! ```
//!
//! It is the default because a link is to be work-conserving unless every active class is at its
//! ceiling. No class gets less by it than by the equation, up to its demand. Where every class is
//! backlogged and no ceiling cuts, the two are the same.
//!
//! Floors beyond the capacity are cut by one factor, as in [`crate::fill`].

use crate::{
    Bound,
    fill::WaterFilling,
    sharer::{Demander, Rule, make_room},
};

/// The use of the spare that one class cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Spare {
    /// It stays unused: Eq. 1 as written.
    Once,
    /// The others get it, in equal parts.
    #[default]
    Redivided,
}

/// The rule, with memory that it keeps from call to call.
#[derive(Debug, Default)]
pub(crate) struct Additive {
    spare: Spare,
    fill: WaterFilling,
    above_floor: Vec<Demander>,
}

impl Additive {
    pub(crate) fn new(spare: Spare) -> Additive {
        Additive { spare, ..Additive::default() }
    }

    /// The rest above the floors is water-filled with equal weights.
    fn redivide(&mut self, spare: u64, claims: &[Demander], shares: &mut [u64], bounds: &mut [Bound]) {
        self.above_floor.clear();
        self.above_floor.extend(claims.iter().map(|claim| {
            let room = claim.high() - claim.low();
            Demander { weight: 1, min: 0, max: room, demand: room }
        }));
        self.fill.share(spare, &self.above_floor, shares, bounds);
        for (share, claim) in shares.iter_mut().zip(claims) {
            *share += claim.low();
        }
    }
}

impl Rule for Additive {
    fn reserve(&mut self, claims: usize) {
        self.fill.reserve(claims);
        make_room(&mut self.above_floor, claims);
    }

    fn share(&mut self, capacity: u64, claims: &[Demander], shares: &mut [u64], bounds: &mut [Bound]) {
        let floor = match self.spare {
            Spare::Once => |claim: &Demander| claim.min,
            Spare::Redivided => Demander::low,
        };
        let floors = claims.iter().map(|c| u128::from(floor(c))).sum::<u128>();
        let spare = u128::from(capacity).checked_sub(floors).map(|spare| spare as u64);
        match (spare, self.spare) {
            (None, _) => self.fill.cut_floors(capacity, claims, floor, shares),
            (Some(spare), Spare::Redivided) => self.redivide(spare, claims, shares, bounds),
            (Some(spare), Spare::Once) => {
                let part = spare / claims.len().max(1) as u64; // whole bits; fewer than n stay unused
                for (share, claim) in shares.iter_mut().zip(claims) {
                    *share = (claim.min + part).min(claim.max); // Eq. 1
                }
            }
        }
        for ((bound, claim), &share) in bounds.iter_mut().zip(claims).zip(&*shares) {
            *bound = claim.bound(share, spare.is_none_or(|spare| spare == 0) && claim.min > 0);
        }
    }
}
