//! Records of repositories: tags, manifests and their types, pins.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    fs,
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Inner, State, Store, StoreError,
    layout::{Layout, MAX_PIN, MAX_PINS, io_error},
};
use crate::{
    Digest, Image, Reference, Source, Tag, Utc,
    manifest::{Manifest, Part},
    now_utc,
};

/// The extent of what is known of repositories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// Of files and directories.
    pub(super) bytes: u64,
    /// Tags and manifests.
    pub(super) names: usize,
}

/// The tag when the registry was last asked.
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
    /// Their contents.
    pub manifest: Arc<Manifest>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ManifestEntry {
    media_type: String,
}

/// A part of a repository that another node may have written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Looked<'a> {
    Tag(&'a Tag),
    Manifest(&'a Digest),
    /// The mark that anyone may have the repository.
    Public,
    /// All manifests of which this node has not heard.
    Manifests,
}

/// A repository, as far as it was asked for.
#[derive(Debug, Default)]
pub(super) struct Repo {
    pub(super) tags: BTreeMap<Tag, TagEntry>,
    pub(super) manifests: BTreeMap<Digest, ManifestEntry>,
    /// Every client may have it: its registry has given it to an anonymous one.
    pub(super) is_public: bool,
    pub(super) used_at: Utc,
    /// As it was counted last.
    pub(super) extent: Extent,
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

pub(super) fn repo_dir(layout: &Layout, source: &Source) -> PathBuf {
    layout.dir("refs").join(source.registry.as_str()).join(source.repository.as_str())
}

pub(super) fn manifest_file(layout: &Layout, source: &Source, digest: &Digest) -> PathBuf {
    let name = format!("{}-{}", digest.algorithm().name(), digest.hex());
    repo_dir(layout, source).join("_manifests").join(name)
}

pub(super) fn tag_file(layout: &Layout, source: &Source, tag: &Tag) -> PathBuf {
    repo_dir(layout, source).join("_tags").join(tag.as_str())
}

pub(super) fn load_pins(layout: &Layout) -> Result<Vec<String>, StoreError> {
    let path = layout.dir("pins.json");
    match fs::read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(io_error("read", &path)(e)),
        Ok(bytes) => {
            let mut pins: Vec<String> =
                serde_json::from_slice(&bytes).map_err(|e| io_error("read", &path)(e.into()))?;
            pins.retain(|pin| pin.len() <= MAX_PIN);
            pins.truncate(MAX_PINS);
            Ok(pins)
        }
    }
}

impl State {
    /// The manifests of images that a pin names.
    pub(super) fn pinned(&self) -> Vec<Digest> {
        self.repos.iter().flat_map(|(source, repo)| self.pinned_in(source, repo)).cloned().collect()
    }

    fn pinned_in<'a>(&'a self, source: &'a Source, repo: &'a Repo) -> impl Iterator<Item = &'a Digest> {
        let is_named = |name: &str| self.pins.iter().any(|pin| crate::pattern::fits(pin, name));
        let tags = repo.tags.iter().filter(move |(tag, _)| is_named(&format!("{source}:{tag}")));
        let is_exact = move |digest: &&Digest| self.pins.contains(&format!("{source}@{digest}"));
        tags.map(|(_, entry)| &entry.digest).chain(repo.manifests.keys().filter(is_exact))
    }

    /// Whether a pin names something of this repository.
    pub(super) fn is_pinned(&self, source: &Source, repo: &Repo) -> bool {
        !self.pins.is_empty() && self.pinned_in(source, repo).next().is_some()
    }
}

impl Inner {
    /// Forgets a manifest whose blob is gone.
    pub(super) fn drop_manifest(&self, state: &mut State, digest: &Digest) -> Result<(), StoreError> {
        state.manifests.remove(digest);
        self.drop_manifests(state, &HashSet::from([digest.clone()]))
    }

    /// Forgets in which repositories these manifests are.
    pub(super) fn drop_manifests(&self, state: &mut State, gone: &HashSet<Digest>) -> Result<(), StoreError> {
        let mut changed = Vec::new();
        for (source, repo) in &mut state.repos {
            let of_repo: Vec<Digest> = if gone.len() < repo.manifests.len() {
                gone.iter().filter(|digest| repo.manifests.contains_key(*digest)).cloned().collect()
            } else {
                repo.manifests.keys().filter(|digest| gone.contains(*digest)).cloned().collect()
            };
            for digest in &of_repo {
                repo.manifests.remove(digest);
                self.layout.discard(&manifest_file(&self.layout, source, digest))?;
            }
            if !of_repo.is_empty() {
                changed.push(source.clone());
            }
        }
        changed.iter().for_each(|source| state.recount(source));
        Ok(())
    }
}

