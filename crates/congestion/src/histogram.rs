/// Values are told apart to an eighth: 2^3 steps an octave.
const STEPS: u32 = 3;
/// Values from 2^40 on, 12 days of microseconds, are counted together.
const OCTAVES: u32 = 40;
const CELLS: usize = ((OCTAVES - STEPS + 1) << STEPS) as usize;

/// How often values came, in fixed memory: percentiles are at most an eighth too high.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    cells: Box<[u32; CELLS]>,
    count: u64,
    sum: u64,
    most: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { cells: Box::new([0; CELLS]), count: 0, sum: 0, most: 0 }
    }
}

fn cell(value: u64) -> usize {
    let value = value.min((1 << OCTAVES) - 1);
    if value < 1 << STEPS {
        return value as usize;
    }
    let octave = value.ilog2();
    let step = (value >> (octave - STEPS)) & ((1 << STEPS) - 1);
    (((octave - STEPS + 1) << STEPS) as u64 + step) as usize
}

/// The greatest value of a cell.
fn top(cell: usize) -> u64 {
    if cell < 1 << STEPS {
        return cell as u64;
    }
    let (octave, step) = ((cell >> STEPS) as u32 + STEPS - 1, cell & ((1 << STEPS) - 1));
    let width = 1u64 << (octave - STEPS);
    (1 << octave) + width * (step as u64 + 1) - 1
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        let cell = &mut self.cells[cell(value)];
        *cell = cell.saturating_add(1);
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.most = self.most.max(value);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean, rounded down; 0 of none.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The number of values below `2^bits`. A cell ends at each power of two, so the number is exact.
    #[must_use]
    pub fn below_power(&self, bits: u32) -> u64 {
        let end = cell(1 << bits.min(OCTAVES - 1));
        self.cells[..end].iter().map(|count| u64::from(*count)).sum()
    }

    /// The greatest; 0 of none.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.most
    }

    /// The value that `percent` of them do not exceed, never too low and at most an eighth too
    /// high; 0 of none.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = ((self.count as f64 * percent / 100.0).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (i, count) in self.cells.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return if i + 1 == CELLS { self.most } else { top(i).min(self.most) };
            }
        }
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_follow_each_other_without_a_gap() {
        for i in 0..CELLS - 1 {
            assert_eq!((cell(top(i)), cell(top(i) + 1)), (i, i + 1), "cell {i}");
        }
        assert_eq!(cell(u64::MAX), CELLS - 1);
    }

    #[test]
    fn values_below_a_power_of_two_are_counted_exactly() {
        let mut histogram = Histogram::default();
        let values = [0, 7, 8, 1_023, 1_024, 1_025, 4_095, 4_096, 70_000_000];
        for value in values {
            histogram.add(value);
        }
        for bits in [3, 10, 12, 26, 27] {
            let below = values.iter().filter(|value| **value < 1 << bits).count() as u64;
            assert_eq!(histogram.below_power(bits), below, "2^{bits}");
        }
        assert_eq!(histogram.sum(), values.iter().sum::<u64>());
    }
}
