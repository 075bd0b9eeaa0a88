//! Files of other programs: changed all or none, with a record by which each change is taken back.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{block, daemon};

/// A file and its wanted text.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) path: PathBuf,
    pub(super) after: String,
    /// The command after which the runtime reads it.
    pub(super) then: String,
}

/// The record of written text, for `undo`.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) listen: String,
    pub(super) files: Vec<Written>,
    /// The directories created for the record, deepest first.
    #[serde(default)]
    made: Vec<PathBuf>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) path: PathBuf,
    /// The text before; `None` if there was no file.
    before: Option<String>,
    after: String,
    /// The directories created for it, deepest first.
    made: Vec<PathBuf>,
}

pub(super) fn record_file(root: &Path) -> PathBuf {
    root.join("var/lib/weir/image-setup.json")
}

/// The record of an earlier setup.
pub(super) fn record(root: &Path) -> anyhow::Result<Option<Record>> {
    let path = record_file(root);
    let Some(text) = read(&path)? else { return Ok(None) };
    let record = serde_json::from_slice(text.as_bytes());
    record.map(Some).with_context(|| format!("cannot read what an earlier setup did in {}", path.display()))
}

pub(super) fn refuse(path: &Path, why: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("cannot add to {}: {why}; nothing was written", path.display())
}

pub(super) fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The file that a symbolic link leads to, so that the link stays.
fn behind_link(path: &Path) -> anyhow::Result<PathBuf> {
    if path.is_symlink() {
        return fs::canonicalize(path).with_context(|| {
            format!("cannot follow the symbolic link {}; nothing was written", path.display())
        });
    }
    Ok(path.to_owned())
}

/// The name of the file that is renamed to `target`.
fn staged(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".weir-new");
    PathBuf::from(name)
}

/// Writes the text beside its file. The mode and owner are those of the file.
fn stage(target: &Path, text: &str) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", target.display());
    let new = staged(target);
    fs::write(&new, text).with_context(cannot)?;
    match fs::metadata(target) {
        Ok(meta) => {
            fs::set_permissions(&new, meta.permissions()).with_context(cannot)?;
            chown(&new, Some(meta.uid()), Some(meta.gid())).with_context(cannot)?;
        }
        // Podman without root reads it too.
        Err(_) => fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).with_context(cannot)?,
    }
    fs::File::open(&new).and_then(|file| file.sync_all()).with_context(cannot)
}

fn publish(target: &Path) -> anyhow::Result<()> {
    fs::rename(staged(target), target).with_context(|| format!("cannot write {}", target.display()))
}

/// Replaces a file as a whole or not at all.
fn replace(target: &Path, text: &str) -> anyhow::Result<()> {
    stage(target, text)?;
    publish(target)
}

/// The directories that a file lacks, deepest first.
fn missing_dirs(path: &Path) -> Vec<PathBuf> {
    let dir = path.parent().unwrap_or(path);
    dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect()
}

fn make_dirs(path: &Path) -> anyhow::Result<()> {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))
}

/// Only empty directories are removed.
fn remove_dirs(made: &[PathBuf]) {
    let _ = made.iter().try_for_each(|dir| match fs::remove_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    });
}

/// An edit that changes its file.
struct Change<'a> {
    edit: &'a Edit,
    target: PathBuf,
    before: Option<String>,
}

/// The edits that change their files, and those of files with blocks of weir that no record tells.
pub(super) fn changing(root: &Path, edits: Vec<Edit>) -> anyhow::Result<Vec<Edit>> {
    let record = record(root)?.unwrap_or_default();
    let mut changing = Vec::new();
    for edit in edits {
        let now = read(&behind_link(&edit.path)?)?.unwrap_or_default();
        let is_known = record.files.iter().any(|file| file.path == edit.path);
        let is_lost =
            !is_known && !is_json(&edit.path) && block::split(&now).is_ok_and(|(_, own)| !own.is_empty());
        if now != edit.after || is_lost {
            changing.push(edit);
        }
    }
    Ok(changing)
}

/// Makes all edits or none.
///
/// The record is written first, so an interrupted setup can be undone. All new texts are on the disk before the first
/// of them replaces a file.
pub(super) fn commit(root: &Path, listen: &str, edits: &[Edit]) -> anyhow::Result<()> {
    let kept = record_file(root);
    let old = record(root)?;
    let mut record = old.clone().unwrap_or_default();
    listen.clone_into(&mut record.listen);
    if old.is_none() {
        record.made = missing_dirs(&kept);
    }
    let mut changes = Vec::new();
    for edit in edits {
        let target = behind_link(&edit.path)?;
        let before = read(&target)?;
        record.note(edit, before.as_deref(), missing_dirs(&target))?;
        changes.push(Change { edit, target, before });
    }
    let done = (|| {
        make_dirs(&kept)?;
        replace(&kept, &serde_json::to_string_pretty(&record)?)?;
        for change in &changes {
            make_dirs(&change.target)?;
            stage(&change.target, &change.edit.after)?;
        }
        changes.iter().try_for_each(|change| publish(&change.target))
    })();
    let Err(why) = done else { return Ok(()) };
    let restored = changes.iter().try_for_each(|change| restore(&change.target, change.before.as_deref()));
    if let Err(also) = restored {
        return Err(why.context(format!("{also:#}; `weir image undo` restores it")));
    }
    record.files.iter().rev().for_each(|file| remove_dirs(&file.made));
    match old {
        Some(old) => replace(&kept, &serde_json::to_string_pretty(&old)?)?,
        None => {
            let _ = fs::remove_file(staged(&kept));
            let _ = fs::remove_file(&kept);
            remove_dirs(&record.made);
        }
    }
    Err(why.context("nothing was set up"))
}

