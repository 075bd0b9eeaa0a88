//! The cost of engine `user`, which copies every packet to its forwarder and back: throughput of one
//! TCP stream, small packets, a packet's delay, and the cost of an idle node.
//!
//! Rates are those of a whole machine, and this one may be shared. So beside what passed in a second it is
//! said what would have if the forwarder's thread had had all of a processor, and that is judged; of a program
//! without optimization nothing is.

use std::{
    fs,
    net::{IpAddr, UdpSocket},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::socket::{setsockopt, sockopt},
    unistd::Pid,
};
use weir_netlab::{
    stats::median,
    topology::{Family, Mode, Spec, UPLINK},
};
use weir_netns_tests::{
    Config, Echo, EngineBounds, EngineKind, Frames, Need, Node, Stream, can_run, containers, drain,
    is_optimised, measure_once,
};
use weir_units::BitRate;

/// No packet waits for it.
const WIDE: BitRate = BitRate::gbit(100);
const MEASURED: Duration = Duration::from_secs(1);

fn node() -> Node {
    Node::build(&Spec { containers: containers(1), wire: None, mode: Mode::Bridged, ..Spec::default() })
}

fn wide(node: &Node) -> Config {
    node.config().engine(EngineKind::User).capacity(WIDE)
}

/// Time on processors of a process's threads; of those called so, if a name is given.
fn worked(pid: u32, name: Option<&str>) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let each = tasks.flatten().filter_map(|task| {
        let called = fs::read_to_string(task.path().join("comm")).ok()?;
        if name.is_some_and(|name| name != called.trim()) {
            return None;
        }
        // On a processor, waiting for one: nanoseconds.
        let told = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some(Duration::from_nanos(told.split_whitespace().next()?.parse().ok()?))
    });
    each.sum()
}

/// Bytes and packets that have left by the uplink.
fn left(node: &Node) -> (u64, u64) {
    let told = node.sh(&["ip", "-s", "-j", "link", "show", UPLINK]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("ip writes JSON");
    let tx = |what: &str| told[0]["stats64"]["tx"][what].as_u64().expect("a count");
    (tx("bytes"), tx("packets"))
}

/// The packets of a second, and the part of a processor that the forwarder's thread had for them.
#[derive(Debug, Clone, Copy)]
struct Moved {
    gbit: f64,
    mpps: f64,
    had: Option<f64>,
}

impl Moved {
    fn now(node: &mut Node, pid: Option<u32>) -> Moved {
        sleep(Duration::from_millis(300));
        let work = || pid.map(|pid| worked(pid, Some("weir-user")));
        let (start, worked, before) = (Instant::now(), work(), left(node));
        sleep(MEASURED);
        let (after, works, took) = (left(node), work(), start.elapsed().as_secs_f64());
        Moved {
            gbit: (after.0 - before.0) as f64 * 8e-9 / took,
            mpps: (after.1 - before.1) as f64 * 1e-6 / took,
            had: works.zip(worked).map(|(works, worked)| (works - worked).as_secs_f64() / took),
        }
    }

    /// This multiple of it with a whole processor.
    fn of_a_core(&self, what: f64) -> f64 {
        what / self.had.unwrap_or(1.0)
    }
}

/// While a stream of TCP flows.
fn streaming(node: &mut Node, pid: Option<u32>) -> Moved {
    let (srv, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
    let _stream = Stream::tcp(node.netns("C1"), srv, address);
    Moved::now(node, pid)
}

/// Judges the rate while traffic flows: at least this much of `rate`, in this unit, if the thread
/// had a whole processor.
fn judge(
    what: &str,
    (wanted, unit): (f64, &str),
    rate: fn(&Moved) -> f64,
    traffic: fn(&mut Node, Option<u32>) -> Moved,
) {
    if !EngineKind::User.is_here() {
        return;
    }
    let mut node = node();
    let config = wide(&node);
    let mut measure = || {
        let without = rate(&traffic(&mut node, None));
        node.start(&config);
        let pid = node.forwarder().expect("it runs");
        let moved = traffic(&mut node, Some(pid));
        assert!(node.agent().stop());
        let (now, whole) = (rate(&moved), moved.of_a_core(rate(&moved)));
        println!(
            "{what}: {without:.3} {unit} without weir, {now:.3} with ({:.2}), {whole:.3} with all of a processor; {moved:?}",
            now / without
        );
        whole
    };
    let is_enough = |whole: &f64| !is_optimised() || *whole >= wanted;
    let whole = measure_once(&mut measure, is_enough);
    assert!(is_enough(&whole), "{what}: {whole:.3} {unit} with all of a processor, {wanted} are wanted");
}

#[test]
fn processor_of_the_forwarder_carries_8_gbit_of_one_tcp_stream() {
    judge("one stream of TCP", (8.0, "Gbit/s"), |moved| moved.gbit, streaming);
}

/// While a container sends frames of 64 bytes of this number of flows alternately, as fast as its
/// socket takes them, to a link that drops them.
fn small(node: &mut Node, pid: Option<u32>, flows: u16) -> Moved {
    let topology = &node.topology;
    let told = topology.srv().exec(&["cat", "/sys/class/net/eth0/address"]).expect("it has one").stdout;
    let mut to = [0; 6];
    for (byte, text) in to.iter_mut().zip(told.trim().split(':')) {
        *byte = u8::from_str_radix(text, 16).expect("two digits");
    }
    let v4 = |address: IpAddr| if let IpAddr::V4(v4) = address { v4.octets() } else { unreachable!() };
    let from = topology.container("C1").expect("there is one").address(Family::V4);
    let addresses = [v4(from), v4(topology.server_address(Family::V4))];
    drain(topology.wire(), "wn");
    // Sender and thread have a processor each.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if let Some(pid) = pid {
        settle(pid, 1 % processors);
    }
    let _frames = Frames::send(node.netns("C1"), to, addresses, flows, 0);
    Moved::now(node, pid)
}

/// The forwarder's thread that moves packets.
fn scheduler(pid: u32) -> Pid {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").flatten();
    let is_it = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "weir-user")
    };
    let task = tasks.into_iter().find(is_it).expect("it has one").file_name();
    Pid::from_raw(task.to_str().and_then(|id| id.parse().ok()).expect("a number"))
}

