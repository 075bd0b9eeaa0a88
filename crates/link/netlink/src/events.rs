use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::NetlinkError;

const RTMGRP_LINK: u32 = 1;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV4_ROUTE: u32 = 0x40;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;
const RTMGRP_IPV6_ROUTE: u32 = 0x400;

/// A non-blocking socket that becomes readable when something of this namespace changes.
pub struct Events {
    socket: Socket,
    is_news: fn(&[u8]) -> bool,
}

impl Events {
    /// Subscribes to links and addresses. The kind of the change does not matter: the agent looks at all links. Protocols
    /// tell of their parts of a link too, which is no news: a bridge of its ports' timers, IPv6 of each router
    /// advertisement. The kernel tells of a changed master or state as the link's own event.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn of_links() -> Result<Events, NetlinkError> {
        Events::of(
            "watch links",
            RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR,
            is_about_link_or_address,
        )
    }

    /// Subscribes to default routes. A router's table has many other routes.
    ///
    /// The kernel tells of no IPv4 route that goes with its link. [`Events::of_links`] tells of the link.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn of_default_routes() -> Result<Events, NetlinkError> {
        Events::of("watch routes", RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE, is_about_default)
    }

    fn of(what: &str, groups: u32, is_news: fn(&[u8]) -> bool) -> Result<Events, NetlinkError> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, groups))?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        open()
            .map(|socket| Events { socket, is_news })
            .map_err(|source| NetlinkError::Socket { what: what.into(), source })
    }

    /// Reads all that has arrived; true if some of it may be a change of what was subscribed to.
    pub fn drain(&self) -> bool {
        let mut any = false;
        loop {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => any |= (self.is_news)(&datagram),
                // Too many events to keep: something changed, certainly.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return any,
            }
        }
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as `self` lives, which the borrow cannot outlive.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }
}

/// Whether an event is about an address, or about a link as such (`rtmsg_ifinfo` in net/core/rtnetlink.c). Those of one
/// protocol name its family (`br_ifinfo_notify`, `inet6_ifinfo_notify`). A garbled event may be about a link.
fn is_about_link_or_address(datagram: &[u8]) -> bool {
    const KIND: usize = 4;
    const FAMILY: usize = 16;
    let kind = datagram.get(KIND..KIND + 2).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    let is_link = matches!(kind, Some(libc::RTM_NEWLINK | libc::RTM_DELLINK));
    !is_link || datagram.get(FAMILY).is_none_or(|family| i32::from(*family) == libc::AF_UNSPEC)
}

/// Whether an event is about a route to all destinations. A garbled event may be.
fn is_about_default(datagram: &[u8]) -> bool {
    const HEADER: usize = 16;
    const PREFIX_LENGTH: usize = HEADER + 1;
    datagram.get(PREFIX_LENGTH).is_none_or(|length| *length == 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn links_and_addresses_are_told_and_what_protocols_tell_of_links_is_not() {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).ok()?;
            let run = |line: &str| {
                let mut words = line.split(' ');
                let program = words.next().expect("a line has words");
                assert!(Command::new(program).args(words).status().expect("it can run").success(), "{line}");
            };
            run("ip link add br0 type bridge");
            run("ip link add a0 type veth peer name b0");
            let links = Events::of_links().unwrap();
            let all = Events::of("watch all", RTMGRP_LINK, |_| true).unwrap();
            for line in [
                "ip link set a0 master br0",
                "ip link set a0 up",
                "ip address add 10.0.0.1/24 dev b0",
                "ip link set a0 nomaster",
                "ip link set a0 master br0",
                "ip link set a0 alias other",
                "ip link set a0 name c0",
                "ip link del c0",
            ] {
                if line.contains("del") {
                    run("bridge link set dev c0 learning off");
                    assert!(all.drain(), "the kernel tells of the bridge's port");
                    assert!(!links.drain(), "the port is no change of a link");
                }
                run(line);
                assert!(links.drain(), "{line}");
                all.drain();
            }
            Some(())
        });
        if made.join().unwrap().is_none() {
            println!("SKIPPED: making a network namespace needs CAP_SYS_ADMIN");
        }
    }
}
