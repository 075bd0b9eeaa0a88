//! The agent's part of a cluster: pods become classes, and the cluster is told what became of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weir_discovery::{Found, NsId, cgroup::Cgroup2, namespace};
use weir_units::{BitRate, Instant};

use super::{
    Agent,
    class_key::{ClassKey, ClassSource},
    class_table::{DiscoveredClass, GroupWishes},
    cni::CniContainers,
    pods::{self, PodWishes},
};
use crate::{
    config::{Config, Kubernetes},
    kubernetes::{
        Endpoint, Published, Reason, Remark, Remarks, Resources, Source, environment, place::Places,
    },
};

/// How long the agent waits for the first list before it starts without one.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// The shortest time between two discoveries for changes in the cluster. A pod that changes without end costs the
/// node no more than that.
const CHANGE_PAUSE: Duration = Duration::from_millis(200);
/// The interval between two reports.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The endpoint of `[kubernetes]`, if that is configured.
///
/// # Errors
/// A part that neither the configuration nor the environment has.
pub(super) fn endpoint(config: &Config) -> Result<Option<Endpoint>, String> {
    config.kubernetes.as_ref().map(|kubernetes| Endpoint::of(kubernetes, environment)).transpose()
}

/// A cluster that is followed, and what it was told.
struct Joined {
    config: Kubernetes,
    source: Source,
    /// No change of the cluster is looked at before.
    not_before: tokio::time::Instant,
    /// The running pods that have no class, by uid, and why.
    unplaced: BTreeMap<String, String>,
    places: Places,
    egress: Published,
    ingress: Published,
    remarks: Remarks,
    reported: Option<Instant>,
}

/// The cluster of the configuration, or none.
#[derive(Default)]
pub(super) struct Cluster(Option<Joined>);

impl Cluster {
    pub(super) fn open(config: &Config) -> Result<Cluster, String> {
        let (Some(kubernetes), Some(endpoint)) = (&config.kubernetes, endpoint(config)?) else {
            return Ok(Cluster::default());
        };
        let source = Source::open(kubernetes, endpoint, &config.agent.state);
        Ok(Cluster(Some(Joined {
            config: kubernetes.clone(),
            source,
            not_before: tokio::time::Instant::now(),
            unplaced: BTreeMap::new(),
            places: Places::default(),
            egress: Published::default(),
            ingress: Published::default(),
            remarks: Remarks::default(),
            reported: None,
        })))
    }

    /// Waits for a first answer, if no earlier agent kept one.
    pub(super) async fn first_list(&mut self) {
        let Some(joined) = &mut self.0 else { return };
        let answered = async {
            while !joined.source.followed().is_settled() && joined.source.followed().pods.len() == 0 {
                joined.source.changed().await;
            }
        };
        if tokio::time::timeout(FIRST_LIST_TIMEOUT, answered).await.is_err() {
            let name = joined.source.name();
            tracing::warn!(
                "{name} has not answered within {FIRST_LIST_TIMEOUT:?}: its pods follow when it does"
            );
        }
    }

    /// Waits for a change in the cluster, or without end if none is followed.
    pub(super) async fn changed(&mut self) {
        let Some(joined) = &mut self.0 else { return std::future::pending().await };
        tokio::time::sleep_until(joined.not_before).await;
        joined.source.changed().await;
    }

    /// Takes what is known now as seen.
    pub(super) fn take_note(&mut self) {
        if let Some(joined) = &mut self.0 {
            joined.not_before = tokio::time::Instant::now() + CHANGE_PAUSE;
            joined.source.take_note();
        }
    }

    /// Whether no pod may be missing for want of an answer.
    pub(super) fn is_complete(&self) -> bool {
        self.0.as_ref().is_none_or(|joined| joined.source.followed().is_settled())
    }

