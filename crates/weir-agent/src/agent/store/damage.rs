//! Random damage to the state. It still opens, reports the damage, and loses nothing that a sound copy
//! holds.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use weir_agree::{Agreement, Name, Usage};

use super::*;
use crate::agent::{
    agree::{StoredAgreements, offer},
    maker::Maker,
};

/// The variable with the number of damaged files to try.
const FILES: &str = "WEIR_DAMAGED_FILES";
const AGREEMENTS: usize = 250;

fn files() -> u64 {
    std::env::var(FILES).ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}

/// The promises in the damaged state.
#[derive(Debug, PartialEq)]
struct Promised {
    agreements: Vec<(Agreement, Usage)>,
    owners: BTreeMap<Name, Maker>,
    next: u64,
    policies: SetLayers,
    minors: Minors,
    cookie: u16,
}

fn promised(store: &Store) -> Promised {
    let stored = store.agreements().unwrap();
    Promised {
        agreements: stored.agreements,
        owners: stored.owners,
        next: stored.next,
        policies: store.policies().unwrap(),
        minors: store.minors().unwrap(),
        cookie: store.cookie().unwrap(),
    }
}

/// An ordinary agreement.
fn agreement() -> Agreement {
    let mut stored = StoredAgreements::new();
    let utc = weir_agree::Utc::from_millis(1_800_000_000_000);
    let now = weir_agree::ClockReading { utc, monotonic: weir_units::Instant::default() };
    let client = Name::new("1000/acme").unwrap();
    stored.agreements.offer(&client, None, offer("web", 20), &stored.store, now).unwrap().agreement
}

fn fill(store: &Store) {
    let one = agreement();
    let all: Vec<Agreement> = (1..=AGREEMENTS)
        .map(|n| Agreement { id: Name::new(&format!("a-{n}")).unwrap(), ..one.clone() })
        .collect();
    // Some agreements are written in one change, others in one change each.
    let (most, rest) = all.split_at(AGREEMENTS - 20);
    store.save_agreements(most, most.len() as u64 + 1).unwrap();
    for (n, agreement) in (most.len() + 2..).zip(rest) {
        store.save_offer(agreement, n as u64, Some(&Maker::User(1000 + n as u32 % 3))).unwrap();
    }
    let layer = |n: u16| Layer { weight: format!("{}", n % 9 + 1).parse().ok(), ..Layer::default() };
    let policies = (0..40).map(|n| (format!("docker:c{n}"), layer(n))).collect();
    store
        .save_policies((&policies, &Ledger::new()), None, &crate::agent::history::History::default())
        .unwrap();
    store
        .save_minors(&(0..40).map(|n| (ClassKey::from(format!("docker:c{n}").as_str()), n + 16)).collect())
        .unwrap();
    store.cookie().unwrap();
}

/// The files of a node's state, and their content.
struct Sample {
    dir: tempfile::TempDir,
    holds: Promised,
}

impl Sample {
    /// The state of an agent that ended, or of one that was killed.
    fn new(was_killed: bool) -> Sample {
        let (from, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = Store::open(from.path()).unwrap();
        fill(&store);
        let holds = promised(&store);
        let store = if was_killed { Some(store) } else { None };
        for name in ["weir.redb", "weir.promises"] {
            fs::copy(from.path().join(name), dir.path().join(name)).unwrap();
        }
        drop(store);
        Sample { dir, holds }
    }

    fn copy(&self) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["weir.redb", "weir.promises"] {
            fs::copy(self.dir.path().join(name), dir.path().join(name)).unwrap();
        }
        dir
    }
}

/// Damages a file in one of many ways and returns which.
fn damage(path: &Path, random: &mut fastrand::Rng) -> String {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let page = |random: &mut fastrand::Rng| random.u64(..length.div_ceil(4096)) * 4096;
    match random.u8(..6) {
        0 => {
            let count = random.u64(1..=256);
            for _ in 0..count {
                file.write_all_at(&[random.u8(..)], random.u64(..length)).unwrap();
            }
            format!("{count} bytes are changed")
        }
        1 => {
            let at = random.u64(..length.min(4096));
            file.write_all_at(&[random.u8(..)], at).unwrap();
            format!("byte {at} is changed")
        }
        2 => {
            let to = random.u64(..length);
            file.set_len(to).unwrap();
            format!("it is cut to {to} bytes")
        }
        3 => {
            let at = page(random);
            let size = (length - at).min(4096 * random.u64(1..4)) as usize;
            file.write_all_at(&vec![0; size], at).unwrap();
            format!("{size} bytes at {at} are zero")
        }
        4 => {
            let garbage: Vec<u8> = (0..random.usize(1..20_000)).map(|_| random.u8(..)).collect();
            file.write_all_at(&garbage, length).unwrap();
            format!("{} bytes are appended", garbage.len())
        }
        _ => {
            let at = page(random);
            let garbage: Vec<u8> = (0..4096.min(length - at)).map(|_| random.u8(..)).collect();
            file.write_all_at(&garbage, at).unwrap();
            format!("the page at {at} is garbage")
        }
    }
}

