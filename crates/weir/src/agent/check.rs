//! Whether a configuration can be used on this node: the same for `--check`, a start and a reload.

use std::path::Path;

use weir_datapath::engine;
use weir_netlink::Netlink;
use weir_units::chain;

use super::{advice, congestion};
use crate::config::{self, Config, ConfigError};

/// Reads the configuration and says what is wrong with it, by itself and on this node.
pub(crate) fn check(path: &Path) -> anyhow::Result<()> {
    let config = config::load(path)?;
    fits_node(path, &config, &mut Netlink::open()?)?;
    can_run(path, config.link.engine)
}

/// Whether this kernel has the engine that the configuration names. The rights to try it out may be
/// missing, and the machine may be too busy to share well: neither is the configuration's fault.
pub(super) fn can_run(path: &Path, engine: engine::Choice) -> anyhow::Result<()> {
    let engine::Choice::Only(kind) = engine else { return Ok(()) };
    match engine::selftest::run(kind) {
        Err(why @ engine::selftest::Failure::Engine(_)) => {
            let advice = "engine = \"auto\" takes one that does";
            let why = format!("[link] engine: {kind} does not work here: {} ({advice})", chain(&why));
            Err(unusable(path, why).into())
        }
        _ => Ok(()),
    }
}

/// A configuration that cannot be used, though its text is good.
pub(super) fn unusable(path: &Path, why: impl std::fmt::Display) -> ConfigError {
    ConfigError::Unusable { path: path.to_owned(), why: why.to_string() }
}

/// Whether this node has what the configuration names.
pub(super) fn fits_node(path: &Path, config: &Config, netlink: &mut Netlink) -> anyhow::Result<()> {
    let device = &config.link.device;
    match netlink.link(device) {
        Ok(_) => {}
        Err(e) if e.is_gone() => {
            let why = format!("[link] device: there is no interface {device} (`ip -br link` lists them)");
            return Err(unusable(path, why).into());
        }
        Err(e) => return Err(anyhow::Error::from(e).context(format!("cannot look for link {device}"))),
    }
    congestion::checked(&config.congestion)
        .map(drop)
        .and_then(|()| advice::checked(config))
        .and_then(|()| config.access.rights().map(drop))
        .map_err(|why| unusable(path, why))?;
    Ok(())
}
