//! Scenarios that need root.
