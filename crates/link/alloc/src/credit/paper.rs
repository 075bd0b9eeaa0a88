use super::Account;

/// Algorithm 1, one pass from the first class to the last, with the paper's names.
///
/// Each account's `remaining` is what it left of the last period (C^R) before the call, and its
/// credit for the next after it. The prose leaves two things open. The rest of the last class is
/// lost, as no class comes after it. A fair share that the minima of others made negative is zero.
pub(super) fn distribute(total: f64, accounts: &mut [Account]) {
    let total_weight = accounts.iter().map(|account| account.weight).sum::<u64>();
    let mut weight_left = total_weight;
    let mut total_credit = total;
    for current in accounts {
        weight_left -= current.weight;
        // 1 / (1 - w), with the weight of those to come for 1 - w; the last has no others.
        let others = match weight_left {
            0 => 0.0,
            weight => total_weight as f64 / weight as f64,
        };

        // Proportional share.
        let credit_fair = (total_credit * current.weight as f64 / total_weight as f64).max(0.0); // Eq. 1
        current.remaining += credit_fair;

        // Work-conserving.
        if current.remaining > credit_fair {
            let credit_left = current.remaining - credit_fair; // C^R
            total_credit += credit_left * others; // Eq. 2-4
            current.remaining = credit_fair; // Eq. 5
        }

        // Minimum.
        if current.min > 0.0 && current.remaining < current.min {
            total_credit -= (current.min - current.remaining) * others; // Eq. 7
            current.remaining = current.min; // Eq. 6
        }

        // Maximum.
        if current.remaining > current.max {
            total_credit += (current.remaining - current.max) * others; // Eq. 9
            current.remaining = current.max; // Eq. 8
        }
    }
}
