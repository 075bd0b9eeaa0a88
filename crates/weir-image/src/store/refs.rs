//! What is known of repositories: tags, manifests and their types, pins.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Inner, State, Store, StoreError,
    layout::{Layout, io_error, list},
};
use crate::{
    Digest, Image, Reference, Registry, Repository, Source, Tag,
    manifest::{Manifest, Part},
    moment::Moment,
};

/// What a tag was when the registry was last asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagEntry {
    /// The manifest.
    pub digest: Digest,
    /// When the registry said so, milliseconds since 1970.
    pub checked_ms: u64,
}

/// A manifest as it is kept and served.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its name.
    pub digest: Digest,
    /// `Content-Type`, as the registry had it.
    pub media_type: String,
    /// As the registry had them.
    pub bytes: Bytes,
    /// What they say.
    pub manifest: Arc<Manifest>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ManifestEntry {
    media_type: String,
}

/// A repository, as far as it was asked for.
#[derive(Debug, Default)]
pub(super) struct Repo {
    tags: BTreeMap<Tag, TagEntry>,
    manifests: BTreeMap<Digest, ManifestEntry>,
    /// Whoever asks may have it: its registry has given it to one who was nobody.
    is_public: bool,
}

/// An image of the store, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Repository and tag, or digest.
    pub image: String,
    /// Its manifest.
    pub digest: Digest,
    /// `linux/amd64`, …: of an index, the platforms that are here.
    pub platforms: Vec<String>,
    /// Bytes of its blobs that are here; a blob of several images counts in each.
    pub present: u64,
    /// Bytes of all its blobs; of an index, of the platforms that are here.
    pub total: u64,
    /// When a blob of it was last asked for, milliseconds since 1970.
    pub used_ms: u64,
    /// How often its most asked-for blob was.
    pub hits: u64,
    /// Kept by a pin.
    pub pinned: bool,
    /// A container runs from it.
    pub in_use: bool,
}

fn repo_dir(layout: &Layout, source: &Source) -> PathBuf {
    layout.dir("refs").join(source.registry.as_str()).join(source.repository.as_str())
}

fn manifest_file(layout: &Layout, source: &Source, digest: &Digest) -> PathBuf {
    let name = format!("{}-{}", digest.algorithm().name(), digest.hex());
    repo_dir(layout, source).join("_manifests").join(name)
}

fn tag_file(layout: &Layout, source: &Source, tag: &Tag) -> PathBuf {
    repo_dir(layout, source).join("_tags").join(tag.as_str())
}

pub(super) fn load_pins(layout: &Layout) -> Result<Vec<String>, StoreError> {
    let path = layout.dir("pins.json");
    match fs::read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(io_error("read", &path)(e)),
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| io_error("read", &path)(e.into())),
    }
}

/// Reads what is known of all repositories. What cannot be read is as if it were not there: it is
/// asked for again.
pub(super) fn load(layout: &Layout, state: &mut State) -> Result<(), StoreError> {
    for dir in list(&layout.dir("refs"))? {
        let Some(registry) = name_of::<Registry>(&dir) else { continue };
        walk(layout, state, &registry, &dir, &dir)?;
    }
    Ok(())
}

fn name_of<T: std::str::FromStr>(path: &Path) -> Option<T> {
    path.file_name()?.to_str()?.parse().ok()
}

fn walk(
    layout: &Layout,
    state: &mut State,
    registry: &Registry,
    base: &Path,
    dir: &Path,
) -> Result<(), StoreError> {
    let repository =
        dir.strip_prefix(base).ok().and_then(Path::to_str).and_then(|p| p.parse::<Repository>().ok());
    if let Some(repository) = repository {
        read_repo(layout, state, Source { registry: registry.clone(), repository })?;
    }
    for path in list(dir)? {
        let is_component = path.file_name().is_some_and(|n| !n.to_string_lossy().starts_with('_'));
        if is_component && path.is_dir() {
            walk(layout, state, registry, base, &path)?;
        }
    }
    Ok(())
}

