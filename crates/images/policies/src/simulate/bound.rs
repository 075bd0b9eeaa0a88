//! The bound of savings that no policy passes, whether it knows the future or not.

use weir_units::Bytes;

use crate::{FetchModel, trace::Trace};

/// The least fetch time, s, that a cache of this size leaves of a trace, with any policy: the first
/// fetch of each blob, and of the rest the part that cannot be kept.
///
/// Between two deployments that ask for it a blob has to be kept: its bytes for that many
/// deployments. A cache has its bytes for all of them. The blobs that a policy keeps fit. The most
/// that it can save is therefore at most the value that fits if bytes may be taken from any other
/// moment, best value first and the last in part (Berger, Beckmann and Harchol-Balter, "Practical
/// Bounds on Optimal Caching with Variable Object Sizes", SIGMETRICS 2018, PFOO-L). No policy
/// reaches it.
#[must_use]
pub fn least_fetch_s(trace: &Trace, budget: Bytes, fetch: FetchModel) -> f64 {
    let cost: Vec<f64> = trace.blobs.iter().map(|bytes| fetch.time(*bytes).as_secs_f64()).collect();
    let mut last: Vec<Option<usize>> = vec![None; trace.blobs.len()];
    let mut paid = 0.0;
    // Of each use but the first: what keeping the blob until then takes, bytes times deployments, and saves.
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for (now, deployment) in trace.deployments.iter().enumerate() {
        for &blob in &*trace.images[deployment.image as usize] {
            let (size, cost) = (trace.blobs[blob as usize], cost[blob as usize]);
            paid += cost;
            if let Some(before) = last[blob as usize].replace(now).filter(|_| size <= budget) {
                kept.push((size.0 as f64 * (now - before) as f64, cost));
            }
        }
    }
    kept.sort_unstable_by(|(a, saves_a), (b, saves_b)| (saves_b * a).total_cmp(&(saves_a * b)));
    let mut room = budget.0 as f64 * trace.deployments.len().saturating_sub(1) as f64;
    for (takes, saves) in kept {
        let part = if takes > room { room / takes } else { 1.0 };
        paid -= saves * part;
        room -= takes * part;
        if room <= 0.0 {
            break;
        }
    }
    paid.max(0.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_units::BitRate;

    use super::*;
    use crate::trace::Deployment;

    /// Three blobs of 10 bytes and a second each, an image of one; deployed in this order.
    fn trace(deployed: &[u32]) -> Trace {
        let at = Duration::ZERO;
        Trace {
            blobs: vec![Bytes(10); 3],
            images: (0..3).map(|blob| [blob].into()).collect(),
            deployments: deployed.iter().map(|&image| Deployment { at, image, client: 0 }).collect(),
        }
    }

    #[test]
    fn what_cannot_be_kept_until_it_is_asked_for_again_is_paid_for() {
        let second = FetchModel { each: Duration::from_secs(1), rate: BitRate(u64::MAX) };
        let least = |deployed: &[u32], budget| {
            (least_fetch_s(&trace(deployed), Bytes(budget), second) * 100.0).round() / 100.0
        };
        assert_eq!(least(&[0, 0, 0], 10), 1.0, "first ones only");
        assert_eq!(least(&[0, 0, 0], 9), 3.0, "it does not fit");
        assert_eq!(least(&[0, 1, 2], 100), 3.0);
        // Room of 30: 20 for one of the two, 10 for half of the other.
        assert_eq!(least(&[0, 1, 0, 1], 10), 2.5);
        assert_eq!(least(&[0, 1, 0, 1], 20), 2.0);
        assert_eq!(least_fetch_s(&Trace::default(), Bytes(1), second), 0.0);
    }
}
