//! The book of agreements: offers in, answers out, and what is in force when.

mod admission;
mod check;
mod directions;
mod force;
mod life;
mod places;
mod rejection;
mod reservations;
mod throttle;

pub use force::InForce;
pub use rejection::Rejection;
pub use throttle::{Pace, Throttle, ThrottleLimits};

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use weir_units::{Bytes, Instant};

use crate::{
    Agreement, AgreementEvent, AgreementState, Calendar, Direction, GuaranteeState, Interval, Limits, Name,
    Offer, Oversubscribed, Selector, ServiceState, Template, TermsError, Usage, Utc, quota::MAX_AHEAD,
};
use directions::{Bookings, LinkReservations};
use force::in_force;
use places::Places;
use reservations::may_be_one_container;

/// How much a book holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerLimits {
    /// How many agreements that are not over. As many that are over are remembered.
    pub agreements: usize,
    /// How many of one account that are not over.
    pub of_account: usize,
    /// How many ids of rejected offers are kept. Another offer cannot have one of them.
    pub rejections: usize,
    /// How often offers may come.
    pub throttle: ThrottleLimits,
}

impl Default for LedgerLimits {
    /// 10,000 agreements, 1,000 of an account, and the last 4,096 rejections.
    fn default() -> LedgerLimits {
        let throttle = ThrottleLimits::default();
        LedgerLimits { agreements: 10_000, of_account: 1_000, rejections: 4_096, throttle }
    }
}

/// Now, on the two clocks that matter: the calendar's, which may be set, and one that only runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// For terms.
    pub utc: Utc,
    /// For the pace of offers.
    pub monotonic: Instant,
}

/// The sender of an offer. Several may speak for one party, or claim to.
#[derive(Debug, Clone, Copy)]
pub struct Sender<'a> {
    /// The name that the pace of offers goes by.
    pub client: &'a Name,
    /// The name that its agreements are counted under.
    pub account: &'a Name,
}

/// An offer that is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The agreement; in its present state, if the offer was accepted before.
    pub agreement: Agreement,
    /// Only if the link is oversubscribed by configuration.
    pub oversubscribed: Option<Oversubscribed>,
    /// Whether this is the answer to the same offer, sent before.
    pub repeated: bool,
}

/// A change of an agreement because its time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Whose.
    pub id: Name,
    /// Its state now.
    pub state: AgreementState,
    /// Its service's state now.
    pub service_state: ServiceState,
}

#[derive(Debug)]
struct LedgerEntry {
    agreement: Agreement,
    account: Name,
    usage: Usage,
    oversubscribed: Option<Oversubscribed>,
    /// While it is observed.
    bookings: Option<Bookings>,
    /// Since when it has been in a final state.
    closed: Option<Utc>,
}

/// The answer to an offer that had an id.
#[derive(Debug)]
enum Answer {
    Accepted(Name),
    /// The fingerprint of the offer.
    Rejected(u64),
}

/// All agreements of a link.
///
/// Pure: moments and ids are arguments. Nothing is changed by what is refused, except that the
/// offer's id is remembered, so that no other offer has it.
#[derive(Debug)]
pub struct AgreementLedger {
    limits: LedgerLimits,
    reservations: LinkReservations,
    templates: BTreeMap<Name, Template>,
    entries: BTreeMap<Name, LedgerEntry>,
    /// Observed, by start: not begun.
    waiting: BTreeSet<(Utc, Name)>,
    /// Observed: begun.
    active: BTreeSet<Name>,
    /// Observed or pending, by end, of those that have one.
    ending: BTreeSet<(Utc, Name)>,
    /// Observed, with a quota that was used up at its last report.
    used_up: BTreeSet<Name>,
    /// No report of sent bytes is later.
    last_report: Utc,
    /// When the clock was last looked at, also by a ledger before this one.
    looked: Utc,
    /// In a final state, by when it got there.
    closed: BTreeSet<(Utc, Name)>,
    of_party: BTreeMap<Name, usize>,
    places: Places,
    answers: BTreeMap<(Name, Name), Answer>,
    rejected: VecDeque<(Name, Name)>,
    throttle: Throttle,
    /// Grows with each change of what is in force at any moment.
    revision: u64,
}

