//! Talks to a running agent, over its unix socket or over TCP.

mod events;
mod remote;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

pub use events::Events;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, Response, body::Incoming, header::HeaderValue};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use remote::Duplex;
pub use remote::{BadRemote, Remote};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::UnixStream, runtime::Runtime, time};

use crate::{
    Class, CniAttached, CniAttachment, CniForgotten, CniKeep, CniKey, ConfigurationText, Doctor, Error,
    Explanation, Export, ExportQuery, History, HistoryQuery, LinkView, NewToken, Plan, SetCapacity,
    SetPolicies, Status, TokenMade, TokenView, Undone, plain::plain_value,
};

/// The largest answer: a hundred thousand classes at some 600 bytes each.
const MAX_ANSWER: usize = 64 << 20;

/// The characters that stay unescaped in a class's name, which is one segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');

/// Talks to a running agent, over its unix socket or over TCP, one request a connection.
///
/// Blocking: each call returns with the answer, or after [`Client::TIMEOUT`]. A call inside a tokio
/// runtime panics. A client is cheap to clone and to keep. After a restart of the agent the next call
/// connects again.
///
/// ```no_run
/// let agent = weir_api::Client::new(weir_api::DEFAULT_SOCKET);
/// for class in agent.classes()? {
///     println!("{} sends {}", class.name, class.rate);
/// }
/// # Ok::<(), weir_api::ClientError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    place: Place,
    timeout: Duration,
    /// Whether answers are for a terminal.
    plain: bool,
}

/// Where an agent answers.
#[derive(Debug, Clone)]
enum Place {
    Socket(PathBuf),
    Remote(Remote),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Socket(path) => path.display().fmt(f),
            Place::Remote(remote) => remote.url().fmt(f),
        }
    }
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the socket.
    #[error(
        "cannot reach the agent at {}: is `weir agent` running? start it with \
         `weir agent --config /etc/weir/weir.toml`, or say where it listens with `--socket`",
        socket.display()
    )]
    Unreachable {
        /// The socket that was tried.
        socket: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// This user may not open the socket.
    #[error("cannot open the agent's socket {}: it needs root or membership of the group weir", socket.display())]
    Permission {
        /// The socket that was tried.
        socket: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// No process takes connections at the URL.
    #[error(
        "cannot connect to the agent at {url}: is `[api] listen` set on that node, and does its firewall let you through?"
    )]
    NoConnection {
        /// The URL that was tried.
        url: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The agent cannot prove that it is the one at the URL, or speaks no TLS.
    #[error(
        "no TLS with the agent at {url}: use the name that its certificate has, or give the certificate with `--ca-file`"
    )]
    NoTls {
        /// The URL that was tried.
        url: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The agent does not answer in time.
    #[error(
        "no answer from the agent at {at} within {after:?}: it is alive but busy, or stopped; what was asked for may \
         still be done"
    )]
    Timeout {
        /// The socket or URL that was tried.
        at: String,
        /// The time waited.
        after: Duration,
    },
    /// The agent refused the request.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The agent refused a request about agreements, or could not read it.
    #[error(transparent)]
    Fault(#[from] Box<weir_agree::Fault>),
    /// The answer does not have the form of this version.
    #[error("cannot understand the answer to {request} from {at}: {found}")]
    Protocol {
        /// The socket or URL that was tried.
        at: String,
        /// Method and path.
        request: String,
        /// The text received instead.
        found: String,
    },
}

impl Client {
    /// The time limit of an answer.
    pub const TIMEOUT: Duration = Duration::from_secs(10);
    /// The lower bound of the time limit of [`doctor`](Client::doctor), which tries each engine with
    /// traffic.
    pub const DOCTORS_TIMEOUT: Duration = Duration::from_secs(70);

