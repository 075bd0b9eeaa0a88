//! Names: registries, repositories, tags, and which of them a request is about.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Digest;

/// Docker Hub, as images call it.
pub const DOCKER_IO: &str = "docker.io";

/// A name that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{text}` as {what}: {rule}")]
pub struct BadName {
    text: String,
    what: &'static str,
    rule: &'static str,
}

fn bad(text: &str, what: &'static str, rule: &'static str) -> BadName {
    BadName { text: text.chars().take(160).collect(), what, rule }
}

/// A registry as images name it: a host, with a port if it has one of its own. Invariant: letters,
/// digits, `.`, `-`, one `:` or a bracketed address; no scheme, no path; safe as the name of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Registry(Box<str>);

impl Registry {
    /// Docker Hub.
    #[must_use]
    pub(crate) fn docker_io() -> Registry {
        Registry(DOCKER_IO.into())
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host, without port and brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        split_port(&self.0).0
    }

    /// The port, if one is named.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        split_port(&self.0).1
    }

    /// The name as one component of a repository's path, which has no colon; none for an address in brackets, and
    /// for a host that no path takes for a registry.
    #[must_use]
    pub fn as_component(&self) -> Option<String> {
        match self.port() {
            _ if self.0.starts_with('[') || !Registry::looks_like_one(self.host()) => None,
            None => Some(self.0.to_string()),
            Some(port) => Some(format!("{}_{port}", self.host())),
        }
    }

    /// Whether a first component of a path is meant as a registry, by Docker's rule: it has a dot
    /// or a port, or is `localhost`.
    #[must_use]
    pub(crate) fn looks_like_one(component: &str) -> bool {
        let is_local = component == "localhost" || component.starts_with("localhost_");
        component.contains(['.', ':']) || is_local
    }
}

fn split_port(text: &str) -> (&str, Option<u16>) {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']').unwrap_or((rest, ""));
        return (host, port.strip_prefix(':').and_then(|p| p.parse().ok()));
    }
    match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (text, None),
    }
}

impl FromStr for Registry {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Registry, BadName> {
        let refuse = || bad(text, "a registry", "a host such as ghcr.io or 10.0.0.5:5000, without a scheme");
        let (host, port) = split_port(text);
        let has_port = if text.starts_with('[') { !text.ends_with(']') } else { text.contains(':') };
        if has_port && port.is_none_or(|p| p == 0) {
            return Err(refuse());
        }
        let good = if text.starts_with('[') {
            host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6())
        } else {
            let label = |l: &str| {
                !l.is_empty()
                    && l.len() <= 63
                    && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                    && !l.starts_with('-')
                    && !l.ends_with('-')
            };
            host.len() <= 253 && host.split('.').all(label)
        };
        let text = text.to_ascii_lowercase();
        if !good || text.len() > 260 {
            return Err(refuse());
        }
        // One name for one registry.
        Ok(match text.as_str() {
            "index.docker.io" | "registry-1.docker.io" => Registry::docker_io(),
            _ => Registry(text.into()),
        })
    }
}

/// A repository's path in its registry, by the OCI distribution specification's rule. Invariant: no
/// empty component, none that begins with a dot; safe as a path below a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repository(Box<str>);

impl Repository {
    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Repository {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Repository, BadName> {
        // [a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*
        let component = |c: &str| {
            let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            edge(c.bytes().next())
                && edge(c.bytes().last())
                && c.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'))
                && ["..", "___", "._", "_.", ".-", "-.", "_-", "-_"].iter().all(|pair| !c.contains(pair))
        };
        if text.len() > 255 || !text.split('/').all(component) {
            let rule = "lower-case letters and digits, parted by . _ __ - and /, 255 characters at most";
            return Err(bad(text, "a repository", rule));
        }
        Ok(Repository(text.into()))
    }
}

/// A tag. Invariant: letters, digits, `_`, `.`, `-`; does not begin with `.` or `-`; 128 at most.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(Box<str>);

impl Tag {
    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Tag {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Tag, BadName> {
        let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if text.is_empty() || text.len() > 128 || text.starts_with(['.', '-']) || !text.bytes().all(good) {
            let rule = "letters, digits and _ . -, not . or - at the beginning, 128 characters at most";
            return Err(bad(text, "a tag", rule));
        }
        Ok(Tag(text.into()))
    }
}

macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
as_text!(Registry, Repository, Tag);

/// A repository of a registry: `ghcr.io/acme/app`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// Where it is.
    pub registry: Registry,
    /// Its name there.
    pub repository: Repository,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)
    }
}

