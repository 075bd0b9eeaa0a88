//! How late this machine's timers are. A wire made by TBF waits for one between two packets, and
//! loses for good what is later than its burst.

use std::{
    sync::OnceLock,
    thread::sleep,
    time::{Duration, Instant},
};

/// How long a timer is set for: a frame at 100 Mbit/s.
const WAIT: Duration = Duration::from_micros(120);
const SAMPLES: usize = 4000;
/// The part of the time that a wire may lose.
const LOST: f64 = 0.005;
const MAX_LATENESS: Duration = Duration::from_millis(10);

/// The burst that a wire needs to lose next to nothing, at most 10 ms; measured once, for a second.
pub(super) fn lateness() -> Duration {
    static LATENESS: OnceLock<Duration> = OnceLock::new();
    *LATENESS.get_or_init(|| {
        let late = || {
            let start = Instant::now();
            sleep(WAIT);
            start.elapsed().saturating_sub(WAIT)
        };
        covering((0..SAMPLES).map(|_| late()).collect())
    })
}

/// The shortest time beyond which all these are late for no more than [`LOST`] of all the time.
fn covering(mut late: Vec<Duration>) -> Duration {
    late.sort_unstable();
    let all: Duration = late.iter().map(|late| *late + WAIT).sum();
    let may_be_lost = all.mul_f64(LOST);
    let (mut lost, mut longer) = (Duration::ZERO, 0);
    while let Some(longest) = late.pop() {
        longer += 1;
        let next = late.last().copied().unwrap_or_default();
        let more = (longest - next) * longer;
        if lost + more > may_be_lost {
            return (longest - (may_be_lost - lost) / longer).min(MAX_LATENESS);
        }
        lost += more;
    }
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn a_few_late_timers_are_covered_but_for_what_may_be_lost() {
        // 50 of 10,000 us may be lost: this part of the late time.
        let mut late = vec![us(0); 57];
        late.push(us(3040));
        assert_eq!(covering(late), us(3040) - us(10_000) * 5 / 1000);
        assert_eq!(covering(vec![us(0); 100]), us(0));
        assert_eq!(covering(vec![us(50_000); 100]), MAX_LATENESS);
    }
}
