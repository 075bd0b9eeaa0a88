//! News of a download, for those who wait for it.

use std::sync::atomic::Ordering;

use super::{Job, Progress, Sink, readable};

/// Tells those who wait how much it is, and from where to read it.
pub(super) fn tell_size(job: &Job, sink: &Sink, size: u64) {
    let Some(held) = sink.held() else { return };
    if job.has_shown_bytes() {
        // Of an earlier part there may have been more: its readers wait until this one is as far.
        job.has_shown.store(true, Ordering::Relaxed);
    }
    let ready = readable(sink.written(), size);
    job.sender.send_replace(Progress::Flowing { held, size, ready });
}

/// Tells those who wait how far they may read.
pub(super) fn tell_ready(job: &Job, reached: u64) {
    job.sender.send_modify(|progress| {
        if let Progress::Flowing { ready, .. } = progress {
            *ready = reached.max(*ready);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::{fs::File, sync::Arc};

    use hyper::Method;

    use super::{
        super::{Held, Kept, readers::Running},
        *,
    };
    use crate::{
        Digest, Image,
        digest::Algorithm,
        now_utc,
        scope::Scope,
        store::{Budget, PolicyKind, Store},
        upstream::{Ask, Identity},
    };

    /// The file of who takes over may have less than the one before, which is gone.
    #[test]
    fn readers_are_told_what_the_file_has_and_the_job_knows_what_they_got() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Budget::of(64 << 20), PolicyKind::Lru, now_utc()).unwrap().0;
        let digest = Digest::of(Algorithm::Sha256, b"some");
        let source = "acme/app".parse::<Image>().unwrap().source;
        let (running, sender) = Running::begin(&source);
        let ask = Ask {
            method: Method::GET,
            source: source.clone(),
            path: format!("blobs/{digest}"),
            accept: None,
            from: 0,
            identity: Identity::Anonymous,
            hops: String::new(),
        };
        let scope = Scope::of(&source, true);
        let job = Job::new(digest.clone(), scope, None, ask, sender, Arc::clone(&running.readers));
        let waiter = running.waiter();
        let ready = || match &*waiter.progress.borrow() {
            Progress::Flowing { ready, .. } => *ready,
            other => panic!("{other:?}"),
        };
        let old = Held::File(Arc::new(File::open("/dev/null").unwrap()));
        job.sender.send_replace(Progress::Flowing { held: old, size: 100_000, ready: 60_000 });
        let mut part = store.begin(&digest, 100_000, 1, now_utc()).unwrap();
        part.write(&[7; 20_000]).unwrap();
        tell_size(&job, &Sink::Keep(Kept::new(part)), 100_000);
        assert_eq!(ready(), 20_000);
        let other = Digest::of(Algorithm::Sha256, b"a file without bytes");
        let part = store.begin(&other, 70_000, 2, now_utc()).unwrap();
        tell_size(&job, &Sink::Keep(Kept::new(part)), 70_000);
        assert_eq!(ready(), 0);
        assert!(job.has_shown_bytes(), "a reader has 60000 of them");
    }
}
