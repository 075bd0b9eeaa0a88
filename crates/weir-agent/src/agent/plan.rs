//! The effect of a change, before it is made. The change itself runs on a copy of the class table.

use std::{collections::BTreeSet, path::Path};

use weir_api::{
    ConfigurationText, Error, ErrorCode, Plan, PlannedChange, PlannedSetting, PlannedState, PolicyView,
    SetPolicies,
};
use weir_discovery::docker::Unavailable;
use weir_units::chain;

use super::{
    Agent,
    class_table::{ClassEntry, ClassTable},
    discover,
    history::{History, Replaced},
    store::SetLayers,
};
use crate::config::{self, Config};

impl Agent {
    /// The effect of policies set by hand.
    pub(super) fn plan_policies(&self, changes: &SetPolicies) -> Result<Plan, Error> {
        self.classes.plan(changes).map(|set| self.plan_set(set))
    }

    /// The effect of taking back the last change of policy by hand.
    pub(super) fn plan_undo(&self) -> Result<Plan, Error> {
        self.last_change().map(|(_, set, _)| self.plan_set(set))
    }

    /// The effect of these policies by hand.
    pub(super) fn plan_set(&self, set: SetLayers) -> Plan {
        let mut after = self.classes.clone();
        after.commit(set);
        Plan {
            settings: promised(&self.classes, &after).into_iter().collect(),
            classes: difference(&self.classes, &after),
        }
    }

    /// The last change, the policies set by hand without it, and the changes before it.
    ///
    /// # Errors
    /// There is no change, or what it replaced does not fit any more.
    pub(super) fn last_change(&self) -> Result<(Replaced, SetLayers, History), Error> {
        let Some((last, set, earlier)) = self.history.undo(self.classes.set_layers()) else {
            let message = "cannot take back a change of policy: none is left to take back (`weir set`, `weir unset` and \
                           the API make them, and the last 10 are kept)";
            return Err(Error::new(ErrorCode::UnknownName, message));
        };
        self.classes.try_out(&set).map_err(|why| Error {
            message: format!("cannot take back the last change of policy: {}", why.message),
            ..why
        })?;
        Ok((last, set, earlier))
    }

    /// The effect of a configuration file with this text.
    pub(super) fn plan_configuration(&mut self, file: &ConfigurationText) -> Result<Plan, Error> {
        let bad = |why: String| Error::new(ErrorCode::BadRequest, why);
        let path = Path::new(&file.path);
        let config = config::parse(&file.text, path).map_err(|e| bad(chain(&e)))?;
        self.accept(path, &config).map_err(bad)?;
        let snapshot = self.docker.snapshot();
        let docker_told = snapshot.as_ref().is_none_or(|s| !matches!(s.error, Some(Unavailable::NotYet)));
        let uplink = self.datapath.attachments.uplink();
        // A plan leaves the time for which a namespace waits for its owner.
        let sources = discover::Sources {
            attached: &self.cni.found(),
            docker: snapshot.as_ref(),
            unclaimed: &mut self.unclaimed.clone(),
            now: self.now(),
        };
        let discovery = discover::discover(&mut self.datapath.netlink, &config, sources, uplink)
            .map_err(|e| Error::new(ErrorCode::Engine, format!("cannot look at this node: {}", chain(&e))))?;
        let mut settings = settings(self.classes.config(), &config);
        let mut after = self.classes.clone();
        after.reconfigure(config);
        after.update(discovery.classes, docker_told);
        settings.extend(promised(&self.classes, &after));
        Ok(Plan { settings, classes: difference(&self.classes, &after) })
    }
}

/// A class in a table.
fn state(entry: &ClassEntry) -> PlannedState {
    let effective = entry.effective;
    PlannedState {
        policy: PolicyView {
            weight: effective.policy.weight(),
            min: effective.policy.min(),
            max: effective.policy.max(),
            weight_origin: effective.origins[0],
            min_origin: effective.origins[1],
            max_origin: effective.origins[2],
        },
        group: entry.class.group.clone(),
        interfaces: entry.class.ports.iter().map(|port| port.1.clone()).collect(),
        selects: entry.class.selectors.iter().map(ToString::to_string).collect(),
        present: entry.minor.is_some(),
        not_promised: entry.unpromised.as_ref().map(ToString::to_string),
    }
}

/// The classes and groups that differ.
fn difference(before: &ClassTable, after: &ClassTable) -> Vec<PlannedChange> {
    let keys: BTreeSet<_> = before.entries().keys().chain(after.entries().keys()).collect();
    let changes = keys.into_iter().filter_map(|key| {
        let (old, new) = (before.entries().get(key), after.entries().get(key));
        let class = &new.or(old)?.class;
        let change = PlannedChange {
            name: class.name.clone(),
            source: class.source.to_string(),
            kind: class.kind,
            before: old.map(state),
            after: new.map(state),
        };
        (change.before != change.after).then_some(change)
    });
    changes.collect()
}

/// A setting whose text differs.
fn setting(key: &str, before: String, after: String) -> Option<PlannedSetting> {
    (before != after).then(|| PlannedSetting { key: key.to_owned(), before, after })
}

/// The sum of the promised minima.
fn promised(before: &ClassTable, after: &ClassTable) -> Option<PlannedSetting> {
    let text = |table: &ClassTable| {
        let reservation = table.reservation();
        format!("{} of {}", reservation.reserved, reservation.reservable)
    };
    setting("promised", text(before), text(after))
}

/// The settings beside classes that differ. A long section has no values.
fn settings(old: &Config, new: &Config) -> Vec<PlannedSetting> {
    let (a, b) = (&old.link, &new.link);
    let yes = |on: bool| if on { "true" } else { "false" }.to_owned();
    let networks = |all: &[ipnet::IpNet]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let part = |reservable: weir_share::Reservable| f64::from(reservable).to_string();
    let values = [
        setting("[link] capacity", a.capacity.to_string(), b.capacity.to_string()),
        setting("[link] allocator", old.allocator().to_string(), new.allocator().to_string()),
        setting("[link] delay_ms", a.delay_ms.to_string(), b.delay_ms.to_string()),
        setting("[link] reservable", part(a.reservable), part(b.reservable)),
        setting("[link] local", networks(&a.local), networks(&b.local)),
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
    ];
    values.into_iter().chain(sections).flatten().collect()
}