impl Store {
    /// The tag when a client last asked for it.
    #[must_use]
    pub fn tag(&self, source: &Source, tag: &Tag) -> Option<TagEntry> {
        let mut state = self.lock();
        self.inner.look_at(&mut state, source, Looked::Tag(tag)).ok()?;
        self.inner.repo(&mut state, source)?.tags.get(tag).cloned()
    }

    /// Notes what a tag is.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn set_tag(&self, source: &Source, tag: &Tag, digest: &Digest, now: Utc) -> Result<(), StoreError> {
        let entry = TagEntry { digest: digest.clone(), checked_ms: now.unix_millis() };
        let text = serde_json::to_vec(&entry).unwrap_or_default();
        let mut state = self.lock();
        let repo = state.repos.entry(source.clone()).or_default();
        let is_news = repo.tags.get(tag).is_none_or(|before| {
            // When it was asked last is worth a write now and then.
            before.digest != *digest || now.unix_millis().saturating_sub(before.checked_ms) > 60_000
        });
        repo.tags.insert(tag.clone(), entry);
        repo.used_at = now;
        state.recount(source);
        if is_news {
            self.inner.layout.write_whole(&tag_file(&self.inner.layout, source, tag), &text)?;
            self.inner.bound_refs(&mut state, now)?;
        }
        Ok(())
    }

    /// Forgets a tag: its registry does not know it any more.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn drop_tag(&self, source: &Source, tag: &Tag) -> Result<(), StoreError> {
        let mut state = self.lock();
        if state.repos.get_mut(source).and_then(|repo| repo.tags.remove(tag)).is_some() {
            state.recount(source);
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
        now: Utc,
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
        let repo = state.repos.entry(source.clone()).or_default();
        repo.manifests.insert(digest.clone(), entry);
        repo.used_at = now;
        state.recount(source);
        self.inner.layout.write_whole(&manifest_file(&self.inner.layout, source, digest), &text)?;
        self.inner.bound_refs(&mut state, now)
    }

    /// A manifest of this repository, if it is here.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn manifest(&self, source: &Source, digest: &Digest, now: Utc) -> Result<Option<Stored>, StoreError> {
        let known = {
            let mut state = self.lock();
            self.inner.look_at(&mut state, source, Looked::Manifest(digest))?;
            let entry = self.inner.repo(&mut state, source).and_then(|repo| repo.manifests.get(digest));
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
        self.inner.repo(&mut state, source);
        let find = |state: &State| state.manifests.part_in(digest, &state.repos.get(source)?.manifests);
        if let Some(part) = find(&state) {
            return Some(part);
        }
        // Another node may have served its manifest.
        self.inner.look_at(&mut state, source, Looked::Manifests).ok()?;
        find(&state)
    }

    /// Whether anyone may have what is in this repository.
    #[must_use]
    pub fn is_public(&self, source: &Source) -> bool {
        let mut state = self.lock();
        let looked = self.inner.look_at(&mut state, source, Looked::Public);
        looked.is_ok() && self.inner.repo(&mut state, source).is_some_and(|repo| repo.is_public)
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
        (repo.is_public, repo.used_at) = (is_public, now_utc());
        state.recount(source);
        let file = repo_dir(&self.inner.layout, source).join("_public");
        if !is_public {
            return self.inner.layout.discard(&file);
        }
        self.inner.layout.write_whole(&file, b"")?;
        self.inner.bound_refs(&mut state, now_utc())
    }

    /// The images that are here, by name.
    #[must_use]
    pub fn images(&self) -> Vec<Listed> {
        let mut state = self.lock();
        if let Err(e) = self.inner.reload(&mut state, now_utc()) {
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
                let is_in_index = state.manifests.part_in(digest, &repo.manifests).is_some();
                if !named.contains(digest) && !is_in_index {
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
        if stays && (pattern.len() > MAX_PIN || state.pins.len() >= MAX_PINS) {
            return Err(StoreError::Pins { pins: state.pins.len(), length: pattern.len() });
        }
        let mut pins = state.pins.clone();
        if stays {
            pins.push(pattern.to_owned());
        } else {
            pins.retain(|p| p != pattern);
        }
        let text = serde_json::to_vec_pretty(&pins).unwrap_or_default();
        // A change that is refused is not in force either.
        self.inner.layout.write_whole(&self.inner.layout.dir("pins.json"), &text)?;
        state.pins = pins;
        Ok(true)
    }

    /// Removes an image: its name, and its blobs that no other image has, unless containers, pins or
    /// transfers need them. Answers the bytes freed; `None` if there is no such image.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn remove(&self, image: &Image) -> Result<Option<u64>, StoreError> {
        self.remove_from(&mut self.lock(), image)
    }

    /// As [`Store::remove`], of an image that no pin names.
    ///
    /// # Errors
    /// [`StoreError::Pinned`], [`StoreError::Io`].
    pub fn remove_unpinned(&self, image: &Image) -> Result<Option<u64>, StoreError> {
        let mut state = self.lock();
        if state.others.is_some() {
            state.pins = load_pins(&self.inner.layout)?;
        }
        let repo = state.repos.get(&image.source);
        let digest = repo.and_then(|repo| match &image.reference {
            Reference::Tag(tag) => repo.tags.get(tag).map(|entry| &entry.digest),
            Reference::Digest(digest) => Some(digest),
        });
        if digest.is_some_and(|digest| state.pinned().contains(digest)) {
            return Err(StoreError::Pinned(image.to_string()));
        }
        self.remove_from(&mut state, image)
    }

    fn remove_from(&self, state: &mut State, image: &Image) -> Result<Option<u64>, StoreError> {
        let Some(repo) = state.repos.get_mut(&image.source) else { return Ok(None) };
        let layout = &self.inner.layout;
        let digest = match &image.reference {
            Reference::Tag(tag) => {
                let Some(entry) = repo.tags.remove(tag) else { return Ok(None) };
                layout.discard(&tag_file(layout, &image.source, tag))?;
                state.recount(&image.source);
                entry.digest
            }
            Reference::Digest(digest) if repo.manifests.contains_key(digest) => digest.clone(),
            Reference::Digest(_) => return Ok(None),
        };
        // The blobs that the remaining names need.
        let (mut gone, mut rest) = (BTreeSet::from([digest.clone()]), vec![digest]);
        while let Some(digest) = rest.pop() {
            let Some(manifest) = state.manifests.get(&digest) else { continue };
            // An index may name one part a thousand times, and that part the next.
            let parts = manifest.parts().filter(|part| state.blobs.contains_key(&part.digest));
            rest.extend(
                parts.filter(|part| gone.insert(part.digest.clone())).map(|part| part.digest.clone()),
            );
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
        for digest in gone {
            let is_sent = |b: &super::Blob| Arc::strong_count(&b.readers) > 1;
            let Some(blob) = state.blobs.get(&digest) else { continue };
            if kept.contains(&digest) || is_sent(blob) {
                continue;
            }
            freed += blob.size;
            self.inner.move_to_trash(state, &digest, now_utc())?;
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
        let mut images = VecDeque::from([(digest, manifest)]);
        let mut seen = BTreeMap::new();
        let mut in_use = false;
        while let Some((digest, manifest)) = images.pop_front() {
            in_use |= self.in_use.contains(digest);
            // An index may name one twice.
            if seen.insert(digest, self.blobs.get(digest).map_or(0, |b| b.size)).is_some() {
                continue;
            }
            match &**manifest {
                Manifest::Index(children) => {
                    for child in children {
                        let Some(of) = self.manifests.get(&child.part.digest) else { continue };
                        if !child.platform.is_empty() || matches!(&**of, Manifest::Image { .. }) {
                            platforms.push(child.platform.clone());
                        }
                        images.push_back((&child.part.digest, of));
                    }
                }
                Manifest::Image { config, layers } => {
                    in_use |= self.in_use.contains(&config.digest);
                    seen.extend(layers.iter().chain([config]).map(|part| (&part.digest, part.size)));
                }
            }
        }
        let here = || seen.keys().filter_map(|digest| self.blobs.get(*digest));
        Some(Listed {
            image,
            digest: digest.clone(),
            platforms,
            present: here().map(|b| b.size).sum(),
            total: seen.values().sum(),
            used_ms: here().map(|b| b.used_at.unix_millis()).max().unwrap_or(0),
            hits: here().map(|b| b.hits).max().unwrap_or(0),
            pinned,
            in_use,
        })
    }
}
