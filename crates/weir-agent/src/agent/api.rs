//! Access to the API: who may ask, over which port, with which tokens.

use std::sync::Arc;

use weir_api::{Actor, Error, NewToken, TokenMade, TokenView};

use super::{
    Agent,
    answer::{not_stored, now_ms},
};
use crate::{
    config::{Config, Rights},
    server::{Access, Port},
    tokens::{Token, Tokens},
};

/// The callers' rights, the port over TCP, and its tokens.
pub(super) struct Api {
    access: Access,
    /// The part of the API that is open over TCP.
    pub(super) port: Port,
    pub(super) tokens: Tokens,
}

impl Api {
    /// Access by a configuration and the stored tokens.
    pub(super) fn new(config: &Config, access: Access, tokens: Vec<Token>) -> Api {
        let tokens = Tokens::new(tokens);
        Api { access, port: Port::new(config.api.place(), tokens.clone()), tokens }
    }

    /// Applies a new configuration.
    pub(super) fn reconfigure(&self, config: &Config, rights: Rights) {
        self.access.set(rights);
        self.port.set(config.api.place());
    }
}

impl Agent {
    /// Makes a token. It is stored when this returns its secret.
    pub(super) fn add_token(&mut self, new: NewToken, by: &Actor) -> Result<TokenMade, Error> {
        let (tokens, made) = self.api.tokens.with(new, now_ms(self))?;
        self.put_tokens(tokens, by)?;
        Ok(made)
    }

    /// Takes a token away. It is not taken from then on.
    pub(super) fn remove_token(&mut self, name: &str, by: &Actor) -> Result<TokenView, Error> {
        let (tokens, removed) = self.api.tokens.without(name)?;
        self.put_tokens(tokens, by)?;
        Ok(removed)
    }

    fn put_tokens(&mut self, tokens: Vec<Arc<Token>>, by: &Actor) -> Result<(), Error> {
        self.recorded(by, "change of tokens", |agent| {
            agent.store.save_tokens(&tokens).map_err(not_stored)?;
            agent.api.tokens.set(tokens);
            Ok(())
        })
    }
}
