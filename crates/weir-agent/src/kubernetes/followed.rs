//! A collection of objects that is listed once and followed by its changes. It does no I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde::{
    Deserialize,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};

use super::objects::Object;
use crate::config::is_name;

/// The most objects that are kept. The default limit of pods of a node is 110.
pub(super) const MAX_OBJECTS: usize = 4_096;
/// The most objects that are named as too large.
const MAX_TOO_LARGE: usize = 16;
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
    /// The keys of objects that are left out because of their size.
    too_large: BTreeSet<String>,
}

impl<T> Default for Collection<T> {
    fn default() -> Collection<T> {
        Collection {
            objects: BTreeMap::new(),
            version: String::new(),
            is_full: false,
            too_large: BTreeSet::new(),
        }
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

    /// The objects that are left out because of their size.
    pub(crate) fn too_large(&self) -> impl Iterator<Item = &str> {
        self.too_large.iter().map(String::as_str)
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
        let was_too_large = self.too_large.remove(&key);
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
            None if self.objects.remove(&key).is_some() || was_too_large => Applied::Changed,
            None => Applied::Nothing,
        }
    }

    /// Leaves out the object of a change that is too large to be read, by the beginning of its line.
    pub(super) fn leave_out(&mut self, beginning: &[u8]) -> Applied {
        let Outline { kind, namespace, name, version } = Outline::read(beginning);
        if name.is_empty() {
            let most = Lines::LONGEST >> 20;
            return Applied::Failed(format!("a change is larger than {most} MiB and names no object"));
        }
        if !version.is_empty() {
            self.version = version;
        }
        let key = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
        let was_there = self.objects.remove(&key).is_some();
        if kind == "DELETED" {
            let was_left_out = self.too_large.remove(&key);
            return if was_there || was_left_out { Applied::Changed } else { Applied::Nothing };
        }
        let is_news = is_name(&key) && self.too_large.len() < MAX_TOO_LARGE && self.too_large.insert(key);
        if was_there || is_news { Applied::Changed } else { Applied::Nothing }
    }
}

/// The kind of a change, and the name and the version of its object, in the beginning of a line.
#[derive(Debug, Default)]
struct Outline {
    kind: String,
    namespace: String,
    name: String,
    version: String,
}

/// Reads a map up to its end or to that of the text. `at` is the path of the map.
struct OutlineReader<'a> {
    outline: &'a mut Outline,
    at: &'a str,
}

impl Outline {
    fn read(beginning: &[u8]) -> Outline {
        let mut outline = Outline::default();
        let reader = OutlineReader { outline: &mut outline, at: "" };
        // The text ends in the middle.
        drop(reader.deserialize(&mut serde_json::Deserializer::from_slice(beginning)));
        outline
    }
}

impl<'de> DeserializeSeed<'de> for OutlineReader<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OutlineReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let outline = &mut *self.outline;
            match (self.at, key.as_str()) {
                ("", "type") => outline.kind = map.next_value()?,
                ("", "object") => map.next_value_seed(OutlineReader { outline, at: "object" })?,
                ("object", "metadata") => map.next_value_seed(OutlineReader { outline, at: "metadata" })?,
                ("metadata", "name") => outline.name = map.next_value()?,
                ("metadata", "namespace") => outline.namespace = map.next_value()?,
                ("metadata", "resourceVersion") => outline.version = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A line of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    Whole(Vec<u8>),
    /// The beginning of a line beyond the bound. Its rest is skipped.
    Beginning(Vec<u8>),
}

/// The lines of an answer that arrives in pieces.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The beginning of a line that has not ended.
    bytes: Vec<u8>,
    /// Whether the rest of a line is being skipped.
    skips: bool,
}

impl Lines {
    /// The longest line, bytes. An object has at most 1.5 MiB in the server's store, and six times that in JSON if it
    /// consists of characters that JSON escapes.
    pub(super) const LONGEST: usize = 4 << 20;

