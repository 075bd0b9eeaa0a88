//! Programs for the socket events of a cgroup that are not weir's, and what programs cost.

use std::{
    fs::File,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
};

use libbpf_rs::libbpf_sys;
use weir_bpf::attach;

use crate::kernel::load_program;

/// Has the kernel count how often programs run, until it is dropped.
#[derive(Debug)]
pub struct Counting {
    _on: OwnedFd,
}

impl Counting {
    /// Begins.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn begin() -> Counting {
        // SAFETY: a plain system call.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        assert!(fd >= 0, "the kernel counts programs' runs: {fd}");
        // SAFETY: a fresh descriptor without another owner.
        Counting { _on: unsafe { OwnedFd::from_raw_fd(fd) } }
    }

    /// The runs of a program while they were counted, and their time, ns.
    ///
    /// # Panics
    /// If there is no such program.
    #[must_use]
    pub fn runs(&self, program: u32) -> (u64, u64) {
        // SAFETY: a plain system call.
        let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(program) };
        assert!(fd >= 0, "program {program} is there: {fd}");
        // SAFETY: a fresh descriptor without another owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&info) as u32;
        // SAFETY: the kernel writes at most `len` bytes, the size of `info`.
        let code =
            unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &raw mut info, &raw mut len) };
        assert_eq!(code, 0, "it tells of itself");
        (info.run_cnt, info.run_time_ns)
    }
}

/// A foreign program at a cgroup, which does nothing. Gone when dropped.
#[derive(Debug)]
pub struct Foreign {
    program: OwnedFd,
    cgroup: File,
}

impl Foreign {
    /// Attaches one that allows no other at the same cgroup.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn attach(cgroup: &Path) -> Foreign {
        Foreign::attach_with(cgroup, 0)
    }

    /// Attaches one beside those that are there.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn attach_beside(cgroup: &Path) -> Foreign {
        Foreign::attach_with(cgroup, libbpf_sys::BPF_F_ALLOW_MULTI)
    }

    fn attach_with(cgroup: &Path, flags: u32) -> Foreign {
        // r0 = 1; exit
        let instructions: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];
        let program = load_program(libbpf_sys::BPF_PROG_TYPE_SOCK_OPS, "foreign", &instructions);
        let cgroup = File::open(cgroup).expect("the cgroup is there");
        // SAFETY: both descriptors are open.
        let code = unsafe {
            libbpf_sys::bpf_prog_attach(
                program.as_raw_fd(),
                cgroup.as_raw_fd(),
                libbpf_sys::BPF_CGROUP_SOCK_OPS,
                flags,
            )
        };
        assert_eq!(code, 0, "a program of somebody else attaches");
        Foreign { program, cgroup }
    }

    /// Its id.
    ///
    /// # Panics
    /// If the kernel does not know it any more.
    #[must_use]
    pub fn id(&self) -> u32 {
        attach::program_id(&self.program).expect("it is loaded")
    }

    /// Whether it is still attached.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        use std::os::fd::AsFd;
        attach::sock_ops(self.cgroup.as_fd()).is_ok_and(|ids| ids.contains(&self.id()))
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        use std::os::fd::AsFd;
        // It may be gone with its cgroup.
        let _ = attach::detach_sock_ops(self.id(), self.cgroup.as_fd());
    }
}
