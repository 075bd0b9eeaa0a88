//! Bounds on what is known of repositories: names come from clients, and contents from registries.
//!
//! Each file of `refs` takes a block and an inode, whatever it says. They count in the budget, and together
//! take at most an eighth of it. The repository that was not asked for for longest leaves first.

use std::{collections::HashSet, fs, sync::Arc};

use super::{
    Inner, State, StoreError,
    index::MAX_WEIGHT,
    refs::{Extent, Repo, repo_dir},
};
use crate::{Digest, Source, Utc};

/// The least that a file or a directory takes, bytes.
const BLOCK: u64 = 4096;
/// The most repositories that are known.
const MAX_REPOS: usize = 4096;
/// The most tags and manifests of all repositories together.
const MAX_NAMES: usize = 16_384;
/// The part of the budget that `refs` may take.
const SHARE: u64 = 8;

/// The room that a file takes, bytes.
pub(super) fn on_disk(size: u64) -> u64 {
    size.div_ceil(BLOCK).saturating_mul(BLOCK)
}

impl Extent {
    pub(super) fn of(repo: &Repo, source: &Source) -> Extent {
        let names = repo.tags.len() + repo.manifests.len();
        // The registry's directory, those of the repository's name, and its two of tags and manifests.
        let dirs = source.repository.as_str().split('/').count() + 3;
        let files = names + usize::from(repo.is_public) + dirs;
        Extent { bytes: files as u64 * BLOCK, names }
    }
}

impl State {
    /// Counts a repository again after a change of it.
    pub(super) fn recount(&mut self, source: &Source) {
        let Some(repo) = self.repos.get_mut(source) else { return };
        let (before, now) = (repo.extent, Extent::of(repo, source));
        repo.extent = now;
        self.refs.bytes = self.refs.bytes - before.bytes + now.bytes;
        self.refs.names = self.refs.names - before.names + now.names;
        self.used = self.used - before.bytes + now.bytes;
    }

    /// Takes a repository out of the index.
    pub(super) fn take_repo(&mut self, source: &Source) -> Option<Repo> {
        let mut repo = self.repos.remove(source)?;
        let extent = std::mem::take(&mut repo.extent);
        self.refs.bytes -= extent.bytes;
        self.refs.names -= extent.names;
        self.used -= extent.bytes;
        Some(repo)
    }

    /// Whether this number of eighths of the bounds holds all that is known.
    fn is_within(&self, budget: u64, eighths: u64) -> bool {
        let part = |of: usize| of / 8 * eighths as usize;
        self.repos.len() <= part(MAX_REPOS)
            && self.refs.names <= part(MAX_NAMES)
            && self.refs.bytes <= budget / SHARE / 8 * eighths
    }
}

impl Inner {
    /// Brings what is known of repositories back into its bounds, after something was added.
    pub(super) fn bound_refs(&self, state: &mut State, now: Utc) -> Result<(), StoreError> {
        if state.manifests.weight() > MAX_WEIGHT {
            self.drop_oldest_manifests(state, now)?;
        }
        let budget = self.budget.bytes;
        if !state.is_within(budget, 8) {
            self.forget_repos(state, &|state| state.is_within(budget, 7), true, now)?;
        }
        // All are pinned: the latest has no place.
        while !state.is_within(budget, 8) {
            let latest = state.repos.iter().max_by_key(|(_, repo)| repo.used_at);
            let Some(source) = latest.map(|(source, _)| source.clone()) else { break };
            self.forget(state, &[source], now)?;
        }
        Ok(())
    }

    fn drop_oldest_manifests(&self, state: &mut State, now: Utc) -> Result<(), StoreError> {
        let protected = state.protected();
        let mut manifests: Vec<(bool, Utc, Digest)> = state
            .manifests
            .keys()
            .map(|digest| {
                let used_at = state.blobs.get(digest).map_or(Utc::MIN, |blob| blob.used_at);
                (protected.contains(digest), used_at, digest.clone())
            })
            .collect();
        manifests.sort();
        // All are pinned or in use: the latest have no place.
        let first_protected = manifests.partition_point(|(is_protected, ..)| !is_protected);
        manifests[first_protected..].reverse();
        let mut gone = HashSet::new();
        for (is_protected, _, digest) in manifests {
            let most = if is_protected { MAX_WEIGHT } else { MAX_WEIGHT / 8 * 7 };
            if state.manifests.weight() <= most {
                break;
            }
            self.throw_manifest(state, &digest, now)?;
            gone.insert(digest);
        }
        self.drop_manifests(state, &gone)
    }

    /// Forgets repositories until `enough`, but for those of which something is pinned.
    ///
    /// * `in_use_too`: also those with images that containers use, after all others.
    pub(super) fn forget_repos(
        &self,
        state: &mut State,
        enough: &dyn Fn(&State) -> bool,
        in_use_too: bool,
        now: Utc,
    ) -> Result<(), StoreError> {
        let is_named =
            |digest: &Digest| state.in_use.contains(digest) || state.in_use_elsewhere.contains(digest);
        let is_image_used = |digest: &Digest| {
            let manifest = state.manifests.get(digest);
            is_named(digest) || manifest.is_some_and(|of| of.parts().any(|part| is_named(&part.digest)))
        };
        let is_used = |repo: &Repo| repo.manifests.keys().any(is_image_used);
        let mut repos: Vec<(bool, Utc, Source)> = state
            .repos
            .iter()
            .filter(|(source, repo)| !state.is_pinned(source, repo))
            .map(|(source, repo)| (is_used(repo), repo.used_at, source.clone()))
            .filter(|(is_used, ..)| in_use_too || !is_used)
            .collect();
        repos.sort();
        // Some at once, as what they leave behind is looked for among all that stay.
        for some in repos.chunks(64) {
            if enough(state) {
                break;
            }
            let sources: Vec<Source> = some.iter().map(|(.., source)| source.clone()).collect();
            self.forget(state, &sources, now)?;
        }
        Ok(())
    }

    /// Forgets repositories, and removes manifests that no other repository has and no container needs.
    fn forget(&self, state: &mut State, sources: &[Source], now: Utc) -> Result<(), StoreError> {
        let mut manifests = HashSet::new();
        for source in sources {
            let Some(repo) = state.take_repo(source) else { continue };
            manifests.extend(repo.manifests.into_keys());
            let dir = repo_dir(&self.layout, source);
            for name in ["_tags", "_manifests"] {
                // A file that stays is found at the next start.
                let _ = fs::remove_dir_all(dir.join(name));
            }
            self.layout.discard(&dir.join("_public"))?;
            let refs = self.layout.dir("refs");
            let empty = dir.ancestors().take_while(|dir| **dir != refs);
            // It fails where another repository is below.
            let _ = empty.map(fs::remove_dir).take_while(Result::is_ok).count();
        }
        let protected = state.protected();
        manifests.retain(|digest| !protected.contains(digest));
        for repo in state.repos.values() {
            manifests.retain(|digest| !repo.manifests.contains_key(digest));
        }
        for digest in manifests {
            self.throw_manifest(state, &digest, now)?;
        }
        Ok(())
    }

    /// Removes a manifest's blob. One that is being sent stays until the policy takes it.
    fn throw_manifest(&self, state: &mut State, digest: &Digest, now: Utc) -> Result<(), StoreError> {
        state.manifests.remove(digest);
        if state.blobs.get(digest).is_some_and(|blob| Arc::strong_count(&blob.readers) == 1) {
            self.move_to_trash(state, digest, now)?;
            state.forget(digest);
        }
        Ok(())
    }
}
