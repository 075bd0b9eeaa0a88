//! The API's requests to the agent's loop: one channel, and one answer each.

pub use crate::{
    agent::{
        agree::{AgreementsRequest, Figure, Figures},
        cni::CniRequest,
        congestion::CongestionRequest,
        maker::{Maker, Offeror, Owner},
        queue_time::ClassQueueTimes,
    },
    reply::Reply,
};
use tokio::sync::{broadcast, mpsc};
use weir_api::{
    Actor, Class, ConfigurationText, Doctor, Error, Event, Explanation, Export, ExportQuery, History,
    HistoryQuery, LinkView, NewToken, Plan, SetCapacity, SetPolicies, Status, TokenMade, TokenView, Undone,
};

/// A request to the agent's loop.
#[derive(Debug)]
pub enum Request {
    /// `GET /v1/status`.
    Status(Reply<Status>),
    /// `GET /v1/classes`.
    Classes(Reply<Vec<Class>>),
    /// The times that packets wait in the queues, for `GET /metrics`.
    QueueTimes(Reply<Vec<ClassQueueTimes>>),
    /// `GET /v1/classes/{name}`.
    Class(String, Reply<Result<Class, Error>>),
    /// `GET /v1/classes/{name}/explain`.
    Explain(String, Reply<Result<Explanation, Error>>),
    /// `PATCH /v1/policies`.
    Set(SetPolicies, Actor, Reply<Result<Vec<Class>, Error>>),
    /// `DELETE /v1/policies/{name}`.
    Unset(String, Actor, Reply<Result<Class, Error>>),
    /// `DELETE /v1/policies`.
    Undo(Actor, Reply<Result<Undone, Error>>),
    /// `GET /v1/link`.
    Link(Reply<LinkView>),
    /// `PATCH /v1/link`. `DELETE /v1/link` takes both capacities back.
    SetLink(SetCapacity, Actor, Reply<Result<LinkView, Error>>),
    /// Returns to the configured capacities of all links.
    ResetLink(Actor, Reply<Result<LinkView, Error>>),
    /// `POST /v1/plan/link`.
    PlanLink(SetCapacity, Reply<Result<Plan, Error>>),
    /// `POST /v1/plan/policies`.
    PlanPolicies(SetPolicies, Reply<Result<Plan, Error>>),
    /// `POST /v1/plan/undo`.
    PlanUndo(Reply<Result<Plan, Error>>),
    /// `POST /v1/plan/configuration`.
    PlanConfiguration(ConfigurationText, Reply<Result<Plan, Error>>),
    /// `GET /v1/history`.
    History(HistoryQuery, Reply<Result<History, Error>>),
    /// Whether the audit can be written, before a pin of the image cache changes.
    BeforePin(Reply<Result<(), Error>>),
    /// The pins of the image cache after a change.
    Pinned(Vec<String>, Actor, Reply<()>),
    /// `GET /v1/tokens`.
    Tokens(Reply<Vec<TokenView>>),
    /// `POST /v1/tokens`.
    AddToken(NewToken, Actor, Reply<Result<TokenMade, Error>>),
    /// `DELETE /v1/tokens/{name}`.
    RemoveToken(String, Actor, Reply<Result<TokenView, Error>>),
    /// `DELETE /v1/notices`.
    Acknowledge(Reply<Result<Vec<String>, Error>>),
    /// `GET /v1/doctor`.
    Doctor(Reply<Result<Doctor, Error>>),
    /// Everything below `/v1/cni`.
    Cni(CniRequest),
    /// Everything below `/v1/agreements`.
    Agreements(AgreementsRequest),
    /// Everything below `/v1/congestion`.
    Congestion(CongestionRequest),
    /// `GET /v1/export`.
    Export(ExportQuery, Reply<Result<Export, Error>>),
    /// `GET /v1/events`: the kept events, then later ones.
    Events(Reply<(Vec<Event>, broadcast::Receiver<Event>)>),
}

/// The channel from the server to the agent's loop.
pub type Control = mpsc::Sender<Request>;
