//! The effect of a change, before it is made. The change itself runs on a copy of the class table.

use std::{collections::BTreeSet, path::Path};

use weir_agree::Direction;
use weir_api::{
    ConfigurationText, Error, ErrorCode, Plan, PlannedChange, PlannedLink, PlannedSetting, PlannedState,
    PolicyView, SetPolicies,
};
use weir_units::chain;

use super::{
    Agent,
    by_hand::SetLayers,
    class_key::ClassKey,
    class_table::{ClassEntry, ClassTable, DiscoveredClass},
    download::{self, told},
    history::{BothLayers, History, Replaced},
    other_link::OtherLink,
    sources::Discovered,
    store::StoreError,
};
use crate::config::{self, Config};

impl Agent {
    /// The effect of policies set by hand.
    pub(super) fn plan_policies(&self, changes: &SetPolicies) -> Result<Plan, Error> {
        let up = self.classes.plan(changes)?;
        let down = self.plan_down(changes)?.unwrap_or_else(|| self.set_layers().down);
        Ok(self.plan_set(BothLayers { up, down }))
    }

    /// The effect of taking back the last change of policy by hand.
    pub(super) fn plan_undo(&self) -> Result<Plan, Error> {
        self.last_change().map(|(last, set, _)| match last.capacity() {
            Some(capacity) => self.plan_by_hand(capacity),
            None => self.plan_set(set),
        })
    }

