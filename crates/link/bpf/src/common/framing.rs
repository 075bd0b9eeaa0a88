//! The framing of a line as the programs read it (`framing.h`).

use weir_units::{Cells, Framing};

const FRAMED: u32 = 1 << 31;

/// A framing in a word of `framing.h`. The default charges packets as tc counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FramingWord(pub(crate) u32);

impl From<Option<Framing>> for FramingWord {
    fn from(framing: Option<Framing>) -> FramingWord {
        let Some(framing) = framing else { return FramingWord::default() };
        let around = i64::from(framing.overhead) - framing.header.bytes().cast_signed();
        // The configuration allows -64 to 256 bytes.
        let around = i16::try_from(around).unwrap_or(i16::MAX).cast_unsigned();
        let cells = match framing.cells {
            Cells::None => 0,
            Cells::Atm => 1,
            Cells::Ptm => 2,
        };
        FramingWord(u32::from(around) | framing.mpu.min(0xfff) << 16 | cells << 28 | FRAMED)
    }
}
