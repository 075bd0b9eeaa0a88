//! A named network namespace.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use nix::sched::{CloneFlags, setns};

use crate::{
    CommandError, Unavailable,
    command::{find, output, require_root},
};

/// Where `ip netns` keeps its names.
pub(crate) const DIR: &str = "/run/netns";
/// How the names begin; the process id of their maker follows.
pub(crate) const PREFIX: &str = "wt-";

/// A named network namespace with its loopback up, deleted on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
    ip: PathBuf,
}

impl Netns {
    /// A new namespace; its name ends in `stem` and is unique on this machine.
    ///
    /// # Errors
    /// [`Unavailable`] without the right, or without iproute2.
    pub fn new(stem: &str) -> Result<Netns, Unavailable> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        require_root()?;
        let ip = find("ip", "iproute2")?;
        let name = format!("{PREFIX}{}-{}-{stem}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        output(Command::new(&ip).args(["netns", "add", &name]))?;
        let netns = Netns { name, ip };
        netns.ip(&["link", "set", "dev", "lo", "up"])?;
        Ok(netns)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(DIR).join(&self.name)
    }

    /// Runs `ip` in it: `netns.ip(&["link", "add", ...])`.
    ///
    /// # Errors
    /// [`CommandError`] with what `ip` said.
    pub fn ip(&self, args: &[&str]) -> Result<String, CommandError> {
        output(Command::new(&self.ip).args(["-n", &self.name]).args(args))
    }

    /// Runs `work` on a thread of its own inside the namespace; processes that it starts are
    /// in it too. `/sys` stays the machine's (unlike with `ip netns exec`), so cgroups are seen.
    ///
    /// # Panics
    /// If `work` does.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let file = File::open(self.path())?;
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                setns(file, CloneFlags::CLONE_NEWNET)?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(why) = output(Command::new(&self.ip).args(["netns", "del", &self.name])) {
            eprintln!("cannot delete a network namespace: {why}");
        }
    }
}
