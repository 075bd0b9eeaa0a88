//! Real things to test against: network namespaces, a Docker daemon and a registry of one's own.
//!
//! A [`Dockerd`] lives in one network namespace, because dockerd rewrites the firewall of whatever
//! namespace it is in (its FORWARD policy is DROP), and in one temporary directory. Its image is
//! made from this machine's busybox and iperf3, so nothing is pulled. A part that cannot run here
//! is a value ([`Unavailable`]) whose text a test prints as the reason of its skip:
//!
//! ```no_run
//! use weir_testkit::{Dockerd, Netns};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let node = Netns::new("node")?;
//! let docker = match Dockerd::start(node.name()) {
//!     Ok(docker) => docker,
//!     Err(why) => {
//!         println!("skipped: {why}");
//!         return Ok(());
//!     }
//! };
//! docker.run("web", &[("weir.weight", "2")], &["--network", "bridge"], &["sleep", "60"])?;
//! docker.rm("web")?;
//! # Ok(())
//! # }
//! ```
//!
//! Everything is undone on drop: processes, mounts, cgroups, files. Drop the daemon before its
//! namespace (declare it after). [`sweep`] undoes what a process that was killed left behind;
//! [`Dockerd::start`] does it first.

pub mod api_server;
mod command;
mod docker_store;
mod dockerd;
mod documents;
pub mod frames;
mod image;
pub mod markdown;
mod netns;
mod registry;
mod remains;
mod stalls;

pub use command::{CommandError, Unavailable};
pub use docker_store::{Before, FakeDocker, FakeImage, Store};
pub use dockerd::Dockerd;
pub use documents::assert_generated;
pub use image::IMAGE;
pub use netns::Netns;
pub use registry::{LOGIN, Registry, image_of_noise, runnable_image};
pub use remains::sweep;
pub use stalls::{
    Late, Realtime, Stalls, in_virtual_time, measure_once, measure_unless_still, set_realtime, sleep_running,
    wait_within,
};
