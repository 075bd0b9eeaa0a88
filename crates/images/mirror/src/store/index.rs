//! Manifests that are here, read, with an index of the blobs that they name.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Deref,
    sync::Arc,
};

use crate::{
    Digest,
    manifest::{Manifest, Part},
};

/// The most that manifests may weigh together: some 600 bytes of memory for each unit.
pub(super) const MAX_WEIGHT: usize = 32_768;
/// The weight of a manifest beside its parts, which weigh 1 each.
const OWN_WEIGHT: usize = 4;

/// The manifests of the store by digest.
///
/// Invariant: `naming` has each part of each manifest in `read`, and no other.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    read: HashMap<Digest, Arc<Manifest>>,
    /// The manifests that name a blob.
    naming: HashMap<Digest, HashSet<Digest>>,
    weight: usize,
}

impl Deref for Manifests {
    type Target = HashMap<Digest, Arc<Manifest>>;

    fn deref(&self) -> &HashMap<Digest, Arc<Manifest>> {
        &self.read
    }
}

fn weight(manifest: &Manifest) -> usize {
    OWN_WEIGHT + manifest.parts().count()
}

impl Manifests {
    pub(super) fn insert(&mut self, digest: Digest, manifest: Arc<Manifest>) {
        self.remove(&digest);
        for part in manifest.parts() {
            self.naming.entry(part.digest.clone()).or_default().insert(digest.clone());
        }
        self.weight += weight(&manifest);
        self.read.insert(digest, manifest);
    }

    pub(super) fn remove(&mut self, digest: &Digest) {
        let Some(manifest) = self.read.remove(digest) else { return };
        self.weight -= weight(&manifest);
        for part in manifest.parts() {
            if let Some(naming) = self.naming.get_mut(&part.digest) {
                naming.remove(digest);
                if naming.is_empty() {
                    self.naming.remove(&part.digest);
                }
            }
        }
    }

    /// The manifests that name a blob.
    pub(super) fn naming(&self, part: &Digest) -> impl Iterator<Item = &Digest> {
        self.naming.get(part).into_iter().flatten()
    }

    /// The weight of all manifests, at most [`MAX_WEIGHT`] after each change of the store.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// A blob as one of these manifests names it.
    ///
    /// The search takes the shorter way: along the manifests that name the blob, or along the given ones.
    pub(super) fn part_in<T>(&self, part: &Digest, manifests: &BTreeMap<Digest, T>) -> Option<Part> {
        let naming = self.naming.get(part)?;
        let of = if naming.len() < manifests.len() {
            naming.iter().find(|manifest| manifests.contains_key(*manifest))
        } else {
            manifests.keys().find(|manifest| naming.contains(*manifest))
        };
        self.read.get(of?)?.parts().find(|one| one.digest == *part).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Algorithm;

    fn digest(n: usize) -> Digest {
        Digest::of(Algorithm::Sha256, &n.to_le_bytes())
    }

    #[test]
    fn index_of_parts_follows_what_is_inserted_and_removed() {
        let mut manifests = Manifests::default();
        let part = |n| Part { digest: digest(n), size: n as u64 };
        for n in 0..50 {
            let layers = vec![part(1000), part(n), part(n)];
            manifests.insert(digest(2000 + n), Arc::new(Manifest::Image { config: part(1001), layers }));
        }
        assert_eq!((manifests.len(), manifests.weight()), (50, 50 * (4 + OWN_WEIGHT)));
        let repo =
            |of: std::ops::Range<usize>| of.map(|n| (digest(2000 + n), ())).collect::<BTreeMap<_, _>>();
        assert_eq!(manifests.part_in(&digest(7), &repo(0..50)), Some(part(7)));
        assert_eq!(manifests.part_in(&digest(7), &repo(8..50)), None);
        assert_eq!(manifests.part_in(&digest(1000), &repo(3..4)), Some(part(1000)));
        assert_eq!(manifests.part_in(&digest(9999), &repo(0..50)), None);
        manifests.remove(&digest(2007));
        assert_eq!(manifests.part_in(&digest(7), &repo(0..50)), None);
        for n in 0..50 {
            manifests.remove(&digest(2000 + n));
        }
        assert_eq!((manifests.weight(), manifests.naming.len()), (0, 0));
    }
}
