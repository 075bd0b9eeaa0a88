//! Interfaces that leave their containers' namespaces, without a kernel.

use weir_discovery::NsId;

use super::*;

const NODE: [&str; 2] = ["netns:a", "netns:b"];

fn link(index: u32, nsid: Option<i32>) -> Link {
    Link {
        index,
        name: format!("v{index}"),
        kind: Some("veth".to_owned()),
        peer_index: Some(2),
        peer_netnsid: nsid,
        mac: vec![2, 0, 0, 0, 0, 1],
        ..Link::default()
    }
}

fn at(ms: u64) -> Instant {
    Instant(Duration::from_millis(ms))
}

/// A node whose `present` classes have the namespaces of number 0, 1, ...
struct Node {
    port_owners: PortOwners,
    present: Vec<&'static str>,
    /// The places of the containers whose processes made a namespace, by its number.
    nested: BTreeMap<i32, usize>,
    searches: u32,
}

impl Node {
    fn new() -> Node {
        Node {
            port_owners: PortOwners::default(),
            present: NODE.to_vec(),
            nested: BTreeMap::new(),
            searches: 0,
        }
    }

    /// The interfaces of each present class after a discovery, and the number of warnings.
    fn look(&mut self, ms: u64, links: &[Link]) -> (Vec<Vec<u32>>, usize) {
        let number = |name: &str| NODE.iter().position(|known| *known == name).unwrap();
        let namespaces: Vec<NetnsRef> = self
            .present
            .iter()
            .map(|name| NetnsRef { path: (*name).into(), id: NsId { dev: 4, ino: number(name) as u64 } })
            .collect();
        let owners: Vec<Owner<'_>> = namespaces
            .iter()
            .zip(&self.present)
            .enumerate()
            .map(|(place, (netns, name))| Owner { place, class: ClassKey::from(*name), netns })
            .collect();
        let led_to = |number: usize| {
            let ports = links.iter().filter_map(port);
            ports.filter(|(nsid, _)| *nsid == number as i32).map(|(_, port)| port).collect()
        };
        let of = self.present.iter().enumerate().map(|(place, name)| (place, led_to(number(name))));
        let mut ports = Ports { of: of.collect(), shared: Vec::new(), gone: Vec::new() };
        let (free, nested) = (links.iter().collect::<Vec<_>>(), self.nested.clone());
        let mut searches = 0;
        let search = |_: &[Owner<'_>]| {
            searches += 1;
            nested
        };
        let warnings = self.port_owners.keep(&free, &owners, &mut ports, at(ms), search);
        self.searches += searches;
        let indices = |own: Vec<Port>| own.iter().map(|port| port.index).collect();
        (ports.of.into_values().map(indices).collect(), warnings.len())
    }
}

#[test]
fn an_interface_that_leaves_its_namespace_keeps_its_class() {
    let mut node = Node::new();
    assert_eq!(node.look(0, &[link(4, Some(0)), link(5, Some(1))]), (vec![vec![4], vec![5]], 0));
    assert_eq!(node.look(1, &[link(4, Some(7)), link(5, Some(1))]), (vec![vec![4], vec![5]], 1));
    // Into the next one, and back.
    assert_eq!(node.look(2, &[link(4, Some(8)), link(5, Some(1))]), (vec![vec![4], vec![5]], 1));
    assert_eq!(node.look(3, &[link(4, Some(0)), link(5, Some(1))]), (vec![vec![4], vec![5]], 0));
    assert_eq!(node.searches, 0);
}

#[test]
fn an_interface_goes_to_the_known_namespace_that_claims_it() {
    let mut node = Node::new();
    node.look(0, &[link(4, Some(0))]);
    assert_eq!(node.look(1, &[link(4, Some(1))]), (vec![vec![], vec![4]], 0));
    assert_eq!(node.look(2, &[link(4, Some(7))]), (vec![vec![], vec![4]], 1), "it is b's now");
    // The node takes it.
    assert_eq!(node.look(3, &[link(4, None)]), (vec![vec![], vec![]], 0));
    assert_eq!(node.look(4, &[link(4, Some(7))]), (vec![vec![], vec![]], 0));
}

#[test]
fn an_interface_is_free_while_its_class_is_away() {
    let mut node = Node::new();
    node.look(0, &[link(4, Some(0))]);
    node.present = vec!["netns:b"];
    assert_eq!(node.look(1, &[link(4, Some(7))]), (vec![vec![]], 0));
    node.present = NODE.to_vec();
    assert_eq!(node.look(2, &[link(4, Some(7))]), (vec![vec![4], vec![]], 1));
}

#[test]
fn an_index_of_another_interface_has_no_class() {
    let named = Link { name: "other".to_owned(), ..link(4, Some(7)) };
    let addressed = Link { mac: vec![2, 0, 0, 0, 0, 9], ..link(4, Some(7)) };
    for other in [named, addressed] {
        let mut node = Node::new();
        node.look(0, &[link(4, Some(0))]);
        assert_eq!(node.look(1, &[other]), (vec![vec![], vec![]], 0));
    }
    // It was away.
    let mut node = Node::new();
    node.look(0, &[link(4, Some(0))]);
    node.look(1, &[]);
    assert_eq!(node.look(2, &[link(4, Some(7))]), (vec![vec![], vec![]], 0));
}

#[test]
fn processes_are_searched_once_for_new_strangers_and_containers() {
    let mut node = Node::new();
    node.nested = BTreeMap::from([(7, 1)]);
    let strangers = [link(4, Some(7)), link(5, Some(8))];
    assert_eq!(node.look(0, &strangers), (vec![vec![], vec![4]], 1), "a process of b made namespace 7");
    assert_eq!(node.look(5_000, &strangers), (vec![vec![], vec![4]], 1));
    assert_eq!(node.searches, 1);
    // The search for another one waits until a second has passed since the last.
    node.nested = BTreeMap::from([(9, 0)]);
    let more = [link(4, Some(7)), link(5, Some(8)), link(6, Some(9))];
    assert_eq!(node.look(5_100, &more).0, [vec![6], vec![4]]);
    node.nested = BTreeMap::from([(10, 0)]);
    let more = [&more[..], &[link(7, Some(10))]].concat();
    assert_eq!(node.look(5_200, &more).0, [vec![6], vec![4]]);
    assert!(!node.port_owners.is_due(at(6_099)) && node.port_owners.is_due(at(6_100)));
    assert_eq!(node.look(6_100, &more).0, [vec![6, 7], vec![4]]);
    assert!(!node.port_owners.is_due(at(9_000)));
    assert_eq!(node.searches, 3);
}
