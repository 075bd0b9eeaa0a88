//! The wishes of pods as their cluster knows them, and of namespaces for their group.

use std::collections::BTreeSet;

use weir_api::{Wish, WishPlace};
use weir_discovery::{Found, LabelPolicy, Location, Source};

use super::{
    class_table::{GroupWish, GroupWishes},
    cni::wishes::{self, EGRESS, INGRESS, Wishes},
};
use crate::{
    config::{Config, Granted, Kubernetes, by_namespace, grant},
    kubernetes::{Annotations, Collection, Followed, Namespace, Pod},
};

/// A pod as the plugin reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodId<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// An older plugin or runtime does not tell it.
    pub(super) uid: Option<&'a str>,
}

/// The pods that a cluster told of.
#[derive(Default)]
pub(super) struct PodWishes<'a> {
    pods: Option<&'a Collection<Pod>>,
    /// The groups of namespaces, if a namespace is a group.
    namespaces: Option<NamespaceGroups<'a>>,
}

/// The groups that namespaces are.
struct NamespaceGroups<'a> {
    config: &'a Config,
    /// The namespaces with a pod or an annotation.
    known: BTreeSet<&'a str>,
    /// The namespaces whose group has a policy.
    bounded: BTreeSet<&'a str>,
}

impl<'a> NamespaceGroups<'a> {
    fn of(config: &'a Config, followed: &'a Followed) -> NamespaceGroups<'a> {
        let names = followed.namespaces.all().map(|namespace| namespace.name.as_str());
        let known = names.chain(followed.pods.all().map(|pod| pod.namespace.as_str())).collect();
        let bounded = followed.namespaces.all().filter(|namespace| asks_for_policy(config, namespace));
        let configured = config.groups.iter().map(|group| group.name.as_str());
        let bounded = bounded.map(|namespace| namespace.name.as_str()).chain(configured);
        NamespaceGroups { config, known, bounded: bounded.filter(|name| is_open(config, name)).collect() }
    }

    /// The reason why the wish of a pod of `namespace` for a group does not count, if it does not.
    fn refusal(&self, wish: &Wish, namespace: &str) -> Option<String> {
        let labels = &self.config.labels;
        let group = wish.value.as_str();
        if !labels.allow.contains("group") {
            return Some("[labels] allow leaves it out".to_owned());
        }
        // The list of plugins is the operator's.
        if wish.by == WishPlace::Plugin
            || group == namespace
            || labels.groups.iter().any(|open| open == group)
        {
            return None;
        }
        if self.known.contains(group) {
            return Some("that is the group of another namespace ([labels] groups)".to_owned());
        }
        self.bounded.contains(namespace).then(|| {
            format!("namespace {namespace} has a policy, and its pods stay in its group ([labels] groups)")
        })
    }

    /// Takes out the wishes of a pod for a group that do not count, with the reasons.
    fn take_refused(&self, wishes: &mut Vec<Wish>, namespace: &str) -> Vec<(Wish, String)> {
        let mut refused = Vec::new();
        wishes.retain(|wish| {
            let why = wishes::is_for_group(wish).then(|| self.refusal(wish, namespace)).flatten();
            let counts = why.is_none();
            refused.extend(why.map(|why| (wish.clone(), why)));
            counts
        });
        refused
    }
}

