use super::{Account, CreditForm};
use crate::{
    Bound,
    sharer::{Demander, Rule, make_room},
};

/// Periods until the first that counts, if the credits do not come to rest before.
const SETTLING: usize = 48;
/// Periods whose mean is the answer.
const AVERAGED: usize = 16;

/// The credit allocator on a link where every class sends all that credit and demand let it
/// send: the rates it comes to, as a rule for [`crate::Allocator`].
///
/// Credits scale with the period, so they are counted in bit/s here.
#[derive(Debug)]
pub(crate) struct Fluid {
    form: CreditForm,
    accounts: Vec<Account>,
    used: Vec<f64>,
    sums: Vec<f64>,
}

impl Fluid {
    pub(crate) fn new(form: CreditForm) -> Fluid {
        Fluid { form, accounts: Vec::new(), used: Vec::new(), sums: Vec::new() }
    }

    /// One period; returns by how much all usages together changed.
    fn period(&mut self, total: f64, claims: &[Demander]) -> f64 {
        self.form.distribute(total, &mut self.accounts);
        let mut change = 0.0;
        for ((account, claim), used) in self.accounts.iter_mut().zip(claims).zip(&mut self.used) {
            let credit = account.remaining.max(0.0);
            let demand = claim.demand as f64;
            let sent = credit.min(demand);
            account.spend(sent, sent >= demand);
            change += (sent - *used).abs();
            *used = sent;
        }
        change
    }
}

impl Rule for Fluid {
    fn reserve(&mut self, claims: usize) {
        make_room(&mut self.accounts, claims);
        make_room(&mut self.used, claims);
        make_room(&mut self.sums, claims);
    }

    fn share(&mut self, capacity: u64, claims: &[Demander], shares: &mut [u64], bounds: &mut [Bound]) {
        let total = capacity as f64;
        self.accounts.clear();
        self.accounts.extend(claims.iter().map(|claim| {
            let mut account = Account::new(claim.weight, claim.min as f64, claim.max as f64);
            account.spend(0.0, claim.demand == 0);
            account
        }));
        self.used.clear();
        self.used.resize(claims.len(), 0.0);
        self.sums.clear();
        self.sums.resize(claims.len(), 0.0);

        let mut counted = 0.0;
        for period in 0..SETTLING + AVERAGED {
            let at_rest = self.period(total, claims) <= total * 1e-12;
            if at_rest || period >= SETTLING {
                counted += 1.0;
                for (sum, used) in self.sums.iter_mut().zip(&self.used) {
                    *sum += used;
                }
            }
            if at_rest {
                break;
            }
        }
        for (i, claim) in claims.iter().enumerate() {
            // Rounded down; the factor takes back what 64-bit fractions lost on whole numbers.
            shares[i] = (self.sums[i] / counted * (1.0 + 1e-13)) as u64;
            bounds[i] = bound(claim, shares[i]);
        }
    }
}

/// The apparent reason for the share: within 1 %, as the form promises.
fn bound(claim: &Demander, share: u64) -> Bound {
    let reaches = |rate: u64| u128::from(share) * 100 >= u128::from(rate) * 99;
    match claim {
        Demander { demand: 0, .. } => Bound::Idle,
        _ if reaches(claim.demand) => Bound::Demand,
        _ if reaches(claim.max) => Bound::Ceiling,
        _ if u128::from(share) * 100 <= u128::from(claim.min) * 101 => Bound::Floor,
        _ => Bound::Weight,
    }
}
