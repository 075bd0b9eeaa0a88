//! The classifier against its model on random frames, in the kernel (`BPF_PROG_TEST_RUN`).
//!
//! `WEIR_FRAMES` says how many frames, `WEIR_SEED` which. Without root the test says so and passes. All frames
//! are linear, and no socket has a class of its own.

use std::{collections::HashMap, env, ffi::OsStr, net::Ipv4Addr, time::Duration};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, ProgramMut, skel::Skel};
use weir_testkit::frames::{Addresses, Random, RandomFrames};

use super::{
    Classifier, ClassifierConfig,
    model::{Model, Outcome, Place, prefix},
};
use crate::{Locality, RuleSet, SelectorRule, Tunnel};

/// Offsets in `struct __sk_buff`.
const PRIORITY: usize = 32;
const INGRESS: usize = 36;
const CB: usize = 48;
const CONTEXT: usize = 192;
/// classify_check.bpf.c.
const TAG: u32 = 0x10000;
const CONTROL_NS_PER_BYTE: u64 = 400_000;
const MIN_CONTROL_BYTES: usize = 60;
/// The loopback device, which made-up packets come by.
const PORT: u32 = 1;
const OWN: u32 = 0x1_0010;
const OTHER: u32 = 0x1_0011;
const UNTRACKED: u16 = 0x99;
const CONFIG: ClassifierConfig = ClassifierConfig {
    ifb_index: 7,
    control_handle: 0x1_0003,
    host_handle: 0x1_0004,
    default_handle: 0x1_0005,
    charge_local: 0,
    cgroup_levels: 0,
    cookie: 0xbeef,
    flags: 0,
    rules: 0,
    main_link: 0,
    tunnel_key: 0x5eed_1e55,
};
/// Frames before the node is another one.
const A_NODE: u64 = 200;

struct Kernel {
    classifier: Classifier,
    check: Object,
}

/// A frame that is to be classified.
struct Case<'a> {
    frame: &'a [u8],
    place: Place,
    /// A VLAN tag is beside its bytes.
    is_tagged: bool,
    tc_index: u16,
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes"))).collect()
}

fn now_ns() -> u64 {
    let now = nix::time::ClockId::CLOCK_MONOTONIC.now().expect("there is this clock");
    u64::try_from(Duration::from(now).as_nanos()).expect("it is not the year 2500")
}

impl Kernel {
    /// None if this process may not load programs.
    fn load() -> Option<Kernel> {
        let classifier = match Classifier::load() {
            Ok(classifier) => classifier,
            Err(e) if e.source.kind() == ErrorKind::PermissionDenied => {
                println!("SKIPPED: loading BPF programs needs root");
                return None;
            }
            Err(e) => panic!("{e:?}"),
        };
        let object = include_bytes!(concat!(env!("OUT_DIR"), "/classify_check.bpf.o"));
        let mut open = ObjectBuilder::default().open_memory(object).expect("it opens");
        for mut map in open.maps_mut() {
            let same = |other: &libbpf_rs::Map<'_>| other.name() == map.name();
            if let Some(shared) = classifier.skeleton.object().maps().find(same) {
                map.reuse_fd(std::os::fd::AsFd::as_fd(&shared)).expect("the maps are alike");
            }
        }
        let check = open.load().expect("the verifier takes it");
        Some(Kernel { classifier, check })
    }

