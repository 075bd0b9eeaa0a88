//! Tokens of the API over TCP: stored, and then in force.

use std::sync::Arc;

use weir_api::{Actor, Error, NewToken, TokenMade, TokenView};

use super::{
    Agent,
    answer::{not_stored, now_ms},
};
use crate::tokens::Token;

impl Agent {
    /// Makes a token. It is stored when this returns its secret.
    pub(super) fn add_token(&mut self, new: NewToken, by: &Actor) -> Result<TokenMade, Error> {
        let (tokens, made) = self.tokens.with(new, now_ms(self))?;
        self.put_tokens(tokens, by)?;
        Ok(made)
    }

    /// Takes a token away. It is not taken from then on.
    pub(super) fn remove_token(&mut self, name: &str, by: &Actor) -> Result<TokenView, Error> {
        let (tokens, removed) = self.tokens.without(name)?;
        self.put_tokens(tokens, by)?;
        Ok(removed)
    }

    fn put_tokens(&mut self, tokens: Vec<Arc<Token>>, by: &Actor) -> Result<(), Error> {
        self.recorded(by, "change of tokens", |agent| {
            agent.store.save_tokens(&tokens).map_err(not_stored)?;
            agent.tokens.set(tokens);
            Ok(())
        })
    }
}
