//! The images to remove, from an order of them and the layers that they share.

use std::collections::BTreeMap;

use weir_units::Bytes;

use super::StoredImage;
use crate::BlobId;

/// An image to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// Its id.
    pub id: String,
    /// The bytes of its layers that no image has that is still there, after all victims before it.
    pub frees: Bytes,
}

/// The images to remove, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The size of all layers before.
    pub bytes: Bytes,
    /// The victims.
    pub victims: Vec<Victim>,
    /// The size after.
    pub after: Bytes,
    /// The bytes above the budget that no removal can free now.
    pub short: Bytes,
}

/// The layers that are there: the size of each, and the number of images that have it.
struct Layers(BTreeMap<BlobId, (u64, usize)>);

impl Layers {
    fn of<'a>(images: impl Iterator<Item = &'a StoredImage>) -> Layers {
        let mut layers = Layers(BTreeMap::new());
        images.for_each(|image| layers.add(image));
        layers
    }

    fn add(&mut self, image: &StoredImage) {
        for layer in &image.layers {
            let entry = self.0.entry(layer.id).or_insert((layer.bytes.0, 0));
            entry.1 += 1;
        }
    }

    /// Takes an image away; returns the bytes that this frees.
    fn remove(&mut self, image: &StoredImage) -> u64 {
        let mut freed: u64 = 0;
        for layer in &image.layers {
            if let Some((bytes, holders)) = self.0.get_mut(&layer.id) {
                *holders -= 1;
                freed = freed.saturating_add(if *holders == 0 { *bytes } else { 0 });
            }
        }
        freed
    }

    /// Whether an image that is away would bring bytes back.
    fn lacks(&self, image: &StoredImage) -> bool {
        image
            .layers
            .iter()
            .any(|layer| self.0.get(&layer.id).is_some_and(|(bytes, holders)| *bytes > 0 && *holders == 0))
    }

    fn bytes(&self) -> u64 {
        self.0
            .values()
            .filter(|(_, holders)| *holders > 0)
            .map(|(bytes, _)| *bytes)
            .fold(0, u64::saturating_add)
    }
}

/// The size of all layers of these images, each counted once.
pub(super) fn size<'a>(images: impl Iterator<Item = &'a StoredImage>) -> Bytes {
    Bytes(Layers::of(images).bytes())
}

/// The bytes of the layers that only one image has, by image.
pub(super) fn alone<'a>(images: impl Iterator<Item = &'a StoredImage> + Clone) -> BTreeMap<&'a str, Bytes> {
    let Layers(layers) = Layers::of(images.clone());
    let own = |image: &StoredImage| {
        let own = image
            .layers
            .iter()
            .filter(|layer| layers.get(&layer.id).is_some_and(|(_, holders)| *holders == 1));
        own.map(|layer| layer.bytes.0).fold(0, u64::saturating_add)
    };
    images.map(|image| (image.id.as_str(), Bytes(own(image)))).collect()
}

/// Chooses images until the rest fits `budget`.
///
/// * `all`: the images of the store.
/// * `order`: those that may go, the least valuable first.
/// * `measured`: the store's own figure of its size; without it the layers are added up.
///
/// Images go in this order. One stays if all of its layers belong to images that stay: its removal
/// frees nothing.
#[must_use]
pub fn plan(all: &[&StoredImage], order: &[&StoredImage], measured: Option<Bytes>, budget: Bytes) -> Plan {
    let mut layers = Layers::of(all.iter().copied());
    let before = measured.map_or_else(|| layers.bytes(), |bytes| bytes.0);
    let over = before.saturating_sub(budget.0);
    let mut freed: u64 = 0;
    let mut chosen: Vec<&StoredImage> = Vec::new();
    for image in order {
        if freed >= over {
            break;
        }
        freed = freed.saturating_add(layers.remove(image));
        chosen.push(image);
    }
    // An image whose layers all belong to images that stay is of no use as a victim. The latest one stays first.
    let mut kept = Vec::new();
    for image in chosen.iter().rev() {
        if !layers.lacks(image) {
            layers.add(image);
            kept.push(image.id.as_str());
        }
    }
    let mut layers = Layers::of(all.iter().copied());
    let victims = chosen.into_iter().filter(|image| !kept.contains(&image.id.as_str()));
    let victims: Vec<Victim> =
        victims.map(|image| Victim { id: image.id.clone(), frees: Bytes(layers.remove(image)) }).collect();
    let after = before.saturating_sub(freed);
    Plan { bytes: Bytes(before), victims, after: Bytes(after), short: Bytes(after.saturating_sub(budget.0)) }
}
