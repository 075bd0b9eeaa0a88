//! The clock for agreements. The calendar's clock may be set, so a step of it is not believed at once.
//!
//! The believed time runs with the kernel's clock since boot, which cannot be set. The calendar's clock
//! corrects it while the two differ by at most [`TOLERANCE`]. A larger step is believed after it has
//! stood for [`STANDS`]. If the kernel calls the clock synchronised, the wait is
//! [`STANDS_SYNCHRONIZED`]. That wait is not zero, because a wrong answer of a time server counts as
//! synchronised too.
//!
//! A new agent continues from the time that the last agent stored. In the same boot, the clock since
//! boot tells how long ago that was. In a later boot, the stored time is the earliest possible time, and
//! an earlier clock is not believed. A clock that is more than [`MAX_OFF`] later may be right, or may be
//! wrong until a time server is heard. It is believed once it is synchronised, or after [`STANDS_AT_BOOT`].

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_agree::Utc;
use weir_api::EventKind;

use super::Agent;

/// A larger difference is a step.
const TOLERANCE: Duration = Duration::from_secs(2);
/// How long a step must stand.
pub(crate) const STANDS: Duration = Duration::from_secs(600);
/// How long a step must stand if the kernel calls the clock synchronised.
pub(crate) const STANDS_SYNCHRONIZED: Duration = Duration::from_secs(120);
/// How long a clock that is far ahead at a new boot must stand if it is not synchronised.
pub(crate) const STANDS_AT_BOOT: Duration = Duration::from_secs(120);
/// A node that was off for longer waits for its clock to be synchronised.
const MAX_OFF: Duration = Duration::from_secs(3_600);
/// 2026-01-01. A clock with an earlier time was never set, because no node ran this program before.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);
/// How often the believed time is stored.
const STORED_EVERY: Duration = Duration::from_secs(600);

/// A reading of the kernel's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Time since 1970.
    pub(crate) wall: Duration,
    /// Time since boot, including suspended time.
    pub(crate) boot: Duration,
    /// A program told the kernel that the clock is right.
    pub(crate) is_synchronized: bool,
}

/// The believed time in its stored form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Time since 1970.
    wall: Duration,
    /// Time since boot.
    boot: Duration,
    boot_id: String,
}

impl Mark {
    /// The believed time.
    pub(crate) fn at(&self) -> Utc {
        utc(self.wall)
    }
}

/// A step that is not believed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Doubt {
    /// The clock's time after the step, and the believed time at that moment.
    said: Duration,
    believed: Duration,
    since: Duration,
    /// The believed time was a lower bound.
    was_earliest: bool,
}

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClockEvent {
    /// The step is not believed yet.
    Doubted(String),
    /// The step was undone.
    Back(String),
    /// The step has stood for long enough.
    Believed(String),
}

/// The judge of the calendar's clock.
///
/// Invariant: the believed time never lies before [`EARLIEST`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Clock {
    /// The believed time at the moment `boot` since boot.
    wall: Duration,
    boot: Duration,
    boot_id: String,
    /// The believed time is a lower bound since the boot, so a later clock is likely right.
    is_earliest: bool,
    doubt: Option<Doubt>,
    /// When the time was last stored, as time since boot.
    stored: Option<Duration>,
}

fn utc(since_epoch: Duration) -> Utc {
    Utc::MIN.after(since_epoch)
}

impl Clock {
    /// Continues from the time that the last agent stored.
    pub(crate) fn start(reading: Reading, boot_id: &str, mark: Option<&Mark>) -> Clock {
        let Reading { wall, boot, is_synchronized } = reading;
        let (wall, is_earliest) = match mark {
            Some(mark) if mark.boot_id == boot_id => (mark.wall + boot.saturating_sub(mark.boot), false),
            Some(mark) if wall + TOLERANCE < mark.wall => (mark.wall, true),
            Some(mark) if wall > mark.wall + MAX_OFF && !is_synchronized => (mark.wall, true),
            _ if wall < EARLIEST => (EARLIEST, true),
            _ => (wall, false),
        };
        let wall = wall.max(EARLIEST);
        Clock { wall, boot, boot_id: boot_id.to_owned(), is_earliest, doubt: None, stored: None }
    }

    fn believed(&self, boot: Duration) -> Duration {
        self.wall + boot.saturating_sub(self.boot)
    }

    /// The believed time at that moment since boot.
    pub(crate) fn now(&self, boot: Duration) -> Utc {
        utc(self.believed(boot))
    }

