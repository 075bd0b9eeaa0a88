//! The effect of a change before it is made.

use serde::{Deserialize, Serialize};

use crate::{Class, ClassKind, PolicyView};

/// The text of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfigurationText {
    /// The file's name, for messages. The agent does not open it.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// The effect of a change. An empty plan changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Plan {
    /// Settings beside classes that change, and the sum of the promised minima.
    pub settings: Vec<PlannedSetting>,
    /// The classes and groups that change.
    pub classes: Vec<PlannedChange>,
    /// The same on links beside the main one, where a class changes otherwise there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<PlannedLink>,
}

/// The changes on a link beside the main one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlannedLink {
    /// The link's device.
    pub link: String,
    /// The classes and groups that change otherwise than on the main link.
    pub classes: Vec<PlannedChange>,
}

/// A setting that changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlannedSetting {
    /// The section and key.
    pub key: String,
    /// Its value now.
    pub before: String,
    /// Its value after the change.
    pub after: String,
}

/// A class or group that changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlannedChange {
    /// The name in commands and output.
    pub name: String,
    /// The part that reported it.
    pub source: String,
    /// The kind of class.
    pub kind: ClassKind,
    /// The class now; `None` if the change adds it.
    pub before: Option<PlannedState>,
    /// The class after the change; `None` if the change removes it.
    pub after: Option<PlannedState>,
}

/// The part of a class that a plan compares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlannedState {
    /// The policy in force.
    pub policy: PolicyView,
    /// The group it belongs to.
    pub group: Option<String>,
    /// Host-side interfaces of the class.
    pub interfaces: Vec<String>,
    /// Selectors of its packets.
    pub selects: Vec<String>,
    /// Whether it is on this node.
    pub present: bool,
    /// The reason if the minimum that is asked for is not promised.
    pub not_promised: Option<String>,
    /// The policy of what arrives, if the node shares its download and the class has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<PolicyView>,
    /// The reason if the minimum of it that is asked for is not promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_not_promised: Option<String>,
}

/// A change that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Undone {
    /// When that change was made, milliseconds since the epoch.
    pub made_ms: u64,
    /// The names whose policy it had set. Empty for a change of the link's capacity.
    pub names: Vec<String>,
    /// The settings that differ now, if it had changed the link's capacity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<PlannedSetting>,
    /// The classes that differ now.
    pub changes: Vec<PlannedChange>,
    /// The same on links beside the main one, where a class differs otherwise there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<PlannedLink>,
    /// These classes now.
    pub classes: Vec<Class>,
}
