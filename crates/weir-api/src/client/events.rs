//! The stream of events.

use std::{thread::sleep, time::Duration};

use http_body_util::BodyExt;
use hyper::{Method, body::Incoming};
use tokio::{runtime::Runtime, time};

use super::{Client, ClientError, MAX_ANSWER, Place, excerpt};
use crate::Event;

/// The pause before a stream that ended is opened again.
const AGAIN: Duration = Duration::from_secs(1);

/// The events of [`Client::events`], in their order. The stream ends when the agent stops, or without
/// `follow` after the kept events.
#[derive(Debug)]
pub struct Events {
    client: Client,
    runtime: Runtime,
    body: Incoming,
    follow: bool,
    buffer: Vec<u8>,
    /// Number and time of the last event told.
    last: Option<(u64, u64)>,
    done: bool,
}

impl Events {
    pub(super) fn of(client: &Client, follow: bool) -> Result<Events, ClientError> {
        let runtime = client.runtime()?;
        let body = open(client, &runtime, follow)?;
        let (client, buffer) = (client.clone(), Vec::new());
        Ok(Events { client, runtime, body, follow, buffer, last: None, done: false })
    }

    /// The next whole line without its line break, or `None` at the end of the stream.
    fn line(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&b| b == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            if self.buffer.len() > MAX_ANSWER {
                return Err(self.error(format!("a line of more than {MAX_ANSWER} bytes")));
            }
            let wait = if self.follow { None } else { Some(self.client.timeout) };
            let body = &mut self.body;
            let frame = self.runtime.block_on(async {
                match wait {
                    Some(wait) => time::timeout(wait, body.frame()).await.map_err(|_| wait),
                    None => Ok(body.frame().await),
                }
            });
            match frame {
                Err(after) => return Err(ClientError::Timeout { at: self.client.address(), after }),
                // Over TCP the agent cuts a stream in its middle. The part of a line that has come comes again.
                Ok(None | Some(Err(_))) if self.is_opened_again() => {
                    sleep(AGAIN);
                    self.buffer.clear();
                    self.body = open(&self.client, &self.runtime, self.follow)?;
                }
                Ok(None) if self.buffer.is_empty() => return Ok(None),
                Ok(None) => return Ok(Some(std::mem::take(&mut self.buffer))),
                Ok(Some(Err(e))) => {
                    return Err(self.error(format!("the stream broke off: {}", weir_units::chain(&e))));
                }
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }

    fn is_opened_again(&self) -> bool {
        self.follow && matches!(self.client.place, Place::Remote(_))
    }

    /// Whether a stream that was opened before had this event. An agent that has started since counts from 1 again.
    fn is_told(&self, event: &Event) -> bool {
        self.last.is_some_and(|(seq, time_ms)| event.seq <= seq && event.time_ms <= time_ms)
    }

    fn error(&self, found: String) -> ClientError {
        self.client.protocol(&Method::GET, "/v1/events", found)
    }
}

fn open(client: &Client, runtime: &Runtime, follow: bool) -> Result<Incoming, ClientError> {
    let path = format!("/v1/events?follow={follow}");
    let response = runtime.block_on(client.in_time(client.send(&Method::GET, &path, Vec::new())))?;
    Ok(response.into_body())
}

impl Iterator for Events {
    type Item = Result<Event, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            let item = match self.line() {
                Ok(None) => {
                    self.done = true;
                    return None;
                }
                // An empty line only keeps the connection alive.
                Ok(Some(line)) if line.is_empty() => continue,
                Ok(Some(line)) => self
                    .client
                    .decode(&line)
                    .map_err(|e| self.error(format!("{e} (in `{}`)", excerpt(&line)))),
                Err(e) => Err(e),
            };
            match &item {
                Ok(event) if self.is_told(event) => continue,
                Ok(event) => self.last = Some((event.seq, event.time_ms)),
                Err(_) => self.done = true,
            }
            return Some(item);
        }
        None
    }
}