    /// Compares the clocks. Two calls a second are enough.
    pub(crate) fn look(&mut self, reading: Reading) -> Option<ClockEvent> {
        let Reading { wall, boot, is_synchronized } = reading;
        let believed = self.believed(boot);
        if wall.abs_diff(believed) <= TOLERANCE {
            (self.wall, self.boot, self.is_earliest) = (wall.max(EARLIEST), boot, false);
            let text = || format!("the clock says {} again, as is believed", utc(wall));
            return self.doubt.take().map(|_| ClockEvent::Back(text()));
        }
        let stands =
            |doubt: &Doubt| wall.abs_diff(doubt.said + boot.saturating_sub(doubt.since)) <= TOLERANCE;
        let known = self.doubt.filter(stands);
        let was_earliest = self.is_earliest;
        let doubt = known.unwrap_or(Doubt { said: wall, believed, since: boot, was_earliest });
        let needed = match (is_synchronized, doubt.is_likely_right()) {
            (true, true) => Duration::ZERO,
            (true, false) => STANDS_SYNCHRONIZED,
            (false, true) => STANDS_AT_BOOT,
            (false, false) => STANDS,
        };
        if wall >= EARLIEST && boot.saturating_sub(doubt.since) >= needed {
            let text = format!(
                "the clock says {} and is believed now; it was {} until now",
                utc(wall),
                utc(believed)
            );
            (self.wall, self.boot, self.is_earliest, self.doubt) = (wall, boot, false, None);
            return Some(ClockEvent::Believed(text));
        }
        self.doubt = Some(doubt);
        known.is_none().then(|| ClockEvent::Doubted(doubt.to_string()))
    }

    /// The reason why the clock is not believed, if so.
    pub(crate) fn doubt(&self) -> Option<String> {
        self.doubt.map(|doubt| doubt.to_string())
    }

    /// The mark for the next agent; `None` while the time is in doubt.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let is_known = self.doubt.is_none() && !self.is_earliest;
        is_known.then(|| Mark { wall: self.wall, boot: self.boot, boot_id: self.boot_id.clone() })
    }
}

impl Doubt {
    /// Whether the clock is later than the earliest possible time.
    fn is_likely_right(&self) -> bool {
        self.was_earliest && self.said > self.believed
    }
}

impl std::fmt::Display for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stands, synchronized) = if self.is_likely_right() {
            (STANDS_AT_BOOT, "at once".to_owned())
        } else {
            (STANDS, format!("{} min", STANDS_SYNCHRONIZED.as_secs() / 60))
        };
        write!(
            f,
            "the clock is not believed: it said {} at {}; agreements go by the latter until the clock has stood for \
             {} min ({synchronized} where the kernel says that it is synchronised)",
            utc(self.said),
            utc(self.believed),
            stands.as_secs() / 60,
        )?;
        if self.said < EARLIEST {
            write!(f, "; a time before {} is never believed", utc(EARLIEST))
        } else {
            Ok(())
        }
    }
}

/// The time since boot.
pub(super) fn since_boot() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// Reads the kernel's clocks.
pub(super) fn read() -> Reading {
    let wall = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Reading { wall, boot: since_boot(), is_synchronized: is_synchronized() }
}

/// The id of this boot.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn is_synchronized() -> bool {
    use nix::libc::{STA_UNSYNC, adjtimex, timex};
    // SAFETY: a zeroed `timex` is valid, and with no modes set the kernel only fills it in.
    let (state, status) = unsafe {
        let mut timex: timex = std::mem::zeroed();
        let state = adjtimex(&raw mut timex);
        (state, timex.status)
    };
    state >= 0 && status & STA_UNSYNC == 0
}

impl Agent {
    /// Checks the clock for agreements, reports a step, and stores the time from time to time.
    pub(super) fn watch_clock(&mut self) {
        if self.agreements.is_none() {
            return;
        }
        match self.clock.look(read()) {
            Some(ClockEvent::Doubted(text)) => self.event(EventKind::ClockDoubted, None, text),
            Some(ClockEvent::Back(text)) => self.event(EventKind::ClockBack, None, text),
            Some(ClockEvent::Believed(text)) => self.event(EventKind::ClockBelieved, None, text),
            None => {}
        }
        let now = since_boot();
        if self.clock.stored.is_none_or(|stored| now.saturating_sub(stored) >= STORED_EVERY) {
            self.store_clock();
        }
    }

    /// Stores the time for the next agent.
    pub(super) fn store_clock(&mut self) {
        let Some(mark) = self.clock.mark() else { return };
        self.clock.stored = Some(since_boot());
        if let Err(e) = self.store.save_clock(&mark) {
            tracing::warn!("{e}");
        }
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
