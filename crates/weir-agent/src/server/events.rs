//! `GET /v1/events`: the kept events, then later ones, as lines or as server-sent events.

use std::{
    convert::Infallible,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    body::Body,
    http::{HeaderMap, header},
    response::{IntoResponse, Response, Sse, sse},
};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use weir_api::{Event, EventKind};

use super::accept::ranges;

/// The stream in the form that `headers` request. Without `live` it ends after `kept`.
pub(super) fn response(kept: Vec<Event>, live: Option<Receiver<Event>>, headers: &HeaderMap) -> Response {
    let feed = Feed { kept: kept.into_iter(), live, last: None }.stream();
    let wants_sse = ranges(headers).any(|range| range.essence == "text/event-stream");
    if wants_sse {
        let events = feed.map(|event| {
            Ok::<_, Infallible>(sse::Event::default().id(event.seq.to_string()).data(json(&event)))
        });
        return Sse::new(events).keep_alive(sse::KeepAlive::default()).into_response();
    }
    let lines = feed.map(|event| Ok::<_, Infallible>(json(&event) + "\n"));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

fn json(event: &Event) -> String {
    serde_json::to_string(event).expect("strings and numbers always have a JSON form")
}

/// The position of one reader in the events.
struct Feed {
    kept: std::vec::IntoIter<Event>,
    live: Option<Receiver<Event>>,
    /// The number of the last event sent.
    last: Option<u64>,
}

impl Feed {
    fn stream(self) -> impl Stream<Item = Event> {
        stream::unfold(self, |mut feed| async { feed.next().await.map(|event| (event, feed)) })
    }

    async fn next(&mut self) -> Option<Event> {
        let event = match self.kept.next() {
            Some(event) => event,
            None => self.next_live().await?,
        };
        self.last = Some(event.seq);
        Some(event)
    }

    async fn next_live(&mut self) -> Option<Event> {
        loop {
            match self.live.as_mut()?.recv().await {
                // The event was sent already, as one of the kept events.
                Ok(event) if self.last.is_some_and(|last| event.seq <= last) => {}
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(count)) => return Some(self.lost(count)),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// An event in place of `count` events that the reader was too slow for. It has the number of the
    /// last of them.
    fn lost(&self, count: u64) -> Event {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Event {
            seq: self.last.unwrap_or(0) + count,
            time_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            what: EventKind::Lost,
            class: None,
            agreement: None,
            detail: format!("{count} events came faster than they were read"),
        }
    }
}