fn asides(dir: &Path, copy: &str) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_aside = |path: &PathBuf| path.to_string_lossy().contains(&format!("{copy}.damaged-20"));
    names.filter(is_aside).collect()
}

#[test]
fn a_damaged_database_is_set_aside_and_no_promise_is_lost() {
    let samples = [Sample::new(false), Sample::new(true)];
    let mut told = 0;
    for seed in 0..files() {
        let mut random = fastrand::Rng::with_seed(seed);
        let sample = &samples[seed as usize % 2];
        let dir = sample.copy();
        let what = format!("seed {seed}: {}", damage(&dir.path().join("weir.redb"), &mut random));
        let store = Store::open(dir.path()).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(promised(&store), sample.holds, "{what}");
        let (notices, aside) = (store.notices(), asides(dir.path(), "weir.redb"));
        assert_eq!(notices.len(), aside.len(), "{what}: {notices:?}");
        assert_eq!(store.said().len(), notices.len(), "{what}");
        told += notices.len();
        drop(store);
        // The notice stays until it is acknowledged. The new database is sound.
        let store = Store::open(dir.path()).unwrap();
        assert_eq!((store.notices(), store.said()), (notices, vec![]), "{what}, opened again");
        assert_eq!(promised(&store), sample.holds, "{what}, opened again");
        store.acknowledge().unwrap();
        assert_eq!(store.notices(), Vec::<String>::new());
        drop(store);
        assert_eq!(Store::open(dir.path()).unwrap().notices(), Vec::<String>::new(), "{what}");
        assert_eq!(asides(dir.path(), "weir.redb").len(), aside.len(), "{what}");
    }
    println!("{} damaged databases, {told} of them set aside, no promise lost", files());
    assert!(told as u64 > files() / 2, "{told}");
}

#[test]
fn a_damaged_second_copy_is_rewritten_from_the_database() {
    let sample = Sample::new(false);
    for seed in 0..files() / 4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let dir = sample.copy();
        let path = dir.path().join("weir.promises");
        let before = fs::read(&path).unwrap();
        let what = format!("seed {seed}: {}", damage(&path, &mut random));
        let differs = fs::read(&path).unwrap() != before;
        let store = Store::open(dir.path()).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(promised(&store), sample.holds, "{what}");
        let notices = store.notices();
        // Only the last line may belong to a change that was never answered.
        let is_torn = notices.is_empty() && differs;
        assert!(notices.len() == usize::from(differs) || is_torn, "{what}: {notices:?}");
        drop(store);
        // The copy can be relied on again.
        fs::write(dir.path().join("weir.redb"), "garbage").unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(promised(&store), sample.holds, "{what}, then without the database");
    }
}

#[test]
fn two_damaged_copies_keep_what_can_be_read_and_invent_nothing() {
    let sample = Sample::new(false);
    for seed in 0..files() / 4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let dir = sample.copy();
        fs::write(dir.path().join("weir.redb"), [0; 9000]).unwrap();
        let path = dir.path().join("weir.promises");
        let what = format!("seed {seed}: {}", damage(&path, &mut random));
        let readable = second::read(fs::read(&path).unwrap().as_slice(), true).unwrap();
        let store = Store::open(dir.path()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let agreements::Stored { agreements: found, owners, .. } = store.agreements().unwrap();
        let kept = readable.rows.keys().filter(|(table, _)| table == "agreements").count();
        assert_eq!(found.len(), kept, "{what}");
        assert!(found.iter().all(|one| sample.holds.agreements.contains(one)), "{what}");
        assert!(owners.iter().all(|(id, uid)| sample.holds.owners.get(id) == Some(uid)), "{what}");
        let notices = store.notices();
        assert_eq!(notices.len(), 1, "{what}: {notices:?}");
        assert!(readable.bad == 0 || notices[0].contains("lost"), "{what}: {notices:?}");
    }
}

/// Damage to the database's file.
type Mishap = fn(&Path);

