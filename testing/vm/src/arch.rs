//! Architectures of guests: how their programs are built, and the machine that qemu plays.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::process::output;

/// By Debian's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
    /// ARMv7 with floating point.
    Armhf,
}

impl Arch {
    /// The architecture of this program, if a guest can have it.
    pub(crate) fn own() -> Option<Arch> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Arch::Amd64),
            "aarch64" => Some(Arch::Arm64),
            "arm" => Some(Arch::Armhf),
            _ => None,
        }
    }

    /// Debian's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Arch::Amd64 => "amd64",
            Arch::Arm64 => "arm64",
            Arch::Armhf => "armhf",
        }
    }

    /// The directory of libraries, and what the names of cross tools begin with.
    pub(crate) fn triplet(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64-linux-gnu",
            Arch::Arm64 => "aarch64-linux-gnu",
            Arch::Armhf => "arm-linux-gnueabihf",
        }
    }

    /// Rust's name.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64-unknown-linux-gnu",
            Arch::Arm64 => "aarch64-unknown-linux-gnu",
            Arch::Armhf => "armv7-unknown-linux-gnueabihf",
        }
    }

    /// Debian's smallest kernel that has weir's modules.
    pub(crate) fn flavour(self) -> &'static str {
        match self {
            Arch::Amd64 => "cloud-amd64",
            Arch::Arm64 => "cloud-arm64",
            Arch::Armhf => "armmp",
        }
    }

    /// qemu's program.
    pub(crate) fn qemu(self) -> &'static str {
        match self {
            Arch::Amd64 => "qemu-system-x86_64",
            Arch::Arm64 => "qemu-system-aarch64",
            Arch::Armhf => "qemu-system-arm",
        }
    }

    /// The processor and the machine.
    pub(crate) fn machine(self) -> &'static [&'static str] {
        match self {
            // Random instructions would make runs differ. The other features only make the guest slower: SMAP ends a
            // translated block at each access to user memory, and LA57 and PKU add to each page walk.
            Arch::Amd64 => &["-cpu", "max,-rdrand,-rdseed,-smap,-smep,-la57,-pku"],
            // The processors of many gateways. Later ones sign pointers, which takes qemu long.
            Arch::Arm64 => &["-machine", "virt", "-cpu", "cortex-a72"],
            Arch::Armhf => &["-machine", "virt,highmem=off", "-cpu", "cortex-a15"],
        }
    }

    /// The kernel's name of the serial port.
    pub(crate) fn console(self) -> &'static str {
        match self {
            Arch::Amd64 => "ttyS0",
            Arch::Arm64 | Arch::Armhf => "ttyAMA0",
        }
    }

    /// Debian's files of this architecture, which `scripts/sysroot.sh` fetches: the machine's own root, or another.
    pub(crate) fn root(self) -> Result<PathBuf> {
        if Some(self) == Arch::own() {
            return Ok(PathBuf::from("/"));
        }
        let printed = output(
            Command::new(workspace().join("scripts/sysroot.sh"))
                .arg(self.name())
                .stderr(std::process::Stdio::inherit()),
        )?;
        let root = PathBuf::from(printed.trim());
        ensure!(root.is_dir(), "scripts/sysroot.sh {} printed no directory: {printed}", self.name());
        Ok(root)
    }
}

/// The root of the sources.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
