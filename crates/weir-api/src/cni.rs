//! CniContainers of containers to networks, as the CNI plugin `weir cni` reports them.

use std::{fmt, net::IpAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::Class;

/// The identity of an attachment: a container and an interface in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CniKey {
    /// The container's id, as the runtime gave it.
    pub container: String,
    /// The interface inside the container.
    pub interface: String,
}

impl fmt::Display for CniKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of container {}", self.interface, self.container)
    }
}

/// A container's attachment to a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CniAttachment {
    /// Container and interface.
    #[serde(flatten)]
    pub key: CniKey,
    /// The name of the network's configuration.
    pub network: String,
    /// The file of the container's network namespace.
    pub netns: PathBuf,
    /// The inode of that namespace. The agent refuses another namespace under the same path.
    pub inode: u64,
    /// The pod's Kubernetes namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The pod's uid. A pod that is made again under the name of an earlier one has another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The addresses that the network gave to the interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The policy that is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wishes: Vec<Wish>,
}

/// A value that is asked for, unread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Wish {
    /// The place of the value.
    pub by: WishPlace,
    /// The key there, such as `weir.dev/max`.
    pub key: String,
    /// The value there.
    pub value: String,
}

/// The place where a [`Wish`] stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WishPlace {
    /// The plugin's configuration on the node.
    Plugin,
    /// `bandwidth` of the runtime's configuration (`runtimeConfig`).
    Bandwidth,
    /// `CNI_ARGS`.
    Argument,
    /// An annotation of the pod.
    Annotation,
    /// A resource limit of the pod's containers, which the cluster's scheduler counts. Only the agent itself
    /// reads it.
    Limit,
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match self.by {
            WishPlace::Plugin => write!(f, "key {key} of the plugin's configuration"),
            WishPlace::Bandwidth => write!(f, "runtimeConfig.bandwidth.{key}"),
            WishPlace::Argument => write!(f, "CNI argument {key}"),
            WishPlace::Annotation => write!(f, "annotation {key}"),
            WishPlace::Limit => write!(f, "resource limit {key}"),
        }
    }
}

/// The state of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CniAttached {
    /// The class of the container.
    pub class: Class,
    /// The reason if the class is not in force. A wish that is not enforced alone is no fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Wishes that are ignored, cut or not enforced, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// The attachments of one network that are to stay. The agent forgets the others of that network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CniKeep {
    /// The name of the network's configuration.
    pub network: String,
    /// The attachments that are valid.
    pub valid: Vec<CniKey>,
}

/// The attachments that the agent forgot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CniForgotten {
    /// Those that it knew.
    pub attachments: Vec<CniKey>,
}
