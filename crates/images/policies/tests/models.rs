//! Each policy throws out the same blobs in the same order as a naive one that looks at all of them,
//! whatever is protected, and whatever others remove.

mod common;

use common::{blob, second};
use proptest::prelude::*;
use weir_cache::{Blob, BlobId, EvictionPolicy, ImageId, PolicyKind, Protection};
use weir_units::Bytes;

/// An event of a cache.
#[derive(Debug, Clone)]
enum Step {
    /// Asked for; inserted if it is not there.
    Ask(u64),
    /// Deleted from outside.
    Lose(u64),
    /// Room is made while one blob in `protected` (a number's last bits) is protected.
    Evict { need: u64, protected: u64 },
    /// An image is deployed: all its blobs are asked for, then it is.
    Deploy(u64),
}

fn steps(images: bool) -> impl Strategy<Value = Vec<Step>> {
    let ids = 0u64..24;
    let deploy = if images { 4 } else { 0 };
    let step = prop_oneof![
        6 => ids.clone().prop_map(Step::Ask),
        1 => ids.prop_map(Step::Lose),
        3 => (1u64..3000, 1u64..6).prop_map(|(need, protected)| Step::Evict { need, protected }),
        deploy => (0u64..12).prop_map(Step::Deploy),
    ];
    prop::collection::vec(step, 1..200)
}

/// Every size from 40 to 1000, the same for the same blob.
fn known(id: u64) -> Blob {
    blob(id, 40 + id * 37 % 24 * 40)
}

/// Layers of image `id`: overlapping chains, with one that is named twice.
fn layers(id: u64) -> Vec<BlobId> {
    [id % 3, 3 + id % 4, 7 + id % 5, 12 + id, 12 + id].map(BlobId).to_vec()
}

struct Every(u64);

impl Protection for Every {
    fn blob(&self, id: BlobId) -> bool {
        id.0 % 6 + 1 == self.0
    }
    fn image(&self, id: ImageId) -> bool {
        id.0 % 6 + 1 == self.0
    }
}

/// A policy as its definition reads.
trait Naive {
    fn ask(&mut self, id: u64) -> bool;
    fn lose(&mut self, id: u64) -> bool;
    fn deploy(&mut self, _id: u64) {}
    fn evict(&mut self, need: u64, protection: &Every) -> Vec<u64>;
}

fn agree(kind: PolicyKind, steps: &[Step], mut naive: impl Naive) -> Result<(), TestCaseError> {
    let mut policy: Box<dyn EvictionPolicy> = kind.build(Bytes(4000));
    let mut stored: Vec<u64> = Vec::new();
    for (at, step) in (0..).zip(steps) {
        let now = second(at);
        let mut ask = |policy: &mut dyn EvictionPolicy, id: u64| {
            let hit = policy.hit(BlobId(id), now);
            prop_assert_eq!(hit, naive.ask(id), "step {}: whether {} is there", at, id);
            if !hit {
                policy.insert(known(id), now);
                stored.push(id);
            }
            Ok(())
        };
        match *step {
            Step::Ask(id) => ask(&mut *policy, id)?,
            Step::Deploy(id) => {
                for layer in layers(id) {
                    ask(&mut *policy, layer.0)?;
                }
                policy.deploy(ImageId(id), &layers(id), now);
                naive.deploy(id);
            }
            Step::Lose(id) => {
                prop_assert_eq!(policy.remove(BlobId(id)), naive.lose(id));
                stored.retain(|other| *other != id);
            }
            Step::Evict { need, protected } => {
                let mut victims = Vec::new();
                let freed = policy.evict(Bytes(need), &Every(protected), &mut victims);
                let victims: Vec<u64> = victims.iter().map(|id| id.0).collect();
                prop_assert_eq!(&victims, &naive.evict(need, &Every(protected)), "step {}", at);
                prop_assert_eq!(freed.0, victims.iter().map(|id| known(*id).bytes.0).sum::<u64>());
                stored.retain(|id| !victims.contains(id));
            }
        }
        prop_assert_eq!(policy.bytes().0, stored.iter().map(|id| known(*id).bytes.0).sum::<u64>());
        prop_assert_eq!(policy.len(), stored.len());
        prop_assert!((0..24).all(|id| policy.contains(BlobId(id)) == stored.contains(&id)));
    }
    Ok(())
}

