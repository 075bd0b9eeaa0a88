//! Random changes with crashes: the audit leads to the present values, whatever was cut.

use std::{fs, path::Path};

use weir_api::{ClassKind, HistoryQuery, PolicyChange, SetPolicies};
use weir_units::BitRate;

use super::*;
use crate::{
    agent::{
        class_key::{ClassKey, ClassSource},
        class_table::{ClassTable, DiscoveredClass},
        history::History,
        store::{Minors, Store},
    },
    config::Layer,
};

const BOUNDS: Bounds = Bounds { size: 16 << 10, files: 3 };

fn audit(directory: &Path) -> Audit {
    Audit::new(directory, BOUNDS, Instant::default())
}

fn fact(what: ChangeKind, name: &str, value: &str) -> (FactKey, String) {
    ((what, name.to_owned()), value.to_owned())
}

fn policy(name: &str, value: &str) -> (FactKey, String) {
    fact(ChangeKind::Policy, name, value)
}

/// The values that the files lead to, by a reader of its own.
fn replayed(directory: &Path) -> Facts {
    let mut facts = Facts::new();
    for (_, path) in files::list(directory).unwrap() {
        let mut is_first = true;
        files::read(&path, |record| {
            for change in &record.changes {
                let key = (change.what.clone(), change.name.clone());
                assert!(record.is_whole || facts.get(&key) == change.old.as_ref(), "{key:?} {record:?}");
            }
            line::apply(&mut facts, &record, is_first);
            is_first = false;
            true
        })
        .unwrap();
    }
    facts
}

fn newest(directory: &Path) -> PathBuf {
    files::list(directory).unwrap().pop().unwrap().1
}

#[test]
fn each_maker_has_a_record_with_the_old_and_the_new_value() {
    let dir = tempfile::tempdir().unwrap();
    let mut audit = audit(dir.path());
    let first =
        Facts::from([policy("docker:web", "weight=1"), fact(ChangeKind::Capacity, "upload", "9mbit")]);
    audit.observe(&first, |change| seen_by(change, "weir.toml", false, false), "start", 5).unwrap();
    let mut second = first.clone();
    second.extend([policy("docker:web", "weight=3")]);
    audit.note(&second, &Actor::user(1000), "change of policies", 6).unwrap();
    assert_eq!(audit.note(&second, &Actor::user(1000), "the same", 7), Ok(0), "no change is no record");
    let all = page::read(dir.path(), &HistoryQuery::default(), || true).unwrap();
    assert_eq!((all.unreadable, all.missing, all.next), (0, 0, None));
    let records: Vec<String> = all.records.iter().map(|r| format!("{} {}", r.by, r.changes.len())).collect();
    assert_eq!(records, ["agent 1", "container docker:web 1", "user 1000 1"]);
    let last = &all.records[2];
    assert_eq!((last.time_ms, last.cause.as_str()), (6, "change of policies"));
    let change = &last.changes[0];
    assert_eq!((change.old.as_deref(), change.new.as_deref()), (Some("weight=1"), Some("weight=3")));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(newest(dir.path())).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "root alone reads it");
}

#[test]
fn a_last_write_cut_at_each_byte_leaves_the_values_before_or_after() {
    let dir = tempfile::tempdir().unwrap();
    let before = Facts::from([policy("a", "1"), policy("b", "1")]);
    audit(dir.path()).note(&before, &Actor::user(1), "set", 1).unwrap();
    let path = newest(dir.path());
    let old = fs::metadata(&path).unwrap().len() as usize;
    let after = Facts::from([policy("a", "2"), policy("c", "1")]);
    audit(dir.path()).note(&after, &Actor::user(1), "set", 2).unwrap();
    let whole = fs::read(&path).unwrap();
    for end in old..=whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        let mut audit = audit(dir.path());
        let found = audit.recorded().unwrap().clone();
        assert_eq!(
            found,
            if end >= whole.len() - 1 { after.clone() } else { before.clone() },
            "cut at {end}"
        );
        audit.note(&after, &Actor::agent(), "start", 3).unwrap();
        assert_eq!(replayed(dir.path()), after, "cut at {end}");
        let read = page::read(dir.path(), &HistoryQuery::default(), || true).unwrap();
        let is_torn = end > old && end < whole.len() - 1;
        assert_eq!((read.unreadable, read.missing), (u64::from(is_torn), 0), "cut at {end}");
    }
}

