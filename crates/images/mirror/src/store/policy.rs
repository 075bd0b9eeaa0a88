//! Chooses the blobs to evict when the store is full: weir-cache's policies, over digests.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::PoisonError,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use weir_cache::{Blob, BlobId, FetchModel, ImageId, PolicyKind, Protection};
use weir_units::{Bytes, Instant};

use super::{Inner, State, layout::Layout};
use crate::{
    Digest, Utc,
    manifest::{Manifest, Part},
};

/// As often what the policy knows is written down.
const NOTED: Duration = Duration::from_secs(300);

/// The order in which blobs leave. It only ranks: what may not go (in use, pinned, being sent) is the
/// store's to say.
#[derive(Debug)]
pub(super) struct Order {
    kind: PolicyKind,
    policy: Box<dyn weir_cache::EvictionPolicy>,
    /// Digests have unpredictable numbers, so that no one can make two with the same.
    numbers: RandomState,
    /// The digests of the numbers in use.
    digests: HashMap<u64, Digest>,
    noted: Utc,
}

/// The state that outlives a restart beside the files and their times: the file `order/NODE`.
/// S3-FIFO's memory of what it threw out does not, nor what the shadows of `auto` hold: they begin
/// with what is stored.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Noted {
    /// The policy that `auto` followed,
    #[serde(default)]
    chosen: Option<PolicyKind>,
    /// and what each had cost, s of fetch time.
    #[serde(default)]
    spent: Vec<(PolicyKind, f64)>,
    /// How often blobs were used, if more than once.
    uses: BTreeMap<Digest, u32>,
}

impl Noted {
    pub(super) fn uses(&self, digest: &Digest) -> u32 {
        self.uses.get(digest).copied().unwrap_or(1)
    }
}

fn instant(now: Utc) -> Instant {
    Instant(Duration::from_millis(now.unix_millis()))
}

impl Order {
    /// * `budget`: of the store, bytes.
    pub(super) fn new(kind: PolicyKind, budget: u64) -> Order {
        Order {
            kind,
            policy: kind.build(Bytes(budget)),
            numbers: RandomState::new(),
            digests: HashMap::new(),
            noted: Utc::MIN,
        }
    }

    fn blob(&mut self, digest: &Digest, size: u64, uses: u32) -> Blob {
        let number = self.numbers.hash_one(digest);
        self.digests.insert(number, digest.clone());
        // A model's time, not a measured one, which is that of a link that others use too. Only the
        // ratio of its parts counts: asking for a blob takes as long as 3 MB of it.
        let fetch = FetchModel::PAPER.time(Bytes(size));
        Blob { id: BlobId(number), bytes: Bytes(size), fetch, uses }
    }

    /// A blob is there now.
    pub(super) fn inserted(&mut self, digest: &Digest, size: u64, now: Utc) {
        let blob = self.blob(digest, size, 1);
        self.policy.insert(blob, instant(now));
    }

    /// A blob was there before this process, or stays after all; in the order of last use.
    pub(super) fn restored(&mut self, digest: &Digest, size: u64, uses: u32, now: Utc) {
        let blob = self.blob(digest, size, uses);
        self.policy.restore(blob, instant(now));
    }

    /// A blob that is there was used.
    pub(super) fn hit(&mut self, digest: &Digest, now: Utc) {
        self.policy.hit(BlobId(self.numbers.hash_one(digest)), instant(now));
    }

    /// A blob is there no longer.
    pub(super) fn removed(&mut self, digest: &Digest) {
        let number = self.numbers.hash_one(digest);
        self.policy.remove(BlobId(number));
        self.digests.remove(&number);
    }

    /// An image was asked for.
    pub(super) fn deployed<'a>(&mut self, image: &Digest, parts: impl Iterator<Item = &'a Part>, now: Utc) {
        let blobs: Vec<BlobId> = parts.map(|part| BlobId(self.numbers.hash_one(&part.digest))).collect();
        self.policy.deploy(ImageId(self.numbers.hash_one(image)), &blobs, instant(now));
    }

    /// The next to evict: a blob, or those of an image; none if all must stay. A blob that cannot
    /// go after all is [`Order::restored`].
    ///
    /// * `blob`: whether one has to stay,
    /// * `image`: and whether all of an image has to; none for one whose manifest is not here.
    pub(super) fn victims(
        &mut self,
        blob: &dyn Fn(&Digest) -> bool,
        image: &dyn Fn(Option<&Digest>) -> bool,
    ) -> Vec<Digest> {
        let held = Held { digests: &self.digests, blob, image };
        let mut victims = Vec::new();
        self.policy.evict(Bytes(1), &held, &mut victims);
        victims.iter().filter_map(|id| self.digests.get(&id.0).cloned()).collect()
    }

    /// The policy, and the one that it follows.
    pub(super) fn kinds(&self) -> (PolicyKind, PolicyKind) {
        (self.kind, self.policy.chosen().unwrap_or(self.kind))
    }

    /// Goes on where an earlier process was.
    pub(super) fn resume(&mut self, noted: &Noted) {
        if let Some(chosen) = noted.chosen {
            self.policy.resume(chosen, &noted.spent);
        }
    }
}

/// The blobs that have to stay, by number.
struct Held<'a> {
    digests: &'a HashMap<u64, Digest>,
    blob: &'a dyn Fn(&Digest) -> bool,
    image: &'a dyn Fn(Option<&Digest>) -> bool,
}

impl Protection for Held<'_> {
    fn blob(&self, id: BlobId) -> bool {
        self.digests.get(&id.0).is_some_and(self.blob)
    }

    fn image(&self, id: ImageId) -> bool {
        (self.image)(self.digests.get(&id.0))
    }
}

impl State {
    /// Tells the policy, once they are read, which blobs belong together: image by image, by last use.
    pub(super) fn deploy_all(&mut self) {
        let used = |part: &Part| self.blobs.get(&part.digest).map_or(Utc::MIN, |blob| blob.used_at);
        let mut images: Vec<_> = self
            .manifests
            .iter()
            .filter(|(_, manifest)| matches!(&***manifest, Manifest::Image { .. }))
            .map(|(digest, manifest)| (manifest.parts().map(used).max(), digest, manifest))
            .collect();
        images.sort_by_key(|(used_at, digest, _)| (*used_at, *digest));
        for (used_at, digest, manifest) in images {
            self.order.deployed(digest, manifest.parts(), used_at.unwrap_or_default());
        }
    }
}

impl Inner {
    /// The notes of an earlier process; empty if they cannot be read.
    pub(super) fn noted(layout: &Layout) -> Noted {
        let noted = std::fs::read(layout.dir("order").join(layout.node()));
        noted.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Writes down what the policy knows, if that is some time ago.
    pub(super) fn note(&self, state: &mut State, now: Utc) {
        if now.since(state.order.noted) >= NOTED || now < state.order.noted {
            state.order.noted = now;
            self.write_note(state);
        }
    }

    fn write_note(&self, state: &State) {
        let policy = &state.order.policy;
        let uses = state.blobs.iter().filter(|(_, blob)| blob.uses > 1);
        let uses = uses.map(|(digest, blob)| (digest.clone(), blob.uses)).collect();
        let noted = Noted { chosen: policy.chosen(), spent: policy.spent(), uses };
        let text = serde_json::to_vec(&noted).unwrap_or_default();
        let path = self.layout.dir("order").join(self.layout.node());
        if let Err(e) = self.layout.write_soon(&path, &text) {
            tracing::warn!("{}: after a restart all blobs count as used once", weir_units::chain(&e));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.write_note(&self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
