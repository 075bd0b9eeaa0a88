//! How much of a processor's time the thread may have before others. The arithmetic is pure; [`ask`] asks
//! the kernel.

use std::{io, time::Duration};

use weir_units::Instant;

/// A thread that goes before all ordinary ones could keep a processor from them for good, its own
/// senders among them. The thread goes before other processes for at most 20 ms without a pause. It
/// earns used time again four times as fast, asleep or as one of many. It is one of many until it
/// has earned all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RealtimeBudget {
    used: Duration,
    at: Instant,
    is_ahead: bool,
}

impl RealtimeBudget {
    const MAX_SAVED: Duration = Duration::from_millis(20);
    const EARNED: u32 = 4;

    /// Since it was last told, the thread was asleep, or not. The order from now on: before others,
    /// or one of many.
    pub(super) fn spent(&mut self, now: Instant, asleep: bool) -> bool {
        let time = now.since(self.at);
        self.at = now;
        if self.is_ahead && !asleep {
            self.used += time;
        } else {
            self.used = self.used.saturating_sub(RealtimeBudget::EARNED * time);
        }
        self.is_ahead =
            self.used < RealtimeBudget::MAX_SAVED && (self.is_ahead || self.used == Duration::ZERO);
        self.is_ahead
    }
}

/// Has the kernel run the calling thread before all ordinary ones, or as one of them. Threads that it makes
/// are ordinary.
///
/// # Errors
/// EPERM: the process lacks `CAP_SYS_NICE`, or its cgroup real-time time.
pub(super) fn ask(ahead: bool) -> io::Result<()> {
    let policy = if ahead { libc::SCHED_RR } else { libc::SCHED_OTHER };
    let priority = libc::sched_param { sched_priority: i32::from(ahead) };
    // SAFETY: a plain system call on a valid structure; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_micros(100);

    /// The part of a second in which it is before others, if it works and sleeps alternately.
    fn ahead(work: u32, sleep: u32) -> f64 {
        let (mut realtime, mut now, mut ahead, mut is_ahead) =
            (RealtimeBudget::default(), Instant::default(), 0, false);
        for tick in 0..10_000 {
            let asleep = tick % (work + sleep) >= work;
            ahead += u32::from(is_ahead && !asleep);
            now = now + TICK;
            is_ahead = realtime.spent(now, asleep);
        }
        f64::from(ahead) / f64::from(10_000 * work / (work + sleep))
    }

    #[test]
    fn thread_that_sleeps_a_fifth_is_always_before_others() {
        assert!(ahead(1, 9) > 0.99 && ahead(4, 1) > 0.99, "{} {}", ahead(1, 9), ahead(4, 1));
        assert!((ahead(1, 0) - 0.8).abs() < 0.01, "{}", ahead(1, 0));
    }

    #[test]
    fn it_is_never_before_others_for_more_than_20_ms_and_then_not_for_5() {
        let (mut realtime, mut now) = (RealtimeBudget::default(), Instant::default());
        let mut change = || {
            let (begin, first) = (now, realtime.is_ahead);
            let ticks = (1..1000).map(|tick| begin + tick * TICK);
            now = ticks.into_iter().find(|now| realtime.spent(*now, false) != first).expect("soon");
            now.since(begin)
        };
        change();
        for _ in 0..3 {
            assert_eq!(
                (change(), change()),
                (RealtimeBudget::MAX_SAVED, RealtimeBudget::MAX_SAVED / RealtimeBudget::EARNED)
            );
        }
    }

    #[test]
    fn a_thread_goes_before_others_where_it_may_and_never_hands_that_on() {
        std::thread::spawn(|| {
            // SAFETY: plain system calls on the calling thread.
            let policy = || unsafe { libc::sched_getscheduler(0) };
            if let Err(error) = ask(true) {
                println!("SKIPPED: real-time priority (CAP_SYS_NICE) is missing here: {error}");
                return;
            }
            assert_eq!(policy(), libc::SCHED_RR | libc::SCHED_RESET_ON_FORK);
            let child = std::thread::scope(|s| s.spawn(policy).join().unwrap());
            assert_eq!(child, libc::SCHED_OTHER);
            ask(false).unwrap();
            assert_eq!(policy(), libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK);
        })
        .join()
        .unwrap();
    }
}
