use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, MapMut,
    skel::{OpenSkel, SkelBuilder},
};
use nix::errno::Errno;

use self::skeleton::UserSkelBuilder;
use crate::{Error, attach, classify, common::mapped::Mapped};

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

/// The programs that take packets to a scheduler in user space and back: see `user.bpf.c`. Packets take
/// this way while the process that has loaded them lives: it alone holds the array that leads on.
pub struct UserPath {
    enter: OwnedFd,
    leave: OwnedFd,
    config: MapHandle,
    queues: MapHandle,
    entered: Mapped,
    _alive: OwnedFd,
}

/// The kernel closes the files of a killed process one after the other, the highest number first, and takes
/// 10 ms for each queue of a device. The array that leads packets there goes before them.
const FIRST_TO_CLOSE: RawFd = 512;

impl UserPath {
    /// The name under which the kernel knows the program at the device's egress.
    pub const LEAVE_PROGRAM: &'static str = "weir_leave";

    /// Loads the programs; nothing is attached yet, and everything passes.
    ///
    /// # Errors
    /// [`Error`] with libbpf's reason.
    pub fn load() -> Result<UserPath, Error> {
        let error = |source| Error { what: "load the programs of engine user", source };
        let refused = |errno: Errno| error(libbpf_rs::Error::from_raw_os_error(errno as i32));
        libbpf_rs::set_print(None);
        let mut storage = MaybeUninit::uninit();
        let skeleton = UserSkelBuilder::default().open(&mut storage).map_err(error)?.load().map_err(error)?;
        let (maps, progs) = (&skeleton.maps, &skeleton.progs);
        let handle = |map: &MapMut<'_>| MapHandle::try_from(map).map_err(error);
        let kept = |program: BorrowedFd<'_>| program.try_clone_to_owned().map_err(|e| error(e.into()));
        let take = progs.weir_take.as_fd().as_raw_fd();
        maps.weir_alive.update(&0u32.to_ne_bytes(), &take.to_ne_bytes(), MapFlags::ANY).map_err(error)?;
        let alive = maps.weir_alive.as_fd();
        // Else a low limit of open files: a low number does as well, a little later.
        let alive = attach::duplicate(alive, FIRST_TO_CLOSE).or_else(|_| attach::duplicate(alive, 0));
        let bytes = size_of::<[u64; 2]>() * MAX_QUEUES;
        Ok(UserPath {
            enter: kept(progs.weir_enter.as_fd())?,
            leave: kept(progs.weir_leave.as_fd())?,
            config: handle(&maps.weir_user_config)?,
            queues: handle(&maps.weir_queues)?,
            entered: Mapped::of(&maps.weir_entered.as_fd(), bytes).map_err(refused)?,
            _alive: alive.map_err(refused)?,
        })
    }

    /// The program that the classifier hands packets to ([`Handover::to`](crate::Handover::to)).
    #[must_use]
    pub fn enter_program(&self) -> BorrowedFd<'_> {
        self.enter.as_fd()
    }

    /// The program for the device's egress, as a number for netlink.
    #[must_use]
    pub fn leave_program(&self) -> RawFd {
        self.leave.as_raw_fd()
    }

    /// Says which device, by its index, has these many queues, and what marks packets that come back
    /// from it ([`ClassifierConfig::cookie`](crate::ClassifierConfig)).
    ///
    /// # Errors
    /// [`Error`].
    pub fn configure(&self, device: u32, queues: u32, cookie: u32) -> Result<(), Error> {
        let value: Vec<u8> = [device, queues, cookie, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        self.config
            .update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|source| Error { what: "configure the programs of engine user", source })
    }

    /// Gives a class a queue, or none: then its packets go by queue 0.
    ///
    /// # Errors
    /// [`Error`]: there are [`MAX_QUEUES`].
    pub fn set_queue(&self, handle: u32, queue: Option<u32>) -> Result<(), Error> {
        classify::set(&self.queues, &handle.to_ne_bytes(), queue, "give a class a queue")
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
