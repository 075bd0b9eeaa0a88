//! Whether an engine does on this kernel what it is for: two senders with weights 1 and 3 fill
//! a small link in a throw-away pair of network namespaces, and what arrives is compared with
//! what each must get. Everything is gone with the threads that made it.

use std::{
    collections::BTreeMap,
    fs::File,
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, setns, unshare},
};
use weir_bpf::ClassifierConfig;
use weir_netlink::{Netlink, NetlinkError};
use weir_share::{Allocator, Demand, Policy, Sharer, Weight};
use weir_units::{BitRate, Bytes, TcHandle};

use super::{
    Attach, Attachments, CONTROL, DEFAULT, EngineError, EngineKind, FIRST, HOST, Home, MAJOR, PortClass,
    Uplink, plan::Member, plan::Plan, plan::Shape,
};

/// The link that is divided: slow enough for any machine.
const CAPACITY: BitRate = BitRate::mbit(24);
/// The senders' weights.
const WEIGHTS: [u32; 2] = [1, 3];
/// Payload of a packet, bytes, and its headers (Ethernet, IPv4, UDP).
const PAYLOAD: usize = 1400;
const HEADERS: usize = 14 + 20 + 8;
/// How long the first packet may take: the kernel finds a link's carrier in its own time.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(3);
/// Before the measurement begins: queues fill.
const WARM_UP: Duration = Duration::from_millis(150);
/// How long it takes.
const WINDOW: Duration = Duration::from_millis(250);
/// How far a share may be off, and the whole: a busy machine is no fault of the engine.
const TOLERANCE: f64 = 0.15;
/// How often it is tried before the verdict is bad.
const ATTEMPTS: u32 = 3;
/// Packets that a sender sends each millisecond: four times the link. A flood without an end, where
/// nothing holds it back, would take the processors from the other sender.
const BURST: usize = 8;
/// A port that needs no CAP_NET_BIND_SERVICE, which the agent's unit lacks.
const PORT: u16 = 1999;
const _: () = assert!(PORT >= 1024, "the agent's unit may not bind such a port");

/// The rates that an engine delivered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Received from each sender, Mbit/s at layer 2.
    pub measured: [f64; 2],
    /// The rate that each class must get.
    pub expected: [f64; 2],
}

impl Shares {
    fn hold(&self) -> bool {
        let near = |is: f64, want: f64| (is - want).abs() <= TOLERANCE * want;
        self.measured.iter().zip(self.expected).all(|(is, want)| near(*is, want))
    }
}

/// Why an engine is not to be used here.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No namespaces to try it in.
    #[error("cannot make a network namespace to try it in: {0} (run as root, or with CAP_SYS_ADMIN)")]
    Namespace(Errno),
    /// The two namespaces could not be connected.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// It could not be set up.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The senders could not send.
    #[error("cannot send through it: {0}")]
    Socket(#[from] std::io::Error),
    /// It lets nothing through.
    #[error("nothing comes through it")]
    NoTraffic,
    /// It runs, but does not divide.
    #[error(
        "of {CAPACITY} it gave {:.1} and {:.1} Mbit/s to weights 1 and 3 instead of {:.1} and {:.1}",
        .0.measured[0], .0.measured[1], .0.expected[0], .0.expected[1]
    )]
    Unfair(Shares),
}

/// Tries an engine: half a second if all is well and the machine is not busy.
///
/// # Errors
/// [`Failure`], with the way out where there is one.
pub fn run(kind: EngineKind) -> Result<Shares, Failure> {
    let in_a_thread = || in_a_thread(move || judged(attempt(kind, measure)?));
    let mut result = in_a_thread();
    for _ in 1..ATTEMPTS {
        // A device that cannot be set up once cannot be set up twice.
        if !matches!(result, Err(Failure::Unfair(_) | Failure::NoTraffic)) {
            break;
        }
        result = in_a_thread();
    }
    result
}

/// Sets an engine up in the same place and removes it, without traffic.
///
/// # Errors
/// [`Failure`]: this kernel lacks a part of the engine, or rights are missing.
pub fn set_up(kind: EngineKind) -> Result<(), Failure> {
    in_a_thread(move || attempt(kind, |_| Ok(())))
}

