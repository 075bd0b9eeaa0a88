//! One link, several trees: each has some of the classes below the root, on a core of its own, and a
//! part of the root's rate that follows what its classes want.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use weir_units::{BitRate, Bytes, Instant};

use crate::{
    ClassError, ClassId, ClassSpec, Departure, EnqueueError, Htb, Limits, Next, Packet, Params, Stats,
};

/// The time between two divisions of the root's rate.
const PERIOD: Duration = Duration::from_millis(1);
/// The traffic without a queue may grow by this much, a fourth, before it is looked at again.
const GROWTH: u64 = 4;

/// The demand of a shard's classes on the root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Demand {
    /// Bit/s that they are assured of and use.
    claim: u64,
    /// Bit/s that they could use.
    most: u64,
    /// Quanta of the leaves that could use more than they are assured of.
    weight: u64,
}

/// A shard's demand, for all to see; a line of the cache of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Post([AtomicU64; 3]);

impl Post {
    /// The three are not read together by others; what comes of a mixture holds for a period.
    fn put(&self, demand: Demand) {
        for (word, value) in self.0.iter().zip([demand.claim, demand.most, demand.weight]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn get(&self) -> Demand {
        let [claim, most, weight] = [0, 1, 2].map(|i| self.0[i].load(Ordering::Relaxed));
        Demand { claim, most, weight }
    }
}

/// One of several trees that share a root's rate, for a thread of its own.
///
/// Each tree is an [`Htb`]: within it all holds that holds there, and what a leaf is assured of
/// needs no other shard. The rate that the root lends is divided every millisecond of the time that
/// is passed in. A class with packets claims its assured rate. The rest goes by quanta, to no class
/// beyond its ceiling, as in the one tree. No shard waits for another: a shard posts the demand of
/// its classes, reads the posts of others, and works out its own part.
///
/// So rates are those of the one tree while demand does not change (within 1 %, tested for two and
/// for four shards), and for up to two periods after a change the root may lend what others use
/// already, or not lend what nobody uses. The shard of a class is decided once.
///
/// ```
/// use weir_htb::{ClassId, ClassSpec, Departure, Limits, Packet, Params, shards};
/// use weir_units::{BitRate, Instant};
///
/// let class = |id, parent, mbit| ClassSpec {
///     id: ClassId(id),
///     parent: Some(ClassId(parent)),
///     params: Params::new(BitRate::mbit(mbit)).ceil(BitRate::mbit(10)),
/// };
/// let link = ClassSpec { parent: None, ..class(0, 0, 10) };
/// let below = [class(1, 0, 6), class(2, 0, 4)];
/// let mut shards = shards(Limits::default(), Instant::default(), link, &below, 2)?;
/// let mine = shards.iter_mut().find(|shard| shard.has(ClassId(2))).unwrap();
/// mine.enqueue(ClassId(2), Packet { handle: 0, len: 64 })?;
/// assert_eq!(mine.dequeue_batch(Instant::default(), &mut [Departure::default()]), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Shard {
    htb: Htb,
    root: ClassId,
    /// The root as it would be alone.
    whole: Params,
    posts: Arc<[Post]>,
    nth: usize,
    /// Leaves of this shard and their quanta, together by the class below the root that they are in.
    leaves: Box<[(u32, u32)]>,
    tops: Box<[Top]>,
    looked: Option<Instant>,
}

/// A class below the root, with what is needed of it each time it is looked at.
#[derive(Debug, Clone, Copy)]
struct Top {
    id: u32,
    /// How many of `leaves` are in it.
    leaves: u32,
    rate: u64,
    ceil: u64,
    /// Bytes that had left it when it was looked at.
    left: u64,
}

/// Divides the classes below `root` among `count` trees, so that each has about as much of what they
/// are assured of. `below` is in any order; the root's parent is not looked at. Each tree has room for
/// as many classes and packets as `limits` say.
///
/// # Errors
/// As [`Htb::build`].
pub fn shards(
    limits: Limits,
    now: Instant,
    root: ClassSpec,
    below: &[ClassSpec],
    count: usize,
) -> Result<Vec<Shard>, ClassError> {
    let root = ClassSpec { parent: None, ..root };
    let all = [&[root], below].concat();
    // Its faults are those of the one tree.
    let (whole, _) = Htb::build(limits, now, &all)?;
    // The largest first, each to whom has least.
    let mut tops = below.iter().filter(|spec| spec.parent == Some(root.id)).collect::<Vec<_>>();
    tops.sort_by_key(|spec| std::cmp::Reverse(spec.params.rate));
    let mut assured = vec![0u64; count.max(1)];
    let mut shard_of = vec![None; limits.within_bounds().classes as usize];
    for top in tops {
        let least = (0..assured.len()).min_by_key(|shard| assured[*shard]).unwrap_or(0);
        assured[least] += top.params.rate.0;
        shard_of[top.id.0 as usize] = Some(least);
    }
    // The class below the root on the way of each.
    let top_of = |mut id: ClassId| loop {
        match whole.class[id.0 as usize].parent {
            crate::class::NONE => return None,
            parent if parent == root.id.0 => return Some(id),
            parent => id = ClassId(parent),
        }
    };
    let posts = (0..assured.len()).map(|_| Post::default()).collect::<Arc<[_]>>();
    let shard = |nth| {
        let mine = |spec: &&ClassSpec| {
            spec.id == root.id || top_of(spec.id).and_then(|top| shard_of[top.0 as usize]) == Some(nth)
        };
        let specs = all.iter().filter(mine).copied().collect::<Vec<_>>();
        let (htb, _) = Htb::build(limits, now, &specs)?;
        let leaf = |spec: &ClassSpec| {
            let top = top_of(spec.id)?;
            (htb.class[spec.id.0 as usize].level == 0).then_some((spec.id.0, top.0))
        };
        let mut leaves = specs.iter().filter_map(leaf).collect::<Vec<_>>();
        leaves.sort_by_key(|(leaf, top)| (*top, *leaf));
        let top = |leaves: &[(u32, u32)]| {
            let params = &htb.config[leaves[0].1 as usize].params;
            Top {
                id: leaves[0].1,
                leaves: leaves.len() as u32,
                rate: params.rate.0,
                ceil: params.ceil.0,
                left: 0,
            }
        };
        let tops = leaves.chunk_by(|a, b| a.1 == b.1).map(top).collect();
        let quantum = |leaf: u32| htb.class[leaf as usize].quantum as u32;
        let leaves = leaves.iter().map(|(leaf, _)| (*leaf, quantum(*leaf))).collect();
        Ok(Shard {
            htb,
            root: root.id,
            whole: root.params,
            posts: Arc::clone(&posts),
            nth,
            leaves,
            tops,
            looked: None,
        })
    };
    (0..assured.len()).map(shard).collect()
}

impl Shard {
    /// Whether the class is in this shard; the root is in all.
    #[must_use]
    pub fn has(&self, class: ClassId) -> bool {
        self.htb.exists(class)
    }

