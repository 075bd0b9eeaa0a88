//! Whether the kernel holds what the configuration says, and the reasons if it does not.

use weir_api::{ClassKind, NotEnforced};

use super::{Agent, class_key::ClassKey, class_table::ClassEntry, download::told, uplink::Uplink};

/// The most reasons that [`Agent::not_ready`] gives.
const MAX_REASONS: usize = 8;

impl Agent {
    /// The reason if a part of this class's policy is not in force.
    pub(super) fn problem(&self, entry: &ClassEntry) -> Option<String> {
        self.not_enforced(entry).map(|(_, why)| why)
    }

    /// The reason if a part of this class's policy is not in force, and the kind of reason.
    pub(super) fn not_enforced(&self, entry: &ClassEntry) -> Option<(NotEnforced, String)> {
        self.not_enforced_on(&self.link, entry)
    }

    /// The same on a link.
    pub(super) fn not_enforced_on(&self, link: &Uplink, entry: &ClassEntry) -> Option<(NotEnforced, String)> {
        let unpromised = || Some((NotEnforced::Unpromised, entry.unpromised.as_ref()?.to_string()));
        let unmet = || Some((NotEnforced::Unsupported, entry.class.unmet.clone()?));
        self.fault(link, entry).or_else(unpromised).or_else(unmet)
    }

    /// The reason if the kernel does not enforce the promises to this class.
    pub(super) fn fault_of(&self, entry: &ClassEntry) -> Option<String> {
        self.fault(&self.link, entry).map(|(_, why)| why)
    }

    fn fault(&self, link: &Uplink, entry: &ClassEntry) -> Option<(NotEnforced, String)> {
        if let Some(error) = link.scheduler.error.as_ref().or(self.datapath.fault()) {
            return Some((NotEnforced::Scheduler, format!("the scheduler has a fault: {error}")));
        }
        if let Some(why) = self.datapath.pacing_failure.as_ref().filter(|_| link.scheduler.only_paces()) {
            let why = format!("its sockets are not paced, and TCP misses its share by far: {why}");
            return Some((NotEnforced::Scheduler, why));
        }
        if let Some(problem) = entry.class.problem.clone() {
            return Some((NotEnforced::Sender, problem));
        }
        if let Some(why) = entry.class.ports.iter().find_map(|(index, _)| self.datapath.failures.get(index)) {
            return Some((NotEnforced::Program, why.clone()));
        }
        if let (Some(why), false) = (&self.datapath.rules_failure, entry.class.selectors.is_empty()) {
            return Some((NotEnforced::Selectors, why.clone()));
        }
        if entry.minor.is_some_and(|minor| self.datapath.left_out.contains(&minor)) {
            let why = "this node tells 64 kinds of selectors apart and others have them: select as others do";
            return Some((NotEnforced::SelectorKinds, why.to_owned()));
        }
        let by_uplink = entry.class.kind == ClassKind::Host || !entry.class.cgroups.is_empty();
        if by_uplink && let Some(why) = &link.scheduler.uplink_failure {
            return Some((NotEnforced::Uplink, why.clone()));
        }
        let lost = entry.class.ports.iter().find(|(index, _)| !self.datapath.attachments.catches(*index));
        lost.map(|(_, name)| (NotEnforced::Interface, format!("interface {name} is not caught yet")))
    }

    /// The reasons why the link is not divided as configured; none if it is.
    pub(super) fn not_ready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if !self.link.scheduler.has_seen_link() {
            reasons.push("the agent has not looked at the link yet".to_owned());
        } else if !self.link.scheduler.is_link_up() {
            reasons.push(format!("{} is gone or down", self.classes.config().link.device));
        }
        if self.config_file.error.is_some() {
            reasons.push(format!(
                "{} was refused, and an older text is in force",
                self.config_file.path.display()
            ));
        }
        if let Some(error) = self.scheduler_fault() {
            reasons.push(format!("the scheduler has a fault: {error}"));
            return reasons;
        }
        if let Some(why) = self.download_fault() {
            reasons.push(told(&why));
            return reasons;
        }
        for other in &self.others {
            reasons.extend(other.fault().map(|why| format!("link {}: {why}", other.device())));
        }
        reasons.extend(self.unshared.values().cloned());
        // A container's wish that does not fit must not make the node look broken.
        let is_fault =
            |kind: &NotEnforced| !matches!(kind, NotEnforced::Unpromised | NotEnforced::Unsupported);
        // Neither must an agreement about a container that is not here, or whose kind of selector is one too many.
        let is_wish = |entry: &ClassEntry, kind| {
            entry.class.is_agreed() && matches!(kind, NotEnforced::Sender | NotEnforced::SelectorKinds)
        };
        let fault = |entry: &ClassEntry| {
            let (kind, why) = self.fault(&self.link, entry)?;
            (!is_wish(entry, kind)).then_some(why)
        };
        let lost = |(key, entry): (&ClassKey, &ClassEntry)| {
            let down = || {
                let down = self.down(key)?;
                down.not_enforced.filter(is_fault)?;
                Some(told(&down.not_enforced_because?))
            };
            Some(format!("{}: {}", entry.class.name, fault(entry).or_else(down)?))
        };
        let mut lost = self.classes.entries().iter().filter_map(lost);
        reasons.extend(lost.by_ref().take(MAX_REASONS));
        let more = lost.count();
        if more > 0 {
            reasons.push(format!("{more} more classes are not enforced (`weir ps` lists all)"));
        }
        reasons
    }
}
