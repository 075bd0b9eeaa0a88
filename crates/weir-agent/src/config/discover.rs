//! `[discover]`: the sources that the agent asks for containers.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use weir_discovery::Source;

/// `[discover]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Discover {
    #[serde(deserialize_with = "docker")]
    pub(crate) docker: Option<PathBuf>,
    /// Podman's sockets.
    #[serde(deserialize_with = "podman")]
    pub(crate) podman: Vec<PathBuf>,
    /// containerd's socket.
    #[serde(deserialize_with = "containerd")]
    pub(crate) containerd: Option<PathBuf>,
    /// The sockets of Incus and LXD.
    #[serde(deserialize_with = "incus")]
    pub(crate) incus: Vec<PathBuf>,
    /// Whether virtual machines of libvirt are found.
    pub(crate) libvirt: bool,
    /// Whether containers of LXC, LXD and Incus are found.
    pub(crate) lxc: bool,
    #[serde(deserialize_with = "netns")]
    pub(crate) netns: Option<Vec<String>>,
}

impl Default for Discover {
    fn default() -> Discover {
        Discover {
            docker: Some(DOCKER_SOCKET.into()),
            podman: Vec::new(),
            containerd: None,
            incus: Vec::new(),
            libvirt: true,
            lxc: true,
            netns: Some(vec!["*".to_owned()]),
        }
    }
}

impl Discover {
    /// Whether both name the same runtimes.
    pub(crate) fn has_runtimes_of(&self, other: &Discover) -> bool {
        self.runtimes().eq(other.runtimes())
    }

    /// The runtimes and their sockets, in the order of their precedence.
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = (Source, &Path)> {
        let docker = self.docker.iter().map(|socket| (Source::Docker, socket.as_path()));
        let podman = self.podman.iter().map(|socket| (Source::Podman, socket.as_path()));
        let containerd = self.containerd.iter().map(|socket| (Source::Containerd, socket.as_path()));
        let incus = self.incus.iter().map(|socket| (Source::Incus, socket.as_path()));
        docker.chain(podman).chain(containerd).chain(incus)
    }
}

const DOCKER_SOCKET: &str = "/run/docker.sock";
const PODMAN_SOCKET: &str = "/run/podman/podman.sock";

fn docker<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "true, false or the path of Docker's socket")]
    enum Raw {
        Switch(bool),
        Path(PathBuf),
    }
    Ok(match Raw::deserialize(deserializer)? {
        Raw::Switch(on) => on.then(|| DOCKER_SOCKET.into()),
        Raw::Path(path) => Some(path),
    })
}

fn podman<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "true, false, the path of Podman's socket or a list of paths")]
    enum Raw {
        Switch(bool),
        Path(PathBuf),
        Paths(Vec<PathBuf>),
    }
    Ok(match Raw::deserialize(deserializer)? {
        Raw::Switch(on) => on.then(|| PODMAN_SOCKET.into()).into_iter().collect(),
        Raw::Path(path) => vec![path],
        Raw::Paths(paths) => paths,
    })
}

fn incus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "true, false, the path of the socket of Incus or LXD, or a list of paths")]
    enum Raw {
        Switch(bool),
        Path(PathBuf),
        Paths(Vec<PathBuf>),
    }
    Ok(match Raw::deserialize(deserializer)? {
        Raw::Switch(on) => on.then(|| weir_discovery::incus::SOCKET.into()).into_iter().collect(),
        Raw::Path(path) => vec![path],
        Raw::Paths(paths) => paths,
    })
}

fn containerd<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "true, false or the path of containerd's socket")]
    enum Raw {
        Switch(bool),
        Path(PathBuf),
    }
    Ok(match Raw::deserialize(deserializer)? {
        Raw::Switch(on) => on.then(|| weir_discovery::containerd::SOCKET.into()),
        Raw::Path(path) => Some(path),
    })
}

fn netns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "true, false or a list of namespace names and patterns")]
    enum Raw {
        Switch(bool),
        Names(Vec<String>),
    }
    Ok(match Raw::deserialize(deserializer)? {
        Raw::Switch(on) => on.then(|| vec!["*".to_owned()]),
        Raw::Names(names) => Some(names),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_switched_on_or_named_and_off_by_default() {
        let read = |text: &str| toml::from_str::<Discover>(text).expect(text);
        let paths = |text| (read(text).podman, read(text).containerd);
        assert_eq!(paths(""), (vec![], None));
        let usual = ("/run/podman/podman.sock".into(), "/run/containerd/containerd.sock".into());
        assert_eq!(paths("podman = true\ncontainerd = true"), (vec![usual.0], Some(usual.1)));
        assert_eq!(paths("podman = \"/p\"\ncontainerd = \"/c\""), (vec!["/p".into()], Some("/c".into())));
        assert_eq!(paths("podman = [\"/p\", \"/q\"]").0, [PathBuf::from("/p"), "/q".into()]);
        let refused = toml::from_str::<Discover>("podman = 5").expect_err("a number").to_string();
        assert!(refused.contains("true, false, the path of Podman's socket or a list of paths"), "{refused}");
        assert_eq!(read("incus = true").incus, [PathBuf::from("/var/lib/incus/unix.socket")]);
        assert_eq!((read("").incus, read("incus = [\"/i\", \"/l\"]").incus.len()), (vec![], 2));
        assert!(!read("incus = true").has_runtimes_of(&read("")));
        assert!(!read("podman = true").has_runtimes_of(&read("")));
        assert!(read("netns = false").has_runtimes_of(&read("")));
    }
}