#[test]
fn full_files_are_followed_by_others_that_begin_with_all_values() {
    let dir = tempfile::tempdir().unwrap();
    let mut audit = audit(dir.path());
    let mut facts = Facts::new();
    for n in 0..1_000 {
        facts.insert((ChangeKind::Policy, format!("docker:c{}", n % 7)), format!("weight={n}"));
        audit.note(&facts, &Actor::user(1000), "set", n).unwrap();
    }
    let all = files::list(dir.path()).unwrap();
    assert_eq!(all.len(), BOUNDS.files);
    for (_, path) in &all {
        let length = fs::metadata(path).unwrap().len();
        assert!(length < BOUNDS.size + 1_000, "{length}");
    }
    assert_eq!(replayed(dir.path()), facts);
    // Pages have each record that is left once, in their order.
    let (mut query, mut seen) = (HistoryQuery { limit: Some(7), ..HistoryQuery::default() }, Vec::new());
    loop {
        let page = page::read(dir.path(), &query, || true).unwrap();
        assert_eq!((page.missing, page.unreadable), (0, 0));
        seen.extend(page.records.iter().map(|record| record.time_ms));
        match page.next {
            Some(next) => query.after = next,
            None => break,
        }
    }
    assert!(seen.len() > 50 && seen.windows(2).all(|two| two[0] + 1 == two[1]), "{seen:?}");
    assert_eq!(seen.last(), Some(&999));
    let of_one = HistoryQuery { name: Some("c3".to_owned()), since_ms: 990, ..HistoryQuery::default() };
    let of_one = page::read(dir.path(), &of_one, || true).unwrap().records;
    let times: Vec<u64> = of_one.iter().map(|record| record.time_ms).collect();
    assert_eq!(times, [990, 997]);
    // A caller that goes away while the first file is read has no further one read.
    let has_gone = std::cell::Cell::new(false);
    let all = page::read(dir.path(), &HistoryQuery::default(), || true).unwrap().records;
    let read = page::read(dir.path(), &HistoryQuery::default(), || !has_gone.replace(true)).unwrap().records;
    assert!(!read.is_empty() && read.len() < all.len(), "{} of {}", read.len(), all.len());
}

/// Values of a large node take more than the longest line that is read.
#[test]
fn values_that_need_several_lines_are_whole_in_the_next_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut audit = audit(dir.path());
    let mut facts = Facts::new();
    let mut n = 0;
    while files::list(dir.path()).unwrap().len() < 2 {
        let value = format!("{n}{}", "x".repeat(line::MAX_LINE / 20));
        facts.extend((0..24).map(|i| policy(&format!("docker:c{i}"), &value)));
        audit.note(&facts, &Actor::user(1000), "set", n).unwrap();
        n += 1;
        assert!(n < 20, "no second file was begun");
    }
    assert!(files::list(dir.path()).unwrap()[1].0 <= audit.last);
    assert_eq!(replayed(dir.path()), facts);
    let read = page::read(dir.path(), &HistoryQuery::default(), || true).unwrap();
    assert_eq!((read.unreadable, read.missing), (0, 0));
    // The older files may go.
    fs::remove_file(&files::list(dir.path()).unwrap()[0].1).unwrap();
    let mut next = self::audit(dir.path());
    assert_eq!(next.note(&facts, &Actor::user(1), "set", n).unwrap(), 0, "all values are known");
}

