//! Ctrl-C, SIGTERM and SIGHUP end the test in order.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static CAME: AtomicBool = AtomicBool::new(false);
const SLICE: Duration = Duration::from_millis(50);

/// The test was told to end.
#[derive(Debug, thiserror::Error)]
#[error("the test was interrupted")]
pub(super) struct Interrupted;

extern "C" fn note(_: nix::libc::c_int) {
    CAME.store(true, Ordering::Relaxed);
}

/// Takes the signals from now on.
///
/// # Errors
/// The kernel refuses a handler.
pub(super) fn install() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only writes an atomic.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// # Errors
/// A signal has come.
pub(super) fn check() -> Result<(), Interrupted> {
    if CAME.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Sleeps until a signal comes or the time is over.
///
/// # Errors
/// A signal has come.
pub(super) fn sleep(time: Duration) -> Result<(), Interrupted> {
    let begin = Instant::now();
    loop {
        check()?;
        let left = time.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(SLICE));
    }
}
