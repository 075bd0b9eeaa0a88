//! LRU at image grain: Algorithm 1 of Ahmed and Pierre, "Docker Image Sharing in Distributed Fog
//! Infrastructures" (2019).
//!
//! ```text
//! while available_space < S:
//!     i = least_recently_used(I)        I: the images that nobody uses
//!     remove i
//!     I = I - i
//! ```
//!
//! Removing an image frees the blobs that no other stored image refers to, as `docker rmi` does.

use weir_units::{Bytes, Instant};

use super::EvictionPolicy;
use crate::{
    Blob, BlobId, ImageId, Protection,
    hash::Map,
    queue::{Queue, Sift},
};

/// The blobs that leave at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Unit {
    Image(ImageId),
    /// A blob of no image: fetched by itself, or left over because it was protected.
    Single(BlobId),
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    bytes: u64,
    /// References of images to it; an image may name a layer twice.
    images: u32,
    /// Images may refer to what is not stored: too big, or lost.
    stored: bool,
}

/// The image that was not deployed for longest leaves first.
///
/// Invariant: a blob that is stored is a unit of its own exactly if no image refers to it; an
/// entry is there as long as it is stored or referred to.
#[derive(Debug, Clone, Default)]
pub struct ImageLru {
    units: Queue<Unit, ()>,
    images: Map<ImageId, Box<[BlobId]>>,
    blobs: Map<BlobId, Entry>,
    bytes: u64,
    stored: usize,
}

impl ImageLru {
    fn refer(&mut self, blobs: &[BlobId]) {
        for id in blobs {
            let entry = self.blobs.entry(*id).or_default();
            entry.images += 1;
            self.units.remove(Unit::Single(*id));
        }
    }

    /// Takes an image's references away; blobs without references are given to `single`.
    fn unrefer(&mut self, blobs: &[BlobId], mut single: impl FnMut(&mut Self, BlobId)) {
        for id in blobs {
            let entry = self.blobs.get_mut(id).expect("what is referred to has an entry");
            entry.images -= 1;
            match (entry.images, entry.stored) {
                (0, true) => single(self, *id),
                (0, false) => {
                    self.blobs.remove(id);
                }
                _ => {}
            }
        }
    }

    fn drop_blob(&mut self, id: BlobId) -> u64 {
        let entry = self.blobs.remove(&id).expect("a stored blob has an entry");
        self.bytes -= entry.bytes;
        self.stored -= 1;
        entry.bytes
    }
}

impl EvictionPolicy for ImageLru {
    fn hit(&mut self, id: BlobId, _now: Instant) -> bool {
        self.units.touch(Unit::Single(id));
        self.contains(id)
    }

    fn insert(&mut self, blob: Blob, now: Instant) {
        if self.hit(blob.id, now) {
            return;
        }
        let entry = self.blobs.entry(blob.id).or_default();
        (entry.bytes, entry.stored) = (blob.bytes.0, true);
        if entry.images == 0 {
            self.units.push_front(Unit::Single(blob.id), ());
        }
        self.bytes += blob.bytes.0;
        self.stored += 1;
    }

    fn deploy(&mut self, image: ImageId, blobs: &[BlobId], _now: Instant) {
        if self.images.get(&image).is_none_or(|before| **before != *blobs) {
            self.refer(blobs);
            if let Some(before) = self.images.insert(image, blobs.into()) {
                self.unrefer(&before, |this, id| this.units.push_front(Unit::Single(id), ()));
            }
        }
        if !self.units.touch(Unit::Image(image)) {
            self.units.push_front(Unit::Image(image), ());
        }
    }

    fn remove(&mut self, id: BlobId) -> bool {
        let Some(entry) = self.blobs.get_mut(&id).filter(|entry| entry.stored) else { return false };
        if entry.images == 0 {
            self.units.remove(Unit::Single(id));
            self.drop_blob(id);
        } else {
            self.bytes -= entry.bytes;
            entry.stored = false;
            self.stored -= 1;
        }
        true
    }

    fn contains(&self, id: BlobId) -> bool {
        self.blobs.get(&id).is_some_and(|entry| entry.stored)
    }

    fn evict(&mut self, need: Bytes, protection: &dyn Protection, victims: &mut Vec<BlobId>) -> Bytes {
        let mut freed = 0;
        // Protected blobs stay: units of their own, as old as their image was.
        let mut left = Vec::new();
        let mut units = std::mem::take(&mut self.units);
        units.sift(|unit, ()| {
            if freed >= need.0 {
                return Sift::Stop;
            }
            match unit {
                Unit::Single(id) if protection.blob(id) => return Sift::Keep,
                Unit::Single(id) => {
                    freed += self.drop_blob(id);
                    victims.push(id);
                }
                Unit::Image(id) if protection.image(id) => return Sift::Keep,
                Unit::Image(id) => {
                    let blobs = self.images.remove(&id).expect("a unit is there");
                    self.unrefer(&blobs, |this, id| {
                        if protection.blob(id) {
                            left.push(id);
                        } else {
                            freed += this.drop_blob(id);
                            victims.push(id);
                        }
                    });
                }
            }
            Sift::Take
        });
        for id in left.into_iter().rev() {
            units.push_back(Unit::Single(id), ());
        }
        self.units = units;
        Bytes(freed)
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    fn len(&self) -> usize {
        self.stored
    }

    fn order(&self) -> Vec<BlobId> {
        super::drain(self.clone())
    }
}
