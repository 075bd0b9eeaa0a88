//! Mounts the file system, and unmounts it at a signal.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use anyhow::{Context, bail};
use fuser::{Config, MountOption, Session};
use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
    sys::signal::{SigSet, Signal},
};
use weir_api::Client;

use crate::{files::Files, say};

/// The reason why the program ends.
enum End {
    Signal,
    Unmounted(io::Result<()>),
}

/// Mounts the classes of the agent behind `client` at `directory`, until a signal or `umount`.
///
/// # Errors
/// The agent does not answer, `directory` is not one, or the kernel cannot mount there.
pub(crate) fn run(client: &Client, directory: &Path, json: bool) -> anyhow::Result<()> {
    let directory = mount_point(directory)?;
    // An agent that is missing is said here, and not by each file.
    client.status()?;
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    // Before other threads begin, as these inherit it.
    signals.thread_block().context("cannot wait for signals")?;

    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("weir".to_owned()),
        MountOption::Subtype("weir".to_owned()),
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::DefaultPermissions,
    ];
    let files = Files::new(client.clone()).context("cannot tell this user")?;
    let mut session = Session::new(files, &directory, &config).map_err(|error| cannot(&directory, error))?;
    let mut unmounter = session.unmount_callable();

    let (ends, end) = mpsc::channel();
    let by_signal = ends.clone();
    thread::spawn(move || {
        if signals.wait().is_ok() {
            // The receiver is there until the program ends.
            let _ = by_signal.send(End::Signal);
        }
    });
    thread::spawn(move || {
        let _ = ends.send(End::Unmounted(session.run()));
    });
    announce(client, &directory, json);
    match end.recv().context("no thread is left")? {
        End::Unmounted(result) => result.context("the kernel ended the file system"),
        End::Signal => match unmounter.unmount() {
            Ok(()) => Ok(()),
            // A program is in it, or has a file open: the mount goes now, and the rest with that program.
            Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => {
                umount2(&directory, MntFlags::MNT_DETACH)
                    .with_context(|| format!("cannot unmount {}", directory.display()))
            }
            Err(error) => Err(error).with_context(|| format!("cannot unmount {}", directory.display())),
        },
    }
}

/// The directory's full path.
fn mount_point(directory: &Path) -> anyhow::Result<PathBuf> {
    let shown = directory.display();
    let full = match directory.canonicalize() {
        Ok(full) => full,
        Err(error) if error.raw_os_error() == Some(Errno::ENOTCONN as i32) => {
            bail!("cannot use {shown}: the mount of a killed `weir fs` is still there (`umount {shown}`)")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot use {shown}")),
    };
    if !full.is_dir() {
        bail!("cannot use {shown}: it is not a directory");
    }
    Ok(full)
}

fn cannot(directory: &Path, error: io::Error) -> anyhow::Error {
    let advice = if !Path::new("/dev/fuse").exists() {
        " (the kernel needs FUSE: CONFIG_FUSE_FS, `modprobe fuse`)"
    } else if !nix::unistd::geteuid().is_root() {
        " (a user other than root needs the program fusermount3: package fuse3)"
    } else {
        ""
    };
    anyhow::Error::new(error).context(format!("cannot mount at {}{advice}", directory.display()))
}

/// Says where the files are.
fn announce(client: &Client, directory: &Path, json: bool) {
    let (directory, socket) = (directory.display(), client.address());
    let line = if json {
        serde_json::json!({ "mounted": directory.to_string(), "socket": socket.to_string() }).to_string()
    } else {
        format!("the classes of the agent at {socket} are files in {directory}; Ctrl-C unmounts them")
    };
    let mut out = io::stdout();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        say(&format_args!("cannot write to standard output: {error}"));
    }
}
