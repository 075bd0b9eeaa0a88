//! Plain tc HTB on the uplink, as the manual pages teach it.
//!
//! Each container has one class, found by its source address. The script computes rates once, for all
//! containers. A container with a minimum has it as its rate; the others divide the rest by weight. A maximum
//! is a ceiling. The script leaves bursts, quanta and queues to tc.
//!
//! The comparison shows what this setup lacks:
//! - Idle shares are lent by quantum instead of weight.
//! - Masqueraded packets have no container's address.
//! - Senders lose packets instead of being held back.
//!
//! One form is the kernel's DRR instead of HTB: the scheduler that the paper's Fig. 3 tries.

use std::{fmt::Write as _, net::IpAddr};

use anyhow::Result;
use weir_netlab::topology::{Family, Topology, UPLINK};
use weir_share::Policy;
use weir_units::BitRate;

use super::{interface::Control, kind::TcForm};

use crate::scenario::{Case, HOST, Scenario};

/// Bytes of an Ethernet frame without its check sum; a quantum of 1 is one such packet.
const FRAME: u64 = 1514;

/// The script as lines for `tc -batch`.
///
/// `classes` holds a source address and a policy each; the class without an address gets all other packets.
#[must_use]
pub(crate) fn script(form: TcForm, capacity: BitRate, classes: &[(Option<IpAddr>, Policy)]) -> String {
    if form == TcForm::Drr {
        return drr(classes);
    }
    let link = capacity.bits_per_sec();
    let mut text = format!(
        "qdisc add dev {UPLINK} root handle 1: htb default 2\n\
         class add dev {UPLINK} parent 1: classid 1:1 htb rate {link}bit ceil {link}bit\n"
    );
    if classes.iter().all(|(address, _)| address.is_some()) {
        let _ =
            writeln!(text, "class add dev {UPLINK} parent 1:1 classid 1:2 htb rate 100kbit ceil {link}bit");
    }
    let rates = match form {
        TcForm::Rates => rates(capacity, classes),
        TcForm::Quantum | TcForm::Drr => vec![8_000; classes.len()],
    };
    for (index, ((address, policy), rate)) in classes.iter().zip(rates).enumerate() {
        let minor = address.map_or(2, |_| index + 16);
        let ceil = policy.ceiling().bits_per_sec().min(link);
        let _ = write!(
            text,
            "class add dev {UPLINK} parent 1:1 classid 1:{minor:x} htb rate {rate}bit ceil {ceil}bit"
        );
        if form == TcForm::Quantum {
            let _ = write!(text, " quantum {}", FRAME * u64::from(policy.weight().get()));
        }
        text.push('\n');
        if let Some(address) = address {
            text.push_str(&filter(*address, minor));
        }
    }
    text
}

/// The line that sends the packets of an address to a class.
fn filter(address: IpAddr, minor: usize) -> String {
    let (protocol, selector, prefix) = match address {
        IpAddr::V4(_) => ("ip", "ip", 32),
        IpAddr::V6(_) => ("ipv6", "ip6", 128),
    };
    format!(
        "filter add dev {UPLINK} parent 1: protocol {protocol} prio 1 u32 match {selector} src {address}/{prefix} flowid 1:{minor:x}\n"
    )
}

/// The kernel's DRR as the uplink's own queue. It has no rate, and drops what no filter names.
fn drr(classes: &[(Option<IpAddr>, Policy)]) -> String {
    let mut text = format!("qdisc add dev {UPLINK} root handle 1: drr\n");
    let others = classes.iter().find(|(address, _)| address.is_none());
    let quantum = |policy: &Policy| FRAME * u64::from(policy.weight().get());
    let rest = others.map_or(FRAME, |(_, policy)| quantum(policy));
    let _ = writeln!(text, "class add dev {UPLINK} parent 1: classid 1:2 drr quantum {rest}");
    for (index, (address, policy)) in classes.iter().enumerate() {
        let (Some(address), minor) = (address, index + 16) else { continue };
        let quantum = quantum(policy);
        let _ = writeln!(text, "class add dev {UPLINK} parent 1: classid 1:{minor:x} drr quantum {quantum}");
        text.push_str(&filter(*address, minor));
    }
    let _ =
        writeln!(text, "filter add dev {UPLINK} parent 1: protocol all prio 2 u32 match u32 0 0 flowid 1:2");
    text
}

/// Each class's rate. A minimum is a rate; the other classes divide the rest by weight, up to their maximum.
fn rates(capacity: BitRate, classes: &[(Option<IpAddr>, Policy)]) -> Vec<u64> {
    let promised: u64 = classes.iter().map(|(_, p)| p.floor().bits_per_sec()).sum();
    let rest = capacity.bits_per_sec().saturating_sub(promised);
    let weights: u64 =
        classes.iter().filter(|(_, p)| p.min().is_none()).map(|(_, p)| u64::from(p.weight().get())).sum();
    classes
        .iter()
        .map(|(_, policy)| match policy.min() {
            Some(min) => min.bits_per_sec(),
            None => BitRate(rest)
                .scale(policy.weight().get().into(), weights.max(1))
                .bits_per_sec()
                .min(policy.ceiling().bits_per_sec())
                .max(8_000),
        })
        .collect()
}

