//! Promises survive a disk that fails, tears writes and forgets. The database runs on a simulated disk
//! that loses unsynced changes. The disk fails at every operation in turn.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use redb::{Database, StorageBackend};

use super::{
    tests::{client, config, moment, offer},
    *,
};
use crate::{
    agent::{
        by_hand::SetLayers,
        history::History,
        store::{
            Ledger,
            place::{Copy, Place, Seen},
        },
    },
    config::Layer,
};

/// An unsynced write or change of length.
#[derive(Debug, Clone)]
enum Pending {
    Write(u64, Vec<u8>),
    Length(u64),
}

/// A disk: the safe bytes, the cached bytes and the planned failure.
#[derive(Debug, Default)]
struct Disk {
    safe: Vec<u8>,
    pending: Vec<Pending>,
    /// The bytes that a read returns: safe and cached.
    seen: Vec<u8>,
    /// The second copy.
    second: Text,
    /// How often a copy was set aside.
    asides: u64,
    /// Operations so far.
    operations: u64,
    /// The operation that fails. All later ones fail too.
    fails_at: Option<u64>,
    /// Only that one operation fails.
    once: bool,
    /// The database has room for its header alone.
    is_full: bool,
    /// The seed that decides which cached changes and which part of a write survive a crash.
    seed: u64,
}

/// A file that grows or is replaced.
#[derive(Debug, Default)]
struct Text {
    safe: Option<Vec<u8>>,
    /// `None` means that the text is as on disk.
    seen: Option<Vec<u8>>,
    /// The file was replaced, and the directory is not synced yet.
    is_exchanged: bool,
}

fn apply(image: &mut Vec<u8>, change: &Pending, part: usize) {
    match change {
        Pending::Length(length) => image.resize(*length as usize, 0),
        Pending::Write(at, data) => {
            let (at, part) = (*at as usize, part.min(data.len()));
            if image.len() < at + part {
                image.resize(at + part, 0);
            }
            image[at..at + part].copy_from_slice(&data[..part]);
        }
    }
}

impl Disk {
    fn random(&mut self) -> u64 {
        // xorshift64*
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn operate(&mut self) -> io::Result<()> {
        self.operations += 1;
        let fails = match self.fails_at {
            Some(at) if self.once => self.operations == at,
            Some(at) => self.operations >= at,
            None => false,
        };
        if fails { Err(io::Error::other("the disk fails")) } else { Ok(()) }
    }

    fn change(&mut self, change: Pending) {
        apply(&mut self.seen, &change, usize::MAX);
        self.pending.push(change);
    }

    /// Loses power. Each cached change survives, is lost, or is torn.
    fn crash(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            match self.random() % 3 {
                0 => {}
                1 => apply(&mut self.safe, &change, usize::MAX),
                _ => {
                    let part = (self.random() % 4096) as usize;
                    apply(&mut self.safe, &change, part);
                }
            }
        }
        self.seen.clone_from(&self.safe);
        self.crash_second();
        (self.fails_at, self.operations) = (None, 0);
    }
}

impl Disk {
    /// Keeps a part of an appended or cut text. A replaced text is the old one or the new one.
    fn crash_second(&mut self) {
        let random = self.random();
        let Text { safe, seen, is_exchanged } = &mut self.second;
        match (&safe, &seen) {
            (_, Some(new)) if *is_exchanged && random.is_multiple_of(2) => *safe = Some(new.clone()),
            (Some(old), Some(new)) if !*is_exchanged => {
                let (longer, shorter) = if new.len() < old.len() { (old, new) } else { (new, old) };
                let kept = shorter.len() + random as usize % (longer.len() - shorter.len() + 1);
                *safe = Some(longer[..kept].to_vec());
            }
            _ => {}
        }
        (*seen, *is_exchanged) = (safe.clone(), false);
    }
}

#[derive(Debug, Clone)]
struct Handle(Arc<Mutex<Disk>>);

