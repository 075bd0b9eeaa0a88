//! Programs and libraries of another architecture, in the directory that `scripts/sysroot.sh` fills. None of them is
//! installed: links lead within the directory, and no `ldd` runs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{arch::Arch, process::output};

/// A root directory of another architecture.
#[derive(Debug)]
pub(crate) struct Foreign {
    root: PathBuf,
    arch: Arch,
}

/// Links to follow before it is a circle.
const LINKS: usize = 16;

impl Foreign {
    /// None for this machine's own architecture.
    pub(crate) fn of(arch: Arch) -> Result<Option<Foreign>> {
        if Some(arch) == Arch::own() {
            return Ok(None);
        }
        Ok(Some(Foreign { root: arch.root()?, arch }))
    }

    /// A program's file.
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        // Debian makes the plain name of iptables when it is installed.
        let names = [name.to_owned(), format!("{name}-nft")];
        names.iter().flat_map(|name| ["usr/sbin", "usr/bin"].map(|dir| format!("{dir}/{name}"))).find_map(
            |path| {
                let file = self.resolve(Path::new(&path)).ok()?;
                file.is_file().then_some(file)
            },
        )
    }

    /// A file of the root; absolute links in it lead to the root again.
    pub(crate) fn resolve(&self, path: &Path) -> Result<PathBuf> {
        let mut inner = path.strip_prefix("/").unwrap_or(path).to_path_buf();
        for _ in 0..LINKS {
            let at = self.root.join(&inner);
            match fs::read_link(&at) {
                Ok(to) if to.is_absolute() => inner = to.strip_prefix("/").unwrap_or(&to).to_path_buf(),
                Ok(to) => inner = inner.parent().unwrap_or(Path::new("")).join(to),
                Err(_) => return Ok(at),
            }
        }
        bail!("{} is a circle of links in {}", path.display(), self.root.display())
    }

    /// A program needs these beside itself: paths in the guest, and the files here.
    pub(crate) fn libraries(&self, program: &Path) -> Result<BTreeMap<String, PathBuf>> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![program.to_owned()];
        while let Some(file) = waiting.pop() {
            let said =
                output(Command::new("readelf").args(["--wide", "--dynamic", "--segments"]).arg(&file))?;
            let paths = interpreter(&said)
                .into_iter()
                .map(str::to_owned)
                .chain(needed(&said).map(|name| format!("/usr/lib/{}/{name}", self.arch.triplet())));
            for path in paths {
                let here = self.resolve(Path::new(&path))?;
                if !here.is_file() {
                    bail!("{} needs {path}, which {} lacks", program.display(), self.root.display());
                }
                if found.insert(path, here.clone()).is_none() {
                    waiting.push(here);
                }
            }
        }
        Ok(found)
    }

    /// Prints what a program of the root prints, by qemu's user mode.
    pub(crate) fn output(&self, program: &Path, argument: &str) -> Result<String> {
        let qemu = match self.arch {
            Arch::Amd64 => "qemu-x86_64-static",
            Arch::Arm64 => "qemu-aarch64-static",
            Arch::Armhf => "qemu-arm-static",
        };
        output(Command::new(qemu).arg("-L").arg(&self.root).arg(program).arg(argument))
            .context("`scripts/install-deps.sh cross` installs qemu's user mode")
    }
}

/// The libraries that readelf names: `0x1 (NEEDED) Shared library: [libelf.so.1]`.
fn needed(said: &str) -> impl Iterator<Item = &str> {
    said.lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.rsplit_once('[')?.1.strip_suffix(']'))
}

/// The loader: `[Requesting program interpreter: /lib/ld-linux-aarch64.so.1]`.
fn interpreter(said: &str) -> Option<&str> {
    said.lines()
        .find_map(|line| line.trim().strip_prefix("[Requesting program interpreter: ")?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_those_that_readelf_names() {
        let said = "  INTERP         0x000238 0x0000000000000238\n      \
            [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n \
            0x0000000000000001 (NEEDED)             Shared library: [libelf.so.1]\n \
            0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n \
            0x000000000000000e (SONAME)             Library soname: [libx.so.1]\n";
        assert_eq!(needed(said).collect::<Vec<_>>(), ["libelf.so.1", "libc.so.6"]);
        assert_eq!(interpreter(said), Some("/lib/ld-linux-aarch64.so.1"));
        assert_eq!(interpreter("There is no dynamic section in this file."), None);
    }

    #[test]
    fn link_of_another_root_leads_within_it() {
        let root = tempfile::tempdir().unwrap();
        let foreign = Foreign { root: root.path().to_owned(), arch: Arch::Arm64 };
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        fs::create_dir_all(root.path().join("usr/sbin")).unwrap();
        let here = root.path().join("usr/bin/ip");
        fs::write(&here, "").unwrap();
        std::os::unix::fs::symlink("/usr/bin/ip", root.path().join("usr/sbin/ip")).unwrap();
        std::os::unix::fs::symlink("ip", root.path().join("usr/bin/tool-nft")).unwrap();
        std::os::unix::fs::symlink("circle", root.path().join("usr/bin/circle")).unwrap();
        assert_eq!(foreign.find("ip"), Some(here.clone()));
        assert_eq!(foreign.find("tool"), Some(here), "the name that is there before iptables is installed");
        assert_eq!(foreign.find("missing"), None);
        assert!(foreign.resolve(Path::new("/usr/bin/circle")).is_err());
    }
}
