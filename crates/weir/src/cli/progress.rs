//! The progress of long work, as one line of standard error. Without a terminal nothing is written.

use std::{
    io::{IsTerminal, Write},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};
use weir_units::Bytes;

use super::format;

/// The characters of a bar.
const BAR: u64 = 24;
/// Work that takes less time has no line.
const QUICK: Duration = Duration::from_millis(300);
const EVERY: Duration = Duration::from_millis(200);

/// The line of work in bytes of which the sum is known, or becomes known.
pub(super) struct Bar {
    is_shown: bool,
    began: Instant,
    /// The width of the line that stands there.
    width: usize,
}

impl Bar {
    /// A line, if there is a terminal for it.
    pub(super) fn new(is_json: bool) -> Bar {
        let is_shown = !is_json && std::io::stderr().is_terminal();
        Bar { is_shown, began: Instant::now(), width: 0 }
    }

    pub(super) fn show(&mut self, label: &str, done: Bytes, total: Bytes) {
        if self.is_shown {
            let line = bar(label, done, total, self.began.elapsed());
            self.width = rewrite(&line, self.width);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        rewrite("", self.width);
    }
}

/// `[########----------------]  33 %  10MiB of 30MiB  2.5MiB/s  8s left  LABEL`
fn bar(label: &str, done: Bytes, total: Bytes, took: Duration) -> String {
    if total.0 == 0 {
        return format!("[{}]  {label}", "-".repeat(BAR as usize));
    }
    let done = Bytes(done.0.min(total.0));
    let part =
        |of: u64| u64::try_from(u128::from(done.0) * u128::from(of) / u128::from(total.0)).unwrap_or(0);
    let filled = usize::try_from(part(BAR)).unwrap_or(0);
    let bar = "#".repeat(filled) + &"-".repeat(BAR as usize - filled);
    let mut line = format!("[{bar}] {:>3} %  {done} of {total}", part(100));
    let speed = u64::try_from(u128::from(done.0) * 1_000 / took.as_millis().max(1)).unwrap_or(0);
    if let Some(left) = (total.0 - done.0).checked_div(speed).filter(|_| took >= QUICK) {
        line += &format!("  {}/s  {} left", Bytes(speed), format::seconds(left));
    }
    line + "  " + label
}

/// The line of work of which no one knows the length: what is done, and for how long.
pub(super) struct Waiting {
    /// The end of the work ends the line's thread.
    work: Option<(Sender<String>, JoinHandle<()>)>,
}

impl Waiting {
    /// A line, if there is a terminal for it.
    pub(super) fn new(is_json: bool, what: &str) -> Waiting {
        if is_json || !std::io::stderr().is_terminal() {
            return Waiting { work: None };
        }
        let (sender, steps) = mpsc::channel::<String>();
        let mut what = what.to_owned();
        let thread = thread::spawn(move || {
            let (mut began, mut width) = (Instant::now(), 0);
            loop {
                match steps.recv_timeout(EVERY) {
                    Ok(step) => (what, began) = (step, Instant::now()),
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if began.elapsed() >= QUICK {
                    width = rewrite(&format!("{what}: {} s", began.elapsed().as_secs()), width);
                }
            }
            rewrite("", width);
        });
        Waiting { work: Some((sender, thread)) }
    }

    /// The next step of the work.
    pub(super) fn step(&self, what: &str) {
        if let Some((sender, _)) = &self.work {
            // The thread lives as long as this.
            let _ = sender.send(what.to_owned());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.work.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// The part of a line that fits. A line that goes on in the next row would stay there.
fn cut(line: &str, columns: usize) -> &str {
    let mut width = 0;
    let too_long = line.char_indices().find(|(_, letter)| {
        width += letter.width().unwrap_or(0);
        width >= columns
    });
    too_long.map_or(line, |(at, _)| &line[..at])
}

/// Writes a line in place of one of this width. Returns its own width.
fn rewrite(line: &str, width: usize) -> usize {
    let line = cut(line, crossterm::terminal::size().map_or(80, |(columns, _)| columns.into()));
    let now = line.width();
    if now > 0 || width > 0 {
        let blank = " ".repeat(width.saturating_sub(now));
        let back = if now == 0 { "\r" } else { "" };
        // Progress that cannot be shown fails no work.
        let _ = write!(std::io::stderr(), "\r{line}{blank}{back}");
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_leaves_the_last_column_free() {
        assert_eq!((cut("four", 5), cut("four", 4), cut("four", 0)), ("four", "fou", ""));
        assert_eq!(cut("bildär:1", 6), "bildä");
        assert_eq!(cut("画像画像", 6), "画像", "each has two columns");
    }

    #[test]
    fn bar_tells_part_speed_and_the_time_that_is_left() {
        let mib = |count: u64| Bytes(count << 20);
        let at = |done, total, ms| bar("app:1", done, total, Duration::from_millis(ms));
        assert_eq!(at(mib(0), mib(0), 5_000), format!("[{}]  app:1", "-".repeat(24)));
        let third = at(mib(10), mib(30), 4_000);
        assert!(third.starts_with("[########----------------]  33 %  10MiB of 30MiB  "), "{third}");
        assert!(third.contains("2.5MiB/s  8s left  app:1"), "{third}");
        let at_once = at(mib(0), mib(30), 100);
        assert!(!at_once.contains("left"), "nothing is known yet: {at_once}");
        let stuck = at(mib(0), mib(30), 9_000);
        assert!(!stuck.contains("left"), "no one knows: {stuck}");
        let over = at(mib(31), mib(30), 3_000);
        assert!(
            over.starts_with(&format!("[{}] 100 %", "#".repeat(24))) && over.contains("0s left"),
            "{over}"
        );
    }
}
