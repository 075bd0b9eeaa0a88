//! The agreements of this node: the ledger, its database, and their events.
//!
//! This module uses no kernel and no clock: moments are arguments. An answer is given only after its
//! content is on disk. After a failed write the database is opened again, and its content decides. An
//! offer counts as accepted if its agreement is in the database, and as never made otherwise. If the
//! database cannot be opened, the answer says that the result is unknown.

mod ask;
#[cfg(test)]
mod durable;
mod enforce;
mod figures;
mod watch;
mod words;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_agree::{
    Accepted, Agreement, AgreementLedger, AgreementState, ClockReading, Direction, Directions, Fault,
    FaultCode, Interval, Monitor, Name, Offer, Rejection, Sender, ServiceState, Share, Template, Utc,
};
use weir_api::{AgreementStatus, CalendarStep, CalendarView, EventKind, InForce, OfferAnswer};
use weir_units::{BitRate, Instant};

use self::{enforce::Counted, watch::LinkSeen};
use super::{
    class_key::ClassKey,
    class_table::{Agreed, ClassTable, own_class},
    maker::{Maker, Owner},
    store::{Store, StoreError},
};
use crate::config::{self, Agreements as Rules, Config, Decide};

pub use ask::AgreementsRequest;
pub(super) use enforce::Interval as Delivery;
pub use figures::{Figure, Figures};
#[cfg(test)]
pub(crate) use tests::{StoredAgreements, offer};
pub(super) use words::promise as in_words;
pub(crate) use words::unknown;

/// How long counted bytes may wait to be written. A crash forgets at most this part of a quota's use.
const USAGE_EVERY: std::time::Duration = std::time::Duration::from_secs(5);

/// The same of agreements without a quota, whose bytes are only shown.
const ALL_USAGE_EVERY: std::time::Duration = std::time::Duration::from_secs(60);
/// The most calendar steps in one answer.
const MAX_STEPS: usize = 10_000;

/// A change of an agreement, for `weir events`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Happened {
    pub(crate) what: EventKind,
    pub(crate) id: Option<Name>,
    pub(crate) detail: String,
}

/// All agreements of this node.
///
/// Invariant: every agreement of the book that is not new is in the database, or `unsaved` says that
/// its row is older.
pub struct Agreements {
    ledger: AgreementLedger,
    /// The users who made them. Agreements from before owners were stored have none.
    owners: BTreeMap<Name, Maker>,
    rules: Rules,
    link: config::Link,
    /// The same link as the download sees it, if the download is shared.
    download: Option<config::Link>,
    /// The promises to classes that reduce what agreements may get, in each direction.
    elsewhere: BTreeMap<Direction, BitRate>,
    next: u64,
    openings: u64,
    /// Agreements in termination. The engine may still enforce them.
    terminating: BTreeSet<Name>,
    /// Agreements whose rows are outdated.
    unsaved: BTreeSet<Name>,
    /// Agreements whose counted bytes are not written yet.
    counted: BTreeSet<Name>,
    counted_since: Instant,
    /// The last time when those without a quota were written, too.
    all_counted_since: Instant,
    /// Agreements whose quota was used up at the last look.
    used_up: BTreeSet<Name>,
    monitor: Monitor,
    months_saved: Instant,
    happened: Vec<Happened>,
    /// The counters of classes at the last count, by direction, agreement and class.
    last_counts: BTreeMap<(Direction, Name, ClassKey), Counted>,
    /// Each direction of the link when the agreements were last watched.
    link_seen: BTreeMap<Direction, LinkSeen>,
    /// The agreements that were to be enforced at the last look, in each direction.
    enforceable: BTreeMap<Direction, Enforceable>,
    /// The latest moment of all looks. Before it, after a clock was set back, begun agreements may begin again.
    latest: Utc,
}

/// The agreements to enforce in one direction, at all moments from one to another.
struct Enforceable {
    agreed: Arc<[Agreed]>,
    /// Of the book.
    revision: u64,
    from: Utc,
    until: Utc,
}

impl Enforceable {
    fn is_right(&self, revision: u64, now: Utc) -> bool {
        self.revision == revision && self.from <= now && now < self.until
    }
}

