use crate::{ErrorCode, EventKind, Follows, NotEnforced, OtherLink};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use weir_share::Weight;
use weir_units::{BitRate, Bytes};

/// The kind of sender or traffic that a class stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClassKind {
    /// A container that a runtime reported.
    Container,
    /// A named network namespace.
    Netns,
    /// An interface named in the configuration.
    Interface,
    /// Processes or host-network containers, known by their cgroup.
    Cgroup,
    /// Packets of any sender that match the class's selectors.
    Selector,
    /// The host's own traffic.
    Host,
    /// Traffic that belongs to no other class.
    Default,
    /// ARP, neighbour discovery, DHCP.
    Control,
    /// A group. Its members share the group's allocation.
    Group,
}

/// Whether a class sends now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// The class sent or queued something in the last moments.
    Active,
    /// The class exists and sends nothing.
    Idle,
    /// Its container is not here now; the policy set by hand is kept for it.
    Absent,
}

/// The source of a policy's value, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The built-in value.
    Default,
    /// `[defaults]` of the configuration file.
    Defaults,
    /// A label of the container, or a wish of its pod by CNI.
    Label,
    /// A `[[class]]` of the configuration file.
    Config,
    /// `weir set`, or the API.
    Set,
    /// An agreement in force.
    Agreement,
}

/// A policy in force, with the origin of each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PolicyView {
    /// Relative share.
    pub weight: Weight,
    /// Floor, bit/s.
    pub min: Option<BitRate>,
    /// Ceiling, bit/s.
    pub max: Option<BitRate>,
    /// Origin of the weight.
    pub weight_origin: Origin,
    /// Origin of the floor.
    pub min_origin: Origin,
    /// Origin of the ceiling.
    pub max_origin: Origin,
}

/// One sharer of the link, as `weir ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Class {
    /// The name in commands and output.
    pub name: String,
    /// The part that reported it: `cni`, `docker`, `podman`, `containerd`, `incus`, `libvirt`, `lxc`, `netns`, `config`,
    /// `weir`.
    pub source: String,
    /// The kind of class.
    pub kind: ClassKind,
    /// The group it belongs to.
    pub group: Option<String>,
    /// The scheduler's class as tc prints it, e.g. `1:1a`; absent classes have none.
    pub handle: Option<String>,
    /// Host-side interfaces of this class.
    pub interfaces: Vec<String>,
    /// Selectors of its packets, from any sender: `tcp port 8081 remote 10.0.0.0/8`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selects: Vec<String>,
    /// Whether it sends now.
    pub activity: Activity,
    /// Policy in force.
    pub policy: PolicyView,
    /// The rate it may send at now.
    pub allocation: BitRate,
    /// The rate it sent at over the last second.
    pub rate: BitRate,
    /// The rate it would send at without a limit; `None` if it takes all it is given.
    pub demand: Option<BitRate>,
    /// Bytes sent over the link since the class exists.
    pub bytes: Bytes,
    /// Packets sent over the link; each segment of a super-packet counts.
    pub packets: u64,
    /// Packets dropped because the class's queue was full.
    pub drops: u64,
    /// Bytes waiting now.
    pub backlog: Bytes,
    /// Packets waiting now.
    pub backlog_packets: u64,
    /// How long the class has had a queue, ms. Its senders were held back for that time.
    pub backpressured_ms: u64,
    /// Bytes to this node and to exempt networks. They are not charged to the link.
    pub local_bytes: Bytes,
    /// Whether the kernel holds the configured policy.
    pub enforced: bool,
    /// The reason and the remedy if it is not enforced.
    pub not_enforced_because: Option<String>,
    /// The kind of that reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_enforced: Option<NotEnforced>,
    /// The minimum that is asked for and not promised. `policy.min` is the promised one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpromised: Option<BitRate>,
    /// The agreement that its policy comes from, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<String>,
    /// Its part of what arrives, if the node shares its download and the class has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Download>,
    /// Its parts of the other links, if the node shares several. The figures above are those of the main link, which
    /// the default route takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_links: Vec<OnLink>,
    /// Packets that left by another link than their route said, for example by a mark of netfilter. They are charged
    /// to both links.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub moved_packets: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Class {
    /// The class with its figures on another link in place of those on the main one.
    #[must_use]
    pub fn on(&self, part: &OnLink) -> Class {
        Class {
            activity: part.activity,
            policy: part.policy,
            allocation: part.allocation,
            rate: part.rate,
            demand: part.demand,
            bytes: part.bytes,
            packets: part.packets,
            drops: part.drops,
            backlog: part.backlog,
            backlog_packets: part.backlog_packets,
            backpressured_ms: part.backpressured_ms,
            enforced: part.enforced,
            not_enforced: part.not_enforced.clone(),
            not_enforced_because: part.not_enforced_because.clone(),
            unpromised: part.unpromised,
            down: part.down.clone(),
            agreement: None,
            on_links: Vec::new(),
            ..self.clone()
        }
    }
}

