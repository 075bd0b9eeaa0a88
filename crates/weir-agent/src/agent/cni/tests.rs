use std::{fs, path::PathBuf};

use weir_api::{Wish, WishPlace};
use weir_discovery::LabelPolicy;
use weir_units::BitRate;

use super::*;
use crate::agent::pods::PodWishes;

const BOOT: &str = "boot-1";

fn key(container: &str, interface: &str) -> CniKey {
    CniKey { container: container.to_owned(), interface: interface.to_owned() }
}

fn attachment(container: &str, pod: &str, inode: u64) -> CniAttachment {
    CniAttachment {
        key: key(container, "eth0"),
        network: "pods".to_owned(),
        netns: PathBuf::from(format!("/run/netns/{container}")),
        inode,
        namespace: Some("shop".to_owned()),
        pod: Some(pod.to_owned()),
        uid: None,
        addresses: vec!["10.88.0.7".parse().unwrap()],
        wishes: Vec::new(),
    }
}

fn netns(attachment: &CniAttachment) -> NetnsRef {
    NetnsRef { path: attachment.netns.clone(), id: NsId { dev: 4, ino: attachment.inode } }
}

fn put(attachments: &mut CniContainers, attachment: &CniAttachment) {
    attachments.put(attachment.clone(), &netns(attachment)).unwrap();
}

fn names(attachments: &CniContainers) -> Vec<String> {
    attachments.found(false, &PodWishes::default()).into_iter().map(|found| found.name).collect()
}

fn id(ino: u64) -> NsId {
    NsId { dev: 4, ino }
}

#[test]
fn attachments_are_there_after_a_restart_and_not_after_a_boot() {
    let dir = tempfile::tempdir().unwrap();
    let mut web = attachment("c1", "web", 1);
    web.wishes.push(Wish { by: WishPlace::Annotation, key: "weir.dev/max".into(), value: "5M".into() });
    let mut first = CniContainers::open(dir.path(), BOOT.to_owned());
    put(&mut first, &web);
    put(&mut first, &attachment("c2", "db", 2));
    assert!(first.forget(&key("c2", "eth0")) && !first.forget(&key("c2", "eth0")));
    assert_eq!(first.failure(), None);

    let again = CniContainers::open(dir.path(), BOOT.to_owned());
    let [found] = &again.found(false, &PodWishes::default())[..] else {
        panic!("{:?}", again.found(false, &PodWishes::default()))
    };
    assert_eq!((found.name.as_str(), found.source), ("shop/web", Source::Cni));
    assert_eq!(found.policy, LabelPolicy { max: Some(BitRate::mbit(5)), ..LabelPolicy::default() });
    assert_eq!(found.location, Location::Netns(netns(&web)));
    assert_eq!(found.addresses, web.addresses);

    assert_eq!(names(&CniContainers::open(dir.path(), "boot-2".to_owned())), Vec::<String>::new());
    assert_eq!(fs::read_dir(dir.path().join("cni")).unwrap().count(), 0);
}

#[test]
fn files_that_are_no_attachments_are_removed_and_the_others_count() {
    let dir = tempfile::tempdir().unwrap();
    put(&mut CniContainers::open(dir.path(), BOOT.to_owned()), &attachment("c1", "web", 1));
    let files = dir.path().join("cni");
    fs::write(files.join(".new"), "{").unwrap();
    fs::write(files.join("c9@eth0"), vec![b' '; 300 << 10]).unwrap();
    // A record under another's name would come back after it was forgotten.
    fs::copy(files.join("c1@eth0"), files.join("c8@eth0")).unwrap();
    assert_eq!(names(&CniContainers::open(dir.path(), BOOT.to_owned())), ["shop/web"]);
    assert_eq!(fs::read_dir(&files).unwrap().count(), 1);
}

#[test]
fn a_state_that_cannot_be_written_is_told_and_the_class_is_there() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("cni"), "a file").unwrap();
    let mut attachments = CniContainers::open(dir.path(), BOOT.to_owned());
    put(&mut attachments, &attachment("c1", "web", 1));
    assert_eq!(names(&attachments), ["shop/web"]);
    let why = attachments.failure().unwrap();
    assert!(why.starts_with("eth0 of container c1 is not kept over a restart of the agent: "), "{why}");
}