    /// The effect of these policies by hand.
    pub(super) fn plan_set(&self, set: BothLayers) -> Plan {
        let with = |table: &ClassTable, set: SetLayers| {
            let mut after = table.clone();
            after.commit(set);
            after
        };
        let after = |now: Tables<'_>| {
            (with(now.up, set.up.clone()), now.down.map(|table| with(table, set.down.clone())))
        };
        let (up, down) = after(self.tables());
        let mut plan = self.plan_tables(&up, down.as_ref());
        self.plan_others(&mut plan, |other| Some(after(tables_of(other))));
        plan
    }

    /// Adds the changes on the links beside the main one. `after` gives a link's class tables after the change, and `None`
    /// for a link that is not shared then.
    pub(super) fn plan_others(
        &self,
        plan: &mut Plan,
        after: impl Fn(&OtherLink) -> Option<(ClassTable, Option<ClassTable>)>,
    ) {
        for other in &self.others {
            let Some((up, down)) = after(other) else { continue };
            add_link(plan, other.device(), tables_of(other), Tables { up: &up, down: down.as_ref() });
        }
    }

    /// The effect of these class tables in place of the present ones.
    pub(super) fn plan_tables(&self, up: &ClassTable, down: Option<&ClassTable>) -> Plan {
        let (now, after) = (self.tables(), Tables { up, down });
        let mut settings = settings(now.up.config(), up.config());
        settings.extend(promised(now, after));
        Plan { settings, classes: difference(now, after), links: Vec::new() }
    }

    /// The policies set by hand.
    pub(super) fn set_layers(&self) -> BothLayers {
        let down = self.link.download.as_ref().map(|download| download.classes.set_layers().clone());
        BothLayers { up: self.classes.set_layers().clone(), down: down.unwrap_or_default() }
    }

    fn tables(&self) -> Tables<'_> {
        Tables { up: &self.classes, down: self.link.download.as_ref().map(|download| &download.classes) }
    }

    /// The last change, the policies set by hand without it, and the changes before it.
    ///
    /// # Errors
    /// There is no change, or what it replaced does not fit any more, or it is about a download that is not
    /// shared now or about another number of links.
    pub(super) fn last_change(&self) -> Result<(Replaced, BothLayers, History), Error> {
        let Some((last, set, earlier)) = self.history.undo(&self.set_layers()) else {
            let message = "cannot take back a change of policy: none is left to take back (`weir set`, `weir unset` and \
                           the API make them, and the last 10 are kept)";
            return Err(Error::new(ErrorCode::UnknownName, message));
        };
        last.capacity().map_or(Ok(()), |by_hand| self.capacities.fits(by_hand))?;
        let cannot = |why: Error| Error {
            message: format!("cannot take back the last change of policy: {}", why.message),
            ..why
        };
        self.classes.try_out(&set.up).map_err(cannot)?;
        match &self.link.download {
            Some(download) => download
                .classes
                .try_out(&set.down)
                .map_err(|why| cannot(Error { message: told(&why.message), ..why }))?,
            None if last.is_of_download() => {
                let why = "it set policies of what arrives, and the download is not shared now; set [link] download \
                           again, and take it back then";
                return Err(cannot(Error::new(ErrorCode::BadRequest, why)));
            }
            None => {}
        }
        Ok((last, set, earlier))
    }

    /// The effect of a configuration file with this text.
    pub(super) fn plan_configuration(&mut self, file: &ConfigurationText) -> Result<Plan, Error> {
        let bad = |why: String| Error::new(ErrorCode::BadRequest, why);
        let path = Path::new(&file.path);
        let config = config::parse(&file.text, path).map_err(|e| bad(chain(&e)))?;
        // As a reload does.
        let config = config.sharing(&self.classes.config().link.device).unwrap_or(config);
        self.accept(path, &config).map_err(bad)?;
        let config = self.capacities.in_force(config);
        let (uplinks, now) = (self.uplinks(), self.now());
        let Discovered { discovery, is_complete } = self
            .sources
            .plan(&mut self.datapath.netlink, &config, &uplinks, now)
            .map_err(|e| Error::new(ErrorCode::Engine, format!("cannot look at this node: {}", chain(&e))))?;
        let down =
            self.plan_download(&config, &discovery.classes, is_complete).map_err(|e| bad(chain(&e)))?;
        let mut up = self.classes.clone();
        up.reconfigure(config.clone());
        up.update(discovery.classes.clone(), is_complete);
        let mut down = down;
        let excess = self.plan_agreements(&mut up, down.as_mut());
        let mut plan = self.plan_tables(&up, down.as_ref());
        plan.settings.extend(excess);
        self.plan_others(&mut plan, |other| {
            let (mut up, mut down) = other.planned(&config)?;
            up.update(discovery.classes.clone(), is_complete);
            if let Some(down) = &mut down {
                down.update(download::discovered(&discovery.classes), is_complete);
            }
            Some((up, down))
        });
        Ok(plan)
    }

    /// Applies the agreements to planned class tables, whose links have other capacities. Answers what would be
    /// promised to them above the reservable part, where that changes.
    pub(super) fn plan_agreements(
        &self,
        up: &mut ClassTable,
        down: Option<&mut ClassTable>,
    ) -> Vec<PlannedSetting> {
        let Some(agreements) = &self.agreements else { return Vec::new() };
        let now = self.moment().utc;
        let tables = [(Direction::Upload, Some(up), ""), (Direction::Download, down, " of download")];
        let excess = tables.into_iter().filter_map(|(direction, table, of)| {
            let after = agreements.plan(table?, direction, now);
            let before = agreements.excess(direction, now);
            setting(
                &format!("agreements above the reservable part{of}"),
                before.to_string(),
                after.to_string(),
            )
        });
        excess.collect()
    }

    /// The classes of the download under another configuration. `None` if it does not share the download.
    fn plan_download(
        &self,
        config: &Config,
        found: &[DiscoveredClass],
        is_complete: bool,
    ) -> Result<Option<ClassTable>, StoreError> {
        let Some(config) = config.download() else { return Ok(None) };
        let mut after = match &self.link.download {
            Some(download) => {
                let mut after = download.classes.clone();
                after.reconfigure(config);
                after
            }
            None => download::table(config, &self.store, self.promised_of_download())?,
        };
        after.update(download::discovered(found), is_complete);
        Ok(Some(after))
    }
}

/// The classes of both directions.
#[derive(Clone, Copy)]
struct Tables<'a> {
    up: &'a ClassTable,
    /// Those of the download, if it is shared.
    down: Option<&'a ClassTable>,
}

