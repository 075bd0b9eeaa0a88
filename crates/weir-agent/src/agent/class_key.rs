//! The key of a class: its source and its name.

use std::{borrow::Borrow, fmt};

/// The origin of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ClassSource {
    /// A policy waits for the class, which no source has reported yet.
    Absent,
    /// An agreement that selects packets.
    Agreement,
    /// A container of the CNI plugin.
    Cni,
    /// A class of the configuration, by interface, cgroup or selector.
    Config,
    /// A container of containerd's own clients, or a pod that CNI did not report.
    Containerd,
    Docker,
    /// A group of classes.
    Group,
    /// A virtual machine of Incus or LXD.
    Incus,
    /// A virtual machine of libvirt.
    Libvirt,
    /// A container of LXC, LXD or Incus.
    Lxc,
    /// A named network namespace.
    Netns,
    Podman,
    /// One of weir's own classes: host, default, control.
    Weir,
}

impl ClassSource {
    const ALL: [ClassSource; 13] = [
        ClassSource::Absent,
        ClassSource::Agreement,
        ClassSource::Cni,
        ClassSource::Config,
        ClassSource::Containerd,
        ClassSource::Docker,
        ClassSource::Group,
        ClassSource::Incus,
        ClassSource::Libvirt,
        ClassSource::Lxc,
        ClassSource::Netns,
        ClassSource::Podman,
        ClassSource::Weir,
    ];
    /// The sources of the node that report senders, in the order of their precedence.
    pub(crate) const DISCOVERED: [ClassSource; 9] = [
        ClassSource::Config,
        ClassSource::Cni,
        ClassSource::Docker,
        ClassSource::Podman,
        ClassSource::Containerd,
        ClassSource::Incus,
        ClassSource::Libvirt,
        ClassSource::Lxc,
        ClassSource::Netns,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            ClassSource::Absent => "absent",
            ClassSource::Agreement => "agreement",
            ClassSource::Cni => "cni",
            ClassSource::Config => "config",
            ClassSource::Containerd => "containerd",
            ClassSource::Docker => "docker",
            ClassSource::Group => "group",
            ClassSource::Incus => "incus",
            ClassSource::Libvirt => "libvirt",
            ClassSource::Lxc => "lxc",
            ClassSource::Netns => "netns",
            ClassSource::Podman => "podman",
            ClassSource::Weir => "weir",
        }
    }

    /// Whether a class of this source sends as a container does: a source of the node reported it.
    pub(crate) fn is_discovered(self) -> bool {
        ClassSource::DISCOVERED.contains(&self)
    }

    /// Whether a runtime reported the class, which answers some time after the agent's start.
    pub(crate) const fn is_runtime(self) -> bool {
        use ClassSource::{Containerd, Docker, Incus, Podman};
        matches!(self, Containerd | Docker | Incus | Podman)
    }
}

impl fmt::Display for ClassSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The key of a class, as `docker:web`. It is also the form in which commands and the store name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClassKey(String);

impl ClassKey {
    pub(crate) fn new(source: ClassSource, name: &str) -> ClassKey {
        ClassKey(format!("{source}:{name}"))
    }

    /// The key of a group.
    pub(crate) fn group(name: &str) -> ClassKey {
        ClassKey::new(ClassSource::Group, name)
    }

    /// The key of a class of weir's own.
    pub(crate) fn own(name: &str) -> ClassKey {
        ClassKey::new(ClassSource::Weir, name)
    }

    /// Reads a key. `None` if the text names no known source.
    pub(crate) fn parse(text: &str) -> Option<ClassKey> {
        let (source, _) = text.split_once(':')?;
        let is_known = ClassSource::ALL.iter().any(|known| known.as_str() == source);
        is_known.then(|| ClassKey(text.to_owned()))
    }

    pub(crate) fn source(&self) -> ClassSource {
        let source = self.parts().0;
        *ClassSource::ALL
            .iter()
            .find(|known| known.as_str() == source)
            .expect("each key names a known source")
    }

    /// The name without the source.
    pub(crate) fn name(&self) -> &str {
        self.parts().1
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn parts(&self) -> (&str, &str) {
        self.0.split_once(':').expect("each key has a source and a name")
    }
}

/// Maps with keys are searched by their text.
impl Borrow<str> for ClassKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
impl From<&str> for ClassKey {
    fn from(text: &str) -> ClassKey {
        ClassKey::parse(text).expect("tests name keys")
    }
}

impl PartialEq<&str> for ClassKey {
    fn eq(&self, text: &&str) -> bool {
        self.0 == *text
    }
}

impl fmt::Display for ClassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written() {
        for source in ClassSource::ALL {
            let key = ClassKey::new(source, "a:b");
            let read = ClassKey::parse(key.as_str()).unwrap();
            assert_eq!((read.source(), read.name()), (source, "a:b"));
        }
    }

    #[test]
    fn a_text_without_a_known_source_is_no_key() {
        for text in ["web", "", "lxd:web", ":web", "Docker:web"] {
            assert_eq!(ClassKey::parse(text), None, "{text}");
        }
    }
}
