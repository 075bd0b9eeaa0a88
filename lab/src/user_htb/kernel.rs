//! The kernel's HTB with the same users, beside: real packets over a pair of veths, whose other end
//! is in a namespace that has no use for them. It takes a packet's whole way from a socket, of
//! which HTB is a part; a socket for each user says its class, so that nothing has to be looked up.
//! Its time is the real one, and what the link does not let go waits.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{setsockopt, sockopt},
};
use weir_htb::{ClassId, Params};
use weir_netlab::topology::{Netns, check_rights, unique_prefix};
use weir_units::BitRate;

use super::{
    cores::side_by_side,
    scenario::{PlayTiming, QUANTUM, Scenario, link, link_burst, rates},
    trace::Trace,
};

const DEVICE: &str = "eth0";
const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Headers of Ethernet, IPv4 and UDP.
const HEADERS: u32 = 42;
const WARM_UP: Duration = Duration::from_millis(200);
const COUNTED: Duration = Duration::from_millis(500);
/// A scenario's users have the minors from here on.
const FIRST: u32 = 2;

/// Why it cannot be measured here, if so.
pub(super) fn lacking(scenario: &Scenario) -> Option<String> {
    if scenario.users > 60_000 {
        return Some(format!("{} users are more than it has numbers for", scenario.users));
    }
    check_rights().err().map(|e| format!("{e:#}"))
}

/// Both ends, and the sockets of all users who send.
struct Link {
    node: Netns,
    _other: Netns,
    sockets: Vec<(UdpSocket, Vec<u8>)>,
}

impl Link {
    fn build(scenario: &Scenario, active: u32, seed: u64) -> Result<Link> {
        let prefix = unique_prefix();
        let [node, other] = ["htb", "peer"].map(|label| Netns::create(&format!("{prefix}{label}")));
        let (node, other) = (node?, other?);
        node.ip(&format!(
            "link add {DEVICE} address 02:00:00:00:00:01 type veth peer name {DEVICE} address 02:00:00:00:00:02 netns {}\n\
             addr add {HERE}/24 dev {DEVICE}\nlink set dev {DEVICE} up\n\
             neigh add {THERE} lladdr 02:00:00:00:00:02 dev {DEVICE}\n",
            other.name()
        ))?;
        other.ip(&format!("link set dev {DEVICE} up\n"))?;
        node.tc(&classes(scenario))?;
        allow_files(u64::from(active) + 256)?;
        let waiting = Trace::waiting(scenario, active, seed);
        let frames = waiting.frames.iter().take(active as usize);
        let sockets = frames.filter_map(|frame| waiting.users.classify(frame)).map(|(ClassId(user), len)| {
            let socket = node.within(|| UdpSocket::bind((HERE, 0)))?.context("cannot open a socket")?;
            socket.connect(SocketAddrV4::new(THERE, 9))?;
            socket.set_nonblocking(true)?;
            let class = i32::try_from(1 << 16 | (FIRST + user)).unwrap_or(0);
            setsockopt(&socket, sockopt::Priority, &class).context("cannot choose a class for a socket")?;
            Ok((socket, vec![0; len.saturating_sub(HEADERS) as usize]))
        });
        let sockets = sockets.collect::<Result<Vec<_>>>()?;
        Ok(Link { node, _other: other, sockets })
    }

    /// Packets and bytes that have left by the device.
    fn left(&self) -> Result<(u64, u64)> {
        let told = self.node.exec(&["ip", "-s", "-j", "link", "show", DEVICE])?.stdout;
        let told: serde_json::Value = serde_json::from_str(&told).context("ip does not write JSON")?;
        let tx = |what: &str| told[0]["stats64"]["tx"][what].as_u64();
        tx("packets").zip(tx("bytes")).with_context(|| format!("ip tells no counts of {DEVICE}"))
    }
}

