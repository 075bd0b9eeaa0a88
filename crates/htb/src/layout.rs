//! Places: siblings have consecutive ones, in the order of their numbers, so that one bitmap of
//! places holds the feeds of all parents.

use crate::{
    Htb, Params,
    class::{Mode, NONE},
    htb::VACANT,
};

const PRIOS: usize = Params::PRIOS as usize;

impl Htb {
    /// Gives all classes their places again. The order of turns stays.
    #[cold]
    pub(crate) fn lay_out(&mut self) {
        self.unplaced = false;
        let mut places = 0;
        for (class, config) in self.class.iter_mut().zip(&self.config) {
            (class.first, class.span) = (places, 0);
            if class.level != VACANT {
                places += config.children;
            }
        }
        self.order.fill(NONE);
        self.feeding.iter_mut().for_each(|bits| bits.clear_all());
        for i in 0..self.class.len() {
            let parent = self.class[i].parent;
            if self.class[i].level == VACANT || parent == NONE {
                continue;
            }
            let above = &mut self.class[parent as usize];
            let place = above.first + above.span;
            above.span += 1;
            self.order[place as usize] = i as u32;
            let class = &mut self.class[i];
            class.place = place;
            if class.mode == Mode::MayBorrow {
                for prio in (0..PRIOS).filter(|prio| class.activity >> prio & 1 == 1) {
                    self.feeding[prio].set(place);
                }
            }
        }
        for (class, feeds) in self.class.iter().zip(self.feeds.chunks_exact_mut(PRIOS)) {
            let siblings = &self.order[class.first as usize..(class.first + class.span) as usize];
            for feed in feeds {
                feed.place = siblings.partition_point(|id| *id < feed.cursor) as u32;
            }
        }
    }
}