#[test]
fn the_newest_of_two_pods_with_one_name_has_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut attachments = CniContainers::open(dir.path(), BOOT.to_owned());
    put(&mut attachments, &attachment("c1", "web", 1));
    put(&mut attachments, &attachment("c2", "web", 2));
    assert_eq!(names(&attachments), ["shop/web@c1", "shop/web"]);
    put(&mut attachments, &attachment("c1", "web", 1));
    assert_eq!(names(&attachments), ["shop/web", "shop/web@c2"]);
    attachments.forget(&key("c1", "eth0"));
    assert_eq!(names(&attachments), ["shop/web"]);
}

#[test]
fn a_pod_without_a_name_for_a_class_is_called_by_its_container() {
    let dir = tempfile::tempdir().unwrap();
    let mut attachments = CniContainers::open(dir.path(), BOOT.to_owned());
    let long = "x".repeat(253);
    let pods = [(Some("a b"), "c1"), (None, "c2"), (Some("../etc"), "c3"), (Some(long.as_str()), "c4")];
    for ((pod, container), inode) in pods.into_iter().zip(1..) {
        let pod = pod.map(str::to_owned);
        put(&mut attachments, &CniAttachment { pod, ..attachment(container, "", inode) });
    }
    assert_eq!(names(&attachments), ["c1", "c2", "c3", "c4"]);
    // Podman tells a name without a namespace.
    put(&mut attachments, &CniAttachment { namespace: None, ..attachment("c5", "web", 9) });
    assert_eq!(names(&attachments)[4], "web");
}

#[test]
fn a_pod_on_two_networks_is_one_class_by_its_last_report() {
    let dir = tempfile::tempdir().unwrap();
    let mut attachments = CniContainers::open(dir.path(), BOOT.to_owned());
    let wish =
        |value: &str| vec![Wish { by: WishPlace::Plugin, key: "weight".to_owned(), value: value.to_owned() }];
    put(&mut attachments, &CniAttachment { wishes: wish("2"), ..attachment("c1", "web", 1) });
    let second = CniAttachment { key: key("c1", "net1"), wishes: wish("7"), ..attachment("c1", "web", 1) };
    put(&mut attachments, &second);
    let found = attachments.found(false, &PodWishes::default());
    assert_eq!((found.len(), found[0].policy.weight.map(|w| w.get())), (1, Some(7)));
    assert_eq!(attachments.class_name(&key("c1", "eth0")).as_deref(), Some("shop/web"));
    attachments.forget(&key("c1", "net1"));
    assert_eq!(attachments.found(false, &PodWishes::default())[0].policy.weight.map(|w| w.get()), Some(2));
}

#[test]
fn a_second_network_takes_no_limit_of_the_first_away() {
    let dir = tempfile::tempdir().unwrap();
    let mut attachments = CniContainers::open(dir.path(), BOOT.to_owned());
    let wish = |by, key: &str, value: &str| Wish { by, key: key.to_owned(), value: value.to_owned() };
    let first = vec![
        wish(WishPlace::Bandwidth, "egressRate", "5000000"),
        wish(WishPlace::Annotation, "weir.dev/weight", "3"),
        wish(WishPlace::Annotation, "weir.dev/min", "x"),
    ];
    put(&mut attachments, &CniAttachment { wishes: first.clone(), ..attachment("c1", "web", 1) });
    // A runtime writes 0 where no rate is asked for. The annotations come with each network.
    let second = [&first[1..], &[wish(WishPlace::Bandwidth, "egressRate", "0")]].concat();
    let net1 = |wishes| CniAttachment { key: key("c1", "net1"), wishes, ..attachment("c1", "web", 1) };
    put(&mut attachments, &net1(second));
    let found = attachments.found(false, &PodWishes::default());
    let policy = |max| LabelPolicy { max: Some(max), weight: "3".parse().ok(), ..LabelPolicy::default() };
    assert_eq!(found[0].policy, policy(BitRate::mbit(5)));
    assert_eq!(found[0].remarks.len(), 1, "{:?}", found[0].remarks);
    put(&mut attachments, &net1(vec![wish(WishPlace::Bandwidth, "egressRate", "2000000")]));
    assert_eq!(attachments.found(false, &PodWishes::default())[0].policy, policy(BitRate::mbit(2)));
    // An attachment of another container in a namespace of the same number is not this one's.
    let other = vec![wish(WishPlace::Plugin, "min", "1mbit")];
    put(&mut attachments, &CniAttachment { wishes: other, ..attachment("c0", "old", 1) });
    put(&mut attachments, &net1(Vec::new()));
    assert_eq!(attachments.found(false, &PodWishes::default())[0].policy, policy(BitRate::mbit(5)));
}

