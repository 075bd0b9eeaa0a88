//! The forwarder's process, which outlives the agent that has started it. Its main thread serves one agent
//! at a time, the one that came last; another one ([`forwarder`](super::forwarder)) moves packets.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{getsockopt, sockopt::PeerCredentials},
};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use super::{
    Home,
    message::{Answer, PROTOCOL, Request, receive, send},
    scheduler::Scheduler,
};

/// The name of the socket, in the namespace of abstract names that each network namespace has.
pub(super) const NAME: &[u8] = b"weir-forwarder";
/// How often it is looked whether the device is still there.
const PATROL: Duration = Duration::from_secs(1);
/// Until the name is free: a forwarder that was killed has it until the kernel has closed its tap queues.
const NAME_RETRY: Duration = Duration::from_millis(100);
/// The most that waits for room in the socket.
const SEND_BUFFER: usize = 1 << 20;

/// Serves the agent on the other end of `first`, and later ones, until one says that it is over or the
/// device is gone.
///
/// # Errors
/// The connections of later agents cannot be waited for.
pub(super) fn serve(first: OwnedFd, home: Home) -> io::Result<()> {
    let mut agent = Some(first);
    let mut scheduler: Option<Scheduler> = None;
    let mut listener: Option<OwnedFd> = None;
    let mut patrolled = Instant::now();
    loop {
        if home == Home::Process && listener.is_none() {
            listener = open_socket().ok();
        }
        let wait = if home == Home::Process && listener.is_none() { NAME_RETRY } else { PATROL };
        let (calls, speaks) = wait_for(listener.as_ref(), agent.as_ref(), wait)?;
        if calls && let Some(next) = listener.as_ref().and_then(take_call) {
            agent = Some(next);
        } else if speaks
            && let Some(talk) = &agent
            && let Err(stop) = answer_one(talk, &mut scheduler)
        {
            if stop == Stop::End {
                // The next forwarder wants the name, and the agent waits for the end of the connection.
                drop(listener);
                if let Some(scheduler) = scheduler {
                    scheduler.end();
                }
                return Ok(());
            }
            agent = None;
            if home == Home::Thread || scheduler.is_none() {
                return Ok(());
            }
        }
        if patrolled.elapsed() >= PATROL {
            patrolled = Instant::now();
            if scheduler.as_mut().is_some_and(|scheduler| !scheduler.lives()) {
                tracing::info!("the forwarder of engine user ends: its device is gone");
                return Ok(());
            }
        }
    }
}

/// Why an agent is not served any more.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    /// The connection is gone, or its other end is no agent.
    HangUp,
    /// The agent has said so, or the thread is gone.
    End,
}

fn answer_one(agent: &OwnedFd, scheduler: &mut Option<Scheduler>) -> Result<(), Stop> {
    let (request, file) = match receive::<Request>(agent.as_fd()) {
        Ok(received) => received,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        Err(_) => return Err(Stop::HangUp),
    };
    let answer = match request {
        Request::End => return Err(Stop::End),
        Request::Measure => match scheduler.as_mut().map(Scheduler::measure) {
            Some(Some(report)) => Answer::Report(report),
            Some(None) => return Err(Stop::End),
            None => Answer::Refused("nothing has begun".into()),
        },
        other => carry_out(other, file, scheduler).unwrap_or_else(Answer::Refused),
    };
    let program = match (&answer, &*scheduler) {
        (Answer::State(_), Some(scheduler)) => Some(scheduler.program()),
        _ => None,
    };
    send(agent.as_fd(), &answer, program).map_err(|_| Stop::HangUp)
}

fn carry_out(
    request: Request,
    file: Option<OwnedFd>,
    scheduler: &mut Option<Scheduler>,
) -> Result<Answer, String> {
    let array = || file.ok_or_else(|| "the classifier's array of programs is missing".to_owned());
    match (request, &mut *scheduler) {
        (Request::Begin { protocol, .. } | Request::Join { protocol, .. }, _) if protocol != PROTOCOL => {
            Err(format!("the forwarder speaks protocol {PROTOCOL}, not {protocol}"))
        }
        (Request::Begin { ifb, queues, cookie, .. }, None) => {
            let mut begun = Scheduler::begin(ifb, queues)?;
            let state = array().and_then(|array| begun.join(array, cookie));
            match state {
                Ok(state) => {
                    *scheduler = Some(begun);
                    Ok(Answer::State(state))
                }
                Err(why) => {
                    begun.end();
                    Err(why)
                }
            }
        }
        (Request::Join { cookie, .. }, Some(scheduler)) => {
            Ok(Answer::State(scheduler.join(array()?, cookie)?))
        }
        (Request::Write(changes), Some(scheduler)) => {
            Ok(Answer::Written { full: scheduler.write(&changes)? })
        }
        (Request::Ahead(is_wanted), Some(scheduler)) => {
            scheduler.set_ahead(is_wanted);
            Ok(Answer::Written { full: None })
        }
        (Request::Begin { .. }, Some(_)) => Err("the forwarder has begun already".into()),
        (request, _) => Err(format!("this is not the time for {request:?}")),
    }
}

