//! Manifests, and the blobs that they name.

use serde::Deserialize;

use crate::{
    Digest,
    oci::{Descriptor, ImageIndex, ImageManifest},
};

/// The most a manifest may have; containerd refuses more than 4 MiB too.
pub const MAX_MANIFEST: usize = 4 << 20;

/// The most layers, or images of an index, that a manifest may name. Runtimes take images of at most 127 layers.
pub const MAX_PARTS: usize = 1000;

/// Media types that are asked for when a client says nothing.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// A part of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its content.
    pub digest: Digest,
    /// Its size, bytes.
    pub size: u64,
}

/// An image of an index, and the platform it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// The image's manifest.
    pub part: Part,
    /// `linux/amd64`, `linux/arm/v7`; empty if the index does not say.
    pub platform: String,
}

/// A manifest, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manifest {
    /// Images by platform.
    Index(Vec<Child>),
    /// One image: its configuration and layers.
    Image {
        /// The configuration; what Docker calls the image's id.
        config: Part,
        /// The layers, lowest first.
        layers: Vec<Part>,
    },
}

/// The text is no manifest that weir can serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadManifest {
    /// More than [`MAX_MANIFEST`] bytes.
    #[error("the manifest has more than {MAX_MANIFEST} bytes")]
    TooLarge,
    /// More than [`MAX_PARTS`] layers or images.
    #[error("the manifest names {0} layers or images, and may name {MAX_PARTS}")]
    TooManyParts(usize),
    /// Neither an index nor an image, of OCI or of Docker's schema 2.
    #[error("cannot read it as a manifest ({0})")]
    Unreadable(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    media_type: Option<String>,
    manifests: Option<Count>,
    layers: Option<Count>,
}

/// The length of a list, whatever is in it.
struct Count(usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        struct Counting;

        impl<'de> serde::de::Visitor<'de> for Counting {
            type Value = Count;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }

        deserializer.deserialize_seq(Counting)
    }
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// [`BadManifest`].
    pub fn read(bytes: &[u8]) -> Result<Manifest, BadManifest> {
        if bytes.len() > MAX_MANIFEST {
            return Err(BadManifest::TooLarge);
        }
        let unreadable = |e: &dyn std::fmt::Display| BadManifest::Unreadable(e.to_string());
        let shape: Shape = serde_json::from_slice(bytes).map_err(|e| unreadable(&e))?;
        // Counted first, as a descriptor that is read takes some times the room of its text.
        let parts = shape.manifests.as_ref().or(shape.layers.as_ref()).map_or(0, |count| count.0);
        if parts > MAX_PARTS {
            return Err(BadManifest::TooManyParts(parts));
        }
        if shape.manifests.is_some() {
            let index: ImageIndex = serde_json::from_slice(bytes).map_err(|e| unreadable(&e))?;
            return Ok(Manifest::Index(index.manifests.into_iter().map(child).collect()));
        }
        let image: ImageManifest = serde_json::from_slice(bytes)
            .map_err(|e| unreadable(&format!("{e}; its type is {}", shape.media_type.unwrap_or_default())))?;
        Ok(Manifest::Image { config: part(&image.config), layers: image.layers.iter().map(part).collect() })
    }

    /// All that it names, manifests included.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        let (children, config, layers) = match self {
            Manifest::Index(children) => (children.as_slice(), None, [].as_slice()),
            Manifest::Image { config, layers } => ([].as_slice(), Some(config), layers.as_slice()),
        };
        children.iter().map(|c| &c.part).chain(config).chain(layers)
    }
}

fn child(descriptor: Descriptor) -> Child {
    let part = part(&descriptor);
    let platform = descriptor.platform.map_or_else(String::new, |p| {
        let variant = p.variant.map_or_else(String::new, |v| format!("/{v}"));
        format!("{}/{}{variant}", p.os, p.architecture)
    });
    Child { part, platform }
}

fn part(descriptor: &Descriptor) -> Part {
    Part { digest: descriptor.digest.clone(), size: descriptor.size }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn descriptor(more: &str) -> String {
        format!("{{\"mediaType\":\"a/b\",\"digest\":\"{DIGEST}\",\"size\":7{more}}}")
    }

    #[test]
    fn image_names_its_configuration_and_its_layers_in_their_order() {
        let text = format!(
            "{{\"schemaVersion\":2,\"config\":{0},\"layers\":[{0},{1}]}}",
            descriptor(""),
            descriptor("").replace("\"size\":7", "\"size\":8")
        );
        let Ok(Manifest::Image { config, layers }) = Manifest::read(text.as_bytes()) else {
            panic!("it is an image")
        };
        assert_eq!((config.size, config.digest.to_string().as_str()), (7, DIGEST));
        assert_eq!(layers.iter().map(|layer| layer.size).collect::<Vec<_>>(), [7, 8]);
    }

    #[test]
    fn index_names_images_with_their_platforms() {
        let arm = descriptor(",\"platform\":{\"os\":\"linux\",\"architecture\":\"arm\",\"variant\":\"v7\"}");
        let text = format!("{{\"schemaVersion\":2,\"manifests\":[{},{arm}]}}", descriptor(""));
        let Ok(Manifest::Index(children)) = Manifest::read(text.as_bytes()) else { panic!("it is an index") };
        assert_eq!(children.iter().map(|c| c.platform.as_str()).collect::<Vec<_>>(), ["", "linux/arm/v7"]);
    }

    #[test]
    fn text_that_is_no_manifest_is_refused() {
        let bad_digest = descriptor("").replace("sha256:", "md5:");
        let many = vec![descriptor(""); MAX_PARTS + 1].join(",");
        for (text, why) in [
            ("{}".to_owned(), "schemaVersion"),
            ("[]".to_owned(), "cannot read it as a manifest"),
            ("{\"schemaVersion\":2,\"config\":{},\"layers\":[]}".to_owned(), "mediaType"),
            (format!("{{\"schemaVersion\":2,\"manifests\":[{bad_digest}]}}"), "digest"),
            (format!("{{\"schemaVersion\":2,\"config\":{bad_digest},\"layers\":[]}}"), "digest"),
            (format!("{{\"schemaVersion\":2,\"manifests\":[{many}]}}"), "names 1001 layers or images"),
        ] {
            let error = Manifest::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{text:.100}: {error}");
        }
    }
}
