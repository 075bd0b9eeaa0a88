//! Opens the state. The database is read as a whole in a place where a panic cannot end the agent. A
//! damaged database is set aside and restored from the second copy.

use std::{
    cell::Cell,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Once,
};

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableHandle as _};
use weir_agree::Utc;

use super::{
    Change, MINORS, Open, Text,
    place::{Copy, Place, Seen},
    second::{self, Read, Row},
};

/// The number of the last change, in [`super::META`].
const SEQUENCE: &str = "sequence";
/// The version of the rows' meaning.
const SCHEMA: &str = "schema";
/// The schema of this weir. A newer one is refused.
const KNOWN_SCHEMA: u64 = 1;
/// Notices that no one has acknowledged, as JSON.
const NOTICES: &str = "notices";
/// Names the weir that last opened the database. A weir without a second copy does not write [`COPIED`]
/// here.
const OPENINGS: &str = "openings";
const COPIED: &str = "copied";
/// A database counts as damaged if this number of agents in a row ended while reading it.
const UNFINISHED: u64 = 3;
/// The number of notices kept. The oldest is dropped.
const NOTICES_KEPT: usize = 20;

/// Runs code that may panic on damaged input. The panic's message becomes the error and is not printed.
pub(super) fn guarded<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    thread_local!(static GUARDED: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                before(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(act));
    GUARDED.set(outer);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        text.lines().next().unwrap_or_default().to_owned()
    })
}

/// The reason why a database was not opened.
enum Failure {
    /// The content is not what was written.
    Damage(String),
    /// Another fault, which may be gone at the next attempt.
    Other(String),
}

/// A sound database.
struct Sound {
    database: Database,
    /// The number of its last change. A database from before numbers has none.
    sequence: Option<u64>,
    schema: Option<u64>,
    notices: Vec<String>,
    /// A weir without a second copy had it open.
    is_foreign: bool,
}

