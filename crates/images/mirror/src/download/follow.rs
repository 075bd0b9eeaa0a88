//! A blob that another node brings: read while it comes, taken over if that node is gone.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::spawn_blocking, time::timeout};

use super::{Downloads, Held, Job, Progress, readable};
use crate::{
    coordination::{AcquireResult, LEASE, Lease},
    now_utc,
    stats::count,
    upstream::Fault,
};

/// Between two looks at how much there is.
const LOOK: Duration = Duration::from_millis(20);

/// How following ended.
pub(super) enum Followed {
    /// It is here.
    Here,
    /// The node that fetched it is gone, or failed; this node fetches it now.
    Free(Lease),
    /// It does not come, and who keeps the leases cannot be asked.
    Alone,
}

impl Downloads {
    /// Tells those who wait what another node has written, until it has published all of it.
    pub(super) async fn follow(&self, job: &Job, by: &str) -> Result<Followed, Fault> {
        tracing::debug!("{} is brought by {by}", job.digest);
        count(&self.stats.followed, 1);
        let mut events = self.coordination.events();
        let (mut asked, mut moved) = (Instant::now(), Instant::now());
        loop {
            if self.is_proved(job).await {
                return self.published(job).await.map(|()| Followed::Here);
            }
            if self.store.is_shared() && self.look(job).await? {
                moved = Instant::now();
            }
            if asked.elapsed() > LEASE / 8 {
                asked = Instant::now();
                match self.coordination.acquire(&job.scope.lease(&job.digest), now_utc()).await {
                    Ok(AcquireResult::Granted(lease)) => return Ok(Followed::Free(lease)),
                    Ok(AcquireResult::Held { .. }) => {}
                    // The holder of the lease may go on all the same.
                    Err(_) if moved.elapsed() < LEASE => {}
                    Err(_) => return Ok(Followed::Alone),
                }
            }
            // An event woke it; the next look tells which.
            let _ = timeout(LOOK, events.recv()).await;
        }
    }

    /// Passes on how far the part is that another node writes. Answers whether there is more of it.
    async fn look(&self, job: &Job) -> Result<bool, Fault> {
        let (store, digest, mark) = (self.store.clone(), job.digest.clone(), job.scope.mark());
        let looked = spawn_blocking(move || store.growing(&digest, mark)).await;
        let Some(part) = looked.map_err(|e| job.outage(e.to_string()))? else { return Ok(false) };
        if job.size.is_some_and(|size| size != part.size) {
            return Ok(false);
        }
        let there = readable(part.length, part.size);
        let is_news = match &*job.sender.borrow() {
            Progress::Flowing { ready, .. } => there > *ready,
            _ => there > 0,
        };
        if is_news {
            let (held, size) = (Held::File(Arc::new(part.file)), part.size);
            job.sender.send_replace(Progress::Flowing { held, size, ready: there });
        }
        Ok(is_news)
    }
}