/// The scenario's tree for tc.
fn classes(scenario: &Scenario) -> String {
    let mut batch = format!("qdisc add dev {DEVICE} root handle 1: htb\n");
    let mut class = |parent: &str, minor: u32, (rate, ceil): (BitRate, BitRate), more: &str| {
        let (rate, ceil) = (rate.bits_per_sec(), ceil.bits_per_sec());
        let _ = writeln!(
            batch,
            "class add dev {DEVICE} parent {parent} classid 1:{minor:x} htb rate {rate}bit ceil {ceil}bit {more}"
        );
    };
    let rate = link(scenario);
    let burst = link_burst(rate).0;
    class("1:", 1, (rate, rate), &format!("burst {burst}b cburst {burst}b quantum {QUANTUM}"));
    for user in 0..scenario.users {
        let (rate, ceil) = rates(scenario, user);
        let params = Params::new(rate).ceil(ceil);
        let (burst, cburst) = (params.effective_burst().0, params.effective_cburst().0);
        let more = format!("burst {burst}b cburst {cburst}b quantum {QUANTUM}");
        class("1:1", FIRST + user, (rate, ceil), &more);
    }
    batch
}

/// A socket a user is more than a process may have by default.
fn allow_files(files: u64) -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= files {
        return Ok(());
    }
    if hard < files {
        bail!("cannot open {files} files, only {hard} (`ulimit -Hn`): take fewer users");
    }
    Ok(setrlimit(Resource::RLIMIT_NOFILE, files, hard)?)
}

/// Plays it: two threads send, each for half of the users who do.
///
/// # Errors
/// Rights, programs or kernel features that are missing.
pub(super) fn play(scenario: &Scenario, active: u32, seed: u64) -> Result<PlayTiming> {
    let link_here = Link::build(scenario, active, seed)?;
    let stop = AtomicBool::new(false);
    let send = |part: &[(UdpSocket, Vec<u8>)]| {
        while !stop.load(Ordering::Relaxed) {
            // A socket whose class is held back has no room: the others go on.
            part.iter().for_each(|(socket, payload)| drop(socket.send(payload)));
        }
    };
    let (one, other) = link_here.sockets.split_at(link_here.sockets.len() / 2);
    let (counted, had) = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let counted = (|| {
                thread::sleep(WARM_UP);
                let (start, before) = (Instant::now(), link_here.left()?);
                thread::sleep(COUNTED);
                let (after, took) = (link_here.left()?, start.elapsed());
                Ok::<_, anyhow::Error>((after.0 - before.0, after.1 - before.1, took.as_secs_f64()))
            })();
            stop.store(true, Ordering::Relaxed);
            counted
        });
        let sides = side_by_side(|| send(one), || send(other));
        stop.store(true, Ordering::Relaxed);
        let counted = watch.join().map_err(|_| anyhow::anyhow!("the thread that counts panicked"))??;
        let (a, b) = sides?;
        Ok::<_, anyhow::Error>((counted, a.2.min(b.2)))
    })?;
    let (sent, bytes, seconds) = counted;
    Ok(PlayTiming {
        seconds,
        sent,
        bytes,
        late_bytes: bytes,
        late_ns: seconds * 1e9,
        had,
        ..PlayTiming::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::scenario::tests::scenario;
    use super::*;

    #[test]
    fn the_kernel_s_tree_is_the_scenario_s() {
        let scenario = Scenario { users: 3, active: 3, ..scenario("phtb-3") };
        let text = classes(&scenario);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[1].contains("parent 1: classid 1:1 htb rate 3000000bit ceil 3000000bit"), "{text}");
        assert!(lines[3].contains("parent 1:1 classid 1:3 htb rate 2000000bit ceil 12000000bit"), "{text}");
    }

    #[test]
    fn two_users_of_the_kernel_send_no_more_than_their_link() {
        let scenario = Scenario { users: 2, active: 2, min_len: 1_000, max_len: 1_000, ..scenario("phtb-3") };
        if let Some(why) = lacking(&scenario) {
            println!("SKIPPED: {why}");
            return;
        }
        let played = play(&scenario, 2, 1).unwrap();
        let mbit = played.bytes as f64 * 8e-6 / played.seconds;
        // 2.5 Mbit/s, and at most the bursts of the two.
        assert!(played.sent > 10 && mbit < 4.0, "{played:?}");
    }
}
