//! The agent's socket, and the task that answers there.

use std::convert::Infallible;

use tokio::{net::UnixListener, task::JoinHandle};
use weir_api::EventKind;
use weir_units::chain;

use super::effects::Effects;
use crate::{config::Rights, server::Socket};

/// The socket that is listened on. Another program may remove it.
pub(super) struct Listening<S> {
    socket: Socket,
    /// Answers at a listener.
    serve: S,
    task: JoinHandle<Infallible>,
    /// The reason why the socket could not be put back at the last look.
    fault: Option<String>,
}

impl<S: Fn(UnixListener) -> JoinHandle<Infallible>> Listening<S> {
    /// Has requests at the socket answered. `listener` is the socket's.
    pub(super) fn begin(socket: Socket, listener: UnixListener, serve: S) -> Listening<S> {
        let task = serve(listener);
        Listening { socket, serve, task, fault: None }
    }

    /// Puts the socket back if it is not at its path any more. Connections that are open stay open.
    pub(super) fn watch(&mut self, rights: &Rights) -> Effects {
        if self.socket.is_in_place() {
            self.fault = None;
            return Effects::default();
        }
        match self.socket.rebind(rights).map_err(|e| chain(&e)) {
            Ok(listener) => {
                self.task.abort();
                self.task = (self.serve)(listener);
                self.fault = None;
                let text = format!("the agent's socket {} had been removed", self.socket.path().display());
                Effects::event(EventKind::Repaired, text)
            }
            Err(why) => {
                if self.fault.as_ref() != Some(&why) {
                    tracing::warn!("no one can ask the agent over its socket, which was removed: {why}");
                }
                self.fault = Some(why);
                Effects::default()
            }
        }
    }

    /// Answers no more.
    pub(super) fn end(&self) {
        self.task.abort();
    }
}