/// A class's part of a link beside the main one. Each value is as in [`Class`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OnLink {
    /// The link's device.
    pub link: String,
    /// Whether it sends there now.
    pub activity: Activity,
    /// The policy in force there. A minimum may be promised on one link alone, and agreements promise on the main one.
    pub policy: PolicyView,
    /// The rate that it may send at there now.
    pub allocation: BitRate,
    /// The rate that it sent at there over the last second.
    pub rate: BitRate,
    /// The rate that it would send at there without a limit; `None` if it takes all it is given.
    pub demand: Option<BitRate>,
    /// Bytes sent over this link.
    pub bytes: Bytes,
    /// Packets sent over this link; each segment of a super-packet counts.
    pub packets: u64,
    /// Packets dropped because the class's queue was full.
    pub drops: u64,
    /// Bytes waiting now.
    pub backlog: Bytes,
    /// Packets waiting now.
    pub backlog_packets: u64,
    /// How long the class has had a queue, ms.
    pub backpressured_ms: u64,
    /// Whether the kernel holds the policy there.
    pub enforced: bool,
    /// The kind of reason if it is not enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_enforced: Option<NotEnforced>,
    /// The reason and the remedy if it is not enforced.
    pub not_enforced_because: Option<String>,
    /// The minimum that is asked for and not promised there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpromised: Option<BitRate>,
    /// Its part of what arrives by this link, if the node shares the download.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Download>,
}

/// A class's part of what arrives by the link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Download {
    /// Whether something arrives for it now.
    pub activity: Activity,
    /// Policy in force.
    pub policy: PolicyView,
    /// The rate that it may receive at now.
    pub allocation: BitRate,
    /// The rate that it received at over the last second.
    pub rate: BitRate,
    /// The rate that it would receive at without a limit; `None` if it takes all it is given.
    pub demand: Option<BitRate>,
    /// Bytes that arrived since the class exists.
    pub bytes: Bytes,
    /// Packets that arrived; each segment of a super-packet counts.
    pub packets: u64,
    /// Packets dropped because the class's queue was full.
    pub drops: u64,
    /// The part of its share that pays for dropped packets now. 0 without `charge_drops`.
    #[serde(default)]
    pub charged: BitRate,
    /// Bytes waiting now.
    pub backlog: Bytes,
    /// Packets waiting now.
    pub backlog_packets: u64,
    /// Whether the kernel holds the policy.
    pub enforced: bool,
    /// The kind of reason if it is not enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_enforced: Option<NotEnforced>,
    /// The reason and the remedy if it is not enforced.
    pub not_enforced_because: Option<String>,
    /// The minimum that is asked for and not promised. `policy.min` is the promised one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpromised: Option<BitRate>,
}

/// The download of the node, which [`Status`] is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DownloadStatus {
    /// Its capacity now.
    pub capacity: BitRate,
    /// The configured capacity, if another one set by hand is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured_capacity: Option<BitRate>,
    /// The follower of its rate, if it is configured as a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Follows>,
    /// The rate of all that arrived over the last second.
    pub rate: BitRate,
    /// Sum of the floors promised.
    pub reserved: BitRate,
    /// The sum of the floors that may be promised.
    pub reservable: BitRate,
    /// The part of the capacity that pays for dropped packets, beside what classes pay themselves.
    #[serde(default)]
    pub charged: BitRate,
    /// The engine: `htb`.
    pub engine: String,
    /// The device through which what arrives passes.
    pub device: String,
    /// The number of classes for which something arrives.
    pub active: usize,
    /// Whether conntrack tells whose a flow behind NAT is of which nothing has left.
    pub conntrack: bool,
}

