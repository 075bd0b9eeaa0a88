//! Tokens of the API over TCP.

use serde::{Deserialize, Serialize};

use crate::TokenScope;

/// A token to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Its name, which the record of changes has.
    pub name: String,
    /// The routes that its bearer may use.
    pub scope: TokenScope,
    /// The party whose agreements the bearer makes and sees. Scope `party` needs it, and no other has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub party: Option<String>,
    /// The moment from which on it is refused, milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenView {
    /// Its name.
    pub name: String,
    /// The routes that its bearer may use.
    pub scope: TokenScope,
    /// The party whose agreements the bearer makes and sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub party: Option<String>,
    /// When it was made, milliseconds since the epoch.
    pub created_ms: u64,
    /// The moment from which on it is refused, milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// A token that was just made. No later answer has its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenMade {
    /// The token.
    pub token: TokenView,
    /// The text after `Authorization: Bearer`.
    pub secret: String,
}
