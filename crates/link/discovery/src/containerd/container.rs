//! From what containerd says of a container to where its packets can be caught.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use prost::Message;
use serde::Deserialize;

use crate::{
    BadLabel, Found, FromImage, Location, Source, Warning, labels,
    node::{Node, is_process_of, on_host, process_netns},
};

/// containerd's namespace of Kubernetes.
const KUBERNETES: &str = "k8s.io";
/// containerd's namespace of its own commands.
const DEFAULT: &str = "default";
/// containerd's namespace of dockerd, which tells more of its containers.
const DOCKER: &str = "moby";
/// The label by which containerd's CRI plugin tells a pod's sandbox from its containers.
pub(super) const KIND: &str = "io.cri-containerd.kind";
/// The largest specification that is read, bytes.
const MAX_SPEC: usize = 4 << 20;
/// The longest name of a container that becomes the name of a class, bytes.
const MAX_NAME: usize = 200;

/// Labels by key.
pub(super) type Labels = BTreeMap<String, String>;

/// The labels that a container has from its image: values by key.
pub(super) type Inherited = BTreeMap<String, BTreeSet<String>>;

// As in containerd's api/services/{containers,tasks}/v1 and api/types/task.

#[derive(Clone, PartialEq, Message)]
pub(super) struct Told {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(super) labels: Labels,
    /// The name of its image.
    #[prost(string, tag = "3")]
    pub(super) image: String,
    #[prost(message, optional, tag = "5")]
    pub(super) spec: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

/// The runtime's specification, as far as it is used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    annotations: Option<Labels>,
    linux: Linux,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Linux {
    namespaces: Vec<Namespace>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    path: PathBuf,
}

/// A container that has a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// It is in a pod, whose sandbox is the class.
    InPod,
    /// A class of its own.
    Class { found: Box<Found>, bad: Vec<BadLabel> },
    /// Its packets cannot be told from others'.
    Unplaced(Warning),
}

/// Whether a namespace's containers are left to another source.
pub(super) fn is_dockers(namespace: &str) -> bool {
    namespace == DOCKER
}

/// A container's own wishes: its labels, and the annotations of its specification. A label counts before an
/// annotation.
pub(super) fn wishes(told: &Told) -> Labels {
    let mut wishes = spec(told).annotations.unwrap_or_default();
    wishes.retain(|key, _| labels::is_ours(key));
    wishes.extend(told.labels.iter().map(|(key, value)| (key.clone(), value.clone())));
    wishes
}

/// The labels that a container has from its image, by this reading and `earlier` ones.
///
/// containerd knows a container's image by name. The name may mean another image by now, or none, so an earlier answer
/// stays.
pub(super) fn inherited<E>(
    earlier: Option<&Inherited>,
    labels: &Labels,
    images: Result<Vec<Labels>, E>,
) -> Result<Inherited, E> {
    let images = match (images, earlier) {
        (Ok(images), _) => images,
        (Err(_), Some(earlier)) => return Ok(earlier.clone()),
        (Err(why), None) => return Err(why),
    };
    let mut inherited = earlier.cloned().unwrap_or_default();
    for (key, value) in labels.iter().filter(|(key, _)| labels::is_ours(key)) {
        if images.iter().any(|image| image.get(key) == Some(value)) {
            inherited.entry(key.clone()).or_default().insert(value.clone());
        }
    }
    Ok(inherited)
}

/// A specification that cannot be read counts as empty.
fn spec(told: &Told) -> Spec {
    let json = told.spec.as_ref().map(|spec| spec.value.as_slice()).unwrap_or_default();
    if json.len() > MAX_SPEC { Spec::default() } else { serde_json::from_slice(json).unwrap_or_default() }
}

