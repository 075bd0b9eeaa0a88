//! Agreements on bandwidth.

mod calendar;
mod document;
mod fault;
mod model;
mod name;
mod quota;
mod selector;
mod state;
mod terms;
mod time;
mod xml;

pub use calendar::*;
pub use document::*;
pub use fault::*;
pub use model::*;
pub use name::*;
pub use quota::*;
pub use selector::*;
pub use state::*;
pub use terms::*;
pub use time::*;
pub use xml::{QOS, WEIR, WSAG};
