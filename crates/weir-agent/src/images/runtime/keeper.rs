//! One turn of holding a runtime's images to their budget: look, choose, remove.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use weir_api::{EventKind, RuntimeImage, RuntimeImages};
use weir_cache::{
    BlobId,
    runtime::{Kept, Layer, Notes, Plan, RuntimeImages as Order, StoredImage, Victim},
};
use weir_discovery::docker::{
    Unavailable,
    images::{Change, Container, Image, Images, Look, Removal},
};
use weir_image::{Pins, RuntimeSettings, pins::full_name};
use weir_units::{Bytes, Instant};

use super::{CachePins, ImageEvent, Wanted, over_budget};

/// The time for which an image stays after Docker refused its removal.
const AFTER_REFUSAL: Duration = Duration::from_secs(600);
/// The containers that are remembered although they are gone, as their events may come late.
const REMEMBERED: usize = 4096;

/// A container runtime's store of images.
pub(super) trait Store {
    /// All images and containers. The containers are listed after the images.
    async fn look(&mut self) -> Result<Look, Unavailable>;
    /// The store's own figure of the size of all layers.
    async fn measure(&mut self) -> Result<u64, Unavailable>;
    /// Removes an image, unless a container has it. The store itself refuses that.
    async fn remove(&mut self, image: &Image) -> Result<Removal, Unavailable>;
}

impl Store for Images {
    async fn look(&mut self) -> Result<Look, Unavailable> {
        Images::look(self).await
    }

    async fn measure(&mut self) -> Result<u64, Unavailable> {
        Images::measure(self).await
    }

    async fn remove(&mut self, image: &Image) -> Result<Removal, Unavailable> {
        Images::remove(self, image).await
    }
}

/// The results since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    removed: u64,
    removed_bytes: u64,
    refused: u64,
}

/// The memory between turns.
pub(super) struct Keeper {
    order: Order,
    settings: RuntimeSettings,
    socket: String,
    listen: SocketAddr,
    cache_pins: CachePins,
    /// The cache's pins, as they were known last.
    known_pins: Option<Vec<String>>,
    pins: Pins,
    /// The last look.
    images: BTreeMap<String, Image>,
    /// The names of the containers of each image.
    users: BTreeMap<String, Vec<String>>,
    /// Whether the layers say how large the store is.
    is_exact: bool,
    /// Containers that count as uses already; none before the first look.
    seen: Option<BTreeSet<String>>,
    /// Changes since the last look.
    changes: Vec<Change>,
    measured: Option<Measured>,
    /// Refused removals: when, and the runtime's words.
    refused: BTreeMap<String, (Instant, String)>,
    plan: Plan,
    /// Images that were reported as victims of a dry run.
    told: BTreeSet<String>,
    /// Whether it was reported that the budget cannot hold.
    told_short: bool,
    problem: Option<String>,
    events: Vec<ImageEvent>,
    counts: Counts,
    looked: Option<Instant>,
}

/// The store's own figure of the size of all layers.
struct Measured {
    /// The images of which it was.
    images: Vec<String>,
    bytes: u64,
    /// Whether removals were subtracted since.
    is_estimate: bool,
}

impl Keeper {
    pub(super) fn new(order: Order, wanted: &Wanted, cache_pins: CachePins) -> Keeper {
        Keeper {
            order,
            settings: wanted.settings.clone(),
            socket: wanted.socket.display().to_string(),
            listen: wanted.listen,
            cache_pins,
            known_pins: None,
            pins: Pins::default(),
            images: BTreeMap::new(),
            users: BTreeMap::new(),
            is_exact: true,
            seen: None,
            changes: Vec::new(),
            measured: None,
            refused: BTreeMap::new(),
            plan: Plan::default(),
            told: BTreeSet::new(),
            told_short: false,
            problem: None,
            events: Vec::new(),
            counts: Counts::default(),
            looked: None,
        }
    }