fn meta(tx: &ReadTransaction, key: &str) -> Result<Option<String>, redb::Error> {
    match tx.open_table(super::META) {
        Ok(table) => Ok(table.get(key)?.map(|value| value.value().to_owned())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Passes each row that also belongs into the second copy to `show`.
pub(super) fn each_row<E: From<redb::Error>>(
    tx: &ReadTransaction,
    mut show: impl FnMut(Row) -> Result<(), E>,
) -> Result<(), E> {
    let tables = tx.list_tables().map_err(redb::Error::from)?;
    for name in tables.map(|table| table.name().to_owned()) {
        let mut shown = |key: &str, value: String| {
            let is_of_one_copy = name == "meta" && [SEQUENCE, OPENINGS].contains(&key);
            if is_of_one_copy { Ok(()) } else { show(Row(name.clone(), key.to_owned(), Some(value))) }
        };
        let lost = |e: redb::StorageError| redb::Error::from(e);
        if name == MINORS {
            let table = tx.open_table(super::MINORS_TABLE).map_err(redb::Error::from)?;
            for row in table.iter().map_err(lost)? {
                let (key, value) = row.map_err(lost)?;
                shown(key.value(), value.value().to_string())?;
            }
        } else {
            let table =
                tx.open_table(TableDefinition::<&str, &str>::new(&name)).map_err(redb::Error::from)?;
            for row in table.iter().map_err(lost)? {
                let (key, value) = row.map_err(lost)?;
                shown(key.value(), value.value().to_owned())?;
            }
        }
    }
    Ok(())
}

/// Opens the database and reads all of it.
fn verify(place: &dyn Place) -> Result<Sound, Failure> {
    let result = guarded(|| -> Result<Sound, redb::Error> {
        let mut database = place.open()?;
        if !database.check_integrity()? {
            return Err(redb::Error::Corrupted("its check sums do not match".to_owned()));
        }
        let tx = database.begin_read()?;
        each_row::<redb::Error>(&tx, |_| Ok(()))?;
        let number = |key| Ok::<_, redb::Error>(meta(&tx, key)?.and_then(|text| text.parse().ok()));
        let (sequence, schema) = (number(SEQUENCE)?, number(SCHEMA)?);
        let notices = meta(&tx, NOTICES)?.map(|text| noted(&text));
        let is_foreign = meta(&tx, OPENINGS)?.is_some_and(|text| text != COPIED);
        drop(tx);
        Ok(Sound { database, sequence, schema, notices: notices.unwrap_or_default(), is_foreign })
    });
    let error = match result {
        Ok(Ok(sound)) => return Ok(sound),
        Ok(Err(error)) => error,
        Err(panic) => return Err(Failure::Damage(panic)),
    };
    let is_damage = match &error {
        redb::Error::DatabaseAlreadyOpen
        | redb::Error::PreviousIo
        | redb::Error::DatabaseClosed
        | redb::Error::LockPoisoned(_) => false,
        redb::Error::Io(e)
            if [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof].contains(&e.kind()) =>
        {
            true
        }
        // A full or write-protected disk has lost nothing yet.
        redb::Error::Io(_) => place.is_readable(Copy::First).is_err(),
        _ => true,
    };
    Err(if is_damage { Failure::Damage(error.to_string()) } else { Failure::Other(error.to_string()) })
}

/// Like [`verify`], with a record on disk. Later agents thus notice damage that ends the process.
fn verify_once(place: &dyn Place) -> Result<Sound, Failure> {
    let verified = match place.begin_reading() {
        UNFINISHED.. => Err(Failure::Damage(format!("{UNFINISHED} agents ended while they read it"))),
        _ => verify(place),
    };
    place.end_reading();
    verified
}

/// Reads the second copy, or returns why it cannot be read.
fn read_second(place: &dyn Place, wants_rows: bool) -> Result<Result<Read, Option<String>>, String> {
    match place.look(Copy::Second) {
        Seen::Nothing => Ok(Err(None)),
        Seen::Unusable(why) => Ok(Err(Some(why))),
        Seen::File => match place.second().and_then(|text| second::read(text, wants_rows)) {
            Ok(read) => Ok(Ok(read)),
            Err(e) if place.is_readable(Copy::Second).is_err() => Ok(Err(Some(e.to_string()))),
            Err(e) => Err(e.to_string()),
        },
    }
}

/// The steps that the found state requires.
#[derive(Default)]
struct Plan {
    /// The rows for a new database.
    restored: Option<Read>,
    /// The rows of a change that the database lacks.
    lacking: Vec<Row>,
    /// Whether the second copy differs from the database and must be rewritten.
    rewrites: bool,
    /// Whether the second copy is damaged and kept under another name.
    sets_second_aside: bool,
    said: Vec<String>,
}

fn plural(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// Describes the content of a second copy.
fn contents(read: &Read) -> String {
    let of = |name: &str| read.rows.keys().filter(|(table, _)| table == name).count();
    let mut text = format!(
        "{} and {} are restored from {{second}}",
        plural(of("agreements"), "agreement"),
        plural(of("policies"), "policy set by hand").replace("policy set by hands", "policies set by hand"),
    );
    if read.bad > 0 {
        text += &format!("; {} of it cannot be read: what they changed is lost", plural(bad(read), "line"));
    }
    text
}

fn bad(read: &Read) -> usize {
    usize::try_from(read.bad).unwrap_or(usize::MAX)
}

/// Plans the steps for a sound database.
fn plan_for_sound(place: &dyn Place, sound: &Sound) -> Result<Result<Plan, String>, String> {
    let sequence = sound.sequence.unwrap_or(0);
    let mut plan = Plan { rewrites: true, ..Plan::default() };
    if sound.is_foreign {
        return Ok(Ok(plan));
    }
    match read_second(place, false)? {
        // The first start with a second copy ended early.
        Err(None) if sound.sequence.is_none() => {}
        Err(None) => plan.said.push("{second} was missing: it is rewritten from {first}".to_owned()),
        Err(Some(why)) => {
            plan.sets_second_aside = true;
            plan.said.push(format!(
                "{{second}} was damaged ({why}): it is set aside as {{aside}} and rewritten from {{first}}"
            ));
        }
        // The agent ended before the database had the last change. A whole copy does not tell its rows.
        Ok(read) if read.sequence == sequence + 1 && read.bad == 0 && !read.last.is_empty() => {
            (plan.lacking, plan.rewrites) = (read.last, false);
        }
        Ok(read) if read.sequence > sequence => {
            let behind = read.sequence - sequence;
            return Ok(Err(format!("{behind} changes that {{second}} holds are missing in it")));
        }
        Ok(read) => {
            let behind = sequence - read.sequence;
            // The last change did not reach both copies, so its caller got no answer.
            let is_torn = read.bad <= 1 && (behind == 1 || behind == 0 && read.is_torn);
            plan.rewrites = behind > 0 || read.bad > 0;
            if plan.rewrites && !is_torn {
                plan.sets_second_aside = true;
                plan.said.push(format!(
                    "{{second}} was damaged ({} of it cannot be read, {} are missing): it is set aside as \
                     {{aside}} and rewritten from {{first}}",
                    plural(bad(&read), "line"),
                    plural(usize::try_from(behind).unwrap_or(usize::MAX), "change"),
                ));
            }
        }
    }
    Ok(Ok(plan))
}

/// Plans the steps for a damaged or missing database.
fn plan_for_damage(place: &dyn Place, damage: Option<String>) -> Result<Plan, String> {
    let mut plan = Plan { rewrites: true, ..Plan::default() };
    let begin = match &damage {
        Some(why) => format!("{{first}} was damaged ({why}): it is set aside as {{aside}}"),
        None => "{first} was missing".to_owned(),
    };
    match read_second(place, true)? {
        Ok(read) if !read.rows.is_empty() || read.bad > 0 => {
            plan.sets_second_aside = read.bad > 0;
            plan.said.push(format!("{begin}; {}", contents(&read)));
            plan.restored = Some(read);
        }
        Err(Some(why)) => {
            plan.sets_second_aside = true;
            plan.said.push(format!(
                "{begin}; {{second}} was damaged too ({why}): agreements and policies set by hand are lost"
            ));
        }
        _ if damage.is_some() => {
            plan.said.push(format!(
                "{begin}; there is no second copy: agreements and policies set by hand are lost"
            ));
        }
        _ => {}
    }
    Ok(plan)
}

/// Opens the state. Both copies hold the same when this returns.
pub(super) fn open(place: &dyn Place) -> Result<Open, String> {
    let found = match place.look(Copy::First) {
        Seen::Nothing => Err(None),
        Seen::Unusable(why) => Err(Some(why)),
        Seen::File => match verify_once(place) {
            Ok(sound) => match plan_for_sound(place, &sound)? {
                Ok(plan) => Ok((sound, plan)),
                Err(damage) => {
                    drop(guarded(|| drop(sound)));
                    Err(Some(damage))
                }
            },
            Err(Failure::Damage(why)) => Err(Some(why)),
            Err(Failure::Other(why)) => return Err(why),
        },
    };
    let (sound, plan) = match found {
        Ok(found) => found,
        Err(damage) => {
            let mut plan = plan_for_damage(place, damage.clone())?;
            if let Some(read) = &plan.restored {
                let schema = read.rows.get(&("meta".to_owned(), SCHEMA.to_owned()));
                is_known(place, schema.and_then(|text| text.parse().ok()))?;
            }
            if damage.is_some() {
                let name = place
                    .set_aside(Copy::First)
                    .map_err(|e| format!("it is damaged and cannot be set aside: {e} (move it away)"))?;
                plan.said.iter_mut().for_each(|said| *said = said.replace("{aside}", &name));
            }
            let made = guarded(|| place.open()).map_err(|panic| format!("cannot make a new one: {panic}"))?;
            let database = made.map_err(|e| format!("cannot make a new one: {e}"))?;
            (Sound { database, sequence: None, schema: None, notices: Vec::new(), is_foreign: false }, plan)
        }
    };
    is_known(place, sound.schema)?;
    let opened = guarded(|| finish(place, sound, plan)).unwrap_or_else(Err);
    opened.map_err(|why| format!("cannot write it: {why}"))
}

fn is_known(place: &dyn Place, schema: Option<u64>) -> Result<(), String> {
    match schema {
        Some(newer) if newer > KNOWN_SCHEMA => Err(format!(
            "it has schema {newer}, and this weir knows {KNOWN_SCHEMA} (install the newer weir again, or move {} \
             and {} away to start without what was promised)",
            place.name(Copy::First),
            place.name(Copy::Second)
        )),
        _ => Ok(()),
    }
}

/// Writes the plan's content to both copies.
fn finish(place: &dyn Place, sound: Sound, plan: Plan) -> Result<Open, String> {
    let Sound { database, sequence, schema, notices, is_foreign } = sound;
    let Plan { restored, lacking, rewrites, sets_second_aside, said } = plan;
    let named = |text: String| {
        text.replace("{first}", &place.name(Copy::First)).replace("{second}", &place.name(Copy::Second))
    };
    let aside =
        |copy| place.set_aside(copy).map_err(|e| format!("cannot set {} aside: {e}", place.name(copy)));
    let name = if sets_second_aside && restored.is_none() { aside(Copy::Second)? } else { String::new() };
    let said: Vec<String> = said.into_iter().map(|text| named(text).replace("{aside}", &name)).collect();
    let stored = sequence;
    let (mut notices, mut sequence) = (notices, sequence.unwrap_or(0));
    if let Some(read) = &restored {
        sequence = sequence.max(read.sequence);
        let stored = read.rows.get(&("meta".to_owned(), NOTICES.to_owned()));
        notices = stored.map(|text| noted(text)).unwrap_or_default();
    }
    if !lacking.is_empty() {
        sequence += 1;
        let stored = lacking.iter().find(|Row(table, key, _)| table == "meta" && key == NOTICES);
        notices = stored.and_then(|Row(.., text)| text.as_deref()).map_or(notices, noted);
    }
    let now = Utc::from(std::time::SystemTime::now()).second();
    // A later failure of this opening leads to another attempt, which finds the same damage.
    let is_said = |text: &String| notices.last().is_some_and(|last| last.ends_with(text));
    let said: Vec<String> = said.into_iter().filter(|text| !is_said(text)).collect();
    notices.extend(said.iter().map(|text| format!("{now}: {text}")));
    notices.drain(..notices.len().saturating_sub(NOTICES_KEPT));
    let schema_is_new = schema.is_none() || restored.is_some();
    let has_news = schema_is_new || !said.is_empty();
    // The rows found are on disk after this.
    let write = || -> Result<(), redb::Error> {
        let tx = database.begin_write()?;
        let (change, tables) = (Change::new(&tx), tx.list_tables()?.count());
        super::prepare(&tx)?;
        for ((table, key), value) in restored.iter().flat_map(|read| &read.rows) {
            change.put(Row(table.clone(), key.clone(), Some(value.clone())))?;
        }
        lacking.iter().try_for_each(|row| change.put(row.clone()))?;
        if has_news {
            change.insert(super::META, SCHEMA, &KNOWN_SCHEMA.to_string())?;
            note(&change, &notices)?;
            sequence += 1;
        }
        let is_same = change.rows.borrow().is_empty() && tx.list_tables()?.count() == tables;
        if is_same && stored == Some(sequence) && !is_foreign {
            // A full disk can be read.
            return Ok(tx.abort()?);
        }
        set_sequence(&tx, sequence)?;
        tx.open_table(super::META)?.insert(OPENINGS, COPIED)?;
        Ok(tx.commit()?)
    };
    let mut write = write;
    write().map_err(|e| e.to_string())?;
    if sets_second_aside && restored.is_some() {
        aside(Copy::Second)?;
    }
    let mut open = Open { database, sequence, length: 0, added: 0, notices, said };
    if rewrites || has_news {
        rewrite(place, &mut open)?;
    }
    Ok(open)
}

/// Stored notices. An unreadable text has no notices.
fn noted(text: &str) -> Vec<String> {
    serde_json::from_slice(text.as_bytes()).unwrap_or_default()
}

/// Stores the notices.
pub(super) fn note(change: &Change<'_>, notices: &[String]) -> Result<(), redb::Error> {
    change.insert(super::META, NOTICES, &serde_json::to_string(notices).unwrap_or_default())
}

/// Stores the number of the last change in the database.
pub(super) fn set_sequence(tx: &redb::WriteTransaction, sequence: u64) -> Result<(), redb::Error> {
    let mut table: redb::Table<'_, &str, &str> = tx.open_table(super::META as Text)?;
    table.insert(SEQUENCE, sequence.to_string().as_str())?;
    Ok(())
}

/// Rewrites the second copy from the database.
pub(super) fn rewrite(place: &dyn Place, open: &mut Open) -> Result<(), String> {
    /// The error of either side.
    enum Broken {
        Read(redb::Error),
        Write(io::Error),
    }
    impl From<redb::Error> for Broken {
        fn from(e: redb::Error) -> Broken {
            Broken::Read(e)
        }
    }
    let tx = open.database.begin_read().map_err(|e| e.to_string())?;
    let mut length = 0;
    let written = place.replace(&mut |out| {
        let mut out = second::Counting(out, 0);
        let rows = each_row(&tx, |row| {
            io::Write::write_all(&mut out, &second::line(0, &[row])).map_err(Broken::Write)
        });
        rows.map_err(|broken| match broken {
            Broken::Read(e) => io::Error::other(e.to_string()),
            Broken::Write(e) => e,
        })?;
        io::Write::write_all(&mut out, &second::line(open.sequence, &[]))?;
        length = out.1;
        Ok(())
    });
    written.map_err(|e| format!("{}: {e}", place.name(Copy::Second)))?;
    (open.length, open.added) = (length, 0);
    Ok(())
}
