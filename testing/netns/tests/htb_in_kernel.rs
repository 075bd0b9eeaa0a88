//! `weir-htb` beside the kernel's HTB: the same tree and the same packets, real ones there. All classes
//! always have some, and each gets what it gets in the kernel.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use weir_htb::{ClassId, Htb, Limits, Next, Packet, Params};
use weir_netlab::topology::{Family, Mode, Netns, Spec};
use weir_netlink::Netlink;
use weir_netns_tests::{Need, Node, can_run, containers, kernel::index_of, measure_once};
use weir_units::{BitRate, Bytes, Instant, TcHandle};

const DEVICE: &str = "eth0";
const MAJOR: u16 = 1;
const PAYLOAD: usize = 1400;
/// With the headers of Ethernet, IPv4 and UDP, as both count it.
const FRAME: u32 = 1442;
/// The content of all buckets, as time. Little, so that of a moment for which the machine stands
/// still all lose the same; who saves up much catches up in an order of its own.
const SAVED: Duration = Duration::from_millis(20);
/// Until the first bursts are spent.
const BEFORE: Duration = Duration::from_millis(1000);
const COUNTED: Duration = Duration::from_secs(4);

/// Minor, its parent's, rate and ceiling in Mbit/s, quantum in bytes.
type Line = (u16, u16, u64, u64, u32);

/// A link with a slice of two sessions and four classes beside. Two borrow from the link in
/// alternate turns of the same length. Others have their ceilings, one by its own rate, and in the
/// slice one has the rest of the other's ceiling. (Turns of different lengths, at two levels, come
/// out differently in the kernel with how late its timer is: up to 35 % were seen.)
const TREE: [Line; 8] = [
    (0x01, 0x00, 100, 100, 1_514),
    (0x11, 0x01, 5, 100, 1_514),
    (0x12, 0x01, 10, 100, 1_514),
    (0x13, 0x01, 30, 35, 1_514),
    (0x14, 0x01, 5, 5, 1_514),
    (0x20, 0x01, 30, 30, 1_514),
    (0x21, 0x20, 10, 30, 1_514),
    (0x22, 0x20, 5, 12, 1_514),
];

fn leaves() -> impl Iterator<Item = u16> {
    TREE.iter().filter(|(minor, ..)| TREE.iter().all(|(_, parent, ..)| parent != minor)).map(|line| line.0)
}

fn burst(mbit: u64) -> Bytes {
    BitRate::mbit(mbit).bytes_in(SAVED)
}

/// By minor, Mbit/s.
type Rates = BTreeMap<u16, f64>;

/// The share of each leaf by `weir-htb`, in virtual time.
fn in_user_space() -> Rates {
    let mut htb = Htb::new(Limits { classes: 0x31, packets: 100, depth: 4 }, Instant::default());
    for (minor, parent, rate, ceil, quantum) in TREE {
        let params = Params::new(BitRate::mbit(rate))
            .ceil(BitRate::mbit(ceil))
            .burst(burst(rate))
            .cburst(burst(ceil))
            .quantum(quantum);
        let parent = (parent != 0).then_some(ClassId(parent.into()));
        htb.add(ClassId(minor.into()), parent, params).expect("a tree that tc takes too");
    }
    let packet = Packet { handle: 0, len: FRAME };
    for leaf in leaves() {
        (0..4).for_each(|_| htb.enqueue(ClassId(leaf.into()), packet).expect("it has room"));
    }
    let (begin, end) = (Instant(BEFORE), Instant(BEFORE + COUNTED));
    let (mut now, mut sent) = (Instant::default(), Rates::new());
    while now < end {
        match htb.dequeue(now) {
            Next::Packet(departure) => {
                htb.enqueue(departure.leaf, packet).expect("one has just left");
                if now >= begin {
                    let minor = u16::try_from(departure.leaf.0).expect("a minor");
                    *sent.entry(minor).or_default() += f64::from(FRAME) * 8e-6 / COUNTED.as_secs_f64();
                }
            }
            Next::At(then) => now = then,
            Next::Empty => unreachable!("all have packets"),
        }
    }
    sent
}

