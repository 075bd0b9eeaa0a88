//! The answers over TCP that are made at a time. No token takes the turns of all others.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::response::Response;
use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::timeout,
};
use weir_agree::Name;

use super::{bearer::later, connections::Caller};

/// The answers to tokens of parties, and those to all other tokens.
const ANSWERS: usize = 4;
/// The answers to one token.
const OF_TOKEN: usize = 2;
/// The time that a request waits for the other requests of its token.
const WAIT: Duration = Duration::from_secs(2);

/// The turns of tokens.
#[derive(Debug)]
pub(super) struct Turns {
    of_parties: Semaphore,
    of_others: Semaphore,
    /// Those of each token that has requests now.
    of_tokens: Mutex<BTreeMap<Name, Arc<Semaphore>>>,
}

/// A turn. Its drop ends it.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    _own: Option<OwnedSemaphorePermit>,
    _shared: Result<SemaphorePermit<'a>, AcquireError>,
}

impl Turns {
    pub(super) fn new() -> Turns {
        let [of_parties, of_others] = [(); 2].map(|()| Semaphore::new(ANSWERS));
        Turns { of_parties, of_others, of_tokens: Mutex::default() }
    }

    /// Waits for a turn of this caller.
    ///
    /// # Errors
    /// The answer to a caller whose other requests take too long.
    pub(super) async fn take(&self, caller: &Caller) -> Result<Turn<'_>, Response> {
        let client = caller.client(None);
        let own = timeout(WAIT, self.of_token(&client).acquire_owned()).await.map_err(|_| {
            let message = format!(
                "cannot answer {client} now: {OF_TOKEN} of its requests are being answered, the most at a time; \
                 end one, or try again in {WAIT:?}"
            );
            later(WAIT, message)
        })?;
        let shared = if caller.party().is_some() { &self.of_parties } else { &self.of_others };
        Ok(Turn { _own: own.ok(), _shared: shared.acquire().await })
    }

    /// The turns of one token. Tokens without a request are forgotten.
    fn of_token(&self, client: &Name) -> Arc<Semaphore> {
        let mut all = self.of_tokens.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turns| Arc::strong_count(turns) > 1);
        Arc::clone(all.entry(client.clone()).or_insert_with(|| Arc::new(Semaphore::new(OF_TOKEN))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_without_a_request_are_forgotten() {
        let turns = Turns::new();
        let name = |n: usize| Name::new(&format!("token:{n}")).unwrap();
        let held = Arc::clone(&turns.of_token(&name(0))).try_acquire_owned().unwrap();
        (1..100).for_each(|n| drop(turns.of_token(&name(n))));
        assert_eq!(turns.of_token(&name(0)).available_permits(), OF_TOKEN - 1);
        assert_eq!(turns.of_tokens.lock().unwrap().len(), 1);
        drop(held);
    }
}
