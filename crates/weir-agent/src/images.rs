//! The image cache of this node. It has its own thread and runtime, so it cannot delay the division of
//! the link.

pub(crate) mod runtime;
mod watchdog;

use std::{
    collections::HashSet,
    net::TcpListener,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    runtime::Handle,
    sync::{broadcast, watch},
    time::sleep,
};
use weir_api::EventKind;
use weir_discovery::{containerd, docker};
use weir_image::{Mirror, Settings, Timing};
use weir_units::chain;

use runtime::{Runtime, Wanted};

/// The interval between attempts to open the store or to listen.
const AGAIN: Duration = Duration::from_secs(5);
/// The interval between looks at the containers' images.
const LOOK: Duration = Duration::from_secs(15);
/// The time limit of containerd's answer.
const CONTAINERD_TIMEOUT: Duration = Duration::from_secs(10);

/// The effect of a fault that ends the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFault {
    /// The mirror is started again after [`AGAIN`], because the agent has a link to divide.
    TryAgain,
    /// The process ends with an error, and its service manager starts it again.
    End,
}

/// The kind and the text of an event.
pub(crate) type ImageEvent = (EventKind, String);

/// The cache for the API; cheap to clone.
#[derive(Debug, Clone)]
pub struct Images {
    /// The number of the mirror's life, and its state. An earlier life cannot change the state.
    state: Arc<Mutex<(u64, State)>>,
    /// `None` if the configuration has no `[images]`.
    settings: Arc<Mutex<Option<Settings>>>,
    events: broadcast::Sender<ImageEvent>,
    /// The events since the start, for the first who asks.
    first_events: Arc<Mutex<Option<broadcast::Receiver<ImageEvent>>>>,
    stop: watch::Sender<bool>,
    /// The number of the current life. An earlier one ends as soon as its thread runs again.
    life: watch::Sender<u64>,
    on_fault: OnFault,
    /// The reason of its final end.
    fault: watch::Sender<Option<String>>,
    docker: Option<PathBuf>,
    /// The budget of the images that Docker keeps itself. It does not depend on the mirror's life.
    runtime: Runtime,
}

#[derive(Debug)]
enum State {
    /// The configuration has no `[images]`.
    Off,
    /// The cache is starting or stopping, which is no fault.
    Between(&'static str),
    /// The cache cannot serve for this reason. It tries again after [`AGAIN`].
    Down(String),
    /// The listener is a second handle of the mirror's own. The watchdog closes the port by it.
    Up(Mirror, Handle, TcpListener),
}

/// The reason why the cache cannot be asked.
#[derive(Debug)]
pub(crate) enum Absent {
    Off,
    Down(String),
}

impl Images {
    /// A node without an image cache.
    pub fn off() -> Images {
        Images::with(State::Off, None, None, OnFault::TryAgain)
    }

    fn with(state: State, settings: Option<Settings>, docker: Option<PathBuf>, on_fault: OnFault) -> Images {
        let (events, first_events) = broadcast::channel(64);
        Images {
            first_events: Arc::new(Mutex::new(Some(first_events))),
            runtime: Runtime::off(events.clone()),
            state: Arc::new(Mutex::new((0, state))),
            settings: Arc::new(Mutex::new(settings)),
            events,
            stop: watch::Sender::new(false),
            life: watch::Sender::new(0),
            on_fault,
            fault: watch::Sender::new(None),
            docker,
        }
    }

    /// Starts to serve in one thread, and to watch it from another.
    ///
    /// * `docker`: the socket to ask for the images in use.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(
        settings: Settings,
        docker: Option<PathBuf>,
        on_fault: OnFault,
    ) -> anyhow::Result<Images> {
        let images = Images::with(State::Between("it is starting"), Some(settings), docker, on_fault);
        images.begin_life(0)?;
        let watched = images.clone();
        thread::Builder::new()
            .name("weir-images-dog".to_owned())
            .spawn(move || watched.watch())
            .context("cannot watch the image cache")?;
        Ok(images)
    }