impl<'a> PodWishes<'a> {
    pub(super) fn of(config: &'a Config, options: &Kubernetes, followed: &'a Followed) -> PodWishes<'a> {
        let namespaces = options.namespace_groups.then(|| NamespaceGroups::of(config, followed));
        PodWishes { pods: Some(&followed.pods), namespaces }
    }

    /// The pod that the cluster tells of. A pod of the same name may have come before or after it.
    fn find(&self, id: PodId<'_>) -> Option<&'a Pod> {
        let pod = self.pods?.get(&format!("{}/{}", id.namespace, id.name))?;
        let is_same = id.uid.is_none_or(|uid| uid == pod.uid) || pod.annotations.is_static;
        is_same.then_some(pod)
    }

    /// Reads the wishes of a container that the plugin reported as a pod. The cluster's knowledge takes the place
    /// of the annotations, and of the bandwidth that the runtime read from them at the pod's start.
    pub(super) fn read(&self, told: &[Wish], id: Option<PodId<'_>>, shares_download: bool) -> Wishes {
        let pod = id.and_then(|id| self.find(id));
        let annotations = pod.map(|pod| &pod.annotations);
        let mut all: Vec<Wish> = match pod {
            Some(pod) => {
                let of_node = |wish: &&Wish| matches!(wish.by, WishPlace::Plugin | WishPlace::Argument);
                told.iter().filter(of_node).cloned().chain(wishes_of(pod)).collect()
            }
            None => told.to_vec(),
        };
        let Some((namespaces, id)) = self.namespaces.as_ref().zip(id) else {
            return with_left_out(wishes::read(&all, shares_download), annotations);
        };
        let refused = namespaces.take_refused(&mut all, id.namespace);
        let mut read = wishes::read(&all, shares_download);
        for (wish, why) in refused {
            read.ignore(&wish, why);
        }
        if read.group.is_none() {
            read.group = Some(id.namespace.to_owned());
            read.asked_by.insert("group", by_namespace(id.namespace));
        }
        with_left_out(read, annotations)
    }

    /// A pod that the plugin did not report.
    pub(super) fn found(&self, pod: &Pod, location: Location, shares_download: bool) -> Found {
        let Wishes { policy, group, asked_by, remarks, unmet, .. } = self.read(
            &[],
            Some(PodId { namespace: &pod.namespace, name: &pod.name, uid: None }),
            shares_download,
        );
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

fn with_left_out(mut read: Wishes, annotations: Option<&Annotations>) -> Wishes {
    let more = annotations.map_or(0, |annotations| annotations.left_out);
    if more > 0 {
        read.remarks
            .push(format!("{more} more annotations weir.dev/... are ignored: weir knows none of them"));
    }
    read
}

/// Whether the group of this name is open to wishes: no group of the configuration, or one that is opened.
fn is_open(config: &Config, name: &str) -> bool {
    config.labels.groups.iter().any(|open| open == name)
        || !config.groups.iter().any(|group| group.name == name)
}

/// Whether the annotations of a namespace give its group a policy.
fn asks_for_policy(config: &Config, namespace: &Namespace) -> bool {
    let asked: Vec<Wish> = annotated(&namespace.annotations).collect();
    wishes::read(&asked, config.link.download.is_some()).policy != LabelPolicy::default()
}

/// The wishes of namespaces' annotations for their groups. A group of the configuration takes only what
/// `[labels] groups` lets through.
pub(super) fn group_wishes(config: &Config, followed: &Followed) -> GroupWishes {
    let namespaces = followed.namespaces.all().filter(|namespace| is_open(config, &namespace.name));
    namespaces.map(|namespace| (namespace.name.clone(), group_wish(config, namespace))).collect()
}

fn group_wish(config: &Config, namespace: &Namespace) -> GroupWish {
    let asked: Vec<Wish> = annotated(&namespace.annotations).collect();
    let read = wishes::read(&asked, config.link.download.is_some());
    let Wishes { policy, group, asked_by, mut remarks, unmet, .. } =
        with_left_out(read, Some(&namespace.annotations));
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

    const WEB: PodId<'_> = PodId { namespace: "shop", name: "web", uid: None };

    fn annotations(pairs: &[(&str, &str)]) -> Annotations {
        let kept = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Annotations { kept, ..Annotations::default() }
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
        let (config, options) = (config(""), Kubernetes::default());
        let key = Some(WEB);
        let changed = followed(
            vec![pod(&[("kubernetes.io/egress-bandwidth", "9M"), ("weir.dev/weight", "7")])],
            vec![],
        );
        let read = PodWishes::of(&config, &options, &changed).read(&at_start(), key, false);
        assert_eq!((read.policy.max, read.policy.weight), (Some(BitRate::mbit(9)), Weight::new(7).ok()));
        assert_eq!(read.group, None, "its annotation was taken away");
        let removed = followed(vec![pod(&[])], vec![]);
        let read = PodWishes::of(&config, &options, &removed).read(&at_start(), key, false);
        assert_eq!((read.policy.max, read.policy.weight), (None, Weight::new(2).ok()));
        let unknown = followed(vec![], vec![]);
        let read = PodWishes::of(&config, &options, &unknown).read(&at_start(), key, false);
        assert_eq!((read.policy.max, read.group.as_deref()), (Some(BitRate::mbit(4)), Some("tenant-a")));
    }

    #[test]
    fn a_namespace_is_the_group_of_pods_that_name_none() {
        let config = config("");
        let options = Kubernetes { namespace_groups: true, ..Kubernetes::default() };
        let known = followed(vec![pod(&[])], vec![]);
        let wishes = PodWishes::of(&config, &options, &known);
        let read = wishes.read(&[], Some(WEB), false);
        assert_eq!(
            (read.group.as_deref(), read.asked_by["group"].as_str()),
            (Some("shop"), "namespace shop")
        );
        assert_eq!(
            wishes.read(&at_start(), Some(PodId { name: "new", ..WEB }), false).group.as_deref(),
            Some("tenant-a")
        );
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
        let read = PodWishes::of(&config(""), &Kubernetes::default(), &known).read(&[], Some(WEB), false);
        assert_eq!(read.policy, weir_discovery::LabelPolicy::default());
        assert!(read.remarks.len() <= 10, "{:?}", read.remarks);
        assert!(read.remarks.iter().all(|text| !text.contains(char::is_control)), "{:?}", read.remarks);
        assert!(read.remarks.last().unwrap().starts_with("982 more annotations"), "{:?}", read.remarks);
    }

    /// A pod that is made again has another uid. The watch tells of it later.
    #[test]
    fn a_pod_has_no_annotation_of_an_earlier_pod_of_its_name() {
        let (config, options) = (config(""), Kubernetes::default());
        let max = |known: &Followed, uid| {
            let told = [wish(WishPlace::Annotation, "weir.dev/max", "3mbit")];
            let wishes = PodWishes::of(&config, &options, known);
            wishes.read(&told, Some(PodId { uid, ..WEB }), false).policy.max
        };
        let mut earlier = pod(&[("weir.dev/max", "50mbit")]);
        let known = followed(vec![earlier.clone()], vec![]);
        assert_eq!(max(&known, Some("u-2")), Some(BitRate::mbit(3)));
        assert_eq!(max(&known, Some("u-1")), Some(BitRate::mbit(50)));
        assert_eq!(max(&known, None), Some(BitRate::mbit(50)), "an older plugin");
        // The kubelet's uid of a static pod is not the server's.
        earlier.annotations.is_static = true;
        assert_eq!(max(&followed(vec![earlier], vec![]), Some("u-2")), Some(BitRate::mbit(50)));
    }

    /// The group of a pod of namespace `shop` that asks for `group`, and what is said.
    fn group_of(more: &str, bound: &[(&str, &str)], by: WishPlace, group: &str) -> (String, String) {
        let (config, options) =
            (config(more), Kubernetes { namespace_groups: true, ..Kubernetes::default() });
        let other = Pod { namespace: "other".into(), ..pod(&[]) };
        let shop = Namespace { name: "shop".into(), annotations: annotations(bound) };
        let namespaces = if bound.is_empty() { vec![] } else { vec![shop] };
        let known = followed(vec![pod(&[]), other], namespaces);
        let key = if by == WishPlace::Plugin { "group" } else { "weir.dev/group" };
        let location = Location::Interface(String::new());
        let id = PodId { uid: Some("u-2"), ..WEB };
        let Wishes { group, asked_by, remarks, .. } =
            PodWishes::of(&config, &options, &known).read(&[wish(by, key, group)], Some(id), false);
        let found = Found {
            group,
            asked_by,
            remarks,
            ..Found::new("c".into(), "shop/web".into(), Source::Cni, location)
        };
        let granted = grant(&config, &found);
        (granted.group.unwrap_or_default(), granted.cut.join("; "))
    }

    #[test]
    fn a_pod_names_no_group_beyond_the_rights_of_its_namespace() {
        let free = &[][..];
        let bound = &[("weir.dev/max", "5mbit")][..];
        let by = WishPlace::Annotation;
        let said = |group: &str, why: &str| format!("annotation weir.dev/group={group} is ignored: {why}");
        let of_another = "that is the group of another namespace ([labels] groups)";
        let stays = "namespace shop has a policy, and its pods stay in its group ([labels] groups)";
        let is = |group: &str, said: String| (group.to_owned(), said);
        assert_eq!(group_of("", free, by, "blue"), is("blue", String::new()));
        assert_eq!(group_of("", bound, by, "shop"), is("shop", String::new()));
        assert_eq!(group_of("", free, by, "other"), is("shop", said("other", of_another)));
        assert_eq!(group_of("", bound, by, "blue"), is("shop", said("blue", stays)));
        // The operator's own words count.
        let open = "[labels]\ngroups = [\"blue\"]\n[[group]]\nname = \"blue\"\n";
        assert_eq!(group_of(open, bound, by, "blue"), is("blue", String::new()));
        assert_eq!(group_of("", bound, WishPlace::Plugin, "blue"), is("blue", String::new()));
        let own = "[labels]\ngroups = [\"shop\"]\n[[group]]\nname = \"shop\"\n";
        assert_eq!(group_of(own, free, by, "blue").0, "shop");
        // The group of the namespace is no wish, so `allow` does not apply to it.
        let why = "[labels] allow leaves it out";
        assert_eq!(
            group_of("[labels]\nallow = \"limits\"\n", free, by, "blue"),
            is("shop", said("blue", why))
        );
        // A group of the configuration is closed to the namespace of its name.
        let closed = "[[group]]\nname = \"shop\"\n";
        let (group, said) = group_of(closed, free, by, "shop");
        assert!(group.is_empty() && said.contains("[labels] groups does not list it"), "{said}");
    }
}
