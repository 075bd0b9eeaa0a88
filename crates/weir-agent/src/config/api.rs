//! `[api]`: the API over TCP.

use std::{net::SocketAddr, path::PathBuf};

use serde::Deserialize;

use super::{
    Config,
    fault::{Fault, fault},
};

/// The files of TLS in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pem {
    /// The certificate and those between it and its root.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// The place of the API over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) listen: SocketAddr,
    /// The files of TLS; without them there is no TLS.
    pub(crate) pem: Option<Pem>,
}

/// `[api]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Api {
    /// The address; none for no TCP.
    pub(crate) listen: Option<SocketAddr>,
    /// The certificate in PEM, with those between it and its root.
    certificate: Option<PathBuf>,
    /// Its key in PEM.
    key: Option<PathBuf>,
}

impl Api {
    /// The place of the API over TCP.
    pub(crate) fn place(&self) -> Option<Place> {
        let pem = self.certificate.clone().zip(self.key.clone());
        let pem = pem.map(|(certificate, key)| Pem { certificate, key });
        self.listen.map(|listen| Place { listen, pem })
    }
}

/// Checks that the address can be listened on, and that TLS has both of its files.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let api = &config.api;
    match (&api.certificate, &api.key) {
        (Some(_), None) => return Err(fault("[api] certificate", "it has no key: name that file as `key`")),
        (None, Some(_)) => {
            return Err(fault("[api] key", "it has no certificate: name that file as `certificate`"));
        }
        _ => {}
    }
    let Some(listen) = api.listen else {
        return match api.certificate {
            Some(_) => {
                Err(fault("[api] certificate", "there is nothing to serve: name an address as `listen`"))
            }
            None => Ok(()),
        };
    };
    if listen.port() == 0 {
        return Err(fault("[api] listen", "port 0 is no port to connect to: name one, as in 127.0.0.1:9798"));
    }
    if config.images.as_ref().is_some_and(|images| images.listen == listen) {
        return Err(fault("[api] listen", format!("{listen} is the address of [images]: name another port")));
    }
    Ok(())
}
