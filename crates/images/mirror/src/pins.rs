//! Pins for the images of a container runtime: the same patterns as for those of the cache.

use std::net::SocketAddr;

use crate::{Image, pattern::fits, store::MAX_PIN};

/// Whether a text can be a pattern of images.
#[must_use]
pub fn is_pattern(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_PIN && text.chars().all(|c| c.is_ascii_graphic())
}

/// An image in full, such as `docker.io/library/nginx:1.27`. Text that is no name stays as it is.
#[must_use]
pub fn full_name(name: &str) -> String {
    match name.parse::<Image>() {
        Ok(image) if !name.contains('*') => image.to_string(),
        _ => name.to_owned(),
    }
}

/// Patterns, in which `*` stands for anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    patterns: Vec<String>,
    /// The cache's address in front of a name, as in `127.0.0.1:5050/ghcr.io/acme/app:1`.
    prefix: String,
}

impl Pins {
    /// * `listen`: the address of the cache. An image that was pulled by it has it in its name.
    #[must_use]
    pub fn new(patterns: impl IntoIterator<Item = String>, listen: SocketAddr) -> Pins {
        let patterns = patterns.into_iter().map(|pattern| full_name(&pattern)).collect();
        Pins { patterns, prefix: format!("{listen}/") }
    }

    /// The pattern that names this image, which is written as the runtime lists it.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&str> {
        let full = full_name(name.strip_prefix(&self.prefix).unwrap_or(name));
        let pin = self.patterns.iter().find(|pin| fits(pin, &full) || fits(pin, name));
        pin.map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_names_an_image_however_the_runtime_writes_it() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let patterns = ["nginx".to_owned(), "ghcr.io/acme/*:prod".to_owned(), format!("debian@{digest}")];
        let pins = Pins::new(patterns, "127.0.0.1:5050".parse().unwrap());
        for name in [
            "nginx:latest",
            "docker.io/library/nginx:latest",
            "127.0.0.1:5050/library/nginx:latest",
            "ghcr.io/acme/a/b:prod",
            "127.0.0.1:5050/ghcr.io/acme/app:prod",
            &format!("debian@{digest}"),
        ] {
            assert!(pins.find(name).is_some(), "{name}");
        }
        for name in ["nginx:1.27", "acme/nginx:latest", "ghcr.io/acme/app:test", "debian:12", ""] {
            assert_eq!(pins.find(name), None, "{name}");
        }
        assert_eq!(pins.find("ghcr.io/acme/app:prod"), Some("ghcr.io/acme/*:prod"));
        assert_eq!(Pins::new(["*".to_owned()], "127.0.0.1:1".parse().unwrap()).find("any"), Some("*"));
    }
}
