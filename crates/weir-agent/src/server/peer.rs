//! The user at the other end of a connection.

use std::{io, os::fd::AsRawFd, sync::Arc};

use nix::{libc, unistd::geteuid};
use tokio::net::UnixStream;
use weir_agree::Name;

use crate::config::{Right, Rights};

/// A user as the kernel recorded it at the connection (`SO_PEERCRED`, `SO_PEERGROUPS` of unix(7)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    /// Its supplementary groups and its own group.
    groups: Arc<[u32]>,
}

impl Peer {
    /// # Errors
    /// The kernel's error.
    pub(super) fn of(stream: &UnixStream) -> io::Result<Peer> {
        let cred = stream.peer_cred()?;
        let mut groups = groups(stream)?;
        groups.push(cred.gid());
        Ok(Peer { uid: cred.uid(), groups: groups.into() })
    }

    /// Whether it is root or the agent's own user.
    pub(super) fn is_root(&self) -> bool {
        self.uid == 0 || self.uid == geteuid().as_raw()
    }

    /// Its right at the socket.
    pub(super) fn right(&self, rights: &Rights) -> Option<Right> {
        if self.is_root() { Some(Right::Admin) } else { rights.of(self.uid, &self.groups) }
    }

    /// The name of this user as the speaker of that party.
    pub(super) fn client(&self, party: Option<&Name>) -> Name {
        speaker(&self.uid.to_string(), party)
    }
}

/// The name of a caller as the speaker of that party. The caller's own name is a number or short.
pub(super) fn speaker(caller: &str, party: Option<&Name>) -> Name {
    let text = match party {
        // A name has at most 256 bytes, so a long party is cut.
        Some(party) => {
            format!("{caller}/{}", party.as_str().chars().take(40).collect::<String>().trim_end())
        }
        None => caller.chars().take(80).collect(),
    };
    Name::new(&text).unwrap_or_else(|_| Name::new("unnamed").expect("the text is a name"))
}

/// The supplementary groups of the connecting process.
fn groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 32];
    loop {
        let mut length = libc::socklen_t::try_from(groups.len() * size_of::<u32>()).unwrap_or(0);
        // SAFETY: the buffer has `length` bytes, and both outlive the call.
        let code = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if code == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel returns the required number of groups.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
impl Peer {
    pub(super) fn made(uid: u32, groups: &[u32]) -> Peer {
        Peer { uid, groups: groups.into() }
    }
}
