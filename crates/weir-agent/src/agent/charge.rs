//! Charges what the queues of the download drop.
//!
//! A packet that is dropped here has crossed the line, where it took the place of others. Its bytes are taken from its
//! class's next ones, as CAKE does with `ingress` (net/sched/sch_cake.c). Arrivals keep the capacity then, and
//! not only what is passed on. A class keeps a quarter of its share. The link pays the rest, and keeps a quarter of
//! its capacity: behind the line no one can hold back a sender that does not slow down.

use std::{collections::BTreeMap, time::Duration};

use weir_datapath::engine::{Measured, plan};
use weir_netlink::tc::Counters;
use weir_share::Policy;
use weir_units::{BitRate, Bytes, Instant};

/// A debt is paid over this time, so that a burst of losses does not stop its class.
const PAID_IN: Duration = Duration::from_millis(500);

/// One part in this number of a share, or of the capacity, is never charged.
const KEPT: u64 = 4;

/// The debt of a class.
#[derive(Debug, Default)]
struct Account {
    counters: Counters,
    /// Bytes of one packet of its queue, as the kernel counts packets that it drops.
    packet: u64,
    debt: u64,
    /// Paid since the last division.
    rate: BitRate,
}

/// The debts of all classes of a link.
#[derive(Debug, Default)]
pub(super) struct Charges {
    accounts: BTreeMap<u16, Account>,
    /// The debt that no class can pay.
    debt: u64,
    rate: BitRate,
    looked_at: Option<Instant>,
}

/// The most of what can be charged.
fn chargeable(rate: BitRate) -> BitRate {
    rate.scale(KEPT - 1, KEPT)
}

impl Charges {
    /// Takes new counters of the classes, and what was paid since the last ones. Answers whether the link is to be
    /// divided again.
    pub(super) fn observe(&mut self, measured: &[Measured], now: Instant) -> bool {
        let time = self.looked_at.replace(now).map_or(Duration::ZERO, |before| now.since(before));
        self.accounts.retain(|minor, _| measured.iter().any(|m| m.minor == *minor));
        for m in measured {
            let account = self
                .accounts
                .entry(m.minor)
                .or_insert_with(|| Account { counters: m.counters, ..Account::default() });
            account.observe(m.counters, time);
        }
        self.debt = self.debt.saturating_sub(self.rate.bytes_in(time).0);
        let pays = |debt: u64, rate: BitRate| debt > 0 || rate > BitRate::ZERO;
        pays(self.debt, self.rate) || self.accounts.values().any(|a| pays(a.debt, a.rate))
    }

    /// The part of the capacity that the classes divide, before they pay themselves.
    pub(super) fn charged(&mut self, capacity: BitRate) -> BitRate {
        let most = chargeable(capacity);
        self.debt = self.debt.min(most.bytes_in(PAID_IN).0);
        self.rate = BitRate::of(Bytes(self.debt), PAID_IN).min(most);
        capacity.saturating_sub(self.rate)
    }

    /// The most that classes and groups may have, by minor, after they have paid, and what they pay together.
    pub(super) fn settle(
        &mut self,
        groups: &[plan::Group],
        members: &[plan::Member],
    ) -> (BTreeMap<u16, BitRate>, BitRate) {
        let (mut limits, mut all) = (BTreeMap::new(), BitRate::ZERO);
        for member in members {
            let Some(account) = self.accounts.get_mut(&member.minor) else { continue };
            let most = chargeable(member.allocation);
            let own = account.debt.min(most.bytes_in(PAID_IN).0);
            // The link takes over what the class cannot pay.
            self.debt += account.debt - own;
            account.debt = own;
            account.rate = BitRate::of(Bytes(own), PAID_IN).min(most);
            if account.rate == BitRate::ZERO {
                continue;
            }
            all = all.saturating_add(account.rate);
            limits.insert(member.minor, member.allocation.saturating_sub(account.rate));
            // Others of its group have no claim to what it pays.
            if let Some(group) = member.group.and_then(|group| groups.get(group)) {
                let limit = limits.entry(group.minor).or_insert(group.allocation);
                *limit = limit.saturating_sub(account.rate);
            }
        }
        (limits, all)
    }

