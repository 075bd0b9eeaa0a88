//! A node's network use while it deploys an image: Ahmed and Pierre's Fig. 6.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_testkit::Netns;

/// The node's device.
pub(super) const DEVICE: &str = "up0";
/// The time between two samples.
const STEP: Duration = Duration::from_millis(100);

/// Bytes that a device has carried, with headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) received: u64,
    pub(super) sent: u64,
}

impl Carried {
    /// Reads the line of a device in `/proc/net/dev` (proc(5)): `DEVICE:`, then 8 columns of what was received,
    /// then 8 of what was sent, bytes first.
    pub(super) fn of(device: &str, text: &str) -> Option<Carried> {
        let columns = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
        let columns: Vec<&str> = columns.split_whitespace().collect();
        Some(Carried { received: columns.first()?.parse().ok()?, sent: columns.get(8)?.parse().ok()? })
    }

    /// Of a device in the namespace of this thread.
    pub(super) fn here(device: &str) -> Result<Carried> {
        let text = fs::read_to_string("/proc/thread-self/net/dev").context("cannot read /proc/net/dev")?;
        Carried::of(device, &text).with_context(|| format!("{device} is gone"))
    }
}

/// A node's rates in a step, Mbit/s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Use {
    /// The end of the step, s after the deployment began.
    pub(crate) at_s: f64,
    /// The rate that the node received.
    pub(crate) download: f64,
    /// The rate that the node sent.
    pub(crate) upload: f64,
}

fn bytes(seen: &[Use], rate: fn(&Use) -> f64) -> f64 {
    let begin = |nth: usize| nth.checked_sub(1).map_or(0.0, |before| seen[before].at_s);
    seen.iter().enumerate().map(|(nth, step)| rate(step) * 1e6 / 8.0 * (step.at_s - begin(nth))).sum()
}

/// Bytes that the node has received in all.
pub(super) fn received(seen: &[Use]) -> f64 {
    bytes(seen, |step| step.download)
}

/// Bytes that the node has sent in all.
pub(super) fn sent(seen: &[Use]) -> f64 {
    bytes(seen, |step| step.upload)
}

/// The rates between samples, each taken at this time after the first one.
fn rates(samples: &[(Duration, Carried)]) -> Vec<Use> {
    let between = |pair: &[(Duration, Carried)]| {
        let [(begin, before), (end, after)] = [pair[0], pair[1]];
        let mbit = |bytes: u64| bytes as f64 * 8e-6 / (end - begin).as_secs_f64().max(1e-6);
        Use {
            at_s: end.as_secs_f64(),
            download: mbit(after.received.saturating_sub(before.received)),
            upload: mbit(after.sent.saturating_sub(before.sent)),
        }
    };
    samples.windows(2).map(between).collect()
}

/// Ends the samples, also if the work panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn watch(over: &AtomicBool) -> Result<Vec<Use>> {
    let begun = Instant::now();
    let mut samples = Vec::new();
    loop {
        let is_last = over.load(Ordering::Relaxed);
        samples.push((begun.elapsed(), Carried::here(DEVICE)?));
        if is_last {
            return Ok(rates(&samples));
        }
        thread::sleep(STEP);
    }
}

/// Does the work, and measures the node meanwhile.
///
/// # Errors
/// The work's, or the device is gone.
pub(super) fn during<T>(node: &Netns, work: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Use>)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| node.run_in(|| watch(&over)));
        let done = {
            let _over = Over(&over);
            work()
        };
        let seen = watch.join().expect("reading counters does not panic");
        Ok((done?, seen.context("cannot enter the node's namespace")??))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  up0:  26700000   17634    0    0    0     0          0         0   911000    9000    0    0    0     0       0          0
 up01:      7       1    0    0    0     0          0         0       8       1    0    0    0     0       0          0
";

    #[test]
    fn counters_are_read_by_the_whole_name_of_a_device() {
        let carried = |received, sent| Some(Carried { received, sent });
        assert_eq!(Carried::of("up0", TEXT), carried(26_700_000, 911_000));
        assert_eq!(Carried::of("up01", TEXT), carried(7, 8));
        assert_eq!(Carried::of("up", TEXT), None);
        assert_eq!(Carried::of("up0", "up0: 1 2 3"), None, "a line that is cut off");
    }

    #[test]
    fn rate_is_that_of_the_step_before_a_sample() {
        let at = |ms, received, sent| (Duration::from_millis(ms), Carried { received, sent });
        let seen = rates(&[at(0, 1000, 5), at(100, 1_251_000, 5), at(300, 1_251_000, 250_005)]);
        assert_eq!(seen.len(), 2);
        assert!((seen[0].download - 100.0).abs() < 1e-9 && seen[0].upload.abs() < 1e-9, "{seen:?}");
        assert!((seen[1].upload - 10.0).abs() < 1e-9 && (seen[1].at_s - 0.3).abs() < 1e-9, "{seen:?}");
        assert!((received(&seen) - 1.25e6).abs() < 1e-3 && (sent(&seen) - 250_000.0).abs() < 1e-3);
        assert!(rates(&[at(0, 1, 1)]).is_empty());
    }
}
