//! Puts back what an agent that has ended left on this node. No configuration of the link is needed: the kernel shows
//! weir's objects, and the state has the qdiscs that weir added.

use std::path::{Path, PathBuf};

use weir_datapath::left;
use weir_units::chain;

use super::{
    lock,
    store::{Minors, Store, StoreError},
};
use crate::{config, server};

/// The outcome of a restoration.
#[derive(Debug)]
pub struct Restored {
    /// The devices of schedulers that are gone.
    pub devices: Vec<String>,
    /// The directory of the state, if it could be read.
    pub state: Option<PathBuf>,
    /// Nothing is left. Without the state, clsact qdiscs may be.
    pub is_whole: bool,
}

/// Removes all that an agent left in this network namespace. `path` is its configuration, and `state` the directory of
/// its state if it is another one than the configuration names.
///
/// # Errors
/// An agent runs here, or the kernel refuses a part. Parts that it does not refuse are removed.
pub fn restore(path: &Path, state: Option<&Path>) -> anyhow::Result<Restored> {
    let _lock = lock::take()?;
    let places = config::places(path);
    let directory = state.unwrap_or(&places.state);
    let guess = || {
        let shown = directory.display();
        if let Some(fault) = &places.fault {
            tracing::warn!("the state is read from {shown} (`--state DIR` names another): {}", chain(fault));
        }
    };
    // The socket of a faulty file is a guess, and may be that of another namespace's agent.
    if places.fault.is_none() && server::is_listened(&places.socket) {
        anyhow::bail!(
            "cannot put anything back: an agent answers at {}; stop it first (`systemctl stop weir`)",
            places.socket.display()
        );
    }
    if has_state(directory) {
        guess();
    }
    let store = open(directory);
    let created = match store.as_ref().map(Store::created).transpose() {
        Ok(created) => created,
        Err(e) => {
            tracing::warn!("{}", chain(&e));
            None
        }
    };
    let state = created.is_some().then(|| directory.to_owned());
    let mut removed = left::remove(created.unwrap_or_default());
    let clsact = if state.is_none() { left::clsact() } else { Vec::new() };
    if !clsact.is_empty() {
        let shown = directory.display();
        let why = match has_state(directory) {
            true => format!("the state in {shown} cannot be read"),
            false => {
                guess();
                format!("there is no state in {shown}")
            }
        };
        tracing::warn!(
            "{why}, so it is not known which clsact qdiscs weir added; those of {} stay (`tc qdisc del dev DEVICE \
             clsact` removes one)",
            clsact.join(", ")
        );
    }
    if let Some(Err(e)) = store.as_ref().map(|store| forget(store, &removed)) {
        removed.faults.push(chain(&e));
    }
    server::remove_dead(&places.socket);
    match removed.faults.first() {
        Some(first) => {
            anyhow::bail!("cannot put everything back: {first} ({} failures)", removed.faults.len())
        }
        None => Ok(Restored { is_whole: clsact.is_empty(), devices: removed.devices, state }),
    }
}

fn has_state(directory: &Path) -> bool {
    ["weir.redb", "weir.promises"].iter().any(|file| directory.join(file).exists())
}

/// Opens the state in a directory. A directory without a state stays so.
fn open(directory: &Path) -> Option<Store> {
    if !has_state(directory) {
        return None;
    }
    Store::open(directory).inspect_err(|e| tracing::warn!("{}", chain(e))).ok()
}

/// Records in the state what is gone from the kernel.
pub(super) fn forget(store: &Store, removed: &left::Removed) -> Result<(), StoreError> {
    store.save_created(&removed.created)?;
    if removed.faults.is_empty() {
        store.save_minors(&Minors::new())?;
        store.save_engine(None)?;
    }
    Ok(())
}
