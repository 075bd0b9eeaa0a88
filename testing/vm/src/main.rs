//! `weir-vm`: boots another kernel under qemu, in virtual time, and runs weir's tests, or any
//! command, in it. A tool for developing weir, no part of it.
//!
//! ```text
//! weir-vm run --kernel 6.12 --test weir-netns-tests:shares:bridged
//! weir-vm exec --file ./prog:/prog -- /prog --fast
//! weir-vm boot --root debian.tar
//! ```

mod arch;
mod foreign;
mod initramfs;
mod kernel;
mod modules;
mod process;
mod qemu;
mod tests_of;
mod verdict;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::{arch::Arch, initramfs::Initramfs, kernel::Kernel, tests_of::TestOf};

#[derive(Debug, Parser)]
#[command(name = "weir-vm", about = "Runs weir's tests, or any command, in another kernel under qemu")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run test executables of the workspace.
    Run {
        #[command(flatten)]
        guest: Guest,
        /// A package's tests: PACKAGE:TEST, or PACKAGE:lib for its unit tests; only those whose
        /// name contains FILTER.
        #[arg(long = "test", required = true, value_name = "PACKAGE:TEST[:FILTER]")]
        tests: Vec<TestOf>,
        /// Not the tests whose name contains one of these.
        #[arg(long = "skip", value_name = "NAME")]
        skips: Vec<String>,
        /// A test that says SKIPPED counts as a failure.
        #[arg(long)]
        all: bool,
    },
    /// Run one command.
    Exec {
        #[command(flatten)]
        guest: Guest,
        /// The command and its arguments; a single word is a line for the shell.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Boot a root directory with an init of its own, such as systemd.
    ///
    /// The init prints `weir-vm: job ended with CODE, SECONDS s` on the console, and turns the machine off.
    Boot {
        #[command(flatten)]
        guest: Guest,
        /// The root directory as a tar file. It has /sbin/init, and depmod of the package kmod.
        #[arg(long, value_name = "TAR")]
        root: PathBuf,
    },
    /// Only fetch the kernel, and tell its version.
    Fetch {
        #[command(flatten)]
        guest: Guest,
    },
}

/// The needs of every guest.
#[derive(Debug, Args)]
struct Guest {
    /// The newest kernel whose version begins so, as `6.12`; or `newest` of all.
    #[arg(long, default_value = "newest")]
    kernel: String,
    /// Debian's name of the guest's architecture.
    ///
    /// For another architecture than this machine's, the tests and weir are built by scripts/cross.sh.
    #[arg(long, default_value = "amd64")]
    arch: Arch,
    /// Debian's build, by default `cloud-amd64`, `cloud-arm64` or `armmp`.
    ///
    /// `amd64` is larger and has drivers that `cloud-amd64` lacks, as PPP.
    #[arg(long)]
    flavour: Option<String>,
    /// Ask Debian for a newer kernel now; else once a week.
    #[arg(long)]
    update: bool,
    /// Files to copy into the guest; a program brings the libraries that it is linked to.
    #[arg(long = "file", value_name = "HOST:GUEST")]
    files: Vec<String>,
    /// Variables for the job.
    #[arg(long = "env", value_name = "NAME=VALUE")]
    environment: Vec<String>,
    /// Real time after which the guest is killed, seconds.
    #[arg(long, default_value_t = 900)]
    timeout: u64,
    /// Memory, MiB.
    #[arg(long, default_value_t = 2048)]
    memory: u32,
    /// Index of the processor that runs the guest, among those that this process may use.
    ///
    /// The count begins again where there are fewer. Without the option the guest may use them all.
    ///
    /// Two threads of qemu wake each other 20,000 times a second. On one processor that takes less time.
    #[arg(long)]
    processor: Option<usize>,
}

impl Guest {
    fn wanted(&self) -> kernel::Wanted<'_> {
        let flavour = self.flavour.as_deref().unwrap_or_else(|| self.arch.flavour());
        kernel::Wanted { version: &self.kernel, flavour, arch: self.arch }
    }
}

