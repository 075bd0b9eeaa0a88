//! The room that the state has on its disk.

use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};
use weir_units::Bytes;

/// The room for both copies of a small state, and for a third while one is rewritten.
const ENOUGH: Bytes = Bytes(8 << 20);

/// The way out if the state in this directory cannot be opened, where its file system is the reason.
pub(crate) fn way_out(dir: &Path) -> Option<String> {
    let there = dir.ancestors().find(|dir| dir.exists())?;
    let found = statvfs(there).ok()?;
    // The fields have 32 bits on some machines.
    #[allow(clippy::useless_conversion)]
    let free = Bytes(u64::from(found.blocks_available()) * u64::from(found.fragment_size()));
    way_out_of(there, found.flags().contains(FsFlags::ST_RDONLY), free, found.files_available() == 0)
}

fn way_out_of(dir: &Path, is_read_only: bool, free: Bytes, lacks_inodes: bool) -> Option<String> {
    let dir = dir.display();
    let what = if is_read_only {
        format!("the file system of {dir} is read-only: make it writable (`mount -o remount,rw`)")
    } else if free < ENOUGH {
        format!("the file system of {dir} has {free} free: make it {ENOUGH}")
    } else if lacks_inodes {
        format!("the file system of {dir} has no free inodes: remove some files there")
    } else {
        return None;
    };
    Some(format!("{what}, or name another directory in `[agent] state`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn way_out_names_what_the_file_system_lacks() {
        let of = |is_read_only, free, lacks| way_out_of(Path::new("/s"), is_read_only, Bytes(free), lacks);
        assert_eq!(of(false, 8 << 20, false), None);
        for (found, words) in [
            (of(true, 0, true), "the file system of /s is read-only: make it writable"),
            (of(false, 65_536, true), "the file system of /s has 64KiB free: make it 8MiB, or name"),
            (of(false, 8 << 20, true), "the file system of /s has no free inodes"),
        ] {
            let text = found.unwrap();
            assert!(text.starts_with(words) && text.ends_with("in `[agent] state`"), "{text}");
        }
        // A directory that is not there would be made on the file system of the one above.
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(way_out(&dir.path().join("a/b")), way_out(dir.path()));
    }
}