impl Tables<'_> {
    /// A class, if it is here.
    fn state(&self, key: &ClassKey) -> Option<PlannedState> {
        let down = self.down.and_then(|table| table.entries().get(key));
        self.up.entries().get(key).map(|entry| state(entry, down))
    }
}

/// The classes of a link beside the main one.
fn tables_of(other: &OtherLink) -> Tables<'_> {
    Tables { up: &other.classes, down: other.link.download.as_ref().map(|download| &download.classes) }
}

/// Adds the changes on a link beside the main one. A class that changes as on the main link is left out.
fn add_link(plan: &mut Plan, device: &str, before: Tables<'_>, after: Tables<'_>) {
    let on_link =
        |setting: PlannedSetting| PlannedSetting { key: format!("{} on {device}", setting.key), ..setting };
    plan.settings.extend(promised(before, after).map(on_link));
    let has_download = before.down.is_some() || after.down.is_some();
    let upload = |state: &PlannedState| match has_download {
        true => state.clone(),
        false => PlannedState { down: None, down_not_promised: None, ..state.clone() },
    };
    let same = |main: &PlannedChange, change: &PlannedChange| {
        let main = PlannedChange {
            before: main.before.as_ref().map(upload),
            after: main.after.as_ref().map(upload),
            ..main.clone()
        };
        main == *change
    };
    let mut classes = difference(before, after);
    classes.retain(|change| !plan.classes.iter().any(|main| same(main, change)));
    if !classes.is_empty() {
        plan.links.push(PlannedLink { link: device.to_owned(), classes });
    }
}

fn policy(entry: &ClassEntry) -> PolicyView {
    let effective = entry.effective;
    PolicyView {
        weight: effective.policy.weight(),
        min: effective.policy.min(),
        max: effective.policy.max(),
        weight_origin: effective.origins[0],
        min_origin: effective.origins[1],
        max_origin: effective.origins[2],
    }
}

/// A class with its part of the download.
fn state(entry: &ClassEntry, down: Option<&ClassEntry>) -> PlannedState {
    let not_promised = |entry: &ClassEntry| entry.unpromised.as_ref().map(ToString::to_string);
    PlannedState {
        policy: policy(entry),
        group: entry.class.group.clone(),
        interfaces: entry.class.ports.iter().map(|port| port.1.clone()).collect(),
        selects: entry.class.selectors.iter().map(ToString::to_string).collect(),
        present: entry.minor.is_some(),
        not_promised: not_promised(entry),
        down: down.map(policy),
        down_not_promised: down.and_then(not_promised),
    }
}

/// The classes and groups that differ.
fn difference(before: Tables<'_>, after: Tables<'_>) -> Vec<PlannedChange> {
    let keys: BTreeSet<_> = before.up.entries().keys().chain(after.up.entries().keys()).collect();
    let changes = keys.into_iter().filter_map(|key| {
        let (old, new) = (before.up.entries().get(key), after.up.entries().get(key));
        let class = &new.or(old)?.class;
        let change = PlannedChange {
            name: class.name.clone(),
            source: class.source.to_string(),
            kind: class.kind,
            before: before.state(key),
            after: after.state(key),
        };
        (change.before != change.after).then_some(change)
    });
    changes.collect()
}

/// A setting whose text differs.
fn setting(key: &str, before: String, after: String) -> Option<PlannedSetting> {
    (before != after).then(|| PlannedSetting { key: key.to_owned(), before, after })
}

/// The sums of the promised minima.
fn promised(before: Tables<'_>, after: Tables<'_>) -> impl Iterator<Item = PlannedSetting> {
    let text = |table: &ClassTable| {
        let reservation = table.reservation();
        format!("{} of {}", reservation.reserved, reservation.reservable)
    };
    let down = before.down.zip(after.down);
    let down = down.and_then(|(before, after)| setting("promised of download", text(before), text(after)));
    setting("promised", text(before.up), text(after.up)).into_iter().chain(down)
}

