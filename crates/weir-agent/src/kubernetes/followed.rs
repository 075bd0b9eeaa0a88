//! A collection of objects that is listed once and followed by its changes. It does no I/O.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;

use super::objects::Object;

/// The most objects that are kept. The default limit of pods of a node is 110.
pub(super) const MAX_OBJECTS: usize = 4_096;
/// The first pause after a failure. Each next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The pause after `failures` failures in a row. `random` is from 0 to 1, so that the nodes of a cluster do not
/// come back at the same moment.
pub(super) fn pause(failures: u32, random: f64) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

/// The present objects by their key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Collection<T> {
    objects: BTreeMap<String, T>,
    /// The version from which changes are asked for.
    version: String,
    /// Whether an object was left out for want of room.
    is_full: bool,
}

impl<T> Default for Collection<T> {
    fn default() -> Collection<T> {
        Collection { objects: BTreeMap::new(), version: String::new(), is_full: false }
    }
}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de>"))]
pub(super) struct Page<R> {
    #[serde(default)]
    pub(super) metadata: PageMetadata,
    #[serde(default = "Vec::new", deserialize_with = "items")]
    pub(super) items: Vec<R>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PageMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) more: String,
}

fn items<'de, D: serde::Deserializer<'de>, R: Deserialize<'de>>(deserializer: D) -> Result<Vec<R>, D::Error> {
    Ok(Option::<Vec<R>>::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Change<R> {
    object: R,
}

/// The object of a change of type ERROR.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

/// The meaning of a line of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Applied {
    /// The objects are as before.
    Nothing,
    Changed,
    /// The version is too old: list again.
    Expired,
    /// The server reports an error, or the line makes no sense: list again after a pause.
    Failed(String),
}

impl<T: Object> Collection<T> {
    pub(crate) fn get(&self, key: &str) -> Option<&T> {
        self.objects.get(key)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether the bound leaves objects out.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Adds the objects of a page to a list that is being read.
    pub(super) fn add_page(&mut self, page: Page<T::Raw>) {
        self.version = page.metadata.resource_version;
        for (key, object) in page.items.into_iter().filter_map(T::read) {
            self.put(key, object);
        }
    }

    /// The objects that an earlier agent kept.
    pub(crate) fn kept(objects: impl IntoIterator<Item = (String, T)>) -> Collection<T> {
        let objects = objects.into_iter().take(MAX_OBJECTS).collect();
        Collection { objects, ..Collection::default() }
    }

    fn put(&mut self, key: String, object: T) {
        if self.objects.len() >= MAX_OBJECTS && !self.objects.contains_key(&key) {
            self.is_full = true;
        } else {
            self.objects.insert(key, object);
        }
    }

    /// Applies a line of a watch.
    pub(super) fn apply(&mut self, line: &[u8]) -> Applied {
        let failed = |e: serde_json::Error| Applied::Failed(format!("cannot read a change: {e}"));
        let kind = match serde_json::from_slice::<Kind>(line) {
            Ok(Kind { kind }) => kind,
            Err(e) => return failed(e),
        };
        if kind == "ERROR" {
            let status = serde_json::from_slice::<Change<Status>>(line).map(|c| c.object).unwrap_or_default();
            return match status.code {
                410 => Applied::Expired,
                code => Applied::Failed(format!("the watch ended with status {code}: {}", status.message)),
            };
        }
        let raw = match serde_json::from_slice::<Change<T::Raw>>(line) {
            Ok(Change { object }) => object,
            Err(e) => return failed(e),
        };
        let (key, version) = T::identity(&raw);
        if version.is_empty() {
            return Applied::Failed("a change has no version".to_owned());
        }
        self.version = version;
        let read = match kind.as_str() {
            "ADDED" | "MODIFIED" => T::read(raw),
            "DELETED" => None,
            // A bookmark tells a newer version alone. Later kinds of changes are unknown here.
            _ => return Applied::Nothing,
        };
        match read {
            Some((key, object)) if self.objects.get(&key) == Some(&object) => Applied::Nothing,
            Some((key, object)) => {
                self.put(key, object);
                Applied::Changed
            }
            None if self.objects.remove(&key).is_some() => Applied::Changed,
            None => Applied::Nothing,
        }
    }
}

/// The lines of an answer that arrives in pieces.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// The part in which no end of a line was found.
    searched: usize,
}

