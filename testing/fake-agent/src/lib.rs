//! An agent for tests: the real server before a loop with four fixed classes.

mod agreements;
mod answer;
mod cni;
mod congestion;
mod fixed;

use std::{
    path::{Path, PathBuf},
    thread,
};

use tokio::sync::{broadcast, mpsc};
use weir_agent::{
    config::Rights,
    control::Request,
    images::Images,
    server::{Access, Socket, Stream, serve},
};
use weir_api::{Actor, Event};

use answer::answer;
pub use congestion::{advice, congestion_view, flow};
pub use fixed::{
    FREE, class, classes, configuration_plan, doctor, download, download_status, event, explanation, export,
    follows, on_link, other_link, runtime_images, status, weight,
};

/// An agent on its own socket for one test.
pub struct FakeAgent {
    /// The socket.
    pub path: PathBuf,
    /// Sends an event to its followers.
    pub events: broadcast::Sender<Event>,
    stop: mpsc::Sender<Request>,
    thread: Option<thread::JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl FakeAgent {
    /// Starts the agent. It ends when it is dropped.
    ///
    /// # Panics
    /// A socket or a thread cannot be made.
    pub fn start() -> FakeAgent {
        FakeAgent::with("")
    }

    /// Starts an agent that has this text wherever a stranger chooses it: the name, group and interface
    /// of a class, reasons, warnings and events.
    ///
    /// # Panics
    /// A socket or a thread cannot be made.
    pub fn hostile(text: &str) -> FakeAgent {
        assert!(!text.is_empty());
        FakeAgent::with(text)
    }

    fn with(hostile: &str) -> FakeAgent {
        let hostile = hostile.to_owned();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weir.sock");
        let (events, _) = broadcast::channel(4);
        let (control, requests) = mpsc::channel(8);
        let thread = thread::spawn({
            let (path, control, events) = (path.clone(), control.clone(), events.downgrade());
            let socket = Socket::bind(&path, &Rights::default()).unwrap();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let listener = socket.listener().unwrap();
                    let stream = Stream::new(control.clone());
                    tokio::select! {
                        never = serve(listener, control, Images::off(), stream, Access::default()) => match never {},
                        () = answer(requests, events, &hostile) => {}
                    }
                });
            }
        });
        FakeAgent { path, events, stop: control, thread: Some(thread), _dir: dir }
    }

    /// A client of this agent.
    pub fn client(&self) -> weir_api::Client {
        weir_api::Client::new(&self.path)
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        // The loop ends at a request about the name `stop` without a waiting caller.
        let (reply, _) = tokio::sync::oneshot::channel();
        let _ = self.stop.blocking_send(Request::Unset("stop".to_owned(), Actor::agent(), reply));
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the fake agent panicked");
        }
    }
}