impl AgreementLedger {
    /// Without agreements.
    #[must_use]
    pub fn new(link: Limits, limits: LedgerLimits) -> AgreementLedger {
        AgreementLedger {
            limits,
            reservations: LinkReservations::new(link),
            templates: BTreeMap::new(),
            entries: BTreeMap::new(),
            waiting: BTreeSet::new(),
            active: BTreeSet::new(),
            ending: BTreeSet::new(),
            used_up: BTreeSet::new(),
            last_report: Utc::MIN,
            looked: Utc::MIN,
            closed: BTreeSet::new(),
            of_party: BTreeMap::new(),
            places: Places::default(),
            answers: BTreeMap::new(),
            rejected: VecDeque::new(),
            throttle: Throttle::new(limits.throttle),
            revision: 0,
        }
    }

    /// A number that grows with each change of [`AgreementLedger::in_force`] but by the passing of time. The next such change
    /// is at [`AgreementLedger::next_change`].
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The calendar of reservations in one direction. The one of a download that is not shared promises
    /// nothing.
    #[must_use]
    pub fn calendar(&self, direction: Direction) -> &Calendar {
        self.reservations.calendar(direction)
    }

    /// Sets the limits of a link that has changed. A new ledger shares no download, and `None` shares none.
    /// Agreements stay.
    pub fn set_link(&mut self, upload: Limits, download: Option<Limits>) {
        self.reservations.set_limits(upload, download);
    }

    /// Sets how much the book holds. Agreements stay.
    pub fn set_limits(&mut self, limits: LedgerLimits) {
        self.limits = limits;
        self.throttle.set_limits(limits.throttle);
    }

    /// Offers a template, or another one by its id. Agreements stay as they were made.
    ///
    /// # Errors
    /// [`TermsError`] if its terms contradict themselves; nothing is changed then.
    pub fn set_template(&mut self, template: Template) -> Result<(), TermsError> {
        template.terms.check()?;
        self.templates.insert(template.id.clone(), template);
        Ok(())
    }

    /// Offers that template no longer.
    pub fn remove_template(&mut self, id: &Name) -> Option<Template> {
        self.templates.remove(id)
    }

