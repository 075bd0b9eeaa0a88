//! Replays a trace on a site of some nodes, in virtual time.

mod bound;
mod closed;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes, Instant};

pub use bound::least_fetch_s;
pub use closed::simulate_closed;

use crate::{Blob, BlobId, Cache, FetchModel, ImageId, PolicyKind, Protection, trace::Trace};

/// The owner of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// Each node for itself.
    PerNode,
    /// All nodes together.
    Shared,
}

impl Sharing {
    /// As written and printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sharing::PerNode => "per-node",
            Sharing::Shared => "shared",
        }
    }
}

/// How long a deployment takes.
///
/// start + each missing blob's fetch, one after the other as Docker on small nodes does; and with a
/// shared cache what that takes in addition: the paper's 0.24 s, whatever the size, as a container
/// starts before all of its image is read; or the whole image over the LAN, from another node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeModel {
    /// With everything in place: the paper's 0.99 s.
    pub start: Duration,
    /// From the registry.
    pub fetch: FetchModel,
    /// The delay of a shared cache: the paper's hit takes 1.23 s instead of 0.99.
    pub shared: Duration,
    /// Between the nodes, for the bytes of a shared cache that are there; none: not counted.
    pub lan: Option<BitRate>,
}

impl TimeModel {
    /// Table III of the paper.
    pub const PAPER: TimeModel = TimeModel {
        start: Duration::from_millis(990),
        fetch: FetchModel::PAPER,
        shared: Duration::from_millis(240),
        lan: None,
    };

    /// From everything in place to a started container.
    fn ready(self, sharing: Sharing, hit_bytes: u64) -> Duration {
        let lan = |rate| FetchModel { each: Duration::ZERO, rate }.time(Bytes(hit_bytes));
        match sharing {
            Sharing::PerNode => self.start,
            // A fetched blob passes by the LAN while it comes, and that is faster.
            Sharing::Shared => self.start + self.shared + self.lan.map_or(Duration::ZERO, lan),
        }
    }
}

/// A site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// How many nodes; deployments go to them in turn.
    pub nodes: usize,
    /// The owner of a cache.
    pub sharing: Sharing,
    /// The size of each cache: a node's, or the site's.
    pub budget: Bytes,
    /// Who leaves.
    pub policy: PolicyKind,
    /// How long it takes.
    pub time: TimeModel,
}

/// The results.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Containers started.
    pub deployments: u64,
    /// Of these, with the whole image there.
    pub image_hits: u64,
    /// Blobs asked for.
    pub blobs: u64,
    /// Of these, stored.
    pub blob_hits: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, stored.
    pub byte_hits: u64,
    /// Time that the missing blobs take to fetch, s.
    pub fetch_s: f64,
    /// Mean time of a deployment, s.
    pub mean_s: f64,
    /// Its standard deviation, s.
    pub std_s: f64,
    /// Blobs thrown out.
    pub evictions: u64,
    /// The last choice of [`PolicyKind::Auto`], in the first cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<PolicyKind>,
    /// Consecutive deployments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bins: Vec<Bin>,
}

/// Some consecutive deployments.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Bin {
    /// The part of them that found the whole image.
    pub hit_ratio: f64,
    /// Mean time, s.
    pub mean_s: f64,
    /// Standard deviation, s.
    pub std_s: f64,
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Outcome {
    /// Deployments that found the whole image, as a fraction.
    #[must_use]
    pub fn image_hit_ratio(&self) -> f64 {
        ratio(self.image_hits, self.deployments)
    }

    /// Blobs that were stored, as a fraction of those asked for.
    #[must_use]
    pub fn blob_hit_ratio(&self) -> f64 {
        ratio(self.blob_hits, self.blobs)
    }

    /// The same by bytes.
    #[must_use]
    pub fn byte_hit_ratio(&self) -> f64 {
        ratio(self.byte_hits, self.bytes)
    }

    /// Mean of the bins from `from` on: the stable part of a run.
    #[must_use]
    pub fn stable(&self, from: usize) -> Bin {
        let bins = self.bins.get(from..).unwrap_or_default();
        let mean = |of: fn(&Bin) -> f64| bins.iter().map(of).sum::<f64>() / bins.len().max(1) as f64;
        Bin { hit_ratio: mean(|b| b.hit_ratio), mean_s: mean(|b| b.mean_s), std_s: mean(|b| b.std_s) }
    }
}

/// Sum, sum of squares, count.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, x: f64) {
        self.count += 1.0;
        self.sum += x;
        self.squares += x * x;
    }

    fn mean(self) -> f64 {
        if self.count > 0.0 { self.sum / self.count } else { 0.0 }
    }

    fn std(self) -> f64 {
        if self.count > 0.0 { (self.squares / self.count - self.mean().powi(2)).max(0.0).sqrt() } else { 0.0 }
    }
}

/// The blobs that must stay while an image is deployed: its own.
struct Deploying<'a> {
    image: ImageId,
    /// In which deployment each blob was last asked for.
    asked: &'a [u32],
    now: u32,
}

impl Protection for Deploying<'_> {
    fn blob(&self, id: BlobId) -> bool {
        self.asked[id.0 as usize] == self.now
    }

    fn image(&self, id: ImageId) -> bool {
        id == self.image
    }
}

/// The fate of an image's blobs.
#[derive(Debug, Clone, Copy, Default)]
struct ImageAccess {
    /// Bytes that were there,
    hit: u64,
    /// and that were not.
    missing: u64,
    /// The time to fetch those, one after the other.
    fetch: Duration,
}