    fn real(&self, place: Place) -> ProgramMut<'_> {
        Kernel::named(self.classifier.skeleton.object(), "weir", place)
    }

    fn checked(&self, place: Place) -> ProgramMut<'_> {
        Kernel::named(&self.check, "check", place)
    }

    fn named<'a>(object: &'a Object, kind: &str, place: Place) -> ProgramMut<'a> {
        let name = match place {
            Place::Port => "port",
            Place::PortMatch => "port_match",
            Place::Uplink(_) => "uplink",
        };
        let name = format!("{kind}_{name}");
        object.progs_mut().find(|program| program.name() == OsStr::new(&name)).expect("there is this program")
    }

    /// The node as the model knows it.
    fn configure(&self, model: &Model) {
        let classifier = &self.classifier;
        classifier.configure(0, &model.config).unwrap();
        classifier.set_port(PORT, model.port).unwrap();
        let maps = &classifier.skeleton.maps;
        for map in [&maps.weir_datagrams, &maps.weir_counters] {
            for key in map.keys().collect::<Vec<_>>() {
                map.delete(&key).unwrap();
            }
        }
        classifier.set_local(&model.local.iter().copied().collect()).unwrap();
        for class in &model.tracked {
            classifier.track(*class, true).unwrap();
        }
        if model.config.rules > 0 {
            classifier.load_rules(model.config.rules, &RuleSet::new(&model.rules).unwrap()).unwrap();
        }
    }

    /// The work of a program on a frame, and the datagram that it names in `skb->cb`. None if the kernel
    /// makes no packet of the frame.
    fn run(&self, program: &ProgramMut<'_>, case: &Case<'_>, has_room: bool) -> Option<(Outcome, u32)> {
        let control = &self.classifier.skeleton.maps.weir_control;
        let from = if let Place::Uplink(from) = case.place { from } else { PORT };
        let bucket = from.to_ne_bytes();
        if has_room {
            let _ = control.delete(&bucket);
        } else {
            control.update(&bucket, &u64::MAX.wrapping_div(2).to_ne_bytes(), MapFlags::ANY).unwrap();
        }
        let mut context = [0; CONTEXT];
        if let Place::Uplink(from) = case.place {
            context[INGRESS..INGRESS + 4].copy_from_slice(&from.to_ne_bytes());
        }
        let given = u32::from(case.tc_index) | if case.is_tagged { TAG } else { 0 };
        context[CB + 12..CB + 16].copy_from_slice(&given.to_ne_bytes());
        let mut after = context;
        let local_bytes = || self.classifier.local_bytes(OWN).unwrap();
        let (local_before, before_ns) = (local_bytes(), now_ns());
        let input = ProgramInput {
            context_in: Some(&mut context),
            context_out: Some(&mut after),
            data_in: Some(case.frame),
            ..Default::default()
        };
        let verdict = match program.test_run(input) {
            Ok(output) => output.return_value.cast_signed(),
            Err(e) if e.kind() == ErrorKind::InvalidInput => return None,
            Err(e) => panic!("{e:?}"),
        };
        let full = control.lookup(&bucket, MapFlags::ANY).unwrap().filter(|_| has_room);
        if let Some(full) = &full {
            let bytes = case.frame.len().max(MIN_CONTROL_BYTES) as u64;
            let full = u64::from_ne_bytes(full[..].try_into().expect("eight bytes"));
            let taken = full - bytes * CONTROL_NS_PER_BYTE;
            assert!((before_ns..=now_ns()).contains(&taken), "a bucket gave other bytes than {bytes}");
        }
        let cb = words(&after[CB..CB + 20]);
        let outcome = Outcome {
            verdict,
            priority: words(&after[PRIORITY..PRIORITY + 4])[0],
            tc_index: cb[4] as u16,
            handed: (cb[0], cb[1]),
            took_control: full.is_some(),
            local_bytes: local_bytes() - local_before,
            fragment: None,
        };
        Some((outcome, cb[2]))
    }
}

fn addresses() -> Addresses {
    Addresses {
        far: [2, 1, 1, 1, 1, 1],
        own: [2, 2, 2, 2, 2, 2],
        other: [2, 3, 3, 3, 3, 3],
        server: [10, 98, 0, 2].into(),
        server6: "fd98::2".parse().unwrap(),
        source: [10, 97, 0, 2].into(),
        other_ip: [10, 97, 0, 3].into(),
        host: [10, 97, 0, 1].into(),
        host6: "fe80::1".parse().unwrap(),
    }
}

/// Some rules, of which several may want a packet.
fn rules(r: &mut Random) -> Vec<SelectorRule> {
    let a = addresses();
    let networks = [
        prefix(Ipv4Addr::UNSPECIFIED.into(), 0),
        prefix(a.server.into(), 32),
        prefix(a.source.into(), 24),
        prefix(a.server6.into(), 64),
        prefix(Addresses::SOURCE6.into(), 128),
        prefix(std::net::Ipv6Addr::UNSPECIFIED.into(), 0),
    ];
    let one = |handle| {
        let port = r.of(&[0u16, 1, 67, 546, 4000, 5000]);
        let mut rule = SelectorRule { handle, ..SelectorRule::default() };
        rule.from = r.once_in(3).then(|| r.of(&[OWN, CONFIG.host_handle, CONFIG.default_handle]));
        rule.protocol = r.once_in(2).then(|| r.of(&[0, 1, 6, 17, 17, 58, 132]));
        rule.source_ports = r.once_in(4).then_some(port..=port);
        // Ranges of few kinds (RuleSet).
        let ranges = [port..=port, 4096..=8191, 64..=71, 500..=599];
        rule.destination_ports = r.once_in(3).then(|| ranges[r.below(4)].clone());
        rule.source = r.once_in(4).then(|| r.of(&networks));
        rule.destination = r.once_in(3).then(|| r.of(&networks));
        rule.dscp = r.once_in(4).then(|| r.of(&[0, 46, 10]));
        rule
    };
    (0x1_0020..0x1_0028).map(one).collect()
}