    /// As [`Htb::enqueue`].
    ///
    /// # Errors
    /// As there; a leaf of another shard does not exist here.
    #[inline]
    pub fn enqueue(&mut self, leaf: ClassId, packet: Packet) -> Result<(), EnqueueError> {
        self.htb.enqueue(leaf, packet)
    }

    /// As [`Htb::enqueue_batch`].
    #[inline]
    pub fn enqueue_batch(
        &mut self,
        packets: impl IntoIterator<Item = (ClassId, Packet)>,
        refused: impl FnMut(ClassId, Packet, EnqueueError),
    ) {
        self.htb.enqueue_batch(packets, refused);
    }

    /// As [`Htb::dequeue_batch`]. Also if nothing waits, it is to be asked every millisecond, so that
    /// others hear of that.
    #[inline]
    pub fn dequeue_batch(&mut self, now: Instant, left: &mut [Departure]) -> usize {
        if self.looked.is_none_or(|then| now.0 >= then.0 + PERIOD) {
            self.divide(now);
        }
        self.htb.dequeue_batch(now, left)
    }

    /// As [`Htb::dequeue`]: a packet, or when to ask again.
    pub fn dequeue(&mut self, now: Instant) -> Next {
        if self.looked.is_none_or(|then| now.0 >= then.0 + PERIOD) {
            self.divide(now);
        }
        match self.htb.dequeue(now) {
            // Before that the root's part may grow.
            Next::At(then) => Next::At(then.min(self.looked.map_or(then, |looked| looked + PERIOD))),
            next => next,
        }
    }

    /// As [`Htb::stats`]; the root's are those of this shard's packets.
    #[must_use]
    pub fn stats(&self, class: ClassId) -> Option<Stats> {
        self.htb.stats(class)
    }

    /// This shard's part of the root's ceiling.
    #[must_use]
    pub fn part(&self) -> BitRate {
        self.htb.params(self.root).map_or(BitRate(0), |params| params.ceil)
    }

    #[cold]
    fn divide(&mut self, now: Instant) {
        let demand = self.demand(now);
        self.posts[self.nth].put(demand);
        self.looked = Some(now);
        let demands = || self.posts.iter().map(Post::get);
        let rate = part(self.whole.rate.0, self.nth, demands);
        let ceil = part(self.whole.ceil.0, self.nth, demands).max(rate);
        let of = |burst: Bytes, part: u64, whole: u64| {
            let burst = u128::from(burst.0) * u128::from(part) / u128::from(whole);
            // A packet, or small parts would starve.
            Bytes(u64::try_from(burst).unwrap_or(u64::MAX).max(1_600))
        };
        let params = Params {
            rate: BitRate(rate),
            ceil: BitRate(ceil),
            burst: Some(of(self.whole.effective_burst(), rate, self.whole.rate.0)),
            cburst: Some(of(self.whole.effective_cburst(), ceil, self.whole.ceil.0)),
            ..self.whole
        };
        // It exists, and the parameters are between those that were accepted.
        let changed = self.htb.change(self.root, params);
        debug_assert!(changed.is_ok(), "{changed:?}");
    }

