//! The agent's JSON interface. The agent, the command line, the lab and other Rust programs share its
//! types.
//!
//! | method and path | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | [`Status`] |
//! | `GET /v1/classes` | | `[`[`Class`]`]` |
//! | `GET /v1/classes/{name}` | | [`Class`] |
//! | `GET /v1/classes/{name}/explain` | | [`Explanation`] |
//! | `PATCH /v1/policies` | [`SetPolicies`] | `[`[`Class`]`]`: all changes or none |
//! | `DELETE /v1/policies/{name}` | | [`Class`] |
//! | `DELETE /v1/policies` | | [`Undone`]: the last change of policies or of the capacity is taken back |
//! | `GET /v1/link` | | [`LinkView`] |
//! | `PATCH /v1/link` | [`SetCapacity`] | [`LinkView`]: the capacity at once, and over restarts |
//! | `DELETE /v1/link` | | [`LinkView`]: the configured capacities again |
//! | `POST /v1/plan/link` | [`SetCapacity`] | [`Plan`] of `PATCH /v1/link` |
//! | `POST /v1/plan/policies` | [`SetPolicies`] | [`Plan`] of `PATCH /v1/policies`, which changes nothing |
//! | `POST /v1/plan/undo` | | [`Plan`] of `DELETE /v1/policies` |
//! | `POST /v1/plan/configuration` | [`ConfigurationText`] | [`Plan`] of a reload of this file |
//! | `GET /v1/history?after=&since_ms=&name=&limit=` | | [`History`]: the record of changes, oldest first |
//! | `GET /v1/tokens` | | `[`[`TokenView`]`]`: tokens of the API over TCP |
//! | `POST /v1/tokens` | [`NewToken`] | [`TokenMade`], the only answer with the secret |
//! | `DELETE /v1/tokens/{name}` | | [`TokenView`]: the token is taken away |
//! | `DELETE /v1/notices` | | the acknowledged notices of the stored state, as text |
//! | `GET /v1/doctor` | | [`Doctor`] |
//! | `GET /v1/export?direction=&link=` | | [`Export`]: a direction of a link; without a query what leaves by the main link |
//! | `PUT /v1/cni` | [`CniAttachment`] | [`CniAttached`], when the class is in force; replaces the same attachment |
//! | `DELETE /v1/cni` | [`CniKey`] | [`CniForgotten`] |
//! | `POST /v1/cni/check` | [`CniAttachment`] | [`CniAttached`]; `unknown-name` if it was not reported so |
//! | `POST /v1/cni/keep` | [`CniKeep`] | [`CniForgotten`]: the network's other attachments |
//! | `GET /v1/congestion` | | [`CongestionView`] |
//! | `GET /v1/congestion/explain?to=&container=&port=&direction=` | | [`weir_cc::Explained`] |
//! | `GET /v1/congestion/flows` | | `[`[`weir_cc::FlowRecord`]`]`: the latest to end |
//! | `GET /v1/congestion/stats` | | [`weir_cc::StatsView`] |
//! | `POST /v1/congestion/rules` | [`weir_cc::Rule`] | [`CongestionRule`]: set at run time; replaces the rule of the same connections |
//! | `DELETE /v1/congestion/rules` | [`weir_cc::Rule`]; only its connections count | [`CongestionView`] |
//! | `GET /v1/congestion/advice` | | `[`[`weir_cc::AdviceView`]`]` |
//! | `POST /v1/congestion/advice` | [`AdviceRequest`] | `[`[`weir_cc::AdviceView`]`]` |
//! | `POST /v1/congestion/move` | | [`CongestionMoved`]: existing connections follow the rules |
//! | `GET /v1/images` | | [`Images`]: the image cache; `no-images` without a cache |
//! | `GET /v1/images/usage` | | [`ImageUsage`] |
//! | `GET /v1/images/peers` | | `[`[`ImagePeer`]`]`: asked now |
//! | `GET /v1/images/runtime` | | [`RuntimeImages`]: what Docker keeps; `no-images` without `[images.runtime]` |
//! | `POST /v1/images/pin` | [`PinImage`] | [`Pinned`] |
//! | `POST /v1/images/remove` | [`NamedImage`] | [`Freed`] |
//! | `POST /v1/images/prune` | [`PruneImages`] | [`Freed`] |
//! | `POST /v1/images/warm` | [`NamedImage`] | [`WarmId`] |
//! | `GET /v1/images/warm/{id}` | | [`Warming`] |
//! | `POST /v1/images/scrub` | [`ScrubImages`] | [`Scrub`] |
//! | `GET /v1/images/scrub` | | [`Scrub`] |
//! | `GET /metrics` | | Prometheus' text format, or OpenMetrics if `Accept` prefers it |
//! | `GET /healthz` | | [`Health`]: the agent's loop answers |
//! | `GET /readyz` | | [`Ready`], with status 503 if the link is not divided as configured |
//! | `GET /` | | the dashboard, HTML |
//! | `GET /dashboard/{file}` | | a file of the dashboard, which holds no data and needs no token |
//! | `GET /openapi.json` | | the description of all routes in OpenAPI 3.1 (`docs/openapi.json`) |
//! | `GET /v1/events?follow=true` | | [`Event`]s, one JSON object per line, or server-sent events if `Accept` asks for `text/event-stream` |
//! | `GET /v1/stream` | | the [`Status`] and all [`Class`]es each second, as server-sent events: `whole`, then each `patch` is a JSON Merge Patch to it |
//!
//! Agreements are documents of [`weir_agree`], in XML (WS-Agreement), JSON or TOML. `Content-Type`
//! names the language of the request, `Accept` that of the answer.
//!
//! | method and path | body | answer |
//! |---|---|---|
//! | `GET /v1/agreements/templates` | | the templates |
//! | `GET /v1/agreements/templates/{id}` | | the template |
//! | `POST /v1/agreements` | an offer | 201 and the agreement; 202 while it is pending; 200 for a repeated offer |
//! | `GET /v1/agreements` | | the agreements |
//! | `GET /v1/agreements/{id}` | | the agreement |
//! | `DELETE /v1/agreements/{id}` | | the agreement, terminated |
//! | `POST /v1/agreements/{id}/renew?end=2027-12-31T00:00:00Z` | | the agreement; `end=never` for no end |
//! | `POST /v1/agreements/{id}/accept`, `.../reject` | | the agreement: an operator's decision on a pending offer |
//! | `GET /v1/agreements/{id}/report?month=2026-11` | | [`weir_agree::Report`], in JSON |
//! | `GET /v1/agreements/calendar?direction=&from=&to=` | | [`CalendarView`], in JSON |
//! | `GET /v1/agreements/status`, `/v1/agreements/{id}/status` | | [`AgreementStatus`], in JSON |
//! | `POST /v1/agreements/offers` | an offer | [`OfferAnswer`], in JSON |
//!
//! A refusal there is a [`weir_agree::Fault`] in the language asked for. Its status code is one of:
//!
//! - 400: the document cannot be read.
//! - 422: the document contradicts itself or the provider's rules.
//! - 409: the offer does not fit now.
//! - 429 with `Retry-After`: too many requests.
//! - 404, 413, 415 and 406 as in HTTP.
//! - 503: it is unknown whether the change was recorded.
//!
//! Rates are bit/s on the wire. Sizes are bytes. Times are milliseconds since the epoch unless the name
//! says otherwise. An error answers 4xx or 5xx with [`Error`]. A name is a class's `name`, or
//! `source:name` where two sources know the same name.