impl Handle {
    fn disk(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.disk();
        let at = offset as usize;
        let found = disk.seen.get(at..at + out.len()).ok_or_else(|| io::Error::other("beyond the end"))?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.disk();
        disk.operate()?;
        disk.change(Pending::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk();
        disk.operate()?;
        let Disk { safe, pending, .. } = &mut *disk;
        pending.drain(..).for_each(|change| apply(safe, &change, usize::MAX));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut disk = self.disk();
        if disk.is_full && offset >= 4096 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let Err(error) = disk.operate() {
            // A part of the write may have reached the disk.
            let part = (disk.random() as usize) % (data.len() + 1);
            disk.change(Pending::Write(offset, data[..part].to_vec()));
            return Err(error);
        }
        disk.change(Pending::Write(offset, data.to_vec()));
        Ok(())
    }
}

impl Place for Handle {
    fn open(&self) -> Result<Database, redb::Error> {
        Ok(Database::builder().set_cache_size(64 * 1024).create_with_backend(self.clone())?)
    }

    fn look(&self, copy: Copy) -> Seen {
        let disk = self.disk();
        let is_there = match copy {
            Copy::First => !disk.seen.is_empty(),
            Copy::Second => disk.second.seen.is_some(),
        };
        if is_there { Seen::File } else { Seen::Nothing }
    }

    fn is_readable(&self, _: Copy) -> io::Result<()> {
        Ok(())
    }

    fn begin_reading(&self) -> u64 {
        0
    }

    fn end_reading(&self) {}

    fn set_aside(&self, copy: Copy) -> io::Result<String> {
        self.disk().asides += 1;
        Err(io::Error::other(format!("{copy:?} is sound")))
    }

    fn second(&self) -> io::Result<Box<dyn io::BufRead + '_>> {
        Ok(Box::new(io::Cursor::new(self.disk().second.seen.clone().unwrap_or_default())))
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.disk().second.seen.as_ref().ok_or(io::ErrorKind::NotFound)?.len() as u64)
    }

    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut disk = self.disk();
        let failed = disk.operate();
        let part = if failed.is_err() { disk.random() as usize % (line.len() + 1) } else { line.len() };
        let text = disk.second.seen.as_mut().ok_or(io::ErrorKind::NotFound)?;
        text.extend_from_slice(&line[..part]);
        failed?;
        // This operation is the sync.
        disk.operate()?;
        disk.second.safe = disk.second.seen.clone();
        Ok(())
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        let mut disk = self.disk();
        disk.operate()?;
        disk.second.seen.as_mut().ok_or(io::ErrorKind::NotFound)?.truncate(length as usize);
        // This operation is the sync.
        disk.operate()?;
        disk.second.safe = disk.second.seen.clone();
        Ok(())
    }

    fn replace(&self, write: &mut dyn FnMut(&mut dyn io::Write) -> io::Result<()>) -> io::Result<()> {
        let mut text = Vec::new();
        write(&mut text)?;
        let mut disk = self.disk();
        // The write, the sync, the exchange; the sync of the directory follows.
        for _ in 0..3 {
            disk.operate()?;
        }
        (disk.second.seen, disk.second.is_exchanged) = (Some(text), true);
        disk.operate()?;
        (disk.second.safe, disk.second.is_exchanged) = (disk.second.seen.clone(), false);
        Ok(())
    }

    fn name(&self, copy: Copy) -> String {
        format!("made-up-{copy:?}")
    }
}

fn store(disk: &Handle) -> Result<Store, StoreError> {
    Store::opened_in(Box::new(disk.clone()), PathBuf::from("made-up.redb"))
}

/// The answer that a client got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Accepted,
    Refused,
    /// The answer said that the result is unknown.
    Unknown,
}

const OFFERS: u64 = 20;

/// The `i`-th offer. Every fourth is too large for the link.
fn nth(i: u64) -> Offer {
    let mut offer = offer(&format!("s{i}"), if i % 4 == 3 { 95 } else { 4 });
    offer.id = Some(Name::new(&format!("offer-{i}")).unwrap());
    offer
}

