//! Reads a map's entries, in as few system calls as the kernel allows.

use std::{collections::BTreeMap, os::fd::AsRawFd, ptr};

use libbpf_rs::{MapCore, MapFlags};
use nix::errno::Errno;

/// The error of kernels that cannot read such a map in batches (`ENOTSUPP`): those before 5.13, of
/// longest prefixes.
const NOT_SUPPORTED: i32 = -524;
/// The number of new readings if another process writes into the map meanwhile.
const ATTEMPTS: u32 = 16;

/// A word of a map's value, in the machine's order of bytes; 0 behind its end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("eight bytes")))
}

/// The same of 32 bits.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().expect("four bytes")))
}

/// All entries of a map with keys of `K` bytes and values of `V`; `about` is how many there should be.
/// libbpf-rs reads in batches too, but takes an error for the end of the map.
///
/// # Errors
/// `E2BIG` if the map's entries are of other sizes; what the kernel answers.
pub(crate) fn entries<const K: usize, const V: usize>(
    map: &impl MapCore,
    about: usize,
) -> Result<BTreeMap<[u8; K], [u8; V]>, Errno> {
    if (map.key_size() as usize, map.value_size() as usize) != (K, V) {
        return Err(Errno::E2BIG);
    }
    let most = map.max_entries() as usize;
    // Room for one more bucket of the hash table: less than one is refused.
    let mut room = (about + 64).min(most);
    let (mut keys, mut values) = (vec![[0; K]; room], vec![[0; V]; room]);
    // Where the kernel goes on: a bucket's number, or a key.
    let (mut from, mut next) = ([0u8; 64], [0u8; 64]);
    assert!(K <= from.len(), "a key of {K} bytes");
    let (mut found, mut is_first, mut attempts) = (BTreeMap::new(), true, 0);
    loop {
        let mut count = u32::try_from(room).unwrap_or(u32::MAX);
        let begin = if is_first { ptr::null_mut() } else { from.as_mut_ptr() };
        // SAFETY: the descriptor is open; `keys` and `values` have room for `count` entries of the
        // sizes that were compared above, `from` and `next` for a key or for a bucket's number; no options.
        let code = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                begin.cast(),
                next.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                ptr::null(),
            )
        };
        let is_last = code == -(Errno::ENOENT as i32);
        if code == 0 || is_last {
            let count = (count as usize).min(room);
            found.extend(keys[..count].iter().copied().zip(values[..count].iter().copied()));
            if is_last || found.len() > most {
                return Ok(found);
            }
            (from, is_first) = (next, false);
            continue;
        }
        attempts += 1;
        match Errno::from_raw(-code) {
            Errno::ENOSPC if room < most => {
                room = (room * 4).min(most);
                (keys, values) = (vec![[0; K]; room], vec![[0; V]; room]);
            }
            Errno::EINTR | Errno::EAGAIN if attempts < ATTEMPTS => {}
            _ if code == NOT_SUPPORTED => return Ok(one_by_one(map)),
            errno => return Err(errno),
        }
    }
}

/// The same, entry by entry.
fn one_by_one<const K: usize, const V: usize>(map: &impl MapCore) -> BTreeMap<[u8; K], [u8; V]> {
    let value = |key: &[u8]| map.lookup(key, MapFlags::ANY).ok().flatten();
    let entry = |key: Vec<u8>| -> Option<([u8; K], [u8; V])> {
        Some((key.as_slice().try_into().ok()?, value(&key)?.try_into().ok()?))
    };
    let mut found = BTreeMap::new();
    found.extend(map.keys().filter_map(entry));
    found
}

/// Takes errors of these kinds for success.
pub(crate) fn ignore(
    result: Result<(), libbpf_rs::Error>,
    kinds: &[libbpf_rs::ErrorKind],
) -> Result<(), libbpf_rs::Error> {
    match result {
        Err(e) if kinds.contains(&e.kind()) => Ok(()),
        other => other,
    }
}