/// The script at work, rewritten from scratch for each case.
pub(super) struct Script<'t> {
    topology: &'t Topology,
    form: TcForm,
    capacity: BitRate,
    family: Family,
    applied: bool,
    record: String,
}

/// The kernel has no DRR.
#[derive(Debug, thiserror::Error)]
#[error("this kernel has no DRR (CONFIG_NET_SCH_DRR, module sch_drr): {why}")]
pub(super) struct NoDrr {
    /// The words of tc.
    pub(super) why: String,
}

impl<'t> Script<'t> {
    /// # Errors
    /// [`NoDrr`] if the scenario asks for it.
    pub(super) fn new(topology: &'t Topology, scenario: &Scenario) -> Result<Script<'t>> {
        if scenario.tc == TcForm::Drr {
            let node = topology.node();
            node.tc(&format!("qdisc add dev {UPLINK} root handle 1: drr\n"))
                .map_err(|error| NoDrr { why: error.root_cause().to_string() })?;
            node.tc(&format!("qdisc del dev {UPLINK} root\n"))?;
        }
        Ok(Script {
            topology,
            form: scenario.tc,
            capacity: scenario.capacity,
            family: scenario.family,
            applied: false,
            record: String::new(),
        })
    }
}

impl Control for Script<'_> {
    fn apply(&mut self, case: &Case) -> Result<()> {
        let mut classes = Vec::new();
        for (label, setting) in case.settings() {
            let address = match label {
                HOST => None,
                container => Some(self.topology.container(container)?.address(self.family)),
            };
            classes.push((address, setting.policy()?));
        }
        let script = script(self.form, self.capacity, &classes);
        if self.applied {
            self.topology.node().tc(&format!("qdisc del dev {UPLINK} root\n"))?;
            self.applied = false;
        }
        self.topology.node().tc(&script)?;
        self.applied = true;
        let _ = writeln!(self.record, "# {}\n{script}", case.name);
        Ok(())
    }

    fn record(&self) -> Option<String> {
        Some(self.record.clone())
    }
}

#[cfg(test)]
mod tests {
    use weir_share::Weight;

    use super::*;

    fn class(last: u8, weight: u32, min: Option<u64>, max: Option<u64>) -> (Option<IpAddr>, Policy) {
        let policy =
            Policy::new(Weight::new(weight).unwrap(), min.map(BitRate::mbit), max.map(BitRate::mbit))
                .unwrap();
        (Some([10, 97, 1, last].into()), policy)
    }

    #[test]
    fn a_minimum_is_a_rate_and_the_rest_is_divided_by_weight() {
        let classes = [class(1, 1, Some(30), None), class(2, 2, None, None), class(3, 3, None, Some(15))];
        assert_eq!(rates(BitRate::mbit(90), &classes), [30_000_000, 24_000_000, 15_000_000]);
    }

    #[test]
    fn the_script_reads_as_a_person_would_write_it() {
        let text = script(TcForm::Rates, BitRate::mbit(95), &[class(1, 1, None, None)]);
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "qdisc add dev up0 root handle 1: htb default 2",
                "class add dev up0 parent 1: classid 1:1 htb rate 95000000bit ceil 95000000bit",
                "class add dev up0 parent 1:1 classid 1:2 htb rate 100kbit ceil 95000000bit",
                "class add dev up0 parent 1:1 classid 1:10 htb rate 95000000bit ceil 95000000bit",
                "filter add dev up0 parent 1: protocol ip prio 1 u32 match ip src 10.97.1.1/32 flowid 1:10",
            ]
        );
        let quanta = script(TcForm::Quantum, BitRate::mbit(95), &[class(1, 3, None, None)]);
        assert!(quanta.contains("rate 8000bit ceil 95000000bit quantum 4542\n"), "{quanta}");
    }

    #[test]
    fn drr_has_quanta_and_no_rate() {
        let text = script(TcForm::Drr, BitRate::mbit(95), &[class(1, 3, None, None)]);
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "qdisc add dev up0 root handle 1: drr",
                "class add dev up0 parent 1: classid 1:2 drr quantum 1514",
                "class add dev up0 parent 1: classid 1:10 drr quantum 4542",
                "filter add dev up0 parent 1: protocol ip prio 1 u32 match ip src 10.97.1.1/32 flowid 1:10",
                "filter add dev up0 parent 1: protocol all prio 2 u32 match u32 0 0 flowid 1:2",
            ]
        );
    }

    #[test]
    fn the_host_is_whatever_matches_no_container() {
        let host = (None, class(0, 2, None, None).1);
        let text = script(TcForm::Rates, BitRate::mbit(90), &[class(1, 1, None, None), host]);
        assert!(text.contains("classid 1:2 htb rate 60000000bit"), "{text}");
        assert!(!text.contains("100kbit"), "{text}");
    }
}
