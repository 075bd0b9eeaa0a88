//! Weir's rules for the namespaces of an experiment, put in force in the agent's way.

use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use weir_bpf::CongestionRule;
use weir_cc::{Action, Rule, RuleEntry};
use weir_datapath::congestion::{Congestion, SocketOwners, shapes};
use weir_discovery::NetnsRef;
use weir_netlab::topology::Netns;

/// The rule applies to all classes, so any class will do.
const HANDLE: u32 = 1;

/// A rule for connections to a port of the servers.
///
/// The programs are loaded once for all measurements. They end with their process at the latest.
pub(super) struct ForcedRule {
    hold: Congestion,
    owners: SocketOwners,
    rule: CongestionRule,
    is_in_force: bool,
    seen: u64,
}

impl ForcedRule {
    /// Loads the programs for these namespaces; port 0 means any port.
    ///
    /// # Errors
    /// If the kernel lacks a feature that the BPF program needs.
    pub(super) fn load(action: &Action, port: u16, namespaces: &[&Netns]) -> Result<ForcedRule> {
        let places: Vec<_> = namespaces
            .iter()
            .map(|netns| Ok((NetnsRef::at(&netns.path())?, HANDLE)))
            .collect::<Result<_>>()?;
        let owners = SocketOwners { namespaces: places, ..SocketOwners::default() };
        Ok(ForcedRule {
            hold: Congestion::open()?,
            owners,
            rule: compiled(action, port),
            is_in_force: false,
            seen: 0,
        })
    }

    /// Puts the rule in force, or lets the programs ignore all connections.
    ///
    /// # Errors
    /// If the programs' maps cannot be changed.
    pub(super) fn set(&mut self, is_in_force: bool) -> Result<()> {
        if std::mem::replace(&mut self.is_in_force, is_in_force) == is_in_force {
            return Ok(());
        }
        let owners = if is_in_force { self.owners.clone() } else { SocketOwners::default() };
        let failures = self.hold.apply(&owners, std::slice::from_ref(&self.rule))?;
        ensure!(failures.is_empty(), "{}", failures.join("; "));
        Ok(())
    }

    /// Checks that the rule has set its algorithm on at least `ends` ends of connections since the last call.
    ///
    /// # Errors
    /// If it has not. The measurement is then not about the rule.
    pub(super) fn check(&mut self, ends: u64) -> Result<()> {
        let set = self.hold.counts()?.set;
        let reached = set - std::mem::replace(&mut self.seen, set);
        ensure!(reached >= ends, "the rule reached {reached} of {ends} ends of connections");
        Ok(())
    }

    /// Removes the programs.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub(super) fn remove(self) -> Result<()> {
        self.hold.remove().context("cannot take the rule away")
    }
}

/// The rule over IPv4, in the form of the kernel's table.
fn compiled(action: &Action, port: u16) -> CongestionRule {
    let rule = Rule { port: (port > 0).then_some(port), ..Rule::default() };
    let everywhere = IpNet::new_assert(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
    let (rank, action) = (rule.rank(), action.clone());
    shapes::rule(&RuleEntry { handle: 0, port, direction: None, to: everywhere, rank, number: 1, action })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weirs_own_rule_is_bbr_in_a_small_window_for_the_first_mib_then_cubic() {
        let rule = compiled(&Rule::default().action(), 5301);
        assert_eq!((&rule.start[..4], &rule.then[..6]), (&b"bbr\0"[..], &b"cubic\0"[..]));
        assert_eq!((rule.after_bytes, rule.window_segments, rule.port), (1 << 20, 128, 5301));
    }
}
