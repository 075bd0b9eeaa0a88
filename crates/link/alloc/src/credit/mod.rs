//! qCon's credit allocator: every period each class gets credit, in bytes, that it spends by
//! sending.
//!
//! qCon (Sensors 2018, 18, 3444), section 3.3. Its Algorithm 1 survives as the prose of
//! 3.3.4 and the names of its variables; [`CreditForm::Paper`] is the reading of it that
//! uses each name as the prose describes it. With C_T the credit of one period, w_i the
//! weight over the sum of weights, C_i^R what class i left of its credit:
//!
//! ```text
//! C_i = C_T w_i                                                fair share      (1)
//! C_j = C_T w_j + C_i^R / (1 - w_i) w_j                        i left some     (2, 3)
//! C_j = C_T w_j + sum_k C_k^R / (1 - w_k) w_j                  several did     (4)
//! C_k = the same less C_k^R                                    for them        (5)
//! C_i = C_i,min                                                below minimum   (6)
//! C_j = C_T w_j - sum_k (C_k,min - C_k) / (1 - w_k) w_j        the others pay  (7)
//! C_i = C_i,max                                                above maximum   (8)
//! C_j = C_T w_j + sum_k (C_k - C_k,max) / (1 - w_k) w_j        the others get  (9)
//! ```
//!
//! # Where one pass misses
//! The paper's loop settles class after class and hands what one leaves (2-5), lacks (6-7)
//! or has too much (8-9) to the classes *after* it: `weight_left`, their weight, stands for
//! `1 - w`. Hence:
//!
//! 1. The part that the last class leaves or cannot take has no taker. Of five classes with weights
//!    1 to 5 of which only the first sends, it gets 1/15 of the link; if only the last sends, all
//!    of it.
//! 2. A minimum is paid by the later classes alone. With 1:1:1 and a minimum of 60 % in the
//!    middle the shares are 33, 60 and 7 %, and not 20, 60 and 20.
//! 3. No class pays the last class's minimum: the credits add up to more than C_T, in that example
//!    with the minimum at the end to 127 %.
//! 4. A class that is lifted lowers what is left for the others, one that is cut raises it, so
//!    which classes come out as bound depends on who was asked first. With 1:1:1, a minimum of
//!    40 % and then a maximum of 10 % the shares are 40, 10 and 50 %: the first was lifted
//!    before the second was cut, and should have 45 like the third.
//!
//! Turning the order from period to period gives the mean over the orders, which is not the
//! answer either (point 2: 29, 60 and 20 %). Carrying what found no taker, or no payer, into the
//! next period's C_T cures 1 and 3 but not 2, and in 1 the idle classes come to hold many
//! periods' credit. Serving bound classes first cures 1, 2 and 3, but not 4.
//!
//! # The remedy
//! [`CreditForm::Repaired`] keeps the state, the period and the equations but lets all bound
//! classes of a kind act at once, in a few passes: share what is left of the credit by what is
//! left of the weight; add up what minima lack, and what maxima and known demands leave over;
//! settle the classes on the heavier side, which whatever follows can only confirm; share
//! again. Two to four passes are usual. The order of classes plays no part.
//!
//! * A class that leaves credit yields what it does not use but keeps headroom above what it used:
//!   its fair share (1) or minimum, a quarter of its use, a packet, whichever is most. So it starts
//!   at once when it wakes, and growth is told from a use that varies. The credit handed out twice
//!   by that is bounded: 1.25 periods' credit, the minima, a packet a class.
//! * A class whose packet waits for more credit keeps what it has, so a share of less than a
//!   packet a period is served, too.
//! * Where the capacity is lowered below the minima, all are cut by one factor, as in
//!   water-filling.
//!
//! A delay remains: a demand is known one period late. Each step in which one class's demand
//! decides whether another's binds takes one period more. Five periods have been enough for every
//! mix of the tests.

mod fluid;
mod paper;
mod repaired;

use std::time::Duration;

use weir_units::{BitRate, Bytes};

pub(crate) use fluid::Fluid;

use crate::Policy;

/// The form of the credit calculation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CreditForm {
    /// Algorithm 1 as the paper describes it: one pass, in the order of the classes.
    Paper,
    /// The same equations for all bound classes at once; agrees with water-filling.
    #[default]
    Repaired,
}

impl CreditForm {
    fn distribute(self, total: f64, accounts: &mut [Account]) {
        match self {
            CreditForm::Paper => paper::distribute(total, accounts),
            CreditForm::Repaired => repaired::distribute(total, accounts),
        }
    }
}

