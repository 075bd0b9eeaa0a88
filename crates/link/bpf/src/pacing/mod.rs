//! Pacing holds the TCP sockets of a class to the share of the class.

mod earlier;

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
};

use libbpf_rs::{
    ErrorKind, Link, MapCore, MapFlags, MapMut, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};

pub use self::earlier::EarlierPacing;
use self::skeleton::{PacingSkel, PacingSkelBuilder};
use crate::{Classifier, Error, common::entries::ignore};

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/pacing.skel.rs"));
}

/// The programs that pace TCP sockets, and their maps. See `pacing.bpf.c`.
pub struct Pacer {
    skeleton: PacingSkel<'static>,
    /// Of the iterator over sockets.
    visitor: Link,
}

impl Pacer {
    /// The name under which the kernel knows the program for socket events.
    pub const PROGRAM: &'static str = earlier::PROGRAM;

    /// Loads the programs, which share maps with the classifier; nothing is attached yet.
    ///
    /// # Errors
    /// [`Error`] with libbpf's reason: no `CONFIG_CGROUP_BPF`, no BTF, the verifier.
    pub fn load(classifier: &Classifier) -> Result<Pacer, Error> {
        let error = |source| Error { what: "load the programs that pace sockets", source };
        libbpf_rs::set_print(None);
        // One object a process lifetime: leaked, so that the skeleton needs no self-reference.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = PacingSkelBuilder::default().open(storage).map_err(error)?;
        let theirs = &classifier.skeleton.maps;
        open.maps.weir_flows.reuse_fd(theirs.weir_flows.as_fd()).map_err(error)?;
        open.maps.weir_shares.reuse_fd(theirs.weir_shares.as_fd()).map_err(error)?;
        open.maps.weir_class_flow.reuse_fd(theirs.weir_class_flow.as_fd()).map_err(error)?;
        let skeleton = open.load().map_err(error)?;
        let visitor = skeleton.progs.weir_visit.attach().map_err(error)?;
        Ok(Pacer { skeleton, visitor })
    }

    /// The program for socket events.
    #[must_use]
    pub fn program(&self) -> BorrowedFd<'_> {
        self.skeleton.progs.weir_pacer.as_fd()
    }

    /// The iterator over sockets, for [`attach::visit`](crate::attach::visit).
    #[must_use]
    pub fn visitor(&self) -> BorrowedFd<'_> {
        self.visitor.as_fd()
    }

    /// Tells the programs that the agent of the network namespace `owner` (its inode) lives at
    /// `now_ns` of the monotonic clock. `leaving`: rates are to be taken back.
    ///
    /// # Errors
    /// [`Error`].
    pub fn beat(&self, owner: u64, now_ns: u64, leaving: bool) -> Result<(), Error> {
        let mut value = [0; 24];
        for (chunk, word) in value.chunks_exact_mut(8).zip([now_ns, owner, u64::from(leaving)]) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        let map = &self.skeleton.maps.weir_pacing;
        map.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|source| Error { what: "tell the pacing programs that the agent lives", source })
    }

    pub(crate) fn shares(&self) -> &MapMut<'static> {
        &self.skeleton.maps.weir_shares
    }

    pub(crate) fn class_flows(&self) -> &MapMut<'static> {
        &self.skeleton.maps.weir_class_flow
    }

    /// Sets what all of a class's sockets may send, bytes per second at layer 2; none: they
    /// are not paced.
    ///
    /// # Errors
    /// [`Error`]: the map holds 65,536 classes.
    pub fn set_share(&self, handle: u32, bytes_per_sec: Option<u64>) -> Result<(), Error> {
        let error = |source| Error { what: "set the rate of a class's sockets", source };
        let (shares, class_flows) = (&self.skeleton.maps.weir_shares, &self.skeleton.maps.weir_class_flow);
        let key = handle.to_ne_bytes();
        let result = match bytes_per_sec {
            Some(rate) => shares
                .update(&key, &rate.to_ne_bytes(), MapFlags::ANY)
                .and_then(|()| class_flows.update(&key, &[0; CLASS_FLOWS], MapFlags::NO_EXIST)),
            None => {
                ignore(shares.delete(&key), &[ErrorKind::NotFound]).and_then(|()| class_flows.delete(&key))
            }
        };
        ignore(result, &[ErrorKind::AlreadyExists, ErrorKind::NotFound]).map_err(error)
    }
}

/// Size of `struct weir_class_flows` of pacing.h.
pub(crate) const CLASS_FLOWS: usize = 40;
