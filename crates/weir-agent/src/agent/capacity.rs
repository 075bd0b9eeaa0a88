//! The capacities of the link: those of the configuration, and those set by hand at run time.

use std::collections::BTreeMap;

use weir_agree::Direction;
use weir_api::{Actor, Capacity, Error, ErrorCode, EventKind, LinkView, Plan, SetCapacity};
use weir_units::BitRate;

use super::{
    Agent,
    answer::{not_stored, now_ms},
    by_hand::{ByHand, LinkByHand},
    class_table::ClassTable,
    datapath,
    download::told,
    history::History,
    store::Ledger,
};
use crate::config::{self, Config, Follows};

/// The highest capacity by hand, in configured capacities. A higher one is a mistake of a unit.
const TIMES: u64 = 100;
/// The lowest capacity by hand is this part of the configured one.
const PART: u64 = 1_000;

/// Both capacities. `None` means that the download is not shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rates {
    capacity: BitRate,
    /// The bounds between which the capacity follows the link.
    follows: Option<Follows>,
    download: Option<BitRate>,
    /// The same of the download.
    download_follows: Option<Follows>,
}

impl Rates {
    fn of(link: &config::Link) -> Rates {
        Rates {
            capacity: link.capacity,
            follows: link.follows,
            download: link.download,
            download_follows: link.download_follows,
        }
    }

    /// The capacity and the download, if it is shared.
    fn in_words(&self) -> [Option<String>; 2] {
        let download = self.download.map(|rate| config::in_words(rate, self.download_follows));
        [Some(config::in_words(self.capacity, self.follows)), download]
    }
}

/// The capacities of the configuration, and those by hand that replace them.
pub(super) struct Capacities {
    /// By the links' devices.
    configured: BTreeMap<String, Rates>,
    by_hand: ByHand,
    /// Whether those of a single link were stored and are not in force.
    are_left_out: bool,
}

impl Capacities {
    pub(super) fn new(config: &Config, mut by_hand: ByHand) -> Capacities {
        let are_left_out = config.link.is_one_of_several() && by_hand.single != LinkByHand::default();
        if are_left_out {
            by_hand.single = LinkByHand::default();
        }
        Capacities { configured: configured(config), by_hand, are_left_out }
    }

    /// Takes the capacities of a new configuration. Those by hand stay in force.
    pub(super) fn reconfigure(&mut self, config: &Config) {
        self.configured = configured(config);
    }

    /// Whether stored capacities by hand of a single link are not in force, because the configuration has several.
    pub(super) fn are_left_out(&self) -> bool {
        self.are_left_out
    }

    pub(super) fn by_hand(&self) -> &ByHand {
        &self.by_hand
    }

    /// The configured capacities of both directions of a link, where others by hand are in force.
    pub(super) fn replaced(&self, device: &str) -> (Option<BitRate>, Option<BitRate>) {
        let Some(configured) = self.configured.get(device) else { return (None, None) };
        let by_hand = self.by_hand.of(device, self.configured.len() > 1);
        let download = configured.download.filter(|_| by_hand.download.is_some());
        (by_hand.capacity.map(|_| configured.capacity), download)
    }

    /// Whether a capacity by hand is in force.
    pub(super) fn are_by_hand(&self) -> bool {
        self.configured.keys().any(|device| self.replaced(device) != (None, None))
    }

    /// Whether an undo may set the capacities by hand that the last change replaced. That change was about a single
    /// link, or about one of several.
    ///
    /// # Errors
    /// It was about another number of links than the configuration has.
    pub(super) fn fits(&self, replaced: &ByHand) -> Result<(), Error> {
        let why = match self.configured.len() > 1 {
            true if replaced.links == self.by_hand.links => {
                "it was about a single link, and there are several now; `weir link set --link DEVICE` sets one's"
            }
            false if replaced.single == self.by_hand.single => {
                "it was about several links, and there is a single one now; `weir link set` sets its capacity"
            }
            _ => return Ok(()),
        };
        let message = format!("cannot take back the last change of the capacity: {why}");
        Err(Error::new(ErrorCode::BadRequest, message))
    }

