//! The program at the uplink's ingress on made-up frames, in the kernel (`BPF_PROG_TEST_RUN`). Without root
//! the tests say so and pass.

use std::net::Ipv4Addr;

use libbpf_rs::{ErrorKind, MapFlags, MapType, ProgramInput, libbpf_sys};

use super::*;
use crate::{Classifier, LocalPrefix, Locality};

const PRIORITY: usize = 32;
/// The first word has the class, for HTB's filters.
const CB: usize = 48;
const CONTEXT: usize = 192;
const MATCH: i32 = -1;
const CONTROL: u32 = 0x1_0003;
const HOST: u32 = 0x1_0004;
const DEFAULT: u32 = 0x1_0002;
const WEB: u32 = 0x1_0010;
const VIDEO: u32 = 0x1_0011;

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NODE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const CONTAINER: Ipv4Addr = Ipv4Addr::new(172, 17, 0, 2);
/// The interfaces of class WEB show it.
const SHOWN: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

fn download() -> Option<Download> {
    match Download::load(None, None) {
        Ok(download) => Some(download),
        Err(e) if e.source.kind() == ErrorKind::PermissionDenied => {
            println!("SKIPPED: loading BPF programs needs root");
            None
        }
        Err(e) => panic!("{e:?}"),
    }
}

fn maps() -> DownloadMaps {
    DownloadMaps {
        config: DownloadConfig {
            control_handle: CONTROL,
            host_handle: HOST,
            default_handle: DEFAULT,
            cookie: 0x4321,
            link: 0,
        },
        owners: BTreeMap::from([
            (NODE.into(), HOST),
            (CONTAINER.into(), WEB),
            ("fd00::2".parse().unwrap(), VIDEO),
        ]),
        shown: BTreeMap::from([(SHOWN.into(), WEB)]),
        classes: BTreeSet::from([DEFAULT, CONTROL, HOST, WEB, VIDEO]),
        showing: BTreeSet::from([WEB]),
    }
}

/// The class that a frame gets; none if it passes unscheduled.
fn class_of(download: &Download, frame: &[u8]) -> Option<u32> {
    let program = download.object.progs_mut().find(|program| program.name() == Download::INGRESS_PROGRAM);
    let (mut context, mut after) = ([0; CONTEXT], [0; CONTEXT]);
    let input = ProgramInput {
        context_in: Some(&mut context),
        context_out: Some(&mut after),
        data_in: Some(frame),
        ..Default::default()
    };
    let verdict = program.unwrap().test_run(input).unwrap().return_value.cast_signed();
    let word = |at: usize| u32::from_ne_bytes(after[at..at + 4].try_into().unwrap());
    // Other qdiscs read a packet's priority, after the scheduler.
    assert_eq!(word(PRIORITY), 0);
    (verdict == MATCH).then_some(word(CB))
}

fn frame_v4(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, flags: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0, 0x45, 0, 0, 60, 0, 1]);
    frame.extend(flags.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(rest);
    frame.resize(frame.len().max(80), 0);
    frame
}

fn ports(from: u16, to: u16) -> Vec<u8> {
    [from.to_be_bytes(), to.to_be_bytes(), [0, 20], [0, 0]].concat()
}

/// Has the programs know a flow as `weir_learn` does.
fn learn(download: &Download, protocol: u8, (near, near_port): (Ipv4Addr, u16), far_port: u16, class: u32) {
    let mut key = Vec::new();
    key.extend(widened_address(near.into()));
    key.extend(widened_address(SERVER.into()));
    key.extend(near_port.to_be_bytes());
    key.extend(far_port.to_be_bytes());
    key.extend([protocol, 0, 0, 0]);
    let sender = [class.to_ne_bytes(), [0; 4]].concat();
    download.map(FLOWS).update(&key, &sender, MapFlags::ANY).unwrap();
}

