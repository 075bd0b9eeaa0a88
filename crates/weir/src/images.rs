//! The image cache of this node: a thread and a runtime of its own, so that whatever happens there
//! does not hold up the division of the link.

use std::{
    collections::HashSet,
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
use weir_host::{chain, containerd, discover::docker};
use weir_image::{Mirror, Settings, Timing};

/// Between two tries to open the store or to listen.
const AGAIN: Duration = Duration::from_secs(5);
/// Between two looks at which images containers have.
const LOOK: Duration = Duration::from_secs(15);
/// How long containerd may take to say.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cache as the API sees it; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    state: Arc<Mutex<State>>,
    /// None if the configuration has no `[images]`.
    settings: Arc<Mutex<Option<Settings>>>,
    /// What is worth an event.
    said: broadcast::Sender<String>,
    stop: watch::Sender<bool>,
}

#[derive(Debug)]
enum State {
    /// The configuration has no `[images]`.
    Off,
    /// It cannot serve, for this; tried again in a while.
    Down(String),
    Up(Mirror, Handle),
}

/// Why the cache cannot be asked.
#[derive(Debug)]
pub(crate) enum Absent {
    Off,
    Down(String),
}

impl Images {
    /// None.
    pub(crate) fn off() -> Images {
        Images::with(State::Off, None)
    }

    fn with(state: State, settings: Option<Settings>) -> Images {
        Images {
            state: Arc::new(Mutex::new(state)),
            settings: Arc::new(Mutex::new(settings)),
            said: broadcast::Sender::new(64),
            stop: watch::Sender::new(false),
        }
    }

    /// Begins to serve, in a thread of its own; what is wrong is said and tried again.
    ///
    /// * `docker`: whom to ask which images are in use.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(settings: Settings, docker: Option<PathBuf>) -> anyhow::Result<Images> {
        let images = Images::with(State::Down("it is starting".to_owned()), Some(settings));
        let serving = images.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(32)
            .build()
            .context("cannot set up the image cache")?;
        thread::Builder::new()
            .name("weir-images".to_owned())
            .spawn(move || runtime.block_on(serving.run(docker)))
            .context("cannot start the image cache")?;
        Ok(images)
    }

    /// Serves until [`Images::stop`].
    async fn run(&self, docker: Option<PathBuf>) {
        let mut stop = self.stop.subscribe();
        let serve = async {
            loop {
                // In a task: if it panics, it is begun anew.
                let (this, docker) = (self.clone(), docker.clone());
                let end = tokio::spawn(async move { this.once(docker).await }).await;
                let why = match end {
                    Ok(Ok(())) => "it ended".to_owned(),
                    Ok(Err(e)) => format!("{e:#}"),
                    Err(e) => e.to_string(),
                };
                tracing::error!("image cache: {why}; tried again in {AGAIN:?}");
                self.set(State::Down(why));
                sleep(AGAIN).await;
            }
        };
        tokio::select! {
            () = serve => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        self.set(State::Down("it is stopping".to_owned()));
    }

    async fn once(&self, docker: Option<PathBuf>) -> anyhow::Result<()> {
        let settings = self.settings().clone().context("there is no [images]")?;
        let given = settings.clone();
        // Looking through a large store takes a while.
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
        self.set(State::Up(mirror.clone(), Handle::current()));
        let mut corrupted = mirror.store().corrupted();
        let tell = async {
            loop {
                if let Ok(digest) = corrupted.recv().await {
                    // An error is that nobody listens.
                    let _ = self.said.send(format!(
                        "{digest} in {} is not what it is called any more: removed, fetched again when asked for",
                        settings.directory.display()
                    ));
                }
            }
        };
        let look = look(mirror.clone(), docker, settings.containerd.clone());
        tokio::select! {
            served = mirror.serve(listener) => served.context("cannot serve images"),
            () = look => Ok(()),
            () = tell => Ok(()),
        }
    }

    fn settings(&self) -> MutexGuard<'_, Option<Settings>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens that an operator should know.
    pub(crate) fn said(&self) -> broadcast::Receiver<String> {
        self.said.subscribe()
    }

    /// Whether these can be in force without a restart.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn can_be(&self, settings: Option<&Settings>) -> Result<(), String> {
        let same = match (&*self.settings(), settings) {
            (Some(old), Some(new)) => old.differs_only_in_rates(new),
            (None, None) => true,
            _ => false,
        };
        same.then_some(()).ok_or_else(|| {
            "a change of [images], but for max_rate and scrub_rate, needs a restart of the agent".to_owned()
        })
    }

    /// Puts other rates in force.
    ///
    /// # Errors
    /// As [`Images::can_be`].
    pub(crate) fn reconfigure(&self, settings: Settings) -> Result<(), String> {
        self.can_be(Some(&settings))?;
        if let Ok((mirror, _)) = self.get() {
            mirror.reconfigure(&settings);
        }
        *self.settings() = Some(settings);
        Ok(())
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Ends it; what is being sent is cut, what is being downloaded is continued later.
    pub(crate) fn stop(&self) {
        let _ = self.stop.send(true);
    }

    /// The mirror, and where its work is done.
    pub(crate) fn get(&self) -> Result<(Mirror, Handle), Absent> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Up(mirror, runtime) => Ok((mirror.clone(), runtime.clone())),
            State::Off => Err(Absent::Off),
            State::Down(why) => Err(Absent::Down(why.clone())),
        }
    }
}

/// Tells the store, now and then, what the containers of Docker and containerd are made of.
async fn look(mirror: Mirror, docker: Option<PathBuf>, containerd: PathBuf) {
    let options = docker.map(docker::Options::at);
    // While one of them cannot be asked, what was in use there is taken to be.
    let (mut of_docker, mut of_containerd) = (HashSet::new(), HashSet::new());
    let digests = |ids: &mut dyn Iterator<Item = &String>| ids.filter_map(|id| id.parse().ok()).collect();
    loop {
        if let Some(options) = &options {
            match docker::images_in_use(options).await {
                Ok(ids) => of_docker = digests(&mut ids.iter()),
                Err(e) => tracing::debug!("image cache: what is in use: {e}"),
            }
        }
        match containerd::images_in_use(&containerd, PATIENCE).await {
            Ok(ids) => of_containerd = digests(&mut ids.iter()),
            Err(e) if e.is_absent() => of_containerd.clear(),
            Err(e) => tracing::warn!("image cache: what is in use: {}", chain(&e)),
        }
        mirror.store().set_in_use(of_docker.union(&of_containerd).cloned().collect());
        sleep(LOOK).await;
    }
}
