//! The parts of the API server's objects that the agent keeps. All else in an answer is skipped.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};

use crate::config::is_name;

/// The longest value of an annotation that is kept, bytes.
const MAX_VALUE: usize = 512;
/// The most unknown annotations `weir.dev/...` that are kept, to be named in remarks.
const MAX_UNKNOWN: usize = 16;

/// The annotation of the server's copy of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The annotations that weir reads.
pub(crate) const KNOWN: [&str; 9] = [
    "kubernetes.io/egress-bandwidth",
    "kubernetes.io/ingress-bandwidth",
    "weir.dev/down.max",
    "weir.dev/down.min",
    "weir.dev/down.weight",
    "weir.dev/group",
    "weir.dev/max",
    "weir.dev/min",
    "weir.dev/weight",
];

/// The annotations of an object that are about bandwidth.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Annotations {
    pub(crate) kept: BTreeMap<String, String>,
    /// The number of further annotations `weir.dev/...` that were not kept.
    pub(crate) left_out: usize,
    /// Whether they are those of a static pod. The kubelet gives such a pod another uid than the server.
    #[serde(default)]
    pub(crate) is_static: bool,
}

impl Annotations {
    fn add(&mut self, key: String, value: String) {
        self.is_static |= key == MIRROR;
        let is_known = KNOWN.contains(&key.as_str());
        if !is_known && !key.starts_with("weir.dev/") {
            return;
        }
        let unknown = self.kept.keys().filter(|key| !KNOWN.contains(&key.as_str())).count();
        if key.len() > MAX_VALUE || (!is_known && unknown >= MAX_UNKNOWN) {
            self.left_out += 1;
            return;
        }
        let value = if value.len() > MAX_VALUE {
            // No rate, weight or name reads like this, so the value is named as ignored.
            format!("{}...", value.chars().take(128).collect::<String>())
        } else {
            value
        };
        self.kept.insert(key, value);
    }
}

/// Reads a map and forgets what is not kept at once.
fn annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Annotations, D::Error> {
    struct Reader;
    impl<'de> Visitor<'de> for Reader {
        type Value = Annotations;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }
        fn visit_unit<E>(self) -> Result<Annotations, E> {
            Ok(Annotations::default())
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
            let mut annotations = Annotations::default();
            while let Some(key) = map.next_key::<String>()? {
                annotations.add(key, map.next_value()?);
            }
            Ok(annotations)
        }
    }
    deserializer.deserialize_any(Reader)
}

/// `metadata`
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    #[serde(deserialize_with = "annotations")]
    pub(super) annotations: Annotations,
}

/// An object of a followed collection.
pub(crate) trait Object: Sized + Clone + PartialEq {
    /// The JSON that it is read from.
    type Raw: for<'de> Deserialize<'de>;

    /// The object and its key. `None` for one that is not of use, or makes no sense.
    fn read(raw: Self::Raw) -> Option<(String, Self)>;
    /// The key of an object that is gone, and the version of the collection.
    fn identity(raw: &Self::Raw) -> (String, String);
}

/// The bandwidth that a pod's resource limits ask for, Mbit/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) egress: Option<u64>,
    pub(crate) ingress: Option<u64>,
}

/// A pod of this node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) annotations: Annotations,
    pub(crate) limits: Limits,
    /// Whether it uses the node's own network.
    pub(crate) host_network: bool,
    /// Whether the kubelet says that it runs.
    pub(crate) is_running: bool,
}

