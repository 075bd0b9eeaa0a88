//! The agent under an attack: root is answered, no tick is late, and memory has a bound.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, setrlimit};
use weir_netlab::{topology::Spec, traffic::Load};

use crate::{Division, Node, containers, is_optimised, party};

/// The limit of the agent's descriptors.
const DESCRIPTORS: usize = 1024;

/// The most memory that an agent may ever hold.
const MAX_MEMORY_KIB: u64 = 64 << 10;
/// The same without its code, of which a program without optimisation has several times as much as a release.
const MAX_OWN_MEMORY_KIB: u64 = 22 << 10;
/// How late a tick may be.
const MAX_TICK_DELAY: Duration = Duration::from_secs(1);
/// How long `weir ps` of root may take.
pub const ROOT_ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// A node to attack, its division, and the words before the agent's program that limit its descriptors.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn target() -> (Node, Division, [String; 2]) {
    setrlimit(Resource::RLIMIT_NOFILE, 8192, 8192).expect("root may raise its limit");
    let node = Node::build(&Spec { containers: containers(3), ..Spec::default() });
    let division = Division::of([
        party("C1").min(40).sends(Load::Tcp),
        party("C2").weight(2).sends(Load::Tcp),
        party("C3").max(10).sends(Load::Tcp),
    ]);
    let limit = ["prlimit".to_owned(), format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}")];
    (node, division, limit)
}

/// Ends the attack also if the test fails meanwhile.
pub struct End<'a>(pub &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks for the classes as root. Returns the longest time of an answer, and how many there were.
///
/// # Panics
/// If root is refused.
#[must_use]
pub fn ask_as_root(node: &Node, over: &AtomicBool) -> (Duration, u32) {
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    while !over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let ran = node.ran(&["ps"]);
        assert_eq!(ran.code, Some(0), "weir ps of root: {}", ran.stderr);
        slowest = slowest.max(begin.elapsed());
        asked += 1;
        sleep(Duration::from_millis(200));
    }
    (slowest, asked)
}

/// The most memory that the process ever held, and its code and other files of that, KiB.
fn peak_memory(pid: u32) -> [u64; 2] {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the agent runs");
    ["VmHWM:", "RssFile:"].map(|what| {
        let line = status.lines().find(|line| line.starts_with(what)).expect("it has memory");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number of KiB")
    })
}

/// The most descriptors that the process has open until the end.
///
/// # Panics
/// If it is gone.
#[must_use]
pub fn most_descriptors(pid: u32, over: &AtomicBool) -> usize {
    let mut most = 0;
    while !over.load(Ordering::Relaxed) {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("the agent runs").count();
        most = most.max(open);
        sleep(Duration::from_millis(20));
    }
    most
}

/// The agent with this number runs on, never had a late tick and never held too much memory.
///
/// # Panics
/// If it did.
pub fn unmoved(node: &mut Node, pid: u32) {
    let delay = Duration::from_micros(node.client().status().expect("it answers").max_tick_delay_us);
    let [all, code] = peak_memory(pid);
    let (held, most) = if is_optimised() { (all, MAX_MEMORY_KIB) } else { (all - code, MAX_OWN_MEMORY_KIB) };
    println!("longest delay of a tick {delay:.1?}; at most {all} KiB, {code} of them code");
    assert!(delay > Duration::ZERO && delay <= MAX_TICK_DELAY, "a tick was {delay:?} late");
    assert!(held < most, "the agent held {held} KiB, at most {most}");
    assert!(node.agent().ended().is_none(), "the agent ended");
}
