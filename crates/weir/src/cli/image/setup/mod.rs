//! `weir image setup` and `undo`: merge settings into the files of container runtimes, and restore the files.

mod block;
pub(super) mod containerd;
mod daemon;
mod files;
mod rancher;
pub(super) mod registries;

#[cfg(test)]
mod tests;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use weir_image::{Registry, Settings};

use super::super::Session;
use files::Edit;

const SETUP_EXAMPLES: &str = "Examples:
  weir image setup                          each runtime that is here
  weir image setup --dry-run                only say what would be written
  weir image setup --only docker,podman
  weir image setup --registry a.example     Podman, CRI-O: this registry too

Files that are there are added to, never replaced: a host in hosts.toml, a
mirror in daemon.json, registries.conf or registries.yaml. Weir's lines stand
between two lines of comment. The registries stay the fallback: if weir does
not run, pulls go there.";

#[derive(Debug, Args)]
#[command(after_help = SETUP_EXAMPLES)]
pub(super) struct SetupArgs {
    /// Only these
    #[arg(long, value_name = "RUNTIMES", value_delimiter = ',')]
    only: Vec<Runtime>,
    /// Where the cache listens; else as the configuration says
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Another registry, for Podman and CRI-O, which know no mirror of all registries
    #[arg(long, value_name = "REGISTRY")]
    registry: Vec<Registry>,
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "/etc/weir/weir.toml")]
    config: PathBuf,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Take this directory for the root of the file system
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct UndoArgs {
    /// Take this directory for the root of the file system
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// A program that pulls images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Runtime {
    Docker,
    Containerd,
    Podman,
    Buildah,
    #[value(alias = "crio")]
    CriO,
    K3s,
    Rke2,
}

impl Runtime {
    /// Its program, and the directory of its files.
    fn signs(self) -> (&'static str, &'static str) {
        match self {
            Runtime::Docker => ("dockerd", "etc/docker"),
            Runtime::Containerd => ("containerd", "etc/containerd"),
            Runtime::Podman => ("podman", "etc/containers"),
            Runtime::Buildah => ("buildah", "etc/containers"),
            Runtime::CriO => ("crio", "etc/crio"),
            Runtime::K3s => ("k3s", "etc/rancher/k3s"),
            Runtime::Rke2 => ("rke2", "etc/rancher/rke2"),
        }
    }

    fn is_here(self, root: &Path) -> bool {
        let (program, dir) = self.signs();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            || std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|d| d.join(program).exists());
        root.join(dir).is_dir() || (root == Path::new("/") && found())
    }
}

/// The registries that most images come from.
const USUAL: [&str; 9] = [
    "docker.io",
    "ghcr.io",
    "quay.io",
    "registry.k8s.io",
    "gcr.io",
    "mcr.microsoft.com",
    "public.ecr.aws",
    "registry.gitlab.com",
    "registry.access.redhat.com",
];

/// The cache, as runtimes see it.
#[derive(Debug)]
struct Mirror {
    listen: SocketAddr,
    /// For runtimes without a mirror of all registries.
    registries: Vec<Registry>,
}

impl Mirror {
    fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    /// * `settings`: `[images]`, if it can be read.
    fn new(listen: SocketAddr, settings: Option<&Settings>, more: &[Registry]) -> Mirror {
        let mut registries: Vec<Registry> = Vec::new();
        let usual = USUAL.iter().filter_map(|name| name.parse().ok());
        let usual: Vec<Registry> =
            if settings.is_none_or(|s| s.any_registry) { usual.collect() } else { vec![] };
        let named = settings.into_iter().flat_map(|s| s.upstreams.iter().map(|upstream| &upstream.registry));
        for registry in usual.iter().chain(named).chain(more) {
            if !registries.contains(registry) {
                registries.push(registry.clone());
            }
        }
        Mirror { listen, registries }
    }
}

/// The edits of a setup, and what to know of it.
#[derive(Debug, Default)]
struct Plan {
    edits: Vec<Edit>,
    notes: Vec<String>,
}

impl Plan {
    /// An edit of a text with blocks. `add` gets the text without them.
    fn edit(
        &mut self,
        path: PathBuf,
        then: &str,
        add: impl FnOnce(&str) -> Result<String, String>,
    ) -> anyhow::Result<()> {
        let refuse = |why| files::refuse(&path, why);
        let now = files::read(&path)?.unwrap_or_default();
        let (text, _) = block::split(&now).map_err(refuse)?;
        let after = add(&text).map_err(refuse)?;
        self.edits.push(Edit { path, after, then: then.to_owned() });
        Ok(())
    }

    fn docker(&mut self, root: &Path, mirror: &Mirror) -> anyhow::Result<()> {
        let then = "systemctl reload docker";
        let path = root.join("etc/docker/daemon.json");
        let now = files::read(&path)?;
        let after = daemon::add(now.as_deref(), &mirror.url()).map_err(|why| files::refuse(&path, why))?;
        self.edits.push(Edit { path, after, then: then.to_owned() });
        // This file is for Docker with the containerd image store. Other versions do not read it.
        let hosts = root.join("etc/docker/certs.d/_default/hosts.toml");
        self.edit(hosts, then, |text| containerd::add_host(text, mirror))
    }

    fn containerd(&mut self, root: &Path, mirror: &Mirror) -> anyhow::Result<()> {
        let config = containerd::Config::read(root)?;
        let hosts = root.join(config.directory()).join("_default/hosts.toml");
        let then = "nothing: containerd reads it at each pull";
        self.edit(hosts, then, |text| containerd::add_host(text, mirror))?;
        self.notes.extend(config.notes(root));
        Ok(())
    }

