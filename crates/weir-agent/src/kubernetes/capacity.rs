//! The bandwidth that the node's status shows. It does no I/O.

use std::time::Duration;

use weir_units::Instant;

/// A lower value must last this long before it is shown. The kubelet rejects pods that start while less is
/// shown than they ask for, so a short dip must not be seen.
const LOWER_AFTER: Duration = Duration::from_secs(5);

/// A value that is raised at once and lowered late.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    shown: Option<u64>,
    /// Since when the value is lower than what is shown, and the highest of the values since.
    lower: Option<(Instant, u64)>,
}

impl Published {
    /// Takes the present value, and returns the one to show.
    pub(crate) fn show(&mut self, value: u64, now: Instant) -> u64 {
        match self.shown {
            Some(shown) if value < shown => {
                let (since, highest) = self.lower.map_or((now, value), |(at, high)| (at, high.max(value)));
                if now.since(since) >= LOWER_AFTER {
                    self.shown = Some(highest);
                    self.lower = (value < highest).then_some((now, value));
                } else {
                    self.lower = Some((since, highest));
                }
            }
            _ => {
                self.shown = Some(value);
                self.lower = None;
            }
        }
        self.shown.unwrap_or(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_raised_at_once_and_lowered_after_it_lasted() {
        let mut published = Published::default();
        let mut show = |s, value| published.show(value, Instant(Duration::from_secs(s)));
        assert_eq!(show(0, 50), 50);
        assert_eq!(show(1, 80), 80);
        assert_eq!(show(2, 10), 80, "a dip");
        assert_eq!(show(4, 80), 80);
        assert_eq!(show(5, 60), 80);
        assert_eq!(show(7, 30), 80);
        assert_eq!(show(10, 30), 60, "the highest of the last 5 s");
        assert_eq!(show(14, 30), 60);
        assert_eq!(show(15, 30), 30);
        assert_eq!(show(16, 31), 31);
    }
}
