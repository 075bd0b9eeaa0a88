//! The scope of a download: the sources that may share its bytes while it comes.

use crate::{Digest, Registry, Repository, Source, digest::Algorithm};

/// The sources among which bytes that are not yet proved may be shared.
///
/// Bytes that a registry gives to everybody are public, whichever of its repositories was named: all anonymous
/// downloads from one registry have one scope. All other downloads have the scope of one repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    registry: Registry,
    /// None for what the registry gives to everybody.
    repository: Option<Repository>,
}

impl Scope {
    /// * `is_public`: whether the bytes come without credentials.
    #[must_use]
    pub fn of(source: &Source, is_public: bool) -> Scope {
        let repository = (!is_public).then(|| source.repository.clone());
        Scope { registry: source.registry.clone(), repository }
    }

    /// Whether the registry gives the bytes to everybody.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.repository.is_none()
    }

    /// The name of the lease of a download in this scope.
    ///
    /// A lease covers one scope, so that a slow source does not hold up the others.
    #[must_use]
    pub fn lease(&self, digest: &Digest) -> Digest {
        Digest::of(Algorithm::Sha256, format!("{} {digest}", self.text()).as_bytes())
    }

    /// The scope in the name of a download's file.
    pub(crate) fn mark(&self) -> Mark {
        let hash = Digest::of(Algorithm::Sha256, self.text().as_bytes());
        Mark(u64::from_str_radix(&hash.hex()[..16], 16).unwrap_or_default())
    }

    /// A repository is not empty and a registry has no slash, so no two scopes have one text.
    fn text(&self) -> String {
        let repository = self.repository.as_ref().map_or("", Repository::as_str);
        format!("{}/{repository}", self.registry)
    }
}

/// A scope in the name of a file. A download continues only a part with its own mark.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark(u64);

impl Mark {
    /// None if it is not 16 hexadecimal digits.
    pub(crate) fn read(text: &str) -> Option<Mark> {
        (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok().map(Mark))?
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_of_one_registry_are_one_only_without_credentials() {
        let of = |name: &str, is_public| Scope::of(&name.parse::<crate::Image>().unwrap().source, is_public);
        let digest = Digest::of(Algorithm::Sha256, b"x");
        assert_eq!(of("ghcr.io/a/x", true), of("ghcr.io/b/y", true));
        let all = [
            of("ghcr.io/a/x", true),
            of("quay.io/a/x", true),
            of("ghcr.io/a/x", false),
            of("ghcr.io/b/y", false),
        ];
        for (n, one) in all.iter().enumerate() {
            assert_eq!(Mark::read(&one.mark().to_string()), Some(one.mark()));
            for other in &all[n + 1..] {
                assert!(one.lease(&digest) != other.lease(&digest) && one.mark() != other.mark());
            }
        }
        assert_eq!([Mark::read("node"), Mark::read("")], [None, None]);
    }
}
