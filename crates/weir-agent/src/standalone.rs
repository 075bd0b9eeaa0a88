//! The image cache as a process of its own, without an agent.

use std::path::{Path, PathBuf};

use tokio::signal::unix::{SignalKind, signal};

use crate::{
    config,
    images::{Images, OnFault},
    server::{self, Access, Socket},
};

/// Serves the image cache of the configuration at `config`, and its API on `socket`, until SIGTERM or
/// SIGINT. SIGHUP reads the configuration again.
///
/// # Errors
/// The configuration is refused, the socket or the mirror cannot be opened, or the mirror ended.
pub fn serve(config: &Path, socket: &Path) -> anyhow::Result<()> {
    let (settings, rights) = config::load_images(config)?;
    let bound = Socket::bind(socket, &rights)?;
    let access = Access::new(rights);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let docker = Some(PathBuf::from(weir_discovery::docker::SOCKET));
        let images = Images::start(settings, docker, OnFault::End)?;
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut hup = signal(SignalKind::hangup())?;
        let reload = async {
            while hup.recv().await.is_some() {
                let read = config::load_images(config).map_err(|e| e.to_string());
                let done = read.and_then(|(settings, rights)| {
                    images.reconfigure(settings)?;
                    server::admit(socket, &rights).map_err(|e| e.to_string())?;
                    access.set(rights);
                    Ok(())
                });
                if let Err(why) = done {
                    tracing::warn!("{} is refused, the old one stays in force: {why}", config.display());
                }
            }
        };
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let listener = bound.listener()?;
        tokio::select! {
            never = server::serve_images(listener, images.clone(), access.clone()) => match never {},
            why = images.fault() => anyhow::bail!("the image cache ended: {why}"),
            () = reload => {}
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        images.stop();
        Ok(())
    })
}
