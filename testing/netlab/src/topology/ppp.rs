//! PPP between two namespaces, over the two sides of a pseudo-terminal. The kernel frames packets on
//! both sides (`N_PPP`), and no negotiation takes place: both ends are told what they would agree on.

use std::{
    fs::{File, OpenOptions},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
};

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    libc,
    pty::openpty,
    sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr},
};

use super::{MTU, Netns};

/// The line discipline that frames packets (linux/tty.h).
const N_PPP: libc::c_int = 3;
// linux/ppp-ioctl.h; the request's second byte is its family.
const PPPIOCGCHAN: libc::c_ulong = 0x8004_7437;
const PPPIOCATTCHAN: libc::c_ulong = 0x4004_7438;
const PPPIOCNEWUNIT: libc::c_ulong = 0xc004_743e;
const PPPIOCCONNECT: libc::c_ulong = 0x4004_743a;
const PPPIOCSASYNCMAP: libc::c_ulong = 0x4004_7457;
const PPPIOCSRASYNCMAP: libc::c_ulong = 0x4004_7454;

/// The missing part; none if this machine has all.
pub(super) fn lacks() -> Option<&'static str> {
    let name = format!("weirlab-{}-ppp", std::process::id());
    let made = Netns::create(&name).is_ok_and(|netns| Line::between((&netns, "p0"), (&netns, "p1")).is_ok());
    (!made).then_some("the kernel's PPP over serial lines (CONFIG_PPP, CONFIG_PPP_ASYNC)")
}

/// A link of two PPP devices; gone when dropped.
#[derive(Debug)]
pub(super) struct Line {
    /// Devices go before the terminals do.
    _ends: [End; 2],
    _terminals: [OwnedFd; 2],
}

/// A PPP device and the channel under it.
#[derive(Debug)]
struct End {
    _unit: File,
    _channel: File,
}

impl Line {
    /// Between two namespaces, in each of which a device of that name appears, up.
    ///
    /// # Errors
    /// If this kernel has no PPP.
    pub(super) fn between(a: (&Netns, &str), b: (&Netns, &str)) -> Result<Line> {
        let pair = openpty(None, None).context("cannot open a pair of terminals")?;
        let mut raw = tcgetattr(&pair.slave)?;
        cfmakeraw(&mut raw);
        tcsetattr(&pair.slave, SetArg::TCSANOW, &raw)?;
        let ends = [End::on(&pair.master, a)?, End::on(&pair.slave, b)?];
        Ok(Line { _ends: ends, _terminals: [pair.master, pair.slave] })
    }
}

impl End {
    fn on(terminal: &OwnedFd, (netns, name): (&Netns, &str)) -> Result<End> {
        // Channels and units belong to the namespace of the process that makes them.
        let (end, unit) = netns.within(|| make(terminal))?.with_context(|| {
            format!("a ppp device in namespace {} (/dev/ppp, CONFIG_PPP_ASYNC)", netns.name())
        })?;
        netns.ip(&format!("link set dev ppp{unit} name {name}\nlink set dev {name} mtu {MTU} up\n"))?;
        Ok(end)
    }
}

fn make(terminal: &OwnedFd) -> Result<(End, libc::c_int)> {
    ask(terminal, libc::TIOCSETD, N_PPP).context("line discipline N_PPP")?;
    let index = ask(terminal, PPPIOCGCHAN, 0).context("PPPIOCGCHAN")?;
    let channel = device()?;
    ask(&channel, PPPIOCATTCHAN, index).context("PPPIOCATTCHAN")?;
    // The line carries any byte: none needs an escape but those of the framing itself.
    for map in [PPPIOCSASYNCMAP, PPPIOCSRASYNCMAP] {
        ask(&channel, map, 0).context("PPPIOCSASYNCMAP")?;
    }
    let unit = device()?;
    let number = ask(&unit, PPPIOCNEWUNIT, -1).context("PPPIOCNEWUNIT")?;
    ask(&channel, PPPIOCCONNECT, number).context("PPPIOCCONNECT")?;
    Ok((End { _unit: unit, _channel: channel }, number))
}

fn device() -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/ppp")
        .context("/dev/ppp")
}

/// An `ioctl` that takes and returns an integer by its address.
fn ask(file: &impl AsRawFd, request: libc::c_ulong, value: libc::c_int) -> Result<libc::c_int> {
    let mut value = value;
    // SAFETY: the descriptor is open, and each of these requests reads or writes one integer.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut value) })?;
    Ok(value)
}