/// The agent and its link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Status {
    /// weir's version.
    pub version: String,
    /// Agent's process id.
    pub pid: u32,
    /// Seconds since the agent started.
    pub uptime_s: u64,
    /// The device whose egress weir divides. Of several links it is the main one, which the default route takes.
    pub link: String,
    /// The other links that are shared, if the configuration has several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_links: Vec<OtherLink>,
    /// The main link's capacity now.
    pub capacity: BitRate,
    /// The configured capacity, if another one set by hand is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured_capacity: Option<BitRate>,
    /// The follower of the link's rate, if the capacity is a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Follows>,
    /// The rate of all classes together over the last second.
    pub rate: BitRate,
    /// The framing of the line, if it is configured. Rates and bytes count what the line carries then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framing: Option<String>,
    /// Networks beside the device (`[link] exempt`). Packets to and from them are not scheduled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<String>,
    /// The download, if the node shares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadStatus>,
    /// Sum of the floors promised.
    pub reserved: BitRate,
    /// The sum of the floors that may be promised.
    pub reservable: BitRate,
    /// The engine: `bpf`, `htb`, `edt`, `bpf-credit`, `bpf-credit-paper`, `pacing`, `user` or `credit-experiment`.
    pub engine: String,
    /// The allocator: `water-filling`, `credit`, `additive`.
    pub allocator: String,
    /// How the programs are attached: `tcx` or `clsact`.
    pub attach: String,
    /// Whether TCP sockets are paced to their class's share.
    #[serde(default)]
    pub pacing: bool,
    /// The number of classes.
    pub classes: usize,
    /// The number of active classes.
    pub active: usize,
    /// Writes to the kernel's scheduler since the start. The number stays still while no class sends.
    pub class_changes: u64,
    /// How often weir found its objects altered and repaired them.
    pub repairs: u64,
    /// The longest delay of a tick of the agent's loop since the start, microseconds.
    #[serde(default)]
    pub max_tick_delay_us: u64,
    /// How often the scheduler process was delayed for longer than it can make up for. Only engines
    /// that run as a process have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<u64>,
    /// The link time lost in these delays, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_us: Option<u64>,
    /// The configuration file.
    pub config: String,
    /// The reason if the changed file was refused. The old configuration stays in force then.
    pub config_error: Option<String>,
    /// When the configuration in force was taken, milliseconds since the epoch.
    #[serde(default)]
    pub config_taken_ms: u64,
    /// Reasons why the link is not divided as configured. Without a reason it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_ready: Vec<String>,
    /// Parts of the configuration that are not enforced, with reasons.
    pub warnings: Vec<String>,
    /// Notices of damage to the stored state, until an operator acknowledges them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// Requests over TCP with a token that was not taken, since the start.
    #[serde(default)]
    pub failed_authentications: u64,
}

impl Status {
    /// The status with the figures of another link in place of those of the main one.
    #[must_use]
    pub fn on(&self, other: &OtherLink) -> Status {
        Status {
            link: other.device.clone(),
            capacity: other.capacity,
            configured_capacity: other.configured_capacity,
            follows: other.follows.clone(),
            rate: other.rate,
            exempt: other.exempt.clone(),
            download: other.download.clone(),
            reserved: other.reserved,
            reservable: other.reservable,
            active: other.active,
            ..self.clone()
        }
    }
}

/// The answer of `/healthz`: the agent's loop answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Health {
    /// True. An agent whose loop does not answer gives an [`Error`] instead.
    pub healthy: bool,
    /// Seconds since the agent started.
    pub uptime_s: u64,
}

/// The answer of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ready {
    /// Whether the link is divided as configured.
    pub ready: bool,
    /// The reasons if it is not.
    pub reasons: Vec<String>,
}

/// A change to one class's policy.
///
/// An omitted field stays as it is. `null` or `"none"` removes the value of `weir set`, so that the
/// configuration, label or default applies again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// The class's name.
    pub name: String,
    /// New weight.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub weight: Option<Option<Weight>>,
    /// New floor.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub min: Option<Option<BitRate>>,
    /// New ceiling.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub max: Option<Option<BitRate>>,
    /// The same of what arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<DownChange>,
}

