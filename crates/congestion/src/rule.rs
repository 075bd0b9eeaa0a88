use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weir_units::Bytes;

use crate::Algorithm;

/// A flow changes its algorithm after at most this much.
pub const MAX_AFTER: Bytes = Bytes(1 << 40);

/// A flow has at least this much room: a loss among fewer segments is seen by a time-out only.
pub const MIN_WINDOW: u16 = 4;

/// The opener of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// This side.
    Out,
    /// The far end; it was accepted here.
    In,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Direction::Out => "out",
            Direction::In => "in",
        })
    }
}

/// Connections that match every part that is given use the algorithm `start`, and from `after`
/// acknowledged bytes on the algorithm `then`. Without `start` it is weir's own rule: BBR for the
/// first MiB with at most 128 segments on the way, then CUBIC.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The owner: a container, a namespace, a class with a cgroup, `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Or those of all members of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The far end's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub to: Option<IpNet>,
    /// The service's port: the far end's where the connection was opened here, else the own one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The opener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// The algorithm from the first packet on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Algorithm>,
    /// The bytes that must be acknowledged for the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Bytes>,
    /// The algorithm then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Algorithm>,
    /// The most segments on the way until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u16>,
    /// The origin.
    #[serde(skip)]
    pub origin: Origin,
}

/// The origin of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The configuration.
    #[default]
    Config,
    /// A trial, as it was asked to.
    Advice,
    /// A person, at run time.
    Set,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Origin::Config => "config",
            Origin::Advice => "advice",
            Origin::Set => "set",
        })
    }
}

/// A rule contradicts itself, or means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Bits behind the prefix.
    #[error("to = \"{found}\" has bits behind its prefix: write {meant}")]
    HostBits {
        /// The text.
        found: IpNet,
        /// The network that it is in.
        meant: IpNet,
    },
    /// No connection leads there.
    #[error("to = \"{0}\" is no destination of a connection: {1}")]
    NoDestination(IpNet, &'static str),
    /// Port 0.
    #[error("port 0 is no port: write 1 to 65535, or leave it out for all")]
    NoPort,
    /// Two senders.
    #[error("container `{container}` and group `{group}` cannot both be asked for: leave one out")]
    TwoSenders {
        /// The container.
        container: String,
        /// The group.
        group: String,
    },
    /// `after` without `then`, or the other way round, or both without `start`.
    #[error("{given} needs {missing} beside it")]
    Half {
        /// The part that is there.
        given: &'static str,
        /// The part that is missing.
        missing: &'static str,
    },
    /// The change changes nothing.
    #[error("start and then are both {0}: leave after and then out")]
    NoChange(Algorithm),
    /// A threshold that no flow begins below, or none reaches.
    #[error("after = {0} is not between 1 byte and {MAX_AFTER}")]
    After(Bytes),
    /// A window in which nothing moves.
    #[error("window = {0}: at least {MIN_WINDOW} segments must have room on the way")]
    Window(u16),
}

/// A change in the flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// The acknowledged bytes.
    pub after: Bytes,
    /// The algorithm from there on.
    pub to: Algorithm,
    /// The most segments on the way until then; any number without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u16>,
}

/// The action of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Action {
    /// The algorithm of the first packet.
    pub start: Algorithm,
    /// The change in the flow, if there is one.
    pub change: Option<Change>,
}

impl Default for Action {
    /// BBR for the first MiB with at most 128 segments (185 kB) on the way, then CUBIC. It is the
    /// only rule tried that made the slowest small flows faster on every link and with every
    /// buffer. Without the bound BBR's start-up floods short buffers, for which long flows pay.
    fn default() -> Action {
        let name = |text: &str| text.parse::<Algorithm>().expect("a name");
        Action {
            start: name("bbr"),
            change: Some(Change { after: Bytes(1 << 20), to: name("cubic"), window: Some(128) }),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.change {
            None => write!(f, "{}", self.start),
            Some(Change { after, to, window: None }) => write!(f, "{}, {to} after {after}", self.start),
            Some(Change { after, to, window: Some(window) }) => {
                write!(f, "{} within {window} segments, {to} after {after}", self.start)
            }
        }
    }
}

/// Container, group, network, port, direction.
pub(crate) type Asked<'a> = (Option<&'a str>, Option<&'a str>, Option<IpNet>, Option<u16>, Option<Direction>);

impl Rule {
    /// The action.
    #[must_use]
    pub fn action(&self) -> Action {
        let Some(start) = &self.start else { return Action::default() };
        let change =
            self.after.zip(self.then.clone()).map(|(after, to)| Change { after, to, window: self.window });
        Action { start: start.clone(), change }
    }

