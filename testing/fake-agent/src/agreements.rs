//! The agent's real agreements behind the fake agent, with a database of their own.

use std::{path::Path, time};

use weir_agent::{
    Agreements, Store, config,
    control::{AgreementsRequest, Figure, Figures},
};
use weir_agree::{ClockReading, Utc};
use weir_units::Instant;

const CONFIG: &str = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n[agreements]\n";

/// The current time of this machine.
fn utc() -> Utc {
    Utc::from(time::SystemTime::now())
}

pub(crate) struct FakeAgreements {
    agreements: Agreements,
    store: Store,
    _dir: tempfile::TempDir,
    started: time::Instant,
}

impl FakeAgreements {
    pub(crate) fn new() -> FakeAgreements {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let config = config::parse(CONFIG, Path::new("test.toml")).unwrap();
        let agreements = Agreements::open(&config, &store, utc()).unwrap().unwrap();
        FakeAgreements { agreements, store, _dir: dir, started: time::Instant::now() }
    }

    pub(crate) fn answer(&mut self, ask: AgreementsRequest) {
        let now = ClockReading { utc: utc(), monotonic: Instant(self.started.elapsed()) };
        let FakeAgreements { agreements, store, .. } = self;
        match ask {
            AgreementsRequest::Templates(reply) => drop(reply.send(Ok(agreements.templates()))),
            AgreementsRequest::All(reply) => drop(reply.send(Ok(agreements.all().cloned().collect()))),
            AgreementsRequest::One(id, reply) => drop(reply.send(agreements.one(&id).cloned())),
            AgreementsRequest::Statuses(reply) => {
                drop(reply.send(Ok(
                    agreements.all().map(|one| agreements.status_without_class(one, now.utc)).collect(),
                )));
            }
            AgreementsRequest::Figures(most, reply) => {
                let statuses = agreements.all().map(|one| agreements.status_without_class(one, now.utc));
                let all: Vec<Figure> = statuses.filter_map(|status| Figure::of(&status)).collect();
                let in_force = all.len();
                let shown = all.into_iter().take(most).collect();
                drop(reply.send(Ok(Figures { in_force, shown })));
            }
            AgreementsRequest::Status(id, reply) => {
                drop(
                    reply.send(agreements.one(&id).map(|one| agreements.status_without_class(one, now.utc))),
                );
            }
            AgreementsRequest::Calendar(direction, from, to, reply) => {
                drop(reply.send(agreements.calendar(direction, from.unwrap_or(now.utc), to)));
            }
            AgreementsRequest::Offer(from, offer, reply) => {
                let made = agreements.offer(&from.client, Some(from.maker), *offer, store, now);
                drop(reply.send(made));
            }
            AgreementsRequest::Renew(id, end, owner, _, reply) => {
                let permitted = agreements.permits(&owner, &id, "renew");
                drop(reply.send(permitted.and_then(|()| agreements.renew(&id, end, store, now.utc))));
            }
            AgreementsRequest::Decide(id, accept, _, reply) => {
                drop(reply.send(agreements.decide(&id, accept, store, now.utc)));
            }
            AgreementsRequest::Report(id, month, reply) => {
                drop(reply.send(agreements.report(&id, month.unwrap_or(now.utc), store, now.utc)));
            }
            AgreementsRequest::Terminate(id, owner, _, reply) => {
                let permitted = agreements.permits(&owner, &id, "terminate");
                let begun = permitted.and_then(|()| agreements.terminate(&id, store, now.utc));
                agreements.finish(|_| true, store, now.utc);
                drop(reply.send(begun.and_then(|()| agreements.one(&id).cloned())));
            }
        }
    }
}
