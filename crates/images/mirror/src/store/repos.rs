//! Reads what is known of repositories: all of it at the start, and what other nodes have written since.

use std::{fs, path::Path, sync::Arc};

use super::{
    Inner, State, StoreError,
    index::MAX_WEIGHT,
    layout::{Layout, list},
    refs::{Looked, ManifestEntry, Repo, TagEntry, manifest_file, repo_dir, tag_file},
};
use crate::{Digest, Registry, Repository, Source, Tag, Utc, manifest::Manifest, now_utc};

fn name_of<T: std::str::FromStr>(path: &Path) -> Option<T> {
    path.file_name()?.to_str()?.parse().ok()
}

impl Inner {
    /// Reads what is known of all repositories. An unreadable file counts as absent: its content is asked for
    /// again.
    pub(super) fn load(&self, state: &mut State, now: Utc) -> Result<(), StoreError> {
        for dir in list(&self.layout.dir("refs"))? {
            let Some(registry) = name_of::<Registry>(&dir) else { continue };
            self.walk(state, &registry, &dir, &dir, now)?;
        }
        Ok(())
    }

    fn walk(
        &self,
        state: &mut State,
        registry: &Registry,
        base: &Path,
        dir: &Path,
        now: Utc,
    ) -> Result<(), StoreError> {
        let repository =
            dir.strip_prefix(base).ok().and_then(Path::to_str).and_then(|p| p.parse::<Repository>().ok());
        if let Some(repository) = repository {
            self.read_repo(state, Source { registry: registry.clone(), repository }, now)?;
            self.bound_refs(state, now)?;
        }
        for path in list(dir)? {
            let is_component = path.file_name().is_some_and(|n| !n.to_string_lossy().starts_with('_'));
            if is_component && path.is_dir() {
                self.walk(state, registry, base, &path, now)?;
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Reads what is known of a repository. Where nodes share the directory, only what has changed is read: a
    /// repository of a thousand images has thousands of files.
    fn read_repo(&self, state: &mut State, source: Source, now: Utc) -> Result<(), StoreError> {
        let dir = repo_dir(&self.layout, &source);
        let (manifests, tags) = (dir.join("_manifests"), dir.join("_tags"));
        let changed = |dir: &Path| fs::metadata(dir).and_then(|meta| meta.modified()).map(Utc::from).ok();
        let used_at = [&manifests, &tags, &dir].into_iter().filter_map(|dir| changed(dir)).max();
        let has_news = [&manifests, &tags].map(|dir| self.has_news(state, dir, now));
        let named = if has_news[0] { Some(list(&manifests)?) } else { None };
        let tagged = if has_news[1] { Some(list(&tags)?) } else { None };
        let mut repo = state.take_repo(&source).unwrap_or_default();
        repo.used_at = repo.used_at.max(used_at.unwrap_or_default());
        repo.is_public = dir.join("_public").exists();
        if let Some(paths) = named {
            let mut known = std::mem::take(&mut repo.manifests);
            for path in paths {
                let digest: Option<Digest> = path
                    .file_name()
                    .and_then(|n| n.to_str())
                    .and_then(|n| n.replacen('-', ":", 1).parse().ok());
                let Some(digest) = digest else { continue };
                // A manifest's file says the same at any time.
                let entry = known.remove(&digest);
                if let Some(entry) = self.read_entry(state, &path, &digest, entry) {
                    repo.manifests.insert(digest, entry);
                }
            }
        }
        repo.manifests.retain(|digest, _| state.blobs.contains_key(digest));
        if let Some(paths) = tagged {
            let mut known = std::mem::take(&mut repo.tags);
            for path in paths {
                let Some(tag) = name_of::<Tag>(&path) else { continue };
                if let Some(entry) = read_tag(&path, known.remove(&tag)) {
                    repo.tags.insert(tag, entry);
                }
            }
        }
        if repo.is_public || !repo.manifests.is_empty() || !repo.tags.is_empty() {
            state.repos.insert(source.clone(), repo);
            state.recount(&source);
        }
        Ok(())
    }

    /// Takes a manifest into the index. None: it is not here, or there is no place for it.
    ///
    /// * `known`: its file, if that was read before.
    fn read_entry(
        &self,
        state: &mut State,
        path: &Path,
        digest: &Digest,
        known: Option<ManifestEntry>,
    ) -> Option<ManifestEntry> {
        let read = || fs::read(path).ok().and_then(|b| serde_json::from_slice::<ManifestEntry>(&b).ok());
        let entry = known.or_else(read).filter(|_| self.knows(state, digest))?;
        if !state.manifests.contains_key(digest) {
            if state.manifests.weight() > MAX_WEIGHT {
                // There is no place for more of one repository.
                if let Err(e) = self.layout.discard(path) {
                    tracing::warn!("{}", weir_units::chain(&e));
                }
                return None;
            }
            state.manifests.insert(digest.clone(), Arc::new(read_manifest(&self.layout, digest)?));
        }
        state.blobs.get_mut(digest)?.is_manifest = true;
        Some(entry)
    }

    /// The record of a repository, which is used now.
    pub(super) fn repo<'a>(&self, state: &'a mut State, source: &Source) -> Option<&'a Repo> {
        let repo = state.repos.get_mut(source)?;
        repo.used_at = now_utc();
        Some(repo)
    }

    /// Looks at one file or directory of a repository that another node of a shared directory may have written.
    /// Each request comes here, so it never looks at all of the repository.
    pub(super) fn look_at(
        &self,
        state: &mut State,
        source: &Source,
        what: Looked<'_>,
    ) -> Result<(), StoreError> {
        if state.others.is_none() {
            return Ok(());
        }
        let known = state.repos.get(source);
        match what {
            Looked::Tag(tag) => {
                let before = known.and_then(|repo| repo.tags.get(tag).cloned());
                let now = read_tag(&tag_file(&self.layout, source, tag), before.clone());
                if now == before {
                    return Ok(());
                }
                let repo = state.repos.entry(source.clone()).or_default();
                match now {
                    Some(entry) => drop(repo.tags.insert(tag.clone(), entry)),
                    None => drop(repo.tags.remove(tag)),
                }
            }
            Looked::Manifest(digest) => {
                if known.is_some_and(|repo| repo.manifests.contains_key(digest)) {
                    return Ok(());
                }
                let path = manifest_file(&self.layout, source, digest);
                let Some(entry) = self.read_entry(state, &path, digest, None) else { return Ok(()) };
                state.repos.entry(source.clone()).or_default().manifests.insert(digest.clone(), entry);
            }
            Looked::Public => {
                let is_public = repo_dir(&self.layout, source).join("_public").exists();
                if known.is_some_and(|repo| repo.is_public) == is_public {
                    return Ok(());
                }
                state.repos.entry(source.clone()).or_default().is_public = is_public;
            }
            Looked::Manifests => return self.read_repo(state, source.clone(), now_utc()),
        }
        state.recount(source);
        Ok(())
    }
}

/// A tag as its file has it; none if that is not there or cannot be read.
///
/// * `known`: what this node knew of it, which may have been asked for again later than it was written.
fn read_tag(path: &Path, known: Option<TagEntry>) -> Option<TagEntry> {
    let entry: TagEntry = fs::read(path).ok().and_then(|b| serde_json::from_slice(&b).ok())?;
    Some(match known {
        Some(known) if known.digest == entry.digest && known.checked_ms > entry.checked_ms => known,
        _ => entry,
    })
}

/// A manifest that is what its name says; none if it is not.
fn read_manifest(layout: &Layout, digest: &Digest) -> Option<Manifest> {
    let bytes = fs::read(layout.blob(digest)).ok().filter(|bytes| digest.names(bytes))?;
    Manifest::read(&bytes).ok()
}
