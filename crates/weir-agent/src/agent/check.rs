//! Checks whether this node can use a configuration. `--check`, a start and a reload share the checks.

use std::path::Path;

use weir_datapath::engine;
use weir_netlink::{Link, Netlink};
use weir_units::chain;

use super::{advice, cluster, congestion, links, selector_rules};
use crate::config::{self, Config, ConfigError};

/// Reads the configuration and reports its errors, both in itself and on this node.
///
/// # Errors
/// The file has a fault, or this node cannot do what it asks for.
pub fn check(path: &Path) -> anyhow::Result<()> {
    let mut netlink = Netlink::open()?;
    let config = links::of_route(config::load(path)?, &mut netlink);
    fits_node(path, &config, &mut netlink)?;
    can_run(path, config.link.engine)
}

/// Whether this kernel has the configured engine. Missing rights to try it, or a machine too busy to
/// share well, are not faults of the configuration.
pub(super) fn can_run(path: &Path, engine: engine::Choice) -> anyhow::Result<()> {
    let engine::Choice::Only(kind) = engine else { return Ok(()) };
    works(path, kind, engine::selftest::run(kind).map(drop))
}

/// The same without traffic, in some milliseconds. It is asked before an engine takes the devices of another one.
pub(super) fn can_open(path: &Path, engine: engine::Choice) -> anyhow::Result<()> {
    let engine::Choice::Only(kind) = engine else { return Ok(()) };
    works(path, kind, engine::selftest::set_up(kind))
}

/// The verdict of a self-test about the configured engine.
fn works(
    path: &Path,
    kind: engine::EngineKind,
    tried: Result<(), engine::selftest::Failure>,
) -> anyhow::Result<()> {
    match tried {
        Err(why @ engine::selftest::Failure::Engine(_)) => {
            let advice = "engine = \"auto\" takes one that does";
            let why = format!("[link] engine: {kind} does not work here: {} ({advice})", chain(&why));
            Err(unusable(path, why).into())
        }
        _ => Ok(()),
    }
}

/// Whether the configured engine can share a link of this kind.
fn takes(engine: engine::Choice, link: &Link) -> Result<(), String> {
    let engine::Choice::Only(kind) = engine else { return Ok(()) };
    kind.takes(link).map_err(|why| format!("[link] engine: {}", chain(&why)))
}

/// Whether the configured engine can charge the framing of the line on a link of this kind. The download is
/// scheduled by HTB, which counts only what arrives there.
fn frames(config: &Config, link: &Link) -> Result<(), String> {
    if config.link.line().is_none() {
        return Ok(());
    }
    let engine::Choice::Only(kind) = config.link.engine else { return Ok(()) };
    kind.frames_on(link).map_err(|why| format!("[link] framing, overhead, mpu and atm: {}", chain(&why)))
}

/// The error for a valid configuration that this node cannot use.
pub(super) fn unusable(path: &Path, why: impl std::fmt::Display) -> ConfigError {
    ConfigError::Unusable { path: path.to_owned(), why: why.to_string() }
}

/// Whether this node has the configured devices.
pub(super) fn fits_node(path: &Path, config: &Config, netlink: &mut Netlink) -> anyhow::Result<()> {
    let device = &config.link.device;
    match netlink.link(device) {
        Ok(link) => takes(config.link.engine, &link)
            .and_then(|()| frames(config, &link))
            .map_err(|why| unusable(path, config.link.fault_of(&config.link, &why)))?,
        Err(e) if e.is_gone() => {
            let why = format!("[link] device: there is no interface {device} (`ip -br link` lists them)");
            let why = config.link.fault_of(&config.link, &why);
            return Err(ConfigError::Absent { path: path.to_owned(), why }.into());
        }
        Err(e) => return Err(anyhow::Error::from(e).context(format!("cannot look for link {device}"))),
    }
    for link in &config.link.others {
        // Another link may appear later, as a modem does.
        let Ok(found) = netlink.link(&link.device) else { continue };
        let other = config.sharing(&link.device);
        takes(link.engine, &found)
            .and_then(|()| other.map_or(Ok(()), |other| frames(&other, &found)))
            .map_err(|why| unusable(path, config.link.fault_of(link, &why)))?;
    }
    congestion::checked(&config.congestion)
        .map(drop)
        .and_then(|()| advice::checked(config))
        .and_then(|()| selector_rules::fit(config))
        .and_then(|()| config.access.rights().map(drop))
        .and_then(|()| cluster::endpoint(config).map(drop))
        .map_err(|why| unusable(path, why))?;
    Ok(())
}
