//! Watches the mirror from outside its thread. The port of a mirror that does not answer is closed.
//!
//! A runtime waits for a silent mirror, but asks the registry at once if the port is closed. A stuck
//! thread cannot be ended, so the watchdog closes its port and starts another life. The next mirror
//! serves as soon as the stuck one releases the store.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    thread,
    time::Duration,
};
use weir_api::EventKind;

use super::{Images, OnFault, State};

/// The interval between checks.
const PERIOD: Duration = Duration::from_secs(1);
/// The time limit of an answer.
const LIMIT: Duration = Duration::from_secs(2);
/// The length of one wait for an answer. The watchdog counts waits, not time, so a pause of the whole
/// machine counts as one wait.
const WAIT: Duration = Duration::from_millis(100);

/// Whether `GET /v2/` gets an answer in time. A closed port and a cut connection count as answers,
/// because a runtime then asks the registry.
fn answers(address: SocketAddr) -> bool {
    let mut waits = 0..LIMIT.as_millis() / WAIT.as_millis();
    let is_late = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
    let stream = loop {
        match TcpStream::connect_timeout(&address, WAIT) {
            Ok(stream) => break stream,
            Err(e) if is_late(e.kind()) => {
                if waits.next().is_none() {
                    return false;
                }
            }
            Err(_) => return true,
        }
    };
    let request = format!("GET /v2/ HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    if stream.set_read_timeout(Some(WAIT)).is_err() || (&stream).write_all(request.as_bytes()).is_err() {
        return true;
    }
    loop {
        match (&stream).read(&mut [0]) {
            Err(e) if is_late(e.kind()) => {
                if waits.next().is_none() {
                    return false;
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            _ => return true,
        }
    }
}

/// Closes a listener for all its handles. Connections are refused from then on.
fn close(listener: TcpListener) {
    // `shutdown` works for each kind of socket, but the standard library offers it for streams only.
    let _ = TcpStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
}

impl Images {
    /// Checks the mirror every second, until [`Images::stop`].
    pub(super) fn watch(&self) {
        while !*self.stop.borrow() {
            thread::sleep(PERIOD);
            let asked = match &*self.lock() {
                (life, State::Up(.., listener)) => listener.local_addr().ok().map(|at| (*life, at)),
                _ => None,
            };
            let Some((life, address)) = asked else { continue };
            if !answers(address) && !*self.stop.borrow() && !self.give_up(life, address) {
                return;
            }
        }
    }

    /// Closes this life's port and starts the next life. Returns `false` if none follows.
    fn give_up(&self, life: u64, address: SocketAddr) -> bool {
        let mut now = self.lock();
        if now.0 != life {
            return true;
        }
        let why = format!(
            "the mirror on {address} did not answer itself within {LIMIT:?}: its port is closed, and \
             runtimes ask the registries"
        );
        let before = std::mem::replace(&mut *now, (life + 1, State::Down(why.clone())));
        drop(now);
        tracing::error!("image cache: {why}");
        if let State::Up(_, _, listener) = before.1 {
            close(listener);
        }
        self.life.send_replace(life + 1);
        // A send fails only without a receiver, which is fine.
        let _ = self.events.send((EventKind::ImageFrozen, why.clone()));
        if self.on_fault == OnFault::End {
            self.end(why);
            return false;
        }
        let begun = self.begin_life(life + 1);
        if let Err(e) = &begun {
            tracing::error!("{e:#}");
        }
        begun.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Instant};

    use weir_image::Settings;

    use super::*;

    fn settings(directory: &std::path::Path, listen: SocketAddr) -> Settings {
        let directory = directory.join("store").display().to_string();
        let text = format!(
            "listen = \"{listen}\"\ndirectory = \"{directory}\"\nbudget = \"64MiB\"\nkeep_free = \"0\"\n"
        );
        toml::from_str(&text).unwrap()
    }

    /// A cache in its own directory, on a port that was free just before. Tests that run meanwhile take no port of
    /// this address, also while the cache has closed its own.
    fn start(directory: &std::path::Path, on_fault: OnFault) -> (Images, SocketAddr) {
        let free = TcpListener::bind("127.93.0.1:0").unwrap().local_addr().unwrap();
        let images = Images::start(settings(directory, free), None, on_fault).unwrap();
        until("it serves", || images.get().is_ok());
        assert!(TcpStream::connect(free).is_ok());
        (images, free)
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Blocks the mirror's only thread until the sender is dropped.
    fn freeze(images: &Images) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel();
        drop(images.get().map(|(_, runtime)| runtime.spawn(async move { held.recv() })).unwrap());
        release
    }

    fn is_refused(address: SocketAddr) -> bool {
        TcpStream::connect(address).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
    }

    #[test]
    fn frozen_mirror_closes_its_port_and_another_serves_there() {
        let dir = tempfile::tempdir().unwrap();
        let (images, address) = start(dir.path(), OnFault::TryAgain);
        let mut events = images.events();
        thread::sleep(PERIOD * 2);
        assert_eq!(images.frozen(), 0, "a mirror that answers is left alone");
        let release = freeze(&images);
        until("its port is closed", || is_refused(address));
        assert!(images.get().is_err());
        until("it is said", || images.frozen() == 1 && !events.is_empty());
        let (kind, what) = events.try_recv().unwrap();
        assert_eq!(kind, "image-frozen");
        assert!(what.contains("did not answer itself within 2s"), "{what}");
        // The old thread continues and ends. It takes nothing from the next mirror.
        drop(release);
        until("another serves", || images.get().is_ok());
        assert!(answers(address) && !is_refused(address));
        thread::sleep(PERIOD);
        assert!(images.get().is_ok() && answers(address) && !is_refused(address));
        assert_eq!(images.frozen(), 1);
        // The next mirror may wait for the store, and say so.
        let last = std::iter::from_fn(|| events.try_recv().ok()).last();
        assert_eq!(last.map(|(kind, _)| kind), Some(EventKind::ImageUp));
        images.stop();
    }

    #[test]
    fn cache_that_cannot_serve_says_so_until_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind("127.93.0.2:0").unwrap();
        let settings = settings(dir.path(), taken.local_addr().unwrap());
        let images = Images::start(settings, None, OnFault::TryAgain).unwrap();
        let mut events = images.events();
        until("it says why", || images.failure().is_some());
        let why = images.failure().unwrap();
        assert!(why.contains("does not serve: cannot listen on 127.93.0.2:"), "{why}");
        assert_eq!(images.is_serving(), Some(false));
        drop(taken);
        until("it serves", || images.is_serving() == Some(true));
        assert_eq!(images.failure(), None);
        let told: Vec<_> = std::iter::from_fn(|| events.try_recv().ok()).collect();
        assert_eq!(told.iter().map(|(kind, _)| kind.clone()).collect::<Vec<_>>(), ["image-down", "image-up"]);
        assert_eq!(told[0].1, why);
        images.stop();
        until("it stops", || images.is_serving() == Some(false));
        assert_eq!(images.failure(), None, "an end is no fault");
        assert_eq!(Images::off().is_serving(), None);
    }

    #[test]
    fn frozen_mirror_without_an_agent_ends_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (images, address) = start(dir.path(), OnFault::End);
        let _release = freeze(&images);
        until("it is given up", || images.fault.borrow().is_some());
        assert!(is_refused(address), "a runtime would wait");
        assert!(images.fault.borrow().as_ref().unwrap().contains("did not answer itself"));
    }

    #[test]
    fn port_that_is_taken_ends_a_cache_without_an_agent() {
        let dir = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = settings(dir.path(), taken.local_addr().unwrap());
        let images = Images::start(settings, None, OnFault::End).unwrap();
        until("it ends", || images.fault.borrow().is_some());
        let why = images.fault.borrow().clone().unwrap();
        assert!(why.contains("cannot listen on 127.0.0.1:") && why.contains("in use"), "{why}");
    }
}
