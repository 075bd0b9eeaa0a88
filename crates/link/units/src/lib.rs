//! The units weir counts in: [`BitRate`], [`Bytes`], [`Instant`], [`Utc`], [`TcHandle`] and [`Framing`]. [`chain`] writes
//! an error, [`plain_words`] names no type of Rust in one, and [`without_users`] no password. The feature `calendar` gives [`Utc`] months and a text form.
//!
//! No clock, no I/O. Text forms follow `tc(8)`, with one difference that is deliberate:
//! `20Mbps` means bits, as in WS-Agreement and in everyday use (tc reads it as bytes).

#[cfg(feature = "calendar")]
mod calendar;
mod credentials;
mod error;
mod framing;
mod handle;
mod rate;
#[cfg(feature = "schema")]
mod schema;
mod size;
mod time;
mod words;

#[cfg(feature = "calendar")]
pub use calendar::ParseUtcError;
pub use credentials::{without_user, without_users};
pub use error::chain;
pub use framing::{Cells, Framing, LinkHeader, ParseFramingError, RateFraming};
pub use handle::{ParseHandleError, TcHandle};
pub use rate::{BitRate, ParseRateError};
pub use size::{Bytes, ParseSizeError};
pub use time::{Instant, Utc};
pub use words::plain_words;
