//! One step of `weir image doctor`.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use weir_api::{Check, Verdict};

/// A check with advice for a failure.
pub(super) fn check(name: &str, verdict: Verdict, found: impl Into<String>, advice: Option<&str>) -> Check {
    Check { name: name.to_owned(), verdict, found: found.into(), advice: advice.map(str::to_owned) }
}

/// The status of a GET request.
pub(super) fn ask(listen: SocketAddr, path: &str) -> std::io::Result<u16> {
    let wait = Duration::from_secs(10);
    let mut stream = TcpStream::connect_timeout(&listen, wait)?;
    stream.set_read_timeout(Some(wait))?;
    // The request is one write, because the other side may answer and close after the first part.
    let request = format!("GET {path} HTTP/1.1\r\nhost: {listen}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    let status = std::str::from_utf8(&head).ok().and_then(|head| head.get(9..12)?.parse().ok());
    status.ok_or_else(|| std::io::Error::other("the answer is not HTTP"))
}
