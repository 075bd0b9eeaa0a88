//! From a network namespace to the host-side interfaces that lead to it.
//!
//! The kernel numbers, per namespace, the other namespaces that it knows (`nsid`). A link dump
//! gives each veth here the number of its peer's namespace and the peer's index there;
//! `RTM_GETNSID` gives the number of a namespace of which a file is open. So the container is
//! never entered.
//!
//! **Invariant**: the links are listed before the numbers are asked for. A dump gives numbers
//! to namespaces that have none. And the kernel may give the number of a dead namespace to a
//! new one; asked in this order, the worst is an interface that is just being destroyed with
//! its peer. In the other order the new namespace's interface would go to the dead one's class.

use std::collections::BTreeMap;

use weir_netlink::{Link, Netlink, NetlinkError};

use super::netns::{NetnsError, NetnsRef};

/// A host-side interface whose other end is in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its index, here.
    pub index: u32,
    /// Its name, here.
    pub name: String,
    /// The index of its peer, in the container.
    pub peer: u32,
}

/// The interfaces that lead to each namespace.
#[derive(Debug)]
pub struct Ports<K> {
    /// By owner, in the order of the index; empty for a namespace that no link leads to, such
    /// as that of a container without a network.
    pub of: BTreeMap<K, Vec<Port>>,
    /// Owners whose namespace belongs to an earlier one: `(owner, earlier)`.
    pub shared: Vec<(K, K)>,
    /// Owners whose namespace is gone.
    pub gone: Vec<(K, NetnsError)>,
}

/// The two questions to the kernel.
trait Kernel {
    type Error;
    fn links(&mut self) -> Result<Vec<Link>, Self::Error>;
    /// The number of a namespace; none if it has none.
    fn number(&mut self, netns: &NetnsRef) -> Result<Result<Option<i32>, NetnsError>, Self::Error>;
}

impl Kernel for Netlink {
    type Error = NetlinkError;

    fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        Netlink::links(self)
    }

    fn number(&mut self, netns: &NetnsRef) -> Result<Result<Option<i32>, NetnsError>, NetlinkError> {
        match netns.open() {
            Ok(file) => self.nsid_of(&file).map(Ok),
            Err(why) => Ok(Err(why)),
        }
    }
}

/// Finds the interfaces of all `namespaces`, each known by a key of the caller's.
///
/// # Errors
/// [`NetlinkError`] if the links or a number cannot be read.
pub fn find<'a, K: Ord + Clone>(
    netlink: &mut Netlink,
    namespaces: impl IntoIterator<Item = (K, &'a NetnsRef)>,
) -> Result<Ports<K>, NetlinkError> {
    ask(netlink, namespaces)
}

fn ask<'a, K: Ord + Clone, E>(
    kernel: &mut impl Kernel<Error = E>,
    namespaces: impl IntoIterator<Item = (K, &'a NetnsRef)>,
) -> Result<Ports<K>, E> {
    let links = kernel.links()?;
    let mut numbers = Vec::new();
    for (key, netns) in namespaces {
        numbers.push((key, kernel.number(netns)?));
    }
    Ok(map(&links, numbers))
}

/// Gives each owner of a numbered namespace the links that lead there.
fn map<K: Ord + Clone>(
    links: &[Link],
    numbers: impl IntoIterator<Item = (K, Result<Option<i32>, NetnsError>)>,
) -> Ports<K> {
    let mut by_nsid: BTreeMap<i32, Vec<Port>> = BTreeMap::new();
    for (nsid, port) in links.iter().filter_map(port) {
        by_nsid.entry(nsid).or_default().push(port);
    }
    let mut ports = Ports { of: BTreeMap::new(), shared: Vec::new(), gone: Vec::new() };
    let mut owners: BTreeMap<i32, K> = BTreeMap::new();
    for (key, number) in numbers {
        let nsid = match number {
            Ok(nsid) => nsid,
            Err(why) => {
                ports.gone.push((key, why));
                continue;
            }
        };
        if let Some(owner) = nsid.and_then(|nsid| owners.get(&nsid)) {
            ports.shared.push((key, owner.clone()));
            continue;
        }
        let mut own = nsid.and_then(|nsid| by_nsid.remove(&nsid)).unwrap_or_default();
        own.sort_by_key(|port| port.index);
        owners.extend(nsid.map(|nsid| (nsid, key.clone())));
        ports.of.insert(key, own);
    }
    ports
}

