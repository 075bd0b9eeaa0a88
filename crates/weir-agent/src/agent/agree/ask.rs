//! The API's questions about agreements.

use weir_agree::{Agreement, AgreementState, Direction, Fault, Name, Offer, Report, Template, Utc};
use weir_api::{Actor, AgreementStatus, CalendarView, OfferAnswer};

use super::{Agreements, Figures, container_of};
use crate::{
    agent::{
        Agent,
        agree::words,
        class_table::{ClassTable, Enforced},
        download::told,
        maker::{Offeror, Owner},
    },
    reply::Reply,
};

/// The channel for the answer.
type Answer<T> = Reply<Result<T, Fault>>;

/// A question about agreements.
#[derive(Debug)]
pub enum AgreementsRequest {
    /// `GET /v1/agreements/templates`.
    Templates(Answer<Vec<Template>>),
    /// An offer with its sender.
    Offer(Box<Offeror>, Box<Offer>, Answer<OfferAnswer>),
    /// `GET /v1/agreements`.
    All(Answer<Vec<Agreement>>),
    /// `GET /v1/agreements/{id}`.
    One(String, Answer<Agreement>),
    /// `GET /v1/agreements/status`.
    Statuses(Answer<Vec<AgreementStatus>>),
    /// The agreements in force for `GET /metrics`, at most this number.
    Figures(usize, Answer<Figures>),
    /// `GET /v1/agreements/{id}/status`.
    Status(String, Answer<AgreementStatus>),
    /// The end of an agreement, now.
    Terminate(String, Owner, Actor, Answer<Agreement>),
    /// A new end of an agreement; `None` means no end.
    Renew(String, Option<Utc>, Owner, Actor, Answer<Agreement>),
    /// An operator's decision: accept or reject.
    Decide(String, bool, Actor, Answer<Agreement>),
    /// The bandwidth promised in a direction between two moments.
    Calendar(Direction, Option<Utc>, Option<Utc>, Answer<CalendarView>),
    /// The report of the month that contains the moment. `None` means this month.
    Report(String, Option<Utc>, Answer<Report>),
}

impl Agent {
    /// Answers a question about agreements. A change is in force when this returns.
    pub(in crate::agent) fn agree(&mut self, ask: AgreementsRequest) {
        let now = self.moment();
        // A failed send is ignored: the caller has gone.
        match ask {
            AgreementsRequest::Templates(reply) => {
                drop(reply.send(self.with_agreements(|a| Ok(a.templates()))))
            }
            AgreementsRequest::All(reply) => {
                drop(reply.send(self.with_agreements(|a| Ok(a.all().cloned().collect()))))
            }
            AgreementsRequest::One(id, reply) => {
                drop(reply.send(self.with_agreements(|a| a.one(&id).cloned())))
            }
            AgreementsRequest::Statuses(reply) => drop(reply.send(self.statuses(now.utc))),
            AgreementsRequest::Figures(most, reply) => drop(reply.send(self.figures(most))),
            AgreementsRequest::Status(id, reply) => drop(reply.send(self.status_of(&id, now.utc))),
            AgreementsRequest::Calendar(direction, from, to, reply) => {
                drop(
                    reply.send(self.with_agreements(|a| a.calendar(direction, from.unwrap_or(now.utc), to))),
                );
            }
            AgreementsRequest::Report(id, month, reply) => {
                let agreements = self.agreements.as_ref().ok_or_else(words::off);
                let month = month.unwrap_or(now.utc);
                drop(reply.send(agreements.and_then(|a| a.report(&id, month, &self.store, now.utc))));
            }
            AgreementsRequest::Offer(from, offer, reply) => {
                let Offeror { client, maker, owner, by } = *from;
                let named = container_of(&offer).map(Name::as_str);
                let is_of_any_sender = named.is_some_and(|name| self.classes.is_of_any_sender(name));
                let answer = self.change_agreements(&by, owner.clone(), "offer", |a, store| {
                    a.permits_offer(&owner, &offer, is_of_any_sender, now.utc)?;
                    a.offer(&client, Some(maker), *offer, store, now)
                });
                drop(reply.send(answer));
            }
            AgreementsRequest::Renew(id, end, owner, by, reply) => {
                let renewed =
                    self.change_agreements(&by, owner.clone(), "renewal of an agreement", |a, store| {
                        a.permits_renewal(&owner, &id, end, now.utc)?;
                        a.renew(&id, end, store, now.utc)
                    });
                drop(reply.send(renewed));
            }
            AgreementsRequest::Decide(id, accept, by, reply) => {
                let decided = self.change_agreements(&by, Owner::Any, "decision on an offer", |a, store| {
                    a.decide(&id, accept, store, now.utc)
                });
                drop(reply.send(decided));
            }
            AgreementsRequest::Terminate(id, owner, by, reply) => {
                let begun = self.change_agreements(&by, owner.clone(), "end of an agreement", |a, store| {
                    a.permits(&owner, &id, "terminate")?;
                    a.terminate(&id, store, now.utc)
                });
                let ended = begun.and_then(|()| self.with_agreements(|a| a.one(&id).cloned()));
                drop(reply.send(ended));
            }
        }
    }

