//! The output of other programs, as it is. A program that is not here leaves its part out.

use std::{
    ffi::OsString,
    fs::File,
    io::{Read, Seek},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// A program and the part of the report that it prints.
pub(super) struct Tool {
    pub(super) part: &'static str,
    program: &'static str,
    args: &'static [&'static str],
}

/// The longest time that a program may take.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) const TOOLS: [Tool; 6] = [
    Tool {
        part: "log.txt",
        program: "journalctl",
        args: &["--unit=weir", "--unit=weir-images", "--lines=2000", "--no-pager", "--output=short-iso"],
    },
    Tool { part: "tools/tc-qdisc.json", program: "tc", args: &["-s", "-j", "qdisc", "show"] },
    // Each line is the answer about one of weir's devices.
    Tool {
        part: "tools/tc-class.json",
        program: "sh",
        args: &[
            "-c",
            "for d in /sys/class/net/weir[0-9]*; do tc -s -j class show dev \"${d##*/}\" || exit; done",
        ],
    },
    Tool { part: "tools/ip-link.json", program: "ip", args: &["-s", "-d", "-j", "link", "show"] },
    Tool { part: "tools/ip-route.json", program: "ip", args: &["-j", "route", "show", "table", "all"] },
    Tool { part: "tools/bpftool-net.json", program: "bpftool", args: &["-j", "net", "show"] },
];

impl Tool {
    /// Runs the program, found in `path`, and returns what it prints.
    pub(super) fn run(&self, path: &OsString) -> Result<String, String> {
        let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
        let directories = std::env::split_paths(path).chain(sbin);
        let found = directories.map(|directory| directory.join(self.program)).find(|file| file.is_file());
        let Some(program) = found else {
            return Err(format!("the program {} is not here", self.program));
        };
        let failed = |e: std::io::Error| format!("cannot run {}: {e}", program.display());
        // A file takes what a full pipe would hold back.
        let (mut out, mut err) = (temporary().map_err(failed)?, temporary().map_err(failed)?);
        let mut child = Command::new(&program)
            .args(self.args)
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(err.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if start.elapsed() > TIMEOUT {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{} took longer than {TIMEOUT:?}", program.display()));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |file: &mut File| -> std::io::Result<String> {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let (printed, said) = (read(&mut out).map_err(failed)?, read(&mut err).map_err(failed)?);
        if status.success() {
            Ok(printed)
        } else {
            Err(format!("{} failed ({status}): {}", program.display(), said.trim()))
        }
    }
}

/// A file without a name, in memory.
fn temporary() -> std::io::Result<File> {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    Ok(memfd_create(c"weir-bugreport", MFdFlags::MFD_CLOEXEC)?.into())
}