/// The reference by which a client asks for a manifest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A name that may move.
    Tag(Tag),
    /// The content itself.
    Digest(Digest),
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::Tag(tag) => fmt::Display::fmt(tag, f),
            Reference::Digest(digest) => fmt::Display::fmt(digest, f),
        }
    }
}

impl FromStr for Reference {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Reference, BadName> {
        if text.contains(':') {
            let rule = "a tag, or a sha256 or sha512 digest";
            return text.parse().map(Reference::Digest).map_err(|_| bad(text, "a reference", rule));
        }
        text.parse().map(Reference::Tag)
    }
}

/// An image as people write it: `nginx`, `ghcr.io/acme/app:1.2`, `debian@sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Image {
    /// Its repository.
    pub source: Source,
    /// Its tag or digest; `latest` if the text names none.
    pub reference: Reference,
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reference {
            Reference::Tag(tag) => write!(f, "{}:{tag}", self.source),
            Reference::Digest(digest) => write!(f, "{}@{digest}", self.source),
        }
    }
}

impl FromStr for Image {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Image, BadName> {
        let (name, reference) = if let Some((name, digest)) = text.split_once('@') {
            let digest = digest.parse().map_err(|_| bad(text, "an image", "its digest is not one"))?;
            // `name:tag@digest`: the digest decides.
            let end = name.rfind('/').map_or(0, |at| at + 1);
            let name = name[end..].find(':').map_or(name, |at| &name[..end + at]);
            (name, Reference::Digest(digest))
        } else {
            let end = text.rfind('/').map_or(0, |at| at + 1);
            match text[end..].find(':') {
                Some(at) => (&text[..end + at], Reference::Tag(text[end + at + 1..].parse()?)),
                None => (text, Reference::Tag(Tag("latest".into()))),
            }
        };
        Ok(Image { source: source_of(None, name, &|_| true)?, reference })
    }
}

/// The repository of a request (image-cache protocol: `ns` parameter, a registry as the first
/// component of the path, else Docker Hub, whose bare names are `library/`). In a path the registry
/// `a.example:5000` is also `a.example_5000`: Podman refuses a colon there.
///
/// * `is_upstream`: whether a registry may be named by the first component.
///
/// # Errors
/// [`BadName`] if a part of it is not a name.
pub(crate) fn source_of(
    ns: Option<&str>,
    name: &str,
    is_upstream: &dyn Fn(&Registry) -> bool,
) -> Result<Source, BadName> {
    if let Some(ns) = ns {
        let registry = ns.parse()?;
        return Ok(Source { repository: in_registry(&registry, name)?, registry });
    }
    if let Some((first, rest)) = name.split_once('/')
        && Registry::looks_like_one(first)
    {
        let registry: Registry = port_by_underscore(first).unwrap_or_else(|| first.to_owned()).parse()?;
        if is_upstream(&registry) {
            return Ok(Source { repository: in_registry(&registry, rest)?, registry });
        }
    }
    let registry = Registry::docker_io();
    Ok(Source { repository: in_registry(&registry, name)?, registry })
}

/// `a.example:5000` for `a.example_5000`. The name of a host has no underscore.
fn port_by_underscore(component: &str) -> Option<String> {
    let (host, port) = component.rsplit_once('_')?;
    let is_port = port.parse::<u16>().is_ok_and(|number| number.to_string() == port && number > 0);
    is_port.then(|| format!("{host}:{port}"))
}