    /// The templates on offer, by id.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        self.templates.values()
    }

    /// The agreements, by id.
    pub fn agreements(&self) -> impl Iterator<Item = &Agreement> {
        self.entries.values().map(|entry| &entry.agreement)
    }

    /// The agreement with that id.
    #[must_use]
    pub fn agreement(&self, id: &Name) -> Option<&Agreement> {
        self.entries.get(id).map(|entry| &entry.agreement)
    }

    /// Tests whether no one else has an agreement about packets of this container in a direction and at a time of an
    /// offer. `is_own` tells agreements of the caller by their account. Offers that wait for a decision do not count.
    ///
    /// # Errors
    /// [`Rejection::SelectorTaken`] for the first one that begins.
    pub fn check_container(
        &self,
        container: &Name,
        offer: &Offer,
        now: Utc,
        is_own: impl Fn(&Name, &Agreement) -> bool,
    ) -> Result<(), Rejection> {
        let interval = Interval { start: offer.terms.start.unwrap_or(now), end: offer.end() };
        let directions = offer.terms.direction;
        let is_rival = |entry: &&LedgerEntry| {
            let LedgerEntry { agreement, account, closed, .. } = entry;
            closed.is_none()
                && agreement.state != AgreementState::Pending
                && directions.iter().any(|one| agreement.offer.terms.direction.has(one))
                && agreement.interval().overlaps(&interval)
                && agreement.selector.container.as_ref().is_some_and(|of| may_be_one_container(of, container))
                && !is_own(account, agreement)
        };
        let rivals = self.entries.values().filter(is_rival).map(|entry| entry.agreement.interval());
        match rivals.min_by_key(|taken| taken.start) {
            None => Ok(()),
            Some(Interval { start: from, end: until }) => {
                let selector = Box::new(Selector::service(container));
                Err(Rejection::SelectorTaken { selector, from, until })
            }
        }
    }

    /// The bytes sent under the agreement with that id.
    #[must_use]
    pub fn usage(&self, id: &Name) -> Option<Usage> {
        self.entries.get(id).map(|entry| entry.usage)
    }

    /// Answers an offer; `id` is for the agreement, if one is made. An accepted offer sent again,
    /// with an id of its own, has the same answer. A rejected one is decided again. If the answer
    /// cannot be kept elsewhere, it can be undone by [`AgreementLedger::withdraw`].
    ///
    /// # Errors
    /// [`Rejection`] with the reason.
    pub fn offer(&mut self, offer: Offer, id: Name, now: ClockReading) -> Result<Accepted, Rejection> {
        let party = offer.context.initiator.clone();
        let from = Sender { client: &party, account: &party };
        self.offer_from(from, offer, id, AgreementState::Observed, now)
    }

    /// As [`AgreementLedger::offer`] for a sender that has other names than its party's. With
    /// [`AgreementState::Pending`] as the state, an offer that could be accepted waits for
    /// [`AgreementLedger::accept`] or [`AgreementLedger::reject`]; nothing is reserved for it until then.
    ///
    /// # Errors
    /// [`Rejection`] with the reason.
    pub fn offer_from(
        &mut self,
        from: Sender<'_>,
        offer: Offer,
        id: Name,
        state: AgreementState,
        now: ClockReading,
    ) -> Result<Accepted, Rejection> {
        let party = &offer.context.initiator;
        let known = self.of_party.contains_key(party);
        self.throttle
            .pass(from.client, known, now.monotonic)
            .map_err(|retry_after| Rejection::TooManyOffers { party: party.clone(), retry_after })?;
        let key = offer.id.clone().map(|id| (party.clone(), id));
        if let Some(key) = &key
            && let Some(repeated) = self.repeat(key, &offer)?
        {
            return Ok(repeated);
        }
        let decided = self.check_places(from.account).and_then(|()| self.decide(&offer, &id, now.utc));
        match decided {
            Ok((mut agreement, grant)) => {
                let oversubscribed = grant.oversubscribed;
                if state == AgreementState::Pending {
                    (agreement.state, agreement.service_state) = (state, ServiceState::NotReady);
                }
                self.enter(from.account.clone(), agreement.clone(), Usage::default(), oversubscribed);
                Ok(Accepted { agreement, oversubscribed, repeated: false })
            }
            Err(rejection) => {
                // That the agreement's id was taken is not the customer's doing. A place may be free the next time.
                let passes =
                    matches!(rejection, Rejection::IdTaken { .. } | Rejection::TooManyAgreements { .. });
                if let (Some(key), false) = (key, passes) {
                    self.remember(key, &offer);
                }
                Err(rejection)
            }
        }
    }

    /// The answer to an accepted offer that is sent again.
    fn repeat(&self, key: &(Name, Name), offer: &Offer) -> Result<Option<Accepted>, Rejection> {
        let reused = || Rejection::OfferIdReused { id: key.1.clone() };
        match self.answers.get(key) {
            None => Ok(None),
            Some(Answer::Rejected(same)) if *same == fingerprint(offer) => Ok(None),
            Some(Answer::Rejected(_)) => Err(reused()),
            Some(Answer::Accepted(id)) => {
                let entry = self.entries.get(id).filter(|entry| entry.agreement.offer == *offer);
                let LedgerEntry { agreement, oversubscribed, .. } = entry.ok_or_else(reused)?;
                let (directions, interval) = (agreement.offer.terms.direction, agreement.interval());
                let oversubscribed =
                    oversubscribed.or_else(|| self.reservations.oversubscribed(directions, interval));
                Ok(Some(Accepted { agreement: agreement.clone(), oversubscribed, repeated: true }))
            }
        }
    }

    /// Remembers the id of a rejected offer.
    fn remember(&mut self, key: (Name, Name), offer: &Offer) {
        if self.answers.insert(key.clone(), Answer::Rejected(fingerprint(offer))).is_some() {
            return;
        }
        if self.rejected.len() >= self.limits.rejections.max(1)
            && let Some(oldest) = self.rejected.pop_front()
            && let Some(Answer::Rejected(_)) = self.answers.get(&oldest)
        {
            self.answers.remove(&oldest);
        }
        self.rejected.push_back(key);
    }

    /// Enters an agreement that was made before, as it was, without a test. One that was
    /// terminating still waits for [`AgreementLedger::finish_termination`]. One that the book does not have
    /// is counted under its party.
    pub fn restore(&mut self, agreement: Agreement, usage: Usage) {
        let known = self.entries.get(&agreement.id).map(|entry| entry.account.clone());
        let account = known.unwrap_or_else(|| agreement.offer.context.initiator.clone());
        self.restore_of(account, agreement, usage);
    }

    /// As [`AgreementLedger::restore`], counted under this account.
    pub fn restore_of(&mut self, account: Name, agreement: Agreement, usage: Usage) {
        self.withdraw(&agreement.id);
        self.enter(account, agreement, usage, None);
    }

    fn enter(
        &mut self,
        account: Name,
        agreement: Agreement,
        usage: Usage,
        oversubscribed: Option<Oversubscribed>,
    ) {
        self.revision += 1;
        let (id, party) = (agreement.id.clone(), agreement.offer.context.initiator.clone());
        if let Some(offer_id) = agreement.offer.id.clone() {
            self.answers.insert((party.clone(), offer_id), Answer::Accepted(id.clone()));
        }
        *self.of_party.entry(party).or_default() += 1;
        let (interval, terms) = (agreement.interval(), &agreement.offer.terms);
        let (mut bookings, mut closed) = (None, None);
        if agreement.state == AgreementState::Observed {
            bookings =
                Some(self.reservations.take(terms.direction, terms.min, &agreement.selector, interval));
            match agreement.service_state {
                ServiceState::NotReady => self.waiting.insert((agreement.from, id.clone())),
                _ => self.active.insert(id.clone()),
            };
        } else if agreement.state.is_final() {
            closed = agreement.until.or(Some(agreement.answered));
            self.closed.extend(closed.map(|moment| (moment, id.clone())));
        }
        if matches!(agreement.state, AgreementState::Observed | AgreementState::Pending) {
            self.ending.extend(interval.end.map(|end| (end, id.clone())));
        }
        match closed {
            Some(moment) => self.places.remember(&account, moment, &id),
            None => self.places.take(&account),
        }
        let entry = LedgerEntry { agreement, account, usage, oversubscribed, bookings, closed };
        self.entries.insert(id.clone(), entry);
        self.last_report = self.last_report.max(usage.last_report());
        self.note_quota(&id, usage, None);
    }

    /// Takes an agreement out of the book as if it had never been made.
    pub fn withdraw(&mut self, id: &Name) -> Option<Agreement> {
        self.take_out(id).map(|entry| entry.agreement)
    }

    fn take_out(&mut self, id: &Name) -> Option<LedgerEntry> {
        self.unlist(id, Utc::MIN);
        let entry = self.entries.remove(id)?;
        let LedgerEntry { agreement, account, closed, .. } = &entry;
        match *closed {
            Some(moment) => {
                self.closed.remove(&(moment, id.clone()));
                self.places.forget(account, moment, id);
            }
            None => self.places.give_back(account),
        }
        let context = &agreement.offer.context;
        if let Some(count) = self.of_party.get_mut(&context.initiator) {
            *count -= 1;
            if *count == 0 {
                self.of_party.remove(&context.initiator);
            }
        }
        if let Some(offer_id) = agreement.offer.id.clone() {
            self.answers.remove(&(context.initiator.clone(), offer_id));
        }
        Some(entry)
    }

    /// Takes an observed or pending agreement off the lists of those, and frees its bandwidth from `at` on.
    fn unlist(&mut self, id: &Name, at: Utc) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        self.revision += 1;
        let agreement = &entry.agreement;
        if let Some(bookings) = entry.bookings.take() {
            self.reservations.release(bookings, &agreement.selector, agreement.from, at);
        }
        self.waiting.remove(&(agreement.from, id.clone()));
        self.active.remove(id);
        self.used_up.remove(id);
        if let Some(end) = agreement.until {
            self.ending.remove(&(end, id.clone()));
        }
    }

    /// Lets agreements begin and end whose time has come, in the order of their times. A pending offer is
    /// rejected at its end. The calendar forgets times before `now`. Where the clock was set back it learns again what it forgot too early.
    pub fn advance(&mut self, now: Utc) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.reservations.is_ahead_of(now) {
            self.reserve_again();
        }
        while let Some((_, id)) = pop_due(&mut self.waiting, now) {
            self.active.insert(id.clone());
            self.revision += 1;
            changes.extend(self.set(&id, None, ServiceState::Ready));
        }
        while let Some((end, id)) = pop_due(&mut self.ending, now) {
            let event = self.event_at_end(&id);
            self.unlist(&id, end);
            self.close(&id, end);
            changes.extend(self.set(&id, Some(event), ServiceState::Completed));
        }
        self.reservations.forget_before(now);
        changes
    }

    /// No offer can be accepted after its end.
    fn event_at_end(&self, id: &Name) -> AgreementEvent {
        match self.entries.get(id).map(|entry| entry.agreement.state) {
            Some(AgreementState::Pending) => AgreementEvent::Reject,
            _ => AgreementEvent::End,
        }
    }

    /// Reserves what the observed agreements promise, in an empty calendar.
    fn reserve_again(&mut self) {
        self.reservations.clear();
        for LedgerEntry { agreement, bookings, .. } in self.entries.values_mut() {
            let terms = &agreement.offer.terms;
            let take = |_| {
                self.reservations.take(terms.direction, terms.min, &agreement.selector, agreement.interval())
            };
            *bookings = bookings.take().map(take);
        }
    }

    fn set(
        &mut self,
        id: &Name,
        event: Option<AgreementEvent>,
        service_state: ServiceState,
    ) -> Option<Change> {
        let agreement = &mut self.entries.get_mut(id)?.agreement;
        if let Some(event) = event {
            agreement.state = agreement.state.on(event).ok()?;
        }
        agreement.service_state = service_state;
        Some(Change { id: id.clone(), state: agreement.state, service_state })
    }

    /// The first moment after that one at which an agreement begins or ends, or a quota that is
    /// used up comes back.
    #[must_use]
    pub fn next_change(&self, after: Utc) -> Option<Utc> {
        let next = |list: &BTreeSet<(Utc, Name)>| {
            let behind = Utc::from_millis(after.millis().saturating_add(1));
            list.range((behind, Name::least())..).map(|(moment, _)| *moment).find(|m| *m > after)
        };
        let quotas = self.used_up.iter().filter_map(|id| {
            let entry = self.entries.get(id)?;
            entry.agreement.offer.terms.quota?.used_up_until(&entry.usage, after)
        });
        [next(&self.waiting), next(&self.ending)].into_iter().flatten().chain(quotas).min()
    }

    /// The agreements in force at that moment, by id: observed agreements whose interval it is in.
    #[must_use]
    pub fn in_force(&self, at: Utc) -> Vec<InForce<'_>> {
        let begun = self.waiting.iter().take_while(|(start, _)| *start <= at).map(|(_, id)| id);
        let mut ids: Vec<_> = self.active.iter().chain(begun).collect();
        ids.sort_unstable();
        ids.into_iter()
            .filter_map(|id| {
                let LedgerEntry { agreement, usage, .. } = self.entries.get(id)?;
                in_force(agreement, usage, at)
            })
            .collect()
    }

    /// Counts bytes that passed under an agreement up to `at`, in its directions.
    ///
    /// # Errors
    /// [`Rejection::UnknownAgreement`].
    pub fn count(&mut self, id: &Name, sent: Bytes, at: Utc) -> Result<Usage, Rejection> {
        let entry = self.entries.get_mut(id).ok_or_else(|| Rejection::UnknownAgreement(id.clone()))?;
        let usage = entry.usage.add(sent, at);
        let quota = entry.agreement.offer.terms.quota;
        let until = |usage: &Usage| quota.and_then(|quota| quota.used_up_until(usage, at));
        self.revision += u64::from(until(&entry.usage) != until(&usage));
        entry.usage = usage;
        self.last_report = self.last_report.max(at);
        self.note_quota(id, usage, Some(at));
        Ok(usage)
    }

    /// Sets the moment of the last look at the clock, by the ledger whose agreements are restored. Without it the first look
    /// counts as a step of the clock.
    pub fn set_last_look(&mut self, looked: Utc) {
        self.looked = looked;
    }

    /// Looks at the clock, at least once an hour: a longer pause counts as a step of the clock. Days that come again after
    /// the clock was set back are those of before. Returns the agreements whose usage is another one now.
    pub fn set_usage_forward(&mut self, now: Utc) -> Vec<Name> {
        let looked = std::mem::replace(&mut self.looked, now);
        let is_step = now.since(looked) > MAX_AHEAD;
        if now.day() == looked.day() {
            return Vec::new();
        }
        let mut changed = Vec::new();
        for entry in self.entries.values_mut().filter(|entry| entry.usage.has_left_day()) {
            let usage = entry.usage.set_forward(now, is_step);
            if usage != entry.usage {
                entry.usage = usage;
                changed.push((entry.agreement.id.clone(), usage));
            }
        }
        self.revision += u64::from(!changed.is_empty());
        for (id, usage) in &changed {
            self.note_quota(id, *usage, Some(now));
        }
        changed.into_iter().map(|(id, _)| id).collect()
    }

    /// Counts bytes for the day and the month of `now` where their last report is more than an hour ahead,
    /// because the clock was set back. Returns the agreements whose usage is another one now.
    pub fn set_usage_back(&mut self, now: Utc) -> Vec<Name> {
        let is_ahead = |entry: &&mut LedgerEntry| entry.usage.is_ahead_of(now);
        let mut changed = Vec::new();
        // One comparison is enough at most calls.
        if self.last_report <= now {
            return changed;
        }
        for entry in self.entries.values_mut().filter(is_ahead) {
            entry.usage = entry.usage.set_back(now);
            changed.push(entry.agreement.id.clone());
        }
        self.revision += u64::from(!changed.is_empty());
        let reports = self.entries.values().map(|entry| entry.usage.last_report());
        self.last_report = reports.max().unwrap_or(Utc::MIN);
        changed
    }

    /// Keeps the list of quotas that are used up; without a moment, of those that may be.
    fn note_quota(&mut self, id: &Name, usage: Usage, at: Option<Utc>) {
        let Some(entry) = self.entries.get(id).filter(|entry| entry.bookings.is_some()) else { return };
        let quota = entry.agreement.offer.terms.quota;
        let used_up =
            quota.is_some_and(|quota| at.is_none_or(|at| quota.used_up_until(&usage, at).is_some()));
        if used_up {
            self.used_up.insert(id.clone());
        } else {
            self.used_up.remove(id);
        }
    }

    /// Notes whether the guarantee is kept.
    ///
    /// # Errors
    /// [`Rejection::UnknownAgreement`].
    pub fn set_guarantee(&mut self, id: &Name, state: GuaranteeState) -> Result<(), Rejection> {
        let entry = self.entries.get_mut(id).ok_or_else(|| Rejection::UnknownAgreement(id.clone()))?;
        entry.agreement.guarantee_state = state;
        Ok(())
    }
}

/// Takes the first of a list if its moment is not after `now`.
fn pop_due(list: &mut BTreeSet<(Utc, Name)>, now: Utc) -> Option<(Utc, Name)> {
    if list.first()?.0 > now {
        return None;
    }
    list.pop_first()
}

fn fingerprint(offer: &Offer) -> u64 {
    let mut hasher = DefaultHasher::new();
    offer.hash(&mut hasher);
    hasher.finish()
}
