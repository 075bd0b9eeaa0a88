//! The signals of a tick, and the decision.

use std::time::Duration;

use weir_units::{BitRate, Bytes};

/// The signals of one tick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signals {
    /// The least of the flows' round trips above their bases, in the last 60 ms. `None` without a sample.
    pub queue: Option<Duration>,
    /// The flows' mean base, by acknowledged bytes.
    pub base: Duration,
    /// The samples in this tick.
    pub samples: u64,
    /// Bytes that the link carried in this tick by what was acknowledged, as the scheduler counts them.
    /// `None` if too little of the traffic is acknowledged to tell.
    pub acked: Option<Bytes>,
    /// Bytes that left the scheduler in this tick.
    pub sent: Bytes,
    /// Bytes that have left and are neither acknowledged nor given up. `None` if it is not known.
    pub on_the_way: Option<Bytes>,
    /// The scheduler had packets waiting.
    pub is_busy: bool,
    /// The time since an answer, if one is due.
    pub unanswered: Option<Duration>,
}

/// The reason for the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It follows the acknowledged rate and the queue.
    Track,
    /// The link answers nothing. The capacity stays.
    Silent,
    /// It drains the link's queue, to see the base again.
    Look,
    /// The queue is another sender's, or the path is longer. The capacity is the one before.
    Foreign,
    /// Packets are sent, and no round trip tells the queue. The capacity is what was usual.
    Blind,
    /// The classes leave a part of the capacity.
    Idle,
    /// The signals are lost. The capacity is the least one.
    Lost,
}

/// The capacity from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Between the settings' bounds.
    pub capacity: BitRate,
    /// The reason.
    pub state: State,
    /// The flows' bases are to be measured again.
    pub forgets_bases: bool,
}