/// Reads what is known of a repository, in place of what was known before.
fn read_repo(layout: &Layout, state: &mut State, source: Source) -> Result<(), StoreError> {
    let dir = repo_dir(layout, &source);
    let mut repo = Repo { is_public: dir.join("_public").exists(), ..Repo::default() };
    for path in list(&dir.join("_manifests"))? {
        let digest: Option<Digest> =
            path.file_name().and_then(|n| n.to_str()).and_then(|n| n.replacen('-', ":", 1).parse().ok());
        let entry = fs::read(&path).ok().and_then(|b| serde_json::from_slice::<ManifestEntry>(&b).ok());
        let (Some(digest), Some(entry)) = (digest, entry) else { continue };
        if !state.manifests.contains_key(&digest) {
            let Some(manifest) = read_manifest(layout, &digest) else { continue };
            state.manifests.insert(digest.clone(), Arc::new(manifest));
        }
        if let Some(blob) = state.blobs.get_mut(&digest) {
            blob.is_manifest = true;
            repo.manifests.insert(digest, entry);
        }
    }
    for path in list(&dir.join("_tags"))? {
        let entry = fs::read(&path).ok().and_then(|b| serde_json::from_slice(&b).ok());
        if let (Some(tag), Some(entry)) = (name_of(&path), entry) {
            repo.tags.insert(tag, entry);
        }
    }
    if repo.is_public || !repo.manifests.is_empty() || !repo.tags.is_empty() {
        state.repos.insert(source, repo);
    } else {
        state.repos.remove(&source);
    }
    Ok(())
}

/// A manifest that is what its name says; none if it is not.
fn read_manifest(layout: &Layout, digest: &Digest) -> Option<Manifest> {
    let bytes = fs::read(layout.blob(digest)).ok().filter(|bytes| digest.names(bytes))?;
    Manifest::read(&bytes).ok()
}

/// Whether `pattern`, in which `*` stands for anything, fits all of `text`.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|text| {
            (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| fits(rest, &text[at..]))
        }),
    }
}

impl State {
    /// The manifests of images that a pin names.
    pub(super) fn pinned(&self) -> Vec<Digest> {
        let mut found = Vec::new();
        for (source, repo) in &self.repos {
            for (tag, entry) in &repo.tags {
                let name = format!("{source}:{tag}");
                if self.pins.iter().any(|pin| fits(pin, &name)) {
                    found.push(entry.digest.clone());
                }
            }
            for digest in repo.manifests.keys() {
                let name = format!("{source}@{digest}");
                if self.pins.contains(&name) {
                    found.push(digest.clone());
                }
            }
        }
        found
    }
}

impl Inner {
    /// What is known of a repository, also by what another node has found out a moment ago.
    fn repo<'a>(&self, state: &'a mut State, source: &Source) -> Result<Option<&'a Repo>, StoreError> {
        if state.others.is_some() {
            let dir = repo_dir(&self.layout, source);
            let dirs = [dir.join("_tags"), dir.join("_manifests"), dir];
            if self.has_news(state, &dirs, Moment::now()) {
                for path in list(&dirs[1])? {
                    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
                    if let Ok(digest) = name.replacen('-', ":", 1).parse() {
                        self.knows(state, &digest);
                    }
                }
                read_repo(&self.layout, state, source.clone())?;
            }
        }
        Ok(state.repos.get(source))
    }

    /// Forgets a manifest whose blob is gone.
    pub(super) fn drop_manifest(&self, state: &mut State, digest: &Digest) -> Result<(), StoreError> {
        state.manifests.remove(digest);
        for (source, repo) in &mut state.repos {
            if repo.manifests.remove(digest).is_some() {
                self.layout.discard(&manifest_file(&self.layout, source, digest))?;
            }
        }
        Ok(())
    }
}

impl Store {
    /// What a tag was when it was last asked for.
    #[must_use]
    pub fn tag(&self, source: &Source, tag: &Tag) -> Option<TagEntry> {
        self.inner.repo(&mut self.lock(), source).ok()??.tags.get(tag).cloned()
    }