    /// A change that the next turn takes into account.
    pub(super) fn tell(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// The events of the turns since the last call.
    pub(super) fn take_events(&mut self) -> Vec<ImageEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn notes(&self) -> Notes {
        self.order.notes()
    }

    /// Looks, and removes one image if one has to go. Returns whether it tried: then another turn follows at
    /// once, which sees what changed meanwhile.
    pub(super) async fn turn(&mut self, store: &mut impl Store, now: Instant) -> Result<bool, Unavailable> {
        self.look(store, now).await?;
        let measured = self.measure(store).await?;
        self.plan = self.order.plan(now, measured);
        if self.plan.victims.is_empty() && self.measured.as_ref().is_some_and(|m| m.is_estimate) {
            // The store has the last word on whether it fits.
            self.measured = None;
            let measured = self.measure(store).await?;
            self.plan = self.order.plan(now, measured);
        }
        let may_remove = self.problem.is_none() && !self.settings.dry_run;
        if let Some(victim) = self.plan.victims.first().filter(|_| may_remove).cloned() {
            self.remove(store, &victim, now).await?;
            return Ok(true);
        }
        self.report();
        Ok(false)
    }

    async fn look(&mut self, store: &mut impl Store, now: Instant) -> Result<(), Unavailable> {
        self.problem = self.read_pins().err();
        let look = store.look().await?;
        self.users.clear();
        for container in &look.containers {
            self.users.entry(container.image.clone()).or_default().push(container.name.clone());
        }
        self.refused.retain(|_, (at, _)| now.since(*at) < AFTER_REFUSAL);
        let stored = look.images.iter().map(|image| self.stored(image)).collect();
        self.order.look(stored, now);
        self.images = look.images.into_iter().map(|image| (image.id.clone(), image)).collect();
        (self.is_exact, self.looked) = (look.is_exact, Some(now));
        self.count_uses(&look.containers, now);
        Ok(())
    }

    /// Counts the containers that were made since the last look, also those that went already.
    fn count_uses(&mut self, containers: &[Container], now: Instant) {
        let changes = std::mem::take(&mut self.changes);
        let present = || containers.iter().map(|container| container.id.clone()).collect();
        // Containers that are older than the first look are no new uses.
        let Some(mut seen) = self.seen.take() else {
            self.seen = Some(present());
            return;
        };
        for container in containers {
            if seen.insert(container.id.clone()) {
                self.order.used(&container.image, now);
            }
        }
        for change in changes {
            match change {
                Change::Created { container, image } => {
                    let id = self.id_of(&image).filter(|_| seen.insert(container));
                    if let Some(id) = id {
                        self.order.used(&id, now);
                    }
                }
                Change::Pulled { image } => {
                    if let Some(id) = self.id_of(&image) {
                        self.order.pulled(&id, now);
                    }
                }
                Change::Other => {}
            }
        }
        self.seen = Some(if seen.len() > REMEMBERED { present() } else { seen });
    }

    /// The store's own figure, if a removal may follow or the layers do not say how large the store is.
    async fn measure(&mut self, store: &mut impl Store) -> Result<Option<Bytes>, Unavailable> {
        if self.is_exact && self.order.bytes() <= self.settings.budget {
            self.measured = None;
            return Ok(None);
        }
        if let Some(measured) = &self.measured
            && measured.images.iter().eq(self.images.keys())
        {
            return Ok(Some(Bytes(measured.bytes)));
        }
        match store.measure().await {
            Ok(bytes) => {
                let images = self.images.keys().cloned().collect();
                self.measured = Some(Measured { images, bytes, is_estimate: false });
                Ok(Some(Bytes(bytes)))
            }
            // The sum of the layers is as good.
            Err(why) if self.is_exact && is_answer(&why) => {
                tracing::debug!("images of docker: the layers are added up: {why}");
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    async fn remove(
        &mut self,
        store: &mut impl Store,
        victim: &Victim,
        now: Instant,
    ) -> Result<(), Unavailable> {
        let Some(image) = self.images.get(&victim.id).cloned() else { return Ok(()) };
        let refused = match store.remove(&image).await {
            Ok(Removal::Removed) => None,
            Ok(Removal::Gone) => Some("it was gone".to_owned()),
            Ok(Removal::Refused(why)) => {
                self.counts.refused += 1;
                Some(why)
            }
            Err(why) if is_answer(&why) => Some(why.to_string()),
            Err(why) => return Err(why),
        };
        if let Some(why) = refused {
            tracing::debug!("{} stays: {why}", title(&image));
            self.refused.insert(victim.id.clone(), (now, why));
            return Ok(());
        }
        let what = format!(
            "{} is removed from docker, {} freed: its images had {} of {}, and {}",
            title(&image),
            victim.frees,
            self.plan.bytes,
            self.settings.budget,
            self.last_use(&victim.id, now)
        );
        self.events.push((EventKind::ImageRemoved, what));
        self.counts.removed += 1;
        self.counts.removed_bytes += victim.frees.0;
        self.order.removed(&victim.id);
        self.images.remove(&victim.id);
        if let Some(measured) = &mut self.measured {
            measured.images.retain(|id| *id != victim.id);
            measured.bytes = measured.bytes.saturating_sub(victim.frees.0);
            measured.is_estimate = true;
        }
        Ok(())
    }

    /// The reason why an image is the next one, in words.
    fn last_use(&self, id: &str, now: Instant) -> String {
        let (configured, followed) = self.order.kinds();
        let by =
            if configured == followed { format!("{followed}") } else { format!("{configured}: {followed}") };
        let found = self.order.images().find(|(image, ..)| image.id == id);
        found.map_or_else(String::new, |(_, _, used, uses)| {
            let times = if uses == 1 { "once".to_owned() } else { format!("{uses} times") };
            format!("this one was used {times}, last {} ago ({by})", age(now.since(used)))
        })
    }

    /// Reports what is new about a dry run, and about a budget that cannot hold.
    fn report(&mut self) {
        let now = self.looked.unwrap_or_default();
        let victims = if self.settings.dry_run { self.plan.victims.clone() } else { Vec::new() };
        for victim in &victims {
            let Some(image) = self.images.get(&victim.id).filter(|_| !self.told.contains(&victim.id)) else {
                continue;
            };
            let what = format!(
                "{} would be removed from docker, {} freed, but for `dry_run`: its images have {} of {}, and {}",
                title(image),
                victim.frees,
                self.plan.bytes,
                self.settings.budget,
                self.last_use(&victim.id, now)
            );
            self.events.push((EventKind::ImageWouldGo, what));
        }
        self.told = victims.into_iter().map(|victim| victim.id).collect();
        let is_short = self.plan.short > Bytes(0);
        if is_short && !self.told_short {
            self.events.push((EventKind::ImageOverBudget, over_budget(&self.view(now))));
        }
        self.told_short = is_short;
    }

    /// Reads the pins, of the configuration and of the cache.
    fn read_pins(&mut self) -> Result<(), String> {
        let known = (self.cache_pins)();
        if let Ok(pins) = &known {
            self.known_pins = Some(pins.clone());
        }
        let of_cache = self.known_pins.iter().flatten();
        self.pins = Pins::new(self.settings.pins.iter().chain(of_cache).cloned(), self.listen);
        match (known, &self.known_pins) {
            (Err(why), None) => Err(format!("the pins of the image cache are not known: {why}")),
            _ => Ok(()),
        }
    }

    fn stored(&self, image: &Image) -> StoredImage {
        let layers = image.layers.iter().map(|(id, bytes)| Layer { id: BlobId(*id), bytes: Bytes(*bytes) });
        StoredImage {
            id: image.id.clone(),
            layers: layers.collect(),
            in_use: self.users.contains_key(&image.id),
            pinned: self.pin_of(image).is_some(),
            refused: self.refused.contains_key(&image.id),
            pulled: image.tagged.and_then(|at| Some(Instant(at.duration_since(std::time::UNIX_EPOCH).ok()?))),
        }
    }

    fn pin_of(&self, image: &Image) -> Option<&str> {
        image.names.iter().chain(&image.digests).find_map(|name| self.pins.find(name))
    }

    /// The id of an image by its id, a part of that, or a name.
    fn id_of(&self, image: &str) -> Option<String> {
        if self.images.contains_key(image) {
            return Some(image.to_owned());
        }
        let full = full_name(image);
        let named = |i: &Image| i.names.iter().chain(&i.digests).any(|name| full_name(name) == full);
        let is_part = image.len() >= 12 && image.bytes().all(|byte| byte.is_ascii_hexdigit());
        let found = self.images.values().find(|i| named(i)).or_else(|| {
            let starts = |i: &&Image| i.id.strip_prefix("sha256:").is_some_and(|id| id.starts_with(image));
            self.images.values().find(|i| is_part && starts(i))
        });
        found.map(|image| image.id.clone())
    }
}

/// Whether the runtime answered, although not as asked.
fn is_answer(why: &Unavailable) -> bool {
    matches!(why, Unavailable::Refused { .. } | Unavailable::TimedOut { .. } | Unavailable::Garbled { .. })
}

/// An image's first name, or the beginning of its id.
fn title(image: &Image) -> String {
    let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
    let name = image.names.first().or(image.digests.first());
    name.cloned().unwrap_or_else(|| id.chars().take(12).collect())
}

/// A time as `3 min`.
fn age(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min", s / 60),
        s @ 3600..172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

/// Names in one line, no more than three.
fn some(names: &[String]) -> String {
    match names {
        [] => "a container".to_owned(),
        [names @ .., last] if names.len() < 3 => {
            names.iter().chain([last]).map(String::as_str).collect::<Vec<_>>().join(", ")
        }
        _ => format!("{} and {} more", names[..3].join(", "), names.len() - 3),
    }
}

impl Keeper {
    /// The state for the API.
    pub(super) fn view(&self, now: Instant) -> RuntimeImages {
        let (configured, followed) = self.order.kinds();
        let ms = |at: Instant| u64::try_from(at.0.as_millis()).unwrap_or(u64::MAX);
        let alone = self.order.alone();
        let place = |id: &str| self.plan.victims.iter().position(|victim| victim.id == id);
        let image = |(stored, pulled, used, uses): (&StoredImage, Instant, Instant, u32)| {
            let listed = self.images.get(&stored.id)?;
            let mut names = listed.names.clone();
            names.sort();
            Some(RuntimeImage {
                id: stored.id.clone(),
                names: if names.is_empty() { listed.digests.clone() } else { names },
                bytes: Bytes(listed.bytes),
                alone: alone.get(stored.id.as_str()).copied().unwrap_or_default(),
                pulled_ms: ms(pulled),
                used_ms: ms(used),
                uses,
                kept: self.order.kept(&stored.id, now).iter().map(|why| self.why(listed, why, now)).collect(),
                leaves: place(&stored.id).and_then(|place| u32::try_from(place + 1).ok()),
            })
        };
        let mut images: Vec<RuntimeImage> = self.order.images().filter_map(image).collect();
        images.sort_by(|a, b| (&a.names, &a.id).cmp(&(&b.names, &b.id)));
        RuntimeImages {
            runtime: "docker".to_owned(),
            socket: self.socket.clone(),
            dry_run: self.settings.dry_run,
            policy: configured.to_string(),
            follows: followed.to_string(),
            budget: self.settings.budget,
            bytes: self.plan.bytes,
            short: self.plan.short,
            looked_ms: self.looked.map(ms),
            problem: self.problem.clone(),
            removed: self.counts.removed,
            removed_bytes: Bytes(self.counts.removed_bytes),
            refused: self.counts.refused,
            images,
        }
    }

    /// A reason why an image stays, in words.
    fn why(&self, image: &Image, why: &Kept, now: Instant) -> String {
        match why {
            Kept::InUse => {
                format!("in use by {}", some(self.users.get(&image.id).map_or(&[], Vec::as_slice)))
            }
            Kept::Pinned => format!("pinned by {}", self.pin_of(image).unwrap_or_default()),
            Kept::Pulled(time) => format!("pulled {} ago", age(*time)),
            Kept::Used(time) => format!("used {} ago", age(*time)),
            Kept::Refused => match self.refused.get(&image.id) {
                Some((at, said)) => format!("refused by docker {} ago: {said}", age(now.since(*at))),
                None => "refused by docker".to_owned(),
            },
        }
    }
}
