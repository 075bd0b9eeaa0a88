//! A site of some nodes behind one link: a network namespace each, a switch, and a registry's far end.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use weir_api::Client;
use weir_netlab::{
    interrupt,
    topology::{Proc, command},
};
use weir_testkit::Netns;
use weir_units::{BitRate, Bytes};

use super::traffic::{Carried, DEVICE};

/// How long a daemon may take to be ready, on a machine that others use too.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Where a node's cache listens.
pub(super) const LISTEN: &str = "127.0.0.1:5050";
/// Where registries are.
pub(super) const FAR: [u8; 4] = [10, 88, 0, 254];
/// The switch's own address: Redis is there.
const SWITCH: &str = "10.88.0.200";
/// The secret by which nodes of a site know each other.
const SECRET: &str = "0123456789abcdef";

/// Where the blobs of a site are; who has a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing<'a> {
    /// Each node alone.
    Alone,
    /// A directory of all: for each node the path at which it has that.
    Dir(&'a [PathBuf]),
    /// Each node its own, which it gives to the others.
    Peers,
}

/// The configuration of a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheSetup<'a> {
    pub(super) weir: &'a Path,
    pub(super) sharing: Sharing<'a>,
    pub(super) budget: Bytes,
    pub(super) policy: weir_cache::PolicyKind,
    /// Seconds for which what is new stays.
    pub(super) keep_new_s: u64,
}

/// Namespaces, links and Redis; all of it goes on drop.
#[derive(Debug)]
pub(super) struct Site {
    redis: Option<Proc>,
    pub(super) dir: TempDir,
    pub(super) nodes: Vec<Netns>,
    pub(super) far: Netns,
    switch: Netns,
}

impl Site {
    /// * `uplink`: what comes from the far end is as fast as that; none: as fast as it goes.
    pub(super) fn build(nodes: usize, uplink: Option<BitRate>) -> Result<Site> {
        let named =
            |name: &str| Netns::new(name).with_context(|| format!("cannot make the namespace {name}"));
        let switch = named("switch")?;
        switch.ip(&["link", "add", "br0", "type", "bridge"])?;
        switch.ip(&["addr", "add", &format!("{SWITCH}/24"), "dev", "br0"])?;
        switch.ip(&["link", "set", "br0", "up"])?;
        let plug = |netns: &Netns, port: &str, host: u8| -> Result<()> {
            let peer = ["type", "veth", "peer", "name", port, "netns", switch.name()];
            netns.ip(&[&["link", "add", "up0"][..], &peer].concat())?;
            netns.ip(&["addr", "add", &format!("10.88.0.{host}/24"), "dev", "up0"])?;
            netns.ip(&["link", "set", "up0", "up"])?;
            switch.ip(&["link", "set", port, "master", "br0", "up"])?;
            Ok(())
        };
        let far = named("far")?;
        plug(&far, "far", FAR[3])?;
        if let Some(rate) = uplink {
            let rate = format!("{}bit", rate.0);
            let tbf = ["qdisc", "replace", "dev", "up0", "root", "tbf", "rate", &rate];
            let tbf = [&tbf[..], &["burst", "128kb", "latency", "100ms"]].concat();
            run(inside(&far, "tc").args(tbf))?;
        }
        let mut all = Vec::new();
        for n in 0..nodes {
            let node = named(&format!("node{}", n + 1))?;
            plug(&node, &format!("node{}", n + 1), u8::try_from(n + 1)?)?;
            all.push(node);
        }
        let dir = tempfile::Builder::new().prefix("weir-lab-pop-").tempdir()?;
        let secret = dir.path().join("secret");
        fs::write(&secret, SECRET)?;
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
        Ok(Site { redis: None, dir, nodes: all, far, switch })
    }

    /// Bytes that the far end has sent so far, with their headers.
    pub(super) fn sent(&self) -> Result<u64> {
        Ok(self.far.run_in(|| Carried::here(DEVICE))??.sent)
    }