/// The name of a container's class: `NAMESPACE/POD` of a pod, nerdctl's name, or the id. In containerd's other
/// namespaces the namespace stands behind it. The labels of a pod are its author's, so a pod never has nerdctl's name.
fn name(namespace: &str, told: &Told) -> String {
    let is_word = |word: &str| {
        let ok = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        !word.is_empty() && word.len() <= MAX_NAME && word.chars().all(ok) && !word.starts_with('.')
    };
    let label = |key: &str| told.labels.get(key).map(String::as_str).filter(|word| is_word(word));
    let pod = (label("io.kubernetes.pod.namespace"), label("io.kubernetes.pod.name"));
    match (namespace, pod) {
        (KUBERNETES, (Some(of), Some(pod))) if of.len() + pod.len() < 255 => return format!("{of}/{pod}"),
        _ => {}
    }
    let is_pods = |key: &String| key == KIND || key.starts_with("io.kubernetes.pod.");
    let own = label("nerdctl/name").filter(|_| !told.labels.keys().any(is_pods));
    let name = own.unwrap_or(&told.id);
    match namespace {
        DEFAULT | KUBERNETES => name.to_owned(),
        other => format!("{name}@{other}"),
    }
}

impl Entry {
    /// Reads what containerd says of a container with a process.
    pub(super) fn read(
        namespace: &str,
        told: Told,
        pid: u32,
        inherited: Result<&Inherited, String>,
        node: &Node,
    ) -> Entry {
        let is = |kind: &str| told.labels.get(KIND).is_some_and(|is| is == kind);
        if namespace == KUBERNETES && is("container") {
            return Entry::InPod;
        }
        let name = name(namespace, &told);
        let location = match locate(&name, &told, pid, node) {
            Ok(Location::HostNetwork { cgroup, pid }) if is("sandbox") => {
                Location::HostNetwork { cgroup: pods(&cgroup), pid }
            }
            Ok(location) => location,
            Err(why) => return Entry::Unplaced(why),
        };
        let labels = wishes(&told);
        let by_annotation = labels::WISHES.into_iter().filter(|key| {
            let key = format!("weir.{key}");
            labels.contains_key(&key) && !told.labels.contains_key(&key)
        });
        let asked_by = by_annotation.map(|key| (key, format!("annotation weir.{key}"))).collect();
        let from_image = match inherited {
            Ok(inherited) => {
                let is_images = |(key, value): &(&String, &String)| {
                    inherited.get(*key).is_some_and(|values| values.contains(*value))
                };
                FromImage::Keys(told.labels.iter().filter(is_images).map(|(key, _)| key.clone()).collect())
            }
            Err(why) => FromImage::Unknown(why),
        };
        let (policy, group, bad) = labels::parse(&labels);
        let labels = labels.into_iter().filter(|(key, _)| labels::is_ours(key)).collect();
        let found = Box::new(Found {
            name,
            source: Source::Containerd,
            id: told.id,
            labels,
            from_image,
            policy,
            group,
            asked_by,
            remarks: Vec::new(),
            unmet: None,
            location,
            addresses: Vec::new(),
        });
        Entry::Class { found, bad }
    }
}

/// By the file of the specification, else by the first process.
fn locate(name: &str, told: &Told, pid: u32, node: &Node) -> Result<Location, Warning> {
    let network = spec(told).linux.namespaces.into_iter().find(|namespace| namespace.kind == "network");
    let file = network.map(|network| network.path).filter(|path| path != Path::new(""));
    let named = file.map(|file| (node.netns)(&file));
    let found = match named {
        Some(Ok(netns)) => Ok(netns),
        // The process may have ended and its number be another's.
        _ if is_process_of(&told.id, pid, node) => (node.netns)(&process_netns(pid)),
        Some(Err(why)) => Err(why),
        None => Err(format!("process {pid} is not in a cgroup of its name")),
    };
    match found {
        Ok(netns) if Some(netns.id) == node.own => on_host(name, &told.id, pid, node),
        Ok(netns) => Ok(Location::Netns(netns)),
        Err(why) => Err(Warning::NoNetns { container: name.to_owned(), why }),
    }
}