    /// A configuration from a file with the capacities by hand in place of its own.
    pub(super) fn in_force(&self, config: Config) -> Config {
        self.by_hand.over(config)
    }

    /// The capacities by hand as they are after a change of the link of this device.
    fn after(&self, device: &str, change: &SetCapacity) -> Result<ByHand, Error> {
        let is_several = self.configured.len() > 1;
        let Some(configured) = self.configured.get(device) else {
            let all: Vec<&str> = self.configured.keys().map(String::as_str).collect();
            let why = format!("cannot set the capacity of link {device}: the links are {}", all.join(", "));
            return Err(Error::new(ErrorCode::BadRequest, why));
        };
        let set = self.by_hand.of(device, is_several).after(change, *configured)?;
        let mut by_hand = self.by_hand.clone();
        if !is_several {
            by_hand.single = set;
        } else if set == LinkByHand::default() {
            by_hand.links.remove(device);
        } else {
            by_hand.links.insert(device.to_owned(), set);
        }
        Ok(by_hand)
    }
}

/// The configured capacities, by the links' devices.
fn configured(config: &Config) -> BTreeMap<String, Rates> {
    config.link.all().map(|link| (link.device.clone(), Rates::of(link))).collect()
}

impl ByHand {
    /// Those of the link of a device.
    fn of(&self, device: &str, is_several: bool) -> LinkByHand {
        if is_several { self.links.get(device).copied().unwrap_or_default() } else { self.single }
    }

    /// The configuration with these capacities in place of its own. A download that the configuration does
    /// not share stays so.
    pub(super) fn over(&self, mut config: Config) -> Config {
        let is_several = config.link.is_one_of_several();
        config.link.each(|link| {
            let LinkByHand { capacity, download } = self.of(&link.device, is_several);
            if let Some(capacity) = capacity {
                (link.capacity, link.follows) = (capacity, None);
            }
            if let (Some(_), Some(rate)) = (link.download, download) {
                (link.download, link.download_follows) = (Some(rate), None);
            }
        });
        config
    }
}

impl LinkByHand {
    /// The capacities by hand as they are after a change.
    ///
    /// # Errors
    /// A rate that no link has, a download that is not shared, or a change of nothing.
    fn after(self, change: &SetCapacity, configured: Rates) -> Result<LinkByHand, Error> {
        let cannot = |what: &str, why: String| {
            Error::new(ErrorCode::BadRequest, format!("cannot set {what} of the link: {why}"))
        };
        if (change.capacity, change.download) == (None, None) {
            return Err(cannot("nothing", "name capacity, download or both".to_owned()));
        }
        for (what, rate, configured) in [
            ("capacity", change.capacity, Some(configured.capacity)),
            ("download", change.download, configured.download),
        ] {
            let Some(rate) = rate.flatten() else { continue };
            let Some(configured) = configured else {
                let why = "the download is not shared; set [link] download in the configuration first";
                return Err(cannot(what, why.to_owned()));
            };
            let least = BitRate(configured.0 / PART).max(BitRate::kbit(64));
            let most = BitRate(configured.0.saturating_mul(TIMES)).min(BitRate::MAX);
            if !(least..=most).contains(&rate) {
                let why = format!(
                    "{rate} is not between {least} and {most}, beside the {configured} of the configuration \
                     (change [link] {what} there if it is meant)"
                );
                return Err(cannot(what, why));
            }
        }
        Ok(LinkByHand {
            capacity: change.capacity.unwrap_or(self.capacity),
            download: change.download.unwrap_or(self.download),
        })
    }
}

impl Agent {
    /// The capacities with their origins, and the minima that they leave without a promise.
    pub(super) fn link_view(&self) -> LinkView {
        let link = &self.classes.config().link;
        let (configured, configured_download) = self.capacities.replaced(&link.device);
        let capacity = |capacity, configured| Capacity { capacity, configured };
        let down = self.link.download.as_ref().map(|download| download.classes.unpromised_minima());
        let down = down.unwrap_or_default().into_iter().map(|why| told(&why));
        LinkView {
            device: link.device.clone(),
            others: self.other_links(),
            upload: capacity(self.in_force(), configured),
            framing: link.line().map(|line| line.to_string()),
            follows: self.follows(),
            download: self.link.download.as_ref().map(|down| capacity(down.in_force(), configured_download)),
            download_follows: self.download_status().and_then(|status| status.follows),
            exempt: self.link.exempt(),
            unpromised: self
                .classes
                .unpromised_minima()
                .into_iter()
                .chain(down)
                .chain(self.excess())
                .collect(),
        }
    }