mod agree;
mod client;
mod cni;
mod congestion;
mod export;
mod history;
mod images;
mod link;
mod plain;
mod plan;
mod runtime;
mod setting;
mod shapes;
mod tokens;
mod words;

pub use agree::{AgreementStatus, CalendarStep, CalendarView, InForce, OfferAnswer, Oversubscribed};
pub use client::{BadRemote, Client, ClientError, Events, Remote};
pub use cni::{CniAttached, CniAttachment, CniForgotten, CniKeep, CniKey, Wish, WishPlace};
pub use congestion::{
    AdviceRequest, AdviceVerb, CongestionMoved, CongestionQuery, CongestionRule, CongestionView,
};
pub use export::{Export, ExportClass, ExportQuery, ExportSelector};
pub use history::{Actor, History, HistoryChange, HistoryQuery, HistoryRecord};
pub use images::{
    Freed, Image, ImagePeer, ImagePop, ImageUsage, Images, NamedImage, PinImage, Pinned, PruneImages, Scrub,
    ScrubImages, WarmId, Warming,
};
pub use link::{Capacity, FollowState, Follows, LinkView, OtherLink, SetCapacity};
pub use plain::{plain, plain_lines};
pub use plan::{ConfigurationText, Plan, PlannedChange, PlannedLink, PlannedSetting, PlannedState, Undone};
pub use runtime::{RuntimeImage, RuntimeImages};
pub use setting::{ChangeError, Setting, SettingError};
pub use shapes::*;
pub use tokens::{NewToken, TokenMade, TokenView};
pub use words::{ActorKind, ChangeKind, ErrorCode, EventKind, NotEnforced, TokenScope};

/// The socket on which the agent listens by default.
pub const DEFAULT_SOCKET: &str = "/run/weir/weir.sock";