/// Sends all offers, terminates every fifth agreement, and records the answers.
fn live(
    agreements: &mut Agreements,
    store: &Store,
    told: &mut BTreeMap<u64, Told>,
    ended: &mut BTreeMap<u64, bool>,
) {
    for i in 0..OFFERS {
        if told.get(&i).is_some_and(|told| *told != Told::Unknown) {
            continue;
        }
        let answer = agreements.offer(&client(), None, nth(i), store, moment(i * 60));
        if let (Ok(answer), 0) = (&answer, i % 5) {
            let id = answer.agreement.id.as_str();
            if answer.agreement.state == AgreementState::Observed {
                let done = agreements.terminate(id, store, moment(i * 60).utc).is_ok();
                ended.insert(i, done);
                let state = agreements.all().find(|one| one.id.as_str() == id).expect("it is kept").state;
                assert_eq!(
                    state == AgreementState::Observed,
                    !done,
                    "offer {i}: {state:?}, terminated: {done}"
                );
            }
        }
        told.insert(
            i,
            match answer {
                Ok(_) => Told::Accepted,
                Err(fault) if fault.code == FaultCode::NotRecorded => Told::Unknown,
                Err(_) => Told::Refused,
            },
        );
    }
}

/// Compares the agreements with the answers: none is lost, doubled or refused.
fn compare(agreements: &Agreements, told: &BTreeMap<u64, Told>, ended: &BTreeMap<u64, bool>, what: &str) {
    for (i, told) in told {
        let id = nth(*i).id;
        let found: Vec<_> = agreements.all().filter(|agreement| agreement.offer.id == id).collect();
        match told {
            Told::Accepted => assert_eq!(found.len(), 1, "{what}: offer {i} was accepted"),
            Told::Refused => assert_eq!(found.len(), 0, "{what}: offer {i} was refused"),
            Told::Unknown => assert!(found.len() <= 1, "{what}: offer {i} is there twice"),
        }
        if ended.get(i) == Some(&true) {
            assert_ne!(found[0].state, AgreementState::Observed, "{what}: offer {i} was terminated");
        }
    }
    let mut ids: Vec<_> = agreements.all().map(|agreement| agreement.id.clone()).collect();
    ids.dedup();
    assert_eq!(ids.len(), agreements.all().count(), "{what}: an id is given twice");
}

