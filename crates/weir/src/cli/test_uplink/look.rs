//! The counters of a phase: the agent's of each class, and the device's own.

use std::{
    thread,
    time::{Duration, Instant},
};

use weir_api::{Class, ClassKind, Client};
use weir_netlink::{Netlink, Sent};
use weir_units::{BitRate, Bytes, Framing};

use super::judge::CLASSES;

/// The time after which a counter that stands still is taken as it is. Some drivers count once a second.
const STILL: Duration = Duration::from_millis(1_500);
const POLL: Duration = Duration::from_millis(4);

/// All counters at a moment. The agent and a driver count now and then, so each count is taken when it has just changed.
pub(super) struct Look {
    classes_at: Instant,
    /// Bytes of each class of the test.
    classes: [u64; 3],
    /// Bytes of all other classes.
    others: u64,
    device_at: Instant,
    device: Sent,
}

/// The rates between two looks.
pub(super) struct Rates {
    pub(super) classes: [BitRate; 3],
    pub(super) others: BitRate,
    /// The device's, as the line carries it.
    pub(super) device: BitRate,
}

impl Look {
    /// # Errors
    /// The agent or the kernel does not answer.
    pub(super) fn take(client: &Client, netlink: &mut Netlink, device: &str) -> anyhow::Result<Look> {
        let (classes, classes_at) = changed(|| Ok(count(&client.classes()?)), |(own, _)| own.iter().sum())?;
        let (device, device_at) = changed(|| Ok(netlink.sent(device)?), |sent| sent.bytes.0)?;
        Ok(Look { classes_at, classes: classes.0, others: classes.1, device_at, device })
    }

    pub(super) fn until(&self, later: &Look, framing: Option<Framing>) -> Rates {
        let time = later.classes_at - self.classes_at;
        let rate = |before: u64, after: u64| BitRate::of(Bytes(after.saturating_sub(before)), time);
        let bytes = Bytes(later.device.bytes.0.saturating_sub(self.device.bytes.0));
        let packets = later.device.packets.saturating_sub(self.device.packets);
        let on_line = framing.map_or(bytes, |framing| framing.line_bytes_of(bytes, packets));
        Rates {
            classes: [0, 1, 2].map(|n| rate(self.classes[n], later.classes[n])),
            others: rate(self.others, later.others),
            device: BitRate::of(on_line, later.device_at - self.device_at),
        }
    }
}

/// The bytes of the test's classes, and of all others.
fn count(classes: &[Class]) -> ([u64; 3], u64) {
    let of = |name: &str| classes.iter().find(|class| class.name == name).map_or(0, |class| class.bytes.0);
    let own = CLASSES.map(of);
    // A group's bytes are those of its members.
    let all = classes.iter().filter(|class| class.kind != ClassKind::Group).map(|class| class.bytes.0);
    (own, all.sum::<u64>().saturating_sub(own.iter().sum()))
}

/// Reads until the count changes. Returns the value with the moment.
fn changed<T>(
    mut read: impl FnMut() -> anyhow::Result<T>,
    count: impl Fn(&T) -> u64,
) -> anyhow::Result<(T, Instant)> {
    let begin = Instant::now();
    let first = count(&read()?);
    loop {
        thread::sleep(POLL);
        let value = read()?;
        let now = Instant::now();
        if count(&value) != first || now - begin > STILL {
            return Ok((value, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn count_is_taken_when_it_has_just_changed() {
        let begin = Instant::now();
        let read = || Ok(begin.elapsed().as_millis() as u64 / 100);
        let (value, at) = changed(read, |count| *count).unwrap();
        let late = (at - begin).as_millis() as u64 % 100;
        assert!(value == 1 && late < 60, "{value} at {:?}", at - begin);
    }

    #[test]
    fn count_that_stands_still_is_taken_after_a_while() {
        let reads = Cell::new(0);
        let read = || {
            reads.set(reads.get() + 1);
            Ok(7)
        };
        assert_eq!(changed(read, |count| *count).unwrap().0, 7);
        assert!(reads.get() > 2);
    }

    #[test]
    fn device_counts_what_the_line_carries() {
        let at = Instant::now();
        let look = |time: u64, bytes, packets| Look {
            classes_at: at + Duration::from_secs(time),
            classes: [bytes, 0, 0],
            others: 0,
            device_at: at + Duration::from_secs(time),
            device: Sent { packets, bytes: Bytes(bytes) },
        };
        let (before, after) = (look(0, 1_000, 1), look(1, 1_243_000, 1_001));
        assert_eq!(before.until(&after, None).device, BitRate::kbit(9_936));
        // 30 bytes around each IP packet of 1,228 bytes.
        let framing = Framing { overhead: 30, ..Framing::default() };
        assert_eq!(before.until(&after, Some(framing)).device, BitRate::kbit(10_064));
        assert_eq!(before.until(&after, None).classes[0], BitRate::kbit(9_936));
    }
}
