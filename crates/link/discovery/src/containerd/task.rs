//! The task of a container, as containerd tells of it.

use prost::Message;

use super::{Unavailable, grpc::Client};

pub(super) const GET_TASK: &str = "containerd.services.tasks.v1.Tasks/Get";

/// The question about one container or task.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ById {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct One<T: Message + Default + std::fmt::Debug> {
    #[prost(message, optional, tag = "1")]
    pub(super) entry: Option<T>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Process {
    #[prost(string, tag = "1")]
    pub(super) container: String,
    #[prost(string, tag = "2")]
    pub(super) id: String,
    #[prost(uint32, tag = "3")]
    pub(super) pid: u32,
    #[prost(int32, tag = "4")]
    pub(super) status: i32,
}

impl Process {
    /// The state that containerd gives it. It says 0, unknown, while the shim does not answer.
    pub(super) fn state(&self) -> Task {
        match self.status {
            0 => Task::Unknown,
            1 | 2 | 4 | 5 if self.pid != 0 => Task::Lives(self.pid),
            _ => Task::Ended,
        }
    }
}

/// The state of a container's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// It is created, running, paused or being paused, and this is its process.
    Lives(u32),
    Ended,
    /// containerd does not know, because the shim does not answer.
    Unknown,
    /// The list of tasks leaves it out: it has ended, or the shim does not answer.
    Unlisted,
}

/// The consequence of a task's state for what is known of its container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The container is read with this process.
    Read(u32),
    /// The container stays as it was, and containerd is asked again.
    Keep,
    /// The container is not running.
    Forget,
    /// The container has no known process, and containerd is asked again.
    ForgetAndAsk,
}

/// Decides by a task's state. `has_process` says whether the container still has the process that it had.
pub(super) fn judge(task: Task, has_process: impl Fn() -> bool) -> Verdict {
    match task {
        Task::Lives(pid) => Verdict::Read(pid),
        Task::Unknown | Task::Unlisted if has_process() => Verdict::Keep,
        Task::Unknown => Verdict::ForgetAndAsk,
        Task::Ended | Task::Unlisted => Verdict::Forget,
    }
}

/// Asks about the task of a container.
pub(super) async fn task(client: &mut Client, namespace: &str, id: &str) -> Result<Task, Unavailable> {
    let question = ById { id: id.to_owned() };
    match client.call::<One<Process>>(GET_TASK, namespace, &question).await {
        Err(why) if why.is_unknown() => Ok(Task::Ended),
        Err(why) if why.is_shims() => Ok(Task::Unknown),
        answer => Ok(answer?.entry.map_or(Task::Ended, |task| task.state())),
    }
}