    /// The demand of the classes at `now`, by their backlog and the bytes that left since the last
    /// look.
    fn demand(&mut self, now: Instant) -> Demand {
        let period = self.looked.map_or(PERIOD, |then| now.0.saturating_sub(then.0));
        let (mut demand, mut leaves) = (Demand::default(), self.leaves.iter());
        for top in &mut self.tops {
            let weight = |(leaf, quantum): &(u32, u32)| {
                if self.htb.class[*leaf as usize].backlog > 0 { u64::from(*quantum) } else { 0 }
            };
            let weight = leaves.by_ref().take(top.leaves as usize).map(weight).sum::<u64>();
            let bytes = self.htb.class[top.id as usize].bytes;
            let left = bytes - std::mem::replace(&mut top.left, bytes);
            if weight > 0 {
                demand.claim += top.rate;
                demand.most += top.ceil;
                demand.weight += weight;
            } else if left > 0 {
                let rate = BitRate::of(Bytes(left), period).0;
                let rate = (rate + rate / GROWTH).min(top.ceil);
                demand.claim += rate.min(top.rate);
                demand.most += rate;
                demand.weight += 1;
            }
        }
        demand
    }
}

/// The part of shard `nth` in `whole`: all together have all of it and not more.
fn part<I: Iterator<Item = Demand>>(whole: u64, nth: usize, demands: impl Fn() -> I) -> u64 {
    let scaled = |value: u64, by: u64, of: u64| {
        u64::try_from(u128::from(value) * u128::from(by) / u128::from(of.max(1))).unwrap_or(u64::MAX)
    };
    let claims = demands().map(|demand| demand.claim).sum::<u64>();
    if claims >= whole {
        let mine = demands().nth(nth).unwrap_or_default().claim;
        return scaled(whole, mine, claims).max(Params::MIN_RATE.0);
    }
    // The rest goes by weight; what is too much for one goes to the others.
    let (mut spare, mut mine) = (whole - claims, demands().nth(nth).unwrap_or_default().claim);
    let room = |demand: &Demand| demand.most.saturating_sub(demand.claim);
    // A shard with less room than its part at this level of "room by weight" is full. Those come
    // first.
    let mut full_below = 0.0;
    loop {
        let level = |demand: &Demand| room(demand) as f64 / demand.weight.max(1) as f64;
        let open = || demands().filter(|demand| demand.weight > 0 && level(demand) > full_below);
        let weights = open().map(|demand| demand.weight).sum::<u64>();
        if weights == 0 {
            break;
        }
        let fair = spare as f64 / weights as f64;
        let least = open().map(|demand| level(&demand)).fold(f64::INFINITY, f64::min);
        let own = demands().nth(nth).filter(|demand| demand.weight > 0 && level(demand) > full_below);
        if least >= fair {
            // None of them is full: done.
            mine += own.map_or(0, |demand| scaled(spare, demand.weight, weights));
            return mine.max(Params::MIN_RATE.0);
        }
        if let Some(own) = own.filter(|own| level(own) <= least) {
            mine += room(&own);
        }
        spare -= open()
            .filter(|demand| level(demand) <= least)
            .map(|demand| room(&demand))
            .sum::<u64>()
            .min(spare);
        full_below = least;
    }
    // No shard wants the rest: all have as much of it, for one that wakes up.
    (mine + spare / demands().count().max(1) as u64).max(Params::MIN_RATE.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_add_up_to_the_whole_and_nobody_lacks_what_it_claims(
            whole in 1_000..100_000_000_000u64,
            demands in prop::collection::vec((0..1_000_000_000u64, 0..2_000_000_000u64, 0..5_000u64), 1..9),
        ) {
            let demands = demands.into_iter().map(|(claim, above, weight)| {
                // A shard without demand has no weight.
                Demand { claim: claim * u64::from(weight > 0), most: (claim + above) * u64::from(weight > 0), weight }
            });
            let demands = demands.collect::<Vec<_>>();
            let parts = (0..demands.len()).map(|nth| part(whole, nth, || demands.iter().copied()));
            let parts = parts.collect::<Vec<_>>();
            let (sum, count) = (parts.iter().sum::<u64>(), demands.len() as u64);
            prop_assert!(sum <= whole + 8 * count, "{sum} of {whole}: {parts:?}");
            prop_assert!(sum + 2 * count >= whole, "{sum} of {whole}: {parts:?}");
            let claims = demands.iter().map(|demand| demand.claim).sum::<u64>();
            for (part, demand) in parts.iter().zip(&demands) {
                prop_assert!(claims > whole || *part >= demand.claim);
            }
            // A shard with room has as much by weight as any other.
            if claims < whole && demands.iter().map(|d| d.most).sum::<u64>() > whole {
                let above = |i: usize| (parts[i] - demands[i].claim) as f64 / demands[i].weight as f64;
                let busy = || (0..demands.len()).filter(|i| demands[*i].weight > 0);
                let highest = busy().map(above).fold(0.0, f64::max);
                for i in busy().filter(|i| parts[*i] + 10 < demands[*i].most) {
                    prop_assert!(above(i) > highest * 0.999 - 10.0, "{demands:?} {parts:?}");
                }
            }
        }
    }
}