/// A thread of its own may leave its network namespace.
fn in_a_thread<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let tried = thread::Builder::new().name("weir-selftest".into()).spawn(act);
    tried?.join().unwrap_or(Err(Failure::NoTraffic))
}

/// Compares what arrived of each sender with what each must get.
fn judged(measured: [f64; 2]) -> Result<Shares, Failure> {
    let (_, members) = division();
    let expected = [0, 1].map(|i| members[i].allocation.as_mbit());
    match (Shares { measured, expected }) {
        Shares { measured: [a, b], .. } if a + b == 0.0 => Err(Failure::NoTraffic),
        shares if shares.hold() => Ok(shares),
        shares => Err(Failure::Unfair(shares)),
    }
}

/// Sets an engine up, does something with it, and removes it. The thread is in two namespaces one after the other:
/// the senders', which `act` gets, then the node's.
fn attempt<T>(kind: EngineKind, act: impl FnOnce(&File) -> Result<T, Failure>) -> Result<T, Failure> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(Failure::Namespace)?;
    let senders = File::open("/proc/thread-self/ns/net")?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(Failure::Namespace)?;

    let mut netlink = Netlink::open()?;
    let mut ports = BTreeMap::new();
    for side in 0..2u8 {
        let (name, peer) = (format!("weirt{side}"), format!("weire{side}"));
        let index = netlink.add_veth(&name, &peer, &senders)?;
        netlink.add_address(index, node_address(side), 24)?;
        netlink.set_up(index, &name)?;
        let handle = TcHandle::new(MAJOR, FIRST + u16::from(side)).0;
        ports.insert(index, PortClass { device: name, handle });
    }
    let handle = |minor| TcHandle::new(MAJOR, minor).0;
    let programs = ClassifierConfig {
        control_handle: handle(CONTROL),
        host_handle: handle(HOST),
        default_handle: handle(DEFAULT),
        cookie: 0x4001,
        flags: kind.programs(),
        ..ClassifierConfig::default()
    };
    let (shape, members) = division();
    let mut attachments = Attachments::open(Attach::best(), programs, super::Created::new(), None)?;
    let mut engine =
        kind.open(Uplink { number: 0, device: "the self-test" }, 1, &mut attachments, Home::Thread)?;
    engine.apply(&Plan { shape: &shape, groups: &[], members: &members }, false)?;
    if let Some((_, error)) = attachments.set_ports(&ports).into_iter().next() {
        return Err(error.into());
    }
    let done = act(&senders);
    // The namespace goes when the last who holds it does: not before its devices and programs.
    let _ = attachments.remove();
    engine.remove()?;
    done
}

fn node_address(side: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, side, 1)
}

fn sender_address(side: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, side, 2)
}

/// The link, the two senders with what each must get, and weir's own classes.
fn division() -> (Shape, Vec<Member>) {
    let policy =
        |weight| Policy::new(Weight::new(weight).unwrap_or(Weight::ONE), None, None).unwrap_or_default();
    let sharers = WEIGHTS.map(|weight| Sharer::new(policy(weight), Demand::UNLIMITED));
    let mut allocator = Allocator::water_filling();
    let allocations = allocator.allocate(CAPACITY, &[], &sharers).to_vec();
    let member = |minor, weight, allocation: BitRate, prio| Member {
        minor,
        group: None,
        policy: policy(weight),
        allocation,
        share: allocation,
        target: allocation,
        backlogged: allocation != BitRate::ZERO,
        takes_all: allocation != BitRate::ZERO,
        is_steady: false,
        prio,
    };
    let shape = Shape {
        capacity: CAPACITY,
        split: true,
        mtu: 1500,
        delay_ms: 50,
        least_queue: Bytes(278_528),
        framing: None,
        has_tunnels: false,
    };
    let members = vec![
        member(FIRST, WEIGHTS[0], allocations[0], 1),
        member(FIRST + 1, WEIGHTS[1], allocations[1], 1),
        member(CONTROL, 1, BitRate::ZERO, 0),
        member(DEFAULT, 1, BitRate::ZERO, 1),
        member(HOST, 1, BitRate::ZERO, 1),
    ];
    (shape, members)
}

