//! The documents agree with the program: links, examples, and the reference of the book.
//!
//! `WEIR_BLESS=1` writes the parts of the reference that are generated.

mod blocks;
mod configuration;
mod links;
mod reference;
mod shell;
