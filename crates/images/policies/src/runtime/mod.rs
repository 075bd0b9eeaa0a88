//! Holds the images of a container runtime to a budget: the order in which whole images are removed.
//!
//! A runtime removes images, not layers, and a layer stays as long as one image has it. An image is one
//! entry of an [`EvictionPolicy`], with its whole size. [`plan()`] turns the policy's order into a list of
//! images.

mod plan;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use weir_units::{Bytes, Instant};

pub use plan::{Plan, Victim, plan};
use plan::{alone, size};

use crate::{Blob, BlobId, EvictionPolicy, FetchModel, PolicyKind};

/// A layer of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// A number that the caller gave it. Equal layers above different ones have different numbers.
    pub id: BlobId,
    /// Its unpacked size.
    pub bytes: Bytes,
}

/// An image as its runtime lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    /// The runtime's id of it.
    pub id: String,
    /// Its layers, each once.
    pub layers: Vec<Layer>,
    /// Whether a container has it, also one that does not run.
    pub in_use: bool,
    /// Whether a pin names it.
    pub pinned: bool,
    /// Whether the runtime refused its removal lately.
    pub refused: bool,
    /// When it was pulled last, if the runtime knows.
    pub pulled: Option<Instant>,
}

/// The bounds of a runtime's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// The order of removal.
    pub policy: PolicyKind,
    /// The most bytes that all layers together may have.
    pub budget: Bytes,
    /// An image stays for this time after it was pulled, and after its last use.
    pub keep_new: Duration,
}

/// A reason why an image stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// A container has it.
    InUse,
    /// A pin names it.
    Pinned,
    /// The runtime refused its removal lately.
    Refused,
    /// It was pulled this time ago, which is less than `keep_new`.
    Pulled(Duration),
    /// Its last container went this time ago, which is less than `keep_new`.
    Used(Duration),
}

/// The record of an image that is stored.
#[derive(Debug, Clone)]
struct Known {
    number: BlobId,
    image: StoredImage,
    pulled: Instant,
    used: Instant,
    uses: u32,
    /// No container has been made of it since it was pulled. That container is the reason of the pull, and
    /// no second use.
    is_fresh: bool,
}

/// The part of a record that outlives the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedImage {
    /// The runtime's id of it.
    pub id: String,
    /// When it was pulled, ms since the epoch of the caller's clock.
    pub pulled_ms: u64,
    /// When it was used last, on the same clock.
    pub used_ms: u64,
    /// How often it was used.
    pub uses: u32,
    /// Whether no container has been made of it yet.
    #[serde(default)]
    pub is_fresh: bool,
}

/// All that outlives the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Notes {
    /// The policy that `auto` followed.
    #[serde(default)]
    pub chosen: Option<PolicyKind>,
    /// The cost of each candidate of `auto`, s of fetch time.
    #[serde(default)]
    pub spent: Vec<(PolicyKind, f64)>,
    /// The images.
    #[serde(default)]
    pub images: Vec<NotedImage>,
}

/// The images of one runtime, and the order in which they leave.
///
/// Invariant: [`RuntimeImages::plan`] names no image for which [`RuntimeImages::kept`] has a reason.
#[derive(Debug)]
pub struct RuntimeImages {
    settings: RuntimeSettings,
    policy: Box<dyn EvictionPolicy>,
    images: BTreeMap<String, Known>,
    /// Of an earlier process, until the image is seen.
    noted: BTreeMap<String, NotedImage>,
    /// Nothing was seen yet.
    is_first: bool,
}

/// Only the order depends on this number, so that two ids with the same one do no harm.
fn number(id: &str) -> BlobId {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    BlobId(hasher.finish())
}

fn ms(at: Instant) -> u64 {
    u64::try_from(at.0.as_millis()).unwrap_or(u64::MAX)
}

