//! Debian's kernels, by default those of its cloud images: found by name, fetched, unpacked, never installed.
//!
//! apt runs with lists, caches and sources of its own in the cache directory, so that the
//! machine's stay as they are; it verifies signatures with the keys of the package
//! `debian-archive-keyring`, and takes proxies from the machine's configuration.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};

use crate::{
    arch::Arch,
    process::{output, run},
};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Parts of Debian's archive: how the address ends, and where it is if this machine's own apt does
/// not know one.
const ARCHIVE: (&str, &str) = ("/debian", "http://ftp.debian.org/debian");
const SECURITY: (&str, &str) = ("/debian-security", "http://security.debian.org/debian-security");
/// Where 7.x and the latest 6.x, 6.12, and 6.1 are.
const SUITES: [((&str, &str), &str); 3] =
    [(ARCHIVE, "trixie-backports"), (ARCHIVE, "bookworm-backports"), (SECURITY, "bookworm-security")];
/// How long a resolved name is taken as it is: Debian's next kernel is tested soon enough.
const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);
/// The number of versions to try: an index may name packages that the archive has dropped.
const TRIES: usize = 4;

/// A kernel ready to boot.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// As `uname -r` says it: `7.2.12+deb13-cloud-amd64`.
    pub(crate) version: String,
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// The directory of its modules.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// Numbers that order versions: `[7, 2, 12]`.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        numbers(&self.version)
    }
}

/// A kernel that is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// How its version begins (`6.12`), or `newest`.
    pub(crate) version: &'a str,
    /// How its version ends (`cloud-amd64`).
    pub(crate) flavour: &'a str,
    /// Its packages are of this architecture.
    pub(crate) arch: Arch,
}

/// The newest kernel of those that are asked for.
/// From the cache if it was resolved within [`FRESH`], unless `update`.
pub(crate) fn get(cache: &Path, wanted: &Wanted<'_>, update: bool) -> Result<Kernel> {
    // apt does not wait for another one.
    let _turn = turn(cache)?;
    let resolved = cache.join(format!("resolved-{}-{}", wanted.version, wanted.flavour));
    let cached = fs::read_to_string(&resolved).ok().and_then(|version| unpacked(cache, version.trim()));
    let age = fs::metadata(&resolved).and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
    if let Some(kernel) = &cached
        && !update
        && age.is_some_and(|age| age < FRESH)
    {
        return Ok(kernel.clone());
    }
    match fetch(cache, wanted) {
        Ok(kernel) => {
            fs::write(&resolved, &kernel.version).context("cannot note the kernel's version")?;
            Ok(kernel)
        }
        Err(why) if cached.is_some() => {
            let kernel = cached.expect("just asked");
            eprintln!("weir-vm: {why:#}; kernel {} from the cache is taken", kernel.version);
            Ok(kernel)
        }
        Err(why) => Err(why),
    }
}

/// Waits until no other run looks for a kernel.
fn turn(cache: &Path) -> Result<Flock<File>> {
    fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let path = cache.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .context("cannot wait for another run")
}

fn fetch(cache: &Path, wanted: &Wanted<'_>) -> Result<Kernel> {
    let apt = Apt::new(cache, wanted.arch)?;
    run(apt.get().args(["-qq", "update"]))?;
    let names = output(apt.cache().arg("pkgnames"))?;
    let candidates = candidates(&names, wanted);
    ensure!(!candidates.is_empty(), "Debian has no kernel {} of flavour {}", wanted.version, wanted.flavour);
    let mut why = Vec::new();
    for candidate in candidates.into_iter().take(TRIES) {
        if let Some(kernel) = unpacked(cache, &candidate.version) {
            return Ok(kernel);
        }
        eprintln!("weir-vm: fetching kernel {}", candidate.version);
        match unpack(cache, &apt, &candidate) {
            Ok(kernel) => return Ok(kernel),
            Err(error) => why.push(format!("{}: {error:#}", candidate.version)),
        }
    }
    bail!("none of the newest kernels for {} can be had: {}", wanted.version, why.join("; "))
}

/// A kernel and the packages that it comes in.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    version: String,
    packages: Vec<String>,
}

