//! Nodes of a site, each with a runtime of its own that can be stopped at any moment, as by a kill.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::{runtime::Builder, sync::oneshot};
use weir_image::{
    Digest, Mirror, Moment, Settings,
    coordination::Coordination,
    store::{Budget, PolicyKind, Store},
};

use super::{Got, Puller, counted, timing};

pub(crate) struct Node {
    pub(crate) mirror: Mirror,
    pub(crate) address: SocketAddr,
    running: Option<(oneshot::Sender<()>, std::thread::JoinHandle<()>)>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The store of a node that shares its directory.
pub(crate) fn share(directory: &Path, name: &str, budget: Budget) -> Store {
    Store::share(directory, name, budget, PolicyKind::Lru, Moment::now()).unwrap().0
}

impl Node {
    /// One that shares the settings' directory.
    pub(crate) fn sharing(name: &str, settings: &Settings, coordination: Arc<dyn Coordination>) -> Node {
        let budget = Budget { young: Duration::ZERO, ..settings.store_budget() };
        Node::over(share(&settings.directory, name, budget), settings, coordination)
    }

    pub(crate) fn over(store: Store, settings: &Settings, coordination: Arc<dyn Coordination>) -> Node {
        let mirror = Mirror::over(settings.clone(), timing(), store, coordination).unwrap();
        let listener = mirror.listen().unwrap();
        let (address, serving) = (listener.local_addr().unwrap(), mirror.clone());
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    served = serving.serve(listener) => served.unwrap(),
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        Node { mirror, address, running: Some((stop, thread)) }
    }

    /// Nothing of it runs any more; what it held, it holds.
    pub(crate) fn kill(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }

    pub(crate) fn puller(&self) -> Puller {
        Puller(self.address)
    }

    pub(crate) fn counted(&self, name: &str) -> u64 {
        counted(&self.mirror, name)
    }
}

/// A blob as its client sees it: when its first byte came, and what came.
pub(crate) struct Timed {
    pub(crate) first: Instant,
    pub(crate) got: Got,
}

impl Puller {
    pub(crate) async fn timed(&self, name: &str, digest: &Digest) -> Timed {
        let response = self.send("GET", &format!("/v2/{name}/blobs/{digest}"), &[]).await;
        let (parts, mut body) = response.into_parts();
        let mut all = Vec::new();
        let (mut first, mut end) = (None, Ok(()));
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => {
                    first.get_or_insert_with(Instant::now);
                    all.extend(frame.into_data().unwrap_or_default());
                }
                Err(e) => {
                    end = Err(e.to_string());
                    break;
                }
            }
        }
        let body = end.map(|()| Bytes::from(all));
        let got = Got { status: parts.status.as_u16(), headers: parts.headers, body };
        Timed { first: first.unwrap_or_else(Instant::now), got }
    }
}

/// Bytes of all files below these directories of a store.
pub(crate) fn on_disk(root: &Path, names: &[&str]) -> u64 {
    files(root, names).iter().map(|path| std::fs::metadata(path).map_or(0, |meta| meta.len())).sum()
}

/// All files below these directories of a store.
pub(crate) fn files(root: &Path, names: &[&str]) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut dirs: Vec<_> = names.iter().map(|name| root.join(name)).collect();
    while let Some(dir) = dirs.pop() {
        // What is being moved may be gone.
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                _ => found.push(entry.path()),
            }
        }
    }
    found
}
