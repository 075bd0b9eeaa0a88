use std::{fmt, time::Duration};

use weir_units::BitRate;

use super::GRAIN;
use crate::{Interval, Utc};

/// One of the two rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bandwidth {
    /// `NetMinBandwidth`.
    Min,
    /// `NetMaxBandwidth`.
    Max,
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bandwidth::Min => "NetMinBandwidth",
            Bandwidth::Max => "NetMaxBandwidth",
        })
    }
}

/// The earliest start at which what was asked for fits, for as long as it was asked for; not
/// before the start that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Earliest {
    /// Then.
    At(Utc),
    /// Not before that, and no time was left to look further.
    NotBefore(Utc),
    /// Never, as far as is known and as far ahead as may be asked for.
    Never,
    /// The capacity would be there at some time, but something else forbids it then.
    Unknown,
}

/// The missing rate, and the two nearest offers that would be accepted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// The minimum, B_r.
    pub asked: BitRate,
    /// When it was to hold.
    pub interval: Interval,
    /// Promised to others at the busiest moment of the interval.
    pub reserved: BitRate,
    /// The first such moment.
    pub busiest: Utc,
    /// The rate that may be promised in all.
    pub promisable: BitRate,
    /// The largest minimum that would be accepted over the whole interval; none if none would.
    pub largest_min: Option<BitRate>,
    /// When the asked one would be accepted.
    pub earliest: Earliest,
}

/// A request that is not admitted. Nothing changes by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Less than bandwidth is allocated in.
    #[error("cannot promise a {which} of {asked}: the least is {GRAIN}")]
    BelowGrain {
        /// Which rate.
        which: Bandwidth,
        /// How much it was.
        asked: BitRate,
    },
    /// More than can be counted.
    #[error("cannot promise a {which} of {asked}: the most of any link is {max}", max = BitRate::MAX)]
    TooLarge {
        /// Which rate.
        which: Bandwidth,
        /// How much it was.
        asked: BitRate,
    },
    /// U_r > U_r^max.
    #[error(
        "cannot promise a NetMinBandwidth of {min} within a NetMaxBandwidth of {max}: lower the minimum or raise \
         the maximum"
    )]
    MinAboveMax {
        /// The minimum.
        min: BitRate,
        /// The maximum.
        max: BitRate,
    },
    /// U_r^max > U_res.
    #[error("cannot allow a NetMaxBandwidth of {max}: {reservable} of the link's {link} may be reserved")]
    MaxAboveReservable {
        /// The maximum.
        max: BitRate,
        /// U_res B_eth, the largest maximum that would be accepted.
        reservable: BitRate,
        /// B_eth.
        link: BitRate,
    },
    /// The end is before the start.
    #[error("cannot promise bandwidth from {start} to {end}: the end is {early:?} before the start", early = start.since(*end))]
    EndBeforeStart {
        /// The start.
        start: Utc,
        /// The end.
        end: Utc,
    },
    /// The end is the start.
    #[error("cannot promise bandwidth from {at} to {at}: it would last no time")]
    ZeroLength {
        /// Start and end.
        at: Utc,
    },
    /// The start has passed.
    #[error(
        "cannot promise bandwidth from {start} on: it is {now}, and a start may lie {skew:?} in the past (leave the \
         start out to begin at once)"
    )]
    StartInPast {
        /// The start.
        start: Utc,
        /// The moment of the test.
        now: Utc,
        /// How far it may lie in the past.
        skew: Duration,
    },
    /// The start is too far in the future.
    #[error("cannot promise bandwidth from {start} on: the latest start is {latest}")]
    TooFarAhead {
        /// The start.
        start: Utc,
        /// The latest that would be accepted.
        latest: Utc,
    },
    /// Not an extension.
    #[error("cannot extend to {asked} what lasts to {end}: name a later moment")]
    NotLater {
        /// The end asked for.
        asked: Utc,
        /// The end as it is.
        end: Utc,
    },
    /// It has no end that could be later.
    #[error("cannot extend what has no end")]
    NoEnd,
    /// It is over.
    #[error("cannot extend what ended at {end}: it is {now} (make a new offer)")]
    Over {
        /// Its end.
        end: Utc,
        /// The moment of the test.
        now: Utc,
    },
    /// Eq. 2 does not hold for all of what an extension adds.
    #[error(
        "cannot extend {rate} from {end} on: {reserved} of the {promisable} that may be promised are taken at \
         {busiest}, so long it could last"
    )]
    NoCapacityToExtend {
        /// The rate reserved for it.
        rate: BitRate,
        /// Its present end.
        end: Utc,
        /// The latest end that would be accepted; the present one if none is.
        busiest: Utc,
        /// Promised to others then.
        reserved: BitRate,
        /// The rate that may be promised in all.
        promisable: BitRate,
    },
    /// Eq. 2 does not hold.
    #[error("{0}")]
    NoCapacity(Shortage),
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { asked, interval, reserved, busiest, promisable, .. } = self;
        write!(
            f,
            "cannot promise {asked} from {interval}: {reserved} of the {promisable} that may be promised "
        )?;
        write!(f, "are taken at {busiest}")?;
        match self.largest_min {
            Some(largest) => write!(f, ", {largest} would be accepted")?,
            None => f.write_str(", and no less would be accepted")?,
        }
        match self.earliest {
            Earliest::At(start) => write!(f, ", and {asked} from {start} on"),
            Earliest::NotBefore(moment) => write!(f, ", and {asked} not before {moment}"),
            Earliest::Never => write!(f, ", and {asked} at no later time"),
            Earliest::Unknown => Ok(()),
        }
    }
}
