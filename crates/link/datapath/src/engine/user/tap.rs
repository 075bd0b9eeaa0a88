//! The macvtap: its queues as files.
//!
//! A packet that arrives at the device waits in the kernel until it is read, and belongs to its
//! sender's socket until then. A written packet leaves by the device's egress. Frames carry a
//! `virtio_net_hdr`, so that super-packets stay whole and checksums unfinished, both ways.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::PathBuf,
};

use rustix::{
    fs::{FileType, Mode, OFlags, mknodat, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

/// The device's name.
pub(super) const NAME: &str = "weir0u";

/// Packets that a tap queue holds in the kernel: what a few sockets' buffers hold, of the smallest.
pub(super) const QUEUE_LEN: u32 = 2048;

/// `TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN | TUN_F_USO4 | TUN_F_USO6` of
/// linux/if_tun.h; segmentation of UDP came with kernel 6.2.
const OFFLOADS: [libc::c_ulong; 2] = [0x0f | 0x20 | 0x40, 0x0f];

/// A macvtap's queues; each file is one, in the order in which the kernel counts them.
pub(super) struct Queues {
    pub(super) files: Vec<File>,
    /// Super-packets of datagrams go to and fro as they are.
    pub(super) datagrams: bool,
}

/// Opens as many as asked for.
pub(super) fn open(index: u32, queues: usize) -> io::Result<Queues> {
    let device = number(index)?;
    let files = (0..queues).map(|_| open_one(index, device)).collect::<io::Result<Vec<File>>>()?;
    let datagrams = files.first().map_or(Ok(false), offload)?;
    Ok(Queues { files, datagrams })
}

/// The character device's number, as sysfs tells it: a mount of its own, as the one at /sys shows
/// the devices of the namespace that has mounted it.
fn number(index: u32) -> io::Result<u64> {
    let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&sysfs)?;
    let root = fsmount(&sysfs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let path = format!("class/net/{NAME}/macvtap/tap{index}/dev");
    let file = openat(&root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let text = io::read_to_string(File::from(file))?;
    let (major, minor) = text.trim().split_once(':').ok_or(io::ErrorKind::InvalidData)?;
    let part = |text: &str| text.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    Ok(rustix::fs::makedev(part(major)?, part(minor)?))
}

fn open_one(index: u32, device: u64) -> io::Result<File> {
    let open =
        |path: &PathBuf| OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    // devtmpfs knows no namespaces: the node may be another one's device, or missing.
    let node = PathBuf::from(format!("/dev/tap{index}"));
    let is_ours = node.metadata().is_ok_and(|m| m.file_type().is_char_device() && m.rdev() == device);
    if is_ours {
        return open(&node);
    }
    let node = std::env::temp_dir().join(format!("weir-tap-{}-{device:x}", std::process::id()));
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(rustix::fs::CWD, &node, FileType::CharacterDevice, mode, device)?;
    let file = open(&node);
    std::fs::remove_file(&node)?;
    file
}

/// Asks for super-packets as they are, and for checksums unfinished. Whether those of datagrams are among them.
fn offload(queue: &File) -> io::Result<bool> {
    const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
    let mut result = Ok(false);
    for offloads in OFFLOADS {
        // SAFETY: the descriptor is open; this ioctl takes its argument by value.
        result = match unsafe { libc::ioctl(queue.as_raw_fd(), TUNSETOFFLOAD, offloads) } {
            0 => return Ok(offloads == OFFLOADS[0]),
            _ => Err(io::Error::last_os_error()),
        };
    }
    result
}
