//! The credit modes of the qdisc in user space: qCon's scheduler as the paper has it, and repaired.

use weir_share::{CreditAllocator, CreditForm, Policy, Usage};

use super::{
    super::Mode, CAPACITY, CLASS, Division, FRAME, Link, Load, MS, Qdisc, SECOND, SUPER_PACKET, Scheduler,
    flood, user_end_process, user_paper_credit, user_run_timer,
};
use crate::simulation::{Class, Dice, number};

/// qCon's period.
const PERIOD: u64 = 30 * MS;
/// The most bytes that wait in a class.
const BACKLOG: u32 = 60_000;

impl Qdisc {
    /// The timer of the kernel does what is due until now.
    fn run_timer(&self, now: u64) {
        // SAFETY: under the lock; a number.
        unsafe { user_run_timer(now) }
    }

    /// The process that has loaded the programs ends, and its timer with it.
    fn end_process(&self) {
        // SAFETY: under the lock.
        unsafe { user_end_process() }
    }

    fn credit(&self, minor: u16) -> i64 {
        // SAFETY: under the lock; a number.
        unsafe { user_paper_credit(minor.into()) }
    }
}

/// The qdisc in another mode.
struct InMode<const PAPER: bool>(Qdisc);
type Paper = InMode<true>;
type Repaired = InMode<false>;

impl<const PAPER: bool> Scheduler for InMode<PAPER> {
    fn new() -> Self {
        InMode(Qdisc::in_mode(if PAPER { Mode::Paper } else { Mode::Credit }))
    }

    fn set_group(&mut self, group: u16, policy: &Policy) {
        self.0.set_group(group, policy);
    }

    fn set_class(&mut self, class: u16, policy: &Policy, group: Option<u16>) {
        self.0.set_class(class, policy, group);
    }

    fn enqueue(&mut self, now: u64, class: u16, len: u32) -> bool {
        Scheduler::enqueue(&mut self.0, now, class, len)
    }

    fn dequeue(&mut self, now: u64) -> Result<(u16, u32), u64> {
        Scheduler::dequeue(&mut self.0, now)
    }
}

/// The traffic of a class in one period: frames, and how many of them it still has to send.
fn offer(dice: &mut Dice) -> u32 {
    match dice.below(3) {
        0 => 0,
        1 => u32::try_from(dice.below(100)).unwrap(),
        _ => u32::MAX,
    }
}

/// Runs one period until `end`, and returns the bytes that each class sent.
fn period(qdisc: &Qdisc, mut now: u64, end: u64, queued: &mut [u32], offers: &mut [u32]) -> Vec<Usage> {
    let mut usages = vec![Usage::default(); queued.len()];
    while now < end {
        for (class, (queued, offer)) in (CLASS..).zip(queued.iter_mut().zip(offers.iter_mut())) {
            while *offer > 0 && *queued + FRAME <= BACKLOG {
                qdisc.enqueue(now, class, FRAME);
                *queued += FRAME;
                *offer -= 1;
            }
        }
        match qdisc.dequeue(now) {
            Ok((class, len)) => {
                let class = usize::from(class - CLASS);
                queued[class] -= len;
                usages[class].used.0 += u64::from(len);
            }
            Err(0) => now = end,
            Err(wake) => now = wake.max(now + 1),
        }
    }
    usages
}

/// The kernel's integers and the library's fractions differ by rounding alone.
#[test]
fn credit_of_each_period_is_that_of_algorithm_1() {
    let mut dice = Dice(number("WEIR_SEED", 11));
    for _ in 0..40 {
        let classes = 1 + u16::try_from(dice.below(7)).unwrap();
        let mut promised = 60_000;
        let policies: Vec<Policy> = (0..classes).map(|_| dice.policy(&mut promised, 0)).collect();
        let qdisc = Qdisc::in_mode(Mode::Paper);
        (CLASS..).zip(&policies).for_each(|(class, policy)| qdisc.set(class, policy, 0));
        let mut oracle = CreditAllocator::new(CAPACITY, CreditAllocator::PERIOD).with_form(CreditForm::Paper);
        oracle.set_classes(&policies);
        let mut queued = vec![0; policies.len()];
        let mut usages = vec![Usage::default(); policies.len()];
        // The first packet begins the first period.
        qdisc.enqueue(SECOND, CLASS, FRAME);
        queued[0] = FRAME;
        for number in 0..50 {
            let now = SECOND + number * PERIOD;
            qdisc.run_timer(now);
            let wanted = oracle.tick(&usages).to_vec();
            for ((class, wanted), policy) in (CLASS..).zip(wanted).zip(&policies) {
                let got = qdisc.credit(class);
                let differs = got.max(0).abs_diff(wanted.0.try_into().unwrap());
                assert!(
                    differs <= 16,
                    "period {number}, class {class:x} of {policies:?}: {got} bytes instead of {wanted}: {policy:?}"
                );
            }
            let mut offers: Vec<u32> = policies.iter().map(|_| offer(&mut dice)).collect();
            // Credit that is due at the end belongs to the next period.
            usages = period(&qdisc, now, now + PERIOD, &mut queued, &mut offers);
        }
    }
}