/// A link as a port and the number of the namespace it leads to; none if it leads nowhere else.
#[must_use]
pub fn port(link: &Link) -> Option<(i32, Port)> {
    // Of other kinds the attribute tells of a device below, not of a peer.
    let has_peer = matches!(link.kind.as_deref(), Some("veth" | "netkit"));
    let nsid = link.peer_netnsid.filter(|_| has_peer)?;
    Some((nsid, Port { index: link.index, name: link.name.clone(), peer: link.peer_index? }))
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io};

    use super::*;
    use crate::NsId;
    use proptest::prelude::*;

    fn link(index: u32, kind: &str, nsid: Option<i32>) -> Link {
        Link {
            index,
            name: format!("if{index}"),
            kind: (!kind.is_empty()).then(|| kind.to_owned()),
            peer_index: nsid.map(|_| 2),
            peer_netnsid: nsid,
            ..Link::default()
        }
    }

    fn map_numbers(links: &[Link], numbers: &[(&'static str, Option<i32>)]) -> Ports<&'static str> {
        map(links, numbers.iter().map(|(key, nsid)| (*key, Ok(*nsid))))
    }

    fn indices(ports: &Ports<&'static str>, key: &str) -> Vec<u32> {
        ports.of[key].iter().map(|port| port.index).collect()
    }

    #[test]
    fn each_namespace_gets_the_veths_that_lead_to_it() {
        let links = [
            link(1, "", None),
            link(9, "veth", Some(0)),
            link(3, "bridge", None),
            link(4, "veth", Some(1)),
            link(5, "veth", None),
            link(6, "veth", Some(0)),
            link(7, "netkit", Some(2)),
            link(8, "macvlan", Some(1)),
        ];
        let ports = map_numbers(&links, &[("a", Some(0)), ("b", Some(1)), ("c", Some(2)), ("d", Some(3))]);
        assert_eq!(indices(&ports, "a"), [6, 9]);
        assert_eq!(indices(&ports, "b"), [4]);
        assert_eq!(indices(&ports, "c"), [7]);
        assert!(ports.of["d"].is_empty());
        assert_eq!(ports.of["b"], [Port { index: 4, name: "if4".into(), peer: 2 }]);
        assert!(ports.shared.is_empty() && ports.gone.is_empty());
    }

    #[test]
    fn namespace_without_a_number_has_no_ports_and_no_twin() {
        let links = [link(4, "veth", Some(-1)), link(5, "veth", None)];
        let ports = map_numbers(&links, &[("a", None), ("b", None)]);
        assert_eq!((indices(&ports, "a"), indices(&ports, "b")), (vec![], vec![]));
        assert!(ports.shared.is_empty());
    }

    #[test]
    fn a_namespace_asked_for_twice_keeps_its_first_owner() {
        let ports = map_numbers(&[link(4, "veth", Some(0))], &[("a", Some(0)), ("b", Some(0))]);
        assert_eq!(indices(&ports, "a"), [4]);
        assert_eq!(ports.shared, [("b", "a")]);
        assert!(!ports.of.contains_key("b"));
    }

    #[test]
    fn a_namespace_that_is_gone_is_told_and_the_others_are_found() {
        let gone = NetnsError::Open { path: "/gone".into(), source: io::ErrorKind::NotFound.into() };
        let ports = map(&[link(4, "veth", Some(0))], [("a", Err(gone)), ("b", Ok(Some(0)))]);
        assert_eq!(indices(&ports, "b"), [4]);
        assert!(matches!(&ports.gone[..], [("a", NetnsError::Open { .. })]), "{:?}", ports.gone);
    }

    /// A kernel in which a container dies after the first question, and a new one comes that gets
    /// the dead one's number.
    struct Busy {
        asked: u32,
    }

    impl Kernel for Busy {
        type Error = Infallible;

        fn links(&mut self) -> Result<Vec<Link>, Infallible> {
            self.asked += 1;
            Ok(vec![link(if self.asked == 1 { 4 } else { 5 }, "veth", Some(7))])
        }

        fn number(&mut self, _: &NetnsRef) -> Result<Result<Option<i32>, NetnsError>, Infallible> {
            self.asked += 1;
            Ok(Ok(Some(7)))
        }
    }

    #[test]
    fn class_of_a_dead_container_never_gets_a_reused_number() {
        let dead = NetnsRef { path: "/dead".into(), id: NsId { dev: 4, ino: 1 } };
        let ports = ask(&mut Busy { asked: 0 }, [("dead", &dead)]).expect("asking cannot fail");
        assert_eq!(indices(&ports, "dead"), [4]);
    }

    proptest! {
        #[test]
        fn no_interface_ever_has_two_owners_or_the_wrong_one(
            nsids in prop::collection::vec(prop::option::of(-1..6), 0..20),
            asked in prop::collection::vec(prop::option::of(0..6), 0..10),
        ) {
            let indexed = nsids.iter().zip(1..);
            let links: Vec<Link> = indexed.map(|(nsid, index)| link(index, "veth", *nsid)).collect();
            let ports = map(&links, asked.iter().enumerate().map(|(key, nsid)| (key, Ok(*nsid))));
            prop_assert_eq!(ports.of.len() + ports.shared.len(), asked.len());
            let mut owned = Vec::new();
            for (key, own) in &ports.of {
                for port in own {
                    prop_assert_eq!(nsids[port.index as usize - 1], asked[*key]);
                    owned.push(port.index);
                }
            }
            let reachable = nsids.iter().zip(1..).filter(|(nsid, _)| {
                nsid.is_some_and(|nsid| nsid >= 0) && asked.contains(nsid)
            });
            let reachable: Vec<u32> = reachable.map(|(_, index)| index).collect();
            owned.sort_unstable();
            prop_assert_eq!(owned, reachable);
        }
    }
}