    /// The rate that a class pays now.
    pub(super) fn of_class(&self, minor: u16) -> BitRate {
        self.accounts.get(&minor).map_or(BitRate::ZERO, |account| account.rate)
    }

    /// The rate that the link pays now, beside what classes pay themselves.
    pub(super) fn of_link(&self) -> BitRate {
        self.rate
    }
}

impl Account {
    fn observe(&mut self, now: Counters, time: Duration) {
        self.debt = self.debt.saturating_sub(self.rate.bytes_in(time).0);
        if let Some(packet) = now.backlog.checked_div(now.queued) {
            self.packet = packet;
        } else if self.packet == 0 {
            self.packet = now.bytes.checked_div(now.packets).unwrap_or(0);
        }
        // A new class of this minor counts from zero.
        let before = if now.bytes < self.counters.bytes { 0 } else { self.counters.drops };
        self.debt += now.drops.saturating_sub(before) * self.packet;
        self.counters = now;
    }
}

/// A policy under a limit.
pub(super) fn limited(policy: Policy, limit: Option<&BitRate>) -> Policy {
    let Some(limit) = limit else { return policy };
    let limit = (*limit).max(Policy::MIN_RATE);
    let max = policy.max().map_or(limit, |max| max.min(limit));
    Policy::new(policy.weight(), policy.min().map(|min| min.min(max)), Some(max)).unwrap_or(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);
    const PACKET: u64 = 1000;

    /// Classes of these weights, each with the rate at which it arrives, if it does not slow down.
    struct Link {
        charges: Charges,
        capacity: f64,
        senders: Vec<(f64, Option<f64>)>,
        counters: Vec<Counters>,
        rates: Vec<f64>,
        now: Instant,
    }

    fn mbit(rate: BitRate) -> f64 {
        rate.as_mbit()
    }

    impl Link {
        fn new(capacity: f64, senders: &[(f64, Option<f64>)]) -> Link {
            let counters = vec![Counters::default(); senders.len()];
            let charges = Charges::default();
            let mut link = Link {
                charges,
                capacity,
                senders: senders.to_vec(),
                counters,
                rates: Vec::new(),
                now: Instant::default(),
            };
            link.divide();
            link
        }

        fn divide(&mut self) {
            let charged = mbit(self.charges.charged(BitRate((self.capacity * 1e6) as u64)));
            let weights: f64 = self.senders.iter().map(|(weight, _)| weight).sum();
            let members: Vec<plan::Member> = (0u16..)
                .zip(&self.senders)
                .map(|(minor, (weight, _))| {
                    let allocation = BitRate((charged * weight / weights * 1e6) as u64);
                    plan::Member {
                        minor,
                        group: None,
                        policy: Policy::default(),
                        allocation,
                        share: allocation,
                        target: allocation,
                        backlogged: true,
                        takes_all: true,
                        is_steady: false,
                        prio: 1,
                    }
                })
                .collect();
            let (limits, _) = self.charges.settle(&[], &members);
            self.rates =
                members.iter().map(|m| mbit(*limits.get(&m.minor).unwrap_or(&m.allocation))).collect();
        }

        /// A tick: what arrives of each.
        fn tick(&mut self) -> Vec<f64> {
            let mut arrives = Vec::new();
            for (i, (_, sends)) in self.senders.iter().enumerate() {
                let passes = sends.unwrap_or(f64::MAX).min(self.rates[i]);
                let all = sends.unwrap_or(passes);
                let bytes = |mbit: f64| (mbit * 1e6 / 8.0 * TICK.as_secs_f64()) as u64;
                let counters = &mut self.counters[i];
                counters.bytes += bytes(passes);
                counters.packets += bytes(passes) / PACKET;
                counters.drops += bytes(all - passes) / PACKET;
                (counters.backlog, counters.queued) = (30 * PACKET, 30);
                arrives.push(all);
            }
            self.now = self.now + TICK;
            let measured: Vec<Measured> =
                (0u16..).zip(&self.counters).map(|(minor, c)| Measured { minor, counters: *c }).collect();
            if self.charges.observe(&measured, self.now) {
                self.divide();
            }
            arrives
        }

        fn settle(&mut self) -> Vec<f64> {
            (0..100).map(|_| self.tick()).last().unwrap()
        }
    }

    #[test]
    fn beside_a_flood_arrivals_keep_the_capacity_and_others_their_weights() {
        for flood in [10.0, 20.0, 30.0] {
            let mut link = Link::new(45.0, &[(1.0, Some(flood)), (2.0, None), (4.0, None)]);
            let arrives = link.settle();
            let sum: f64 = arrives.iter().sum();
            assert!((sum / 45.0 - 1.0).abs() < 0.03, "{flood}: {sum:.1} arrives");
            assert!((arrives[2] / arrives[1] / 2.0 - 1.0).abs() < 0.01, "{flood}: {arrives:.2?}");
        }
        // More than the line can carry leaves the others a quarter of the capacity, by weight.
        let mut link = Link::new(45.0, &[(1.0, Some(60.0)), (2.0, None), (4.0, None)]);
        let rest = link.settle();
        let quarter = 45.0 / 4.0;
        assert!((rest[1] - quarter * 2.0 / 7.0).abs() < 0.1, "{rest:.2?}");
        assert!((link.rates[0] - quarter / 7.0 / 4.0).abs() < 0.1, "{:.2?}", link.rates);
    }

    #[test]
    fn a_class_pays_for_its_drops_alone_while_it_can() {
        // A tenth more than its share, as many flows of BBR send.
        let mut link = Link::new(40.0, &[(1.0, Some(22.0)), (1.0, None)]);
        let arrives = link.settle();
        assert!((arrives[1] - 20.0).abs() < 2.1, "{arrives:.2?}");
        assert_eq!(link.charges.of_class(1), BitRate::ZERO, "the other one pays nothing itself");
        assert!(link.rates[0] < 10.0, "{:.2?}", link.rates);
    }

    #[test]
    fn all_bytes_of_a_burst_of_drops_are_paid_and_then_nothing_more() {
        let mut link = Link::new(40.0, &[(1.0, None), (1.0, None)]);
        link.tick();
        link.counters[0].drops += 100;
        let mut paid = 0.0;
        for _ in 0..100 {
            link.tick();
            paid += (20.0 - link.rates[0]) * 1e6 / 8.0 * TICK.as_secs_f64();
            assert!((link.rates[1] - 20.0).abs() < 1e-3, "{:?}", link.rates);
            assert!(link.rates[0] >= 5.0 - 1e-3, "{:?}", link.rates);
        }
        assert!((paid / (100.0 * PACKET as f64) - 1.0).abs() < 0.05, "{paid} bytes");
        assert!((link.rates[0] - 20.0).abs() < 0.1, "{:?}", link.rates);
        // Classes that drop nothing are left alone.
        let mut calm = Link::new(40.0, &[(1.0, None), (3.0, Some(5.0))]);
        calm.tick();
        let rates = [calm.charges.of_class(0), calm.charges.of_class(1), calm.charges.of_link()];
        assert_eq!(rates, [BitRate::ZERO; 3]);
    }

    #[test]
    fn a_limit_takes_a_minimum_along_and_never_raises_anything() {
        let mbit = BitRate::mbit;
        let policy = Policy::new(Default::default(), Some(mbit(8)), Some(mbit(10))).unwrap();
        let under = |limit| limited(policy, Some(&limit));
        assert_eq!(limited(policy, None), policy);
        assert_eq!(under(mbit(20)), policy);
        assert_eq!((under(mbit(9)).min(), under(mbit(9)).max()), (Some(mbit(8)), Some(mbit(9))));
        assert_eq!((under(mbit(4)).min(), under(mbit(4)).max()), (Some(mbit(4)), Some(mbit(4))));
        assert_eq!(under(BitRate::ZERO).max(), Some(Policy::MIN_RATE));
    }
}
