//! `weir image`: the image cache of this node, and the setup of container runtimes for it.

mod doctor;
mod runtime;
mod runtimes;
mod setup;
mod step;
mod verbs;

#[cfg(test)]
mod tests;

use std::{path::Path, process::ExitCode};

use clap::{Args, Subcommand};

use super::{Session, lab};

/// The socket of the unit `weir-images.service`.
const UNIT_SOCKET: &str = "/run/weir-images/weir.sock";

const EXAMPLES: &str = "Examples:
  weir image setup                       point runtimes at the cache
  weir image doctor                      does it work, all the way?
  weir image ls                          what is here
  weir image df                          how full it is, and what it saved
  weir image runtime                     what Docker keeps itself
  weir image warm nginx:1.27             fetch it before a client asks
  weir image pin 'ghcr.io/acme/*:prod'   keep these
  weir image scrub                       is all of it still what it was?
  weir image undo                        take the set-up back
  weir image simulate --zone fra         sizes and policies (weir-lab)

Each image is pulled over the uplink once and served from here from then on;
[images] in the configuration turns it on, with a budget of 64MiB at least.
Docker without the containerd image store asks it for Docker Hub only; for
other registries name it in the image: 127.0.0.1:5050/ghcr.io/acme/app:1";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ImageArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Point Docker, containerd, Podman, CRI-O, k3s and RKE2 at the cache
    Setup(setup::SetupArgs),
    /// Take back what setup did, to the byte
    Undo(setup::UndoArgs),
    /// Check the way from the container runtimes to the registries
    Doctor(doctor::DoctorArgs),
    /// List the images of the cache
    Ls,
    /// Show how full the cache is, and what it saved
    Df,
    /// List the images that Docker keeps itself, with the reasons why they stay or go
    #[command(after_help = runtime::EXAMPLES)]
    Runtime,
    /// Keep images, whatever else has to go
    Pin(verbs::PinArgs),
    /// Remove images
    Rm(verbs::RmArgs),
    /// Evict what is neither pinned nor in use
    Prune(verbs::PruneArgs),
    /// Fetch an image before a client asks for it
    Warm(verbs::WarmArgs),
    /// Check all that is here against its digests, now
    Scrub(verbs::ScrubArgs),
    /// Serve the cache without an agent, until told to stop
    Serve(verbs::ServeArgs),
    /// Simulate caches of some sizes and policies (runs `weir-lab image simulate`)
    #[command(disable_help_flag = true)]
    Simulate(lab::Forwarded),
    /// Write a trace like that of a registry (runs `weir-lab image generate`)
    #[command(disable_help_flag = true)]
    Generate(lab::Forwarded),
}

/// The socket to ask. The unit's socket is used if it exists and no other one is named.
fn socket_to_ask<'a>(named: &'a Path, unit: &'a Path) -> &'a Path {
    if named == Path::new(weir_api::DEFAULT_SOCKET) && unit.exists() { unit } else { named }
}

/// Prints as `weir image df` and `weir image ls` do.
pub(super) fn overview(session: &mut Session<'_>) -> anyhow::Result<()> {
    run(ImageArgs { verb: Verb::Df }, session)?;
    writeln!(session.out)?;
    run(ImageArgs { verb: Verb::Ls }, session)?;
    Ok(())
}

pub(super) fn run(args: ImageArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    // The budget of Docker's images is the agent's, whichever process serves the cache.
    if !matches!(args.verb, Verb::Serve(_) | Verb::Runtime)
        && let Some(named) = session.client.socket()
    {
        let socket = socket_to_ask(named, Path::new(UNIT_SOCKET)).to_owned();
        session.client = weir_api::Client::new(socket);
    }
    match args.verb {
        Verb::Setup(args) => setup::setup(&args, session),
        Verb::Undo(args) => setup::undo(&args, session),
        Verb::Doctor(args) => doctor::run(&args, session),
        Verb::Ls => verbs::ls(session),
        Verb::Df => verbs::df(session),
        Verb::Runtime => runtime::run(session),
        Verb::Pin(args) => verbs::pin(args, session),
        Verb::Rm(args) => verbs::rm(&args, session),
        Verb::Prune(args) => verbs::prune(&args, session),
        Verb::Warm(args) => verbs::warm(args, session),
        Verb::Scrub(args) => verbs::scrub(&args, session),
        Verb::Serve(args) => verbs::serve(&args, session),
        Verb::Simulate(args) => lab::run(&["image", "simulate"], &args),
        Verb::Generate(args) => lab::run(&["image", "generate"], &args),
    }
}