    /// A client for the agent that listens at `socket`. It opens nothing yet.
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client { place: Place::Socket(socket.into()), timeout: Client::TIMEOUT, plain: false }
    }

    /// A client for an agent over TCP. It opens nothing yet.
    #[must_use]
    pub fn over_tcp(remote: Remote) -> Client {
        Client { place: Place::Remote(remote), timeout: Client::TIMEOUT, plain: false }
    }

    /// The same client with another time limit.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Client {
        Client { timeout, ..self }
    }

    /// The same client for a terminal: [`plain`](crate::plain()) is applied to each text of an answer.
    #[must_use]
    pub fn for_terminal(self) -> Client {
        Client { plain: true, ..self }
    }

    /// Parses an answer. Each kind of answer has code for one source only: a second one would make the program larger.
    fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> serde_json::Result<T> {
        serde_json::from_value(self.value(bytes)?)
    }

    fn value(&self, bytes: &[u8]) -> serde_json::Result<serde_json::Value> {
        let value = serde_json::from_slice(bytes)?;
        Ok(if self.plain { plain_value(value) } else { value })
    }

    /// The socket it talks to; none over TCP.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        match &self.place {
            Place::Socket(path) => Some(path),
            Place::Remote(_) => None,
        }
    }

    /// The socket or the URL, for people.
    #[must_use]
    pub fn address(&self) -> String {
        self.place.to_string()
    }

    /// The agent and its link.
    ///
    /// # Errors
    /// [`ClientError`], as for every call below.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get("/v1/status")
    }

    /// All classes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn classes(&self) -> Result<Vec<Class>, ClientError> {
        self.get("/v1/classes")
    }

    /// One class, by `name` or `source:name`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn class(&self, name: &str) -> Result<Class, ClientError> {
        self.get(&format!("/v1/classes/{}", segment(name)))
    }

    /// Why a class has its allocation now.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn explain(&self, name: &str) -> Result<Explanation, ClientError> {
        self.get(&format!("/v1/classes/{}/explain", segment(name)))
    }

    /// The division of a direction of a link as a static HTB tree.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] if that is not shared.
    pub fn export(&self, query: &ExportQuery) -> Result<Export, ClientError> {
        let mut path = format!("/v1/export?direction={}", query.direction);
        if let Some(link) = &query.link {
            path += &format!("&link={}", segment(link));
        }
        self.get(&path)
    }

    /// Changes policies, all or none, and returns the classes concerned.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] means that the old policies are in force.
    pub fn set(&self, changes: &SetPolicies) -> Result<Vec<Class>, ClientError> {
        self.call(Method::PATCH, "/v1/policies", Some(changes))
    }

    /// Removes the values that [`Client::set`] had set for a class. A class that was not here is gone with them, and is
    /// answered as it was.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn unset(&self, name: &str) -> Result<Class, ClientError> {
        self.call(Method::DELETE, &format!("/v1/policies/{}", segment(name)), None::<&()>)
    }

    /// The capacities of the link.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn link(&self) -> Result<LinkView, ClientError> {
        self.get("/v1/link")
    }

    /// Changes the capacities of the link by hand.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] means that the old capacities are in force.
    pub fn set_link(&self, change: &SetCapacity) -> Result<LinkView, ClientError> {
        self.call(Method::PATCH, "/v1/link", Some(change))
    }

    /// Returns to the configured capacities of all links.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn reset_link(&self) -> Result<LinkView, ClientError> {
        self.call(Method::DELETE, "/v1/link", None::<&()>)
    }

    /// The effect that [`Client::set_link`] would have.
    ///
    /// # Errors
    /// [`ClientError`], as [`Client::set_link`] has it.
    pub fn plan_link(&self, change: &SetCapacity) -> Result<Plan, ClientError> {
        self.call(Method::POST, "/v1/plan/link", Some(change))
    }

    /// Reports an attachment, and waits until its class is in force, or until the agent gives up waiting.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn cni_attach(&self, attachment: &CniAttachment) -> Result<CniAttached, ClientError> {
        self.call(Method::PUT, "/v1/cni", Some(attachment))
    }

    /// The state of an attachment that was reported like this.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] if it was not reported, or otherwise.
    pub fn cni_check(&self, attachment: &CniAttachment) -> Result<CniAttached, ClientError> {
        self.call(Method::POST, "/v1/cni/check", Some(attachment))
    }

    /// Has the agent forget an attachment. An unknown one is no error.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn cni_detach(&self, key: &CniKey) -> Result<CniForgotten, ClientError> {
        self.call(Method::DELETE, "/v1/cni", Some(key))
    }

    /// Has the agent forget the attachments of a network that are not listed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn cni_keep(&self, keep: &CniKeep) -> Result<CniForgotten, ClientError> {
        self.call(Method::POST, "/v1/cni/keep", Some(keep))
    }

    /// Takes back the last change of policies that [`Client::set`] or [`Client::unset`] made.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] without a change, or where the replaced policies do not fit any more.
    pub fn undo(&self) -> Result<Undone, ClientError> {
        self.call(Method::DELETE, "/v1/policies", None::<&()>)
    }

    /// The tokens of the API over TCP, without their secrets.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn tokens(&self) -> Result<Vec<TokenView>, ClientError> {
        self.get("/v1/tokens")
    }

    /// Makes a token. Only this answer has its secret.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] if the token contradicts itself or its name is taken.
    pub fn add_token(&self, token: &NewToken) -> Result<TokenMade, ClientError> {
        self.call(Method::POST, "/v1/tokens", Some(token))
    }

    /// Takes a token away, at once.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn remove_token(&self, name: &str) -> Result<TokenView, ClientError> {
        let path = format!("/v1/tokens/{}", utf8_percent_encode(name, SEGMENT));
        self.call(Method::DELETE, &path, None::<&()>)
    }

    /// A part of the record of changes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn history(&self, query: &HistoryQuery) -> Result<History, ClientError> {
        let HistoryQuery { after, since_ms, name, limit } = query;
        let mut path = format!("/v1/history?after={after}&since_ms={since_ms}");
        if let Some(name) = name {
            path += &format!("&name={}", utf8_percent_encode(name, SEGMENT));
        }
        if let Some(limit) = limit {
            path += &format!("&limit={limit}");
        }
        self.get(&path)
    }

    /// The effect that [`Client::set`] would have.
    ///
    /// # Errors
    /// [`ClientError`], as [`Client::set`] has it.
    pub fn plan(&self, changes: &SetPolicies) -> Result<Plan, ClientError> {
        self.call(Method::POST, "/v1/plan/policies", Some(changes))
    }

    /// The effect that [`Client::undo`] would have.
    ///
    /// # Errors
    /// [`ClientError`], as [`Client::undo`] has it.
    pub fn plan_undo(&self) -> Result<Plan, ClientError> {
        self.call(Method::POST, "/v1/plan/undo", None::<&()>)
    }

    /// The effect that a reload of this configuration would have.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] if the agent would refuse the file.
    pub fn plan_configuration(&self, file: &ConfigurationText) -> Result<Plan, ClientError> {
        self.call(Method::POST, "/v1/plan/configuration", Some(file))
    }

    /// Acknowledges the notices about the stored state and returns them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn acknowledge(&self) -> Result<Vec<String>, ClientError> {
        self.call(Method::DELETE, "/v1/notices", None::<&()>)
    }

    /// Checks the abilities of the agent's node.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn doctor(&self) -> Result<Doctor, ClientError> {
        self.clone().with_timeout(self.timeout.max(Client::DOCTORS_TIMEOUT)).get("/v1/doctor")
    }

    /// The events that the agent has kept. With `follow`, later events too. Over TCP the agent ends each stream after
    /// a while; the client connects again and leaves out what it has told.
    ///
    /// # Errors
    /// [`ClientError`] if there is no stream. A later failure comes as an item.
    pub fn events(&self, follow: bool) -> Result<Events, ClientError> {
        Events::of(self, follow)
    }

    /// One `GET`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, None::<&()>)
    }

    /// Sends one request and reads the whole answer.
    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let protocol = |found: String| self.protocol(&method, path, found);
        let body = match body {
            Some(body) => {
                serde_json::to_vec(body).map_err(|e| protocol(format!("cannot write the request: {e}")))?
            }
            None => Vec::new(),
        };
        let bytes = self.exchange(&method, path, body)?;
        self.decode(&bytes).map_err(|e| protocol(format!("{e} (in `{}`)", excerpt(&bytes))))
    }

    /// Sends one request and reads the whole answer as bytes.
    fn exchange(
        &self,
        method: &Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<hyper::body::Bytes, ClientError> {
        self.runtime()?.block_on(self.in_time(async {
            let response = self.send(method, path, body).await?;
            self.read(method, path, response).await
        }))
    }

    fn runtime(&self) -> Result<Runtime, ClientError> {
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(|source| {
            match &self.place {
                Place::Socket(socket) => ClientError::Unreachable { socket: socket.clone(), source },
                Place::Remote(remote) => ClientError::NoConnection { url: remote.url().to_owned(), source },
            }
        })
    }

    /// Runs `work` with the time limit.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
        let late = |_| ClientError::Timeout { at: self.address(), after: self.timeout };
        time::timeout(self.timeout, work).await.map_err(late)?
    }

    async fn connect(&self) -> Result<Box<dyn Duplex>, ClientError> {
        let socket = match &self.place {
            Place::Remote(remote) => return remote.connect().await,
            Place::Socket(socket) => socket,
        };
        match UnixStream::connect(socket).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(source) => {
                let socket = socket.clone();
                Err(match source.kind() {
                    io::ErrorKind::PermissionDenied => ClientError::Permission { socket, source },
                    _ => ClientError::Unreachable { socket, source },
                })
            }
        }
    }

    /// Sends one request and returns the head of a successful answer.
    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = self.connect().await?;
        let protocol = |e: &dyn std::error::Error| self.protocol(method, path, weir_units::chain(e));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| protocol(&e))?;
        // The task ends with the connection. Its error reaches the request too.
        tokio::spawn(connection);
        let (host, token) = match &self.place {
            Place::Socket(_) => (&HeaderValue::from_static("weir"), None),
            Place::Remote(remote) => (remote.authority(), remote.token()),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", host)
            .header("content-type", "application/json")
            .header("accept", "application/json");
        let request = match token {
            Some(token) => request.header("authorization", token),
            None => request,
        };
        let request = request.body(Full::new(hyper::body::Bytes::from(body))).map_err(|e| protocol(&e))?;
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|e| self.protocol(method, path, self.no_http(&e)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = self.read(method, path, response).await?;
        if let Ok(Faulty { fault }) = self.decode(&bytes) {
            return Err(ClientError::Fault(fault));
        }
        Err(match self.decode::<Error>(&bytes) {
            Ok(error) => ClientError::Refused(error),
            Err(_) => self.protocol(method, path, format!("{status} with `{}`", excerpt(&bytes))),
        })
    }

    /// The words about an answer that is not HTTP.
    fn no_http(&self, error: &hyper::Error) -> String {
        let hint = match &self.place {
            Place::Remote(remote) if remote.is_clear() && error.is_parse() => {
                ": if the agent has a certificate, write https:// in the URL"
            }
            _ => "",
        };
        weir_units::chain(error) + hint
    }

    /// Reads the whole body.
    async fn read(
        &self,
        method: &Method,
        path: &str,
        response: Response<Incoming>,
    ) -> Result<hyper::body::Bytes, ClientError> {
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        body.map(http_body_util::Collected::to_bytes)
            .map_err(|e| self.protocol(method, path, weir_units::chain(&*e)))
    }

    fn protocol(&self, method: &Method, path: &str, found: String) -> ClientError {
        ClientError::Protocol { at: self.address(), request: format!("{method} {path}"), found }
    }
}

/// A refusal about agreements, as received.
#[derive(serde::Deserialize)]
struct Faulty {
    fault: Box<weir_agree::Fault>,
}

pub(crate) fn segment(name: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(name, SEGMENT)
}

/// The beginning of an answer, short enough for an error message.
fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}
