//! Deployments by real Docker and containerd: Table III.

use std::{fs, path::PathBuf, time::Instant};

use anyhow::{Context, Result, bail};
use weir_cache::PolicyKind;
use weir_netlab::interrupt;
use weir_testkit::{Dockerd, Registry, runnable_image};
use weir_units::Bytes;

use super::{
    gluster::Gluster,
    report::Report,
    scenario::{Client, Deployments, Missing, Row, Store},
    site::{Cache, CacheSetup, FAR, LISTEN, Sharing, Site, inside, wait_for},
    traffic,
};

use crate::options::Options;

/// Port of the registry.
const PORT: u16 = 5000;
/// Enough for all: nothing is evicted here.
const BUDGET: Bytes = Bytes(4 << 30);

/// Runs all of it; `watch` is told of every store before its turn, in words.
///
/// # Errors
/// A needed part is not here, a pull fails, or on Ctrl-C.
pub(crate) fn run(scenario: &Deployments, options: &Options, watch: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut site = Site::build(scenario.nodes, Some(scenario.uplink))?;
    let registry = Registry::start(&site.far, (FAR, PORT).into(), true)?;
    for image in &scenario.images {
        for client in Client::BOTH {
            let seed = options.seed.wrapping_mul(31).wrapping_add(client as u64);
            let layers: Vec<u64> = image.layers.iter().map(|bytes| bytes.0).collect();
            let dir = site.dir.path().join(format!("image-{}-{}", image.name, client.name()));
            let made = runnable_image(&dir, &layers, seed ^ layers.iter().sum::<u64>())?;
            registry.push(&made, &name(&image.name, client))?;
            fs::remove_dir_all(dir)?;
        }
    }
    let daemons: Vec<Dockerd> =
        site.nodes.iter().map(|node| Dockerd::start(node.name())).collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    let mut missing: Vec<Missing> = Vec::new();
    for nth in 0..scenario.repetitions {
        for &store in &scenario.stores {
            interrupt::check()?;
            watch(&format!("{}, {} of {}", store.name(), nth + 1, scenario.repetitions));
            if missing.iter().any(|missing| missing.store == store) {
                continue;
            }
            let served = match serve(&mut site, store, options, nth) {
                Ok(served) => served,
                Err(e) => {
                    missing.push(Missing { store, why: format!("{e:#}") });
                    continue;
                }
            };
            let mirror = if store == Store::None { format!("{}:{PORT}", far()) } else { LISTEN.to_owned() };
            daemons.iter().try_for_each(|docker| point(docker, &mirror))?;
            for client in Client::BOTH {
                for image in &scenario.images {
                    let before = site.sent()?;
                    let image_name = name(&image.name, client);
                    let (mut deployment_s, mut network) = (Vec::new(), Vec::new());
                    for (node, docker) in daemons.iter().enumerate() {
                        interrupt::check()?;
                        let work = || deploy(&site, node, docker, client, &image_name);
                        let (took_s, seen) = traffic::during(&site.nodes[node], work)?;
                        deployment_s.push(took_s);
                        network.push(seen);
                    }
                    let upstream = Bytes(site.sent()? - before);
                    let again_s = timed(|| start(&site, 0, &daemons[0], client, &image_name))?;
                    let image = image.name.clone();
                    rows.push(Row { image, client, store, deployment_s, again_s, network, upstream });
                    for docker in &daemons {
                        forget(docker, client, &image_name)?;
                    }
                }
            }
            served.caches.into_iter().for_each(Cache::stop);
        }
    }
    drop(daemons);
    Ok(Report::deployments(scenario, options.seed, rows, missing))
}

fn far() -> std::net::Ipv4Addr {
    FAR.into()
}

fn name(image: &str, client: Client) -> String {
    format!("lab/{image}-{}:1", client.name())
}

/// The server of a store. The file system outlives the caches.
struct Served {
    caches: Vec<Cache>,
    _gluster: Option<Gluster>,
}

