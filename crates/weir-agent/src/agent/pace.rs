//! The pacing rate of each class's TCP sockets, from the class's share.

use std::{collections::BTreeMap, time::Duration};

use weir_api::ClassKind;
use weir_datapath::engine::{Place, plan::potential};
use weir_units::BitRate;
use weir_units::chain;

use super::{
    Agent,
    allocate::Followed,
    datapath::{self, Datapath},
    effects::Effects,
};

/// The sockets' part of the share, per mille. It is above 1000, so a queue remains and the scheduler
/// decides, not the sender.
const TARGET_PER_MILLE: u64 = 1010;
/// The same for engines with credit, per mille. It is below 1000, because a packet without credit is
/// dropped.
const TARGET_IN_PLACE_PER_MILLE: u64 = 990;
/// The drain time of a queue that reduces the sockets' rate by the whole share. With the 10 per mille
/// above the share, the queue settles at 2 ms.
const DRAIN_TIME: Duration = Duration::from_millis(200);
/// The lowest rate, as a part of the share, per mille.
const MIN_RATE_PER_MILLE: u64 = 800;

/// The rate for the sockets of a class with this share and queue.
fn paced(share: BitRate, backlog: u64, more: u64) -> BitRate {
    let whole = share.bytes_in(DRAIN_TIME).0.max(1);
    let less = backlog.saturating_mul(1000) / whole;
    share.scale(more.saturating_sub(less).max(MIN_RATE_PER_MILLE), 1000)
}

impl Agent {
    /// Sends the pacing program the agent's heartbeat and the present rates of the classes.
    pub(super) fn pace(&mut self) {
        let capacity = self.in_force();
        let Some(pacing) = &mut self.datapath.pacing else { return };
        let mut shares = BTreeMap::new();
        let more = if self.link.scheduler.engine.place() == Place::InPlace {
            TARGET_IN_PLACE_PER_MILLE
        } else {
            TARGET_PER_MILLE
        };
        let is_backlogged = |followed: &Followed| followed.estimator.demand().is_unlimited();
        let (mut backlogged, mut spare) = ((0, 0), capacity.0);
        for (key, entry) in self.classes.entries().iter().filter(|(_, e)| e.class.kind != ClassKind::Group) {
            let Some(followed) = self.link.allocations.get(key) else { continue };
            spare = spare.saturating_sub(followed.allocation.0);
            if is_backlogged(followed) {
                backlogged.0 += followed.allocation.0;
                backlogged.1 += u64::from(entry.effective.policy.weight().get());
            }
        }
        for (key, entry) in self.classes.entries() {
            let (
                Some(followed),
                ClassKind::Container
                | ClassKind::Netns
                | ClassKind::Interface
                | ClassKind::Cgroup
                | ClassKind::Selector
                | ClassKind::Host,
            ) = (self.link.allocations.get(key), entry.class.kind)
            else {
                continue;
            };
            let rate = if is_backlogged(followed) {
                paced(followed.allocation, followed.counters.backlog, more)
            } else {
                potential(&entry.effective.policy, followed.allocation, backlogged, spare).min(capacity)
            };
            shares.insert(datapath::handle(followed.minor), rate.bytes_per_sec());
        }
        let result = pacing.beat().and_then(|()| pacing.set_shares(&shares));
        self.datapath.pacing_failure =
            result.err().map(|e| chain(&e)).or_else(|| self.datapath.unrepaired_pacing.clone());
    }
}

impl Datapath {
    /// Checks that the pacing program is attached and has the rates that the agent wrote.
    pub(super) fn reconcile_pacing(&mut self) -> Effects {
        let Some(pacing) = &mut self.pacing else { return Effects::default() };
        let (program, rates) = (pacing.repair(), pacing.repair_shares());
        self.unrepaired_pacing = None;
        let mut effects = Effects::default();
        match program {
            Ok(false) => {}
            Ok(true) => {
                let text = "the program that paces sockets had been taken away".to_owned();
                effects = Effects::rediscover(true).and(self.repaired(text));
            }
            Err(e) => self.unrepaired_pacing = Some(chain(&e)),
        }
        match rates {
            Ok(0) => {}
            Ok(count) => {
                let text = format!("{count} rates of classes' sockets had been altered, added or removed");
                effects = effects.and(self.repaired(text));
            }
            Err(e) => self.unrepaired_pacing = Some(chain(&e)),
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_queue_sockets_may_send_a_little_more_than_the_share() {
        assert_eq!(paced(BitRate::mbit(20), 0, TARGET_PER_MILLE), BitRate::kbit(20_200));
    }

    #[test]
    fn a_queue_of_two_milliseconds_is_in_balance() {
        let share = BitRate::mbit(20);
        assert_eq!(paced(share, share.bytes_in(Duration::from_millis(2)).0, TARGET_PER_MILLE), share);
    }

    #[test]
    fn a_long_queue_drains_but_nobody_is_cut_off() {
        assert_eq!(paced(BitRate::mbit(20), 10_000_000, TARGET_PER_MILLE), BitRate::mbit(16));
        assert_eq!(paced(BitRate::ZERO, 10_000_000, TARGET_PER_MILLE), BitRate::ZERO);
    }
}
