//! A sender: a process of its own in a class's cgroup. The parent ends it by closing its standard input.

use std::{
    fs::OpenOptions,
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::Signal,
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, connect, send, sendto, setsockopt,
            socket, sockopt,
        },
    },
    unistd::{getpid, getppid},
};
use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes};

use super::judge::Made;

/// The payload of a datagram.
const PAYLOAD: usize = 1_200;
/// The bytes around it that a link counts: Ethernet, IPv4, UDP.
const HEADERS: u64 = 42;
/// A write of TCP.
const CHUNK: usize = 16 << 10;
/// A sender that was held back makes up for this time at most.
const MAX_LAG: Duration = Duration::from_millis(20);
const TICK: Duration = Duration::from_millis(1);

/// The way of a test's packets.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(in crate::cli) struct SendArgs {
    #[arg(long)]
    pub(super) device: String,
    #[arg(long)]
    pub(super) rate: BitRate,
    #[arg(long)]
    pub(super) to: SocketAddr,
    /// TCP to a server, instead of UDP that the first router drops.
    #[arg(long)]
    pub(super) tcp: bool,
}

/// The counts that a sender prints at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Report {
    bytes: u64,
    micros: u64,
    was_held: bool,
}

/// Sends until standard input ends. Prints a [`Report`].
///
/// # Errors
/// The socket cannot be made, or its packets are refused.
pub(in crate::cli) fn run(args: &SendArgs, out: &mut dyn io::Write) -> anyhow::Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        ended.store(true, Ordering::Relaxed);
    });
    let socket = open(args).with_context(|| format!("cannot send to {} by {}", args.to, args.device))?;
    let began = Instant::now();
    let report = send_until(&over, args, &socket)
        .with_context(|| format!("cannot go on sending to {} by {}", args.to, args.device))?;
    let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    writeln!(out, "{}", serde_json::to_string(&Report { micros, ..report })?)?;
    Ok(())
}

fn open(args: &SendArgs) -> nix::Result<OwnedFd> {
    let family = if args.to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let kind = if args.tcp { SockType::Stream } else { SockType::Datagram };
    let made = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&made, sockopt::BindToDevice, &args.device.clone().into())?;
    if args.tcp {
        connect(made.as_raw_fd(), &SockaddrStorage::from(args.to))?;
    } else if args.to.is_ipv4() {
        // The first router drops the packet.
        setsockopt(&made, sockopt::Ipv4Ttl, &1)?;
    } else {
        setsockopt(&made, sockopt::Ipv6Ttl, &1)?;
    }
    Ok(made)
}

/// Sends at the pace, and no burst after it was held back.
fn send_until(over: &AtomicBool, args: &SendArgs, socket: &OwnedFd) -> nix::Result<Report> {
    let (length, around) = if args.tcp { (CHUNK, 0) } else { (PAYLOAD, HEADERS) };
    let packet = length as u64 + around;
    let payload = vec![0; length];
    let to = SockaddrStorage::from(args.to);
    let mut report = Report { bytes: 0, micros: 0, was_held: false };
    let (mut last, mut due) = (Instant::now(), 0);
    while !over.load(Ordering::Relaxed) {
        let now = Instant::now();
        due = (due + args.rate.bytes_in(now - last).0).min(args.rate.bytes_in(MAX_LAG).0.max(packet));
        last = now;
        while due >= packet {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let sent = if args.tcp {
                send(socket.as_raw_fd(), &payload, flags)
            } else {
                sendto(socket.as_raw_fd(), &payload, &to, flags)
            };
            match sent {
                Ok(sent) => {
                    let sent = sent as u64 + around;
                    report.bytes += sent;
                    due = due.saturating_sub(sent);
                }
                Err(Errno::EAGAIN | Errno::ENOBUFS) => {
                    report.was_held = true;
                    await_room(socket)?;
                    break;
                }
                Err(Errno::EINTR) => break,
                Err(error) => return Err(error),
            }
        }
        thread::sleep(TICK);
    }
    Ok(report)
}

fn await_room(socket: &OwnedFd) -> nix::Result<()> {
    let timeout = PollTimeout::from(100u8);
    match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)], timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A running sender. Killed when dropped.
pub(super) struct Sender {
    child: Child,
    pace: BitRate,
}

impl Sender {
    /// Starts a sender in a cgroup, given its directory.
    ///
    /// # Errors
    /// The kernel refuses the process, or its place in the cgroup.
    pub(super) fn start(args: &SendArgs, cgroup: &Path) -> anyhow::Result<Sender> {
        let procs = cgroup.join("cgroup.procs");
        let procs = OpenOptions::new()
            .write(true)
            .open(&procs)
            .with_context(|| format!("cannot open {}", procs.display()))?;
        let mut command = child(&["test", "send"], Signal::SIGKILL);
        command.args(["--device", &args.device, "--rate", &format!("{}bit", args.rate.0)]);
        command.args(["--to", &args.to.to_string()]).args(args.tcp.then_some("--tcp"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: write(2) is async-signal-safe, and the closure allocates nothing.
        unsafe {
            // 0 is the process that writes, cgroups(7).
            command.pre_exec(move || (&procs).write_all(b"0"));
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start a sender in the cgroup {}", cgroup.display()))?;
        Ok(Sender { child, pace: args.rate })
    }

    /// Ends the sender. Returns its count.
    ///
    /// # Errors
    /// It has ended before, with its words.
    pub(super) fn end(mut self) -> anyhow::Result<Made> {
        drop(self.child.stdin.take());
        let (mut out, mut words) = (String::new(), String::new());
        if let Some(stdout) = &mut self.child.stdout {
            stdout.read_to_string(&mut out)?;
        }
        if let Some(stderr) = &mut self.child.stderr {
            stderr.read_to_string(&mut words)?;
        }
        let status = self.child.wait()?;
        let Ok(report) = serde_json::from_str::<Report>(&out) else {
            anyhow::bail!("a sender ended ({status}): {}", words.trim().trim_start_matches("weir: "));
        };
        let rate = BitRate::of(Bytes(report.bytes), Duration::from_micros(report.micros));
        Ok(Made { rate, pace: self.pace, was_held: report.was_held })
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program with these words, as a child that gets `signal` when this process dies. The terminal's Ctrl-C does not
/// reach it: this process ends its children in order.
pub(super) fn child(words: &[&str], signal: Signal) -> Command {
    let parent = getpid();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("weir").args(words).process_group(0);
    // SAFETY: prctl and getppid are async-signal-safe, and the closure allocates nothing.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(signal)?;
            // The parent may have died before the line above.
            if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
        });
    }
    command
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// The pace bounds a sender that nothing holds back. A slow one sends a packet at a time.
    #[test]
    fn sender_without_a_queue_keeps_its_pace() {
        [BitRate::mbit(8), BitRate::kbit(96)].into_iter().for_each(keeps_its_pace);
    }

    fn keeps_its_pace(rate: BitRate) {
        let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
        let args = SendArgs { device: "lo".to_owned(), rate, to: sink.local_addr().unwrap(), tcp: false };
        let family = AddressFamily::Inet;
        let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let over = AtomicBool::new(false);
        let began = Instant::now();
        let report = thread::scope(|scope| {
            let sender = scope.spawn(|| send_until(&over, &args, &socket).unwrap());
            thread::sleep(Duration::from_millis(500));
            over.store(true, Ordering::Relaxed);
            sender.join().unwrap()
        });
        let most = rate.bytes_in(began.elapsed()).0;
        assert!(report.bytes <= most, "{report:?}, at most {most} bytes");
        assert!(report.bytes >= most / 2, "{report:?} of {most} bytes");
    }
}
