//! Links whose rate changes: each has its schedulers follow its followers.

use weir_api::EventKind;
use weir_units::BitRate;

use super::{
    Agent,
    uplink::{Followed, Uplink},
};

impl Agent {
    /// The capacity that the scheduler divides now.
    pub(super) fn in_force(&self) -> BitRate {
        self.link.in_force(self.classes.config().link.capacity)
    }

    /// The follower of the link's rate, for views.
    pub(super) fn follows(&self) -> Option<weir_api::Follows> {
        self.link.follows()
    }

    /// Follows the main link as the configuration says.
    pub(super) fn follow_rates(&mut self) {
        let (link, now) = (&self.classes.config().link, self.now());
        self.link.follow_rates(link.follows, link.capacity, &mut self.datapath.attachments, now);
    }

    /// Decides about the capacities of links whose rate changes, and has the schedulers follow.
    pub(super) fn follow_link(&mut self) {
        let (configured, now) = (self.classes.config().link.capacity, self.now());
        let Followed { applies, news, down } = self.link.follow_link(configured, now);
        if applies {
            self.allocate();
        }
        self.follow_up(down);
        for news in news {
            self.event(EventKind::CapacityChanged, None, news);
        }
        for place in 0..self.others.len() {
            let followed = self.others[place].follow_link(now);
            self.follow_up(followed);
        }
    }

    /// Whether the rate of a link is followed.
    pub(super) fn follows_any(&self) -> bool {
        self.all_links().any(Uplink::is_followed)
    }
}
