//! Requests over the agent's socket, as any program may make them.

use std::{
    fmt::Write as _,
    io::{self, Read, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends one request, such as `GET /v1/status`, with more header lines and a body.
///
/// Returns the status and the whole text of the answer, its head first.
///
/// # Errors
/// If the agent does not take the connection, or does not give a whole answer.
pub fn http(socket: &Path, request: &str, headers: &str, body: &[u8]) -> io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut head = format!("{request} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n{headers}");
    let _ = write!(head, "content-length: {}\r\n\r\n", body.len());
    // A refusal may come before the agent has read the body. The answer counts, not the error.
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = || text.split(' ').nth(1).and_then(|word| word.parse().ok());
    match text.contains("\r\n\r\n").then(status).flatten() {
        Some(status) => Ok((status, text)),
        None => Err(sent.and(read.map(drop)).err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())),
    }
}