/// A first life with a disk that fails at that operation (once or from then on), a crash, and a second
/// life. Returns the number of operations of the first life.
fn two_lives(fails_at: Option<u64>, once: bool) -> u64 {
    let config = config("offers_at_once = 1000\n");
    let seed = fails_at.unwrap_or(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let disk = Handle(Arc::new(Mutex::new(Disk { seed, ..Disk::default() })));
    drop(store(&disk).unwrap());
    {
        let mut disk = disk.disk();
        (disk.fails_at, disk.once, disk.operations) = (fails_at, once, 0);
    }
    let what = format!("operation {fails_at:?} fails, once: {once}");
    let (mut told, mut ended) = (BTreeMap::new(), BTreeMap::new());
    if let Ok(store) = store(&disk)
        && let Ok(Some(mut agreements)) = Agreements::open(&config, &store, moment(0).utc)
    {
        live(&mut agreements, &store, &mut told, &mut ended);
        compare(&agreements, &told, &ended, &format!("{what}, before the crash"));
    }
    let operations = disk.disk().operations;
    disk.disk().crash();

    let store = store(&disk).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut agreements = Agreements::open(&config, &store, moment(0).utc).unwrap().unwrap();
    compare(&agreements, &told, &ended, &format!("{what}, after the crash"));
    // A client without an answer asks again with the same id.
    live(&mut agreements, &store, &mut told, &mut ended);
    assert!(told.values().all(|told| *told != Told::Unknown), "{what}: {told:?}");
    compare(&agreements, &told, &ended, &format!("{what}, asked again"));
    assert_eq!((store.notices(), disk.disk().asides), (vec![], 0), "{what}: sound copies are set aside");
    drop(store);
    same_in_second(&disk, &agreements, &what);
    operations
}

/// Checks that the second copy alone holds all agreements, as if the database were lost.
fn same_in_second(disk: &Handle, agreements: &Agreements, what: &str) {
    let mut without = Disk { seed: 1, ..Disk::default() };
    without.second.seen = disk.disk().second.seen.clone();
    let store = store(&Handle(Arc::new(Mutex::new(without)))).unwrap_or_else(|e| panic!("{what}: {e}"));
    let restored = Agreements::open(&config(""), &store, moment(0).utc).unwrap().unwrap();
    assert!(restored.all().eq(agreements.all()), "{what}: the second copy differs");
    assert_eq!(store.notices().len(), 1, "{what}: {:?}", store.notices());
}

/// No refused agreement appears either.
#[test]
fn no_accepted_agreement_is_lost_whenever_the_disk_fails() {
    let operations = two_lives(None, false);
    assert!(operations > 100, "{operations}");
    for at in 1..=operations {
        two_lives(Some(at), false);
        if at % 3 == 0 {
            two_lives(Some(at), true);
        }
    }
    println!("{} lives with a failing disk, {operations} operations each", operations + operations / 3);
}

/// Changes a policy by hand several times. Returns the policies that the answers allow.
fn set_policies(store: &Store, what: &str) -> Vec<SetLayers> {
    let mut allowed = vec![SetLayers::new()];
    for n in 1..=12_u64 {
        let layer = Layer { weight: n.to_string().parse().ok(), ..Layer::default() };
        let set = SetLayers::from([("web".to_owned(), layer)]);
        match store.save_policies((&set, &Ledger::new()), None, &History::default()) {
            Ok(()) => allowed = vec![set],
            Err(error) if error.outcome() == "nothing was changed" => {}
            Err(_) => allowed.push(set),
        }
        if let Ok(found) = store.policies() {
            assert!(allowed.contains(&found), "{what}, change {n}: {found:?}, not one of {allowed:?}");
        }
    }
    allowed
}

/// Sets policies while the disk fails at that operation, loses power, and starts again. Returns the number of
/// operations and of changes without a certain answer.
fn two_lives_of_policies(fails_at: Option<u64>, once: bool) -> (u64, usize) {
    let seed = fails_at.unwrap_or(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let disk = Handle(Arc::new(Mutex::new(Disk { seed, ..Disk::default() })));
    let first = store(&disk).unwrap();
    {
        let mut disk = disk.disk();
        (disk.fails_at, disk.once, disk.operations) = (fails_at, once, 0);
    }
    let what = format!("operation {fails_at:?} fails, once: {once}");
    let allowed = set_policies(&first, &what);
    drop(first);
    let operations = disk.disk().operations;
    disk.disk().crash();
    let second = store(&disk).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = second.policies().unwrap();
    assert!(allowed.contains(&found), "{what}, after the crash: {found:?}, not one of {allowed:?}");
    assert_eq!((second.notices(), disk.disk().asides), (vec![], 0), "{what}: sound copies are set aside");
    (operations, allowed.len() - 1)
}

/// A disk that fails once leaves no doubt.
#[test]
fn no_refused_policy_comes_into_force_whenever_the_disk_fails() {
    let (operations, _) = two_lives_of_policies(None, false);
    assert!(operations > 50, "{operations}");
    for at in 1..=operations {
        two_lives_of_policies(Some(at), false);
        let (_, uncertain) = two_lives_of_policies(Some(at), true);
        assert_eq!(uncertain, 0, "operation {at} fails once");
    }
}

#[test]
fn full_database_is_read_and_a_refusal_by_it_is_certain() {
    let disk = Handle(Arc::new(Mutex::new(Disk { seed: 1, ..Disk::default() })));
    let store = store(&disk).unwrap();
    let before = set_policies(&store, "with room").remove(0);
    disk.disk().is_full = true;
    for _ in 0..3 {
        let none = SetLayers::new();
        let error = store.save_policies((&none, &Ledger::new()), None, &History::default()).unwrap_err();
        assert_eq!(error.outcome(), "nothing was changed", "{error}");
        assert!(error.to_string().contains("cannot write the policies of the state"), "{error}");
        assert_eq!(store.policies().unwrap(), before);
    }
    disk.disk().is_full = false;
    assert_eq!(store.policies().unwrap(), before);
    store.save_policies((&SetLayers::new(), &Ledger::new()), None, &History::default()).unwrap();
    assert_eq!((store.policies().unwrap(), store.notices()), (SetLayers::new(), vec![]));
}
