//! Docker's answers, for the fuzz targets.

use std::collections::BTreeMap;

use super::{
    api::{Event, Inspected},
    container::Entry,
};
use crate::{Source, labels, node::Node};

/// The answer about one container. A name that becomes a class is Docker's.
pub fn inspected(bytes: &[u8]) {
    let nowhere = Node { netns: |_| Err("none".to_owned()), cgroup: |_| Err("none".to_owned()), own: None };
    let Ok(inspected) = serde_json::from_slice::<Inspected>(bytes) else { return };
    let name = inspected.name.trim_start_matches('/').to_owned();
    // The image has the same labels.
    let image = inspected.config.labels.clone();
    if let Some(class) = Entry::read(inspected, Ok(image), (Source::Docker, &nowhere)).name() {
        assert_eq!(class, name);
    }
}

/// A line of the stream of events.
pub fn event(bytes: &[u8]) {
    if let Ok(event) = serde_json::from_slice::<Event>(bytes) {
        drop(event.container());
    }
}

/// Labels, a line each, as `key=value`. A minimum is never above its maximum, and what is ignored is ours.
///
/// # Panics
/// It is above, or an ignored label is another program's.
pub fn labels(text: &str) {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let labels: BTreeMap<String, String> = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let (policy, group, bad) = labels::parse(&labels);
    if let (Some(min), Some(max)) = (policy.min, policy.max) {
        assert!(min <= max, "{min} of {max}");
    }
    assert!(group.is_none_or(|group| !group.is_empty() && group.len() <= 64));
    for label in bad {
        assert!(label.label.starts_with("weir."), "{label}");
    }
}