    fn with_agreements<T>(
        &mut self,
        act: impl FnOnce(&mut Agreements) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.agreements.as_mut().map_or_else(|| Err(words::off()), act)
    }

    /// Changes agreements and records it. The records of a caller with the right `own` are bounded.
    fn change_agreements<T>(
        &mut self,
        by: &Actor,
        owner: Owner,
        cause: &str,
        act: impl FnOnce(&mut Agreements, &crate::agent::store::Store) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.agreements.is_none() {
            return Err(words::off());
        }
        let refused = |e: weir_api::Error| words::not_recorded(&e.message);
        let by_itself = match owner {
            Owner::Any => self.before_change().map(|()| true).map_err(refused)?,
            Owner::Of(_) => self.before_bounded_change().map_err(refused)?,
        };
        // A class may have been promised something since the last turn.
        self.admit_both();
        let agreements = self.agreements.as_mut().ok_or_else(words::off)?;
        let answer = act(agreements, &self.store);
        self.keep_agreements();
        match owner {
            Owner::Any => self.after_change(by, cause),
            Owner::Of(_) => self.after_bounded_change(by, cause, by_itself),
        }
        answer
    }

    fn statuses(&mut self, now: Utc) -> Result<Vec<AgreementStatus>, Fault> {
        let agreements = self.agreements.as_ref().ok_or_else(words::off)?;
        let tables = Direction::ALL.map(|direction| self.table(direction).map(ClassTable::all_enforced));
        let enforced = |agreement: &Agreement| {
            Direction::ALL.map(|direction| {
                let table = tables[usize::from(direction == Direction::Download)].as_ref()?;
                table.get(&agreement.id).copied()
            })
        };
        Ok(agreements
            .all()
            .map(|agreement| self.status_as(agreements, agreement, enforced(agreement), now))
            .collect())
    }

    fn figures(&self, most: usize) -> Result<Figures, Fault> {
        let agreements = self.agreements.as_ref().ok_or_else(words::off)?;
        let tables = Direction::ALL.into_iter().filter_map(|direction| self.table(direction));
        Ok(agreements.figures(tables.flat_map(ClassTable::agreements), most))
    }

    /// The classes of a direction, if it is shared.
    fn table(&self, direction: Direction) -> Option<&ClassTable> {
        match direction {
            Direction::Upload => Some(&self.classes),
            Direction::Download => self.link.download.as_ref().map(|download| &download.classes),
        }
    }

    fn status_of(&mut self, id: &str, now: Utc) -> Result<AgreementStatus, Fault> {
        let agreements = self.agreements.as_ref().ok_or_else(words::off)?;
        let agreement = agreements.one(id)?;
        let enforced = Direction::ALL.map(|direction| self.table(direction)?.enforced(&agreement.id));
        Ok(self.status_as(agreements, agreement, enforced, now))
    }

    /// The status of an agreement. `enforced` has its part of each direction, in the order of [`Direction::ALL`].
    fn status_as(
        &self,
        agreements: &Agreements,
        agreement: &Agreement,
        enforced: [Option<Enforced<'_>>; 2],
        now: Utc,
    ) -> AgreementStatus {
        let directions = agreement.offer.terms.direction;
        let enforced = |direction| enforced[usize::from(direction == Direction::Download)];
        let agreed = directions.iter().filter_map(|direction| Some(enforced(direction)?.agreed.clone()));
        let agreed: Vec<_> = agreed.collect();
        let unknown = "it is not known why";
        let class_in = |direction| -> Result<String, String> {
            let Some(table) = self.table(direction) else { return Err(told(words::NOT_SHARED)) };
            match (direction, enforced(direction).and_then(|enforced| enforced.class)) {
                (Direction::Upload, Some(key)) => {
                    self.problem(&table.entries()[key]).map_or(Ok(key.to_string()), Err)
                }
                (Direction::Upload, None) => Err(table.unmet(&agreement.id).unwrap_or(unknown).to_owned()),
                (Direction::Download, Some(key)) => {
                    let why = self.down(key).and_then(|down| down.not_enforced_because);
                    why.map_or(Ok(key.to_string()), |why| Err(told(&why)))
                }
                (Direction::Download, None) => Err(told(table.unmet(&agreement.id).unwrap_or(unknown))),
            }
        };
        let is_observed = agreement.state == AgreementState::Observed && agreement.interval().contains(now);
        let lacks_download = self.link.download.is_none() && directions.has(Direction::Download);
        let is_begun = !agreed.is_empty() || (is_observed && lacks_download);
        let classes: Result<Vec<String>, String> = directions.iter().map(class_in).collect();
        let class = is_begun.then(|| classes.map(|all| all.first().cloned().unwrap_or_default()));
        agreements.status(agreement, class, &agreed, now)
    }
}