/// The settings beside classes that differ. A long section has no values. Of several links each has its own.
fn settings(old: &Config, new: &Config) -> Vec<PlannedSetting> {
    let named = |device: &str, setting: PlannedSetting| match setting.key.strip_prefix("[link]") {
        Some(key) if new.link.is_one_of_several() => {
            PlannedSetting { key: format!("[[link]] {device}:{key}"), ..setting }
        }
        _ => setting,
    };
    let main = settings_of_link(old, new).into_iter().map(|setting| named(&new.link.device, setting));
    let mut all: Vec<PlannedSetting> = main.collect();
    let gone = |link: &&config::Link| !new.link.all().any(|other| other.device == link.device);
    all.extend(old.link.all().filter(gone).filter_map(|link| {
        setting(&format!("[[link]] {}", link.device), link.capacity_in_words(), "not shared".to_owned())
    }));
    for link in &new.link.others {
        let Some(after) = new.sharing(&link.device) else { continue };
        match old.sharing(&link.device) {
            Some(before) => {
                let own = settings_of_link(&before, &after);
                let own = own.into_iter().filter(|setting| setting.key.starts_with("[link]"));
                all.extend(own.map(|setting| named(&link.device, setting)));
            }
            None => all.extend(setting(
                &format!("[[link]] {}", link.device),
                "not shared".to_owned(),
                link.capacity_in_words(),
            )),
        }
    }
    all
}

