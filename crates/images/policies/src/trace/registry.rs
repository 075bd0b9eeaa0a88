//! The IBM registry trace's JSON, as Anwar et al. published it (FAST 2018).
//!
//! One array of records a file; not in order of time. Used of a record:
//!
//! | key | what |
//! |---|---|
//! | `http.request.method` | `GET` is a pull; `PUT` of a manifest a new version |
//! | `http.request.remoteaddr` | the client |
//! | `http.request.uri` | `v2/USER/REPO/manifests/ID`, `v2/USER/REPO/blobs/ID` |
//! | `http.response.status`, `.written` | 200 and the blob's size |
//! | `timestamp` | ISO 8601, UTC |
//!
//! A manifest does not name its layers. The layers that a client fetches from a repository within
//! ten minutes after it asked for a manifest belong to that image. Every client tells the part that
//! it lacked. A manifest's name may be a tag, which means another image after a `PUT`. A layer that
//! every client had already is never seen.

use std::{collections::HashMap, fmt, io::Read, time::Duration};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use weir_units::Bytes;

use super::{Deployment, Trace, TraceError};
use crate::hash::{Map, Set};

/// A blob that is fetched later than this after the manifest is not the image's.
const PULL: i64 = 600_000;

/// Records that tell nothing of a pull, by why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    /// HEAD, POST, PATCH, and PUT of blobs.
    pub methods: u64,
    /// Another status than 200, or an empty answer.
    pub unanswered: u64,
    /// An address that is neither a manifest's nor a blob's.
    pub others: u64,
    /// Without a key that is needed, or with a value that cannot be.
    pub malformed: u64,
}

#[derive(Debug, Deserialize)]
struct Record {
    #[serde(rename = "http.request.method")]
    method: String,
    #[serde(rename = "http.request.remoteaddr")]
    client: String,
    #[serde(rename = "http.request.uri")]
    uri: String,
    #[serde(rename = "http.response.status")]
    status: u16,
    #[serde(rename = "http.response.written")]
    written: f64,
    timestamp: String,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Manifest(u32),
    NewVersion(u32),
    Blob(u32),
}

#[derive(Debug, Clone, Copy)]
struct Request {
    /// Milliseconds since the epoch.
    at: i64,
    client: u32,
    repo: u32,
    what: What,
}

/// Names as numbers, in the order of their first use. Names come from strangers: the map is the
/// standard library's, which no one can make slow.
#[derive(Debug, Default)]
struct Names(HashMap<Box<str>, u32>);

impl Names {
    fn number(&mut self, name: &str) -> Result<u32, TraceError> {
        if let Some(number) = self.0.get(name) {
            return Ok(*number);
        }
        let number = u32::try_from(self.0.len()).map_err(|_| TraceError::TooMany)?;
        self.0.insert(name.into(), number);
        Ok(number)
    }
}

/// Reads any number of files of the trace, and makes one [`Trace`] of them.
#[derive(Debug, Default)]
pub struct RegistryReader {
    clients: Names,
    repos: Names,
    manifests: Names,
    blobs: Names,
    sizes: Vec<Bytes>,
    requests: Vec<Request>,
    skipped: Skipped,
}

impl RegistryReader {
    /// Reads one file.
    ///
    /// # Errors
    /// [`TraceError::Json`] if it is no JSON array, also where reading failed;
    /// [`TraceError::TooMany`].
    pub fn read(&mut self, reader: impl Read) -> Result<(), TraceError> {
        let mut json = serde_json::Deserializer::from_reader(reader);
        let mut failed = None;
        json.deserialize_seq(Records(|record| self.take(record).map_err(|e| failed = Some(e)).is_ok()))
            .map_err(|e| failed.take().unwrap_or(TraceError::Json(e)))?;
        json.end()?;
        Ok(())
    }

