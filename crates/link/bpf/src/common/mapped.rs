//! A BPF map in this process's memory: what the kernel counts is read, and what it is to do is
//! written, without a system call.

use std::{
    num::NonZeroUsize,
    os::fd::AsFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    errno::Errno,
    sys::mman::{MapFlags, ProtFlags, mmap, munmap},
};

/// A map of one value, as 64-bit words. The kernel reads and writes them at any time, so that each
/// is atomic and nothing more is promised.
pub(crate) struct Mapped {
    memory: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory is shared with the kernel and reached through atomics only.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the `bytes` long value of a map made with `BPF_F_MMAPABLE`; `bytes` is whole words.
    pub(crate) fn of(map: &impl AsFd, bytes: usize) -> Result<Mapped, Errno> {
        let length = NonZeroUsize::new(bytes).ok_or(Errno::EINVAL)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice; it is page-aligned, and the
        // kernel refuses a length beyond the value.
        let memory = unsafe {
            mmap(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, map, 0)
        }?;
        Ok(Mapped { memory: memory.cast(), words: bytes / size_of::<AtomicU64>() })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: inside the mapping, aligned, and any bits are a valid value.
        unsafe { self.memory.add(index).as_ref() }
    }

    /// The word at this index.
    pub(crate) fn read(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    /// Sets the word; what was written before is seen before.
    pub(crate) fn write(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly what `of` mapped, and no reference outlives `self`. It cannot fail so.
        let _ = unsafe { munmap(self.memory.cast(), self.words * size_of::<AtomicU64>()) };
    }
}
