//! The images that Docker keeps: their layers, the containers that have them, and their removal.
//!
//! A removal is never forced. Docker itself then refuses an image that a container has, running or not, so
//! that a container which is made between a look and a removal keeps its image.

mod layers;

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use hyper::Method;
use serde::Deserialize;
use weir_units::Utc;

use self::layers::{Chains, History, layer_sizes};
use super::{
    Options, Unavailable,
    api::{Api, Event, Events, encode},
};

/// How long Docker may take to say how large its layers are: some versions also walk all volumes.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to remove an image: it unlinks each file.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(120);

/// The most layers that are remembered before those of images that went are forgotten.
const MOST_LAYERS: usize = 50_000;

/// An image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Docker's id of it.
    pub id: String,
    /// Its names with tags, such as `nginx:1.27`.
    pub names: Vec<String>,
    /// Its names with digests.
    pub digests: Vec<String>,
    /// Its size as Docker lists it: all its layers.
    pub bytes: u64,
    /// Its layers, the lowest first, and the size of each. Only equal layers above equal ones have the same
    /// number, and only within one [`Look`].
    pub layers: Vec<(u64, u64)>,
    /// When it last got a name here: by a pull, a build or a load.
    pub tagged: Option<SystemTime>,
}

/// A container, in any state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The id of its image.
    pub image: String,
}

/// All images and containers at one moment. The containers were listed after the images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// By id.
    pub images: Vec<Image>,
    /// In Docker's order.
    pub containers: Vec<Container>,
    /// Whether the sizes of all layers are known. Without that, [`Images::measure`] says how large the store
    /// is.
    pub is_exact: bool,
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// Docker removed it.
    Removed,
    /// Docker keeps it, for this reason: a container has it.
    Refused(String),
    /// It was gone already.
    Gone,
}

/// A change of images or of their use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A container was made.
    Created {
        /// Its id.
        container: String,
        /// The image's name or id, as the request for the container wrote it.
        image: String,
    },
    /// An image was pulled, built or loaded, or got a name.
    Pulled {
        /// Its name or id.
        image: String,
    },
    /// Something else.
    Other,
}

