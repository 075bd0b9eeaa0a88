//! The API's requests to the loop.

use std::collections::{BTreeMap, BTreeSet};

use weir_api::{Actor, ErrorCode, EventKind, Plan, Undone};
use weir_netlink::Netlink;
use weir_units::chain;

use super::{
    Agent,
    by_hand::SetLayers,
    class_key::ClassKey,
    history::{BothLayers, History},
    store, views,
};
use crate::control::Request;

pub(super) fn not_stored(e: store::StoreError) -> weir_api::Error {
    let message = format!("{}; {}", chain(&e), e.outcome());
    weir_api::Error::new(ErrorCode::Engine, message)
}

/// The class whose policy was taken away: as it is `now`, or as it was `before` if it was not here.
fn one_of(
    mut now: Vec<weir_api::Class>,
    before: Option<weir_api::Class>,
    name: &str,
) -> Result<weir_api::Class, weir_api::Error> {
    now.pop().or(before).ok_or_else(|| views::gone(name))
}

/// The time of a change, milliseconds since the epoch.
pub(super) fn now_ms(agent: &Agent) -> u64 {
    u64::try_from(agent.moment().utc.millis()).unwrap_or(0)
}

impl Agent {
    pub(super) fn answer(&mut self, request: Request) {
        if matches!(request, Request::Classes(_) | Request::Class(..) | Request::Explain(..)) {
            self.count_drops();
        }
        // A failed send is ignored: the caller has gone.
        match request {
            Request::Status(reply) => drop(reply.send(self.status())),
            Request::Classes(reply) => drop(reply.send(self.classes())),
            Request::QueueTimes(reply) => drop(reply.send(self.queue_times())),
            Request::Class(name, reply) => {
                let class = self.classes.find(&name).cloned().map(|key| self.class(&key));
                drop(reply.send(class));
            }
            Request::Explain(name, reply) => {
                let explanation = self.classes.find(&name).cloned().map(|key| self.explain(&key));
                drop(reply.send(explanation));
            }
            Request::Set(changes, by, reply) => {
                let names: Vec<String> = changes.changes.iter().map(|c| c.name.clone()).collect();
                let planned =
                    self.classes.plan(&changes).and_then(|set| Ok((set, self.plan_down(&changes)?)));
                drop(reply.send(planned.and_then(|(set, down)| self.put(set, down, &names, &by))));
            }
            Request::Undo(by, reply) => drop(reply.send(self.undo(&by))),
            Request::Link(reply) => drop(reply.send(self.link_view())),
            Request::SetLink(change, by, reply) => drop(reply.send(self.set_capacity(&change, &by))),
            Request::ResetLink(by, reply) => drop(reply.send(self.reset_capacity(&by))),
            Request::PlanLink(change, reply) => drop(reply.send(self.plan_capacity(&change))),
            Request::PlanPolicies(changes, reply) => drop(reply.send(self.plan_policies(&changes))),
            Request::PlanUndo(reply) => drop(reply.send(self.plan_undo())),
            Request::PlanConfiguration(file, reply) => drop(reply.send(self.plan_configuration(&file))),
            Request::Unset(name, by, reply) => {
                let planned =
                    self.classes.plan_unset(&name).and_then(|set| Ok((set, self.plan_unset_down(&name)?)));
                // A class that is not here is gone with its policy. The answer has it as it was.
                let before = self.classes.find(&name).ok().cloned().map(|key| self.class(&key));
                let result =
                    planned.and_then(|(set, down)| self.put(set, down, std::slice::from_ref(&name), &by));
                drop(reply.send(result.and_then(|all| one_of(all, before, &name))));
            }
            Request::Tokens(reply) => {
                let tokens = self.api.tokens.all();
                drop(reply.send(tokens.iter().map(|token| token.view.clone()).collect()));
            }
            Request::AddToken(new, by, reply) => drop(reply.send(self.add_token(new, &by))),
            Request::RemoveToken(name, by, reply) => drop(reply.send(self.remove_token(&name, &by))),
            Request::History(query, reply) => self.read_audit(query, reply),
            Request::BeforePin(reply) => drop(reply.send(self.before_change())),
            Request::Pinned(pins, by, reply) => {
                self.follow_pins(pins, &by);
                let _ = reply.send(());
            }
            Request::Acknowledge(reply) => drop(reply.send(self.acknowledge())),
            Request::Doctor(reply) => {
                let own = self.doctor();
                let device = self.classes.config().link.device.clone();
                // The checks take seconds.
                self.threads.doctor.answer(reply, move |_| {
                    let mut checks = crate::doctor::kernel();
                    let link = Netlink::open().and_then(|mut netlink| netlink.link(&device)).ok();
                    checks.extend(crate::doctor::engines(link.as_ref()));
                    checks.extend(own);
                    Ok(weir_api::Doctor { checks })
                });
            }
            Request::Cni(ask) => self.ask_cni(ask),
            Request::Agreements(ask) => self.agree(ask),
            Request::Congestion(ask) => self.ask_congestion(ask),
            Request::Export(query, reply) => drop(reply.send(self.export(&query))),
            Request::Events(reply) => {
                drop(reply.send(self.events.subscribe()));
            }
        }
    }