/// A line is longer than the bound.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Lines {
    /// The longest line, bytes. An object has at most 1.5 MiB in the server's store.
    pub(super) const LONGEST: usize = 4 << 20;

    /// Adds a piece, and returns the lines that it ends.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<Vec<Vec<u8>>, TooLong> {
        self.bytes.extend_from_slice(piece);
        let mut lines = Vec::new();
        let mut begin = 0;
        while let Some(length) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + length;
            if end > begin {
                lines.push(self.bytes[begin..end].to_vec());
            }
            begin = end + 1;
            self.searched = begin;
        }
        self.bytes.drain(..begin);
        self.searched = self.bytes.len();
        if self.bytes.len() > Lines::LONGEST { Err(TooLong) } else { Ok(lines) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::objects::Pod;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn pod(name: &str, version: &str, weight: &str) -> Value {
        json!({
            "metadata": {
                "namespace": "shop", "name": name, "uid": format!("u-{name}"), "resourceVersion": version,
                "annotations": { "weir.dev/weight": weight },
            },
            "status": { "phase": "Running" },
        })
    }

    fn line(kind: &str, object: &Value) -> Vec<u8> {
        json!({ "type": kind, "object": object }).to_string().into_bytes()
    }

    fn listed() -> Collection<Pod> {
        let mut pods = Collection::default();
        let page = json!({ "metadata": { "resourceVersion": "7" }, "items": [pod("a", "3", "1"), pod("b", "4", "1")] });
        pods.add_page(serde_json::from_value(page).unwrap());
        pods
    }

    fn weights(pods: &Collection<Pod>) -> Vec<(String, String)> {
        let weight = |pod: &Pod| pod.annotations.kept.get("weir.dev/weight").cloned().unwrap_or_default();
        pods.all().map(|pod| (pod.name.clone(), weight(pod))).collect()
    }

    #[test]
    fn changes_of_a_watch_are_followed_by_version() {
        let mut pods = listed();
        assert_eq!((pods.len(), pods.version()), (2, "7"));
        assert_eq!(pods.apply(&line("MODIFIED", &pod("a", "8", "5"))), Applied::Changed);
        assert_eq!(pods.apply(&line("MODIFIED", &pod("a", "9", "5"))), Applied::Nothing, "the same again");
        assert_eq!(pods.apply(&line("ADDED", &pod("c", "10", "2"))), Applied::Changed);
        assert_eq!(pods.apply(&line("DELETED", &pod("b", "11", "1"))), Applied::Changed);
        let bookmark = json!({ "metadata": { "resourceVersion": "40" } });
        assert_eq!(pods.apply(&line("BOOKMARK", &bookmark)), Applied::Nothing);
        assert_eq!(pods.version(), "40");
        assert_eq!(weights(&pods), [("a".into(), "5".into()), ("c".into(), "2".into())]);
        let mut ended = pod("c", "41", "2");
        ended["status"]["phase"] = json!("Failed");
        assert_eq!(pods.apply(&line("MODIFIED", &ended)), Applied::Changed);
        assert_eq!(pods.len(), 1);
    }

    #[test]
    fn an_error_or_nonsense_leaves_the_objects_as_they_are() {
        let mut pods = listed();
        let before = pods.clone();
        let status = |code: u16| line("ERROR", &json!({ "code": code, "message": "too old" }));
        assert_eq!(pods.apply(&status(410)), Applied::Expired);
        let Applied::Failed(why) = pods.apply(&status(500)) else { panic!("not failed") };
        assert_eq!(why, "the watch ended with status 500: too old");
        for odd in [
            &b"{"[..],
            b"[]",
            b"null",
            b"{\"type\":\"ADDED\"}",
            b"{\"type\":\"ADDED\",\"object\":{}}",
            b"\xff",
        ] {
            assert!(matches!(pods.apply(odd), Applied::Failed(_)), "{odd:?}");
        }
        assert_eq!(pods, before);
    }

    #[test]
    fn pods_beyond_the_bound_are_told_and_push_out_no_other() {
        let mut pods = listed();
        assert!(!pods.is_full());
        for n in 0..MAX_OBJECTS {
            pods.apply(&line("ADDED", &pod(&format!("n{n}"), "9", "1")));
        }
        assert_eq!((pods.len(), pods.is_full()), (MAX_OBJECTS, true));
        assert!(pods.get("shop/a").is_some());
        assert_eq!(pods.apply(&line("MODIFIED", &pod("a", "10", "9"))), Applied::Changed);
        assert_eq!(weights(&pods)[0], ("a".into(), "9".into()));
    }

    #[test]
    fn pauses_double_to_a_bound_and_differ_between_nodes() {
        let ms = |failures, random| pause(failures, random).as_millis();
        assert_eq!([ms(1, 1.0), ms(2, 1.0), ms(3, 1.0), ms(1, 0.0)], [200, 400, 800, 100]);
        assert_eq!((ms(20, 1.0), ms(u32::MAX, 0.0)), (30_000, 15_000));
    }

    #[test]
    fn a_line_beyond_the_bound_is_refused() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"ab\n\ncd\ne"), Ok(vec![b"ab".to_vec(), b"cd".to_vec()]));
        let piece = vec![b'x'; 1 << 20];
        let pushed: Vec<_> = (0..5).map(|_| lines.push(&piece)).collect();
        assert_eq!(pushed[..3], [Ok(vec![]), Ok(vec![]), Ok(vec![])]);
        assert_eq!(pushed[3], Err(TooLong));
    }

    proptest! {
        #[test]
        fn lines_are_the_same_in_any_pieces(text in "[ab\n]{0,60}", cuts in prop::collection::vec(0..60usize, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let mut lines = Lines::default();
            let mut read = Vec::new();
            let mut begin = 0;
            for end in cuts.into_iter().chain([text.len()]) {
                read.extend(lines.push(&text.as_bytes()[begin..end]).unwrap());
                begin = end;
            }
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let want: Vec<Vec<u8>> = whole.split('\n').filter(|l| !l.is_empty()).map(|l| l.as_bytes().to_vec()).collect();
            prop_assert_eq!(read, want);
        }
    }
}