/// A list, oldest first.
#[derive(Default)]
struct NaiveLru(Vec<u64>);

impl Naive for NaiveLru {
    fn ask(&mut self, id: u64) -> bool {
        let there = self.lose(id);
        self.0.push(id);
        there
    }
    fn lose(&mut self, id: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|other| *other != id);
        self.0.len() < before
    }
    fn evict(&mut self, need: u64, protection: &Every) -> Vec<u64> {
        let (mut victims, mut freed) = (Vec::new(), 0);
        while freed < need {
            let Some(id) = self.0.iter().copied().find(|id| !protection.blob(BlobId(*id))) else { break };
            self.lose(id);
            victims.push(id);
            freed += known(id).bytes.0;
        }
        victims
    }
}

/// H of everybody, searched through each time.
struct NaiveGreedy {
    frequency: bool,
    fetch: bool,
    /// Id, H, when, uses.
    all: Vec<(u64, f64, usize, f64)>,
    inflation: f64,
    step: usize,
}

impl NaiveGreedy {
    fn new(frequency: bool, fetch: bool) -> NaiveGreedy {
        NaiveGreedy { frequency, fetch, all: Vec::new(), inflation: 0.0, step: 0 }
    }
}

impl Naive for NaiveGreedy {
    fn ask(&mut self, id: u64) -> bool {
        let before = self.all.iter().find(|entry| entry.0 == id).map_or(0.0, |entry| entry.3);
        let there = self.lose(id);
        self.step += 1;
        let blob = known(id);
        let cost = if self.fetch { blob.fetch.as_secs_f64() } else { 1.0 };
        let uses = before + 1.0;
        let weight = if self.frequency { uses } else { 1.0 };
        let h = self.inflation + weight * (cost * 1e6) / blob.bytes.0 as f64;
        self.all.push((id, h, self.step, uses));
        there
    }
    fn lose(&mut self, id: u64) -> bool {
        let before = self.all.len();
        self.all.retain(|entry| entry.0 != id);
        self.all.len() < before
    }
    fn evict(&mut self, need: u64, protection: &Every) -> Vec<u64> {
        let (mut victims, mut freed) = (Vec::new(), 0);
        while freed < need {
            let open = self.all.iter().filter(|entry| !protection.blob(BlobId(entry.0)));
            let Some(&(id, h, ..)) = open.min_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2))) else {
                break;
            };
            self.inflation = self.inflation.max(h);
            self.lose(id);
            victims.push(id);
            freed += known(id).bytes.0;
        }
        victims
    }
}

/// Three lists, oldest first, as the paper's Algorithm 1 of S3-FIFO has them.
#[derive(Default)]
struct NaiveS3 {
    small: Vec<(u64, u8)>,
    main: Vec<(u64, u8)>,
    ghost: Vec<u64>,
}

fn total<'a>(ids: impl IntoIterator<Item = &'a u64>) -> u64 {
    ids.into_iter().map(|id| known(*id).bytes.0).sum()
}

impl NaiveS3 {
    fn victim(&mut self, protection: &Every) -> Option<u64> {
        let open = |list: &[(u64, u8)]| list.iter().position(|(id, _)| !protection.blob(BlobId(*id)));
        // The order of queues is looked at once an eviction, and again only if that queue was
        // empty.
        let over = total(self.main.iter().map(|(id, _)| id)) > 3600;
        let small_first = !over && open(&self.small).is_some();
        for small in [small_first, !small_first] {
            let list = |this: &mut NaiveS3| if small { this.small.clone() } else { this.main.clone() };
            while let Some(at) = open(&list(self)) {
                if !small {
                    let (id, uses) = self.main.remove(at);
                    if uses == 0 {
                        return Some(id);
                    }
                    self.main.push((id, uses - 1));
                    continue;
                }
                let (id, uses) = self.small.remove(at);
                if uses >= 2 {
                    self.main.push((id, 0));
                    continue;
                }
                self.ghost.push(id);
                while total(&self.ghost) > 3600 {
                    self.ghost.remove(0);
                }
                return Some(id);
            }
        }
        None
    }
}

