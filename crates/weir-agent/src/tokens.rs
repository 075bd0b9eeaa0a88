//! Tokens of the API over TCP. The agent keeps hashes of their secrets only.

use std::sync::{Arc, PoisonError, RwLock};

use ring::{digest, rand::SecureRandom as _};
use serde::{Deserialize, Serialize};
use weir_agree::Name;
use weir_api::{Error, ErrorCode, NewToken, TokenMade, TokenScope, TokenView};

use crate::config::{Right, is_name, no_name};

/// The most tokens.
const MAX_TOKENS: usize = 128;
/// The bytes of a secret. 256 random bits cannot be guessed, so one round of SHA-256 is enough for its hash.
const SECRET: usize = 32;
/// The beginning of a secret, so that people and scanners recognise it.
const PREFIX: &str = "weir_";
/// The longest secret that is read.
pub(crate) const MAX_SECRET: usize = 256;

/// A token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token {
    pub(crate) view: TokenView,
    /// The SHA-256 of the secret in hexadecimal digits.
    hash: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(secret: &str) -> String {
    hex(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref())
}

/// Compares in a time that does not depend on where the texts differ.
fn is_same(one: &str, other: &str) -> bool {
    let differing = one.bytes().zip(other.bytes()).fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    one.len() == other.len() && differing == 0
}

impl Token {
    pub(crate) fn name(&self) -> &str {
        &self.view.name
    }

    /// The right of its bearer. `None` for a scope of a later version.
    pub(crate) fn right(&self) -> Option<Right> {
        match self.view.scope {
            TokenScope::Read => Some(Right::Read),
            TokenScope::Party => Some(Right::Own),
            TokenScope::Operate => Some(Right::Operate),
            TokenScope::Admin => Some(Right::Admin),
            _ => None,
        }
    }

    /// The party that its bearer is held to. A token of scope `party` without a party reaches no agreement.
    pub(crate) fn party(&self) -> Option<&str> {
        (self.view.scope == TokenScope::Party).then(|| self.view.party.as_deref().unwrap_or_default())
    }
}

/// All tokens. The server and the agent's loop share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens(Arc<RwLock<Vec<Arc<Token>>>>);

impl Tokens {
    pub(crate) fn new(tokens: Vec<Token>) -> Tokens {
        Tokens(Arc::new(RwLock::new(tokens.into_iter().map(Arc::new).collect())))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Token>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces all tokens.
    pub(crate) fn set(&self, tokens: Vec<Arc<Token>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = tokens;
    }

    /// The token with this secret, unless it has expired.
    pub(crate) fn find(&self, secret: &str, now_ms: u64) -> Option<Arc<Token>> {
        let hash = hash(secret);
        // Each token is compared, so the time tells nothing about their order either.
        let of_secret = |found: Option<Arc<Token>>, token: &Arc<Token>| {
            if is_same(&token.hash, &hash) { Some(Arc::clone(token)) } else { found }
        };
        let found = self.all().iter().fold(None, of_secret)?;
        found.view.expires_ms.is_none_or(|expires| now_ms < expires).then_some(found)
    }

    /// All tokens with another one, and that one with its secret.
    ///
    /// # Errors
    /// The token contradicts itself, has a name that is taken, or is one too many.
    pub(crate) fn with(&self, new: NewToken, now_ms: u64) -> Result<(Vec<Arc<Token>>, TokenMade), Error> {
        let cannot = |why: String| {
            Error::new(ErrorCode::BadRequest, format!("cannot add the token {}: {why}", new.name))
        };
        let mut tokens = self.all();
        if !is_name(&new.name) {
            return Err(Error::new(
                ErrorCode::BadRequest,
                format!("cannot add a token: {}", no_name(&new.name)),
            ));
        }
        if tokens.iter().any(|token| token.view.name == new.name) {
            return Err(cannot("there is one with this name (`weir token rm` takes it away)".to_owned()));
        }
        if tokens.len() >= MAX_TOKENS {
            return Err(cannot(format!("there are {} of {MAX_TOKENS}", tokens.len())));
        }
        match (&new.scope, &new.party) {
            (TokenScope::Other(scope), _) => {
                return Err(cannot(format!("there is no scope {scope}: take read, party, operate or admin")));
            }
            (TokenScope::Party, Some(party)) if Name::new(party).is_ok() => {}
            (TokenScope::Party, Some(party)) => {
                return Err(cannot(format!("`{party}` is no name of a party")));
            }
            (TokenScope::Party, None) => return Err(cannot("scope party needs a party".to_owned())),
            (_, Some(_)) => return Err(cannot("only scope party has a party".to_owned())),
            (_, None) => {}
        }
        if new.expires_ms.is_some_and(|expires| expires <= now_ms) {
            return Err(cannot("it would have expired already".to_owned()));
        }
        let mut random = [0; SECRET];
        ring::rand::SystemRandom::new().fill(&mut random).map_err(|_| {
            Error::new(ErrorCode::Engine, "cannot add a token: the kernel gives no random numbers")
        })?;
        let secret = format!("{PREFIX}{}", hex(&random));
        let NewToken { name, scope, party, expires_ms } = new;
        let token = TokenView { name, scope, party, created_ms: now_ms, expires_ms };
        tokens.push(Arc::new(Token { view: token.clone(), hash: hash(&secret) }));
        Ok((tokens, TokenMade { token, secret }))
    }

    /// All tokens without one, and that one.
    ///
    /// # Errors
    /// No token has this name.
    pub(crate) fn without(&self, name: &str) -> Result<(Vec<Arc<Token>>, TokenView), Error> {
        let mut tokens = self.all();
        let Some(at) = tokens.iter().position(|token| token.view.name == name) else {
            let message = format!("no token is called {name}: `weir token ls` lists them");
            return Err(Error::new(ErrorCode::UnknownName, message));
        };
        let removed = tokens.remove(at);
        Ok((tokens, removed.view.clone()))
    }
}

#[cfg(test)]
impl Tokens {
    /// Adds a token for a test and returns its secret.
    pub(crate) fn made(&self, name: &str, scope: TokenScope, party: Option<&str>) -> String {
        let new =
            NewToken { name: name.to_owned(), scope, party: party.map(str::to_owned), expires_ms: None };
        let (tokens, made) = self.with(new, 0).unwrap();
        self.set(tokens);
        made.secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, scope: &str, party: Option<&str>, expires_ms: Option<u64>) -> NewToken {
        NewToken { name: name.to_owned(), scope: scope.into(), party: party.map(str::to_owned), expires_ms }
    }