    /// Notes what a tag is.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn set_tag(
        &self,
        source: &Source,
        tag: &Tag,
        digest: &Digest,
        now: Moment,
    ) -> Result<(), StoreError> {
        let entry = TagEntry { digest: digest.clone(), checked_ms: now.0 };
        let text = serde_json::to_vec(&entry).unwrap_or_default();
        let mut state = self.lock();
        let repo = state.repos.entry(source.clone()).or_default();
        let is_news = repo.tags.get(tag).is_none_or(|before| {
            // When it was asked last is worth a write now and then.
            before.digest != *digest || now.0.saturating_sub(before.checked_ms) > 60_000
        });
        repo.tags.insert(tag.clone(), entry);
        if is_news {
            self.inner.layout.write_whole(&tag_file(&self.inner.layout, source, tag), &text)?;
        }
        Ok(())
    }

    /// Forgets a tag: its registry does not know it any more.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn drop_tag(&self, source: &Source, tag: &Tag) -> Result<(), StoreError> {
        let mut state = self.lock();
        if state.repos.get_mut(source).and_then(|repo| repo.tags.remove(tag)).is_some() {
            self.inner.layout.discard(&tag_file(&self.inner.layout, source, tag))?;
        }
        Ok(())
    }

    /// Keeps a manifest, and that it belongs to this repository.
    ///
    /// # Errors
    /// [`StoreError::Mismatch`] if its digest does not name it, [`StoreError::NoRoom`],
    /// [`StoreError::Io`].
    pub fn put_manifest(
        &self,
        source: &Source,
        stored: &Stored,
        fence: u64,
        now: Moment,
    ) -> Result<(), StoreError> {
        let digest = &stored.digest;
        self.put(digest, &stored.bytes, fence, now)?;
        let mut state = self.lock();
        if let Some(blob) = state.blobs.get_mut(digest) {
            blob.is_manifest = true;
        }
        state.manifests.insert(digest.clone(), Arc::clone(&stored.manifest));
        let entry = ManifestEntry { media_type: stored.media_type.clone() };
        let text = serde_json::to_vec(&entry).unwrap_or_default();
        state.repos.entry(source.clone()).or_default().manifests.insert(digest.clone(), entry);
        self.inner.layout.write_whole(&manifest_file(&self.inner.layout, source, digest), &text)
    }

    /// A manifest of this repository, if it is here.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn manifest(
        &self,
        source: &Source,
        digest: &Digest,
        now: Moment,
    ) -> Result<Option<Stored>, StoreError> {
        let known = {
            let mut state = self.lock();
            let entry = self.inner.repo(&mut state, source)?.and_then(|repo| repo.manifests.get(digest));
            entry.map(|e| e.media_type.clone()).zip(state.manifests.get(digest).cloned())
        };
        let Some((media_type, manifest)) = known else { return Ok(None) };
        let Some(opened) = self.open_blob(digest, now)? else { return Ok(None) };
        let path = self.inner.layout.blob(digest);
        // Another node may have taken its name away since.
        let Ok(bytes) = fs::read(&path) else { return Ok(None) };
        if !opened.is_verified() && !digest.names(&bytes) {
            self.quarantine(digest, opened.file())?;
            return Ok(None);
        }
        Ok(Some(Stored { digest: digest.clone(), media_type, bytes: bytes.into(), manifest }))
    }

    /// Whether a blob belongs to an image of this repository, and its size.
    #[must_use]
    pub fn part_of(&self, source: &Source, digest: &Digest) -> Option<Part> {
        let mut state = self.lock();
        self.inner.repo(&mut state, source).ok()??;
        let repo = state.repos.get(source)?;
        let mut manifests = repo.manifests.keys().filter_map(|m| state.manifests.get(m));
        manifests.find_map(|m| m.parts().find(|part| part.digest == *digest).cloned())
    }

    /// Whether anyone may have what is in this repository.
    #[must_use]
    pub fn is_public(&self, source: &Source) -> bool {
        self.inner.repo(&mut self.lock(), source).ok().flatten().is_some_and(|repo| repo.is_public)
    }

    /// Notes whether its registry gives this repository to anyone.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn set_public(&self, source: &Source, is_public: bool) -> Result<(), StoreError> {
        let mut state = self.lock();
        if !is_public && !state.repos.contains_key(source) {
            return Ok(());
        }
        let repo = state.repos.entry(source.clone()).or_default();
        if repo.is_public == is_public {
            return Ok(());
        }
        repo.is_public = is_public;
        let file = repo_dir(&self.inner.layout, source).join("_public");
        if is_public { self.inner.layout.write_whole(&file, b"") } else { self.inner.layout.discard(&file) }
    }

    /// The images that are here, by name.
    #[must_use]
    pub fn images(&self) -> Vec<Listed> {
        let mut state = self.lock();
        if let Err(e) = self.inner.reload(&mut state, Moment::now()) {
            tracing::warn!("{e}");
        }
        let pinned: BTreeSet<Digest> = state.pinned().into_iter().collect();
        let mut listed = Vec::new();
        for (source, repo) in &state.repos {
            let mut named = BTreeSet::new();
            for (tag, entry) in &repo.tags {
                named.insert(&entry.digest);
                let is_pinned = pinned.contains(&entry.digest);
                listed.extend(state.listed(format!("{source}:{tag}"), &entry.digest, is_pinned));
            }
            for digest in repo.manifests.keys() {
                let in_index = |index: &&Digest| {
                    let of = state.manifests.get(*index);
                    of.is_some_and(|m| m.parts().any(|part| part.digest == *digest))
                };
                if !named.contains(digest) && !repo.manifests.keys().any(|index| in_index(&index)) {
                    let is_pinned = pinned.contains(digest);
                    listed.extend(state.listed(format!("{source}@{digest}"), digest, is_pinned));
                }
            }
        }
        listed
    }

    /// The patterns of images that stay.
    #[must_use]
    pub fn pins(&self) -> Vec<String> {
        self.lock().pins.clone()
    }

    /// Has images stay (`*` stands for anything: `ghcr.io/acme/*:prod`), or not any longer. Answers
    /// whether that is a change.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn pin(&self, pattern: &str, stays: bool) -> Result<bool, StoreError> {
        let mut state = self.lock();
        if state.others.is_some() {
            state.pins = load_pins(&self.inner.layout)?;
        }
        if state.pins.iter().any(|p| p == pattern) == stays {
            return Ok(false);
        }
        if stays {
            state.pins.push(pattern.to_owned());
        } else {
            state.pins.retain(|p| p != pattern);
        }
        let text = serde_json::to_vec_pretty(&state.pins).unwrap_or_default();
        self.inner.layout.write_whole(&self.inner.layout.dir("pins.json"), &text)?;
        Ok(true)
    }

    /// Removes an image: its name, and its blobs that no other image has, unless containers, pins or
    /// transfers need them. Answers the bytes freed; `None` if there is no such image.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn remove(&self, image: &Image) -> Result<Option<u64>, StoreError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(repo) = state.repos.get_mut(&image.source) else { return Ok(None) };
        let layout = &self.inner.layout;
        let digest = match &image.reference {
            Reference::Tag(tag) => {
                let Some(entry) = repo.tags.remove(tag) else { return Ok(None) };
                layout.discard(&tag_file(layout, &image.source, tag))?;
                entry.digest
            }
            Reference::Digest(digest) if repo.manifests.contains_key(digest) => digest.clone(),
            Reference::Digest(_) => return Ok(None),
        };
        // What the names that remain need.
        let mut gone = vec![digest];
        let mut at = 0;
        while let Some(manifest) = gone.get(at).and_then(|d| state.manifests.get(d)) {
            gone.extend(
                manifest.parts().filter(|p| state.blobs.contains_key(&p.digest)).map(|p| p.digest.clone()),
            );
            at += 1;
            while at < gone.len() && !state.manifests.contains_key(&gone[at]) {
                at += 1;
            }
        }
        let mut kept = state.protected();
        let mut roots: Vec<Digest> =
            state.repos.values().flat_map(|r| r.tags.values()).map(|t| t.digest.clone()).collect();
        roots.extend(state.manifests.keys().filter(|m| !gone.contains(m)).cloned());
        while let Some(digest) = roots.pop() {
            if kept.insert(digest.clone())
                && let Some(manifest) = state.manifests.get(&digest)
            {
                roots.extend(manifest.parts().map(|part| part.digest.clone()));
            }
        }
        let mut freed = 0;
        for digest in gone.into_iter().collect::<BTreeSet<_>>() {
            let is_sent = |b: &super::Blob| Arc::strong_count(&b.readers) > 1;
            let Some(blob) = state.blobs.get(&digest) else { continue };
            if kept.contains(&digest) || is_sent(blob) {
                continue;
            }
            freed += blob.size;
            self.inner.throw(state, &digest, Moment::now())?;
            state.forget(&digest);
            self.inner.drop_manifest(state, &digest)?;
        }
        Ok(Some(freed))
    }
}

