//! qCon's credits against the contract, and the paper's single pass against the repaired form.

mod common;

use std::time::Duration;

use common::*;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use weir_share::{Allocator, CreditAllocator, CreditForm, Demand, Policy, Sharer, Usage, Weight};
use weir_units::{BitRate, Bytes};

/// Shares in percent of a link of 100 Mbit/s.
fn percent(form: CreditForm, sharers: &[Sharer]) -> Vec<f64> {
    let mut allocator = Allocator::credit(form);
    let shares = allocator.allocate(mbit(100), &[], sharers);
    shares.iter().map(|share| (share.as_mbit() * 10.0).round() / 10.0).collect()
}

fn idle(weight: u32) -> Sharer {
    Sharer::new(policy(weight, 0, 0), Demand::NONE)
}

#[test]
fn where_nothing_binds_the_papers_pass_is_the_contract() {
    let sharers = [busy(1, 0, 0), busy(2, 0, 0), busy(5, 0, 0)];
    for form in [CreditForm::Paper, CreditForm::Repaired] {
        assert_eq!(percent(form, &sharers), [12.5, 25.0, 62.5]);
    }
}

#[test]
fn the_papers_pass_gives_what_one_leaves_only_to_later_classes() {
    let first = [busy(1, 0, 0), idle(2), idle(3), idle(4), idle(5)];
    assert_eq!(percent(CreditForm::Paper, &first), [6.7, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(percent(CreditForm::Repaired, &first), [100.0, 0.0, 0.0, 0.0, 0.0]);
    let last = [idle(5), idle(4), idle(3), idle(2), busy(1, 0, 0)];
    assert_eq!(percent(CreditForm::Paper, &last)[4], 100.0);
    assert_eq!(percent(CreditForm::Repaired, &last)[4], 100.0);
}

#[test]
fn papers_pass_lets_only_later_classes_pay_a_minimum() {
    let (floor, plain) = (busy(1, 60, 0), busy(1, 0, 0));
    let paper = |sharers: &[Sharer]| percent(CreditForm::Paper, sharers);
    assert_eq!(paper(&[floor, plain, plain]), [60.0, 20.0, 20.0]);
    assert_eq!(paper(&[plain, floor, plain]), [33.3, 60.0, 6.7]);
    assert_eq!(paper(&[plain, plain, floor]), [33.3, 33.3, 60.0], "127 % of the link");
    // The mean over the turns of the order: 28.9, 60, 20.
    assert_eq!(paper(&[floor, plain, plain])[2] + 33.3 + 33.3, 86.6);
    for sharers in [[floor, plain, plain], [plain, floor, plain], [plain, plain, floor]] {
        let want = sharers.map(|s| if s == floor { 60.0 } else { 20.0 });
        assert_eq!(percent(CreditForm::Repaired, &sharers), want);
    }
}

#[test]
fn papers_pass_lifts_a_class_less_than_a_later_maximum_would() {
    let (floor, ceiling, plain) = (busy(1, 40, 0), busy(1, 0, 10), busy(1, 0, 0));
    assert_eq!(percent(CreditForm::Paper, &[floor, ceiling, plain]), [40.0, 10.0, 50.0]);
    assert_eq!(percent(CreditForm::Paper, &[ceiling, floor, plain]), [10.0, 45.0, 45.0]);
    for form in [[floor, ceiling, plain], [ceiling, floor, plain], [plain, ceiling, floor]] {
        let want = form.map(|s| if s == ceiling { 10.0 } else { 45.0 });
        assert_eq!(percent(CreditForm::Repaired, &form), want);
    }
}

#[test]
fn in_the_papers_pass_nobody_runs_into_debt_for_the_minima_of_others() {
    let mut credits = CreditAllocator::new(mbit(80), Duration::from_millis(30)).with_form(CreditForm::Paper);
    let plain = policy(1, 0, 0);
    credits.set_classes(&[plain, policy(1, 64, 0), plain]);
    let mut credit = vec![Bytes(0); 3];
    for _ in 0..5 {
        let usage = credit.iter().map(|&used| Usage { used, waiting: Bytes(1) }).collect::<Vec<_>>();
        credit = credits.tick(&usage).to_vec();
        assert_eq!(credit, [100_000, 240_000, 0].map(Bytes));
    }
    credits.set_classes(&[plain; 3]);
    let usage = credit.iter().map(|&used| Usage { used, waiting: Bytes(1) }).collect::<Vec<_>>();
    assert_eq!(credits.tick(&usage), [Bytes(100_000); 3]);
}

#[test]
fn a_minimum_that_takes_the_last_credit_is_not_exceeded() {
    // After the first's 103 the second's minimum is all that is left, to a fraction.
    let class = |weight, demand| {
        let policy = Policy::new(Weight::new(weight).unwrap(), Some(BitRate::kbit(8)), None).unwrap();
        Sharer::new(policy, Demand::rate(BitRate(demand)))
    };
    let mut allocator = Allocator::credit(CreditForm::Repaired);
    let shares = allocator.allocate(BitRate(8_103), &[], &[class(1, 103), class(14_407, 8_083)]);
    assert_eq!(shares, [BitRate(103), BitRate(8_000)]);
}

/// A class that wants a real number of bytes in each period, and sends them in whole packets
/// as long as it has credit. It makes up for one packet that it could not send and no more: its
/// sender was blocked.
struct Sender {
    wanted_per_period: f64,
    packet: u64,
    wanted: f64,
    queue: u64,
    sent: u64,
}

impl Sender {
    fn new(demand: Demand, period: Duration, packet: u64) -> Sender {
        let demand = if demand.is_unlimited() { BitRate::MAX } else { demand.get() };
        let wanted_per_period = demand.0 as f64 * period.as_secs_f64() / 8.0;
        Sender { wanted_per_period, packet, wanted: 0.0, queue: 0, sent: 0 }
    }

    fn period(&mut self, credit: Bytes) -> Usage {
        self.wanted += self.wanted_per_period;
        let wanted = (self.wanted / self.packet as f64) as u64 * self.packet;
        self.wanted -= wanted as f64;
        let queue = self.queue + wanted;
        let used = queue.min(credit.0 / self.packet * self.packet);
        self.queue = (queue - used).min(self.packet);
        self.sent += used;
        Usage { used: Bytes(used), waiting: Bytes(queue - used) }
    }
}

/// Mean rate of each class over `counted` periods, after `settling` that do not count.
fn measure(
    credits: &mut CreditAllocator,
    senders: &mut [Sender],
    settling: usize,
    counted: usize,
) -> Vec<f64> {
    let mut usage = vec![Usage::default(); senders.len()];
    for period in 0..settling + counted {
        if period == settling {
            senders.iter_mut().for_each(|sender| sender.sent = 0);
        }
        let credit = credits.tick(&usage);
        for ((usage, sender), credit) in usage.iter_mut().zip(&mut *senders).zip(credit) {
            *usage = sender.period(*credit);
        }
    }
    let time = CreditAllocator::PERIOD.as_secs_f64() * counted as f64;
    senders.iter().map(|sender| sender.sent as f64 * 8.0 / time).collect()
}

/// Shares of a fraction of a byte are given in whole bytes: 30 in 300 periods, as bit/s.
const FEW_BYTES: f64 = 240.0 / 9.0;

fn senders(sharers: &[Sharer], packet: u64) -> Vec<Sender> {
    sharers.iter().map(|s| Sender::new(s.demand, CreditAllocator::PERIOD, packet)).collect()
}

fn credits(capacity: BitRate, sharers: &[Sharer]) -> CreditAllocator {
    let mut credits = CreditAllocator::new(capacity, CreditAllocator::PERIOD);
    credits.set_classes(&sharers.iter().map(|s| s.policy).collect::<Vec<_>>());
    credits
}

#[test]
fn a_share_below_a_packet_a_period_is_saved_up() {
    // 3,750 bytes a period in all; the lightest of ten has a share of 68.
    let sharers = (1..=10).map(|w| busy(w, 0, 0)).collect::<Vec<_>>();
    let rates = measure(&mut credits(mbit(1), &sharers), &mut senders(&sharers, 1_500), 100, 20_000);
    for (i, rate) in rates.iter().enumerate() {
        let want = 1e6 * (i + 1) as f64 / 55.0;
        assert!((rate - want).abs() < want * 0.01, "class {i}: {rate}, {want}");
    }
}

#[test]
fn a_class_that_wakes_has_its_fair_share_or_minimum_at_once() {
    let mut credits = CreditAllocator::new(mbit(80), Duration::from_millis(30));
    credits.set_classes(&[policy(1, 0, 0), policy(3, 0, 0), policy(4, 64, 0), policy(2, 0, 4)]);
    let used = |bytes: [u64; 4]| bytes.map(|b| Usage { used: Bytes(b), waiting: Bytes(b) });
    // 300,000 bytes a period. Only the first sends.
    let mut credit = credits.tick(&used([0; 4])).to_vec();
    for _ in 0..5 {
        credit = credits.tick(&used([credit[0].0, 0, 0, 0])).to_vec();
    }
    assert_eq!(credit, [300_000, 90_000, 240_000, 15_000].map(Bytes));
    // The second wakes, and in the next period has all that it is due: 3/4.
    let woken = [
        Usage { used: Bytes(300_000), waiting: Bytes(1) },
        Usage { used: Bytes(90_000), waiting: Bytes(1) },
        Usage::default(),
        Usage::default(),
    ];
    assert_eq!(credits.tick(&woken)[..2], [75_000, 225_000].map(Bytes));
}

#[test]
fn who_sends_beyond_its_credit_pays_in_the_next_period() {
    let mut credits = CreditAllocator::new(mbit(8), Duration::from_millis(30));
    credits.set_classes(&[policy(1, 0, 0), policy(1, 0, 0)]);
    let usage = |first| [first, 15_000].map(|bytes| Usage { used: Bytes(bytes), waiting: Bytes(1) });
    assert_eq!(credits.tick(&[Usage::default(); 2]), [Bytes(15_000); 2]);
    assert_eq!(credits.tick(&usage(16_000)), [Bytes(14_000), Bytes(15_000)]);
    assert_eq!(credits.tick(&usage(45_000)), [Bytes(0), Bytes(15_000)]);
}

#[test]
fn a_new_list_of_classes_keeps_the_credit_of_places_that_stay() {
    let mut credits = CreditAllocator::new(mbit(8), Duration::from_millis(30));
    credits.set_classes(&[policy(1, 0, 0)]);
    let saved = [Usage { used: Bytes(20_000), waiting: Bytes(12_000) }];
    assert_eq!(credits.tick(&[Usage::default()]), [Bytes(30_000)]);
    assert_eq!(credits.tick(&saved), [Bytes(40_000)]);
    credits.set_classes(&[policy(1, 0, 0), policy(2, 0, 0)]);
    credits.set_capacity(mbit(16));
    let usage = [Usage { used: Bytes(40_000), waiting: Bytes(1) }, Usage::default()];
    // The second asks for nothing yet: its fair share is headroom.
    assert_eq!(credits.tick(&usage), [Bytes(60_000), Bytes(40_000)]);
}

/// Links of 1 Mbit/s to 10 Gbit/s whose floors were admitted, as real ones are.
fn real_links() -> impl Strategy<Value = Link> {
    (1_000_000..10_000_000_000u64).prop_flat_map(|capacity| {
        let classes = sharers(capacity, 30);
        let link = move |sharers| Link { capacity: BitRate(capacity), groups: Vec::new(), sharers };
        classes.prop_map(link).prop_filter("admitted", Link::admitted)
    })
}

/// Of a thousand random links, the largest and the mean relative error of a class's share, and
/// the largest sum of shares relative to the capacity. Classes with less than a 10,000th of
/// the link are left out: there a byte a period counts for much.
fn errors(shares: impl Fn(&Link) -> Vec<f64>) -> (f64, f64, f64) {
    let mut runner = TestRunner::deterministic();
    let (mut worst, mut sum, mut classes, mut most) = (0f64, 0.0, 0, 0f64);
    for _ in 0..1_000 {
        let link = real_links().new_tree(&mut runner).unwrap().current();
        let capacity = link.capacity.0 as f64;
        let shares = shares(&link);
        most = most.max(shares.iter().sum::<f64>() / capacity);
        for (share, exact) in shares.iter().zip(oracle(capacity, &link.sharers)) {
            if exact >= capacity / 1e4 {
                let error = (share - exact).abs() / exact;
                (worst, sum, classes) = (worst.max(error), sum + error, classes + 1);
            }
        }
    }
    (worst, sum / f64::from(classes), most)
}

#[test]
fn the_allocators_compared_with_the_contract() {
    let allocator = |mut allocator: Allocator, link: &Link| {
        let shares = allocator.allocate(link.capacity, &[], &link.sharers);
        shares.iter().map(|share| share.0 as f64).collect::<Vec<_>>()
    };
    let ticks = |link: &Link| {
        let mut credits = credits(link.capacity, &link.sharers);
        measure(&mut credits, &mut senders(&link.sharers, 1), 20, 300)
    };
    let water = errors(|link| allocator(Allocator::water_filling(), link));
    let credit = errors(|link| allocator(Allocator::credit(CreditForm::Repaired), link));
    let bytes = errors(ticks);
    let paper = errors(|link| allocator(Allocator::credit(CreditForm::Paper), link));
    println!("error of a share    largest      mean   sum of shares");
    let rows =
        [("water-filling", water), ("credit", credit), ("credit in bytes", bytes), ("the paper's", paper)];
    for (name, (worst, mean, most)) in rows {
        println!("{name:16} {:9.5} % {:7.5} % {:9.3} % at most", worst * 100.0, mean * 100.0, most * 100.0);
    }
    // A bit of a class's few thousand is some 0.01 %.
    assert!(water.0 < 0.001 && credit.0 < 0.01 && bytes.0 < 0.01);
    assert!(water.2 <= 1.0 && credit.2 <= 1.0 && bytes.2 < 1.001);
    assert!(paper.0 > 0.5 && paper.2 > 1.1, "the paper's pass is not what it was");
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn the_repaired_form_agrees_with_the_contract_within_one_percent(
        link in prop_oneof![4 => links(), 1 => shrunk_links()]
    ) {
        let mut allocator = Allocator::credit(CreditForm::Repaired);
        let shares = allocator.allocate(link.capacity, &[], &link.sharers).to_vec();
        let mut exact = Allocator::water_filling();
        let exact = exact.allocate(link.capacity, &[], &link.sharers);
        for (share, exact) in shares.iter().zip(exact) {
            prop_assert!(share.0.abs_diff(exact.0) <= 1 + exact.0 / 100, "{} for {}", share, exact);
        }
        prop_assert!(shares.iter().map(|share| share.0).sum::<u64>() <= link.capacity.0);
    }

    #[test]
    fn in_groups_too(link in grouped_links()) {
        let mut allocator = Allocator::credit(CreditForm::Repaired);
        allocator.allocate(link.capacity, &link.groups, &link.sharers);
        let mut exact = Allocator::water_filling();
        exact.allocate(link.capacity, &link.groups, &link.sharers);
        let both = |a: &Allocator| [a.allocations(), a.group_allocations()].concat();
        for (share, exact) in both(&allocator).iter().zip(both(&exact)) {
            prop_assert!(share.0.abs_diff(exact.0) <= 2 + exact.0 / 100, "{} for {}", share, exact);
        }
    }

    #[test]
    fn classes_have_their_share_within_one_percent_byte_by_byte(link in real_links()) {
        let exact = oracle(link.capacity.0 as f64, &link.sharers);
        let mut credits = credits(link.capacity, &link.sharers);
        let rates = measure(&mut credits, &mut senders(&link.sharers, 1), 20, 300);
        for (rate, exact) in rates.iter().zip(exact) {
            prop_assert!((rate - exact).abs() <= exact * 0.01 + FEW_BYTES, "{} for {}", rate, exact);
        }
    }

    #[test]
    fn after_a_change_of_demands_the_shares_follow_within_ten_periods(
        link in real_links(),
        changes in prop::collection::vec(prop::collection::vec(demands(1_000_000_000), 30), 1..4)
    ) {
        let mut credits = credits(link.capacity, &link.sharers);
        let mut sharers = link.sharers;
        for demands in changes {
            for (sharer, demand) in sharers.iter_mut().zip(demands) {
                sharer.demand = demand;
            }
            let exact = oracle(link.capacity.0 as f64, &sharers);
            let rates = measure(&mut credits, &mut senders(&sharers, 1), 10, 300);
            for (rate, exact) in rates.iter().zip(exact) {
                prop_assert!((rate - exact).abs() <= exact * 0.01 + FEW_BYTES, "{} for {}", rate, exact);
            }
        }
    }

    #[test]
    fn the_order_of_classes_plays_no_part_in_the_repaired_form(link in links()) {
        let shares = |sharers: &[Sharer]| {
            Allocator::credit(CreditForm::Repaired).allocate(link.capacity, &[], sharers).to_vec()
        };
        let backwards = link.sharers.iter().rev().copied().collect::<Vec<_>>();
        for (one, other) in shares(&link.sharers).iter().zip(shares(&backwards).iter().rev()) {
            prop_assert!(one.0.abs_diff(other.0) <= 1 + one.0 / 1_000_000_000);
        }
    }

    #[test]
    fn no_more_than_one_periods_credit_and_the_minima_is_handed_out_twice(
        policies in prop::collection::vec(policies(100_000_000, 20), 1..20),
        used in prop::collection::vec(prop::collection::vec((0..=100u64, any::<bool>()), 20), 1..20),
    ) {
        let capacity = mbit(100);
        let mut credits = CreditAllocator::new(capacity, CreditAllocator::PERIOD);
        credits.set_classes(&policies);
        let minima = policies.iter().map(|p| p.floor().bytes_in(CreditAllocator::PERIOD).0).sum::<u64>();
        let total = capacity.bytes_in(CreditAllocator::PERIOD).0;
        let mut usage = vec![Usage::default(); policies.len()];
        for period in used {
            let credit = credits.tick(&usage).to_vec();
            let sum = credit.iter().map(|c| c.0).sum::<u64>();
            prop_assert!(sum <= 2 * total + total / 4 + minima + 100, "{} of {}", sum, total);
            for ((usage, credit), (part, all)) in usage.iter_mut().zip(&credit).zip(&period) {
                // Either all of it, with more waiting, or a part, with none.
                let used = if *all { credit.0 } else { credit.0 * part / 100 };
                *usage = Usage { used: Bytes(used), waiting: Bytes(u64::from(*all)) };
            }
        }
    }

    #[test]
    fn a_policy_of_nothing_is_a_fair_share(weight in weights(), others in prop::collection::vec(weights(), 1..9)) {
        let plain = |w| Sharer::new(Policy::new(w, None, None).unwrap(), Demand::UNLIMITED);
        let all = others.into_iter().chain([weight]).map(plain).collect::<Vec<_>>();
        for form in [CreditForm::Paper, CreditForm::Repaired] {
            let shares = Allocator::credit(form).allocate(BitRate::gbit(1), &[], &all).to_vec();
            let sum = all.iter().map(|s| u64::from(s.policy.weight().get())).sum::<u64>();
            let fair = BitRate::gbit(1).scale(weight.get().into(), sum);
            prop_assert!(shares[all.len() - 1].0.abs_diff(fair.0) <= 1);
        }
    }
}
