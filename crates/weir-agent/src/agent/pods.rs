//! The wishes of pods as their cluster knows them, and of namespaces for their group.


use weir_api::{Wish, WishPlace};
use weir_discovery::{Found, Location, Source};

use super::{
    class_table::{GroupWish, GroupWishes},
    cni::wishes::{self, EGRESS, INGRESS, Wishes},
};
use crate::{
    config::{Config, Granted, Kubernetes, grant},
    kubernetes::{Annotations, Collection, Followed, Namespace, Pod},
};

/// The pods that a cluster told of.
#[derive(Default)]
pub(super) struct PodWishes<'a> {
    pods: Option<&'a Collection<Pod>>,
    /// Whether a namespace is a group.
    namespace_groups: bool,
}

impl<'a> PodWishes<'a> {
    pub(super) fn of(config: &Kubernetes, followed: &'a Followed) -> PodWishes<'a> {
        PodWishes { pods: Some(&followed.pods), namespace_groups: config.namespace_groups }
    }

    /// Reads the wishes of a container that the plugin reported as a pod. The cluster's knowledge takes the place
    /// of the annotations, and of the bandwidth that the runtime read from them at the pod's start.
    pub(super) fn read(&self, told: &[Wish], pod: Option<(&str, &str)>, shares_download: bool) -> Wishes {
        let find = |(namespace, name): (&str, &str)| self.pods?.get(&format!("{namespace}/{name}"));
        let mut read = match pod.and_then(find) {
            Some(pod) => {
                let of_node = |wish: &&Wish| matches!(wish.by, WishPlace::Plugin | WishPlace::Argument);
                let all: Vec<Wish> = told.iter().filter(of_node).cloned().chain(wishes_of(pod)).collect();
                with_left_out(wishes::read(&all, shares_download), &pod.annotations)
            }
            None => wishes::read(told, shares_download),
        };
        if let (true, Some((namespace, _)), None) = (self.namespace_groups, pod, &read.group) {
            read.group = Some(namespace.to_owned());
            read.asked_by.insert("group", format!("namespace {namespace}"));
        }
        read
    }

    /// A pod that the plugin did not report.
    pub(super) fn found(&self, pod: &Pod, location: Location, shares_download: bool) -> Found {
        let Wishes { policy, group, asked_by, remarks, unmet, .. } =
            self.read(&[], Some((&pod.namespace, &pod.name)), shares_download);
        Found {
            policy,
            group,
            asked_by,
            remarks,
            unmet,
            ..Found::new(pod.uid.clone(), pod.class_name(), Source::Cni, location)
        }
    }
}

/// Whether a pod asks for anything.
pub(super) fn has_wishes(pod: &Pod) -> bool {
    wishes_of(pod).next().is_some()
}

fn annotated(annotations: &Annotations) -> impl Iterator<Item = Wish> + '_ {
    let wish = |(key, value): (&String, &String)| Wish {
        by: WishPlace::Annotation,
        key: key.clone(),
        value: value.clone(),
    };
    annotations.kept.iter().map(wish)
}

fn wishes_of(pod: &Pod) -> impl Iterator<Item = Wish> + '_ {
    let limits = [(EGRESS, pod.limits.egress), (INGRESS, pod.limits.ingress)];
    let limits = limits.into_iter().filter_map(|(key, value)| {
        Some(Wish { by: WishPlace::Limit, key: key.to_owned(), value: value?.to_string() })
    });
    annotated(&pod.annotations).chain(limits)
}

fn with_left_out(mut read: Wishes, annotations: &Annotations) -> Wishes {
    if annotations.left_out > 0 {
        let more = annotations.left_out;
        read.remarks
            .push(format!("{more} more annotations weir.dev/... are ignored: weir knows none of them"));
    }
    read
}

/// The wishes of namespaces' annotations for their groups. A group of the configuration takes only what
/// `[labels] groups` lets through.
pub(super) fn group_wishes(config: &Config, followed: &Followed) -> GroupWishes {
    let is_open = |name: &str| {
        config.labels.groups.iter().any(|open| open == name)
            || !config.groups.iter().any(|group| group.name == name)
    };
    let namespaces = followed.namespaces.all().filter(|namespace| is_open(&namespace.name));
    namespaces.map(|namespace| (namespace.name.clone(), group_wish(config, namespace))).collect()
}

