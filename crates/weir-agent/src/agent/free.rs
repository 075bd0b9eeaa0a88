//! The link that an agent would divide, while none does.

use std::path::Path;

use weir_datapath::engine::Standing;
use weir_netlink::Netlink;
use weir_units::{BitRate, Framing, LinkHeader};

use super::{check, links, lock};
use crate::config;

/// The main link of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeLink {
    /// Its device.
    pub device: String,
    /// Its configured capacity, or the highest one of a link whose rate changes.
    pub capacity: BitRate,
    /// The framing of the line, if it is configured.
    pub framing: Option<Framing>,
}

/// The main link that an agent with the configuration at `path` would divide now.
///
/// # Errors
/// The file has a fault, the node has no such link, or an agent or its division is there.
pub fn free_link(path: &Path) -> anyhow::Result<FreeLink> {
    let mut netlink = Netlink::open()?;
    let config = links::of_route(config::load(path)?, &mut netlink);
    check::fits_node(path, &config, &mut netlink)?;
    drop(lock::take()?);
    let standing = Standing::look(&mut netlink)?;
    if !standing.is_empty() {
        let devices = standing.devices().collect::<Vec<_>>().join(" and ");
        anyhow::bail!(
            "the division of an earlier agent is in force at {devices}: `weir agent --restore` removes it, a start of \
             the agent takes it over"
        );
    }
    let link = &config.link;
    let has_ethernet = netlink.link(&link.device)?.has_ethernet();
    let header = if has_ethernet { LinkHeader::Ethernet } else { LinkHeader::None };
    let framing = link.line().map(|framing| Framing { header, ..framing });
    Ok(FreeLink { device: link.device.clone(), capacity: link.capacity, framing })
}