#[test]
fn whatever_stands_where_the_database_was_is_set_aside() {
    let sample = Sample::new(false);
    let cases: [(&str, Mishap); 6] = [
        ("it has no content", |path| fs::write(path, "").unwrap()),
        ("it is a directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("it is not a regular file", |path| {
            fs::remove_file(path).unwrap();
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }),
        ("it is not a regular file", |path| {
            fs::remove_file(path).unwrap();
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }),
        ("damaged", |path| fs::write(path, "not a database").unwrap()),
        ("was missing", |path| fs::remove_file(path).unwrap()),
    ];
    for (why, mishap) in cases {
        let dir = sample.copy();
        mishap(&dir.path().join("weir.redb"));
        let store = Store::open(dir.path()).unwrap_or_else(|e| panic!("{why}: {e}"));
        assert_eq!(promised(&store), sample.holds, "{why}");
        let notices = store.notices();
        assert!(matches!(&notices[..], [one] if one.contains(why)), "{why}: {notices:?}");
        assert!(
            notices[0].contains("250 agreements and 40 policies set by hand are restored"),
            "{notices:?}"
        );
        assert_eq!(asides(dir.path(), "weir.redb").len(), usize::from(why != "was missing"), "{why}");
    }
}

#[test]
fn a_fresh_start_and_an_upgrade_are_silent_and_a_lost_second_copy_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!((store.notices(), store.said()), (vec![], vec![]));
    drop(store);
    let sample = Sample::new(false);
    let dir = sample.copy();
    let second = dir.path().join("weir.promises");
    fs::remove_file(&second).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert!(store.notices()[0].contains("weir.promises was missing"), "{:?}", store.notices());
    drop(store);
    // The state of an agent from before the second copy.
    fs::remove_file(&second).unwrap();
    let database = redb::Database::open(dir.path().join("weir.redb")).unwrap();
    let tx = database.begin_write().unwrap();
    for key in ["sequence", "schema", "notices"] {
        tx.open_table(META).unwrap().remove(key).unwrap();
    }
    tx.open_table(META).unwrap().insert("openings", "").unwrap();
    tx.commit().unwrap();
    drop(database);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!((promised(&store), store.notices()), (sample.holds, vec![]));
    assert!(second.exists());
}

#[test]
fn a_weir_of_one_copy_in_between_is_heard() {
    let sample = Sample::new(false);
    let dir = sample.copy();
    let database = redb::Database::open(dir.path().join("weir.redb")).unwrap();
    let tx = database.begin_write().unwrap();
    tx.open_table(MINORS_TABLE).unwrap().insert("docker:new", 99).unwrap();
    tx.open_table(META).unwrap().insert("openings", "").unwrap();
    tx.commit().unwrap();
    drop(database);
    drop(Store::open(dir.path()).unwrap());
    fs::remove_file(dir.path().join("weir.redb")).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.minors().unwrap().get("docker:new"), Some(&99));
}

#[test]
fn a_database_that_ends_three_agents_is_set_aside() {
    let sample = Sample::new(false);
    let dir = sample.copy();
    let note = dir.path().join("weir.redb.reading");
    for (begun, notices) in [("+", 0), ("++", 0), ("+++", 1)] {
        fs::write(&note, begun).unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(promised(&store), sample.holds, "{begun}");
        assert_eq!(store.notices().len(), notices, "{begun}");
        assert!(!note.exists(), "{begun}");
    }
}

#[test]
fn a_disk_that_cannot_be_written_is_told_and_sets_nothing_aside() {
    let sample = Sample::new(false);
    let dir = sample.copy();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.failure(), None);
    // The second copy accepts no line and cannot be replaced.
    fs::remove_file(dir.path().join("weir.promises")).unwrap();
    fs::create_dir(dir.path().join("weir.promises.new")).unwrap();
    assert!(store.save_minors(&Minors::new()).is_err());
    assert!(store.failure().unwrap().contains("cannot write the classes of the state in"));
    for _ in 0..3 {
        assert!(store.agreements().is_err(), "it cannot be opened");
    }
    fs::remove_dir(dir.path().join("weir.promises.new")).unwrap();
    assert_eq!(store.agreements().unwrap().agreements, sample.holds.agreements);
    assert_eq!((store.failure(), store.notices().len()), (None, 1));
    assert!(asides(dir.path(), "weir.redb").is_empty());
}

#[test]
fn an_older_database_is_brought_up_to_its_second_copy() {
    let sample = Sample::new(false);
    for changes in 1..=3_usize {
        let dir = sample.copy();
        let old = fs::read(dir.path().join("weir.redb")).unwrap();
        let store = Store::open(dir.path()).unwrap();
        for n in 0..changes {
            store.forget_agreements(&[Name::new(&format!("a-{}", n + 7)).unwrap()]).unwrap();
        }
        let holds = promised(&store);
        drop(store);
        fs::write(dir.path().join("weir.redb"), old).unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(promised(&store), holds, "{changes}");
        // One change may be missing because the agent ended between the two copies.
        let said = format!("{changes} changes that weir.promises holds");
        let notices = store.notices();
        assert_eq!(notices.iter().any(|notice| notice.contains(&said)), changes > 1, "{notices:?}");
        assert_eq!(notices.len(), usize::from(changes > 1), "{notices:?}");
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!((promised(&store), store.notices()), (holds, notices), "{changes}, opened again");
    }
}

