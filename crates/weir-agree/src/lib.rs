//! Agreements on bandwidth.

mod calendar;
mod name;
mod quota;
mod selector;
mod state;
mod terms;
mod time;

pub use calendar::*;
pub use name::*;
pub use quota::*;
pub use selector::*;
pub use state::*;
pub use terms::*;
pub use time::*;