/// Puts a file back, and removes what was staged for it.
fn restore(target: &Path, before: Option<&str>) -> anyhow::Result<()> {
    let _ = fs::remove_file(staged(target));
    let now = read(target)?;
    match before {
        _ if now.as_deref() == before => Ok(()),
        Some(before) => replace(target, before),
        None => fs::remove_file(target).with_context(|| format!("cannot remove {}", target.display())),
    }
}

impl Record {
    /// Notes an edit of a file that has the text `now`.
    fn note(&mut self, edit: &Edit, now: Option<&str>, made: Vec<PathBuf>) -> anyhow::Result<()> {
        let (path, after) = (edit.path.clone(), edit.after.clone());
        let Some(known) = self.files.iter_mut().find(|file| file.path == path) else {
            // The blocks of a setup without a record are not the operator's.
            let before = match now {
                Some(now) if !is_json(&path) => {
                    let (rest, blocks) = block::split(now).map_err(|why| refuse(&path, why))?;
                    (blocks.is_empty() || !rest.is_empty()).then_some(rest)
                }
                now => now.map(str::to_owned),
            };
            self.files.push(Written { path, before, after, made });
            return Ok(());
        };
        if let Some(now) = now
            && now != known.after
        {
            let before = known.rest(now, &self.listen).map_err(|why| refuse(&path, why))?;
            known.before = (known.before.is_some() || !before.is_empty()).then_some(before);
        }
        known.after = after;
        known.made.extend(made);
        Ok(())
    }
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// The change that takes weir's part out of a file.
#[derive(Debug)]
pub(super) struct Restoration {
    target: PathBuf,
    /// The text to write. `None` removes the file.
    text: Option<String>,
    /// Whether there is something to write or to remove.
    is_due: bool,
    pub(super) said: String,
}

impl Written {
    /// A text that was changed since, without weir's part.
    fn rest(&self, now: &str, listen: &str) -> Result<String, String> {
        if is_json(&self.path) {
            return daemon::take(now, self.before.as_deref(), &self.after, &format!("http://{listen}"));
        }
        block::take(now, &self.after)
    }

    /// The change that undoes it.
    ///
    /// # Errors
    /// Weir's part cannot be told from the rest.
    pub(super) fn restoration(&self, listen: &str) -> anyhow::Result<Restoration> {
        let (path, target) = (self.path.display(), behind_link(&self.path)?);
        let told = |text: Option<String>, is_due: bool, said: String| {
            Ok(Restoration { target: target.clone(), text, is_due, said })
        };
        let now = read(&target)?;
        match now {
            _ if now == self.before => told(None, false, format!("{path} is as it was")),
            None => told(None, false, format!("{path} is gone already")),
            Some(now) if now == self.after => told(self.before.clone(), true, format!("{path} is as it was")),
            Some(now) => {
                let rest = self.rest(&now, listen).map_err(|why| {
                    anyhow::anyhow!(
                        "cannot take weir's part out of {path}: {why}; take it out by hand, and undo again; nothing \
                         was changed"
                    )
                })?;
                let is_empty = rest.trim().is_empty() || (is_json(&self.path) && rest.trim() == "{}");
                if self.before.is_none() && is_empty {
                    return told(None, true, format!("{path} had only weir's part, and is gone"));
                }
                let is_due = rest != now;
                told(Some(rest), is_due, format!("{path} has been changed since: only weir's part is gone"))
            }
        }
    }
}

/// Undoes all that a record tells, and removes the record.
pub(super) fn undo(root: &Path, record: &Record) -> anyhow::Result<Vec<String>> {
    // All refusals come before the first write.
    let restorations: Vec<Restoration> =
        record.files.iter().rev().map(|file| file.restoration(&record.listen)).collect::<Result<_, _>>()?;
    for restoration in &restorations {
        let Restoration { target, text, is_due, .. } = restoration;
        if *is_due {
            restore(target, text.as_deref())?;
        } else {
            let _ = fs::remove_file(staged(target));
        }
    }
    record.files.iter().rev().for_each(|file| remove_dirs(&file.made));
    let kept = record_file(root);
    fs::remove_file(&kept).with_context(|| format!("cannot remove {}", kept.display()))?;
    let _ = fs::remove_file(staged(&kept));
    remove_dirs(&record.made);
    Ok(restorations.into_iter().map(|restoration| restoration.said).collect())
}
