//! Connections whose congestion control is looked at, and what an agent tells of them.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use nix::sys::socket::{getsockopt, sockopt::TcpCongestion};
use weir_bpf::EarlierCongestion;
use weir_cc::{Direction, FlowRecord};
use weir_discovery::cgroup::Cgroup2;
use weir_netlab::topology::Netns;

use crate::{Config, Need, Node, can_run};

/// How long what happens in the background may take on a busy machine.
pub const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether this kernel has what tests of congestion control need; says what it lacks.
#[must_use]
pub fn can_choose() -> bool {
    let has = |name| weir_datapath::congestion::try_algorithm(name).is_ok();
    can_run(&Need::TRAFFIC)
        && can_run(&[Need::Cgroup2, Need::Program("ss"), Need::Program("bash")])
        && ["reno", "cubic", "bbr"].into_iter().all(|name| {
            let there = has(name);
            if !there {
                println!("SKIPPED: this kernel has no congestion control {name}");
            }
            there
        })
}

/// Waits for something, for [`BACKGROUND_TIMEOUT`].
///
/// # Panics
/// If it does not come.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < BACKGROUND_TIMEOUT, "{what}: not within {BACKGROUND_TIMEOUT:?}");
        sleep(Duration::from_millis(20));
    }
}

/// Both ends of a connection.
#[derive(Debug)]
pub struct Pair {
    /// Where it was opened.
    pub opened: TcpStream,
    /// The other one.
    pub accepted: TcpStream,
}

impl Pair {
    /// From one namespace to an address and port of another; port 0 for any.
    ///
    /// # Panics
    /// If it cannot connect; as all here.
    #[must_use]
    #[track_caller]
    pub fn new(from: &Netns, to: &Netns, address: IpAddr, port: u16) -> Pair {
        let listener = to.within(|| TcpListener::bind((address, port))).expect("is there").expect("free");
        Pair::to(from, &listener)
    }

    /// To one who listens.
    ///
    /// # Panics
    /// If it cannot connect.
    #[must_use]
    #[track_caller]
    pub fn to(from: &Netns, listener: &TcpListener) -> Pair {
        let target = listener.local_addr().expect("it is bound");
        let opened = from.within(|| TcpStream::connect_timeout(&target, Duration::from_secs(10)));
        let opened = opened.expect("is there").unwrap_or_else(|e| panic!("{target}: {e}"));
        Pair { opened, accepted: listener.accept().expect("it is there").0 }
    }

    /// Sends this many bytes from one end and reads them at the other: the received bytes are the
    /// sent ones.
    fn carry(from: &mut TcpStream, to: &mut TcpStream, bytes: usize) {
        let block: Vec<u8> = (0..bytes).map(|i| ((i * 31) >> 4) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| from.write_all(&block).expect("it is sent"));
            let mut came = vec![0; bytes];
            to.read_exact(&mut came).expect("it arrives");
            assert!(came == block, "what came is not what was sent");
        });
    }

    /// Sends this many bytes from the opener.
    ///
    /// # Panics
    /// If what arrives is not what was sent.
    pub fn send(&mut self, bytes: usize) {
        Pair::carry(&mut self.opened, &mut self.accepted, bytes);
    }

    /// Sends this many bytes from the acceptor.
    ///
    /// # Panics
    /// As [`Pair::send`].
    pub fn answer(&mut self, bytes: usize) {
        Pair::carry(&mut self.accepted, &mut self.opened, bytes);
    }

    /// The port at which the connection was opened.
    ///
    /// # Panics
    /// If it is not connected.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.opened.local_addr().expect("it is connected").port()
    }
}

/// The algorithm of a socket.
///
/// # Panics
/// If the kernel does not tell.
#[must_use]
pub fn algorithm(socket: &TcpStream) -> String {
    getsockopt(socket, TcpCongestion).expect("TCP has one").into_string().expect("a name")
}

/// The algorithm of a namespace's new connections without weir.
///
/// # Panics
/// If it cannot connect to itself.
#[must_use]
pub fn usual(netns: &Netns) -> String {
    let listener = netns.within(|| TcpListener::bind("[::1]:0")).expect("is there").expect("bound");
    algorithm(&Pair::to(netns, &listener).opened)
}

/// Now, as records tell times.
///
/// # Panics
/// Before 1970.
#[must_use]
pub fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64
}

/// The records of the connections opened from these ports, when all have ended.
///
/// # Panics
/// If they are not told of in time.
#[must_use]
#[track_caller]
pub fn records(node: &Node, ports: &[u16], direction: Direction) -> Vec<FlowRecord> {
    records_since(0, node, ports, direction)
}

/// Those that ended after a time: ports are used again, by others and for other far ends.
///
/// # Panics
/// As [`records`].
#[must_use]
#[track_caller]
pub fn records_since(begun_ms: u64, node: &Node, ports: &[u16], direction: Direction) -> Vec<FlowRecord> {
    wait_for("connections end and are told of", || {
        let all = node.client().congestion_flows().expect("it answers");
        let opened = |flow: &FlowRecord| match direction {
            Direction::Out => flow.local_port,
            Direction::In => flow.remote_port,
        };
        let is_new = |f: &FlowRecord| f.direction == Some(direction) && f.ended_ms > begun_ms;
        let found: Vec<FlowRecord> =
            all.into_iter().filter(|f| is_new(f) && ports.contains(&opened(f))).collect();
        assert!(found.len() <= ports.len(), "a connection is told of twice: {found:?}");
        (found.len() == ports.len()).then_some(found)
    })
}

/// Programs of weir's at the root of the cgroups, of this node's agent.
///
/// # Panics
/// If there is no hierarchy.
#[must_use]
pub fn programs(node: &Node) -> Vec<u32> {
    use std::os::unix::fs::MetadataExt;
    let dir = fs::File::open(Cgroup2::find().expect("asked for").mount()).expect("a directory");
    let netns = fs::metadata(node.topology.node().path()).expect("the namespace is there").ino();
    let all = EarlierCongestion::all(dir.as_fd()).into_iter();
    all.filter(|left| left.owner == netns).map(|left| left.program).collect()
}

/// A rule of the configuration.
#[must_use]
pub fn rule(text: &str) -> String {
    format!("[[congestion]]\n{text}\n")
}

/// Starts the node's agent with these sections, and waits until rules are in force.
///
/// # Panics
/// If they are not.
pub fn started(node: &mut Node, config: &Config, rules: &[String]) {
    node.start(&config.clone().sections(&rules.concat()));
    wait_for("rules are in force", || (programs(node).len() == 1).then_some(()));
    assert_eq!(node.client().congestion().expect("it answers").not_enforced_because, None);
}
