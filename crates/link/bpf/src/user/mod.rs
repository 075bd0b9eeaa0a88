use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use libbpf_rs::{
    MapCore, MapFlags, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};

use self::skeleton::{UserSkel, UserSkelBuilder};
use crate::{Error, classify, common::mapped::Mapped};

#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, clippy::pedantic)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/user.skel.rs"));
}

/// The most queues: `WEIR_MAX_QUEUES` of user.h.
pub const MAX_QUEUES: usize = 256;

/// The packets that entered a queue since the programs were loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entered {
    /// With Ethernet headers; a super-packet's as one packet.
    pub bytes: u64,
    /// A super-packet counts once.
    pub packets: u64,
}

/// The programs that take packets to a scheduler in user space and back: see `user.bpf.c`.
pub struct UserPath {
    skeleton: UserSkel<'static>,
    entered: Mapped,
}

impl UserPath {
    /// The name under which the kernel knows the program at the device's egress.
    pub const LEAVE_PROGRAM: &'static str = "weir_leave";

    /// Loads the programs; nothing is attached yet, and everything passes.
    ///
    /// # Errors
    /// [`Error`] with libbpf's reason.
    pub fn load() -> Result<UserPath, Error> {
        let error = |source| Error { what: "load the programs of engine user", source };
        libbpf_rs::set_print(None);
        // As the classifier's: leaked, so that the skeleton needs no self-reference.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let skeleton = UserSkelBuilder::default().open(storage).map_err(error)?.load().map_err(error)?;
        let entered = Mapped::of(&skeleton.maps.weir_entered.as_fd(), size_of::<[u64; 2]>() * MAX_QUEUES)
            .map_err(|errno| error(libbpf_rs::Error::from_raw_os_error(errno as i32)))?;
        Ok(UserPath { skeleton, entered })
    }

    /// The program that the classifier hands packets to.
    pub(crate) fn enter_program(&self) -> BorrowedFd<'_> {
        self.skeleton.progs.weir_enter.as_fd()
    }

    /// The program for the device's egress, as a number for netlink.
    #[must_use]
    pub fn leave_program(&self) -> RawFd {
        self.skeleton.progs.weir_leave.as_fd().as_raw_fd()
    }

    /// Says which device, by its index, has these many queues, and what marks packets that come back
    /// from it ([`ClassifierConfig::cookie`](crate::ClassifierConfig)).
    ///
    /// # Errors
    /// [`Error`].
    pub fn configure(&self, device: u32, queues: u32, cookie: u32) -> Result<(), Error> {
        let value: Vec<u8> = [device, queues, cookie, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        let map = &self.skeleton.maps.weir_user_config;
        map.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|source| Error { what: "configure the programs of engine user", source })
    }

    /// Gives a class a queue, or none: then its packets go by queue 0.
    ///
    /// # Errors
    /// [`Error`]: there are [`MAX_QUEUES`].
    pub fn set_queue(&self, handle: u32, queue: Option<u32>) -> Result<(), Error> {
        classify::set(&self.skeleton.maps.weir_queues, &handle.to_ne_bytes(), queue, "give a class a queue")
    }

    /// The packets that entered a queue.
    ///
    /// # Panics
    /// If there is no such queue.
    #[must_use]
    pub fn entered(&self, queue: usize) -> Entered {
        Entered { bytes: self.entered.read(2 * queue), packets: self.entered.read(2 * queue + 1) }
    }
}
