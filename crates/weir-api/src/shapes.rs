use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use weir_share::Weight;
use weir_units::{BitRate, Bytes};

/// The kind of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A container that a runtime told of.
    Container,
    /// A named network namespace.
    Netns,
    /// An interface named in the configuration.
    Interface,
    /// Processes or host-network containers, known by their cgroup.
    Cgroup,
    /// Packets of anybody that match what the class selects.
    Selector,
    /// The host's own traffic.
    Host,
    /// Traffic that belongs to no class.
    Default,
    /// ARP, neighbour discovery, DHCP.
    Control,
    /// A group: its members share what it gets.
    Group,
}

/// Whether a class takes part now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// Sent or queued something in the last moments.
    Active,
    /// Has a class, sends nothing.
    Idle,
    /// Its container is not here now; the policy set by hand waits for it.
    Absent,
}

/// The origin of a value of a policy, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The built-in value.
    Default,
    /// `[defaults]` of the configuration file.
    Defaults,
    /// A label of the container.
    Label,
    /// A `[[class]]` of the configuration file.
    Config,
    /// `weir set`, or the API.
    Set,
    /// An agreement in force.
    Agreement,
}

/// A policy in force, and where each of its values comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Relative share.
    pub weight: Weight,
    /// Floor, bit/s.
    pub min: Option<BitRate>,
    /// Ceiling, bit/s.
    pub max: Option<BitRate>,
    /// The origin of the weight.
    pub weight_origin: Origin,
    /// The origin of the floor.
    pub min_origin: Origin,
    /// The origin of the ceiling.
    pub max_origin: Origin,
}

/// One sharer of the link, as `weir ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// The name people use.
    pub name: String,
    /// The source that told of it: `docker`, `netns`, `config`, `weir`.
    pub source: String,
    /// The kind of the class.
    pub kind: Kind,
    /// Group it belongs to.
    pub group: Option<String>,
    /// The scheduler's class, as tc prints it, e.g. `1:1a`; none while absent.
    pub handle: Option<String>,
    /// Host-side interfaces whose traffic is its.
    pub interfaces: Vec<String>,
    /// Packets that belong to it, from any sender: `tcp port 8081 remote 10.0.0.0/8`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selects: Vec<String>,
    /// Takes part now?
    pub activity: Activity,
    /// Policy in force.
    pub policy: Policy,
    /// The rate that it may send now, section 3 of the contract.
    pub allocation: BitRate,
    /// The rate that it sent over the last second.
    pub rate: BitRate,
    /// The rate that it would send; none if it would take any rate.
    pub demand: Option<BitRate>,
    /// Sent over the link since the class exists.
    pub bytes: Bytes,
    /// Packets sent over the link (super-packets count their segments).
    pub packets: u64,
    /// Packets dropped because the class's queue was full.
    pub drops: u64,
    /// Bytes waiting now.
    pub backlog: Bytes,
    /// Packets waiting now.
    pub backlog_packets: u64,
    /// How long the class has had a queue, ms: the time its senders were held back.
    pub backpressured_ms: u64,
    /// Bytes that stayed on this node and are not charged to the link.
    pub local_bytes: Bytes,
    /// Does the kernel hold what is configured?
    pub enforced: bool,
    /// If not: why, and the way out.
    pub not_enforced_because: Option<String>,
    /// The minimum that is asked for and not promised; `policy.min` is what is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpromised: Option<BitRate>,
    /// The agreement that its policy is from, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<String>,
}

