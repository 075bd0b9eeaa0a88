//! The labels of a container's image, which containerd merges into the container's.

use prost::Message;
use serde::Deserialize;

use super::{Client, Descriptor, Image, Unavailable, container::Labels};
use crate::labels;

/// The largest manifest or configuration that is read, bytes.
const MAX_BLOB: i64 = 4 << 20;
/// The most manifests of an image that are read.
const MAX_MANIFESTS: usize = 32;

#[derive(Clone, PartialEq, Message)]
struct GetImage {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct GotImage {
    #[prost(message, optional, tag = "1")]
    image: Option<Image>,
}

#[derive(Clone, PartialEq, Message)]
struct ReadContent {
    #[prost(string, tag = "1")]
    digest: String,
    #[prost(int64, tag = "3")]
    size: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Content {
    #[prost(bytes = "vec", tag = "2")]
    data: Vec<u8>,
}

/// An index has manifests, and a manifest has a configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Manifest {
    manifests: Vec<Pointer>,
    config: Option<Pointer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pointer {
    digest: String,
    size: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Configured {
    config: Option<ImageConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ImageConfig {
    labels: Option<Labels>,
}

/// The labels that are weir's of each platform's image that is on this node.
pub(super) async fn of(
    client: &mut Client,
    namespace: &str,
    image: &str,
) -> Result<Vec<Labels>, Unavailable> {
    let question = GetImage { name: image.to_owned() };
    let got: GotImage = client.call("containerd.services.images.v1.Images/Get", namespace, &question).await?;
    let target: Descriptor = got.image.and_then(|image| image.target).unwrap_or_default();
    let target = Pointer { digest: target.digest, size: target.size };
    let top: Manifest = blob(client, namespace, &target).await?;
    let mut manifests = vec![top.config];
    for manifest in top.manifests.iter().take(MAX_MANIFESTS) {
        match blob::<Manifest>(client, namespace, manifest).await {
            Ok(manifest) => manifests.push(manifest.config),
            // Only the platform of this node was pulled.
            Err(why) if why.is_unknown() => {}
            Err(why) => return Err(why),
        }
    }
    let mut all = Vec::new();
    for config in manifests.into_iter().flatten() {
        let read: Configured = blob(client, namespace, &config).await?;
        let mut labels = read.config.and_then(|config| config.labels).unwrap_or_default();
        labels.retain(|key, _| labels::is_ours(key));
        all.push(labels);
    }
    Ok(all)
}

async fn blob<T: serde::de::DeserializeOwned>(
    client: &mut Client,
    namespace: &str,
    pointer: &Pointer,
) -> Result<T, Unavailable> {
    const METHOD: &str = "containerd.services.content.v1.Content/Read";
    let broken = |why: String| Unavailable::Broken { method: METHOD, why };
    if !(0..=MAX_BLOB).contains(&pointer.size) {
        return Err(broken(format!(
            "{} has {} bytes, {MAX_BLOB} are read at most",
            pointer.digest, pointer.size
        )));
    }
    let question = ReadContent { digest: pointer.digest.clone(), size: pointer.size };
    let parts: Vec<Content> = client.call_all(METHOD, namespace, &question).await?;
    let bytes: Vec<u8> = parts.into_iter().flat_map(|part| part.data).collect();
    serde_json::from_slice(&bytes).map_err(|e| broken(format!("{}: {e}", pointer.digest)))
}
