//! Programs at the kernel's hooks: TCX (kernel 6.6) has an order of them at an interface, without
//! a qdisc; a cgroup has them for the sockets of its processes.
//!
//! Programs are attached by themselves rather than through a link object: they stay when
//! the agent dies, and need no bpffs to be found again. libbpf-rs has no safe form of this.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libbpf_sys::{
    BPF_CGROUP_SETSOCKOPT, BPF_CGROUP_SOCK_OPS, BPF_F_ALLOW_MULTI, BPF_F_REPLACE, BPF_TCX_EGRESS,
    BPF_TCX_INGRESS, bpf_attach_type, bpf_prog_attach_opts, bpf_prog_detach_opts, bpf_prog_query_opts,
};
use nix::errno::Errno;

/// Programs at most at one hook, as in the kernel (`BPF_MPROG_MAX`).
const MAX_PROGRAMS: usize = 64;

/// Ids of the programs at the interface's TCX ingress, first to run first.
///
/// # Errors
/// `EINVAL` on kernels before 6.6, `ENODEV` if there is no such interface.
pub fn tcx_ingress(ifindex: u32) -> Result<Vec<u32>, Errno> {
    query(target(ifindex)?, BPF_TCX_INGRESS)
}

/// Ids of the programs at the interface's TCX egress, first to run first.
///
/// # Errors
/// As [`tcx_ingress`].
pub fn tcx_egress(ifindex: u32) -> Result<Vec<u32>, Errno> {
    query(target(ifindex)?, BPF_TCX_EGRESS)
}

/// Ids of the programs for socket events of a cgroup (v2), given its directory.
///
/// # Errors
/// `EPERM`, `EBADF` if it is no cgroup.
pub fn sock_ops(cgroup: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    query(cgroup.as_raw_fd(), BPF_CGROUP_SOCK_OPS)
}

/// Ids of the programs that see what a cgroup's processes set of their sockets.
///
/// # Errors
/// As [`sock_ops`].
pub fn socket_options(cgroup: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    query(cgroup.as_raw_fd(), BPF_CGROUP_SETSOCKOPT)
}

fn query(target: i32, hook: bpf_attach_type) -> Result<Vec<u32>, Errno> {
    let mut ids = [0u32; MAX_PROGRAMS];
    // SAFETY: all-zero is a valid value of this plain C struct (integers and null pointers).
    let mut opts: bpf_prog_query_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of::<bpf_prog_query_opts>() as _;
    opts.prog_ids = ids.as_mut_ptr();
    opts.__bindgen_anon_1.prog_cnt = u32::try_from(MAX_PROGRAMS).unwrap_or(0);
    // SAFETY: `opts` lives through the call and points to room for `MAX_PROGRAMS` ids, as it says.
    let code = unsafe { libbpf_sys::bpf_prog_query_opts(target, hook, &raw mut opts) };
    check(code)?;
    // SAFETY: both fields of the union are the same 32-bit count.
    let count = unsafe { opts.__bindgen_anon_1.prog_cnt } as usize;
    Ok(ids[..count.min(MAX_PROGRAMS)].to_vec())
}

/// Attaches a program at the end of the interface's TCX ingress or, given the program that
/// is there now, puts it in that one's place with no packet in between.
///
/// # Errors
/// `EINVAL` on kernels before 6.6, `ENODEV`, `EPERM`.
pub fn attach_tcx_ingress(program: &impl AsFd, ifindex: u32, replace: Option<u32>) -> Result<(), Errno> {
    attach(program, target(ifindex)?, BPF_TCX_INGRESS, 0, replace)
}

/// The same at its TCX egress.
///
/// # Errors
/// As [`attach_tcx_ingress`].
pub fn attach_tcx_egress(program: &impl AsFd, ifindex: u32, replace: Option<u32>) -> Result<(), Errno> {
    attach(program, target(ifindex)?, BPF_TCX_EGRESS, 0, replace)
}

/// Attaches a program for the socket events of a cgroup (v2) and all below, beside those of
/// others or, given the program that is there now, in that one's place.
///
/// # Errors
/// `EPERM`, also if someone has attached a program there that allows no other; `E2BIG` if
/// there are 64.
pub fn attach_sock_ops(
    program: &impl AsFd,
    cgroup: BorrowedFd<'_>,
    replace: Option<u32>,
) -> Result<(), Errno> {
    attach(program, cgroup.as_raw_fd(), BPF_CGROUP_SOCK_OPS, BPF_F_ALLOW_MULTI, replace)
}

/// The same for what a cgroup's processes set of their sockets.
///
/// # Errors
/// As [`attach_sock_ops`].
pub fn attach_socket_options(
    program: &impl AsFd,
    cgroup: BorrowedFd<'_>,
    replace: Option<u32>,
) -> Result<(), Errno> {
    attach(program, cgroup.as_raw_fd(), BPF_CGROUP_SETSOCKOPT, BPF_F_ALLOW_MULTI, replace)
}

fn attach(
    program: &impl AsFd,
    target: i32,
    hook: bpf_attach_type,
    flags: u32,
    replace: Option<u32>,
) -> Result<(), Errno> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut opts: bpf_prog_attach_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of::<bpf_prog_attach_opts>() as _;
    opts.flags = flags;
    let old = replace.map(program_by_id).transpose()?;
    if let Some(old) = &old {
        opts.flags |= BPF_F_REPLACE;
        opts.__bindgen_anon_1.replace_prog_fd = old.as_raw_fd();
    }
    let program = program.as_fd().as_raw_fd();
    // SAFETY: both descriptors are open and `opts` lives through the call.
    check(unsafe { libbpf_sys::bpf_prog_attach_opts(program, target, hook, &raw const opts) })
}