/// The cgroup of all containers of a pod on the host's network: the one above its sandbox's.
fn pods(sandbox: &Path) -> PathBuf {
    let is_pods =
        |above: &&Path| above.file_name().is_some_and(|name| name.to_string_lossy().contains("pod"));
    sandbox.parent().filter(is_pods).unwrap_or(sandbox).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NetnsRef, NsId};

    /// The agent's namespace.
    const OWN: u64 = 99;

    fn node() -> Node {
        let netns = |path: &Path| {
            let ino = match path.to_str() {
                Some("/run/netns/cni-1") => 1,
                Some("/proc/7/ns/net") => 7,
                Some("/proc/9/ns/net" | "/proc/10/ns/net") => OWN,
                _ => return Err(format!("no {}", path.display())),
            };
            Ok(NetnsRef { path: path.into(), id: NsId { dev: 4, ino } })
        };
        let cgroup = |pid| match pid {
            7 => Ok(PathBuf::from("/default/c7")),
            9 => Ok(PathBuf::from("/kubepods/podU/c9")),
            10 => {
                let pod = "/kubepods.slice/kubepods-podU.slice/cri-containerd-c10.scope/container";
                Ok(PathBuf::from(pod))
            }
            _ => Err("no process".to_owned()),
        };
        Node { netns, cgroup, own: Some(NsId { dev: 4, ino: OWN }) }
    }

    fn told(id: &str, labels: &[(&str, &str)], spec: &str) -> Told {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Told { id: id.into(), labels, image: String::new(), spec: Some(Any { value: spec.into() }) }
    }

    #[track_caller]
    fn class(namespace: &str, told: Told, pid: u32) -> Found {
        match Entry::read(namespace, told, pid, Ok(&Inherited::new()), &node()) {
            Entry::Class { found, .. } => *found,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pod_is_its_sandbox_and_has_its_name_and_its_file() {
        let pod = [
            ("io.cri-containerd.kind", "sandbox"),
            ("io.kubernetes.pod.namespace", "shop"),
            ("io.kubernetes.pod.name", "web"),
            ("weir.weight", "3"),
        ];
        let spec =
            r#"{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/netns/cni-1"}]}}"#;
        let found = class("k8s.io", told("c1", &pod, spec), 1);
        assert_eq!(
            (found.name.as_str(), found.id.as_str(), found.source),
            ("shop/web", "c1", Source::Containerd)
        );
        assert_eq!(found.policy.weight, weir_share::Weight::new(3).ok());
        assert!(matches!(found.location, Location::Netns(NetnsRef { id: NsId { ino: 1, .. }, .. })));
        let inner = told("c2", &[("io.cri-containerd.kind", "container")], spec);
        assert_eq!(Entry::read("k8s.io", inner, 1, Ok(&Inherited::new()), &node()), Entry::InPod);
        let hosted = class("k8s.io", told("c9", &pod, "{}"), 9);
        assert_eq!(hosted.location, Location::HostNetwork { cgroup: "/kubepods/podU".into(), pid: 9 });
        let divided = class("k8s.io", told("c10", &pod, "{}"), 10);
        let cgroup = "/kubepods.slice/kubepods-podU.slice".into();
        assert_eq!(divided.location, Location::HostNetwork { cgroup, pid: 10 });
    }

    /// The kubelet copies the labels of a pod into those of its sandbox.
    #[test]
    fn a_pod_never_has_the_name_of_an_operators_class() {
        let long = "p".repeat(201);
        let pod = [
            (KIND, "sandbox"),
            ("io.kubernetes.pod.namespace", "shop"),
            ("io.kubernetes.pod.name", long.as_str()),
            ("nerdctl/name", "web"),
        ];
        assert_eq!(class("k8s.io", told("c7", &pod, "{}"), 7).name, "c7");
        assert_eq!(class("other", told("c7", &pod[1..], "{}"), 7).name, "c7@other");
        assert_eq!(class("k8s.io", told("c7", &pod[3..], "{}"), 7).name, "web", "a container of nerdctl");
    }

    #[test]
    fn a_container_is_found_by_its_process_unless_that_is_anothers() {
        let found = class("default", told("c7", &[("nerdctl/name", "web")], ""), 7);
        assert_eq!(found.name, "web");
        assert!(matches!(found.location, Location::Netns(NetnsRef { id: NsId { ino: 7, .. }, .. })));
        assert_eq!(class("buildkit", told("c7", &[], "{}"), 7).name, "c7@buildkit");
        let another = Entry::read("default", told("c8", &[], "{}"), 7, Ok(&Inherited::new()), &node());
        assert!(matches!(another, Entry::Unplaced(Warning::NoNetns { .. })), "{another:?}");
    }

    #[test]
    fn hostile_names_labels_and_specifications_do_no_harm() {
        let long = "a".repeat(4000);
        for odd in ["", "../x", "a/b", "a b", "\u{202e}x", "web:1", &long] {
            assert_eq!(class("default", told("c7", &[("nerdctl/name", odd)], "[[["), 7).name, "c7", "{odd}");
        }
        let many: Vec<(String, String)> =
            (0..1000).map(|i| (format!("weir.x{i}"), "-1e99".to_owned())).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let wild = [&many[..], &[("weir.weight", "99999999999999999999"), ("weir.max", "5mbit")]].concat();
        match Entry::read("default", told("c7", &wild, "{}"), 7, Ok(&Inherited::new()), &node()) {
            Entry::Class { found, bad } => {
                assert_eq!((found.policy.weight, bad.len()), (None, 1001));
                assert_eq!(found.policy.max, Some(weir_units::BitRate::mbit(5)));
            }
            other => panic!("{other:?}"),
        }
        let huge =
            format!("{{\"annotations\":{{\"weir.weight\":\"5\",\"x\":\"{}\"}}}}", "y".repeat(MAX_SPEC));
        assert_eq!(class("default", told("c7", &[], &huge), 7).policy.weight, None);
    }

    #[test]
    fn an_annotation_counts_and_a_label_of_the_image_is_told_apart() {
        let spec = r#"{"annotations":{"weir.weight":"5","weir.max":"9mbit"}}"#;
        let labels = [("weir.max", "4mbit"), ("weir.min", "1mbit")];
        let told = told("c7", &labels, spec);
        let image = Labels::from([("weir.min".to_owned(), "1mbit".to_owned())]);
        let inherited = inherited::<()>(None, &told.labels, Ok(vec![image])).unwrap();
        let read = Entry::read("default", told, 7, Ok(&inherited), &node());
        let Entry::Class { found, .. } = read else { panic!("{read:?}") };
        assert_eq!(found.policy.weight, weir_share::Weight::new(5).ok());
        assert_eq!(found.policy.max, Some(weir_units::BitRate::mbit(4)));
        assert!(found.from_image.has("weir.min") && !found.from_image.has("weir.max"));
        assert_eq!(found.asked_by, BTreeMap::from([("weight", "annotation weir.weight".to_owned())]));
    }

    #[test]
    fn labels_of_an_image_stay_the_images_when_its_name_means_another() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let own = labels(&[("weir.min", "1mbit"), ("weir.max", "9mbit"), ("other", "x")]);
        let read = |earlier: Option<&Inherited>, image: Result<&[(&str, &str)], &'static str>| {
            inherited(earlier, &own, image.map(|image| vec![labels(image)]))
        };
        let first = read(None, Ok(&[("weir.min", "1mbit"), ("other", "x")])).unwrap();
        assert_eq!(first, Inherited::from([("weir.min".to_owned(), ["1mbit".to_owned()].into())]));
        assert_eq!(read(Some(&first), Ok(&[("weir.min", "2mbit")])), Ok(first.clone()));
        assert_eq!(read(Some(&first), Err("not found")), Ok(first.clone()));
        let later = read(Some(&first), Ok(&[("weir.max", "9mbit")])).unwrap();
        assert_eq!(later.keys().collect::<Vec<_>>(), ["weir.max", "weir.min"]);
        assert_eq!(read(None, Err("not found")), Err("not found"));
        // The operator has changed the label since.
        let changed = told("c7", &[("weir.min", "5mbit")], "{}");
        let Entry::Class { found, .. } = Entry::read("default", changed, 7, Ok(&first), &node()) else {
            panic!("it has a class")
        };
        assert!(!found.from_image.has("weir.min"));
    }
}
