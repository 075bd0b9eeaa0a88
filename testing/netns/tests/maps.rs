//! Another process writes into the classifier's maps. Within a second they are right again, weir
//! reports it, and shares are right.

use std::{thread::sleep, time::Duration};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_bpf::attach;
use weir_netlab::topology::{Family, Spec};
use weir_netns_tests::{
    CAPACITY, Division, FLOOD, Need, Node, Rate, Stream, TOLERANCE, can_run, compare, containers, kernel,
    measure_once, party, wait_within,
};
use weir_units::TcHandle;

const SECOND: Duration = Duration::from_secs(1);

/// All entries of a map.
fn content(map: &MapHandle) -> Vec<(Vec<u8>, Vec<u8>)> {
    let value = |key: &[u8]| map.lookup(key, MapFlags::ANY).expect("it can be read").unwrap_or_default();
    let mut all: Vec<_> = map.keys().map(|key| (value(&key), key)).map(|(value, key)| (key, value)).collect();
    all.sort();
    all
}

/// A map of the classifier.
fn map(node: &Node, veth: &str, name: &str) -> Option<MapHandle> {
    let programs = kernel::tcx_programs(node.topology.node(), veth);
    let (program, _) = programs.iter().find(|(_, name)| name == "weir_port")?;
    let maps = attach::program_maps(*program).expect("it has maps");
    let mut maps = maps.into_iter().map(|id| MapHandle::from_map_id(id).expect("root can open it"));
    Some(maps.find(|map| map.name() == name).unwrap_or_else(|| panic!("no map {name}")))
}

/// An alteration of a map.
enum Damage {
    Put(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
}

#[test]
fn altered_classifier_maps_are_right_within_a_second() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), tso: false, ..Spec::default() });
    let division = Division::of([party("C1").sends(FLOOD), party("C2").weight(3).sends(FLOOD)]);
    let config = node.config().division(&node, &division);
    node.start(&config);
    let veths: Vec<String> = node.topology.containers().iter().map(|c| c.host_interface()).collect();
    let Some(ports) = map(&node, &veths[0], "weir_ports") else {
        println!("SKIPPED: this kernel has no TCX (6.6), by which a port's program and its maps are found");
        return;
    };
    let [config, local] =
        ["weir_config", "weir_local"].map(|name| map(&node, &veths[0], name).expect("it was there"));
    let index = |i: usize| kernel::index_of(node.topology.node(), &veths[i]).expect("it is there");
    let (one, two) = (index(0).to_ne_bytes().to_vec(), index(1).to_ne_bytes().to_vec());
    let class: TcHandle =
        node.class("C1").handle.expect("it has one").parse().expect("tc's way of writing it");

    let server = node.topology.server_address(Family::V4);
    let stream = |label| Stream::udp(node.netns(label), node.topology.srv(), server, Rate::Unlimited);
    let streams = ["C1", "C2"].map(stream);
    sleep(SECOND);
    let shares = |what: &str| {
        let expected = division.expected(CAPACITY, Family::V4);
        let measure = || {
            let rates = Stream::goodputs(&streams.each_ref(), Duration::from_millis(1000));
            let got: Vec<_> = ["C1", "C2"].map(str::to_owned).into_iter().zip(rates).collect();
            compare(what, &got, &expected)
        };
        let worst = measure_once(measure, |worst| *worst <= TOLERANCE);
        assert!(worst <= TOLERANCE, "{what}: a share is {:.1} % off", worst * 100.0);
    };
    shares("at first");

    let everywhere = [96u32.to_ne_bytes().to_vec(), vec![0; 10], vec![0xff; 2], vec![0; 4]].concat();
    let put = |key: &[u8], value: &[u8]| Damage::Put(key.to_vec(), value.to_vec());
    for (what, map, damage) in [
        ("a port's class removed", &ports, Damage::Remove(two.clone())),
        ("a port in another's class", &ports, put(&two, &class.0.to_ne_bytes())),
        ("a port that is nobody's", &ports, put(&4096u32.to_ne_bytes(), &class.0.to_ne_bytes())),
        ("a port in no class", &ports, put(&one, &0u32.to_ne_bytes())),
        ("all destinations on this node", &local, put(&everywhere, &1u32.to_ne_bytes())),
        ("nothing configured", &config, put(&0u32.to_ne_bytes(), &vec![0; config.value_size() as usize])),
    ] {
        let (before, repairs) = (content(map), node.client().status().expect("it answers").repairs);
        match damage {
            Damage::Put(key, value) => map.update(&key, &value, MapFlags::ANY),
            Damage::Remove(key) => map.delete(&key),
        }
        .expect("root can write it");
        let took = wait_within(SECOND, || {
            let is_said = node.client().status().expect("it answers").repairs > repairs;
            (is_said && content(map) == before).then_some(()).ok_or(is_said)
        });
        let took = took.unwrap_or_else(|late| panic!("{what}: not set right after {SECOND:?}, said: {late}"));
        println!("{what:<44} set right within {took:?}");
    }
    // Packets that went past weir meanwhile are still on their way.
    sleep(Duration::from_millis(800));
    shares("set right");
    let events = node.weir(&["events"]);
    for name in ["1 of weir_ports", "1 of weir_local", "1 of weir_config"] {
        assert!(events.contains(name), "no event tells of {name}:\n{events}");
    }

    // An alteration that cannot be undone is reported.
    assert!(node.class("C1").enforced);
    local.update(&everywhere, &1u32.to_ne_bytes(), MapFlags::ANY).expect("root can write it");
    local.freeze().expect("root can freeze it");
    let took = wait_within(SECOND, || if node.class("C1").enforced { Err(()) } else { Ok(()) });
    let took = took.unwrap_or_else(|late| {
        panic!("a map that cannot be written is not told of after {SECOND:?}: {late}")
    });
    let why = node.class("C1").not_enforced_because.unwrap_or_default();
    assert!(why.contains("cannot restore which networks packets reach without the line"), "{why}");
    println!("a map that cannot be written                 told of within {took:?}: {why}");
    // However often the link is divided meanwhile.
    for _ in 0..40 {
        assert!(!node.class("C1").enforced, "what is still so is told of no more");
        sleep(Duration::from_millis(10));
    }
}
