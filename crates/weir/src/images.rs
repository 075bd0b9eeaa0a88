//! The image cache of this node: a thread and a runtime of its own, so that whatever happens there
//! does not hold up the division of the link.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{runtime::Handle, sync::watch, time::sleep};
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
        Images { state: Arc::new(Mutex::new(State::Off)), stop: watch::Sender::new(false) }
    }

    /// Begins to serve, in a thread of its own; what is wrong is said and tried again.
    ///
    /// * `docker`: whom to ask which images are in use.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(settings: Settings, docker: Option<PathBuf>) -> anyhow::Result<Images> {
        let images = Images {
            state: Arc::new(Mutex::new(State::Down("it is starting".to_owned()))),
            stop: watch::Sender::new(false),
        };
        let serving = images.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(32)
            .build()
            .context("cannot set up the image cache")?;
        thread::Builder::new()
            .name("weir-images".to_owned())
            .spawn(move || runtime.block_on(serving.run(&settings, docker)))
            .context("cannot start the image cache")?;
        Ok(images)
    }

    /// Serves until [`Images::stop`].
    async fn run(&self, settings: &Settings, docker: Option<PathBuf>) {
        let mut stop = self.stop.subscribe();
        let serve = async {
            loop {
                // In a task: if it panics, it is begun anew.
                let (this, settings, docker) = (self.clone(), settings.clone(), docker.clone());
                let end = tokio::spawn(async move { this.once(&settings, docker).await }).await;
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

    async fn once(&self, settings: &Settings, docker: Option<PathBuf>) -> anyhow::Result<()> {
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
        let look = look(mirror.clone(), docker, settings.containerd.clone());
        tokio::select! {
            served = mirror.serve(listener) => served.context("cannot serve images"),
            () = look => Ok(()),
        }
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
