//! What each class's TCP sockets may send: the share that the division gave it.

use std::{collections::BTreeMap, time::Duration};

use weir_api::Kind;
use weir_host::chain;
use weir_share::Policy;
use weir_units::BitRate;

use super::{Agent, divide::Followed, node};

/// Sockets are given a little more than the share, so that a queue remains by which the
/// scheduler, not the sender, decides: per mille.
const MORE: u64 = 10;
/// A queue that would take so long to drain takes all of the share from what sockets may
/// send: the queue shrinks towards `MORE` of this, 2 ms.
const DRAIN: Duration = Duration::from_millis(200);
/// Never less than this part of the share, per mille.
const LEAST: u64 = 800;

/// The rate for the sockets of a class with this share and queue.
fn paced(share: BitRate, backlog: u64) -> BitRate {
    let whole = share.bytes_in(DRAIN).0.max(1);
    let less = backlog.saturating_mul(1000) / whole;
    share.scale((1000 + MORE).saturating_sub(less).max(LEAST), 1000)
}

/// What a class that is not held back may send before the division has followed: what it
/// would get if it wanted all, of what those that are (`hungry`: their shares and weights in
/// all) and nobody (`spare`) have.
fn potential(policy: &Policy, share: BitRate, hungry: (u64, u64), spare: u64) -> BitRate {
    let weight = u64::from(policy.weight().get());
    let part = BitRate(hungry.0 + share.0 + spare).scale(weight, hungry.1 + weight);
    part.max(policy.floor()).max(share).min(policy.ceiling())
}

impl Agent {
    /// Tells the pacing program that the agent lives and what the classes may send now.
    pub(super) fn pace(&mut self) {
        let Some(pacing) = &mut self.node.pacing else { return };
        let capacity = self.book.config().link.capacity;
        let mut shares = BTreeMap::new();
        let is_hungry = |followed: &Followed| followed.estimator.demand().is_unlimited();
        let (mut hungry, mut spare) = ((0, 0), capacity.0);
        for (key, entry) in self.book.entries().iter().filter(|(_, e)| e.claim.kind != Kind::Group) {
            let Some(followed) = self.followed.get(key) else { continue };
            spare = spare.saturating_sub(followed.allocation.0);
            if is_hungry(followed) {
                hungry.0 += followed.allocation.0;
                hungry.1 += u64::from(entry.effective.policy.weight().get());
            }
        }
        for (key, entry) in self.book.entries() {
            let (Some(followed), Kind::Container | Kind::Netns | Kind::Interface | Kind::Cgroup | Kind::Host) =
                (self.followed.get(key), entry.claim.kind)
            else {
                continue;
            };
            let rate = if is_hungry(followed) {
                paced(followed.allocation, followed.counters.backlog)
            } else {
                potential(&entry.effective.policy, followed.allocation, hungry, spare).min(capacity)
            };
            shares.insert(node::handle(followed.minor), rate.bytes_per_sec());
        }
        let result = pacing.beat().and_then(|()| pacing.set_shares(&shares));
        self.node.pacing_failure = result.err().map(|e| chain(&e));
    }

    /// Looks whether the pacing program is still attached.
    pub(super) fn keep_pacing(&mut self) {
        let Some(pacing) = &mut self.node.pacing else { return };
        match pacing.repair() {
            Ok(false) => {}
            Ok(true) => {
                self.repairs += 1;
                self.stale = true;
                self.event("repaired", None, "the program that paces sockets had been taken away".to_owned());
            }
            Err(e) => self.node.pacing_failure = Some(chain(&e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_share::Weight;

    use super::*;

    #[test]
    fn without_a_queue_sockets_may_send_a_little_more_than_the_share() {
        assert_eq!(paced(BitRate::mbit(20), 0), BitRate::kbit(20_200));
    }

    #[test]
    fn a_queue_of_two_milliseconds_is_in_balance() {
        let share = BitRate::mbit(20);
        assert_eq!(paced(share, share.bytes_in(Duration::from_millis(2)).0), share);
    }

    #[test]
    fn a_long_queue_drains_but_nobody_is_cut_off() {
        assert_eq!(paced(BitRate::mbit(20), 10_000_000), BitRate::mbit(16));
        assert_eq!(paced(BitRate::ZERO, 10_000_000), BitRate::ZERO);
    }

    #[test]
    fn who_wakes_gets_what_is_spare_and_a_part_by_weight_of_what_the_hungry_have() {
        let policy = |min: u64, max: u64| {
            let rate = |mbit| (mbit > 0).then(|| BitRate::mbit(mbit));
            Policy::new(Weight::new(2).unwrap(), rate(min), rate(max)).unwrap()
        };
        let mbit = |n| BitRate::mbit(n);
        let alone = potential(&policy(0, 0), BitRate::ZERO, (0, 0), mbit(95).0);
        assert_eq!(alone, mbit(95));
        let hungry = (mbit(90).0, 4);
        assert_eq!(potential(&policy(0, 0), BitRate::ZERO, hungry, 0), mbit(30));
        assert_eq!(potential(&policy(40, 0), BitRate::ZERO, hungry, 0), mbit(40));
        assert_eq!(potential(&policy(0, 20), BitRate::ZERO, hungry, 0), mbit(20));
        assert_eq!(potential(&policy(0, 0), mbit(36), hungry, 0), mbit(42));
    }
}
