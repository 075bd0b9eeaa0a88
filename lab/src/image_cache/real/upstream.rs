//! A registry that makes up its blobs, and a client that pulls them: HTTP/1.1 by hand, over real sockets.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use weir_cache::trace::Trace;
use weir_image::{Digest, digest::Algorithm};
use weir_testkit::Netns;

/// The longest wait for a byte.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The contents of a trace's images.
#[derive(Debug)]
pub(super) struct Content {
    sizes: Vec<u64>,
    pub(super) blobs: Vec<Digest>,
    numbers: HashMap<String, usize>,
    /// Their manifests' digests and texts.
    pub(super) images: Vec<(Digest, String)>,
    manifests: HashMap<String, usize>,
    /// GETs of blobs that were answered, and their bytes.
    pub(super) gets: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// A blob is its number, again and again.
fn bytes(number: usize, size: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(usize::try_from(size).unwrap_or(0)).collect()
}

impl Content {
    pub(super) fn of(trace: &Trace) -> Content {
        let sizes: Vec<u64> = trace.blobs.iter().map(|size| size.0).collect();
        let digest = |(n, size): (usize, &u64)| Digest::of(Algorithm::Sha256, &bytes(n, *size));
        let blobs: Vec<Digest> = sizes.iter().enumerate().map(digest).collect();
        let part = |n: &u32| {
            let n = *n as usize;
            serde_json::json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": blobs[n], "size": sizes[n] })
        };
        let images: Vec<(Digest, String)> = trace
            .images
            .iter()
            .map(|image| {
                let layers: Vec<_> = image[1..].iter().map(part).collect();
                let text = serde_json::json!({
                    "schemaVersion": 2, "mediaType": MANIFEST, "config": part(&image[0]), "layers": layers,
                });
                let text = text.to_string();
                (Digest::of(Algorithm::Sha256, text.as_bytes()), text)
            })
            .collect();
        Content {
            numbers: blobs.iter().map(ToString::to_string).zip(0..).collect(),
            manifests: images.iter().map(|(digest, _)| digest.to_string()).zip(0..).collect(),
            sizes,
            blobs,
            images,
            gets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Serves in a namespace, until this process ends.
    pub(super) fn serve(self: &Arc<Content>, netns: &Netns, at: SocketAddr) -> Result<()> {
        let listener = netns.run_in(|| TcpListener::bind(at))?.context("cannot listen as a registry")?;
        let content = Arc::clone(self);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let content = Arc::clone(&content);
                thread::spawn(move || {
                    let mut reader = BufReader::new(stream);
                    while content.answer(&mut reader).is_ok() {}
                });
            }
        });
        Ok(())
    }

    /// One request of a connection; an error ends that.
    fn answer(&self, reader: &mut BufReader<TcpStream>) -> Result<()> {
        let (line, _) = head(reader)?;
        let stream = reader.get_mut();
        let (method, path) = line.split_once(' ').context("no request")?;
        let path = path.split([' ', '?']).next().unwrap_or_default();
        let digest = path.rsplit('/').next().unwrap_or_default();
        let is_get = method == "GET";
        let (kind, body) = match (self.manifests.get(digest), self.numbers.get(digest)) {
            (Some(image), _) => (MANIFEST, self.images[*image].1.clone().into_bytes()),
            (None, Some(blob)) => {
                if is_get {
                    self.gets.fetch_add(1, Ordering::SeqCst);
                    self.bytes.fetch_add(self.sizes[*blob], Ordering::SeqCst);
                }
                ("application/octet-stream", bytes(*blob, self.sizes[*blob]))
            }
            (None, None) => {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
                return Ok(());
            }
        };
        let length = body.len();
        let mut answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Docker-Content-Digest: {digest}\r\n\r\n"
        )
        .into_bytes();
        if is_get {
            answer.extend(body);
        }
        stream.write_all(&answer)?;
        Ok(())
    }
}

/// The first line and the headers of a message, in small letters.
fn head(reader: &mut impl BufRead) -> Result<(String, Vec<String>)> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            bail!("the connection ended");
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let first = lines.first().cloned().context("no first line")?;
    Ok((first, lines[1..].iter().map(|line| line.to_ascii_lowercase()).collect()))
}

/// A client on a node, with one connection to the node's cache, which closes what is idle: it comes
/// again then, as runtimes do.
#[derive(Debug)]
pub(super) struct Puller<'a> {
    netns: &'a Netns,
    to: &'a str,
    reader: BufReader<TcpStream>,
}

impl<'a> Puller<'a> {
    pub(super) fn connect(netns: &'a Netns, to: &'a str) -> Result<Puller<'a>> {
        Ok(Puller { netns, to, reader: connect(netns, to)? })
    }

    /// Takes it to its end; answers its length.
    pub(super) fn get(&mut self, path: &str) -> Result<u64> {
        let (status, headers) = match self.ask(path) {
            Ok(answer) => answer,
            Err(_) => {
                self.reader = connect(self.netns, self.to)?;
                self.ask(path).with_context(|| format!("{path} is not answered"))?
            }
        };
        let length = headers.iter().find_map(|line| line.strip_prefix("content-length:"));
        let length: u64 =
            length.with_context(|| format!("{path}: {status}, without its length"))?.trim().parse()?;
        let got = std::io::copy(&mut (&mut self.reader).take(length), &mut std::io::sink())?;
        if !status.contains(" 200") || got != length {
            bail!("{path}: {status}, {got} of {length} bytes");
        }
        Ok(got)
    }

    fn ask(&mut self, path: &str) -> Result<(String, Vec<String>)> {
        let ask = format!("GET {path} HTTP/1.1\r\nHost: cache\r\nAccept: {MANIFEST}\r\n\r\n");
        self.reader.get_mut().write_all(ask.as_bytes())?;
        head(&mut self.reader)
    }
}

fn connect(netns: &Netns, to: &str) -> Result<BufReader<TcpStream>> {
    let stream = netns.run_in(|| TcpStream::connect(to))?.context("cannot connect to the cache")?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}