/// The parts of an image, which never change.
#[derive(Debug, Clone)]
struct Parts {
    /// The digests of its layers, the lowest first.
    diffs: Vec<String>,
    /// The size of each, if Docker's history of the image tells.
    sizes: Option<Vec<u64>>,
    /// The number of each.
    numbers: Vec<u64>,
    tagged: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    repo_digests: Option<Vec<String>>,
    #[serde(default)]
    size: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedContainer {
    id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    #[serde(default, rename = "ImageID")]
    image: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    #[serde(default, rename = "RootFS")]
    root_fs: Option<RootFs>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RootFs {
    #[serde(default)]
    layers: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Metadata {
    #[serde(default)]
    last_tag_time: Option<String>,
}

/// `GET /system/df`, in the form before API 1.52 and in that since.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Usage {
    #[serde(default)]
    layers_size: Option<i64>,
    #[serde(default)]
    image_usage: Option<ImageUsage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ImageUsage {
    #[serde(default)]
    total_size: Option<i64>,
}

/// A connection to the images of a daemon. Each request has a connection of its own, so that a daemon which
/// restarts is found again.
#[derive(Debug)]
pub struct Images {
    api: Api,
    /// The parts of the images of the last look.
    parts: BTreeMap<String, Parts>,
    /// The layers of these, and of images that went.
    chains: Chains,
}

/// Names that Docker gives to what has no name.
fn real(names: Option<Vec<String>>) -> Vec<String> {
    names.into_iter().flatten().filter(|name| !name.contains("<none>")).collect()
}

fn size(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// The repository of a name: without its tag or digest.
fn repository(name: &str) -> &str {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let end = name.rfind('/').map_or(0, |at| at + 1);
    name[end..].find(':').map_or(name, |at| &name[..end + at])
}

impl Image {
    /// The references that have to go before Docker removes the image; none if its id alone is enough:
    /// with one name, and digests of the same repository.
    fn references(&self) -> Vec<&str> {
        let of_name = |digest: &&String| self.names.iter().any(|n| repository(n) == repository(digest));
        let others = self.digests.iter().filter(|digest| !of_name(digest));
        let all: Vec<&str> = self.names.iter().chain(others).map(String::as_str).collect();
        if all.len() > 1 { all } else { Vec::new() }
    }
}

impl Images {
    /// Asks the daemon which version of the API it speaks.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub async fn connect(options: &Options) -> Result<Images, Unavailable> {
        let api = Api::connect(options.socket.clone(), options.time_limit).await?;
        Ok(Images { api, parts: BTreeMap::new(), chains: Chains::default() })
    }

    /// The present images and containers.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub async fn look(&mut self) -> Result<Look, Unavailable> {
        let limit = self.api.time_limit();
        let listed: Vec<Listed> = self.api.list("/images/json", limit).await?;
        let before = std::mem::take(&mut self.parts);
        for image in &listed {
            let parts = match before.get(&image.id) {
                Some(parts) => Some(parts.clone()),
                None => self.read_parts(&image.id).await?,
            };
            self.parts.extend(parts.map(|parts| (image.id.clone(), parts)));
        }
        let containers: Vec<ListedContainer> = self.api.list("/containers/json?all=true", limit).await?;
        let containers = containers.into_iter().map(|container| Container {
            name: container
                .names
                .into_iter()
                .flatten()
                .next()
                .unwrap_or_default()
                .trim_start_matches('/')
                .to_owned(),
            id: container.id,
            image: container.image,
        });
        let (images, is_exact) = self.put_together(listed);
        Ok(Look { images, containers: containers.collect(), is_exact })
    }

    /// None if the image is gone.
    async fn read_parts(&mut self, id: &str) -> Result<Option<Parts>, Unavailable> {
        let limit = self.api.time_limit();
        let gone = |why| match why {
            Unavailable::Refused { status: 404, .. } => Ok(None),
            why => Err(why),
        };
        let path = format!("/images/{}", encode(id));
        let inspected: Inspected = match self.api.get(&format!("{path}/json"), limit).await {
            Ok(inspected) => inspected,
            Err(why) => return gone(why),
        };
        let history: Vec<History> = match self.api.get(&format!("{path}/history"), limit).await {
            Ok(history) => history,
            Err(why) => return gone(why),
        };
        let diffs = inspected.root_fs.and_then(|root| root.layers).unwrap_or_default();
        let tagged = inspected.metadata.and_then(|metadata| metadata.last_tag_time);
        // Docker writes the year 1 for an image that never had a name.
        let tagged = tagged.and_then(|text| text.parse::<Utc>().ok()).filter(|at| *at > Utc::MIN);
        let tagged = tagged.map(|at| SystemTime::UNIX_EPOCH + Duration::from_millis(at.unix_millis()));
        let sizes = layer_sizes(&history, diffs.len());
        let numbers = self.chains.learn(&diffs, sizes.as_deref());
        Ok(Some(Parts { diffs, sizes, numbers, tagged }))
    }

    /// Gives each layer its number and its size. Whether all sizes are known.
    fn put_together(&mut self, listed: Vec<Listed>) -> (Vec<Image>, bool) {
        if self.chains.len() > MOST_LAYERS {
            self.chains = Chains::default();
            for parts in self.parts.values_mut() {
                parts.numbers = self.chains.learn(&parts.diffs, parts.sizes.as_deref());
            }
        }
        let mut is_exact = true;
        let images = listed.into_iter().filter_map(|image| {
            let parts = self.parts.get(&image.id)?;
            let bytes = size(image.size);
            let mut layers = self.chains.layers(&parts.numbers);
            let known = layers.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
            is_exact &= parts.sizes.is_some() && known == bytes;
            // Bytes of no known layer count as the image's own.
            if let Some(rest) = bytes.checked_sub(known).filter(|rest| *rest > 0) {
                layers.push((self.chains.own(), rest));
            }
            Some(Image {
                id: image.id,
                names: real(image.repo_tags),
                digests: real(image.repo_digests),
                bytes,
                layers,
                tagged: parts.tagged,
            })
        });
        let mut images: Vec<Image> = images.collect();
        images.sort_by(|a, b| a.id.cmp(&b.id));
        (images, is_exact)
    }

    /// Docker's own figure of the size of all layers, each counted once, bytes. Some versions walk all
    /// volumes for it, which takes long.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub async fn measure(&self) -> Result<u64, Unavailable> {
        let path = "/system/df?type=image";
        let usage: Usage = self.api.get(path, MEASURE_TIMEOUT).await?;
        let bytes = usage.layers_size.or(usage.image_usage.and_then(|images| images.total_size));
        bytes.map(size).ok_or_else(|| Unavailable::garbled(path, "it has no size of layers"))
    }

    /// Removes an image with all its names, unless a container has it. A refused image has its names
    /// afterwards.
    ///
    /// # Errors
    /// [`Unavailable`]: it may be removed or not.
    pub async fn remove(&self, image: &Image) -> Result<Removal, Unavailable> {
        let mut taken = Vec::new();
        for name in image.references() {
            // The name may be another image's by now.
            match self.id_of(name).await {
                Ok(Some(id)) if id == image.id => {}
                Ok(_) => continue,
                Err(why) => return self.put_back(image, &taken).await.and(Err(why)),
            }
            match self.delete(name).await {
                Ok(Removal::Removed) => taken.push(name),
                Ok(Removal::Gone) => {}
                Ok(Removal::Refused(why)) => {
                    self.put_back(image, &taken).await?;
                    return Ok(Removal::Refused(why));
                }
                Err(why) => return self.put_back(image, &taken).await.and(Err(why)),
            }
        }
        if !taken.is_empty() && self.id_of(&image.id).await?.is_none() {
            return Ok(Removal::Removed);
        }
        let removal = self.delete(&image.id).await;
        if !matches!(removal, Ok(Removal::Removed | Removal::Gone)) {
            self.put_back(image, &taken).await?;
        }
        removal
    }

    /// The id of an image by its name; none if there is no such image.
    async fn id_of(&self, name: &str) -> Result<Option<String>, Unavailable> {
        match self
            .api
            .get::<Inspected>(&format!("/images/{}/json", encode(name)), self.api.time_limit())
            .await
        {
            Ok(inspected) => Ok(Some(inspected.id)),
            Err(Unavailable::Refused { status: 404, .. }) => Ok(None),
            Err(why) => Err(why),
        }
    }

    async fn delete(&self, reference: &str) -> Result<Removal, Unavailable> {
        let path = format!("/images/{}", encode(reference));
        match self.api.call(Method::DELETE, &path, REMOVE_TIMEOUT).await {
            Ok(_) => Ok(Removal::Removed),
            Err(Unavailable::Refused { status: 404, .. }) => Ok(Removal::Gone),
            Err(Unavailable::Refused { status: 409, said, .. }) => Ok(Removal::Refused(said)),
            Err(why) => Err(why),
        }
    }

    /// Gives an image its names back. A name with a digest cannot be given.
    async fn put_back(&self, image: &Image, names: &[&str]) -> Result<(), Unavailable> {
        for name in names.iter().filter(|name| !name.contains('@')) {
            let repository = repository(name);
            let tag = name[repository.len()..].trim_start_matches(':');
            let path =
                format!("/images/{}/tag?repo={}&tag={}", encode(&image.id), encode(repository), encode(tag));
            self.api.call(Method::POST, &path, self.api.time_limit()).await?;
        }
        Ok(())
    }

    /// The changes since a moment, seconds since the epoch, and those to come.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub async fn changes(&self, since: u64) -> Result<Changes, Unavailable> {
        let filters = r#"{"type":["container","image"],"event":["create","destroy","pull","load","import","tag","untag","delete"]}"#;
        Ok(Changes { events: self.api.follow(since, filters).await? })
    }
}

/// A stream of changes.
#[derive(Debug)]
pub struct Changes {
    events: Events,
}

impl Changes {
    /// The next change. Nothing is lost if this is dropped before it is ready.
    ///
    /// # Errors
    /// [`Unavailable`]: the stream has ended.
    pub async fn next(&mut self) -> Result<Change, Unavailable> {
        Ok(Change::of(self.events.next_event().await?))
    }
}

impl Change {
    fn of(mut event: Event) -> Change {
        match (event.kind.as_str(), event.action.as_str()) {
            ("container", "create") => {
                let image = event.actor.attributes.remove("image").unwrap_or_default();
                Change::Created { container: event.actor.id, image }
            }
            ("image", "pull" | "load" | "import" | "tag") => Change::Pulled { image: event.actor.id },
            _ => Change::Other,
        }
    }
}

#[cfg(test)]
mod tests;