    fn rancher(&mut self, root: &Path, runtime: Runtime, mirror: &Mirror) -> anyhow::Result<()> {
        let (path, then) = match runtime {
            Runtime::Rke2 => {
                ("etc/rancher/rke2", "systemctl restart rke2-server (rke2-agent on an agent node)")
            }
            _ => ("etc/rancher/k3s", "systemctl restart k3s (k3s-agent on an agent node)"),
        };
        self.edit(root.join(path).join("registries.yaml"), then, |text| rancher::add(text, mirror))
    }

    fn of(runtimes: &[Runtime], root: &Path, mirror: &Mirror) -> anyhow::Result<Plan> {
        let mut plan = Plan::default();
        let wants = |some: &[Runtime]| runtimes.iter().any(|runtime| some.contains(runtime));
        if wants(&[Runtime::Docker]) {
            plan.docker(root, mirror)?;
        }
        if wants(&[Runtime::Containerd]) {
            plan.containerd(root, mirror)?;
        }
        if wants(&[Runtime::Podman, Runtime::Buildah, Runtime::CriO]) {
            registries::plan(root, mirror, &mut plan)?;
        }
        for runtime in [Runtime::K3s, Runtime::Rke2] {
            if wants(&[runtime]) {
                plan.rancher(root, runtime, mirror)?;
            }
        }
        plan.edits = files::changing(root, plan.edits)?;
        Ok(plan)
    }
}

/// The cache by the arguments and the configuration, and why the configuration is not read.
fn mirror(args: &SetupArgs) -> anyhow::Result<(Mirror, Option<String>)> {
    let settings = weir_agent::config::load_images(&args.config).map(|(settings, _)| settings);
    if let Some(listen) = args.listen.filter(|listen| !listen.ip().is_loopback()) {
        anyhow::bail!(
            "cannot set up runtimes for --listen {listen}: {} is not a loopback address, and what the cache serves has \
             no TLS (`listen` of [images] is one of 127.0.0.0/8, or [::1])",
            listen.ip()
        );
    }
    match (args.listen, settings) {
        (listen, Ok(settings)) => {
            let listen = listen.unwrap_or(settings.listen);
            Ok((Mirror::new(listen, Some(&settings), &args.registry), None))
        }
        (Some(listen), Err(why)) => {
            let note = format!("the registries are the usual ones and those of --registry: {why}");
            Ok((Mirror::new(listen, None, &args.registry), Some(note)))
        }
        (None, Err(why)) => Err(why).context("cannot tell where the cache listens (`--listen` says it too)"),
    }
}

pub(super) fn setup(args: &SetupArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let (mirror, unread) = mirror(args)?;
    let listen = mirror.listen.to_string();
    if let Some(record) = files::record(&args.root)?
        && !record.files.is_empty()
        && record.listen != listen
    {
        anyhow::bail!("the set-up for {} is in place: `weir image undo` first", record.listen);
    }
    let runtimes: Vec<Runtime> = match &args.only[..] {
        [] => Runtime::value_variants().iter().copied().filter(|r| r.is_here(&args.root)).collect(),
        only => only.to_vec(),
    };
    if runtimes.is_empty() {
        anyhow::bail!(
            "no runtime is here (docker, containerd, podman, buildah, cri-o, k3s, rke2): nothing was set up \
             (`--only` insists)"
        );
    }
    let mut plan = Plan::of(&runtimes, &args.root, &mirror)?;
    let lists = |runtime: &Runtime| matches!(runtime, Runtime::Podman | Runtime::Buildah | Runtime::CriO);
    plan.notes.extend(unread.filter(|_| runtimes.iter().any(lists)));
    if !args.dry_run && !plan.edits.is_empty() {
        files::commit(&args.root, &listen, &plan.edits)?;
    }
    let paths: Vec<String> = plan.edits.iter().map(|edit| edit.path.display().to_string()).collect();
    session.print(&paths, |out, _| {
        if plan.edits.is_empty() {
            writeln!(out, "all is in place for {}", mirror.url())?;
        }
        for Edit { path, after, then } in &plan.edits {
            let path = path.display();
            if args.dry_run {
                writeln!(out, "would write {path}:\n{after}")?;
            } else {
                writeln!(out, "{path} names {}; to be read it needs: {then}", mirror.url())?;
            }
        }
        plan.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn undo(args: &UndoArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let Some(record) = files::record(&args.root)? else {
        anyhow::bail!(
            "there is no set-up to undo ({} is not there)",
            files::record_file(&args.root).display()
        );
    };
    let mut said = files::undo(&args.root, &record)?;
    let touched = |name: &str| record.files.iter().any(|file| file.path.ends_with(name));
    if touched("daemon.json") {
        // A reload does not remove mirrors that are no longer in the file.
        let forgets = "dockerd forgets its mirror when it is restarted, not when it is reloaded; until then it \
                       asks the registry itself when the mirror does not answer";
        said.push(forgets.to_owned());
    }
    if touched("registries.yaml") {
        said.push("k3s and RKE2 forget their mirror when they are restarted".to_owned());
    }
    if record.files.iter().any(|file| file.path.extension().is_some_and(|extension| extension == "conf")) {
        said.push("CRI-O forgets its mirror by `systemctl reload crio`, Podman at the next pull".to_owned());
    }
    session.print(&said, |out, _| said.iter().try_for_each(|line| writeln!(out, "{line}")))?;
    Ok(ExitCode::SUCCESS)
}
