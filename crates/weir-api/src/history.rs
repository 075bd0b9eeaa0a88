//! The record of changes: `GET /v1/history`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ActorKind, ChangeKind};

/// The maker of a change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Actor {
    /// The kind of the maker.
    pub kind: ActorKind,
    /// The user's number, the token's name, the container's key or the file's path.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

impl Actor {
    /// A maker with a name.
    pub fn new(kind: ActorKind, name: impl Into<String>) -> Actor {
        Actor { kind, name: name.into() }
    }

    /// A user of this node, as the kernel names it at the socket.
    #[must_use]
    pub fn user(uid: u32) -> Actor {
        Actor::new(ActorKind::User, uid.to_string())
    }

    /// The agent itself.
    #[must_use]
    pub fn agent() -> Actor {
        Actor::new(ActorKind::Agent, "")
    }
}

impl fmt::Display for Actor {
    /// `user 1000`, `container docker:web`, `agent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(format!("{} {}", self.kind, self.name).trim_end())
    }
}

/// A changed value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryChange {
    /// The kind of the value.
    pub what: ChangeKind,
    /// The class's key, the agreement's id, the key of the configuration, or the like.
    pub name: String,
    /// The value before. `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The value after. `None` if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

/// Changes that were made together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryRecord {
    /// The number of the record. Each record has the number after that of the one before.
    pub n: u64,
    /// When it was written, milliseconds since the epoch.
    pub time_ms: u64,
    /// The maker of the changes.
    pub by: Actor,
    /// The cause: the request, or what the agent saw.
    pub cause: String,
    /// The changes.
    pub changes: Vec<HistoryChange>,
    /// Whether these are all values, as they are at the beginning of a file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_whole: bool,
}

/// The query of `GET /v1/history`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryQuery {
    /// Only records after this number.
    pub after: u64,
    /// Only records from this moment on, milliseconds since the epoch.
    pub since_ms: u64,
    /// Only changes of this name: a class, an agreement, a key of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The most records, at least 1. The agent answers at most 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A part of the record, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct History {
    /// The records.
    pub records: Vec<HistoryRecord>,
    /// There may be more: ask again with this number as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// The lines passed over because they cannot be read: torn by a crash, or damaged.
    pub unreadable: u64,
    /// The numbers passed over because no line has them.
    pub missing: u64,
}