/// The settings of the main link, and those of no link.
fn settings_of_link(old: &Config, new: &Config) -> Vec<PlannedSetting> {
    let (a, b) = (&old.link, &new.link);
    let yes = |on: bool| if on { "true" } else { "false" }.to_owned();
    let networks = |all: &[ipnet::IpNet]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let shared = |link: &config::Link| {
        link.of_download().map_or("not shared".to_owned(), |down| down.capacity_in_words())
    };
    let framing =
        |link: &config::Link| link.line().map_or("as tc counts".to_owned(), |line| line.to_string());
    let part = |reservable: weir_share::Reservable| f64::from(reservable).to_string();
    let values = [
        setting("[link] capacity", a.capacity_in_words(), b.capacity_in_words()),
        setting("[link] download", shared(a), shared(b)),
        setting("[link] charge_drops", yes(a.charge_drops), yes(b.charge_drops)),
        setting("[link] framing", framing(a), framing(b)),
        setting("[link] allocator", old.allocator().to_string(), new.allocator().to_string()),
        setting("[link] delay_ms", a.delay_ms.to_string(), b.delay_ms.to_string()),
        setting("[link] reservable", part(a.reservable), part(b.reservable)),
        setting("[link] local", networks(&a.local), networks(&b.local)),
        setting("[link] exempt", a.exempt.to_string(), b.exempt.to_string()),
        setting("[link] charge_local", yes(a.charge_local), yes(b.charge_local)),
        setting("[link] priority", yes(a.priority), yes(b.priority)),
    ];
    let section = |name: &str, differs: bool| {
        differs.then(|| PlannedSetting {
            key: name.to_owned(),
            before: "as now".to_owned(),
            after: "changed".to_owned(),
        })
    };
    let sections = [
        section("[link] split", a.split != b.split),
        section("[discover]", old.discover != new.discover),
        section("[labels]", old.labels != new.labels),
        section("[[congestion]]", old.congestion != new.congestion),
        section("[advice]", old.advice != new.advice),
        section("[agreements]", old.agreements != new.agreements),
        section("[images]", old.images != new.images),
        section("[access]", old.access != new.access),
        section("[api]", old.api != new.api),
        section("[kubernetes]", old.kubernetes != new.kubernetes),
        section("[agent]", old.agent != new.agent),
    ];
    values.into_iter().chain(sections).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_each_link_are_told_by_its_device() {
        let read = |text: &str| config::parse(text, Path::new("test.toml")).unwrap();
        let table = |device: &str, more: &str| format!("[[link]]\ndevice = \"{device}\"\n{more}\n");
        let (first, second) =
            (table("eth0", "capacity = \"95mbit\""), table("wwan0", "capacity = \"9mbit\""));
        let old = read(&format!("{first}{second}"));
        let first_now = first.replace("95mbit", "94mbit");
        let other = table("wwan0", "capacity = \"5mbit\"\ndelay_ms = 80");
        let new = read(&format!("{first_now}{other}{}", table("wwan1", "capacity = \"3mbit\"")));
        let told = |old: &Config, new: &Config| -> Vec<String> {
            let line = |s: PlannedSetting| format!("{} {} {}", s.key, s.before, s.after);
            settings(old, new).into_iter().map(line).collect()
        };
        assert_eq!(
            told(&old, &new),
            [
                "[[link]] eth0: capacity 95mbit 94mbit",
                "[[link]] wwan0: capacity 9mbit 5mbit",
                "[[link]] wwan0: delay_ms 50 80",
                "[[link]] wwan1 not shared 3mbit"
            ]
        );
        let single = read(&first.replace("[[link]]", "[link]"));
        assert_eq!(told(&old, &single), ["[[link]] wwan0 9mbit not shared"]);
        assert_eq!(told(&old, &old), Vec::<String>::new());
    }

    #[test]
    fn minimum_that_another_link_cannot_promise_is_planned_for_that_link() {
        let config = |mbit| {
            let text = "[link]\ndevice = \"wwan0\"\ncapacity = \"95mbit\"\n[[class]]\nname = \"cam\"\nmin = \"8mbit\"";
            let mut config = config::parse(text, Path::new("test.toml")).unwrap();
            config.link.capacity = weir_units::BitRate::mbit(mbit);
            config
        };
        let table = |mbit| {
            let mut table = ClassTable::new(
                config(mbit),
                SetLayers::new(),
                Default::default(),
                Default::default(),
                weir_units::BitRate::ZERO,
            );
            table.update(Vec::new(), true);
            table
        };
        let (main, before) = (table(95), table(9));
        let after = before.under(config(3));
        let tables = |up| Tables { up, down: None };
        let mut plan = Plan {
            settings: Vec::new(),
            classes: difference(tables(&main), tables(&main)),
            links: Vec::new(),
        };
        add_link(&mut plan, "wwan0", tables(&before), tables(&after));
        let settings: Vec<String> =
            plan.settings.iter().map(|s| format!("{}: {} {}", s.key, s.before, s.after)).collect();
        assert_eq!(settings, ["promised on wwan0: 8mbit of 8.55mbit 0bit of 2.85mbit"]);
        assert_eq!((plan.links.len(), plan.links[0].link.as_str()), (1, "wwan0"));
        let cam = plan.links[0].classes.iter().find(|change| change.name == "cam").unwrap();
        let why = cam.after.as_ref().unwrap().not_promised.as_deref();
        assert_eq!(
            why,
            Some("its minimum of 8mbit is not promised: the whole link has 3mbit, 2.85mbit are free")
        );
        assert_eq!(cam.before.as_ref().unwrap().not_promised, None);

        // A change that the main link has too is told once.
        plan.classes = plan.links.remove(0).classes;
        add_link(&mut plan, "wwan0", tables(&before), tables(&after));
        assert_eq!(plan.links, []);
    }

    #[test]
    fn sections_that_a_reload_applies_are_named() {
        let read = |text: &str| config::parse(text, Path::new("test.toml")).unwrap();
        let link = "[link]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\n";
        let old = read(link);
        for (section, line) in [("api", "listen = \"127.0.0.1:9798\""), ("agent", "audit_files = 3")] {
            let new = read(&format!("{link}[{section}]\n{line}\n"));
            let told: Vec<String> = settings(&old, &new).into_iter().map(|s| s.key).collect();
            assert_eq!(told, [format!("[{section}]")]);
        }
    }
}
