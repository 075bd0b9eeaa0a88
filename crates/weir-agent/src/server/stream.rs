//! `GET /v1/stream`: the status and all classes each second, as server-sent events.
//!
//! The first message has the whole document. Each later one has the difference to the one before, as a JSON Merge Patch
//! (RFC 7396). One document a second is made for all readers, and none while no one reads.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse as _, Response, Sse, sse},
    routing::get,
};
use futures_util::stream;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, MissedTickBehavior, interval},
};
use weir_api::{Class, ErrorCode, Status};

use super::{Failure, ask};
use crate::control::{Control, Request};

/// The most readers at a time, over the socket and TCP together.
pub(super) const MAX_READERS: usize = 16;
/// The time between two documents.
const PERIOD: Duration = Duration::from_secs(1);
/// The time after which a stream ends. The rights of a reader are checked again when it comes back.
const MAX_AGE: Duration = Duration::from_secs(50);

/// A document, and the difference to the one before.
#[derive(Debug)]
struct Document {
    number: u64,
    value: Value,
    patch: Arc<str>,
    /// The text of the whole, if a reader needed it.
    whole: OnceLock<Arc<str>>,
}

impl Document {
    fn whole(&self) -> Arc<str> {
        Arc::clone(self.whole.get_or_init(|| self.value.to_string().into()))
    }
}

/// The documents of all readers; cheap to clone.
#[derive(Debug, Clone)]
pub struct Stream {
    control: Control,
    latest: watch::Sender<Option<Arc<Document>>>,
    is_made: Arc<Mutex<bool>>,
    places: Arc<Semaphore>,
}

/// A reader's position.
struct Reader {
    documents: watch::Receiver<Option<Arc<Document>>>,
    /// The number of the document that it has.
    has: Option<u64>,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

impl Stream {
    /// The stream of the agent behind this channel.
    #[must_use]
    pub fn new(control: Control) -> Stream {
        Stream {
            control,
            latest: watch::Sender::new(None),
            is_made: Arc::default(),
            places: Arc::new(Semaphore::new(MAX_READERS)),
        }
    }

    pub(super) fn router(self) -> Router {
        Router::new().route("/v1/stream", get(read)).with_state(self)
    }

    /// A reader, and documents for it.
    fn join(&self) -> Result<Reader, Failure> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let message = format!(
                "cannot take another reader of the stream: {MAX_READERS} of {MAX_READERS} read it; end one of them"
            );
            Failure::new(ErrorCode::Busy, message)
        })?;
        let mut is_made = self.is_made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut documents = self.latest.subscribe();
        if !std::mem::replace(&mut *is_made, true) {
            // The document of earlier readers is old.
            self.latest.send_replace(None);
            documents.mark_unchanged();
            tokio::spawn(self.clone().make());
        } else {
            documents.mark_changed();
        }
        Ok(Reader { documents, has: None, until: Instant::now() + MAX_AGE, _place: place })
    }

    /// Makes documents until no one reads them.
    async fn make(self) {
        let mut clock = interval(PERIOD);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut number = 0;
        loop {
            clock.tick().await;
            {
                let mut is_made = self.is_made.lock().unwrap_or_else(PoisonError::into_inner);
                if self.latest.receiver_count() == 0 {
                    *is_made = false;
                    return;
                }
            }
            // A loop that has no time now has some later. Until then a reader waits.
            let Ok(value) = self.document().await else { continue };
            number += 1;
            let before = self.latest.borrow().clone();
            let patch = before.map_or_else(|| json!({}), |before| difference(&before.value, &value));
            let document =
                Document { number, value, patch: patch.to_string().into(), whole: OnceLock::new() };
            self.latest.send_replace(Some(Arc::new(document)));
        }
    }

    async fn document(&self) -> Result<Value, Failure> {
        let status = ask(&self.control, Request::Status).await?;
        let classes = ask(&self.control, Request::Classes).await?;
        let now_ms = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
        Ok(document(now_ms, &status, &classes))
    }
}

async fn read(State(stream): State<Stream>) -> Result<Response, Failure> {
    // An agent that stops, or that has no time, is an error instead of an empty stream.
    ask(&stream.control, Request::Status).await?;
    let reader = stream.join()?;
    let events = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok::<_, Infallible>(event), reader))
    });
    Ok(Sse::new(events).into_response())
}

impl Reader {
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            tokio::time::timeout_at(self.until, self.documents.changed()).await.ok()?.ok()?;
            let Some(document) = self.documents.borrow_and_update().clone() else { continue };
            let follows = self.has.is_some_and(|has| has + 1 == document.number);
            self.has = Some(document.number);
            // A reader that was too slow for a difference gets the whole.
            let (kind, text) =
                if follows { ("patch", Arc::clone(&document.patch)) } else { ("whole", document.whole()) };
            return Some(sse::Event::default().event(kind).data(&*text));
        }
    }
}

/// The content of the stream, without values that are null.
fn document(now_ms: u64, status: &Status, classes: &[Class]) -> Value {
    let classes: Map<String, Value> =
        classes.iter().map(|class| (format!("{}:{}", class.source, class.name), plain(class))).collect();
    json!({ "time_ms": now_ms, "status": plain(status), "classes": classes })
}

fn plain(shape: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(shape).expect("the API's shapes have a JSON form");
    drop_nulls(&mut value);
    value
}

/// In a merge patch null removes a value, so a document has none.
pub(super) fn drop_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(drop_nulls);
    }
}

/// The JSON Merge Patch that makes `after` of `before`.
pub(super) fn difference(before: &Value, after: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return after.clone() };
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter_map(|(key, value)| match old.get(key) {
        Some(same) if same == value => None,
        Some(other) => Some((key.clone(), difference(other, value))),
        None => Some((key.clone(), value.clone())),
    });
    gone.chain(changed).collect::<Map<_, _>>().into()
}
