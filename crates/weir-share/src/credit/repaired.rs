use super::Account;

/// Far more than are needed: a pass that moves the level by much settles as much weight as it
/// leaves, and weights span 34 powers of two at 10,000 classes.
const PASSES: usize = 40;

/// A class with a packet waiting may save up this much credit, bytes: a super-packet. Larger
/// grants may be saved for one period.
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

/// The equations of Algorithm 1 for all bound classes at once; see the module's text.
pub(super) fn distribute(total: f64, accounts: &mut [Account]) {
    let floors = accounts.iter().map(Account::low).sum::<f64>();
    if floors > total {
        // The capacity was lowered below what had been promised: cut in proportion.
        for account in accounts {
            account.grant(account.low() * total / floors, 0.0);
        }
        return;
    }
    let level = level(total, accounts);
    let total_weight = accounts.iter().map(|account| account.weight).sum::<u64>() as f64;
    for account in accounts {
        let weight = account.weight as f64;
        let share = (level * weight).clamp(account.min, account.max).min(total);
        let fair = (total * weight / total_weight).clamp(account.min, account.max); // Eq. 1
        account.grant(share, fair);
    }
}

/// Credit per weight for the classes that neither minimum nor maximum nor demand binds;
/// infinite if all are bound.
fn level(total: f64, accounts: &mut [Account]) -> f64 {
    let mut credit_left = total;
    let mut weight_left = 0;
    for account in &mut *accounts {
        account.settled = account.high() <= 0.0;
        if !account.settled {
            weight_left += account.weight;
        }
    }
    for _ in 0..PASSES {
        if weight_left == 0 {
            return f64::INFINITY;
        }
        let level = credit_left / weight_left as f64;
        let (mut lacking, mut left_over) = (0.0, 0.0);
        for account in accounts.iter().filter(|account| !account.settled) {
            let share = level * account.weight as f64;
            lacking += (account.low() - share).max(0.0); // Eq. 7
            left_over += (share - account.high()).max(0.0); // Eq. 4 for demands, 9 for maxima
        }
        if lacking == left_over {
            break; // above all: both are zero
        }
        for account in accounts.iter_mut().filter(|account| !account.settled) {
            let share = level * account.weight as f64;
            let bound = match lacking > left_over {
                true if share < account.low() => account.low(),    // Eq. 6
                false if share > account.high() => account.high(), // Eq. 5 for demands, 8 for maxima
                _ => continue,
            };
            account.settled = true;
            credit_left -= bound;
            weight_left -= account.weight;
        }
    }
    credit_left.max(0.0) / weight_left as f64
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