impl Agreements {
    /// Opens the agreements of the database under the configuration's rules. `None` without such a
    /// section.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn open(config: &Config, store: &Store, now: Utc) -> Result<Option<Agreements>, StoreError> {
        let Some(rules) = config.agreements.clone() else {
            let left = store.agreements()?.agreements;
            let left = left.iter().filter(|(a, _)| a.state == AgreementState::Observed).count();
            if left > 0 {
                tracing::warn!("{left} agreements are not enforced: the configuration has no [agreements]");
            }
            return Ok(None);
        };
        let limits = rules.limits(&config.link, BitRate::ZERO);
        // The configuration was checked, so the limits exist.
        let limits = limits.unwrap_or_else(|_| weir_agree::Limits::new(config.link.assured()));
        let mut agreements = Agreements {
            ledger: AgreementLedger::new(limits, rules.ledger_limits()),
            owners: BTreeMap::new(),
            rules,
            link: config.link.clone(),
            download: config.link.of_download(),
            elsewhere: BTreeMap::new(),
            next: 1,
            openings: 0,
            terminating: BTreeSet::new(),
            unsaved: BTreeSet::new(),
            counted: BTreeSet::new(),
            counted_since: Instant::default(),
            all_counted_since: Instant::default(),
            used_up: BTreeSet::new(),
            monitor: Monitor::new(),
            months_saved: Instant::default(),
            happened: Vec::new(),
            last_counts: BTreeMap::new(),
            link_seen: BTreeMap::new(),
            enforceable: BTreeMap::new(),
            latest: Utc::MIN,
        };
        agreements.offer_templates();
        agreements.limit();
        agreements.reconcile(store)?;
        if let Some(mark) = store.clock()? {
            agreements.ledger.set_last_look(mark.at());
        }
        // The changes due while no agent ran.
        agreements.advance(now);
        agreements.settle(store, now);
        agreements.resume(store, now);
        Ok(Some(agreements))
    }

    /// Forgets the counters of the classes and of the link, because the next ones are another link's.
    pub(super) fn forget_counts(&mut self) {
        self.last_counts.clear();
        self.link_seen.clear();
    }

    /// Adopts changed rules. Existing agreements keep their terms.
    pub(crate) fn reconfigure(&mut self, rules: Rules, link: &config::Link) {
        let gone: Vec<Name> = self.ledger.templates().map(|t| t.id.clone()).collect();
        gone.iter().for_each(|id| drop(self.ledger.remove_template(id)));
        (self.rules, self.link, self.download) = (rules, link.clone(), link.of_download());
        self.ledger.set_limits(self.rules.ledger_limits());
        self.offer_templates();
        self.limit();
        self.enforceable.clear();
    }

    fn offer_templates(&mut self) {
        let mut templates = self.rules.templates.clone();
        if templates.is_empty() {
            templates.extend(words::plain_templates(&self.rules, &self.link, self.download.as_ref()));
        }
        for template in templates {
            // Configured templates were checked with the configuration.
            let _ = self.ledger.set_template(template);
        }
    }

    /// The link in one direction. `None` for a download that is not shared.
    fn link_of(&self, direction: Direction) -> Option<&config::Link> {
        match direction {
            Direction::Upload => Some(&self.link),
            Direction::Download => self.download.as_ref(),
        }
    }

    /// Sets the sum of the promises to classes without an agreement in one direction.
    pub(crate) fn promised_to_classes(&mut self, direction: Direction, promised: BitRate) {
        let Some(link) = self.link_of(direction) else { return };
        let elsewhere = self.beyond_their_part(link, promised);
        if self.elsewhere.insert(direction, elsewhere) != Some(elsewhere) {
            self.limit();
        }
    }

    /// The part of the promises to classes that reduces what agreements may get.
    fn beyond_their_part(&self, link: &config::Link, promised: BitRate) -> BitRate {
        let theirs = self.rules.promisable(link).saturating_sub(self.rules.reservable.of(link.assured()));
        promised.saturating_sub(theirs)
    }

    fn limit(&mut self) {
        let limits = |direction| {
            let elsewhere = self.elsewhere.get(&direction).copied().unwrap_or_default();
            self.rules.limits(self.link_of(direction)?, elsewhere).ok()
        };
        if let Some(upload) = limits(Direction::Upload) {
            let download = limits(Direction::Download);
            self.ledger.set_link(upload, download);
        }
    }

    /// Adds the agreements of the database that the book lacks.
    fn reconcile(&mut self, store: &Store) -> Result<(), StoreError> {
        let openings = store.openings()?;
        if openings == self.openings {
            return Ok(());
        }
        let stored = store.agreements()?;
        self.owners.extend(stored.owners);
        for (agreement, usage) in stored.agreements {
            match self.ledger.agreement(&agreement.id) {
                None => {
                    if is_terminating(&agreement) {
                        self.terminating.insert(agreement.id.clone());
                    }
                    // It began under a clock that was ahead, and begins again at its moment.
                    if agreement.service_state == ServiceState::Ready {
                        self.latest = self.latest.max(agreement.from);
                    }
                    let account = account(self.owners.get(&agreement.id), &agreement.offer.context.initiator);
                    self.ledger.restore_of(account, agreement, usage);
                }
                Some(known) if *known != agreement => drop(self.unsaved.insert(agreement.id)),
                Some(_) => {}
            }
        }
        self.next = self.next.max(stored.next);
        self.openings = openings;
        Ok(())
    }

    /// The changes since the last call.
    pub(crate) fn happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    fn publish(&mut self, what: EventKind, id: Option<&Name>, detail: String) {
        self.happened.push(Happened { what, id: id.cloned(), detail });
    }

    /// The templates of offers.
    pub fn templates(&self) -> Vec<Template> {
        self.ledger.templates().cloned().collect()
    }

    /// All agreements that are kept, also ended ones.
    pub fn all(&self) -> impl Iterator<Item = &Agreement> {
        self.ledger.agreements()
    }

    /// The user who made an agreement, where recorded.
    pub(crate) fn owner(&self, id: &Name) -> Option<&Maker> {
        self.owners.get(id)
    }

    /// The agreement with this identifier.
    ///
    /// # Errors
    /// No agreement has this identifier.
    pub fn one(&self, id: &str) -> Result<&Agreement, Fault> {
        let name = Name::new(id).ok();
        let found = name.as_ref().and_then(|id| self.ledger.agreement(id));
        found.ok_or_else(|| words::unknown(id))
    }

    /// Answers an offer of `client`. The agreement is on disk when this returns it.
    ///
    /// # Errors
    /// The offer is refused, or the agreement cannot be stored.
    pub fn offer(
        &mut self,
        client: &Name,
        owner: Option<Maker>,
        offer: Offer,
        store: &Store,
        now: ClockReading,
    ) -> Result<OfferAnswer, Fault> {
        let party = offer.context.initiator.clone();
        let state = match self.rules.decide {
            Decide::Automatic => AgreementState::Observed,
            Decide::Operator => AgreementState::Pending,
        };
        if self.rules.share == Share::Additive && offer.terms.share == Share::Weighted {
            return Err(words::share_not_offered());
        }
        let id = Name::new(&format!("a-{}", self.next)).map_err(|e| words::not_recorded(&e.to_string()))?;
        let account = account(owner.as_ref(), &party);
        let from = Sender { client, account: &account };
        let accepted = match self.ledger.offer_from(from, offer, id.clone(), state, now) {
            Ok(accepted) => accepted,
            Err(rejection) => {
                if !matches!(rejection, Rejection::TooManyOffers { .. }) {
                    self.publish(EventKind::AgreementRejected, None, format!("{party}: {rejection}"));
                }
                return Err(Fault::from(&rejection));
            }
        };
        let Accepted { agreement, oversubscribed, repeated } = accepted;
        let answer =
            |agreement| OfferAnswer { agreement, repeated, oversubscribed: oversubscribed.map(Into::into) };
        if repeated {
            return Ok(answer(agreement));
        }
        self.next += 1;
        self.owners.extend(owner.clone().map(|owner| (id.clone(), owner)));
        if let Err(error) = store.save_offer(&agreement, self.next, owner.as_ref()) {
            self.ledger.withdraw(&id);
            let known = self.reconcile(store);
            if self.ledger.agreement(&id).is_none() {
                self.owners.remove(&id);
                return Err(words::uncertain(&error, known.is_ok()));
            }
        }
        let what = if state == AgreementState::Pending {
            EventKind::AgreementPending
        } else {
            EventKind::AgreementAccepted
        };
        let excess =
            oversubscribed.map_or(String::new(), |o| format!("; the link is oversubscribed by {}", o.excess));
        self.publish(what, Some(&id), words::promise(&agreement) + &excess);
        self.tell_begun(&agreement);
        Ok(answer(agreement))
    }

    /// Changes an agreement in the ledger, and on disk before any caller learns of it.
    fn change<T>(
        &mut self,
        id: &str,
        store: &Store,
        change: impl FnOnce(&mut AgreementLedger, &Name) -> Result<T, Rejection>,
    ) -> Result<(Agreement, T), Fault> {
        let before = self.one(id)?.clone();
        let usage = self.ledger.usage(&before.id).unwrap_or_default();
        let done = change(&mut self.ledger, &before.id).map_err(|rejection| Fault::from(&rejection))?;
        let after = self.one(id)?.clone();
        if let Err(error) = store.save_agreements([&after], self.next) {
            let known = self.reconcile(store).is_ok();
            let is_there = known && !self.unsaved.remove(&after.id);
            if !is_there {
                self.ledger.restore(before, usage);
                return Err(words::uncertain(&error, known));
            }
        }
        Ok((after, done))
    }

    /// Whether a caller may do `what` with an agreement.
    ///
    /// # Errors
    /// There is no such agreement, or another user made it.
    pub fn permits(&self, caller: &Owner, id: &str, what: &str) -> Result<(), Fault> {
        let id = &self.one(id)?.id;
        match (caller, self.owners.get(id)) {
            (Owner::Any, _) => Ok(()),
            (Owner::Of(caller), Some(owner)) if owner == caller => Ok(()),
            (Owner::Of(caller), owner) => Err(words::not_owned(id, caller, owner, what)),
        }
    }

    /// Whether a caller may make this offer. A caller without the right `admin` offers for packets of one
    /// container, unless it names a template of the configuration that selects the packets. Where the
    /// configuration has templates, it names one. No one else may have an agreement about packets of that container
    /// then. `is_of_any_sender` says whether the name is that of a class of the configuration that selects packets.
    ///
    /// # Errors
    /// It may not.
    pub fn permits_offer(
        &self,
        caller: &Owner,
        offer: &Offer,
        is_of_any_sender: bool,
        now: Utc,
    ) -> Result<(), Fault> {
        let Owner::Of(caller) = caller else { return Ok(()) };
        let named = offer.context.template_id.as_ref();
        let is_named = |template: &&Template| Some(&template.id) == named;
        let template = self.rules.templates.iter().find(is_named);
        if template.is_none() && !self.rules.templates.is_empty() {
            return Err(words::no_template(caller, named));
        }
        let selector = &offer.terms.selector;
        if let Some(template) = template.filter(|template| !template.terms.selector.is_empty()) {
            let is_same = selector.is_empty() || *selector == template.terms.selector;
            return if is_same { Ok(()) } else { Err(words::other_packets(caller, template)) };
        }
        match container_of(offer) {
            Some(container) if is_sender(container.as_str()) && !is_of_any_sender => {
                self.check_container(caller, container, offer, now)
            }
            of => Err(words::not_of_a_container(caller, of)),
        }
    }

    /// Whether a caller may move the end of an agreement to `end`. Without the right `admin` it is the caller's own, and
    /// no one else may have an agreement about packets of its container in the time that is added.
    ///
    /// # Errors
    /// It may not.
    pub fn permits_renewal(&self, caller: &Owner, id: &str, end: Option<Utc>, now: Utc) -> Result<(), Fault> {
        self.permits(caller, id, "renew")?;
        let Owner::Of(caller) = caller else { return Ok(()) };
        let Agreement { selector, offer, until, .. } = self.one(id)?;
        let is_of_template = |template: &Template| {
            Some(&template.id) == offer.context.template_id.as_ref() && !template.terms.selector.is_empty()
        };
        let Some(container) = &selector.container else { return Ok(()) };
        if self.rules.templates.iter().any(is_of_template) {
            return Ok(());
        }
        let mut added = offer.clone();
        (added.terms.start, added.terms.end) = (*until, end);
        self.check_container(caller, container, &added, now)
    }

    /// Whether no one but the caller has an agreement about packets of a container at the time of an offer.
    fn check_container(
        &self,
        caller: &Maker,
        container: &Name,
        offer: &Offer,
        now: Utc,
    ) -> Result<(), Fault> {
        let party = &offer.context.initiator;
        let own = account(Some(caller), party);
        let free = self.ledger.check_container(container, offer, now, |account, agreement| {
            // The operator may have made one for the same party. A user chooses the party's name freely.
            let is_of_party = || agreement.offer.context.initiator == *party;
            *account == own || matches!(caller, Maker::Party(_)) && is_of_party()
        });
        free.map_err(|rejection| Fault::from(&rejection))
    }

    /// Ends an agreement. The engine still enforces it until [`Agreements::finish`].
    ///
    /// # Errors
    /// There is no such agreement, it cannot end now, or the end cannot be stored.
    pub fn terminate(&mut self, id: &str, store: &Store, now: Utc) -> Result<(), Fault> {
        let (agreement, ()) = self.change(id, store, |ledger, id| ledger.terminate(id, now))?;
        self.terminating.insert(agreement.id);
        Ok(())
    }

    /// Records that terminating agreements are no longer enforced. `is_settled` says whether the scheduler of a
    /// direction has the last division.
    pub fn finish(&mut self, is_settled: impl Fn(Direction) -> bool, store: &Store, now: Utc) {
        let directions = |id: &Name| {
            self.ledger.agreement(id).map_or_else(Directions::default, |a| a.offer.terms.direction)
        };
        let is_over = |id: &Name| directions(id).iter().all(&is_settled);
        let ids: Vec<Name> = self.terminating.iter().filter(|id| is_over(id)).cloned().collect();
        if ids.is_empty() {
            return;
        }
        for id in ids {
            self.terminating.remove(&id);
            if self.ledger.finish_termination(&id, now).is_ok() {
                self.unsaved.insert(id.clone());
                self.publish(EventKind::AgreementTerminated, Some(&id), "its bandwidth is free".to_owned());
            }
        }
        self.save(store);
    }

    /// Moves the end of an agreement. `None` removes its end.
    ///
    /// # Errors
    /// There is no such agreement, it cannot be renewed, the link has no room, or the disk refuses.
    pub fn renew(&mut self, id: &str, end: Option<Utc>, store: &Store, now: Utc) -> Result<Agreement, Fault> {
        let (agreement, _) = self.change(id, store, |ledger, id| ledger.renew(id, end, now))?;
        let detail =
            agreement.until.map_or("it has no end now".to_owned(), |end| format!("it ends at {end} now"));
        self.publish(EventKind::AgreementRenewed, Some(&agreement.id), detail);
        Ok(agreement)
    }

    /// Accepts or rejects a pending offer.
    ///
    /// # Errors
    /// There is no such offer, it is not pending, or the answer cannot be stored.
    pub fn decide(&mut self, id: &str, accept: bool, store: &Store, now: Utc) -> Result<Agreement, Fault> {
        let (agreement, ()) = self.change(id, store, |ledger, id| match accept {
            true => ledger.accept(id, now).map(drop),
            false => ledger.reject(id, now),
        })?;
        let what = if accept { EventKind::AgreementAccepted } else { EventKind::AgreementRejected };
        self.publish(what, Some(&agreement.id), words::promise(&agreement));
        self.tell_begun(&agreement);
        Ok(agreement)
    }

    /// Reports an agreement that begins with its acceptance.
    fn tell_begun(&mut self, agreement: &Agreement) {
        if agreement.service_state == ServiceState::Ready {
            self.publish(EventKind::AgreementActivated, Some(&agreement.id), words::promise(agreement));
        }
    }

    /// The bandwidth promised in a direction from one moment to another. Without an end, it goes to the last
    /// change.
    ///
    /// # Errors
    /// The end is before the begin, or the download is not shared.
    pub fn calendar(&self, direction: Direction, from: Utc, to: Option<Utc>) -> Result<CalendarView, Fault> {
        let link = self.link_of(direction).ok_or_else(|| Fault::from(&Rejection::DownloadNotShared))?;
        if to.is_some_and(|to| to <= from) {
            let message = format!("cannot tell of the calendar from {from} on to an earlier moment");
            return Err(Fault::new(FaultCode::EndBeforeStart, message));
        }
        let calendar = self.ledger.calendar(direction);
        let limits = calendar.limits();
        let step = |(from, reserved): (Utc, BitRate)| CalendarStep {
            from,
            reserved,
            free: limits.promisable().saturating_sub(reserved),
        };
        Ok(CalendarView {
            direction,
            link: limits.link,
            reservable: limits.reservable(),
            promisable: limits.promisable(),
            other: limits.other(),
            other_is_ceiling: self.rules.ceiling(link).is_some(),
            steps: calendar.profile(from, to).take(MAX_STEPS).map(step).collect(),
        })
    }

    /// Begins and ends the agreements that are due, and rejects pending offers at their end. This needs no write before
    /// enforcement, because the clock gives the next agent the same result.
    pub(crate) fn advance(&mut self, now: Utc) {
        let set_back = self.ledger.set_usage_back(now);
        if let (Some(first), many) = (set_back.first(), set_back.len()) {
            tracing::info!(
                "the clock was ahead: {many} agreements count sent bytes for {now} now, {first} first"
            );
        }
        self.counted.extend(set_back);
        let returned = self.ledger.set_usage_forward(now);
        if let (Some(first), many) = (returned.first(), returned.len()) {
            tracing::info!("a day comes again: {many} agreements count what they sent in it, {first} first");
        }
        self.counted.extend(returned);
        self.latest = self.latest.max(now);
        for change in self.ledger.advance(now) {
            self.unsaved.insert(change.id.clone());
            let promise = self.ledger.agreement(&change.id).map_or(String::new(), words::promise);
            let (what, detail) = match (change.state, change.service_state) {
                (AgreementState::Rejected, _) => (EventKind::AgreementRejected, words::undecided(&promise)),
                (_, ServiceState::Completed) => (EventKind::AgreementExpired, promise),
                _ => (EventKind::AgreementActivated, promise),
            };
            self.publish(what, Some(&change.id), detail);
        }
    }

    /// Writes the changes of [`Agreements::advance`], and deletes agreements that ended long ago.
    pub(crate) fn settle(&mut self, store: &Store, now: Utc) {
        let old = self.ledger.forget_until(self.rules.remembers_since(now));
        let excess = self.ledger.forget_excess();
        let forgotten: Vec<Name> = old.into_iter().chain(excess).map(|agreement| agreement.id).collect();
        for id in &forgotten {
            self.owners.remove(id);
            self.unsaved.remove(id);
            self.counted.remove(id);
        }
        if !forgotten.is_empty()
            && let Err(e) = store.forget_agreements(&forgotten)
        {
            tracing::warn!("{e}");
        }
        self.save(store);
    }

    /// Writes the outdated rows.
    fn save(&mut self, store: &Store) {
        if self.unsaved.is_empty() {
            return;
        }
        let rows: Vec<&Agreement> = self.unsaved.iter().filter_map(|id| self.ledger.agreement(id)).collect();
        match store.save_agreements(rows, self.next) {
            Ok(()) => self.unsaved.clear(),
            Err(e) => tracing::warn!("{e}"),
        }
        if let Err(e) = self.reconcile(store) {
            tracing::warn!("{e}");
        }
    }

    /// Counts the delivered bytes, and notices quotas that are used up or renewed.
    pub(super) fn count(&mut self, delivered: &[Delivery], store: &Store, now: ClockReading) {
        for one in delivered.iter().filter(|one| one.delivered.0 > 0) {
            if self.ledger.count(&one.id, one.delivered, now.utc).is_ok() {
                self.counted.insert(one.id.clone());
            }
        }
        let limited: Vec<_> = self
            .ledger
            .in_force(now.utc)
            .iter()
            .filter_map(|f| Some((f.id.clone(), f.limited_until?, f.max)))
            .collect();
        let used_up: BTreeSet<Name> = limited.iter().map(|(id, ..)| id.clone()).collect();
        let mut news = used_up != self.used_up;
        for (id, until, max) in limited {
            if !self.used_up.contains(&id) {
                let detail = format!("its maximum is {max} until {until}");
                self.publish(EventKind::AgreementQuotaUsedUp, Some(&id), detail);
            }
        }
        let back: Vec<Name> = self.used_up.difference(&used_up).cloned().collect();
        for id in back {
            self.publish(
                EventKind::AgreementQuotaBack,
                Some(&id),
                "a new day or month has begun, or it is over".to_owned(),
            );
        }
        self.used_up = used_up;
        news |= now.monotonic.since(self.counted_since) >= USAGE_EVERY;
        if news {
            let all = now.monotonic.since(self.all_counted_since) >= ALL_USAGE_EVERY;
            self.counted_since = now.monotonic;
            if all {
                self.all_counted_since = now.monotonic;
            }
            self.save_counted(store, all);
        }
    }

    /// Writes the bytes counted under agreements with a quota, or with `all` those of the others too.
    pub(crate) fn save_counted(&mut self, store: &Store, all: bool) {
        let with_quota = |id: &Name| self.ledger.agreement(id).is_some_and(|a| a.offer.terms.quota.is_some());
        let (due, later): (BTreeSet<Name>, BTreeSet<Name>) =
            std::mem::take(&mut self.counted).into_iter().partition(|id| all || with_quota(id));
        self.counted = later;
        let usages: Vec<_> =
            due.into_iter().filter_map(|id| self.ledger.usage(&id).map(|usage| (id, usage))).collect();
        if !usages.is_empty()
            && let Err(e) = store.save_usage(&usages)
        {
            tracing::warn!("{e}");
            self.counted.extend(usages.into_iter().map(|(id, _)| id));
        }
    }

    /// The agreements to enforce now in one direction, the oldest first. Where the reservable part of the capacity is
    /// less than all their minima, the oldest have theirs, and the others are suspended until they fit again.
    pub(crate) fn in_force(&self, direction: Direction, now: Utc) -> Vec<Agreed> {
        self.link_of(direction).map_or_else(Vec::new, |link| self.in_force_on(link, direction, now))
    }

    /// As [`Agreements::in_force`], on a link with other capacities.
    fn in_force_on(&self, link: &config::Link, direction: Direction, now: Utc) -> Vec<Agreed> {
        let agreed = |f: weir_agree::InForce<'_>| Agreed {
            id: f.id.clone(),
            selector: f.selector.clone(),
            weight: (f.share == Share::Weighted).then_some(f.weight),
            min: f.min,
            max: f.max,
            suspended: None,
            limited_until: f.limited_until,
        };
        let in_force = self.ledger.in_force(now).into_iter().filter(|f| f.direction.has(direction));
        let mut all: Vec<Agreed> = in_force.map(agreed).collect();
        // Of two agreements about one class the older one has it, too.
        all.sort_by_cached_key(|one| (self.ledger.agreement(&one.id).map(|a| a.answered), one.id.clone()));
        let mut free = self.rules.reservable.of(link.assured());
        for one in &mut all {
            if one.min > free {
                one.suspended = Some(free);
            } else {
                free = free.saturating_sub(one.min);
            }
        }
        all
    }

    /// The agreements to enforce now in one direction, and the sum that [`Agreements::promised`] tells. The book is read again
    /// only after a change or at the moment of one.
    pub(crate) fn enforceable_now(&mut self, direction: Direction, now: Utc) -> (Arc<[Agreed]>, BitRate) {
        let revision = self.ledger.revision();
        let known = self
            .enforceable
            .get(&direction)
            .filter(|known| now >= self.latest && known.is_right(revision, now));
        let agreed = match known {
            Some(known) => Arc::clone(&known.agreed),
            _ => {
                let agreed: Arc<[Agreed]> = self.in_force(direction, now).into();
                // After a clock was set back the list is right at this moment alone.
                let is_back = now < self.latest;
                let until = if is_back { now } else { self.next_change(now).unwrap_or(Utc::MAX) };
                let known = Enforceable { agreed: Arc::clone(&agreed), revision, from: now, until };
                self.enforceable.insert(direction, known);
                agreed
            }
        };
        (agreed, self.promised(direction, now))
    }

    /// The highest sum of promises in one direction at any moment from now on.
    pub(crate) fn promised(&self, direction: Direction, now: Utc) -> BitRate {
        self.ledger.calendar(direction).peak(Interval { start: now, end: None })
    }

    /// The part of these promises above the reservable rate.
    pub(crate) fn excess(&self, direction: Direction, now: Utc) -> BitRate {
        self.promised(direction, now).saturating_sub(self.ledger.calendar(direction).limits().reservable())
    }

    /// Applies the agreements to a planned class table of one direction, as they would be in force on its link.
    /// Returns the promises above the rate that could be reserved there.
    pub(crate) fn plan(&self, table: &mut ClassTable, direction: Direction, now: Utc) -> BitRate {
        let promised = self.promised(direction, now);
        let agreed = self.in_force_on(&table.config().link, direction, now);
        table.agree(agreed, promised);
        let link = &table.config().link;
        let elsewhere = self.beyond_their_part(link, table.promised_to_classes());
        let limits = self.rules.limits(link, elsewhere);
        limits.map_or(BitRate::ZERO, |limits| promised.saturating_sub(limits.reservable()))
    }

    /// The next moment at which an agreement begins or ends.
    pub(crate) fn next_change(&self, after: Utc) -> Option<Utc> {
        self.ledger.next_change(after)
    }

    /// The status of an agreement of which no class is known.
    pub fn status_without_class(&self, agreement: &Agreement, now: Utc) -> AgreementStatus {
        let of =
            |direction| self.in_force(direction, now).into_iter().find(|agreed| agreed.id == agreement.id);
        let agreed: Vec<Agreed> = agreement.offer.terms.direction.iter().filter_map(of).collect();
        self.status(agreement, None, &agreed, now)
    }

    /// An agreement with its state. `class` is the class that enforces it, or the reason why none does.
    /// `agreed` are the rates of its directions. The lowest minimum is in force in each of them.
    pub(crate) fn status(
        &self,
        agreement: &Agreement,
        class: Option<Result<String, String>>,
        agreed: &[Agreed],
        now: Utc,
    ) -> AgreementStatus {
        let usage = self.ledger.usage(&agreement.id).unwrap_or_default();
        let (class, why) = match class {
            Some(Ok(class)) => (Some(class), None),
            Some(Err(why)) => (None, Some(why)),
            None => (None, None),
        };
        AgreementStatus {
            agreement: agreement.clone(),
            in_force: agreed.iter().min_by_key(|a| a.enforced_min()).map(|a| InForce {
                min: a.enforced_min(),
                max: a.max,
                limited_until: a.limited_until,
            }),
            class,
            not_enforced_because: why,
            share: self.rules.share,
            sent_today: usage.sent_in_day(now),
            sent_this_month: usage.sent_in_month(now),
            violations: self.monitor.month(&agreement.id).map_or(Vec::new(), |month| month.violations),
        }
    }
}

/// The name that a maker's agreements are counted under. A user cannot take the places of a party that it
/// names. Root and programs with a token speak for many parties.
fn account(maker: Option<&Maker>, party: &Name) -> Name {
    let own = maker.filter(|maker| !matches!(maker, Maker::User(0) | Maker::Token(_)));
    own.and_then(|maker| Name::new(&maker.to_string()).ok()).unwrap_or_else(|| party.clone())
}

fn is_terminating(agreement: &Agreement) -> bool {
    matches!(agreement.state, AgreementState::ObservedAndTerminating | AgreementState::PendingAndTerminating)
}

/// The container that an offer names.
pub(super) fn container_of(offer: &Offer) -> Option<&Name> {
    let selector = &offer.terms.selector;
    selector.container.as_ref().or(Some(&offer.service.name).filter(|_| selector.is_empty()))
}

/// Whether a name may be that of a container, and is not that of a class of weir's own or of a group.
fn is_sender(name: &str) -> bool {
    let has_source = ClassKey::parse(name).is_none_or(|key| key.source().is_discovered());
    own_class(name).is_none() && has_source
}
