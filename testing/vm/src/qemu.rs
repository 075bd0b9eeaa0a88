//! The virtual machine: qemu without hardware help, in virtual time.
//!
//! With instruction counting the guest's clock is the number of instructions that it has
//! executed, one a nanosecond, and leaps over idle time: what it measures does not depend on
//! what else the host does.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};

use crate::{arch::Arch, kernel::Kernel, verdict::Verdict};

/// The first kernel known to boot with instruction counting.
const COUNTING_SINCE: [u64; 2] = [6, 12];

/// Whether a guest with this kernel runs in virtual time; Debian's 6.1 does not start then.
pub(crate) fn counts(kernel: &Kernel) -> bool {
    kernel.numbers() >= COUNTING_SINCE.to_vec()
}

/// Boots, prints what the guest prints, and tells how it ended. qemu is gone afterwards, also
/// if this process is killed.
pub(crate) fn boot(
    arch: Arch,
    kernel: &Kernel,
    initramfs: &Path,
    memory_mib: u32,
    processor: Option<usize>,
    timeout: Duration,
) -> Result<Verdict> {
    let mut vm = Vm(command(arch, kernel, initramfs, memory_mib, processor).spawn().with_context(|| {
        format!("cannot run {}: `scripts/install-deps.sh vm cross` installs it", arch.qemu())
    })?);
    let serial = vm.0.stdout.take().context("qemu's output is piped")?;
    let (send, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut serial = BufReader::new(serial);
        let mut line = Vec::new();
        while serial.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if send.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    let (begin, mut verdict) = (Instant::now(), Verdict::default());
    loop {
        match lines.recv_timeout(timeout.saturating_sub(begin.elapsed())) {
            Ok(line) => {
                println!("{line}");
                verdict.read(&line);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!(
                    "the guest has not ended after {} s of real time; its last words are above",
                    timeout.as_secs()
                )
            }
        }
    }
    let status = vm.0.wait().context("cannot wait for qemu")?;
    let _ = reader.join();
    if !status.success() {
        bail!("qemu failed: {status}; what it said is above");
    }
    Ok(verdict)
}

fn command(
    arch: Arch,
    kernel: &Kernel,
    initramfs: &Path,
    memory_mib: u32,
    processor: Option<usize>,
) -> Command {
    // qemu is killed with this process, whatever ends it.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(processor) = processor.and_then(|index| nth(&allowed(), index)) {
        command.args(["taskset", "--cpu-list", &processor.to_string()]);
    }
    command.arg(arch.qemu());
    if counts(kernel) {
        command.args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-smp", "1"]);
        command.args(["-rtc", "base=2026-01-01,clock=vm"]);
    } else {
        command.args(["-accel", "tcg,thread=multi", "-smp", "2"]);
    }
    command.args(arch.machine()).args(["-m", &memory_mib.to_string()]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]);
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(initramfs);
    // Warnings of the kernel are seen, and judged; notices are not. Zeroed pages cost instructions for nothing.
    let line = format!(
        "console={} panic=-1 loglevel=5 mitigations=off nokaslr init_on_alloc=0 random.trust_cpu=off rdinit=/init",
        arch.console()
    );
    command.args(["-append", &line]).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// The processors on which this process may run.
fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(|processor| set.is_set(*processor).unwrap_or(false)).collect()
}

/// One of these processors, counted again from the first where there are fewer.
fn nth(processors: &[usize], index: usize) -> Option<usize> {
    processors.get(index.checked_rem(processors.len())?).copied()
}

/// Killed when dropped.
struct Vm(Child);

impl Drop for Vm {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_gets_one_of_the_allowed_processors() {
        assert_eq!([0, 1, 2].map(|index| nth(&[2, 5], index)), [Some(2), Some(5), Some(2)]);
        assert_eq!(nth(&[], 1), None);
        assert!(!allowed().is_empty());
    }
}