fn main() -> ExitCode {
    match go(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("weir-vm: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn go(cli: Cli) -> Result<ExitCode> {
    match cli.verb {
        Verb::Fetch { guest } => {
            println!("{}", kernel::get(&cache()?, &guest.wanted(), guest.update)?.version);
            Ok(ExitCode::SUCCESS)
        }
        Verb::Exec { guest, command } => {
            let job = match &command[..] {
                [line] => line.clone(),
                words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
            };
            with_job(&guest, Initramfs::with_tools(guest.arch)?, &job, false, false)
        }
        Verb::Boot { guest, root: tar } => {
            anyhow::ensure!(
                guest.files.is_empty() && guest.environment.is_empty(),
                "a root of its own has its files and variables: --file and --env are for `run` and `exec`"
            );
            let mut root = Initramfs::with_tools(guest.arch)?;
            let content = fs::read(&tar).with_context(|| format!("cannot read {}", tar.display()))?;
            root.add("root.tar", 0o100_644, content);
            root.add_text("init", include_str!("boot.sh"));
            let kernel = kernel::get(&cache()?, &guest.wanted(), guest.update)?;
            modules::add_to(&mut root, &kernel, modules::OF_RUNTIMES)?;
            boot(&guest, root, &kernel, false, false)
        }
        Verb::Run { guest, tests, skips, all } => {
            let mut root = Initramfs::with_tools(guest.arch)?;
            let mut job = String::from("code=0\n");
            for (i, (test, path)) in tests.iter().zip(tests_of::build(guest.arch, &tests)?).enumerate() {
                let to =
                    format!("tests/{i}-{}", path.file_name().context("a file has a name")?.to_string_lossy());
                tests_of::add(guest.arch, &mut root, &path, &to)?;
                let mut words: Vec<String> = test.filter.iter().cloned().collect();
                words.extend(skips.iter().flat_map(|skip| ["--skip".to_owned(), skip.clone()]));
                let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
                job += &format!("/{to} --test-threads=1 --nocapture {} || code=$?\n", words.join(" "));
            }
            job += "exit $code\n";
            with_job(&guest, root, &job, true, all)
        }
    }
}

/// Boots a guest that does the job with the tools and weir; says what was wrong.
fn with_job(guest: &Guest, mut root: Initramfs, job: &str, tests: bool, all: bool) -> Result<ExitCode> {
    let kernel = kernel::get(&cache()?, &guest.wanted(), guest.update)?;
    if let Some(weir) = weir(guest.arch)? {
        root.add_program(&weir, "usr/bin/weir")?;
        let lab = weir.with_file_name("weir-lab");
        if lab.is_file() {
            root.add_program(&lab, "usr/bin/weir-lab")?;
        }
    }
    for file in &guest.files {
        let (from, to) =
            file.split_once(':').with_context(|| format!("--file {file} is not of the form HOST:GUEST"))?;
        root.add_program(Path::new(from), to)?;
    }
    root.add_text("init", include_str!("init.sh"));
    root.add_text("job", &(environment(guest, &kernel) + job + "\n"));
    modules::add_to(&mut root, &kernel, "")?;
    boot(guest, root, &kernel, tests, all)
}

/// Boots a guest with these files; says what was wrong.
fn boot(guest: &Guest, root: Initramfs, kernel: &Kernel, tests: bool, all: bool) -> Result<ExitCode> {
    let (begin, cache) = (Instant::now(), cache()?);
    let archive = cache.join(format!("initramfs-{}", std::process::id()));
    fs::write(&archive, root.pack()?).with_context(|| format!("cannot write {}", archive.display()))?;
    let made = begin.elapsed();
    let timeout = Duration::from_secs(guest.timeout);
    let booted = qemu::boot(guest.arch, kernel, &archive, guest.memory, guest.processor, timeout);
    let _ = fs::remove_file(&archive);
    let verdict = booted.with_context(|| format!("kernel {}", kernel.version))?;
    let mut faults = verdict.faults(tests);
    if all {
        faults.extend(verdict.skipped.iter().cloned());
    }
    println!(
        "weir-vm: kernel {}: {} passed, {} failed, {} said SKIPPED; {:.1} s to prepare, {:.1} s under qemu",
        kernel.version,
        verdict.passed,
        verdict.failed,
        verdict.skipped.len(),
        made.as_secs_f64(),
        (begin.elapsed() - made).as_secs_f64()
    );
    for fault in &faults {
        eprintln!("weir-vm: kernel {}: {fault}", kernel.version);
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The job's environment; `WEIR_VM` names the kind of time.
fn environment(guest: &Guest, kernel: &Kernel) -> String {
    let time = if qemu::counts(kernel) { "instructions" } else { "real-time" };
    let mut lines = format!("export WEIR_VM={time} WEIR_BIN=/usr/bin/weir RUST_BACKTRACE=1\n");
    for variable in &guest.environment {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        lines += &format!("export {name}={}\n", quoted(value));
    }
    lines
}

/// The word as the shell reads it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Where kernels are kept: `WEIR_VM_CACHE`, or `vm` in cargo's target directory.
fn cache() -> Result<PathBuf> {
    let cache = std::env::var_os("WEIR_VM_CACHE").map_or_else(|| target().join("vm"), PathBuf::from);
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    cache.canonicalize().with_context(|| format!("cannot find {}", cache.display()))
}

fn target() -> PathBuf {
    let ours = || arch::workspace().join("target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(ours, PathBuf::from)
}

/// The program: `WEIR_BIN`, or what is built: by `cargo build --release -p weir`, or by `scripts/dist.sh` for another
/// architecture.
fn weir(arch: Arch) -> Result<Option<PathBuf>> {
    if let Some(path) = std::env::var_os("WEIR_BIN") {
        let path = PathBuf::from(path);
        anyhow::ensure!(path.is_file(), "WEIR_BIN is {}, which is not there", path.display());
        return Ok(Some(path));
    }
    let built = if Some(arch) == Arch::own() {
        target().join("release/weir")
    } else {
        target().join(arch.name()).join(arch.target()).join("dist/weir")
    };
    Ok(built.is_file().then_some(built))
}