fn serve(site: &mut Site, store: Store, options: &Options, nth: usize) -> Result<Served> {
    let gluster = if store == Store::Gluster { Some(Gluster::start(site)?) } else { None };
    let local: Vec<PathBuf> = site.nodes.iter().map(|_| site.dir.path().to_owned()).collect();
    let sharing = match (store, &gluster) {
        (Store::None, _) => return Ok(Served { caches: Vec::new(), _gluster: None }),
        (Store::Peer, _) => Sharing::Peers,
        (_, Some(gluster)) => Sharing::Dir(&gluster.mounts),
        (_, None) => Sharing::Dir(&local),
    };
    let setup = CacheSetup {
        weir: &options.weir,
        sharing,
        budget: BUDGET,
        policy: PolicyKind::Auto,
        keep_new_s: 120,
    };
    let caches = site.caches(setup, &format!("{}:{PORT}", far()), &format!("{}-{nth}", store.name()))?;
    Ok(Served { caches, _gluster: gluster })
}

/// Has Docker and containerd ask there first.
fn point(docker: &Dockerd, mirror: &str) -> Result<()> {
    let file = docker.root().join("etc/docker/daemon.json");
    let mut daemon: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    daemon["registry-mirrors"] = serde_json::json!([format!("http://{mirror}")]);
    fs::write(&file, daemon.to_string())?;
    docker.reload()?;
    let format = "{{.RegistryConfig.Mirrors}}";
    let has = || docker.docker(&["info", "--format", format]).is_ok_and(|said| said.contains(mirror));
    wait_for("Docker's mirror", has)?;
    let hosts = docker.root().join("hosts/_default");
    fs::create_dir_all(&hosts)?;
    let text = format!("[host.\"http://{mirror}\"]\n  capabilities = [\"pull\", \"resolve\"]\n");
    fs::write(hosts.join("hosts.toml"), text).context("cannot write hosts.toml")
}

/// The time of some work, s.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Pulls an image and starts a container from it, which ends at once; s.
fn deploy(site: &Site, node: usize, docker: &Dockerd, client: Client, image: &str) -> Result<f64> {
    timed(|| {
        match client {
            Client::Docker => docker.docker(&["pull", "--quiet", image]).map(drop)?,
            Client::Containerd => {
                let hosts = docker.root().join("hosts");
                let hosts = hosts.to_string_lossy();
                let image = format!("docker.io/{image}");
                ctr(site, node, docker, &["images", "pull", "--hosts-dir", &hosts, &image])?;
            }
        }
        start(site, node, docker, client, image)
    })
}

/// Starts a container from an image of this node. The container ends at once.
fn start(site: &Site, node: usize, docker: &Dockerd, client: Client, image: &str) -> Result<()> {
    match client {
        Client::Docker => Ok(docker.docker(&["run", "--rm", "--network", "none", image]).map(drop)?),
        Client::Containerd => {
            let image = format!("docker.io/{image}");
            ctr(site, node, docker, &["run", "--rm", &image, &format!("lab-{node}")])
        }
    }
}

fn ctr(site: &Site, node: usize, docker: &Dockerd, args: &[&str]) -> Result<()> {
    let mut ctr = inside(&site.nodes[node], "ctr");
    ctr.arg("--address").arg(docker.containerd_socket()).arg("--namespace").arg("lab").args(args);
    let done = ctr.output().context("cannot run ctr")?;
    if !done.status.success() {
        bail!("ctr {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// Takes an image from a node.
fn forget(docker: &Dockerd, client: Client, image: &str) -> Result<()> {
    match client {
        Client::Docker => docker.docker(&["rmi", "--force", image]).map(|_| ()).map_err(Into::into),
        Client::Containerd => {
            let mut ctr = weir_netlab::topology::command("ctr");
            ctr.arg("--address").arg(docker.containerd_socket()).args(["--namespace", "lab", "images", "rm"]);
            super::site::run(ctr.arg("--sync").arg(format!("docker.io/{image}")))
        }
    }
}