#[test]
fn each_packet_belongs_to_the_first_that_knows_it() {
    let Some(download) = download() else { return };
    let tcp = frame_v4(6, SERVER, NODE, 0, &ports(443, 40_000));
    assert_eq!(class_of(&download, &tcp), None, "nothing is scheduled before the maps are written");
    assert!(download.restore(&maps()).failure.is_none());
    assert_eq!(class_of(&download, &tcp), Some(HOST), "an unknown flow to the node is the host's");
    learn(&download, 6, (NODE, 40_000), 443, VIDEO);
    assert_eq!(class_of(&download, &tcp), Some(VIDEO), "it has left as the class's");
    let other_port = frame_v4(6, SERVER, NODE, 0, &ports(443, 40_001));
    let other_protocol = frame_v4(17, SERVER, NODE, 0, &ports(443, 40_000));
    assert_eq!([other_port, other_protocol].map(|f| class_of(&download, &f)), [Some(HOST); 2]);
    let later_fragment = frame_v4(6, SERVER, NODE, 0x2001, &ports(443, 40_000));
    assert_eq!(class_of(&download, &later_fragment), Some(HOST), "it has no ports");
    // A container's own address decides, whatever has left from there.
    learn(&download, 17, (CONTAINER, 53), 53, VIDEO);
    assert_eq!(class_of(&download, &frame_v4(17, SERVER, CONTAINER, 0, &ports(53, 53))), Some(WEB));
    let stranger = frame_v4(17, SERVER, Ipv4Addr::new(172, 17, 0, 9), 0, &ports(53, 53));
    assert_eq!(class_of(&download, &stranger), Some(DEFAULT));
    // The class of a flow has gone.
    learn(&download, 6, (NODE, 40_000), 443, 0x1_0099);
    assert_eq!(class_of(&download, &tcp), Some(HOST));
}

/// A container may give itself any address, of a host of the LAN too.
#[test]
fn a_flow_that_has_left_comes_before_an_address_that_a_container_shows() {
    let Some(download) = download() else { return };
    assert!(download.restore(&maps()).failure.is_none());
    let udp = |flags| class_of(&download, &frame_v4(17, SERVER, SHOWN, flags, &ports(53, 53)));
    assert_eq!(udp(0), Some(WEB), "no one else is known to have it");
    learn(&download, 17, (SHOWN, 53), 53, VIDEO);
    assert_eq!(udp(0), Some(VIDEO), "it has left as the class's");
    assert_eq!(udp(0x2001), Some(WEB), "a later fragment has no ports");
    assert_eq!(class_of(&download, &frame_v4(17, SERVER, SHOWN, 0, &ports(53, 54))), Some(WEB));
}

#[test]
fn echoes_are_told_apart_by_their_id_and_other_icmp_is_not() {
    let Some(download) = download() else { return };
    assert!(download.restore(&maps()).failure.is_none());
    learn(&download, 1, (NODE, 77), 77, WEB);
    let icmp = |kind: u8, id: u16| {
        let rest = [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &[0, 1]].concat();
        class_of(&download, &frame_v4(1, SERVER, NODE, 0, &rest))
    };
    assert_eq!((icmp(0, 77), icmp(8, 77)), (Some(WEB), Some(WEB)));
    assert_eq!((icmp(0, 78), icmp(3, 77)), (Some(HOST), Some(HOST)));
}

#[test]
fn ipv6_and_control_traffic_have_their_classes() {
    let Some(download) = download() else { return };
    assert!(download.restore(&maps()).failure.is_none());
    let frame_v6 = |next: u8, hops: u8, rest: &[u8]| {
        let mut frame = vec![2; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, next, hops]);
        frame.extend("fd01::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        frame.extend("fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
        frame.extend(rest);
        frame.resize(100, 0);
        frame
    };
    assert_eq!(class_of(&download, &frame_v6(17, 60, &ports(53, 53))), Some(VIDEO));
    let solicitation = frame_v6(58, 255, &[135, 0, 0, 0]);
    assert_eq!(class_of(&download, &solicitation), Some(CONTROL));
    assert_eq!(class_of(&download, &frame_v6(58, 64, &[135, 0, 0, 0])), Some(VIDEO), "a router sent it");
    let mut arp = vec![2; 12];
    arp.extend([0x08, 0x06]);
    arp.resize(60, 0);
    assert_eq!(class_of(&download, &arp), Some(CONTROL));
    // Beyond its bucket (6,000 bytes) it waits with the rest.
    let classes: Vec<Option<u32>> = (0..200).map(|_| class_of(&download, &arp)).collect();
    assert_eq!(classes[199], Some(DEFAULT));
}