fn in_registry(registry: &Registry, name: &str) -> Result<Repository, BadName> {
    if registry.as_str() == DOCKER_IO && !name.contains('/') {
        return format!("library/{name}").parse();
    }
    name.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(ns: Option<&str>, name: &str) -> Result<String, BadName> {
        source_of(ns, name, &|_| true).map(|s| s.to_string())
    }

    #[test]
    fn a_request_names_its_registry_by_ns_or_by_path_or_means_docker_hub() {
        assert_eq!(source(Some("docker.io"), "library/demo").unwrap(), "docker.io/library/demo");
        assert_eq!(source(Some("ghcr.io"), "acme/app").unwrap(), "ghcr.io/acme/app");
        assert_eq!(source(None, "ghcr.io/acme/app").unwrap(), "ghcr.io/acme/app");
        assert_eq!(source(None, "localhost:5000/app").unwrap(), "localhost:5000/app");
        assert_eq!(source(None, "library/demo").unwrap(), "docker.io/library/demo");
        assert_eq!(source(None, "demo").unwrap(), "docker.io/library/demo");
        assert_eq!(source(Some("registry-1.docker.io"), "demo").unwrap(), "docker.io/library/demo");
    }

    #[test]
    fn port_of_a_registry_in_a_path_follows_an_underscore() {
        for (name, want) in [
            ("a.example_5000/acme/app", "a.example:5000/acme/app"),
            ("10.0.0.5_80/app", "10.0.0.5:80/app"),
            ("localhost_5000/app", "localhost:5000/app"),
            ("acme_5000/app", "docker.io/acme_5000/app"),
        ] {
            assert_eq!(source(None, name).unwrap(), want);
        }
        for name in ["a.example_0/app", "a.example_05/app", "a.example_70000/app", "a_b.example/app"] {
            assert!(source(None, name).is_err(), "{name}");
        }
        for name in ["a.example:5000", "localhost:5000", "ghcr.io", "10.0.0.5:80"] {
            let component = name.parse::<Registry>().unwrap().as_component().unwrap();
            assert!(component.parse::<Repository>().is_ok(), "{component}");
            assert_eq!(source(None, &format!("{component}/app")).unwrap(), format!("{name}/app"));
        }
        for name in ["[::1]:5000", "registry:5000", "registry"] {
            assert_eq!(name.parse::<Registry>().unwrap().as_component(), None, "{name}");
        }
    }

    #[test]
    fn names_that_leave_the_store_or_name_a_scheme_are_refused() {
        for name in
            ["../etc", "a/../b", "a//b", "/a", "a/", "", ".a", "a.", "A", "a..b", "a/.b", "a%2fb", "a\0b"]
        {
            assert!(name.parse::<Repository>().is_err(), "{name}");
        }
        assert!("a".repeat(256).parse::<Repository>().is_err());
        for ns in
            ["http://ghcr.io", "ghcr.io/x", "..", "", "a b", "ghcr.io:", "ghcr.io:0", "ghcr.io:99999", "[::1"]
        {
            assert!(ns.parse::<Registry>().is_err(), "{ns}");
        }
        for tag in ["", ".a", "-a", "a/b", "a b", "..", &"a".repeat(129)] {
            assert!(tag.parse::<Tag>().is_err(), "{tag}");
        }
        for name in ["a__b", "a-b", "a---b", "a.b/c_d", "0"] {
            assert!(name.parse::<Repository>().is_ok(), "{name}");
        }
    }

    #[test]
    fn images_are_read_as_people_write_them() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, want) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.27", "docker.io/library/nginx:1.27"),
            ("acme/app", "docker.io/acme/app:latest"),
            ("ghcr.io/acme/app:1", "ghcr.io/acme/app:1"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            (&format!("debian:12@{digest}"), &format!("docker.io/library/debian@{digest}")),
        ] {
            assert_eq!(text.parse::<Image>().unwrap().to_string(), *want);
        }
        assert!("ghcr.io/acme/app@sha256:1".parse::<Image>().is_err());
    }
}