/// The rewritten copy does not tell which rows were the last change.
#[test]
fn an_older_database_beside_a_rewritten_second_copy_is_restored() {
    let sample = Sample::new(false);
    let dir = sample.copy();
    let old = fs::read(dir.path().join("weir.redb")).unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.forget_agreements(&[Name::new("a-7").unwrap()]).unwrap();
    store
        .with("write", |open| opening::rewrite(&*store.place, open).map_err(redb::Error::Corrupted))
        .unwrap();
    let holds = promised(&store);
    drop(store);
    fs::write(dir.path().join("weir.redb"), old).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(promised(&store), holds);
    assert!(store.notices()[0].contains("1 changes that weir.promises holds"), "{:?}", store.notices());
}

/// A line that a full disk or a killed agent left is no damage.
#[test]
fn a_torn_last_line_of_the_second_copy_is_cut_off_in_silence() {
    let sample = Sample::new(false);
    let dir = sample.copy();
    let path = dir.path().join("weir.promises");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [whole.as_slice(), &whole[..99]].concat()).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!((promised(&store), store.notices()), (sample.holds, vec![]));
    assert_eq!(second::read(fs::read(&path).unwrap().as_slice(), false).unwrap().bad, 0);
}

#[test]
fn a_newer_schema_is_refused_with_the_way_out_and_nothing_is_changed() {
    let sample = Sample::new(false);
    for without_database in [false, true] {
        let dir = sample.copy();
        let store = Store::open(dir.path()).unwrap();
        store.write("write", |change| change.insert(META, "schema", "2")).unwrap();
        drop(store);
        if without_database {
            fs::write(dir.path().join("weir.redb"), "garbage").unwrap();
        }
        let before = ["weir.redb", "weir.promises"].map(|name| fs::read(dir.path().join(name)).unwrap());
        let error = Store::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("it has schema 2, and this weir knows 1 (install the newer weir"), "{error}");
        let after = ["weir.redb", "weir.promises"].map(|name| fs::read(dir.path().join(name)).unwrap());
        assert_eq!(before[1], after[1]);
        assert!(!without_database || before[0] == after[0]);
        assert!(asides(dir.path(), "weir.redb").is_empty());
    }
}

#[test]
fn damage_that_is_met_at_run_time_costs_no_promise() {
    let sample = Sample::new(false);
    let mut told = 0;
    for seed in 0..files() / 4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let dir = sample.copy();
        let store = Store::open(dir.path()).unwrap();
        let what = format!("seed {seed}: {}", damage(&dir.path().join("weir.redb"), &mut random));
        // Each answer is an error, or its change is on disk in a sound copy.
        let mut minors = sample.holds.minors.clone();
        for n in 0..12 {
            let wanted: Minors = minors.iter().map(|(key, minor)| (key.clone(), minor + n % 2)).collect();
            if store.save_minors(&wanted).is_ok() {
                minors = wanted;
            } else {
                minors = (0..3).find_map(|_| store.minors().ok()).expect("it is open again");
            }
            let _ = store.agreements();
        }
        drop(store);
        let store = Store::open(dir.path()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = promised(&store);
        assert_eq!(found.minors, minors, "{what}");
        assert_eq!(found.agreements, sample.holds.agreements, "{what}");
        assert_eq!(found.policies, sample.holds.policies, "{what}");
        told += store.notices().len();
    }
    assert!(told > 0, "no damage was met");
}

#[test]
fn the_second_copy_is_shortened_when_it_has_grown() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let long = "x".repeat(300_000);
    let mut longest = 0;
    for n in 0..40 {
        store.write("write", |change| change.insert(META, "engine", &format!("{n}{long}"))).unwrap();
        longest = fs::metadata(dir.path().join("weir.promises")).unwrap().len().max(longest);
    }
    assert!((GROWS..GROWS + 1_500_000).contains(&longest), "{longest}");
    let engine = store.engine().unwrap();
    drop(store);
    fs::remove_file(dir.path().join("weir.redb")).unwrap();
    assert_eq!(Store::open(dir.path()).unwrap().engine().unwrap(), engine);
}

#[test]
fn only_the_newest_damaged_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..12 {
        fs::write(dir.path().join("weir.redb"), "garbage").unwrap();
        drop(Store::open(dir.path()).unwrap());
    }
    assert_eq!(asides(dir.path(), "weir.redb").len(), 8);
}