/// Kernels among these package names, newest first. Up to 7.1 a kernel was one package,
/// `linux-image-V`; later ones are `linux-binary-V` and `linux-modules-V`, and count only if
/// the archive names both.
fn candidates(names: &str, wanted: &Wanted<'_>) -> Vec<Candidate> {
    let names: BTreeSet<&str> = names.lines().collect();
    let version = |name: &str| {
        let rest = ["linux-image-", "linux-binary-"].iter().find_map(|prefix| name.strip_prefix(prefix))?;
        let (number, flavour) = rest.split_at_checked(flavour_at(rest))?;
        let known = flavour == wanted.flavour && number.starts_with(|c: char| c.is_ascii_digit());
        let full = numbers(rest).len() >= 3;
        (known && full && begins(rest, wanted.version)).then(|| rest.to_owned())
    };
    let mut versions: Vec<String> =
        names.iter().filter_map(|name| version(name)).collect::<BTreeSet<_>>().into_iter().collect();
    versions.sort_by_key(|version| std::cmp::Reverse((numbers(version), version.clone())));
    let packages = |version: &str| {
        let [image, binary, modules] =
            ["image", "binary", "modules"].map(|part| format!("linux-{part}-{version}"));
        let has = |name: &String| names.contains(name.as_str());
        if has(&modules) {
            has(&binary).then(|| vec![binary, modules])
        } else {
            has(&image).then(|| vec![image])
        }
    };
    versions
        .into_iter()
        .filter_map(|version| Some(Candidate { packages: packages(&version)?, version }))
        .collect()
}

/// Where the flavour begins: behind the version and its number of the build, `6.1.0-56-` or
/// `7.2.12+deb13-`.
fn flavour_at(name: &str) -> usize {
    name.match_indices('-')
        .map(|(at, _)| at + 1)
        .find(|&at| name[at..].starts_with(char::is_alphabetic))
        .unwrap_or(name.len())
}