    /// The reason if agreements are promised more than may be reserved of the link.
    pub(super) fn excess(&self) -> Option<String> {
        let (agreements, now) = (self.agreements.as_ref()?, self.moment().utc);
        let of = |direction| {
            let excess = agreements.excess(direction, now);
            let of_what = match direction {
                Direction::Upload => "the link",
                Direction::Download => "the download",
            };
            let text = || format!("agreements are promised {excess} more than may be reserved of {of_what}");
            (excess > BitRate::ZERO).then(text)
        };
        Direction::ALL.into_iter().filter_map(of).reduce(|all, one| format!("{all}; {one}"))
    }

    /// Sets capacities by hand, or takes those back that are `null`.
    pub(super) fn set_capacity(&mut self, change: &SetCapacity, by: &Actor) -> Result<LinkView, Error> {
        let set = self.capacity_after(change)?;
        self.change_capacity(set, by)
    }

    /// Returns to the configured capacities of all links.
    pub(super) fn reset_capacity(&mut self, by: &Actor) -> Result<LinkView, Error> {
        self.change_capacity(ByHand::default(), by)
    }

    fn change_capacity(&mut self, set: ByHand, by: &Actor) -> Result<LinkView, Error> {
        let history = self.history.after_capacity(self.capacities.by_hand(), &set, now_ms(self));
        self.put_capacity(&set, history, by, "change of the capacity")?;
        Ok(self.link_view())
    }

    /// The capacities by hand after a change. Without a device it is about the main link.
    fn capacity_after(&self, change: &SetCapacity) -> Result<ByHand, Error> {
        let main = &self.classes.config().link.device;
        self.capacities.after(change.device.as_ref().unwrap_or(main), change)
    }

    /// The effect of [`Agent::set_capacity`].
    pub(super) fn plan_capacity(&self, change: &SetCapacity) -> Result<Plan, Error> {
        Ok(self.plan_by_hand(&self.capacity_after(change)?))
    }

    /// The effect of these capacities by hand.
    pub(super) fn plan_by_hand(&self, set: &ByHand) -> Plan {
        let mut up = self.with_capacity(set);
        let mut down = self.download_with_capacity(&up);
        let excess = self.plan_agreements(&mut up, down.as_mut());
        let mut plan = self.plan_tables(&up, down.as_ref());
        plan.settings.extend(excess);
        self.plan_others(&mut plan, |other| other.planned(up.config()));
        plan
    }

    /// The class table with these capacities by hand.
    fn with_capacity(&self, set: &ByHand) -> ClassTable {
        let mut table = self.classes.clone();
        let mut config = table.config().clone();
        config.link.each(|link| {
            if let Some(rates) = self.capacities.configured.get(&link.device) {
                (link.capacity, link.follows) = (rates.capacity, rates.follows);
                (link.download, link.download_follows) = (rates.download, rates.download_follows);
            }
        });
        table.reconfigure(set.over(config));
        table
    }

    /// The class table of the download beside this one of the upload.
    fn download_with_capacity(&self, up: &ClassTable) -> Option<ClassTable> {
        let (download, config) = (self.link.download.as_ref()?, up.config().download()?);
        let mut table = download.classes.clone();
        table.reconfigure(config);
        Some(table)
    }

