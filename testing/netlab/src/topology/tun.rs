//! Devices without an Ethernet header: packets that leave one arrive at the other.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, ensure};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use super::{MTU, Netns};

/// Packets that a device keeps until they are taken: a second of 100 Mbit/s, as a busy machine may be late.
const QUEUE_CAPACITY: u32 = 10_000;
/// Packets that are taken from a device before the other has its turn.
const TURN: usize = 64;
/// How long the thread waits before it looks whether to end, milliseconds.
const LOOK: u16 = 50;

/// The type of a tunnel device, as the kernel's other parts see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `ARPHRD_NONE`, as tunnels are.
    None,
    /// `ARPHRD_RAWIP`, as modems in raw-IP mode are.
    RawIp,
}

/// The missing part; none if this machine has all.
pub(super) fn lacks() -> Option<&'static str> {
    let name = format!("weirlab-{}-tun", std::process::id());
    let made = Netns::create(&name).is_ok_and(|netns| tunnel(&netns, "t0").is_ok());
    (!made).then_some("the kernel's tunnel devices (/dev/net/tun, CONFIG_TUN)")
}

/// A device whose packets this process reads and writes; gone with it.
///
/// # Errors
/// If this kernel has no tunnel devices.
pub fn tunnel(netns: &Netns, name: &str) -> Result<File> {
    tunnel_of(netns, name, Kind::None)
}

fn tunnel_of(netns: &Netns, name: &str, kind: Kind) -> Result<File> {
    const ARPHRD_RAWIP: libc::c_ulong = 519;
    let what = || format!("a tunnel device in namespace {} (/dev/net/tun, CONFIG_TUN)", netns.name());
    let open = || -> Result<File> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        // SAFETY: all zeros are an `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        ensure!(name.len() < request.ifr_name.len(), "{name} is too long for a device's name");
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the descriptor is open, and the kernel reads and writes an `ifreq`.
        Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        if kind == Kind::RawIp {
            // SAFETY: the descriptor is open, and the request takes a number.
            Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETLINK, ARPHRD_RAWIP) })?;
        }
        fcntl(&file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(file)
    };
    let file = netns.within(open)?.with_context(what)?;
    // Packets as they are on a wire, as on the veth of other links.
    netns.ip(&format!("link set dev {name} mtu {MTU} txqueuelen {QUEUE_CAPACITY} up\n"))?;
    netns.exec(&["ethtool", "-K", name, "gso", "off", "gro", "off"])?;
    Ok(file)
}

/// A link of two tunnel devices, and the thread that carries packets between them.
#[derive(Debug)]
pub(super) struct Relay {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Between two namespaces, in each of which a device of that name appears, up.
    ///
    /// # Errors
    /// If this kernel has no tunnel devices.
    pub(super) fn between(a: (&Netns, &str), b: (&Netns, &str), kind: Kind) -> Result<Relay> {
        let devices = [tunnel_of(a.0, a.1, kind)?, tunnel_of(b.0, b.1, kind)?];
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                carry(&devices);
            }
        });
        Ok(Relay { ends, thread: Some(thread) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for packets, and takes what has come across.
fn carry(devices: &[File; 2]) {
    let mut polled = devices.each_ref().map(|device| PollFd::new(device.as_fd(), PollFlags::POLLIN));
    let _ = poll(&mut polled, PollTimeout::from(LOOK));
    let mut packet = [0u8; MTU as usize];
    for (from, to) in [(0, 1), (1, 0)] {
        for _ in 0..TURN {
            let Ok(len) = (&devices[from]).read(&mut packet) else { break };
            // A device that is down loses it, as any does.
            let _ = (&devices[to]).write(&packet[..len]);
        }
    }
}
