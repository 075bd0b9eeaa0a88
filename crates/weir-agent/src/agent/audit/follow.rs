//! The agent's side of the audit: the present values, and the moments at which they are recorded.

use std::time::Duration;

use weir_api::{Actor, ChangeKind, Error, ErrorCode, History, HistoryChange, HistoryQuery};
use weir_units::Instant;

use super::{super::Agent, Facts, facts, page, seen_by};
use crate::{agent::answer::now_ms, reply::Reply};

/// The pause after a failure.
const AGAIN: Duration = Duration::from_secs(5);

impl Agent {
    /// The values that the audit follows.
    fn facts(&self) -> Facts {
        let mut facts = Facts::new();
        let config = self.classes.config();
        facts::configuration(&mut facts, &config.keys.0);
        facts::classes(&mut facts, &ChangeKind::Policy, &self.classes);
        facts::set_by_hand(&mut facts, &ChangeKind::ByHand, self.classes.set_layers());
        if let Some(download) = &self.link.download {
            facts::classes(&mut facts, &ChangeKind::PolicyDown, &download.classes);
            facts::set_by_hand(&mut facts, &ChangeKind::ByHandDown, download.classes.set_layers());
        }
        for link in config.link.all() {
            let several = config.link.is_one_of_several();
            let of_link = if several { format!(" of {}", link.device) } else { String::new() };
            let (capacity, download) = self.capacities.replaced(&link.device);
            facts::capacity(&mut facts, &format!("upload{of_link}"), link.capacity, capacity.is_some());
            if let Some(rate) = link.download {
                facts::capacity(&mut facts, &format!("download{of_link}"), rate, download.is_some());
            }
        }
        if let Some(agreements) = &self.agreements {
            for agreement in agreements.all() {
                facts::agreement(&mut facts, agreement, agreements.owner(&agreement.id));
            }
        }
        for rule in self.congestion.set.in_force() {
            facts::rule(&mut facts, rule);
        }
        for token in self.api.tokens.all() {
            facts::token(&mut facts, &token.view);
        }
        facts::pins(&mut facts, &self.audit.pins);
        facts
    }

    /// Records what was seen, and takes disk space for the record of the next change. Nothing is changed before this.
    ///
    /// # Errors
    /// The audit cannot be written.
    pub(in crate::agent) fn before_change(&mut self) -> Result<(), Error> {
        let refused = |why| Error::new(ErrorCode::Engine, format!("{why}; nothing was changed"));
        if self.audit.is_due {
            self.record_seen(true).map_err(refused)?;
        }
        self.audit.ready(now_ms(self)).map_err(refused)
    }

    /// Records the changes that a caller made, before the answer leaves. A failure is in the warnings.
    pub(in crate::agent) fn after_change(&mut self, by: &Actor, cause: &str) {
        let (facts, time_ms) = (self.facts(), now_ms(self));
        // A failure is told by `Audit::warning`, and the record follows.
        self.audit.is_due = self.audit.note(&facts, by, cause, time_ms).is_err();
    }

    /// Makes a change of a caller and records it.
    ///
    /// # Errors
    /// The change is refused.
    pub(in crate::agent) fn recorded<T>(
        &mut self,
        by: &Actor,
        cause: &str,
        change: impl FnOnce(&mut Agent) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.before_change()?;
        let changed = change(self);
        self.after_change(by, cause);
        changed
    }

    /// The same as [`Agent::before_change`] for a caller whose records are bounded. Returns whether the change is
    /// recorded by itself.
    ///
    /// # Errors
    /// The audit cannot be written.
    pub(in crate::agent) fn before_bounded_change(&mut self) -> Result<bool, Error> {
        if !self.audit.may_observe(self.now()) {
            return Ok(false);
        }
        self.before_change().map(|()| true)
    }

    /// Records the changes of such a caller.
    pub(in crate::agent) fn after_bounded_change(&mut self, by: &Actor, cause: &str, by_itself: bool) {
        if !by_itself {
            self.audit.mark();
            return;
        }
        let (facts, time_ms) = (self.facts(), now_ms(self));
        let written = self.audit.note(&facts, by, cause, time_ms);
        self.audit.is_due = written.is_err();
        self.audit.took(written.unwrap_or(0));
    }

    /// Records what the agent saw since the last record, if anything.
    pub(in crate::agent) fn audit_seen(&mut self) {
        let now = self.now();
        if !self.audit.is_due || now < self.audit.not_before || !self.audit.may_observe(now) {
            return;
        }
        if self.record_seen(false).is_err() {
            // `Audit::warning` tells the failure.
            self.audit.not_before = Instant(now.0 + AGAIN);
        }
    }

    fn record_seen(&mut self, is_forced: bool) -> Result<(), String> {
        let (facts, time_ms) = (self.facts(), now_ms(self));
        let path = self.config_file.path.display().to_string();
        let is_reload = self.audit.has_reload;
        let cause = match (is_reload, self.audit.is_started) {
            (true, _) => "reload",
            (false, true) => "seen on the node",
            (false, false) => "start of the agent",
        };
        let waited = self.audit.waits();
        let by = |change: &HistoryChange| seen_by(change, &path, is_reload, waited);
        let written = self.audit.observe(&facts, by, cause, time_ms)?;
        if !is_forced && self.audit.is_started && !is_reload {
            self.audit.took(written);
        }
        (self.audit.is_due, self.audit.has_reload, self.audit.is_started) = (false, false, true);
        Ok(())
    }

    /// Follows the pins of the image cache after a change by a caller.
    pub(in crate::agent) fn follow_pins(&mut self, pins: Vec<String>, by: &Actor) {
        self.audit.pins = pins.into_iter().collect();
        self.after_change(by, "pin of images");
    }

    /// Answers a part of the audit. The files are read outside the loop that divides the link.
    pub(in crate::agent) fn read_audit(&self, query: HistoryQuery, reply: Reply<Result<History, Error>>) {
        let directory = self.audit.directory();
        self.threads.history.answer(reply, move |is_wanted| {
            page::read(&directory, &query, is_wanted).map_err(|e| {
                let message = format!("cannot read the audit in {}: {e}", directory.display());
                Error::new(ErrorCode::Engine, message)
            })
        });
    }
}
