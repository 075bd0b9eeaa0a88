use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Turns of which flows under way are counted. A turn is several times what most flows take.
const COUNTED: usize = 6;

/// Flows that were drawn and have not ended, by the turn in which they began.
///
/// A flow of an earlier turn than the last six counts no more. Its record may be lost, or it lasts for days. If it
/// ends late it is charged then.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Flight {
    /// Below 0 for a moment if a flow's end is read before its beginning.
    turns: VecDeque<(u32, i64)>,
}

impl Flight {
    /// This number of drawn flows began in a turn.
    pub(super) fn began(&mut self, turn: u32, flows: u64) {
        let flows = i64::try_from(flows).unwrap_or(i64::MAX);
        *self.of(turn) += flows;
    }

    /// A drawn flow of this turn has ended.
    pub(super) fn ended(&mut self, turn: u32) {
        if let Some((_, count)) = self.turns.iter_mut().find(|(number, _)| *number == turn) {
            *count -= 1;
        }
    }

    fn of(&mut self, turn: u32) -> &mut i64 {
        if self.turns.back().is_none_or(|(last, _)| *last != turn) {
            self.turns.push_back((turn, 0));
        }
        while self.turns.len() > COUNTED {
            self.turns.pop_front();
        }
        &mut self.turns.back_mut().expect("one was pushed").1
    }

    /// How many are under way.
    pub(super) fn count(&self) -> u64 {
        u64::try_from(self.turns.iter().map(|(_, count)| count).sum::<i64>()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_under_way_count_until_they_end_or_for_six_turns() {
        let mut flight = Flight::default();
        flight.began(1, 3);
        flight.ended(1);
        flight.began(2, 4);
        assert_eq!(flight.count(), 6);
        (3..=6).for_each(|turn| flight.began(turn, 0));
        assert_eq!(flight.count(), 6);
        flight.began(7, 0);
        assert_eq!(flight.count(), 4);
        flight.ended(1);
        assert_eq!(flight.count(), 4, "the first turn counts no more");
    }
}