#[test]
fn a_full_disk_refuses_the_next_change_and_loses_no_value() {
    let dir = tempfile::tempdir().unwrap();
    let mut audit = audit(dir.path());
    let first = Facts::from([policy("a", "1")]);
    audit.note(&first, &Actor::user(1), "set", 1).unwrap();
    audit.ready(2).unwrap();
    audit.files.room = Some(100);
    let why = audit.ready(3).unwrap_err();
    assert!(why.contains(&dir.path().display().to_string()) && why.contains("storage"), "{why}");
    assert_eq!(audit.warning(), Some(why));
    // A container comes nevertheless. Its record is torn.
    let second = Facts::from([policy("a", "1"), policy("docker:b", "1")]);
    let seen = |change: &HistoryChange| seen_by(change, "", false, false);
    assert!(audit.observe(&second, seen, "seen on the node", 4).is_err());
    assert_eq!(replayed(dir.path()), first);
    // Later there is room again.
    audit.files.room = None;
    audit.observe(&second, seen, "seen on the node", 5).unwrap();
    assert_eq!((replayed(dir.path()), audit.warning()), (second, None));
    let read = page::read(dir.path(), &HistoryQuery::default(), || true).unwrap();
    assert_eq!((read.unreadable, read.missing), (1, 0));
    let cause = &read.records.last().unwrap().cause;
    assert!(cause.ends_with("could not be written before, by container docker:b"), "{cause}");
    assert_eq!(files::list(dir.path()).unwrap().len(), 1);
    // An attempt that fails at a new file leaves none behind.
    let other = tempfile::tempdir().unwrap();
    let mut audit = self::audit(other.path());
    audit.files.room = Some(100);
    for n in 0..3 {
        assert!(audit.note(&first, &Actor::user(1), "set", n).is_err());
        assert_eq!(files::list(other.path()).unwrap(), []);
    }
}

#[test]
fn a_flood_of_containers_leaves_room_for_the_records_of_operators() {
    let dir = tempfile::tempdir().unwrap();
    let mut audit = audit(dir.path());
    let (mut records, mut facts) = (0, Facts::new());
    for second in 0..100_000_u64 {
        let now = Instant(std::time::Duration::from_secs(second));
        facts = Facts::from([policy(&format!("docker:flood{second}"), &"x".repeat(500))]);
        if audit.may_observe(now) {
            let seen = |change: &HistoryChange| seen_by(change, "", false, false);
            let bytes = audit.observe(&facts, seen, "seen on the node", second).unwrap();
            audit.took(bytes);
            records += u64::from(bytes > 0);
        }
    }
    assert!(records > 500 && records < 5_000, "{records}");
    assert!(audit.warning().unwrap().contains("faster than the audit records them"));
    // The record of an operator does not wait.
    facts.extend([policy("host", "weight=9")]);
    assert!(audit.note(&facts, &Actor::user(0), "set", 1).unwrap() > 0);
    assert_eq!(replayed(dir.path()), facts);
}

/// The parts of an agent on disk and in memory.
struct Node {
    store: Store,
    table: ClassTable,
    audit: Audit,
}

const CONFIG: &str =
    "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n[[class]]\nname = \"db\"\nmin = \"9mbit\"\n";

impl Node {
    fn open(directory: &Path, here: &[DiscoveredClass]) -> Node {
        let store = Store::open(directory).unwrap();
        let (set, ledger) = (store.policies().unwrap(), store.promises().unwrap());
        let config = crate::config::parse(CONFIG, Path::new("test.toml")).unwrap();
        let mut table = ClassTable::new(config, set, Minors::new(), ledger, BitRate::ZERO);
        table.update(here.to_vec(), true);
        Node { store, table, audit: audit(directory) }
    }

    fn facts(&self) -> Facts {
        let mut facts = Facts::new();
        facts::classes(&mut facts, &ChangeKind::Policy, &self.table);
        facts::set_by_hand(&mut facts, &ChangeKind::ByHand, self.table.set_layers());
        facts
    }

    /// Records what was seen, as the loop does.
    fn observe(&mut self, time_ms: u64) {
        let facts = self.facts();
        let seen = |change: &HistoryChange| seen_by(change, "test.toml", false, false);
        self.audit.observe(&facts, seen, "seen on the node", time_ms).unwrap();
    }
}

