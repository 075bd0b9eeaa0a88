//! A container runtime that weir follows: what it told, why it tells nothing, and the task that follows it.

use std::{
    convert::Infallible,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{
        Notify,
        watch::{Receiver, Sender},
    },
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{Found, Source, Warning};

/// The containers that a runtime runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Containers that have a process and a way to catch their packets, by id. While `error`
    /// is set: those known before.
    pub containers: Vec<Found>,
    /// About containers that are not quite as they should be.
    pub warnings: Vec<Warning>,
    /// Why `containers` may not be all there are now; none if they are.
    pub error: Option<Unavailable>,
}

/// Why a runtime does not tell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// It has been asked, and there was no time for an answer yet.
    #[error("it has not answered yet")]
    NotYet,
    /// No process listens, or not to this user.
    #[error("cannot connect to {}: {}{}", socket.display(), kind, advice(*kind))]
    NoConnection {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        kind: io::ErrorKind,
    },
    /// No answer in time.
    #[error("no answer to {request} within {} ms", after.as_millis())]
    TimedOut {
        /// Path of the request.
        request: String,
        /// How long it was given.
        after: Duration,
    },
    /// An answer that is an error.
    #[error("{request} was refused with status {status}: {said}")]
    Refused {
        /// Path of the request.
        request: String,
        /// Status of HTTP, or of gRPC.
        status: u16,
        /// Its words.
        said: String,
    },
    /// The connection broke, or what came is not HTTP.
    #[error("the connection broke at {request}: {why}")]
    Broken {
        /// Path of the request.
        request: String,
        /// How.
        why: String,
    },
    /// An answer without the state of a container.
    #[error("{request} does not tell whether it runs: its shim may hang")]
    NoState {
        /// The request.
        request: String,
    },
    /// An answer that is not what the API says.
    #[error("cannot understand the answer to {request}: {why}")]
    Garbled {
        /// Path of the request.
        request: String,
        /// The fault of the answer.
        why: String,
    },
}

fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => " (is it installed and started? [discover] names its socket)",
        io::ErrorKind::PermissionDenied => " (the agent needs root, or the right to the socket)",
        _ => "",
    }
}

impl Unavailable {
    pub(crate) fn broken(request: &str, why: impl fmt::Display) -> Unavailable {
        Unavailable::Broken { request: request.to_owned(), why: why.to_string() }
    }

    pub(crate) fn garbled(request: &str, why: impl fmt::Display) -> Unavailable {
        Unavailable::Garbled { request: request.to_owned(), why: why.to_string() }
    }

    /// Whether it can be about one container alone.
    pub(crate) fn is_local(&self) -> bool {
        !matches!(self, Unavailable::NotYet | Unavailable::NoConnection { .. } | Unavailable::Broken { .. })
    }
}

/// A task that follows a runtime until it is dropped.
///
/// It lists everything at first, then follows events. It lists everything again after a loss of the runtime, and from
/// time to time. The containers known before stay while the runtime is away.
#[derive(Debug)]
pub struct Watcher {
    source: Source,
    socket: PathBuf,
    snapshots: Receiver<Snapshot>,
    look: Arc<Notify>,
    task: JoinHandle<Infallible>,
}

impl Watcher {
    pub(crate) fn new(
        source: Source,
        socket: PathBuf,
        snapshots: Receiver<Snapshot>,
        look: Arc<Notify>,
        task: JoinHandle<Infallible>,
    ) -> Watcher {
        Watcher { source, socket, snapshots, look, task }
    }

    /// The runtime.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Says that a container seems to be new. A runtime that tells of it late is asked some times in the next half
    /// second.
    pub fn look(&self) {
        self.look.notify_one();
    }