impl Known {
    /// The image as the policy sees it.
    fn blob(&self) -> Blob {
        let layers = &self.image.layers;
        let bytes = layers.iter().map(|layer| layer.bytes.0).fold(0, u64::saturating_add);
        // A runtime fetches compressed layers. Only the ratio of the model's parts counts.
        let fetch = layers.iter().map(|layer| FetchModel::PAPER.time(layer.bytes));
        let fetch = fetch.fold(Duration::ZERO, Duration::saturating_add);
        Blob { id: self.number, bytes: Bytes(bytes), fetch, uses: self.uses }
    }

    /// The reasons why it stays.
    fn kept(&self, now: Instant, keep_new: Duration) -> Vec<Kept> {
        let mut kept = Vec::new();
        let age = |at: Instant| Some(now.0.saturating_sub(at.0)).filter(|age| *age < keep_new);
        kept.extend(self.image.in_use.then_some(Kept::InUse));
        kept.extend(self.image.pinned.then_some(Kept::Pinned));
        kept.extend(self.image.refused.then_some(Kept::Refused));
        kept.extend(age(self.pulled).map(Kept::Pulled));
        if !self.image.in_use && self.used > self.pulled {
            kept.extend(age(self.used).map(Kept::Used));
        }
        kept
    }
}

impl RuntimeImages {
    /// Before the first look.
    ///
    /// * `notes`: of an earlier process.
    #[must_use]
    pub fn new(settings: RuntimeSettings, notes: Notes) -> RuntimeImages {
        let mut policy = settings.policy.build(settings.budget);
        if let Some(chosen) = notes.chosen {
            policy.resume(chosen, &notes.spent);
        }
        let noted = notes.images.into_iter().map(|image| (image.id.clone(), image)).collect();
        RuntimeImages { settings, policy, images: BTreeMap::new(), noted, is_first: true }
    }

    /// The bounds.
    #[must_use]
    pub fn settings(&self) -> RuntimeSettings {
        self.settings
    }

    /// The policy, and the one that it follows.
    #[must_use]
    pub fn kinds(&self) -> (PolicyKind, PolicyKind) {
        let kind = self.settings.policy;
        (kind, self.policy.chosen().unwrap_or(kind))
    }

    /// Takes over what the runtime lists now.
    pub fn look(&mut self, images: Vec<StoredImage>, now: Instant) {
        let present: BTreeSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.images.retain(|id, known| {
            let stays = present.contains(id.as_str());
            if !stays {
                self.policy.remove(known.number);
            }
            stays
        });
        let mut new = Vec::new();
        for image in images {
            match self.images.get_mut(&image.id) {
                Some(known) => {
                    let ended = known.image.in_use && !image.in_use;
                    if known.image.in_use || image.in_use {
                        known.used = now;
                    }
                    if let Some(pulled) = image.pulled.filter(|pulled| *pulled <= now) {
                        known.pulled = known.pulled.max(pulled);
                    }
                    known.image = image;
                    if ended {
                        touch(&mut *self.policy, known, now);
                    }
                }
                None => new.push(self.known(image, now)),
            }
        }
        // In the order of last use, as a policy that takes over wants it.
        new.sort_by(|(a, _), (b, _)| (a.used, &a.image.id).cmp(&(b.used, &b.image.id)));
        for (known, was_there) in new {
            match was_there || self.is_first {
                true => self.policy.restore(known.blob(), now),
                false => self.policy.insert(known.blob(), now),
            }
            self.images.insert(known.image.id.clone(), known);
        }
        self.is_first = false;
        // Notes of images that went meanwhile are of no use.
        self.noted.clear();
    }

    /// The record of an image that was not seen before, and whether an earlier process knew it.
    fn known(&mut self, image: StoredImage, now: Instant) -> (Known, bool) {
        let noted = self.noted.remove(&image.id);
        // A clock that went back since would keep an image for longer than its time.
        let at = |ms: u64| Instant(Duration::from_millis(ms)).min(now);
        let by_runtime = image.pulled.map(|pulled| pulled.min(now));
        let was_there = noted.is_some();
        let known = match noted {
            Some(noted) => Known {
                number: number(&image.id),
                pulled: at(noted.pulled_ms).max(by_runtime.unwrap_or_default()),
                used: if image.in_use { now } else { at(noted.used_ms) },
                uses: noted.uses.max(1),
                is_fresh: noted.is_fresh && !image.in_use,
                image,
            },
            None => {
                let pulled = by_runtime.unwrap_or(now);
                let used = if image.in_use { now } else { pulled };
                let is_fresh = !image.in_use;
                Known { number: number(&image.id), image, pulled, used, uses: 1, is_fresh }
            }
        };
        (known, was_there)
    }

