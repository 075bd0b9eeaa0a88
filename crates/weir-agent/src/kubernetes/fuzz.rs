//! The API server's lines, for the fuzz targets.

use super::{
    followed::{Applied, Collection, Line, Lines},
    objects::Pod,
};

/// Applies the lines of a watch of pods, which arrive in two pieces.
///
/// # Panics
/// A pod has another key than its name, or a uid that is no part of a path. The lines depend on the pieces. A change of
/// nothing changes the pods.
pub fn pods(pieces: (&[u8], &[u8])) {
    let mut lines = Lines::default();
    let mut found = Vec::new();
    for piece in [pieces.0, pieces.1] {
        found.extend(lines.push(piece));
    }
    assert_eq!(Lines::default().push(&[pieces.0, pieces.1].concat()), found);
    let mut pods = Collection::<Pod>::default();
    for line in found {
        let before: Vec<Pod> = pods.all().cloned().collect();
        let applied = match line {
            Line::Whole(line) => pods.apply(&line),
            Line::Beginning(line) => pods.leave_out(&line),
        };
        let is_same = pods.all().eq(&before);
        assert!(is_same || applied == Applied::Changed, "{applied:?}");
    }
    for pod in pods.all() {
        assert!(pods.get(&pod.class_name()).is_some_and(|found| found == pod));
        assert!(!pod.uid.is_empty() && pod.uid.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'));
    }
}
