use super::Account;

/// Far more than are needed: a pass that moves the level by much settles as much weight as it
/// leaves, and weights span 34 powers of two at 10,000 classes.
const PASSES: usize = 40;

/// The bytes that even the lightest class may send when it wakes.
const PACKET: f64 = 1_514.0;

/// A class with a packet waiting may save up this much credit, bytes: a super-packet. Larger
/// shares may be saved for one period.
const LARGEST_PACKET: f64 = 65_536.0;

impl Account {
    /// The most it takes: maximum, or demand if that is known to be less.
    fn high(&self) -> f64 {
        self.max.min(self.wish)
    }

    /// The least it is promised and can take.
    fn low(&self) -> f64 {
        self.min.min(self.high())
    }
}

/// By what an account takes part, and between which bounds.
struct Terms {
    weight: f64,
    low: f64,
    high: f64,
}

/// The contract.
fn by_weight(account: &Account) -> Terms {
    Terms { weight: account.weight as f64, low: account.low(), high: account.high() }
}

/// Where the capacity was lowered below the minima: all are cut by one factor.
fn by_minimum(account: &Account) -> Terms {
    Terms { weight: account.min, low: 0.0, high: account.low() }
}

/// The equations of Algorithm 1 for all bound classes at once; see the module's text.
pub(super) fn distribute(total: f64, accounts: &mut [Account]) {
    if accounts.iter().map(Account::low).sum::<f64>() > total {
        let level = level(total, accounts, by_minimum);
        for account in accounts {
            account.grant(level * account.min, 0.0);
        }
        return;
    }
    let level = level(total, accounts, by_weight);
    let total_weight = accounts.iter().map(|account| account.weight).sum::<u64>() as f64;
    for account in accounts {
        let weight = account.weight as f64;
        let share = (level * weight).clamp(account.min, account.max);
        let fair = (total * weight / total_weight).clamp(account.min, account.max); // Eq. 1
        account.grant(share, fair.max(account.wish / 4.0).max(PACKET));
    }
}

/// Credit per weight: the highest at which all demands fit; infinite if no class takes more.
fn level(total: f64, accounts: &mut [Account], terms: fn(&Account) -> Terms) -> f64 {
    let mut credit_left = total;
    let mut weight_left = 0.0;
    for account in &mut *accounts {
        let Terms { weight, high, .. } = terms(account);
        account.settled = high <= 0.0;
        if !account.settled {
            weight_left += weight;
        }
    }
    let mut highest = f64::INFINITY;
    for _ in 0..PASSES {
        let level = credit_left / weight_left;
        let (mut lacking, mut left_over, mut unsettled) = (0.0, 0.0, 0);
        for account in accounts.iter().filter(|account| !account.settled) {
            let Terms { weight, low, high } = terms(account);
            let share = level * weight;
            lacking += (low - share).max(0.0); // Eq. 7
            left_over += (share - high).max(0.0); // Eq. 4 for demands, 9 for maxima
            unsettled += 1;
        }
        if unsettled == 0 {
            return highest;
        }
        if lacking == left_over {
            return level; // above all: both are zero
        }
        if lacking > left_over {
            highest = highest.min(level); // or those settled now would get more than their minimum
        }
        for account in accounts.iter_mut().filter(|account| !account.settled) {
            let Terms { weight, low, high } = terms(account);
            let share = level * weight;
            let bound = match lacking > left_over {
                true if share < low => low,    // Eq. 6
                false if share > high => high, // Eq. 5 for demands, 8 for maxima
                _ => continue,
            };
            account.settled = true;
            credit_left -= bound;
            weight_left -= weight;
        }
    }
    highest.min(credit_left.max(0.0) / weight_left)
}

impl Account {
    /// Credit for the next period.
    fn grant(&mut self, share: f64, headroom: f64) {
        self.remaining = if self.wish.is_finite() {
            share.min(self.wish + headroom) // Eq. 5: what it left went to the others
        } else {
            self.remaining.min(share.max(LARGEST_PACKET)) + share
        };
    }
}
