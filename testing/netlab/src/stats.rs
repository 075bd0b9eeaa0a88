//! Statistics of small samples, with an own generator so that a seed repeats them anywhere.

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, good enough to resample.
#[derive(Debug, Clone)]
pub struct SplitMix(u64);

impl SplitMix {
    /// A generator; equal seeds give equal sequences.
    #[must_use]
    pub fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not zero. Multiplies and shifts: the bias is below
    /// n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }
}

/// Arithmetic mean; none of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The `p`-th percentile, 0 to 100, by linear interpolation between the two nearest ranks;
/// none of nothing.
#[must_use]
pub fn percentile(values: &[f64], p: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let rank = p.clamp(0.0, 100.0) / 100.0 * last as f64;
    let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    Some(low + (high - low) * rank.fract())
}

/// The 50th percentile; none of nothing.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 50.0)
}

/// Jain's index, (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything;
/// none if all are zero. For weighted shares, give each as a fraction of what it should be.
#[must_use]
pub fn jain(values: &[f64]) -> Option<f64> {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// How far `measured` is from `expected`, as a fraction of it; never negative. An expected
/// zero is met by zero only.
#[must_use]
pub fn relative_error(measured: f64, expected: f64) -> f64 {
    if expected == 0.0 {
        return if measured == 0.0 { 0.0 } else { f64::INFINITY };
    }
    (measured - expected).abs() / expected.abs()
}

/// The means of consecutive blocks of `length`; a shorter rest is joined to the last block.
/// Blocks longer than the series' memory make resampling honest.
#[must_use]
pub fn block_means(series: &[f64], length: usize) -> Vec<f64> {
    let blocks = (series.len() / length).max(1);
    (0..blocks)
        .filter_map(|i| {
            let end = if i + 1 == blocks { series.len() } else { (i + 1) * length };
            mean(&series[i * length..end])
        })
        .collect()
}

/// Percentile bootstrap (Efron 1979) of the mean: the interval that holds the fraction
/// `level` of the means of `resamples` samples drawn with replacement; none of nothing.
#[must_use]
pub fn bootstrap_mean(
    values: &[f64],
    level: f64,
    resamples: usize,
    rng: &mut SplitMix,
) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    let means: Vec<f64> = (0..resamples)
        .map(|_| {
            (0..values.len()).map(|_| values[rng.below(values.len())]).sum::<f64>() / values.len() as f64
        })
        .collect();
    let tail = (1.0 - level) / 2.0 * 100.0;
    Some((percentile(&means, tail)?, percentile(&means, 100.0 - tail)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_interpolate_between_ranks() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&values), Some(2.5));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&values, 100.0), Some(4.0));
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn jains_index_is_one_for_equal_shares_and_one_nth_for_one_winner() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[9.0, 0.0, 0.0]), Some(1.0 / 3.0));
        assert_eq!(jain(&[0.0, 0.0]), None);
    }

    #[test]
    fn relative_errors_have_no_sign_and_no_division_by_zero() {
        assert_eq!(relative_error(97.0, 100.0), 0.03);
        assert_eq!(relative_error(103.0, 100.0), 0.03);
        assert_eq!(relative_error(0.0, 0.0), 0.0);
        assert_eq!(relative_error(0.1, 0.0), f64::INFINITY);
    }

    #[test]
    fn blocks_cover_the_whole_series() {
        assert_eq!(block_means(&[1.0, 3.0, 5.0, 7.0, 9.0], 2), [2.0, 7.0]);
        assert_eq!(block_means(&[1.0, 3.0], 5), [2.0]);
        assert!(block_means(&[], 5).is_empty());
    }

    #[test]
    fn a_seed_repeats_and_splitmix_gives_its_published_first_number() {
        assert_eq!(SplitMix::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
        let values: Vec<f64> = (0..40).map(f64::from).collect();
        let draw = |seed| bootstrap_mean(&values, 0.95, 500, &mut SplitMix::new(seed));
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn the_bootstrap_covers_the_true_mean_about_as_often_as_it_says() {
        let mut rng = SplitMix::new(7);
        let covered = (0..400)
            .filter(|_| {
                // Uniform on 0..1: the mean is 1/2.
                let sample: Vec<f64> = (0..30).map(|_| rng.next_u64() as f64 / u64::MAX as f64).collect();
                let (low, high) = bootstrap_mean(&sample, 0.95, 400, &mut rng).unwrap();
                low <= 0.5 && 0.5 <= high
            })
            .count();
        assert!((360..=395).contains(&covered), "{covered} of 400");
    }

    proptest! {
        #[test]
        fn a_percentile_lies_within_the_sample_and_grows(values in prop::collection::vec(-1e6..1e6f64, 1..50), p in 0.0..100.0f64) {
            let (low, high) = (percentile(&values, 0.0).unwrap(), percentile(&values, 100.0).unwrap());
            let at = percentile(&values, p).unwrap();
            prop_assert!(low <= at && at <= high);
            prop_assert!(percentile(&values, p / 2.0).unwrap() <= at);
        }
    }
}