/// Greedy classes of these weights; a weight of 0 stands for an idle class of weight 3.
fn division(weights: &[u32], len: u32) -> Division {
    let class = |weight: &u32| match weight {
        0 => Class { load: Load::Nothing, ..flood(3, None, None, None) },
        weight => Class { load: Load::Greedy(len), ..flood(*weight, None, None, None) },
    };
    Division { classes: weights.iter().map(class).collect(), groups: vec![] }
}

/// The use of the link, and the largest error of a share of what is sent.
fn measured<S: Scheduler>(division: &Division) -> (f64, f64) {
    let mut link = Link::<S>::new(division);
    link.run(SECOND);
    let rates = link.rates(20 * SECOND);
    let sent: f64 = rates.iter().sum();
    let weight = |class: &Class| match class.load {
        Load::Nothing => 0.0,
        _ => f64::from(class.policy.weight().get()),
    };
    let weights: f64 = division.classes.iter().map(weight).sum();
    let error = |(rate, class): (&f64, &Class)| match weight(class) {
        0.0 => 0.0,
        weight => (rate / sent / (weight / weights) - 1.0).abs(),
    };
    (sent / CAPACITY.0 as f64, rates.iter().zip(&division.classes).map(error).fold(0.0, f64::max))
}

/// Frames fill the link in both forms. The paper's form loses what super-packets leave at a period's end, and
/// all credit of a last class that is idle.
#[test]
fn papers_form_loses_credit_that_the_repaired_form_uses() {
    println!("weights (0 is idle)     packet   paper: use, error    repaired: use, error");
    for (weights, len, use_of_paper, error_of_paper) in [
        (&[1, 1, 1][..], FRAME, 0.999..=1.0, 0.005),
        (&[1, 2, 3], FRAME, 0.999..=1.0, 0.005),
        (&[1, 2, 3, 4, 5], FRAME, 0.999..=1.0, 0.005),
        (&[1, 2, 3, 4, 5], SUPER_PACKET, 0.97..=0.985, 0.06),
        (&[0, 1, 2], FRAME, 0.999..=1.0, 0.005),
        (&[1, 2, 0], FRAME, 0.495..=0.505, 0.005),
    ] {
        let division = division(weights, len);
        let (paper, repaired) = (measured::<Paper>(&division), measured::<Repaired>(&division));
        println!(
            "{:<22} {len:>6}   {:.4} {:.4}   {:.4} {:.4}",
            format!("{weights:?}"),
            paper.0,
            paper.1,
            repaired.0,
            repaired.1
        );
        assert!(
            use_of_paper.contains(&(paper.0 * 0.9999)),
            "{weights:?}, {len}: the paper's form uses {}",
            paper.0
        );
        assert!(paper.1 <= error_of_paper, "{weights:?}, {len}: a share is {} off", paper.1);
        assert!(repaired.0 >= 0.999 && repaired.1 <= 0.005, "{weights:?}, {len}: repaired {repaired:?}");
    }
}

/// A BPF timer ends with the process that loaded it.
#[test]
fn limits_hold_after_the_process_and_its_timer_have_ended() {
    let division = division(&[1, 2, 3], FRAME);
    let mut link = Link::<Paper>::new(&division);
    link.run(SECOND);
    let before = link.rates(10 * SECOND);
    link.scheduler.0.end_process();
    link.run(SECOND);
    let after = link.rates(10 * SECOND);
    for (before, after) in before.iter().zip(&after) {
        assert!((after / before - 1.0).abs() < 0.01, "{before} bit/s before, {after} after");
    }
}
