//! The smallest frames, as many as a link takes, from a sender without a stack to a receiver without one:
//! what is measured so is the way between them.

use std::{
    io,
    mem::zeroed,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use libbpf_rs::libbpf_sys;
use nix::{
    net::if_::if_nametoindex,
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use weir_netlab::topology::Netns;
use weir_units::BitRate;

use crate::kernel::load_program;

/// Frames a system call.
const BATCH: usize = 64;
/// With its check sum, which an adapter would add, a frame of 64 bytes.
const FRAME: usize = 60;
/// `virtio_net_hdr`: a checksum that is not finished is the link's to finish, as of any socket of a container.
const VNET: usize = 10;

type Frame = [u8; VNET + FRAME];

/// Has an interface drop what it receives before that becomes a packet: native XDP, for as long as the
/// interface is there.
///
/// # Panics
/// If the kernel refuses.
pub fn drain(netns: &Netns, interface: &str) {
    // r0 = XDP_DROP; exit
    let instructions: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];
    let program = load_program(libbpf_sys::BPF_PROG_TYPE_XDP, "drain", &instructions);
    let attach = || {
        let index = if_nametoindex(interface).expect("there is such an interface").cast_signed();
        let native = libbpf_sys::XDP_FLAGS_DRV_MODE;
        // SAFETY: a system call on two numbers; no options are given.
        let code =
            unsafe { libbpf_sys::bpf_xdp_attach(index, program.as_raw_fd(), native, std::ptr::null()) };
        assert_eq!(code, 0, "{interface} takes an XDP program");
    };
    netns.within(attach).expect("can enter");
}

/// Sends frames of 64 bytes by one interface as fast as they are taken, on one processor, from now
/// until it is dropped. A receiver that cannot take them all holds the sender back, as any socket
/// does.
#[derive(Debug)]
pub struct Frames {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Frames {
    /// From this namespace's `eth0`, to this hardware address, from one network address to another,
    /// of this number of flows alternately.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn send(from: &Netns, to: [u8; 6], addresses: [[u8; 4]; 2], flows: u16, processor: usize) -> Frames {
        let socket = from.within(open).expect("can enter").expect("a packet socket");
        let frames: Vec<Frame> = (0..flows).map(|flow| frame(to, addresses, flow)).collect();
        let frames = frames.repeat(BATCH.div_ceil(frames.len()));
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut only = CpuSet::new();
            // Where it may not be, it sends from another.
            let _ = only.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &only));
            while !stopped.load(Ordering::Relaxed) {
                frames.chunks(BATCH).for_each(|batch| send(&socket, batch));
            }
        });
        Frames { stop, thread: Some(thread) }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends the given frames in turn at a rate, from a packet socket, until it goes out of scope. The socket
/// drops a frame that it cannot take at once.
#[derive(Debug)]
pub struct RawFrames {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RawFrames {
    /// How often it sends.
    const TICK: Duration = Duration::from_millis(2);
    /// Frames a tick at most: a flood of small frames must leave the machine a processor.
    const MAX_A_TICK: usize = 10;

    /// From this namespace's `eth0`; each frame begins with its Ethernet header.
    ///
    /// # Panics
    /// If the kernel refuses, or there are no frames.
    #[must_use]
    #[track_caller]
    pub fn send(from: &Netns, frames: &[Vec<u8>], rate: BitRate) -> RawFrames {
        assert!(!frames.is_empty(), "there must be a frame to send");
        let socket = from.within(open).expect("can enter").expect("a packet socket");
        let frames: Vec<Vec<u8>> = frames.iter().map(|frame| [&[0; VNET], &frame[..]].concat()).collect();
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let (a_tick, mut room, mut next) = (rate.bytes_in(Self::TICK).0, 0, 0);
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(Self::TICK);
                room = (room + a_tick).min(2 * a_tick);
                for _ in 0..Self::MAX_A_TICK {
                    let frame = &frames[next % frames.len()];
                    let Some(left) = room.checked_sub(frame.len() as u64) else { break };
                    (room, next) = (left, next + 1);
                    let (start, len) = (frame.as_ptr().cast(), frame.len());
                    // SAFETY: the frame lives through the call, which only reads it.
                    unsafe { libc::send(socket.as_raw_fd(), start, len, libc::MSG_DONTWAIT) };
                }
            }
        });
        RawFrames { stop, thread: Some(thread) }
    }
}

impl Drop for RawFrames {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// linux/if_packet.h.
const PACKET_VNET_HDR: libc::c_int = 15;

/// A socket for frames that leave by `eth0`; it waits no longer than that to be asked to stop.
fn open() -> io::Result<OwnedFd> {
    let code = |code: libc::c_int| if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) };
    // SAFETY: a plain system call; the descriptor is fresh and has no other owner.
    let socket = unsafe {
        OwnedFd::from_raw_fd(code(libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0))?)
    };
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = if_nametoindex("eth0")?.cast_signed();
    let time_limit = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
    let on: libc::c_int = 1;
    // SAFETY: all values live through the calls and are as long as said.
    unsafe {
        code(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32))?;
        code(libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&raw const time_limit).cast(),
            size_of_val(&time_limit) as u32,
        ))?;
        code(libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_VNET_HDR,
            (&raw const on).cast(),
            size_of_val(&on) as u32,
        ))?;
    }
    Ok(socket)
}

/// A UDP datagram from `addresses[0]` to `addresses[1]`, behind a `virtio_net_hdr`; a flow has its own port.
fn frame(to: [u8; 6], addresses: [[u8; 4]; 2], flow: u16) -> Frame {
    const UDP: u8 = 17;
    const LENGTH: u8 = (FRAME - 14 - 20) as u8;
    // One's complement.
    let sum = |bytes: &[u8]| {
        let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    };
    let [source, target] = addresses;
    let mut ip = [0x45, 0, 0, 20 + LENGTH, 0, 0, 0x40, 0, 64, UDP, 0, 0].to_vec();
    ip.extend(source.iter().chain(&target));
    let check = !sum(&ip);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let pseudo = [&ip[12..20], &[0, UDP, 0, LENGTH]].concat();
    ip.extend((1024 + flow).to_be_bytes());
    ip.extend([0, 9, 0, LENGTH]);
    ip.extend(sum(&pseudo).to_be_bytes());

    let mut frame: Frame = [0; VNET + FRAME];
    // The checksum is to be finished from byte 34 on, and is 6 bytes behind that.
    (frame[0], frame[2]) = (1, 42);
    frame[6..8].copy_from_slice(&34u16.to_ne_bytes());
    frame[8..10].copy_from_slice(&6u16.to_ne_bytes());
    frame[10..16].copy_from_slice(&to);
    // A sender's address of its own.
    frame[16..24].copy_from_slice(&[2, 0, 0, 0, 0, 9, 0x08, 0x00]);
    frame[24..24 + ip.len()].copy_from_slice(&ip);
    frame
}

/// Sends these, or as many as it could before it had waited for long.
fn send(socket: &OwnedFd, frames: &[Frame]) {
    let part =
        |frame: &Frame| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
    let mut parts: Vec<libc::iovec> = frames.iter().map(part).collect();
    let message = |part: &mut libc::iovec| {
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut message: libc::mmsghdr = unsafe { zeroed() };
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        message
    };
    let mut messages: Vec<libc::mmsghdr> = parts.iter_mut().map(message).collect();
    // SAFETY: messages, their parts and the frames live through the call, which only reads the frames.
    unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, 0) };
}