/// A node of any engine: with a scheduler, in place, or with a scheduler in user space.
fn node(r: &mut Random) -> Model {
    let a = addresses();
    let mut config = CONFIG;
    config.flags = r.of(&[
        0,
        0,
        ClassifierConfig::PACED,
        ClassifierConfig::IN_PLACE | ClassifierConfig::PACED,
        ClassifierConfig::USER,
    ]);
    // Engine `user` has no marks that name classes.
    if config.flags != ClassifierConfig::USER && r.once_in(2) {
        config.flags |= ClassifierConfig::NAMED;
    }
    config.charge_local = u32::from(r.once_in(4));
    if r.once_in(16) {
        config.ifb_index = 0;
    }
    let rules = if r.once_in(2) { Vec::new() } else { rules(r) };
    if !rules.is_empty() {
        config.rules = r.of(&[1, 2]);
    }
    let mut local = vec![
        (prefix(a.host.into(), 32), Locality::ON_NODE),
        (prefix(a.other_ip.into(), 32), Locality::ON_NODE),
        (prefix(Ipv4Addr::LOCALHOST.into(), 8), Locality::ON_NODE),
        (prefix(a.host6.into(), 128), Locality::ON_NODE),
    ];
    if r.once_in(3) {
        // Of this link or another one. The addresses of the node lie in them.
        let exempt = Locality::exempt(r.of(&[0, 0, 1]));
        local.push((prefix(a.host.into(), r.of(&[0, 8, 24])), exempt));
        local.push((prefix(a.host6.into(), 64), exempt));
    }
    Model {
        config,
        port: if r.once_in(8) { None } else { Some(OWN) },
        local,
        rules,
        tracked: vec![OWN, OTHER],
        has_room: true,
        datagrams: HashMap::new(),
    }
}

fn number(variable: &str, usual: u64) -> u64 {
    env::var(variable).map_or(usual, |text| text.parse().unwrap_or_else(|e| panic!("{variable}: {e}")))
}

/// How often something happened, so that frames that reach nothing are no proof.
#[derive(Debug, Default)]
struct Seen {
    control: u64,
    refused_control: u64,
    local: u64,
    exempt: u64,
    by_rule: u64,
    named: u64,
    fragments: u64,
    later_fragments: u64,
    no_packet: u64,
}

impl Seen {
    fn note(&mut self, model: &Model, case: &Case<'_>, outcome: &Outcome) {
        let class = outcome.priority.max(outcome.handed.0);
        let [control, local, by_rule, named] = [
            class == CONFIG.control_handle,
            outcome.local_bytes > 0,
            (0x1_0020..0x1_0028).contains(&class),
            class == OTHER,
        ];
        self.control += u64::from(control);
        self.local += u64::from(local);
        self.exempt += u64::from(matches!(case.place, Place::Uplink(_)) && model.is_exempt(case.frame));
        self.by_rule += u64::from(by_rule);
        self.named += u64::from(named);
        self.fragments += u64::from(outcome.fragment.is_some());
        self.later_fragments += u64::from(outcome.fragment.is_some_and(|(_, is_first)| !is_first));
        if !model.has_room {
            let mut other = Model { has_room: true, ..model.clone() };
            let with_room = other.run(case.place, case.frame, case.tc_index);
            self.refused_control += u64::from(with_room.took_control);
        }
    }
}