    /// The containers that CNI reported, with the present wishes of pods, and the pods that CNI did not report.
    pub(super) fn attached(&mut self, cni: &CniContainers, config: &Config) -> Vec<Found> {
        let shares_download = config.link.download.is_some();
        let Some(joined) = &mut self.0 else { return cni.found(shares_download, &PodWishes::default()) };
        let followed = joined.source.followed();
        let wishes = PodWishes::of(&joined.config, &followed);
        let mut all = cni.found(shares_download, &wishes);
        let reported = cni.pods();
        let mut taken: BTreeSet<NsId> = all.iter().filter_map(namespace).collect();
        joined.unplaced.clear();
        let mount = Cgroup2::find();
        let own = NsId::own().unwrap_or(NsId { dev: 0, ino: 0 });
        let is_new = |pod: &&crate::kubernetes::Pod| !reported.contains(&(&pod.namespace, &pod.name));
        for pod in followed.pods.all().filter(is_new) {
            match joined.places.find(mount.as_ref(), own, pod) {
                Ok(location) => {
                    let found = wishes.found(pod, location, shares_download);
                    // A namespace is one class's.
                    if namespace(&found).is_none_or(|id| taken.insert(id)) {
                        all.push(found);
                    }
                }
                Err(why) if pod.is_running => drop(joined.unplaced.insert(pod.uid.clone(), why)),
                Err(_) => {}
            }
        }
        let uids: BTreeSet<&str> = followed.pods.all().map(|pod| pod.uid.as_str()).collect();
        joined.places.retain(|uid| uids.contains(uid));
        all
    }

    /// The wishes of namespaces for their groups.
    pub(super) fn group_wishes(&self, config: &Config) -> GroupWishes {
        match &self.0 {
            Some(joined) if joined.config.namespace_groups => {
                pods::group_wishes(config, &joined.source.followed())
            }
            _ => GroupWishes::new(),
        }
    }

    /// The faults of the way to the cluster, for warnings.
    pub(super) fn faults(&self) -> Vec<String> {
        let faults = self.0.iter().flat_map(|joined| joined.source.faults());
        faults.map(|why| format!("kubernetes: {why}")).collect()
    }

    /// The name of the source, and what it told, for the doctor.
    pub(super) fn state(&self) -> Option<(String, String)> {
        let joined = self.0.as_ref()?;
        let followed = joined.source.followed();
        let (pods, unplaced) = (followed.pods.len(), joined.unplaced.len());
        let are =
            |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
        let mut text = format!("{} of node {} followed", are(pods, "pod", "pods"), joined.source.node());
        if unplaced > 0 {
            text += &format!(", {} no class", are(unplaced, "of them has", "of them have"));
        }
        Some((joined.source.name(), text))
    }
}

/// Whole Mbit/s that fit into a rate.
fn mbit(rate: BitRate) -> u64 {
    rate.0 / BitRate::mbit(1).0
}

impl Agent {
    /// Tells the cluster the unreserved bandwidth of this node, and what is not enforced for which pod.
    pub(super) fn report_to_cluster(&mut self) {
        let now = self.now();
        let Some(joined) = &self.sources.cluster.0 else { return };
        if joined.reported.is_some_and(|at| now.since(at) < REPORT_EVERY) {
            return;
        }
        // Before each class is known the promises are those of an earlier agent.
        let is_known = self.classes.is_settled() && joined.source.followed().is_listed;
        let counted =
            |key: &'static str| move |class: &DiscoveredClass| pods::is_counted(&class.asked_by, key);
        let free = (joined.config.publish && is_known).then(|| {
            let ingress = self.link.download.as_ref().filter(|d| d.classes.is_settled());
            let ingress = ingress.map(|download| mbit(download.classes.free_without(counted("down.min"))));
            (mbit(self.classes.free_without(counted("min"))), ingress)
        });
        let remarks = if joined.config.events && is_known { self.pod_remarks() } else { Vec::new() };
        let Some(joined) = &mut self.sources.cluster.0 else { return };
        joined.reported = Some(now);
        if let Some((egress, ingress)) = free {
            joined.source.publish(Resources {
                egress: Some(joined.egress.show(egress, now)),
                ingress: ingress.map(|ingress| joined.ingress.show(ingress, now)),
            });
        }
        let alive: BTreeSet<String> =
            joined.source.followed().pods.all().map(|pod| pod.uid.clone()).collect();
        for remark in joined.remarks.due(remarks, &alive, now) {
            joined.source.event(remark);
        }
    }

