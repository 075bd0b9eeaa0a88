//! The policies miss exactly as often as a reference simulator's.
//!
//! `golden/counts.txt` was made by running libCacheSim (github.com/1a1a11a/libCacheSim at aa0fc40)
//! on the three traces of `common::golden_trace`, and says with which arguments. libCacheSim prints
//! ratios to four decimals, of 10,000 requests: so counts of misses are exact.

mod common;

use std::{fs, io::Write, path::PathBuf};

use common::{blob, golden_trace, second};
use weir_cache::{Access, Cache, PolicyKind};
use weir_units::Bytes;

/// Misses, and the part of all bytes that was missed.
fn misses(kind: PolicyKind, budget: u64, seed: u64) -> (u64, f64) {
    let mut cache = Cache::new(kind, Bytes(budget));
    let (mut misses, mut missed, mut asked) = (0, 0, 0);
    for (at, (id, size)) in (0..).zip(golden_trace(seed)) {
        let size = u64::from(size);
        asked += size;
        if cache.request(blob(id, size), second(at)) != Access::Hit {
            misses += 1;
            missed += size;
        }
        assert!(cache.policy().bytes().0 <= budget);
    }
    (misses, missed as f64 / asked as f64)
}

#[test]
fn counts_are_those_of_the_reference_simulator() {
    let mut lines = 0;
    for line in include_str!("golden/counts.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [seed, kind, budget, want, want_bytes] = words[..] else { panic!("{line}") };
        let kind: PolicyKind = kind.parse().unwrap();
        let (misses, bytes) = misses(kind, budget.parse().unwrap(), seed.parse().unwrap());
        assert_eq!(misses.to_string(), want, "{line}");
        assert_eq!(format!("{bytes:.4}"), want_bytes, "{line}");
        lines += 1;
    }
    assert_eq!(lines, 27);
}

/// `WEIR_TRACE_DIR=DIR cargo test -p weir-cache --test golden -- --ignored`
#[test]
#[ignore = "writes the traces for the reference simulator into WEIR_TRACE_DIR, as oracleGeneral"]
fn write_the_traces() {
    let dir = PathBuf::from(std::env::var("WEIR_TRACE_DIR").expect("WEIR_TRACE_DIR says where"));
    for seed in 1..=3 {
        let mut file = fs::File::create(dir.join(format!("{seed}.bin"))).unwrap();
        for (at, (id, size)) in (0u32..).zip(golden_trace(seed)) {
            file.write_all(&at.to_le_bytes()).unwrap();
            file.write_all(&id.to_le_bytes()).unwrap();
            file.write_all(&size.to_le_bytes()).unwrap();
            file.write_all(&(-1i64).to_le_bytes()).unwrap();
        }
    }
}
