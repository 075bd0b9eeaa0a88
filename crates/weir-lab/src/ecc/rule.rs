//! Weir's own rule, put in force as the agent does it, for the namespaces of an experiment.

use anyhow::{Context, Result, ensure};
use weir_bpf::{CongestionRule, LocalPrefix};
use weir_cc::Rule;
use weir_host::{
    congestion::{Congestion, Homes},
    discover::NetnsRef,
};

use crate::topology::Netns;

/// Any class will do, as the rule is everybody's.
const HANDLE: u32 = 1;

/// In force until [`OwnRule::remove`]; with its process at the latest.
pub(super) struct OwnRule(Congestion);

impl OwnRule {
    /// Puts it in force for all connections of these namespaces.
    ///
    /// # Errors
    /// If the kernel lacks something that the BPF program needs.
    pub(super) fn put(namespaces: &[&Netns]) -> Result<OwnRule> {
        let mut hold = Congestion::open()?;
        let places: Vec<_> = namespaces
            .iter()
            .map(|netns| Ok((NetnsRef::at(&netns.path())?, HANDLE)))
            .collect::<Result<_>>()?;
        let homes = Homes { namespaces: places, ..Homes::default() };
        let failures = hold.apply(&homes, &[own_rule()])?;
        ensure!(failures.is_empty(), "{}", failures.join("; "));
        Ok(OwnRule(hold))
    }

    /// Takes it away. So many connections must have been given its algorithm.
    ///
    /// # Errors
    /// If they were not, or the program cannot be taken away.
    pub(super) fn remove(self, connections: u64) -> Result<()> {
        let counts = self.0.counts()?;
        self.0.remove().context("cannot take weir's rule away")?;
        ensure!(
            counts.set >= connections,
            "weir's rule reached {} of {connections} ends of connections",
            counts.set
        );
        Ok(())
    }
}

/// What `[[congestion]]` alone asks for, over IPv4.
fn own_rule() -> CongestionRule {
    let rule = Rule::default();
    let action = rule.action();
    CongestionRule {
        handle: 0,
        port: 0,
        direction: 0,
        to: LocalPrefix { network: std::net::Ipv4Addr::UNSPECIFIED.into(), len: 0 },
        rank: rule.rank(),
        number: 1,
        after_bytes: action.change.as_ref().map_or(0, |change| change.after.0),
        start: action.start.to_kernel(),
        then: action.change.as_ref().map_or([0; 16], |change| change.to.to_kernel()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weirs_own_rule_is_bbr_for_the_first_mib_then_cubic() {
        let rule = own_rule();
        assert_eq!((&rule.start[..4], &rule.then[..6]), (&b"bbr\0"[..], &b"cubic\0"[..]));
        assert_eq!(rule.after_bytes, 1 << 20);
    }
}
