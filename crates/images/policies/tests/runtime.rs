//! The images that a runtime's store loses: as a naive definition says, and never one that has to stay.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;
use weir_cache::{
    BlobId, PolicyKind,
    runtime::{Kept, Layer, Notes, RuntimeImages, RuntimeSettings, StoredImage},
};
use weir_units::{Bytes, Instant};

const KEEP_NEW_S: u64 = 60;
const BUDGET: u64 = 2500;

/// An event of a runtime.
#[derive(Debug, Clone)]
enum Step {
    Pull(u64),
    /// A container is made.
    Start(u64),
    /// All containers of an image go.
    End(u64),
    Pin(u64),
    /// Another program removes an image.
    Lose(u64),
    /// Time passes, s.
    Wait(u64),
    /// The store is held to its budget.
    Hold,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let image = || 0u64..14;
    let step = prop_oneof![
        6 => image().prop_map(Step::Pull),
        4 => image().prop_map(Step::Start),
        4 => image().prop_map(Step::End),
        1 => image().prop_map(Step::Pin),
        1 => image().prop_map(Step::Lose),
        4 => (1u64..100).prop_map(Step::Wait),
        4 => Just(Step::Hold),
    ];
    prop::collection::vec(step, 1..120)
}

/// Bases and middles that images share. Images 12 and 13 have the layers of 0, and 13 none of its own.
fn layers(image: u64) -> Vec<(u64, u64)> {
    let of =
        |n: u64| vec![(n % 3, 300 + n % 3 * 70), (10 + n % 6, n % 6 * 110), (100 + n, 40 + n * 37 % 600)];
    match image {
        12 => [of(0), vec![(200, 0)]].concat(),
        13 => of(0),
        n => of(n),
    }
}

fn id(image: u64) -> String {
    format!("sha256:{image}")
}

fn at(s: u64) -> Instant {
    Instant(Duration::from_secs(s))
}

/// An image as the naive model knows it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct One {
    pulled: u64,
    used: u64,
    containers: u32,
    pinned: bool,
    /// Counts touches: the order of LRU.
    touched: u64,
}

#[derive(Debug, Default)]
struct World {
    images: BTreeMap<u64, One>,
    now: u64,
    touches: u64,
}

impl World {
    fn bytes(images: &BTreeSet<u64>) -> u64 {
        let all: BTreeMap<u64, u64> = images.iter().flat_map(|image| layers(*image)).collect();
        all.values().sum()
    }

    fn may_go(&self, one: &One) -> bool {
        let is_new = self.now - one.pulled < KEEP_NEW_S || self.now - one.used < KEEP_NEW_S;
        one.containers == 0 && !one.pinned && !is_new
    }

    fn listed(&self) -> Vec<StoredImage> {
        let image = |(number, one): (&u64, &One)| StoredImage {
            id: id(*number),
            layers: layers(*number)
                .iter()
                .map(|(id, bytes)| Layer { id: BlobId(*id), bytes: Bytes(*bytes) })
                .collect(),
            in_use: one.containers > 0,
            pinned: one.pinned,
            refused: false,
            pulled: None,
        };
        self.images.iter().map(image).collect()
    }

    /// The definition: the one that was not used for longest goes, unless its layers all stay; then those
    /// come back that cost nothing.
    fn lru_victims(&self) -> Vec<u64> {
        let mut order: Vec<(u64, u64)> = self
            .images
            .iter()
            .filter(|(_, one)| self.may_go(one))
            .map(|(n, one)| (one.touched, *n))
            .collect();
        order.sort_unstable();
        let mut here: BTreeSet<u64> = self.images.keys().copied().collect();
        let mut least = here.clone();
        least.retain(|image| order.iter().all(|(_, n)| n != image));
        let floor = World::bytes(&least);
        let mut victims = Vec::new();
        for (_, n) in order {
            if World::bytes(&here) <= BUDGET {
                break;
            }
            least.insert(n);
            let is_of_use = World::bytes(&least) > floor;
            least.remove(&n);
            if is_of_use {
                here.remove(&n);
                victims.push(n);
            }
        }
        for n in victims.clone().into_iter().rev() {
            let without = World::bytes(&here);
            here.insert(n);
            if World::bytes(&here) == without {
                victims.retain(|victim| *victim != n);
            } else {
                here.remove(&n);
            }
        }
        victims
    }

    fn touch(&mut self, n: u64) {
        self.touches += 1;
        if let Some(one) = self.images.get_mut(&n) {
            one.touched = self.touches;
        }
    }
}