/// Whether a version begins with the wanted numbers: 6.1 is not 6.12.
fn begins(version: &str, wanted: &str) -> bool {
    wanted == "newest"
        || version.strip_prefix(wanted).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// `6.1.0-56-cloud-amd64` is `[6, 1, 0, 56]`, `7.2.12+deb13-cloud-amd64` is `[7, 2, 12]`.
fn numbers(version: &str) -> Vec<u64> {
    let digits = version.split(['+', '_']).next().unwrap_or_default();
    digits.split(['.', '-']).map_while(|number| number.parse().ok()).collect()
}

/// The kernel in the cache, if it is there.
fn unpacked(cache: &Path, version: &str) -> Option<Kernel> {
    kernel_in(&cache.join(version), version)
}

/// The kernel in a directory where its packages were unpacked; none if a part is missing.
fn kernel_in(root: &Path, version: &str) -> Option<Kernel> {
    let modules = ["usr/lib/modules", "lib/modules"]
        .into_iter()
        .map(|dir| root.join(dir).join(version))
        .find(|dir| dir.join("kernel").is_dir())?;
    let image = [root.join(format!("boot/vmlinuz-{version}")), modules.join("vmlinuz")];
    let image = image.into_iter().find(|image| image.is_file())?;
    Some(Kernel { version: version.to_owned(), image, modules })
}

fn unpack(cache: &Path, apt: &Apt, candidate: &Candidate) -> Result<Kernel> {
    let Candidate { version, packages } = candidate;
    let (debs, partial) = (cache.join("debs"), cache.join(format!("{version}.partial")));
    for dir in [&debs, &partial] {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    run(apt.get().args(["-q", "download"]).args(packages).current_dir(&debs))?;
    for deb in fs::read_dir(&debs).context("cannot list the packages")? {
        run(Command::new("dpkg").arg("-x").arg(deb?.path()).arg(&partial))?;
    }
    fs::remove_dir_all(&debs).context("cannot remove the packages")?;
    ensure!(
        kernel_in(&partial, version).is_some(),
        "the packages {} lack the image or its modules",
        packages.join(", ")
    );
    fs::rename(&partial, cache.join(version)).context("cannot put the kernel into the cache")?;
    unpacked(cache, version).context("just seen")
}

/// apt with a root of its own.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn new(cache: &Path, arch: Arch) -> Result<Apt> {
        ensure!(
            Path::new(KEYRING).is_file(),
            "{KEYRING} is missing: `apt-get install debian-archive-keyring`, or `scripts/install-deps.sh vm`"
        );
        let arch = arch.name();
        let root = cache.join(format!("apt-{arch}"));
        for dir in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(root.join(dir)).with_context(|| format!("cannot make {}", root.display()))?;
        }
        // This machine's own mirrors, where it is a Debian.
        let known = output(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)"]))
            .unwrap_or_default();
        let lines = SUITES.map(|((end, otherwise), suite)| {
            let own = known.lines().map(|uri| uri.trim_end_matches('/')).find(|uri| uri.ends_with(end));
            let uri = own.unwrap_or(otherwise);
            format!("deb [arch={arch} signed-by={KEYRING}] {uri} {suite} main\n")
        });
        fs::write(root.join("sources.list"), lines.concat()).context("cannot write apt's sources")?;
        fs::write(root.join("status"), "").context("cannot write apt's status")?;
        let at = root.display();
        let options = vec![
            format!("Dir::Etc::SourceList={at}/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::Etc::Preferences=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            format!("Dir::State={at}/state"),
            format!("Dir::State::Status={at}/status"),
            format!("Dir::Cache={at}/cache"),
            format!("APT::Architecture={arch}"),
            // Else apt asks for the lists of all that dpkg knows here.
            format!("APT::Architectures={arch}"),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        Ok(Apt { options })
    }

    fn get(&self) -> Command {
        self.program("apt-get")
    }

    fn cache(&self) -> Command {
        self.program("apt-cache")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &str = "linux-image-6.1.0-47-cloud-amd64\nlinux-image-6.1.0-56-cloud-amd64\n\
        linux-image-6.1.0-56-cloud-amd64-unsigned\nlinux-image-6.1.0-9-cloud-amd64\n\
        linux-image-6.12-cloud-amd64\nlinux-image-6.12.90+deb12-cloud-amd64\n\
        linux-image-6.12.117+deb12-cloud-amd64\nlinux-image-6.12.117+deb12-cloud-amd64-dbg\n\
        linux-image-cloud-amd64\nlinux-image-7.2.12+deb13-cloud-amd64\n\
        linux-binary-7.2.12+deb13-cloud-amd64\nlinux-modules-7.2.12+deb13-cloud-amd64\n\
        linux-modules-7.3.4+deb13-cloud-amd64\nlinux-binary-unsigned-7.3.4+deb13-cloud-amd64\n\
        linux-image-6.12.117+deb12-amd64\nlinux-image-6.12.117+deb12-rt-amd64\n";

    fn newest(wanted: &str) -> Vec<String> {
        let wanted = Wanted { version: wanted, flavour: "cloud-amd64", arch: Arch::Amd64 };
        candidates(NAMES, &wanted).into_iter().next().expect("there is one").packages
    }

    #[test]
    fn the_newest_kernel_is_the_newest_that_can_be_booted_and_has_its_modules() {
        assert_eq!(
            newest("newest"),
            ["linux-binary-7.2.12+deb13-cloud-amd64", "linux-modules-7.2.12+deb13-cloud-amd64"]
        );
    }

    #[test]
    fn a_kernel_of_another_flavour_is_another_kernel() {
        let of = |flavour| candidates(NAMES, &Wanted { version: "6.12", flavour, arch: Arch::Amd64 });
        assert_eq!(of("amd64")[0].packages, ["linux-image-6.12.117+deb12-amd64"]);
        assert_eq!(of("amd64").len(), 1);
        assert_eq!(of("cloud-amd64").len(), 2);
    }

    #[test]
    fn versions_are_compared_by_number_and_6_1_is_not_6_12() {
        assert_eq!(newest("6.1"), ["linux-image-6.1.0-56-cloud-amd64"]);
        assert_eq!(newest("6.12"), ["linux-image-6.12.117+deb12-cloud-amd64"]);
        assert_eq!(newest("6.12.90"), ["linux-image-6.12.90+deb12-cloud-amd64"]);
        assert!(
            candidates(NAMES, &Wanted { version: "5", flavour: "cloud-amd64", arch: Arch::Amd64 }).is_empty()
        );
    }
}
