use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// One direction of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "LinkDirection"))]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Traffic that leaves by the link.
    #[default]
    Upload,
    /// Traffic that arrives by the link.
    Download,
}

/// The directions of a promise. Each has the minimum and the maximum of the terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Directions {
    /// Traffic that leaves by the link: the paper's bandwidth of a provider.
    #[default]
    Upload,
    /// Traffic that arrives by the link.
    Download,
    /// Traffic that leaves and traffic that arrives.
    Both,
}

/// The text names no direction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{0}` as a direction: write upload or download")]
pub struct DirectionError(pub String);

/// The text names no directions of a promise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot promise in direction `{0}`: write upload, download or both")]
pub struct DirectionsError(pub String);

impl Direction {
    /// Both directions.
    pub const ALL: [Direction; 2] = [Direction::Upload, Direction::Download];
}

impl Directions {
    /// Whether the promise is about this direction.
    #[must_use]
    pub fn has(self, direction: Direction) -> bool {
        match self {
            Directions::Both => true,
            Directions::Upload => direction == Direction::Upload,
            Directions::Download => direction == Direction::Download,
        }
    }

    /// Each direction of the promise.
    pub fn iter(self) -> impl Iterator<Item = Direction> {
        Direction::ALL.into_iter().filter(move |direction| self.has(*direction))
    }

    /// Packets in words: those that a selector names, those that arrive for it, or both.
    #[must_use]
    pub fn packets_of(self, selector: &str) -> String {
        match self {
            Directions::Upload => selector.to_owned(),
            Directions::Download => format!("what arrives for {selector}"),
            Directions::Both => format!("both directions of {selector}"),
        }
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Directions::default()
    }
}

impl FromStr for Direction {
    type Err = DirectionError;
    fn from_str(text: &str) -> Result<Direction, DirectionError> {
        let found = Direction::ALL.into_iter().find(|direction| direction.to_string() == text);
        found.ok_or_else(|| DirectionError(text.chars().take(32).collect()))
    }
}

impl FromStr for Directions {
    type Err = DirectionsError;
    fn from_str(text: &str) -> Result<Directions, DirectionsError> {
        match text {
            "upload" => Ok(Directions::Upload),
            "download" => Ok(Directions::Download),
            "both" => Ok(Directions::Both),
            other => Err(DirectionsError(other.chars().take(32).collect())),
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Direction::Upload => "upload",
            Direction::Download => "download",
        })
    }
}

impl fmt::Display for Directions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Directions::Upload => "upload",
            Directions::Download => "download",
            Directions::Both => "both",
        })
    }
}