/// Has it stay on one processor, if it may be there.
fn settle(pid: u32, processor: usize) {
    let mut only = CpuSet::new();
    let _ = only.set(processor).and_then(|()| sched_setaffinity(scheduler(pid), &only));
}

#[test]
fn processor_of_the_forwarder_carries_a_third_of_a_million_packets() {
    judge("64 bytes, one flow", (0.35, "Mpps"), |moved| moved.mpps, |node, pid| small(node, pid, 1));
}

#[test]
fn it_does_so_when_a_few_flows_come_by_turns() {
    judge(
        "64 bytes, 32 flows by turns",
        (0.35, "Mpps"),
        |moved| moved.mpps,
        |node, pid| small(node, pid, 32),
    );
}

/// No datagram waits for the next packet of its flow, so each goes by itself. The rate of a whole
/// processor is then mostly that of the kernel's way behind the forwarder.
#[test]
fn small_packets_of_many_flows_by_turns_pass_one_by_one() {
    judge(
        "64 bytes, 1000 flows by turns",
        (0.1, "Mpps"),
        |moved| moved.mpps,
        |node, pid| small(node, pid, 1000),
    );
}

/// The datagram of this number: sizes change every now and then, and each eleventh is shorter.
fn numbered(number: u32) -> Vec<u8> {
    let size = [18, 200, 1400][number as usize / 100 % 3] - if number.is_multiple_of(11) { 5 } else { 0 };
    let mut payload = vec![number as u8; size];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    payload
}

