//! The tasks that follow a collection of the API server.

use std::time::{Duration, Instant};

use tokio::{sync::watch::Sender, time::sleep};

use super::{
    Followed,
    client::{Client, Fault, shown},
    endpoint::Endpoint,
    followed::{Applied, Collection, Line, Page, pause},
    objects::{Namespace, Object, Pod},
    requests::Ask,
};

/// The number of objects of a page. A page that is too large is asked for again in smaller ones.
const PAGE: u32 = 100;
/// A watch that ends earlier counts as a failure, so a server that ends each one is not asked without a pause.
const SHORT: Duration = Duration::from_secs(1);

/// The collection of a task.
pub(super) trait Task: Object + Send + Sync + 'static {
    fn list(endpoint: &Endpoint, limit: u32, more: String) -> Ask;
    fn watch(endpoint: &Endpoint, version: String) -> Ask;
    /// Its place in what is known.
    fn of(followed: &mut Followed) -> (&mut Collection<Self>, &mut Option<Fault>);
    /// Notes that a list has arrived. Returns whether that is news.
    fn note_list(followed: &mut Followed) -> bool;
}

impl Task for Pod {
    fn list(endpoint: &Endpoint, limit: u32, more: String) -> Ask {
        Ask::ListPods { node: endpoint.node.clone(), limit, more }
    }

    fn watch(endpoint: &Endpoint, version: String) -> Ask {
        Ask::WatchPods { node: endpoint.node.clone(), version }
    }

    fn of(followed: &mut Followed) -> (&mut Collection<Pod>, &mut Option<Fault>) {
        (&mut followed.pods, &mut followed.pods_fault)
    }

    fn note_list(followed: &mut Followed) -> bool {
        !std::mem::replace(&mut followed.is_listed, true)
    }
}

impl Task for Namespace {
    fn list(_: &Endpoint, limit: u32, more: String) -> Ask {
        Ask::ListNamespaces { limit, more }
    }

    fn watch(_: &Endpoint, version: String) -> Ask {
        Ask::WatchNamespaces { version }
    }

    fn of(followed: &mut Followed) -> (&mut Collection<Namespace>, &mut Option<Fault>) {
        (&mut followed.namespaces, &mut followed.namespaces_fault)
    }

    /// A list of namespaces tells of no pod.
    fn note_list(_: &mut Followed) -> bool {
        false
    }
}

/// Follows a collection without end.
pub(super) async fn follow<T: Task>(endpoint: Endpoint, sender: Sender<Followed>) {
    let mut failures = 0;
    let mut is_listed = false;
    loop {
        let result = once::<T>(&endpoint, &sender, &mut is_listed, &mut failures).await;
        match result {
            Ok(()) => {}
            Err(Fault::Expired) => {
                is_listed = false;
                failures += 1;
            }
            Err(why) => {
                // A change that cannot be read may be missed, so the next attempt lists.
                is_listed &= !matches!(why, Fault::Garbled { .. } | Fault::Refused { .. });
                failures += 1;
                sender.send_if_modified(|followed| {
                    let fault = T::of(followed).1;
                    let is_new = fault.as_ref() != Some(&why);
                    if fault.is_none() {
                        tracing::warn!("lost kubernetes: {why}");
                    }
                    *fault = Some(why);
                    is_new
                });
            }
        }
        if failures > 0 {
            sleep(pause(failures, fastrand::f64())).await;
        }
    }
}

/// Lists if that is due, and watches until the watch ends.
async fn once<T: Task>(
    endpoint: &Endpoint,
    sender: &Sender<Followed>,
    is_listed: &mut bool,
    failures: &mut u32,
) -> Result<(), Fault> {
    let client = Client::open(endpoint)?;
    if !*is_listed {
        let fresh = list::<T>(&client, endpoint).await?;
        *is_listed = true;
        sender.send_if_modified(|followed| {
            let is_first = T::note_list(followed);
            let (known, fault) = T::of(followed);
            let had_fault = fault.take().is_some();
            let is_new = *known != fresh;
            *known = fresh;
            is_new || had_fault || is_first
        });
    }
    let version = T::of(&mut sender.borrow().clone()).0.version().to_owned();
    let began = Instant::now();
    let mut watch = client.watch(&T::watch(endpoint, version)).await?;
    // The server answers again.
    sender.send_if_modified(|followed| T::of(followed).1.take().is_some());
    let mut has_told = false;
    while let Some(lines) = watch.next().await? {
        let mut end = None;
        sender.send_if_modified(|followed| {
            let known = T::of(followed).0;
            let mut is_changed = false;
            for line in &lines {
                let applied = match line {
                    Line::Whole(line) => known.apply(line),
                    Line::Beginning(line) => known.leave_out(line),
                };
                match applied {
                    Applied::Nothing => {}
                    Applied::Changed => is_changed = true,
                    Applied::Expired => end = Some(Fault::Expired),
                    Applied::Failed(why) => {
                        let server = endpoint.server.clone();
                        end = Some(Fault::Garbled { server, why: shown(&why) });
                    }
                }
                if end.is_some() {
                    break;
                }
            }
            is_changed
        });
        if let Some(end) = end {
            return Err(end);
        }
        has_told = true;
        *failures = 0;
    }
    *failures = if has_told || began.elapsed() >= SHORT { 0 } else { *failures + 1 };
    Ok(())
}

async fn list<T: Task>(client: &Client, endpoint: &Endpoint) -> Result<Collection<T>, Fault> {
    let mut limit = PAGE;
    let mut fresh = Collection::default();
    let mut more = String::new();
    loop {
        let page: Result<Page<T::Raw>, Fault> = client.ask(&T::list(endpoint, limit, more.clone())).await;
        match page {
            Ok(page) => {
                more.clone_from(&page.metadata.more);
                fresh.add_page(page);
                if more.is_empty() {
                    return Ok(fresh);
                }
            }
            Err(Fault::TooLarge { .. }) if limit > 1 => limit = (limit / 10).max(1),
            Err(why) => return Err(why),
        }
    }
}
