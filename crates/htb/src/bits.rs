/// An ordered set of small numbers: three levels of words. Each bit of a level tells whether the
/// word below has any, so that every operation looks at three words at most.
#[derive(Debug, Clone)]
pub(crate) struct Bits {
    words: Box<[u64]>,
    mids: Box<[u64]>,
    top: u64,
}

impl Bits {
    /// Numbers below this can be held: 64 to the third.
    pub(crate) const MAX: usize = 1 << 18;

    /// For numbers below `len`, which is at most [`Bits::MAX`].
    pub(crate) fn new(len: usize) -> Bits {
        let words = len.div_ceil(64);
        Bits { words: vec![0; words].into(), mids: vec![0; words.div_ceil(64)].into(), top: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.top == 0
    }

    #[inline]
    pub(crate) fn set(&mut self, i: u32) {
        let word = &mut self.words[i as usize >> 6];
        if *word == 0 {
            self.mids[i as usize >> 12] |= 1 << (i >> 6 & 63);
            self.top |= 1 << (i >> 12 & 63);
        }
        *word |= 1 << (i & 63);
    }

    #[inline]
    pub(crate) fn clear(&mut self, i: u32) {
        let word = &mut self.words[i as usize >> 6];
        *word &= !(1 << (i & 63));
        if *word == 0 {
            let mid = &mut self.mids[i as usize >> 12];
            *mid &= !(1 << (i >> 6 & 63));
            if *mid == 0 {
                self.top &= !(1 << (i >> 12 & 63));
            }
        }
    }

    pub(crate) fn clear_all(&mut self) {
        self.words.fill(0);
        self.mids.fill(0);
        self.top = 0;
    }

    /// The smallest member that is not below `from`.
    #[inline]
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let word = from >> 6;
        let left = self.words.get(word as usize)? & (!0 << (from & 63));
        if left != 0 {
            return Some(word << 6 | left.trailing_zeros());
        }
        self.next_above(word + 1)
    }

    /// The smallest member in a word that is not below `word`.
    fn next_above(&self, word: u32) -> Option<u32> {
        let mid = word >> 6;
        let left = self.mids.get(mid as usize)? & (!0 << (word & 63));
        let word = if left != 0 {
            mid << 6 | left.trailing_zeros()
        } else {
            let left = self.top & (!0u64).checked_shl(mid + 1).unwrap_or(0);
            if left == 0 {
                return None;
            }
            let mid = left.trailing_zeros();
            mid << 6 | self.mids[mid as usize].trailing_zeros()
        };
        Some(word << 6 | self.words[word as usize].trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bitmap_is_an_ordered_set(
            len in prop_oneof![1..200usize, Just(5_000), Just(Bits::MAX)],
            ops in prop::collection::vec((any::<u32>(), 0..4u8), 1..300),
        ) {
            let (mut bits, mut set) = (Bits::new(len), BTreeSet::new());
            for (raw, op) in ops {
                // Half of the numbers close together, half anywhere.
                let i = if raw & 1 == 0 { raw >> 8 } else { raw >> 1 & 127 } % u32::try_from(len).unwrap();
                match op {
                    0 | 1 => { bits.set(i); set.insert(i); }
                    2 => { bits.clear(i); set.remove(&i); }
                    _ => {}
                }
                prop_assert_eq!(bits.is_empty(), set.is_empty());
                prop_assert_eq!(bits.next(i), set.range(i..).next().copied());
                prop_assert_eq!(bits.next(i + 1), set.range(i + 1..).next().copied());
                prop_assert_eq!(bits.next(0), set.first().copied());
            }
        }
    }
}