#[test]
fn datagrams_that_leave_together_arrive_as_they_were_sent() {
    const COUNT: u32 = 20_000;
    if !EngineKind::User.is_here() {
        return;
    }
    let mut node = node();
    let config = wide(&node);
    node.start(&config);
    for (family, any) in [(Family::V4, IpAddr::from([0; 4])), (Family::V6, IpAddr::from([0; 16]))] {
        let address = node.topology.server_address(family);
        let sink = node.topology.srv().within(|| UdpSocket::bind((address, 0))).expect("can enter");
        let sink = sink.expect("a port is free");
        setsockopt(&sink, sockopt::RcvBufForce, &(128 << 20)).expect("root may");
        sink.set_read_timeout(Some(Duration::from_secs(5))).expect("it can be told");
        let socket = node.netns("C1").within(|| UdpSocket::bind((any, 0))).expect("can enter");
        let socket = socket.expect("a port is free");
        socket.connect(sink.local_addr().expect("it has one")).expect("it can");
        let mut payload = [0; 2000];
        // The first one finds the way; what is sent meanwhile may be overtaken.
        socket.send(&numbered(0)).expect("it has room");
        sink.recv(&mut payload).expect("it arrives");
        // The number of packets in which this number of datagrams left.
        let mut round = || {
            let (_, before) = left(&node);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..COUNT {
                        socket.send(&numbered(number)).expect("it waits for room");
                    }
                });
                for number in 0..COUNT {
                    let len = sink.recv(&mut payload).unwrap_or_else(|e| panic!("{family:?} {number}: {e}"));
                    let payload = &payload[..len];
                    assert!(
                        payload == numbered(number),
                        "{family:?} {number}: {:?}",
                        &payload[..len.min(20)]
                    );
                }
            });
            let packets = left(&node).1 - before;
            println!("{family:?}: {COUNT} datagrams left in {packets} packets");
            packets
        };
        // Where the sender is slower than the thread none waits for another.
        let is_coupled = (0..20).any(|_| round() < u64::from(COUNT));
        assert!(is_coupled, "none left with another (that takes kernel 6.2)");
    }
}

#[test]
fn its_thread_goes_before_others_until_told_not_to() {
    if !EngineKind::User.is_here() || !can_run(&[Need::Priority]) {
        return;
    }
    let mut node = node();
    let config = wide(&node);
    node.start(&config);
    let thread = scheduler(node.forwarder().expect("it runs"));
    let becomes = |wanted: libc::c_int| {
        // SAFETY: a plain system call on a number.
        let policy = || unsafe { libc::sched_getscheduler(thread.as_raw()) } & !libc::SCHED_RESET_ON_FORK;
        let begin = Instant::now();
        while policy() != wanted {
            assert!(begin.elapsed() < Duration::from_secs(5), "it has policy {}, not {wanted}", policy());
            sleep(Duration::from_millis(10));
        }
    };
    becomes(libc::SCHED_RR);
    node.agent().rewrite(&config.link("priority = false")).expect("it reads it");
    becomes(libc::SCHED_OTHER);
}

#[test]
fn an_idle_node_pays_little_and_an_idle_engine_delays_a_packet_by_little() {
    const SECONDS: Duration = Duration::from_secs(5);
    const ROUNDS: usize = 7;
    if !EngineKind::User.is_here() {
        return;
    }
    let mut node = node();
    let echo = Echo::at(node.topology.srv(), node.topology.server_address(Family::V4));
    let config = wide(&node);
    let ask = |node: &Node| {
        let times = echo.ask(node.netns("C1"), 100, Duration::from_millis(2));
        times.percentile(50.0) * 1e3
    };
    let measure = || {
        let rounds = (0..ROUNDS).map(|_| {
            let without = ask(&node);
            node.start(&config);
            let with = ask(&node);
            assert!(node.agent().stop());
            println!("answers after {without:.1} us without weir, {with:.1} with engine user");
            with - without
        });
        median(&rounds.collect::<Vec<f64>>()).expect("there are some")
    };
    let added = measure_once(measure, |added| !is_optimised() || *added <= 60.0);
    println!("an idle engine adds {added:.1} us to a round trip, median of {ROUNDS}");
    assert!(!is_optimised() || added <= 60.0, "{added:.1} us");

    node.start(&config);
    let (agent, forwarder) = (node.agent().id(), node.forwarder().expect("it runs"));
    // Interfaces that come up talk for a while.
    sleep(Duration::from_secs(3));
    let measure = || {
        let all = || {
            let thread = worked(forwarder, Some("weir-user"));
            [worked(agent, None) + worked(forwarder, None), thread]
        };
        let (start, before) = (Instant::now(), all());
        sleep(SECONDS);
        let after = all();
        let percent = |i: usize| (after[i] - before[i]).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
        println!(
            "idle: agent and forwarder {:.2} % of a core, the engine's thread {:.3}",
            percent(0),
            percent(1)
        );
        percent(0)
    };
    let idle = measure_once(measure, |idle| *idle <= 1.0);
    assert!(idle <= 1.0, "{idle:.2} % of a core");
}