fn group_wish(config: &Config, namespace: &Namespace) -> GroupWish {
    let asked: Vec<Wish> = annotated(&namespace.annotations).collect();
    let read = wishes::read(&asked, config.link.download.is_some());
    let Wishes { policy, group, asked_by, mut remarks, unmet, .. } =
        with_left_out(read, &namespace.annotations);
    if let Some(group) = group {
        remarks.push(format!("annotation weir.dev/group={group} is ignored: groups do not nest"));
    }
    let asked_by = asked_by.into_iter().filter(|(key, _)| *key != "group");
    let asked_by = asked_by.map(|(key, by)| (key, format!("{by} of namespace {}", namespace.name)));
    let (name, nowhere) = (namespace.name.clone(), Location::Interface(String::new()));
    let found = Found {
        policy,
        asked_by: asked_by.collect(),
        remarks,
        ..Found::new(name.clone(), name, Source::Cni, nowhere)
    };
    let Granted { layer, down, mut cut, .. } = grant(config, &found);
    cut.extend(unmet);
    GroupWish { label: layer, down_label: down, cut, asked_by: found.asked_by }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::Limits;
    use weir_share::Weight;
    use weir_units::BitRate;

    fn annotations(pairs: &[(&str, &str)]) -> Annotations {
        let kept = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Annotations { kept, left_out: 0 }
    }

    fn pod(pairs: &[(&str, &str)]) -> Pod {
        Pod {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u-1".into(),
            annotations: annotations(pairs),
            limits: Limits::default(),
            host_network: false,
            is_running: true,
        }
    }

    fn wish(by: WishPlace, key: &str, value: &str) -> Wish {
        Wish { by, key: key.to_owned(), value: value.to_owned() }
    }

    fn followed(pods: Vec<Pod>, namespaces: Vec<Namespace>) -> Followed {
        Followed {
            pods: Collection::kept(pods.into_iter().map(|pod| (pod.class_name(), pod))),
            namespaces: Collection::kept(namespaces.into_iter().map(|n| (n.name.clone(), n))),
            ..Followed::default()
        }
    }

    fn config(more: &str) -> Config {
        let text = format!("[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n{more}");
        crate::config::parse(&text, std::path::Path::new("t.toml")).unwrap()
    }

    /// The report of the runtime and the plugin at the pod's start.
    fn at_start() -> Vec<Wish> {
        vec![
            wish(WishPlace::Plugin, "weight", "2"),
            wish(WishPlace::Bandwidth, "egressRate", "4000000"),
            wish(WishPlace::Annotation, "kubernetes.io/egress-bandwidth", "4M"),
            wish(WishPlace::Annotation, "weir.dev/group", "tenant-a"),
        ]
    }

    #[test]
    fn present_annotations_replace_those_of_the_start_and_may_go() {
        let options = Kubernetes::default();
        let key = Some(("shop", "web"));
        let changed = followed(
            vec![pod(&[("kubernetes.io/egress-bandwidth", "9M"), ("weir.dev/weight", "7")])],
            vec![],
        );
        let read = PodWishes::of(&options, &changed).read(&at_start(), key, false);
        assert_eq!((read.policy.max, read.policy.weight), (Some(BitRate::mbit(9)), Weight::new(7).ok()));
        assert_eq!(read.group, None, "its annotation was taken away");
        let removed = followed(vec![pod(&[])], vec![]);
        let read = PodWishes::of(&options, &removed).read(&at_start(), key, false);
        assert_eq!((read.policy.max, read.policy.weight), (None, Weight::new(2).ok()));
        let unknown = followed(vec![], vec![]);
        let read = PodWishes::of(&options, &unknown).read(&at_start(), key, false);
        assert_eq!((read.policy.max, read.group.as_deref()), (Some(BitRate::mbit(4)), Some("tenant-a")));
    }

    #[test]
    fn a_namespace_is_the_group_of_pods_that_name_none() {
        let options = Kubernetes { namespace_groups: true, ..Kubernetes::default() };
        let known = followed(vec![pod(&[])], vec![]);
        let wishes = PodWishes::of(&options, &known);
        let read = wishes.read(&[], Some(("shop", "web")), false);
        assert_eq!(
            (read.group.as_deref(), read.asked_by["group"].as_str()),
            (Some("shop"), "namespace shop")
        );
        assert_eq!(wishes.read(&at_start(), Some(("shop", "new")), false).group.as_deref(), Some("tenant-a"));
        assert_eq!(wishes.read(&[], None, false).group, None);
    }

    #[test]
    fn a_namespaces_annotations_are_its_groups_policy_within_labels() {
        let shop = |pairs| {
            followed(vec![], vec![Namespace { name: "shop".into(), annotations: annotations(pairs) }])
        };
        let asked = shop(&[
            ("weir.dev/weight", "9"),
            ("weir.dev/max", "20mbit"),
            ("weir.dev/group", "x"),
            ("weir.dev/min", "x"),
        ]);
        let wishes = group_wishes(&config("[labels]\nmax_weight = 5\n"), &asked);
        let GroupWish { label, cut, asked_by, .. } = &wishes["shop"];
        assert_eq!(
            (label.weight, label.max, label.min),
            (Weight::new(5).ok(), Some(BitRate::mbit(20)), None)
        );
        assert_eq!(asked_by["max"], "annotation weir.dev/max of namespace shop");
        let said = cut.join("\n");
        for part in [
            "annotation weir.dev/min=x is ignored: ",
            "annotation weir.dev/group=x is ignored: groups do not nest",
            "weight 9 by annotation weir.dev/weight of namespace shop, cut to 5 by [labels] max_weight",
        ] {
            assert!(said.contains(part), "{part}:\n{said}");
        }
        // The operator's own group is closed to a namespace of its name.
        let own = "[[group]]\nname = \"shop\"\nmax = \"1mbit\"\n";
        assert!(group_wishes(&config(own), &asked).is_empty());
        assert_eq!(group_wishes(&config(&format!("[labels]\ngroups = [\"shop\"]\n{own}")), &asked).len(), 1);
    }

    #[test]
    fn a_thousand_annotations_are_told_in_a_few_remarks() {
        let mut hostile =
            pod(&[("weir.dev/weight", "99999999999999999999"), ("weir.dev/max", "-1\u{1b}[2J")]);
        hostile.annotations.kept.extend((0..16).map(|n| (format!("weir.dev/a{n}"), "x".into())));
        hostile.annotations.left_out = 982;
        let known = followed(vec![hostile], vec![]);
        let read = PodWishes::of(&Kubernetes::default(), &known).read(&[], Some(("shop", "web")), false);
        assert_eq!(read.policy, weir_discovery::LabelPolicy::default());
        assert!(read.remarks.len() <= 10, "{:?}", read.remarks);
        assert!(read.remarks.iter().all(|text| !text.contains(char::is_control)), "{:?}", read.remarks);
        assert!(read.remarks.last().unwrap().starts_with("982 more annotations"), "{:?}", read.remarks);
    }
}