#[test]
fn random_frames_are_classified_as_the_model_says() {
    let Some(kernel) = Kernel::load() else { return };
    let (count, seed) = (number("WEIR_FRAMES", 50_000), number("WEIR_SEED", 17));
    let (mut frames, mut r) = (RandomFrames::new(&addresses(), seed), Random::new(!seed));
    let (mut model, mut seen, mut datagrams) = (node(&mut r), Seen::default(), HashMap::new());
    for number in 0..count {
        if number % A_NODE == 0 {
            model = node(&mut r);
            kernel.configure(&model);
            datagrams.clear();
        }
        let frame = frames.next().expect("they have no end");
        let is_scheduled = model.config.flags & (ClassifierConfig::IN_PLACE | ClassifierConfig::USER) == 0;
        let place = match r.below(8) {
            0..4 => Place::Port,
            4 if is_scheduled => Place::PortMatch,
            _ => Place::Uplink(r.of(&[0, PORT, 9])),
        };
        let mark = |minor: u32| (CONFIG.cookie ^ minor) as u16 & 0x7fff | 0x8000;
        let marks = [OWN, CONFIG.control_handle, u32::from(UNTRACKED)].map(mark);
        let named =
            r.of(&[OWN as u16, OTHER as u16, UNTRACKED, CONFIG.cookie as u16, marks[0], marks[1], marks[2]]);
        let tc_index = if r.once_in(3) { named } else { 0 };
        let case = Case { frame: &frame, place, is_tagged: r.once_in(8), tc_index };
        model.has_room = !r.once_in(3);
        let before = model.clone();
        let expected = model.run(place, &frame, tc_index);
        let context = || {
            let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("WEIR_SEED={seed}, frame {number}, {place:?}, tc_index {tc_index:#x}, {before:?}: {hex}")
        };
        for is_real in [true, false] {
            // The real program cannot be given these, and says nothing of skb->tc_index.
            if is_real && (tc_index != 0 || case.is_tagged) {
                continue;
            }
            let program = if is_real { kernel.real(place) } else { kernel.checked(place) };
            let Some((mut got, datagram)) = kernel.run(&program, &case, model.has_room) else {
                assert!(frame.len() < 14 + 40, "the kernel makes no packet of {}", context());
                seen.no_packet += 1;
                continue;
            };
            if is_real {
                got.tc_index = expected.tc_index;
            }
            got.fragment = expected.fragment;
            assert_eq!(got, expected, "{}", context());
            match expected.fragment {
                None => assert_eq!(datagram, 0, "it is whole: {}", context()),
                Some((of, is_first)) => {
                    let key = *datagrams.entry(of).or_insert(datagram & !1);
                    assert_ne!(key, 0, "it is a fragment: {}", context());
                    assert_eq!(datagram, key | u32::from(is_first), "the datagram: {}", context());
                }
            }
        }
        seen.note(&before, &case, &expected);
    }
    println!("{count} frames, seed {seed}: {seen:?}");
    let Seen { control, refused_control, local, exempt, by_rule, named, fragments, later_fragments, .. } =
        seen;
    for times in [control, refused_control, local, exempt, by_rule, named, fragments, later_fragments] {
        assert!(times >= count / 500, "the frames do not reach all: {seen:?}");
    }
}

/// IPv4 or IPv6, UDP, and the beginning of WireGuard's message of this type.
fn outer(is_v6: bool, protocol: u8, message: u32) -> Vec<u8> {
    let a = addresses();
    let mut frame = [a.far.as_slice(), &a.own, if is_v6 { &[0x86, 0xdd] } else { &[8, 0] }].concat();
    if is_v6 {
        frame.extend([0x60, 0, 0, 0, 0, 40, protocol, 64]);
        frame.extend(a.host6.octets());
        frame.extend(a.server6.octets());
    } else {
        frame.extend([0x45, 0, 0, 60, 0, 1, 0, 0, 64, protocol, 0, 0]);
        frame.extend(a.host.octets());
        frame.extend(a.server.octets());
    }
    frame.extend([0xca, 0x6c, 0xca, 0x6c, 0, 40, 0, 0]);
    frame.extend(message.to_le_bytes());
    frame.extend([0; 28]);
    frame
}

/// The class and the rest of what a check program says of a frame, by a word in `skb->cb`.
fn checked(kernel: &Kernel, name: &str, frame: &[u8], from: u32, word: u32) -> (i32, u32, u32) {
    let program =
        kernel.check.progs_mut().find(|program| program.name() == OsStr::new(name)).expect("it is there");
    let mut context = [0; CONTEXT];
    context[INGRESS..INGRESS + 4].copy_from_slice(&from.to_ne_bytes());
    context[CB + 12..CB + 16].copy_from_slice(&word.to_ne_bytes());
    let mut after = context;
    let input = ProgramInput {
        context_in: Some(&mut context),
        context_out: Some(&mut after),
        data_in: Some(frame),
        ..Default::default()
    };
    let verdict = program.test_run(input).expect("it runs").return_value.cast_signed();
    (verdict, words(&after[PRIORITY..PRIORITY + 4])[0], words(&after[CB + 16..CB + 20])[0])
}