impl Pod {
    /// `NAMESPACE/POD`, the name of its class.
    pub(crate) fn class_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A pod as the API server writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawPod {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(deserialize_with = "nullable")]
    containers: Vec<Container>,
    #[serde(deserialize_with = "nullable")]
    init_containers: Vec<Container>,
    host_network: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    restart_policy: Option<String>,
    resources: Option<Resources>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "nullable")]
    limits: Amounts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Amounts {
    #[serde(rename = "weir.dev/egress-mbit")]
    egress: Option<serde_json::Value>,
    #[serde(rename = "weir.dev/ingress-mbit")]
    ingress: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A whole quantity, as the server writes it: `40`, `1k` for 1000, `2Ki`.
pub(super) fn quantity(value: &serde_json::Value) -> Option<u64> {
    let text = match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let unit: u64 = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// The amount that the scheduler counts: all containers and sidecars together, or the largest of the others
/// that run before them.
fn amount(spec: &Spec, of: impl Fn(&Amounts) -> Option<&serde_json::Value>) -> Option<u64> {
    let ask = |c: &Container| c.resources.as_ref().and_then(|r| of(&r.limits)).and_then(quantity);
    let is_sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let together = spec.containers.iter().chain(spec.init_containers.iter().filter(is_sidecar));
    let before = spec.init_containers.iter().filter(|c| !is_sidecar(c)).filter_map(ask).max();
    let sum =
        together.filter_map(ask).fold(None, |sum: Option<u64>, n| Some(sum.unwrap_or(0).saturating_add(n)));
    sum.max(before)
}

impl Object for Pod {
    type Raw = RawPod;

    fn read(raw: RawPod) -> Option<(String, Pod)> {
        let RawPod { metadata, spec, status } = raw;
        let limits = Limits {
            egress: amount(&spec, |a| a.egress.as_ref()),
            ingress: amount(&spec, |a| a.ingress.as_ref()),
        };
        let pod = Pod {
            limits,
            host_network: spec.host_network.unwrap_or(false),
            is_running: status.phase == "Running",
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            annotations: metadata.annotations,
        };
        let has_ended = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        let key = pod.class_name();
        // The uid becomes a part of a cgroup's path.
        let is_uid = (1..=64).contains(&pod.uid.len())
            && pod.uid.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        (!has_ended && is_uid && is_name(&key) && key.contains('/')).then_some((key, pod))
    }

    fn identity(raw: &RawPod) -> (String, String) {
        let Metadata { namespace, name, resource_version, .. } = &raw.metadata;
        (format!("{namespace}/{name}"), resource_version.clone())
    }
}

/// The annotations of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespace {
    pub(crate) name: String,
    pub(crate) annotations: Annotations,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawNamespace {
    metadata: Metadata,
}

impl Object for Namespace {
    type Raw = RawNamespace;

    /// A namespace without annotations of weir is not kept.
    fn read(raw: RawNamespace) -> Option<(String, Namespace)> {
        let Metadata { name, mut annotations, .. } = raw.metadata;
        annotations.kept.retain(|key, _| key.starts_with("weir.dev/"));
        let has_any = !annotations.kept.is_empty();
        (has_any && is_name(&name)).then(|| (name.clone(), Namespace { name, annotations }))
    }

    fn identity(raw: &RawNamespace) -> (String, String) {
        (raw.metadata.name.clone(), raw.metadata.resource_version.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Option<Pod> {
        Pod::read(serde_json::from_value(value).expect("reads")).map(|(_, pod)| pod)
    }

    #[test]
    fn limits_add_up_as_the_scheduler_counts_them() {
        let ask = |n: serde_json::Value| json!({ "resources": { "limits": { "weir.dev/egress-mbit": n } } });
        let mut sidecar = ask(json!("5"));
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({
            "containers": [ask(json!("10")), ask(json!(2)), { "resources": { "limits": null } }, {}],
            "initContainers": [ask(json!("16")), sidecar],
        });
        let metadata = json!({ "namespace": "shop", "name": "web", "uid": "u-1" });
        let read = pod(json!({ "metadata": metadata, "spec": spec })).unwrap();
        assert_eq!(read.limits, Limits { egress: Some(17), ingress: None });
        let spec = json!({ "containers": [ask(json!("10"))], "initContainers": [ask(json!("1k"))] });
        let read = pod(json!({ "metadata": metadata, "spec": spec })).unwrap();
        assert_eq!(read.limits.egress, Some(1_000));
        for odd in
            [json!("500m"), json!("-1"), json!("1e3"), json!(""), json!([1]), json!("99999999999999999999")]
        {
            let spec = json!({ "containers": [ask(odd.clone())] });
            assert_eq!(
                pod(json!({ "metadata": metadata, "spec": spec })).unwrap().limits.egress,
                None,
                "{odd}"
            );
        }
    }

    #[test]
    fn a_thousand_annotations_leave_the_known_ones_and_a_count() {
        let mut annotations: BTreeMap<String, String> =
            (0..1_000).map(|n| (format!("weir.dev/a{n}"), "x".repeat(300))).collect();
        annotations.insert("weir.dev/weight".into(), "3".into());
        annotations.insert("weir.dev/max".into(), "9".repeat(5_000));
        annotations.insert("example.org/other".into(), "y".into());
        let read = pod(json!({
            "metadata": { "namespace": "shop", "name": "web", "uid": "u-1", "annotations": annotations },
        }))
        .unwrap()
        .annotations;
        assert_eq!((read.kept.len(), read.left_out), (MAX_UNKNOWN + 2, 1_000 - MAX_UNKNOWN));
        assert_eq!(read.kept["weir.dev/weight"], "3");
        assert!(read.kept["weir.dev/max"].len() < 140 && read.kept["weir.dev/max"].ends_with("..."));
    }

    #[test]
    fn a_pod_that_ended_or_has_an_odd_name_or_uid_is_left_out() {
        let with = |namespace: &str, name: &str, uid: &str, phase: &str| {
            pod(
                json!({ "metadata": { "namespace": namespace, "name": name, "uid": uid }, "status": { "phase": phase } }),
            )
        };
        assert!(with("shop", "web-0", "0b9c-1", "Running").unwrap().is_running);
        assert!(!with("shop", "web-0", "0b9c-1", "Pending").unwrap().is_running);
        for (namespace, name, uid, phase) in [
            ("shop", "web", "u", "Succeeded"),
            ("shop", "web", "u", "Failed"),
            ("", "web", "u", "Running"),
            ("shop", "../web", "u", "Running"),
            ("shop", "we\u{1b}b", "u", "Running"),
            ("shop", "web", "../u", "Running"),
            ("shop", "web", "", "Running"),
        ] {
            assert_eq!(with(namespace, name, uid, phase), None, "{namespace} {name} {uid} {phase}");
        }
    }

    #[test]
    fn a_namespace_counts_if_it_has_annotations_of_weir() {
        let read = |annotations: serde_json::Value| {
            let raw = json!({ "metadata": { "name": "shop", "annotations": annotations } });
            Namespace::read(serde_json::from_value(raw).unwrap())
        };
        assert_eq!(read(json!(null)), None);
        assert_eq!(read(json!({ "kubernetes.io/egress-bandwidth": "1M" })), None);
        assert!(read(json!({ "weir.dev/weight": "2" })).is_some());
    }
}
