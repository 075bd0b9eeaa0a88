//! A consumer in a closed loop, like ApacheBench: one connection a request.

use std::{
    ffi::OsString,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{setsockopt, sockopt};

use super::service::REQUEST;

/// Longer than any answer takes that is still being sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const BUFFER: usize = 64 << 10;

/// One answer, with ApacheBench's measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Answer {
    /// The start of the request.
    pub(crate) begun: Instant,
    /// Time from the request to the first byte of the answer: ApacheBench's `wait`.
    pub(crate) wait: Duration,
    /// Time from the request to the last byte: ApacheBench's `dtime`.
    pub(crate) dtime: Duration,
    /// Bytes of the answer, with its head.
    pub(crate) bytes: usize,
    /// Bytes that had arrived when the first byte was read.
    pub(crate) first: usize,
}

impl Answer {
    /// The transmission time of the answer, ms: the paper's tt = dtime - wait.
    #[must_use]
    pub(crate) fn transmission_ms(&self) -> f64 {
        (self.dtime - self.wait).as_secs_f64() * 1e3
    }
}

/// Sends requests one after the other until `end`. The unfinished request at `end` is not counted.
///
/// # Errors
/// If the service refuses, answers something else, or takes longer than 30 s.
pub(crate) fn consume(target: SocketAddr, end: Instant) -> Result<Vec<Answer>> {
    go_first();
    let mut answers = Vec::new();
    while Instant::now() < end {
        match ask(target, end) {
            Ok(Some(answer)) => answers.push(answer),
            Ok(None) => break,
            Err(error) => return Err(error.context(format!("consumer of {target}"))),
        }
    }
    Ok(answers)
}

/// Gives this thread the highest priority. It then sees an answer at once, even on a busy machine.
fn go_first() {
    // SAFETY: a plain system call without pointers; 0 is the calling thread. After a refusal the thread keeps
    // its priority.
    unsafe { nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, -20) };
}

/// One request and its answer; `None` if `end` comes first.
fn ask(target: SocketAddr, end: Instant) -> Result<Option<Answer>> {
    let mut stream = TcpStream::connect_timeout(&target, ANSWER_TIMEOUT).context("cannot connect")?;
    setsockopt(&stream, sockopt::TcpCongestion, &OsString::from("cubic"))?;
    let begun = Instant::now();
    let request = format!("GET {REQUEST} HTTP/1.1\r\nHost: service\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).context("cannot send a request")?;
    let mut buffer = vec![0; BUFFER];
    let (mut head, mut bytes, mut wanted, mut begin) = (Vec::new(), 0, None, None);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left.min(ANSWER_TIMEOUT)))?;
        let read = match stream.read(&mut buffer) {
            Ok(0) => bail!("the answer ended after {bytes} bytes, wanted {wanted:?}"),
            Ok(read) => read,
            Err(_) if Instant::now() >= end => return Ok(None),
            Err(error) => return Err(error).context("no answer"),
        };
        let now = begun.elapsed();
        let (wait, first) = *begin.get_or_insert((now, read));
        bytes += read;
        if wanted.is_none() {
            head.extend_from_slice(&buffer[..read]);
            wanted = length(&head)?;
        }
        if wanted.is_some_and(|wanted| bytes >= wanted) {
            return Ok(Some(Answer { begun, wait, dtime: now, bytes, first }));
        }
    }
}

/// Bytes of the whole answer, once its head is complete.
fn length(head: &[u8]) -> Result<Option<usize>> {
    let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let text = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
    if !text.starts_with("http/1.1 200") {
        bail!("the service says {}", text.lines().next().unwrap_or_default());
    }
    let body =
        text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    Ok(Some(end + 4 + body.context("the answer's head has no length")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answers_length_is_its_head_and_its_body() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
        assert_eq!(length(head).unwrap(), Some(head.len() + 10));
        assert_eq!(length(&head[..20]).unwrap(), None);
        assert!(length(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_err().to_string().contains("400"));
    }
}
