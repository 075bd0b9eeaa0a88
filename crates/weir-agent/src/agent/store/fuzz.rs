//! The second copy of the state, for the fuzz targets.

use super::second;

/// The lines of a second copy. Each line gets its checksum, so that its content is parsed.
/// # Panics
/// A line is accepted and cannot be written again.
pub fn second_copy(text: &str) {
    let lines: Vec<u8> = text.lines().flat_map(second::summed).collect();
    let Ok(read) = second::read(lines.as_slice(), true) else { panic!("memory cannot be read") };
    assert_eq!(read.length, lines.len() as u64);
    let rows = read.rows.into_iter().map(|((table, key), value)| second::Row(table, key, Some(value)));
    let rows: Vec<_> = rows.collect();
    let again = second::read(second::line(1, &rows).as_slice(), true);
    let again = again.map(|again| (again.rows.len(), again.bad)).ok();
    assert_eq!(again, Some((rows.len(), 0)));
}