#[test]
fn packets_of_a_tunnel_keep_their_state_in_their_hash() {
    let Some(kernel) = Kernel::load() else { return };
    let several = ClassifierConfig::TUNNELS | ClassifierConfig::NAMED;
    let config = ClassifierConfig { flags: several, ..CONFIG };
    let model = Model {
        config,
        port: None,
        local: Vec::new(),
        rules: Vec::new(),
        tracked: vec![OWN, OTHER],
        has_room: true,
        datagrams: HashMap::new(),
    };
    kernel.configure(&model);
    let number = 5;
    // Frames come by the loopback device, and so it is the tunnel.
    let tunnel = Tunnel { number, mtu: 1420 };
    kernel.classifier.set_tunnels(&std::collections::BTreeMap::from([(PORT, tunnel)])).unwrap();
    let scheduled = (CONFIG.cookie ^ (OWN & 0xfff) | 0x8000) & 0xffff;
    let cookie = CONFIG.cookie;
    let inner = outer(false, 17, 0);
    let carried = |mark: u32| (number << 16 | mark) ^ config.tunnel_key;
    // A mark or a name is carried as it is. The host's own packets get the host's name.
    for (mark, of_inner) in [
        (scheduled, scheduled),
        (cookie, cookie),
        (OTHER & 0xffff, OTHER & 0xffff),
        (0, CONFIG.host_handle & 0xffff),
        (u32::from(UNTRACKED), CONFIG.host_handle & 0xffff),
    ] {
        let (verdict, _, hash) = checked(&kernel, "check_tunnel", &inner, 0, mark);
        assert_eq!((verdict, hash), (-1, carried(of_inner)), "tc_index {mark:#x} enters");
    }
    let (_, _, hash) = checked(&kernel, "check_tunnel", &inner, 9, 0);
    assert_eq!(hash, carried(CONFIG.default_handle & 0xffff), "a stranger's packet enters");

    // A scheduled packet passes at the uplink. A named one is charged to its class, and learns no flow.
    const NO_MATCH: i32 = 0;
    for is_v6 in [false, true] {
        let data = outer(is_v6, 17, 4);
        for mark in [scheduled, cookie] {
            let out = checked(&kernel, "check_outer", &data, 0, carried(mark));
            assert_eq!(out, (NO_MATCH, 0, cookie), "{mark:#x} has been charged");
        }
        let out = checked(&kernel, "check_outer", &data, 0, carried(OTHER & 0xffff));
        assert_eq!(out, (-1, OTHER, cookie), "a named packet is charged to its class");
        let seen =
            kernel.classifier.skeleton.maps.weir_outers.lookup(&number.to_ne_bytes(), MapFlags::ANY).unwrap();
        let headers = if is_v6 { 80 } else { 60 };
        assert_eq!(words(&seen.expect("an entry")), [0, headers], "the headers are learned");
    }
    // Engine `pacing` charges in place, and names no class of the outer flow either.
    let in_place = ClassifierConfig { flags: several | ClassifierConfig::IN_PLACE, ..CONFIG };
    kernel.classifier.configure(0, &in_place).unwrap();
    let out = checked(&kernel, "check_outer", &outer(false, 17, 4), 0, carried(OTHER & 0xffff));
    assert_eq!(out.2, cookie, "a named packet learns no flow in place");
    kernel.classifier.configure(0, &config).unwrap();
    // Packets of another type, protocol, key or number are the host's. Those that a device brought are
    // a stranger's.
    let data = outer(false, 17, 4);
    let host = (-1, CONFIG.host_handle);
    for (frame, from, hash, class) in [
        (&outer(false, 17, 1), 0, carried(scheduled), host),
        (&outer(false, 6, 4), 0, carried(scheduled), host),
        (&outer(true, 17, 2), 0, carried(scheduled), host),
        (&data, 0, carried(scheduled) ^ 1 << 31, host),
        (&data, 0, carried(scheduled) ^ 16 << 16, host),
        (&data, 0, scheduled, host),
        (&data, 9, carried(scheduled), (-1, CONFIG.default_handle)),
    ] {
        let (verdict, priority, _) = checked(&kernel, "check_outer", frame, from, hash);
        assert_eq!((verdict, priority), class, "hash {hash:#x} from {from}: {frame:02x?}");
    }
    // Without tunnels a hash says nothing.
    kernel.classifier.configure(0, &CONFIG).unwrap();
    let (verdict, priority, _) = checked(&kernel, "check_outer", &data, 0, carried(scheduled));
    assert_eq!((verdict, priority), host);
}
