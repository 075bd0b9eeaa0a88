//! The certificate of the API over TCP. It is read again when its files change.

use std::{
    fs::{self, Metadata},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::config::Pem;

/// When both files were changed, as far as they are there.
type Changed = [Option<SystemTime>; 2];

/// The certificate in use.
#[derive(Debug)]
pub(super) struct Certificate {
    pem: Pem,
    changed: Changed,
    config: Arc<ServerConfig>,
    /// The reason why the present files are not in use.
    pub(super) failure: Option<String>,
}

impl Certificate {
    /// # Errors
    /// The files cannot be used.
    pub(super) fn open(pem: Pem) -> Result<Certificate, String> {
        let changed = pem.changed();
        let config = pem.load()?;
        Ok(Certificate { pem, changed, config, failure: None })
    }

    /// The certificate for another connection. A changed one that cannot be used leaves the old one in use.
    pub(super) fn present(&mut self) -> Arc<ServerConfig> {
        let changed = self.pem.changed();
        if changed != self.changed {
            self.changed = changed;
            match self.pem.load() {
                Ok(config) => (self.config, self.failure) = (config, None),
                Err(why) => self.failure = Some(format!("{why}; the one before stays in use")),
            }
        }
        Arc::clone(&self.config)
    }
}

fn metadata(path: &Path) -> Result<Metadata, String> {
    fs::metadata(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

impl Pem {
    fn changed(&self) -> Changed {
        [&self.certificate, &self.key].map(|path| fs::metadata(path).and_then(|found| found.modified()).ok())
    }

    /// # Errors
    /// The files cannot be used, with the reason.
    pub(crate) fn load(&self) -> Result<Arc<ServerConfig>, String> {
        let cannot = |path: &Path, why: &dyn std::fmt::Display| {
            format!("cannot use {} for TLS of `[api]`: {why}", path.display())
        };
        if metadata(&self.key)?.permissions().mode() & 0o007 != 0 {
            let why = "all users may open it; take that away with `chmod o-rwx`";
            return Err(cannot(&self.key, &why));
        }
        let certificates = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| cannot(&self.certificate, &e))?;
        if certificates.is_empty() {
            return Err(cannot(&self.certificate, &"it has no certificate in PEM"));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| cannot(&self.key, &e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| cannot(&self.certificate, &e))?.with_no_client_auth();
        let mut config =
            builder.with_single_cert(certificates, key).map_err(|e| cannot(&self.certificate, &e))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
