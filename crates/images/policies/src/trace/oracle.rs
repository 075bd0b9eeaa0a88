//! oracleGeneral: the binary form in which cache traces are exchanged.

use std::{
    io::{self, Read},
    time::Duration,
};

use weir_units::Bytes;

use super::{Deployment, Trace, TraceError};
use crate::hash::Map;

const RECORD: usize = 24;

/// Reads records of 24 bytes, little-endian: u32 time in s, u64 object, u32 size, i64 next access
/// (not used). Every object is an image of one blob; its size is the largest that is told.
///
/// # Errors
/// [`TraceError::Io`], [`TraceError::Cut`], [`TraceError::TooMany`].
pub fn read_oracle_general(mut reader: impl Read) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    let mut numbers: Map<u64, u32> = Map::default();
    let mut began = None;
    let mut records = 0;
    loop {
        let mut record = [0; RECORD];
        match fill(&mut reader, &mut record)? {
            0 => return Ok(sorted(trace)),
            RECORD => {}
            rest => return Err(TraceError::Cut { records, rest }),
        }
        records += 1;
        let time = u32::from_le_bytes(part(&record, 0));
        let object = u64::from_le_bytes(part(&record, 4));
        let size = Bytes(u64::from(u32::from_le_bytes(part(&record, 12))));
        let next = u32::try_from(numbers.len()).map_err(|_| TraceError::TooMany)?;
        let number = *numbers.entry(object).or_insert(next);
        if number == next {
            trace.blobs.push(size);
            trace.images.push(Box::new([number]));
        } else {
            let known = &mut trace.blobs[number as usize];
            *known = size.max(*known);
        }
        let at = Duration::from_secs(u64::from(time.saturating_sub(*began.get_or_insert(time))));
        trace.deployments.push(Deployment { at, image: number, client: 0 });
    }
}

fn sorted(mut trace: Trace) -> Trace {
    trace.deployments.sort_by_key(|deployment| deployment.at);
    trace
}

fn part<const N: usize>(record: &[u8; RECORD], from: usize) -> [u8; N] {
    record[from..from + N].try_into().expect("within the record")
}

/// Reads until the buffer is full or the input ends; how much that was.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> Result<usize, TraceError> {
    let mut full = 0;
    while full < buffer.len() {
        match reader.read(&mut buffer[full..]) {
            Ok(0) => break,
            Ok(n) => full += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time: u32, object: u64, size: u32) -> Vec<u8> {
        [&time.to_le_bytes()[..], &object.to_le_bytes(), &size.to_le_bytes(), &(-2i64).to_le_bytes()].concat()
    }

    #[test]
    fn objects_become_images_of_one_blob() {
        let bytes = [record(100, u64::MAX, 7), record(105, 3, 9), record(106, u64::MAX, 8)].concat();
        let trace = read_oracle_general(&bytes[..]).unwrap();
        assert_eq!(trace.blobs, [Bytes(8), Bytes(9)]);
        assert_eq!(
            trace.deployments.iter().map(|d| (d.at.as_secs(), d.image)).collect::<Vec<_>>(),
            [(0, 0), (5, 1), (6, 0)]
        );
        assert_eq!((trace.working_set(), trace.requests()), (Bytes(17), 3));
    }

    #[test]
    fn a_cut_file_is_refused_with_where() {
        let bytes = [record(1, 2, 3), vec![0; 5]].concat();
        let error = read_oracle_general(&bytes[..]).unwrap_err();
        assert!(matches!(error, TraceError::Cut { records: 1, rest: 5 }), "{error}");
        assert!(read_oracle_general(&[][..]).unwrap().deployments.is_empty());
    }
}