impl Naive for NaiveS3 {
    fn ask(&mut self, id: u64) -> bool {
        if let Some(entry) = self.small.iter_mut().chain(&mut self.main).find(|entry| entry.0 == id) {
            entry.1 = (entry.1 + 1).min(3);
            return true;
        }
        if let Some(at) = self.ghost.iter().position(|other| *other == id) {
            self.ghost.remove(at);
            self.main.push((id, 0));
        } else {
            self.small.push((id, 0));
        }
        false
    }
    fn lose(&mut self, id: u64) -> bool {
        let before = self.small.len() + self.main.len();
        self.small.retain(|entry| entry.0 != id);
        self.main.retain(|entry| entry.0 != id);
        self.small.len() + self.main.len() < before
    }
    fn evict(&mut self, need: u64, protection: &Every) -> Vec<u64> {
        let (mut victims, mut freed) = (Vec::new(), 0);
        while freed < need {
            let Some(id) = self.victim(protection) else { break };
            victims.push(id);
            freed += known(id).bytes.0;
        }
        victims
    }
}

/// Images and single blobs in one list, oldest first; who refers to a blob is counted each time.
#[derive(Default)]
struct NaiveImages {
    units: Vec<Result<u64, u64>>,
    stored: Vec<u64>,
}

impl NaiveImages {
    fn is_referred(&self, id: u64) -> bool {
        self.units.iter().any(|unit| matches!(unit, Ok(image) if layers(*image).contains(&BlobId(id))))
    }
}

impl Naive for NaiveImages {
    fn ask(&mut self, id: u64) -> bool {
        let there = self.stored.contains(&id);
        if !there {
            self.stored.push(id);
        }
        if !self.is_referred(id) {
            self.units.retain(|unit| *unit != Err(id));
            self.units.push(Err(id));
        }
        there
    }
    fn lose(&mut self, id: u64) -> bool {
        let before = self.stored.len();
        self.stored.retain(|other| *other != id);
        self.units.retain(|unit| *unit != Err(id));
        self.stored.len() < before
    }
    fn deploy(&mut self, id: u64) {
        self.units.retain(|unit| match unit {
            Ok(image) => *image != id,
            Err(single) => !layers(id).contains(&BlobId(*single)),
        });
        self.units.push(Ok(id));
    }
    fn evict(&mut self, need: u64, protection: &Every) -> Vec<u64> {
        let (mut victims, mut left, mut freed) = (Vec::new(), Vec::new(), 0);
        let mut at = 0;
        while freed < need && at < self.units.len() {
            let gone = match self.units[at] {
                Ok(image) if protection.image(ImageId(image)) => None,
                Err(single) if protection.blob(BlobId(single)) => None,
                Ok(image) => Some(layers(image)),
                Err(single) => Some(vec![BlobId(single)]),
            };
            let Some(mut gone) = gone else {
                at += 1;
                continue;
            };
            let _ = self.units.remove(at);
            gone.dedup();
            for id in gone {
                if self.is_referred(id.0) || !self.stored.contains(&id.0) {
                    continue;
                }
                if protection.blob(id) {
                    left.push(Err(id.0));
                } else {
                    freed += known(id.0).bytes.0;
                    victims.push(id.0);
                    self.lose(id.0);
                }
            }
        }
        self.units.splice(0..0, left);
        victims
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn lru_evicts_as_a_list_in_order_of_last_use(steps in steps(false)) {
        agree(PolicyKind::Lru, &steps, NaiveLru::default())?;
    }

    #[test]
    fn gds_evicts_as_a_search_for_the_smallest_h(steps in steps(false)) {
        agree(PolicyKind::Gds, &steps, NaiveGreedy::new(false, true))?;
    }

    #[test]
    fn gdsf_evicts_as_a_search_for_the_smallest_h(steps in steps(false)) {
        agree(PolicyKind::Gdsf, &steps, NaiveGreedy::new(true, true))?;
        agree(PolicyKind::GdsfCount, &steps, NaiveGreedy::new(true, false))?;
    }

    #[test]
    fn s3_fifo_evicts_as_three_lists(steps in steps(false)) {
        agree(PolicyKind::S3Fifo, &steps, NaiveS3::default())?;
    }

    #[test]
    fn algorithm_1_evicts_as_a_list_of_images_that_counts_references_anew(steps in steps(true)) {
        agree(PolicyKind::ImageLru, &steps, NaiveImages::default())?;
    }
}