    /// Starts a life: a thread with its own runtime.
    fn begin_life(&self, life: u64) -> anyhow::Result<()> {
        let serving = self.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(32)
            .build()
            .context("cannot set up the image cache")?;
        let run = move || {
            runtime.block_on(serving.run(life));
            // The runtime does not wait for a blocking task that never ends.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("weir-images".to_owned());
        thread.spawn(run).map(drop).context("cannot start the image cache")
    }

    /// Serves until [`Images::stop`], or until this life is given up.
    async fn run(&self, life: u64) {
        let (mut stop, mut current) = (self.stop.subscribe(), self.life.subscribe());
        let serve = async {
            loop {
                // The task isolates a panic, and the loop starts again.
                let this = self.clone();
                let mut task = tokio::spawn(async move { this.once(life).await });
                let _ends_too = Aborts(task.abort_handle());
                let why = match (&mut task).await {
                    Ok(Ok(())) => "it ended".to_owned(),
                    Ok(Err(e)) => format!("{e:#}"),
                    Err(e) => e.to_string(),
                };
                if self.on_fault == OnFault::End {
                    self.end(why);
                    return;
                }
                tracing::error!("image cache: {why}; tried again in {AGAIN:?}");
                self.set(life, State::Down(why));
                sleep(AGAIN).await;
            }
        };
        tokio::select! {
            () = serve => {}
            _ = stop.wait_for(|stop| *stop) => {}
            _ = current.wait_for(|current| *current != life) => {}
        }
        self.set(life, State::Between("it is stopping"));
    }

    async fn once(&self, life: u64) -> anyhow::Result<()> {
        let settings = self.settings().clone().context("there is no [images]")?;
        let given = settings.clone();
        // The scan of a large store takes long.
        let opened = tokio::task::spawn_blocking(move || Mirror::open(given, Timing::default())).await?;
        let (mirror, recovered) = opened.map_err(|e| anyhow::anyhow!("{}", chain(&e)))?;
        let listener = mirror.listen()?;
        tracing::info!(
            "image cache: serving {} from {} on {}; {} blobs, {} downloads to continue, {} files removed",
            settings.budget,
            settings.directory.display(),
            settings.listen,
            recovered.blobs,
            recovered.resumable,
            recovered.removed
        );
        self.set(life, State::Up(mirror.clone(), Handle::current(), listener.try_clone()?));
        let mut corrupted = mirror.store().corrupted();
        let tell = async {
            loop {
                if let Ok(digest) = corrupted.recv().await {
                    let what = format!(
                        "{digest} in {} is not what it is called any more: removed, fetched again when asked for",
                        settings.directory.display()
                    );
                    // A send fails only without a receiver, which is fine.
                    let _ = self.events.send((EventKind::ImageCorrupt, what));
                }
            }
        };
        let look = look(mirror.clone(), self.docker.clone(), settings.containerd.clone());
        tokio::select! {
            served = mirror.serve(listener) => served.context("cannot serve images"),
            () = look => Ok(()),
            () = tell => Ok(()),
        }
    }

    fn settings(&self) -> MutexGuard<'_, Option<Settings>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cache's events for the operator: those since the start for the first who asks, and else those to come.
    pub(crate) fn events(&self) -> broadcast::Receiver<ImageEvent> {
        let first = self.first_events.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.unwrap_or_else(|| self.events.subscribe())
    }

    /// Waits for the final end, which happens only with [`OnFault::End`].
    pub(crate) async fn fault(&self) -> String {
        let mut fault = self.fault.subscribe();
        match fault.wait_for(Option::is_some).await {
            Ok(fault) => fault.clone().unwrap_or_default(),
            // The sender is a part of `self`, so it cannot be gone.
            Err(_) => std::future::pending().await,
        }
    }

    fn end(&self, why: String) {
        self.fault.send_replace(Some(why));
    }

    /// The number of mirrors given up because they did not answer.
    pub(crate) fn frozen(&self) -> u64 {
        *self.life.borrow()
    }

    /// Whether these settings can be applied without a restart.
    pub(crate) fn can_be(&self, settings: Option<&Settings>) -> bool {
        match (&*self.settings(), settings) {
            (Some(old), Some(new)) => old.differs_only_in_rates(new),
            (None, None) => true,
            _ => false,
        }
    }

    /// Applies other rates.
    ///
    /// # Errors
    /// The change needs a restart ([`Images::can_be`]).
    pub(crate) fn reconfigure(&self, settings: Settings) -> Result<(), String> {
        if !self.can_be(Some(&settings)) {
            return Err("a change of [images] needs a restart of the agent".to_owned());
        }
        if let Ok((mirror, _)) = self.get() {
            mirror.reconfigure(&settings);
        }
        *self.settings() = Some(settings);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, (u64, State)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, life: u64, state: State) {
        let mut now = self.lock();
        if now.0 != life {
            return;
        }
        let news = match (&now.1, &state) {
            (State::Down(was), State::Down(why)) if was == why => None,
            (_, State::Down(why)) => Some((EventKind::ImageDown, not_serving(why))),
            (State::Down(_), State::Up(..)) => {
                Some((EventKind::ImageUp, "the image cache serves again".to_owned()))
            }
            _ => None,
        };
        now.1 = state;
        drop(now);
        if let Some(news) = news {
            // A send fails only without a receiver, which is fine.
            let _ = self.events.send(news);
        }
    }

    /// The reason if the cache is wanted and does not serve. None while it starts.
    pub(crate) fn failure(&self) -> Option<String> {
        match &self.lock().1 {
            State::Down(why) => Some(not_serving(why)),
            State::Off | State::Between(_) | State::Up(..) => None,
        }
    }

    /// Whether the cache serves. None if the configuration has none.
    pub(crate) fn is_serving(&self) -> Option<bool> {
        match &self.lock().1 {
            State::Off => None,
            state => Some(matches!(state, State::Up(..))),
        }
    }

    /// Stops the cache. Transfers to runtimes are cut, and downloads continue after the next start.
    pub(crate) fn stop(&self) {
        let _ = self.stop.send(true);
        self.runtime.stop();
    }

    /// Begins, changes or ends the budget of Docker's images.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn hold_runtime(&self, wanted: Option<Wanted>) -> anyhow::Result<()> {
        let cache = self.clone();
        let pins = move || match cache.get() {
            Ok((mirror, _)) => Ok(mirror.store().pins()),
            Err(Absent::Off) => Ok(Vec::new()),
            Err(Absent::Down(why)) => Err(why),
        };
        self.runtime.set(wanted, Arc::new(pins))
    }