/// The agent and its link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// weir's version.
    pub version: String,
    /// Agent's process id.
    pub pid: u32,
    /// Seconds since the agent started.
    pub uptime_s: u64,
    /// The device whose egress is shared.
    pub link: String,
    /// Its configured capacity.
    pub capacity: BitRate,
    /// The rate that all classes sent over the last second.
    pub rate: BitRate,
    /// Sum of the floors promised.
    pub reserved: BitRate,
    /// The rate that may be promised in all.
    pub reservable: BitRate,
    /// What enforces: `bpf`, `htb`, `edt`, `bpf-credit`, `pacing`, `user` or `credit-experiment`.
    pub engine: String,
    /// Which allocator: `water-filling`, `credit`, `additive`.
    pub allocator: String,
    /// How packets are caught: `tcx` or `clsact`.
    pub attach: String,
    /// Whether TCP sockets are paced to their class's share.
    #[serde(default)]
    pub pacing: bool,
    /// Classes in all.
    pub classes: usize,
    /// Classes active now.
    pub active: usize,
    /// Writes to the kernel's scheduler since the start, for "changes nothing when nothing changes".
    pub class_changes: u64,
    /// Times that weir found its objects altered and put them right.
    pub repairs: u64,
    /// The longest delay of a tick of the agent's loop since the start, microseconds.
    #[serde(default)]
    pub max_tick_delay_us: u64,
    /// Where the scheduler is a process: how often it was kept from running for longer than it makes
    /// up for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<u64>,
    /// The link's time that was lost so, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_us: Option<u64>,
    /// The configuration file.
    pub config: String,
    /// If the file changed and the new text was refused: why. The old one is in force.
    pub config_error: Option<String>,
    /// The parts of the configuration that are not enforced, and the reasons.
    pub warnings: Vec<String>,
    /// Notices of damage to the stored state, until someone acknowledges them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// A change to one class's policy: what is left out stays, `null` or `"none"` takes away
/// what `weir set` had set, so that config, label or default show through.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// Which class.
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
}

/// Tells `null` and `"none"` (`Some(None)`) from a field left out (`None`).
fn present<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    if value.is_null() || value == "none" {
        return Ok(Some(None));
    }
    T::deserialize(value).map(|value| Some(Some(value))).map_err(serde::de::Error::custom)
}

/// Changes that are applied all together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPolicies {
    /// One entry a class.
    pub changes: Vec<PolicyChange>,
    /// Keep the policy for a name that is not here now, for when it comes.
    #[serde(default)]
    pub allow_absent: bool,
}

/// Why a class gets what it gets, now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The class.
    pub class: Class,
    /// The reasoning, one sentence a line, in the order it was done.
    pub reasons: Vec<String>,
    /// The other classes that share the link now: name, weight, allocation.
    pub sharers: Vec<Sharer>,
    /// The values by origin, strongest first.
    pub origins: Vec<String>,
}

/// One line of [`Explanation::sharers`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharer {
    /// Class or group.
    pub name: String,
    /// Weight.
    pub weight: Weight,
    /// The rate that it may send.
    pub allocation: BitRate,
    /// `floor`, `ceiling`, `demand` or `weight`: what decides its allocation.
    pub bound: String,
}

/// The result of `weir doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Doctor {
    /// One line a check.
    pub checks: Vec<Check>,
}

/// One check of `weir doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The name of the check.
    pub name: String,
    /// Result.
    pub verdict: Verdict,
    /// The result.
    pub found: String,
    /// If not ok: the way out.
    pub advice: Option<String>,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but less well.
    Warn,
    /// Does not work.
    Fail,
}

/// Something that happened, as `weir events` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Grows by one an event; restarts with the agent.
    pub seq: u64,
    /// Milliseconds since the epoch.
    pub time_ms: u64,
    /// `class-added`, `class-removed`, `policy-changed`, `repaired`, `reloaded`,
    /// `config-refused`, `not-enforced`, `promised` (a minimum that was not), `link` (renamed, gone, back, up, down), `started`,
    /// `stopping`; `lost` if the reader was too slow for some. Of agreements:
    /// `agreement-accepted`, `agreement-pending`, `agreement-rejected`, `agreement-renewed`,
    /// `agreement-activated`, `agreement-expired`, `agreement-terminated`,
    /// `agreement-quota-used-up`, `agreement-quota-back`.
    pub what: String,
    /// The class, if it is about one.
    pub class: Option<String>,
    /// A sentence.
    pub detail: String,
    /// The agreement's id, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<String>,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// From the agent's loop: `unknown-name`, `ambiguous-name`, `bad-request`, `no-capacity`,
    /// `engine`. From the server in front of it: `bad-request`, `unknown-route`,
    /// `bad-method`, `too-large`, `busy`, `stopping`.
    pub code: String,
    /// The attempt, its object, the numbers, the way out.
    pub message: String,
    /// For `no-capacity`: what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<BitRate>,
    /// For `no-capacity`: what is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<BitRate>,
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
