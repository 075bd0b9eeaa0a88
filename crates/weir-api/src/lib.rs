//! The agent's JSON interface: one set of types for the agent, the command line, the lab
//! and anyone's Rust program.
//!
//! | method and path | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | [`Status`] |
//! | `GET /v1/classes` | | `[`[`Class`]`]` |
//! | `GET /v1/classes/{name}` | | [`Class`] |
//! | `GET /v1/classes/{name}/explain` | | [`Explanation`] |
//! | `PATCH /v1/policies` | [`SetPolicies`] | `[`[`Class`]`]`: all changes or none |
//! | `DELETE /v1/policies/{name}` | | [`Class`] |
//! | `GET /v1/doctor` | | [`Doctor`] |
//! | `GET /v1/events?follow=true` | | [`Event`]s, one JSON object a line; as server-sent events if `Accept` asks for `text/event-stream` |
//!
//! Rates are bit/s on the wire, sizes bytes, times milliseconds since the epoch unless the
//! name says otherwise. An error answers 4xx or 5xx with [`Error`]. A name is a class's
//! `name`; where two sources know the same name, `source:name`.

mod client;
mod shapes;

pub use client::{Client, ClientError, Events};
pub use shapes::*;

/// Where the agent listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/weir/weir.sock";
