//! The threads that answer requests outside the loop that divides the link.

use std::{sync::Arc, thread};

use tokio::sync::Semaphore;
use weir_api::{Error, ErrorCode};

use crate::reply::Reply;

/// The most requests for the audit that are read at a time.
const MAX_HISTORY: usize = 2;
/// The most runs of `weir doctor` at a time.
const MAX_DOCTOR: usize = 1;

/// The threads of each kind of request.
pub(super) struct Threads {
    pub(super) history: Threaded,
    pub(super) doctor: Threaded,
}

impl Threads {
    pub(super) fn new() -> Threads {
        Threads {
            history: Threaded::new("the audit", MAX_HISTORY),
            doctor: Threaded::new("the checks of `weir doctor`", MAX_DOCTOR),
        }
    }
}

/// Requests of one kind, each answered in a thread of its own. A caller can close its connection and ask again, so
/// each thread holds its place until its work ends.
pub(super) struct Threaded {
    /// The work, as a refusal names it.
    what: &'static str,
    most: usize,
    free: Arc<Semaphore>,
}

impl Threaded {
    fn new(what: &'static str, most: usize) -> Threaded {
        Threaded { what, most, free: Arc::new(Semaphore::new(most)) }
    }

    /// Answers a request in a thread, or refuses it if each place is taken. The work is given a way to ask whether
    /// its caller still waits.
    pub(super) fn answer<T: Send + 'static>(
        &self,
        reply: Reply<Result<T, Error>>,
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, Error> + Send + 'static,
    ) {
        let Threaded { what, most, .. } = self;
        let Ok(place) = self.free.clone().try_acquire_owned() else {
            let message =
                format!("{what}: {most} at a time, and others are served now; ask again in a moment");
            drop(reply.send(Err(Error::new(ErrorCode::Busy, message))));
            return;
        };
        let started = thread::Builder::new().spawn(move || {
            let answer = work(&|| !reply.is_closed());
            // A caller that asks again at once finds a place.
            drop(place);
            drop(reply.send(answer));
        });
        // The caller learns that there is no answer.
        if let Err(e) = started {
            tracing::warn!("cannot start a thread for {what}: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    };

    use tokio::sync::oneshot;

    use super::*;

    const SOON: std::time::Duration = std::time::Duration::from_secs(10);

    /// A caller that closes its connection frees its place in the server at once.
    #[test]
    fn callers_that_go_away_start_no_more_threads_than_there_are_places() {
        let threaded = Threaded::new("a test", 2);
        let (running, (began, begun), (open, gate)) =
            (Arc::new(AtomicUsize::new(0)), mpsc::channel(), mpsc::channel::<()>());
        let gate = Arc::new(Mutex::new(gate));
        let ask = |reply| {
            let (running, began, gate) = (running.clone(), began.clone(), gate.clone());
            threaded.answer(reply, move |is_wanted| {
                running.fetch_add(1, SeqCst);
                began.send(is_wanted()).unwrap();
                // It ends when the gate's sender is gone.
                let _ = gate.lock().unwrap().recv();
                Ok(())
            });
        };
        for _ in 0..50 {
            let (reply, answer) = oneshot::channel();
            drop(answer);
            ask(reply);
        }
        for _ in 0..2 {
            assert!(!begun.recv_timeout(SOON).unwrap(), "the caller has gone");
        }
        let (reply, mut answer) = oneshot::channel();
        ask(reply);
        let refused = answer.try_recv().expect("an answer at once").unwrap_err();
        assert_eq!((refused.code, running.load(SeqCst)), (ErrorCode::Busy, 2));
        drop(open);
        let is_answered = || {
            let (reply, answer) = oneshot::channel();
            ask(reply);
            answer.blocking_recv().unwrap().is_ok()
        };
        let end = std::time::Instant::now() + SOON;
        while !is_answered() {
            assert!(std::time::Instant::now() < end, "the places stay taken");
            thread::yield_now();
        }
    }
}
