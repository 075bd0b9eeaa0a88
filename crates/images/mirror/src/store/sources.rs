//! Sources: the names under which a blob may be served.
//!
//! A repository has a blob once its registry has delivered all bytes of it, or a peer says that this was so.
//! Less proves nothing. A `HEAD` and a manifest are the registry's word. A comparison of some bytes with
//! those in the store would tell a registry that guesses whether it guessed right.

use std::{fs, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{Inner, Opened, State, Store, StoreError};
use crate::{Digest, Source, Utc};

/// The most bytes of names that are remembered of one blob, so that its file takes one block of a disk. A source
/// that does not fit any more, the oldest, has to deliver the blob again.
const MAX_TEXT: usize = 3900;

/// The sources that have delivered a blob: the file `sources/sha256-…`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sources {
    /// A registry has given the blob to one who showed no credentials. It is served under any name.
    #[serde(default)]
    is_public: bool,
    /// `registry/repository`, oldest first.
    #[serde(default)]
    proved: Vec<String>,
}

impl Sources {
    fn allow(&self, source: &Source) -> bool {
        self.is_public || self.proved.contains(&source.to_string())
    }

    /// Answers whether that is a change.
    fn add(&mut self, source: &Source, is_public: bool) -> bool {
        if self.is_public || (!is_public && self.allow(source)) {
            return false;
        }
        if is_public {
            *self = Sources { is_public, proved: Vec::new() };
            return true;
        }
        self.proved.push(source.to_string());
        while self.proved.len() > 1 && self.text() > MAX_TEXT {
            self.proved.remove(0);
        }
        true
    }

    /// Bytes of all names, each with its quotes and a comma.
    fn text(&self) -> usize {
        self.proved.iter().map(|name| name.len() + 3).sum()
    }
}

impl Inner {
    fn sources_file(&self, digest: &Digest) -> PathBuf {
        self.layout.dir("sources").join(format!("{}-{}", digest.algorithm().name(), digest.hex()))
    }

    /// The sources of a blob that are known; a file that cannot be read says nothing.
    fn read_sources(&self, digest: &Digest) -> Sources {
        let read = fs::read(self.sources_file(digest)).ok();
        read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Whether a blob is here, with sources that are enough. A manifest is no blob.
    fn has_sources(&self, state: &mut State, digest: &Digest, enough: impl Fn(&Sources) -> bool) -> bool {
        if !self.knows(state, digest) {
            return false;
        }
        let Some(blob) = state.blobs.get_mut(digest).filter(|blob| !blob.is_manifest) else { return false };
        let is_known = blob.sources.as_ref().is_some_and(&enough);
        if !is_known && (blob.sources.is_none() || self.layout.is_shared()) {
            // Another node may have noted it since.
            blob.sources = Some(self.read_sources(digest));
        }
        blob.sources.as_ref().is_some_and(enough)
    }

    /// Forgets the sources of a blob that is gone. A file that is left behind is true all the same.
    pub(super) fn drop_sources(&self, digest: &Digest) {
        let _ = fs::remove_file(self.sources_file(digest));
    }

    /// Forgets the sources of all blobs that are gone.
    pub(super) fn sweep_sources(&self, state: &State) -> Result<(), StoreError> {
        if self.layout.is_shared() {
            return Ok(());
        }
        for path in super::layout::list(&self.layout.dir("sources"))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let digest: Option<Digest> = name.replacen('-', ":", 1).parse().ok();
            if digest.is_none_or(|digest| !state.blobs.contains_key(&digest)) {
                self.layout.discard(&path)?;
            }
        }
        Ok(())
    }
}

impl Store {
    /// Whether a blob is here and may be served under this name.
    #[must_use]
    pub(crate) fn is_proved(&self, source: &Source, digest: &Digest) -> bool {
        self.inner.has_sources(&mut self.lock(), digest, |sources| sources.allow(source))
    }

    /// As [`Store::open_blob`], of a blob that may be served under this name.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn open_proved(
        &self,
        source: &Source,
        digest: &Digest,
        now: Utc,
    ) -> Result<Option<Opened>, StoreError> {
        if self.is_proved(source, digest) { self.open_blob(digest, now) } else { Ok(None) }
    }

    /// Notes that this source has delivered all bytes of a blob. Nothing is noted of a blob that is not here.
    ///
    /// * `is_public`: whether its registry gave them to one who showed no credentials.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(crate) fn prove(&self, source: &Source, digest: &Digest, is_public: bool) -> Result<(), StoreError> {
        let mut state = self.lock();
        if !self.inner.knows(&mut state, digest) {
            return Ok(());
        }
        let Some(blob) = state.blobs.get_mut(digest).filter(|blob| !blob.is_manifest) else { return Ok(()) };
        let mut sources = match &blob.sources {
            Some(sources) if !self.inner.layout.is_shared() => sources.clone(),
            _ => self.inner.read_sources(digest),
        };
        let is_news = sources.add(source, is_public);
        blob.sources = Some(sources.clone());
        if !is_news {
            return Ok(());
        }
        // Lost in a crash, the source delivers the blob again.
        let text = serde_json::to_vec(&sources).unwrap_or_default();
        self.inner.layout.write_soon(&self.inner.sources_file(digest), &text)
    }

    /// Whether a blob is here that may be served under any name.
    pub(crate) fn is_for_all(&self, digest: &Digest) -> bool {
        self.inner.has_sources(&mut self.lock(), digest, |sources| sources.is_public)
    }

    /// The source that delivered a blob first, of those that are known.
    pub(crate) fn first_source(&self, digest: &Digest) -> Option<Source> {
        let is_here = self.has(digest);
        let sources = is_here.then(|| self.inner.read_sources(digest))?;
        let (registry, repository) = sources.proved.first()?.split_once('/')?;
        Some(Source { registry: registry.parse().ok()?, repository: repository.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: usize) -> Source {
        format!("ghcr.io/acme/app{n}").parse::<crate::Image>().unwrap().source
    }

    #[test]
    fn sources_of_one_blob_are_bounded_and_public_is_all() {
        let mut sources = Sources::default();
        assert!(!sources.allow(&source(0)));
        for n in 0..1000 {
            assert!(sources.add(&source(n), false) && !sources.add(&source(n), false));
        }
        assert!(
            (100..200).contains(&sources.proved.len()) && serde_json::to_vec(&sources).unwrap().len() <= 4096
        );
        assert!(sources.allow(&source(999)) && !sources.allow(&source(0)));
        assert!(sources.add(&source(0), true) && sources.proved.is_empty() && sources.allow(&source(9)));
    }
}