#[test]
fn entries_that_others_altered_are_restored_and_earlier_flows_are_kept() {
    let Some(download) = download() else { return };
    let wanted = maps();
    assert_eq!(download.restore(&wanted).maps.len(), 4);
    assert_eq!(download.restore(&wanted).maps, []);
    download.map("weir_down_owner").delete(&widened_address(NODE.into())).unwrap();
    download.map("weir_down_class").update(&7u32.to_ne_bytes(), &[0; 4], MapFlags::ANY).unwrap();
    download.map("weir_down_shown").update(&widened_address(NODE.into()), &[7; 4], MapFlags::ANY).unwrap();
    let altered = [("weir_down_class", 1), ("weir_down_owner", 1), ("weir_down_shown", 1)];
    assert_eq!(download.restore(&wanted).maps, altered);
    learn(&download, 6, (NODE, 40_000), 443, WEB);
    let id = {
        let programs = download.object.progs().collect::<Vec<_>>();
        let program = programs.iter().find(|program| program.name() == Download::INGRESS_PROGRAM);
        attach::program_id(&program.unwrap().as_fd()).unwrap()
    };
    let earlier = EarlierDownload::of_program(id).expect("it has flows");
    let next = Download::load(Some(&earlier), None).unwrap();
    assert!(next.restore(&wanted).failure.is_none());
    let tcp = frame_v4(6, SERVER, NODE, 0, &ports(443, 40_000));
    assert_eq!(class_of(&next, &tcp), Some(WEB));
}

/// Versions before 2026-11-30 kept no time beside a flow's class.
#[test]
fn earlier_flows_of_another_layout_are_left() {
    let Some(own) = download() else { return };
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    let earlier = MapHandle::create(MapType::LruHash, Some(FLOWS), 40, 4, 65_536, &options).unwrap();
    let next = Download::load(Some(&EarlierDownload(earlier)), None).unwrap();
    assert_eq!(next.asks_conntrack(), own.asks_conntrack());
    assert!(next.restore(&maps()).failure.is_none());
    learn(&next, 6, (NODE, 40_000), 443, WEB);
    assert_eq!(class_of(&next, &frame_v4(6, SERVER, NODE, 0, &ports(443, 40_000))), Some(WEB));
}

#[test]
fn packets_from_networks_beside_the_device_are_not_scheduled() {
    let Some(own) = download() else { return };
    let classifier = Classifier::load().unwrap();
    let networks = classifier.local_maps().unwrap();
    let download = Download::load(None, Some(&networks)).unwrap();
    assert!(download.restore(&maps()).failure.is_none() && own.restore(&maps()).failure.is_none());
    let net = |network: &str, len| LocalPrefix { network: network.parse().unwrap(), len };
    let know = |known: &[(LocalPrefix, Locality)]| {
        classifier.set_local(&known.iter().copied().collect()).unwrap();
    };
    let tcp = frame_v4(6, SERVER, NODE, 0, &ports(443, 40_000));
    for (known, class) in [
        (&[][..], Some(HOST)),
        (&[(net("192.0.2.0", 24), Locality::exempt(0))], None),
        (&[(net("192.0.2.0", 24), Locality::exempt(1))], Some(HOST)),
        (&[(net("192.0.2.0", 24), Locality::ON_NODE)], Some(HOST)),
        (&[(net("192.0.3.0", 24), Locality::exempt(0))], Some(HOST)),
        // The longest network decides.
        (&[(net("0.0.0.0", 0), Locality::exempt(0)), (net("192.0.2.1", 32), Locality::ON_NODE)], Some(HOST)),
        (&[(net("::", 0), Locality::exempt(0)), (net("192.0.2.0", 31), Locality::exempt(0))], None),
    ] {
        know(known);
        assert_eq!(class_of(&download, &tcp), class, "{known:?}");
    }
    assert_eq!(class_of(&own, &tcp), Some(HOST), "an object of its own knows none");
    let v6 = |from: u8| {
        let mut frame = [&[2; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]].concat();
        for last in [from, 2] {
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        frame.extend(ports(443, 40_000));
        frame.resize(100, 0);
        frame
    };
    know(&[(net("fd00::8", 126), Locality::exempt(0))]);
    assert_eq!([v6(9), v6(7)].map(|frame| class_of(&download, &frame)), [None, Some(VIDEO)]);
}