#[test]
fn an_attachment_is_the_same_whether_its_plugin_tells_the_uid_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut attachments = CniContainers::open(dir.path(), BOOT.to_owned());
    let web = attachment("c1", "web", 1);
    put(&mut attachments, &web);
    assert!(attachments.check(&CniAttachment { uid: Some("u-1".to_owned()), ..web.clone() }).is_ok());
    assert!(attachments.check(&CniAttachment { pod: None, ..web }).is_err());
}

#[test]
fn an_attachment_ends_with_its_namespace_or_its_interface() {
    let dir = tempfile::tempdir().unwrap();
    let mut attachments = CniContainers::open(dir.path(), BOOT.to_owned());
    for (container, inode) in [("c1", 1), ("c2", 2), ("c3", 3), ("c4", 4)] {
        put(&mut attachments, &attachment(container, container, inode));
    }
    let fates = BTreeMap::from([(id(1), Fate::HasPort), (id(2), Fate::NoPort), (id(3), Fate::Gone)]);
    assert!(attachments.follow(&fates));
    assert_eq!(names(&attachments), ["shop/c1", "shop/c2", "shop/c4"]);
    // An agent that comes back knows that there was an interface.
    let mut again = CniContainers::open(dir.path(), BOOT.to_owned());
    let none = BTreeMap::from([(id(1), Fate::NoPort), (id(2), Fate::NoPort)]);
    assert!(again.follow(&none));
    assert_eq!(names(&again), ["shop/c2", "shop/c4"]);
    assert!(!again.follow(&none));
}

#[test]
fn the_other_attachments_of_one_network_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut attachments = CniContainers::open(dir.path(), BOOT.to_owned());
    put(&mut attachments, &attachment("c1", "web", 1));
    put(&mut attachments, &attachment("c2", "db", 2));
    put(&mut attachments, &CniAttachment { network: "other".to_owned(), ..attachment("c3", "log", 3) });
    let keep = CniKeep { network: "pods".to_owned(), valid: vec![key("c1", "eth0")] };
    assert_eq!(attachments.keep(&keep), [key("c2", "eth0")]);
    assert_eq!(names(&CniContainers::open(dir.path(), BOOT.to_owned())), ["shop/web", "shop/log"]);
}

#[test]
fn what_cni_does_not_allow_is_refused_before_it_becomes_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut attachments = CniContainers::open(dir.path(), BOOT.to_owned());
    let long = "x".repeat(201);
    for (container, interface) in [
        ("", "eth0"),
        ("../../etc/passwd", "eth0"),
        ("a/b", "eth0"),
        ("a@b", "eth0"),
        (".new", "eth0"),
        ("a\n", "eth0"),
        (long.as_str(), "eth0"),
        ("c1", ""),
        ("c1", ".."),
        ("c1", "../eth0"),
        ("c1", "a b"),
        ("c1", "sixteen-letters1"),
        ("c1", "ünïcode"),
    ] {
        let bad = CniAttachment { key: key(container, interface), ..attachment("c1", "web", 1) };
        let error = attachments.put(bad.clone(), &netns(&bad)).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadRequest, "{container} {interface}: {error}");
        assert!(!attachments.forget(&bad.key));
    }
    let wish = Wish { by: WishPlace::Annotation, key: "weir.dev/max".into(), value: "1".repeat(513) };
    let huge = CniAttachment { wishes: vec![wish.clone()], ..attachment("c1", "web", 1) };
    assert!(attachments.put(huge.clone(), &netns(&huge)).is_err());
    let short = Wish { value: "1".to_owned(), ..wish };
    let many = CniAttachment { wishes: vec![short; 65], ..attachment("c1", "web", 1) };
    assert!(attachments.put(many.clone(), &netns(&many)).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