/// The use of a class in the period that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Usage {
    /// Bytes it sent.
    pub used: Bytes,
    /// Bytes that waited for credit at the end. Only the repaired form looks at it; by it alone
    /// it knows of a class that wants to send and could not send at all.
    pub waiting: Bytes,
}

/// A class's credit. The unit is the caller's: bytes per period, or bits per second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Account {
    weight: u64,
    min: f64,
    /// Infinite without one.
    max: f64,
    /// The paper's `remaining_credit`. Fractions are kept, so that rounding to bytes costs
    /// nothing in the long run; below zero if a packet was larger than the credit.
    remaining: f64,
    /// Its demand: its use if it was content with that, else infinite.
    wish: f64,
    /// Settled in an earlier pass of this period.
    settled: bool,
}

impl Account {
    fn new(weight: u64, min: f64, max: f64) -> Account {
        Account { weight, min, max, remaining: 0.0, wish: f64::INFINITY, settled: false }
    }

    /// Ends a period. `content`: there was credit for more, and nothing to send.
    fn spend(&mut self, used: f64, content: bool) {
        self.remaining -= used;
        self.wish = if content { used } else { f64::INFINITY };
    }
}

/// qCon's credit allocator, one [`CreditAllocator::tick`] a period.
///
/// The time between two ticks is the caller's business; credits are for one period.
#[derive(Debug, Clone)]
pub struct CreditAllocator {
    form: CreditForm,
    period: Duration,
    capacity: BitRate,
    accounts: Vec<Account>,
    credits: Vec<Bytes>,
}

impl CreditAllocator {
    /// The paper's period.
    pub const PERIOD: Duration = Duration::from_millis(30);

    /// Credits for a link of `capacity`, every `period`, in the repaired form; no classes yet.
    #[must_use]
    pub fn new(capacity: BitRate, period: Duration) -> CreditAllocator {
        CreditAllocator {
            form: CreditForm::default(),
            period,
            capacity,
            accounts: Vec::new(),
            credits: Vec::new(),
        }
    }

    /// The same in that form.
    #[must_use]
    pub fn with_form(self, form: CreditForm) -> CreditAllocator {
        CreditAllocator { form, ..self }
    }

    /// The capacity of the link from the next period on.
    pub fn set_capacity(&mut self, capacity: BitRate) {
        self.capacity = capacity;
    }

    /// The classes of the link from the next period on. A class at a place that was taken before
    /// keeps that place's credit; new ones start with none.
    pub fn set_classes(&mut self, policies: &[Policy]) {
        let in_period = |rate: Option<BitRate>| rate.map(|rate| bytes_in(rate, self.period));
        self.accounts.truncate(policies.len());
        for (i, policy) in policies.iter().enumerate() {
            let min = in_period(policy.min()).unwrap_or(0.0);
            let max = in_period(policy.max()).unwrap_or(f64::INFINITY);
            let fresh = Account::new(policy.weight().get().into(), min, max);
            match self.accounts.get_mut(i) {
                Some(account) => {
                    *account = Account { remaining: account.remaining, wish: account.wish, ..fresh };
                }
                None => self.accounts.push(fresh),
            }
        }
        self.credits.resize(policies.len(), Bytes(0));
    }

    /// Ends a period and begins the next: takes what each class used, returns the credit that
    /// each class holds now, bytes, in the order of the classes.
    ///
    /// # Panics
    /// If there are not as many usages as classes.
    pub fn tick(&mut self, usage: &[Usage]) -> &[Bytes] {
        assert_eq!(usage.len(), self.accounts.len(), "one usage a class");
        for ((account, usage), credit) in self.accounts.iter_mut().zip(usage).zip(&self.credits) {
            let spent_all = usage.used >= *credit && usage.used > Bytes(0);
            account.spend(usage.used.0 as f64, usage.waiting == Bytes(0) && !spent_all);
        }
        self.form.distribute(bytes_in(self.capacity, self.period), &mut self.accounts);
        for (credit, account) in self.credits.iter_mut().zip(&self.accounts) {
            *credit = Bytes(account.remaining as u64); // rounds down; zero if overdrawn
        }
        &self.credits
    }
}

/// Like [`BitRate::bytes_in`], with the fraction: at 10,000 classes whole bytes would be 1 %.
fn bytes_in(rate: BitRate, period: Duration) -> f64 {
    rate.0 as f64 * period.as_secs_f64() / 8.0
}