    /// Stores capacities by hand, then applies them.
    pub(super) fn put_capacity(
        &mut self,
        set: &ByHand,
        history: History,
        by: &Actor,
        cause: &str,
    ) -> Result<(), Error> {
        self.before_change()?;
        let before = configured(self.classes.config());
        let up = self.with_capacity(set);
        let down = self.download_with_capacity(&up);
        let ledgers: (&Ledger, Option<&Ledger>) = (up.ledger(), down.as_ref().map(ClassTable::ledger));
        self.store.save_capacity(set, ledgers, &history).map_err(not_stored)?;
        self.history = history;
        self.capacities.by_hand = set.clone();
        self.promises.saved(up.ledger().clone());
        let config = up.config().clone();
        if let (Some(agreements), Some(rules)) = (&mut self.agreements, config.agreements.clone()) {
            agreements.reconfigure(rules, &config.link);
        }
        let shape = self.link.scheduler.shape;
        self.link.scheduler.shape = datapath::shape(&config, shape.mtu, shape.has_tunnels);
        let download = config.download();
        self.classes.reconfigure(config);
        if let (Some(download), Some(config)) = (&mut self.link.download, download) {
            download.promises.saved(down.map_or_else(Ledger::new, |table| table.ledger().clone()));
            download.reconfigure(config);
        }
        self.follow_rates();
        // A follower whose bounds stay has another rate than its highest one.
        self.link.scheduler.shape.capacity = self.in_force();
        if let Some(download) = &mut self.link.download {
            let divided = download.divide();
            self.follow_up(divided);
        }
        self.allocate();
        self.reconfigure_others();
        // The answer tells of the agreements, too, whose minima do not fit any more.
        self.keep_agreements();
        let after = configured(self.classes.config());
        let undo = if cause == "undo" { " with undo" } else { "" };
        let is_several = self.classes.config().link.is_one_of_several();
        let mut told = Vec::new();
        for (device, old) in &before {
            let (new, by_hand) = (after[device], set.of(device, is_several));
            let of_link = if is_several { format!("link {device}: ") } else { String::new() };
            let by_hand = [("capacity", by_hand.capacity), ("download", by_hand.download)];
            for ((what, by_hand), words) in
                by_hand.into_iter().zip(old.in_words().into_iter().zip(new.in_words()))
            {
                let (Some(old), Some(new)) = words else { continue };
                if old != new {
                    let origin = by_hand.map_or("as configured", |_| "set by hand");
                    told.push(format!("{of_link}{what} {new}, was {old}: {origin}, by {by}{undo}"));
                }
            }
        }
        let excess = self.excess().map_or(String::new(), |why| format!("; {why}"));
        for text in told {
            self.event(EventKind::CapacityChanged, None, format!("{text}{excess}"));
        }
        self.keep_promises();
        self.keep_download_promises();
        self.after_change(by, cause);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(capacity: Option<u64>, download: Option<u64>) -> SetCapacity {
        let some = |kbit: Option<u64>| kbit.map(|kbit| Some(BitRate::kbit(kbit)));
        SetCapacity { capacity: some(capacity), download: some(download), device: None }
    }

    #[test]
    fn capacity_outside_the_bounds_is_refused_with_the_numbers() {
        let none = LinkByHand::default();
        let both = Rates {
            capacity: BitRate::mbit(95),
            follows: None,
            download: Some(BitRate::mbit(5)),
            download_follows: None,
        };
        for (kbit, download, numbers) in [
            (0, 0, "0bit is not between 95kbit and 9.5gbit, beside the 95mbit of"),
            (94, 63, "94kbit is not between 95kbit and"),
            (9_600_000, 510_000, "9.6gbit is not between 95kbit and 9.5gbit"),
        ] {
            let error = none.after(&change(Some(kbit), None), both).unwrap_err();
            assert!(error.message.contains(numbers), "{}", error.message);
            let error = none.after(&change(None, Some(download)), both).unwrap_err().message;
            assert!(error.contains("download") && error.contains("64kbit and 500mbit"), "{error}");
        }
        for (kbit, download) in [(95, 64), (9_500_000, 500_000)] {
            assert!(none.after(&change(Some(kbit), Some(download)), both).is_ok());
        }
        assert!(none.after(&change(None, None), both).unwrap_err().message.contains("name capacity"));
        let unshared = Rates { download: None, ..both };
        let error = none.after(&change(None, Some(500)), unshared).unwrap_err();
        assert!(error.message.contains("not shared"), "{}", error.message);
    }

    #[test]
    fn capacity_by_hand_replaces_the_configured_one_until_it_is_reset() {
        let text = "[link]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\ndownload = \"50mbit\"\n";
        let file = crate::config::parse(text, std::path::Path::new("test.toml")).unwrap();
        let none = Capacities::new(&file, ByHand::default());
        let set = none.after("eth0", &change(Some(30_000), None)).unwrap();
        let mut both = Capacities::new(&file, set.clone());
        let config = both.in_force(file.clone());
        assert_eq!((config.link.capacity, config.link.download), (BitRate::mbit(30), file.link.download));
        assert_eq!(both.replaced("eth0"), (Some(BitRate::mbit(95)), None));
        // A reload changes what a reset returns to.
        let mut other = file.clone();
        (other.link.capacity, other.link.download) = (BitRate::mbit(80), None);
        both.reconfigure(&other);
        assert_eq!(both.in_force(other).link.capacity, BitRate::mbit(30));
        assert_eq!(both.replaced("eth0"), (Some(BitRate::mbit(80)), None));
        let reset = SetCapacity { capacity: Some(None), ..SetCapacity::default() };
        assert_eq!(both.after("eth0", &reset).unwrap(), ByHand::default());
        let down = none.after("eth0", &change(None, Some(9_000))).unwrap();
        let mut unshared = file;
        unshared.link.download = None;
        assert_eq!(down.over(unshared).link.download, None, "a download that is not shared stays so");
    }

    #[test]
    fn each_of_several_links_has_capacities_by_hand_of_its_own() {
        let text = "[[link]]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\n[[link]]\ndevice = \"wwan0\"\ncapacity = \"9mbit\"\n";
        let file = crate::config::parse(text, std::path::Path::new("test.toml")).unwrap();
        let single = ByHand {
            single: LinkByHand { capacity: Some(BitRate::mbit(3)), download: None },
            ..ByHand::default()
        };
        // An undo would bring it back, for a later reload with a single link.
        let none = Capacities::new(&file, ByHand::default());
        let error = none.fits(&single).unwrap_err().message;
        assert!(error.contains("about a single link, and there are several now"), "{error}");
        assert!(none.fits(&ByHand::default()).is_err(), "the first capacity of the single link");
        let stored = Capacities::new(&file, single);
        assert!(stored.are_left_out(), "it is not known which link was meant");
        let set = stored.after("wwan0", &change(Some(5_000), None)).unwrap();
        assert!(none.fits(&set).is_ok());
        let text = "[link]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\n";
        let one = Capacities::new(
            &crate::config::parse(text, std::path::Path::new("test.toml")).unwrap(),
            ByHand::default(),
        );
        assert!(one.fits(&set).unwrap_err().message.contains("there is a single one now"));
        // A start with a single link keeps those of several, which are in force at none.
        let (links, single) =
            (set.links.clone(), LinkByHand { capacity: Some(BitRate::mbit(10)), download: None });
        let one = Capacities { by_hand: ByHand { single, links }, ..one };
        assert!(one.fits(&set).is_ok(), "the change was about the single link");
        let stored: ByHand = serde_json::from_str(&serde_json::to_string(&set).unwrap()).unwrap();
        let both = Capacities::new(&file, stored);
        let capacities =
            |config: &Config| config.link.all().map(|link| link.capacity.as_mbit()).collect::<Vec<_>>();
        assert_eq!(capacities(&both.in_force(file.clone())), [95.0, 5.0]);
        // The other link is the main one after a move.
        let moved = both.in_force(file.clone()).sharing("wwan0").unwrap();
        assert_eq!(capacities(&moved), [5.0, 95.0]);
        assert_eq!(both.replaced("wwan0"), (Some(BitRate::mbit(9)), None));
        assert_eq!(both.replaced("eth0"), (None, None));
        let error = both.after("eth9", &change(Some(5_000), None)).unwrap_err().message;
        assert!(error.contains("link eth9: the links are eth0, wwan0"), "{error}");
        let reset = SetCapacity { capacity: Some(None), ..SetCapacity::default() };
        assert_eq!(both.after("wwan0", &reset).unwrap(), ByHand::default());
        // The record of an older agent is read.
        let old: ByHand = serde_json::from_str("{\"capacity\":3000000,\"download\":null}").unwrap();
        assert_eq!(old.single.capacity, Some(BitRate::mbit(3)));
    }
}