    /// The latest snapshot, and those to come.
    #[must_use]
    pub fn snapshots(&self) -> Receiver<Snapshot> {
        self.snapshots.clone()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The first pause after a runtime is lost. Each next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The pauses between two attempts to reach a runtime.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    pub(crate) fn new(longest: Duration) -> Pauses {
        Pauses { next: FIRST_PAUSE, longest }
    }

    /// Publishes the loss of a runtime, and waits.
    pub(crate) async fn after_loss(&mut self, source: Source, why: Unavailable, sender: &Sender<Snapshot>) {
        if sender.borrow().error.is_none() {
            tracing::warn!("lost {source}: {why}");
            self.next = FIRST_PAUSE;
        }
        sender.send_if_modified(|snapshot| {
            let is_new = snapshot.error.as_ref() != Some(&why);
            snapshot.error = Some(why);
            is_new
        });
        sleep(self.next).await;
        self.next = (self.next * 2).min(self.longest);
    }
}

/// The longest time for which changes are gathered while they do not end.
const LONGEST_SETTLE: Duration = Duration::from_millis(400);
/// A pause between changes that ends a row of them.
const CALM: Duration = Duration::from_millis(500);

/// The time for which changes are gathered after a first one. It grows while they do not end.
#[derive(Debug)]
pub(crate) struct Settle {
    first: Duration,
    present: Duration,
}

impl Settle {
    pub(crate) fn new(first: Duration) -> Settle {
        Settle { first, present: first }
    }

    pub(crate) fn present(&self) -> Duration {
        self.present
    }

    /// Notes that changes were awaited, and gathered, for this time.
    pub(crate) fn note(&mut self, waited: Duration) {
        let is_calm = waited > self.present + CALM;
        self.present = if is_calm { self.first } else { (self.present * 2).min(LONGEST_SETTLE) };
    }
}

/// The usual pause before a container that a runtime did not tell all of is asked about again.
pub(crate) const SECOND_TRY: Duration = Duration::from_secs(5);
/// The number of pauses of that length. Each next one is twice as long.
const SHORT_PAUSES: u32 = 3;
/// The longest pause, as a multiple of the first one.
const LONGEST: u32 = 12;

/// A container that a runtime did not tell all of.
#[derive(Debug, Clone)]
pub(crate) struct Doubt {
    pub(crate) why: Unavailable,
    /// The number of questions that gave no answer.
    tries: u32,
    /// The next question's moment.
    next: Instant,
}

impl Doubt {
    /// The runtime did not tell at `now`. `before` is the earlier doubt about the container, and `first` the first
    /// pause.
    pub(crate) fn after_try(
        why: Unavailable,
        before: Option<&Doubt>,
        first: Duration,
        now: Instant,
    ) -> Doubt {
        let tries = before.map_or(0, |before| before.tries) + 1;
        Doubt { why, tries, next: now + pause(tries, first) }
    }

    /// The same doubt for another reason. Its next question is not put off.
    pub(crate) fn because(self, why: Unavailable) -> Doubt {
        Doubt { why, ..self }
    }

    /// The next question's moment.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }
}

/// The pause after `tries` questions without an answer. The first ones are short, as most faults pass.
fn pause(tries: u32, first: Duration) -> Duration {
    let doublings = tries.saturating_sub(SHORT_PAUSES).min(LONGEST);
    first * (1 << doublings).min(LONGEST)
}

/// Publishes what a runtime told, if it is something else than before.
pub(crate) fn publish(sender: &Sender<Snapshot>, fresh: Snapshot) {
    sender.send_if_modified(|snapshot| {
        let is_new = *snapshot != fresh;
        if is_new {
            *snapshot = fresh;
        }
        is_new
    });
}

impl Default for Snapshot {
    fn default() -> Snapshot {
        Snapshot { containers: Vec::new(), warnings: Vec::new(), error: Some(Unavailable::NotYet) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute_after_three_short_ones() {
        let pauses: Vec<u64> = (1..=9).map(|tries| pause(tries, SECOND_TRY).as_secs()).collect();
        assert_eq!(pauses, [5, 5, 5, 10, 20, 40, 60, 60, 60]);
        assert_eq!(pause(u32::MAX, SECOND_TRY).as_secs(), 60);
    }
}