/// Lets both send all they can, and counts what arrives of each, Mbit/s at layer 2.
fn measure(senders: &File) -> Result<[f64; 2], Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let received = [0u8, 1].map(|_| Arc::new(AtomicU64::new(0)));
    let mut threads: Vec<JoinHandle<std::io::Result<()>>> = Vec::new();
    for (side, received) in (0u8..).zip(&received) {
        let socket = UdpSocket::bind((node_address(side), PORT))?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let (received, stopped) = (Arc::clone(received), Arc::clone(&stop));
        threads.push(thread::spawn(move || {
            let mut packet = [0; 2048];
            while !stopped.load(Relaxed) {
                if let Ok(n) = socket.recv(&mut packet) {
                    received.fetch_add((n + HEADERS) as u64, Relaxed);
                }
            }
            Ok(())
        }));
        let (senders, stopped) = (senders.try_clone()?, Arc::clone(&stop));
        threads.push(thread::spawn(move || send(&senders, side, &stopped)));
    }
    let count = || [received[0].load(Relaxed), received[1].load(Relaxed)];
    let started = Instant::now();
    while count().contains(&0) && started.elapsed() < CARRIER_TIMEOUT {
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(WARM_UP);
    let (begin, before) = (Instant::now(), count());
    thread::sleep(WINDOW);
    let (elapsed, after) = (begin.elapsed(), count());
    stop.store(true, Relaxed);
    for thread in threads {
        // A sender that could not begin has sent nothing; its reason says more than that.
        thread.join().unwrap_or(Ok(()))?;
    }
    Ok([0, 1].map(|i| BitRate::of(Bytes(after[i] - before[i]), elapsed).as_mbit()))
}

/// Sends until told to stop, on a thread that ends in the senders' namespace.
fn send(senders: &File, side: u8, stop: &AtomicBool) -> std::io::Result<()> {
    setns(senders, CloneFlags::CLONE_NEWNET)?;
    let name = format!("weire{side}");
    let ready = || -> Result<(), NetlinkError> {
        let mut netlink = Netlink::open()?;
        let index = netlink.link(&name)?.index;
        netlink.add_address(index, sender_address(side), 24)?;
        netlink.set_up(index, &name)
    };
    ready().map_err(std::io::Error::other)?;
    let socket = UdpSocket::bind((sender_address(side), 0))?;
    socket.set_write_timeout(Some(Duration::from_millis(20)))?;
    let packet = [0; PAYLOAD];
    while !stop.load(Relaxed) {
        // Held back, refused for the moment, no carrier yet: all the same, again.
        let _ = (0..BURST).try_for_each(|_| socket.send_to(&packet, (node_address(side), PORT)).map(drop));
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Four senders at once are more than two processors carry.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn passes(kind: EngineKind) {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        match run(kind) {
            Ok(shares) => assert!(shares.hold(), "{shares:?}"),
            Err(Failure::Namespace(errno)) => {
                println!("SKIPPED: making a network namespace needs CAP_SYS_ADMIN: {errno}");
            }
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn htb_passes_where_the_kernel_has_it() {
        passes(EngineKind::Htb);
    }

    #[test]
    fn user_passes_where_the_kernel_has_macvtap() {
        passes(EngineKind::User);
    }

    #[test]
    fn credit_in_place_passes_and_leaves_nothing() {
        passes(EngineKind::Pacing);
    }

    #[test]
    fn shares_that_are_off_are_told_with_their_numbers() {
        let shares = Shares { measured: [12.0, 12.0], expected: [6.0, 18.0] };
        assert!(!shares.hold());
        let text = Failure::Unfair(shares).to_string();
        assert_eq!(text, "of 24mbit it gave 12.0 and 12.0 Mbit/s to weights 1 and 3 instead of 6.0 and 18.0");
    }
}
