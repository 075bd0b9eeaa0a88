//! The makers of agreements and the senders of offers.

use std::fmt;

use weir_agree::Name;
use weir_api::Actor;

/// The maker of an agreement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Maker {
    /// A user of this node.
    User(u32),
    /// The bearer of a token of scope `party`: the party, so that another token of it has the same agreements.
    Party(String),
    /// The bearer of another token, by the token's name.
    Token(String),
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Maker::User(uid) => write!(f, "user {uid}"),
            Maker::Party(party) => write!(f, "party {party}"),
            Maker::Token(token) => write!(f, "token {token}"),
        }
    }
}

impl Maker {
    /// The form in the database: `1000`, `party:acme`, `token:ops`.
    pub(crate) fn stored(&self) -> String {
        match self {
            Maker::User(uid) => uid.to_string(),
            Maker::Party(party) => format!("party:{party}"),
            Maker::Token(token) => format!("token:{token}"),
        }
    }

    /// Reads that form.
    pub(crate) fn read(text: &str) -> Option<Maker> {
        match text.split_once(':') {
            None => text.parse().ok().map(Maker::User),
            Some(("party", party)) => Some(Maker::Party(party.to_owned())),
            Some(("token", token)) => Some(Maker::Token(token.to_owned())),
            Some(_) => None,
        }
    }
}

/// The agreements that a caller may end and renew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// All agreements.
    Any,
    /// The agreements that it made.
    Of(Maker),
}

/// The sender of an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offeror {
    /// The name that distinguishes clients.
    pub client: Name,
    /// The maker of the agreement.
    pub maker: Maker,
    /// The agreements that it may end.
    pub owner: Owner,
    /// The maker of the change in the audit.
    pub by: Actor,
}