    /// Adds a piece, and returns the lines that it ends, or that it makes too long.
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(length) = piece.iter().position(|byte| *byte == b'\n') {
            self.extend(&piece[..length], &mut lines);
            let whole = std::mem::take(&mut self.bytes);
            if !std::mem::take(&mut self.skips) && !whole.is_empty() {
                lines.push(Line::Whole(whole));
            }
            piece = &piece[length + 1..];
        }
        self.extend(piece, &mut lines);
        lines
    }

    /// Adds a part of a line.
    fn extend(&mut self, part: &[u8], lines: &mut Vec<Line>) {
        if self.skips {
            return;
        }
        let room = Lines::LONGEST - self.bytes.len();
        self.bytes.extend_from_slice(&part[..part.len().min(room)]);
        if part.len() > room {
            lines.push(Line::Beginning(std::mem::take(&mut self.bytes)));
            self.skips = true;
        }
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
    fn a_line_beyond_the_bound_is_cut_and_the_next_one_is_whole() {
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"ab\n\ncd\ne"), [whole("ab"), whole("cd")]);
        let piece = vec![b'x'; 1 << 20];
        let pushed: Vec<usize> = (0..7).map(|_| lines.push(&piece).len()).collect();
        assert_eq!((pushed, lines.bytes.len()), (vec![0, 0, 0, 1, 0, 0, 0], 0));
        assert_eq!(lines.push(b"x\nfg\n"), [whole("fg")]);
        let long = [piece.repeat(5), b"\nh\n".to_vec()].concat();
        assert_eq!(lines.push(&long), [Line::Beginning(piece.repeat(4)), whole("h")]);
    }

    #[test]
    fn an_object_whose_change_is_too_large_is_left_out_by_name() {
        let mut pods = listed();
        let mut huge = pod("a", "8", "1");
        huge["spec"] = json!({ "text": "x".repeat(100) });
        let line = line("MODIFIED", &huge);
        let cut = line.windows(3).position(|three| three == b"xxx").unwrap() + 9;
        assert_eq!(pods.leave_out(&line[..cut]), Applied::Changed);
        assert_eq!((pods.len(), pods.version(), pods.get("shop/a")), (1, "8", None));
        assert_eq!(pods.too_large().collect::<Vec<_>>(), ["shop/a"]);
        assert_eq!(pods.leave_out(&line[..cut]), Applied::Nothing);
        for odd in [
            &b""[..],
            b"{\"object\":{\"metadata\":",
            b"{\"object\":[",
            b"\xff",
            b"{\"object\":{\"metadata\":7",
        ] {
            assert!(matches!(pods.leave_out(odd), Applied::Failed(_)), "{odd:?}");
        }
        assert_eq!(pods.apply(&super::tests::line("DELETED", &pod("a", "9", "1"))), Applied::Changed);
        assert_eq!(pods.too_large().count(), 0);
        assert_eq!(pods.leave_out(&line[..cut]), Applied::Changed);
        // The server writes the kind first.
        let deleted = format!("{{\"type\":\"DELETED\",\"object\":{huge}");
        let end = deleted.find("xxx").unwrap();
        let left_out = pods.leave_out(&deleted.as_bytes()[..end]);
        assert_eq!(left_out, Applied::Changed, "this line is too long as well");
        assert_eq!(pods.too_large().count(), 0);
        for n in 0..100 {
            pods.leave_out(&super::tests::line("MODIFIED", &pod(&format!("p{n}"), "10", "1")));
        }
        assert_eq!(pods.too_large().count(), MAX_TOO_LARGE);
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
                read.extend(lines.push(&text.as_bytes()[begin..end]));
                begin = end;
            }
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let want: Vec<Line> =
                whole.split('\n').filter(|l| !l.is_empty()).map(|l| Line::Whole(l.as_bytes().to_vec())).collect();
            prop_assert_eq!(read, want);
        }
    }
}
