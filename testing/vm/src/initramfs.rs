//! The guest's files: a cpio archive in the form that Linux unpacks into its first root.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{arch::Arch, foreign::Foreign, process::output};

/// Programs that must be there: by name, on `PATH` or in a directory of system programs.
const PROGRAMS: [&str; 11] =
    ["busybox", "dash", "bash", "ip", "tc", "bridge", "ethtool", "iperf3", "ping", "iptables", "ip6tables"];
/// Programs that tests use where they are.
const MORE: [&str; 9] = ["wg", "ss", "bpftool", "taskset", "nsenter", "unshare", "strace", "perf", "setpriv"];
const LINKS: [(&str, &str); 7] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/bin"),
    ("usr/sbin", "bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("var/run", "../run"),
    ("usr/bin/sh", "dash"),
];
const DIRS: [&str; 7] = ["proc", "sys", "dev", "run", "tmp", "root", "etc"];

/// Where iptables looks for its extensions, and those that are used.
const EXTENSIONS: [&str; 3] = ["libxt_MASQUERADE.so", "libxt_conntrack.so", "libxt_mark.so"];

/// The contents of the guest's root.
#[derive(Debug, Default)]
pub(crate) struct Initramfs {
    files: BTreeMap<String, (u32, Vec<u8>)>,
    /// Paths in the guest, and files here.
    libraries: BTreeMap<String, PathBuf>,
    /// Where programs come from; none: from this machine.
    foreign: Option<Foreign>,
}

impl Initramfs {
    /// The tools: busybox with dash as the shell (busybox's own would take its applets `ip`
    /// and `tc` before the programs of these names), iproute2, traffic generators.
    pub(crate) fn with_tools(arch: Arch) -> Result<Initramfs> {
        let mut root = Initramfs { foreign: Foreign::of(arch)?, ..Initramfs::default() };
        for name in PROGRAMS {
            let path = root.find(name).with_context(|| {
                format!("there is no {name} here: `scripts/install-deps.sh vm` installs it")
            })?;
            root.add_program(&path, &format!("usr/bin/{name}"))?;
        }
        for (name, path) in MORE.iter().filter_map(|name| Some((name, root.find(name)?))).collect::<Vec<_>>()
        {
            root.add_program(&path, &format!("usr/bin/{name}"))?;
        }
        for name in EXTENSIONS {
            let path = format!("/usr/lib/{}/xtables/{name}", arch.triplet());
            let here = match &root.foreign {
                None => PathBuf::from(&path),
                Some(foreign) => foreign.resolve(Path::new(&path))?,
            };
            root.add_program(&here, &path)?;
        }
        let busybox = root.find("busybox").context("just asked")?;
        let applets = match &root.foreign {
            None => output(Command::new(busybox).arg("--list"))?,
            Some(foreign) => foreign.output(&busybox, "--list")?,
        };
        for applet in applets.lines() {
            let path = format!("usr/bin/{applet}");
            if !LINKS.iter().any(|(link, _)| *link == path) {
                root.files.entry(path).or_insert_with(|| (0o120_777, b"busybox".to_vec()));
            }
        }
        for (link, target) in LINKS {
            root.files.insert(link.to_owned(), (0o120_777, target.as_bytes().to_vec()));
        }
        root.add_text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        root.add_text("etc/group", "root:x:0:\n");
        root.add_text("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n");
        Ok(root)
    }

    fn find(&self, name: &str) -> Option<PathBuf> {
        self.foreign.as_ref().map_or_else(|| find(name), |foreign| foreign.find(name))
    }

    /// A text file.
    pub(crate) fn add_text(&mut self, to: &str, text: &str) {
        self.add(to, 0o100_755, text.as_bytes().to_vec());
    }

    /// A file, with the type and rights in `mode`.
    pub(crate) fn add(&mut self, to: &str, mode: u32, content: Vec<u8>) {
        self.files.insert(to.trim_start_matches('/').to_owned(), (mode, content));
    }