/// Has the kernel hold room for the longest message.
pub(super) fn make_room(socket: &OwnedFd) {
    // Without CAP_NET_ADMIN the default does for some hundred classes.
    let _ = nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::SndBufForce, &SEND_BUFFER);
}

fn open_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(NAME)?)?;
    listen(&socket, 4)?;
    Ok(socket)
}

/// The agent that calls, if it may.
fn take_call(listener: &OwnedFd) -> Option<OwnedFd> {
    let next = accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    let peer = peer(&next)?;
    if !peer.is_privileged() {
        tracing::debug!(
            "process {} of user {} called the forwarder of engine user and was not answered",
            peer.pid,
            peer.uid
        );
        return None;
    }
    make_room(&next);
    Some(next)
}

/// The process on the other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// 0 in another namespace of processes.
    pub(super) pid: i32,
    uid: u32,
}

pub(super) fn peer(socket: &OwnedFd) -> Option<Peer> {
    let credentials = getsockopt(socket, PeerCredentials).ok()?;
    Some(Peer { pid: credentials.pid(), uid: credentials.uid() })
}

impl Peer {
    /// Root of this machine, or the same user as this process.
    pub(super) fn is_own_user(self) -> bool {
        self.uid == 0 || self.uid == nix::unistd::geteuid().as_raw()
    }

    /// It may also change devices and qdiscs of this network namespace: root in a container that shares the
    /// namespace may not.
    fn is_privileged(self) -> bool {
        const CAP_NET_ADMIN: u32 = 12;
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let held = held.and_then(|held| u64::from_str_radix(held.trim(), 16).ok()).unwrap_or(0);
        self.is_own_user() && held & (1 << CAP_NET_ADMIN) != 0
    }
}

/// Waits until another agent calls, or the present one speaks.
fn wait_for(listener: Option<&OwnedFd>, agent: Option<&OwnedFd>, wait: Duration) -> io::Result<(bool, bool)> {
    let mut files: Vec<PollFd<'_>> = [listener, agent]
        .into_iter()
        .flatten()
        .map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN))
        .collect();
    let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
    match poll(&mut files, wait) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut ready = files.iter().map(|file| file.any().unwrap_or(false));
    let calls = listener.is_some() && ready.next().unwrap_or(false);
    Ok((calls, agent.is_some() && ready.next().unwrap_or(false)))
}

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;
    use crate::engine::user::message::Change;

    fn begin() -> (OwnedFd, std::thread::JoinHandle<io::Result<()>>) {
        let (agent, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (agent, std::thread::spawn(|| serve(other, Home::Thread)))
    }

    fn answer(agent: &OwnedFd) -> io::Result<Answer> {
        poll(&mut [PollFd::new(agent.as_fd(), PollFlags::POLLIN)], 5000u16).unwrap();
        receive(agent.as_fd()).map(|(answer, _)| answer)
    }

    #[test]
    fn forwarder_that_has_not_begun_refuses_and_ends_with_its_agent() {
        let (agent, forwarder) = begin();
        let requests = [
            Request::Measure,
            Request::Ahead(true),
            Request::Join { protocol: PROTOCOL, cookie: 1 },
            Request::Begin { protocol: PROTOCOL + 1, ifb: 1, queues: 1, cookie: 1 },
            Request::Write(vec![Change::Lead(16)]),
        ];
        for request in requests {
            send(agent.as_fd(), &request, None).unwrap();
            let answer = answer(&agent).unwrap();
            assert!(matches!(answer, Answer::Refused(_)), "{request:?}: {answer:?}");
        }
        drop(agent);
        forwarder.join().unwrap().unwrap();
    }

    #[test]
    fn connection_ends_with_the_first_message_of_another_kind() {
        let (agent, forwarder) = begin();
        send(agent.as_fd(), &"Something", None).unwrap();
        assert_eq!(answer(&agent).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        forwarder.join().unwrap().unwrap();
    }

    #[test]
    fn process_without_the_capability_is_not_privileged() {
        let (agent, _other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let own = peer(&agent).unwrap();
        assert_eq!(own.pid, std::process::id().cast_signed());
        assert!(own.is_own_user());
        let other = Peer { uid: 65_534, ..own };
        assert!(!other.is_own_user() && !other.is_privileged());
        // Processes of the kernel have no status that names this.
        assert!(!Peer { pid: -1, ..own }.is_privileged());
    }
}
