//! Weir and the setups that people use today for a download.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use weir_netlab::topology::{Topology, UPLINK};
use weir_share::Weight;
use weir_units::BitRate;

use crate::{
    control::{Agent, AgentSetup, kind::ControlKind},
    options::Options,
};

/// A way to shape what arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// `[link] download` of a `weir agent`.
    Weir,
    /// The same with `charge_drops`.
    WeirCharged,
    /// A token bucket on an ifb, without classes.
    Tbf,
    /// CAKE on an ifb: fair by container, and drops are charged.
    Cake,
    /// The kernel without changes.
    None,
}

/// The ifb of the setups by hand.
const IFB: &str = "down0";

impl Peer {
    /// The name in tables and plots.
    pub(super) fn name(self) -> &'static str {
        match self {
            Peer::Weir => "weir",
            Peer::WeirCharged => "weir, drops charged",
            Peer::Tbf => "ifb + tbf",
            Peer::Cake => "ifb + cake",
            Peer::None => "no control",
        }
    }

    /// The control that selects it on the command line.
    pub(super) fn control(self) -> ControlKind {
        match self {
            Peer::Weir | Peer::WeirCharged => ControlKind::Weir,
            Peer::Tbf | Peer::Cake => ControlKind::Tc,
            Peer::None => ControlKind::None,
        }
    }

    /// The lines for `tc -batch`, if it is a setup by hand.
    pub(super) fn script(self, capacity: BitRate) -> Option<String> {
        let rate = capacity.bits_per_sec();
        let qdisc = match self {
            // 20 ms of queue, and a burst of a super-packet.
            Peer::Tbf => {
                format!("tbf rate {rate}bit burst 65536 limit {}", (rate / 8 / 50).max(60_000) + 65_536)
            }
            Peer::Cake => format!("cake bandwidth {rate}bit ingress nat dual-dsthost"),
            Peer::Weir | Peer::WeirCharged | Peer::None => return None,
        };
        Some(format!(
            "qdisc add dev {IFB} root {qdisc}\nqdisc add dev {UPLINK} ingress\n\
             filter add dev {UPLINK} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev {IFB}\n"
        ))
    }

    /// Sets it up; weir's agent ends when the value is dropped.
    ///
    /// # Errors
    /// If the kernel lacks a part: only CAKE may be lacking, see [`Peer::lacks`].
    pub(super) fn start(
        self,
        capacity: BitRate,
        weights: &BTreeMap<String, Weight>,
        topology: &Topology,
        options: &Options,
    ) -> Result<Option<Agent>> {
        let node = topology.node();
        if let Some(script) = self.script(capacity) {
            node.ip(&format!("link add {IFB} type ifb\nlink set dev {IFB} up\n"))?;
            node.tc(&script).with_context(|| format!("cannot set up {}", self.name()))?;
            return Ok(None);
        }
        if self == Peer::None {
            return Ok(None);
        }
        let sections: String = weights
            .iter()
            .map(|(label, weight)| {
                let name = topology.container_name(label);
                format!("[[class]]\nname = \"{name}\"\ndown = {{ weight = {weight} }}\n\n")
            })
            .collect();
        let is_charged = self == Peer::WeirCharged;
        let rate = capacity.bits_per_sec();
        let link = format!("download = \"{rate}bit\"\ncharge_drops = {is_charged}\n{}", options.link);
        // The upload carries acknowledgements only, and weir divides it at the line's rate.
        let setup = AgentSetup::new(&options.weir, topology, capacity).link(&link).sections(&sections);
        Agent::start(&setup).map(Some)
    }

    /// The reason why it cannot be started, if the kernel is allowed to lack it.
    pub(super) fn lacks(self, error: &anyhow::Error) -> Option<String> {
        (self == Peer::Cake)
            .then(|| format!("no CAKE in this kernel (CONFIG_NET_SCH_CAKE): {}", words(error)))
    }
}

/// The words of tc about an error.
pub(super) fn words(error: &anyhow::Error) -> String {
    let why = error.root_cause().to_string();
    let own = why.split("Error: ").nth(1).and_then(|own| own.split(['\n', ';']).next());
    own.unwrap_or(&why).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setups_by_hand_redirect_what_arrives_to_an_ifb() {
        let text = Peer::Tbf.script(BitRate::mbit(19)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "qdisc add dev down0 root tbf rate 19000000bit burst 65536 limit 125536");
        assert_eq!(lines[1], "qdisc add dev up0 ingress");
        assert!(lines[2].ends_with("action mirred egress redirect dev down0"), "{text}");
        let cake = Peer::Cake.script(BitRate::mbit(19)).unwrap();
        assert!(
            cake.starts_with(
                "qdisc add dev down0 root cake bandwidth 19000000bit ingress nat dual-dsthost\n"
            )
        );
        assert_eq!([Peer::Weir, Peer::None].map(|peer| peer.script(BitRate::mbit(19))), [None, None]);
    }

    #[test]
    fn only_cake_may_be_lacking() {
        let error =
            || anyhow::anyhow!("`tc qdisc add`: Error: Specified qdisc kind is unknown.; Command failed -:1");
        let why = Peer::Cake.lacks(&error()).unwrap();
        assert!(why.ends_with("(CONFIG_NET_SCH_CAKE): Specified qdisc kind is unknown."), "{why}");
        assert_eq!(Peer::Tbf.lacks(&error()), None);
    }
}
