//! The busy time of the whole machine.

use std::{fs, time::Instant};

use anyhow::{Context, Result};

/// The idle time of all processors at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    at: Instant,
    idle_s: f64,
    processors: usize,
}

impl Moment {
    /// The current moment.
    ///
    /// # Errors
    /// If `/proc/stat` cannot be read.
    pub(super) fn now() -> Result<Moment> {
        // /proc/timer_list has nanoseconds, but only root can read it, and only with the tick off while idle.
        // /proc/stat has hundredths of a second.
        let list = fs::read_to_string("/proc/timer_list").unwrap_or_default();
        let at = Instant::now();
        if let Some((idle_s, processors)) = exact(&list) {
            return Ok(Moment { at, idle_s, processors });
        }
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let (idle_s, processors) = coarse(&stat).context("/proc/stat tells no idle time")?;
        Ok(Moment { at: Instant::now(), idle_s, processors })
    }

    /// The number of processors.
    pub(super) fn processors(self) -> usize {
        self.processors
    }

    /// The seconds since this moment, and the processor seconds of work in them.
    ///
    /// # Errors
    /// Like [`Moment::now`].
    pub(super) fn elapsed(self) -> Result<(f64, f64)> {
        let now = Moment::now()?;
        let seconds = (now.at - self.at).as_secs_f64();
        Ok((seconds, (seconds * self.processors as f64 - (now.idle_s - self.idle_s)).max(0.0)))
    }
}

/// Reads /proc/timer_list: `.idle_sleeptime : 123 nsecs` and `.iowait_sleeptime: 4 nsecs`, a pair a
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

/// Reads /proc/stat, in hundredths of a second: `cpu  user nice system idle iowait ...`.
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
