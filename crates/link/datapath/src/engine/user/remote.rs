//! The forwarder, as the agent sees it: found if one is there, or started.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair};

use super::{
    Home,
    message::{Answer, Request, receive, send},
    server::{self, make_room, peer, serve},
};

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same of the first one: programs are loaded and devices made.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a forwarder that was killed may have its end of the connection open.
const KILL_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection to the forwarder. The forwarder stays when it is dropped, unless it is a thread.
pub(super) struct Remote {
    socket: OwnedFd,
    /// None: it is this process.
    pid: Option<Pid>,
    child: Option<Child>,
}

impl Remote {
    /// The forwarder of this network namespace that an earlier agent has left.
    pub(super) fn find() -> Option<Remote> {
        // A process that does not take calls keeps no agent waiting.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(server::NAME).ok()?).ok()?;
        let peer = peer(&socket)?;
        if !peer.is_own_user() {
            tracing::warn!(
                "process {} of another user has the name of engine user's forwarder: no agent can take over from this one",
                peer.pid
            );
            return None;
        }
        make_room(&socket);
        let pid = Pid::from_raw(peer.pid);
        Some(Remote { socket, pid: (pid.as_raw() > 0 && pid != Pid::this()).then_some(pid), child: None })
    }

    /// Starts a forwarder, which does nothing yet.
    pub(super) fn start(home: Home) -> io::Result<Remote> {
        let (socket, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        make_room(&socket);
        make_room(&other);
        if home == Home::Thread {
            thread::Builder::new().name("weir-forward".into()).spawn(move || {
                if let Err(error) = serve(other, home) {
                    tracing::error!("the forwarder has stopped: {error}");
                }
            })?;
            return Ok(Remote { socket, pid: None, child: None });
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0("weir").arg("forward").stdin(Stdio::from(other)).stdout(Stdio::null());
        for agents_own in ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"] {
            command.env_remove(agents_own);
        }
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().map(Pid::from_raw);
        Ok(Remote { socket, pid, child: Some(child) })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The forwarder is gone, stuck, or another program.
    pub(super) fn ask(
        &self,
        request: &Request,
        file: Option<BorrowedFd<'_>>,
    ) -> io::Result<(Answer, Option<OwnedFd>)> {
        send(self.socket.as_fd(), request, file)?;
        let most = if matches!(request, Request::Begin { .. }) { BEGIN_TIMEOUT } else { ANSWER_TIMEOUT };
        if !self.wait(most) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        receive(self.socket.as_fd())
    }

    /// Has it end and leave nothing. `may_speak`: it is known to understand this.
    pub(super) fn end(mut self, may_speak: bool) {
        let asked = may_speak && send(self.socket.as_fd(), &Request::End, None).is_ok();
        if !(asked && self.hangs_up(ANSWER_TIMEOUT))
            && let Some(pid) = self.pid
        {
            let _ = kill(pid, Signal::SIGKILL);
            self.hangs_up(KILL_TIMEOUT);
        }
        // The kernel closes its tap queues, 10 ms each.
        if let Some(mut child) = self.child.take() {
            let _ = thread::Builder::new().name("weir-reaper".into()).spawn(move || child.wait());
        }
    }

    /// Whether it closes the connection within this time.
    fn hangs_up(&self, within: Duration) -> bool {
        let begin = Instant::now();
        while self.wait(within.saturating_sub(begin.elapsed())) {
            match receive::<Answer>(self.socket.as_fd()) {
                // An answer that came too late.
                Ok(_) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::InvalidData) => {}
                Err(_) => return true,
            }
        }
        false
    }

    /// Whether anything comes within this time.
    fn wait(&self, within: Duration) -> bool {
        let wait = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
        let begin = Instant::now();
        loop {
            match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], wait) {
                Err(nix::errno::Errno::EINTR) if begin.elapsed() < within => {}
                woken => return woken.is_ok_and(|ready| ready > 0),
            }
        }
    }
}