    fn take(&mut self, record: Option<Record>) -> Result<(), TraceError> {
        let timed = record.and_then(|r| r.timestamp.parse::<Timestamp>().ok().map(|at| (at, r)));
        let Some((at, record)) = timed else {
            self.skipped.malformed += 1;
            return Ok(());
        };
        let put = record.method == "PUT";
        let kind = match split(&record.uri) {
            Some(kind) if record.method == "GET" || (put && kind.1 == "manifests") => kind,
            Some(_) => {
                self.skipped.methods += 1;
                return Ok(());
            }
            None => {
                self.skipped.others += 1;
                return Ok(());
            }
        };
        if !put && (record.status != 200 || record.written <= 0.0) {
            self.skipped.unanswered += 1;
            return Ok(());
        }
        let (repo, _, id) = kind;
        let what = if kind.1 == "blobs" {
            let blob = self.blobs.number(id)?;
            let size = Bytes(record.written as u64);
            match self.sizes.get_mut(blob as usize) {
                Some(known) => *known = size.max(*known),
                None => self.sizes.push(size),
            }
            What::Blob(blob)
        } else {
            let manifest = self.manifests.number(&record.uri)?;
            if put { What::NewVersion(manifest) } else { What::Manifest(manifest) }
        };
        let client = self.clients.number(&record.client)?;
        let repo = self.repos.number(repo)?;
        self.requests.push(Request { at: at.as_millisecond(), client, repo, what });
        Ok(())
    }

    /// Lines read so far that say nothing.
    #[must_use]
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Puts together which images were deployed when.
    ///
    /// # Errors
    /// [`TraceError::TooMany`] images.
    pub fn finish(mut self) -> Result<Trace, TraceError> {
        self.requests.sort_by_key(|request| request.at);
        let began = self.requests.first().map_or(0, |request| request.at);
        let mut images: Vec<Layers> = Vec::new();
        let mut deployments = Vec::new();
        // The image that a manifest's name means now; the last pull of a client from a repository;
        // images of one blob, for blobs without a manifest.
        let mut meant: Map<u32, u32> = Map::default();
        let mut pulls: Map<(u32, u32), (i64, u32)> = Map::default();
        let mut singles: Map<u32, u32> = Map::default();
        let begin = |images: &mut Vec<Layers>| {
            images.push(Layers::default());
            u32::try_from(images.len() - 1).map_err(|_| TraceError::TooMany)
        };
        for request in &self.requests {
            let at = Duration::from_millis(request.at.abs_diff(began));
            let key = (request.client, request.repo);
            let image = match request.what {
                What::NewVersion(manifest) => {
                    meant.remove(&manifest);
                    continue;
                }
                What::Manifest(manifest) => {
                    let image = match meant.get(&manifest) {
                        Some(image) => *image,
                        None => begin(&mut images)?,
                    };
                    meant.insert(manifest, image);
                    pulls.insert(key, (request.at, image));
                    image
                }
                What::Blob(blob) => {
                    let pull = pulls.get(&key).filter(|(asked, _)| request.at - asked <= PULL);
                    if let Some((_, image)) = pull {
                        images[*image as usize].add(blob);
                        continue;
                    }
                    let image = match singles.get(&blob) {
                        Some(image) => *image,
                        None => begin(&mut images)?,
                    };
                    singles.insert(blob, image);
                    images[image as usize].add(blob);
                    image
                }
            };
            deployments.push(Deployment { at, image, client: request.client });
        }
        let images = images.into_iter().map(|layers| layers.order.into()).collect();
        Ok(Trace { blobs: self.sizes, images, deployments })
    }
}

/// The layers of an image, in the order in which they were seen.
#[derive(Debug, Default)]
struct Layers {
    order: Vec<u32>,
    seen: Set<u32>,
}

impl Layers {
    fn add(&mut self, blob: u32) {
        if self.seen.insert(blob) {
            self.order.push(blob);
        }
    }
}

/// `v2/USER/REPO/manifests/ID` as `USER/REPO`, `manifests`, `ID`; uploads have more parts.
fn split(uri: &str) -> Option<(&str, &str, &str)> {
    let path = uri.trim_start_matches('/').strip_prefix("v2/")?;
    let (rest, id) = path.rsplit_once('/')?;
    let (repo, kind) = rest.rsplit_once('/')?;
    let known = matches!(kind, "manifests" | "blobs") && !id.is_empty() && !repo.is_empty();
    known.then_some((repo, kind, id))
}

/// Gives every element of an array to a function, until it says no; `None` for what is no record.
struct Records<F>(F);

impl<'de, F: FnMut(Option<Record>) -> bool> Visitor<'de> for Records<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of records")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while let Some(MaybeRecord(record)) = seq.next_element()? {
            if !(self.0)(record) {
                return Err(de::Error::custom("too many names"));
            }
        }
        Ok(())
    }
}