impl State {
    fn listed(&self, image: String, digest: &Digest, pinned: bool) -> Option<Listed> {
        let manifest = self.manifests.get(digest)?;
        let mut platforms = Vec::new();
        let mut images = vec![(digest, manifest)];
        if let Manifest::Index(children) = &**manifest {
            for child in children {
                if let Some(of) = self.manifests.get(&child.part.digest) {
                    platforms.push(child.platform.clone());
                    images.push((&child.part.digest, of));
                }
            }
        }
        let mut seen = BTreeMap::new();
        let mut in_use = false;
        for (digest, manifest) in images {
            in_use |= self.in_use.contains(digest);
            seen.insert(digest, self.blobs.get(digest).map_or(0, |b| b.size));
            if let Manifest::Image { config, layers } = &**manifest {
                in_use |= self.in_use.contains(&config.digest);
                seen.extend(layers.iter().chain([config]).map(|part| (&part.digest, part.size)));
            }
        }
        let here = || seen.keys().filter_map(|digest| self.blobs.get(*digest));
        Some(Listed {
            image,
            digest: digest.clone(),
            platforms,
            present: here().map(|b| b.size).sum(),
            total: seen.values().sum(),
            used_ms: here().map(|b| b.used_at.0).max().unwrap_or(0),
            hits: here().map(|b| b.hits).max().unwrap_or(0),
            pinned,
            in_use,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_anything() {
        assert!(fits("ghcr.io/acme/*:prod", "ghcr.io/acme/a/b:prod"));
        assert!(fits("*", "anything") && fits("a*", "a") && fits("*b*", "abc"));
        assert!(!fits("ghcr.io/acme/*:prod", "ghcr.io/acme/a:test"));
        assert!(!fits("a", "ab") && !fits("", "a"));
    }
}
