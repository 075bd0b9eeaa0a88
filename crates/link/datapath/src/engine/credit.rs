//! Credit in place: no device and no queue of weir's. A packet passes by its class's credit
//! where it is caught, or ends there.
//!
//! Dropping is no way to divide a link among TCP senders: on a LAN they lose a third of it and
//! more, as each drop of a super-packet costs a time-out. So this is the back-stop of pacing
//! ([`crate::pacing`]), which keeps TCP below its credit, and the limit for all else. Alone
//! ([`EngineKind::CreditExperiment`]) it is there to be measured, not to be used.
//!
//! It fails open: what the agent says holds for 3 s. Unlike a scheduler, it lends no class's unused
//! part to another between two divisions.

use std::collections::BTreeMap;

use weir_bpf::{Credits, Refill};
use weir_netlink::{Netlink, tc::Counters};
use weir_units::{BitRate, TcHandle};

use super::{
    Attachments, Device, Engine, EngineError, EngineKind, MAJOR, Measured, Place, Plan, Process, Uplink,
    ifb::Ifb, plan,
};

use crate::pacing::now_ns;

/// The time for which an order to the programs holds.
const VALID_NS: u64 = 3_000_000_000;
/// A class keeps the credit of so long.
const BURST_TIME: std::time::Duration = std::time::Duration::from_millis(30);
/// At least this, bytes: a fresh connection's first window.
const MIN_BURST: u64 = 16 * 1024;

/// The engine in place.
pub struct Credit {
    kind: EngineKind,
    credits: Credits,
    /// The credit rate of each class, and its dropped bytes at the last look.
    applied: BTreeMap<u16, (Refill, u64)>,
    /// The device of the engine before, until no packet goes there.
    leftover: Option<Ifb>,
    writes: u64,
}

impl Credit {
    /// Uses the maps of the classifier.
    ///
    /// # Errors
    /// [`EngineError`]: the device of another engine cannot be taken over.
    pub fn open(
        uplink: Uplink<'_>,
        kind: EngineKind,
        attachments: &Attachments,
    ) -> Result<Credit, EngineError> {
        let there = Netlink::open()?.link(&uplink.upload_device()).is_ok();
        let leftover = if there { Some(Ifb::open(uplink, 1)?) } else { None };
        let applied = BTreeMap::new();
        let credits = attachments.classifier().credits()?;
        Ok(Credit { kind, credits, applied, leftover, writes: 0 })
    }

    fn refills(plan: &Plan<'_>) -> BTreeMap<u16, (u64, u64)> {
        let backlogged = plan.members.iter().filter(|m| m.backlogged);
        let backlogged = backlogged.fold((0, 0), |(shares, weights), m| {
            (shares + m.allocation.0, weights + u64::from(m.policy.weight().get()))
        });
        let shared = plan.members.iter().fold(0, |sum: u64, m| sum.saturating_add(m.allocation.0));
        let spare = plan.shape.capacity.0.saturating_sub(shared);
        let refill = |m: &plan::Member| {
            let rate = if m.backlogged {
                m.allocation
            } else {
                plan::potential(&m.policy, m.allocation, backlogged, spare).min(plan.shape.capacity)
            };
            (m.minor, (rate.bytes_per_sec(), burst(rate)))
        };
        plan.members.iter().map(refill).collect()
    }
}

fn burst(rate: BitRate) -> u64 {
    rate.bytes_in(BURST_TIME).0.max(MIN_BURST)
}

fn handle(minor: u16) -> u32 {
    TcHandle::new(MAJOR, minor).0
}

