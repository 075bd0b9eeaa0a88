//! `[api]`: the part of the API that is open over TCP.

use std::net::SocketAddr;

use serde::Deserialize;

use super::{
    Config,
    fault::{Fault, fault},
};

/// `[api]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Api {
    /// The address of the readable routes; none for no TCP.
    pub(crate) listen: Option<SocketAddr>,
}

/// Checks that the address can be listened on.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let Some(listen) = config.api.listen else { return Ok(()) };
    if listen.port() == 0 {
        return Err(fault("[api] listen", "port 0 is no port to connect to: name one, as in 127.0.0.1:9798"));
    }
    if config.images.as_ref().is_some_and(|images| images.listen == listen) {
        return Err(fault("[api] listen", format!("{listen} is the address of [images]: name another port")));
    }
    Ok(())
}
