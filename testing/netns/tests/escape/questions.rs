//! Questions of a quiet container to the network: ARP, neighbour discovery, DHCP.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use weir_netlab::topology::Netns;
use weir_testkit::{
    frames::{Addresses, checksum, ip6},
    set_realtime,
};

/// A later answer does not count.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Between two questions: the control class takes some 40 ARP frames a second of one interface.
const PAUSE: Duration = Duration::from_millis(12);
const ICMP6: u8 = 58;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Question {
    Arp,
    Discovery,
    Dhcp,
}

impl Question {
    pub(crate) const ALL: [Question; 3] = [Question::Arp, Question::Discovery, Question::Dhcp];

    /// Asks the server `count` times and returns the delay of each answer.
    pub(crate) fn ask(self, from: &Netns, a: &Addresses, count: usize) -> Vec<Option<Duration>> {
        let ask = || match self {
            Question::Arp => {
                let mut frame =
                    [&[0xff; 6][..], &a.other, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &a.other].concat();
                frame.extend(a.other_ip.octets().iter().chain(&[0; 6]).chain(&a.server.octets()));
                frame.resize(60, 0);
                let is_answer = |got: &[u8]| got.get(12..14) == Some(&[8, 6]) && got.get(21) == Some(&2);
                by_frames(&frame, is_answer, count)
            }
            Question::Discovery => {
                let is_answer =
                    |got: &[u8]| got.get(12..14) == Some(&[0x86, 0xdd]) && got.get(54) == Some(&136);
                by_frames(&solicitation(a), is_answer, count)
            }
            Question::Dhcp => {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 68)).expect("port 68 is free");
                socket.connect((a.server, 67)).expect("there is a route");
                socket.set_read_timeout(Some(ANSWER_TIMEOUT)).expect("it can be told");
                let ask = |number: u8| {
                    socket.send(&[number; 300]).expect("it can send");
                    let mut answer = [0; 300];
                    while socket.recv(&mut answer).is_ok() {
                        if answer[0] == number {
                            return true;
                        }
                    }
                    false
                };
                (0..count).map(|i| timed(|| ask(i as u8))).collect()
            }
        };
        let in_time = || {
            set_realtime();
            ask()
        };
        from.within(in_time).expect("the namespace can be entered")
    }
}

fn timed(ask: impl FnOnce() -> bool) -> Option<Duration> {
    thread::sleep(PAUSE);
    let begin = Instant::now();
    ask().then(|| begin.elapsed())
}

fn solicitation(a: &Addresses) -> Vec<u8> {
    let source = Ipv6Addr::new(0xfd97, 0, 0, 0, 0, 0, 1, 2);
    let [.., x, y, z] = a.server6.octets();
    let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(x), u16::from_be_bytes([y, z]));
    let mut body = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &a.server6.octets(), &[1, 1], &a.other].concat();
    let pseudo = [&source.octets()[..], &to.octets(), &[0, 0, 0, body.len() as u8, 0, 0, 0, ICMP6]].concat();
    let check = checksum(&[&pseudo[..], &body].concat());
    body[2..4].copy_from_slice(&check);
    let mac = [0x33, 0x33, 0xff, x, y, z];
    [&mac[..], &a.other, &[0x86, 0xdd], &ip6(source, to, ICMP6, 255, &body)].concat()
}

/// Sends a frame by `eth0` and waits for its answer, again and again.
fn by_frames(frame: &[u8], is_answer: impl Fn(&[u8]) -> bool, count: usize) -> Vec<Option<Duration>> {
    let mut socket = packet_socket().expect("a packet socket");
    let mut buffer = [0; 2048];
    let mut ask = || {
        socket.write_all(frame).expect("it can send");
        let begin = Instant::now();
        while begin.elapsed() < ANSWER_TIMEOUT {
            if socket.read(&mut buffer).is_ok_and(|len| is_answer(&buffer[..len])) {
                return true;
            }
        }
        false
    };
    (0..count).map(|_| timed(&mut ask)).collect()
}

/// A socket for all frames of `eth0`.
fn packet_socket() -> io::Result<std::fs::File> {
    let all = 3u16.to_be(); // ETH_P_ALL
    let index = nix::net::if_::if_nametoindex("eth0")?.cast_signed();
    // SAFETY: an all-zero address is a valid one; it and the time live through the calls and are as long as
    // said; the descriptor is fresh.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(all));
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let file = std::fs::File::from(OwnedFd::from_raw_fd(fd));
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = index;
        let time_limit = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
        let time = (&raw const time_limit).cast();
        if libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) < 0
            || libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                time,
                size_of_val(&time_limit) as u32,
            ) < 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(file)
    }
}

/// Sends back what it gets at port 67.
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(netns: &Netns) -> Server {
        let bound = netns.within(|| UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 67))));
        let socket = bound.expect("can enter").expect("port 67 is free");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("it can be told");
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            set_realtime();
            let mut buffer = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                // The floods' longer datagrams have senders that do not listen.
                if let Ok((300, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..300], from);
                }
            }
        });
        Server { stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