/// Runs the steps on both; checks what holds for each policy, and the victims of LRU one by one.
fn agree(kind: PolicyKind, steps: &[Step]) -> Result<(), TestCaseError> {
    let settings =
        RuntimeSettings { policy: kind, budget: Bytes(BUDGET), keep_new: Duration::from_secs(KEEP_NEW_S) };
    let mut world = World { now: 1000, ..World::default() };
    let mut images = RuntimeImages::new(settings, Notes::default());
    images.look(Vec::new(), at(world.now));
    for (n, step) in steps.iter().enumerate() {
        match *step {
            Step::Pull(n) => {
                let now = world.now;
                if let Some(one) = world.images.get_mut(&n) {
                    (one.pulled, one.used) = (now, one.used.max(now));
                    prop_assert!(images.pulled(&id(n), at(now)));
                } else {
                    let one = One { pulled: now, used: now, containers: 0, pinned: false, touched: 0 };
                    world.images.insert(n, one);
                }
                world.touch(n);
            }
            Step::Start(n) if world.images.contains_key(&n) => {
                let now = world.now;
                world.images.get_mut(&n).unwrap().containers += 1;
                world.images.get_mut(&n).unwrap().used = now;
                prop_assert!(images.used(&id(n), at(now)));
                world.touch(n);
            }
            Step::End(n) if world.images.get(&n).is_some_and(|one| one.containers > 0) => {
                let now = world.now;
                let one = world.images.get_mut(&n).unwrap();
                (one.containers, one.used) = (0, now);
                world.touch(n);
            }
            Step::Pin(n) => {
                if let Some(one) = world.images.get_mut(&n) {
                    one.pinned = !one.pinned;
                }
            }
            // A runtime refuses the removal of an image in use.
            Step::Lose(n) if world.images.get(&n).is_some_and(|one| one.containers == 0) => {
                world.images.remove(&n);
            }
            Step::Start(_) | Step::End(_) | Step::Lose(_) => {}
            Step::Wait(s) => {
                world.now += s;
                let now = world.now;
                for one in world.images.values_mut().filter(|one| one.containers > 0) {
                    one.used = now;
                }
            }
            Step::Hold => {
                let plan = images.plan(at(world.now), None);
                let here: BTreeSet<u64> = world.images.keys().copied().collect();
                prop_assert_eq!(plan.bytes.0, World::bytes(&here), "step {}", n);
                let victims: Vec<u64> =
                    plan.victims.iter().map(|victim| victim.id["sha256:".len()..].parse().unwrap()).collect();
                if kind == PolicyKind::Lru || kind == PolicyKind::ImageLru {
                    prop_assert_eq!(&victims, &world.lru_victims(), "step {}", n);
                }
                let mut left = here.clone();
                for (victim, told) in victims.iter().zip(&plan.victims) {
                    prop_assert!(world.may_go(&world.images[victim]), "step {}: {} has to stay", n, victim);
                    let before = World::bytes(&left);
                    left.remove(victim);
                    prop_assert_eq!(told.frees.0, before - World::bytes(&left));
                }
                prop_assert_eq!(plan.after.0, World::bytes(&left));
                prop_assert_eq!(plan.short.0, plan.after.0.saturating_sub(BUDGET));
                if plan.short.0 > 0 {
                    // All that may go and would free a byte is gone.
                    for n in left.clone().iter().filter(|n| world.may_go(&world.images[n])) {
                        let before = World::bytes(&left);
                        left.remove(n);
                        prop_assert_eq!(World::bytes(&left), before);
                        left.insert(*n);
                    }
                } else {
                    // No victim could have stayed for free.
                    for victim in &victims {
                        let without = World::bytes(&left);
                        left.insert(*victim);
                        prop_assert!(World::bytes(&left) > without);
                        left.remove(victim);
                    }
                }
                for victim in victims {
                    images.removed(&id(victim));
                    world.images.remove(&victim);
                }
            }
        }
        images.look(world.listed(), at(world.now));
        for (n, one) in &world.images {
            let kept = images.kept(&id(*n), at(world.now));
            prop_assert_eq!(kept.is_empty(), world.may_go(one), "step {}: {} {:?} {:?}", n, n, one, kept);
            prop_assert_eq!(kept.contains(&Kept::InUse), one.containers > 0);
            prop_assert_eq!(kept.contains(&Kept::Pinned), one.pinned);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn victims_of_lru_are_those_of_the_naive_definition(steps in steps()) {
        agree(PolicyKind::Lru, &steps)?;
        agree(PolicyKind::ImageLru, &steps)?;
    }

    #[test]
    fn victims_of_any_policy_may_go_and_free_what_is_said(
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        steps in steps(),
    ) {
        agree(kind, &steps)?;
    }

    #[test]
    fn order_of_a_policy_is_what_it_evicts_and_changes_nothing(
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        asked in prop::collection::vec(0u64..12, 1..80),
    ) {
        let mut policy = kind.build(Bytes(4000));
        for (now, id) in (0..).zip(asked) {
            let blob = weir_cache::Blob {
                id: BlobId(id),
                bytes: Bytes(100 + id * 31),
                fetch: Duration::from_millis(300 + id * 7),
                uses: 1,
            };
            if !policy.hit(blob.id, at(now)) {
                policy.insert(blob, at(now));
            }
        }
        let order = policy.order();
        prop_assert_eq!(&policy.order(), &order);
        prop_assert_eq!(policy.len(), order.len());
        let mut victims = Vec::new();
        policy.evict(Bytes(u64::MAX), &weir_cache::Unprotected, &mut victims);
        prop_assert_eq!(victims, order);
    }
}

fn settings(policy: PolicyKind) -> RuntimeSettings {
    RuntimeSettings { policy, budget: Bytes(1000), keep_new: Duration::from_secs(60) }
}

fn image(name: &str, bytes: u64) -> StoredImage {
    let number = name.bytes().fold(0, |sum, byte| sum * 256 + u64::from(byte));
    let layers = vec![Layer { id: BlobId(number), bytes: Bytes(bytes) }];
    StoredImage {
        id: name.to_owned(),
        layers,
        in_use: false,
        pinned: false,
        refused: false,
        pulled: Some(at(0)),
    }
}

fn victims(images: &RuntimeImages, now: u64) -> Vec<String> {
    images.plan(at(now), None).victims.into_iter().map(|victim| victim.id).collect()
}

#[test]
fn order_and_counts_outlive_the_process() {
    for kind in PolicyKind::ALL {
        let list = || vec![image("a", 400), image("b", 400), image("c", 400), image("d", 400)];
        let mut first = RuntimeImages::new(settings(kind), Notes::default());
        first.look(list(), at(100));
        for (n, id) in ["a", "a", "c", "a", "c", "b"].iter().enumerate() {
            assert!(first.used(id, at(200 + n as u64)));
        }
        let before = victims(&first, 1000);
        assert_eq!(before[0], "d", "{kind}");
        let text = serde_json::to_string(&first.notes()).unwrap();
        let mut second = RuntimeImages::new(settings(kind), serde_json::from_str(&text).unwrap());
        second.look(list(), at(1000));
        assert_eq!(victims(&second, 1000), before, "{kind}");
        let uses: Vec<u32> = second.images().map(|(_, _, _, uses)| uses).collect();
        assert_eq!(uses, first.images().map(|(_, _, _, uses)| uses).collect::<Vec<_>>(), "{kind}");
    }
}

#[test]
fn image_whose_age_is_not_known_is_new_when_first_seen() {
    let mut images = RuntimeImages::new(settings(PolicyKind::Lru), Notes::default());
    images.look(vec![StoredImage { pulled: None, ..image("a", 2000) }, image("b", 2000)], at(1000));
    assert_eq!(images.kept("a", at(1059)), [Kept::Pulled(Duration::from_secs(59))]);
    assert_eq!(victims(&images, 1059), ["b"]);
    assert_eq!(victims(&images, 1060).len(), 2);
}

#[test]
fn clock_that_went_back_does_not_keep_an_image_for_longer() {
    let mut first = RuntimeImages::new(settings(PolicyKind::Lru), Notes::default());
    first.look(vec![image("a", 2000)], at(1_000_000));
    first.used("a", at(1_000_000));
    let mut second = RuntimeImages::new(settings(PolicyKind::Lru), first.notes());
    second.look(vec![image("a", 2000)], at(100));
    assert_eq!(victims(&second, 159), Vec::<String>::new());
    assert_eq!(victims(&second, 160), ["a"]);
}

#[test]
fn store_that_measures_more_than_its_layers_loses_more() {
    let mut images = RuntimeImages::new(settings(PolicyKind::Lru), Notes::default());
    images.look(vec![image("a", 300), image("b", 300), image("c", 300)], at(1000));
    assert_eq!(victims(&images, 1000), Vec::<String>::new());
    let plan = images.plan(at(1000), Some(Bytes(1400)));
    assert_eq!((plan.victims.len(), plan.after, plan.short), (2, Bytes(800), Bytes(0)));
    let plan = images.plan(at(1000), Some(Bytes(2500)));
    assert_eq!((plan.victims.len(), plan.after, plan.short), (3, Bytes(1600), Bytes(600)));
}