    /// The budget of Docker's images.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The mirror and the handle of its runtime.
    pub(crate) fn get(&self) -> Result<(Mirror, Handle), Absent> {
        match &self.lock().1 {
            State::Up(mirror, runtime, _) => Ok((mirror.clone(), runtime.clone())),
            State::Off => Err(Absent::Off),
            State::Between(what) => Err(Absent::Down((*what).to_owned())),
            State::Down(why) => Err(Absent::Down(why.clone())),
        }
    }
}

fn not_serving(why: &str) -> String {
    format!(
        "the image cache does not serve: {why}; it is tried again in {AGAIN:?}, and runtimes ask the registries"
    )
}

/// Ends a task with its owner. A dropped handle alone would let the task continue.
struct Aborts(tokio::task::AbortHandle);

impl Drop for Aborts {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reports the blobs of Docker's and containerd's containers to the store at intervals.
async fn look(mirror: Mirror, docker: Option<PathBuf>, containerd: PathBuf) {
    let options = docker.map(docker::Options::at);
    // If one of them cannot be asked, its last answer still counts.
    let (mut of_docker, mut of_containerd) = (HashSet::new(), HashSet::new());
    let digests = |ids: &mut dyn Iterator<Item = &String>| ids.filter_map(|id| id.parse().ok()).collect();
    loop {
        if let Some(options) = &options {
            match docker::images_in_use(options).await {
                Ok(ids) => of_docker = digests(&mut ids.iter()),
                Err(e) => tracing::debug!("image cache: what is in use: {e}"),
            }
        }
        match containerd::images_in_use(&containerd, CONTAINERD_TIMEOUT).await {
            Ok(ids) => of_containerd = digests(&mut ids.iter()),
            Err(e) if e.is_absent() => of_containerd.clear(),
            Err(e) => tracing::warn!("image cache: what is in use: {}", chain(&e)),
        }
        // The store may wait for its disk, and the mirror's thread does not.
        let (store, in_use) = (mirror.store().clone(), of_docker.union(&of_containerd).cloned().collect());
        // An error is that the mirror is stopping.
        let _ = tokio::task::spawn_blocking(move || store.set_in_use(in_use)).await;
        sleep(LOOK).await;
    }
}
