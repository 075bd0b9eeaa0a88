//! The agent's answers about the download.

use weir_api::{ClassKind, DownloadStatus, NotEnforced};
use weir_share::Bound;
use weir_units::BitRate;

use super::{
    Agent,
    autorate::in_words,
    class_key::ClassKey,
    class_table::ClassEntry,
    download::{Download, told},
    figures::Figures,
    uplink::Uplink,
    views::unpromised,
};

impl Agent {
    pub(super) fn download_status(&self) -> Option<DownloadStatus> {
        self.link.download_status(self.capacities.replaced(&self.classes.config().link.device).1)
    }

    /// The reason if no class's policy of what arrives is enforced.
    pub(super) fn download_fault(&self) -> Option<String> {
        self.link.fault_of_download().map(|(_, why)| why)
    }

    pub(super) fn download_warnings(&self) -> Vec<String> {
        let Some(download) = &self.link.download else { return Vec::new() };
        let promises = download.promises.error().cloned();
        let all = self.download_fault().into_iter().chain(promises).chain(unpromised(&download.classes));
        all.map(|why| told(&why)).collect()
    }

    /// A class's part of what arrives by the main link. `None` if it has none.
    pub(super) fn down(&self, key: &ClassKey) -> Option<weir_api::Download> {
        self.link.down(key)
    }

    /// The reasons for a class's part of what arrives.
    pub(super) fn explain_download(&self, key: &ClassKey) -> Vec<String> {
        let Some(download) = &self.link.download else { return Vec::new() };
        let Some(entry) = download.classes.entries().get(key) else {
            let kind = self.classes.entries().get(key).map(|entry| entry.class.kind);
            let why = match kind {
                Some(ClassKind::Selector) => {
                    "it selects packets that leave; what arrives belongs to the sender's class"
                }
                _ => "no class of the download has this name",
            };
            return vec![told(&format!("it has no policy of what arrives: {why}"))];
        };
        let mut reasons = Vec::new();
        reasons.extend(self.download_status().and_then(|status| status.follows).map(|follows| {
            let (min, max) = (follows.min, follows.max);
            format!("the capacity follows its rate between {min} and {max}: {}", in_words(&follows))
        }));
        if let Some(down) = self.down(key) {
            reasons.extend(down.not_enforced_because.iter().map(|why| format!("not enforced: {why}")));
            reasons.extend(explain_share(download, key, entry));
            reasons.extend(explain_charge(download, entry));
            if down.drops > 0 {
                reasons.push(format!("{} packets were dropped because its queue was full", down.drops));
            }
        }
        reasons.iter().map(|reason| told(reason)).collect()
    }
}

impl Uplink {
    /// The state of what arrives. `configured_capacity` is the replaced one, if another one by hand is in force.
    pub(super) fn download_status(&self, configured_capacity: Option<BitRate>) -> Option<DownloadStatus> {
        let download = self.download.as_ref()?;
        let reservation = download.classes.reservation();
        let (device, engine) = download.device();
        let followed = || download.allocations.all();
        Some(DownloadStatus {
            capacity: download.in_force(),
            configured_capacity,
            follows: download.follower.as_ref().map(|follower| follower.view(self.programs.as_ref())),
            rate: BitRate(followed().map(|f| f.estimator.rate().0).sum()),
            reserved: reservation.reserved,
            reservable: reservation.reservable,
            charged: download.charges.of_link(),
            engine: engine.name().to_owned(),
            device: device.to_owned(),
            active: followed().filter(|f| f.estimator.demand().is_active()).count(),
            conntrack: download.asks_conntrack(),
        })
    }

    /// The reason if no class's policy of what arrives is enforced.
    fn fault_of_download(&self) -> Option<(NotEnforced, String)> {
        let download = self.download.as_ref()?;
        let fault = download.fault().map(|error| format!("the scheduler has a fault: {error}"));
        let uplink = || Some((NotEnforced::Uplink, self.scheduler.uplink_failure.clone()?));
        fault.map(|why| (NotEnforced::Scheduler, why)).or_else(uplink)
    }

    /// A class's part of what arrives. `None` if it has none.
    pub(super) fn down(&self, key: &ClassKey) -> Option<weir_api::Download> {
        let download = self.download.as_ref()?;
        let entry = download.classes.entries().get(key)?;
        let Figures {
            activity,
            policy,
            allocation,
            rate,
            demand,
            bytes,
            packets,
            drops,
            backlog,
            backlog_packets,
            unpromised,
            ..
        } = Figures::of(&download.classes, &download.allocations, entry);
        let sender = || Some((NotEnforced::Sender, entry.class.problem.clone()?));
        let unpromised_min = || Some((NotEnforced::Unpromised, entry.unpromised.as_ref()?.to_string()));
        let problem = self.fault_of_download().or_else(sender).or_else(unpromised_min);
        let (not_enforced, problem) = problem.unzip();
        Some(weir_api::Download {
            activity,
            policy,
            allocation,
            rate,
            demand,
            bytes,
            packets,
            drops,
            charged: entry.minor.map_or(BitRate::ZERO, |minor| download.charges.of_class(minor)),
            backlog,
            backlog_packets,
            enforced: problem.is_none(),
            not_enforced,
            not_enforced_because: problem,
            unpromised,
        })
    }
}

/// The rates that a class and the link pay for dropped packets.
fn explain_charge(download: &Download, entry: &ClassEntry) -> Option<String> {
    let (own, of_link) = (download.charges.of_class(entry.minor?), download.charges.of_link());
    match (own > BitRate::ZERO, of_link > BitRate::ZERO) {
        (false, false) => None,
        (true, false) => Some(format!("{own} of its share pay for packets that its queue dropped")),
        (false, true) => Some(format!("{of_link} of the link pay for packets that queues dropped")),
        (true, true) => Some(format!(
            "{own} of its share, and {of_link} of the link, pay for packets that queues dropped"
        )),
    }
}

fn explain_share(download: &Download, key: &ClassKey, entry: &ClassEntry) -> Option<String> {
    let followed = download.allocations.get(key)?;
    let (allocation, rate) = (followed.allocation, followed.estimator.rate());
    let weight = entry.effective.policy.weight();
    // A class that pays for drops is limited as by a maximum.
    let pays = download.charges.of_class(followed.minor) > BitRate::ZERO;
    let whole = match &entry.class.group {
        Some(group) => format!("group {group}'s part"),
        None => format!("the {} that arrive", download.in_force()),
    };
    let decides = match followed.bound {
        Bound::Idle => return Some(format!("nothing arrives for it now; its weight is {weight}")),
        Bound::Demand => "which is all that comes for it",
        Bound::Floor => "its minimum",
        Bound::Ceiling if pays => "its share without what it pays",
        Bound::Ceiling => "its maximum",
        Bound::Weight => "by weight",
    };
    Some(format!("receives {rate} now and may receive {allocation} of {whole}, {decides} (weight {weight})"))
}
