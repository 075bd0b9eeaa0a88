//! Holds the images that Docker keeps to a budget. It has its own thread and runtime, as Docker may take
//! minutes to remove an image.

mod keeper;
mod notes;
#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use tokio::{
    sync::{broadcast, watch},
    time::{Instant, sleep, timeout_at},
};
use weir_api::RuntimeImages;
use weir_cache::runtime::{RuntimeImages as Order, RuntimeSettings as Bounds};
use weir_discovery::docker::{Options, Unavailable, images::Images as Docker};
use weir_image::RuntimeSettings;
use weir_units::{Bytes, chain};

use super::ImageEvent;
use keeper::Keeper;

/// The interval between looks without a change.
const LOOK: Duration = Duration::from_secs(15);
/// The time for which changes gather before a look.
const SETTLE: Duration = Duration::from_millis(500);
/// The first pause after Docker is lost. Each next one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The most changes that gather. A reader that is behind further counts the containers that it finds.
const MOST_CHANGES: usize = 4096;

/// The configuration of the part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) settings: RuntimeSettings,
    /// Docker's socket.
    pub(crate) socket: PathBuf,
    /// The file for what outlives the agent.
    pub(crate) notes: PathBuf,
    /// The address of the cache, which images that were pulled by it have in their names.
    pub(crate) listen: std::net::SocketAddr,
}

/// The pins of the cache, or the reason why they are not known.
pub(super) type CachePins = Arc<dyn Fn() -> Result<Vec<String>, String> + Send + Sync>;

/// The budget of Docker's images for the agent and its API; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    wanted: watch::Sender<Option<Wanted>>,
    /// `None` without `[images.runtime]`.
    view: Arc<Mutex<Option<RuntimeImages>>>,
    /// Whether the thread runs.
    begun: Arc<Mutex<bool>>,
    stop: watch::Sender<bool>,
    events: broadcast::Sender<ImageEvent>,
}

impl Runtime {
    /// Without a budget.
    pub(super) fn off(events: broadcast::Sender<ImageEvent>) -> Runtime {
        Runtime {
            wanted: watch::Sender::new(None),
            view: Arc::default(),
            begun: Arc::default(),
            stop: watch::Sender::new(false),
            events,
        }
    }