/// A replay that goes on as long as it is told to.
#[derive(Debug)]
pub struct Replay<'a> {
    trace: &'a Trace,
    setup: Setup,
    caches: Vec<Cache>,
    fetch: Vec<Duration>,
    asked: Vec<u32>,
    missing: Vec<u32>,
    ids: Vec<BlobId>,
    victims: Vec<BlobId>,
    next: usize,
    outcome: Outcome,
    times: Moments,
    bin: usize,
    bin_times: Moments,
    bin_hits: u64,
}

impl<'a> Replay<'a> {
    /// Before the first deployment; a bin is made of this many, none if zero.
    ///
    /// # Panics
    /// Without nodes.
    #[must_use]
    pub fn new(trace: &'a Trace, setup: Setup, bin: usize) -> Replay<'a> {
        assert!(setup.nodes > 0, "a site has nodes");
        let caches = match setup.sharing {
            Sharing::PerNode => setup.nodes,
            Sharing::Shared => 1,
        };
        Replay {
            trace,
            setup,
            caches: (0..caches).map(|_| Cache::new(setup.policy, setup.budget)).collect(),
            fetch: trace.blobs.iter().map(|bytes| setup.time.fetch.time(*bytes)).collect(),
            asked: vec![0; trace.blobs.len()],
            missing: Vec::new(),
            ids: Vec::new(),
            victims: Vec::new(),
            next: 0,
            outcome: Outcome::default(),
            times: Moments::default(),
            bin,
            bin_times: Moments::default(),
            bin_hits: 0,
        }
    }

    /// Goes on for some deployments. Whether there are more.
    pub fn advance(&mut self, deployments: usize) -> bool {
        let end = (self.next + deployments).min(self.trace.deployments.len());
        for index in self.next..end {
            self.deploy(index);
        }
        self.next = end;
        end < self.trace.deployments.len()
    }

    fn deploy(&mut self, index: usize) {
        let access = self.access(index, Instant(self.trace.deployments[index].at));
        let ready = self.setup.time.ready(self.setup.sharing, access.hit);
        self.account(access.missing == 0, (access.fetch + ready).as_secs_f64());
    }

    /// The blobs that the last deployment evicted, in that order.
    #[must_use]
    pub fn victims(&self) -> &[BlobId] {
        &self.victims
    }

    /// The blobs of a deployment: what is there is used, what is not is fetched and stored; which
    /// that are is left in `missing`.
    fn access(&mut self, index: usize, now: Instant) -> ImageAccess {
        let trace = self.trace;
        let deployment = trace.deployments[index];
        let blobs = &*trace.images[deployment.image as usize];
        let image = ImageId(u64::from(deployment.image));
        let stamp = index as u32 + 1;
        let which = index % self.setup.nodes % self.caches.len();
        let cache = &mut self.caches[which];

        let mut access = ImageAccess::default();
        let mut need = 0;
        self.missing.clear();
        self.ids.clear();
        self.victims.clear();
        for &blob in blobs {
            let (id, bytes) = (BlobId(u64::from(blob)), trace.blobs[blob as usize]);
            self.asked[blob as usize] = stamp;
            self.ids.push(id);
            if cache.hit(id, now) {
                access.hit += bytes.0;
            } else {
                access.missing += bytes.0;
                access.fetch += self.fetch[blob as usize];
                need += if cache.is_too_big(bytes) { 0 } else { bytes.0 };
                self.missing.push(blob);
            }
        }
        // Room for the whole image before its download begins, as Algorithm 1 has it.
        if need > 0 {
            let protection = Deploying { image, asked: &self.asked, now: stamp };
            cache.make_room(Bytes(need), &protection);
            self.outcome.evictions += cache.victims().len() as u64;
            self.victims.extend_from_slice(cache.victims());
        }
        for &blob in &self.missing {
            let (id, fetch) = (BlobId(u64::from(blob)), self.fetch[blob as usize]);
            cache.insert(Blob { id, bytes: trace.blobs[blob as usize], fetch, uses: 1 }, now);
        }
        cache.deploy(image, &self.ids, now);
        self.outcome.blobs += blobs.len() as u64;
        self.outcome.blob_hits += (blobs.len() - self.missing.len()) as u64;
        self.outcome.bytes += access.hit + access.missing;
        self.outcome.byte_hits += access.hit;
        self.outcome.fetch_s += access.fetch.as_secs_f64();
        access
    }

    /// A container started, after this number of seconds.
    fn account(&mut self, hit: bool, time: f64) {
        self.outcome.deployments += 1;
        self.outcome.image_hits += u64::from(hit);
        self.times.add(time);
        if self.bin > 0 {
            self.bin_times.add(time);
            self.bin_hits += u64::from(hit);
            if self.outcome.deployments.is_multiple_of(self.bin as u64) {
                self.close_bin();
            }
        }
    }

    fn close_bin(&mut self) {
        let times = std::mem::take(&mut self.bin_times);
        let hits = std::mem::take(&mut self.bin_hits);
        let hit_ratio = hits as f64 / times.count;
        self.outcome.bins.push(Bin { hit_ratio, mean_s: times.mean(), std_s: times.std() });
    }

    /// The results so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome {
            mean_s: self.times.mean(),
            std_s: self.times.std(),
            chosen: self.caches[0].policy().chosen(),
            ..self.outcome.clone()
        }
    }
}

/// All of it at once.
///
/// # Panics
/// Without nodes.
#[must_use]
pub fn simulate(trace: &Trace, setup: Setup, bin: usize) -> Outcome {
    let mut replay = Replay::new(trace, setup, bin);
    replay.advance(usize::MAX - trace.deployments.len());
    replay.outcome()
}
