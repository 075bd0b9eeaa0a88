//! GlusterFS over FUSE: a brick on each node, files distributed over all, one copy; what the paper's
//! third scenario is. Volumes are given by file, as glusterd would have written them: no daemon, nothing
//! outside of a directory.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use weir_netlab::topology::Proc;

use super::site::{Site, inside, run, wait_for};

/// Mounted on every node; unmounted on drop.
#[derive(Debug)]
pub(super) struct Gluster {
    pub(super) mounts: Vec<PathBuf>,
    _processes: Vec<Proc>,
}

impl Gluster {
    pub(super) fn start(site: &Site) -> Result<Gluster> {
        let base = site.dir.path().join("gluster");
        let mut gluster = Gluster { mounts: Vec::new(), _processes: Vec::new() };
        let mut client = String::new();
        for (n, node) in site.nodes.iter().enumerate() {
            let at = base.join(format!("node{}", n + 1));
            fs::create_dir_all(at.join("brick"))?;
            let file = at.join("brick.vol");
            fs::write(&file, brick(&at.join("brick"), n + 1))?;
            let mut serve = inside(node, "glusterfsd");
            serve.arg("--no-daemon").arg("-f").arg(&file).arg("-l").arg(at.join("brick.log"));
            gluster._processes.push(Proc::start(serve)?);
            let _ = write!(
                client,
                "volume client{0}\n type protocol/client\n option transport-type tcp\n \
                 option remote-host 10.88.0.{0}\n option remote-port 24100\n option remote-subvolume /brick\n\
                 end-volume\n",
                n + 1
            );
        }
        let all: Vec<String> = (1..=site.nodes.len()).map(|n| format!("client{n}")).collect();
        let _ = write!(
            client,
            "volume all\n type cluster/distribute\n subvolumes {}\nend-volume\n",
            all.join(" ")
        );
        let file = base.join("client.vol");
        fs::write(&file, client)?;
        for (n, node) in site.nodes.iter().enumerate() {
            let at = base.join(format!("node{}", n + 1));
            let mount = at.join("mount");
            fs::create_dir_all(&mount)?;
            let before = fs::metadata(&mount)?.dev();
            let mut fuse = inside(node, "glusterfs");
            fuse.arg("--no-daemon").arg("-f").arg(&file).arg("-l").arg(at.join("client.log")).arg(&mount);
            gluster._processes.push(Proc::start(fuse)?);
            gluster.mounts.push(mount.clone());
            // Its bricks may not listen yet.
            let works = || {
                fs::metadata(&mount).is_ok_and(|meta| meta.dev() != before)
                    && fs::write(mount.join(format!("node{n}")), "").is_ok()
            };
            wait_for("GlusterFS", works).with_context(|| last_error(&at.join("client.log")))?;
        }
        Ok(gluster)
    }
}

impl Drop for Gluster {
    fn drop(&mut self) {
        for mount in &self.mounts {
            if let Err(e) = run(Command::new("umount").arg("-l").arg(mount)) {
                eprintln!("{e:#}");
            }
        }
    }
}

fn brick(directory: &Path, host: usize) -> String {
    format!(
        "volume posix\n type storage/posix\n option directory {}\nend-volume\n\
         volume locks\n type features/locks\n subvolumes posix\nend-volume\n\
         volume /brick\n type performance/io-threads\n subvolumes locks\nend-volume\n\
         volume server\n type protocol/server\n option transport-type tcp\n \
         option transport.socket.bind-address 10.88.0.{host}\n option transport.socket.listen-port 24100\n \
         option auth.addr./brick.allow *\n subvolumes /brick\nend-volume\n",
        directory.display()
    )
}

fn last_error(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let error = text.lines().rev().find(|line| line.contains(" E "));
    error.unwrap_or("its log has no error").to_owned()
}