    /// A file of this machine; if it is a program, with the libraries that it is linked to.
    pub(crate) fn add_program(&mut self, from: &Path, to: &str) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        if content.starts_with(b"\x7fELF") {
            match &self.foreign {
                // Static programs make ldd fail: they have none.
                None => {
                    let listed = output(Command::new("ldd").arg(from)).unwrap_or_default();
                    let paths = libraries(&listed).into_iter();
                    self.libraries.extend(paths.map(|path| (path.to_string_lossy().into_owned(), path)));
                }
                Some(foreign) => self.libraries.extend(foreign.libraries(from)?),
            }
        }
        self.add(to, 0o100_755, content);
        Ok(())
    }

    /// The archive.
    pub(crate) fn pack(mut self) -> Result<Vec<u8>> {
        for (to, library) in std::mem::take(&mut self.libraries) {
            let content = fs::read(&library).with_context(|| format!("cannot read {}", library.display()))?;
            self.add(&merged(&to), 0o100_755, content);
        }
        let dirs: BTreeSet<String> = self
            .files
            .keys()
            .flat_map(|path| Path::new(path).ancestors().skip(1))
            .map(|dir| dir.to_string_lossy().into_owned())
            .chain(DIRS.map(str::to_owned))
            .filter(|dir| !dir.is_empty())
            .collect();
        let mut archive = Vec::new();
        let mut inode = 0;
        let mut entry = |name: &str, mode: u32, content: &[u8]| {
            inode += 1;
            append(&mut archive, inode, name, mode, content);
        };
        for dir in dirs {
            entry(&dir, 0o040_755, &[]);
        }
        for (path, (mode, content)) in &self.files {
            entry(path, *mode, content);
        }
        entry("TRAILER!!!", 0, &[]);
        Ok(archive)
    }
}

/// One file in the `newc` form: a header in hexadecimal, the name, the content, each padded
/// to four bytes.
fn append(archive: &mut Vec<u8>, inode: usize, name: &str, mode: u32, content: &[u8]) {
    let pad = |archive: &mut Vec<u8>| archive.resize(archive.len().next_multiple_of(4), 0);
    let (size, name_size) = (content.len(), name.len() + 1);
    let header = format!(
        "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}{0:08x}{0:08x}{0:08x}{0:08x}{name_size:08x}{0:08x}",
        0, 1
    );
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend_from_slice(content);
    pad(archive);
}

/// Paths that ldd names: `libelf.so.1 => /lib/x86_64-linux-gnu/libelf.so.1 (0x...)`.
fn libraries(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// Where a library is in the guest, whose /lib and /lib64 are links to those in /usr.
fn merged(library: &str) -> String {
    let path = library.trim_start_matches('/');
    if path.starts_with("lib/") || path.starts_with("lib64/") {
        format!("usr/{path}")
    } else {
        path.to_owned()
    }
}

/// A program's file.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_headers_of_110_characters_and_is_padded_to_four_bytes() {
        let mut root = Initramfs::default();
        root.add("a/file", 0o100_644, b"12345".to_vec());
        let archive = root.pack().expect("no libraries");
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8_lossy(&archive);
        let at: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert!(at.iter().all(|at| at % 4 == 0), "{at:?}");
        // a, dev, etc, proc, root, run, sys, tmp, a/file, the trailer.
        assert_eq!(at.len(), 10);
        let file = &archive[at[8]..];
        assert_eq!(&file[54..62], b"00000005", "the size");
        assert_eq!(&file[94..102], b"00000007", "the name's size with its zero");
        assert_eq!(&file[110..117], b"a/file\0");
        assert_eq!(&file[120..125], b"12345");
    }

    #[test]
    fn libraries_are_the_paths_that_ldd_names() {
        let said = "\tlinux-vdso.so.1 (0x00007f)\n\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x7f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found = libraries(said);
        assert_eq!(found.len(), 2);
        assert_eq!(merged(&found[0].to_string_lossy()), "usr/lib/x86_64-linux-gnu/libz.so.1");
        assert_eq!(merged(&found[1].to_string_lossy()), "usr/lib64/ld-linux-x86-64.so.2");
    }
}
