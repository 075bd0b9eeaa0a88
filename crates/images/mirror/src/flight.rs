//! One piece of work for all who ask for the same at once.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;

/// Work in progress, by what it is for.
#[derive(Debug)]
pub(crate) struct Flights<K, V> {
    running: Arc<Mutex<HashMap<K, watch::Receiver<Option<V>>>>>,
}

impl<K, V> Default for Flights<K, V> {
    fn default() -> Flights<K, V> {
        Flights { running: Arc::default() }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static, V: Clone + Send + Sync + 'static> Flights<K, V> {
    /// The result of `work`, or of the same work that is under way already. It goes on to its end
    /// also without a waiting caller. `None`: it panicked.
    pub(crate) async fn join<F>(&self, key: K, work: impl FnOnce() -> F) -> Option<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut result = {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(result) = running.get(&key) {
                result.clone()
            } else {
                let (sender, result) = watch::channel(None);
                running.insert(key.clone(), result.clone());
                let (work, table) = (work(), Arc::clone(&self.running));
                tokio::spawn(async move {
                    let done = tokio::spawn(work).await.ok();
                    table.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
                    let _ = sender.send(done);
                });
                result
            }
        };
        let done = result.wait_for(Option::is_some).await.ok()?;
        done.clone()
    }
}