/// A change to one class's policy of what arrives, as [`PolicyChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DownChange {
    /// New weight.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub weight: Option<Option<Weight>>,
    /// New floor.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub min: Option<Option<BitRate>>,
    /// New ceiling.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub max: Option<Option<BitRate>>,
}

/// Distinguishes `null` and `"none"` (`Some(None)`) from an omitted field (`None`).
pub(crate) fn present<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    if value.is_null() || value == "none" {
        return Ok(Some(None));
    }
    T::deserialize(value).map(|value| Some(Some(value))).map_err(serde::de::Error::custom)
}

/// Changes that are applied together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetPolicies {
    /// One entry per class.
    pub changes: Vec<PolicyChange>,
    /// Whether to keep the policy of an absent name until it appears.
    #[serde(default)]
    pub allow_absent: bool,
}

/// Why a class has its allocation now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// The class.
    pub class: Class,
    /// The reasoning in its order, one sentence a line.
    pub reasons: Vec<String>,
    /// The other classes and groups that share the link now.
    pub sharers: Vec<Sharer>,
    /// The values set at each origin, strongest first.
    pub origins: Vec<String>,
}

/// One line of [`Explanation::sharers`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sharer {
    /// Class or group.
    pub name: String,
    /// Weight.
    pub weight: Weight,
    /// The rate it may send at.
    pub allocation: BitRate,
    /// The limit that decides its allocation: `floor`, `ceiling`, `demand` or `weight`.
    pub bound: String,
}

/// The result of `weir doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Doctor {
    /// One line per check.
    pub checks: Vec<Check>,
}

/// One check of `weir doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Check {
    /// The subject of the check.
    pub name: String,
    /// The result.
    pub verdict: Verdict,
    /// The finding.
    pub found: String,
    /// The remedy if the check did not pass.
    pub advice: Option<String>,
}

impl Check {
    /// A check that passed.
    pub fn ok(name: impl Into<String>, found: impl Into<String>) -> Check {
        Check { name: name.into(), verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    /// A check that did not pass, with its remedy.
    pub fn bad(
        name: impl Into<String>,
        verdict: Verdict,
        found: impl Into<String>,
        advice: Option<&str>,
    ) -> Check {
        Check { name: name.into(), verdict, found: found.into(), advice: advice.map(str::to_owned) }
    }
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The check passed.
    Ok,
    /// It works, with a limitation.
    Warn,
    /// It does not work.
    Fail,
}

/// An event, as `weir events` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Grows by one per event and restarts with the agent.
    pub seq: u64,
    /// Milliseconds since the epoch.
    pub time_ms: u64,
    /// The kind of event.
    pub what: EventKind,
    /// The class that the event is about, if any.
    pub class: Option<String>,
    /// One sentence about it.
    pub detail: String,
    /// The id of the agreement that the event is about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<String>,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{message}")]
pub struct Error {
    /// The class of the error.
    pub code: ErrorCode,
    /// The request, its object, the numbers and the remedy.
    pub message: String,
    /// The rate asked for, with `no-capacity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<BitRate>,
    /// The free rate, with `no-capacity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<BitRate>,
}

impl Error {
    /// An error without rates.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Error {
        Error { code, message: message.into(), asked: None, free: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_tells_null_from_absent() {
        let change: PolicyChange = serde_json::from_str(r#"{"name":"a","min":null,"max":"20mbit"}"#).unwrap();
        assert_eq!(change.weight, None);
        assert_eq!(change.min, Some(None));
        assert_eq!(change.max, Some(Some(BitRate::mbit(20))));
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(text, r#"{"name":"a","min":null,"max":20000000}"#);
    }

    #[test]
    fn none_in_words_takes_a_value_away_and_other_words_do_not() {
        let change: PolicyChange =
            serde_json::from_str(r#"{"name":"a","weight":"none","max":"none"}"#).unwrap();
        assert_eq!((change.weight, change.min, change.max), (Some(None), None, Some(None)));
        for bad in [r#"{"name":"a","max":"no"}"#, r#"{"name":"a","weight":0}"#, r#"{"name":"a","min":-1}"#] {
            assert!(serde_json::from_str::<PolicyChange>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_misspelt_field_is_refused() {
        assert!(serde_json::from_str::<PolicyChange>(r#"{"name":"a","wieght":3}"#).is_err());
    }
}
