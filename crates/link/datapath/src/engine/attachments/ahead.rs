//! Programs and filters of others that see packets before weir's. One that ends classification keeps packets from weir.
//!
//! weir does not take a place before them: what decides whether a packet may pass must see it before weir sends it
//! to the scheduler.

use std::collections::BTreeMap;

use nix::errno::Errno;
use weir_bpf::{Classifier, LinkSignals, attach};
use weir_netlink::tc::{Filter, Hook};

use super::{PREF, is_ours};

/// Devices that a sentence names.
const NAMED: usize = 3;

/// A program or filter of others that runs before weir's at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    /// The name of the interface.
    pub device: String,
    /// Where at the interface.
    pub hook: Hook,
    /// The program or filter.
    pub what: Foreign,
}

/// A program or filter that is not weir's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foreign {
    /// A program at TCX.
    Program {
        /// The name that the kernel knows, at most 15 characters.
        name: String,
        /// The kernel's number of it.
        id: u32,
    },
    /// A filter on a clsact qdisc.
    Filter {
        /// The kind of the classifier.
        kind: String,
        /// Its priority.
        pref: u16,
    },
}

/// Sentences about all of these. A program that is at many interfaces has one.
#[must_use]
pub fn describe_ahead(all: &[Ahead]) -> BTreeMap<String, String> {
    let mut groups: BTreeMap<String, Vec<&Ahead>> = BTreeMap::new();
    for ahead in all {
        groups.entry(ahead.group()).or_default().push(ahead);
    }
    groups.into_iter().map(|(group, same)| (group, sentence(&same))).collect()
}

impl Ahead {
    /// The same for all that one sentence tells.
    fn group(&self) -> String {
        let hook = hook_name(self.hook);
        match &self.what {
            Foreign::Program { name, .. } => format!("program {name} at {hook}"),
            Foreign::Filter { kind, pref } => format!("{kind} filter of pref {pref} at {hook}"),
        }
    }
}

fn hook_name(hook: Hook) -> &'static str {
    match hook {
        Hook::Ingress => "ingress",
        Hook::Egress => "egress",
    }
}

/// A sentence about one group.
fn sentence(same: &[&Ahead]) -> String {
    let [first, ..] = same else { return String::new() };
    let (hook, device) = (hook_name(first.hook), &first.device);
    let place = if same.len() == 1 {
        format!("{device}'s {hook}")
    } else {
        let named: Vec<&str> = same.iter().take(NAMED).map(|ahead| ahead.device.as_str()).collect();
        let more = same.len().saturating_sub(NAMED);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("the {hook} of {}{rest}", named.join(", "))
    };
    match &first.what {
        Foreign::Program { name, id } => {
            let id = if same.len() == 1 { format!(" (id {id})") } else { String::new() };
            format!(
                "program {name}{id} runs at {place} before weir's: packets for which it ends classification are not shared (`bpftool net show dev {device}` lists it)"
            )
        }
        Foreign::Filter { kind, pref } => format!(
            "a {kind} filter of pref {pref} runs at {place} before weir's: packets that it matches are not shared (`tc filter show dev {device} {hook}` lists it)"
        ),
    }
}

/// Whether weir's program is at an interface's TCX ingress, and the programs before it.
///
/// # Errors
/// Any error but that a program has gone.
pub(super) fn at_port(index: u32) -> Result<(bool, Vec<Foreign>), Errno> {
    let mut before = Vec::new();
    for id in attach::tcx_ingress(index)? {
        match attach::program_name(id) {
            Ok(name) if [Classifier::PORT_PROGRAM, Classifier::UPLINK_PROGRAM].contains(&name.as_str()) => {
                return Ok((true, before));
            }
            Ok(name) => before.push(Foreign::Program { name, id }),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok((false, before))
}

/// The programs at an interface's TCX hook: all of them run before filters. A kernel without TCX has none.
pub(super) fn before_filters(index: u32, hook: Hook) -> Vec<Foreign> {
    let ids = match hook {
        Hook::Ingress => attach::tcx_ingress(index),
        Hook::Egress => attach::tcx_egress(index),
    };
    let named = |id| Some(Foreign::Program { name: attach::program_name(id).ok()?, id });
    let is_foreign = |what: &Foreign| !matches!(what, Foreign::Program { name, .. } if is_ours(Some(name)));
    ids.unwrap_or_default().into_iter().filter_map(named).filter(is_foreign).collect()
}

/// Those of these filters at a hook that run before weir's.
pub(super) fn before_ours(filters: &[Filter]) -> Vec<Foreign> {
    // weir's only filter of a lower pref lets each packet go on.
    let is_weirs = |filter: &Filter| filter.bpf_name.as_deref() == Some(LinkSignals::INGRESS_PROGRAM);
    let is_before = |filter: &&Filter| filter.pref < PREF && !is_weirs(filter);
    let mut before: Vec<Foreign> = filters
        .iter()
        .filter(is_before)
        .map(|filter| Foreign::Filter { kind: filter.kind.clone(), pref: filter.pref })
        .collect();
    // A dump has an entry for the filter and one for each of its rules.
    before.dedup();
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(device: &str, id: u32) -> Ahead {
        let what = Foreign::Program { name: "cil_from".to_owned(), id };
        Ahead { device: device.to_owned(), hook: Hook::Ingress, what }
    }

    #[test]
    fn program_at_one_interface_is_told_with_its_number() {
        let told = describe_ahead(&[program("v1", 7)]);
        let expected = "program cil_from (id 7) runs at v1's ingress before weir's: packets for which it ends classification are not shared (`bpftool net show dev v1` lists it)";
        assert_eq!(told.into_values().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn program_at_many_interfaces_has_one_sentence() {
        let all: Vec<Ahead> = (1..=5).map(|n| program(&format!("v{n}"), n)).collect();
        let told = describe_ahead(&all);
        assert_eq!(told.len(), 1);
        let sentence = told.into_values().next().unwrap();
        assert!(sentence.contains("at the ingress of v1, v2, v3 and 2 more before weir's"), "{sentence}");
    }

    #[test]
    fn filters_before_weirs_are_those_of_a_lower_pref() {
        let filter = |pref, name: Option<&str>| Filter {
            kind: "bpf".to_owned(),
            pref,
            handle: 1,
            bpf_name: name.map(str::to_owned),
            bpf_id: None,
        };
        let answered = filter(PREF - 1, Some(LinkSignals::INGRESS_PROGRAM));
        let all = [filter(10, None), filter(10, None), answered, filter(PREF, None), filter(PREF + 9, None)];
        assert_eq!(before_ours(&all), [Foreign::Filter { kind: "bpf".to_owned(), pref: 10 }]);
    }
}
