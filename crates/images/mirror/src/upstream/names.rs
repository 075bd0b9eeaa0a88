//! Names of hosts: looked up on few threads, so that a resolver that hangs leaves the other threads to the disk.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use crate::flight::Flights;

/// The addresses of a name, or the reason for having none.
type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

/// Looks names up: each on one thread at a time, for all who ask for it.
#[derive(Debug, Clone)]
pub(super) struct Names {
    flights: Arc<Flights<String, Found>>,
    /// A place is taken until the system answers, also if no one waits for it any more.
    places: Arc<Semaphore>,
    /// How long a caller waits.
    wait: Duration,
    resolve: fn(&str) -> io::Result<Vec<SocketAddr>>,
}

impl Names {
    /// * `most`: names at once.
    pub(super) fn new(most: usize, wait: Duration) -> Names {
        let resolve = |name: &str| (name, 0).to_socket_addrs().map(Iterator::collect);
        Names { flights: Arc::default(), places: Arc::new(Semaphore::new(most)), wait, resolve }
    }

    /// The addresses of a name, with port 0.
    ///
    /// # Errors
    /// The system's; or there was no answer in time, or no place to ask for one.
    pub(super) async fn look_up(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        let (places, wait, resolve, of) =
            (Arc::clone(&self.places), self.wait, self.resolve, name.to_owned());
        let work = move || async move {
            let failed = |e: io::Error| (e.kind(), e.to_string());
            let place = timeout(wait, places.acquire_owned()).await;
            let busy = |_| (io::ErrorKind::TimedOut, "too many other names are being looked up".to_owned());
            let place = place.map_err(busy)?.map_err(|e| failed(io::Error::other(e)))?;
            let looking = move || {
                let _place = place;
                resolve(&of)
            };
            spawn_blocking(looking).await.unwrap_or_else(|e| Err(io::Error::other(e))).map_err(failed)
        };
        let late = |_| {
            let why = format!("the resolver does not answer for {name} within {wait:?}");
            io::Error::new(io::ErrorKind::TimedOut, why)
        };
        let found = timeout(wait, self.flights.join(name.to_owned(), work)).await.map_err(late)?;
        let stopped = || Err((io::ErrorKind::Other, "the mirror is stopping".to_owned()));
        found.unwrap_or_else(stopped).map_err(|(kind, why)| io::Error::new(kind, why))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, thread, time::Instant};

    use futures_util::future::join_all;
    use tokio::runtime::Builder;

    use super::*;

    const HANGS: Duration = Duration::from_secs(3);
    const WAIT: Duration = Duration::from_millis(300);
    const MOST: usize = 2;

    /// A resolver that hangs for some names; it counts nothing and knows one address.
    fn names() -> Names {
        let resolve = |name: &str| {
            if name.starts_with("slow") {
                thread::sleep(HANGS);
            }
            Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))])
        };
        Names { resolve, ..Names::new(MOST, WAIT) }
    }

    /// Runs with this number of threads for the disk and for names; does not wait for those that hang.
    fn run(threads: usize, work: impl Future<Output = ()>) {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(threads).build().unwrap();
        runtime.block_on(work);
        runtime.shutdown_background();
    }

    #[test]
    fn resolver_that_hangs_leaves_threads_to_the_disk_and_is_not_awaited() {
        run(MOST + 1, async {
            let (names, begun) = (names(), Instant::now());
            let asked: Vec<_> = (0..20).map(|n| format!("slow{n}.example")).collect();
            let asking = join_all(asked.iter().map(|name| names.look_up(name)));
            let disk = async {
                tokio::time::sleep(WAIT / 3).await;
                spawn_blocking(|| ()).await.unwrap();
                assert!(begun.elapsed() < WAIT * 3, "the disk waited for {:?}", begun.elapsed());
            };
            let (found, ()) = tokio::join!(asking, disk);
            assert!(found.iter().all(|found| found.as_ref().unwrap_err().kind() == io::ErrorKind::TimedOut));
            assert!(begun.elapsed() < HANGS / 2, "{:?}", begun.elapsed());
        });
    }

    #[test]
    fn name_that_hangs_takes_one_place_however_often_it_is_asked_for() {
        run(32, async {
            let names = names();
            let hanging = join_all((0..20).map(|_| names.look_up("slow.example")));
            let other = async {
                tokio::time::sleep(WAIT / 3).await;
                assert_eq!(names.look_up("quick.example").await.unwrap().len(), 1);
            };
            let (found, ()) = tokio::join!(hanging, other);
            assert!(found.iter().all(Result::is_err));
        });
    }
}
