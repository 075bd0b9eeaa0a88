//! Tokens of the API over TCP, in the state.

use std::{collections::BTreeMap, sync::Arc};

use redb::{ReadableTable as _, TableDefinition, WriteTransaction};

use super::{Store, StoreError, Text};
use crate::tokens::Token;

/// Tokens with the hashes of their secrets as JSON, by name.
const TOKENS: Text = TableDefinition::new("tokens");

pub(super) fn prepare(tx: &WriteTransaction) -> Result<(), redb::Error> {
    tx.open_table(TOKENS)?;
    Ok(())
}

impl Store {
    /// The tokens. An unreadable one is left out and logged, and so its bearer is refused.
    pub(crate) fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        self.read("read the tokens of", |tx| {
            let mut tokens = Vec::new();
            for row in tx.open_table(TOKENS)?.iter()? {
                let (name, text) = row?;
                match serde_json::from_slice(text.value().as_bytes()) {
                    Ok(token) => tokens.push(token),
                    Err(e) => tracing::error!("ignoring the stored token {}: {e}", name.value()),
                }
            }
            Ok(tokens)
        })
    }

    /// Replaces all tokens.
    pub(crate) fn save_tokens(&self, tokens: &[Arc<Token>]) -> Result<(), StoreError> {
        let row = |token: &Arc<Token>| {
            (token.name().to_owned(), serde_json::to_string(&**token).unwrap_or_default())
        };
        let rows: BTreeMap<String, String> = tokens.iter().map(row).collect();
        self.write("write the tokens of", |change| change.replace(TOKENS, &rows))
    }
}

#[cfg(test)]
mod tests {
    use weir_api::TokenScope;

    use super::*;
    use crate::tokens::Tokens;

    #[test]
    fn tokens_are_there_after_a_restart_with_their_hashes_only() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::default();
        let secrets =
            [tokens.made("ops", TokenScope::Operate, None), tokens.made("shop", TokenScope::Read, None)];
        Store::open(dir.path()).unwrap().save_tokens(&tokens.all()).unwrap();
        let found = Tokens::new(Store::open(dir.path()).unwrap().tokens().unwrap());
        assert_eq!(found.all(), tokens.all());
        assert!(secrets.iter().all(|secret| found.find(secret, 0).is_some()));
        for file in ["weir.redb", "weir.promises"] {
            let content = std::fs::read(dir.path().join(file)).unwrap();
            let secret = &secrets[0].as_bytes()[5..];
            assert!(!content.windows(secret.len()).any(|part| part == secret), "{file} has a secret");
        }
        Store::open(dir.path()).unwrap().save_tokens(&[]).unwrap();
        assert_eq!(Store::open(dir.path()).unwrap().tokens().unwrap(), []);
    }
}