    #[test]
    fn a_token_is_found_by_its_secret_until_it_expires_or_is_removed() {
        let tokens = Tokens::default();
        let (all, made) = tokens.with(new("ops", "operate", None, Some(1_000)), 5).unwrap();
        tokens.set(all);
        let other = tokens.made("reader", TokenScope::Read, None);
        assert!(made.secret.starts_with("weir_") && made.secret.len() == 5 + 64, "{}", made.secret);
        assert_ne!(made.secret, other);
        let found = |secret: &str, now_ms| tokens.find(secret, now_ms).map(|token| token.name().to_owned());
        assert_eq!(found(&made.secret, 999).as_deref(), Some("ops"));
        assert_eq!(found(&made.secret, 1_000), None, "it has expired");
        assert_eq!(found(&other, u64::MAX).as_deref(), Some("reader"));
        for wrong in ["", "weir_", &made.secret[..68], &made.secret.to_uppercase()] {
            assert_eq!(found(wrong, 0), None, "{wrong}");
        }
        let stored = serde_json::to_string(&*tokens.all()[0]).unwrap();
        assert!(!stored.contains(&made.secret[5..]), "the secret is stored: {stored}");
        let (all, removed) = tokens.without("ops").unwrap();
        tokens.set(all);
        assert_eq!((removed.name.as_str(), found(&made.secret, 0)), ("ops", None));
        assert!(tokens.without("ops").unwrap_err().message.contains("weir token ls"));
    }

    #[test]
    fn tokens_that_contradict_themselves_are_refused() {
        let tokens = Tokens::default();
        tokens.made("ops", TokenScope::Operate, None);
        for (new, why) in [
            (new("ops", "read", None, None), "there is one with this name"),
            (new("a b", "read", None, None), "cannot add a token"),
            (new("x", "root", None, None), "there is no scope root"),
            (new("x", "party", None, None), "scope party needs a party"),
            (new("x", "party", Some(""), None), "is no name of a party"),
            (new("x", "read", Some("acme"), None), "only scope party has a party"),
            (new("x", "read", None, Some(7)), "it would have expired"),
        ] {
            let error = tokens.with(new, 7).unwrap_err();
            assert!(error.message.contains(why), "{}", error.message);
        }
        for n in 1..MAX_TOKENS {
            tokens.made(&format!("t{n}"), TokenScope::Read, None);
        }
        assert!(tokens.with(new("x", "read", None, None), 0).unwrap_err().message.contains("128 of 128"));
    }

    #[test]
    fn texts_are_the_same_only_if_each_byte_is() {
        assert!(is_same("", "") && is_same("abc", "abc"));
        for (one, other) in [("abc", "abd"), ("abc", "bbc"), ("abc", "ab"), ("", "a")] {
            assert!(!is_same(one, other) && !is_same(other, one), "{one} {other}");
        }
    }
}
