//! Ctrl-C and SIGTERM end an experiment by unwinding it, so that nothing is left behind.
//!
//! The handler only sets a flag; everything in the lab that waits looks at it and returns
//! [`Interrupted`], and the guards of the namespaces and processes do the rest.

use std::{
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// The user (or a supervisor) asked the lab to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted: namespaces and processes of this run are removed")]
pub struct Interrupted;

static SIGNALS: AtomicUsize = AtomicUsize::new(0);
const SLICE: Duration = Duration::from_millis(50);

/// Takes SIGINT, SIGTERM and SIGHUP from now on. A third signal ends the process at once;
/// what that leaves behind, [`clean`](crate::topology::clean) removes.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error means that the program has a handler of its own: it decides then.
        let _ = ctrlc::set_handler(|| {
            if SIGNALS.fetch_add(1, Ordering::SeqCst) >= 2 {
                std::process::exit(130);
            }
        });
    });
}

/// # Errors
/// [`Interrupted`] once a signal has come.
pub fn check() -> Result<(), Interrupted> {
    if SIGNALS.load(Ordering::SeqCst) > 0 { Err(Interrupted) } else { Ok(()) }
}

/// Sleeps until `end`.
///
/// # Errors
/// [`Interrupted`] as soon as a signal comes.
pub fn sleep_until(end: Instant) -> Result<(), Interrupted> {
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(SLICE));
    }
}

/// Sleeps for `time`.
///
/// # Errors
/// [`Interrupted`] as soon as a signal comes.
pub fn sleep(time: Duration) -> Result<(), Interrupted> {
    sleep_until(Instant::now() + time)
}