fn container(name: &str, weight: u32) -> DiscoveredClass {
    DiscoveredClass {
        source: ClassSource::Docker,
        name: name.to_owned(),
        kind: ClassKind::Container,
        group: None,
        label: Layer { weight: weight.to_string().parse().ok(), ..Layer::default() },
        down_label: Layer::default(),
        cut: Vec::new(),
        asked_by: Default::default(),
        unmet: None,
        ports: Vec::new(),
        cgroups: Vec::new(),
        selectors: Vec::new(),
        problem: None,
    }
}

/// A random change of policy by hand, or `None` if it is refused.
fn random_set(random: &mut fastrand::Rng, table: &ClassTable) -> Option<crate::agent::by_hand::SetLayers> {
    let name = ["a", "b", "c", "db", "docker:a"][random.usize(..5)].to_owned();
    let rate = |random: &mut fastrand::Rng, most: u64| match random.u8(..3) {
        0 => None,
        1 => Some(None),
        _ => Some(Some(BitRate(random.u64(64_000..=most)))),
    };
    let change = PolicyChange {
        weight: random.bool().then(|| Some(random.u32(1..9).to_string().parse().unwrap())),
        min: rate(random, 40_000_000),
        max: rate(random, 90_000_000),
        name,
        ..PolicyChange::default()
    };
    table.plan(&SetPolicies { changes: vec![change], allow_absent: true }).ok()
}

#[test]
fn audit_replayed_after_1000_changes_and_crashes_gives_the_policies() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(11);
    let mut here = vec![container("a", 2)];
    let mut node = Node::open(dir.path(), &here);
    node.observe(0);
    let (mut changes, mut crashes) = (0, [0_u32; 4]);
    while changes < 1_000 {
        changes += 1;
        let time_ms = changes;
        if random.u8(..4) == 0 {
            let name = ["a", "b", "c"][random.usize(..3)];
            let had = here.len();
            here.retain(|class| class.name != name);
            if here.len() == had || random.bool() {
                here.push(container(name, random.u32(1..9)));
            }
            node.table.update(here.clone(), true);
            node.observe(time_ms);
            continue;
        }
        let Some(set) = random_set(&mut random, &node.table) else { continue };
        node.audit.ready(time_ms).unwrap();
        // A crash comes before the state is written, after it, or within the record. Mostly it does not come.
        let crash = random.usize(..16);
        if crash > 0 {
            let ledger = node.table.ledger_after(&set);
            node.store.save_policies((&set, &ledger), None, &History::default()).unwrap();
            node.table.commit(set);
        }
        if crash > 1 {
            let path = newest(dir.path());
            let old = fs::metadata(&path).unwrap().len();
            let facts = node.facts();
            let written = node.audit.note(&facts, &Actor::user(1000), "set", time_ms).unwrap();
            if crash == 2 && written > 0 && newest(dir.path()) == path {
                let cut = old + random.u64(..written);
                fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
            }
        }
        crashes[crash.min(3)] += 1;
        if crash <= 2 {
            drop(node);
            node = Node::open(dir.path(), &here);
            node.observe(time_ms);
        }
        assert_eq!(replayed(dir.path()), node.facts(), "change {changes}");
    }
    assert!(crashes.iter().all(|&count| count > 20), "{crashes:?}");
    let policies: BTreeMap<String, String> = replayed(dir.path())
        .into_iter()
        .filter(|((what, _), _)| *what == ChangeKind::Policy)
        .map(|((_, name), value)| (name, value))
        .collect();
    let in_force =
        node.table.entries().iter().map(|(key, entry)| (key.to_string(), facts::in_force(entry))).collect();
    assert_eq!(policies, in_force);
    assert!(
        ClassKey::parse("docker:a")
            .is_some_and(|key| policies.contains_key(key.as_str()) || !here.is_empty())
    );
}