    /// Tests the parts.
    ///
    /// # Errors
    /// [`RuleError`].
    pub fn check(&self) -> Result<(), RuleError> {
        if let (Some(container), Some(group)) = (&self.container, &self.group) {
            let (container, group) = (container.clone(), group.clone());
            return Err(RuleError::TwoSenders { container, group });
        }
        if let Some(to) = self.to {
            if to != to.trunc() {
                return Err(RuleError::HostBits { found: to, meant: to.trunc() });
            }
            if let Some(why) = absurd(to) {
                return Err(RuleError::NoDestination(to, why));
            }
        }
        if self.port == Some(0) {
            return Err(RuleError::NoPort);
        }
        let half = |given, missing| Err(RuleError::Half { given, missing });
        match (&self.start, self.after, &self.then) {
            (None, Some(_), _) => half("after", "start"),
            (None, _, Some(_)) => half("then", "start"),
            (_, None, None) if self.window.is_some() => half("window", "after and then"),
            (_, Some(_), None) => half("after", "then"),
            (_, None, Some(_)) => half("then", "after"),
            _ if self.window.is_some_and(|window| window < MIN_WINDOW) => {
                Err(RuleError::Window(self.window.unwrap_or(0)))
            }
            (_, Some(after), _) if after.0 == 0 || after > MAX_AFTER => Err(RuleError::After(after)),
            (Some(start), _, Some(then)) if start == then => Err(RuleError::NoChange(start.clone())),
            _ => Ok(()),
        }
    }

    /// Of several rules that match a connection the one with the greatest rank is its: the longest
    /// prefix first, then container before group before all, then one that names a port, then
    /// one that names a direction.
    #[must_use]
    pub fn rank(&self) -> u32 {
        // All of IPv4 is more than nothing said.
        let prefix = self.to.map_or(0, |to| u32::from(to.prefix_len()) + 1);
        let who = if self.container.is_some() { 3 } else { u32::from(self.group.is_some()) };
        prefix << 4 | who << 2 | u32::from(self.port.is_some()) << 1 | u32::from(self.direction.is_some())
    }

    /// Whether it is about the same connections as another.
    #[must_use]
    pub fn is_about_the_same_as(&self, other: &Rule) -> bool {
        self.asks() == other.asks()
    }

    /// The connections that it is for: all its conditions.
    pub(crate) fn asks(&self) -> Asked<'_> {
        (self.container.as_deref(), self.group.as_deref(), self.to, self.port, self.direction)
    }
}

/// Why no connection that a rule could be about leads there.
fn absurd(to: IpNet) -> Option<&'static str> {
    let within = |net: &str| net.parse::<IpNet>().is_ok_and(|net| net.contains(&to));
    if to.prefix_len() == 0 {
        return None;
    }
    match to.network() {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
            Some("IPv4 is written as IPv4, also for sockets of IPv6")
        }
        address if address.is_loopback() => Some("what stays on this node is left as it is"),
        address if address.is_multicast() => Some("TCP has no multicast"),
        _ if within("0.0.0.0/8") || within("::/128") => Some("no host has it"),
        _ if within("255.255.255.255/32") => Some("TCP has no broadcast"),
        _ => None,
    }
}

impl fmt::Display for Rule {
    /// The connections: `container web to 10.0.0.0/8 port 443 out`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.container.as_ref().map(|name| format!("container {name}")));
        parts.extend(self.group.as_ref().map(|name| format!("group {name}")));
        parts.extend(self.to.map(|to| format!("to {to}")));
        parts.extend(self.port.map(|port| format!("port {port}")));
        parts.extend(self.direction.map(|direction| direction.to_string()));
        f.pad(&if parts.is_empty() { "all".to_owned() } else { parts.join(" ") })
    }
}