/// An element that need not be a record.
struct MaybeRecord(Option<Record>);

impl<'de> Deserialize<'de> for MaybeRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MaybeRecord, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(MaybeRecord(Record::deserialize(value).ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(second: u32, client: &str, method: &str, uri: &str, written: u64) -> String {
        format!(
            r#"{{"host":"aaaaaaaa","http.request.duration":0.5,"http.request.method":"{method}",
            "http.request.remoteaddr":"{client}","http.request.uri":"{uri}","http.request.useragent":"docker/17",
            "http.response.status":200,"http.response.written":{written},"id":"0123456789",
            "timestamp":"2017-06-20T00:{:02}:{:02}.250Z"}}"#,
            second / 60,
            second % 60
        )
    }

    fn read(records: &[String]) -> (Trace, Skipped) {
        let mut reader = RegistryReader::default();
        reader.read(format!("[{}]", records.join(",")).as_bytes()).unwrap();
        let skipped = reader.skipped();
        (reader.finish().unwrap(), skipped)
    }

    #[test]
    fn an_image_is_what_all_its_pullers_lacked() {
        let (trace, skipped) = read(&[
            // Not in order of time.
            record(3, "c1", "GET", "v2/u/r/blobs/b1", 30),
            record(1, "c1", "GET", "v2/u/r/manifests/latest", 900),
            record(2, "c1", "GET", "v2/u/r/blobs/b0", 20),
            record(60, "c2", "GET", "v2/u/r/manifests/latest", 900),
            record(61, "c2", "GET", "v2/u/r/blobs/b2", 40),
            // Another repository's blob is not the image's.
            record(62, "c2", "GET", "v2/u/other/blobs/b3", 50),
            record(63, "c2", "HEAD", "v2/u/r/blobs/b2", 40),
            record(63, "c2", "GET", "v2/u/r/blobs/uploads/x/y", 40),
            record(64, "c2", "GET", "v2/", 40),
            record(64, "c2", "GET", "v2/u/r/blobs/b9", 0),
            r#"{"host":"only"}"#.to_owned(),
        ]);
        assert_eq!(skipped, Skipped { methods: 1, unanswered: 1, others: 2, malformed: 1 });
        let names: Vec<u64> = trace.images[0].iter().map(|b| trace.blobs[*b as usize].0).collect();
        assert_eq!(names, [20, 30, 40]);
        let deployed: Vec<_> =
            trace.deployments.iter().map(|d| (d.at.as_secs(), d.image, d.client)).collect();
        assert_eq!(deployed, [(0, 0, 0), (59, 0, 1), (61, 1, 1)]);
    }

    #[test]
    fn a_tag_that_is_pushed_again_means_another_image() {
        let pull = |second, blob: &str| {
            [
                record(second, "c", "GET", "v2/u/r/manifests/t", 900),
                record(second + 1, "c", "GET", &format!("v2/u/r/blobs/{blob}"), 10),
            ]
        };
        let push = record(100, "p", "PUT", "v2/u/r/manifests/t", 900);
        let (trace, _) = read(&[&pull(1, "b0")[..], &pull(50, "b1"), &[push], &pull(200, "b2")].concat());
        assert_eq!(trace.images.iter().map(|image| image.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(trace.deployments.iter().map(|d| d.image).collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn a_blob_long_after_the_manifest_is_deployed_by_itself() {
        let (trace, _) = read(&[
            record(0, "c", "GET", "v2/u/r/manifests/t", 900),
            record(601, "c", "GET", "v2/u/r/blobs/b", 10),
            record(700, "d", "GET", "v2/u/r/blobs/b", 10),
        ]);
        assert_eq!(trace.images.iter().map(|image| image.len()).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(trace.deployments.iter().map(|d| d.image).collect::<Vec<_>>(), [0, 1, 1]);
    }

    #[test]
    fn what_is_no_array_of_records_is_refused() {
        for text in ["{}", "[1", "", "[] []", "nonsense"] {
            let error = RegistryReader::default().read(text.as_bytes()).unwrap_err();
            assert!(matches!(error, TraceError::Json(_)), "{text}: {error}");
        }
    }
}