/// Takes a program away from the interface's TCX ingress.
///
/// # Errors
/// `ENOENT` if it is not there.
pub fn detach_tcx_ingress(program_id: u32, ifindex: u32) -> Result<(), Errno> {
    detach(program_id, target(ifindex)?, BPF_TCX_INGRESS)
}

/// Takes a program away from the interface's TCX egress.
///
/// # Errors
/// `ENOENT` if it is not there.
pub fn detach_tcx_egress(program_id: u32, ifindex: u32) -> Result<(), Errno> {
    detach(program_id, target(ifindex)?, BPF_TCX_EGRESS)
}

/// Takes a program away from the socket events of a cgroup.
///
/// # Errors
/// `ENOENT` if it is not there.
pub fn detach_sock_ops(program_id: u32, cgroup: BorrowedFd<'_>) -> Result<(), Errno> {
    detach(program_id, cgroup.as_raw_fd(), BPF_CGROUP_SOCK_OPS)
}

/// Takes a program away from what a cgroup's processes set of their sockets.
///
/// # Errors
/// `ENOENT` if it is not there.
pub fn detach_socket_options(program_id: u32, cgroup: BorrowedFd<'_>) -> Result<(), Errno> {
    detach(program_id, cgroup.as_raw_fd(), BPF_CGROUP_SETSOCKOPT)
}

fn detach(program_id: u32, target: i32, hook: u32) -> Result<(), Errno> {
    let program = program_by_id(program_id)?;
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut opts: bpf_prog_detach_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of::<bpf_prog_detach_opts>() as _;
    // SAFETY: the descriptor is open and `opts` lives through the call.
    check(unsafe { libbpf_sys::bpf_prog_detach_opts(program.as_raw_fd(), target, hook, &raw const opts) })
}

/// Name of a loaded program (15 characters at most).
///
/// # Errors
/// `ENOENT` if it has gone.
pub fn program_name(id: u32) -> Result<String, Errno> {
    let program = program_by_id(id)?;
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut len = u32::try_from(size_of_val(&info)).unwrap_or(0);
    // SAFETY: the kernel writes at most `len` bytes, the size of `info`.
    check(unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len) })?;
    // A character of C has a sign on x86 and none on arm.
    let bytes: Vec<u8> = info.name.iter().flat_map(|c| c.to_ne_bytes()).take_while(|&c| c != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Those of these programs that have one of these names. A program that has gone is left out.
///
/// # Errors
/// Any error but that a program has gone: then it is not known which of them there are.
pub fn named(ids: Vec<u32>, names: &[&str]) -> Result<Vec<u32>, Errno> {
    let mut found = Vec::new();
    for id in ids {
        match program_name(id) {
            Ok(name) if names.contains(&name.as_str()) => found.push(id),
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(found)
}

/// Id of a loaded program.
///
/// # Errors
/// `EBADF`.
pub fn program_id(program: &impl AsFd) -> Result<u32, Errno> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut len = u32::try_from(size_of_val(&info)).unwrap_or(0);
    let fd = program.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open; the kernel writes at most `len` bytes, the size of `info`.
    check(unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd, &raw mut info, &raw mut len) })?;
    Ok(info.id)
}

/// Ids of the maps that a loaded program uses.
///
/// # Errors
/// `ENOENT` if it has gone.
pub fn program_maps(id: u32) -> Result<Vec<u32>, Errno> {
    let program = program_by_id(id)?;
    let mut ids = [0u32; MAX_PROGRAMS];
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    info.nr_map_ids = u32::try_from(MAX_PROGRAMS).unwrap_or(0);
    info.map_ids = ids.as_mut_ptr() as u64;
    let mut len = u32::try_from(size_of_val(&info)).unwrap_or(0);
    // SAFETY: the kernel writes at most `len` bytes of `info`, and `MAX_PROGRAMS` ids where it points.
    check(unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len) })?;
    Ok(ids[..(info.nr_map_ids as usize).min(MAX_PROGRAMS)].to_vec())
}

/// Has an attached iterator visit all that it can reach from the calling thread: of sockets,
/// those of the thread's network namespace.
///
/// # Errors
/// The kernel's answer.
pub fn visit(iterator: BorrowedFd<'_>) -> std::io::Result<()> {
    use std::{io::Read, os::fd::FromRawFd};
    // SAFETY: a plain system call on an open descriptor.
    let fd = unsafe { libbpf_sys::bpf_iter_create(iterator.as_raw_fd()) };
    check(fd)?;
    // SAFETY: a fresh descriptor without another owner.
    let mut visited = unsafe { std::fs::File::from_raw_fd(fd) };
    // The program writes nothing: reading to the end is what runs it.
    visited.read_to_end(&mut Vec::new()).map(drop)
}

/// Another descriptor of an open file: the lowest free number from `least` on.
///
/// # Errors
/// `EINVAL`: the process may not have a descriptor of that number.
pub(crate) fn duplicate(file: BorrowedFd<'_>, least: RawFd) -> Result<OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    let copy = nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(least))?;
    // SAFETY: a fresh descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

fn program_by_id(id: u32) -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    // SAFETY: a plain system call.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    check(fd)?;
    // SAFETY: a fresh descriptor without another owner.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}

fn target(ifindex: u32) -> Result<i32, Errno> {
    i32::try_from(ifindex).map_err(|_| Errno::ENODEV)
}

/// libbpf 1.x returns `-errno`.
fn check(code: i32) -> Result<(), Errno> {
    if code < 0 { Err(Errno::from_raw(-code)) } else { Ok(()) }
}
