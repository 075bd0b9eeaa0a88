//! How busy the whole machine is.

use std::{
    fs,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// Idle time of all processors at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    at: Instant,
    idle_s: f64,
    processors: usize,
}

impl Moment {
    /// Now.
    ///
    /// # Errors
    /// If `/proc/stat` cannot be read.
    pub(super) fn now() -> Result<Moment> {
        if let Some(idle_s) = soaked_up() {
            return Ok(Moment { at: Instant::now(), idle_s, processors: 1 });
        }
        // To the nanosecond where the kernel tells (root only, and with its tick off while
        // idle); to the hundredth of a second otherwise.
        let list = fs::read_to_string("/proc/timer_list").unwrap_or_default();
        let at = Instant::now();
        if let Some((idle_s, processors)) = exact(&list) {
            return Ok(Moment { at, idle_s, processors });
        }
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let (idle_s, processors) = coarse(&stat).context("/proc/stat tells no idle time")?;
        Ok(Moment { at: Instant::now(), idle_s, processors })
    }

    /// How many there are.
    pub(super) fn processors(self) -> usize {
        self.processors
    }

    /// Seconds since then, and seconds of them that processors were busy.
    ///
    /// # Errors
    /// As [`Moment::now`].
    pub(super) fn elapsed(self) -> Result<(f64, f64)> {
        let now = Moment::now()?;
        let seconds = (now.at - self.at).as_secs_f64();
        Ok((seconds, (seconds * self.processors as f64 - (now.idle_s - self.idle_s)).max(0.0)))
    }
}

/// Idle time of the only processor of a guest whose time is the instructions that it executes
/// (`WEIR_VM`, set by the test harness); nothing elsewhere.
///
/// There the kernel's account is wrong, as idle time is skipped. So none is left: a thread that runs
/// when nobody else does adds up what it gets, and what remains are the others' instructions, exact.
fn soaked_up() -> Option<f64> {
    static IDLE_NS: AtomicU64 = AtomicU64::new(0);
    static STARTED: OnceLock<bool> = OnceLock::new();
    let starts = || {
        let counts = std::env::var("WEIR_VM").is_ok_and(|time| time == "instructions");
        let alone = thread::available_parallelism().is_ok_and(|n| n.get() == 1);
        counts && alone && thread::Builder::new().name("idle".to_owned()).spawn(|| soak(&IDLE_NS)).is_ok()
    };
    STARTED.get_or_init(starts).then(|| IDLE_NS.load(Ordering::Relaxed) as f64 / 1e9)
}

/// A round takes a tenth of this; whoever interrupts it, several times as long.
const INTERRUPTED: Duration = Duration::from_micros(1);

fn soak(idle_ns: &AtomicU64) {
    // SAFETY: the calling thread and a struct that outlives the call.
    unsafe {
        let param = nix::libc::sched_param { sched_priority: 0 };
        nix::libc::sched_setscheduler(0, nix::libc::SCHED_IDLE, &raw const param);
    }
    let mut last = Instant::now();
    loop {
        let now = Instant::now();
        let gap = now - last;
        if gap < INTERRUPTED {
            idle_ns.fetch_add(gap.as_nanos() as u64, Ordering::Relaxed);
        }
        last = now;
    }
}

/// From /proc/timer_list: `.idle_sleeptime : 123 nsecs` and `.iowait_sleeptime: 4 nsecs`, a pair a
/// processor.
fn exact(text: &str) -> Option<(f64, usize)> {
    let all = |name: &str| -> Vec<f64> {
        text.lines()
            .filter_map(|line| {
                let (key, value) = line.trim().split_once(':')?;
                if key.trim() != name {
                    return None;
                }
                value.trim().strip_suffix("nsecs")?.trim().parse::<f64>().ok()
            })
            .collect()
    };
    let idle = all(".idle_sleeptime");
    let sum: f64 = idle.iter().chain(&all(".iowait_sleeptime")).sum();
    (sum > 0.0).then_some((sum / 1e9, idle.len()))
}

/// From /proc/stat, in hundredths of a second: `cpu  user nice system idle iowait ...`.
fn coarse(text: &str) -> Option<(f64, usize)> {
    let words: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    let is_one = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let processors = text.lines().filter(is_one).count();
    Some(((words.get(3)? + words.get(4)?) as f64 / 100.0, processors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_read_from_either_file() {
        let list = "cpu: 0\n  .idle_sleeptime : 2000000000 nsecs\n  .iowait_sleeptime: 500000000 nsecs\n\
                    cpu: 1\n  .idle_sleeptime : 1500000000 nsecs\n  .iowait_sleeptime: 0 nsecs\n";
        assert_eq!(exact(list), Some((4.0, 2)));
        assert_eq!(exact("Timer List Version: v0.9\n"), None);
        let stat =
            "cpu  10 0 20 300 100 0 5 0 0 0\ncpu0 5 0 10 150 50 0 0 0\ncpu1 5 0 10 150 50 0 5 0\nintr 7\n";
        assert_eq!(coarse(stat), Some((4.0, 2)));
    }

    #[test]
    fn a_machine_is_never_busier_than_it_has_processors() {
        let start = Moment::now().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (seconds, busy) = start.elapsed().unwrap();
        assert!(seconds >= 0.05 && busy <= seconds * start.processors as f64 + 0.02, "{seconds} {busy}");
    }
}
