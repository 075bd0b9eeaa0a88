//! Patterns of names, in which `*` stands for anything.

/// Whether `pattern`, in which `*` stands for anything, fits all of `text`.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    count_fits(pattern.as_bytes(), text.as_bytes()).0
}

/// As [`fits`], and the steps that it took: at most the product of both lengths.
///
/// Only the last star seen takes one byte more where the rest does not fit. The stars before it need not, as
/// the last one can take the same bytes.
fn count_fits(pattern: &[u8], text: &[u8]) -> (bool, usize) {
    let (mut p, mut t, mut steps) = (0, 0, 0);
    // The place after the last star, and the end of what it stands for.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        steps += 1;
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((after, end)) = star {
            (p, t) = (after, end + 1);
            star = Some((after, t));
        } else {
            return (false, steps);
        }
    }
    (pattern[p..].iter().all(|byte| *byte == b'*'), steps)
}

#[cfg(test)]
mod tests {
    use super::{count_fits, fits};

    /// Ten stars and a hundred letters took longer than anyone waits.
    #[test]
    fn pin_with_ten_stars_is_matched_in_few_steps() {
        let (pattern, text) = ("*a".repeat(10) + "b", "a".repeat(100));
        let (fits, steps) = count_fits(pattern.as_bytes(), text.as_bytes());
        assert!(!fits && steps <= pattern.len() * text.len(), "{steps} steps");
        assert!(count_fits(pattern.as_bytes(), (text + "b").as_bytes()).0);
    }

    /// The plain definition of a pattern, in exponential time.
    fn fits_by_trying(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| fits_by_trying(rest, &text[at..])),
            Some((byte, rest)) => {
                text.split_first().is_some_and(|(b, t)| b == byte && fits_by_trying(rest, t))
            }
        }
    }

    #[test]
    fn short_patterns_all_fit_what_trying_says() {
        let words = |letters: &'static [u8], most: u32| {
            (0..=most).flat_map(move |length| {
                (0..letters.len().pow(length)).map(move |n| {
                    let digit = |at| letters[n / letters.len().pow(at) % letters.len()];
                    (0..length).map(digit).collect::<Vec<u8>>()
                })
            })
        };
        for pattern in words(b"*ab", 5) {
            for text in words(b"ab", 5) {
                assert_eq!(
                    count_fits(&pattern, &text).0,
                    fits_by_trying(&pattern, &text),
                    "{pattern:?} {text:?}"
                );
            }
        }
    }

    #[test]
    fn a_star_stands_for_anything() {
        assert!(fits("ghcr.io/acme/*:prod", "ghcr.io/acme/a/b:prod"));
        assert!(fits("*", "anything") && fits("a*", "a") && fits("*b*", "abc"));
        assert!(!fits("ghcr.io/acme/*:prod", "ghcr.io/acme/a:test"));
        assert!(!fits("a", "ab") && !fits("", "a"));
    }
}
