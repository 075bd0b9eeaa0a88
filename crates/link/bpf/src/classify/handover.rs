//! The way from the classifier to a scheduler in user space: an array of one program.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{Error, attach};

/// The classifier's array for the program that takes packets to user space. The kernel empties it when no
/// process has it open, so that a process which outlives this one needs it too ([`array`](Handover::array)).
pub struct Handover {
    array: MapHandle,
    /// The program in it, once one was named.
    program: Mutex<Option<OwnedFd>>,
}

impl Handover {
    pub(super) fn new(array: MapHandle) -> Handover {
        Handover { array, program: Mutex::new(None) }
    }

    /// The array.
    #[must_use]
    pub fn array(&self) -> BorrowedFd<'_> {
        self.array.as_fd()
    }

    /// Has packets taken to user space by this program
    /// ([`UserPath::enter_program`](crate::UserPath::enter_program)).
    ///
    /// # Errors
    /// [`Error`].
    pub fn to(&self, program: OwnedFd) -> Result<(), Error> {
        self.put(program.as_fd())
            .map_err(|source| Error { what: "hand packets over to user space", source })?;
        *self.program.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
        Ok(())
    }

    pub(super) fn put(&self, program: BorrowedFd<'_>) -> Result<(), libbpf_rs::Error> {
        self.array.update(&0u32.to_ne_bytes(), &program.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
    }

    /// Puts the program back if another process has taken it away: 1, or 0 if it is there.
    pub(super) fn restore(&self) -> Result<usize, libbpf_rs::Error> {
        let program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(program) = &*program else { return Ok(0) };
        let id = attach::program_id(program).map_err(super::restore::refused)?;
        // The values read from an array of programs are their ids.
        let found = self.array.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        let is_there = found.is_some_and(|found| found == id.to_ne_bytes());
        if is_there { Ok(0) } else { self.put(program.as_fd()).map(|()| 1) }
    }
}