    /// A container was made of an image. Whether the image is known.
    pub fn used(&mut self, id: &str, now: Instant) -> bool {
        let Some(known) = self.images.get_mut(id) else { return false };
        known.used = now;
        if known.is_fresh {
            known.is_fresh = false;
            touch(&mut *self.policy, known, now);
        } else {
            known.uses = known.uses.saturating_add(1);
            self.policy.hit(known.number, now);
        }
        true
    }

    /// An image was pulled again, or loaded, or got another name. Whether it is known.
    pub fn pulled(&mut self, id: &str, now: Instant) -> bool {
        let Some(known) = self.images.get_mut(id) else { return false };
        (known.pulled, known.used) = (now, known.used.max(now));
        touch(&mut *self.policy, known, now);
        true
    }

    /// The caller removed an image as the policy's next one.
    pub fn removed(&mut self, id: &str) {
        let Some(known) = self.images.remove(id) else { return };
        // An eviction ages the entries that stay, which a removal by others does not.
        let others = |blob: BlobId| blob != known.number;
        self.policy.evict(Bytes(1), &others, &mut Vec::new());
        // An image without bytes is no victim of an eviction.
        self.policy.remove(known.number);
    }

    /// The images to remove, so that the store fits its budget.
    ///
    /// * `measured`: the runtime's own figure of the size of all layers, if it gave one.
    #[must_use]
    pub fn plan(&self, now: Instant, measured: Option<Bytes>) -> Plan {
        let ids: BTreeMap<BlobId, &Known> = self.images.values().map(|known| (known.number, known)).collect();
        let order: Vec<&StoredImage> = self
            .policy
            .order()
            .iter()
            .filter_map(|number| ids.get(number))
            .filter(|known| known.kept(now, self.settings.keep_new).is_empty())
            .map(|known| &known.image)
            .collect();
        let all: Vec<&StoredImage> = self.images.values().map(|known| &known.image).collect();
        plan(&all, &order, measured, self.settings.budget)
    }

    /// The size of all layers, each counted once.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        size(self.images.values().map(|known| &known.image))
    }

    /// The bytes that the removal of each image alone would free, by id.
    #[must_use]
    pub fn alone(&self) -> BTreeMap<&str, Bytes> {
        alone(self.images.values().map(|known| &known.image))
    }

    /// The reasons why an image stays; none for one that may go, or is not known.
    #[must_use]
    pub fn kept(&self, id: &str, now: Instant) -> Vec<Kept> {
        self.images.get(id).map(|known| known.kept(now, self.settings.keep_new)).unwrap_or_default()
    }

    /// The image, when it was pulled and last used, and how often it was used.
    pub fn images(&self) -> impl Iterator<Item = (&StoredImage, Instant, Instant, u32)> {
        self.images.values().map(|known| (&known.image, known.pulled, known.used, known.uses))
    }

    /// The notes for the next process.
    #[must_use]
    pub fn notes(&self) -> Notes {
        let note = |known: &Known| NotedImage {
            id: known.image.id.clone(),
            pulled_ms: ms(known.pulled),
            used_ms: ms(known.used),
            uses: known.uses,
            is_fresh: known.is_fresh,
        };
        // Before the first look the earlier notes still hold.
        let images = self.images.values().map(note).chain(self.noted.values().cloned());
        Notes { chosen: self.policy.chosen(), spent: self.policy.spent(), images: images.collect() }
    }
}

/// Makes an image the latest one without counting a use.
fn touch(policy: &mut dyn EvictionPolicy, known: &Known, now: Instant) {
    policy.remove(known.number);
    policy.restore(known.blob(), now);
}