    /// Deletes the notices about the stored state, because an operator has read them. Returns them.
    fn acknowledge(&mut self) -> Result<Vec<String>, weir_api::Error> {
        let notices = self.store.notices();
        if !notices.is_empty() {
            self.store.acknowledge().map_err(not_stored)?;
            self.event(EventKind::Acknowledged, None, format!("{} notices of the state", notices.len()));
        }
        Ok(notices)
    }

    /// Takes back the last change by hand.
    fn undo(&mut self, by: &Actor) -> Result<Undone, weir_api::Error> {
        let (last, set, earlier) = self.last_change()?;
        if let Some(capacity) = last.capacity().cloned() {
            let Plan { settings, classes: changes, links } = self.plan_by_hand(&capacity);
            self.put_capacity(&capacity, earlier, by, "undo")?;
            let (names, classes) = (Vec::new(), Vec::new());
            return Ok(Undone { made_ms: last.time_ms, names, settings, changes, links, classes });
        }
        let names: Vec<String> = last.names().into_iter().map(str::to_owned).collect();
        let Plan { classes: changes, links, .. } = self.plan_set(set.clone());
        let classes = self.put_with(set, &names, earlier, by, "undo")?;
        Ok(Undone { made_ms: last.time_ms, names, settings: Vec::new(), changes, links, classes })
    }

    /// Stores policies set by hand, then applies them.
    fn put(
        &mut self,
        set: SetLayers,
        down: Option<SetLayers>,
        names: &[String],
        by: &Actor,
    ) -> Result<Vec<weir_api::Class>, weir_api::Error> {
        let now_ms = now_ms(self);
        let now = self.set_layers();
        let set = BothLayers { up: set, down: down.unwrap_or_else(|| now.down.clone()) };
        let history = self.history.after(&now, &set, now_ms);
        self.put_with(set, names, history, by, "change of policies")
    }

    /// Stores policies set by hand with the last changes, then applies them.
    fn put_with(
        &mut self,
        BothLayers { up: set, down }: BothLayers,
        names: &[String],
        history: History,
        by: &Actor,
        cause: &str,
    ) -> Result<Vec<weir_api::Class>, weir_api::Error> {
        self.before_change()?;
        let ledger = self.classes.ledger_after(&set);
        let down = self.link.download.as_ref().map(|download| (download.classes.ledger_after(&down), down));
        let stored = down.as_ref().map(|(ledger, set)| (set, ledger));
        self.store.save_policies((&set, &ledger), stored, &history).map_err(not_stored)?;
        self.history = history;
        self.promises.saved(ledger);
        if let Some((ledger, set)) = down {
            self.put_down(set, ledger);
        }
        let before: BTreeMap<ClassKey, _> =
            self.classes.entries().iter().map(|(k, e)| (k.clone(), e.effective)).collect();
        self.classes.commit(set);
        self.promises.save(&self.store, self.classes.ledger());
        self.link.allocations.follow(&self.classes);
        self.allocate();
        self.keep_others();
        let changed: Vec<(ClassKey, String)> = self
            .classes
            .entries()
            .iter()
            .filter(|(key, entry)| before.get(*key) != Some(&entry.effective))
            .map(|(key, entry)| (key.clone(), views::policy_text(&entry.effective.policy)))
            .collect();
        for (key, text) in changed {
            self.event(EventKind::PolicyChanged, Some(&key), text);
        }
        self.keep_promises();
        self.after_change(by, cause);
        let keys = self.classes.names();
        let mut found: Vec<ClassKey> =
            names.iter().filter_map(|name| keys.find(name).ok().cloned()).collect();
        // An undone change may name a class by its name and by its key.
        let mut seen = BTreeSet::new();
        found.retain(|key| seen.insert(key.clone()));
        Ok(found.iter().map(|key| self.class(key)).collect())
    }
}

#[cfg(test)]
mod tests {
    use weir_units::BitRate;

    use super::*;

    #[test]
    fn kept_policy_that_is_taken_away_is_answered_as_it_was() {
        let class = |name: &str| weir_fake_agent::class(name, BitRate::ZERO, BitRate::ZERO);
        assert_eq!(one_of(Vec::new(), Some(class("ghost")), "ghost"), Ok(class("ghost")));
        assert_eq!(one_of(vec![class("web")], None, "web"), Ok(class("web")));
        assert_eq!(one_of(Vec::new(), None, "ghost"), Err(views::gone("ghost")));
    }
}