impl Engine for Credit {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    fn place(&self) -> Place {
        Place::InPlace
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    fn apply(&mut self, plan: &Plan<'_>, _hold: bool) -> Result<usize, EngineError> {
        let credits = &self.credits;
        let wanted = Credit::refills(plan);
        let mut written = 0;
        let gone: Vec<u16> = self.applied.keys().copied().filter(|m| !wanted.contains_key(m)).collect();
        for minor in gone {
            credits.remove(handle(minor))?;
            self.applied.remove(&minor);
            written += 1;
        }
        for (minor, (bytes_per_sec, burst_bytes)) in wanted {
            let refill = Refill { bytes_per_sec, burst_bytes, until_ns: now_ns() + VALID_NS };
            let known = self.applied.get(&minor);
            if known.is_none_or(|(r, _)| (r.bytes_per_sec, r.burst_bytes) != (bytes_per_sec, burst_bytes)) {
                credits.set(handle(minor), &refill)?;
                let dropped = known.map_or(0, |(_, dropped)| *dropped);
                self.applied.insert(minor, (refill, dropped));
                written += 1;
            }
        }
        self.writes += written as u64;
        Ok(written)
    }

    /// Says, too, that what was said still holds. Packets dropped since the last look count as
    /// backlog: the class wanted them beyond its credit.
    fn measure(&mut self, out: &mut Vec<Measured>) -> Result<usize, EngineError> {
        out.clear();
        if let Some(mut leftover) = self.leftover.take() {
            leftover.remove()?;
        }
        let credits = &self.credits;
        for (&minor, (refill, dropped)) in &mut self.applied {
            refill.until_ns = now_ns() + VALID_NS;
            credits.set(handle(minor), refill)?;
            let credit = credits.read(handle(minor))?.unwrap_or_default();
            let counters = Counters {
                bytes: credit.bytes,
                packets: credit.packets,
                drops: u64::from(credit.packets_dropped),
                backlog: credit.bytes_dropped.saturating_sub(*dropped),
                ..Counters::default()
            };
            *dropped = credit.bytes_dropped;
            out.push(Measured { minor, counters });
        }
        Ok(0)
    }

    fn drops(&mut self) -> Result<BTreeMap<u16, u64>, EngineError> {
        let credits = &self.credits;
        let mut drops = BTreeMap::new();
        for &minor in self.applied.keys() {
            let credit = credits.read(handle(minor))?.unwrap_or_default();
            drops.insert(minor, u64::from(credit.packets_dropped));
        }
        Ok(drops)
    }

    fn device(&mut self) -> Option<&mut dyn Device> {
        None
    }

    fn process(&mut self) -> Option<&mut dyn Process> {
        None
    }

    fn remove(&mut self) -> Result<(), EngineError> {
        match self.leftover.take() {
            Some(mut leftover) => leftover.remove(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_share::{Policy, Weight};
    use weir_units::Bytes;

    use super::*;
    use crate::engine::plan::{Member, Shape};

    #[test]
    fn who_is_held_back_earns_the_allocation_and_others_what_they_could_have() {
        let shape = Shape {
            capacity: BitRate::mbit(90),
            split: true,
            mtu: 1500,
            delay_ms: 50,
            least_queue: Bytes(0),
            framing: None,
            has_tunnels: false,
        };
        let member = |minor, weight, max: Option<u64>, allocation, backlogged| Member {
            minor,
            group: None,
            policy: Policy::new(Weight::new(weight).unwrap(), None, max.map(BitRate::mbit)).unwrap(),
            allocation: BitRate::mbit(allocation),
            share: BitRate::mbit(allocation),
            target: BitRate::mbit(allocation),
            backlogged,
            takes_all: backlogged,
            is_steady: false,
            prio: 1,
        };
        let members = [
            member(16, 1, None, 30, true),
            member(17, 2, None, 60, true),
            member(18, 3, None, 0, false),
            member(19, 3, Some(10), 0, false),
        ];
        let refills = Credit::refills(&Plan { shape: &shape, groups: &[], members: &members });
        let mbit: Vec<u64> = refills.values().map(|(rate, _)| rate * 8 / 1_000_000).collect();
        assert_eq!(mbit, [30, 60, 45, 10]);
        assert_eq!(refills[&17].1, BitRate::mbit(60).bytes_in(BURST_TIME).0);
        assert_eq!(refills[&19].1, 37_500);
    }
}
