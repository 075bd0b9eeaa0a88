//! Images fetched before anybody asks for them.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::runtime::Handle;

use crate::{
    Image, Mirror, Reference, Source,
    download::{Held, Progress},
    jobs::{JOBS_CAPACITY, Job, Warming, Working},
    manifest::{Child, Manifest, Part},
    mirror::Asker,
};

/// The blobs of an image that are fetched at once, as Docker does: each waits for its registry and for the disk.
const AT_ONCE: usize = 3;

/// The most manifests that are read in search of one platform's.
const MAX_INDEXES: usize = 16;

impl Mirror {
    /// Begins to fetch an image; [`Mirror::warming`] tells how far it is.
    ///
    /// * `platform`: `linux/arm64`; of an image for several, that one only.
    /// * `runtime`: where the mirror is served.
    pub fn warm(&self, image: &Image, platform: &str, runtime: &Handle) -> u64 {
        let job = Arc::new(Job {
            image: image.to_string(),
            total: AtomicU64::new(0),
            done: AtomicU64::new(0),
            end: Mutex::new(None),
        });
        let id = self.jobs().next.fetch_add(1, Ordering::Relaxed);
        {
            let mut jobs = self.jobs().jobs.lock().unwrap_or_else(PoisonError::into_inner);
            jobs.insert(id, Arc::clone(&job));
            while jobs.len() > JOBS_CAPACITY {
                jobs.pop_first();
            }
        }
        let (mirror, image, platform) = (self.clone(), image.clone(), platform.to_owned());
        let working = Working(job);
        runtime.spawn(async move {
            let result = mirror.fetch(&image, &platform, &working.0).await;
            working.done(result);
        });
        id
    }

    /// How far [`Mirror::warm`] is; none if it is not remembered.
    #[must_use]
    pub fn warming(&self, id: u64) -> Option<Warming> {
        let job = Arc::clone(self.jobs().jobs.lock().unwrap_or_else(PoisonError::into_inner).get(&id)?);
        let end = job.end.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(Warming {
            image: job.image.clone(),
            total: job.total.load(Ordering::Relaxed),
            done: job.done.load(Ordering::Relaxed),
            is_over: end.is_some(),
            error: end.and_then(Result::err),
        })
    }

    async fn fetch(&self, image: &Image, platform: &str, job: &Job) -> Result<(), String> {
        let asker = self.own(&image.source);
        let manifest = self.image_of(image, platform, &asker).await?;
        let parts: Vec<Part> = manifest.parts().cloned().collect();
        job.total.store(parts.iter().map(|p| p.size).fold(0, u64::saturating_add), Ordering::Relaxed);
        let fetch = |part| self.fetch_part(&image.source, part, &asker, job);
        let each: Vec<_> = parts.iter().map(fetch).collect();
        stream::iter(each).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// The manifest of an image for a platform. An index may name other indexes, which have no platform.
    async fn image_of(&self, image: &Image, platform: &str, asker: &Asker) -> Result<Arc<Manifest>, String> {
        let is_it = |child: &&Child| {
            child.platform == platform || child.platform.starts_with(&format!("{platform}/"))
        };
        let of = |child: &Child| Reference::Digest(child.part.digest.clone());
        // With each, whether an image there is the one that is wanted.
        let mut left = VecDeque::from([(image.reference.clone(), true)]);
        let mut has = Vec::new();
        for _ in 0..MAX_INDEXES {
            let Some((reference, is_wanted)) = left.pop_front() else { break };
            let manifest =
                self.manifest(&image.source, &reference, asker).await.map_err(|f| f.to_string())?;
            let Manifest::Index(children) = &*manifest else {
                if is_wanted {
                    return Ok(manifest);
                }
                continue;
            };
            if let Some(child) = children.iter().find(is_it) {
                left = [(of(child), true)].into();
                continue;
            }
            left.extend(children.iter().filter(|c| c.platform.is_empty()).map(|child| (of(child), false)));
            let platforms = children.iter().map(|child| child.platform.clone());
            has.extend(platforms.filter(|p| !p.is_empty() && !p.starts_with("unknown")));
        }
        Err(format!("{image} is not for {platform}, but for {}", has.join(", ")))
    }

    /// Waits until a blob is here. A download that has ended is never joined again: each turn of the loop waits.
    async fn fetch_part(&self, source: &Source, part: &Part, asker: &Asker, job: &Job) -> Result<(), String> {
        let digest = &part.digest;
        // Of the part, bytes.
        let mut told = 0;
        let mut tell = |reached: u64| {
            job.done.fetch_add(reached.saturating_sub(told), Ordering::Relaxed);
            told = told.max(reached);
        };
        if let Some(mut waiter) = self.join(source, digest, asker).await.map_err(|fault| fault.to_string())? {
            loop {
                match &*waiter.progress.borrow_and_update() {
                    Progress::Flowing { held: Held::Window(_), .. } => {
                        return Err(format!("{digest} cannot be kept: there is no room for it"));
                    }
                    Progress::Flowing { ready, size, .. } if ready >= size => break,
                    Progress::Flowing { ready, .. } => tell(*ready),
                    Progress::Failed(fault) => return Err(fault.to_string()),
                    Progress::Asking => {}
                }
                let changed = waiter.progress.changed().await;
                changed.map_err(|_| format!("the download of {digest} ended without a result"))?;
            }
        }
        tell(part.size);
        Ok(())
    }
}
