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
    class_table::{ClassTable, GroupWishes},
    cni::CniContainers,
    pods::{self, PodWishes},
};
use crate::{
    config::{Config, Kubernetes},
    kubernetes::{
        Endpoint, Limits, Pod, Published, Reason, Remark, Remarks, Resources, Source, environment,
        place::Places,
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
        let wishes = PodWishes::of(config, &joined.config, &followed);
        let mut all = cni.found(shares_download, &wishes);
        let reported = cni.pods();
        let mut taken: BTreeSet<NsId> = all.iter().filter_map(namespace).collect();
        joined.unplaced.clear();
        let mount = Cgroup2::find();
        let own = NsId::own().unwrap_or(NsId { dev: 0, ino: 0 });
        let is_new = |pod: &&Pod| !reported.contains(&(&pod.namespace, &pod.name));
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

/// The bandwidth that the node's status is to show, Mbit/s: the rate that a new class can be promised, and the limits of
/// the pods that have their promise. The scheduler subtracts the limits of all pods of the node. A pod without a promise
/// takes none of the free rate yet, so its limit is not added.
fn shown<'a>(
    classes: &ClassTable,
    pods: impl Iterator<Item = &'a Pod>,
    limit: impl Fn(&Limits) -> Option<u64>,
) -> u64 {
    let is_promised = |pod: &Pod| {
        let entry = classes.entries().get(&ClassKey::new(ClassSource::Cni, &pod.class_name()));
        entry.is_some_and(|entry| {
            entry.minor.is_some() && entry.unpromised.is_none() && entry.effective.policy.min().is_some()
        })
    };
    let limits = pods.filter_map(|pod| limit(&pod.limits).filter(|_| is_promised(pod)));
    limits.fold(mbit(classes.reservation().free()), u64::saturating_add)
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
        let shown = (joined.config.publish && is_known).then(|| {
            let followed = joined.source.followed();
            let ingress = self.link.download.as_ref().filter(|d| d.classes.is_settled());
            let ingress = ingress
                .map(|download| shown(&download.classes, followed.pods.all(), |limits| limits.ingress));
            (shown(&self.classes, followed.pods.all(), |limits| limits.egress), ingress)
        });
        let remarks = if joined.config.events && is_known { self.pod_remarks() } else { Vec::new() };
        let Some(joined) = &mut self.sources.cluster.0 else { return };
        joined.reported = Some(now);
        if let Some((egress, ingress)) = shown {
            joined.source.publish(Resources {
                egress: Some(joined.egress.show(egress, now)),
                ingress: ingress.map(|ingress| joined.ingress.show(ingress, now)),
            });
        }
        let alive: BTreeSet<String> =
            joined.source.followed().pods.all().map(|pod| pod.uid.clone()).collect();
        while let Some(remark) = joined.source.unwritten() {
            joined.remarks.take_back(&remark, now);
        }
        for remark in joined.remarks.due(remarks, &alive, now) {
            if let Err(remark) = joined.source.event(remark) {
                joined.remarks.take_back(&remark, now);
            }
        }
        if !joined.remarks.has_unwritten(now) {
            joined.source.no_event_waits();
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
    use proptest::prelude::*;
    use weir_api::{ClassKind, PolicyChange, SetPolicies};

    use super::*;
    use crate::agent::{
        by_hand::SetLayers,
        class_table::{DiscoveredClass, GroupWish},
        store::{Ledger, Minors, Promise},
    };
    use crate::config::Layer;

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

    /// The wishes of a pod, Mbit/s.
    #[derive(Debug, Clone, Copy, Default)]
    struct Asks {
        /// Its namespace, which is a group.
        namespace: usize,
        limit: Option<u64>,
        annotation: Option<u64>,
        by_hand: Option<u64>,
    }

    const NAMESPACES: [&str; 3] = ["shop", "other", "third"];

    fn layer(min: Option<u64>) -> Layer {
        Layer { min: min.map(BitRate::mbit), ..Layer::default() }
    }

    fn class_of(name: &str, group: Option<&str>, min: Option<u64>) -> DiscoveredClass {
        DiscoveredClass {
            group: group.map(str::to_owned),
            label: layer(min),
            ..DiscoveredClass::new(ClassSource::Cni, name, ClassKind::Container)
        }
    }

    /// The table of a link of 100 Mbit/s with these minima of namespaces and these pods, and the pods.
    fn node(minima: [Option<u64>; 3], asks: &[Asks]) -> (ClassTable, Vec<Pod>) {
        let text = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n";
        let config = crate::config::parse(text, std::path::Path::new("t.toml")).unwrap();
        let mut table =
            ClassTable::new(config, SetLayers::new(), Minors::new(), Ledger::new(), BitRate::ZERO);
        let wish = |min| GroupWish { label: layer(min), ..GroupWish::default() };
        let wishes = NAMESPACES.iter().zip(minima).map(|(name, min)| ((*name).to_owned(), wish(min)));
        table.set_group_wishes(wishes.collect());
        let (mut found, mut pods) = (Vec::new(), Vec::new());
        for (n, asks) in asks.iter().enumerate() {
            let namespace = NAMESPACES[asks.namespace].to_owned();
            let (name, limits) = (format!("p{n}"), Limits { egress: asks.limit, ingress: None });
            let pod = Pod { namespace, name, uid: n.to_string(), limits, ..Pod::default() };
            found.push(class_of(&pod.class_name(), Some(&pod.namespace), asks.limit.or(asks.annotation)));
            table.update(found.clone(), true);
            if let Some(min) = asks.by_hand {
                let min = Some(Some(BitRate::mbit(min)));
                let change = PolicyChange { name: pod.class_name(), min, ..PolicyChange::default() };
                // One that does not fit is refused.
                if let Ok(set) = table.plan(&SetPolicies { changes: vec![change], allow_absent: false }) {
                    table.commit(set);
                }
            }
            pods.push(pod);
        }
        (table, pods)
    }

    fn shown_upload(minima: [Option<u64>; 3], asks: &[Asks]) -> u64 {
        let (table, pods) = node(minima, asks);
        shown(&table, pods.iter(), |limits| limits.egress)
    }

    #[test]
    fn a_status_has_what_is_free_and_what_the_scheduler_subtracts() {
        let limit = |namespace, mbit| Asks { namespace, limit: Some(mbit), ..Asks::default() };
        let asking = |namespace, mbit| Asks { namespace, annotation: Some(mbit), ..Asks::default() };
        let none = [None; 3];
        assert_eq!(shown_upload(none, &[limit(0, 80)]), 95);
        assert_eq!(shown_upload(none, &[limit(0, 80), asking(1, 90)]), 95, "a refused minimum takes nothing");
        assert_eq!(shown_upload(none, &[limit(0, 80), asking(1, 10)]), 85);
        // A namespace was promised 50, and 45 are free beside it.
        let shop = [Some(50), None, None];
        assert_eq!(shown_upload(shop, &[limit(0, 40)]), 45 + 40);
        assert_eq!(shown_upload(shop, &[asking(0, 10), limit(0, 40)]), 45 + 40);
        // The second one is refused, and waits.
        assert_eq!(shown_upload(shop, &[limit(0, 40), limit(0, 40)]), 45 + 40);
        // The minimum by hand takes the place of the limit. The scheduler goes on to subtract the limit.
        for (by_hand, free) in [(30, 15), (10, 35), (40, 5)] {
            let asks = Asks { by_hand: Some(by_hand), ..limit(1, 30) };
            assert_eq!(shown_upload(shop, &[limit(0, 40), asks]), free + 40 + 30);
        }
    }

    fn asks() -> impl Strategy<Value = Asks> {
        let mbit = || prop::option::of(1..70u64);
        (0..3usize, mbit(), mbit(), mbit()).prop_map(|(namespace, limit, annotation, by_hand)| Asks {
            namespace,
            limit,
            annotation,
            by_hand,
        })
    }

    proptest! {
        /// The model tries: the pod that the scheduler sees room for gets its promise, and a larger one does not.
        #[test]
        fn pod_that_fits_into_a_status_gets_its_promise(
            minima in [prop::option::of(1..70u64), prop::option::of(1..70u64), prop::option::of(1..70u64)],
            asks in prop::collection::vec(asks(), 0..8),
        ) {
            let (table, pods) = node(minima, &asks);
            let has_promise = |pod: &&Pod| {
                let key = ClassKey::new(ClassSource::Cni, &pod.class_name());
                table.ledger().get(&key).is_some_and(|promise| promise.in_force().is_some())
                    && table.entries()[&key].unpromised.is_none()
            };
            let subtracted: u64 = pods.iter().filter(has_promise).filter_map(|pod| pod.limits.egress).sum();
            let free = shown(&table, pods.iter(), |limits| limits.egress) - subtracted;
            let is_promised = |mbit: u64| {
                let mut table = table.clone();
                let pod = |pod: &Pod| table.entries()[&ClassKey::new(ClassSource::Cni, &pod.class_name())].class.clone();
                let mut found: Vec<DiscoveredClass> = pods.iter().map(pod).collect();
                found.push(class_of("new/pod", None, Some(mbit)));
                table.update(found, true);
                table.entries()[&ClassKey::new(ClassSource::Cni, "new/pod")].unpromised.is_none()
            };
            prop_assert!(free == 0 || is_promised(free), "{free}");
            prop_assert!(!is_promised(free + 1), "{free}");
        }
    }
}
