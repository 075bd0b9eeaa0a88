//! The direction of the link that `weir top` shows.

use weir_api::{Class, DownChange, Download, PolicyChange, Status};
use weir_share::Weight;

/// The direction that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The traffic that leaves by the link.
    Up,
    /// The traffic that arrives by it.
    Down,
}

impl Direction {
    pub(super) fn other(self) -> Direction {
        match self {
            Direction::Up => Direction::Down,
            Direction::Down => Direction::Up,
        }
    }

    /// The word for the key that shows it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Direction::Up => "up",
            Direction::Down => "down",
        }
    }

    /// The word for a class's rate.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Direction::Up => "sending",
            Direction::Down => "receiving",
        }
    }

    /// The figures of this direction in the places of what leaves. Classes without a part of it are left
    /// out. `None` if the node does not share it.
    pub(super) fn of(self, status: &Status, classes: &[Class]) -> Option<(Status, Vec<Class>)> {
        if self == Direction::Up {
            return Some((status.clone(), classes.to_vec()));
        }
        let down = status.download.clone()?;
        let classes: Vec<Class> =
            classes.iter().filter_map(|class| Some(received(class, class.down.as_ref()?))).collect();
        let status = Status {
            capacity: down.capacity,
            configured_capacity: down.configured_capacity,
            follows: down.follows,
            rate: down.rate,
            reserved: down.reserved,
            reservable: down.reservable,
            engine: down.engine,
            active: down.active,
            classes: classes.len(),
            ..status.clone()
        };
        Some((status, classes))
    }

    /// A change of the weight in this direction.
    pub(super) fn change(self, name: String, weight: Weight) -> PolicyChange {
        let weight = Some(Some(weight));
        match self {
            Direction::Up => PolicyChange { name, weight, ..PolicyChange::default() },
            Direction::Down => {
                let down = Some(DownChange { weight, ..DownChange::default() });
                PolicyChange { name, down, ..PolicyChange::default() }
            }
        }
    }
}

fn received(class: &Class, down: &Download) -> Class {
    Class {
        activity: down.activity,
        policy: down.policy,
        allocation: down.allocation,
        rate: down.rate,
        demand: down.demand,
        bytes: down.bytes,
        packets: down.packets,
        drops: down.drops,
        backlog: down.backlog,
        backlog_packets: down.backlog_packets,
        enforced: down.enforced,
        not_enforced: down.not_enforced.clone(),
        not_enforced_because: down.not_enforced_because.clone(),
        unpromised: down.unpromised,
        agreement: None,
        ..class.clone()
    }
}
