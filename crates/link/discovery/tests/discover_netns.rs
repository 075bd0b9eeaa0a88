//! Finding named network namespaces, and the interfaces that lead to them.

use std::{fs, os::unix::fs::MetadataExt, process::Command};

use weir_discovery::{
    Found, Location, NsId, Source,
    netns::{self, Filter},
    ports,
};
use weir_netlink::Netlink;
use weir_testkit::{Netns, Unavailable};

fn ports_of(found: &[Found]) -> ports::Ports<&str> {
    let mut netlink = Netlink::open().expect("can open netlink");
    let namespaces = found.iter().filter_map(|found| match &found.location {
        Location::Netns(netns) => Some((found.name.as_str(), netns)),
        _ => None,
    });
    ports::find(&mut netlink, namespaces).expect("can read links")
}

fn names<'a>(ports: &'a ports::Ports<&str>, of: &Netns) -> Vec<&'a str> {
    ports.of[of.name()].iter().map(|port| port.name.as_str()).collect()
}

/// A node and two namespaces of tenants.
fn three() -> Result<[Netns; 3], Unavailable> {
    Ok([Netns::new("node")?, Netns::new("blue")?, Netns::new("green")?])
}

/// Joins `node` to `tenant` by a pair of interfaces called `host` and `inner`.
fn join(node: &Netns, tenant: &Netns, host: &str, inner: &str) {
    let pair = ["link", "add", host, "type", "veth", "peer", "name", inner, "netns", tenant.name()];
    node.ip(&pair).expect("can add a pair");
}

#[test]
fn named_namespaces_are_found_with_their_own_veths() {
    let [node, blue, green] = match three() {
        Ok(all) => all,
        Err(why) => return println!("skipped: {why}"),
    };
    let filter = Filter::names([blue.name(), green.name(), node.name()]).expect("are patterns");
    let inside = node.run_in(|| {
        let (found, warnings) = netns::scan(&netns::DIRS, &filter, NsId::own().expect("there is /proc"));
        let seen: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        assert_eq!((seen, warnings), (vec![blue.name(), green.name()], vec![]), "without the node itself");
        assert!(found.iter().all(|found| found.source == Source::Netns));
        let ino = fs::metadata(blue.path()).expect("is there").ino();
        assert!(matches!(&found[0].location, Location::Netns(netns) if netns.id.ino == ino));

        let ports = ports_of(&found);
        assert!(names(&ports, &blue).is_empty() && names(&ports, &green).is_empty());
        assert!(ports.shared.is_empty(), "two namespaces without a number are not the same");

        join(&node, &green, "to-green", "eth0");
        join(&node, &blue, "to-blue", "eth0");
        join(&node, &blue, "to-blue2", "eth1");
        node.ip(&["link", "add", "loose", "type", "veth", "peer", "name", "loose2"]).expect("can add a pair");
        let ports = ports_of(&found);
        assert_eq!(names(&ports, &blue), ["to-blue", "to-blue2"]);
        assert_eq!(names(&ports, &green), ["to-green"]);

        blue.ip(&["link", "set", "dev", "eth1", "netns", green.name()]).expect("can move");
        node.ip(&["link", "set", "dev", "to-green", "name", "renamed"]).expect("can rename");
        let ports = ports_of(&found);
        assert_eq!(names(&ports, &blue), ["to-blue"]);
        let mut green_now = names(&ports, &green);
        green_now.sort_unstable();
        assert_eq!(green_now, ["renamed", "to-blue2"]);
    });
    inside.expect("can enter the node");
}

#[test]
fn a_namespace_made_anew_under_its_name_has_only_its_new_veths() {
    let [node, blue, green] = match three() {
        Ok(all) => all,
        Err(why) => return println!("skipped: {why}"),
    };
    let ip = |args: &[&str]| {
        let done = Command::new("ip").args(args).status().expect("can run ip");
        assert!(done.success(), "{args:?}");
    };
    let filter = Filter::names([blue.name(), green.name()]).expect("are patterns");
    let inside = node.run_in(|| {
        let look = || netns::scan(&netns::DIRS, &filter, NsId::own().expect("there is /proc")).0;
        join(&node, &blue, "old", "eth0");
        assert_eq!(names(&ports_of(&look()), &blue), ["old"]);
        ip(&["netns", "del", blue.name()]);
        ip(&["netns", "add", blue.name()]);
        // The first of the two to be joined gets the number of the one that is gone, once the
        // kernel has cleared it away.
        join(&node, &green, "other", "eth0");
        join(&node, &blue, "new", "eth0");
        let found = look();
        let ports = ports_of(&found);
        assert_eq!(names(&ports, &blue), ["new"]);
        assert_eq!(names(&ports, &green), ["other"]);
    });
    inside.expect("can enter the node");
}