fn set_up(netns: &Netns) {
    let mut batch = format!("qdisc add dev {DEVICE} root handle {MAJOR}: htb\n");
    for (minor, parent, rate, ceil, quantum) in TREE {
        batch += &format!(
            "class add dev {DEVICE} parent {MAJOR}:{parent:x} classid {MAJOR}:{minor:x} htb rate {rate}mbit ceil \
             {ceil}mbit burst {}b cburst {}b quantum {quantum}\n",
            burst(rate).0,
            burst(ceil).0
        );
    }
    for leaf in leaves() {
        batch += &format!("qdisc add dev {DEVICE} parent {MAJOR}:{leaf:x} pfifo limit 10000\n");
    }
    netns.tc(&batch).unwrap_or_else(|e| panic!("{e:#}"));
}

/// Bytes that each class has sent. The kernel counts the packets that a leaf has served in another place too, where a
/// super-packet is one.
fn counted(netns: &Netns) -> BTreeMap<u16, u64> {
    let index = index_of(netns, DEVICE).expect("it is there");
    let mut found = Vec::new();
    let read = netns.within(|| Netlink::open()?.htb_classes(index, TcHandle::new(1, 0), &mut found));
    read.expect("the namespace can be entered").expect("classes can be listed");
    for leaf in found.iter().filter(|f| f.leaf.0 != 0) {
        let (packets, served) = (leaf.counters.packets, u64::from(leaf.served));
        // A packet may leave while the kernel tells.
        assert!(packets > 0 && packets.abs_diff(served) <= 2, "{packets} packets, {served} served");
    }
    found.iter().map(|f| (f.class.handle.minor(), f.counters.bytes)).collect()
}

/// The same of the kernel, while a socket for each leaf sends all that it takes.
fn in_the_kernel(netns: &Netns, target: SocketAddr) -> Rates {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for leaf in leaves() {
            let any: SocketAddr = ([0, 0, 0, 0], 0).into();
            let socket = netns.within(|| UdpSocket::bind(any)).expect("can enter").expect("a port is free");
            socket.connect(target).expect("it can");
            socket.set_write_timeout(Some(Duration::from_millis(200))).expect("it can be told");
            let class = i32::try_from(TcHandle::new(MAJOR, leaf).0).expect("a small major");
            setsockopt(&socket, sockopt::Priority, &class).expect("root may");
            // A second of packets, so that none is missed while the sender has no processor.
            setsockopt(&socket, sockopt::SndBufForce, &(8 << 20)).expect("root may");
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send(&[0; PAYLOAD]);
                }
            });
        }
        sleep(BEFORE);
        let (start, before) = (std::time::Instant::now(), counted(netns));
        sleep(COUNTED);
        let (after, took) = (counted(netns), start.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        leaves().map(|leaf| (leaf, (after[&leaf] - before[&leaf]) as f64 * 8e-6 / took)).collect()
    })
}

#[test]
fn each_class_gets_of_weir_htb_what_it_gets_in_the_kernel_to_a_hundredth() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node =
        Node::build(&Spec { containers: containers(1), wire: None, mode: Mode::Bridged, ..Spec::default() });
    let netns = node.netns("C1");
    set_up(netns);
    let address = node.topology.server_address(Family::V4);
    let sink = node.topology.srv().within(|| UdpSocket::bind((address, 0))).expect("can enter");
    let target = sink.as_ref().expect("a port is free").local_addr().expect("it has one");
    let own = in_user_space();
    let off = |kernel: &Rates| {
        let each = own.iter().map(|(leaf, own)| (kernel[leaf] / own - 1.0).abs());
        each.fold(0.0, f64::max)
    };
    let measure = || {
        let kernel = in_the_kernel(netns, target);
        println!(
            "the kernel {kernel:.3?}\nweir-htb   {own:.3?}: {:.2} % off at the most",
            off(&kernel) * 100.0
        );
        kernel
    };
    let kernel = measure_once(measure, |kernel| off(kernel) <= 0.01);
    assert!(off(&kernel) <= 0.01);
}
