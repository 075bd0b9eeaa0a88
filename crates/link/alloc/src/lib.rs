//! How a link is shared: policies and demands in, allocations out.
//!
//! Pure: no clock, no I/O, no randomness.
//!
//! * [`Allocator`]: one call, three ways of dividing: water-filling (exact, the default and
//!   the oracle), qCon's credits, Anastasi's additive form.
//! * [`CreditAllocator`]: the credits themselves, period by period.
//! * [`Admission`]: how much of a link may be promised as minima, and whether one more fits.
//!
//! ```
//! use weir_share::{Allocator, Demand, Policy, Sharer, Weight};
//! use weir_units::BitRate;
//!
//! let weight = |w| Policy::new(Weight::new(w).unwrap(), None, None).unwrap();
//! let sharers = [1, 2, 3].map(|w| Sharer::new(weight(w), Demand::UNLIMITED));
//! let mut allocator = Allocator::default();
//! let shares = allocator.allocate(BitRate::mbit(60), &[], &sharers);
//! assert_eq!(shares, [BitRate::mbit(10), BitRate::mbit(20), BitRate::mbit(30)]);
//! ```

mod additive;
mod admission;
mod allocator;
mod credit;
mod fill;
mod nest;
mod policy;
mod sharer;

pub use additive::Spare;
pub use admission::{
    Admission, AdmitError, Claimant, GroupLimit, Promisee, Promises, Reservable, ReservableError, Reservation,
};
pub use allocator::{Allocator, AllocatorKind, AllocatorKindError};
pub use credit::{CreditAllocator, CreditForm, Usage};
pub use policy::{Demand, Policy, PolicyError, Weight, WeightError};
pub use sharer::{Bound, Sharer};
