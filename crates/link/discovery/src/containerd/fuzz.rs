//! containerd's answers, for the fuzz targets.

use prost::Message as _;

use super::container::{Entry, Told, inherited};
use crate::{NetnsRef, NsId, node::Node};

/// A container as containerd's answer has it, in a namespace. The image has the same labels.
///
/// # Panics
/// A class has the name of nothing.
pub fn container(namespace: &str, bytes: &[u8]) {
    let node = Node {
        netns: |path| Ok(NetnsRef { path: path.into(), id: NsId { dev: 4, ino: 1 } }),
        cgroup: |_| Err("none".to_owned()),
        own: None,
    };
    let Ok(told) = Told::decode(bytes) else { return };
    let Ok(inherited) = inherited::<()>(None, &told.labels, Ok(vec![told.labels.clone()])) else { return };
    let has_id = !told.id.is_empty();
    if let Entry::Class { found, .. } = Entry::read(namespace, told, 1, Ok(&inherited), &node) {
        assert!(!has_id || !found.name.is_empty());
    }
}
