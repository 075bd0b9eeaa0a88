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
    /// Subscribes to links and addresses. The kind of the change does not matter: the agent looks at all links.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn of_links() -> Result<Events, NetlinkError> {
        Events::of("watch links", RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR, |_| true)
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

/// Whether an event is about a route to all destinations. A garbled event may be.
fn is_about_default(datagram: &[u8]) -> bool {
    const HEADER: usize = 16;
    const PREFIX_LENGTH: usize = HEADER + 1;
    datagram.get(PREFIX_LENGTH).is_none_or(|length| *length == 0)
}