    /// Begins with a budget, changes it or ends it.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn set(&self, wanted: Option<Wanted>, pins: CachePins) -> anyhow::Result<()> {
        if *self.wanted.borrow() == wanted {
            return Ok(());
        }
        let is_on = wanted.is_some();
        *self.view() = wanted.as_ref().map(starting);
        self.wanted.send_replace(wanted);
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if is_on && !*begun {
            let this = self.clone();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            thread::Builder::new()
                .name("weir-runtime".to_owned())
                .spawn(move || {
                    let _ending = Ending(this.clone());
                    runtime.block_on(this.run(pins));
                })
                .context("cannot hold Docker's images to a budget")?;
            *begun = true;
        }
        Ok(())
    }

    /// The state for the API; none without `[images.runtime]`.
    pub(crate) fn state(&self) -> Option<RuntimeImages> {
        self.view().clone()
    }

    /// The warning for the operator, if something is wrong.
    pub(crate) fn warning(&self) -> Option<String> {
        let view = self.view();
        let view = view.as_ref()?;
        if let Some(problem) = &view.problem {
            return Some(format!("the images of {} are not held to their budget: {problem}", view.runtime));
        }
        (view.short > Bytes(0)).then(|| over_budget(view))
    }

    pub(super) fn stop(&self) {
        let _ = self.stop.send(true);
    }

    fn view(&self) -> MutexGuard<'_, Option<RuntimeImages>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the configuration until [`Runtime::stop`].
    async fn run(self, pins: CachePins) {
        let (mut wanted, mut stop) = (self.wanted.subscribe(), self.stop.subscribe());
        loop {
            let now = wanted.borrow_and_update().clone();
            let hold = async {
                match &now {
                    Some(wanted) => self.hold(wanted, &pins).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = hold => {}
                changed = wanted.changed() => if changed.is_err() { return },
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Holds Docker to one configuration. A lost Docker is asked again after a pause.
    async fn hold(&self, wanted: &Wanted, pins: &CachePins) {
        let settings = &wanted.settings;
        let bounds = Bounds {
            policy: settings.policy,
            budget: settings.budget,
            keep_new: Duration::from_secs(settings.keep_new_s),
        };
        let order = Order::new(bounds, notes::read(&wanted.notes));
        let clock = Clock::start();
        let mut keeper = Keeper::new(order, wanted, pins.clone());
        let mut pause = FIRST_PAUSE;
        loop {
            let Err(why) = self.session(wanted, &mut keeper, clock, &mut pause).await;
            if pause == FIRST_PAUSE {
                tracing::warn!("images of docker: {}; asked again in {pause:?}", chain(&why));
            }
            if let Some(view) = &mut *self.view() {
                view.problem = Some(chain(&why));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Follows Docker for as long as it answers.
    async fn session(
        &self,
        wanted: &Wanted,
        keeper: &mut Keeper,
        clock: Clock,
        pause: &mut Duration,
    ) -> Result<std::convert::Infallible, Unavailable> {
        // From before the look, so that no change falls between. Docker reads whole seconds.
        let since = clock.now().0.as_secs().saturating_sub(1);
        let mut docker = Docker::connect(&Options::at(&wanted.socket)).await?;
        let mut changes = docker.changes(since).await?;
        let mut noted: Option<Instant> = None;
        let mut is_new = false;
        loop {
            let turn = keeper.turn(&mut docker, clock.now()).await;
            for event in keeper.take_events() {
                tracing::info!("{}", event.1);
                // A send fails only without a receiver, which is fine.
                let _ = self.events.send(event);
            }
            let goes_on = turn?;
            *pause = FIRST_PAUSE;
            self.show(keeper.view(clock.now()));
            let interval = if is_new { notes::AFTER_CHANGE } else { notes::INTERVAL };
            if goes_on || noted.is_none_or(|at| at.elapsed() >= interval) {
                is_new = false;
                noted = Some(Instant::now());
                notes::write(&wanted.notes, &keeper.notes());
            }
            // The first change ends the wait, and those that follow closely come with it.
            let mut end = Instant::now() + if goes_on { Duration::ZERO } else { LOOK };
            let mut gathered = 0;
            while let Ok(change) = timeout_at(end, changes.next()).await {
                if gathered == 0 && !goes_on {
                    end = Instant::now() + SETTLE;
                }
                keeper.tell(change?);
                is_new = true;
                gathered += 1;
                if gathered >= MOST_CHANGES {
                    break;
                }
            }
        }
    }

    /// Shows a state, unless the budget was taken away meanwhile.
    fn show(&self, state: RuntimeImages) {
        if let Some(view) = &mut *self.view() {
            *view = state;
        }
    }
}

/// Says that the thread has ended, also by a panic. The next change of the configuration begins another.
struct Ending(Runtime);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.begun.lock().unwrap_or_else(PoisonError::into_inner) = false;
        if let Some(view) = &mut *self.0.view() {
            view.problem = Some("its thread has ended: restart the agent, and report its log".to_owned());
        }
    }
}

/// The time since the epoch at the start, and a monotonic clock since. A step of the system's clock makes no
/// image old.
#[derive(Debug, Clone, Copy)]
struct Clock {
    start: Duration,
    begun: Instant,
}

impl Clock {
    fn start() -> Clock {
        Clock { start: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(), begun: Instant::now() }
    }

    fn now(&self) -> weir_units::Instant {
        weir_units::Instant(self.start + self.begun.elapsed())
    }
}

/// The state before the first look.
fn starting(wanted: &Wanted) -> RuntimeImages {
    let Wanted { settings, socket, .. } = wanted;
    RuntimeImages {
        runtime: "docker".to_owned(),
        socket: socket.display().to_string(),
        dry_run: settings.dry_run,
        policy: settings.policy.to_string(),
        follows: settings.policy.to_string(),
        budget: settings.budget,
        bytes: Bytes(0),
        short: Bytes(0),
        looked_ms: None,
        problem: None,
        removed: 0,
        removed_bytes: Bytes(0),
        refused: 0,
        images: Vec::new(),
    }
}

/// Why the budget does not hold, with the numbers.
fn over_budget(view: &RuntimeImages) -> String {
    let sum =
        |which: fn(&str) -> bool| view.images.iter().filter(|i| i.kept.iter().any(|why| which(why))).count();
    format!(
        "the images of {} have {} of {}: {} too many, and no image that may go would free them ({} of {} images are in use, {} \
         pinned, {} new)",
        view.runtime,
        view.bytes,
        view.budget,
        view.short,
        sum(|why| why.starts_with("in use")),
        view.images.len(),
        sum(|why| why.starts_with("pinned")),
        sum(|why| why.starts_with("pulled") || why.starts_with("used")),
    )
}

/// Where the agent keeps the notes.
pub(crate) fn notes_file(state: &Path) -> PathBuf {
    state.join("runtime-images.json")
}
