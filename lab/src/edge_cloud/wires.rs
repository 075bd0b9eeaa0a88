//! Links in user space: a packet that enters a tunnel device leaves another one at the time that a [`Line`]
//! gives.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::AsFd,
    sync::mpsc::{SyncSender, TryRecvError, sync_channel},
    thread,
    time::{self, Duration},
};

use anyhow::Result;
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::{prctl, time::TimeSpec},
};
use weir_netlab::topology::{Netns, tunnel};
use weir_units::{Bytes, Instant};

use super::{line::Line, scenario::Link};

/// Bytes of the Ethernet header, which tc counts and a tunnel device lacks.
const ETHERNET: u64 = 14;
/// The largest packet, bytes.
const MTU: usize = 1500;
/// Packets taken from one device before the next device is served.
const TURN: usize = 64;
/// Longest wait before the thread checks for changes or its end.
const LOOK: Duration = Duration::from_millis(50);

type Packet = Vec<u8>;

/// A link: two devices, and a line in each direction.
pub(super) struct Wire {
    ends: [File; 2],
    ways: [Line<Packet>; 2],
}

impl Wire {
    /// Creates a device of the given name in each of two namespaces, in the state up.
    ///
    /// # Errors
    /// If this kernel has no tunnel devices.
    pub(super) fn between(a: (&Netns, &str), b: (&Netns, &str), link: Link) -> Result<Wire> {
        Ok(Wire { ends: [tunnel(a.0, a.1)?, tunnel(b.0, b.1)?], ways: ways(link) })
    }
}

fn ways(link: Link) -> [Line<Packet>; 2] {
    [Line::new(link, 1), Line::new(link, 2)]
}

/// A thread that carries packets over wires, until it is dropped.
pub(super) struct Carrier {
    changes: Option<SyncSender<(usize, Link)>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Carrier {
    /// Starts the thread.
    pub(super) fn start(mut wires: Vec<Wire>) -> Carrier {
        // A channel without a buffer: the sender of a change continues when the thread has received it.
        let (changes, changed) = sync_channel::<(usize, Link)>(0);
        let thread = thread::spawn(move || {
            // By default the kernel delays timers by up to 50 us to save wake-ups.
            let _ = prctl::set_timerslack(1);
            let begun = time::Instant::now();
            let mut block = [0u8; MTU];
            loop {
                match changed.try_recv() {
                    Ok((nth, link)) => wires[nth].ways = ways(link),
                    Err(TryRecvError::Empty) => carry(&mut wires, begun, &mut block),
                    Err(TryRecvError::Disconnected) => break,
                }
            }
        });
        Carrier { changes: Some(changes), thread: Some(thread) }
    }

    /// Replaces the `nth` wire's link by another, empty one.
    pub(super) fn set(&self, nth: usize, link: Link) {
        let changes = self.changes.as_ref().expect("taken by drop only");
        changes.send((nth, link)).expect("the thread ends after its sender");
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        drop(self.changes.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes due packets, waits for the next packet or due time, and reads new packets.
fn carry(wires: &mut [Wire], begun: time::Instant, block: &mut [u8; MTU]) {
    let now = || Instant(begun.elapsed());
    let mut next = now() + LOOK;
    for wire in wires.iter_mut() {
        for (way, line) in wire.ways.iter_mut().enumerate() {
            while let Some(packet) = line.depart(now()) {
                // A full device, or one that is down, loses the packet.
                let _ = (&wire.ends[1 - way]).write(&packet);
            }
            next = next.min(line.due().unwrap_or(next));
        }
    }
    let ends = wires.iter().flat_map(|wire| &wire.ends);
    let mut polled: Vec<PollFd<'_>> = ends.map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN)).collect();
    let _ = ppoll(&mut polled, Some(TimeSpec::from(next.since(now()))), None);
    let ready: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(false)).collect();
    for (wire, ready) in wires.iter_mut().zip(ready.chunks(2)) {
        for ((end, line), _) in wire.ends.iter().zip(&mut wire.ways).zip(ready).filter(|(_, ready)| **ready) {
            for _ in 0..TURN {
                let Ok(len) = (&*end).read(block) else { break };
                line.arrive(now(), Bytes(len as u64 + ETHERNET), block[..len].to_vec());
            }
        }
    }
}
