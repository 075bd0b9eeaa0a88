//! Bars of characters without colours: the part at each place.

use weir_units::BitRate;

/// One character of a class's bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The class's rate. The last such character has 1 to 8 eighths; the others have 8.
    Sending(u8),
    /// The rest of its allocation.
    Allowed,
    /// The minimum lies here.
    Floor,
    /// The maximum lies here.
    Ceiling,
    /// Nothing.
    Empty,
}

/// Lays out `rate`, `allocation`, floor and ceiling on `width` characters for 0 to `scale`. The ceiling
/// is drawn over the floor, and the floor over the rate.
pub(super) fn class_bar(
    width: u16,
    scale: BitRate,
    rate: BitRate,
    allocation: BitRate,
    floor: Option<BitRate>,
    ceiling: Option<BitRate>,
) -> Vec<Part> {
    let eighths = |rate: BitRate| eighths(rate, scale, width);
    let (sent, allowed) = (eighths(rate), eighths(allocation));
    let mark = |bound: Option<BitRate>| {
        bound.map(|bound| (eighths(bound) / 8).min(u32::from(width).saturating_sub(1)))
    };
    let (floor, ceiling) = (mark(floor), mark(ceiling));
    let part = |place: u32| {
        if ceiling == Some(place) {
            Part::Ceiling
        } else if floor == Some(place) {
            Part::Floor
        } else if sent > place * 8 {
            Part::Sending(u8::try_from((sent - place * 8).min(8)).unwrap_or(8))
        } else if allowed > place * 8 {
            Part::Allowed
        } else {
            Part::Empty
        }
    };
    (0..u32::from(width)).map(part).collect()
}

/// Lays rates end to end on `width` characters for 0 to `scale`. Each character holds the index of the
/// rate in its middle.
pub(super) fn stacked_bar(
    width: u16,
    scale: BitRate,
    rates: impl IntoIterator<Item = BitRate>,
) -> Vec<Option<usize>> {
    let mut bar = vec![None; usize::from(width)];
    let (mut sum, mut from) = (BitRate::ZERO, 0);
    for (index, rate) in rates.into_iter().enumerate() {
        sum = sum.saturating_add(rate);
        let to = usize::try_from((eighths(sum, scale, width) + 4) / 8).unwrap_or(bar.len());
        bar[from..to].fill(Some(index));
        from = to;
    }
    bar
}

/// The end of `rate` in eighths of a character, at most the whole bar. A rate above zero has at least
/// one eighth, so that it is visible.
fn eighths(rate: BitRate, scale: BitRate, width: u16) -> u32 {
    let whole = u128::from(width) * 8;
    if rate == BitRate::ZERO || scale == BitRate::ZERO {
        return 0;
    }
    let place = (u128::from(rate.0) * whole / u128::from(scale.0)).clamp(1, whole.max(1));
    u32::try_from(place).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(parts: &[Part]) -> String {
        let letter = |part: &Part| match part {
            Part::Sending(8) => '#',
            Part::Sending(n) => char::from(b'0' + n),
            Part::Allowed => '.',
            Part::Floor => '[',
            Part::Ceiling => ']',
            Part::Empty => ' ',
        };
        parts.iter().map(letter).collect()
    }

    #[test]
    fn a_bar_shows_what_is_sent_then_what_is_allowed_between_its_bounds() {
        let m = BitRate::mbit;
        assert_eq!(text(&class_bar(10, m(100), m(35), m(60), None, None)), "###4..    ");
        assert_eq!(text(&class_bar(10, m(100), m(35), m(60), Some(m(20)), Some(m(80)))), "##[4..  ] ");
        assert_eq!(text(&class_bar(10, m(100), m(0), m(0), None, Some(m(100)))), "         ]");
        assert_eq!(text(&class_bar(10, m(100), m(200), m(200), None, None)), "##########");
        assert_eq!(text(&class_bar(10, m(100), BitRate(1), m(0), None, None)), "1         ");
        assert_eq!(text(&class_bar(0, m(100), m(10), m(10), Some(m(1)), Some(m(1)))), "");
    }

    #[test]
    fn rates_end_to_end_fill_as_much_as_their_sum() {
        let m = BitRate::mbit;
        let bar = stacked_bar(10, m(100), [m(20), m(30), m(0), m(10)]);
        assert_eq!(bar, [Some(0), Some(0), Some(1), Some(1), Some(1), Some(3), None, None, None, None]);
        assert_eq!(stacked_bar(3, m(100), [m(500), m(500)]), [Some(0); 3]);
    }

    proptest! {
        #[test]
        fn no_rates_break_a_bar(width in 0..300u16, rates in any::<[u64; 5]>(), bounds in any::<[Option<u64>; 2]>()) {
            let [scale, rate, allocation, a, b] = rates.map(BitRate);
            let [floor, ceiling] = bounds.map(|bound| bound.map(BitRate));
            prop_assert_eq!(class_bar(width, scale, rate, allocation, floor, ceiling).len(), usize::from(width));
            prop_assert_eq!(stacked_bar(width, scale, [rate, a, b]).len(), usize::from(width));
        }
    }
}
