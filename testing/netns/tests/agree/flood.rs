//! A flood of offers: from one user, each from a new party.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream, process::CommandExt},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use weir_agree::{Document, Language};
use weir_netns_tests::{EngineKind, Need, binary, can_run, party};

use super::{FLOOD, check, expected, flood, node, offer};

/// How many offers come; the flood is one of a million.
const OFFERS: &str = "WEIR_FLOOD";
/// Connections that they come by.
const CONNECTIONS: usize = 4;
/// Offers that are sent before their answers are read.
const AHEAD: usize = 32;
/// The time between two honest requests while it lasts.
const NOW_AND_THEN: Duration = Duration::from_millis(500);
/// The growth that the agent's memory may have, KiB.
const GROWS: u64 = 16 * 1024;
/// Another user than the one that floods: the kernel's `nobody`.
const NOBODY: u32 = 65_534;

/// A connection that offers go by, one after the other.
struct Customer {
    to: UnixStream,
    from: BufReader<UnixStream>,
}

impl Customer {
    fn new(socket: &Path) -> io::Result<Customer> {
        let to = UnixStream::connect(socket)?;
        to.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Customer { from: BufReader::new(to.try_clone()?), to })
    }

    /// The statuses of answers to offers that were sent ahead.
    fn send(&mut self, offers: &[String]) -> io::Result<Vec<u16>> {
        let mut text = String::new();
        for body in offers {
            text += "POST /v1/agreements HTTP/1.1\r\nhost: weir\r\ncontent-length: ";
            text += &format!("{}\r\n\r\n{body}", body.len());
        }
        self.to.write_all(text.as_bytes())?;
        offers.iter().map(|_| self.answer()).collect()
    }

    fn answer(&mut self) -> io::Result<u16> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            if self.from.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
            }
        }
        io::copy(&mut self.from.by_ref().take(length), &mut io::sink())?;
        status.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The agent's resident memory, KiB.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it has memory");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number of KiB")
}

#[test]
fn flood_of_invented_clients_leaves_memory_link_and_others_alone() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let offers: usize = std::env::var(OFFERS).ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let mut node = node(EngineKind::Htb, 2, &format!("[access]\nown = [\"{NOBODY}\"]\n"));
    let labels = ["C1", "C2"];
    let streams = flood(&node, &labels);
    node.client().offer(&offer(&node.name("C1"), 60, 60)).expect("it fits");
    let pid = node.agent().id();
    let socket = node.socket().to_owned();
    // Another user may come in here.
    let dir = socket.parent().expect("it is in a directory");
    fs::set_permissions(dir, PermissionsExt::from_mode(0o711)).expect("it is ours");

    let template = offer("SERVICE", 50, 50).write(Language::Json).replace("acme", "PARTY");
    let (before, begin) = (memory(pid), Instant::now());
    let (mut most, mut asked, mut slowest) = (before, 0, Duration::ZERO);
    let mut honest = None;
    let answers: Vec<(usize, usize)> = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..CONNECTIONS)
            .map(|sender| {
                let (socket, template) = (&socket, &template);
                scope.spawn(move || {
                    let mut customer = Customer::new(socket).expect("the agent listens");
                    let (mut sent, mut late) = (0, 0);
                    while sent < offers / CONNECTIONS {
                        let names =
                            (sent..(sent + AHEAD).min(offers / CONNECTIONS)).map(|i| format!("{sender}-{i}"));
                        let ahead: Vec<String> = names
                            .map(|name| {
                                template.replace("PARTY", &format!("party-{name}")).replace("SERVICE", &name)
                            })
                            .collect();
                        let statuses = customer.send(&ahead).expect("each offer has an answer");
                        assert!(statuses.iter().all(|s| matches!(s, 409 | 429)), "{statuses:?}");
                        late += statuses.iter().filter(|status| **status == 429).count();
                        sent += ahead.len();
                    }
                    (sent, late)
                })
            })
            .collect();
        while !senders.iter().all(|sender| sender.is_finished()) {
            let asking = Instant::now();
            node.client().agreements().expect("it answers meanwhile");
            slowest = slowest.max(asking.elapsed());
            asked += 1;
            most = most.max(memory(pid));
            if honest.is_none() {
                let body = offer(&node.name("C2"), 5, 85).write(Language::Toml);
                honest = Some(somebody_else_offers(&socket, dir, &body));
            }
            std::thread::sleep(NOW_AND_THEN);
        }
        senders.into_iter().map(|sender| sender.join().expect("nobody panics")).collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let sum = |of: fn(&(usize, usize)) -> usize| answers.iter().map(of).sum::<usize>();
    let (sent, late, after) = (sum(|a| a.0), sum(|a| a.1), memory(pid));
    println!(
        "{sent} offers in {seconds:.1} s, {:.0} a second: {late} refused unread; memory {before} KiB before, \
         {most} at the most, {after} after; {asked} questions meanwhile, the slowest took {slowest:.1?}",
        sent as f64 / seconds
    );
    assert_eq!(sent, offers / CONNECTIONS * CONNECTIONS);
    assert!(late * 10 >= sent * 9, "{late} of {sent} were refused unread");
    assert!(most.max(after) < before + GROWS, "memory grew from {before} to {most} KiB");
    assert_eq!(honest, Some(true), "another user's offer is accepted meanwhile");
    assert_eq!(node.client().agreements().expect("it answers").len(), 2);
    let shared = [party("C1").min(60).max(60).sends(FLOOD), party("C2").min(5).sends(FLOOD)];
    check("after the flood", &streams, &labels, &expected(shared));
}

/// Another user makes an offer, as people do: whether it is accepted.
fn somebody_else_offers(socket: &Path, dir: &Path, offer: &str) -> bool {
    let file = dir.join("offer.toml");
    fs::write(&file, offer).expect("the directory is ours");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("the file is ours");
    // The program may lie where only its owner comes.
    let program = dir.join("weir");
    fs::copy(binary(), &program).expect("the directory is ours");
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(0).arg("--socket").arg(socket).args(["agree", "offer"]).arg(&file);
    let output = command.output().expect("the program runs");
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output.status.success()
}
