//! The way of an answer from the agent's loop.

use tokio::sync::oneshot;

/// The sender of one answer.
pub type Reply<T> = oneshot::Sender<T>;