    fn start_redis(&mut self) -> Result<()> {
        if self.redis.is_none() {
            let mut redis = inside(&self.switch, "redis-server");
            redis.args(["--port", "6379", "--bind", SWITCH, "--save", "", "--protected-mode", "no"]);
            redis.arg("--dir").arg(self.dir.path());
            self.redis = Some(Proc::start(redis)?);
            let answers = || std::net::TcpStream::connect((SWITCH, 6379)).is_ok();
            wait_for("redis-server", || self.switch.run_in(answers).is_ok_and(|is| is))?;
        }
        Ok(())
    }

    /// A cache on each node, empty; `weir image serve` as on a real one.
    pub(super) fn caches(&mut self, setup: CacheSetup<'_>, registry: &str, run: &str) -> Result<Vec<Cache>> {
        if setup.sharing != Sharing::Alone {
            self.start_redis()?;
        }
        (0..self.nodes.len()).map(|n| self.cache(n, setup, registry, run)).collect()
    }

    fn cache(&self, n: usize, setup: CacheSetup<'_>, registry: &str, run: &str) -> Result<Cache> {
        let at = self.dir.path().join(format!("{run}-{n}"));
        fs::create_dir_all(&at)?;
        let store = match setup.sharing {
            Sharing::Dir(paths) => paths[n].join(format!("store-{run}")),
            Sharing::Alone | Sharing::Peers => at.join("store"),
        };
        let (dir, host) = (self.dir.path().display(), n + 1);
        let site = match setup.sharing {
            Sharing::Alone => String::new(),
            Sharing::Dir(_) => "store = \"shared-dir\"\n".to_owned(),
            Sharing::Peers => {
                format!(
                    "store = \"peer\"\nlisten = \"10.88.0.{host}:5051\"\nsecret_file = \"{dir}/secret\"\n"
                )
            }
        };
        let pop = format!(
            "[images.pop]\nredis = \"redis://{SWITCH}:6379\"\nname = \"{run}\"\nnode = \"node{host}\"\n"
        );
        let config = format!(
            "[images]\nlisten = \"{LISTEN}\"\ndirectory = \"{}\"\nbudget = {}\npolicy = \"{}\"\n\
             keep_free = \"0\"\nkeep_new_s = {}\ntag_ttl_s = 3600\nany_registry = false\n\
             containerd = \"/run/weir-lab/none.sock\"\n\
             [[images.upstream]]\nregistry = \"docker.io\"\nurl = \"http://{registry}\"\n{}",
            store.display(),
            setup.budget.0,
            setup.policy,
            setup.keep_new_s,
            if site.is_empty() { String::new() } else { pop + &site }
        );
        let file = at.join("weir.toml");
        fs::write(&file, config)?;
        let socket = at.join("weir.sock");
        let mut serve = inside(&self.nodes[n], &setup.weir.to_string_lossy());
        serve.arg("--socket").arg(&socket).args(["image", "serve", "--config"]).arg(&file);
        serve.env("WEIR_LOG", "warn");
        let mut process = Proc::start(serve)?;
        let client = Client::new(&socket);
        let ready = wait_for("weir image serve", || client.image_usage().is_ok());
        if let Err(e) = ready {
            let _ = process.stop(Duration::from_secs(1));
            let said = process.output().map(|output| output.stderr).unwrap_or_default();
            bail!("{e:#}: {}", said.lines().last().unwrap_or_default());
        }
        Ok(Cache(process))
    }
}

/// A node's cache; it ends on drop.
#[derive(Debug)]
pub(super) struct Cache(Proc);

impl Cache {
    pub(super) fn stop(mut self) {
        let _ = self.0.stop(Duration::from_secs(5));
    }
}

/// A command in a namespace; it dies with this process.
pub(super) fn inside(netns: &Netns, program: &str) -> std::process::Command {
    let mut inside = command("nsenter");
    inside.arg(format!("--net={}", netns.path().display())).arg("--").arg(program);
    inside
}

/// Runs a command to its end.
pub(super) fn run(command: &mut std::process::Command) -> Result<()> {
    let done = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !done.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

pub(super) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !is_so() {
        interrupt::check()?;
        if begun.elapsed() > READY_TIMEOUT {
            bail!("{what} was not ready within {READY_TIMEOUT:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