    /// The remarks about pods that ask for something, one for each pod and reason.
    fn pod_remarks(&self) -> Vec<Remark> {
        let Some(joined) = &self.sources.cluster.0 else { return Vec::new() };
        let mut remarks = Vec::new();
        for pod in joined.source.followed().pods.all().filter(|pod| pods::has_wishes(pod)) {
            let key = ClassKey::new(ClassSource::Cni, &pod.class_name());
            let mut add = |reason, text: String| {
                let (namespace, name, uid) = (pod.namespace.clone(), pod.name.clone(), pod.uid.clone());
                remarks.push(Remark { namespace, name, uid, reason, text });
            };
            match self.classes.entries().get(&key).filter(|entry| entry.minor.is_some()) {
                Some(entry) => {
                    if !entry.class.cut.is_empty() {
                        add(Reason::Ignored, entry.class.cut.join("; "));
                    }
                    let down = self.down(&key).and_then(|down| down.not_enforced_because);
                    let why: Vec<String> = self.problem(entry).into_iter().chain(down).collect();
                    if !why.is_empty() {
                        add(Reason::NotEnforced, why.join("; "));
                    }
                }
                None => {
                    if let Some(why) = joined.unplaced.get(&pod.uid) {
                        add(Reason::NotEnforced, format!("it has no class: {why}"));
                    }
                }
            }
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use weir_api::ClassKind;

    use super::*;
    use crate::agent::{
        by_hand::SetLayers,
        class_table::ClassTable,
        store::{Ledger, Minors, Promise},
    };

    /// The kept pods and namespaces tell the wishes. The earlier promise has its age.
    #[tokio::test]
    async fn minimum_of_a_namespace_is_kept_by_an_agent_that_gets_no_answer() {
        let dir = tempfile::tempdir().unwrap();
        let kept = r#"{"server":"http://127.0.0.1:1","node":"edge-1","pods":[],"namespaces":[
            {"name":"shop","annotations":{"kept":{"weir.dev/min":"20mbit"},"left_out":0}}]}"#;
        std::fs::write(dir.path().join("kubernetes.json"), kept).unwrap();
        let text = format!(
            "[agent]\nstate = {:?}\n[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n\
             [kubernetes]\nnode = \"edge-1\"\nserver = \"http://127.0.0.1:1\"\nnamespace_groups = true\n",
            dir.path()
        );
        let config = crate::config::parse(&text, std::path::Path::new("t.toml")).unwrap();
        let cluster = Cluster::open(&config).unwrap();
        let key = ClassKey::group("shop");
        let ledger = Ledger::from([(key.clone(), Promise::new(3, BitRate::mbit(20)))]);
        let (set, minors) = (SetLayers::new(), Minors::new());
        let mut table = ClassTable::new(config.clone(), set, minors, ledger.clone(), BitRate::ZERO);
        assert_eq!(table.ledger(), &ledger);
        table.set_group_wishes(cluster.group_wishes(&config));
        // A group lives as long as it has a member.
        let pod = DiscoveredClass {
            group: Some("shop".to_owned()),
            ..DiscoveredClass::new(ClassSource::Cni, "shop/web", ClassKind::Container)
        };
        table.update(vec![pod], cluster.is_complete());
        assert_eq!(table.ledger(), &ledger);
        assert_eq!(table.entries()[&key].effective.policy.min(), Some(BitRate::mbit(20)));
    }
}
