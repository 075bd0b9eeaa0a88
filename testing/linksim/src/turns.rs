//! The order in which queued packets leave the scheduler.

use std::collections::VecDeque;

/// Flows that wait, by class. In a turn a class sends as many packets as its weight says, and each of its flows one
/// after the other.
pub(crate) struct Turns {
    classes: Vec<Class>,
    at: usize,
    /// Packets that the class may still send in its turn.
    left: u32,
}

struct Class {
    weight: u32,
    flows: VecDeque<usize>,
}

impl Turns {
    pub(crate) fn new(weights: &[u32]) -> Turns {
        let classes = weights.iter().map(|weight| Class { weight: *weight, flows: VecDeque::new() });
        Turns { classes: classes.collect(), at: 0, left: weights.first().copied().unwrap_or(0) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.flows.is_empty())
    }

    /// A flow waits behind the others of its class.
    pub(crate) fn wait(&mut self, class: usize, flow: usize) {
        self.classes[class].flows.push_back(flow);
    }

    /// The flow of which a packet leaves next. It waits no longer.
    pub(crate) fn next(&mut self) -> Option<usize> {
        for _ in 0..=self.classes.len() {
            if self.left > 0
                && let Some(flow) = self.classes[self.at].flows.pop_front()
            {
                self.left -= 1;
                return Some(flow);
            }
            self.at = (self.at + 1) % self.classes.len();
            self.left = self.classes[self.at].weight;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next flows, of which each has more packets.
    fn next(turns: &mut Turns, packets: usize) -> Vec<usize> {
        let one = |_| {
            let flow = turns.next().unwrap();
            turns.wait(flow % 2, flow);
            flow
        };
        (0..packets).map(one).collect()
    }

    #[test]
    fn classes_send_by_weight_and_their_flows_in_turn() {
        let mut turns = Turns::new(&[1, 2]);
        (0..6).for_each(|flow| turns.wait(flow % 2, flow));
        assert_eq!(next(&mut turns, 9), [0, 1, 3, 2, 5, 1, 4, 3, 5]);
    }

    #[test]
    fn class_without_packets_leaves_its_turns_to_the_others() {
        let mut turns = Turns::new(&[3, 1]);
        assert!(turns.is_empty() && turns.next().is_none());
        turns.wait(1, 1);
        assert_eq!(next(&mut turns, 3), [1, 1, 1]);
        turns.wait(0, 0);
        assert_eq!(next(&mut turns, 5), [0, 0, 0, 1, 0]);
    }
}
