//! The one image containers are made from: this machine's busybox and iperf3.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Unavailable,
    command::{find, output},
};

/// The image's name: busybox's commands, and iperf3.
pub const IMAGE: &str = "weir-test:1";

/// Builds the image's file tree at `root`, which does not exist yet.
pub(crate) fn build(root: &Path) -> Result<(), Unavailable> {
    let busybox = find("busybox", "busybox-static")?;
    let iperf3 = find("iperf3", "iperf3")?;
    let ldd = find("ldd", "libc-bin")?;
    let applets = output(Command::new(&busybox).arg("--list"))?;
    let io = |source| Unavailable::Io { what: format!("build an image in {}", root.display()), source };

    fs::create_dir_all(root.join("bin")).map_err(io)?;
    fs::create_dir(root.join("tmp")).map_err(io)?;
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).map_err(io)?;
    for (program, name) in [(&busybox, "busybox"), (&iperf3, "iperf3")] {
        fs::copy(program, root.join("bin").join(name)).map_err(io)?;
        for library in libraries(&ldd, program) {
            copy_under(root, &library).map_err(io)?;
        }
    }
    for applet in applets.lines().filter(|applet| !["busybox", "iperf3"].contains(applet)) {
        symlink("busybox", root.join("bin").join(applet)).map_err(io)?;
    }
    Ok(())
}

/// The libraries that the loader maps into `program`, the loader itself too; none for a static one.
fn libraries(ldd: &Path, program: &Path) -> BTreeSet<PathBuf> {
    // A static program makes ldd fail; one that cannot be read would have failed before.
    let listing = output(Command::new(ldd).arg(program)).unwrap_or_default();
    listing.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// Copies the file at the absolute path `file` to the same path under `root`.
fn copy_under(root: &Path, file: &Path) -> io::Result<()> {
    let to = root.join(file.strip_prefix("/").unwrap_or(file));
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::copy(file, to).map(|_| ())
}
